"""Strategies of a node on a mesh, and the placements of its tensors that follow from them.

A strategy has one placement per mesh axis: ``REPLICATED``, a label to shard by, or
``partial_of(i)``: the operands of the node's i-th linear set are partial sums (see
``graph.Operator``).

Operands and results are named by *port*: (position of the operator among the node's members, number
of its operand or result). Ports are the same for all nodes of a class.
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
"""One placement per mesh axis: ``REPLICATED``, a label of the node, or ``partial_of(i)``."""

Port = tuple[int, int]
"""(position of a member, number of its operand or result)."""


def partial_of(number: int) -> int:
    """The placement in which the operands of linear set ``number`` are partial sums."""
    return -2 - number


class NodeStrategies:
    """All strategies of the nodes of a class, and the placements they imply for their tensors.

    Args:
        graph: the training step.
        node: a node of the class.
        mesh: the device mesh.
    """

    def __init__(self, graph: Graph, node: Node, mesh: MeshShape):
        self.node, self.mesh = node, mesh
        self.linear = linear_sets([graph.operators[m.operator] for m in node.members])
        self.reductions: Mapping[int, int] = {
            member.labels[label]: PARTIAL[reduce_op]
            for member in node.members
            for label, reduce_op in graph.operators[member.operator].reductions.items()
        }

    @functools.cached_property
    def all(self) -> tuple[Strategy, ...]:
        """Every strategy that shards all labels evenly, the replicated one first."""
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
        return tuple(
            strategy
            for strategy in itertools.product(*axes)
            if divides_evenly(strategy, self.node.sizes, self.mesh)
        )

    def output_placements(
        self, strategy: Strategy, labels: tuple[int, ...], port: Port
    ) -> Placements:
        """The placements of a result, given the label of each of its positions."""
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
        """The placements that the operands at some ports require of a tensor."""
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
    """Operands of a node that may be partial sums together.

    Attributes:
        operands: ports of the operands.
        results: ports of the results that are partial sums then.
    """

    operands: frozenset[Port]
    results: frozenset[Port]


def linear_sets(members: Sequence[Operator]) -> tuple[LinearSet, ...]:
    """The sets of operands in which a chain of operators is jointly linear.

    A tensor that several operands read is partial for all of them.
    """
    internal = {use.tensor for operator in members for use in operator.results}
    by_operands: dict[frozenset[Port], LinearSet] = {}
    for operator in members:
        for operands in operator.linear:
            inputs = frozenset(operator.operands[i].tensor for i in operands) - internal
            linear = _propagate_partial(members, internal, inputs) if inputs else None
            if linear is not None:
                by_operands.setdefault(linear.operands, linear)
    return tuple(by_operands.values())


def _propagate_partial(
    members: Sequence[Operator], internal: set[int], inputs: frozenset[int]
) -> LinearSet | None:
    """The smallest linear set with these inputs; ``None`` if an operator is not linear in them."""
    while True:
        partial, results = set(inputs), set()
        missing: frozenset[int] = frozenset()
        for m, operator in enumerate(members):
            tensors = [use.tensor for use in operator.operands]
            partial_operands = {i for i, tensor in enumerate(tensors) if tensor in partial}
            if not partial_operands:
                continue
            sets = [s for s in operator.linear if partial_operands <= s]
            if not sets:
                return None
            missing = frozenset(tensors[i] for i in sets[0] - partial_operands)
            if missing:
                break
            partial |= {use.tensor for use in operator.results}
            results |= {(m, i) for i in range(len(operator.results))}
        if not missing:
            operands = _operands(members, inputs)
            return LinearSet(operands, frozenset(results))
        if missing & internal:
            return None
        inputs |= missing


def _operands(members: Sequence[Operator], tensors: frozenset[int]) -> frozenset[Port]:
    return frozenset(_ports(members, tensors))


def _ports(members: Sequence[Operator], tensors: frozenset[int]) -> Iterator[Port]:
    for m, operator in enumerate(members):
        for i, use in enumerate(operator.operands):
            if use.tensor in tensors:
                yield m, i
