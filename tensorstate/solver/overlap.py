"""The search of the least time with overlap: linear programs, corrected towards the schedule.

How much of a collective computation hides follows from the whole schedule and is not linear.
So programs of "sum" are solved in which collectives cost only the share of their seconds that is
exposed, and each plan is timed by its schedule (``cost.timeline``):

1. all of it, which is the plan of "sum";
2. a small share of what may hide, collectives of parameters ahead of their readers and of gradients
   that the optimizer reads, and all of the activations between operators;
3. where the schedule of the best plan so far exposes more than that along a mesh axis, the share
   that it exposes. This is repeated while it improves the plan.

The named strategies are timed beside them, and the plan of the least schedule is the answer. Its
bound is the least compute of any plan, or the bound of "sum" over the number of resources that the
sum consists of: no schedule takes less than the busiest of them.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping

from tensorstate.cost.cost import SearchOptions, SearchResult, estimate_cost, result_order
from tensorstate.cost.memory import is_gradient
from tensorstate.errors import PlanError
from tensorstate.problem.baselines import Baselines, is_parameter
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.solver.base import CandidateStrategies, Solver
from tensorstate.solver.exact import Milp
from tensorstate.solver.linear_program import LEAST_SECONDS, Progress
from tensorstate.solver.named import best_among
from tensorstate.solver.plain import plainer, simplify, timed

# The share of collectives that hide: ties are then for the plan that sends less.
LEAST_SHARE = 0.05
# Of four iterations of a scan in one body, the gathers of the first and the sums of the last.
LOOP_SHARE = 0.25
# Programs beside that of "sum", and the improvement that justifies another.
MOST_ROUNDS, MIN_IMPROVEMENT = 2, 1e-2
# Parts of the time limit: of the program of "sum", of each other one; and seconds of a strategy.
SUM_UNTIL, ROUND_UNTIL, NAMED_CAP_S = 0.4, 0.4, 5.0
# Of the named strategies those that send at different times; zero2 sends as zero1 does.
NAMED = ("fsdp", "zero1", "ddp", "megatron", "megatron-sp", "fsdp + megatron-sp")


def search_overlapped(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    solver: Solver,
    progress: Progress | None = None,
) -> SearchResult:
    """The plan of the least schedule; of devices that overlap nothing, the plan of "sum".

    Raises:
        PlanError: as ``Solver.solve``.
    """
    return _Overlap(problem, candidates, options, solver, progress).run()


def retimed(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    result: SearchResult,
) -> SearchResult:
    """A result of the linear objective, with its schedule's time and a bound for that."""
    objective = options.value(result.cost)
    if not problem.hardware.overlaps or options.objective != "overlap":
        return dataclasses.replace(result, objective=objective)
    resources = 1 + len(
        {g for g, n in zip(problem.network.link_groups(), problem.mesh.sizes, strict=True) if n > 1}
    )
    bound = max(result.bound / resources, _least_compute(problem, candidates))
    return dataclasses.replace(result, objective=objective, bound=min(bound, objective))


def _least_compute(problem: Problem, candidates: CandidateStrategies) -> float:
    return math.fsum(
        problem.multiplicity(class_id) * min(problem.seconds(class_id, each) for each in choices)
        for class_id, choices in enumerate(candidates)
    )


class _Overlap:
    """One search; see the module."""

    def __init__(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        options: SearchOptions,
        solver: Solver,
        progress: Progress | None,
    ):
        self.problem, self.candidates, self.options = problem, candidates, options
        self.solver, self.progress = solver, progress
        self.linear, self.baselines = options.linear, Baselines(problem)
        self.start = time.perf_counter()

    def run(self) -> SearchResult:
        """The best of all plans."""
        sums = self._solved(self.problem, SUM_UNTIL if self.problem.hardware.overlaps else 1.0)
        best = self._plainer(sums)
        if not self.problem.hardware.overlaps:
            return best
        first = retimed(self.problem, self.candidates, self.options, sums[0])
        shares = self._assumed()
        for _ in range(MOST_ROUNDS):
            try:
                found = self._plainer(self._solved(self.problem.discounted(shares), ROUND_UNTIL))
            except PlanError:  # nothing in time
                break
            before, best = best, self._better(best, found)
            if best.objective > before.objective * (1 - MIN_IMPROVEMENT):
                break
            corrected = self._corrected(best, shares)
            if corrected == shares:
                break
            shares = corrected
        for name in NAMED:
            named = self._named(name, best.objective)
            if named is not None and named.cost.compute < best.objective:
                best = self._better(best, timed(named, self.options))
        seconds = time.perf_counter() - self.start
        return dataclasses.replace(best, bound=min(first.bound, best.objective), seconds=seconds)

    def _solved(self, problem: Problem, share: float) -> tuple[SearchResult, SearchResult]:
        """The best plan of a linear program, and the plain one."""
        left = self.solver.time_limit - (time.perf_counter() - self.start)
        seconds = max(LEAST_SECONDS, min(left, share * self.solver.time_limit))
        solver = dataclasses.replace(self.solver, time_limit=seconds)
        found = solver.solve(problem, self.candidates, self.linear, self.progress)
        plain = simplify(problem, self.candidates, self.linear, found, solver.gap)
        if problem is self.problem:
            return found, plain
        undiscounted = self._undiscounted(found)
        return undiscounted, undiscounted if plain is found else self._undiscounted(plain)

    def _undiscounted(self, result: SearchResult) -> SearchResult:
        """A result with the costs of the network as it is."""
        return dataclasses.replace(result, cost=estimate_cost(self.problem, result.decisions))

    def _plainer(self, solved: tuple[SearchResult, SearchResult]) -> SearchResult:
        return plainer(*solved, self.options, self.solver.gap)

    def _better(self, best: SearchResult, found: SearchResult) -> SearchResult:
        """The plan of the shorter schedule, of those that fit."""
        limit = self.options.memory_limit
        return found if result_order(found, limit) < result_order(best, limit) else best

    # ------------------------------------------------------------------ shares that are exposed

    def _assumed(self) -> Mapping[TensorGroup, tuple[float, ...]]:
        """The shares with which the correction begins."""
        axes = len(self.problem.mesh.sizes)
        shares: dict[TensorGroup, tuple[float, ...]] = {}
        for group in self.problem.tensor_groups:
            if self._may_hide(group):
                share = LEAST_SHARE if group.num_repeats == 1 else LOOP_SHARE
                shares[group] = (share,) * axes
        return shares

    def _may_hide(self, group: TensorGroup) -> bool:
        """Whether its collectives are of parameters, or of gradients that the optimizer reads."""
        if is_parameter(self.problem.graph, group.tensors[0]):
            return True
        return not group.in_forward and self._is_late(group)

    def _is_late(self, group: TensorGroup) -> bool:
        """Whether the optimizer alone reads the tensors of a group, or casts of them."""
        if is_gradient(self.problem, group):
            return True
        readers = [c.class_id for c in group.consumer_classes]
        if not readers or self.problem.node(group.class_id).phase != "backward":
            return False
        for class_id in readers:
            node = None if class_id is None else self.problem.node(class_id)
            if node is None or node.kind != "elementwise":
                return False
            made = [g for g in self.problem.tensor_groups if g.class_id == class_id]
            if not all(is_gradient(self.problem, g) for g in made):
                return False
        return True

    def _corrected(
        self, best: SearchResult, shares: Mapping[TensorGroup, tuple[float, ...]]
    ) -> Mapping[TensorGroup, tuple[float, ...]]:
        """The shares that the schedule of a plan exposes along every axis."""
        timeline = best.cost.timeline(self.options.memory_limit)
        sent = [0.0] * len(self.problem.mesh.sizes)
        for reshard in best.cost.reshards:
            group = self.problem.tensor_groups[reshard.group]
            if group in shares:
                graph = self.problem.reshard_graph(group)
                for step, count in reshard.counted_steps:
                    sent[step.axis] += reshard.multiplicity * count * graph.seconds(step)
        exposed = [timeline.exposed.get((axis, True), 0.0) for axis in range(len(sent))]
        measured = [min(1.0, e / s) if s else 0.0 for e, s in zip(exposed, sent, strict=True)]
        return {
            group: tuple(max(a, b) for a, b in zip(assumed, measured, strict=True))
            for group, assumed in shares.items()
        }

    # ------------------------------------------------------------------ named strategies

    def _named(self, name: str, most: float) -> SearchResult | None:
        """A named strategy, if the candidates allow it, it fits, and may take less than ``most``.

        No schedule takes less than what computes; of most strategies that is more than the best
        plan takes, so that their programs need not be solved.
        """
        left = self.solver.time_limit - (time.perf_counter() - self.start)
        both = self.baselines.among(name, self.candidates) if left > 0 else None
        if both is None or _least_compute(self.problem, both) >= most:
            return None
        limit = self.options.memory_limit
        milp = Milp(gap=1e-3, time_limit=max(LEAST_SECONDS, min(left, NAMED_CAP_S)))
        free = dataclasses.replace(self.linear, memory_limit=None, recompute=False)
        for options in (free,) if limit is None else (free, self.linear):
            found = best_among(self.problem, both, options, milp)
            if found is None or found.cost.memory.fits(limit):
                return found
        return None
