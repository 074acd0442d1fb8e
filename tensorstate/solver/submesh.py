"""Networks with fewer axes than there are: some left out, or several joined to one."""

from __future__ import annotations

import dataclasses
import math

from tensorstate.hardware import CollectiveCostModel
from tensorstate.ir.placements import MeshShape

# Bytes whose all_gather tells how fast an axis is.
PROBE_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True, eq=False)
class SubmeshCosts(CollectiveCostModel):
    """Some axes of a network, as if all others cut every tensor already.

    Attributes:
        network: all of it.
        axes: those that are left.
    """

    network: CollectiveCostModel
    axes: tuple[int, ...]

    @property
    def mesh(self) -> MeshShape:  # type: ignore[override]
        """The axes that are left."""
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
        """There is none: nothing runs so."""
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class MergedAxesCosts(CollectiveCostModel):
    """Every part of a network's axes as one axis, whose collectives run along one after another.

    An all_reduce runs as reduce_scatters, an all_reduce along the last axis, and all_gathers.

    Attributes:
        network: all of it.
        parts: the axes of each part, in order.
    """

    network: CollectiveCostModel
    parts: tuple[tuple[int, ...], ...]

    @property
    def mesh(self) -> MeshShape:  # type: ignore[override]
        """An axis for every part."""
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
            spent += [collective_seconds(one, a, nbytes) for one in kinds]
            nbytes //= sizes[a]
        return math.fsum([*spent, collective_seconds(kind, last, nbytes)])

    def schedule(self, kind: str, axis: int, nbytes: int) -> None:
        """There is none: it is several."""
        return None


def merge_similar_axes(network: CollectiveCostModel) -> MergedAxesCosts:
    """A network of two axes at most, and of fewer than there are: axes of like speed are joined."""
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
