"""Trees of many roots by balancing: trees exchange arcs until no pair of ranks carries too many.

Every rank starts with breadth-first trees, which may overload arcs. As the arcs into a rank carry
only that rank's edges, an overload at a rank is taken away there: a tree may enter the rank by any
arc that does not come from the rank's own descendants, so trees are moved along alternating paths
of arcs, from an overloaded one to one with capacity to spare. Most networks need nothing else.
Where all arcs to spare come from descendants of a rank, one of these is moved from under it first.

Nothing here proves that trees exist (Edmonds does), and nothing guarantees that they are found: the
search gives up after a number of steps, and ``balanced_packing`` goes on with tight cuts or the
exact way. Trees that are found are as high as the breadth-first ones if possible; higher trees are
then lowered by the same moves. The moves at one rank are kernels (``alternating_paths``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.forestcoll.shortcuts.alternating_paths import (
    LEFT,
    SHORT,
    USED,
    Arcs,
    Batches,
    Lists,
    Scratch,
    follow,
    goes_on,
    has_rows,
    is_below,
    list_batches,
    may_take,
    part,
    search,
    take,
)
from jaxcoll.synth.forestcoll.spanning import Trees


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """Batches of identical spanning trees.

    Attributes:
        root: root of each batch, int64 of shape (batches,).
        weight: trees in each batch, int64 of shape (batches,).
        arc: the arc into each rank, -1 at the root, int32 of shape (batches, ranks).
    """

    root: np.ndarray
    weight: np.ndarray
    arc: np.ndarray


# Sweeps over all ranks that may end without having removed an overload for good.
_IDLE_SWEEPS = 12
# Steps for each root and each arc that every part of the search may take, and steps at most.
# Searches that succeed take up to three on most networks, and some hundred on dragonflies, all of
# whose arcs must be full.
_STEPS, _MOST_STEPS = 256, 2**33
# Batches that the trees of one root may be parted into, on average.
_PARTS = 64
# The share of all steps after which a brief search gives up.
_BRIEF = 64
# Bound of sums of loads.
_SAFE = 2**61


def arcs_of(num_ranks: int, capacity: dict[tuple[int, int], int]) -> Arcs:
    """The arcs of pairs of ranks."""
    pairs = sorted(((v, u) for (u, v), amount in capacity.items() if amount))
    head = np.asarray([v for v, _ in pairs], np.int64)
    tail = np.asarray([u for _, u in pairs], np.int64)
    amount = np.asarray([capacity[u, v] for v, u in pairs], np.int64)
    out = np.argsort(tail, kind="stable").astype(np.int64)
    ranks = np.arange(num_ranks + 1)
    return Arcs(
        np.searchsorted(head, ranks).astype(np.int64),
        tail,
        head,
        amount,
        np.searchsorted(tail[out], ranks).astype(np.int64),
        out,
    )


def balanced_trees(arcs: Arcs, trees: Sequence[int], *, brief: bool = False) -> Packed | None:
    """Spanning trees from every root, no arc carrying more than its capacity; None if not found.

    Args:
        trees: trees each rank is the root of.
        brief: whether to give up after a 64th of the steps.
    """
    if sum(trees) * len(trees) + sum(arcs.capacity.tolist()) >= _SAFE:
        return None
    roots = np.flatnonzero(np.asarray(trees)).astype(np.int64)
    weight, arc = _shortest_trees(arcs, roots, np.asarray(trees, np.int64)[roots])
    # Every tree has one rank without an arc into it, its root.
    if (arc < 0).sum() > len(roots):  # ranks that are out of reach of some root
        return None
    work = _Balancing(arcs, Packed(roots, weight, arc), _BRIEF if brief else 1)
    if not (work.settle() or work.clear()):
        return None
    # Trees were allowed to rise while overloads were removed. With loads settled, the highest are
    # lowered by the same paths, which keep every load as it is.
    work.lower()
    return Packed(*(column[: work.count] for column in work.batches[:3]))


def as_trees(arcs: Arcs, packed: Packed) -> Trees:
    """Trees as columns of ranks by depth and their parents."""
    depth, _, _ = measured(arcs, packed.weight, packed.arc)
    over = np.where(packed.arc >= 0, arcs.tail[packed.arc], -1)
    return Trees.by_depth(packed.root, packed.weight, over, depth)


@kernel(cache=True, superlinear=True)
def _shortest_trees(arcs, roots, weights):
    """A breadth-first tree from each root: weights, and the arc into each rank, -1 out of reach.

    Of the arcs that end a shortest path to a rank, the tree takes the one with the least load for
    its capacity.
    """
    n, count = len(arcs.ptr) - 1, len(roots)
    arc = np.full((count, n), -1, np.int32)
    load, queue = np.zeros(len(arcs.tail), np.int64), np.empty(n, np.int64)
    for b in range(count):
        depth = np.full(n, -1, np.int64)
        queue[0] = roots[b]
        depth[roots[b]] = 0
        first, last = 0, 1
        while first < last:
            u = queue[first]
            first += 1
            if depth[u]:
                best, least = -1, np.inf
                for a in range(arcs.ptr[u], arcs.ptr[u + 1]):
                    if depth[arcs.tail[a]] == depth[u] - 1:
                        share = (load[a] + weights[b]) / arcs.capacity[a]
                        if share < least:
                            best, least = a, share
                arc[b, u] = best
                load[best] += weights[b]
            for i in range(arcs.out_ptr[u], arcs.out_ptr[u + 1]):
                v = arcs.head[arcs.out[i]]
                if depth[v] < 0:
                    depth[v] = depth[u] + 1
                    queue[last] = v
                    last += 1
    return weights.copy(), arc


@kernel(cache=True)
def measured(arcs, weight, arc):
    """Depths and children of ranks in batches with the given arcs, and the load of each arc."""
    count, n = arc.shape
    depth, children = np.zeros((count, n), np.int16), np.zeros((count, n), np.int16)
    load, path = np.zeros(len(arcs.tail), np.int64), np.empty(n, np.int64)
    for b in range(count):
        for v in range(n):
            length, u = 0, v
            while arc[b, u] >= 0 and depth[b, u] == 0:
                path[length] = u
                length += 1
                u = arcs.tail[arc[b, u]]
            for i in range(length):
                depth[b, path[i]] = depth[b, u] + length - i
            if arc[b, v] >= 0:
                children[b, arcs.tail[arc[b, v]]] += 1
                load[arc[b, v]] += weight[b]
    return depth, children, load


class _Balancing:
    """Batches of trees on their way to balance, in columns that grow."""

    def __init__(self, arcs: Arcs, packed: Packed, share: int):
        links, (count, n) = len(arcs.tail), packed.arc.shape
        self.arcs = arcs
        depth, children, self.load = measured(arcs, packed.weight, packed.arc)
        columns = (packed.root.copy(), packed.weight.copy(), packed.arc.copy())
        self.batches = Batches(*columns, depth, children)
        self.lists = Lists(np.empty(links, np.int64), *np.empty((3, count), np.int64))
        via, origin, queue, rest = np.empty((4, links + 1), np.int64)
        ranks, tally = np.empty(n, np.int64), np.zeros(3, np.int64)
        self.scratch = Scratch(via, origin, queue, rest, ranks, tally)
        self.scratch.tally[USED] = count
        self.steps, self.rows = min(_STEPS * count * links // share, _MOST_STEPS), _PARTS * count
        self.most = n - 1
        self.shortest = self.height

    @property
    def count(self) -> int:
        return int(self.scratch.tally[USED])

    @property
    def height(self) -> int:
        return int(self.batches.depth[: self.count].max())

    @property
    def excess(self) -> int:
        return int(np.maximum(self.load - self.arcs.capacity, 0).sum())

    def settle(self) -> bool:
        """Move trees until no arc is overloaded.

        Trees may stay as low as they are at first, unless too many arcs are overloaded for that.
        """
        self.scratch.tally[LEFT] = self.steps
        lowest, left = self.height, self.excess
        wide = min(self.most, 2 * lowest + 2)
        # Where more than a sixteenth of all edges is too many, low trees are not even tried: they
        # would use up the steps.
        crowded = 16 * left > int(self.load.sum())
        for height in (wide,) if crowded else (lowest, lowest + 1, wide):
            while left:
                self._sweep(_settle_all, min(self.most, height))
                before, left = left, self.excess
                # A sweep that removes less than an eighth has met its limit of height: the next one
                # is tried.
                if 8 * left > 7 * before:
                    break
        return not left

    def clear(self) -> bool:
        """As ``settle``, moving descendants out of the way too, in trees of any height."""
        height, left, idle = self.height, self.excess, _IDLE_SWEEPS
        self.scratch.tally[LEFT] = self.steps
        # Moving descendants out of the way may raise overloads elsewhere for a while, so sweeps
        # that gain nothing are borne a number of times, in trees that may be a little higher each
        # time.
        while left and idle and self.scratch.tally[LEFT] > 0:
            self._sweep(_clear_all, height)
            self._sweep(_settle_all, height)
            now = self.excess
            if now >= left:
                idle -= 1
                height = min(self.most, height + 1 + height // 8)
            left = now
        return not left

    def lower(self) -> None:
        """Lower the highest trees one edge at a time, as long as all of them can be."""
        self.scratch.tally[LEFT] = self.steps
        while self.height > self.shortest:
            before = self.height
            self._sweep(_lower_all, before - 1)
            if self.height == before:
                break

    def _sweep(self, sweep, height: int) -> None:
        """Call a kernel, with more rows as long as it asks for some that it may have."""
        tally = self.scratch.tally
        while True:
            tally[SHORT] = 0
            sweep(self.arcs, self.batches, self.lists, self.load, self.scratch, height)
            if not tally[SHORT]:
                return
            if tally[USED] + tally[SHORT] > self.rows:
                tally[LEFT] = 0
                return
            # A kernel cannot allocate: it stops and says how many rows are missing, and is called
            # again where it was. Every state in between is a valid set of trees, so nothing is
            # lost.
            room = min(self.rows, int(2 * tally[USED] + tally[SHORT]))
            self.batches = Batches(*_with_rows(self.batches, room))
            first, *others = self.lists
            self.lists = Lists(first, *_with_rows(others, room))


def _with_rows(columns: Iterable[np.ndarray], room: int) -> list[np.ndarray]:
    """The same columns with more rows, those at the end of zeros."""
    return [
        np.concatenate([column, np.zeros((room - len(column), *column.shape[1:]), column.dtype)])
        for column in columns
    ]


@kernel(cache=True)
def _settle_all(arcs, batches, lists, load, scratch, height):
    """Take overloads away at every rank, as far as its own arcs allow.

    Whole batches are moved first. Batches are parted only where little is left to move, so that
    few are parted in vain while trees must not be as high as they need to be.
    """
    # First moves that keep the depth of the rank, then those that raise it by two, then any: what
    # can be settled without rising is settled so.
    rises, most = (0, 2, len(arcs.ptr)), batches.weight.max()
    for v in range(len(arcs.ptr) - 1):
        if _excess(arcs, load, v) == 0 or not goes_on(scratch):
            continue
        list_batches(arcs, batches, lists, scratch, v)
        for rise in rises:
            _shift(arcs, batches, lists, load, scratch, v, True, rise, height)
        if _excess(arcs, load, v) > most * (arcs.ptr[v + 1] - arcs.ptr[v]):
            continue
        for rise in rises:
            if most > 1:
                _shift(arcs, batches, lists, load, scratch, v, False, rise, height)
            # Trees that are left move along alternating paths, one search for each: a path
            # changes the loads that the next one must respect.
            for _ in range(4 * (arcs.ptr[v + 1] - arcs.ptr[v])):
                if _overloaded(arcs, load, v) < 0 or not goes_on(scratch):
                    break
                end = search(arcs, batches, lists, load, scratch, v, -1, -1, rise, height)
                if end < 0:
                    break
                follow(arcs, batches, lists, load, scratch, v, end, -1, 2**62)


@kernel(cache=True)
def _excess(arcs, load, v):
    """Trees beyond the capacities of the arcs into v."""
    excess = 0
    for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
        excess += max(0, load[a] - arcs.capacity[a])
    return excess


@kernel(cache=True)
def _overloaded(arcs, load, v):
    """The first overloaded arc into v, or -1."""
    for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
        if load[a] > arcs.capacity[a]:
            return a
    return -1


@kernel(cache=True)
def _shift(arcs, batches, lists, load, scratch, v, whole, rise, height):
    """Move trees from overloaded arcs into v straight to arcs with capacity to spare.

    Args:
        whole: whether batches may not be parted.
    """
    spare, free = scratch.rest, 0
    for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
        if load[a] < arcs.capacity[a]:
            spare[free] = a
            free += 1
    for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
        b = lists.first[a]
        while b >= 0 and free and load[a] > arcs.capacity[a] and goes_on(scratch):
            scratch.tally[LEFT] -= free
            after, best, place = lists.after[b], -1, -1
            now, tails = batches.depth[b, v], batches.depth[b]
            most = max(now, min(now + rise, height)) - 1
            for i in range(free):
                w = spare[i]
                if tails[arcs.tail[w]] > most:  # ``may_take`` would say so, more slowly
                    continue
                lower = (
                    best < 0 or batches.depth[b, arcs.tail[w]] < batches.depth[b, arcs.tail[best]]
                )
                fits = not whole or arcs.capacity[w] - load[w] >= batches.weight[b]
                if (
                    lower
                    and fits
                    and may_take(arcs, batches, lists, scratch, b, v, w, rise, height)
                ):
                    best, place = w, i
            if best >= 0:
                amount = min(batches.weight[b], arcs.capacity[best] - load[best])
                if amount < batches.weight[b]:
                    if not has_rows(batches, scratch, 1):
                        return
                    part(batches, lists, scratch, b, v, amount)
                take(arcs, batches, lists, scratch, b, v, best)
                load[a] -= amount
                load[best] += amount
                if load[best] == arcs.capacity[best]:
                    free -= 1
                    spare[place] = spare[free]
            b = after


@kernel(cache=True)
def _clear_all(arcs, batches, lists, load, scratch, height):
    """At every rank that is still overloaded, move descendants out of the way of spare arcs."""
    for v in range(len(arcs.ptr) - 1):
        a = _overloaded(arcs, load, v)
        b, end = 0, scratch.tally[USED]
        while a >= 0 and b < end and goes_on(scratch):
            if (
                batches.arc[b, v] >= 0
                and load[batches.arc[b, v]] > arcs.capacity[batches.arc[b, v]]
            ):
                _clear(arcs, batches, lists, load, scratch, v, b, height)
                a = _overloaded(arcs, load, v)
            b += 1


@kernel(cache=True)
def _clear(arcs, batches, lists, load, scratch, v, b, height):
    """Move batch b at v to a spare arc from a descendant, which first leaves the subtree of v.

    One of the ranks from v's child down to the descendant takes another parent, by an
    alternating path at that rank.
    """
    many = len(arcs.ptr)
    for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
        if load[a] >= arcs.capacity[a]:
            continue
        x = arcs.tail[a]
        if not is_below(arcs, batches, b, v, x):
            continue
        while x != v and goes_on(scratch):
            list_batches(arcs, batches, lists, scratch, x)
            start = batches.arc[b, x]
            end = search(arcs, batches, lists, load, scratch, x, b, v, many, height)
            if end >= 0:
                old = batches.arc[b, v]
                limit = min(load[old] - arcs.capacity[old], arcs.capacity[a] - load[a])
                amount = follow(arcs, batches, lists, load, scratch, x, end, start, limit)
                list_batches(arcs, batches, lists, scratch, v)
                if amount and may_take(arcs, batches, lists, scratch, b, v, a, many, height):
                    take(arcs, batches, lists, scratch, b, v, a)
                    load[old] -= amount
                    load[a] += amount
                return
            x = arcs.tail[start]


@kernel(cache=True)
def _lower_all(arcs, batches, lists, load, scratch, height):
    """Move ranks of trees higher than ``height`` up, until none is; stop where one cannot be."""
    b = 0
    while b < scratch.tally[USED]:
        v = 0
        while v < len(arcs.ptr) - 1:
            if batches.depth[b, v] <= height:
                v += 1
                continue
            x, end = v, -1
            while end < 0 and batches.arc[b, x] >= 0:
                list_batches(arcs, batches, lists, scratch, x)
                start = batches.arc[b, x]
                end = search(arcs, batches, lists, load, scratch, x, b, -1, -1, height)
                if end >= 0:
                    follow(arcs, batches, lists, load, scratch, x, end, start, 2**62)
                x = arcs.tail[start]
            if end < 0 or not goes_on(scratch):
                return
        b += 1
