"""Exact proofs of bounds on an all_reduce, from any approximate solution of its program (App. B.7).

From below (the time): dual variables prove a rate that nothing beats (``proved_rate``). From above:
capacities of trees between ranks prove a rate that trees reach (``reached_rate``), if flows through
the switches make up these capacities (``is_routable``); ``paths_of_flows`` gives the trees' edges
their paths. All numbers are fractions, and nothing here trusts the solver of ``all_reduce``.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.numerics.rational import common_denominator
from jaxcoll.topology import Topology

Arc = tuple[int, int]
Numbers = Sequence[Fraction]


@dataclasses.dataclass(frozen=True)
class DualVariables:
    """An approximate solution of the dual program, which may be any numbers of at least 0.

    Attributes:
        arcs: pairs of ranks with capacity from the first to the second.
        copies: for each rank t, its weight as a receiver, and lengths of the arcs towards it.
        sums: for each rank t, its weight as a sender, and lengths of the arcs from it.
        links: lengths of the links, if there are switches; empty otherwise.
    """

    arcs: tuple[Arc, ...]
    copies: tuple[tuple[Fraction, Numbers], ...]
    sums: tuple[tuple[Fraction, Numbers], ...]
    links: Numbers


def proved_rate(topology: Topology, dual: DualVariables) -> Fraction | None:
    """Bytes per second that no all_reduce beats; None if the variables prove nothing.

    Take an all_reduce that sums root_v bytes per second at each rank v. All these results flow
    towards each rank t, and a byte from v covers a length of at least dist_t(v). The same holds for
    the contributions of each rank t. An arc carries no more of a flow than its capacity for copies,
    or for sums, so that

        sum_v root_v sum_t (min(weight_t, dist_t(v)) + the same of sums)
            <=  sum_arcs capacity x worth,

    where the worth of an arc is the sum of its lengths over all t, of copies or of sums, whichever
    is larger. Capacity between ranks through switches is worth at least the shortest path by the
    lengths of the links.
    """
    n = topology.num_ranks
    gains = [Fraction(0)] * n
    for sides, reverse in ((dual.copies, True), (dual.sums, False)):
        for t, (most, lengths) in enumerate(sides):
            # A byte from v towards t covers a length of at least dist_t(v). To count less, here at
            # most the weight of t, leaves the inequality true.
            apart = _distances(n, dual.arcs, lengths, t, reverse)
            for v in range(n):
                gains[v] += min(most, apart[v])
    worth = [
        max(sum(column, Fraction(0)) for column in (sums, copies))
        for sums, copies in zip(
            zip(*(lengths for _, lengths in dual.sums), strict=True),
            zip(*(lengths for _, lengths in dual.copies), strict=True),
            strict=True,
        )
    ]
    paid = _cost(topology, dual, worth)
    return None if paid is None or min(gains) <= 0 else paid / min(gains)


def _cost(topology: Topology, dual: DualVariables, worth: Numbers) -> Fraction | None:
    """The worth of all capacity, after links are made long enough for the worth of all arcs."""
    if topology.is_direct:
        return sum(
            (b * p for b, p in zip(topology.exact_bandwidth, worth, strict=True)), Fraction()
        )
    ends = tuple(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    scale = Fraction(0)
    for u in range(topology.num_ranks):
        apart = _distances(topology.num_vertices, ends, dual.links, u, False)
        for (a, b), asked in zip(dual.arcs, worth, strict=True):
            if a == u and asked:
                if not apart[b]:
                    return None  # the links of a whole path have length 0
                scale = max(scale, asked / apart[b])
    pairs = zip(topology.exact_bandwidth, dual.links, strict=True)
    return scale * sum((b * p for b, p in pairs), Fraction(0))


def _distances(
    count: int, arcs: Sequence[Arc], lengths: Numbers, start: int, reverse: bool
) -> dict[int, Fraction]:
    """Exact shortest distances from ``start``, or to it, by Dijkstra's algorithm."""
    near: list[list[tuple[int, Fraction]]] = [[] for _ in range(count)]
    for (u, v), length in zip(arcs, lengths, strict=True):
        tail, head = (v, u) if reverse else (u, v)
        near[tail].append((head, length))
    found: dict[int, Fraction] = {}
    queue = [(Fraction(0), start)]
    while queue:
        reached, u = heapq.heappop(queue)
        if u not in found:
            found[u] = reached
            for v, length in near[u]:
                heapq.heappush(queue, (reached + length, v))
    return found


def reached_rate(n: int, arcs: Sequence[Arc], capacity: Numbers, roots: Numbers) -> Fraction:
    """The largest rate r for which trees of total bandwidth r x roots[v] from each rank v fit.

    They fit if no cut is too narrow (Edmonds, 1973). Newton's method on cuts, as in
    ``jaxcoll.bounds.throughput``; 0 if some rank is cut off from a root.
    """
    scale = common_denominator([*capacity, *roots])
    room, weight = ([int(x * scale) for x in column] for column in (capacity, roots))
    src = np.asarray([*(u for u, _ in arcs), *[n] * n])
    network = FlowNetwork(n + 1, src, np.asarray([*(v for _, v in arcs), *range(n)]))
    # From above: every cut that is too narrow gives a lower rate, and the last one is the largest
    # that all cuts allow.
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
        flows: for each rank, the part of its capacity that runs over each link.
        unit: bytes per second of capacities and flows.
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


def paths_of_flows(
    topology: Topology, arcs: Sequence[Arc], capacity: Numbers, flows: Sequence[Numbers]
) -> Iterator[tuple[int, tuple[int, ...], Fraction]]:
    """Flows through the switches as paths (arc, links, amount) that make up the capacities.

    Args:
        flows: for each rank, the part of its capacity that runs over each link (``is_routable``).
            Circulations among them are left out.
    """
    for rank in range(topology.num_ranks):
        left = list(flows[rank])
        wanted = {v: a for a, (u, v) in enumerate(arcs) if u == rank}
        missing = {v: capacity[a] for v, a in wanted.items() if capacity[a]}
        while missing:
            # Shortest paths come first, so that circulations, which cost nothing in a linear
            # program, are never used.
            path = _path(topology, left, rank, missing)
            end = int(topology.dst[path[-1]])
            amount = min(missing[end], *(left[link] for link in path))
            for link in path:
                left[link] -= amount
            missing[end] -= amount
            if not missing[end]:
                del missing[end]
            yield wanted[end], path, amount


def _path(
    topology: Topology, left: Numbers, start: int, ends: Mapping[int, Fraction]
) -> tuple[int, ...]:
    """Links of a shortest path with remaining flow, from a rank to one that lacks some."""
    near: dict[int, list[int]] = {}
    for link in np.flatnonzero(np.asarray([x > 0 for x in left])).tolist():
        near.setdefault(int(topology.src[link]), []).append(link)
    before: dict[int, int] = {start: -1}
    queue = [start]
    for u in queue:
        for link in near.get(u, []):
            v = int(topology.dst[link])
            if v not in before:
                before[v] = link
                queue.append(v)
    path, v = [], next(v for v in queue if v in ends)
    while v != start:
        path.append(before[v])
        v = int(topology.src[before[v]])
    return tuple(reversed(path))
