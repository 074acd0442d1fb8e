"""When links between parts of a network can be of use to an all_reduce: not from start to end.

Sums and copies of a byte cross links out of parts at least 2(p-1) times in all, if ranks of p parts
take part (the traffic bound). Cut traffic at a bad time does less. Soon after the start no rank has
the contributions of its whole part, and what leaves brings only some of them out; what enters a
part shortly before the end comes too late for most of it.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from jaxcoll.paths import latency_graph
from jaxcoll.topology import Topology


def rests(
    topology: Topology,
    members: np.ndarray,
    part: np.ndarray,
    leaves: np.ndarray,
    known: float,
) -> np.ndarray:
    """Seconds of a run in which each link out of a part may as well rest, float64 (leaves,).

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
