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

from tensorstate.cost.memory import EXACT, input_bytes, occupied
from tensorstate.cost.reshard_plan import Decisions, is_held, remade_nodes, trips_of
from tensorstate.errors import PlanError
from tensorstate.ir.placements import SUM, Placements, all_placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import Flow

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
        keep: whether all states to keep tensors in, and in microbatches to hold them in, are looked
            at, and memory; otherwise they are those that cost the least time.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        *,
        recompute: bool = False,
        keep: bool = False,
    ):
        self.problem, self.candidates = problem, candidates
        self.points = len(problem.timeline.points) if keep else 0
        self._tables: dict[Hashable, tuple[tuple[int, ...], np.ndarray]] = {}
        found: dict[Hashable, Decisions] = {}
        helds = list(_held(problem, candidates)) if keep else [{}]
        for again in _sets_made_again(problem) if recompute else [frozenset()]:
            for kept in _kept(problem, candidates, again) if keep else [{}]:
                for held in helds:
                    decisions = Decisions((), again, kept, held)
                    remade = remade_nodes(problem, decisions)
                    stays = frozenset(kept.items()), frozenset(held.items())
                    found.setdefault((remade, stays), decisions)
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
        remade = remade_nodes(problem, decisions)
        shape = tuple(map(len, candidates))
        compute, communication, inputs = (np.zeros(shape) for _ in range(3))
        there = [np.zeros(shape) for _ in range(self.points)]
        for class_id, choices in enumerate(candidates):
            members = problem.graph.node_classes[class_id]
            runs = len(members) + len(remade.intersection(members))
            seconds = [runs * problem.seconds(class_id, strategy) for strategy in choices]
            compute += _along(np.array(seconds), (class_id,), shape)
        for number in range(len(problem.flows)):
            groups, table = self._table(decisions, remade, number)
            totals = (communication, inputs, *there)
            for total, column in zip(totals, np.moveaxis(table, -1, 0), strict=True):
                if column.any():
                    total += _along(column, groups, shape)
        peak = inputs + np.ceil(np.max(there, axis=0) - EXACT) if there else inputs
        return Columns(decisions, compute, communication, peak)

    def _table(
        self, decisions: Decisions, remade: frozenset[int], number: int
    ) -> tuple[tuple[int, ...], np.ndarray]:
        """Seconds, and bytes of inputs, and of others at every point, of a flow."""
        flow, candidates = self.problem.flows[number], self.candidates
        stays = tuple((decisions.kept.get(t), decisions.held.get(t)) for t in flow.tensors)
        key = number, remade & flow.nodes, stays
        if key in self._tables:
            return self._tables[key]
        readers = (d.class_id for d in flow.demands if d.class_id is not None)
        groups = tuple(sorted({flow.class_id, *readers}))
        table = np.zeros((*(len(candidates[g]) for g in groups), 2 + self.points))
        strategies = [choices[0] for choices in candidates]
        for at in itertools.product(*(range(len(candidates[g])) for g in groups)):
            for class_id, i in zip(groups, at, strict=True):
                strategies[class_id] = candidates[class_id][i]
            decided = dataclasses.replace(decisions, strategies=tuple(strategies))
            table[at] = _costs(self.problem, decided, remade, number)[: 2 + self.points]
        self._tables[key] = groups, table
        return groups, table


def _along(table: np.ndarray, groups: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """A table over the ways of some classes, in order, to be broadcast over all."""
    return table.reshape([n if class_id in groups else 1 for class_id, n in enumerate(shape)])


def _costs(
    problem: Problem, decisions: Decisions, remade: frozenset[int], number: int
) -> np.ndarray:
    try:
        trips = list(trips_of(problem, decisions, remade, number))
    except PlanError:  # it cannot be kept so
        return np.full(2 + len(problem.timeline.points), math.inf)
    seconds = sum(t.multiplicity * t.seconds for t in trips)
    there = occupied(problem, number, decisions.strategies, trips, remade).sum(0)
    return np.array([seconds, input_bytes(problem, trips), *there])


# ---------------------------------------------------------------------- what is decided


def _sets_made_again(problem: Problem) -> Iterator[frozenset[int]]:
    early = [e.index for e in problem.graph.nodes if e.phase == "forward"]
    for size in range(len(early) + 1):
        yield from map(frozenset, itertools.combinations(early, size))


def _held(problem: Problem, candidates: CandidateStrategies) -> Iterator[Mapping[int, Placements]]:
    """Every choice of a state held through the loop over microbatches, for every tensor."""
    flows = [flow for flow in problem.flows if is_held(problem, flow)]
    tensors = [tensor for flow in flows for tensor in flow.tensors]
    choices = [_states(problem, flow, candidates) for flow in flows for _ in flow.tensors]
    for one in itertools.product(*choices):
        yield dict(zip(tensors, one, strict=True))


def _kept(
    problem: Problem, candidates: CandidateStrategies, again: frozenset[int]
) -> Iterator[Mapping[int, Placements]]:
    """Every choice of a kept state for every tensor that may be kept; none if it is made again."""
    tensors, choices = [], []
    for flow in problem.flows:
        for tensor, maker, readers in zip(flow.tensors, flow.makers, flow.readers, strict=True):
            late = any(d.late and not d.crosses for d in flow.demands) or any(
                not again.isdisjoint(r) for r in readers
            )
            if flow.early and late and not (flow.stored and is_held(problem, flow)):
                tensors.append(tensor)
                none = [None] if maker in again else []
                choices.append([*none, *_states(problem, flow, candidates)])
    for one in itertools.product(*choices):
        pairs = zip(tensors, one, strict=True)
        yield {tensor: placements for tensor, placements in pairs if placements is not None}


def _states(problem: Problem, flow: Flow, candidates: CandidateStrategies) -> list[Placements]:
    """States in which a flow can be kept: whole ones, and partial as one of its ways makes it."""
    sources = {problem.source(flow, strategy) for strategy in candidates[flow.class_id]}
    entries = {
        (axis, placement) for placements in sources for axis, placement in enumerate(placements)
    }
    return [
        placements
        for placements in all_placements(flow.sizes, problem.mesh, (SUM,))
        if all(
            placement != SUM or (axis, SUM) in entries for axis, placement in enumerate(placements)
        )
    ]
