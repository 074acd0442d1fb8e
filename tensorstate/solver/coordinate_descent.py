"""Search along one mesh axis after another, and a bound from the two busiest."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tensorstate.cost.cost import estimate_cost, seconds_by_collective
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.cost.result import Infeasible, SearchOptions, SearchResult, objective_value
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware
from tensorstate.ir.placements import REPLICATED
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.solver.exact import (
    infeasible_message,
    minimize_memory,
    remaining_time,
    solve_relaxation,
    solve_within_limit,
)
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.linear_program import Progress
from tensorstate.solver.submesh import SubmeshCosts, merge_similar_axes

# Relative gap to which a relaxation under a memory limit is solved.
BOUND_GAP = 1e-2

# Times that every axis is visited at most, and the share of the cost that is worth another visit.
MAX_SWEEPS = 4
MIN_IMPROVEMENT = 1e-3


def coordinate_descent(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    *,
    recompute: bool = False,
    memory_limit: float | None = None,
    objective: str = "sum",
    gap: float = 1e-3,
    time_limit: float = np.inf,
    progress: Progress | None = None,
) -> SearchResult:
    """Block-coordinate descent: one axis is decided while the others are as they are.

    It starts from the best plan, without the memory limit, in which axes of like speed are one; it
    ends when no axis does better by a thousandth. If that plan takes too much, one that does not is
    found first, again along one axis after another. The bound is ``lower_bound_on_axes``'s, of the
    axes along which that first plan is busiest and of those along which the last one is; the former
    is worked out beside the descent. Arguments and errors are those of ``exact.milp``.
    """
    start = time.perf_counter()
    until = start + time_limit
    merged = _merged_axes_start(problem, candidates, objective, gap, time_limit, progress)
    limited: SearchOptions = {
        "recompute": recompute,
        "memory_limit": memory_limit,
        "objective": objective,
    }
    axes = [a for a, size in enumerate(problem.mesh.sizes) if size > 1] or [0]
    fitting = None
    if memory_limit is not None and (merged is None or not merged.cost.memory.fits(memory_limit)):
        fitting = _least_memory(problem, candidates, merged, axes, limited)
        if fitting is None or not fitting.cost.memory.fits(memory_limit):
            raise PlanError(
                infeasible_message(
                    problem, candidates, Infeasible(proven=False, least_memory=fitting), **limited
                )
            )
    bound = functools.partial(lower_bound_on_axes, problem, candidates, **limited, until=until)
    with ThreadPoolExecutor(1) as beside:
        first = None if merged is None else busiest_axes(problem, merged)
        bounds = [] if first is None else [beside.submit(bound, first)]
        best = _descend(problem, candidates, axes, merged, fitting, limited, gap, until, progress)
        last = busiest_axes(problem, best)
        if last != first:
            bounds.append(beside.submit(bound, last))
        highest = max(one.result() for one in bounds)
    seconds = time.perf_counter() - start
    return dataclasses.replace(best, bound=highest, method="descent", seconds=seconds)


def _descend(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    axes: Sequence[int],
    start: SearchResult | None,
    fitting: SearchResult | None,
    limited: SearchOptions,
    gap: float,
    until: float,
    progress: Progress | None,
) -> SearchResult:
    """Decides along one axis after another, from a plan, or none, in which no limit is kept.

    Args:
        fitting: where the start takes too much, what helps out if nothing that fits is found in
            time along an axis.
    """
    memory_limit = limited["memory_limit"]
    strategies = None if start is None else start.decisions.strategies
    best = start if fitting is None else None
    stale = 0
    for visit in range(MAX_SWEEPS * len(axes)):
        left = until - time.perf_counter()
        if stale >= len(axes) or (left <= 0 and (best or fitting) is not None):
            break
        found = solve_within_limit(
            problem,
            _vary_one_axis(candidates, axes[visit % len(axes)], strategies),
            **limited,
            gap=gap,
            time_limit=max(5.0, left / 2),
            prune_placements=True,
            fall_back=False,
            progress=progress,
        )
        stale += 1
        if not isinstance(found, Infeasible):
            if _is_better(found, best, memory_limit):
                best, strategies, stale = (
                    found,
                    found.decisions.strategies,
                    1,
                )  # this axis is as it should be
        elif best is None and fitting is not None:
            best, strategies, stale = fitting, fitting.decisions.strategies, 0
    found = best or fitting
    if found is None:
        raise PlanError(
            infeasible_message(problem, candidates, Infeasible(proven=False), **limited)
        )
    return found


def _least_memory(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    start: SearchResult | None,
    axes: Sequence[int],
    limited: SearchOptions,
) -> SearchResult | None:
    """What takes the least memory, along one axis after another, or little enough."""
    recompute, objective = limited["recompute"], limited["objective"]
    strategies = None if start is None else start.decisions.strategies
    least, stale = None, 0
    for visit in range(MAX_SWEEPS * len(axes)):
        if least is not None and least.cost.memory.fits(limited["memory_limit"]):
            break
        if stale >= len(axes):
            break
        free = _vary_one_axis(candidates, axes[visit % len(axes)], strategies)
        found, _ = minimize_memory(problem, free, recompute, objective, prune_placements=True)
        stale += 1
        if found is not None and (least is None or _uses_less_memory(found, least)):
            least, strategies, stale = found, found.decisions.strategies, 1
    return least


def _uses_less_memory(found: SearchResult, least: SearchResult) -> bool:
    return found.cost.memory.peak < least.cost.memory.peak * (1 - MIN_IMPROVEMENT)


def _is_better(found: SearchResult, best: SearchResult | None, memory_limit: float | None) -> bool:
    is_quicker = best is None or found.objective < best.objective * (1 - MIN_IMPROVEMENT)
    return is_quicker and found.cost.memory.fits(memory_limit)


def _vary_one_axis(
    candidates: Sequence[Sequence[Strategy]], axis: int, strategies: Sequence[Strategy] | None
) -> list[list[Strategy]]:
    """For every class the ways that differ from the present one along an axis only."""

    def along(choices: Sequence[Strategy], now: Strategy) -> list[Strategy]:
        others = now[:axis] + now[axis + 1 :]
        return [w for w in choices if w[:axis] + w[axis + 1 :] == others] or list(choices)

    if strategies is None:
        strategies = [(REPLICATED,) * len(choices[0]) for choices in candidates]
    return [along(choices, now) for choices, now in zip(candidates, strategies, strict=True)]


def _merged_axes_start(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    objective: str,
    gap: float,
    time_limit: float,
    progress: Progress | None,
) -> SearchResult | None:
    """The best decisions, without a memory limit, in which axes of like speed do the same.

    ``None`` where the ways allowed do not let them.
    """
    network = merge_similar_axes(problem.network)
    fewer = problem.on(network)
    meant = [
        _expand_merged(choices, known.all, network.parts)
        for choices, known in zip(candidates, fewer.strategies, strict=True)
    ]
    found = solve_within_limit(
        fewer,
        [list(one) for one in meant],
        recompute=False,
        memory_limit=None,
        objective=objective,
        gap=gap,
        time_limit=time_limit,
        progress=progress,
    )
    if isinstance(found, Infeasible):
        return None
    pairs = zip(meant, found.decisions.strategies, strict=True)
    decisions = Decisions(tuple(one[strategy] for one, strategy in pairs))
    cost = estimate_cost(problem, decisions)
    return dataclasses.replace(
        found, decisions=decisions, cost=cost, objective=objective_value(cost, objective)
    )


def _expand_merged(
    choices: Sequence[Strategy], fewer: Sequence[Strategy], parts: Sequence[Sequence[int]]
) -> dict[Strategy, Strategy]:
    """What ways on joined axes mean on all: of the ways allowed those that agree on most axes."""

    same = {strategy: _broadcast_over_part(strategy, parts, len(choices[0])) for strategy in fewer}
    known = frozenset(choices)
    exact = {strategy: choice for strategy, choice in same.items() if choice in known}
    if exact:
        return exact

    def agrees(strategy: Strategy, choice: Strategy) -> int:
        return sum(a == b for a, b in zip(same[strategy], choice, strict=True))

    nearest = {
        strategy: max(choices, key=lambda choice: agrees(strategy, choice)) for strategy in fewer
    }
    most = max(agrees(strategy, choice) for strategy, choice in nearest.items())
    return {
        strategy: choice for strategy, choice in nearest.items() if agrees(strategy, choice) == most
    }


def _broadcast_over_part(strategy: Strategy, parts: Sequence[Sequence[int]], axes: int) -> Strategy:
    """The way in which all axes of a part do what the part does."""
    found = [REPLICATED] * axes
    for part, placement in zip(parts, strategy, strict=True):
        for axis in part:
            found[axis] = placement
    return tuple(found)


# ---------------------------------------------------------------------- bound


def lower_bound_on_axes(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    axes: tuple[int, ...],
    *,
    recompute: bool,
    memory_limit: float | None,
    objective: str,
    until: float = np.inf,
) -> float:
    """Seconds that no plan beats, where more bytes never take less time; ``-inf`` if none in time.

    Some axes are searched together, in the relaxation, as if the others cut every tensor and all
    work and cost nothing.
    """
    network = SubmeshCosts(problem.network, axes)
    faster = network.num_other_devices
    hardware = Hardware(
        problem.hardware.name,
        {size: rate * faster for size, rate in problem.hardware.flops.items()},
        problem.hardware.memory_bandwidth * faster,
        problem.hardware.memory * faster,
    )
    rest = problem.on(network, hardware)
    strategies = []
    for known, choices in zip(rest.strategies, candidates, strict=True):
        left = {tuple(choice[a] for a in axes) for choice in choices}
        strategies.append(tuple(strategy for strategy in known.all if strategy in left))
    formulation = Formulation(
        rest,
        strategies,
        recompute=recompute,
        memory_limit=None if memory_limit is None else memory_limit * faster,
        objective=objective,
    )
    left = functools.partial(remaining_time, until)
    if memory_limit is None:
        relaxed = formulation.program.solve(relax=True, presolve=False, time_limit=left())
    else:
        relaxed = solve_relaxation(formulation, BOUND_GAP, left)
    return formulation.seconds(relaxed.bound)


def busiest_axes(problem: Problem, found: SearchResult) -> tuple[int, ...]:
    """The two axes along which a plan communicates longest."""
    spent = [0.0] * len(problem.mesh.sizes)
    for (_, axis), seconds in seconds_by_collective(problem, found.cost).items():
        spent[axis] += seconds
    return tuple(sorted(sorted(range(len(spent)), key=lambda axis: -spent[axis])[:2]))
