"""Nodes and node classes: fused chains of elementwise operators, and identical layers.

A chain of elementwise operators of one phase on the same factors is one node. Outside of the
optimizer a sum of two full tensors is a node of its own, because residual branches meet there and
placements often change. Nodes with identical operators and neighbourhoods form a class, found by
colour refinement (Weisfeiler and Leman, 1968). Few rounds suffice: all layers except those next to
the first or the last one are then in the same classes, for any number of layers. If two rounds
leave many classes, only one round is used. The first and the last layer are then decided like those
between them, and a program of two mesh axes is solved in a fifth to a half of the time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set

from tensorstate.ir.graph import Edge, Loop, Member, Node, Operator, Output, Tensor, Untied

# A round distinguishes nodes by their neighbours' classes. Many rounds would distinguish layers by
# their distance from the first and the last one, until each is a class of its own.
ROUNDS = 2

# With more classes a second round is not worth its time. A decoder has 201 with it and 151 without,
# at any depth; the step of a plan was the same on all models tried (2 x 4 devices).
MOST_CLASSES = 150

Classes = tuple[tuple[int, ...], ...]


def group_nodes(
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[Output],
    stages: Sequence[Hashable] | None = None,
    loops: Sequence[Loop] = (),
    ties: Sequence[tuple[int, int]] = (),
    untied: Untied | None = None,
) -> tuple[tuple[Node, ...], Classes, tuple[Edge, ...]]:
    """The nodes of a graph, their classes, and the edges between them.

    Args:
        tensors, operators, outputs: those of the graph.
        stages: the stage of every operator, if the step has several: all nodes of a class, and all
            operators of a node, are in one stage.
        loops: loops of the graph. Both ends of a carry are in one class.
        ties: further pairs of operators with equal labels that are in one class.
        untied: inputs that pins distinguish.
    """
    mirrored = {loop.mirrors for loop in loops}
    around = [_stage(operator, loops, mirrored) for operator in operators]
    stages = [*zip(stages, around, strict=True)] if stages else around
    chains = _fused_chains(tensors, operators, stages)
    nodes = [_chain(i, members, operators) for i, members in enumerate(chains)]
    for tensor in tensors:
        if tensor.producer is None:  # unused inputs, too, because they take memory
            # A PartitionSpec can shard only the major position of a dimension.
            minor = frozenset(p for positions in tensor.array_dims or () for p in positions[1:])
            sizes, index = tensor.sizes, tensor.index
            nodes.append(Node(len(nodes), "input", None, sizes, minor, (), index, -1))
    edges = _edges(nodes, tensors, operators)
    groups = {} if untied is None else untied.groups
    class_ids = _refine(nodes, edges, tensors, operators, outputs, stages, groups)
    # Joining the two ends of a carry joins all nodes of their classes, including those of identical
    # successive loops.
    node_of = {member.operator: node.index for node in nodes for member in node.members}
    ends = [
        (node_of[enter], node_of[leave])
        for enter, leave in (*(pair for loop in loops for pair in loop.carries), *ties)
        if operators[enter].sizes == operators[leave].sizes
    ]
    class_ids = _merged(class_ids, ends)
    classes: list[list[int]] = [[] for _ in range(max(class_ids, default=-1) + 1)]
    for node, class_id in zip(nodes, class_ids, strict=True):
        classes[class_id].append(node.index)
    classified = tuple(
        dataclasses.replace(node, class_id=class_id)
        for node, class_id in zip(nodes, class_ids, strict=True)
    )
    return classified, tuple(map(tuple, classes)), edges


def _stage(operator: Operator, loops: Sequence[Loop], mirrored: Set[int | None]) -> Hashable:
    """For an operator in a body, the lengths of the loops around it, outermost first.

    Lengths rather than the loops, so that identical successive loops are decided once.
    """
    if not operator.loops:
        return None
    return tuple((loops[n].length, loops[n].reverse, n in mirrored) for n in operator.loops)


def _merged(class_ids: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """The classes after joining the classes of some pairs of nodes."""
    of = {class_id: class_id for class_id in class_ids}

    def find(class_id: int) -> int:
        while of[class_id] != class_id:
            class_id = of[class_id]
        return class_id

    for a, b in pairs:
        x, y = find(class_ids[a]), find(class_ids[b])
        of[max(x, y)] = min(x, y)
    return _canonical_ids(map(find, class_ids))


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


# ---------------------------------------------------------------------- chains


def _fused_chains(
    tensors: Sequence[Tensor], operators: Sequence[Operator], stages: Sequence[Hashable]
) -> list[list[Member]]:
    """The operators of every node, with their labels renamed to those of its first operator."""
    # One pass in the order of execution: an operator joins the chain of each producer that it can
    # fuse with, and so merges these chains into one. For ``gelu(x) * y``, where y comes from
    # another chain, both chains and the product are one node, since all have the same labels.
    chain_of = list(range(len(operators)))
    labels = [tuple(range(len(operator.sizes))) for operator in operators]
    members = [[i] for i in chain_of]
    for operator in operators:
        if not _can_fuse(operator):
            continue
        for use in operator.operands:
            producer = tensors[use.tensor].producer
            if producer is None or stages[producer] != stages[operator.index]:
                continue
            fuses = (
                operators[producer].phase == operator.phase
                and len(operators[producer].sizes) == len(operator.sizes)
                and _has_all_labels(operator, use.labels)
                and _can_fuse(operators[producer])
            )
            if not fuses:
                continue
            result_labels = operators[producer].results[tensors[use.tensor].result].labels
            a, b = chain_of[producer], chain_of[operator.index]
            if a == b:
                continue
            pairs = zip(use.labels, result_labels, strict=True)
            rename = {labels[operator.index][y]: labels[producer][x] for y, x in pairs}
            for i in members[b]:
                labels[i] = tuple(rename[label] for label in labels[i])
                chain_of[i] = a
            members[a] += members[b]
            members[b] = []
    chains = []
    for chain in map(sorted, filter(None, members)):
        # If chains were joined, the first operator need not be the one that named the labels.
        first = {label: i for i, label in enumerate(labels[chain[0]])}
        chains.append([Member(i, tuple(first[label] for label in labels[i])) for i in chain])
    return chains


def _can_fuse(operator: Operator) -> bool:
    """Whether an operator may be part of a chain.

    Operators on scalars may not, because a chain with a scalar that all layers read would make the
    layer of that chain differ from the others.
    """
    if operator.kind != "elementwise" or len(operator.results) != 1 or not operator.sizes:
        return False
    if operator.pin is not None:
        return False
    num_full = sum(_has_all_labels(operator, use.labels) for use in operator.operands)
    is_full_sum = operator.primitive in ("add", "add_any") and num_full > 1
    return not is_full_sum or operator.phase == "optimizer"


def _has_all_labels(operator: Operator, labels: Sequence[int]) -> bool:
    return len(labels) == len(operator.sizes)


# ---------------------------------------------------------------------- edges


def _edges(
    nodes: Sequence[Node], tensors: Sequence[Tensor], operators: Sequence[Operator]
) -> tuple[Edge, ...]:
    """The edges from producers to consumers: one per tensor, consumer and consumer's labels."""
    source: dict[int, tuple[int, tuple[int, ...]]] = {}
    for node in nodes:
        if node.tensor is not None:
            source[node.tensor] = (node.index, tuple(range(len(node.sizes))))
        for member in node.members:
            for use in operators[member.operator].results:
                source[use.tensor] = (node.index, _relabel(use.labels, member))
    # A product of a matrix with its transpose reads one tensor with two sets of labels. These are
    # two edges, each of which may need the tensor in other placements.
    operands_of: dict[tuple[int, int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for node in nodes:
        for member in node.members:
            for k, use in enumerate(operators[member.operator].operands):
                labels = _relabel(use.labels, member)
                if source[use.tensor] != (node.index, labels):
                    key = (use.tensor, node.index, labels)
                    operands_of.setdefault(key, []).append((member.operator, k))
    return tuple(
        Edge(tensor, *source[tensor], target, labels, tuple(operands))
        for (tensor, target, labels), operands in operands_of.items()
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
    groups: Mapping[int, int],
) -> list[int]:
    """The class of every node, numbered by first occurrence."""
    of = tensors, operators
    signatures = [
        (node.tensor is not None and groups.get(node.tensor), _node_signature(node, *of))
        for node in nodes
    ]
    node_stages = [{stages[member.operator] for member in node.members} for node in nodes]
    colours = _canonical_ids(zip(map(frozenset, node_stages), signatures, strict=True))
    edge_signatures = _edge_signatures(nodes, edges, tensors, operators, outputs)
    for number in range(ROUNDS):
        neighbours: list[list[tuple[int, int]]] = [[] for _ in nodes]
        for a, b, out, into in edge_signatures:
            neighbours[a].append((out, colours[b]))
            neighbours[b].append((into, colours[a]))
        refined = _canonical_ids(
            (colour, tuple(sorted(seen))) for colour, seen in zip(colours, neighbours, strict=True)
        )
        if number and max(refined, default=-1) >= MOST_CLASSES:
            break
        colours = refined
    return colours


def _node_signature(
    node: Node, tensors: Sequence[Tensor], operators: Sequence[Operator]
) -> tuple[Hashable, ...]:
    """The operators of a node, without its neighbours."""
    if node.tensor is not None:
        tensor = tensors[node.tensor]
        return ("input", tensor.role, tensor.dtype, tensor.sizes, tensor.array_dims)
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
                tensors[use.tensor].dtype,
            )
            for use in operator.operands
        )
        results = tuple(
            (_relabel(use.labels, member), tensors[use.tensor].dtype, tensors[use.tensor].role)
            for use in operator.results
        )
        reductions = tuple(operator.reductions.items())
        parts.append(
            (
                *(operator.primitive, operator.sizes, inside, results),
                *(reductions, operator.linear, operator.pin, operator.pairing),
            )
        )
    return (node.kind, node.phase, node.sizes, node.need_replication, tuple(parts))


def _edge_signatures(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[Output],
) -> list[tuple[int, int, int, int]]:
    """Pairs of neighbouring nodes, with the number of their edge's signature at each end."""
    member_of = {
        member.operator: (node.index, i) for node in nodes for i, member in enumerate(node.members)
    }
    input_nodes = {node.tensor: node.index for node in nodes if node.tensor is not None}
    pairs, signatures = [], []
    for edge in edges:
        producer = tensors[edge.tensor].producer
        member = -1 if producer is None else member_of[producer][1]
        # Operands of a concatenation are interchangeable; otherwise every layer whose row an
        # unrolled scan stacks would be a class of its own.
        operands = tuple(
            (member_of[o][1], -1 if operators[o].primitive == "concatenate" else k)
            for o, k in edge.operands
        )
        signature = (member, edge.source_labels, edge.target_labels, operands)
        pairs.append((edge.source, edge.target))
        signatures += [("reads", signature), ("read", signature)]
    # An argument and its new value are also neighbours, without an edge: the parameters of two
    # layers are distinguished exactly if their updates are.
    for output in outputs:
        tensor = output.view.tensor
        if output.updates is None or tensor is None:
            continue
        producer = tensors[tensor].producer
        if producer is not None and output.updates in input_nodes:
            node, member = member_of[producer]
            pairs.append((node, input_nodes[output.updates]))
            signatures += [("updates", member), ("updated", member)]
    numbers = iter(_canonical_ids(signatures))
    return [(a, b, next(numbers), next(numbers)) for a, b in pairs]


def _canonical_ids(keys: Iterable[Hashable]) -> list[int]:
    """Number keys in the order of first occurrence; equal keys get equal numbers."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
