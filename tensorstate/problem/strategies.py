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

from tensorstate.ir.graph import Graph, Node, Operator
from tensorstate.ir.placements import (
    PARTIAL,
    REPLICATED,
    SUM,
    MeshShape,
    Placements,
    divides_evenly,
)

Strategy = tuple[int, ...]
"""An entry a mesh axis: ``REPLICATED``, a label of the entity, or ``partial_of(i)``."""

Port = tuple[int, int]
"""(position of a member, number of its operand or result)."""


def partial_of(number: int) -> int:
    """The entry of a way whose operands in linear set ``number`` are partial sums."""
    return -2 - number


class NodeStrategies:
    """The ways of the entities of a class, and what they mean for their tensors.

    Args:
        graph: the training step.
        node: one of the class.
        mesh: the device mesh.
    """

    def __init__(self, graph: Graph, node: Node, mesh: MeshShape):
        self.node, self.mesh = node, mesh
        self.linear = linear_sets([graph.operators[m.operator] for m in node.members])
        self.reductions: Mapping[int, int] = {
            member.labels[label]: PARTIAL[how]
            for member in node.members
            for label, how in graph.operators[member.operator].reductions.items()
        }

    @functools.cached_property
    def all(self) -> tuple[Strategy, ...]:
        """Every way that cuts all labels evenly, the replicated one first."""
        placements_on_axis = (
            REPLICATED,
            *(
                label
                for label in range(len(self.node.sizes))
                if label not in self.node.need_replication
            ),
            *(partial_of(i) for i in range(len(self.linear))),
        )
        axes = [placements_on_axis if size > 1 else (REPLICATED,) for size in self.mesh.sizes]
        every = itertools.product(*axes)
        return tuple(
            strategy for strategy in every if divides_evenly(strategy, self.node.sizes, self.mesh)
        )

    def output_placements(
        self, strategy: Strategy, labels: tuple[int, ...], port: Port
    ) -> Placements:
        """The state of a result, given the label of each of its positions."""
        return tuple(self._output_placement(placement, labels, port) for placement in strategy)

    def _output_placement(self, placement: int, labels: tuple[int, ...], port: Port) -> int:
        if placement >= 0:
            return (
                labels.index(placement)
                if placement in labels
                else self.reductions.get(placement, REPLICATED)
            )
        if placement == REPLICATED:
            return REPLICATED
        return SUM if port in self.linear[-2 - placement].results else REPLICATED

    def input_placements(
        self, strategy: Strategy, labels: tuple[int, ...], ports: frozenset[Port]
    ) -> Placements:
        """The state in which a tensor is read by the operands at some places."""
        return tuple(self._input_placement(placement, labels, ports) for placement in strategy)

    def _input_placement(
        self, placement: int, labels: tuple[int, ...], ports: frozenset[Port]
    ) -> int:
        if placement >= 0:
            return labels.index(placement) if placement in labels else REPLICATED
        if placement == REPLICATED:
            return REPLICATED
        return SUM if ports <= self.linear[-2 - placement].operands else REPLICATED


# ---------------------------------------------------------------------- linearity


@dataclasses.dataclass(frozen=True)
class LinearSet:
    """Operands of an entity that may be partial sums together.

    Attributes:
        operands: places of the operands.
        results: places of what are then partial sums.
    """

    operands: frozenset[Port]
    results: frozenset[Port]


def linear_sets(members: Sequence[Operator]) -> tuple[LinearSet, ...]:
    """The sets of operands in which operators that run one after another are linear.

    A tensor that several operands read is partial for all of them.
    """
    made = {use.tensor for operator in members for use in operator.results}
    found: dict[frozenset[Port], LinearSet] = {}
    for operator in members:
        for operands in operator.linear:
            given = frozenset(operator.operands[i].tensor for i in operands) - made
            linear = _propagate_partial(members, made, given) if given else None
            if linear is not None:
                found.setdefault(linear.operands, linear)
    return tuple(found.values())


def _propagate_partial(
    members: Sequence[Operator], made: set[int], given: frozenset[int]
) -> LinearSet | None:
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
            return LinearSet(operands, frozenset(results))
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
