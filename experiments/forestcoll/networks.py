"""The clusters of ForestColl's evaluation, and rings through them as vendors lay them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from experiments.config import at_least, one_of
from experiments.errors import ConfigError
from jaxcoll import topologies
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
        """A ring for each rank of a host, all of which enter and leave a host at different ranks.

        So all of the links between hosts are used, as NCCL's and RCCL's rings do. Inside a host a
        ring follows links, round the ranks where a switch joins all.
        """
        first = self.ranks * np.arange(self.hosts)
        return tuple(tuple((first[:, None] + way).ravel().tolist()) for way in self.chains())

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
        host = FABRICS[self.fabric](1, self.ranks)
        ways = _around(self.ranks) if not host.is_direct else _through(host)
        return tuple(tuple(way.tolist()) for way in ways)


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


def _around(ranks: int) -> list[np.ndarray]:
    return [(np.arange(ranks) + start) % ranks for start in range(ranks)]


def _through(host: Topology) -> list[np.ndarray]:
    """Ways over links through all ranks of a host, one from each rank.

    Each takes the links that are least in use so far, as a depth-first search finds them, and ends
    where no other has ended, if there is such a way.
    """
    n = host.num_ranks
    wide = np.zeros((n, n))
    np.add.at(wide, (host.src, host.dst), host.bandwidth)
    used, ends, ways = np.zeros((n, n)), set(), []
    for start in range(n):
        way = _way(wide, used, start, ends) or _way(wide, used, start, set())
        if not way:
            raise ConfigError(f"{host} has no way over links through all ranks from rank {start}")
        used[way[:-1], way[1:]] += 1
        ends.add(way[-1])
        ways.append(np.asarray(way))
    return ways


def _way(wide: np.ndarray, used: np.ndarray, start: int, ends: set[int]) -> list[int]:
    """The first way found that ends elsewhere, links least in use for their bandwidth tried first.

    Empty if there is none.
    """
    n = len(wide)
    way, choices = [start], [iter(_next(wide, used, start))]
    while way and (len(way) < n or way[-1] in ends):
        following = next((v for v in choices[-1] if v not in way), None)
        if following is None:
            way.pop()
            choices.pop()
        else:
            way.append(following)
            choices.append(iter(_next(wide, used, following)))
    return way


def _next(wide: np.ndarray, used: np.ndarray, u: int) -> list[int]:
    near = np.flatnonzero(wide[u])
    return near[np.argsort((used[u, near] + 1) / wide[u, near], kind="stable")].tolist()
