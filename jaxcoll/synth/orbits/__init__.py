"""Schedules by orbits: found for the shard of one rank, in an order that all ranks share.

The ways of rank 0's chunks are chosen so that classes of links are loaded equally (``ways``). Then
the messages out of rank 0 are put in order by list scheduling on a network with one link for every
class of links, since all links of a class do the same. Of a few numbers of chunks and ways, the
fastest by simulated time is taken. Finding a schedule of 4,096 ranks so takes seconds.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from jaxcoll.bounds.symmetries import Symmetries
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.kinds import Kind, kind_of
from jaxcoll.links import group_by
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.orbits import OrbitSchedule, Translations, shard_of_one
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation.orbits import simulate_orbit
from jaxcoll.synth.building.base import BUCKET_BYTES
from jaxcoll.synth.building.list_scheduling import LinkedSends, message_ticks, remaining, served
from jaxcoll.synth.orbits.ways import Ways, broadcast, scattered
from jaxcoll.topology import Topology, connected
from jaxcoll.verifier import verify

# Numbers of chunks that are tried: few, as thousands of ranks cut a buffer into small shards.
_CHUNKS = (1, 2, 4, 8)
# Ranks times chunks per shard of one rank's shard: some seconds to find and simulate.
_MOST_LISTED = 2**18

# Sends of one rank's shard beyond which no more chunks than the fewest are tried: ways of many
# hops already overlap, and each try takes several seconds.
_MOST_TRIED = 2**20

NAME = "orbits"


def translations_of(topology: Topology) -> Translations:
    """The translations of a network.

    Raises:
        TopologyError: none are known: a slow link or a lost host leaves no symmetry, for example.
    """
    connected(topology)
    found = Symmetries.of(topology).images
    try:
        return Translations(topology, found)
    except TopologyError as error:
        raise TopologyError(
            f"no translations of {topology} take rank 0 to every other rank ({error}); "
            f"synthesize takes any network"
        ) from None


def has_orbits(topology: Topology, kind: Kind) -> bool:
    """Whether ``synthesize_orbit`` is for such a network and kind, without making a schedule.

    That is where translations are known and move every link.
    """
    if kind.one_shard_name is None:
        return False
    try:
        return bool(translations_of(topology).is_free.all())
    except TopologyError:
        return False


def synthesize_orbit(
    topology: Topology,
    kind: str,
    *,
    nbytes: Number = BUCKET_BYTES,
    chunks: int | None = None,
) -> OrbitSchedule:
    """Find a schedule of all ranks as the sends of one rank's shard, and verify it.

    For networks in which translations take rank 0 to every rank: tori, hypercubes and circulants,
    equal hosts behind one switch or on rails, fat trees. Time and memory grow with the ranks, not
    with their square; 16,384 ranks take a minute or two.

    Args:
        kind: all_gather, reduce_scatter, all_reduce or all_to_all, of all ranks.
        nbytes: bytes of a rank's buffer for which the schedule is to be fast; 25 MiB when omitted.
        chunks: chunks per shard; the fastest of 1, 2, 4 and 8 when omitted.

    Raises:
        CollectiveError: another kind, nbytes not above 0, chunks below 1, a single rank, or ranks
            times chunks above 262,144, or 2**31 chunks of all ranks.
        TopologyError: no translations of the network are known, or no paths between ranks that take
            equally long for all ranks.
    """
    began = time.perf_counter()
    if isinstance(kind, Collective):
        raise CollectiveError(
            f"synthesize_orbit takes the name of a kind, for all ranks, got {kind}; synthesize "
            "takes a Collective"
        )
    what = kind_of(kind)
    if what.one_shard_name is None:
        raise CollectiveError(
            f"a {what} is not the same for every rank, so it has no schedule by orbits; synthesize "
            f"makes one"
        )
    size = as_fraction(checks.positive(nbytes, "nbytes", CollectiveError))
    where = translations_of(topology)
    if chunks is None:
        counts = tuple(count for count in _CHUNKS if _is_listed(what, topology, count))
    else:
        counts = (checks.integer(chunks, "chunks", CollectiveError, least=1, most=_MOST_LISTED),)
    if topology.num_ranks < 2 or not all(_is_listed(what, topology, count) for count in counts):
        raise CollectiveError(
            f"a schedule by orbits is for 2 ranks or more, and up to {_MOST_LISTED} chunks of one "
            f"rank; got {topology.num_ranks} ranks and {chunks or 1} chunks per shard"
        )
    try:
        timed = [
            (simulate_orbit(found, size).exact_time, found)
            for found in _candidates(where, what, size, counts)
        ]
    except ScheduleError as error:
        raise TopologyError(f"no schedule by orbits was found on {topology}: {error}") from None
    schedule = min(timed, key=lambda each: each[0])[1]
    verify(schedule)
    seconds = time.perf_counter() - began
    return schedule.with_provenance(Provenance(NAME, {"nbytes": float(size)}, seconds=seconds))


def _is_listed(kind: Kind, topology: Topology, chunks: int) -> bool:
    """Whether the chunks of one rank are few enough, and those of all can be numbered."""
    n = topology.num_ranks
    of_one = n * chunks if kind.is_pairwise else chunks
    return of_one * n < 2**31 and n * chunks <= _MOST_LISTED


def _candidates(
    where: Translations, kind: Kind, size: Fraction, counts: tuple[int, ...]
) -> Iterator[OrbitSchedule]:
    topology = where.topology
    for chunks in counts:
        nbytes = size / (topology.num_ranks * chunks)
        busy, delay = (each.astype(float) for each in message_ticks(topology, nbytes, 1))
        if kind.is_pairwise:
            ways = scattered(where, busy, delay)
            if chunks > counts[0] and len(ways.chunk) * chunks > _MOST_TRIED:
                return
            ways = ways.repeated(chunks)
            yield _ordered(where, kind, [_copied(ways)], chunks, nbytes)
            continue
        down = broadcast(where, busy, chunks)
        if kind.copies:
            up = [None] * len(down)
        else:
            # Sums go the ways of copies on the network of reversed links, backwards.
            back = topology.transpose()
            pace = np.empty(topology.num_links)
            pace[topology.transpose_links()] = busy
            reversed_ways = broadcast(Translations(back, where.generators), pace, chunks)
            up = [_summed(ways, back) for ways in reversed_ways]
        for sums, copies in zip(up, down, strict=True):
            last = [] if kind.ends_with_shard else [_copied(copies)]
            phases = [*([] if sums is None else [sums]), *last]
            yield _ordered(where, kind, phases, chunks, nbytes)
            if len(phases) > 1 and chunks > 1:
                # Sums that end one chunk after the other are copied while the next ones end.
                yield _ordered(where, kind, phases, chunks, nbytes, in_turn=True)


# ---------------------------------------------------------------------- sends that wait


def _linked(edges: Edges, chunk, reduce, earlier, later) -> LinkedSends:
    """Sends, of which each of ``later`` waits for the one of ``earlier`` beside it."""
    ptr, place = group_by(earlier, len(chunk))
    return LinkedSends(edges, np.arange(len(chunk)), chunk, reduce, ptr, later[place])


def _copied(ways: Ways) -> LinkedSends:
    later = np.flatnonzero(ways.before >= 0)
    reduce = np.zeros(len(ways.chunk), bool)
    return _linked(ways.edges, ways.chunk, reduce, ways.before[later], later)


def _summed(ways: Ways, back: Topology) -> LinkedSends:
    """The sums that ways of a broadcast on the transposed network ``back`` are backwards."""
    many, edges = len(ways.chunk), ways.edges.reverse(back.transpose_links())
    # Listed backwards, so that a send comes after those that it waits for.
    order = np.arange(many)[::-1]
    ptr, path = edges.paths_of(order)
    later = np.where(ways.before < 0, -1, many - 1 - ways.before)[order]
    earlier = np.flatnonzero(later >= 0)
    listed = Edges(edges.src[order], edges.dst[order], ptr, path)
    return _linked(listed, ways.chunk[order], np.ones(many, bool), earlier, later[earlier])


# ---------------------------------------------------------------------- order


def _ordered(
    where: Translations,
    kind: Kind,
    phases: list[LinkedSends],
    chunks: int,
    nbytes: Fraction,
    in_turn: bool = False,
) -> OrbitSchedule:
    """The schedule in which messages out of a rank leave the farthest first, phase by phase.

    Args:
        phases: the sends of each phase; a later one begins where its chunks are complete.
        chunks: chunks per shard.
        nbytes: bytes of a chunk.
        in_turn: whether in each phase one chunk of a shard leaves before the next.
    """
    topology = where.topology
    steps, first = [], 0
    for sends in phases:
        step = _steps(where, sends, nbytes, in_turn) + first
        steps.append(step)
        first = int(step.max(initial=-1)) + 1
    ptr = np.concatenate([[0], *(sends.edges.hops for sends in phases)]).cumsum()
    path = np.concatenate([sends.edges.path_link for sends in phases])
    orbit = Schedule.from_sends(
        topology,
        shard_of_one(kind.name, topology.num_ranks, chunks),
        np.concatenate(steps),
        np.arange(len(ptr) - 1),
        np.concatenate([sends.chunk for sends in phases]),
        np.concatenate([sends.reduce for sends in phases]),
        edges=Edges.along(topology, ptr, path),
    )
    return OrbitSchedule(orbit, where)


def _steps(where: Translations, sends: LinkedSends, nbytes: Fraction, in_turn: bool) -> np.ndarray:
    """The step of each send, by list scheduling with one link for every class of links."""
    hops = len(sends.edges.path_link)
    ticks = message_ticks(where.topology, nbytes, hops)
    classes = int(where.class_of_link.max()) + 1
    busy, delay = np.ones((2, classes), np.int64)
    busy[where.class_of_link], delay[where.class_of_link] = ticks
    number, home = where.classes_of(sends.edges)
    at_home = np.zeros(len(home), np.int32)
    links = where.class_of_link[home.path_link]
    edges = Edges(at_home, at_home, home.path_ptr, links)
    same = dataclasses.replace(sends, edges=edges, edge=number)
    urgency = -remaining(same, delay)
    if in_turn:
        urgency += sends.chunk * (1 - urgency.min(initial=0))
    begin, _ = served(
        urgency,
        same.next_ptr,
        same.following,
        same.edge,
        edges.path_ptr,
        edges.path_link,
        busy,
        delay,
    )
    return same.steps(np.argsort(begin, kind="stable"), classes)
