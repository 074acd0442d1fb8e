"""Alternating paths at one rank: trees exchange the arcs by which they enter it.

All functions are compiled, and work on the columns of ``spanning``.
"""

from __future__ import annotations

from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.forestcoll.packing.spanning import (
    LEFT,
    goes_on,
    has_rows,
    is_below,
    may_take,
    part,
    take,
)


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
