"""The machines that somebody has measured, and the network by which the library knows each."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError, TopologyError, shown
from jaxcoll.io.networks import tpu_slices
from jaxcoll.kinds import KINDS
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.topology import Topology, rebuilt

# A link of Fugaku and its latency by the data sheet of TofuD (Ajima et al., Cluster 2018).
_TOFU = {"alpha": 0.5e-6, "bandwidth": 6.8e9}
# Its six network interfaces, each as fast as a link, by the same source.
_TOFU_NODE = 6 * 6.8e9
# Latency of an xGMI link; latencies are fitted wherever one matters.
_XGMI = 2e-6


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine, by its data sheet.

    Attributes:
        name: its name in tables of measured times.
        said: its description, in words.
        most: how many ranks it has.
        make: the network of some of its ranks, neighbours in number.
        whole: whether only all of its ranks were measured together.
        node: bytes per second that a rank sends at most, where the network leaves out links that
            the machine has: nodes of Fugaku lie in a torus of six dimensions, and jobs of two get
            links between their nodes that no torus of two has. None where the network has all.
    """

    name: str
    said: str
    most: int
    make: Callable[[int], Topology]
    whole: bool = False
    node: float | None = None

    def topology(self, ranks: int | None = None) -> Topology:
        """The network of a group of ranks; of all without one.

        Raises:
            FormatError: more ranks than it has, or fewer than 2, or a part of a machine that was
                only measured whole.
        """
        count = self.most if ranks is None else ranks
        least = self.most if self.whole else 2
        if not least <= count <= self.most:
            some = f"{self.most}" if self.whole else f"2 to {self.most}"
            raise FormatError(f"{self.name} was measured with {some} ranks, not with {count}")
        return _made(self, count)

    def sends_in(self, kind: str, ranks: int) -> float:
        """Seconds per byte in which a rank's links can carry the least that a collective needs.

        Some rank sends or receives all of a buffer but its own shard, in-network sums and copies or
        not; at the data sheet's bandwidth. A time below is none of this machine.
        """
        share = (ranks - 1) / ranks if kind in KINDS else 1.0
        return share / self.injection(ranks)

    def least_seconds(self, network: Topology, collective: Collective, nbytes: Number) -> float:
        """Seconds that nothing can beat on the machine, by the data sheet.

        It is the bound of the network, or that of a rank's ports if the network leaves out links:
        where nothing adds or copies on the way, ranks send a buffer of an all_reduce twice on
        average (Patarasuk and Yuan, JPDC 2009, section 3).

        Args:
            network: a network of some of the machine's ranks (``topology``).
            nbytes: bytes of a rank's buffer.
        """
        if self.node is not None:
            times = len(collective.traits.phases)
            return times * self.sends_in(collective.kind, network.num_ranks) * float(nbytes)
        return bound(network, collective, nbytes).time

    def injection(self, ranks: int) -> float:
        """Bytes per second that a rank's links carry one way."""
        if self.node is not None:
            return self.node
        network = self.topology(ranks)
        return float(network.bandwidth[network.src == 0].sum())


@functools.lru_cache(maxsize=64)
def _made(machine: Machine, ranks: int) -> Topology:
    part = "" if ranks == machine.most else f":{ranks}"
    return rebuilt(machine.make(ranks), name=f"{machine.name}{part}")


def _switch(inside: float) -> Callable[[int], Topology]:
    """Ranks around NVSwitches that copy and add."""
    return lambda ranks: topologies.nvswitch_hosts((ranks,), inside=inside, network=50e9, nvls=True)


def _full(bandwidth: float) -> Callable[[int], Topology]:
    """Ranks with a link between each two."""
    return lambda ranks: topologies.fully_connected(ranks, alpha=_XGMI, bandwidth=bandwidth)


def _hosts(ranks: int) -> Topology:
    """Hosts of 8 A100 that share four cards of 200 Gbit/s each, the last maybe of fewer ranks."""
    sizes = [8] * (ranks // 8) + ([ranks % 8] if ranks % 8 else [])
    return topologies.nvswitch_hosts(sizes, inside=300e9, network=12.5e9)


def _slice(kind: str, *shape: int) -> Callable[[int], Topology]:
    """The chips of a slice of TPUs."""
    return lambda _: tpu_slices.network(kind, shape)


def _h100(ranks: int) -> Topology:
    return topologies.dgx_h100(1) if ranks == 8 else _switch(450e9)(ranks)


_ROWS = (
    Machine("h100-host", "8 H100 around NVSwitches", 8, _h100),
    Machine(
        "h100-2-hosts", "2 hosts of 8 H100, 400 Gbit/s per GPU", 16,
        lambda _: topologies.dgx_h100(2), whole=True,
    ),
    Machine(
        "a3-mega-2-hosts", "2 hosts of 8 H100, 200 Gbit/s per GPU (GCP a3-megagpu-8g)", 16,
        lambda _: topologies.dgx_h100(2, network=25e9), whole=True,
    ),
    Machine(
        "h200-host", "8 H200 around NVSwitches", 8, lambda _: topologies.dgx_h100(1), whole=True
    ),
    Machine(
        "a100-host", "8 A100 around NVSwitches", 8, lambda _: topologies.dgx_a100(1), whole=True
    ),
    Machine("a100-hosts", "hosts of 8 A100, 100 Gbit/s per GPU (ABCI 2.0)", 128, _hosts),
    Machine("b200-host", "8 B200 around NVSwitches", 8, _switch(900e9)),
    Machine("gb200-rack", "GB200 NVL72: 72 B200 around NVSwitches", 72, _switch(900e9)),
    Machine("gb300-rack", "GB300 NVL72: 72 B300 around NVSwitches", 72, _switch(900e9)),
    Machine(
        "rubin-rack", "72 GPUs of compute capability 10.7 around NVSwitches", 72, _switch(1800e9)
    ),
    Machine("mi300x-host", "8 MI300X, an xGMI link between each two", 8, _full(64e9)),
    Machine("mi355x-host", "8 MI355X, an xGMI link between each two", 8, _full(76.8e9)),
    Machine(
        "tpu-v5p-8", "a slice of 2x2x1 chips of TPU v5p", 4, _slice("TPU v5", 2, 2, 1), whole=True
    ),
    Machine(
        "tpu-v6e-8", "a slice of 2x4 chips of TPU v6e", 8, _slice("TPU v6 lite", 2, 4), whole=True
    ),
    Machine(
        "tpu-v6e-256", "a slice of 16x16 chips of TPU v6e", 256, _slice("TPU v6 lite", 16, 16),
        whole=True,
    ),
    *(
        Machine(
            f"fugaku-{'x'.join(map(str, sides))}",
            f"a {'x'.join(map(str, sides))} torus of nodes of Fugaku, a process each",
            math.prod(sides),
            lambda _, sides=sides: topologies.torus(*sides, **_TOFU),
            whole=True,
            node=_TOFU_NODE if len(sides) == 2 else None,
        )
        for sides in ((4, 4, 4), (8, 8, 8), (64, 64), (32, 256))
    ),
)  # fmt: skip

MACHINES: Mapping[str, Machine] = MappingProxyType({row.name: row for row in _ROWS})


def machine_of(name: object) -> Machine:
    """The machine of a name.

    Raises:
        FormatError: none is called so.
    """
    if not isinstance(name, str) or name not in MACHINES:
        raise FormatError(
            f"nobody has measured a machine {shown(name)}; known: {', '.join(MACHINES)}"
        )
    return MACHINES[name]


def _has_wires_of(one: Topology, other: Topology) -> bool:
    """Whether two networks are the same but for their latencies, and what their switches do.

    A network card that one rank alone uses is a part of that rank's link to the network, as the
    families have it; files name it as a vertex of its own. Switches may come in any order.
    """
    return _wires(one) == _wires(other)


@functools.lru_cache(maxsize=256)
def _wires(topology: Topology) -> tuple[object, ...]:
    """A network's wires without latencies, the same for networks that differ by cards and order."""
    n = topology.num_ranks
    ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    wires = [(a, b, v) for (a, b), v in zip(ends, topology.bandwidth.tolist(), strict=True)]
    for card in range(n, topology.num_vertices):
        wires = _joined_through(card, wires, n)
    # A switch is known by the vertices at its links; of two that have the same, the first is first.
    near: dict[int, list[int]] = {}
    for a, b, _ in wires:
        for end, other in ((a, b), (b, a)):
            if end >= n:
                near.setdefault(end, []).append(min(other, n))
    place = np.full(topology.num_vertices, -1)
    place[:n] = np.arange(n)
    order = sorted(near, key=lambda switch: (sorted(near[switch]), switch))
    place[order] = n + np.arange(len(order))
    able = topology.in_network.moved(place)
    found = sorted((int(place[a]), int(place[b]), float(v)) for a, b, v in wires)
    return n, tuple(found), able


Wire = tuple[int, int, float]


def _joined_through(card: int, wires: list[Wire], ranks: int) -> list[Wire]:
    """Links without a card between one rank and one switch, where that is what a vertex is."""
    at = [wire for wire in wires if card in wire[:2]]
    others = {end for a, b, _ in at for end in (a, b)} - {card}
    if len(at) != 4 or len(others) != 2 or sum(end < ranks for end in others) != 1:
        return wires
    one, other = sorted(others)
    speed = {(a, b): v for a, b, v in at}
    if len(speed) != 4:  # two links one way, and none back
        return wires
    there = min(speed[one, card], speed[card, other])
    back = min(speed[other, card], speed[card, one])
    kept = [wire for wire in wires if card not in wire[:2]]
    return [*kept, (one, other, there), (other, one, back)]


def machine_like(topology: Topology) -> tuple[Machine, int] | None:
    """The machine whose network, or a group of whose ranks, a network is, and how many ranks.

    Latencies do not count: those of networks that are read from files are assumed.

    Raises:
        TopologyError: no network.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    n, like = topology.num_ranks, []
    for machine in MACHINES.values():
        fits = n == machine.most if machine.whole else 2 <= n <= machine.most
        if fits and _has_wires_of(machine.topology(n), topology):
            like.append(machine)
    # Racks of GB200 and GB300 have the same links: a name decides, where there is one.
    called = [machine for machine in like if machine.topology(n).name == topology.name]
    return ((called or like)[0], n) if like else None
