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
    # Every link keeps a heap, in its own part of two arrays, of messages that wait for it: of those
    # that pass through the network all, of each tree edge that starts on the link the next one, as
    # pieces of a tree keep their order.
    heap_ptr = np.zeros(len(pace) + 1, np.int64)
    for j in range(count):
        heap_ptr[path_link[path_ptr[edge[j]]] + 1] += 1
        for h in range(path_ptr[edge[j]] + 1, path_ptr[edge[j] + 1]):
            heap_ptr[path_link[h] + 1] += pieces
    for link in range(len(pace)):
        heap_ptr[link + 1] += heap_ptr[link]
    key, item = np.empty(heap_ptr[-1], np.int64), np.empty(heap_ptr[-1], np.int64)
    size = np.zeros(len(pace), np.int64)
    come = np.zeros(count, np.int64)  # pieces that have arrived where each tree edge starts
    gone = np.zeros(count, np.int64)  # pieces that have left there
    busy = np.full(len(pace), -1, np.int64)  # the message on each link
    times, events = np.empty(len(pace) + 1, np.int64), np.empty(len(pace) + 1, np.int64)
    pending = 0
    hop = np.zeros(count * pieces, np.int64)
    begin = np.zeros(count * pieces, np.int64)
    for j in range(count):
        if before[j] < 0:
            link = path_link[path_ptr[edge[j]]]
            come[j] = pieces
            _push(key, item, heap_ptr[link], size, link, -below[j], j * pieces)
    for link in range(len(pace)):
        pending = _serve(
            link, 0, pace, weight, per_tree, pieces, heap_ptr, key, item, size, come, gone, busy,
            hop, begin, times, events, pending,
        )  # fmt: skip
    while pending:
        now, link = times[0], events[0]
        message = busy[link]
        j, p = message // pieces, message % pieces
        hop[message] += 1
        following = path_ptr[edge[j]] + hop[message]
        if following < path_ptr[edge[j] + 1]:
            to = path_link[following]
            _push(key, item, heap_ptr[to], size, to, now, message)
            pending = _serve(
                to, now, pace, weight, per_tree, pieces, heap_ptr, key, item, size, come, gone,
                busy, hop, begin, times, events, pending,
            )  # fmt: skip
        else:
            for c in child[child_ptr[j] : child_ptr[j + 1]]:
                to = path_link[path_ptr[edge[c]]]
                come[c] += 1
                if come[c] == gone[c] + 1:
                    _push(key, item, heap_ptr[to], size, to, p - below[c], c * pieces + p)
                pending = _serve(
                    to, now, pace, weight, per_tree, pieces, heap_ptr, key, item, size, come, gone,
                    busy, hop, begin, times, events, pending,
                )  # fmt: skip
        # Links that began now are done later, so that this one still stands first.
        if size[link]:
            done = _start(
                link, now, pace, weight, per_tree, pieces, heap_ptr, key, item, size, come, gone,
                busy, hop, begin,
            )  # fmt: skip
            heap.replace(times, events, 0, pending, done, link)
        else:
            busy[link] = -1
            pending = heap.pop(times, events, 0, pending)
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
    link, now, pace, weight, per_tree, pieces, heap_ptr, key, item, size, come, gone, busy, hop,
    begin, times, events, pending,
):  # fmt: skip
    """Put the first waiting message on a link if it is free; the number of links at work."""
    if busy[link] >= 0 or size[link] == 0:
        return pending
    done = _start(
        link, now, pace, weight, per_tree, pieces, heap_ptr, key, item, size, come, gone, busy,
        hop, begin,
    )  # fmt: skip
    return heap.push(times, events, 0, pending, done, link)


@nb.njit(cache=True)
def _start(
    link, now, pace, weight, per_tree, pieces, heap_ptr, key, item, size, come, gone, busy, hop,
    begin,
):  # fmt: skip
    """Put the first waiting message on a link; when it is done."""
    first = heap_ptr[link]
    value, message = key[first], item[first]
    j = message // pieces
    busy[link] = message
    if hop[message] > 0:
        size[link] = heap.pop(key, item, first, size[link])
    else:
        begin[message] = now
        gone[j] += 1
        if come[j] > gone[j]:  # the next piece waits already
            heap.replace(key, item, first, size[link], value + 1, message + 1)
        else:
            size[link] = heap.pop(key, item, first, size[link])
    return now + pace[link] * weight[j // per_tree]


@nb.njit(cache=True)
def _push(key, item, first, size, link, value, message):
    size[link] = heap.push(key, item, first, size[link], value, message)
