"""The clusters of ForestColl's evaluation, and rings through them as vendors lay them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from experiments.config import at_least, one_of
from jaxcoll import topologies
from jaxcoll.synth.building.hosts import host_chains, host_circles
from jaxcoll.topology import Topology

# Dissertation, Sec. 4.6.2 and 4.6.3: bytes per second from a rank to its host's switch, and
# outside.
NVSWITCH = {"a100": (300e9, 25e9), "h100": (450e9, 50e9)}


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """Hosts of one kind.

    Attributes:
        fabric: "a100", "h100" or "mi250".
        hosts: how many.
        ranks: of each host; all that a host has (8, 8 and 16) in the paper but for MI250's 8+8.
    """

    fabric: str
    hosts: int
    ranks: int

    def __post_init__(self) -> None:
        one_of("fabric", self.fabric, tuple(FABRICS))
        at_least("hosts", self.hosts, 1)
        at_least("ranks", self.ranks, 1)

    def build(self) -> Topology:
        """The network."""
        return FABRICS[self.fabric](self.hosts, self.ranks)

    def circles(self) -> tuple[tuple[int, ...], ...]:
        """A ring for each rank of a host, entering and leaving it at different ranks."""
        return host_circles(self.build(), self.ranks)

    def box_switches(self) -> tuple[int, ...]:
        """The vertices of the switches inside hosts; none where links join the ranks of a host."""
        topology = self.build()
        found = []
        for switch in range(topology.num_ranks, topology.num_vertices):
            ranks = topology.src[topology.dst == switch]
            if (ranks < topology.num_ranks).all() and len({*(ranks // self.ranks)}) == 1:
                found.append(switch)
        return tuple(found)

    def chains(self) -> tuple[tuple[int, ...], ...]:
        """An order of the ranks of a host for each of them to begin, over links where it can be."""
        return host_chains(self.build(), self.ranks)


def _nvswitch(fabric: str) -> Callable[[int, int], Topology]:
    def build(hosts: int, ranks: int) -> Topology:
        if ranks == 8:
            return {"a100": topologies.dgx_a100, "h100": topologies.dgx_h100}[fabric](hosts)
        inside, network = NVSWITCH[fabric]
        return topologies.nvswitch_hosts((ranks,) * hosts, inside=inside, network=network)

    return build


FABRICS: Mapping[str, Callable[[int, int], Topology]] = {
    "a100": _nvswitch("a100"),
    "h100": _nvswitch("h100"),
    "mi250": lambda hosts, ranks: topologies.mi250(hosts, ranks=ranks),
}
