"""The exact search, and block-coordinate descent over mesh axes with the same program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from tensorstate.cost import Cost, Decisions, price
from tensorstate.errors import PlanError
from tensorstate.problem import Problem
from tensorstate.search.milp import Formulation
from tensorstate.search.program import Progress
from tensorstate.states import REPLICATED
from tensorstate.ways import Way


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What a search found.

    Attributes:
        decisions: the best.
        cost: theirs.
        objective: seconds of what was minimized: the sum or the larger of compute and
            communication.
        bound: seconds of it that no decisions beat; ``-inf`` where none was proved.
        method: "milp", "descent" or "genetic".
        seconds: that the search took.
    """

    decisions: Decisions
    cost: Cost
    objective: float
    bound: float
    method: str
    seconds: float


def milp(
    problem: Problem,
    allowed: Sequence[Sequence[Way]],
    *,
    recompute: bool = False,
    memory_limit: float | None = None,
    objective: str = "sum",
    gap: float = 1e-4,
    time_limit: float = np.inf,
    progress: Progress | None = None,
) -> Found:
    """The best decisions, within ``gap`` of a proved bound unless time runs out.

    Args:
        problem: what to decide.
        allowed: for every class the ways to choose from.
        recompute, memory_limit, objective: as for ``Formulation``.
        gap: relative.
        time_limit: seconds.
        progress: called now and then.

    Raises:
        PlanError: nothing fits into the memory, or nothing was found in time.
    """
    start = time.perf_counter()
    formulation = Formulation(
        problem,
        allowed,
        recompute=recompute,
        memory_limit=memory_limit,
        objective=objective,
    )
    left = max(0.1, time_limit - (time.perf_counter() - start))
    solution = formulation.program.solve(gap=gap, time_limit=left, progress=progress)
    if solution.status == "infeasible":
        raise PlanError(infeasible(problem, allowed, recompute, memory_limit))
    if not len(solution.values):
        raise PlanError(f"no plan was found within {time_limit:g} s; allow more time")
    decisions = formulation.decisions(solution)
    cost = price(problem, decisions)
    bound = formulation.seconds(solution.bound)
    minimized = objective_of(cost, objective)
    return Found(decisions, cost, minimized, bound, "milp", time.perf_counter() - start)


def objective_of(cost: Cost, objective: str) -> float:
    """Seconds of what is minimized: "sum" or "max" of compute and communication."""
    return cost.seconds if objective == "sum" else cost.overlapped


def infeasible(
    problem: Problem,
    allowed: Sequence[Sequence[Way]],
    recompute: bool,
    memory_limit: float | None,
) -> str:
    """Why nothing fits: how much the least memory is, and what takes most of it."""
    if memory_limit is None:
        return "no ways of the operators fit together; pins may contradict each other"
    least = least_memory(problem, allowed, recompute)
    memory = least.cost.memory
    peak = memory.peak
    largest = sorted(
        (
            (flow.weight * problem.local_bytes(flow, trip.kept or trip.source), flow)
            for flow, trip in zip(problem.flows, least.cost.trips, strict=True)
            if flow.stored or trip.kept is not None
        ),
        key=lambda pair: -pair[0],
    )[:3]
    names = ", ".join(
        f"{problem.graph.tensors[flow.tensors[0]].name} x {flow.weight}: {nbytes / 1e6:.1f} MB"
        for nbytes, flow in largest
    )
    return (
        f"no plan fits into {memory_limit / 1e6:.1f} MB of a device's memory: the least is about "
        f"{peak / 1e6:.1f} MB, {(peak - memory_limit) / 1e6:.1f} MB more. Inputs take "
        f"{memory.inputs / 1e6:.1f} MB, what is kept {memory.kept / 1e6:.1f} MB, gradients "
        f"{memory.gradients / 1e6:.1f} MB; the largest are {names}"
    )


def least_memory(problem: Problem, allowed: Sequence[Sequence[Way]], recompute: bool) -> Found:
    """Decisions with the least memory."""
    start = time.perf_counter()
    formulation = Formulation(problem, allowed, recompute=recompute, memory_limit=np.inf)
    formulation.minimize_memory()
    solution = formulation.program.solve(gap=1e-2, time_limit=60)
    decisions = formulation.decisions(solution)
    cost = price(problem, decisions)
    return Found(decisions, cost, cost.seconds, -np.inf, "milp", time.perf_counter() - start)


def descent(
    problem: Problem,
    allowed: Sequence[Sequence[Way]],
    *,
    recompute: bool = False,
    memory_limit: float | None = None,
    objective: str = "sum",
    gap: float = 1e-3,
    time_limit: float = np.inf,
    progress: Progress | None = None,
) -> Found:
    """One mesh axis after another, the others as they are, until none does better.

    Arguments and errors are those of ``milp``. There is no bound.
    """
    start = time.perf_counter()
    axes = range(len(problem.mesh.sizes))
    best: Found | None = None
    ways: list[Way] | None = None
    stale = 0
    for turn in range(8 * len(axes)):
        left = time_limit - (time.perf_counter() - start)
        if stale >= len(axes) or (left <= 0 and best is not None):
            break
        axis = turn % len(axes)
        free = [
            _along(choices, axis, None if ways is None else ways[group])
            for group, choices in enumerate(allowed)
        ]
        try:
            found = milp(
                problem,
                free,
                recompute=recompute,
                memory_limit=memory_limit,
                objective=objective,
                gap=gap,
                time_limit=max(1.0, left),
                progress=progress,
            )
        except PlanError:
            # Not yet: further axes have to share the memory out too.
            if best is not None or turn >= len(axes):
                raise
            ways = list(least_memory(problem, free, recompute).decisions.ways)
            continue
        better = best is None or found.objective < best.objective * (1 - 1e-9)
        stale = 0 if better else stale + 1
        if better:
            best, ways = found, list(found.decisions.ways)
    if best is None:
        raise PlanError(infeasible(problem, allowed, recompute, memory_limit))
    seconds = time.perf_counter() - start
    return dataclasses.replace(best, bound=-np.inf, method="descent", seconds=seconds)


def _along(choices: Sequence[Way], axis: int, now: Way | None) -> list[Way]:
    """The ways that differ from the present one along an axis only."""
    others = [REPLICATED] * len(choices[0]) if now is None else list(now)
    fixed = [entry for i, entry in enumerate(others) if i != axis]
    found = [w for w in choices if [entry for i, entry in enumerate(w) if i != axis] == fixed]
    return found or list(choices)
