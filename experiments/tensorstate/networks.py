"""Device meshes of studies, and rings along their axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from experiments.config import above, at_least
from experiments.errors import ConfigError
from tensorstate import AlphaBetaCosts, MeshShape


@dataclasses.dataclass(frozen=True)
class AxisConfig:
    """An axis of a device mesh, with separate links for the axis.

    Attributes:
        name: of the axis.
        devices: number of devices along the axis.
        alpha_us: latency of a collective's step in microseconds.
        bandwidth_gbps: of a device along the axis, in GB/s.
    """

    name: str
    devices: int
    alpha_us: float
    bandwidth_gbps: float

    def __post_init__(self) -> None:
        at_least(f"{self.name}.devices", self.devices, 1)
        at_least(f"{self.name}.alpha_us", self.alpha_us, 0)
        above(f"{self.name}.bandwidth_gbps", self.bandwidth_gbps, 0)


def sizes_of(axes: Sequence[AxisConfig]) -> dict[str, int]:
    """Devices along every axis, by its name.

    Raises:
        ConfigError: no axes, or two of one name.
    """
    sizes = {axis.name: axis.devices for axis in axes}
    if not sizes or len(sizes) < len(axes):
        raise ConfigError(f"axes must have distinct names, got {[axis.name for axis in axes]}")
    return sizes


def rings(axes: Sequence[AxisConfig]) -> AlphaBetaCosts:
    """The costs of ring collectives along the axes."""
    return AlphaBetaCosts(
        MeshShape.of(sizes_of(axes)),
        tuple(1e-6 * axis.alpha_us for axis in axes),
        tuple(1e9 * axis.bandwidth_gbps for axis in axes),
    )
