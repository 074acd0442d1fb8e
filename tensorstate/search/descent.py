"""Search along one mesh axis after another, and a bound from the axes one by one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from tensorstate.cost import times
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware, Network
from tensorstate.problem import Problem
from tensorstate.search.exact import Found, attempt, infeasible, least_memory
from tensorstate.search.milp import Formulation
from tensorstate.search.program import Progress
from tensorstate.states import REPLICATED, Mesh
from tensorstate.ways import Way

# Times that every axis is visited at most, and the share of the cost that is worth another visit.
SWEEPS = 4
LEAST = 1e-3


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
    """Block-coordinate descent: one axis is decided while the others are as they are.

    It starts with everything replicated, without the memory limit, which the axes meet only
    together; it ends when no axis does better by a thousandth. The bound is ``axes_bound``'s.
    Arguments and errors are those of ``exact.milp``.
    """
    start = time.perf_counter()
    axes = [a for a, size in enumerate(problem.mesh.sizes) if size > 1] or [0]
    best: Found | None = None
    ways: list[Way] | None = None
    stale = 0
    for turn in range(SWEEPS * len(axes)):
        left = time_limit - (time.perf_counter() - start)
        first = turn < len(axes)
        if stale >= len(axes) or (left <= 0 and best is not None):
            break
        free = [
            _along(choices, axes[turn % len(axes)], None if ways is None else ways[group])
            for group, choices in enumerate(allowed)
        ]
        found = attempt(
            problem,
            free,
            recompute=recompute and not first,
            memory_limit=None if first else memory_limit,
            objective=objective,
            gap=gap,
            time_limit=max(5.0, left),
            narrow=True,
            progress=progress,
        )
        if found is None:
            stale += 1
            if best is None:
                ways = list(least_memory(problem, free, recompute, narrow=True).decisions.ways)
                stale = 0
            continue
        fits = memory_limit is None or found.cost.memory.peak <= memory_limit
        better = best is None or found.objective < best.objective * (1 - LEAST)
        if first or better:
            ways = list(found.decisions.ways)
        if fits:
            stale = 0 if better else stale + 1
            best = found if better else best
    if best is None:
        raise PlanError(infeasible(problem, allowed, recompute, memory_limit))
    bound = axes_bound(
        problem,
        allowed,
        best,
        recompute=recompute,
        memory_limit=memory_limit,
        objective=objective,
    )
    seconds = time.perf_counter() - start
    return dataclasses.replace(best, bound=bound, method="descent", seconds=seconds)


def _along(choices: Sequence[Way], axis: int, now: Way | None) -> list[Way]:
    """The ways that differ from the present one along an axis only."""
    others = [REPLICATED] * len(choices[0]) if now is None else list(now)
    fixed = [entry for i, entry in enumerate(others) if i != axis]
    found = [w for w in choices if [entry for i, entry in enumerate(w) if i != axis] == fixed]
    return found or list(choices)


# ---------------------------------------------------------------------- bound


@dataclasses.dataclass(frozen=True, eq=False)
class SomeAxes(Network):
    """Some axes of a network, as if all others cut every tensor already.

    Attributes:
        network: all of it.
        axes: those that are left.
    """

    network: Network
    axes: tuple[int, ...]

    @property
    def mesh(self) -> Mesh:  # type: ignore[override]
        """The axes that are left."""
        whole = self.network.mesh
        return Mesh(
            tuple(whole.names[a] for a in self.axes), tuple(whole.sizes[a] for a in self.axes)
        )

    @property
    def others(self) -> int:
        """Devices along all other axes."""
        return self.network.mesh.num_devices // self.mesh.num_devices

    def price(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``Network``."""
        return self.network.price(kind, self.axes[axis], nbytes // self.others)

    def schedule(self, kind: str, axis: int, nbytes: int) -> None:
        """There is none: nothing runs so."""
        return None


def axes_bound(
    problem: Problem,
    allowed: Sequence[Sequence[Way]],
    found: Found,
    *,
    recompute: bool,
    memory_limit: float | None,
    objective: str,
) -> float:
    """Seconds that no plan beats, where more bytes never take less time.

    The two axes along which the plan that was found communicates longest are searched together, in
    the relaxation, as if the others cut every tensor and all work and cost nothing.
    """
    axes = tuple(sorted(_busiest(problem, found)[:2]))
    network = SomeAxes(problem.network, axes)
    faster = network.others
    hardware = Hardware(
        problem.hardware.name,
        {size: rate * faster for size, rate in problem.hardware.flops.items()},
        problem.hardware.memory_bandwidth * faster,
        problem.hardware.memory * faster,
    )
    rest = Problem(problem.graph, network, hardware)
    ways = []
    for known, choices in zip(rest.ways, allowed, strict=True):
        left = {tuple(choice[a] for a in axes) for choice in choices}
        ways.append(tuple(way for way in known.all if way in left))
    formulation = Formulation(
        rest,
        ways,
        recompute=recompute,
        memory_limit=None if memory_limit is None else memory_limit * faster,
        objective=objective,
    )
    return formulation.seconds(formulation.program.solve(relax=True).bound)


def _busiest(problem: Problem, found: Found) -> list[int]:
    """The axes, those with the longest communication first."""
    spent = [0.0] * len(problem.mesh.sizes)
    for (_, axis), seconds in times(problem, found.cost).items():
        spent[axis] += seconds
    return sorted(range(len(spent)), key=lambda axis: -spent[axis])
