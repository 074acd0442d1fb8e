"""What no all_reduce can beat, latency and load together.

Contributions to a byte of the result are given away, never copied (``jaxcoll.verifier``), so they
meet in one rank, the byte's meeting place, and the sum is copied from there. The
bounds here hold wherever the bytes meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.flows_over_time import Latencies, least_times
from jaxcoll.collective import Collective
from jaxcoll.paths import latency_graph
from jaxcoll.topology import Topology


def meeting(latencies: Latencies, what: Collective) -> tuple[float, str]:
    """The least latency from the farthest rank to a meeting place and on to the farthest rank."""
    best, reason = 0.0, "no rank needs anything from another"
    between = latencies.between
    for group in what.groups:
        if len(group) > 1:
            members = list(group)
            to, back = between[members].max(axis=0), between[:, members].max(axis=1)
            place = int((to + back).argmin())
            if (to + back)[place] > best:
                u = group[int(between[members, place].argmax())]
                v = group[int(between[place, members].argmax())]
                best = float((to + back)[place])
                reason = f"from rank {u} to rank {place}, where sums may meet, and on to rank {v}"
    return best, reason


def departures(
    latencies: Latencies, what: Collective, nbytes: float, part: np.ndarray
) -> tuple[float, int]:
    """When parts of the network must have let go of bytes, over all links out of parts together.

    The contributions to a byte that meets in a rank m leave every other part that has some, and
    begin to no later than T - D(m), where D(m) is the least latency from a vertex of the part to m
    and that from m to the farthest rank. If k parts have a D(m) of at least D, whichever rank m
    is, then every byte crosses k times before T - D, so that

        k x nbytes  <=  (T - D) x bandwidth of all links out of parts.

    Bytes of several groups add up. Backwards in time the copies say the same. For k = 1 this is
    the meeting place's latency and, on top of it, one crossing of every byte. On a torus, between
    little and much data, these are times of the linear program of ``scripts/bench fluid``.

    Args:
        part: the part of each vertex, int64 of shape (vertices,).

    Returns:
        Seconds, and how many crossings of the bytes of all groups that takes.
    """
    best, count = 0.0, 0
    for each in (latencies, latencies.transpose()):
        topology, between = each.topology, each.between
        ranks = part[: topology.num_ranks]
        leaves = (part[topology.src] != part[topology.dst]) & np.isin(part[topology.src], ranks)
        order = np.argsort(part, kind="stable")
        _, first = np.unique(part[order], return_index=True)
        onward = np.minimum.reduceat(each.to_ranks[order], first, axis=0)  # parts are 0, 1, ...
        onward[ranks, np.arange(topology.num_ranks)] = -np.inf  # what meets there may stay
        moments = []
        for group in what.groups:
            members = list(group)
            with_members = np.unique(ranks[members])
            to_go = onward[with_members] + between[:, members].max(axis=1)
            moments.append(-np.sort(-to_go, axis=0).min(axis=1)[: len(with_members) - 1])
        least = -np.sort(-np.concatenate(moments))
        if least.size:
            crossings = np.arange(1, least.size + 1)
            times = least + crossings * (nbytes / topology.bandwidth[leaves].sum())
            k = int(times.argmax())
            if times[k] > best:
                best, count = float(times[k]), k + 1
    return best, count


def traffic(
    latencies: Latencies, what: Collective, nbytes: float, part: np.ndarray, known: float
) -> tuple[float, int]:
    """Every byte crosses from part to part at least 2(p-1) times, if p parts have ranks of a group.

    Parts for single ranks, this is Patarasuk and Yuan's bound (2009), whose proof counts the sums
    and copies that each byte needs, and also holds for ranks taken together. The last data to leave
    a part still has to arrive, and if only one group sums, to spread in the part; the first data to
    leave has to be summed before (``rests``).

    Args:
        part: the part of each vertex, int64 of shape (vertices,).
        known: a time in seconds that no run beats.

    Returns:
        Seconds, and how many crossings of a byte that takes.
    """
    topology = latencies.topology
    ranks = part[: topology.num_ranks]
    crossings = sum(2 * (len(np.unique(ranks[list(group)])) - 1) for group in what.groups)
    if not crossings:
        return 0.0, 0
    together = [np.asarray(group) for group in what.groups if len(group) > 1]
    leaves = (part[topology.src] != part[topology.dst]) & np.isin(part[topology.src], ranks)
    if len(together) == 1 and len(np.unique(ranks)) < len(ranks):
        rest = rests(topology, together[0], part, leaves, known)
    else:
        rest = topology.alpha[leaves] + latencies.to_a_rank[topology.dst[leaves]]
        rest = np.minimum(rest, known)
    bandwidth = topology.bandwidth[leaves]
    share = bandwidth / bandwidth.sum()
    return float(crossings * (nbytes / bandwidth.sum()) + share @ rest), crossings


def crossed(
    latencies: Latencies, what: Collective, sets: Sequence[np.ndarray], nbytes: float
) -> tuple[float, int]:
    """The longest that every byte of every group on both sides takes out of one of the sets.

    A byte crosses once at least, as a sum or as a copy. Its crossing takes the contributions of
    each rank u inside further on the way to each rank v outside. Where there is one group, a link
    counts from when data of one u can have come to it until what it carries is late for one v: the
    two that are farthest from the links across.

    Returns:
        Seconds, and the place in ``sets``; 0 seconds where nothing crosses any.
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
            early = latencies.from_ranks[member & inside[:n]][:, topology.src[out]]
            onward = latencies.to_ranks[topology.dst[out]][:, member & ~inside[:n]]
            late = topology.alpha[out] + early[early.min(axis=1).argmax()]
            late = late + onward[:, onward.min(axis=0).argmax()]
        time = least_times(topology.bandwidth[out], late[None], np.array([parted * nbytes]))[0]
        if time > best:
            best, place = float(time), i
    return best, place


# ---------------------------------------------------------------------- links that rest


def rests(
    topology: Topology,
    members: np.ndarray,
    part: np.ndarray,
    leaves: np.ndarray,
    known: float,
) -> np.ndarray:
    """Seconds of a run in which each link out of a part may as well rest, float64 (leaves,).

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
    - Every member gets a copy that came into the part. One whose last bit crosses on link l at s
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
        leaves: links out of parts that contain ranks, bool of shape (links,).
        known: a time in seconds that no run beats. The two times of little use are cut short where
            they would not fit in it, so that they never overlap.
    """
    graph = latency_graph(topology)
    n = topology.num_ranks
    ends, out = np.unique(topology.dst[leaves], return_inverse=True)
    late = _late(sp.csgraph.dijkstra(graph, indices=ends)[:, :n], members, part)[out]
    late = np.minimum(topology.alpha[leaves][:, None] + late, known)
    starts, back = np.unique(topology.src[leaves], return_inverse=True)
    reach = sp.csgraph.dijkstra(graph.T.tocsr(), indices=starts)[:, :n][:, members]
    same = part[starts][:, None] == part[members]
    room = known - late.max(axis=1)
    early = np.minimum(reach[back], room[:, None])
    inside = same[back]
    return late.mean(axis=1) + (early * inside).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)


def _late(latency: np.ndarray, members: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Least latencies to a first, second, ... of equal shares of a part, (vertices, shares).

    Args:
        latency: from some vertices to all ranks, float64 of shape (vertices, ranks).
    """
    parts = [members[part[members] == p] for p in np.unique(part[members])]
    shares = max(map(len, parts))
    least = np.full((len(latency), shares), np.inf)
    for ranks in parts:
        # Smaller parts count as if each rank stood for as many as it can stand for at most.
        which = np.arange(shares) * len(ranks) // shares
        np.minimum(least, np.sort(latency[:, ranks], axis=1)[:, which], out=least)
    return least
