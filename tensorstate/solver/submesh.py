"""Cost models of networks with fewer mesh axes: some left out, or several merged into one."""

from __future__ import annotations

import dataclasses
import math

from tensorstate.hardware import CollectiveCostModel
from tensorstate.ir.placements import MeshShape

# Bytes of the all-gather by which axes are compared.
PROBE_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True, eq=False)
class SubmeshCosts(CollectiveCostModel):
    """Some axes of a network, where the other axes already shard every tensor.

    Attributes:
        network: the full network.
        axes: the remaining axes.
    """

    network: CollectiveCostModel
    axes: tuple[int, ...]

    @property
    def mesh(self) -> MeshShape:  # type: ignore[override]
        """The remaining axes."""
        full_mesh = self.network.mesh
        return MeshShape(
            tuple(full_mesh.names[a] for a in self.axes),
            tuple(full_mesh.sizes[a] for a in self.axes),
        )

    @property
    def num_other_devices(self) -> int:
        """Devices along all other axes."""
        return self.network.mesh.num_devices // self.mesh.num_devices

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        return self.network.collective_seconds(
            kind, self.axes[axis], nbytes // self.num_other_devices
        )

    def schedule(self, kind: str, axis: int, nbytes: int) -> None:
        """``None``: this model is for bounds only."""
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class MergedAxesCosts(CollectiveCostModel):
    """A network whose merged axes run collectives along one of their axes after another.

    An all_reduce runs as reduce_scatters, an all_reduce along the last axis, and all_gathers.

    Attributes:
        network: the full network.
        parts: by merged axis, the axes of the network, in order.
    """

    network: CollectiveCostModel
    parts: tuple[tuple[int, ...], ...]

    @property
    def mesh(self) -> MeshShape:  # type: ignore[override]
        """The merged axes."""
        full_mesh = self.network.mesh
        return MeshShape(
            tuple("+".join(full_mesh.names[a] for a in part) for part in self.parts),
            tuple(math.prod(full_mesh.sizes[a] for a in part) for part in self.parts),
        )

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        *first, last = self.parts[axis]
        sizes, collective_seconds = self.network.mesh.sizes, self.network.collective_seconds
        if kind == "all_to_all":
            return math.fsum(collective_seconds(kind, a, nbytes) for a in (*first, last))
        spent = []
        for a in first:
            kinds = ("reduce_scatter", "all_gather") if kind == "all_reduce" else (kind,)
            spent += [collective_seconds(step_kind, a, nbytes) for step_kind in kinds]
            nbytes //= sizes[a]
        return math.fsum([*spent, collective_seconds(kind, last, nbytes)])

    def schedule(self, kind: str, axis: int, nbytes: int) -> None:
        """``None``: a collective is several schedules."""
        return None


def merge_similar_axes(network: CollectiveCostModel) -> MergedAxesCosts:
    """At most two axes, and fewer than the network has: axes of similar bandwidth are merged."""
    sizes = network.mesh.sizes
    speeds = {
        a: network.collective_seconds("all_gather", a, PROBE_BYTES)
        for a in range(len(sizes))
        if sizes[a] > 1
    }
    order = sorted(speeds, key=lambda a: (speeds[a], a))
    if len(order) < 3:
        return MergedAxesCosts(network, (tuple(sorted(order)) or (0,),))
    cut = max(range(1, len(order)), key=lambda i: speeds[order[i]] / speeds[order[i - 1]])
    parts = sorted(tuple(sorted(part)) for part in (order[:cut], order[cut:]))
    return MergedAxesCosts(network, tuple(parts))
