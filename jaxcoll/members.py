"""Members: the network of one group of ranks, in which those outside are switches, or are gone.

To a group, a rank outside it that forwards is a switch (``helpers``), and a busy one is absent. On
the network that is left the group is all ranks, so that any algorithm for all ranks is one for a
group.

Of four ranks that are all joined, two broadcast: with the others as switches rank 0 sends a third
of the data to rank 1 itself, a third by way of rank 2 and a third by way of rank 3. Without them
its one link to rank 1 has all to carry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.links import canonical_order
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Members:
    """One group's network.

    Attributes:
        topology: the whole network.
        group: its ranks, int64.
        one: the group's network: rank p is the group's p-th; then ranks that help, then switches.
        links: what each link of ``one`` is in ``topology``, int64.
    """

    topology: Topology
    group: np.ndarray
    one: Topology
    links: np.ndarray

    @classmethod
    def of(cls, topology: Topology, group: Sequence[int], helpers: bool) -> Members:
        """The network of a group.

        Args:
            helpers: whether ranks outside forward, as switches, or are gone.

        Raises:
            TopologyError: members reach each other only over ranks that are gone.
        """
        inside = np.asarray(group, np.int64)
        outside = np.setdiff1d(np.arange(topology.num_vertices), inside)
        if not helpers:
            outside = outside[outside >= topology.num_ranks]
        kept = np.concatenate([inside, outside])
        place = np.full(topology.num_vertices, -1)
        place[kept] = np.arange(len(kept))
        left = np.flatnonzero((place[topology.src] >= 0) & (place[topology.dst] >= 0))
        columns = (place[topology.src[left]], place[topology.dst[left]], topology.alpha[left])
        bandwidth = [topology.exact_bandwidth[link] for link in left]
        capable = topology.in_network.moved(place)
        try:
            more = (bandwidth, len(kept))
            one = Topology(len(inside), *columns, *more, in_network=capable)  # type: ignore[arg-type]
        except TopologyError as error:
            if helpers:
                raise
            raise TopologyError(
                f"the members {_some(inside)} of a group reach each other only over ranks outside "
                "it, which helpers=False (--no-helpers) leaves out; let these help, or join the "
                "members by links of their own"
            ) from error
        # ``one`` keeps its links in canonical order.
        return cls(topology, inside, one, left[canonical_order(*columns, bandwidth, bandwidth)])

    def part(self, whole: Collective) -> Collective:
        """The part of a collective that is this group's."""
        return dataclasses.replace(whole, num_ranks=self.one.num_ranks, groups=None)

    def on_whole(self, found: Schedule, whole: Collective) -> Schedule:
        """A schedule of a group whose ways pass switches only, on the whole network."""
        edges = found.edges
        return Schedule(
            self.topology,
            whole,
            Edges(
                self.group[edges.src],
                self.group[edges.dst],
                edges.path_ptr,
                self.links[edges.path_link],
            ),
            found.step_ptr,
            found.edge,
            found.chunk,
            found.reduce,
            found.provenance,
        )


def _some(group: np.ndarray) -> str:
    return ", ".join(map(str, group[:8].tolist())) + (", ..." if len(group) > 8 else "")
