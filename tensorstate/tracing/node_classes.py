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

from tensorstate.ir.graph import Edge, Entity, Member, Operator, Output, Tensor

ROUNDS = 2

Classes = tuple[tuple[int, ...], ...]


def tie(
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[Output],
    stages: Sequence[Hashable] | None = None,
) -> tuple[tuple[Entity, ...], Classes, tuple[Edge, ...]]:
    """The entities of a graph, their classes, and the edges between them.

    Args:
        stages: of every operator, if not all run in the same stage of the step; what is decided at
            once does.
    """
    stages = stages or [None] * len(operators)
    clusters = _clusters(tensors, operators, stages)
    entities = [_chain(i, members, operators) for i, members in enumerate(clusters)]
    for tensor in tensors:
        if tensor.producer is None:  # also what nothing reads: it takes memory
            entities.append(_given(len(entities), tensor))
    edges = _edges(entities, tensors, operators)
    groups = _refine(entities, edges, tensors, operators, outputs, stages)
    classes: list[list[int]] = [[] for _ in range(max(groups, default=-1) + 1)]
    for entity, group in zip(entities, groups, strict=True):
        classes[group].append(entity.index)
    tied = tuple(
        dataclasses.replace(e, group=group) for e, group in zip(entities, groups, strict=True)
    )
    return tied, tuple(map(tuple, classes)), edges


def _chain(index: int, members: list[Member], operators: Sequence[Operator]) -> Entity:
    first = operators[members[0].operator]
    frozen = {m.labels[label] for m in members for label in operators[m.operator].frozen}
    return Entity(
        index, first.kind, first.phase, first.sizes, frozenset(frozen), tuple(members), None, -1
    )


def _given(index: int, tensor: Tensor) -> Entity:
    """An input: a PartitionSpec cuts dimensions, so only the major part of each can be sharded."""
    minor = frozenset(position for one in tensor.array_dims or () for position in one[1:])
    return Entity(index, "input", None, tensor.sizes, minor, (), tensor.index, -1)


# ---------------------------------------------------------------------- chains


def _clusters(
    tensors: Sequence[Tensor], operators: Sequence[Operator], stages: Sequence[Hashable]
) -> list[list[Member]]:
    """The operators of every entity, with their labels in those of its first."""
    of = list(range(len(operators)))
    labels = [tuple(range(len(operator.sizes))) for operator in operators]
    members = [[i] for i in of]
    for operator in operators:
        if not _chains(operator):
            continue
        for use in operator.operands:
            producer = tensors[use.tensor].producer
            if producer is None or stages[producer] != stages[operator.index]:
                continue
            if not _follows(operator, operators[producer], use.labels):
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


def _chains(operator: Operator) -> bool:
    """Whether an operator may be part of a chain.

    Operators on scalars may not: one that many layers read would tell them apart.
    """
    if operator.kind != "elementwise" or len(operator.results) != 1 or not operator.sizes:
        return False
    full = sum(_is_full(operator, use.labels) for use in operator.operands)
    joins = operator.primitive in ("add", "add_any") and full > 1
    return not joins or operator.phase == "optimizer"


def _follows(operator: Operator, producer: Operator, labels: Sequence[int]) -> bool:
    return (
        producer.phase == operator.phase
        and len(producer.sizes) == len(operator.sizes)
        and _is_full(operator, labels)
        and _chains(producer)
    )


def _is_full(operator: Operator, labels: Sequence[int]) -> bool:
    return len(labels) == len(operator.sizes)


# ---------------------------------------------------------------------- edges


def _edges(
    entities: Sequence[Entity], tensors: Sequence[Tensor], operators: Sequence[Operator]
) -> tuple[Edge, ...]:
    """Every tensor's ways to those that read it, one for each pair of entities and labels."""
    home: dict[int, tuple[int, tuple[int, ...]]] = {}
    for entity in entities:
        if entity.tensor is not None:
            home[entity.tensor] = (entity.index, tuple(range(len(entity.sizes))))
        for member in entity.members:
            for use in operators[member.operator].results:
                home[use.tensor] = (entity.index, _renamed(use.labels, member))
    found: dict[tuple[int, int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for entity in entities:
        for member in entity.members:
            for k, use in enumerate(operators[member.operator].operands):
                labels = _renamed(use.labels, member)
                if home[use.tensor] != (entity.index, labels):
                    key = (use.tensor, entity.index, labels)
                    found.setdefault(key, []).append((member.operator, k))
    return tuple(
        Edge(tensor, *home[tensor], target, labels, tuple(operands))
        for (tensor, target, labels), operands in found.items()
    )


def _renamed(labels: Iterable[int], member: Member) -> tuple[int, ...]:
    return tuple(member.labels[label] for label in labels)


# ---------------------------------------------------------------------- classes


def _refine(
    entities: Sequence[Entity],
    edges: Sequence[Edge],
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[Output],
    stages: Sequence[Hashable],
) -> list[int]:
    """The class of every entity, numbered by first occurrence."""
    looks = [_looks(entity, tensors, operators) for entity in entities]
    when = [{stages[member.operator] for member in entity.members} for entity in entities]
    colours = _numbered(zip(map(frozenset, when), looks, strict=True))
    ends = _ends(entities, edges, tensors, operators, outputs)
    for _ in range(ROUNDS):
        around: list[list[tuple[int, int]]] = [[] for _ in entities]
        for a, b, out, into in ends:
            around[a].append((out, colours[b]))
            around[b].append((into, colours[a]))
        colours = _numbered(
            (colour, tuple(sorted(seen))) for colour, seen in zip(colours, around, strict=True)
        )
    return colours


def _looks(
    entity: Entity, tensors: Sequence[Tensor], operators: Sequence[Operator]
) -> tuple[Hashable, ...]:
    """All of an entity that its neighbours do not tell."""
    if entity.tensor is not None:
        tensor = tensors[entity.tensor]
        return ("input", tensor.role, str(tensor.dtype), tensor.sizes, tensor.array_dims)
    numbers = {member.operator: i for i, member in enumerate(entity.members)}
    parts = []
    for member in entity.members:
        operator = operators[member.operator]
        inside = tuple(
            (
                numbers.get(producer, -1)
                if (producer := tensors[use.tensor].producer) is not None
                else -1,
                _renamed(use.labels, member),
                str(tensors[use.tensor].dtype),
            )
            for use in operator.operands
        )
        results = tuple(
            (_renamed(use.labels, member), str(tensors[use.tensor].dtype), tensors[use.tensor].role)
            for use in operator.results
        )
        reduced = tuple(operator.reduced.items())
        parts.append(
            (operator.primitive, operator.sizes, inside, results, reduced, operator.linear)
        )
    return (entity.kind, entity.phase, entity.sizes, entity.frozen, tuple(parts))


def _ends(
    entities: Sequence[Entity],
    edges: Sequence[Edge],
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[Output],
) -> list[tuple[int, int, int, int]]:
    """Pairs of neighbours, with a number for how each of them sees the other."""
    place = {
        member.operator: (entity.index, i)
        for entity in entities
        for i, member in enumerate(entity.members)
    }
    given = {entity.tensor: entity.index for entity in entities if entity.tensor is not None}
    pairs, looks = [], []
    for edge in edges:
        producer = tensors[edge.tensor].producer
        made = -1 if producer is None else place[producer][1]
        operands = tuple((place[o][1], _which(operators[o], k)) for o, k in edge.operands)
        look = (made, edge.source_labels, edge.target_labels, operands)
        pairs.append((edge.source, edge.target))
        looks += [("reads", look), ("read", look)]
    for output in outputs:
        tensor = output.view.tensor
        if output.updates is None or tensor is None:
            continue
        producer = tensors[tensor].producer
        if producer is not None and output.updates in given:
            pairs.append((place[producer][0], given[output.updates]))
            looks += [("updates", place[producer][1]), ("updated", place[producer][1])]
    numbers = iter(_numbered(looks))
    return [(a, b, next(numbers), next(numbers)) for a, b in pairs]


def _which(operator: Operator, operand: int) -> int:
    """The number of an operand; that of any in a stack, whose rows are alike."""
    return -1 if operator.primitive == "concatenate" else operand


def _numbered(things: Iterable[Hashable]) -> list[int]:
    """Equal things get equal numbers, counted in the order of first occurrence."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(thing, len(numbers)) for thing in things]
