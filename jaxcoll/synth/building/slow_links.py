"""Slow links that a schedule can leave unused: a cable at a fifth of its speed beside fast ones.

A route over a slow link holds up whatever waits for it, and rates that count it are awkward
fractions: trees that pack a cable at a fifth of its speed send five times as many, smaller pieces.
A network that hardly needs the link is therefore searched without it. This was tried on seven
networks of 256 and 1,024 ranks with one wire at a fifth of its speed. Schedules took at most 1.2 %
more time and often much less: 1.35 times the bound became 1.12, 1.28 became 1.15, and 1.22 became
1.02. The searches took half the CPU seconds.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.circles import joined_ranks
from jaxcoll.topology import Topology

# Part of the median speed of the links beside it below which a link is slow.
_SLOW = 0.5
# Links of which at most one is slow: more of them are how the network was built.
_FEW = 32


@dataclasses.dataclass(frozen=True, eq=False)
class WithoutSlowLinks:
    """A network without its slow links.

    Attributes:
        whole: the network.
        rest: the network without its slow links.
        links: the link of ``whole`` that each link of ``rest`` is, int64 of shape (links,).
    """

    whole: Topology
    rest: Topology
    links: np.ndarray

    @classmethod
    def of(cls, topology: Topology) -> WithoutSlowLinks | None:
        """The rest of a network, or None if no link is slow, many are, or the rest falls apart.

        A slow link has less than half the median speed of the links that leave its source, and of
        those that enter its destination. None too where faster links join hosts behind switches: a
        host passes on what its slow cable does not take, and synthesizers of hosts plan for that.
        """
        is_slow = np.ones(topology.num_links, bool)
        for ends in (topology.src, topology.dst):
            order = np.lexsort([topology.bandwidth, ends])
            count = np.bincount(ends, minlength=topology.num_vertices)
            middle = np.cumsum(count) - count + count // 2
            median = topology.bandwidth[order[np.minimum(middle, topology.num_links - 1)]]
            is_slow &= topology.bandwidth < _SLOW * median[ends]
        slow = np.flatnonzero(is_slow)
        if not 0 < _FEW * len(slow) <= topology.num_links:
            return None
        if not topology.is_direct and joined_ranks(topology):
            return None
        try:
            rest = topology.without(links=slow.tolist())
        except TopologyError:  # some ranks reach others by slow links only
            return None
        return cls(topology, rest, np.flatnonzero(~is_slow))

    def on_whole(self, schedule: Schedule) -> Schedule:
        """A schedule of ``rest``, as one of ``whole``."""
        edges = schedule.edges
        return Schedule.from_sends(
            self.whole,
            schedule.collective,
            schedule.step,
            schedule.edge,
            schedule.chunk,
            schedule.reduce,
            edges=Edges(edges.src, edges.dst, edges.path_ptr, self.links[edges.path_link]),
            provenance=schedule.provenance,
        )
