"""The least cost of a small problem, found by looking at all decisions there are.

A column has a dimension a class, along its ways: what any choice of ways costs is one element. What
a flow costs depends on the classes that make and read it only, so its table is broadcast over the
others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from tensorstate.cost.decisions import Decisions, find_recomputed_nodes
from tensorstate.cost.memory import EXACT, bytes_by_point, input_bytes
from tensorstate.cost.reshard_passes import reshard_passes
from tensorstate.cost.reshard_plan import reshard_plans
from tensorstate.errors import PlanError
from tensorstate.ir.placements import SUM, Placements, all_placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import TensorGroup

CandidateStrategies = Sequence[Sequence[Strategy]]


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Seconds and bytes of all choices of ways, with what is made again and kept as decided."""

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
        problem: what to decide.
        candidates: for every class the ways to choose from.
        recompute: whether all sets of entities are made again too.
        save: whether all states to keep tensors in, and in microbatches to hold them in, are looked
            at, and memory; otherwise they are those that cost the least time.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        *,
        recompute: bool = False,
        save: bool = False,
    ):
        self.problem, self.candidates = problem, candidates
        self.program_points = len(problem.liveness.program_points) if save else 0
        self._tables: dict[Hashable, tuple[tuple[int, ...], np.ndarray]] = {}
        found: dict[Hashable, Decisions] = {}
        helds = list(_loop_resident_plan(problem, candidates)) if save else [{}]
        for recomputed in _sets_made_again(problem) if recompute else [frozenset()]:
            for saved in _kept(problem, candidates, recomputed) if save else [{}]:
                for loop_resident in helds:
                    decisions = Decisions((), recomputed, saved, loop_resident)
                    recomputed_nodes = find_recomputed_nodes(problem, decisions)
                    needed_after_forward = (
                        frozenset(saved.items()),
                        frozenset(loop_resident.items()),
                    )
                    found.setdefault((recomputed_nodes, needed_after_forward), decisions)
        self.columns = [self._columns(decisions) for decisions in found.values()]

    @property
    def least_peak(self) -> float:
        """The least memory that is enough."""
        return min(float(columns.peak.min()) for columns in self.columns)

    def best(
        self, objective: str = "sum", memory_limit: float = math.inf
    ) -> tuple[float, Decisions | None]:
        """The least objective, infinite where nothing fits, and decisions that reach it."""
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

    # ------------------------------------------------------------------ columns

    def _columns(self, decisions: Decisions) -> Columns:
        problem, candidates = self.problem, self.candidates
        recomputed_nodes = find_recomputed_nodes(problem, decisions)
        shape = tuple(map(len, candidates))
        compute, communication, inputs = (np.zeros(shape) for _ in range(3))
        there = [np.zeros(shape) for _ in range(self.program_points)]
        for class_id, choices in enumerate(candidates):
            members = problem.graph.node_classes[class_id]
            runs = len(members) + len(recomputed_nodes.intersection(members))
            seconds = [runs * problem.seconds(class_id, strategy) for strategy in choices]
            compute += _along(np.array(seconds), (class_id,), shape)
        for number in range(len(problem.tensor_groups)):
            groups, table = self._table(decisions, recomputed_nodes, number)
            totals = (communication, inputs, *there)
            for total, column in zip(totals, np.moveaxis(table, -1, 0), strict=True):
                if column.any():
                    total += _along(column, groups, shape)
        peak = inputs + np.ceil(np.max(there, axis=0) - EXACT) if there else inputs
        return Columns(decisions, compute, communication, peak)

    def _table(
        self, decisions: Decisions, recomputed_nodes: frozenset[int], number: int
    ) -> tuple[tuple[int, ...], np.ndarray]:
        """Seconds, and bytes of inputs, and of others at every point, of a flow."""
        group, candidates = self.problem.tensor_groups[number], self.candidates
        needed_after_forward = tuple(
            (decisions.saved.get(t), decisions.loop_resident.get(t)) for t in group.tensors
        )
        key = number, recomputed_nodes & group.nodes, needed_after_forward
        if key in self._tables:
            return self._tables[key]
        consumers = (d.class_id for d in group.consumer_classes if d.class_id is not None)
        groups = tuple(sorted({group.class_id, *consumers}))
        table = np.zeros((*(len(candidates[g]) for g in groups), 2 + self.program_points))
        strategies = [choices[0] for choices in candidates]
        for at in itertools.product(*(range(len(candidates[g])) for g in groups)):
            for class_id, i in zip(groups, at, strict=True):
                strategies[class_id] = candidates[class_id][i]
            decided = dataclasses.replace(decisions, strategies=tuple(strategies))
            table[at] = _costs(self.problem, decided, recomputed_nodes, number)[
                : 2 + self.program_points
            ]
        self._tables[key] = groups, table
        return groups, table


def _along(table: np.ndarray, groups: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """A table over the ways of some classes, in order, to be broadcast over all."""
    return table.reshape([n if class_id in groups else 1 for class_id, n in enumerate(shape)])


def _costs(
    problem: Problem, decisions: Decisions, recomputed_nodes: frozenset[int], number: int
) -> np.ndarray:
    try:
        reshards = list(reshard_plans(problem, decisions, recomputed_nodes, number))
    except PlanError:  # it cannot be kept so
        return np.full(2 + len(problem.liveness.program_points), math.inf)
    seconds = sum(t.multiplicity * t.seconds for t in reshards)
    there = bytes_by_point(problem, number, decisions.strategies, reshards, recomputed_nodes).sum(0)
    return np.array([seconds, input_bytes(problem, reshards), *there])


# ---------------------------------------------------------------------- what is decided


def _sets_made_again(problem: Problem) -> Iterator[frozenset[int]]:
    in_forward = [e.index for e in problem.graph.nodes if e.phase == "forward"]
    for size in range(len(in_forward) + 1):
        yield from map(frozenset, itertools.combinations(in_forward, size))


def _loop_resident_plan(
    problem: Problem, candidates: CandidateStrategies
) -> Iterator[Mapping[int, Placements]]:
    """Every choice of a state held through the loop over microbatches, for every tensor."""
    tensor_groups = [
        group for group in problem.tensor_groups if reshard_passes(problem, group).resident_from
    ]
    tensors = [tensor for group in tensor_groups for tensor in group.tensors]
    choices = [
        _states(problem, group, candidates) for group in tensor_groups for _ in group.tensors
    ]
    for one in itertools.product(*choices):
        yield dict(zip(tensors, one, strict=True))


def _kept(
    problem: Problem, candidates: CandidateStrategies, recomputed: frozenset[int]
) -> Iterator[Mapping[int, Placements]]:
    """Every choice of a kept state for every tensor that may be kept; none if it is made again."""
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
    problem: Problem, group: TensorGroup, candidates: CandidateStrategies
) -> list[Placements]:
    """States in which a flow can be kept: whole ones, and partial as one of its ways makes it."""
    sources = {
        problem.produced_placements(group, strategy) for strategy in candidates[group.class_id]
    }
    possible = {
        (axis, placement) for placements in sources for axis, placement in enumerate(placements)
    }
    return [
        placements
        for placements in all_placements(group.sizes, problem.mesh, (SUM,))
        if all(
            placement != SUM or (axis, SUM) in possible for axis, placement in enumerate(placements)
        )
    ]
