"""Links that serve what has longest to go: a run in which every chunk moves on as it arrives.

Of the chunks that wait to leave a rank, a link takes the one whose last destination is farthest in
time, of equals the first in order. Inside the network links serve first come, first served, as they
do when the schedule is run.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import followers
from jaxcoll.trees.stream import queue_starts


@kernel(cache=True, nogil=True)
def served(before, edge, path_ptr, path_link, busy, delay):
    """When each send starts on its first link, in ticks.

    Args:
        before: the send that brings what each send carries on, a smaller number; -1 if the
            rank has it at the start.
        edge: edge of each send.
        path_ptr, path_link: links of each edge.
        busy: how long a send occupies each link, in ticks, at least 1.
        delay: how long it takes to the end of each link, in ticks, at least as long.
    """
    sends, links = len(edge), len(busy)
    left = _time_left(before, edge, path_ptr, path_link, delay)
    next_ptr, following = followers(before)
    # Every link keeps the sends that wait for it in a heap of its own part of two arrays.
    heap_ptr = queue_starts(edge, path_ptr, path_link, links)
    key, item = np.empty(heap_ptr[-1], np.int64), np.empty(heap_ptr[-1], np.int64)
    size = np.zeros(links, np.int64)
    awake = np.zeros(links, np.bool_)  # whether a link has an event ahead of it
    # Events: send i reaches the end of a link, i; link l can take a send, sends + l. At any moment
    # sends come first, so that a link sees every chunk that has arrived.
    times, events = np.empty(sends + links, np.int64), np.empty(sends + links, np.int64)
    pending = 0
    begin, hop = np.zeros(sends, np.int64), path_ptr[edge]
    for i in range(sends):
        if before[i] < 0:
            link = path_link[hop[i]]
            size[link] = heap.push(key, item, heap_ptr[link], size[link], -left[i], i)
            if not awake[link]:
                awake[link] = True
                pending = heap.push(times, events, 0, pending, 0, sends + link)
    while pending:
        now, event = times[0], events[0]
        pending = heap.pop(times, events, 0, pending)
        if event >= sends:
            link = event - sends
            awake[link] = size[link] > 0
            if awake[link]:
                i = item[heap_ptr[link]]
                size[link] = heap.pop(key, item, heap_ptr[link], size[link])
                if hop[i] == path_ptr[edge[i]]:
                    begin[i] = now
                hop[i] += 1
                pending = heap.push(times, events, 0, pending, now + delay[link], i)
                pending = heap.push(times, events, 0, pending, now + busy[link], event)
            continue
        # The send waits for the next link of its path, or those that follow it for their first.
        moves_on = hop[event] < path_ptr[edge[event] + 1]
        arrivals = 1 if moves_on else next_ptr[event + 1] - next_ptr[event]
        for a in range(arrivals):
            i = event if moves_on else following[next_ptr[event] + a]
            link, rank = path_link[hop[i]], now if moves_on else -left[i]
            size[link] = heap.push(key, item, heap_ptr[link], size[link], rank, i)
            if not awake[link]:
                awake[link] = True
                pending = heap.push(times, events, 0, pending, now, sends + link)
    return begin


@kernel(cache=True, nogil=True)
def _time_left(before, edge, path_ptr, path_link, delay):
    """How long what each send carries takes to where it ends last, if nothing is in its way."""
    left = np.zeros(len(before), np.int64)
    for i in range(len(before) - 1, -1, -1):
        for h in range(path_ptr[edge[i]], path_ptr[edge[i] + 1]):
            left[i] += delay[path_link[h]]
        if before[i] >= 0:
            left[before[i]] = max(left[before[i]], left[i])
    return left
