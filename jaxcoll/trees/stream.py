"""The order in which links carry the segments of trees.

It comes from a run of the network without latencies. A free link takes, of the segments that have
arrived, the one with the largest remaining distance less its place in the sequence of its tree;
inside the network, links serve first come, first served. So low trees fill the gaps that high trees
leave, and high trees end early.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import followers

# The most events of a call: kernels do not see signals, which Python handles between calls.
_EVENTS_AT_ONCE, _STEPS_AT_ONCE = 1 << 18, 1 << 21


class _Streams(NamedTuple):
    """Messages that wait for links, and links that carry messages.

    Attributes:
        below: see ``_farthest``; child_ptr, child: the tree edges that continue each tree edge.
        heap_ptr, key, item, size: a heap per link, in its part of two arrays, with the messages
            that wait for the link.
        hop: the link of its path that each message takes next.
        begin: the tick when each message starts on its first link.
        on_link: the message on each link, or -1.
        times, events: heap of events, by time and link: the link becomes free, which is also the
            first event of each link.
    """

    below: np.ndarray
    child_ptr: np.ndarray
    child: np.ndarray
    heap_ptr: np.ndarray
    key: np.ndarray
    item: np.ndarray
    size: np.ndarray
    hop: np.ndarray
    begin: np.ndarray
    on_link: np.ndarray
    times: np.ndarray
    events: np.ndarray


def stream_order(edge, path_ptr, path_link, pace, before, weight, pieces):
    """The tick when each message (tree edge x pieces + piece) starts on its first link.

    Args:
        edge: edge of each tree edge, tree by tree.
        path_ptr, path_link: the links of each edge.
        pace: ticks that a tree of weight 1 takes on each link, for one piece.
        before: the tree edge before each tree edge, -1 at the root.
        weight: weight of each tree.
    """
    # One event per link at the start, at time 0: the moment when it is first free.
    count, links = len(edge), len(pace)
    # The queues of all links are in one column, each with room for every message that ever crosses
    # its link, so that kernels allocate nothing.
    heap_ptr = queue_starts(edge, path_ptr, path_link, links) * pieces
    now = _Streams(
        _farthest(before),
        *followers(before),
        heap_ptr=heap_ptr,
        key=np.empty(heap_ptr[-1], np.int64),
        item=np.empty(heap_ptr[-1], np.int64),
        size=np.zeros(links, np.int64),
        hop=np.zeros(count * pieces, np.int64),
        begin=np.zeros(count * pieces, np.int64),
        on_link=np.full(links, -1, np.int64),
        times=np.zeros(links + 1, np.int64),
        events=np.arange(links + 1),
    )
    _wait_at_roots(path_link[path_ptr[edge]], before, pieces, now)
    pending = links
    while pending:
        pending = _stream(edge, path_ptr, path_link, pace, weight, pieces, now, pending)
    return now.begin


def _wait_at_roots(first_link, before, pieces, now):
    """Let the messages of the roots wait for their first links."""
    at_root = np.flatnonzero(before < 0)
    link = np.repeat(first_link[at_root], pieces)
    message = (at_root[:, None] * pieces + np.arange(pieces)).ravel()
    rank = (np.arange(pieces) - now.below[at_root, None]).ravel()
    # Sorted by (rank, message), the messages of a link are already a heap.
    order = np.lexsort((message, rank, link))
    now.size[:] = np.bincount(link, minlength=len(now.size))
    before_link = np.cumsum(now.size) - now.size
    place = (now.heap_ptr[:-1] - before_link)[link[order]] + np.arange(len(order))
    now.key[place], now.item[place] = rank[order], message[order]


@kernel(cache=True, nogil=True)
def _stream(edge, path_ptr, path_link, pace, weight, pieces, now, pending):
    """Take some events; how many are to come."""
    below, child_ptr, child, heap_ptr = now.below, now.child_ptr, now.child, now.heap_ptr
    key, item, size, hop, begin = now.key, now.item, now.size, now.hop, now.begin
    on_link, times, events = now.on_link, now.times, now.events
    # Trees span all ranks, so all have equally many edges.
    per_tree, taken = len(edge) // len(weight), 0
    while pending and taken < _EVENTS_AT_ONCE:
        taken += 1
        time, done = times[0], events[0]
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
                # The message waits for the next link of its path, or its copies wait for their
                # first links.
                c = j if moves_on else child[child_ptr[j] + a]
                waiting, rank = c * pieces + p, time if moves_on else p - below[c]
                link = path_link[path_ptr[edge[c]] + hop[waiting]]
                size[link] = heap.push(key, item, heap_ptr[link], size[link], rank, waiting)
            if on_link[link] < 0 and size[link] > 0:
                message = item[heap_ptr[link]]
                size[link] = heap.pop(key, item, heap_ptr[link], size[link])
                on_link[link] = message
                if hop[message] == 0:
                    begin[message] = time
                end = time + pace[link] * weight[message // pieces // per_tree]
                pending = heap.push(times, events, 0, pending, end, link)
    return pending


def queue_starts(edge, path_ptr, path_link, links):
    """First place of each link in a column with a place for every (send, link of its path).

    Args:
        edge: edge of each send.
        path_ptr, path_link: links of each edge.
        links: number of links.
    """
    crossings = np.repeat(np.bincount(edge, minlength=len(path_ptr) - 1), np.diff(path_ptr))
    # Counts are far below 2**53, which floats hold exactly.
    counts = np.bincount(path_link, crossings, links).astype(np.int64)
    return np.append(0, np.cumsum(counts))


def steps_in_order(assign, order, edge, first_link, links, *waits):
    """The step of each message, by a kernel that takes messages in order, a part at a time.

    Args:
        assign: the kernel. Kernels differ in ``waits``, which tells what messages wait for, but
            share the rule ``take_step``.
        order: the messages, each after all messages that it waits for.
        edge: edge of each message, as ``assign`` numbers it.
        first_link: the first link of each edge.
    """
    step = np.zeros(len(order), np.int64)
    on_link, on_edge = np.zeros(links, np.int64), np.full(len(first_link), -1, np.int64)
    for first in range(0, len(order), _STEPS_AT_ONCE):
        some = order[first : first + _STEPS_AT_ONCE]
        assign(some, edge, first_link, on_link, on_edge, step, *waits)
    return step


@kernel(cache=True, nogil=True)
def take_step(ready, edge, first_link, on_link, on_edge):
    """The first step from ``ready`` on that keeps the order of a link and is free on the edge.

    Two messages of an edge in one step would be one message, so they take different steps.
    """
    link = first_link[edge]
    on_link[link] = on_edge[edge] = max(ready, on_link[link], on_edge[edge] + 1)
    return on_link[link]


@kernel(cache=True, nogil=True)
def stream_steps(sequence, edge, first_link, on_link, on_edge, step, before, pieces):
    """The step of each message: after its piece has arrived, in sequence on its first link."""
    for message in sequence:
        j, p = message // pieces, message % pieces
        ready = step[before[j] * pieces + p] + 1 if before[j] >= 0 else 0
        step[message] = take_step(ready, edge[j], first_link, on_link, on_edge)


@kernel(cache=True)
def _farthest(before):
    """The most further edges below each tree edge."""
    below = np.zeros(len(before), np.int64)
    for j in range(len(before) - 1, -1, -1):
        if before[j] >= 0:
            below[before[j]] = max(below[before[j]], below[j] + 1)
    return below
