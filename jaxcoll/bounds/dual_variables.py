"""Exact proofs for the all_reduce program (App. B.7): a bound from prices, trees from capacities.

Every number here is a ``Fraction``: whatever a solver's floats were, what comes out is true.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.numerics.rational import common_denominator
from jaxcoll.topology import Topology

Arc = tuple[int, int]
Numbers = Sequence[Fraction]


@dataclasses.dataclass(frozen=True)
class Prices:
    """A solution of the dual program, or nearly: at least 0, otherwise anything.

    Attributes:
        arcs: pairs of ranks that have capacity from one to the other.
        copies: for each rank t, what it counts for as a receiver, and lengths of the arcs towards
            it.
        sums: for each rank t, what it counts for as a sender, and lengths of the arcs from it.
        links: of the links, where switches stand between the ranks.
    """

    arcs: tuple[Arc, ...]
    copies: tuple[tuple[Fraction, Numbers], ...]
    sums: tuple[tuple[Fraction, Numbers], ...]
    links: Numbers


def proved_rate(topology: Topology, prices: Prices) -> Fraction | None:
    """Bytes a second that no all_reduce beats; None if the prices prove nothing.

    Take an all_reduce of x_v bytes a second at the roots v. Towards each rank t flows all of x,
    each byte from v over a length of at least dist_t(v); and so from each rank t. What flows on an
    arc is no more than its capacity for copies, or for sums, so that

        sum_v x_v sum_t (min(worth_t, dist_t(v)) + the same of sums)  <=  sum_arcs capacity x price

    with the larger of an arc's lengths over all t, of copies and of sums, as its price. Capacity
    between ranks that runs through switches costs at least the shortest way by prices of links.
    """
    n = topology.num_ranks
    gains = [Fraction(0)] * n
    for ways, reverse in ((prices.copies, True), (prices.sums, False)):
        for t, (worth, lengths) in enumerate(ways):
            apart = _distances(n, prices.arcs, lengths, t, reverse)
            for v in range(n):
                gains[v] += min(worth, apart[v])
    price = [
        max(sum(column, Fraction(0)) for column in (sums, copies))
        for sums, copies in zip(
            zip(*(lengths for _, lengths in prices.sums), strict=True),
            zip(*(lengths for _, lengths in prices.copies), strict=True),
            strict=True,
        )
    ]
    paid = _cost(topology, prices, price)
    return None if paid is None or min(gains) <= 0 else paid / min(gains)


def _cost(topology: Topology, prices: Prices, price: Numbers) -> Fraction | None:
    """What all capacity there is costs, at prices of links that make each arc dear enough."""
    if topology.is_direct:
        return sum(
            (b * p for b, p in zip(topology.exact_bandwidth, price, strict=True)), Fraction()
        )
    ends = tuple(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    short = Fraction(0)
    for u in range(topology.num_ranks):
        apart = _distances(topology.num_vertices, ends, prices.links, u, False)
        for (a, b), asked in zip(prices.arcs, price, strict=True):
            if a == u and asked:
                if not apart[b]:
                    return None  # prices of links say that it costs nothing
                short = max(short, asked / apart[b])
    pairs = zip(topology.exact_bandwidth, prices.links, strict=True)
    return short * sum((b * p for b, p in pairs), Fraction(0))


def _distances(
    count: int, arcs: Sequence[Arc], lengths: Numbers, start: int, reverse: bool
) -> dict[int, Fraction]:
    """Shortest ways from ``start``, or to it, by vertex."""
    near: list[list[tuple[int, Fraction]]] = [[] for _ in range(count)]
    for (u, v), length in zip(arcs, lengths, strict=True):
        near[v if reverse else u].append((u if reverse else v, length))
    apart: dict[int, Fraction] = {}
    waiting = [(Fraction(0), start)]
    while waiting:
        far, u = heapq.heappop(waiting)
        if u not in apart:
            apart[u] = far
            for v, length in near[u]:
                heapq.heappush(waiting, (far + length, v))
    return apart


def reached_rate(n: int, arcs: Sequence[Arc], capacity: Numbers, roots: Numbers) -> Fraction:
    """The largest rate r for which trees of bandwidth r x roots[v] in all from each rank v fit.

    They do as long as no cut is too narrow (Edmonds, 1973). Newton's method on cuts, as in
    ``jaxcoll.bounds.throughput``; 0 if some rank is cut off from a root.
    """
    scale = common_denominator([*capacity, *roots])
    room, weight = ([int(x * scale) for x in column] for column in (capacity, roots))
    src = np.asarray([*(u for u, _ in arcs), *[n] * n])
    network = FlowNetwork(n + 1, src, np.asarray([*(v for _, v in arcs), *range(n)]))
    rate = Fraction(sum(room) + 1)
    while rate:
        need = sum(weight) * rate.numerator
        held = [c * rate.denominator for c in room] + [w * rate.numerator for w in weight]
        short = network.first_short(held, n, range(n), need)
        if short is None:
            break
        inside = short.source_side
        leaving = sum(c for (u, v), c in zip(arcs, room, strict=True) if inside[u] > inside[v])
        rate = Fraction(leaving, sum(itertools.compress(weight, inside)))
    return rate


def is_routable(
    topology: Topology,
    arcs: Sequence[Arc],
    capacity: Numbers,
    flows: Sequence[Numbers],
    unit: Fraction,
) -> bool:
    """Whether flows through the switches make up the capacities between ranks, and fit the links.

    Args:
        flows: for each rank, what of its capacity runs over each link.
        unit: bytes a second of capacities and flows.
    """
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    load = [Fraction(0)] * topology.num_links
    wanted = [[Fraction(0)] * topology.num_vertices for _ in range(topology.num_ranks)]
    for (u, v), amount in zip(arcs, capacity, strict=True):
        wanted[u][v] += amount
        wanted[u][u] -= amount
    for flow, net in zip(flows, wanted, strict=True):
        for link, ((u, v), amount) in enumerate(zip(ends, flow, strict=True)):
            load[link] += amount
            net[v] -= amount
            net[u] += amount
    fits = all(x * unit <= b for x, b in zip(load, topology.exact_bandwidth, strict=True))
    return fits and not any(x for net in wanted for x in net)
