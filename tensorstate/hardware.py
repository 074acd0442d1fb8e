"""What a device can do, and what collectives between devices cost.

Prices of collectives come from schedules that ``jaxcoll`` synthesizes for the groups of each mesh
axis on the real network, timed by its simulator; or from latency and bandwidth alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import JaxcollError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import Bucket, Direct, Ring, Synthesizer, Tacos, synthesize
from jaxcoll.topology import Topology
from tensorstate.errors import PlanError
from tensorstate.ir.placements import MeshShape


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A device.

    Attributes:
        name: what it is called.
        flops: floating-point operations per second of a matrix product, by bytes of an operand's
            element (2 or 4; 8 where there are such units).
        memory_bandwidth: bytes per second of its main memory.
        memory: bytes of its main memory.
    """

    name: str
    flops: Mapping[int, float]
    memory_bandwidth: float
    memory: float

    def __post_init__(self) -> None:
        rates = {**{f"flops[{k}]": v for k, v in self.flops.items()}}
        rates |= {"memory_bandwidth": self.memory_bandwidth, "memory": self.memory}
        for name, rate in rates.items():
            if not (math.isfinite(rate) and rate > 0):
                raise PlanError(f"{name} of {self.name} must be above 0, got {rate}")
        if not self.flops:
            raise PlanError(f"flops of {self.name} must have an entry, by bytes of an element")

    def flops_of(self, itemsize: int) -> float:
        """Operations per second for elements of this many bytes; the next size there is."""
        larger = [size for size in self.flops if size >= itemsize]
        return self.flops[min(larger) if larger else max(self.flops)]


# Dense rates and memories of the vendors' data sheets: NVIDIA A100 80GB SXM and H100 SXM (TF32 for
# 4-byte elements), Google Cloud's pages of TPU v4, v5e and v5p (matrix units take bfloat16, and
# float32 in JAX's default precision runs as one pass of it).
HARDWARE: dict[str, Hardware] = {
    hardware.name: hardware
    for hardware in (
        Hardware("A100", {2: 312e12, 4: 156e12}, 2.039e12, 80e9),
        Hardware("H100", {2: 989.4e12, 4: 494.7e12}, 3.35e12, 80e9),
        Hardware("TPU v4", {2: 275e12, 4: 275e12}, 1.2288e12, 32e9),
        Hardware("TPU v5e", {2: 197e12, 4: 197e12}, 0.819e12, 16e9),
        Hardware("TPU v5p", {2: 459e12, 4: 459e12}, 2.765e12, 95e9),
        # A virtual CPU device: a share of a core.
        Hardware("CPU", {2: 5e9, 4: 1e10}, 2e9, 2e9),
    )
}


class CollectiveCostModel:
    """Prices of collectives along the axes of a mesh. Subclasses say how."""

    mesh: MeshShape

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """Seconds of a collective along an axis, in all its groups at once.

        Args:
            kind: "all_gather", "reduce_scatter", "all_reduce" or "all_to_all".
            axis: number of the mesh axis.
            nbytes: of the larger of a device's buffers, at least 0.
        """
        raise NotImplementedError

    def schedule(self, kind: str, axis: int, nbytes: int) -> Schedule | None:
        """The schedule that is priced; ``None`` where there is none."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class AlphaBetaCosts(CollectiveCostModel):
    """Ring collectives on links of their own along every axis.

    A ring of n takes n - 1 steps and moves (n - 1)/n of the buffer (twice both for an all_reduce);
    an all_to_all the same share.

    Attributes:
        mesh: the device mesh.
        alpha: seconds a step, for every axis.
        bandwidth: bytes per second of a device, for every axis.
    """

    mesh: MeshShape
    alpha: tuple[float, ...]
    bandwidth: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values in (("alpha", self.alpha), ("bandwidth", self.bandwidth)):
            if len(values) != len(self.mesh.sizes):
                raise PlanError(f"{name} has {len(values)} entries for {len(self.mesh.sizes)} axes")
        if any(not (math.isfinite(b) and b > 0) for b in self.bandwidth):
            raise PlanError(f"bandwidth must be above 0, got {self.bandwidth}")
        if any(not (math.isfinite(a) and a >= 0) for a in self.alpha):
            raise PlanError(f"alpha must be at least 0, got {self.alpha}")

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        n = self.mesh.sizes[axis]
        once = (n - 1) * self.alpha[axis] + nbytes * (n - 1) / n / self.bandwidth[axis]
        return 2 * once if kind == "all_reduce" else once

    def schedule(self, kind: str, axis: int, nbytes: int) -> None:
        """There is none."""
        return None


# Tried for the groups of an axis; those that are not defined for them are passed over.
CANDIDATES: tuple[tuple[Synthesizer, int], ...] = (
    (Tacos(), 1),
    (Tacos(), 4),
    (Bucket(), 1),
    (Bucket(), 4),
    (Ring(), 2),
    (Direct(), 1),
)


class ScheduleCosts(CollectiveCostModel):
    """Collectives by schedules on a network, synthesized for all groups of an axis at once.

    Args:
        topology: the network; rank r is device r of the mesh, its last axis fastest, unless
            ``device_order`` says otherwise.
        mesh: the device mesh.
        device_order: the rank of each device of the mesh: which wires every axis gets. Schedules
            number devices by their place on the mesh.
        candidates: synthesizers with chunks a shard, of which each size takes the quickest.
        seed: of the synthesizers.

    Raises:
        PlanError: the mesh has another number of devices than the network has ranks, or
            ``device_order`` is no order of them.
    """

    def __init__(
        self,
        topology: Topology,
        mesh: MeshShape,
        *,
        device_order: Sequence[int] | None = None,
        candidates: Sequence[tuple[Synthesizer, int]] = CANDIDATES,
        seed: int = 0,
    ):
        n = mesh.num_devices
        if topology.num_ranks != n:
            sizes = " x ".join(map(str, mesh.sizes))
            raise PlanError(f"a mesh of {sizes} devices over {topology}: it has other ranks")
        device_order = (
            tuple(range(n)) if device_order is None else tuple(int(rank) for rank in device_order)
        )
        if sorted(device_order) != list(range(n)):
            raise PlanError(f"order must name every rank from 0 to {n - 1} once")
        self.mesh, self.device_order = mesh, device_order
        # Rank order[i] of the network is device i.
        self.topology = topology.relabel(np.argsort(device_order))
        self.candidates, self.seed = tuple(candidates), seed
        self._schedules = functools.cache(self._synthesize)
        self._best = functools.cache(self._quickest)

    def groups(self, axis: int) -> tuple[tuple[int, ...], ...]:
        """The devices of every group along an axis."""
        return tuple(map(tuple, self.mesh.replica_groups((axis,)).tolist()))

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        if self.mesh.sizes[axis] == 1 or nbytes == 0:
            return 0.0
        return self._best(kind, axis, nbytes)[0]

    def schedule(self, kind: str, axis: int, nbytes: int) -> Schedule | None:
        """See ``CollectiveCostModel``."""
        if self.mesh.sizes[axis] == 1 or nbytes == 0:
            return None
        return self._best(kind, axis, nbytes)[1]

    def _quickest(self, kind: str, axis: int, nbytes: int) -> tuple[float, Schedule]:
        schedules = self._schedules(kind, axis)
        times = [simulate(schedule, nbytes).time for schedule in schedules]
        best = int(np.argmin(times))
        return times[best], schedules[best]

    def _synthesize(self, kind: str, axis: int) -> tuple[Schedule, ...]:
        found, reasons = [], []
        for synthesizer, chunks in self.candidates:
            try:
                collective = Collective(kind, self.topology.num_ranks, chunks, self.groups(axis))  # type: ignore[arg-type]
                found.append(synthesize(self.topology, collective, synthesizer, seed=self.seed))
            except JaxcollError as error:
                reasons.append(f"{synthesizer.name}: {error}")
        if not found:
            name = self.mesh.names[axis]
            raise PlanError(f"no {kind} along mesh axis {name!r}: {'; '.join(reasons)}")
        return tuple(found)
