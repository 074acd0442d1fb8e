"""Search along one mesh axis after another, and a bound from the axes one by one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware, Network
from tensorstate.problem import Problem
from tensorstate.search.exact import Found, attempt, infeasible, least_memory
from tensorstate.search.program import Progress
from tensorstate.states import REPLICATED, Mesh
from tensorstate.ways import Way

# Times that every axis is visited at most.
SWEEPS = 4


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
    together; it ends when no axis does better. The bound is ``axes_bound``'s. Arguments and errors
    are those of ``exact.milp``.
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
        better = best is None or found.objective < best.objective * (1 - 1e-9)
        if first or better:
            ways = list(found.decisions.ways)
        if fits:
            stale = 0 if better else stale + 1
            best = found if better else best
    if best is None:
        raise PlanError(infeasible(problem, allowed, recompute, memory_limit))
    bound = axes_bound(problem, allowed, recompute, memory_limit) if objective == "sum" else -np.inf
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
class OneAxis(Network):
    """One axis of a network, as if all others cut every tensor already.

    Attributes:
        network: all of it.
        axis: the one that is left.
    """

    network: Network
    axis: int

    @property
    def mesh(self) -> Mesh:  # type: ignore[override]
        """The axis alone."""
        whole = self.network.mesh
        return Mesh((whole.names[self.axis],), (whole.sizes[self.axis],))

    @property
    def others(self) -> int:
        """Devices along all other axes."""
        return self.network.mesh.num_devices // self.mesh.num_devices

    def price(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``Network``."""
        return self.network.price(kind, self.axis, nbytes // self.others)

    def schedule(self, kind: str, axis: int, nbytes: int) -> None:
        """There is none: nothing runs so."""
        return None


def axes_bound(
    problem: Problem,
    allowed: Sequence[Sequence[Way]],
    recompute: bool,
    memory_limit: float | None,
) -> float:
    """Seconds that no plan beats, where more bytes never take less time.

    The cost of a plan is, for every axis, a share of its compute and the communication along the
    axis. Each of these parts is at least what is best for that axis alone, all other axes cutting
    whatever there is: a Lagrangian decomposition with equal shares.
    """
    axes = [a for a, size in enumerate(problem.mesh.sizes) if size > 1]
    total = 0.0
    for axis in axes:
        network = OneAxis(problem.network, axis)
        faster = network.others * len(axes)
        hardware = Hardware(
            problem.hardware.name,
            {size: rate * faster for size, rate in problem.hardware.flops.items()},
            problem.hardware.memory_bandwidth * faster,
            problem.hardware.memory * network.others,
        )
        alone = Problem(problem.graph, network, hardware)
        ways = [
            tuple(w for w in known.all if w[0] in {choice[axis] for choice in choices})
            for known, choices in zip(alone.ways, allowed, strict=True)
        ]
        limit = None if memory_limit is None else memory_limit * network.others
        found = attempt(
            alone,
            ways,
            recompute=recompute,
            memory_limit=limit,
            objective="sum",
            gap=1e-3,
            time_limit=60.0,
        )
        total += 0.0 if found is None else found.bound
    return total
