"""The order in which links carry the segments of trees when none waits longer than its turn.

A run of the network without latencies: a link that is free takes, of the segments that have
arrived, the one with the farthest to go less its place in the sequence of its tree; inside the
network, first come, first served. Low trees fill the gaps that high ones leave, and high ones end
early.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from jaxcoll.numerics import heap


@nb.njit(cache=True)
def stream_order(edge, path_ptr, path_link, pace, before, weight, pieces):
    """When each message (tree edge x pieces + piece) starts on its first link, in ticks.

    Args:
        edge: edge of each tree edge, tree by tree.
        path_ptr, path_link: the links of each edge.
        pace: ticks that a tree of weight 1 takes on each link, for one piece.
        before: the tree edge that brings what each tree edge carries on, -1 at the root.
        weight: weight of each tree.
    """
    count, per_tree = len(edge), len(edge) // len(weight)
    below = _farthest(before)
    child_ptr, child = _children(before)
    # Every link keeps the messages that wait for it in a heap of its own part of two arrays.
    heap_ptr = np.zeros(len(pace) + 1, np.int64)
    for j in range(count):
        for h in range(path_ptr[edge[j]], path_ptr[edge[j] + 1]):
            heap_ptr[path_link[h] + 1] += pieces
    for link in range(len(pace)):
        heap_ptr[link + 1] += heap_ptr[link]
    key, item = np.empty(heap_ptr[-1], np.int64), np.empty(heap_ptr[-1], np.int64)
    size = np.zeros(len(pace), np.int64)
    busy = np.full(len(pace), -1, np.int64)  # the message on each link
    times, events = np.empty(len(pace) + 1, np.int64), np.empty(len(pace) + 1, np.int64)
    pending = 0
    hop = np.zeros(count * pieces, np.int64)
    begin = np.zeros(count * pieces, np.int64)
    for j in range(count):
        if before[j] < 0:
            link = path_link[path_ptr[edge[j]]]
            for p in range(pieces):
                _push(key, item, heap_ptr[link], size, link, p - below[j], j * pieces + p)
    for link in range(len(pace)):
        pending = _serve(
            link, 0, edge, path_ptr, pace, weight, per_tree, pieces, heap_ptr, key, item, size,
            busy, hop, begin, times, events, pending,
        )  # fmt: skip
    while pending:
        now, link = times[0], events[0]
        pending = heap.pop(times, events, 0, pending)
        message = busy[link]
        busy[link] = -1
        j, p = message // pieces, message % pieces
        hop[message] += 1
        following = path_ptr[edge[j]] + hop[message]
        if following < path_ptr[edge[j] + 1]:
            to = path_link[following]
            _push(key, item, heap_ptr[to], size, to, now, message)
            pending = _serve(
                to, now, edge, path_ptr, pace, weight, per_tree, pieces, heap_ptr, key, item, size,
                busy, hop, begin, times, events, pending,
            )  # fmt: skip
        else:
            for c in range(child_ptr[j], child_ptr[j + 1]):
                to = path_link[path_ptr[edge[child[c]]]]
                rank = p - below[child[c]]
                _push(key, item, heap_ptr[to], size, to, rank, child[c] * pieces + p)
                pending = _serve(
                    to, now, edge, path_ptr, pace, weight, per_tree, pieces, heap_ptr, key, item,
                    size, busy, hop, begin, times, events, pending,
                )  # fmt: skip
        pending = _serve(
            link, now, edge, path_ptr, pace, weight, per_tree, pieces, heap_ptr, key, item, size,
            busy, hop, begin, times, events, pending,
        )  # fmt: skip
    return begin


@nb.njit(cache=True)
def stream_steps(sequence, before, edge, first_link, links, pieces):
    """The step of each message: after what brings its piece, in sequence on its first link.

    Messages of one edge get steps of their own, so that they stay apart.
    """
    step = np.zeros(len(sequence), np.int64)
    on_link = np.zeros(links, np.int64)
    on_edge = np.full(len(first_link), -1, np.int64)
    for message in sequence:
        j, p = message // pieces, message % pieces
        e = edge[j]
        t = max(on_link[first_link[e]], on_edge[e] + 1)
        if before[j] >= 0:
            t = max(t, step[before[j] * pieces + p] + 1)
        step[message] = on_link[first_link[e]] = on_edge[e] = t
    return step


@nb.njit(cache=True)
def _farthest(before):
    """How many more edges what each tree edge carries goes down at most."""
    below = np.zeros(len(before), np.int64)
    for j in range(len(before) - 1, -1, -1):
        if before[j] >= 0:
            below[before[j]] = max(below[before[j]], below[j] + 1)
    return below


@nb.njit(cache=True)
def _children(before):
    """The tree edges that carry on what each brings, as (ptr, child)."""
    ptr = np.zeros(len(before) + 1, np.int64)
    for j in range(len(before)):
        if before[j] >= 0:
            ptr[before[j] + 1] += 1
    for j in range(len(before)):
        ptr[j + 1] += ptr[j]
    at = ptr[:-1].copy()
    child = np.empty(ptr[-1], np.int64)
    for j in range(len(before)):
        if before[j] >= 0:
            child[at[before[j]]] = j
            at[before[j]] += 1
    return ptr, child


@nb.njit(cache=True)
def _serve(
    link, now, edge, path_ptr, pace, weight, per_tree, pieces, heap_ptr, key, item, size, busy,
    hop, begin, times, events, pending,
):  # fmt: skip
    """Put the first waiting message on a link if it is free; the number of links at work."""
    if busy[link] >= 0 or size[link] == 0:
        return pending
    first = heap_ptr[link]
    message = item[first]
    size[link] = heap.pop(key, item, first, size[link])
    busy[link] = message
    j = message // pieces
    if hop[message] == 0:
        begin[message] = now
    return heap.push(times, events, 0, pending, now + pace[link] * weight[j // per_tree], link)


@nb.njit(cache=True)
def _push(key, item, first, size, link, value, message):
    size[link] = heap.push(key, item, first, size[link], value, message)
