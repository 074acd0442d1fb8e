"""The order in which links carry the segments of trees when none waits longer than its turn.

A run of the network without latencies: a link that is free takes, of the segments that have
arrived, the one with the farthest to go less its place in the sequence of its tree; inside the
network, first come, first served. Low trees fill the gaps that high ones leave, and high ones end
early.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import followers


@kernel(cache=True)
def stream_order(edge, path_ptr, path_link, pace, before, weight, pieces):
    """When each message (tree edge x pieces + piece) starts on its first link, in ticks.

    Args:
        edge: edge of each tree edge, tree by tree.
        path_ptr, path_link: the links of each edge.
        pace: ticks that a tree of weight 1 takes on each link, for one piece.
        before: the tree edge that brings what each tree edge carries on, -1 at the root.
        weight: weight of each tree.
    """
    count, links, per_tree = len(edge), len(pace), len(edge) // len(weight)
    below = _farthest(before)
    child_ptr, child = followers(before)
    # Every link keeps the messages that wait for it in a heap of its own part of two arrays.
    heap_ptr = queue_starts(edge, path_ptr, path_link, links) * pieces
    key, item = np.empty(heap_ptr[-1], np.int64), np.empty(heap_ptr[-1], np.int64)
    size = np.zeros(links, np.int64)
    hop, begin = np.zeros(count * pieces, np.int64), np.zeros(count * pieces, np.int64)
    for j in range(count):
        if before[j] < 0:
            link = path_link[path_ptr[edge[j]]]
            for p in range(pieces):
                first, message = heap_ptr[link], j * pieces + p
                size[link] = heap.push(key, item, first, size[link], p - below[j], message)
    # Events: a link is done with its message, or at first with none. They ascend by time and link.
    on_link, pending = np.full(links, -1, np.int64), links
    times, events = np.zeros(links + 1, np.int64), np.arange(links + 1)
    while pending:
        now, done = times[0], events[0]
        pending = heap.pop(times, events, 0, pending)
        message = on_link[done]
        on_link[done] = -1
        j, p = message // pieces, message % pieces
        arrivals, moves_on = 0, False
        if message >= 0:
            hop[message] += 1
            moves_on = hop[message] < path_ptr[edge[j] + 1] - path_ptr[edge[j]]
            arrivals = 1 if moves_on else child_ptr[j + 1] - child_ptr[j]
        for a in range(arrivals + 1):
            link = done
            if a < arrivals:
                # The message waits for the next link of its path, or its copies for their first.
                c = j if moves_on else child[child_ptr[j] + a]
                waiting, rank = c * pieces + p, now if moves_on else p - below[c]
                link = path_link[path_ptr[edge[c]] + hop[waiting]]
                size[link] = heap.push(key, item, heap_ptr[link], size[link], rank, waiting)
            if on_link[link] < 0 and size[link] > 0:
                message = item[heap_ptr[link]]
                size[link] = heap.pop(key, item, heap_ptr[link], size[link])
                on_link[link] = message
                if hop[message] == 0:
                    begin[message] = now
                end = now + pace[link] * weight[message // pieces // per_tree]
                pending = heap.push(times, events, 0, pending, end, link)
    return begin


@kernel(cache=True, nogil=True)
def queue_starts(edge, path_ptr, path_link, links):
    """First place of each link in a column with a place for every (send, link of its path).

    Args:
        edge: edge of each send.
        path_ptr, path_link: links of each edge.
        links: how many links there are.
    """
    ptr = np.zeros(links + 1, np.int64)
    for e in edge:
        for h in range(path_ptr[e], path_ptr[e + 1]):
            ptr[path_link[h] + 1] += 1
    for link in range(links):
        ptr[link + 1] += ptr[link]
    return ptr


@kernel(cache=True)
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


@kernel(cache=True)
def _farthest(before):
    """How many more edges what each tree edge carries goes down at most."""
    below = np.zeros(len(before), np.int64)
    for j in range(len(before) - 1, -1, -1):
        if before[j] >= 0:
            below[before[j]] = max(below[before[j]], below[j] + 1)
    return below
