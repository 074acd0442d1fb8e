"""BFB beyond equal links both ways: reversed networks, and links that differ.

A reduce_scatter needs an all_gather of the transposed network, run backwards. Where an isomorphism
takes the network to its transpose, that is the network's own all_gather with its ranks renamed
(``reversed_on``); where links go both ways, every rank keeps its number.

Where links differ, the least time of a BFB step is that of the linear program (A.12), here solved
exactly, by Newton's method: the set of jobs that the links which can deliver it take longest for
(``bfb_times``).
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import FlowNetwork
from jaxcoll.numerics.rational import Number, common_denominator
from jaxcoll.paths import hop_distances
from jaxcoll.schedule import Schedule, concatenate
from jaxcoll.topology import Topology


def reversed_on(schedule: Schedule, reversal: Sequence[int] | np.ndarray) -> Schedule:
    """The schedule run backwards, moved back to its own network (Thm. 2).

    Of an all_gather this is a reduce_scatter of equal T_L and T_B, and the other way round. On a
    network whose links all have one that goes back, the identity will do, and the result is
    ``schedule.reverse()``.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        reversal: an isomorphism f from the transposed network to the network: for every link
            (u, v) there is a link (f(v), f(u)) of the same speed.

    Raises:
        CollectiveError: another collective, or groups.
        TopologyError: ``reversal`` is not such an isomorphism.

    Source: dissertation, App. A.2, Defs. 5 to 7.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    collective = schedule.collective
    if collective.kind not in ("all_gather", "reduce_scatter") or collective.is_grouped:
        raise CollectiveError(
            f"an all_gather or reduce_scatter of all ranks in order is reversed, not {collective}"
        )
    count = collective.num_ranks
    image = checks.rank_permutation(reversal, count, "reversal", TopologyError)
    moved = rename_ranks(schedule.reverse(), image)
    if moved.topology != schedule.topology:
        raise TopologyError(
            f"reversal must take every link (u, v) of {schedule.topology} to a link (f(v), f(u)) "
            f"of the same speed"
        )
    return moved


def rename_ranks(schedule: Schedule, image: np.ndarray) -> Schedule:
    """The schedule in which rank r is called ``image[r]``, its shard being shard ``image[r]``.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        image: a permutation of the ranks, int64 of shape (ranks,).
    """
    moved, parts = schedule.relabel(image), schedule.collective.chunks_per_shard
    if schedule.collective.is_grouped:
        raise TopologyError(f"ranks of groups keep their names: {schedule.collective}")
    chunk = image[moved.chunk // parts] * parts + moved.chunk % parts
    collective = Collective(moved.collective.kind, len(image), parts)
    return dataclasses.replace(moved, collective=collective, chunk=chunk.astype(np.int32))


def split_chunks(schedule: Schedule, pieces: int) -> Schedule:
    """The schedule with every chunk split into equal pieces, which are sent together.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        pieces: of each chunk, at least 1.
    """
    pieces = checks.integer(pieces, "pieces", ScheduleError, least=1)
    collective = schedule.collective
    if pieces == 1:
        return schedule
    chunk = schedule.chunk.astype(np.int64)[:, None] * pieces + np.arange(pieces)
    return dataclasses.replace(
        schedule,
        collective=Collective(
            collective.kind, collective.num_ranks, collective.chunks_per_shard * pieces
        ),
        step_ptr=schedule.step_ptr * pieces,
        edge=np.repeat(schedule.edge, pieces),
        chunk=chunk.ravel().astype(np.int32),
        reduce=np.repeat(schedule.reduce, pieces),
    )


def all_reduce_of(scatter: Schedule, gather: Schedule) -> Schedule:
    """The all_reduce of a reduce_scatter and an all_gather, whatever chunks each takes.

    Args:
        scatter, gather: of all ranks in order, on the same network.

    Raises:
        ScheduleError: see ``concatenate``.
    """
    parts = [schedule.collective.chunks_per_shard for schedule in (scatter, gather)]
    shared = math.lcm(*parts)
    return concatenate(
        split_chunks(scatter, shared // parts[0]), split_chunks(gather, shared // parts[1])
    )


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
    # A bound to start from: all jobs over all links. Every cut found later raises it, and to a
    # value that one set of jobs needs, so the loop ends at the least time, after few of the sets
    # there are.
    time = _seconds_for(sum(count), speeds)
    while True:
        room = [max(time - alpha, Fraction(0)) * rate for alpha, rate in speeds]
        # Fractions as integers for the flow, which is then exact.
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
        # A link that starts only after all is carried would count as carrying a negative amount.
        if best is not None and alpha >= best:
            break
        rate, started = rate + speed, started + speed * alpha
        best = (amount + started) / rate
    if best is None:
        raise TopologyError("a shard has no link to arrive by")
    return best
