"""Chooses between the exact search and coordinate descent."""

from __future__ import annotations

import dataclasses
import time

from tensorstate.cost.cost import Infeasible, SearchOptions, SearchResult, result_order
from tensorstate.errors import PlanError
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Solver
from tensorstate.solver.coordinate_descent import CoordinateDescent
from tensorstate.solver.exact import Milp, infeasible_message, solve_within_limit
from tensorstate.solver.linear_program import Progress

# Meshes with at most this many axes longer than 1 are searched exactly.
MAX_EXACT_AXES = 2

# Fraction of the time limit after which an unfinished exact search yields to coordinate descent;
# without a limit, this many seconds.
EXACT_TIME_SHARE = 1 / 2
EXACT_TIME_CAP_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Auto(Solver):
    """``Milp`` on meshes of up to two axes, ``CoordinateDescent`` on larger ones.

    On two axes with a memory limit, the exact search may take long to find any decisions. If it is
    unfinished after half of the time limit, coordinate descent takes the other half; the better
    decisions are returned, with the higher of both bounds.
    """

    def solve(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        options: SearchOptions | None = None,
        progress: Progress | None = None,
    ) -> SearchResult:
        """See ``Solver``."""
        options = options or SearchOptions()
        num_axes = sum(size > 1 for size in problem.mesh.sizes)
        exact = Milp(gap=self.gap, time_limit=self.time_limit)
        descent = CoordinateDescent(gap=self.gap, time_limit=self.time_limit)
        if num_axes > MAX_EXACT_AXES:
            return descent.solve(problem, candidates, options, progress)
        if num_axes < MAX_EXACT_AXES or options.memory_limit is None:
            return exact.solve(problem, candidates, options, progress)
        return self._solve_both(problem, candidates, options, progress)

    def _solve_both(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        options: SearchOptions,
        progress: Progress | None,
    ) -> SearchResult:
        """The exact search first; coordinate descent if it is unfinished."""
        start = time.perf_counter()
        share = min(EXACT_TIME_CAP_S, EXACT_TIME_SHARE * self.time_limit)
        exact = Milp(gap=self.gap, time_limit=share)
        first = solve_within_limit(
            problem, candidates, options, exact, fall_back=False, progress=progress
        )
        if isinstance(first, Infeasible):
            if first.proven:
                raise PlanError(infeasible_message(problem, candidates, first, options))
        elif first.bound >= first.objective * (1 - self.gap):
            return first
        left = max(0.1, self.time_limit - (time.perf_counter() - start))
        descent = CoordinateDescent(gap=self.gap, time_limit=left)
        try:
            second = descent.solve(problem, candidates, options, progress)
        except PlanError:
            if isinstance(first, Infeasible):
                raise
            second = first
        results = [result for result in (first, second) if not isinstance(result, Infeasible)]
        best = min(results, key=lambda result: result_order(result, options.memory_limit))
        bound = max(result.bound for result in results)
        return dataclasses.replace(best, bound=bound, seconds=time.perf_counter() - start)
