"""Solves large programs in two stages: the relaxation preselects strategies for the MILP."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from tensorstate.solver.base import CandidateStrategies, remaining_time
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.linear_program import Progress, Solution

# Above DIRECT_SOLVE_MAX_VARS variables, strategies are preselected with the LP relaxation; above
# RELAX_ONLY_MIN_VARS, the relaxation is solved by the interior-point method and the preselection is
# final.
DIRECT_SOLVE_MAX_VARS, RELAX_ONLY_MIN_VARS = 20_000, 200_000


def solve_by_size(
    build: Callable[[CandidateStrategies], Formulation],
    candidates: CandidateStrategies,
    gap: float,
    until: float,
    progress: Progress | None,
) -> tuple[Formulation, Solution]:
    """A program and its solution; unless it is small, among preselected strategies.

    The bound is valid for all strategies. If it is farther than ``gap`` from the solution, and the
    program is not very large, the remaining time goes to the program of all strategies.
    """
    left = functools.partial(remaining_time, until)
    full = build(candidates)
    size = full.program.num_variables
    if size > DIRECT_SOLVE_MAX_VARS:
        relaxed = solve_relaxation(full, gap, left)
        # A negative bound says nothing about a time, and its values select poorly.
        if len(relaxed.values) and relaxed.bound >= 0:
            support = build(full.choices.fractional_support(relaxed))
            solution = support.program.solve(gap=gap / 2, time_limit=left(), progress=progress)
            is_close = relaxed.bound >= solution.objective * (1 - gap)
            if len(solution.values):
                solution = dataclasses.replace(solution, bound=relaxed.bound)
                if is_close or size > RELAX_ONLY_MIN_VARS:
                    return support, solution
                better = full.program.solve(gap=gap, time_limit=left(), progress=progress)
                if better.objective < solution.objective:
                    return full, better
                return support, dataclasses.replace(
                    solution, bound=max(solution.bound, better.bound)
                )
    return full, full.program.solve(gap=gap, time_limit=left(), progress=progress)


def solve_relaxation(full: Formulation, gap: float, left: Callable[[], float]) -> Solution:
    """The LP relaxation: by the simplex method, unless that takes too many iterations.

    Simplex finds a vertex, where few strategies have positive shares, and is mostly faster than the
    interior-point method; but it may stall where many solutions are equally good. Presolve helps
    only without a memory limit.
    """
    program, limited = full.program, full.memory_constraints is not None
    if program.num_variables <= RELAX_ONLY_MIN_VARS:
        iterations = program.num_rows // 2 if limited else program.num_rows
        solution = program.solve(
            relax=True, presolve=not limited, iterations=iterations, time_limit=left()
        )
        if solution.status != "limit":
            return solution
    return program.solve_ipm_relaxation(tolerance=gap / 100, time_limit=left())
