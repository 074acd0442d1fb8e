"""The networks of the TACOS paper, from their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction

from experiments.config import above, at_least, one_of
from experiments.errors import ConfigError
from jaxcoll import topologies
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """A network of Table IV, or the DGX-1 of Fig. 17b.

    Attributes:
        family: a name in ``FAMILIES``.
        sides: ranks along each dimension, as the paper writes them (switches and DragonFly:
            innermost first).
        alpha_us: microseconds a link.
        bandwidth_gbps: GB/s per link, one for all or one per dimension.
    """

    family: str
    sides: tuple[int, ...]
    alpha_us: float
    bandwidth_gbps: tuple[float, ...]

    def __post_init__(self) -> None:
        one_of("family of a network", self.family, tuple(FAMILIES))
        if not self.sides or min(self.sides) < 1:
            raise ConfigError(f"sides must be integers of at least 1, got {self.sides}")
        at_least("alpha_us", self.alpha_us, 0)
        if not self.bandwidth_gbps:
            raise ConfigError("bandwidth_gbps needs one number, or one per dimension, got none")
        for bandwidth in self.bandwidth_gbps:
            above("bandwidth_gbps", bandwidth, 0)

    def build(self) -> Topology:
        """The network."""
        speeds = tuple(bandwidth * 1e9 for bandwidth in self.bandwidth_gbps)
        bandwidth = speeds[0] if len(speeds) == 1 else speeds
        try:
            return FAMILIES[self.family](
                *self.sides, alpha=self.alpha_us * 1e-6, bandwidth=bandwidth
            )
        except TypeError as error:
            raise ConfigError(f"a {self.family} has other sides than {self.sides}") from error


def _dragonfly(routers: int, groups: int, *, alpha: float, bandwidth: tuple) -> Topology:
    return topologies.dragonfly(groups, routers, alpha=alpha, bandwidth=bandwidth)


def _shared_dragonfly(routers: int, groups: int, *, alpha: float, bandwidth: tuple) -> Topology:
    """A rank's bandwidth inside its group is shared by the links to the others."""
    inside, between = bandwidth
    each = Fraction(inside) / max(1, routers - 1)
    return topologies.dragonfly(groups, routers, alpha=alpha, bandwidth=(each, between))  # type: ignore[arg-type]


def _shared_rfs(*sides: int, alpha: float, bandwidth: tuple) -> Topology:
    return topologies.ring_fc_switch(*sides, alpha=alpha, bandwidth=bandwidth, shared=True)


def _unwound_rfs(*sides: int, alpha: float, bandwidth: tuple) -> Topology:
    shared = {"shared": True, "degree": 1}
    return topologies.ring_fc_switch(*sides, alpha=alpha, bandwidth=bandwidth, **shared)


def _dgx1(*_: int, alpha: float, bandwidth: float) -> Topology:
    return topologies.dgx1(alpha=alpha, bandwidth=bandwidth)


# "shared": the bandwidth of a dimension is a rank's, shared by all its links there.
FAMILIES: Mapping[str, Callable[..., Topology]] = {
    "ring": topologies.ring,
    "one_way_ring": lambda n, **links: topologies.switch(n, degree=1, **links),
    "fully_connected": topologies.fully_connected,
    "mesh": topologies.mesh,  # the paper's 3D Hypercube is a 3D mesh
    "torus": topologies.torus,
    "switch_2d": topologies.switch_2d,
    "3d_rfs": topologies.ring_fc_switch,
    "3d_rfs_shared": _shared_rfs,
    "3d_rfs_unwound": _unwound_rfs,
    "dragonfly": _dragonfly,
    "dragonfly_shared": _shared_dragonfly,
    "dgx1": _dgx1,
}
