"""Throughput bottleneck cuts: the exact best rate to gather, and the cut that proves it.

Source: ForestColl (dissertation, Sec. 4.4 and 4.5.2; App. B.5.1 and B.5.4). To gather shards of
sizes w, a set S of vertices that lacks some rank must let out at least w(S). So no schedule beats
the largest w(S) / B(S), where B(S) is the bandwidth of the links that leave S; trees attain it
(Theorem 25).

For example, on three ranks in a line, 0 - 1 - 2, with links of 1 B/s each way, {0, 1} must let out
two shards over one link: a byte of shard takes 2 s, and no other set gives a higher bound. Every
link then has room for two trees of half a byte per second: 1 -> 2 carries those that are rooted at
0 and 1.

There are too many cuts to examine, but a maximum flow examines all cuts around one rank at once: an
added source s gives every rank its weight, and the flow from s to a rank is less than the sum of
all weights if some cut around the rank is overwhelmed (Theorem 23). That cut is the side of s in a
minimum cut.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.max_flow import FlowNetwork, Shortfall
from jaxcoll.numerics.rational import Number, as_fraction, coprime
from jaxcoll.topology import Topology, connected


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The capacity of a network in whole trees of one common bandwidth.

    Attributes:
        k: trees per rank (of weight 1, if ranks have unequal weights).
        U: 1 / bandwidth of a tree, in seconds per byte.
        capacity: number of trees that each link can carry, at most U x its bandwidth.
        trees: number of trees with each rank as root.
    """

    k: int
    U: Fraction
    capacity: tuple[int, ...]
    trees: tuple[int, ...]

    @property
    def y(self) -> Fraction:
        """Bandwidth of one tree, in bytes per second."""
        return 1 / self.U

    @property
    def inverse(self) -> Fraction:
        """Seconds per byte of shard with all trees together, U / k."""
        return self.U / self.k


@dataclasses.dataclass(frozen=True, repr=False)
class Optimum:
    """The least time of any schedule to gather, with the cut that proves it.

    Attributes:
        inverse: 1/x*, seconds per byte of shard: shards of s bytes (weight x s bytes, with weights)
            take at least ``s * inverse`` seconds to gather, apart from latency.
        weights: size of each rank's shard, coprime integers.
        cut: the vertices of a bottleneck cut.
        cut_ranks: the ranks among them.
        cut_weight: the sum of their weights.
        cut_bandwidth: bytes per second of the links that leave the cut.
        scaling: k, U and y of the fewest trees that attain it.
    """

    inverse: Fraction
    weights: tuple[int, ...]
    cut: frozenset[int]
    cut_ranks: tuple[int, ...]
    cut_weight: int
    cut_bandwidth: Fraction
    scaling: Scaling

    @property
    def k(self) -> int:
        """Trees per rank (of weight 1) that an optimal schedule needs."""
        return self.scaling.k

    @property
    def U(self) -> Fraction:
        """1 / bandwidth of a tree, in seconds per byte."""
        return self.scaling.U

    @property
    def y(self) -> Fraction:
        """Bandwidth of one tree, in bytes per second."""
        return self.scaling.y

    @property
    def algbw(self) -> Fraction:
        """Bytes of the gathered result per second, W / (1/x*); W is the sum of the weights."""
        return sum(self.weights) / self.inverse

    def check(self, topology: Topology) -> None:
        """Recount the certificate from the links alone: no schedule is faster than ``inverse``.

        Raises:
            TopologyError: the cut holds every rank, or its numbers are not the network's.
        """
        checks.instance(topology, Topology, "topology", TopologyError)
        ranks = tuple(sorted(v for v in self.cut if v < topology.num_ranks))
        ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        out = [u in self.cut and v not in self.cut for u, v in ends]
        leaving = sum(itertools.compress(topology.exact_bandwidth, out), Fraction(0))
        weight = sum(self.weights[r] for r in ranks)
        found = (ranks, weight, leaving, len(ranks) < topology.num_ranks)
        if found != (self.cut_ranks, self.cut_weight, self.cut_bandwidth, True):
            raise TopologyError(f"the certificate does not belong to {topology}: {self}")
        if Fraction(weight) / leaving != self.inverse:
            raise TopologyError(
                f"the cut's weight {weight} over its {leaving} B/s is not the stated {self.inverse}"
            )

    def __repr__(self) -> str:
        return (
            f"Optimum({len(self.weights)} ranks, algbw {float(self.algbw) / 1e9:.6g} GB/s, "
            f"k {self.k}, cut of {len(self.cut_ranks)} ranks)"
        )

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.cut_ranks[:8])) + (", ..." if self.cut_ranks[8:] else "")
        return (
            f"1/x* = {self.inverse} s/B (algbw {float(self.algbw) / 1e9:.6g} GB/s) with {self.k} "
            f"trees per rank: {len(self.cut_ranks)} ranks ({ranks}) of weight {self.cut_weight} "
            f"behind links of {float(self.cut_bandwidth) / 1e9:.6g} GB/s"
        )


class _Gathering:
    """Shards to gather on a network, both in integers, and the search for cuts.

    Attributes:
        topology: the network.
        weights: size of each rank's shard, coprime integers.
        links, unit: bandwidths as coprime integers, and their unit in bytes per second.
    """

    def __init__(self, topology: Topology, weights: tuple[int, ...]) -> None:
        self.topology, self.weights = topology, weights
        self.links, self.unit = coprime(topology.exact_bandwidth)

    @functools.cached_property
    def network(self) -> FlowNetwork:
        """The links, then an arc to each rank from an added vertex (s in the paper)."""
        topology, n = self.topology, self.topology.num_ranks
        src = np.concatenate([topology.src, np.full(n, topology.num_vertices)])
        dst = np.concatenate([topology.dst, np.arange(n)])
        return FlowNetwork(topology.num_vertices + 1, src, dst)

    def short_of(self, capacity: list[int], times: int, targets: Iterable[int]) -> Shortfall | None:
        """The first target that cannot get ``times`` all weights at once from s."""
        supply = [w * times for w in self.weights]
        source, need = self.topology.num_vertices, sum(supply)
        return self.network.first_short(capacity + supply, source, targets, need)

    def cut(self, short: Shortfall) -> frozenset[int]:
        """The vertices on the source's side, without the source."""
        return frozenset(np.flatnonzero(short.source_side[:-1]).tolist())

    def weight(self, cut: frozenset[int]) -> int:
        """Weight of the ranks in a cut, w(S)."""
        return sum(w for r, w in enumerate(self.weights) if r in cut)

    def leaving(self, cut: frozenset[int]) -> list[int]:
        """Bandwidths of the links that leave a cut, B(S) together."""
        ends = zip(self.topology.src.tolist(), self.topology.dst.tolist(), self.links, strict=True)
        return [b for u, v, b in ends if u in cut and v not in cut]

    def entering(self) -> list[int]:
        """Bandwidth into each vertex, out of all others together."""
        into = [0] * self.topology.num_vertices
        for v, b in zip(self.topology.dst.tolist(), self.links, strict=True):
            into[v] += b
        return into

    def rate(self, cut: frozenset[int]) -> Fraction:
        """The rate at which a cut is full: B(S) / w(S)."""
        return Fraction(sum(self.leaving(cut)), self.weight(cut))


# All numbers of trees that are tried on a network share its arcs.
_gathering = functools.lru_cache(maxsize=2)(_Gathering)


def optimum(topology: Topology, weights: Sequence[Number] | None = None) -> Optimum:
    """The exact throughput optimum of gathering on a network (Algorithm 1), which trees attain.

    Args:
        weights: size of each rank's shard relative to the others, at least 0 and not all 0; equal
            shards when omitted. A single 1 among zeros is a broadcast.

    Raises:
        TopologyError: there are fewer than two ranks, weights are bad, or the network has switches
            and a vertex has different bandwidths in and out (see ``balanced``).
    """
    connected(topology)
    check_balanced(topology)
    return bottleneck(topology, weights)


def bottleneck(
    topology: Topology,
    weights: Sequence[Number] | None = None,
    targets: Sequence[int] | None = None,
) -> Optimum:
    """As ``optimum``, for any network; with unbalanced switches the bound may not be attained.

    Args:
        targets: ranks that gather, at least one of them without all of the weight; all ranks when
            omitted. With fewer, the cut is the narrowest of those that separate some target from
            weight.
    """
    whole = whole_weights(topology, weights)
    return narrowest(_gathering(topology, whole), None if targets is None else sorted(targets))


def narrowest(gathering: _Gathering, targets: Sequence[int] | None = None) -> Optimum:
    """The cut that limits gathering most (Algorithm 1), and its rate.

    The paper's binary search over 1/x is replaced by Newton's method on cuts: every cut that a
    rate overwhelms (Theorem 23) names the next, lower rate, until none is left.
    """
    topology, whole = gathering.topology, gathering.weights
    n, total = topology.num_ranks, sum(whole)
    ranks = range(n) if targets is None else targets
    # The search starts with the cuts of all vertices but one rank, as Algorithm 1 does ("a lower
    # bound of 1/x*"). It often ends there, since a rank behind few links is the usual bottleneck.
    alone = [r for r in ranks if whole[r] < total]
    # Only the narrowest of these cuts is made: those of all 4,096 ranks have 20 million vertices.
    into = gathering.entering()
    last = min(alone, key=lambda r: Fraction(into[r], total - whole[r]))
    cut = frozenset(range(topology.num_vertices)) - {last}
    while True:
        rate = gathering.rate(cut)
        # Capacities are integers, multiplied by the rate's denominator: with large integer
        # bandwidths, a search over floats would silently end at a wrong cut.
        capacity = [b * rate.denominator for b in gathering.links]
        # "the maxflow from s to each c is N x". Targets start from the last short one, since those
        # before it were not short at a higher rate.
        turn = sorted(ranks, key=lambda target: (target < last, target))
        short = gathering.short_of(capacity, rate.numerator, turn)
        if short is None:
            break
        # The source's side of a minimum cut before a short target lets out less than its weight
        # at this rate, so its own rate is lower: no cut comes twice.
        last = short.target
        cut = gathering.cut(short)
    found = 1 / (rate * gathering.unit)
    return Optimum(
        inverse=found,
        weights=whole,
        cut=cut,
        cut_ranks=tuple(sorted(v for v in cut if v < n)),
        cut_weight=gathering.weight(cut),
        cut_bandwidth=sum(gathering.leaving(cut)) * gathering.unit,
        scaling=_fewest_trees(found, gathering),
    )


def fixed_k(
    topology: Topology,
    k: int,
    weights: Sequence[Number] | None = None,
    *,
    best: Optimum | None = None,
) -> Scaling:
    """The exact best rate of gathering with k trees per rank (Algorithm 5, Theorem 34).

    This is Newton's method on cuts, too: a cut S that lets out fewer than k w(S) trees at a scale U
    names the least scale that S allows, which is the next. The result is at most 1/(k min b) above
    the optimum in seconds per byte (Theorem 35).

    Links rounded to whole trees may be unbalanced, unless they come in pairs, one each way. With
    switches they are then trimmed, and U is raised until the rest suffices: a sound scale, but not
    always the least.

    Args:
        k: trees per rank (of weight 1), at least 1.
        best: the optimum of the network and weights, if it is known.

    Raises:
        TopologyError: as for ``optimum``, or k is less than 1.
    """
    k = checks.integer(k, "k", TopologyError, least=1)
    best = optimum(topology, weights) if best is None else best
    checks.instance(best, Optimum, "best", TopologyError)
    return scaled_to(best, topology, k)


def scaled_to(best: Optimum, topology: Topology, k: int) -> Scaling:
    """``fixed_k`` for checked arguments and a known optimum."""
    gathering = _gathering(topology, best.weights)
    n, last = topology.num_ranks, 0

    def short_of(capacity: list[int]) -> Shortfall | None:
        return gathering.short_of(capacity, k, itertools.chain(range(last, n), range(last)))

    # The search starts from the optimum's cut: Algorithm 5's "lower bound of 1/y*" uses single
    # ranks only.
    cut = best.cut
    while True:
        # The least scale that one more cut allows; scales only grow, so this ends at the least
        # that all cuts allow, without a search among the candidates U = j / b of Algorithm 5.
        scale = least_scale(Counter(gathering.leaving(cut)), k * gathering.weight(cut))
        # "Adjust the capacity of e to floor(b_e / y)": a part of a tree is useless.
        capacity = [math.floor(b * scale) for b in gathering.links]
        short = short_of(capacity)
        if short is None:
            break
        last, cut = short.target, gathering.cut(short)
    if not topology.is_direct and any(_surplus(topology, capacity)):
        # Multiples of the optimum's own scale are balanced and suffice.
        limit = best.U * gathering.unit * math.ceil(Fraction(k, best.k))
        while True:
            capacity = _trimmed(topology, capacity)
            if short_of(capacity) is None:
                break
            scale = min(scale * Fraction(9, 8), limit)
            capacity = [math.floor(b * scale) for b in gathering.links]
    trees = tuple(k * w for w in best.weights)
    return Scaling(k, scale / gathering.unit, tuple(capacity), trees)


def fastest(topology: Topology, best: Optimum, numbers: Iterable[int]) -> Scaling:
    """The scaling of the fastest of some numbers of trees per rank, the least of equals."""
    scalings = (known_scaling(topology, best, k) for k in numbers)
    return min(scalings, key=lambda scaling: (scaling.inverse, scaling.k))


# Every number of chunks asks about the same network.


@functools.lru_cache(maxsize=16)
def known_optimum(topology: Topology, weights: tuple[int, ...] | None) -> Optimum:
    """``optimum`` of a connected network, computed once for consecutive calls.

    Args:
        weights: integers, at least 0 and not all 0; equal when None.
    """
    _check_several(topology)
    check_balanced(topology)
    weights = (1,) * topology.num_ranks if weights is None else weights
    common = math.gcd(*weights)
    return narrowest(_gathering(topology, tuple(w // common for w in weights)))


@functools.lru_cache(maxsize=128)
def known_scaling(topology: Topology, best: Optimum, k: int) -> Scaling:
    """``scaled_to``, computed once for consecutive calls."""
    return scaled_to(best, topology, k)


def check_balanced(topology: Topology) -> None:
    """Refuse switches in a network that is not Eulerian.

    Without switches, trees attain the optimum on any network (Theorem 29). With switches that do
    not branch, every vertex must have equal bandwidth in and out (Theorem 26).

    Raises:
        TopologyError: the bandwidths in and out of a vertex differ; the text names the first one.
    """
    if topology.is_direct:
        return
    for v, surplus in enumerate(_surplus(topology, topology.exact_bandwidth)):
        if surplus:
            kind = "rank" if v < topology.num_ranks else "switch"
            name = f" ({topology.vertex_names[v]})" if topology.vertex_names else ""
            more = "enters" if surplus > 0 else "leaves"
            raise TopologyError(
                f"{kind} {v}{name} must have equal bandwidth in and out, as every vertex of a "
                f"network with switches, but {abs(surplus)} B/s more {more} it; "
                "balanced(topology) trims links"
            )


def balanced(topology: Topology) -> Topology:
    """The network with links trimmed until every vertex has equal bandwidth in and out.

    The trimmed bandwidth is a flow from the vertices with excess bandwidth out to those with excess
    bandwidth in, along shortest ways first. Links trimmed to nothing are dropped.

    Raises:
        TopologyError: ranks can no longer reach each other.
    """
    connected(topology)
    links, unit = coprime(topology.exact_bandwidth)
    left = _trimmed(topology, links)
    keep = [e for e, b in enumerate(left) if b]
    return Topology(
        topology.num_ranks,
        topology.src[keep],
        topology.dst[keep],
        topology.alpha[keep],
        [left[e] * unit for e in keep],  # type: ignore[arg-type]
        num_vertices=topology.num_vertices,
        name=f"{topology.name} balanced" if topology.name else "",
        vertex_names=topology.vertex_names,
        in_network=topology.in_network,
    )


def _trimmed(topology: Topology, amounts: Sequence[int]) -> list[int]:
    """Amounts of the links, lowered until equal amounts enter and leave every vertex."""
    surplus, count = _surplus(topology, amounts), topology.num_vertices
    # Source and sink of the flow that is removed: it leads from vertices that let out too much to
    # those that take in too much.
    ends = (count, count + 1)
    uneven = [v for v in range(count) if surplus[v]]
    src = [*topology.src.tolist(), *(ends[0] if surplus[v] < 0 else v for v in uneven)]
    dst = [*topology.dst.tolist(), *(v if surplus[v] < 0 else ends[1] for v in uneven)]
    network = FlowNetwork(count + 2, np.asarray(src), np.asarray(dst))
    taken = network.carried([*amounts, *(abs(surplus[v]) for v in uneven)], *ends)
    return [b - t for b, t in zip(amounts, taken, strict=False)]


def _check_several(topology: Topology) -> None:
    if topology.num_ranks < 2:
        raise TopologyError(f"with {topology.num_ranks} rank there is nothing to gather")


def whole_weights(topology: Topology, weights: Sequence[Number] | None) -> tuple[int, ...]:
    """Shard sizes as coprime integers."""
    _check_several(topology)
    n = topology.num_ranks
    try:
        given = [1] * n if weights is None else weights
        exact = [as_fraction(w) for w in checks.members(given, "weights", TopologyError)]
    except (TypeError, ValueError) as error:
        raise TopologyError(f"weights: {error}") from None
    if len(exact) != n or min(exact) < 0 or not any(exact):
        raise TopologyError(
            f"weights need one number for each of {n} ranks, at least 0 and not all 0, "
            f"got {checks.shown(weights)}"
        )
    return tuple(coprime(exact)[0])


def _surplus(topology: Topology, bandwidth: Sequence) -> list:
    """The bandwidth into each vertex less that out of it."""
    surplus = [0] * topology.num_vertices
    for u, v, b in zip(topology.src.tolist(), topology.dst.tolist(), bandwidth, strict=True):
        surplus[u] -= b
        surplus[v] += b
    return surplus


def _fewest_trees(inverse: Fraction, gathering: _Gathering) -> Scaling:
    """The least k and U with U/k = 1/x* and U b whole for all links (App. B.5.1)."""
    # U b must be an integer for every b, so U is a multiple of 1/gcd(b); and U = k inverse for an
    # integer k. The least such number is the numerator over the gcd of all b and the denominator.
    scaled = inverse * gathering.unit
    common = math.gcd(scaled.denominator, *set(gathering.links))
    U = Fraction(scaled.numerator, common)
    k = int(U / scaled)
    capacity = tuple(int(U * b) for b in gathering.links)
    trees = tuple(k * w for w in gathering.weights)
    return Scaling(k, U / gathering.unit, capacity, trees)


def least_scale(bandwidths: Counter[Any], trees: int) -> Fraction:
    """The least U for which links of the given bandwidths let out enough whole trees."""

    def enough(scale: Fraction) -> bool:
        return sum(count * math.floor(b * scale) for b, count in bandwidths.items()) >= trees

    best = None
    for b in bandwidths:
        # At the least scale some link carries exactly an integer number j of trees.
        low, high = 0, trees
        while high - low > 1:
            j = (low + high) // 2
            low, high = (low, j) if enough(Fraction(j, b)) else (j, high)
        best = Fraction(high, b) if best is None else min(best, Fraction(high, b))
    if best is None:
        raise TopologyError("a cut without links leaves the ranks beyond it out of reach")
    return best
