"""Yardsticks: the fewest steps on a direct network, and the TACOS paper's Ideal.

Neither bounds a time. Steps follow from distances and ports together: chunks from t links away or
more arrive in step t at the earliest, and from then on no faster than a chunk per port. The Ideal
adds the latency of the farthest ranks to the time of the slowest rank's bytes, which data
that is on its way in the meantime can beat; papers compare with it.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.bounds.cuts import as_collective, as_size, needs_of
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import exact_latency, hop_distances, latency_distances
from jaxcoll.topology import Topology


def step_bound(topology: Topology, collective: str | Collective) -> int:
    """Steps that no schedule with one chunk per link and step can beat, on a direct network.

    For every rank v and distance t: the chunks v wants from ranks at least t links away arrive in
    step t at the earliest and then at most one per link into v and step.

    Raises:
        TopologyError: the network has switches.
        CollectiveError: the collective sums; its dual needs as many steps on the transposed network
            (twice an all_gather's for all_reduce run as two phases).
    """
    what = as_collective(topology, collective)
    if not topology.is_direct:
        raise TopologyError(f"steps are counted on direct networks; {topology} has switches")
    if what.is_reducing:
        raise CollectiveError(f"count the steps of {what.dual().kind} on the transposed network")
    distances = hop_distances(topology)
    chunks = np.rint(_chunks_between(what)).astype(np.int64)
    ports = np.bincount(topology.dst, minlength=topology.num_ranks)
    best = 0
    for v in range(topology.num_ranks):
        at = np.bincount(distances[:, v], weights=chunks[:, v]).astype(np.int64)
        at[0] = 0
        beyond = np.cumsum(at[::-1])[::-1]
        for t in np.flatnonzero(beyond[1:]) + 1:
            best = max(best, int(t - 1 + -(-beyond[t] // max(ports[v], 1))))
    return best


def _chunks_between(what: Collective) -> np.ndarray:
    """Chunks that start at rank u and are wanted by rank v, of shape (ranks, ranks)."""
    n = what.num_ranks
    count = np.zeros((n, n))
    holder = what.target if what.kind == "scatter" else what.owner
    for chunk, u in enumerate(holder):
        count[u] += what.wants(np.arange(n), chunk)
    return count


def ideal(topology: Topology, collective: str | Collective, nbytes: Number) -> Fraction:
    """The TACOS paper's Ideal (Sec. V-A), a heuristic and not a bound, in seconds, exact.

    Bytes that enter and leave a rank over the bandwidth of the slowest rank, plus the latency
    between the farthest two ranks: size x (n-1)/n / min BW + diameter, with 2(n-1)/n for
    all_reduce. A schedule can be slower than it (all_reduce pays the diameter twice) and, where
    the farthest ranks are not the slowest, faster.
    """
    what = as_collective(topology, collective)
    size = as_size(nbytes)
    if what.kind not in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        raise CollectiveError(f"Ideal is defined for collectives without a root, not {what.kind}")
    n = max(len(group) for group in what.groups)
    if n == 1:
        return Fraction(0)
    apart = np.where(needs_of(what) > 0, latency_distances(topology), -1.0)
    u, v = np.unravel_index(int(apart.argmax()), apart.shape)
    diameter = exact_latency(topology, int(u), int(v))
    return size * what.busbw_factor() / _slowest_rank(topology) + diameter


def _slowest_rank(topology: Topology) -> Fraction:
    into = [Fraction(0)] * topology.num_vertices
    out = [Fraction(0)] * topology.num_vertices
    for u, v, bandwidth in zip(topology.src, topology.dst, topology.exact_bandwidth, strict=True):
        out[u] += bandwidth
        into[v] += bandwidth
    return min(min(into[: topology.num_ranks]), min(out[: topology.num_ranks]))
