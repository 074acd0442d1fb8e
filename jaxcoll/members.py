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
from collections.abc import Container, Sequence

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
                "it, which helpers=False leaves out; let these help, or join the "
                "members by links of their own"
            ) from error
        # ``one`` keeps its links in canonical order.
        return cls(topology, inside, one, left[canonical_order(*columns, bandwidth, bandwidth)])

    def part(self, whole: Collective) -> Collective:
        """The part of a collective that is this group's."""
        return dataclasses.replace(whole, num_ranks=self.one.num_ranks, groups=None)

    def on_whole(self, edges: Edges) -> Edges:
        """Edges of the group's network, whose ways pass switches only, on the whole network."""
        src, dst = self.group[edges.src], self.group[edges.dst]
        return Edges(src, dst, edges.path_ptr, self.links[edges.path_link])


def side_by_side(
    parts: Sequence[Members], found: Sequence[Schedule], whole: Collective
) -> Schedule:
    """The schedules of several groups, each on its own network, as one of the whole network.

    Args:
        parts: the groups in which there is something to do, in their order.
        found: a schedule of each, with as many chunks per shard as ``whole``.
    """
    first = _first_chunks(whole, {tuple(part.group.tolist()) for part in parts})
    edges = [part.on_whole(each.edges) for part, each in zip(parts, found, strict=True)]
    edges_before = np.cumsum([0, *map(len, edges[:-1])])
    hops_before = np.cumsum([0, *(each.path_ptr[-1] for each in edges[:-1])])
    ways = [each.path_ptr[:-1] + before for each, before in zip(edges, hops_before, strict=True)]
    end = hops_before[-1] + edges[-1].path_ptr[-1]
    together = Edges(
        np.concatenate([each.src for each in edges]),
        np.concatenate([each.dst for each in edges]),
        np.append(np.concatenate(ways), end),
        np.concatenate([each.path_link for each in edges]),
    )
    one = found[0].provenance
    return Schedule.from_sends(
        parts[0].topology,
        whole,
        np.concatenate([each.step for each in found]),
        np.concatenate([e.edge + before for e, before in zip(found, edges_before, strict=True)]),
        np.concatenate([e.chunk + before for e, before in zip(found, first, strict=True)]),
        np.concatenate([each.reduce for each in found]),
        edges=together,
        # What is claimed of one group is not true of all.
        provenance=one if len(found) == 1 else dataclasses.replace(one, certificate={}),
    )


def beside_lone_ranks(found: Schedule, whole: Collective) -> Schedule:
    """A schedule of groups, extended by groups of one rank, in which there is nothing to do.

    Args:
        found: a schedule of the groups of several ranks, in their order.
        whole: the collective of all groups, with as many chunks per shard.
    """
    moved = _first_chunks(whole, found.collective.groups) - found.collective.chunk_ptr[:-1]
    chunk = found.chunk + moved[found.collective.group_of_chunk[found.chunk]]
    sends = (found.step_ptr, found.edge, chunk, found.reduce)
    return Schedule(found.topology, whole, found.edges, *sends, found.provenance)


def _first_chunks(whole: Collective, groups: Container[tuple[int, ...]]) -> np.ndarray:
    """The first chunk of each of some groups of a collective, in the order of the groups."""
    first = zip(whole.groups, whole.chunk_ptr[:-1], strict=True)
    return np.asarray([at for group, at in first if group in groups], np.int64)


def _some(group: np.ndarray) -> str:
    return ", ".join(map(str, group[:8].tolist())) + (", ..." if len(group) > 8 else "")
