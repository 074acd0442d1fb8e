"""Middle trees: sums go up a tree to the rank in the middle, and results down a tree from it.

Up from all ranks of a group; down to all that need the results, the group or some of it.

Little data takes as long as its latency. Where every rank sums a shard of its own, as between a
reduce_scatter and an all_gather, data cross the whole network twice: from one end to the other, and
back. Summed in the middle they cross half of it, twice. On five ranks in a row, 0 - 1 - 2 - 3 - 4,
sums that meet in rank 2 take two links to it and two from it, where shards take four and four.

The middle is the rank for which the way from the farthest rank and that to the farthest rank are
shortest together; on links that go one way only these may be two different ranks. Both trees are of
shortest paths, with latency and bytes counted, so that no tree through one rank is faster where no
two of its messages share a link.

In pieces, data follow one another: the first are copied while the last are summed. Pieces meet in
all middles that are equally good, in turn, and every tree takes those of its shortest paths that
earlier ones have used the least.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
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

# Pieces of the data of a group that auto tries at most: of more, one takes next to no time.
_MANY_PIECES = 64
# Middles that auto tries behind switches: of 150 random networks with switches the fastest was the
# fourth or a later one once.
_NEAR_MIDDLES = 3
# How much shorter the ways through the middle must be than those from end to end, twice.
_WORTH_TRYING = 0.99


@dataclasses.dataclass(frozen=True)
class MiddleTrees(Synthesizer):
    """All-reduce up a tree of shortest paths to the middle of a group, and down one from it.

    Where only some ranks need the sums (reduce_to_some), the tree down is one to these.

    Reduce and broadcast, the all_reduce of short vectors (Chan, Heimlich, Purkayastha and van de
    Geijn, "Collective communication: theory, practice, and experience", 2007), through the center
    of the network (Hakimi, "Optimum locations of switching centers and the absolute centers and
    medians of a graph", 1964). Ranks outside a group forward; where ways meet they add and copy,
    and one of them may be the middle.

    Attributes:
        nbytes: bytes of a rank's buffer to be fast for.
        pieces: messages that the data of a group are cut into at most, which follow one another.
        nth: which middle is taken, by how near it is: 0 for the nearest. Behind switches, where
            messages of a tree share links, another one may be faster.

    Raises:
        CollectiveError: a field out of range.
    """

    nbytes: float = BUCKET_BYTES
    pieces: int = 1
    nth: int = 0

    name: ClassVar[str] = "middle_trees"
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
        """One chunk, or as many as there are pieces for: a group has a chunk per shard at least."""
        if self.pieces == 1:
            return ONE_CHUNK
        what = problem.collective
        shards = what.traits.shards.count(max(map(len, what.groups)))
        return (tuple(count for count in DOUBLINGS if count == 1 or count * shards <= self.pieces),)

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
                # A piece begins when the one before is done with the slowest link. Sums leave as
                # late as they can: the middle has all of them when the last one comes.
                met = piece * up.slowest + there[middle]
                sums, copies = up.tree(middle, members, load), down.tree(middle, wanting, load)
                messages.append(_Messages(sums, met - sums.end, chunks, True))
                messages.append(_Messages(copies, met + copies.begin, chunks, False))
        schedule = _scheduled(topology, collective, messages)
        return schedule.with_provenance(Provenance(certificate={"middles": middles}))

    def _middles(self, ticks: np.ndarray, members: np.ndarray) -> list[int]:
        """The middle that is taken, and behind it the others that are as near.

        Members come before other ranks as near, and share with members alone.

        Args:
            ticks: from each rank to the farthest of the group and back.
        """
        is_other = ~np.isin(np.arange(len(ticks)), members)
        order = np.lexsort((is_other, ticks))
        taken = order[min(self.nth, len(order) - 1)]
        others = [m for m in order if ticks[m] == ticks[taken] and is_other[m] == is_other[taken]]
        at = others.index(taken)
        return [int(m) for m in others[at:] + others[:at]]


class _Tree(NamedTuple):
    """A tree from a middle, as paths between its ranks, each after the one it continues.

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
        tree: with a message per path.
        begin: when each leaves, in ticks, if nothing is in its way.
        chunks: the first chunk, and the last + 1.
    """

    tree: _Tree
    begin: np.ndarray
    chunks: tuple[int, int]
    reduce: bool


@dataclasses.dataclass(frozen=True, eq=False)
class _Way:
    """A network seen from its middles: as it is, for copies, or with links reversed, for sums.

    Attributes:
        topology: the network, its links leading away from middles.
        link: the link of the real network that each is.
        is_reversed: whether data cross the links towards the middle.
        length: ticks that a message takes on each, whole numbers, float64.
        slowest: ticks that a message occupies the slowest link.
        ticks: from each rank to each vertex on a shortest path, float64 of shape (ranks, vertices).
    """

    topology: Topology
    link: np.ndarray
    is_reversed: bool
    length: np.ndarray
    slowest: int
    ticks: np.ndarray

    @classmethod
    def of(cls, topology: Topology, link: np.ndarray, is_reversed: bool, size: Fraction) -> _Way:
        # Whole numbers, so that sums are exact and paths of equal length tie.
        busy, delay = message_ticks(topology, size, 2 * topology.num_vertices)
        length = delay.astype(np.float64)
        ticks = distances_from_ranks(topology, length)
        return cls(topology, link, is_reversed, length, int(busy.max()), ticks)

    def farthest(self, members: np.ndarray | list[int]) -> np.ndarray:
        """Ticks from each rank to the farthest of some ranks, float64 of shape (ranks,)."""
        return self.ticks[:, members].max(axis=1)

    def tree(self, middle: int, members: np.ndarray, load: np.ndarray) -> _Tree:
        """Shortest paths to some ranks, by the links that were used the least; they are loaded.

        Args:
            load: messages on each link of the real network.
        """
        ticks, src, dst = self.ticks[middle], self.topology.src, self.topology.dst
        is_reached = np.isfinite(ticks[dst])
        tight = np.flatnonzero(is_reached & (ticks[src] + self.length == ticks[dst]))
        # The first of each vertex in order of load, written last, stands.
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
        # Where ways meet, ranks add or copy, and switches do neither.
        stops = (branches > 1) & (np.arange(len(into)) < self.topology.num_ranks)
        stops[members] = stops[middle] = True
        ends = inner[stops[inner]]
        begins, ptr, path = self._paths(ends[np.argsort(ticks[ends], kind="stable")], into, stops)
        np.add.at(load, path, 1)
        return _Tree(ptr, path, ticks[begins], np.sort(ticks[ends]))

    def _paths(
        self, ends: np.ndarray, into: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the ways to some ranks stop before, and the links from there, as (ptr, links)."""
        row, at, rows, links = np.arange(len(ends)), ends, [ends[:0]], [ends[:0]]
        begins = np.empty(len(ends), np.int64)
        while row.size:  # a link of every path that goes on
            rows.append(row)
            links.append(into[at])
            at = self.topology.src[into[at]]
            begins[row] = at
            row, at = row[~stops[at]], at[~stops[at]]
        # Found from the far end inwards, the order in which sums cross them.
        every, found = np.concatenate(rows), np.concatenate(links)
        order = np.argsort(every, kind="stable")
        if not self.is_reversed:
            order = len(every) - 1 - np.argsort(every[::-1], kind="stable")
        ptr = np.append(0, np.cumsum(np.bincount(every, minlength=len(ends))))
        return begins, ptr, self.link[found[order]]


@functools.lru_cache(maxsize=4)
def _ways(topology: Topology, size: Fraction) -> tuple[_Way, _Way]:
    """The ways of sums and of copies, for messages of so many bytes."""
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
    """The schedule of messages whose links take them in the order of their times."""
    sizes = np.concatenate([np.diff(each.tree.path_ptr) for each in messages])
    path = np.concatenate([each.tree.path for each in messages])
    edges, edge = distinct_edges(topology, np.append(0, np.cumsum(sizes)), path)
    order = np.argsort(np.concatenate([each.begin for each in messages]), kind="stable")
    counts = [len(each.begin) for each in messages]
    first, last = np.repeat([each.chunks for each in messages], counts, axis=0)[order].T
    reduce = np.repeat([each.reduce for each in messages], counts)[order]
    # A step per message, in order, and then as few steps as keep that order.
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
