"""Trees while they are balanced: columns that kernels change, and moves along alternating paths.

A tree has one arc into each rank but its root, so trees are columns of arcs, and arcs are listed by
their head. A batch is a number of identical trees, named by its row. A rank of a batch may be moved
to another arc into it that does not come from below the rank. Where that arc is full, another batch
is moved off it, and so on: an alternating path, as augmenting paths of a bipartite matching are.
"""

from __future__ import annotations

from collections import namedtuple

from jaxcoll.numerics.compiled import kernel

# Arcs with capacity, sorted by head: those into v are ptr[v]..ptr[v + 1]; those out of u are
# out[out_ptr[u]:out_ptr[u + 1]]. All int64.
Arcs = namedtuple("Arcs", ["ptr", "tail", "head", "capacity", "out_ptr", "out"])

# Rows are batches, columns ranks: the arc into each rank (-1 at the root), its depth, its number of
# children; ``root`` and ``weight`` by batch. Rows beyond the batches in use are room to grow.
Batches = namedtuple("Batches", ["root", "weight", "arc", "depth", "children"])

# By arc: the batch that an alternating path moves onto it, and from which arc; a queue, and the
# arcs it has not met. ``ranks``: those of a subtree. ``tally``: see below.
Scratch = namedtuple("Scratch", ["via", "origin", "queue", "rest", "ranks", "tally"])

# Entries of a tally: batches in use; steps that may still be taken (about one memory access each,
# so that work is bounded by numbers that do not depend on the machine); rows that were missing.
USED, LEFT, SHORT = 0, 1, 2

# Batches by their arc into one rank, as linked lists: of each arc the first batch, of each batch
# the next and the previous one; and how far each batch reaches below the rank (-1: not known yet).
Lists = namedtuple("Lists", ["first", "after", "before", "reach"])


@kernel(cache=True)
def goes_on(scratch):
    """Whether there are steps left, and rows for more batches."""
    return scratch.tally[LEFT] > 0 and scratch.tally[SHORT] == 0


@kernel(cache=True)
def has_rows(batches, scratch, more):
    """Whether there are rows for some more batches; otherwise asks for them."""
    if scratch.tally[USED] + more <= len(batches.root):
        return True
    scratch.tally[SHORT] = more
    return False


@kernel(cache=True)
def list_batches(arcs, batches, lists, scratch, v):
    """List the batches by their arc into v."""
    count = scratch.tally[USED]
    scratch.tally[LEFT] -= count
    for a in range(arcs.ptr[v], arcs.ptr[v + 1]):
        lists.first[a] = -1
    for b in range(count - 1, -1, -1):
        lists.reach[b] = -1
        if batches.arc[b, v] >= 0:
            _enter(lists, b, batches.arc[b, v])


@kernel(cache=True)
def _enter(lists, b, a):
    lists.after[b], lists.before[b] = lists.first[a], -1
    if lists.first[a] >= 0:
        lists.before[lists.first[a]] = b
    lists.first[a] = b


@kernel(cache=True)
def is_below(arcs, batches, b, v, u):
    """Whether u is v or a descendant of v."""
    if batches.children[b, v] == 0:
        return u == v
    while batches.depth[b, u] > batches.depth[b, v]:
        u = arcs.tail[batches.arc[b, u]]
    return u == v


@kernel(cache=True)
def _subtree(arcs, batches, scratch, b, v):
    """List v and its descendants, by depth; their number."""
    ranks = scratch.ranks
    ranks[0] = v
    count, i = 1, 0
    while i < count:
        u = ranks[i]
        i += 1
        left, j = batches.children[b, u], arcs.out_ptr[u]
        while left > 0:
            a = arcs.out[j]
            j += 1
            if batches.arc[b, arcs.head[a]] == a:
                ranks[count] = arcs.head[a]
                count += 1
                left -= 1
    scratch.tally[LEFT] -= count
    return count


@kernel(cache=True)
def may_take(arcs, batches, lists, scratch, b, v, a, rise, height):
    """Whether batch b stays a tree with arc a into v, v at most ``rise`` deeper than before.

    What gets deeper must not exceed the height.
    """
    depth = batches.depth[b, arcs.tail[a]] + 1
    scratch.tally[LEFT] -= 1 + max(0, depth - batches.depth[b, v])
    if depth > batches.depth[b, v] + rise or is_below(arcs, batches, b, v, arcs.tail[a]):
        return False
    if depth <= batches.depth[b, v]:
        return True
    if lists.reach[b] < 0:  # edges from v to its deepest descendant, which ``_subtree`` lists last
        lists.reach[b] = 0
        if batches.children[b, v]:
            count = _subtree(arcs, batches, scratch, b, v)
            deepest = batches.depth[b, scratch.ranks[count - 1]]
            lists.reach[b] = deepest - batches.depth[b, v]
    return depth + lists.reach[b] <= height


@kernel(cache=True)
def take(arcs, batches, lists, scratch, b, v, a):
    """Replace the arc into v. The lists are those of v."""
    # Depths are kept and not recomputed by walks to the root: ``may_take`` reads them for every
    # candidate, and a move changes only those below the rank.
    old = batches.arc[b, v]
    if lists.before[b] >= 0:
        lists.after[lists.before[b]] = lists.after[b]
    else:
        lists.first[old] = lists.after[b]
    if lists.after[b] >= 0:
        lists.before[lists.after[b]] = lists.before[b]
    _enter(lists, b, a)
    rise = batches.depth[b, arcs.tail[a]] + 1 - batches.depth[b, v]
    if rise:
        for i in range(_subtree(arcs, batches, scratch, b, v)):
            batches.depth[b, scratch.ranks[i]] += rise
    batches.children[b, arcs.tail[old]] -= 1
    batches.children[b, arcs.tail[a]] += 1
    batches.arc[b, v] = a


@kernel(cache=True)
def part(batches, lists, scratch, b, v, amount):
    """Leave an amount of trees in batch b and make the rest a batch at the end.

    The lists are those of v; there is a row for it.
    """
    rest, n = scratch.tally[USED], batches.arc.shape[1]
    scratch.tally[USED] += 1
    scratch.tally[LEFT] -= n
    batches.weight[rest] = batches.weight[b] - amount
    batches.weight[b] = amount
    batches.root[rest] = batches.root[b]
    for u in range(n):
        batches.arc[rest, u] = batches.arc[b, u]
        batches.depth[rest, u] = batches.depth[b, u]
        batches.children[rest, u] = batches.children[b, u]
    lists.reach[rest] = lists.reach[b]
    _enter(lists, rest, batches.arc[b, v])


@kernel(cache=True)
def search(arcs, batches, lists, load, scratch, v, only, ban, rise, height):
    """The last arc of an alternating path at v, whose steps are left in ``scratch``; -1 if none.

    A step moves one batch from one arc into v to another. The path starts at an overloaded arc and
    ends at one with capacity to spare.

    Args:
        only: if at least 0, the path starts with this batch instead, which ends neither below
            rank ``ban`` nor, with the arc it leaves, deeper than ``rise`` allows; the path may then
            also end where it started.
    """
    # Breadth first over the arcs into v, as augmenting paths of a bipartite matching are found:
    # batches are matched with arcs, an arc takes as many trees as its capacity. The shortest path
    # moves the fewest batches, which keeps trees as they are and batches whole.
    via, origin, queue, rest = scratch.via, scratch.origin, scratch.queue, scratch.rest
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
    while first < last and goes_on(scratch):
        a = queue[first]
        forced = only >= 0 and first == 0
        first += 1
        b = only if forced else lists.first[a]
        while b >= 0 and left:
            # The batch that is moved by force must not be moved a second time on the same path.
            i = left if b == only and not forced else 0
            limit = rise if forced or only < 0 else len(arcs.ptr)
            now, tails = batches.depth[b, v], batches.depth[b]
            most = max(now, min(now + limit, height)) - 1
            scratch.tally[LEFT] -= left - i
            while i < left:
                w = rest[i]
                if (
                    w == a
                    or tails[arcs.tail[w]] > most  # ``may_take`` would say so, more slowly
                    or not may_take(arcs, batches, lists, scratch, b, v, w, limit, height)
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


@kernel(cache=True)
def follow(arcs, batches, lists, load, scratch, v, end, start, limit):
    """Move batches, or parts, along the path that ``search`` found; how many trees were moved."""
    # As much is moved as the smallest batch on the path has trees, the last arc has room, and the
    # first is over: larger batches are parted, so that the loads of the arcs between stay what they
    # are.
    via, origin = scratch.via, scratch.origin
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
    if not has_rows(batches, scratch, steps):
        return 0
    first, a = a, end
    for _ in range(steps):
        b, before = via[a], origin[a]
        if batches.weight[b] > amount:
            part(batches, lists, scratch, b, v, amount)
        take(arcs, batches, lists, scratch, b, v, a)
        a = before
    load[end] += amount
    load[first] -= amount
    return amount
