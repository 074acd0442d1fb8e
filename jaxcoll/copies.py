"""Copies: groups whose networks are copies of one another, solved on one of them.

Along an axis of a torus every row is a ring, and links between rows join equal places of two rows.
Then a schedule of one row, run by all rows at once on their own links, is as fast as any. Map the
sends of any schedule of all rows to the places of their ends: what went from row to row goes
nowhere, and the rest brings every row's data around one row that has the links of all of them. With
1/m of every row's data each of m rows' sends takes its share of a link, so that data that may be
split and coded at will moves in one row in the same time. What bounds such data there, bounds it on
the whole network, and one row is searched in a fraction of the time: one of a 96 x 96 torus has
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

        A switch belongs to the group whose ranks it joins, or to the place whose ranks it joins;
        what such a one copies or adds, the rank of that place does where all rows are one.

        Returns:
            ``None`` where groups have different networks or there is one group only, and where
            links or switches join different places of two groups, so that data could take a detour.
        """
        # Equal groups that hold all ranks, joined only at equal places, with the same links inside.
        count, size = len(groups), len(groups[0])
        if count < 2 or size < 2 or {len(group) for group in groups} != {size}:
            return None
        if count * size < topology.num_ranks:
            return None
        ranks = np.asarray(groups, np.int64)
        labels = _copies_and_places(topology, ranks)
        if labels is None:
            return None
        (copy, place), src, dst = labels, topology.src, topology.dst
        inside = copy[src] == copy[dst]
        if (place[src] != place[dst])[~inside].any():
            return None
        # The links inside, copy by copy, each copy's in the order of places and speeds: then those
        # of all copies must be the same columns.
        links = np.flatnonzero(inside & (copy[src] >= 0))
        speed = topology.speeds[1]
        links = links[np.lexsort([c[links] for c in (speed, place[dst], place[src], copy[src])])]
        if (np.bincount(copy[src[links]], minlength=count) * count != len(links)).any():
            return None
        links = links.reshape(count, -1)
        if any((c[links] != c[links[0]]).any() for c in (place[src], place[dst], speed)):
            return None
        first = links[0]
        columns = (place[src[first]], place[dst[first]], topology.alpha[first])
        bandwidth = [topology.exact_bandwidth[link] for link in first]
        outside = np.ones(topology.num_ranks, bool)
        outside[ranks[0]] = False
        # Switches of all copies must do the same, place by place.
        does = [topology.in_network.moved(np.where(copy == c, place, -1)) for c in range(count)]
        if any(each != does[0] for each in does):
            return None
        placement = placement_left(topology.placement, outside, src[first], dst[first])
        if placement is not None:
            placement = placement.relabel(place[np.sort(ranks[0])])
        try:
            vertices = int(np.count_nonzero(copy == 0))
            more = {"placement": placement, "in_network": does[0]}
            one = Topology(size, *columns, bandwidth, vertices, **more)  # type: ignore[arg-type]
        except TopologyError:  # the ranks of a group reach each other over links of others only
            return None
        # ``one`` keeps its links in canonical order, which the columns of ``links`` follow.
        return cls(topology, ranks, one, links[:, canonical_order(*columns, bandwidth, bandwidth)])

    def part(self, whole: Collective) -> Collective:
        """The part of a collective of the groups that is one group's."""
        return dataclasses.replace(whole, num_ranks=self.one.num_ranks, groups=None)

    def on_all(self, found: Schedule, helpers: bool = True) -> Schedule:
        """A schedule of one copy, run by all of them at once.

        Args:
            helpers: helpers of the collective; ranks of other copies have no part in any.
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
        ahead = np.arange(count, dtype=np.int64)[:, None]
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
            (ahead * len(edges) + found.edge).ravel(),
            (ahead * found.collective.num_chunks + found.chunk).ravel(),
            np.tile(found.reduce, count),
            edges=everywhere,
            provenance=found.provenance,
        )


def _copies_and_places(topology: Topology, ranks: np.ndarray) -> np.ndarray | None:
    """The copy and the place of every vertex, int64 (2, vertices), or None where one has none.

    Switches that join ranks of a copy stand behind its ranks in the order of their numbers; those
    that join ranks of a place are of no copy, -1.
    """
    n, (count, size) = topology.num_ranks, ranks.shape
    found = np.full((2, topology.num_vertices), -1)
    found[:, ranks] = np.indices(ranks.shape)
    if topology.is_direct:
        return found
    # Switches that are joined with each other are one, as far as they join ranks.
    ends = np.stack([topology.src, topology.dst]) - n
    between = ends[:, (ends >= 0).all(axis=0)]
    switches = topology.num_vertices - n
    graph = sp.coo_array((np.ones(between.shape[1]), between), (switches, switches))
    parts, part_of = sp.csgraph.connected_components(graph, directed=False)
    at, to = np.concatenate([ends, ends[::-1]], axis=1)
    one, other = part_of[at[(at >= 0) & (to < 0)]], to[(at >= 0) & (to < 0)] + n
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
