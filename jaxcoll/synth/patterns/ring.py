"""Rings and their opposite: circles, NCCL's channels, and direct sends between all ranks.

On a circle of 3 ranks each passes on the shard that it received in the step before. That takes 2
steps, in which every link carries 2 shards, as few as a rank must receive. A circle is only as good
as its links.

- ``Ring``: circles over links if the network has any, or a given order regardless of links.
- ``NcclRing``: the rings of NCCL and RCCL, one way round in many channels.
- ``Direct``: every rank sends to every other in one step.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import (
    DOUBLINGS,
    LAST,
    LATER,
    ONE_CHUNK,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.circles import circles_of
from jaxcoll.synth.building.sends import (
    Sends,
    circle,
    first_chunk,
    gather_in_order,
    on_ranks,
    routed,
)
from jaxcoll.topology import Topology

ORDERS = ("links", "ranks")


@dataclasses.dataclass(frozen=True)
class Ring(Synthesizer):
    """All-gather around circles that follow links, each with an equal share of the chunks.

    The circles share no link, and there are as many as the search finds: those of a torus use all
    its links (``jaxcoll.synth.building.circles``). Among hosts behind switches there is one circle
    for each rank of a host. If links form no circle through all ranks, there is the single circle
    0, 1, ..., n-1, 0 (or the order of each group), whose neighbours are routed over shortest paths
    (``jaxcoll.paths.shortest_routes`` states the tie-break).

    In both directions, shards go to the opposite rank in n/2 steps; in one direction, they go all
    the way round in n-1 steps, upwards unless the routes downwards have fewer links (as on a
    one-way ring reversed for reduce_scatter).

    Attributes:
        bidirectional: whether shards go both ways round.
        order: "links" as above; "ranks" for the single circle in the order of ranks, regardless of
            the topology, with which the TACOS paper and others compare.
        circles: given orders of the ranks of a group, by index, instead. If several circles join
            the same two ranks, each has a separate link as far as there are parallel links.

    Raises:
        CollectiveError: the order is unknown, or circles are not orders of the ranks.
    """

    bidirectional: bool = True
    order: str = "links"
    circles: tuple[tuple[int, ...], ...] | None = None

    name: ClassVar[str] = "ring"
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        checks.flag_fields(self, CollectiveError, "bidirectional")
        checks.choice(self.order, ORDERS, "order", CollectiveError)
        if self.circles is None:
            return
        circles = [
            checks.integers(circle, f"circles[{i}]", CollectiveError)
            for i, circle in enumerate(checks.members(self.circles, "circles", CollectiveError))
        ]
        if not circles or any(sorted(c) != list(range(len(circles[0]))) for c in circles):
            raise CollectiveError(
                f"circles must be one or more orders of the same indices 0, 1, ..., "
                f"got {checks.shown(self.circles)}"
            )
        checks.put(self, circles=tuple(circles))

    def granularity(self, topology: Topology, collective: Collective) -> int:
        """The chunks per shard, or their multiples, with which circles carry equal shares."""
        groups = (np.asarray(group) for group in collective.groups if len(group) > 1)
        return max((len(self._circles(topology, group)) for group in groups), default=1)

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        return (cls(), cls(bidirectional=False))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk per circle, or two, as half of a shard comes from each direction."""
        if problem.collective.traits.has_root:
            return ONE_CHUNK
        circles = self.granularity(problem.topology, problem.collective)
        return ((circles, 2 * circles),)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: circles and a group have different numbers of ranks.
        """
        circles = functools.partial(self._circles, topology)
        return gather_around(topology, collective, circles, both_ways=self.bidirectional)

    def _circles(self, topology: Topology, ranks: np.ndarray) -> list[np.ndarray]:
        """The ranks of a group in the order of every circle."""
        # Two ranks are a circle on any links, and so is the order of ranks if no other circle is
        # found.
        circles = self.circles
        if circles is None and self.order == "links" and len(ranks) > 2:
            circles = circles_of(topology, ranks, self.bidirectional)
        if not circles:
            return [ranks]
        if len(circles[0]) != len(ranks):
            raise CollectiveError(
                f"the circles are of {len(circles[0])} ranks, a group has {len(ranks)} ranks"
            )
        return [ranks[list(circle)] for circle in circles]


def gather_around(
    topology: Topology,
    collective: Collective,
    circles: Callable[[np.ndarray], Sequence[np.ndarray]],
    *,
    both_ways: bool,
    pieces: int = 1,
) -> Schedule:
    """The all_gather in which every circle of a group carries an equal share of the chunks.

    Args:
        circles: maps the ranks of a group to the ranks in the order of each circle.
        both_ways: whether shards go both ways round.
        pieces: see ``Sends.in_pieces``.
    """
    parts, lanes = [], []
    lane = np.zeros((topology.num_ranks, topology.num_ranks), np.int64)
    for group in collective.groups:
        if len(group) == 1:
            continue
        ranks, chunks = np.asarray(group), collective.chunks_per_shard
        found = circles(ranks)
        for turn, around in enumerate(found):
            # Chunks are dealt to the circles one by one; with fewer chunks than circles, some
            # circles are idle.
            index = np.arange(turn, chunks, len(found))
            part = _around(topology, around, index, both_ways).in_pieces(chunks, pieces)
            parts.append(part)
            # A circle that joins the same two ranks as an earlier one takes the next parallel link
            # there.
            lanes.append(lane[part.src, part.dst])
            ends = around, np.roll(around, -1)
            lane[ends] += 1
            lane[ends[::-1]] += 1
    sends = Sends.joined(parts)
    # Neighbours on a circle without a direct link are routed, over switches or ranks between them.
    chunk = first_chunk(collective)[sends.owner] + sends.index
    columns = (sends.step, sends.src, sends.dst, chunk)
    return routed(topology, collective, *columns, lane=np.concatenate(lanes))


def _around(topology: Topology, ranks: np.ndarray, index: np.ndarray, both_ways: bool) -> Sends:
    backwards = ranks[::-1]
    # Of both directions the shorter one is taken: on a network with links in one direction, the
    # other would follow routes round everything.
    if not both_ways and _links(topology, backwards) < _links(topology, ranks):
        ranks = backwards
    pattern = circle(len(ranks), both_ways=both_ways)
    sends = gather_in_order(Grid((len(ranks),), (True,)), (0,), {0: pattern}, index)
    return on_ranks(sends, ranks)


def _links(topology: Topology, circle: np.ndarray) -> int:
    """Links on the routes from each rank of a circle to the next."""
    return len(shortest_routes(topology, circle, np.roll(circle, -1)).path_link)


@dataclasses.dataclass(frozen=True)
class NcclRing(Synthesizer):
    """All-gather and broadcast over the rings of NCCL and RCCL, each in one direction.

    Among hosts there is a channel for each rank of a host, so that all network ports are in use:
    each channel goes through the ranks of a host and on to the next host, entering and leaving at
    another rank than the other channels, and keeping to rails where there are some (NCCL 2.x,
    ``graph/search.cc`` and ``ncclTopoPostset`` in ``graph/connect.cc``; RCCL shares both). On
    networks of links between ranks, as in a DGX-1, a channel goes each way round every circle over
    links. The library searches channels in the paths and speeds of the real machine; here they are
    those of ``jaxcoll.synth.building.circles``. The library's slices are the pieces of a channel's
    data here: a rank passes one on before the next has arrived.

    Attributes:
        pieces: pieces of every message, at most one per chunk of a channel; None for one per chunk.

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    pieces: int | None = None

    name: ClassVar[str] = "nccl_ring"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.copies)

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "pieces", or_none=True)

    def granularity(self, topology: Topology, collective: Collective) -> int:
        """The chunks per shard, or their multiples, with which channels carry equal shares."""
        groups = (np.asarray(group) for group in collective.groups if len(group) > 1)
        return max((len(_channels(topology, group)) for group in groups), default=1)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """The numbers of chunks per channel that are worth trying for a pipeline."""
        channels = self.granularity(problem.topology, problem.collective)
        return (tuple(channels * pieces for pieces in DOUBLINGS),)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        if collective.traits.has_root:
            return self._broadcast(topology, collective)
        channels = functools.partial(_channels, topology)
        each = -(-collective.chunks_per_shard // self.granularity(topology, collective))
        pieces = each if self.pieces is None else min(self.pieces, each)
        return gather_around(topology, collective, channels, both_ways=False, pieces=pieces)

    def _broadcast(self, topology: Topology, collective: Collective) -> Schedule:
        """Send from the root round every channel, in pieces that follow one another."""
        columns = []
        for g, group in enumerate(collective.groups):
            if len(group) == 1:
                continue
            root = collective.root_of(group)
            channels = _channels(topology, np.asarray(group))
            chunks = np.arange(collective.chunk_ptr[g], collective.chunk_ptr[g + 1])
            # The number of links of a pair that earlier channels have taken, as in
            # ``gather_around``.
            used: Counter[tuple[int, int]] = Counter()
            for turn, around in enumerate(channels):
                mine = chunks[turn :: len(channels)]
                count = len(mine) if self.pieces is None else min(self.pieces, len(mine))
                piece = np.arange(len(mine)) * count // max(1, len(mine))
                # Every channel starts at the root and ends before it returns to the root.
                way = np.roll(around, -int(np.flatnonzero(around == root)[0]))
                pairs = [*itertools.pairwise(way.tolist())]
                lane = [used[pair] for pair in pairs]
                used.update(pairs)
                hops = np.column_stack([np.arange(len(pairs)), way[:-1], way[1:], lane])
                step, *ends = np.repeat(hops, len(mine), axis=0).T
                columns.append(
                    (step + np.tile(piece, len(pairs)), *ends, np.tile(mine, len(pairs)))
                )
        step, src, dst, lane, chunk = (np.concatenate(c) for c in zip(*columns, strict=True))
        return routed(topology, collective, step, src, dst, chunk, lane=lane)


def _channels(topology: Topology, ranks: np.ndarray) -> list[np.ndarray]:
    """The ranks of a group in the order of every channel; their own order if there is none."""
    found = circles_of(topology, ranks, False) if len(ranks) > 2 else ()
    circles = [ranks[list(circle)] for circle in found] or [ranks]
    if not topology.is_direct or len(ranks) == 2:
        return circles
    joined = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    ends = [zip(np.roll(c, -1).tolist(), c.tolist(), strict=True) for c in circles]
    # If links go both ways, each circle gives one more channel backwards, over links that the first
    # one leaves idle.
    returns = [c[::-1] for c, pairs in zip(circles, ends, strict=True) if joined.issuperset(pairs)]
    return circles + returns


@dataclasses.dataclass(frozen=True)
class Direct(Synthesizer):
    """Every chunk goes directly from its holder to every rank that wants it, all in one step.

    Topology-oblivious: pairs without a direct link are routed over shortest paths
    (``jaxcoll.paths.shortest_routes`` states the tie-break). A rank sends to the next rank first,
    then to the one after it, and so on round.
    """

    name: ClassVar[str] = "direct"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: not kind.adds)
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK
    hop_work: ClassVar[float | None] = 1.0
    put_off: ClassVar[float] = LAST

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        n, kind = topology.num_ranks, collective.traits
        src = collective.ends(kind.before).astype(np.int64)
        if kind.moves:
            dst = collective.ends(kind.after).astype(np.int64)
            chunk = np.flatnonzero(src != dst)
            dst = dst[chunk]
        else:
            chunk, dst = _wanted(collective)
        src = src[chunk]
        # A link serves the sends of a step in order. They are sorted by distance first, so that at
        # any time all ranks send to different ones; by destination, all would queue for rank 0
        # first.
        order = np.lexsort((chunk, src, (dst - src) % n))
        src, dst, chunk = src[order], dst[order], chunk[order]
        return routed(topology, collective, np.zeros(len(chunk), np.int64), src, dst, chunk)


def _wanted(collective: Collective) -> tuple[np.ndarray, np.ndarray]:
    """Every chunk and every rank that wants it and does not hold it."""
    chunks, ranks = [], []
    for g, group in enumerate(collective.groups):
        members = np.asarray(group)
        listed = np.arange(collective.chunk_ptr[g], collective.chunk_ptr[g + 1])
        wants = collective.wants(members, listed[:, None])
        i, j = np.nonzero(wants & ~collective.holds(members, listed[:, None]))
        chunks.append(listed[i])
        ranks.append(members[j])
    return np.concatenate(chunks), np.concatenate(ranks)
