"""The least cost of a small problem, found by enumerating all decisions.

A column has one dimension per class, along the strategies of the class, so each element is the cost
of one choice of strategies. The cost of a tensor group depends only on the classes of its producers
and consumers: its table is broadcast over the other classes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from tensorstate.cost.memory import EXACT, bytes_by_point, input_bytes
from tensorstate.cost.reshard_plan import (
    Decisions,
    find_kept,
    reshard_passes,
    reshard_plans,
)
from tensorstate.errors import PlanError
from tensorstate.ir.placements import MAX, MIN, SUM, Placements, all_placements
from tensorstate.keeping.base import Keeping
from tensorstate.keeping.table import Kept, allowed
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup

CandidateStrategies = Sequence[Sequence[Strategy]]


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Seconds and bytes of all strategies, for given ways to keep nodes and saved placements."""

    decisions: Decisions
    compute: np.ndarray
    communication: np.ndarray
    peak: np.ndarray

    def objective(self, name: str) -> np.ndarray:
        """The sum of compute and communication, or the larger."""
        if name == "sum":
            return self.compute + self.communication
        return np.maximum(self.compute, self.communication)


class Every:
    """All decisions for a problem.

    Args:
        problem: the problem.
        candidates: for every class the candidate strategies.
        recompute: whether to enumerate all sets of recomputed nodes.
        offload: whether nodes may be offloaded, too, in every combination.
        save: whether to enumerate all saved and loop-resident placements, and to evaluate memory;
            otherwise they are those of the least time.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        *,
        recompute: bool = False,
        offload: bool = False,
        save: bool = False,
    ):
        self.problem, self.candidates = problem, candidates
        self.program_points = len(problem.liveness.program_points) if save else 0
        self._tables: dict[Hashable, np.ndarray] = {}
        self._seconds: dict[frozenset[int], np.ndarray] = {}
        found: dict[Hashable, tuple[Decisions, Kept]] = {}
        resident_choices = list(_loop_resident_plan(problem, candidates)) if save else [{}]
        for named in _ways(problem, allowed(recompute=recompute, offload=offload)):
            recomputed = Kept(named).rerun
            for saved in _kept(problem, candidates, recomputed) if save else [{}]:
                for loop_resident in resident_choices:
                    decisions = Decisions((), named, saved, loop_resident)
                    kept = find_kept(problem, decisions)
                    items = (kept.named.items(), saved.items(), loop_resident.items())
                    found.setdefault((*map(frozenset, items),), (decisions, kept))
        self.columns = [self._columns(*each) for each in found.values()]

    @property
    def least_peak(self) -> float:
        """The least peak memory of all decisions."""
        return min(float(columns.peak.min()) for columns in self.columns)

    def best(
        self, objective: str = "sum", memory_limit: float = math.inf
    ) -> tuple[float, Decisions | None]:
        """The least objective with its decisions; infinite if no decisions satisfy the limit."""
        least, best = math.inf, None
        for columns in self.columns:
            fits = columns.peak <= memory_limit
            total = np.where(fits, columns.objective(objective), math.inf)
            at = np.unravel_index(int(total.argmin()), total.shape)
            if total[at] < least:
                strategies = tuple(
                    choices[int(i)] for choices, i in zip(self.candidates, at, strict=True)
                )
                least, best = (
                    float(total[at]),
                    dataclasses.replace(columns.decisions, strategies=strategies),
                )
        return least, best

    def frontier(self, objective: str = "sum") -> list[tuple[float, float]]:
        """Plans that no other beats in both: (bytes of peak memory, objective), bytes rising.

        Objectives that differ by less than a millionth are equal.
        """
        pairs = np.concatenate(
            [
                np.stack([columns.peak.ravel(), columns.objective(objective).ravel()])
                for columns in self.columns
            ],
            axis=1,
        )
        pairs = pairs[:, np.isfinite(pairs).all(0)]
        found: list[tuple[float, float]] = []
        for at in np.lexsort(pairs[::-1]):
            peak, value = map(float, pairs[:, at])
            if not found or value < found[-1][1] * (1 - 1e-6):
                found.append((peak, value))
        return found

    # ------------------------------------------------------------------ columns

    def _columns(self, decisions: Decisions, kept: Kept) -> Columns:
        totals = np.zeros((3 + self.program_points, *map(len, self.candidates)))
        for number in range(len(self.problem.tensor_groups)):
            totals += self._table(decisions, kept, number)
        communication, storing, inputs, *there = totals
        peak = inputs + np.ceil(np.max(there, axis=0) - EXACT) if there else inputs
        compute, sends = self._of_operators(kept.rerun)
        return Columns(decisions, compute + storing, communication + sends, peak)

    def _of_operators(self, recomputed_nodes: frozenset[int]) -> np.ndarray:
        """Seconds of all operators: their own, and those of the sends within them."""
        if recomputed_nodes in self._seconds:
            return self._seconds[recomputed_nodes]
        problem, shape = self.problem, tuple(map(len, self.candidates))
        both = self._seconds[recomputed_nodes] = np.zeros((2, *shape))
        for class_id, choices in enumerate(self.candidates):
            members = problem.graph.node_classes[class_id]
            runs = len(members) + len(recomputed_nodes.intersection(members))
            for total, of in zip(both, (problem.seconds, problem.inner_seconds), strict=True):
                seconds = [runs * of(class_id, strategy) for strategy in choices]
                total += _along(np.array(seconds), (class_id,), shape)
        return both

    def _table(self, decisions: Decisions, kept: Kept, number: int) -> np.ndarray:
        """Of a group seconds of collectives and of storing, bytes of inputs and at every point.

        The strategies of its classes stand along their dimensions; the others have size one.
        """
        group, candidates = self.problem.tensor_groups[number], self.candidates
        needed_after_forward = tuple(
            (decisions.saved.get(t), decisions.loop_resident.get(t)) for t in group.tensors
        )
        readers = (node for of in group.consumers for nodes in of for node in nodes)
        near = {*group.producers, *readers}
        around = frozenset((node, how) for node, how in kept.named.items() if node in near)
        key = number, around, needed_after_forward
        if key in self._tables:
            return self._tables[key]
        consumers = (d.class_id for d in group.consumer_classes if d.class_id is not None)
        groups = tuple(sorted({group.class_id, *consumers}))
        table = np.zeros((*(len(candidates[g]) for g in groups), 3 + self.program_points))
        strategies = [choices[0] for choices in candidates]
        for at in itertools.product(*(range(len(candidates[g])) for g in groups)):
            for class_id, i in zip(groups, at, strict=True):
                strategies[class_id] = candidates[class_id][i]
            decided = dataclasses.replace(decisions, strategies=tuple(strategies))
            table[at] = _costs(self.problem, decided, kept, number)[: 3 + self.program_points]
        shape = tuple(map(len, candidates))
        columns = np.stack([_along(column, groups, shape) for column in np.moveaxis(table, -1, 0)])
        self._tables[key] = columns
        return columns


def _along(table: np.ndarray, groups: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """A table over the strategies of some classes, broadcast over those of all classes."""
    return table.reshape([n if class_id in groups else 1 for class_id, n in enumerate(shape)])


def _costs(problem: Problem, decisions: Decisions, kept: Kept, number: int) -> np.ndarray:
    try:
        reshards = list(reshard_plans(problem, decisions, kept, number))
    except PlanError:  # it cannot be saved in these placements
        return np.full(3 + len(problem.liveness.program_points), math.inf)
    seconds = sum(t.multiplicity * t.seconds for t in reshards)
    storing = sum(t.multiplicity * t.keeping_seconds for t in reshards)
    there = bytes_by_point(problem, number, decisions.strategies, reshards, kept).sum(0)
    return np.array([seconds, storing, input_bytes(problem, reshards), *there])


# ---------------------------------------------------------------------- decisions


def _ways(problem: Problem, keepings: Sequence[Keeping]) -> Iterator[Mapping[int, Keeping]]:
    """Every way to keep every node of the forward pass; by default where a node is not named."""
    default, *others = keepings
    in_forward = [e.index for e in problem.graph.nodes if e.phase == "forward"]
    for ways in itertools.product((default, *others), repeat=len(in_forward)):
        pairs = zip(in_forward, ways, strict=True)
        yield {node: keeping for node, keeping in pairs if keeping != default}


def _loop_resident_plan(
    problem: Problem, candidates: CandidateStrategies
) -> Iterator[Mapping[int, Placements]]:
    """Every choice of loop-resident placements for every tensor."""
    tensor_groups = [
        group for group in problem.tensor_groups if reshard_passes(problem, group).resident_from
    ]
    tensors = [tensor for group in tensor_groups for tensor in group.tensors]
    choices = [
        _states(problem, group, candidates, (SUM, MAX, MIN))
        for group in tensor_groups
        for _ in group.tensors
    ]
    for one in itertools.product(*choices):
        yield dict(zip(tensors, one, strict=True))


def _kept(
    problem: Problem, candidates: CandidateStrategies, recomputed: frozenset[int]
) -> Iterator[Mapping[int, Placements]]:
    """All saved placements of all tensors that may be saved; none for recomputed ones."""
    tensors, choices = [], []
    for group in problem.tensor_groups:
        for tensor, producer, consumers in zip(
            group.tensors, group.producers, group.consumers, strict=True
        ):
            after_forward = any(
                d.after_forward and not d.after_loop for d in group.consumer_classes
            ) or any(not recomputed.isdisjoint(r) for r in consumers)
            if (
                group.in_forward
                and after_forward
                and reshard_passes(problem, group).resident_from != "before_loop"
            ):
                tensors.append(tensor)
                none = [None] if producer in recomputed else []
                choices.append([*none, *_states(problem, group, candidates)])
    for one in itertools.product(*choices):
        pairs = zip(tensors, one, strict=True)
        yield {tensor: placements for tensor, placements in pairs if placements is not None}


def _states(
    problem: Problem,
    group: TensorGroup,
    candidates: CandidateStrategies,
    partials: tuple[int, ...] = (SUM,),
) -> list[Placements]:
    """Placements of a group's copies: without partial, or partial as produced.

    Args:
        partials: allowed ones. Saved copies are at most partial sums; loop-resident ones may be
            partial maxima and minima too.
    """
    sources = {
        problem.produced_placements(group, strategy) for strategy in candidates[group.class_id]
    }
    possible = {
        (axis, placement) for placements in sources for axis, placement in enumerate(placements)
    }
    return [
        placements
        for placements in all_placements(group.sizes, problem.mesh, partials)
        if all(
            placement not in partials or (axis, placement) in possible
            for axis, placement in enumerate(placements)
        )
    ]
