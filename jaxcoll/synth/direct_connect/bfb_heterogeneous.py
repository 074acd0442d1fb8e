"""The least time of every BFB step where links differ: the linear program (A.12), exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.numerics.rational import Number, common_denominator
from jaxcoll.paths import hop_distances
from jaxcoll.topology import Topology

Speed = tuple[Fraction, Fraction]  # alpha in seconds, shards per second


def bfb_times(topology: Topology, nbytes: Number) -> tuple[Fraction, ...]:
    """Seconds of each step of a BFB all_gather whose shards may be split at will (A.12).

    The steps follow one another; a link that carries nothing costs no alpha. No schedule of ``Bfb``
    has a faster step, and with P chunks per shard none is slower by more than a chunk on the
    slowest link takes.

    Args:
        topology: a network without switches.
        nbytes: bytes of a rank's buffer.

    Raises:
        TopologyError: the network has switches.
        CollectiveError: nbytes is not above 0.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    if not topology.is_direct:
        raise TopologyError(f"bfb is for networks without switches; {topology} has some")
    size = checks.nbytes(nbytes, CollectiveError)
    shard = checks.rational(size, "nbytes", CollectiveError) / topology.num_ranks
    hops = hop_distances(topology)
    ptr, order = topology.in_links
    steps = [Fraction(0)] * int(hops.max())
    for u in range(topology.num_ranks):
        into = order[ptr[u] : ptr[u + 1]]
        speeds = [
            (topology.exact_alpha[link], topology.exact_bandwidth[link] / shard) for link in into
        ]
        for t in range(1, int(hops[:, u].max()) + 1):
            jobs: dict[tuple[int, ...], int] = defaultdict(int)
            for v in np.flatnonzero(hops[:, u] == t):
                usable = np.flatnonzero(hops[v, topology.src[into]] == t - 1)
                jobs[tuple(usable.tolist())] += 1
            steps[t - 1] = max(steps[t - 1], _least_seconds(jobs, speeds))
    return tuple(steps)


def _least_seconds(jobs: Mapping[tuple[int, ...], int], speeds: Sequence[Speed]) -> Fraction:
    """The least time in which links take all jobs, by Newton's method on cuts.

    Args:
        jobs: the number of shards for each set of links that may deliver them.
        speeds: of each link.
    """
    groups, links = len(jobs), len(speeds)
    sink = groups + links + 1
    arcs = [(0, 1 + g) for g in range(groups)]
    arcs += [(1 + g, 1 + groups + link) for g, usable in enumerate(jobs) for link in usable]
    arcs += [(1 + groups + link, sink) for link in range(links)]
    network = FlowNetwork(sink + 1, *np.asarray(arcs).T)
    count = list(jobs.values())
    time = _seconds_for(sum(count), speeds)
    while True:
        room = [max(time - alpha, Fraction(0)) * rate for alpha, rate in speeds]
        unit = common_denominator(room)
        need = sum(count) * unit
        capacity = [size * unit for size in count] + [need] * sum(map(len, jobs))
        capacity += [int(amount * unit) for amount in room]
        short = network.first_short(capacity, 0, [sink], need)
        if short is None:
            return time
        tight = [g for g in range(groups) if short.source_side[1 + g]]
        used = set().union(*(usable for g, usable in enumerate(jobs) if g in tight))
        time = _seconds_for(sum(count[g] for g in tight), [speeds[link] for link in used])


def _seconds_for(amount: int, speeds: Sequence[Speed]) -> Fraction:
    """The time in which links together carry an amount, those of the least alpha first."""
    rate = started = Fraction(0)
    best = None
    for alpha, speed in sorted(speeds):
        if best is not None and alpha >= best:
            break
        rate, started = rate + speed, started + speed * alpha
        best = (amount + started) / rate
    if best is None:
        raise TopologyError("a shard has no link to arrive by")
    return best
