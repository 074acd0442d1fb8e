"""The narrowest partition: parts of a network with the least bandwidth for their crossings.

In an all_reduce every byte leaves one of p parts 2(p - 1) times (``all_reduce_times.traffic``), so
no schedule beats

    2 (p - 1) x nbytes / sum over parts of c(part),   c(S) = bandwidth of the links that leave S,

and the partition with the least sum c / (p - 1) gives the best bound. That is the strength of a
graph (Cunningham, "Optimal attack and reinforcement of a network", 1985): it finds hosts whose
links are equally fast inside and outside, which bandwidths alone do not distinguish.

Each rank is in exactly one part. A switch is in the part that it narrows. If its links have unequal
speeds in both directions, it may narrow two parts, and the proof allows that, since a send counts
only on the links out of its rank's own part.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np

from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.numerics.rational import coprime
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """The narrowest partition of a network.

    Attributes:
        part: part of each vertex, 0 to p - 1, int64 of shape (vertices,). A switch that narrows no
            part has a number of its own from p on.
        rate: the bandwidth out of all p parts over p - 1, in bytes per second; exact if no switch
            narrows two parts, else the rate of the parts given here.
    """

    part: np.ndarray
    rate: Fraction


def narrowest_partition(topology: Topology) -> Partition:
    """The partition of least sum c / (p - 1) into two or more parts, by flows.

    Newton's method on partitions: the narrowest so far has a rate r; a partition of least
    ``sum (c - r)`` either has the value -r of the whole network as one part, and then none is
    narrower than r, or it is narrower. The method begins with one rank per part, and each step
    takes a flow per rank. There must be at least two ranks.
    """
    links, unit = coprime(topology.exact_bandwidth)
    part = np.arange(topology.num_vertices)
    rate = _rate(topology, links, part)
    while True:
        # In multiples of 1 / the rate's denominator all numbers are integers.
        scaled = [b * rate.denominator for b in links]
        found = _least(topology, scaled, rate.numerator)
        if found[: topology.num_ranks].max() == 0:  # one part
            break
        narrower = _rate(topology, links, found)
        if narrower >= rate:
            break
        part, rate = found, narrower
    return Partition(part, rate * unit)


def _rate(topology: Topology, links: list[int], part: np.ndarray) -> Fraction:
    ranks = np.unique(part[: topology.num_ranks])
    leaves = (part[topology.src] != part[topology.dst]) & np.isin(part[topology.src], ranks)
    out = sum(links[link] for link in np.flatnonzero(leaves))
    return Fraction(out, len(ranks) - 1)


def _least(topology: Topology, capacity: list[int], cost: int) -> np.ndarray:
    """The partition of least  sum over parts of (c(part) - cost).

    f(S) = c(S) - cost is submodular on sets with a rank in common, so the greedy algorithm for its
    Dilworth truncation finds the partition: rank by rank, the largest y(v) so that y(S) <= f(S)
    holds for all S of ranks so far, by a least cut around v. Sets where it holds with equality and
    that share a rank are one part (Cunningham, 1985).
    """
    n, count = topology.num_ranks, topology.num_vertices
    source, sink = count, count + 1
    ranks = np.arange(n)
    network = FlowNetwork(
        count + 2,
        np.concatenate([topology.src, np.full(n, source), ranks]),
        np.concatenate([topology.dst, ranks, np.full(n, sink)]),
    )
    alone = np.zeros(n, object)  # the bandwidth out of each rank
    for link in np.flatnonzero(topology.src < n):
        alone[topology.src[link]] += capacity[link]
    whole = sum(capacity) + n * cost + 1  # more than any cut
    y = [0] * n
    part = np.arange(count) + n  # separate switches; parts with ranks are below n
    part[:n] = ranks
    for v in range(n):
        # S is the source's side. A rank u < v in S is worth y(u); later ranks stay outside.
        into = [max(y[u], 0) if u < v else whole * (u == v) for u in range(n)]
        out = [max(-y[u], 0) if u < v else whole * (u > v) for u in range(n)]
        outside = sum(into[:v])
        short = network.first_short(
            [*capacity, *into, *out], source, [sink], outside + int(alone[v])
        )
        if short is None:  # no set around v is narrower than v by itself
            y[v] = int(alone[v]) - cost
            continue
        y[v] = short.flow - outside - cost
        # The set and all parts with which it shares a rank now become one part.
        inside = np.flatnonzero(short.source_side[:count])
        part[np.isin(part, part[inside[inside < n]])] = v
        part[inside] = v
    return np.unique(part, return_inverse=True)[1]
