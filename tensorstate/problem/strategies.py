"""Ways in which an entity can run on a mesh, and the states of its tensors that follow.

A way has an entry a mesh axis: ``REPLICATED``, a label to shard by, or ``partial_of(i)``: the
operands of the i-th set in which the entity is linear are partial sums (see ``graph.Operator``).

Operands and results are named by *place*: (position of the operator among the entity's members,
number of its operand or result), which is the same for all entities of a class.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from tensorstate.ir.graph import Entity, Graph, Operator
from tensorstate.ir.placements import PARTIAL, REPLICATED, SUM, MeshShape, State, fits

Way = tuple[int, ...]
"""An entry a mesh axis: ``REPLICATED``, a label of the entity, or ``partial_of(i)``."""

Port = tuple[int, int]
"""(position of a member, number of its operand or result)."""


def partial_of(number: int) -> int:
    """The entry of a way whose operands in linear set ``number`` are partial sums."""
    return -2 - number


class Ways:
    """The ways of the entities of a class, and what they mean for their tensors.

    Args:
        graph: the training step.
        entity: one of the class.
        mesh: the device mesh.
    """

    def __init__(self, graph: Graph, entity: Entity, mesh: MeshShape):
        self.entity, self.mesh = entity, mesh
        self.linear = linear_sets([graph.operators[m.operator] for m in entity.members])
        self.reduced: Mapping[int, int] = {
            member.labels[label]: PARTIAL[how]
            for member in entity.members
            for label, how in graph.operators[member.operator].reduced.items()
        }

    @functools.cached_property
    def all(self) -> tuple[Way, ...]:
        """Every way that cuts all labels evenly, the replicated one first."""
        entries = (
            REPLICATED,
            *(label for label in range(len(self.entity.sizes)) if label not in self.entity.frozen),
            *(partial_of(i) for i in range(len(self.linear))),
        )
        axes = [entries if size > 1 else (REPLICATED,) for size in self.mesh.sizes]
        every = itertools.product(*axes)
        return tuple(way for way in every if fits(way, self.entity.sizes, self.mesh))

    def made(self, way: Way, labels: tuple[int, ...], port: Port) -> State:
        """The state of a result, given the label of each of its positions."""
        return tuple(self._made(entry, labels, port) for entry in way)

    def _made(self, entry: int, labels: tuple[int, ...], port: Port) -> int:
        if entry >= 0:
            return labels.index(entry) if entry in labels else self.reduced.get(entry, REPLICATED)
        if entry == REPLICATED:
            return REPLICATED
        return SUM if port in self.linear[-2 - entry].results else REPLICATED

    def read(self, way: Way, labels: tuple[int, ...], ports: frozenset[Port]) -> State:
        """The state in which a tensor is read by the operands at some places."""
        return tuple(self._read(entry, labels, ports) for entry in way)

    def _read(self, entry: int, labels: tuple[int, ...], ports: frozenset[Port]) -> int:
        if entry >= 0:
            return labels.index(entry) if entry in labels else REPLICATED
        if entry == REPLICATED:
            return REPLICATED
        return SUM if ports <= self.linear[-2 - entry].operands else REPLICATED


# ---------------------------------------------------------------------- linearity


@dataclasses.dataclass(frozen=True)
class Linear:
    """Operands of an entity that may be partial sums together.

    Attributes:
        operands: places of the operands.
        results: places of what are then partial sums.
    """

    operands: frozenset[Port]
    results: frozenset[Port]


def linear_sets(members: Sequence[Operator]) -> tuple[Linear, ...]:
    """The sets of operands in which operators that run one after another are linear.

    A tensor that several operands read is partial for all of them.
    """
    made = {use.tensor for operator in members for use in operator.results}
    found: dict[frozenset[Port], Linear] = {}
    for operator in members:
        for operands in operator.linear:
            given = frozenset(operator.operands[i].tensor for i in operands) - made
            linear = _propagate(members, made, given) if given else None
            if linear is not None:
                found.setdefault(linear.operands, linear)
    return tuple(found.values())


def _propagate(members: Sequence[Operator], made: set[int], given: frozenset[int]) -> Linear | None:
    """What is partial where these tensors are, or None where an operator cannot take it."""
    while True:
        partial_now, results = set(given), set()
        lacking: frozenset[int] = frozenset()
        for m, operator in enumerate(members):
            tensors = [use.tensor for use in operator.operands]
            here = {i for i, tensor in enumerate(tensors) if tensor in partial_now}
            if not here:
                continue
            sets = [s for s in operator.linear if here <= s]
            if not sets:
                return None
            lacking = frozenset(tensors[i] for i in sets[0] - here)
            if lacking:
                break
            partial_now |= {use.tensor for use in operator.results}
            results |= {(m, i) for i in range(len(operator.results))}
        if not lacking:
            operands = _operands(members, given)
            return Linear(operands, frozenset(results))
        if lacking & made:
            return None
        given |= lacking


def _operands(members: Sequence[Operator], tensors: frozenset[int]) -> frozenset[Port]:
    return frozenset(_ports(members, tensors))


def _ports(members: Sequence[Operator], tensors: frozenset[int]) -> Iterator[Port]:
    for m, operator in enumerate(members):
        for i, use in enumerate(operator.operands):
            if use.tensor in tensors:
                yield m, i
