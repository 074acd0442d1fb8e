"""The exact search."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import numpy as np

from tensorstate.cost.cost import Cost, estimate_cost
from tensorstate.cost.reshard_plan import Decisions, ReshardPlan
from tensorstate.cost.result import Infeasible, SearchResult, objective_value
from tensorstate.errors import PlanError
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.linear_program import Progress, Solution

# Variables above which the relaxation says which ways come into question; and above which it is
# solved from the inside at once, and nothing else is tried.
DIRECT_SOLVE_MAX_VARS, RELAX_ONLY_MIN_VARS = 20_000, 200_000

# Times that room is made for shares of layers to be rounded up, and seconds of each.
MAX_REPAIRS = 6
REPAIR_TIME_S = 30.0

# Seconds of a second look at whether anything fits.
RECHECK_TIME_S = 5.0


def solve_milp(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    *,
    recompute: bool = False,
    memory_limit: float | None = None,
    objective: str = "sum",
    gap: float = 1e-4,
    time_limit: float = np.inf,
    progress: Progress | None = None,
) -> SearchResult:
    """The best decisions, within ``gap`` of a proved bound unless time runs out.

    Args:
        problem: what to decide.
        candidates: for every class the ways to choose from.
        recompute, memory_limit, objective: as for ``Formulation``.
        gap: relative.
        time_limit: seconds. If no plan was found in them that keeps the memory limit, that with
            about the least memory is, if it does; up to a minute more.
        progress: called now and then.

    Raises:
        PlanError: nothing fits into the memory, or nothing was found in time.
    """
    start = time.perf_counter()
    found = solve_within_limit(
        problem,
        candidates,
        recompute=recompute,
        memory_limit=memory_limit,
        objective=objective,
        gap=gap,
        time_limit=time_limit,
        progress=progress,
    )
    if isinstance(found, Infeasible):
        raise PlanError(
            infeasible_message(problem, candidates, found, recompute, memory_limit, objective)
        )
    return dataclasses.replace(found, seconds=time.perf_counter() - start)


def solve_within_limit(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    *,
    recompute: bool,
    memory_limit: float | None,
    objective: str,
    gap: float,
    time_limit: float,
    prune_placements: bool = False,
    fall_back: bool = True,
    progress: Progress | None = None,
) -> SearchResult | Infeasible:
    """As ``milp``, but nothing is raised where a memory limit may be the reason.

    Args:
        prune_placements: as for ``Formulation``.
        fall_back: whether to look for the least memory if nothing was found in time.
    """
    start = time.perf_counter()
    build = functools.partial(
        Formulation,
        problem,
        recompute=recompute,
        memory_limit=memory_limit,
        objective=objective,
        prune_placements=prune_placements,
    )
    formulation, solution = _solve_by_size(build, candidates, gap, start + time_limit, progress)
    refused = solution.status == "infeasible"
    if refused and (memory_limit is None or _confirm_infeasible(formulation)):
        return Infeasible(proven=True)
    bound = -np.inf if refused else formulation.seconds(solution.bound)
    if not len(solution.values):
        if memory_limit is None:
            raise PlanError(f"no plan was found within {time_limit:g} s; allow more time")
        if not fall_back:
            return Infeasible(proven=False)
        least, nbytes = minimize_memory(problem, candidates, recompute, objective, prune_placements)
        if least is None or not least.cost.memory.fits(memory_limit):
            return Infeasible(least is not None and nbytes > memory_limit, least)
        return dataclasses.replace(least, bound=bound, seconds=time.perf_counter() - start)
    decisions = formulation.decisions(solution)
    cost = estimate_cost(problem, decisions)
    if memory_limit is not None and not cost.memory.fits(memory_limit):
        room = (memory_limit, recompute, objective, gap)
        decisions, cost = _repair_rounding(problem, decisions, cost, *room)
    minimized = objective_value(cost, objective)
    return SearchResult(decisions, cost, minimized, bound, "milp", time.perf_counter() - start)


def _solve_by_size(
    build: Callable[[Sequence[Sequence[Strategy]]], Formulation],
    candidates: Sequence[Sequence[Strategy]],
    gap: float,
    until: float,
    progress: Progress | None,
) -> tuple[Formulation, Solution]:
    """A program and its solution; if it is not small, among ways that its relaxation has parts of.

    The bound is that of all ways; if it is too far, and the program is not large, all are tried in
    what time there is left.
    """
    left = functools.partial(remaining_time, until)
    full = build(candidates)
    size = full.program.num_variables
    if size > DIRECT_SOLVE_MAX_VARS:
        relaxed = solve_relaxation(full, gap, left)
        if len(relaxed.values) and relaxed.bound >= 0:  # no time is less
            fractional_support = build(full.choices.fractional_support(relaxed))
            found = fractional_support.program.solve(
                gap=gap / 2, time_limit=left(), progress=progress
            )
            close = relaxed.bound >= found.objective * (1 - gap)
            if len(found.values):
                found = dataclasses.replace(found, bound=relaxed.bound)
                if close or size > RELAX_ONLY_MIN_VARS:
                    return fractional_support, found
                better = full.program.solve(gap=gap, time_limit=left(), progress=progress)
                if better.objective < found.objective:
                    return full, better
                return fractional_support, dataclasses.replace(
                    found, bound=max(found.bound, better.bound)
                )
    return full, full.program.solve(gap=gap, time_limit=left(), progress=progress)


def _confirm_infeasible(formulation: Formulation) -> bool:
    """Whether nothing fits, whatever it costs.

    Where costs differ by many orders of magnitude the solver may say so of what is only hard.
    """
    formulation.program.clear_objective()
    return formulation.program.solve(time_limit=RECHECK_TIME_S).status == "infeasible"


def remaining_time(until: float) -> float:
    """Seconds until then; a tenth at least, for which a solver may still be called."""
    return max(0.1, until - time.perf_counter())


def solve_relaxation(full: Formulation, gap: float, left: Callable[[], float]) -> Solution:
    """The relaxation: by the simplex method, if it does not take too many steps.

    It finds a corner, where few ways are likely, mostly sooner than the interior-point method does;
    but with many solutions alike it may be lost. Presolve helps but under a memory limit.
    """
    program, limited = full.program, full.memory_constraints is not None
    if program.num_variables <= RELAX_ONLY_MIN_VARS:
        most = program.num_rows // 2 if limited else program.num_rows
        found = program.solve(relax=True, presolve=not limited, iterations=most, time_limit=left())
        if found.status != "limit":
            return found
    return program.solve_ipm_relaxation(tolerance=gap / 100, time_limit=left())


def _repair_rounding(
    problem: Problem,
    decisions: Decisions,
    cost: Cost,
    limit: float,
    recompute: bool,
    objective: str,
    gap: float,
) -> tuple[Decisions, Cost]:
    """Where shares of layers, rounded up, take too much: the same ways, with room for rounding.

    As they are where that does not help: then too much memory is taken.
    """
    found, taken, room = decisions, cost, 0.0
    for _ in range(MAX_REPAIRS):
        room += taken.memory.peak - limit
        formulation = Formulation(
            problem,
            [[strategy] for strategy in decisions.strategies],
            recompute=recompute,
            memory_limit=limit - room,
            objective=objective,
        )
        solution = formulation.program.solve(gap=gap, time_limit=REPAIR_TIME_S)
        if not len(solution.values):
            break
        found = formulation.decisions(solution)
        taken = estimate_cost(problem, found)
        if taken.memory.fits(limit):
            return found, taken
    return decisions, cost


def infeasible_message(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    unfit: Infeasible,
    recompute: bool,
    memory_limit: float | None,
    objective: str,
) -> str:
    """Why nothing fits: how much the least memory is that is found, and what takes most of it."""
    if memory_limit is None:
        return "no ways of the operators fit together; pins may contradict each other"
    none = "no plan fits" if unfit.proven else "no plan was found that fits"
    none = f"{none} into {_bytes(memory_limit)} of a device's memory"
    least = unfit.least_memory or minimize_memory(problem, candidates, recompute, objective)[0]
    if least is None:
        return f"{none}: how much the least is, was not found in a minute"
    memory = least.cost.memory
    largest = sorted(
        ((_persistent_bytes(problem, reshard), reshard) for reshard in least.cost.reshards),
        key=lambda pair: -pair[0],
    )[:3]
    tensors = problem.graph.tensors
    names = ", ".join(
        f"{tensors[reshard.tensors[0]].name} x {reshard.multiplicity}: {_bytes(nbytes)}"
        for nbytes, reshard in largest
    )
    return (
        f"{none}: the least is about "
        f"{_bytes(memory.peak)}, {_bytes(memory.peak - memory_limit)} more. Inputs take "
        f"{_bytes(memory.inputs)}, saved tensors {_bytes(memory.saved + memory.loop_resident)}, "
        f"gradients {_bytes(memory.gradients)}; the largest are {names}"
    )


def _persistent_bytes(problem: Problem, reshard: ReshardPlan) -> int:
    """Bytes on a device of what is stored, kept or held."""
    group = problem.tensor_groups[reshard.group]
    copies = [
        placements
        for placements in (reshard.saved, reshard.loop_resident)
        if placements is not None
    ]
    own = problem.input_bytes(group, reshard.produced_placements) if group.is_input else 0
    return reshard.multiplicity * (
        own + sum(problem.local_bytes(group, placements) for placements in copies)
    )


def _bytes(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} bytes"


def minimize_memory(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    recompute: bool,
    objective: str,
    prune_placements: bool = False,
) -> tuple[SearchResult | None, float]:
    """Decisions with about the least memory, if any are found in a minute.

    Returns:
        The decisions, and bytes below which none are.
    """
    start = time.perf_counter()
    all_whole = float(sum(tensor.nbytes for tensor in problem.graph.tensors))

    def build(candidates: Sequence[Sequence[Strategy]]) -> Formulation:
        formulation = Formulation(
            problem,
            candidates,
            recompute=recompute,
            memory_limit=2 * all_whole,
            prune_placements=prune_placements,
        )
        formulation.minimize_memory()
        return formulation

    formulation, solution = _solve_by_size(build, candidates, 1e-2, start + 60, None)
    bound = formulation.nbytes(solution.bound)
    if not len(solution.values):
        return None, bound
    decisions = formulation.decisions(solution)
    cost = estimate_cost(problem, decisions)
    spent = time.perf_counter() - start
    found = SearchResult(decisions, cost, objective_value(cost, objective), -np.inf, "milp", spent)
    return found, bound
