"""Cuts over time: lower bounds on the time of data on its way, and of a whole all_reduce.

Ford and Fulkerson ("Constructing maximal dynamic flows from static flows", 1958) let a flow take
time on every arc. Give every vertex x a moment theta(x), and say that data have *crossed* once they
are at a vertex after its moment. On a link from x to y of latency a, only what enters between
theta(x) and theta(y) - a crosses. So let all ranks of a set A have theta = 0, and a rank v theta =
T. If v has all data of A at the time T, then

    bytes(A)  <=  sum over links of bandwidth x max(0, theta(y) - theta(x) - a).

Every choice of moments proves a time. Those here take a set S of vertices around A, and

    theta(x) = the least latency from A to x in S,  theta(y) = T - the least latency from y to v

outside, so that links that do not leave S carry nothing across, and a link that does leave S counts
from the time when data of A can have reached it until its data would be late. The set of all
vertices except v counts the data that enters v; the worst cut of ForestColl is another set. Data
may be copied, split or coded on the way: v gets each byte once.

Sums move in the same way, backwards in time: a rank's contributions to the results of others need
as long as a gather of those results on the network with every link reversed.

**An all_reduce.** Contributions to a byte of the result are given away, never copied
(``jaxcoll.verifier``), so they meet in one rank, or in a switch that adds, the byte's meeting
place, and the sum is copied from there. The bounds here hold wherever the bytes meet.

**Switches that copy and add** (``Topology.in_network``) change nothing in what crosses a set of
vertices, for a rank outside, for all of them, or as a contribution: that counts every byte once,
however often it is copied and in whatever sum. Where copies, sums and meeting places are counted,
such switches stand beside the ranks: in ``meeting``, ``departures`` and ``traffic``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.needs import Needs
from jaxcoll.bounds.symmetries import Symmetries
from jaxcoll.collective import Collective
from jaxcoll.paths import distances_from, distances_from_ranks, latency_graph
from jaxcoll.topology import Topology

# The most numbers to examine for the data into or out of all ranks: enough for 1,024 ranks of
# degree 6.
_MOST_NUMBERS = 2**23
# The number of ranks outside a set to examine: those that are farthest, or need the most.
_MOST_TARGETS = 8
# The most ends of a run to examine (``last_moments``).
_MOST_ENDS = 4


def least_times(bandwidth: np.ndarray, late: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
    """The least T with sum of bandwidth x max(0, T - late) >= nbytes, for each row, in seconds.

    Each link counts from the moment ``late`` on. Without max(0, .), any subset of links takes at
    least as long, and the links that count before T take just as long. So T is the least over the
    subsets of the first links in order.

    Args:
        bandwidth: bandwidth of each link, float64 of shape (links,).
        late: seconds, infinite if a link is useless, float64 of shape (rows, links).
        nbytes: bytes of each row, at least 0, float64 of shape (rows,); 0 bytes take no time.
    """
    order = np.argsort(late, axis=1, kind="stable")
    late = np.take_along_axis(late, order, axis=1)
    room = np.where(np.isfinite(late), bandwidth[order], 0.0)
    late = np.where(np.isfinite(late), late, 0.0)  # no bandwidth: 0 x 0 and not 0 x infinity
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.cumsum(room, axis=1)
        times = (nbytes[:, None] + np.cumsum(room * late, axis=1)) / total
    return np.where(nbytes > 0, np.min(times, axis=1, initial=np.inf), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """Least latencies from vertices to all vertices, computed on first use."""

    topology: Topology
    found: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def of(self, vertices: np.ndarray) -> np.ndarray:
        """From each of some vertices, float64 of shape (len(vertices), all vertices)."""
        missing = [v for v in dict.fromkeys(vertices.tolist()) if v not in self.found]
        if missing:
            rows = distances_from(self.topology, self.topology.alpha, np.asarray(missing))
            self.found.update(zip(missing, rows, strict=True))
        if len(vertices) == 1:
            return self.found[int(vertices[0])][None]
        # There may be none, of which ``np.stack`` makes no rows.
        found = np.empty((len(vertices), self.topology.num_vertices))
        for row, v in enumerate(vertices.tolist()):
            found[row] = self.found[v]
        return found

    def nearest(self, vertices: np.ndarray) -> np.ndarray:
        """From the nearest of some vertices, float64 of shape (all vertices,)."""
        return sp.csgraph.dijkstra(self.graph, indices=np.unique(vertices), min_only=True)

    @functools.cached_property
    def graph(self) -> sp.csr_matrix:
        return latency_graph(self.topology)


@dataclasses.dataclass(frozen=True, eq=False)
class Latencies:
    """Least latencies of a network in seconds, each computed on first use.

    Attributes:
        topology: the network.
        symmetries: equivalent vertices, for a network so large that only the latencies that bounds
            ask for are computed; None if those of all ranks are.
    """

    # Bounds of the reversed network use the same numbers in the other direction, so ``transpose``
    # hands them on: each is a run of Dijkstra's algorithm from every rank.

    topology: Topology
    symmetries: Symmetries | None = None

    @functools.cached_property
    def from_ranks(self) -> np.ndarray:
        """From each rank to each vertex, float64 of shape (ranks, vertices)."""
        return distances_from_ranks(self.topology, self.topology.alpha)

    @functools.cached_property
    def to_ranks(self) -> np.ndarray:
        """From each vertex to each rank, float64 of shape (vertices, ranks)."""
        back = self.topology.transpose()
        return distances_from_ranks(back, back.alpha).T

    @property
    def between(self) -> np.ndarray:
        """From rank to rank, float64 of shape (ranks, ranks)."""
        return self.from_ranks[:, : self.topology.num_ranks]

    @functools.cached_property
    def _ahead(self) -> _Rows:
        return _Rows(self.topology)

    @functools.cached_property
    def _behind(self) -> _Rows:
        return _Rows(self.topology.transpose())

    def _apart(self, tails: np.ndarray, heads: np.ndarray) -> np.ndarray:
        """From some vertices to others, by whichever direction needs fewer rows; (tails, heads)."""
        if len(tails) <= len(heads):
            return self._ahead.of(tails)[:, heads]
        return self._behind.of(heads)[:, tails].T

    def from_some(self, ranks: np.ndarray, vertices: np.ndarray) -> np.ndarray:
        """From some ranks to some vertices, float64 of shape (ranks, vertices)."""
        if self.symmetries is None:
            return self.from_ranks[np.ix_(ranks, vertices)]
        return self._apart(ranks, vertices)

    def to_some(self, vertices: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """From some vertices to some ranks, float64 of shape (vertices, ranks)."""
        if self.symmetries is None:
            return self.to_ranks[np.ix_(vertices, ranks)]
        return self._apart(vertices, ranks)

    def from_nearest(self, ranks: np.ndarray, vertices: np.ndarray) -> np.ndarray:
        """To each of some vertices from the nearest of some ranks, float64 (vertices,)."""
        if self.symmetries is None:
            return self.from_some(ranks, vertices).min(axis=0, initial=np.inf)
        return self._ahead.nearest(ranks)[vertices]

    def to_nearest(self, vertices: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """From each of some vertices to the nearest of some ranks, float64 (vertices,)."""
        if self.symmetries is None:
            return self.to_some(vertices, ranks).min(axis=1, initial=np.inf)
        return self._behind.nearest(ranks)[vertices]

    def reaching(self, ranks: np.ndarray, vertices: np.ndarray) -> np.ndarray:
        """From each of some ranks to the nearest of some vertices, float64 (ranks,)."""
        if self.symmetries is None:
            return self.from_some(ranks, vertices).min(axis=1)
        return self._behind.nearest(vertices)[ranks]

    def reached(self, vertices: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """To each of some ranks from the nearest of some vertices, float64 (ranks,)."""
        if self.symmetries is None:
            return self.to_some(vertices, ranks).min(axis=0)
        return self._ahead.nearest(vertices)[ranks]

    def typical(self, vertices: np.ndarray) -> np.ndarray:
        """The vertices among these that represent all vertices equivalent to them."""
        if self.symmetries is None:
            return vertices
        return vertices[self.symmetries.first[vertices] == vertices]

    @functools.cached_property
    def meeting_places(self) -> np.ndarray:
        """The places where contributions can meet: ranks, then switches that add; int64.

        Of equivalent places only the first is listed.
        """
        n = self.topology.num_ranks
        places = np.append(np.arange(n), np.asarray(self.topology.in_network.adding, np.int64))
        return self.typical(places)

    @functools.cached_property
    def _to_all(self) -> np.ndarray:
        """From each vertex to each, float64 of shape (vertices, vertices)."""
        return sp.csgraph.dijkstra(latency_graph(self.topology))

    def to_places(self, places: np.ndarray) -> np.ndarray:
        """From each vertex to some places, of which the first are the ranks; (vertices, places)."""
        if self.symmetries is not None:
            return self._behind.of(places).T
        if len(places) == self.topology.num_ranks:
            return self.to_ranks
        return self._to_all[:, places]

    @functools.cached_property
    def from_a_rank(self) -> np.ndarray:
        """To each vertex from the nearest rank, float64 of shape (vertices,)."""
        n, vertices = self.topology.num_ranks, self.topology.num_vertices
        return self.from_nearest(np.arange(n), np.arange(vertices))

    @functools.cached_property
    def to_a_rank(self) -> np.ndarray:
        """From each vertex to the nearest rank, float64 of shape (vertices,)."""
        n, vertices = self.topology.num_ranks, self.topology.num_vertices
        return self.to_nearest(np.arange(vertices), np.arange(n))

    @functools.cached_property
    def for_everyone(self) -> Latencies:
        """These latencies, for terms in which all ranks are equal.

        Those of a root's data as a whole have no symmetries. But which ranks a copy can still reach
        before the end does not depend on the root, if all ranks need it.
        """
        if self.symmetries is None or len(self.symmetries.images):
            return self
        found = Latencies(self.topology, Symmetries.of(self.topology))
        found.__dict__.update(_ahead=self._ahead, _behind=self._behind)
        return found

    def transpose(self) -> Latencies:
        """The latencies of the network with every link reversed."""
        if self.symmetries is not None:
            back = Latencies(self._behind.topology, self.symmetries)
            back.__dict__.update(_ahead=self._behind, _behind=self._ahead)
            return back
        back = Latencies(self.topology.transpose())
        for name, mirrored in (("from_ranks", self.to_ranks), ("to_ranks", self.from_ranks)):
            back.__dict__[name] = mirrored.T
        return back


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A least time, and the rank that cannot have its data before.

    Attributes:
        seconds: the time; 0 if nothing has to arrive.
        rank: the rank.
        away: latency, in seconds, to that rank of the data that decides the time.
    """

    seconds: float = 0.0
    rank: int = 0
    away: float = 0.0


def entering(
    latencies: Latencies, nbytes: np.ndarray, sources: np.ndarray, targets: np.ndarray
) -> Arrival:
    """The data that a rank needs from beyond a distance, over all links into it, at the worst.

    Args:
        nbytes: bytes that rank targets[v] needs of rank sources[u] at [u, v], all different;
            float64.
        sources, targets: ranks, int64.
    """
    topology = latencies.topology
    ptr, link = topology.in_links
    exactly = topology.num_ranks * int(ptr[topology.num_ranks]) <= _MOST_NUMBERS
    between = latencies.from_some(sources, targets)
    if len(sources) == 1 and not exactly:
        room = topology.in_bandwidth()[targets]
        return _latest(targets, nbytes[0], between[0], room)
    best = Arrival()
    for i, v in enumerate(targets.tolist()):
        needed = np.flatnonzero(nbytes[:, i] > 0)
        if not needed.size:
            continue
        order = needed[np.argsort(-between[needed, i], kind="stable")]
        away = between[order, i]
        # From the farthest rank inwards: at each distance, all data from there or beyond.
        last = np.append(away[1:] != away[:-1], True)  # of each distance
        amount, away = np.cumsum(nbytes[order, i])[last], away[last]
        into = link[ptr[v] : ptr[v + 1]]
        if exactly:
            near = latencies.from_some(sources[order], topology.src[into])
            # A link counts from the time when data of any rank of the set can be at its tail.
            near = np.minimum.accumulate(near, axis=0)
            times = least_times(topology.bandwidth[into], near[last] + topology.alpha[into], amount)
        else:
            times = away + amount / topology.bandwidth[into].sum()
        at = int(times.argmax())
        if times[at] > best.seconds:
            best = Arrival(float(times[at]), v, float(away[at]))
    return best


def _latest(ranks: np.ndarray, nbytes: np.ndarray, away: np.ndarray, room: np.ndarray) -> Arrival:
    """The worst of some ranks, each with one distance to examine."""
    times = np.where(nbytes > 0, away + nbytes / room, 0.0)
    if not times.size or not times.any():
        return Arrival()
    at = int(times.argmax())
    return Arrival(float(times[at]), int(ranks[at]), float(away[at]))


def leaving(
    latencies: Latencies, nbytes: np.ndarray, sources: np.ndarray, targets: np.ndarray
) -> Arrival:
    """The data that a rank has for others, over all links out of it and on to the farthest.

    Args:
        nbytes: bytes that rank targets[v] needs of rank sources[u] at [u, v]; other ranks may need
            the same.
        sources, targets: ranks, int64.
    """
    topology = latencies.topology
    ptr, link = topology.out_links
    exactly = topology.num_ranks * int(ptr[topology.num_ranks]) <= _MOST_NUMBERS
    between = latencies.from_some(sources, targets)
    if len(targets) == 1 and not exactly:
        room = topology.out_bandwidth()[sources]
        return _latest(sources, nbytes[:, 0], between[:, 0], room)
    best = Arrival()
    for i, u in enumerate(sources.tolist()):
        needing = np.flatnonzero(nbytes[i] > 0)
        if not needing.size:
            continue
        out = link[ptr[u] : ptr[u + 1]]
        if exactly:
            onward = latencies.to_some(topology.dst[out], targets[needing]).T
            times = least_times(
                topology.bandwidth[out], onward + topology.alpha[out], nbytes[i, needing]
            )
        else:
            times = between[i, needing] + nbytes[i, needing] / topology.bandwidth[out].sum()
        at = int(times.argmax())
        if times[at] > best.seconds:
            best = Arrival(float(times[at]), u, float(between[i, needing[at]]))
    return best


def across(latencies: Latencies, inside: np.ndarray, needs: Needs) -> Arrival:
    """The data that the worst rank outside a set of vertices needs of the ranks inside.

    Args:
        inside: the set, bool of shape (vertices,).
        needs: the bytes that ranks need, all different.
    """
    topology, n = latencies.topology, latencies.topology.num_ranks
    out = inside[topology.src] & ~inside[topology.dst]
    amount = np.where(inside[:n], 0.0, needs.out_of(inside[:n]))
    targets = np.flatnonzero(amount > 0)
    if not targets.size:
        return Arrival()
    sources = needs.sources[inside[needs.sources]]
    sources = sources[needs.sending(sources, targets)]
    tails, tail = np.unique(topology.src[out], return_inverse=True)
    heads, head = np.unique(topology.dst[out], return_inverse=True)
    early = latencies.from_nearest(sources, tails)[tail] + topology.alpha[out]
    if len(targets) > _MOST_TARGETS:
        room = topology.bandwidth[out].sum()
        # The targets that need the most or are farthest, estimated without sorting links.
        soon = latencies.reached(heads, targets) + amount[targets] / room
        targets = targets[np.argsort(-soon, kind="stable")[:_MOST_TARGETS]]
    late = early + latencies.to_some(heads, targets).T[:, head]
    times = least_times(topology.bandwidth[out], late, amount[targets])
    i = int(times.argmax())
    return Arrival(float(times[i]), int(targets[i]), float(late[i].min()))


def meeting(latencies: Latencies, what: Collective) -> tuple[float, str]:
    """The least latency from the farthest rank to a meeting place, and on to the farthest in need.

    Returns:
        Seconds, and the ranks in words.
    """
    best, reason = 0.0, "no rank needs anything from another"
    n, places = latencies.topology.num_ranks, latencies.meeting_places
    there, onward = (
        latencies.from_some(np.arange(n), places),
        latencies.to_some(places, np.arange(n)),
    )
    for group in what.groups:
        if len(group) > 1:
            members, wanting = list(group), list(what.ending(group))
            to, back = there[members].max(axis=0), onward[:, wanting].max(axis=1)
            at = int((to + back).argmin())
            if (to + back)[at] > best:
                u = group[int(there[members, at].argmax())]
                v = wanting[int(onward[at, wanting].argmax())]
                best = float((to + back)[at])
                place = f"{'rank' if at < n else 'switch'} {places[at]}"
                reason = f"from rank {u} to {place}, where sums may meet, and on to rank {v}"
    return best, reason


def departures(
    latencies: Latencies, what: Collective, nbytes: float, part: np.ndarray
) -> tuple[float, int]:
    """The times by which parts of the network must have sent bytes, over all links out of parts.

    The contributions to a byte that meets in m, a rank or a switch that adds, leave every other
    part that has some, and begin to no later than T - D(m), where D(m) is the least latency from a
    vertex of the part to m and that from m to the farthest rank. If k parts have a D(m) of at least
    D, whichever m is, then every byte crosses k times before T - D, so that

        k x nbytes  <=  sum over links out of parts of bandwidth x the integral of N until T - D,

    where N(s) is the share of the part's contributions that may have left by a link at s, as in
    ``rests``. D is the least over all m, because sums meet in the middle if ranks differ. The
    largest over all m is the same if all ranks are equivalent, and wrong otherwise.

    A sum that is complete less than r before the end is copied to every part over links that serve
    at most a share M of its members by then (``rests``). So let a second D(m) have at least r for
    the latency from m. A byte that meets in time for it crosses k times before T - D. Any other is
    copied (p-1)/M times after T - r, which weighs as much if each of these crossings weighs
    k M/(p-1). Within a host of 8 ranks, whose switch is 1.4 us wide, r is 1.4 us more than the
    latency between hosts, and M is 1/8.

    Bytes of several groups add up, with N = 1 and without r. Backwards in time the copies give the
    same bound. On a torus, between little and much data, these are times of the linear program of
    ``scripts/bench fluid``.

    Args:
        part: the part of each vertex, int64 of shape (vertices,).

    Returns:
        Seconds, and the number of crossings of the bytes of all groups.
    """
    best, count = 0.0, 0
    places = latencies.meeting_places  # the same ones backwards in time
    groups = [list(group) for group in what.groups]
    for each in (latencies, latencies.transpose()):
        ranks = part[: each.topology.num_ranks]
        late, room, ends = _useful_times(each, groups, part)
        order = np.argsort(part, kind="stable")
        _, first = np.unique(part[order], return_index=True)
        # Parts are 0, 1, ...
        onward = np.minimum.reduceat(each.to_places(places)[order], first, axis=0)
        onward[part[places], np.arange(len(places))] = -np.inf  # sums that meet there may stay
        far = each.to_some(places, np.arange(len(ranks)))
        for rest, carried in ends:  # the seconds from m on, and what copies carry in these
            moments = [
                _to_go(onward[np.unique(ranks[group])], np.maximum(far[:, group].max(axis=1), rest))
                for group in groups
            ]
            least = -np.sort(-np.concatenate(moments))
            # Of k crossings of a byte, copies of the last moments carry as many for each k.
            missing = nbytes - carried / max(least.size, 1)
            if missing <= 0.0 or not least.size:
                continue
            times = least + least_times(room, late[None], missing * np.arange(1, least.size + 1))
            k = int(times.argmax())
            if times[k] > best:
                best, count = float(times[k]), k + 1
    return best, count


def _to_go(onward: np.ndarray, far: np.ndarray) -> np.ndarray:
    """The least D of the first, second, ... part, wherever sums meet; float64 (parts - 1,).

    Args:
        onward: seconds from each part to each meeting place, float64 of shape (parts, places).
        far: seconds from each meeting place to the end, float64 of shape (places,).
    """
    # For every place the parts that need longest come first; the k-th of them needs at least the
    # least that a k-th needs. The part of the place itself needs none, so there is one fewer.
    return (-np.sort(-(onward + far), axis=0)).min(axis=1)[:-1]


def _useful_times(
    latencies: Latencies, groups: Sequence[Sequence[int]], part: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[LastMoments]]:
    """When links out of parts carry contributions: N from the start on, M towards the end.

    Returns:
        Moments and the bandwidth that is added at each, and ends of a run. For several groups, and
        for parts of one rank, all bandwidth counts from the start, and no end is special.
    """
    topology = latencies.topology
    ranks = part[: topology.num_ranks]
    sending = ranks[[member for group in groups for member in group]]
    is_between = part[topology.src] != part[topology.dst]
    leaves = np.flatnonzero(is_between & np.isin(part[topology.src], sending))
    is_one = len([group for group in groups if len(group) > 1]) == 1
    if not (is_one and 1 < len(np.unique(ranks)) < len(ranks)):
        room = topology.bandwidth[leaves].sum(keepdims=True)
        return np.zeros(1), room, [LastMoments(0.0, 0.0)]
    members = np.asarray(max(groups, key=len))
    makers = np.append(ranks, part[list(topology.in_network.copying)])
    makers = np.flatnonzero(is_between & np.isin(part[topology.src], makers))
    ends = last_moments(latencies, makers, members, part)
    return *_beginnings(latencies, leaves, members, part), ends


def _beginnings(
    latencies: Latencies, links: np.ndarray, members: np.ndarray, part: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """When links can carry more of the contributions of their parts: the integrand of N.

    Returns:
        Moments in seconds, and the bandwidth that is added at each, float64 of shape (moments,).
    """
    typical, which = _distinct(latencies, links)
    early, share = early_shares(latencies, typical, members, part)
    room = np.bincount(which, latencies.topology.bandwidth[links])[:, None] * share
    late, where = np.unique(early[share > 0], return_inverse=True)
    return late, np.bincount(where.ravel(), room[share > 0])


class LastMoments(NamedTuple):
    """The end of a run, in which a copy that leaves a part serves few members of another.

    Attributes:
        seconds: its length.
        carried: the bytes that all links carry in it and still bring to a rank, times the largest
            share M of a part's members that one copy serves (``rests``).
    """

    seconds: float
    carried: float


def last_moments(
    latencies: Latencies, links: np.ndarray, members: np.ndarray, part: np.ndarray
) -> list[LastMoments]:
    """Ends of a run, the shortest first: in that one links bring nothing to any rank."""
    typical, which = _distinct(latencies, links)
    late = late_shares(latencies, typical, members, part)
    room = np.bincount(which, latencies.topology.bandwidth[links])
    rests = late.min(axis=0)  # ascending: before rests[j], no copy serves more than j shares
    served = np.unique(rests, return_index=True)[1]
    served = served[:: -(-len(served) // _MOST_ENDS)]
    carried = [room @ np.maximum(rests[j] - late[:, 0], 0.0) * j / late.shape[1] for j in served]
    return [LastMoments(float(rests[j]), float(c)) for j, c in zip(served, carried, strict=True)]


def traffic(
    latencies: Latencies, what: Collective, nbytes: float, part: np.ndarray, known: float
) -> tuple[float, int]:
    """Every byte crosses from part to part at least 2(p-1) times, if p parts have ranks of a group.

    With single ranks as parts, this is Patarasuk and Yuan's bound (2009), whose proof counts the
    sums and copies that each byte needs. It also holds for sets of ranks: an incomplete sum leaves
    p - 1 parts, and a complete sum enters p - 1 parts, each alone on its way since it left the part
    of a rank or of a switch that copies. If the sum comes from a switch outside all these parts,
    which adds and sends it once, one part fewer is entered in this way, but all p were left. The
    last data to leave a part still has to arrive, and if only one group sums, to spread in the
    part; the first data to leave has to be summed before (``rests``).

    Backwards in time the crossings are those of links into parts with ranks, or with switches that
    add: the same on the reversed network, and another bound where switches copy or add.

    Args:
        part: the part of each vertex, int64 of shape (vertices,).
        known: a time in seconds that no run beats.

    Returns:
        Seconds, and the number of crossings of a byte.
    """
    topology = latencies.topology
    ranks = part[: topology.num_ranks]
    crossings = sum(2 * (len(np.unique(ranks[list(group)])) - 1) for group in what.groups)
    if not crossings:
        return 0.0, 0
    together = [np.asarray(group) for group in what.groups if len(group) > 1]
    makers = np.append(ranks, part[list(topology.in_network.copying)])
    leaves = (part[topology.src] != part[topology.dst]) & np.isin(part[topology.src], makers)
    if len(together) == 1 and len(np.unique(ranks)) < len(ranks):
        rest = rests(latencies, together[0], part, leaves, known)
    else:
        rest = topology.alpha[leaves] + latencies.to_a_rank[topology.dst[leaves]]
        rest = np.minimum(rest, known)
    bandwidth = topology.bandwidth[leaves]
    # In a time T a link of bandwidth b carries at most b (T - rest); solve for T over all links.
    share = bandwidth / bandwidth.sum()
    return float(crossings * (nbytes / bandwidth.sum()) + share @ rest), crossings


def beside_helpers(
    latencies: Latencies, what: Collective, nbytes: float, part: np.ndarray, known: float
) -> tuple[float, str]:
    """The weight of every byte on the links around one group, if ranks outside it copy and add.

    Let p parts of the network have members of the group, and the others none. The contributions to
    a byte are complete in one place first, its meeting place, and p - 1 member parts have been left
    before that and are entered after it; all p where the place is in no member part. Two weights of
    crossings make the most of it:

    1. *Links that touch a member part* weigh 1, and p/(p-1) between two of them. Before a byte
       meets outside, p parts have been left: p. Before it meets in a member part, the p - 1 others
       have been left: over links between member parts alone, which weighs (p-1) p/(p-1) = p; or at
       least one over another link, and then the contribution came in over one more: (p-1) + 1.
       After it the same, backwards in time.
    2. *Links out of parts with ranks* weigh 1 out of member parts, and (p-2)/(p-1) out of others.
       Before a byte meets, p - 1 member parts are left. After it p - 1 are entered: out of member
       parts, which weighs p - 1; or at least one out of another part, which itself had the sum from
       a member part: 1 + (p-1)(p-2)/(p-1) = p - 1. Where a byte meets outside, p are left and p are
       entered, which weighs no less.

    So all bytes weigh 2p times the buffer by the first, and 2(p-1) by the second, in which switches
    that copy or add would have to be counted as ranks. A link carries its bandwidth times the run,
    less what its last data still take to a rank.

    For example, let a group have three of eight ranks that are all joined by links of b B/s. The
    first weight gives 6 bytes per byte over 2 x 15 links and, with weight 3/2, 6 links: at most 6.5
    b. Sums that meet in the five others and, half as much, in the three attain that.

    Returns:
        Seconds, and the weights in words; 0 seconds if there are several groups, or no other ranks.
    """
    topology = latencies.topology
    together = [list(group) for group in what.groups if len(group) > 1]
    ranks = part[: topology.num_ranks]
    if len(together) != 1:
        return 0.0, ""
    with_members = np.unique(ranks[together[0]])
    p = len(with_members)
    if p < 2 or p == len(np.unique(ranks)):
        return 0.0, ""
    is_between = part[topology.src] != part[topology.dst]
    out, into = (np.isin(part[ends], with_members) for ends in (topology.src, topology.dst))
    touching = np.where(out & into, p / (p - 1), 1.0 * (out | into))
    leaving = np.where(out, 1.0, (p - 2) / (p - 1) * np.isin(part[topology.src], ranks))
    words = f"{p} of {len(np.unique(ranks))} parts of the network"
    ways = [(touching, 2 * p, f"links that touch {words}, {p}/{p - 1} between two of them")]
    if not topology.in_network:
        less = f"{p - 2}/{p - 1} out of others"
        ways.append((leaving, 2 * (p - 1), f"links out of {words}, {less}"))
    rest = np.minimum(topology.alpha + latencies.to_a_rank[topology.dst], known)
    best, reason = 0.0, ""
    for weight, count, which in ways:
        room = is_between * weight * topology.bandwidth
        time = float((count * nbytes + room @ rest) / room.sum())
        if time > best:
            best, reason = time, f"each byte weighs {count} on {which}"
    return best, reason


def crossed(
    latencies: Latencies, what: Collective, sets: Sequence[np.ndarray], nbytes: float
) -> tuple[float, int]:
    """The longest time that every byte of every group on both sides takes out of one of the sets.

    A byte crosses at least once, as a sum or as a copy. Its crossing takes the contributions of
    each rank u inside further on the way to each rank v outside. Where there is one group, a link
    counts from the time when data of one u can have reached it until its data would be late for one
    v, where u and v are farthest from the links across.

    Returns:
        Seconds, and the index in ``sets``; 0 seconds if nothing crosses any set.
    """
    topology, n = latencies.topology, latencies.topology.num_ranks
    idle = latencies.from_a_rank[topology.src] + topology.alpha
    idle = idle + latencies.to_a_rank[topology.dst]
    groups = [np.asarray(group) for group in what.groups if len(group) > 1]
    best, place = 0.0, 0
    for i, inside in enumerate(sets):
        out = inside[topology.src] & ~inside[topology.dst]
        parted = sum(bool(inside[g].any() and not inside[g].all()) for g in groups)
        late = idle[out]
        if len(groups) == 1 and parted:
            member = np.isin(np.arange(n), groups[0])
            src, dst = topology.src[out], topology.dst[out]
            near, beyond = (np.flatnonzero(member & side) for side in (inside[:n], ~inside[:n]))
            first = near[latencies.reaching(near, np.unique(src)).argmax()]
            last = beyond[latencies.reached(np.unique(dst), beyond).argmax()]
            late = topology.alpha[out] + latencies.from_some(np.array([first]), src)[0]
            late = late + latencies.to_some(dst, np.array([last]))[:, 0]
        time = least_times(topology.bandwidth[out], late[None], np.array([parted * nbytes]))[0]
        if time > best:
            best, place = float(time), i
    return best, place


# ---------------------------------------------------------------------- links that rest


def rests(
    latencies: Latencies,
    members: np.ndarray,
    part: np.ndarray,
    leaves: np.ndarray,
    known: float,
) -> np.ndarray:
    """Seconds of a run in which each link out of a part is useless, float64 (leaves,).

    Soon after the start no rank has the contributions of its whole part, and the data that leaves
    brings only some of them out; the data that enters a part shortly before the end comes too late
    for most of it.

    A sum or copy of a byte in an all_reduce *crosses* when the first link that takes it out of its
    rank's part begins to carry it. Let the run end at T. In a schedule, contributions are given
    away, never copied, so those of a byte meet in one rank, whence the sum is copied. For each of
    the p parts with members, but that of the meeting place:

    - Every contribution of the part crosses out of it. A sum that crosses on link l at time s
      contains no contribution of a rank u with a latency d(u, src l) > s. Give it the
      weight N(s), the share of the part's members that are near enough: over all cut traffic of the
      byte out of the part the weights add up to 1 or more.
    - Every member gets a copy that came into the part, from the part of a rank or of a switch that
      copies, out of which it is counted. One whose last bit crosses on link l at s
      comes too late for ranks v with alpha(l) + d(dst l, v) > T - s. Give it the weight M(T - s),
      the largest share of any part's members that it does not miss. Those add up to 1 or more, too.

    So the cut traffic of all bytes weighs 2(p-1) times the buffer or more. N(s) only grows and
    holds at the first bit, M(T - s) only falls and holds at the last: the weights that a link
    carries are at most its bandwidth times the integral over t of N(t), or of M(T - t), whichever
    kind of cut traffic it carries then. Before N reaches 1 there are no complete sums at src l, as
    some member is too far; once M has fallen below 1, a sum that crosses cannot come back to all
    members. So at t the weight is at most N(t) until N is 1, and at most M(T - t) after M was 1:
    every link loses the integral of 1 - N and that of 1 - M, which are the means of the latencies,
    of the T seconds.

    Args:
        members: ranks of the only group, int64.
        part: the part of each vertex, int64 of shape (vertices,).
        leaves: links out of parts that contain ranks, or switches that copy, bool (links,).
        known: a time in seconds that no run beats. The two useless times are shortened if they
            would not fit in it, so that they never overlap.
    """
    links, which = _distinct(latencies, np.flatnonzero(leaves))
    late = np.minimum(late_shares(latencies, links, members, part), known)
    early, share = early_shares(latencies, links, members, part)
    early = np.minimum(early, (known - late.max(axis=1))[:, None])
    return (late.mean(axis=1) + (early * share).sum(axis=1))[which]


def _distinct(latencies: Latencies, links: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One link of each class of equivalent links, and the one for each link; int64."""
    topology = latencies.topology
    first = (latencies.symmetries or Symmetries.none(topology)).first
    columns = (topology.alpha[links], first[topology.src[links]], first[topology.dst[links]])
    _, at, which = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    return links[at], which.ravel()


def early_shares(
    latencies: Latencies, links: np.ndarray, members: np.ndarray, part: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The least latencies at which links out of parts can carry sums of more and more members.

    A sum is made by a rank, or by a switch that adds. So on a link out of a switch that only
    forwards, it has the contributions that are near one rank of the part, and not all those that
    are near the switch.

    Returns:
        For the first, second, ... member of the link's part, nearest first, seconds and its share
        of the part, float64 of shape (links, most members of a part). Rows are filled up with
        shares of 0, and those of links out of parts without members have no other.
    """
    topology = latencies.topology
    n, tails = topology.num_ranks, topology.src[links]
    order = members[np.argsort(part[members], kind="stable")]
    first, last = (np.searchsorted(part[order], part[tails], side) for side in ("left", "right"))
    count = last - first
    place = np.arange(max(int(count.max(initial=0)), 1))
    share = (place < count[:, None]) / np.maximum(count, 1)[:, None]
    seconds = np.zeros(share.shape)
    for tail in np.unique(tails[count > 0]).tolist():
        those = tails == tail
        near = order[first[those][0] : last[those][0]]
        makers, away = np.array([tail]), np.zeros(1)
        if tail >= n and not topology.in_network.adding:
            makers = np.flatnonzero(part[:n] == part[tail])
            away = latencies.from_some(makers, np.array([tail]))[:, 0]
        reached = np.sort(latencies.from_some(near, makers), axis=0) + away
        seconds[those, : len(near)] = reached.min(axis=1)
    return seconds, share


def late_shares(
    latencies: Latencies, links: np.ndarray, members: np.ndarray, part: np.ndarray
) -> np.ndarray:
    """Least latencies over links, to the first, second, ... of equal shares of a part's members.

    A copy that reaches more than one rank was copied by a rank, or by a switch that copies. For
    every share the latency is the least of any part, since M (``rests``) is the largest share of
    the members of any part.

    Returns:
        Seconds, float64 of shape (links, most members of a part), in ascending order.
    """
    topology = latencies.topology
    heads, head = np.unique(topology.dst[links], return_inverse=True)
    if topology.in_network.copying:
        least = _shares_from(latencies, heads, members, part)
    else:
        makers = np.arange(topology.num_ranks)
        typical, which = latencies.typical(makers), makers
        if latencies.symmetries is not None:
            which = np.searchsorted(typical, latencies.symmetries.first[makers])
        onward = _shares_from(latencies, typical, members, part)
        away = latencies.to_some(heads, makers)
        least = np.stack([(away + column[which]).min(axis=1) for column in onward.T], axis=1)
    return topology.alpha[links][:, None] + least[head]


def _shares_from(
    latencies: Latencies, vertices: np.ndarray, members: np.ndarray, part: np.ndarray
) -> np.ndarray:
    """Least latencies from vertices to equal shares of a part's members, (vertices, shares)."""
    latency = latencies.to_some(vertices, members)
    parts = [np.flatnonzero(part[members] == p) for p in np.unique(part[members])]
    shares = max(map(len, parts))
    least = np.full((len(vertices), shares), np.inf)
    for ranks in parts:
        # In smaller parts each rank counts for the most shares that it can represent.
        which = np.arange(shares) * len(ranks) // shares
        np.minimum(least, np.sort(latency[:, ranks], axis=1)[:, which], out=least)
    return least
