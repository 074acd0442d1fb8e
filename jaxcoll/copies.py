"""Copies: groups whose networks are copies of one another, so that one is solved for all.

Along an axis of a torus every row is a ring, and every link between two rows joins equal places of
them. Then no schedule of all rows is faster than a schedule of one row that all rows run at once,
each on its own links. To see that, take any schedule of all m rows, and move every send to the
first row, between the places of its ends. Sends from row to row vanish, and what remains brings the
data of all rows around the first one. Now cut the data of the first row into m parts, and let the
i-th part move as the data of row i do there. Each link then carries the sends of its m copies, at
an m-th of their size, and so in the same time.

This needs data that can be split and coded at will. So a bound on such data in one row holds for
the whole network. And a row is searched in a fraction of the time: a row of a 96 x 96 torus has
1/96 of its ranks and sends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.failures import placement_left
from jaxcoll.links import canonical_order
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Copies:
    """A network made of copies of one, joined only where places are equal.

    Attributes:
        topology: the whole network.
        ranks: the rank at each place of every copy, int64 of shape (copies, places).
        one: the network of one copy; its rank p is place p.
        links: what each link of ``one`` is in every copy, int64 of shape (copies, links).
    """

    topology: Topology
    ranks: np.ndarray
    one: Topology
    links: np.ndarray

    @classmethod
    def of(cls, topology: Topology, groups: Sequence[Sequence[int]]) -> Copies | None:
        """The copies that groups of ranks are, each rank's place being its index in its group.

        A switch belongs to the group whose ranks it joins, or to the place whose ranks it joins.
        In ``one``, the rank of a place copies and adds in place of its switch.

        Returns:
            ``None`` where groups have different networks, where there is only one group, and where
            links or switches join different places of two groups, so that data could take a detour.
        """
        # Equal groups that hold all ranks, ...
        count, size = len(groups), len(groups[0])
        if count < 2 or size < 2 or {len(group) for group in groups} != {size}:
            return None
        if count * size < topology.num_ranks:
            return None
        ranks = np.asarray(groups, np.int64)
        # ... joined only at equal places, ...
        labels = _copies_and_places(topology, ranks)
        if labels is None:
            return None
        (copy, place), src, dst = labels, topology.src, topology.dst
        between = copy[src] != copy[dst]
        if (place[src] != place[dst])[between].any():
            return None
        # ... with the same links inside.
        links = _links_of_copies(topology, copy, place, count)
        if links is None:
            return None
        does = [topology.in_network.moved(np.where(copy == c, place, -1)) for c in range(count)]
        if any(each != does[0] for each in does):
            return None
        first = links[0]
        columns = (place[src[first]], place[dst[first]], topology.alpha[first])
        bandwidth = [topology.exact_bandwidth[link] for link in first]
        others = np.ones(topology.num_ranks, bool)
        others[ranks[0]] = False
        placement = placement_left(topology.placement, others, src[first], dst[first])
        if placement is not None:
            placement = placement.relabel(place[np.sort(ranks[0])])
        try:
            vertices = int(np.count_nonzero(copy == 0))
            more = {"placement": placement, "in_network": does[0]}
            one = Topology(size, *columns, bandwidth, vertices, **more)  # type: ignore[arg-type]
        except TopologyError:  # the ranks of a group reach each other only by links of other groups
            return None
        # ``one`` keeps its links in canonical order, and the columns of ``links`` follow it.
        return cls(topology, ranks, one, links[:, canonical_order(*columns, bandwidth, bandwidth)])

    def part(self, whole: Collective) -> Collective:
        """The part of a collective of the groups that is one group's."""
        return dataclasses.replace(whole, num_ranks=self.one.num_ranks, groups=None)

    def on_all(self, found: Schedule, helpers: bool = True) -> Schedule:
        """A schedule of one copy, run by all of them at once.

        Args:
            helpers: whether ranks outside the groups may forward, a field of ``Collective``. There
                are none here, since the copies hold all ranks.
        """
        # Copy c of edge e is edge c * edges + e, copy c of chunk i the i-th chunk of group c.
        count, edges = len(self.ranks), found.edges
        hops = edges.path_ptr[-1] * np.arange(count)[:, None]
        everywhere = Edges(
            self.ranks[:, edges.src].ravel(),
            self.ranks[:, edges.dst].ravel(),
            np.append((hops + edges.path_ptr[:-1]).ravel(), count * edges.path_ptr[-1]),
            self.links[:, edges.path_link].ravel(),
        )
        copy = np.arange(count, dtype=np.int64)[:, None]
        collective = dataclasses.replace(
            found.collective,
            num_ranks=self.topology.num_ranks,
            groups=tuple(map(tuple, self.ranks.tolist())),
            helpers=helpers,
        )
        return Schedule.from_sends(
            self.topology,
            collective,
            np.tile(found.step, count),
            (copy * len(edges) + found.edge).ravel(),
            (copy * found.collective.num_chunks + found.chunk).ravel(),
            np.tile(found.reduce, count),
            edges=everywhere,
            provenance=found.provenance,
        )


def _links_of_copies(
    topology: Topology, copy: np.ndarray, place: np.ndarray, count: int
) -> np.ndarray | None:
    """The links inside each copy, in the same order in all; None where copies differ.

    Args:
        copy, place: those of every vertex, -1 for the copy of a switch that belongs to a place.
        count: number of copies.

    Returns:
        int64 of shape (copies, links).
    """
    src, dst, speed = topology.src, topology.dst, topology.speeds[1]
    inside = np.flatnonzero((copy[src] == copy[dst]) & (copy[src] >= 0))
    # Copy by copy, and within a copy by places and speeds: equal copies have equal columns then.
    order = np.lexsort([key[inside] for key in (speed, place[dst], place[src], copy[src])])
    links = inside[order]
    if (np.bincount(copy[src[links]], minlength=count) * count != len(links)).any():
        return None
    links = links.reshape(count, -1)
    same = all(
        (column[links] == column[links[0]]).all() for column in (place[src], place[dst], speed)
    )
    return links if same else None


def _copies_and_places(topology: Topology, ranks: np.ndarray) -> np.ndarray | None:
    """The copy and the place of every vertex, int64 (2, vertices); None where a vertex has neither.

    The switches of a copy have the places behind its ranks, in the order of their numbers. A switch
    that joins ranks of one place belongs to no copy, -1.
    """
    n, (count, size) = topology.num_ranks, ranks.shape
    found = np.full((2, topology.num_vertices), -1)
    found[:, ranks] = np.indices(ranks.shape)
    if topology.is_direct:
        return found
    # Switches that are joined with each other count as one, which joins the ranks of all of them.
    ends = np.stack([topology.src, topology.dst]) - n
    between = ends[:, (ends >= 0).all(axis=0)]
    switches = topology.num_vertices - n
    graph = sp.coo_array((np.ones(between.shape[1]), between), (switches, switches))
    parts, part_of = sp.csgraph.connected_components(graph, directed=False)
    at, to = np.concatenate([ends, ends[::-1]], axis=1)
    one, other = part_of[at[(at >= 0) & (to < 0)]], to[(at >= 0) & (to < 0)] + n
    # One that joins ranks with equal labels gets their label; unequal labels give -1.
    for labels, most in zip(found, ranks.shape, strict=True):
        least, largest = np.full(parts, most), np.full(parts, -1)
        np.minimum.at(least, one, labels[other])
        np.maximum.at(largest, one, labels[other])
        labels[n:] = np.where(least == largest, least, -1)[part_of]
    copy, place = found[:, n:]
    if ((copy < 0) & (place < 0)).any():
        return None
    inside = place < 0
    number = np.zeros(count, np.int64)
    for switch in np.flatnonzero(inside):
        place[switch] = size + number[copy[switch]]
        number[copy[switch]] += 1
    copy[~inside] = -1
    return found
