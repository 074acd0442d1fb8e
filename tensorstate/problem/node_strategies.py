"""Strategies of nodes, and the placements of their tensors under each strategy.

A strategy has one placement per mesh axis: ``REPLICATED``, a label to shard by, or
``partial_of(i)``, which means that the operands of the node's i-th linear set are partial sums (see
``graph.Operator``). The placements of the node's tensors follow from its strategy. For instance, a
product x[i, k] w[k, j] sharded by k requires x and w sharded along k, and its result is a partial
sum.

Operands and results are named by *port*: (position of the operator among the node's members, number
of its operand or result). Ports are the same for all nodes of a class.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

from tensorstate.ir.graph import Graph, Node, Operator
from tensorstate.ir.placements import (
    PARTIAL,
    REPLICATED,
    SUM,
    Exchange,
    MeshShape,
    Pairing,
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
        fixed: number of a mesh axis, and the only placement allowed on it.
    """

    def __init__(
        self, graph: Graph, node: Node, mesh: MeshShape, fixed: tuple[int, int] | None = None
    ):
        self.node, self.mesh, self.fixed = node, mesh, fixed
        self.linear = linear_sets([graph.operators[m.operator] for m in node.members])
        # If a node is sharded along a label that a member reduces, each device has a term of its
        # results.
        self.reductions: Mapping[int, int] = {
            member.labels[label]: PARTIAL[reduce_op]
            for member in node.members
            for label, reduce_op in graph.operators[member.operator].reductions.items()
        }
        self.pairing: Pairing | None = None
        for member in node.members:
            if (pairing := graph.operators[member.operator].pairing) is not None:
                labels = (member.labels[k] for k in (pairing.label, *pairing.pair))
                self.pairing = pairing.relabelled(*labels)

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
        if self.fixed is not None:
            axes[self.fixed[0]] = (self.fixed[1],)
        return tuple(
            strategy
            for strategy in itertools.product(*axes)
            if divides_evenly(strategy, self.node.sizes, self.mesh) and self._fits_pairing(strategy)
        )

    def _fits_pairing(self, strategy: Strategy) -> bool:
        """Whether a strategy shards both labels of the pairing evenly."""
        pairing = self.pairing
        if pairing is None:
            return True
        # Rows are exchanged among the devices of one axis.
        if isinstance(pairing, Exchange) and strategy.count(pairing.label) > 1:
            return False
        return all(
            divides_evenly(self.sharding_of(label, strategy), self.node.sizes, self.mesh)
            for label in pairing.pair
        )

    def sharding_of(self, label: int, strategy: Strategy) -> Placements:
        """The label on the mesh axes where the strategy shards it, else ``REPLICATED``."""
        return tuple(
            label if label in self._labels_of(placement) else REPLICATED for placement in strategy
        )

    def _labels_of(self, placement: int) -> tuple[int, ...]:
        """The labels that a placement shards."""
        if self.pairing is not None and placement == self.pairing.label:
            return self.pairing.pair
        return (placement,)

    def _position(self, placement: int, labels: tuple[int, ...]) -> int | None:
        """The position that a placement shards in a tensor with these labels, if any."""
        sharded = self._labels_of(placement)
        return next((labels.index(label) for label in sharded if label in labels), None)

    def output_placements(
        self, strategy: Strategy, labels: tuple[int, ...], port: Port
    ) -> Placements:
        """The placements of a result, given the label of each of its positions."""

        def on_axis(placement: int) -> int:
            if placement >= 0:
                position = self._position(placement, labels)
                # A label that the result lacks is reduced, so every device has a term.
                return self.reductions.get(placement, REPLICATED) if position is None else position
            is_term = placement < REPLICATED and port in self.linear[-2 - placement].results
            return SUM if is_term else REPLICATED

        return tuple(map(on_axis, strategy))

    def input_placements(
        self, strategy: Strategy, labels: tuple[int, ...], ports: frozenset[Port]
    ) -> Placements:
        """The placements that the operands at some ports require of a tensor."""

        def on_axis(placement: int) -> int:
            if placement >= 0:
                position = self._position(placement, labels)
                return REPLICATED if position is None else position
            # A product of two partial sums is not a partial product, so one factor of a * b must be
            # whole. A tensor that is read at both kinds of ports must also be whole.
            is_term = placement < REPLICATED and ports <= self.linear[-2 - placement].operands
            return SUM if is_term else REPLICATED

        return tuple(map(on_axis, strategy))


# ---------------------------------------------------------------------- linearity


@dataclasses.dataclass(frozen=True)
class LinearSet:
    """Operands of a node that may be partial sums together.

    Attributes:
        operands: ports of the operands.
        results: ports of the results that are then partial sums.
    """

    operands: frozenset[Port]
    results: frozenset[Port]


def linear_sets(members: Sequence[Operator]) -> tuple[LinearSet, ...]:
    """The sets of operands in which a chain of operators is jointly linear.

    If several operands read a tensor, it is partial for all of them or for none.
    """
    # Each operator names the sets of operands in which it is jointly linear. For a chain, a set
    # counts only if its operands come from outside and it stays linear to the end of the chain.
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
    # For example, the first operator of (x + y) * s is linear in x and y together, but not in each
    # alone. So the inputs are extended until they are closed: if a of a + b is partial, b must be
    # partial too, and the chain is followed from its beginning again. Tensors within the chain
    # cannot become inputs.
    while True:
        partial, results = set(inputs), set()
        missing: frozenset[int] = frozenset()
        for m, operator in enumerate(members):
            tensors = [use.tensor for use in operator.operands]
            partial_operands = {i for i, tensor in enumerate(tensors) if tensor in partial}
            if not partial_operands:  # it reads only whole tensors
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
            operands = frozenset(
                (m, i)
                for m, operator in enumerate(members)
                for i, use in enumerate(operator.operands)
                if use.tensor in inputs
            )
            return LinearSet(operands, frozenset(results))
        if missing & internal:
            return None
        inputs |= missing
