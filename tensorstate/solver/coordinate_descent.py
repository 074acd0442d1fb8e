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
from tensorstate.cost.result import Found, Limited, Unfit, objective_of
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware
from tensorstate.ir.placements import REPLICATED
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.solver.exact import attempt, least_memory, relaxation, seconds_left, why
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.linear_program import Progress
from tensorstate.solver.submesh import SubmeshCosts, joined

# Relative gap to which a relaxation under a memory limit is solved.
BOUND = 1e-2

# Times that every axis is visited at most, and the share of the cost that is worth another visit.
SWEEPS = 4
LEAST = 1e-3


def descent(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    *,
    recompute: bool = False,
    memory_limit: float | None = None,
    objective: str = "sum",
    gap: float = 1e-3,
    time_limit: float = np.inf,
    progress: Progress | None = None,
) -> Found:
    """Block-coordinate descent: one axis is decided while the others are as they are.

    It starts from the best plan, without the memory limit, in which axes of like speed are one; it
    ends when no axis does better by a thousandth. If that plan takes too much, one that does not is
    found first, again along one axis after another. The bound is ``axes_bound``'s, of the axes
    along which that first plan is busiest and of those along which the last one is; the former is
    worked out beside the descent. Arguments and errors are those of ``exact.milp``.
    """
    start = time.perf_counter()
    until = start + time_limit
    joined = _joined_axes(problem, candidates, objective, gap, time_limit, progress)
    limited: Limited = {
        "recompute": recompute,
        "memory_limit": memory_limit,
        "objective": objective,
    }
    axes = [a for a, size in enumerate(problem.mesh.sizes) if size > 1] or [0]
    fitting = None
    if memory_limit is not None and (joined is None or not joined.cost.memory.fits(memory_limit)):
        fitting = _least_memory(problem, candidates, joined, axes, limited)
        if fitting is None or not fitting.cost.memory.fits(memory_limit):
            raise PlanError(why(problem, candidates, Unfit(proved=False, least=fitting), **limited))
    bound = functools.partial(axes_bound, problem, candidates, **limited, until=until)
    with ThreadPoolExecutor(1) as beside:
        first = None if joined is None else busiest_axes(problem, joined)
        bounds = [] if first is None else [beside.submit(bound, first)]
        best = _descend(problem, candidates, axes, joined, fitting, limited, gap, until, progress)
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
    start: Found | None,
    fitting: Found | None,
    limited: Limited,
    gap: float,
    until: float,
    progress: Progress | None,
) -> Found:
    """Decides along one axis after another, from a plan, or none, in which no limit is kept.

    Args:
        fitting: where the start takes too much, what helps out if nothing that fits is found in
            time along an axis.
    """
    memory_limit = limited["memory_limit"]
    strategies = None if start is None else start.decisions.strategies
    best = start if fitting is None else None
    stale = 0
    for visit in range(SWEEPS * len(axes)):
        left = until - time.perf_counter()
        if stale >= len(axes) or (left <= 0 and (best or fitting) is not None):
            break
        found = attempt(
            problem,
            _along(candidates, axes[visit % len(axes)], strategies),
            **limited,
            gap=gap,
            time_limit=max(5.0, left / 2),
            narrow=True,
            fall_back=False,
            progress=progress,
        )
        stale += 1
        if not isinstance(found, Unfit):
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
        raise PlanError(why(problem, candidates, Unfit(proved=False), **limited))
    return found


def _least_memory(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    start: Found | None,
    axes: Sequence[int],
    limited: Limited,
) -> Found | None:
    """What takes the least memory, along one axis after another, or little enough."""
    recompute, objective = limited["recompute"], limited["objective"]
    strategies = None if start is None else start.decisions.strategies
    least, stale = None, 0
    for visit in range(SWEEPS * len(axes)):
        if least is not None and least.cost.memory.fits(limited["memory_limit"]):
            break
        if stale >= len(axes):
            break
        free = _along(candidates, axes[visit % len(axes)], strategies)
        found, _ = least_memory(problem, free, recompute, objective, narrow=True)
        stale += 1
        if found is not None and (least is None or _takes_less(found, least)):
            least, strategies, stale = found, found.decisions.strategies, 1
    return least


def _takes_less(found: Found, least: Found) -> bool:
    return found.cost.memory.peak < least.cost.memory.peak * (1 - LEAST)


def _is_better(found: Found, best: Found | None, memory_limit: float | None) -> bool:
    is_quicker = best is None or found.objective < best.objective * (1 - LEAST)
    return is_quicker and found.cost.memory.fits(memory_limit)


def _along(
    candidates: Sequence[Sequence[Strategy]], axis: int, strategies: Sequence[Strategy] | None
) -> list[list[Strategy]]:
    """For every class the ways that differ from the present one along an axis only."""

    def along(choices: Sequence[Strategy], now: Strategy) -> list[Strategy]:
        others = now[:axis] + now[axis + 1 :]
        return [w for w in choices if w[:axis] + w[axis + 1 :] == others] or list(choices)

    if strategies is None:
        strategies = [(REPLICATED,) * len(choices[0]) for choices in candidates]
    return [along(choices, now) for choices, now in zip(candidates, strategies, strict=True)]


def _joined_axes(
    problem: Problem,
    candidates: Sequence[Sequence[Strategy]],
    objective: str,
    gap: float,
    time_limit: float,
    progress: Progress | None,
) -> Found | None:
    """The best decisions, without a memory limit, in which axes of like speed do the same.

    ``None`` where the ways allowed do not let them.
    """
    network = joined(problem.network)
    fewer = problem.on(network)
    meant = [
        _meant(choices, known.all, network.parts)
        for choices, known in zip(candidates, fewer.strategies, strict=True)
    ]
    found = attempt(
        fewer,
        [list(one) for one in meant],
        recompute=False,
        memory_limit=None,
        objective=objective,
        gap=gap,
        time_limit=time_limit,
        progress=progress,
    )
    if isinstance(found, Unfit):
        return None
    pairs = zip(meant, found.decisions.strategies, strict=True)
    decisions = Decisions(tuple(one[strategy] for one, strategy in pairs))
    cost = estimate_cost(problem, decisions)
    return dataclasses.replace(
        found, decisions=decisions, cost=cost, objective=objective_of(cost, objective)
    )


def _meant(
    choices: Sequence[Strategy], fewer: Sequence[Strategy], parts: Sequence[Sequence[int]]
) -> dict[Strategy, Strategy]:
    """What ways on joined axes mean on all: of the ways allowed those that agree on most axes."""

    same = {strategy: _same(strategy, parts, len(choices[0])) for strategy in fewer}
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


def _same(strategy: Strategy, parts: Sequence[Sequence[int]], axes: int) -> Strategy:
    """The way in which all axes of a part do what the part does."""
    found = [REPLICATED] * axes
    for part, placement in zip(parts, strategy, strict=True):
        for axis in part:
            found[axis] = placement
    return tuple(found)


# ---------------------------------------------------------------------- bound


def axes_bound(
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
    left = functools.partial(seconds_left, until)
    if memory_limit is None:
        relaxed = formulation.program.solve(relax=True, presolve=False, time_limit=left())
    else:
        relaxed = relaxation(formulation, BOUND, left)
    return formulation.seconds(relaxed.bound)


def busiest_axes(problem: Problem, found: Found) -> tuple[int, ...]:
    """The two axes along which a plan communicates longest."""
    spent = [0.0] * len(problem.mesh.sizes)
    for (_, axis), seconds in seconds_by_collective(problem, found.cost).items():
        spent[axis] += seconds
    return tuple(sorted(sorted(range(len(spent)), key=lambda axis: -spent[axis])[:2]))
