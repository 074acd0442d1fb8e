"""Balancing: shortest-path trees, changed until no arc carries more than its capacity.

Every rank starts with breadth-first trees, which may overload arcs. As the arcs into a rank carry
only that rank's edges, an overload at a rank is taken away there: a tree may enter the rank by any
arc that does not come from the rank's own descendants, so trees are moved along alternating paths
of arcs, from an overloaded one to one with capacity to spare. Most networks need nothing else.
Where all arcs to spare come from descendants of a rank, one of these is moved from under it first.

Nothing here proves that trees exist (Edmonds does), and nothing guarantees that they are found:
``packing`` falls back to the exact way. Trees that are found are as high as the breadth-first ones
if possible; what is higher is then lowered by the same moves.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from jaxcoll.synth.forestcoll.rehang import Trees
from jaxcoll.synth.forestcoll.spanning import (
    Arcs,
    Batches,
    Lists,
    is_below,
    list_batches,
    may_take,
    part,
    reach_below,
    shortest_trees,
    take,
    with_room,
)

# Sweeps over all ranks that may end without having removed an overload for good.
_PATIENCE = 12


def balanced_trees(arcs: Arcs, trees: tuple[int, ...]) -> Trees | None:
    """Spanning trees from every root, no arc carrying more than its capacity; None if not found.

    Args:
        trees: trees each rank is the root of; their sum and that of the capacities below 2**61.
    """
    work = _Balancing(arcs, trees)
    if not work.reached or not work.balance():
        return None
    work.lower()
    return work.trees()


class _Balancing:
    """Batches of trees on their way to balance, in columns that grow."""

    def __init__(self, arcs: Arcs, trees: tuple[int, ...]):
        n, links = len(trees), len(arcs.tail)
        roots = np.flatnonzero(np.asarray(trees)).astype(np.int64)
        weights = np.asarray(trees, np.int64)[roots]
        self.arcs = arcs
        self.batches, self.load = shortest_trees(arcs, roots, weights)
        self.count = len(roots)
        self.reached = bool((self.batches.depth >= 0).all())
        self.lists = Lists(np.empty(links, np.int64), *np.empty((3, self.count), np.int64))
        # By arc: the batch that an alternating path moves onto it, and from which arc; a queue, and
        # the arcs it has not met. Then ranks of a subtree.
        self.scratch = (*np.empty((4, links + 1), np.int64), np.empty(n, np.int64))
        self.most = n - 1

    @property
    def height(self) -> int:
        return int(self.batches.depth[: self.count].max())

    @property
    def excess(self) -> int:
        return int(np.maximum(self.load - self.arcs.capacity, 0).sum())

    def balance(self) -> bool:
        """Move trees until no arc is overloaded, within as little height as possible."""
        height, left = self.height, self.excess
        wide = min(self.most, 2 * height + 2)
        while left and height < wide:
            self._sweep(_settle_all, height)
            now = self.excess
            if now > left - (left >> 3):
                height += 1
            left = now
        patience = _PATIENCE
        while left and patience:
            self._sweep(_settle_all, height)
            self._sweep(_clear_all, height)
            now = self.excess
            if now >= left:
                patience -= 1
                height = min(self.most, height + 1 + height // 8)
            left = now
        return not left

    def lower(self) -> None:
        """Lower the highest trees one edge at a time, as long as all of them can be."""
        lowest = self._least_height()
        while self.height > lowest:
            before = self.height
            self._sweep(_lower_all, before - 1)
            if self.height == before:
                break

    def _least_height(self) -> int:
        roots = np.unique(self.batches.root[: self.count])
        return int(shortest_trees(self.arcs, roots, np.ones(len(roots), np.int64))[0].depth.max())

    def _sweep(self, kernel, height: int) -> None:
        self.batches, self.lists, self.count = kernel(
            self.arcs, self.batches, self.lists, self.load, self.scratch, self.count, height
        )

    def trees(self) -> Trees:
        """The batches as trees, ranks by depth."""
        b = Batches(*(column[: self.count] for column in self.batches))
        order = np.argsort(b.depth, axis=1, kind="stable").astype(np.int32)
        parent = np.where(b.arc >= 0, self.arcs.tail[b.arc], -1).astype(np.int32)
        return Trees(b.root, b.weight, order, np.take_along_axis(parent, order, axis=1))


@nb.njit(cache=True)
def _settle_all(arcs, batches, lists, load, scratch, count, height):
    """Take overloads away at every rank, as far as its own arcs allow."""
    for v in range(len(arcs.ptr) - 1):
        if _overloaded(arcs, load, v) >= 0:
            list_batches(arcs, batches, lists, count, v)
            for rise in (0, 2, len(arcs.ptr)):
                batches, lists, count = _shift(
                    arcs, batches, lists, load, scratch, count, v, rise, height
                )
                batches, lists, count = _alternate(
                    arcs, batches, lists, load, scratch, count, v, rise, height
                )
                if _overloaded(arcs, load, v) < 0:
                    break
    return batches, lists, count


@nb.njit(cache=True)
def _overloaded(arcs, load, v):
    """The first overloaded arc into v, or -1."""
    for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
        if load[a] > arcs.capacity[a]:
            return a
    return -1


@nb.njit(cache=True)
def _shift(arcs, batches, lists, load, scratch, count, v, rise, height):
    """Move trees from overloaded arcs into v straight to arcs with capacity to spare.

    Whole batches first; parts of batches where no capacity takes a whole one.
    """
    spare, ranks = scratch[3], scratch[4]
    for whole in (True, False):
        free = 0
        for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
            if load[a] < arcs.capacity[a]:
                spare[free] = a
                free += 1
        for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
            b = lists.first[a] if load[a] > arcs.capacity[a] else -1
            while b >= 0 and free and load[a] > arcs.capacity[a]:
                after, best, place = lists.after[b], -1, -1
                for i in range(free):
                    w = spare[i]
                    if whole and arcs.capacity[w] - load[w] < batches.weight[b]:
                        continue
                    if best >= 0:
                        now, then = arcs.tail[best], arcs.tail[w]
                        if batches.depth[b, then] >= batches.depth[b, now]:
                            continue
                    if may_take(arcs, batches, lists, b, v, w, rise, height, ranks):
                        best, place = w, i
                if best >= 0:
                    amount = min(batches.weight[b], arcs.capacity[best] - load[best])
                    if amount < batches.weight[b]:
                        batches, lists = with_room(batches, lists, count, 1)
                        part(batches, lists, count, b, v, amount)
                        count += 1
                    take(arcs, batches, lists, b, v, best, ranks)
                    load[a] -= amount
                    load[best] += amount
                    if load[best] == arcs.capacity[best]:
                        free -= 1
                        spare[place] = spare[free]
                b = after
    return batches, lists, count


@nb.njit(cache=True)
def _alternate(arcs, batches, lists, load, scratch, count, v, rise, height):
    """Move trees from overloaded arcs into v along alternating paths to arcs with some to spare."""
    while _overloaded(arcs, load, v) >= 0:
        end = _search(arcs, batches, lists, load, scratch, v, -1, -1, rise, height)
        if end < 0:
            break
        batches, lists, count, _ = _follow(
            arcs, batches, lists, load, scratch, count, v, end, -1, 2**62
        )
    return batches, lists, count


@nb.njit(cache=True)
def _search(arcs, batches, lists, load, scratch, v, only, ban, rise, height):
    """The last arc of an alternating path at v, whose steps are left in ``scratch``; -1 if none.

    A step moves one batch from one arc into v to another. The path starts at an overloaded arc and
    ends at one with capacity to spare.

    Args:
        only: if at least 0, the path starts with this batch instead, which ends neither below
            rank ``ban`` nor, with the arc it leaves, deeper than ``rise`` allows; the path may then
            also end where it started.
    """
    via, origin, queue, rest, ranks = scratch
    start = batches.arc[only, v] if only >= 0 else -1
    left, last = 0, 0
    for spare in (True, False):  # arcs where the path can end are tried first
        for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
            if (load[a] < arcs.capacity[a]) != spare or a == start:
                continue
            if only < 0 and load[a] > arcs.capacity[a]:
                queue[last] = a
                origin[a] = -1
                last += 1
            else:
                rest[left] = a
                left += 1
    if only >= 0:
        queue[0], last = start, 1
        rest[left] = start  # met only by other batches
        left += 1
    first = 0
    while first < last:
        a = queue[first]
        forced = only >= 0 and first == 0
        first += 1
        b = only if forced else lists.first[a]
        while b >= 0 and left:
            i = left if b == only and not forced else 0
            while i < left:
                w = rest[i]
                limit = rise if forced or only < 0 else len(ranks)
                if (
                    w == a
                    or not may_take(arcs, batches, lists, b, v, w, limit, height, ranks)
                    or (forced and ban >= 0 and is_below(arcs, batches, b, ban, arcs.tail[w]))
                ):
                    i += 1
                    continue
                via[w], origin[w] = b, a
                if load[w] < arcs.capacity[w] or w == start:
                    return w
                queue[last] = w
                last += 1
                left -= 1
                rest[i] = rest[left]
            b = -1 if forced else lists.after[b]
    return -1


@nb.njit(cache=True)
def _follow(arcs, batches, lists, load, scratch, count, v, end, start, limit):
    """Move batches along the path that ``_search`` found, or parts of them; also how many trees."""
    via, origin, ranks = scratch[0], scratch[1], scratch[4]
    amount, a, steps = limit, end, 0
    if end != start:
        amount = min(amount, arcs.capacity[end] - load[end])
    while True:
        amount = min(amount, batches.weight[via[a]])
        a = origin[a]
        steps += 1
        if a == start or (start < 0 and origin[a] < 0):
            break
    if start < 0:
        amount = min(amount, load[a] - arcs.capacity[a])
    batches, lists = with_room(batches, lists, count, steps)
    first, a = a, end
    for _ in range(steps):
        b, before = via[a], origin[a]
        if batches.weight[b] > amount:
            part(batches, lists, count, b, v, amount)
            count += 1
        take(arcs, batches, lists, b, v, a, ranks)
        a = before
    load[end] += amount
    load[first] -= amount
    return batches, lists, count, amount


@nb.njit(cache=True)
def _clear_all(arcs, batches, lists, load, scratch, count, height):
    """At every rank that is still overloaded, move descendants out of the way of spare arcs."""
    for v in range(len(arcs.ptr) - 1):
        a = _overloaded(arcs, load, v)
        b, end = 0, count
        while a >= 0 and b < end:
            if batches.arc[b, v] >= 0 and load[batches.arc[b, v]] > arcs.capacity[batches.arc[b, v]]:
                batches, lists, count = _clear(
                    arcs, batches, lists, load, scratch, count, v, b, height
                )
                a = _overloaded(arcs, load, v)
            b += 1
    return batches, lists, count


@nb.njit(cache=True)
def _clear(arcs, batches, lists, load, scratch, count, v, b, height):
    """Move batch b at v to a spare arc from a descendant, which first leaves the subtree of v.

    One of the ranks from v's child down to the descendant takes another parent, by an
    alternating path at that rank.
    """
    ranks, many = scratch[4], len(scratch[4])
    for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
        if load[a] >= arcs.capacity[a]:
            continue
        x = arcs.tail[a]
        if not is_below(arcs, batches, b, v, x):
            continue
        while x != v:
            list_batches(arcs, batches, lists, count, x)
            start = batches.arc[b, x]
            end = _search(arcs, batches, lists, load, scratch, x, b, v, many, height)
            if end >= 0:
                old = batches.arc[b, v]
                limit = min(load[old] - arcs.capacity[old], arcs.capacity[a] - load[a])
                batches, lists, count, amount = _follow(
                    arcs, batches, lists, load, scratch, count, x, end, start, limit
                )
                list_batches(arcs, batches, lists, count, v)
                if may_take(arcs, batches, lists, b, v, a, many, height, ranks):
                    take(arcs, batches, lists, b, v, a, ranks)
                    load[old] -= amount
                    load[a] += amount
                return batches, lists, count
            x = arcs.tail[start]
    return batches, lists, count


@nb.njit(cache=True)
def _lower_all(arcs, batches, lists, load, scratch, count, height):
    """Move ranks of trees higher than ``height`` up, until none is; stop where one cannot be."""
    b = 0
    while b < count:
        v = 0
        while v < len(arcs.ptr) - 1:
            if batches.depth[b, v] <= height:
                v += 1
                continue
            x, end = v, -1
            while end < 0 and batches.arc[b, x] >= 0:
                list_batches(arcs, batches, lists, count, x)
                start = batches.arc[b, x]
                end = _search(arcs, batches, lists, load, scratch, x, b, -1, -1, height)
                if end >= 0:
                    batches, lists, count, _ = _follow(
                        arcs, batches, lists, load, scratch, count, x, end, start, 2**62
                    )
                x = arcs.tail[start]
            if end < 0:
                return batches, lists, count
        b += 1
    return batches, lists, count
