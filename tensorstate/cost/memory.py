"""Memory per device under given decisions: live bytes at every program point, and their peak."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from tensorstate.cost.decisions import Decisions
from tensorstate.cost.memory_terms import CATEGORIES, ReshardPhase, Shares, memory_terms
from tensorstate.cost.reshard_plan import ReshardPlan
from tensorstate.ir.placements import Placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.problem.strategies import Strategy

# Rounding error of sums of shares, in bytes.
EXACT = 1e-6


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of memory per device at the program point with the most live bytes.

    Attributes:
        inputs: parameters, optimizer state, batch and constants, which are live throughout.
        saved: activations and gathered copies saved from the forward to the backward pass.
        loop_resident: gathered copies and sums that stay resident through the microbatch loop.
        gradients: gradients that wait for the optimizer.
        temporaries: all other operands and results of operators.
    """

    inputs: int
    saved: int
    loop_resident: int
    gradients: int
    temporaries: int

    @property
    def peak(self) -> int:
        """The most bytes that are live at the same time."""
        return self.inputs + self.saved + self.loop_resident + self.gradients + self.temporaries

    def fits(self, limit: float | None) -> bool:
        """Whether the peak is within a limit in bytes; ``None`` stands for no limit."""
        return limit is None or self.peak <= limit


def estimate_memory(
    problem: Problem,
    decisions: Decisions,
    reshards: Sequence[ReshardPlan],
    recomputed_nodes: frozenset[int],
) -> Memory:
    """The memory that decisions take.

    Args:
        reshards: the reshard plans of all tensors.
        recomputed_nodes: the nodes that are recomputed.
    """
    inputs = 0
    nbytes = np.zeros((len(CATEGORIES), len(problem.liveness.program_points)))
    for _, own_inputs, others in bytes_by_group(problem, decisions, reshards, recomputed_nodes):
        inputs += own_inputs
        nbytes += others
    return peak_memory(inputs, nbytes)


def bytes_by_group(
    problem: Problem,
    decisions: Decisions,
    reshards: Sequence[ReshardPlan],
    recomputed_nodes: frozenset[int],
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields the number of each tensor group, its ``input_bytes`` and its ``bytes_by_point``.

    Args:
        reshards, recomputed_nodes: as for ``estimate_memory``.
    """
    by_group: dict[int, list[ReshardPlan]] = defaultdict(list)
    for reshard in reshards:
        by_group[reshard.group].append(reshard)
    for number, plans in by_group.items():
        others = bytes_by_point(problem, number, decisions.strategies, plans, recomputed_nodes)
        yield number, input_bytes(problem, plans), others


def peak_memory(inputs: float, nbytes: np.ndarray) -> Memory:
    """The memory at its peak.

    Args:
        inputs: bytes of the inputs.
        nbytes: all other bytes, by category and program point (see ``bytes_by_point``).
    """
    total = nbytes.sum(0)
    saved, loop_resident, gradients, _ = nbytes[:, int(total.argmax())]
    parts = round(saved), round(loop_resident), round(gradients)
    return Memory(round(inputs), *parts, math.ceil(total.max() - EXACT) - sum(parts))


def input_bytes(problem: Problem, reshards: Iterable[ReshardPlan]) -> int:
    """Bytes of inputs per device, in the placements in which they are stored."""
    tensor_groups = problem.tensor_groups
    return sum(
        reshard.multiplicity
        * problem.input_bytes(tensor_groups[reshard.group], reshard.produced_placements)
        for reshard in reshards
        if tensor_groups[reshard.group].is_input
    )


def bytes_by_point(
    problem: Problem,
    number: int,
    strategies: Sequence[Strategy],
    reshards: Iterable[ReshardPlan],
    recomputed_nodes: frozenset[int],
) -> np.ndarray:
    """Bytes of a tensor group per device, by category (``CATEGORIES``) and program point.

    Members of a group are assumed to use its reshard plans in proportion: at every program point,
    the same share of the live members uses each plan.

    Args:
        number: number of the tensor group.
        reshards: all reshard plans of the group.
        recomputed_nodes: the nodes that are recomputed.
    """
    shares = _DecidedShares(problem, number, strategies, [*reshards], recomputed_nodes)
    nbytes = np.zeros((len(CATEGORIES), len(problem.live_ranges(number).producing)))
    for category, share, at_points in memory_terms(problem, number, shares):
        nbytes[CATEGORIES.index(category)] += share * at_points
    return nbytes


class _DecidedShares(Shares[float]):
    """The shares of a tensor group under given decisions, as numbers."""

    def __init__(
        self,
        problem: Problem,
        number: int,
        strategies: Sequence[Strategy],
        reshards: Sequence[ReshardPlan],
        recomputed_nodes: frozenset[int],
    ):
        self.problem, self.group = problem, problem.tensor_groups[number]
        self.strategies, self.recomputed_nodes = strategies, recomputed_nodes
        self.reshards = reshards
        self.source = problem.produced_placements(self.group, strategies[self.group.class_id])

    def _share(self, where: Callable[[ReshardPlan], bool]) -> float:
        """The share of the tensors whose plan meets a condition."""
        return sum(r.multiplicity for r in self.reshards if where(r)) / self.group.multiplicity

    def resharded(self, phase: ReshardPhase) -> Mapping[ReshardStep, float]:
        """See ``Shares``."""
        steps: dict[ReshardStep, float] = defaultdict(float)
        for reshard in self.reshards:
            for step in getattr(reshard, phase).steps:
                steps[step] += reshard.multiplicity / self.group.multiplicity
        return steps

    def produced(self, recomputed: bool | None = None) -> Mapping[Placements, Iterable[float]]:
        """See ``Shares``."""
        share = self._share(lambda r: recomputed is None or r.is_recomputed == recomputed)
        return {self.source: [share]} if share else {}

    def awaiting(
        self, consumer: int | None, recomputed: bool | None = None
    ) -> Mapping[Placements, Iterable[float]]:
        """See ``Shares``."""
        if consumer is None:
            return self.produced(recomputed)
        consumer_class = self.group.consumer_classes[consumer]
        placements = self.source
        if consumer_class.class_id is not None:
            strategy = self.strategies[consumer_class.class_id]
            placements = self.problem.required_placements(consumer_class, strategy)
        if recomputed is None:
            return {placements: [1.0]}
        nodes = [node for of_tensor in self.group.consumers for node in of_tensor[consumer]]
        chosen = [node for node in nodes if (node in self.recomputed_nodes) == recomputed]
        # The caller of the step reads a tensor without a node, and recomputes nothing.
        return {placements: [len(chosen) / len(nodes) if nodes else float(not recomputed)]}

    def saved(self) -> Mapping[Placements, float]:
        """See ``Shares``."""
        shares: dict[Placements, float] = defaultdict(float)
        for reshard in self.reshards:
            if reshard.saved is not None:
                shares[reshard.saved] += reshard.multiplicity / self.group.multiplicity
            elif reshard.is_recomputed:
                shares[self.source] += 0.0
        return shares

    def saved_beside_produced(self, placements: Placements) -> float:
        """See ``Shares``."""
        return 0.0 if placements == self.source else self._share(lambda r: r.saved == placements)

    def saved_for_recompute(self, placements: Placements) -> float:
        """See ``Shares``."""
        return self._share(lambda r: r.saved == placements and self._feeds_recompute(r))

    def recomputed_for_recompute(self, placements: Placements) -> float | None:
        """See ``Shares``."""
        if placements != self.source:
            return None
        return self._share(lambda r: r.is_recomputed and self._feeds_recompute(r))

    def _feeds_recompute(self, reshard: ReshardPlan) -> bool:
        """Whether a recomputed node reads the tensors of a plan."""
        consumers = self.group.consumers[self.group.tensors.index(reshard.tensors[0])]
        return any(not self.recomputed_nodes.isdisjoint(nodes) for nodes in consumers)

    def loop_resident(self) -> Mapping[Placements, float]:
        """See ``Shares``."""
        shares: dict[Placements, float] = defaultdict(float)
        for reshard in self.reshards:
            if reshard.loop_resident is not None:
                shares[reshard.loop_resident] += reshard.multiplicity / self.group.multiplicity
        return shares

    def resident_in_place(self, placements: Placements) -> None:
        """Always ``None``: reshard plans count an input that is resident in place as no copy."""
