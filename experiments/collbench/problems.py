"""The problems of ``collbench``: a network, a collective, a size and an order of execution each.

Every network is built from its name alone, and its switches forward only: no schedule of any format
here copies or adds in them. A time is that of the link model ``astra`` in an order of execution,
with no charge of a machine: schedules are compared, and no machines. The orders are ``links``
(each link by itself), ``steps`` (a rank's steps follow one another) and ``rounds`` (its permutes
do).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from experiments.study import ConfigError
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.bounds.times import Bound
from jaxcoll.kinds import names_in
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import ExecutionCosts, simulate
from jaxcoll.simulation.execution_order import LINKS, ROUNDS, STEPS
from jaxcoll.topologies import generative
from jaxcoll.topology import Topology

_FAST, _SLOW = 50e9, 25e9  # bytes per second of links in networks of two speeds


def _wire(topology: Topology, factor: float) -> Topology:
    """The network with the wire of its first link at another speed."""
    u, v = int(topology.src[0]), int(topology.dst[0])
    return topology.scaled({(u, v): factor, (v, u): factor})


def _cut(topology: Topology) -> Topology:
    """The network without the wire of its first link."""
    u, v = int(topology.src[0]), int(topology.dst[0])
    return topology.without([(u, v), (v, u)])


NETWORKS: Mapping[str, Callable[[], Topology]] = {
    # Direct: rings, grids and cubes.
    "ring-4": lambda: topologies.ring(4),
    "ring-8": lambda: topologies.ring(8),
    "ring-16-one-way": lambda: topologies.ring(16, bidirectional=False),
    "torus-2x4": lambda: topologies.torus(2, 4),
    "torus-4x4": lambda: topologies.torus(4, 4),
    "torus-3x5": lambda: topologies.torus(3, 5),
    "torus-4x8": lambda: topologies.torus(4, 8),
    "torus-3x3x3": lambda: topologies.torus(3, 3, 3),
    "torus-4x4-two-speeds": lambda: topologies.torus(4, 4, bandwidth=(_FAST, _SLOW)),
    "mesh-4x4": lambda: topologies.mesh(4, 4),
    "mesh-3x5": lambda: topologies.mesh(3, 5),
    "mesh-2x3x4": lambda: topologies.mesh(2, 3, 4),
    "hypercube-4": lambda: topologies.hypercube(4),
    "hypercube-5": lambda: topologies.hypercube(5),
    "full-8": lambda: topologies.fully_connected(8),
    "dgx1": lambda: topologies.dgx1(),
    # Direct, of a given degree.
    "kautz-2x3": lambda: generative.kautz(2, 3).topology(),
    "de-bruijn-2x4": lambda: generative.de_bruijn(2, 4).topology(),
    "generalized-kautz-3x20": lambda: generative.generalized_kautz(3, 20).topology(),
    "circulant-12x2x3": lambda: generative.circulant(12, (2, 3)).topology(),
    "hamming-2x4": lambda: generative.hamming(2, 4).topology(),
    "complete-bipartite-4": lambda: generative.complete_bipartite(4).topology(),
    "twisted-torus-3x6": lambda: generative.twisted_torus(3, 6).topology(),
    # With a fault.
    "torus-4x4-cut": lambda: _cut(topologies.torus(4, 4)),
    "torus-4x4-half": lambda: _wire(topologies.torus(4, 4), 0.5),
    "torus-4x4-less-a-rank": lambda: topologies.torus(4, 4).without(ranks=[5]),
    "mesh-3x5-cut": lambda: _cut(topologies.mesh(3, 5)),
    "multi-rail-2x8-slow-wire": lambda: _wire(topologies.multi_rail(2, 8), 0.25),
    # Through switches.
    "switch-8": lambda: topologies.switch(8),
    "switch-2d-4x4": lambda: topologies.switch_2d(4, 4),
    "dgx2": lambda: topologies.dgx2(),
    "dgx-a100-2": lambda: topologies.dgx_a100(2),
    "dgx-h100-2": lambda: topologies.dgx_h100(2),
    "dgx-h100-4": lambda: topologies.dgx_h100(4),
    "mi250-2x8": lambda: topologies.mi250(2, ranks=8),
    "hosts-8-4-4": lambda: topologies.nvswitch_hosts((8, 4, 4), inside=300e9, network=25e9),
    "multi-rail-4x4": lambda: topologies.multi_rail(4, 4),
    "leaf-spine-4x4x2": lambda: topologies.leaf_spine(4, 4, 2, oversubscription=2),
    "bigraph-4x4": lambda: topologies.bigraph(4, 4),
    "dragonfly-4x4": lambda: topologies.dragonfly(4, 4),
}

COLLECTIVES = tuple(names_in("lax"))
SIZES: Mapping[str, int] = {"64KiB": 2**16, "4MiB": 2**22, "256MiB": 2**28}
ORDERS: Mapping[str, ExecutionCosts] = {
    order.name: ExecutionCosts("gpu", 0.0, 0.0, 0.0, 0.0, order=order)
    for order in (LINKS, STEPS, ROUNDS)
}


@functools.lru_cache(maxsize=len(NETWORKS))
def network(name: str) -> Topology:
    """The network of a name; its switches forward only."""
    return NETWORKS[name]().forwarding_only()


@dataclasses.dataclass(frozen=True, order=True)
class Problem:
    """A problem, by the names of its parts."""

    network: str
    collective: str
    size: str
    order: str

    @property
    def name(self) -> str:
        """The name of files that are for it, without suffix."""
        return ".".join(dataclasses.astuple(self))

    def seconds(self, schedule: Schedule) -> float:
        """The time of a schedule."""
        return simulate(schedule, SIZES[self.size], execution=ORDERS[self.order]).time

    def bound(self, exact: bool = False) -> Bound:
        """The bound, and where it comes from; see ``jaxcoll.bound``."""
        return bound(
            network(self.network), self.collective, SIZES[self.size],
            exact=exact, execution=ORDERS[self.order],
        )  # fmt: skip


def meant_by(stem: str) -> list[Problem]:
    """The problems that a file's name, without suffix, names: NETWORK.COLLECTIVE[.SIZE[.ORDER]].

    Of a size or an order that is left out, all.

    Raises:
        ConfigError: another name.
    """
    parts = stem.split(".")
    if not 2 <= len(parts) <= 4:
        raise ConfigError(
            "a file must be named NETWORK.COLLECTIVE[.SIZE[.ORDER]], as in "
            f"torus-4x4.all_reduce.4MiB; got {stem!r}"
        )
    for part, (what, known) in zip(parts, _PARTS, strict=False):
        if part not in known:
            raise ConfigError(f"{stem!r}: no {what} is called {part!r}; known: {', '.join(known)}")
    name, kind, *given = parts
    sizes = given[:1] or [*SIZES]
    orders = given[1:] or [*ORDERS]
    return [Problem(name, kind, size, order) for size in sizes for order in orders]


_PARTS = (
    ("network", NETWORKS), ("collective", COLLECTIVES), ("size", SIZES), ("order", ORDERS),
)  # fmt: skip
