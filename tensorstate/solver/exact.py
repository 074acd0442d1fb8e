"""The exact search: the mixed-integer program of all mesh axes at once."""

from __future__ import annotations

import dataclasses
import functools
import time

import numpy as np

from tensorstate.cost.result import Infeasible, SearchOptions, SearchResult
from tensorstate.errors import PlanError
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Solver, remaining_time
from tensorstate.solver.conflicts import crowded_groups
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.least_memory import infeasible_message, minimize_memory
from tensorstate.solver.linear_program import Progress, Solution
from tensorstate.solver.preselection import solve_by_size

# Attempts to find decisions that still fit after shares are rounded up, and seconds per attempt.
MAX_REPAIRS = 6
REPAIR_TIME_S = 30.0

# Decisions that do not fit after all, and are excluded one after another.
MAX_EXCLUDED = 100

# Seconds to confirm that no decisions fit.
RECHECK_TIME_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Milp(Solver):
    """Decides all mesh axes at once by a mixed-integer linear program, with a proved gap.

    If no decisions within the memory limit are found in time, those with approximately the least
    memory are returned, if they fit; to find them takes up to a minute more.
    """

    def solve(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        options: SearchOptions | None = None,
        progress: Progress | None = None,
    ) -> SearchResult:
        """See ``Solver``."""
        start, options = time.perf_counter(), options or SearchOptions()
        result = solve_within_limit(problem, candidates, options, self, progress=progress)
        if isinstance(result, Infeasible):
            raise PlanError(infeasible_message(problem, candidates, result, options))
        return dataclasses.replace(result, seconds=time.perf_counter() - start)


def solve_within_limit(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    solver: Solver,
    *,
    prune_placements: bool = False,
    fall_back: bool = True,
    progress: Progress | None = None,
) -> SearchResult | Infeasible:
    """As ``Milp.solve``, but returns ``Infeasible`` where the memory limit may be the reason.

    Args:
        solver: its gap and time limit.
        prune_placements: as for ``Formulation``.
        fall_back: whether to search the least memory if nothing was found in time.

    Raises:
        PlanError: nothing was found in time, without a memory limit.
    """
    start, limit = time.perf_counter(), options.memory_limit
    build = functools.partial(
        Formulation, problem, options=options, prune_placements=prune_placements
    )
    until = start + solver.time_limit
    formulation, solution = solve_by_size(build, candidates, solver.gap, until, progress)
    refused = solution.status == "infeasible"
    if refused and (limit is None or _confirm_infeasible(formulation)):
        return Infeasible(proven=True)
    bound = -np.inf if refused else formulation.seconds(solution.bound)
    if len(solution.values):
        found = _find_fitting(formulation, solution, options, solver.gap, until)
        covers = formulation.covers(candidates)
        if not isinstance(found, Infeasible):
            bound = max(bound, found.bound) if covers else bound
            return dataclasses.replace(found, bound=bound, seconds=time.perf_counter() - start)
        if found.proven and covers:
            return found
    if limit is None:
        seconds = solver.time_limit
        raise PlanError(f"no plan was found within {seconds:g} s; allow more time")
    if not fall_back:
        return Infeasible(proven=False)
    least, nbytes = minimize_memory(problem, candidates, options, prune_placements)
    if least is None or not least.cost.memory.fits(limit):
        return Infeasible(least is not None and nbytes > limit, least)
    return dataclasses.replace(least, bound=bound, seconds=time.perf_counter() - start)


def _find_fitting(
    formulation: Formulation, solution: Solution, options: SearchOptions, gap: float, until: float
) -> SearchResult | Infeasible:
    """The best decisions that fit, beginning with those of a solution.

    Reshardings take the steps of the least seconds, whereas the program may split a tensor among
    several, which takes less memory. So a solution of the program may exceed the limit; its
    decisions are excluded then, and the program is solved again.
    """
    best, bound, is_proof = None, -np.inf, True
    for _ in range(MAX_EXCLUDED):
        bound = formulation.seconds(solution.bound) if is_proof else bound
        found = exceeding = formulation.result(solution, options)
        is_next_best = _fits(found, options)
        if not is_next_best:
            found = _repair_rounding(formulation.problem, found, options, gap)
        if _fits(found, options) and (best is None or found.objective < best.objective):
            best = found
        is_close = best is not None and bound >= best.objective * (1 - gap)
        if is_next_best or is_close or time.perf_counter() > until:
            break
        crowded = crowded_groups(formulation.problem, exceeding, options.memory_limit or 0.0)
        is_proof &= formulation.exclude(solution, crowded)
        if best is not None and not is_proof:
            break
        solution = formulation.program.solve(gap=gap, time_limit=remaining_time(until))
        if solution.status == "infeasible":
            if best is None:
                return Infeasible(is_proof)
            bound = best.objective
        if not len(solution.values):
            break
    if best is None:
        return Infeasible(proven=False)
    return dataclasses.replace(best, bound=min(bound, best.objective))


def _fits(found: SearchResult, options: SearchOptions) -> bool:
    return found.cost.memory.fits(options.memory_limit)


def _confirm_infeasible(formulation: Formulation) -> bool:
    """Whether no decisions fit, whatever they cost.

    Where costs differ by many orders of magnitude, HiGHS may call a program infeasible that is only
    hard to solve. Without costs it does not.
    """
    formulation.program.clear_objective()
    return formulation.program.solve(time_limit=RECHECK_TIME_S).status == "infeasible"


def _repair_rounding(
    problem: Problem, found: SearchResult, options: SearchOptions, gap: float
) -> SearchResult:
    """Decisions that fit with shares of layers rounded up: the same strategies, a lower limit.

    Returns the decisions themselves, which exceed the limit, if no lower limit helps.
    """
    limit, margin, attempt = options.memory_limit or 0.0, 0.0, found
    for _ in range(MAX_REPAIRS):
        margin += attempt.cost.memory.peak - limit
        if margin >= limit:
            break
        formulation = Formulation(
            problem,
            [[strategy] for strategy in found.decisions.strategies],
            dataclasses.replace(options, memory_limit=limit - margin),
        )
        solution = formulation.program.solve(gap=gap, time_limit=REPAIR_TIME_S)
        if not len(solution.values):
            break
        attempt = formulation.result(solution, options)
        if _fits(attempt, options):
            return attempt
    return found
