"""Middle trees: sums go up a tree to the rank in the middle, and results down a tree from it.

Sums come up from all ranks of a group; results go down to all ranks that need them, which are the
group or a part of it.

The time of little data is its latency. If every rank sums a shard of its own, as between a
reduce_scatter and an all_gather, data cross the whole network twice: from one end to the other, and
back. If they are summed in the middle, they cross half of it twice. For example, on five ranks in a
row, 0 - 1 - 2 - 3 - 4, sums that meet in rank 2 take two links to it and two from it, where shards
take four and four.

The middle is the rank for which the way from the farthest rank and that to the farthest rank are
shortest together; on links that go one way only these may be two different ranks. Both trees
consist of shortest paths, counting latency and bytes. So no tree through one rank is faster if no
two of its messages share a link.

Pieces of data follow one another: the first are copied while the last are summed. Pieces meet in
turn in all equally good middles, and every tree takes those shortest paths that earlier ones have
used the least.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import distances_from_ranks
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.building.base import (
    BUCKET_BYTES,
    DOUBLINGS,
    FIRST,
    IN_BLOCKS,
    ONE_CHUNK,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.derive import in_order
from jaxcoll.synth.building.list_scheduling import message_ticks
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.topology import Topology, connected

# The most pieces of a group's data that auto tries; of more pieces, each takes almost no time.
_MANY_PIECES = 64
# Number of middles that auto tries behind switches: on 150 random networks with switches the
# fastest was the fourth or a later one only once.
_NEAR_MIDDLES = 3
# Ratio to twice the ways from end to end below which ways through the middle are worth trying.
_WORTH_TRYING = 0.99
# Sends from which on auto does not try it where all data take longer into one rank than the latency
# of so many links.
_MANY_SENDS, _MANY_HOPS = 2**24, 16


@dataclasses.dataclass(frozen=True)
class MiddleTrees(Synthesizer):
    """All-reduce up a tree of shortest paths to the middle of a group, and down one from it.

    If only some ranks need the sums (reduce_to_some), the tree down reaches only these.

    It is reduce and broadcast, the all_reduce of short vectors (Chan, Heimlich, Purkayastha and van
    de Geijn, "Collective communication: theory, practice, and experience", 2007), through the
    center of the network (Hakimi, "Optimum locations of switching centers and the absolute centers
    and medians of a graph", 1964). Ranks outside a group forward; where ways meet they add and
    copy, and one of them may be the middle.

    Attributes:
        nbytes: bytes of a rank's buffer for which to be fast.
        pieces: the most messages, one after another, for the data of a group.
        nth: number of the middle that is taken, in order of distance: 0 for the nearest. Behind
            switches, where messages of a tree share links, another one may be faster.

    Raises:
        CollectiveError: a field is out of range.
    """

    nbytes: float = BUCKET_BYTES
    pieces: int = 1
    nth: int = 0

    name: ClassVar[str] = "middle_trees"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.copies_sums)
    has_nbytes: ClassVar[bool] = True
    send_work: ClassVar[float] = IN_BLOCKS
    put_off: ClassVar[float] = FIRST

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        checks.integer_fields(self, CollectiveError, "pieces")
        checks.integer_fields(self, CollectiveError, "nth", least=0)

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        others = (cls(nth=nth) for nth in range(1, _NEAR_MIDDLES))
        return (cls(), cls(pieces=_MANY_PIECES), *others)

    def suited(self, topology: Topology) -> Synthesizer:
        """The nearest middle on a network without switches, where no other is faster."""
        return dataclasses.replace(self, nth=0) if topology.is_direct else self

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or as many as there are pieces; a group has at least one chunk per shard."""
        if self.pieces == 1:
            return ONE_CHUNK
        what = problem.collective
        shards = what.traits.shards.count(max(map(len, what.groups)))
        return (tuple(count for count in DOUBLINGS if count == 1 or count * shards <= self.pieces),)

    def work(self, problem: Problem) -> float:
        """The sends; infinite where thousands of ranks have much data, which queues at the middle.

        There one try takes half a minute and gigabytes.
        """
        topology = problem.topology
        width = np.bincount(topology.dst, topology.bandwidth)[: topology.num_ranks].max()
        is_much = self.nbytes / width > _MANY_HOPS * topology.alpha.max()
        return math.inf if is_much and problem.sends > _MANY_SENDS else super().work(problem)

    def may_win(self, problem: Problem) -> bool:
        """Whether the middle is nearer to the ends than they are to each other."""
        if problem.collective.kind not in self.kinds:
            return True
        through, across = 0.0, 0.0
        up, down = _ways(problem.topology, as_fraction(self.nbytes))
        for group in problem.collective.groups:
            members, wanting = list(group), list(problem.collective.ending(group))
            there, back = up.farthest(members), down.farthest(wanting)
            through = max(through, (there + back).min())
            across = max(across, there[members].max() + back[members].max())
        return through < _WORTH_TRYING * across

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        pieces = [min(self.pieces, int(count)) for count in np.diff(collective.chunk_ptr)]
        up, down = _ways(topology, as_fraction(self.nbytes) / max(pieces))
        load, messages = np.zeros(topology.num_links, np.int64), []
        middles: list[list[int]] = []
        for g, group in enumerate(collective.groups):
            if len(group) == 1:
                continue
            members, wanting = np.asarray(group), np.asarray(collective.ending(group))
            there = up.farthest(members)
            middles.append(self._middles(there + down.farthest(wanting), members)[: pieces[g]])
            first, last = (int(c) for c in collective.chunk_ptr[g : g + 2])
            cuts = first + np.arange(pieces[g] + 1) * (last - first) // pieces[g]
            for piece, chunks in enumerate(itertools.pairwise(cuts.tolist())):
                middle = middles[-1][piece % len(middles[-1])]
                # A piece begins when the one before has left the slowest link. Sums leave as late
                # as possible, since the middle has all of them only when the last one arrives.
                met = piece * up.slowest + there[middle]
                sums, copies = up.tree(middle, members, load), down.tree(middle, wanting, load)
                messages.append(_Messages(sums, met - sums.end, chunks, True))
                messages.append(_Messages(copies, met + copies.begin, chunks, False))
        schedule = _scheduled(topology, collective, messages)
        return schedule.with_provenance(Provenance(certificate={"middles": middles}))

    def _middles(self, ticks: np.ndarray, members: np.ndarray) -> list[int]:
        """The middle that is taken, followed by the others that are as near.

        Members come before other ranks as near, and share only with members.

        Args:
            ticks: ticks from each rank to the farthest rank of the group and back.
        """
        is_other = ~np.isin(np.arange(len(ticks)), members)
        order = np.lexsort((is_other, ticks))
        taken = order[min(self.nth, len(order) - 1)]
        others = [m for m in order if ticks[m] == ticks[taken] and is_other[m] == is_other[taken]]
        at = others.index(taken)
        return [int(m) for m in others[at:] + others[:at]]


class _Tree(NamedTuple):
    """A tree from a middle, as paths between its ranks, each listed after the one it continues.

    Attributes:
        path_ptr, path: the links of each path, in the order in which data cross them.
        begin, end: ticks from the middle to the nearer and to the farther end of each path.
    """

    path_ptr: np.ndarray
    path: np.ndarray
    begin: np.ndarray
    end: np.ndarray


class _Messages(NamedTuple):
    """The messages of a piece along a tree, of its sums or of its copies.

    Attributes:
        tree: the tree, with one message per path.
        begin: ticks at which each message leaves if no other delays it.
        chunks: the first chunk, and the last + 1.
    """

    tree: _Tree
    begin: np.ndarray
    chunks: tuple[int, int]
    reduce: bool


@dataclasses.dataclass(frozen=True, eq=False)
class _Way:
    """A network in the direction away from its middles: links are reversed for sums.

    Attributes:
        topology: the network, its links leading away from middles.
        link: the link of the real network for each link.
        is_reversed: whether data cross the links towards the middle.
        length: ticks that a message takes on each link, whole numbers, float64.
        slowest: ticks that a message occupies the slowest link.
        ticks: ticks of a shortest path from each rank to each vertex, float64 of shape (ranks,
            vertices).
    """

    topology: Topology
    link: np.ndarray
    is_reversed: bool
    length: np.ndarray
    slowest: int
    ticks: np.ndarray

    @classmethod
    def of(cls, topology: Topology, link: np.ndarray, is_reversed: bool, size: Fraction) -> _Way:
        # Ticks are whole numbers, so that sums are exact and paths of equal length tie.
        busy, delay = message_ticks(topology, size, 2 * topology.num_vertices)
        length = delay.astype(np.float64)
        ticks = distances_from_ranks(topology, length)
        return cls(topology, link, is_reversed, length, int(busy.max()), ticks)

    def farthest(self, members: np.ndarray | list[int]) -> np.ndarray:
        """Ticks from each rank to the farthest of ``members``, float64 of shape (ranks,)."""
        return self.ticks[:, members].max(axis=1)

    def tree(self, middle: int, members: np.ndarray, load: np.ndarray) -> _Tree:
        """Shortest paths to some ranks over the links used least so far; adds them to ``load``.

        Args:
            load: number of messages on each link of the real network.
        """
        ticks, src, dst = self.ticks[middle], self.topology.src, self.topology.dst
        is_reached = np.isfinite(ticks[dst])
        tight = np.flatnonzero(is_reached & (ticks[src] + self.length == ticks[dst]))
        # The first link of each vertex in order of load is written last, so it is the one that
        # remains.
        order = tight[np.lexsort((load[self.link[tight]], dst[tight]))][::-1]
        into = np.full(self.topology.num_vertices, -1, np.int64)
        into[dst[order]] = order
        inside, branches = np.zeros(len(into), bool), np.zeros(len(into), np.int64)
        inside[middle], at = True, members
        while (at := np.unique(at[~inside[at]])).size:
            inside[at] = True
            at = src[into[at]]
        inside[middle] = False
        inner = np.flatnonzero(inside)
        np.add.at(branches, src[into[inner]], 1)
        # Where ways meet, ranks add or copy; switches do neither.
        stops = (branches > 1) & (np.arange(len(into)) < self.topology.num_ranks)
        stops[members] = stops[middle] = True
        ends = inner[stops[inner]]
        begins, ptr, path = self._paths(ends[np.argsort(ticks[ends], kind="stable")], into, stops)
        np.add.at(load, path, 1)
        return _Tree(ptr, path, ticks[begins], np.sort(ticks[ends]))

    def _paths(
        self, ends: np.ndarray, into: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The stop before each of some ranks, and the links from there, as (ptr, links)."""
        row, at, rows, links = np.arange(len(ends)), ends, [ends[:0]], [ends[:0]]
        begins = np.empty(len(ends), np.int64)
        while row.size:  # one more link of every unfinished path
            rows.append(row)
            links.append(into[at])
            at = self.topology.src[into[at]]
            begins[row] = at
            row, at = row[~stops[at]], at[~stops[at]]
        # Links were found from the far end inwards, which is the order in which sums cross them.
        every, found = np.concatenate(rows), np.concatenate(links)
        order = np.argsort(every, kind="stable")
        if not self.is_reversed:
            order = len(every) - 1 - np.argsort(every[::-1], kind="stable")
        ptr = np.append(0, np.cumsum(np.bincount(every, minlength=len(ends))))
        return begins, ptr, self.link[found[order]]


@functools.lru_cache(maxsize=4)
def _ways(topology: Topology, size: Fraction) -> tuple[_Way, _Way]:
    """The networks for sums and for copies, for messages of ``size`` bytes."""
    image = connected(topology).transpose_links()
    back = np.empty_like(image)
    back[image] = np.arange(len(image))
    return (
        _Way.of(topology.transpose(), back, True, size),
        _Way.of(topology, np.arange(len(image)), False, size),
    )


def _scheduled(
    topology: Topology, collective: Collective, messages: Sequence[_Messages]
) -> Schedule:
    """The schedule of messages in which links take them in the order of their times."""
    sizes = np.concatenate([np.diff(each.tree.path_ptr) for each in messages])
    path = np.concatenate([each.tree.path for each in messages])
    edges, edge = distinct_edges(topology, np.append(0, np.cumsum(sizes)), path)
    order = np.argsort(np.concatenate([each.begin for each in messages]), kind="stable")
    counts = [len(each.begin) for each in messages]
    first, last = np.repeat([each.chunks for each in messages], counts, axis=0)[order].T
    reduce = np.repeat([each.reduce for each in messages], counts)[order]
    # Messages get one step each, in order, and then as few steps as keep that order.
    size = last - first
    number = np.repeat(np.arange(len(order)), size)
    within = np.arange(len(number)) - np.repeat(np.cumsum(size) - size, size)
    schedule = Schedule.from_sends(
        topology,
        collective,
        number,
        edge[order][number],
        first[number] + within,
        reduce[number],
        edges=edges,
    )
    return in_order(schedule, np.arange(len(order)))
