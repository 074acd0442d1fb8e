"""What the search decides at once: chains of elementwise operators, and identical layers.

Elementwise operators of one phase that follow one another on the same axes are one entity. Sums of
two such tensors stand alone, outside the optimizer: there, where branches of a model meet, states
change. Entities that look alike from within and from around are one class, found by colour
refinement (Weisfeiler and Leman, 1968) of few rounds, so that layers that are alike and do not
touch the first or the last one are one, however many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

from tensorstate.ir.graph import Edge, Member, Node, Operator, Output, Tensor

ROUNDS = 2

Classes = tuple[tuple[int, ...], ...]


def group_nodes(
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[Output],
    stages: Sequence[Hashable] | None = None,
) -> tuple[tuple[Node, ...], Classes, tuple[Edge, ...]]:
    """The entities of a graph, their classes, and the edges between them.

    Args:
        stages: of every operator, if not all run in the same stage of the step; what is decided at
            once does.
    """
    stages = stages or [None] * len(operators)
    clusters = _fused_chains(tensors, operators, stages)
    nodes = [_chain(i, members, operators) for i, members in enumerate(clusters)]
    for tensor in tensors:
        if tensor.producer is None:  # also what nothing reads: it takes memory
            nodes.append(_input_node(len(nodes), tensor))
    edges = _edges(nodes, tensors, operators)
    groups = _refine(nodes, edges, tensors, operators, outputs, stages)
    classes: list[list[int]] = [[] for _ in range(max(groups, default=-1) + 1)]
    for node, class_id in zip(nodes, groups, strict=True):
        classes[class_id].append(node.index)
    tied = tuple(
        dataclasses.replace(e, class_id=class_id) for e, class_id in zip(nodes, groups, strict=True)
    )
    return tied, tuple(map(tuple, classes)), edges


def _chain(index: int, members: list[Member], operators: Sequence[Operator]) -> Node:
    first = operators[members[0].operator]
    need_replication = {
        m.labels[label] for m in members for label in operators[m.operator].need_replication
    }
    return Node(
        index,
        first.kind,
        first.phase,
        first.sizes,
        frozenset(need_replication),
        tuple(members),
        None,
        -1,
    )


def _input_node(index: int, tensor: Tensor) -> Node:
    """An input: a PartitionSpec cuts dimensions, so only the major part of each can be sharded."""
    minor = frozenset(position for one in tensor.array_dims or () for position in one[1:])
    return Node(index, "input", None, tensor.sizes, minor, (), tensor.index, -1)


# ---------------------------------------------------------------------- chains


def _fused_chains(
    tensors: Sequence[Tensor], operators: Sequence[Operator], stages: Sequence[Hashable]
) -> list[list[Member]]:
    """The operators of every entity, with their labels in those of its first."""
    of = list(range(len(operators)))
    labels = [tuple(range(len(operator.sizes))) for operator in operators]
    members = [[i] for i in of]
    for operator in operators:
        if not _can_fuse(operator):
            continue
        for use in operator.operands:
            producer = tensors[use.tensor].producer
            if producer is None or stages[producer] != stages[operator.index]:
                continue
            if not _fuses_with(operator, operators[producer], use.labels):
                continue
            made = operators[producer].results[tensors[use.tensor].result].labels
            a, b = of[producer], of[operator.index]
            if a == b:
                continue
            pairs = zip(use.labels, made, strict=True)
            rename = {labels[operator.index][y]: labels[producer][x] for y, x in pairs}
            for i in members[b]:
                labels[i] = tuple(rename[label] for label in labels[i])
                of[i] = a
            members[a] += members[b]
            members[b] = []
    return [_members(sorted(one), labels) for one in members if one]


def _members(operators: list[int], labels: Sequence[tuple[int, ...]]) -> list[Member]:
    """Labels renamed so that the first operator's are its own."""
    own = {label: i for i, label in enumerate(labels[operators[0]])}
    return [Member(i, tuple(own[label] for label in labels[i])) for i in operators]


def _can_fuse(operator: Operator) -> bool:
    """Whether an operator may be part of a chain.

    Operators on scalars may not: one that many layers read would tell them apart.
    """
    if operator.kind != "elementwise" or len(operator.results) != 1 or not operator.sizes:
        return False
    full = sum(_has_all_labels(operator, use.labels) for use in operator.operands)
    joins = operator.primitive in ("add", "add_any") and full > 1
    return not joins or operator.phase == "optimizer"


def _fuses_with(operator: Operator, producer: Operator, labels: Sequence[int]) -> bool:
    return (
        producer.phase == operator.phase
        and len(producer.sizes) == len(operator.sizes)
        and _has_all_labels(operator, labels)
        and _can_fuse(producer)
    )


def _has_all_labels(operator: Operator, labels: Sequence[int]) -> bool:
    return len(labels) == len(operator.sizes)


# ---------------------------------------------------------------------- edges


def _edges(
    nodes: Sequence[Node], tensors: Sequence[Tensor], operators: Sequence[Operator]
) -> tuple[Edge, ...]:
    """Every tensor's ways to those that read it, one for each pair of entities and labels."""
    home: dict[int, tuple[int, tuple[int, ...]]] = {}
    for node in nodes:
        if node.tensor is not None:
            home[node.tensor] = (node.index, tuple(range(len(node.sizes))))
        for member in node.members:
            for use in operators[member.operator].results:
                home[use.tensor] = (node.index, _relabel(use.labels, member))
    found: dict[tuple[int, int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for node in nodes:
        for member in node.members:
            for k, use in enumerate(operators[member.operator].operands):
                labels = _relabel(use.labels, member)
                if home[use.tensor] != (node.index, labels):
                    key = (use.tensor, node.index, labels)
                    found.setdefault(key, []).append((member.operator, k))
    return tuple(
        Edge(tensor, *home[tensor], target, labels, tuple(operands))
        for (tensor, target, labels), operands in found.items()
    )


def _relabel(labels: Iterable[int], member: Member) -> tuple[int, ...]:
    return tuple(member.labels[label] for label in labels)


# ---------------------------------------------------------------------- classes


def _refine(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[Output],
    stages: Sequence[Hashable],
) -> list[int]:
    """The class of every entity, numbered by first occurrence."""
    signatures = [_node_signature(node, tensors, operators) for node in nodes]
    when = [{stages[member.operator] for member in node.members} for node in nodes]
    colours = _canonical_ids(zip(map(frozenset, when), signatures, strict=True))
    ends = _edge_signatures(nodes, edges, tensors, operators, outputs)
    for _ in range(ROUNDS):
        around: list[list[tuple[int, int]]] = [[] for _ in nodes]
        for a, b, out, into in ends:
            around[a].append((out, colours[b]))
            around[b].append((into, colours[a]))
        colours = _canonical_ids(
            (colour, tuple(sorted(seen))) for colour, seen in zip(colours, around, strict=True)
        )
    return colours


def _node_signature(
    node: Node, tensors: Sequence[Tensor], operators: Sequence[Operator]
) -> tuple[Hashable, ...]:
    """All of an entity that its neighbours do not tell."""
    if node.tensor is not None:
        tensor = tensors[node.tensor]
        return ("input", tensor.role, str(tensor.dtype), tensor.sizes, tensor.array_dims)
    numbers = {member.operator: i for i, member in enumerate(node.members)}
    parts = []
    for member in node.members:
        operator = operators[member.operator]
        inside = tuple(
            (
                numbers.get(producer, -1)
                if (producer := tensors[use.tensor].producer) is not None
                else -1,
                _relabel(use.labels, member),
                str(tensors[use.tensor].dtype),
            )
            for use in operator.operands
        )
        results = tuple(
            (_relabel(use.labels, member), str(tensors[use.tensor].dtype), tensors[use.tensor].role)
            for use in operator.results
        )
        reductions = tuple(operator.reductions.items())
        parts.append(
            (operator.primitive, operator.sizes, inside, results, reductions, operator.linear)
        )
    return (node.kind, node.phase, node.sizes, node.need_replication, tuple(parts))


def _edge_signatures(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[Output],
) -> list[tuple[int, int, int, int]]:
    """Pairs of neighbours, with a number for how each of them sees the other."""
    place = {
        member.operator: (node.index, i) for node in nodes for i, member in enumerate(node.members)
    }
    given = {node.tensor: node.index for node in nodes if node.tensor is not None}
    pairs, signatures = [], []
    for edge in edges:
        producer = tensors[edge.tensor].producer
        made = -1 if producer is None else place[producer][1]
        operands = tuple((place[o][1], _operand_key(operators[o], k)) for o, k in edge.operands)
        signature = (made, edge.source_labels, edge.target_labels, operands)
        pairs.append((edge.source, edge.target))
        signatures += [("reads", signature), ("read", signature)]
    for output in outputs:
        tensor = output.view.tensor
        if output.updates is None or tensor is None:
            continue
        producer = tensors[tensor].producer
        if producer is not None and output.updates in given:
            pairs.append((place[producer][0], given[output.updates]))
            signatures += [("updates", place[producer][1]), ("updated", place[producer][1])]
    numbers = iter(_canonical_ids(signatures))
    return [(a, b, next(numbers), next(numbers)) for a, b in pairs]


def _operand_key(operator: Operator, operand: int) -> int:
    """The number of an operand; that of any in a stack, whose rows are alike."""
    return -1 if operator.primitive == "concatenate" else operand


def _canonical_ids(things: Iterable[Hashable]) -> list[int]:
    """Equal things get equal numbers, counted in the order of first occurrence."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(thing, len(numbers)) for thing in things]
