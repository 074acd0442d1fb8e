"""Helpers: ranks outside a group that forward for it, as switches do.

To a group a rank outside it is a vertex that forwards. On the network in which such ranks *are*
switches, any algorithm for all ranks of a network with switches is one for the group. There a
message crosses several links and stays what it is; on the real network a helper receives it and
sends it on, with what it already has received left out.

Of four ranks that are all joined, two broadcast: rank 0 sends a third of the data to rank 1 itself,
a third by way of rank 2 and a third by way of rank 3, three times as fast as alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.links import canonical_order
from jaxcoll.numerics.ragged import take_rows
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.building.derive import in_order
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Helped:
    """A group alone on a network, the ranks outside it being switches.

    Attributes:
        topology: the whole network.
        collective: of one group of some of its ranks.
        one: the group's network; rank p is the group's p-th, helpers follow, then the switches.
        links: what each link of ``one`` is in ``topology``, int64.
    """

    topology: Topology
    collective: Collective
    one: Topology
    links: np.ndarray

    @classmethod
    def of(cls, topology: Topology, collective: Collective) -> Helped | None:
        """A group and its helpers; None of several groups, and of one group of all ranks."""
        group, *others = collective.groups
        if others or not 1 < len(group) < topology.num_ranks:
            return None
        outside = np.setdiff1d(np.arange(topology.num_vertices), group)
        place = np.empty(topology.num_vertices, np.int64)
        place[np.concatenate([group, outside])] = np.arange(topology.num_vertices)
        columns = (place[topology.src], place[topology.dst], topology.alpha)
        bandwidth = topology.exact_bandwidth
        one = Topology(
            len(group), *columns, bandwidth, topology.num_vertices,
            in_network=topology.in_network.moved(place),
        )  # fmt: skip
        return cls(topology, collective, one, canonical_order(*columns, bandwidth, bandwidth))

    @property
    def part(self) -> Collective:
        """The collective on the group's network."""
        return dataclasses.replace(
            self.collective, num_ranks=len(self.collective.groups[0]), groups=None
        )

    def alone(self, problem: Problem) -> Problem:
        """The problem of the group on its network."""
        return dataclasses.replace(problem, topology=self.one, collective=self.part)

    def on_whole(self, found: Schedule, nbytes: Number) -> Schedule:
        """A schedule that only copies, of the group's network, as one in which helpers forward.

        Every link keeps the order in which it carries messages. What comes to a helper a second
        time is left out, and the first to come is sent on instead.

        Args:
            nbytes: bytes of a rank's buffer, for the order in which messages meet at helpers.
        """
        run = simulate(found, nbytes)
        link = self.links[run.hop_link]
        hop_message = np.repeat(np.arange(len(run.hop_ptr) - 1), np.diff(run.hop_ptr))
        # A way ends at a rank, be it a helper.
        ends = np.flatnonzero(self.topology.dst[link] < self.topology.num_ranks)
        way_ptr = np.concatenate([[0], ends + 1])
        begins = way_ptr[:-1]
        message, start = hop_message[ends], run.hop_start[begins]
        arrival = run.hop_start[ends] + run.hop_delay[ends]
        # The sends of every way, which are those of its message.
        send_ptr, chunk = take_rows(found.message_ptr, found.chunk, message)
        way = np.repeat(np.arange(len(ends)), np.diff(send_ptr))
        to = self.topology.dst[link[ends]].astype(np.int64)
        place = to[way] * self.part.num_chunks + chunk
        soonest = np.lexsort((way, arrival[way], place))
        is_first = np.ones(len(way), bool)
        is_first[1:] = place[soonest][1:] != place[soonest][:-1]
        kept = np.sort(soonest[is_first])
        of = self.topology.src[link[begins]]
        kept = kept[self._of_use(of[way[kept]], to[way[kept]], chunk[kept])]
        # One step for each way, in the order of their starts, which are then put together.
        turn = np.empty(len(ends), np.int64)
        turn[np.argsort(start, kind="stable")] = np.arange(len(ends))
        edges, edge = distinct_edges(self.topology, way_ptr, link)
        apart = Schedule.from_sends(
            self.topology,
            self.collective,
            turn[way[kept]],
            edge[way[kept]],
            chunk[kept],
            edges=edges,
            provenance=found.provenance,
        )
        return in_order(apart, np.arange(len(apart.message_ptr) - 1))

    def _of_use(self, src: np.ndarray, dst: np.ndarray, chunk: np.ndarray) -> np.ndarray:
        """Which sends bring a chunk to a member, or to a helper that sends it on; bool (sends,)."""
        chunks, is_member = self.part.num_chunks, np.zeros(self.topology.num_ranks, bool)
        is_member[list(self.collective.groups[0])] = True
        goes = np.ones(len(src), bool)
        while True:
            sent_on = np.zeros(self.topology.num_ranks * chunks, bool)
            sent_on[src[goes] * chunks + chunk[goes]] = True
            now = is_member[dst] | sent_on[dst * chunks + chunk]
            if (now | ~goes).all():
                return goes
            goes &= now
