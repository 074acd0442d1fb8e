"""Data on their way to one rank, as a flow over time, and cuts over time that bound it.

Ford and Fulkerson ("Constructing maximal dynamic flows from static flows", 1958) let a flow take
time on every arc. Give every vertex x a moment theta(x), and say that data have *crossed* once they
are at a vertex after its moment. On a link from x to y of latency a, only what enters between
theta(x) and theta(y) - a crosses. So let all ranks of a set A have theta = 0, and a rank v
theta = T. If v has all data of A at the time T, then

    bytes(A)  <=  sum over links of bandwidth x max(0, theta(y) - theta(x) - a).

Every choice of moments proves a time. Those here take a set S of vertices around A, and

    theta(x) = the least latency from A to x in S,  theta(y) = T - the least latency from y to v

outside, so that links that do not leave S carry nothing across, and a link that does counts from
when data of A can have come to it until what it carries is late. All vertices but v are the set
that counts what enters v; the worst cut of ForestColl is another.

Data may be copied, split or coded on the way: v gets each byte once. Sums move likewise, backwards
in time: a rank's contributions to the results of others need as long as a gather of those results
on the network with every link reversed.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxcoll.paths import distances_from_ranks
from jaxcoll.topology import Topology

# Numbers that are looked at for what enters, or leaves, all ranks: enough for 1,024 of degree 6.
_MOST_NUMBERS = 2**23
# Ranks outside a set that are looked at: those that are farthest, or need the most.
_MOST_TARGETS = 8


def least_times(bandwidth: np.ndarray, late: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
    """The least T with  sum of bandwidth x max(0, T - late) >= nbytes,  of each row; seconds.

    Links count from the moment on that they are late by. Any subset of them alone takes at least
    as long with max(0, .) left out, and those before T just as long: so the least over all
    subsets of the first so many.

    Args:
        bandwidth: of each link, float64 of shape (links,).
        late: seconds, infinite where a link is of no use, float64 of shape (rows, links).
        nbytes: at least 0, float64 of shape (rows,). Nothing takes no time.
    """
    order = np.argsort(late, axis=1, kind="stable")
    late = np.take_along_axis(late, order, axis=1)
    room = np.where(np.isfinite(late), bandwidth[order], 0.0)
    late = np.where(np.isfinite(late), late, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.cumsum(room, axis=1)
        times = (nbytes[:, None] + np.cumsum(room * late, axis=1)) / total
    return np.where(nbytes > 0, np.min(times, axis=1, initial=np.inf), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Latencies:
    """Least latencies of a network in seconds, each computed when it is first asked for."""

    topology: Topology

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
    def from_a_rank(self) -> np.ndarray:
        """To each vertex from the nearest rank, float64 of shape (vertices,)."""
        return self.from_ranks.min(axis=0)

    @functools.cached_property
    def to_a_rank(self) -> np.ndarray:
        """From each vertex to the nearest rank, float64 of shape (vertices,)."""
        return self.to_ranks.min(axis=1)

    def transpose(self) -> Latencies:
        """Those of the network with every link reversed."""
        back = Latencies(self.topology.transpose())
        for name, mirrored in (("from_ranks", self.to_ranks), ("to_ranks", self.from_ranks)):
            back.__dict__[name] = mirrored.T
        return back


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A least time, and the rank that has not got its data before.

    Attributes:
        seconds: 0 where nothing has to arrive.
        rank: it.
        away: latency to it, in seconds, of the data that the time comes from.
    """

    seconds: float = 0.0
    rank: int = 0
    away: float = 0.0


def entering(latencies: Latencies, nbytes: np.ndarray) -> Arrival:
    """The data that a rank needs from beyond a distance, over all links into it; the worst of each.

    Args:
        nbytes: bytes that rank v needs of rank u at [u, v], all different; float64.
    """
    topology, between = latencies.topology, latencies.between
    ptr, link = topology.in_links
    exactly = topology.num_ranks * int(ptr[topology.num_ranks]) <= _MOST_NUMBERS
    best = Arrival()
    for v in range(topology.num_ranks):
        needed = np.flatnonzero(nbytes[:, v] > 0)
        if not needed.size:
            continue
        order = needed[np.argsort(-between[needed, v], kind="stable")]
        away = between[order, v]
        last = np.append(away[1:] != away[:-1], True)  # of each distance
        amount, away = np.cumsum(nbytes[order, v])[last], away[last]
        into = link[ptr[v] : ptr[v + 1]]
        if exactly:
            near = latencies.from_ranks[np.ix_(order, topology.src[into])]
            near = np.minimum.accumulate(near, axis=0)
            times = least_times(topology.bandwidth[into], near[last] + topology.alpha[into], amount)
        else:
            times = away + amount / topology.bandwidth[into].sum()
        i = int(times.argmax())
        if times[i] > best.seconds:
            best = Arrival(float(times[i]), v, float(away[i]))
    return best


def leaving(latencies: Latencies, nbytes: np.ndarray) -> Arrival:
    """The data that a rank has for others, over all links out of it, and on to the farthest.

    Args:
        nbytes: bytes that rank v needs of rank u at [u, v]; other ranks may need the same.
    """
    topology, between = latencies.topology, latencies.between
    ptr, link = topology.out_links
    exactly = topology.num_ranks * int(ptr[topology.num_ranks]) <= _MOST_NUMBERS
    best = Arrival()
    for u in range(topology.num_ranks):
        needing = np.flatnonzero(nbytes[u] > 0)
        if not needing.size:
            continue
        out = link[ptr[u] : ptr[u + 1]]
        if exactly:
            onward = latencies.to_ranks[np.ix_(topology.dst[out], needing)].T
            times = least_times(
                topology.bandwidth[out], onward + topology.alpha[out], nbytes[u, needing]
            )
        else:
            times = between[u, needing] + nbytes[u, needing] / topology.bandwidth[out].sum()
        i = int(times.argmax())
        if times[i] > best.seconds:
            best = Arrival(float(times[i]), u, float(between[u, needing[i]]))
    return best


def across(latencies: Latencies, inside: np.ndarray, nbytes: np.ndarray) -> Arrival:
    """The data that a rank outside a set of vertices needs of the ranks inside; the worst rank.

    Args:
        inside: the set, bool of shape (vertices,).
        nbytes: as of ``entering``.
    """
    topology, n = latencies.topology, latencies.topology.num_ranks
    out = inside[topology.src] & ~inside[topology.dst]
    amount = np.where(inside[:n], 0.0, inside[:n] @ nbytes)
    targets = np.flatnonzero(amount > 0)
    if not targets.size:
        return Arrival()
    sources = np.flatnonzero(inside[:n] & (nbytes[:, targets] > 0).any(axis=1))
    tails, tail = np.unique(topology.src[out], return_inverse=True)
    heads, head = np.unique(topology.dst[out], return_inverse=True)
    early = latencies.from_ranks[np.ix_(sources, tails)].min(axis=0)[tail] + topology.alpha[out]
    onward = latencies.to_ranks[np.ix_(heads, targets)].T
    if len(targets) > _MOST_TARGETS:
        room = topology.bandwidth[out].sum()
        soon = onward.min(axis=1) + amount[targets] / room
        some = np.argsort(-soon, kind="stable")[:_MOST_TARGETS]
        targets, onward = targets[some], onward[some]
    late = early + onward[:, head]
    times = least_times(topology.bandwidth[out], late, amount[targets])
    i = int(times.argmax())
    return Arrival(float(times[i]), int(targets[i]), float(late[i].min()))
