"""Which search decides what."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from tensorstate.cost.result import Infeasible, SearchOptions, SearchResult, result_order
from tensorstate.errors import PlanError
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.solver.coordinate_descent import coordinate_descent
from tensorstate.solver.exact import infeasible_message, solve_milp, solve_within_limit
from tensorstate.solver.linear_program import Progress

# Axes up to which all are searched at once.
MAX_EXACT_AXES = 2

# Of the time the share after which the search along one axis after another has its turn, should the
# exact search on several axes not be done; and seconds of it where there is no end.
EXACT_TIME_SHARE = 1 / 2
EXACT_TIME_CAP_S = 300.0


def solve_auto(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    *,
    recompute: bool = False,
    memory_limit: float | None = None,
    objective: str = "sum",
    gap: float = 1e-2,
    time_limit: float = np.inf,
    progress: Progress | None = None,
) -> SearchResult:
    """The exact search up to two axes, and the descent on more.

    On two axes a memory limit may keep the exact search from finding anything for long. What it has
    not done in its share of the time is left to the descent, and the better plan is returned, with
    the higher of both bounds. Arguments and errors are those of ``exact.milp``.
    """
    start = time.perf_counter()
    many = sum(size > 1 for size in problem.mesh.sizes)
    options: SearchOptions = {
        "recompute": recompute,
        "memory_limit": memory_limit,
        "objective": objective,
    }
    rest = {"gap": gap, "progress": progress}
    if many > MAX_EXACT_AXES:
        return coordinate_descent(problem, candidates, **options, **rest, time_limit=time_limit)
    if many < MAX_EXACT_AXES or memory_limit is None:
        return solve_milp(problem, candidates, **options, **rest, time_limit=time_limit)
    patience = min(EXACT_TIME_CAP_S, EXACT_TIME_SHARE * time_limit)
    first = solve_within_limit(
        problem, candidates, **options, **rest, time_limit=patience, fall_back=False
    )
    if isinstance(first, Infeasible):
        if first.proven:
            raise PlanError(infeasible_message(problem, candidates, first, **options))
    elif first.bound >= first.objective * (1 - gap):
        return first
    left = time_limit - (time.perf_counter() - start)
    try:
        second = coordinate_descent(problem, candidates, **options, **rest, time_limit=left)
    except PlanError:
        if isinstance(first, Infeasible):
            raise
        second = first
    found = [one for one in (first, second) if not isinstance(one, Infeasible)]
    best = min(found, key=lambda one: result_order(one, memory_limit))
    bound = max(one.bound for one in found)
    return dataclasses.replace(best, bound=bound, seconds=time.perf_counter() - start)
