"""What no schedule can beat, and which rank or pair of ranks it comes from.

Every bound holds for both link models and for any number of chunks. ``ideal`` is not one: it is
the TACOS paper's yardstick, kept under its name.

A schedule gives contributions to a sum away and copies the sum (``jaxcoll.verifier``). Recursive
doubling, which copies partial sums, is none: it takes less latency for more bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.cut_traffic import rests
from jaxcoll.bounds.distances import transport_bound
from jaxcoll.bounds.throughput import bottleneck
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.paths import exact_latency, hop_distances, latency_distances
from jaxcoll.topology import Topology, connected

# Ways of parting a network that the traffic bound looks at; most have fewer bandwidths.
_MOST_WAYS = 8


@dataclasses.dataclass(frozen=True)
class Bound:
    """A time that no schedule can beat.

    Attributes:
        time: seconds.
        name: "distance", "ingress", "egress", "traffic" or "cut".
        reason: which rank or pair of ranks it comes from, in words.
    """

    time: float
    name: str
    reason: str


def bound(topology: Topology, collective: str | Collective, nbytes: Number) -> Bound:
    """The largest of ``bounds``.

    Args:
        collective: a kind, or a collective.
        nbytes: bytes of a rank's buffer, above 0.
    """
    return max(lower_bounds(topology, collective, nbytes), key=lambda b: b.time)


def lower_bounds(
    topology: Topology, collective: str | Collective, nbytes: Number
) -> tuple[Bound, ...]:
    """Every fast bound: distance, ingress, egress and, for all_reduce, traffic.

    Traffic bounds all_to_all, gather and scatter, too: there every rank needs data of its own, and
    bytes times distance have to fit the links (``jaxcoll.bounds.distances.transport_bound``).
    """
    what = _collective(topology, collective)
    size = _size(nbytes)
    forward = latency_distances(topology)
    found = (
        distance_bound(topology, what, forward),
        _flow_bound(topology, what, size, forward, "ingress"),
        _flow_bound(topology.transpose(), what.dual(), size, forward.T, "egress"),
    )
    known = max(b.time for b in found)
    if what.kind == "all_reduce":
        return *found, _traffic_bound(topology, what, size, known)
    if what.kind in ("all_to_all", "gather", "scatter"):
        return *found, _transport_bound(topology, what, size, known)
    return found


def _transport_bound(topology: Topology, what: Collective, size: Fraction, known: float) -> Bound:
    """The data from rank to rank, times the distance, over the bandwidth of all links together."""
    rest = np.minimum(_latency_to_a_rank(topology), known)
    found = transport_bound(topology, _needs(what) * float(size), rest)
    reason = f"bytes times distance, in {found.lengths}, over what all links carry together"
    return Bound(found.time, "traffic", reason)


def distance_bound(
    topology: Topology, collective: str | Collective, distances: np.ndarray | None = None
) -> Bound:
    """The largest latency between a rank that has data and one that needs it.

    In an all_reduce what is summed meets in one rank, and the sum is copied from there: the least
    latency, over all ranks, from the farthest to it and from it to the farthest.
    """
    what = _collective(topology, collective)
    distances = latency_distances(topology) if distances is None else distances
    if what.kind == "all_reduce":
        return _meeting_bound(what, distances)
    far = np.where(_needs(what) > 0, distances, -1.0)
    u, v = np.unravel_index(int(far.argmax()), far.shape)
    if far[u, v] < 0:
        return Bound(0.0, "distance", "no rank needs anything from another")
    return Bound(float(far[u, v]), "distance", f"from rank {u} to rank {v}")


def _meeting_bound(what: Collective, distances: np.ndarray) -> Bound:
    found = [Bound(0.0, "distance", "no rank needs anything from another")]
    for group in what.groups:
        if len(group) > 1:
            members = list(group)
            to, back = distances[members].max(axis=0), distances[:, members].max(axis=1)
            place = int((to + back).argmin())
            u = group[int(distances[members, place].argmax())]
            v = group[int(distances[place, members].argmax())]
            reason = f"from rank {u} to rank {place}, where sums may meet, and on to rank {v}"
            found.append(Bound(float((to + back)[place]), "distance", reason))
    return max(found, key=lambda b: b.time)


def _flow_bound(
    topology: Topology, what: Collective, size: Fraction, distances: np.ndarray, name: str
) -> Bound:
    """The data a rank needs from beyond a distance, through all its links, after that distance.

    Data of ranks at least d away arrives after d, and then no faster than the links into the rank
    together. With d the least latency of a link in, this is the plain ingress bound.
    """
    amount = _needs(what) * float(size)
    entering = topology.in_bandwidth()[: topology.num_ranks]
    best, where = 0.0, (0, 0.0)
    for v in range(topology.num_ranks):
        needed = np.flatnonzero(amount[:, v] > 0)
        if not needed.size:
            continue
        order = needed[np.argsort(-distances[needed, v], kind="stable")]
        if what.is_reducing:
            # Contributions are summed on the way: one shard's worth suffices, from the farthest.
            times = distances[order[:1], v] + amount[order[0], v] / entering[v]
        else:
            times = distances[order, v] + np.cumsum(amount[order, v]) / entering[v]
        i = int(times.argmax())
        if times[i] > best:
            best, where = float(times[i]), (v, float(distances[order[i], v]))
    verb, way = ("receive", "into") if name == "ingress" else ("send", "out of")
    reason = f"what rank {where[0]} must {verb}, over all links {way} it"
    return Bound(best, name, f"{reason}, at least {where[1] * 1e6:g} us away" if best else reason)


def cut_bound(topology: Topology, collective: str | Collective, nbytes: Number) -> Bound:
    """What must leave the worst set of vertices, over all links out of it (ForestColl, Sec. 4.4).

    Latency aside, the exact optimum of all_gather, reduce_scatter, broadcast and reduce on every
    network that ForestColl is defined for. It takes a flow to each rank, often several times,
    which is why ``bounds`` leaves it out.

    Raises:
        CollectiveError: the collective is not of all ranks together, or is one of gather, scatter
            and all_to_all.
    """
    what, size = _collective(topology, collective), _size(nbytes)
    n = topology.num_ranks
    group, *others = what.groups
    if others or len(group) < n:
        raise CollectiveError("cuts are bounds for one group of all ranks")
    if n == 1:
        return Bound(0.0, "cut", "no rank needs anything from another")
    if what.kind in ("all_gather", "reduce_scatter"):
        weights, share = None, size / n
    elif what.kind in ("broadcast", "reduce", "all_reduce"):
        root = group[what.root or 0]
        weights, share = [int(r == root) for r in range(n)], size
    else:
        raise CollectiveError(f"cuts bound no {what.kind}")
    # Gathered data leaves a cut; summed data enters it; an all_reduce does both.
    found = []
    if what.kind not in ("reduce_scatter", "reduce"):
        found.append(("leave", "out of", bottleneck(topology, weights)))
    if what.is_reducing:
        found.append(("enter", "into", bottleneck(topology.transpose(), weights)))
    verb, way, worst = max(found, key=lambda case: case[2].inverse)
    ranks = ", ".join(map(str, worst.cut_ranks[:8])) + (", ..." if worst.cut_ranks[8:] else "")
    reason = f"what must {verb} a cut around ranks {ranks}, over all links {way} it"
    return Bound(float(share * worst.inverse), "cut", reason)


def _traffic_bound(topology: Topology, what: Collective, size: Fraction, known: float) -> Bound:
    """An all_reduce takes every byte at least 2(p-1) times from part to part of p parts of a group.

    Parts for single ranks, this is Patarasuk and Yuan's bound (2009), whose proof counts the sums
    and copies that each byte needs, and also holds for ranks taken together. The last data to leave
    a part still has to arrive, and if only one group sums, to spread in the part; the first data to
    leave has to be summed before (``jaxcoll.bounds.cut_traffic``).
    """
    together = [np.asarray(group) for group in what.groups if len(group) > 1]
    best = Bound(0.0, "traffic", "no rank needs anything from another")
    for part in _parts(topology):
        ranks = part[: topology.num_ranks]
        hops = sum(2 * (len(np.unique(ranks[list(group)])) - 1) for group in what.groups)
        if not hops:
            continue
        leaves = (part[topology.src] != part[topology.dst]) & np.isin(part[topology.src], ranks)
        if len(together) == 1 and len(np.unique(ranks)) < len(ranks):
            rest = rests(topology, together[0], part, leaves, known)
        else:
            rest = np.minimum(_latency_to_a_rank(topology)[leaves], known)
        bandwidth = topology.bandwidth[leaves]
        time = float((float(hops * size) + (bandwidth * rest).sum()) / bandwidth.sum())
        if time > best.time:
            count = len(np.unique(ranks))
            whole = "ranks" if count == topology.num_ranks else f"{count} parts of the network"
            reason = f"each byte crosses {hops} links out of {whole}, over all of them together"
            best = Bound(time, "traffic", reason)
    return best


def _parts(topology: Topology) -> Iterator[np.ndarray]:
    """The part of each vertex, in several ways: what links above some bandwidth hold together.

    At least every vertex alone, and as many ways as there are bandwidths, up to ``_MOST_WAYS``.
    """
    speeds = np.unique(topology.bandwidth)
    shape = (topology.num_vertices,) * 2
    most = -(-len(speeds) // _MOST_WAYS)
    for least in speeds[::-1][:: max(most, 1)]:
        fast = topology.bandwidth > least
        ends = topology.src[fast], topology.dst[fast]
        graph = sp.csr_matrix((np.ones(len(ends[0]), np.int8), ends), shape=shape)
        yield sp.csgraph.connected_components(graph, directed=False)[1]


def _latency_to_a_rank(topology: Topology) -> np.ndarray:
    """Latency of each link and, where it ends at a switch, of the fastest link on from there."""
    onward = np.full(topology.num_vertices, np.inf)
    np.minimum.at(onward, topology.src, topology.alpha)
    onward[: topology.num_ranks] = 0.0
    return topology.alpha + onward[topology.dst]


def _needs(what: Collective) -> np.ndarray:
    """Share of a buffer that goes from rank u to rank v, float64 of shape (ranks, ranks).

    For reducing kinds: the share of v's result that u contributes to.
    """
    n = what.num_ranks
    share = np.zeros((n, n))
    for group in what.groups:
        members = np.asarray(group)
        if what.kind == "all_reduce":
            share[np.ix_(members, members)] = 1.0
        elif what.kind in ("all_gather", "all_to_all", "reduce_scatter"):
            share[np.ix_(members, members)] = 1.0 / len(members)
        elif what.kind in ("gather", "scatter", "broadcast", "reduce"):
            root = members[what.root or 0]
            part = 1.0 if what.kind in ("broadcast", "reduce") else 1.0 / len(members)
            if what.kind in ("gather", "reduce"):
                share[members, root] = part
            else:
                share[root, members] = part
    np.fill_diagonal(share, 0.0)
    return share


# ---------------------------------------------------------------------- steps


def step_bound(topology: Topology, collective: str | Collective) -> int:
    """Steps that no schedule with one chunk per link and step can beat, on a direct network.

    For every rank v and distance t: the chunks v wants from ranks at least t links away arrive in
    step t at the earliest and then at most one per link into v and step.

    Raises:
        TopologyError: the network has switches.
        CollectiveError: the collective sums; its dual needs as many steps on the transposed network
            (twice an all_gather's for all_reduce run as two phases).
    """
    what = _collective(topology, collective)
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


# ---------------------------------------------------------------------- the paper's yardstick


def ideal(topology: Topology, collective: str | Collective, nbytes: Number) -> Fraction:
    """The TACOS paper's Ideal (Sec. V-A), a heuristic and not a bound, in seconds, exact.

    Bytes that enter and leave a rank over the bandwidth of the slowest rank, plus the latency
    between the farthest two ranks: size x (n-1)/n / min BW + diameter, with 2(n-1)/n for
    all_reduce. A schedule can be slower than it (all_reduce pays the diameter twice) and, where
    the farthest ranks are not the slowest, faster.
    """
    what = _collective(topology, collective)
    size = _size(nbytes)
    if what.kind not in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        raise CollectiveError(f"Ideal is defined for collectives without a root, not {what.kind}")
    n = max(len(group) for group in what.groups)
    if n == 1:
        return Fraction(0)
    apart = np.where(_needs(what) > 0, latency_distances(topology), -1.0)
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


def _collective(topology: Topology, collective: str | Collective) -> Collective:
    connected(topology)
    checks.instance(collective, (str, Collective), "collective", CollectiveError)
    if isinstance(collective, str):
        return Collective(collective, topology.num_ranks)
    if collective.num_ranks != topology.num_ranks:
        raise CollectiveError(
            f"the collective is for {collective.num_ranks} ranks, {topology} has "
            f"{topology.num_ranks}"
        )
    return collective.with_equal_shards("a bound")


def _size(nbytes: Number) -> Fraction:
    return as_fraction(checks.positive(nbytes, "nbytes", CollectiveError))
