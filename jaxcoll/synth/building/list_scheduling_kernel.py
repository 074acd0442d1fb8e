"""Links that serve what is most urgent: a run in which every chunk moves on as it arrives.

Of the sends that wait to leave a rank, a link takes the most urgent, of equals the first in order.
Inside the network links serve first come, first served, as they do when the schedule is run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.trees.stream import queue_starts

# Events and sends of a call: kernels see no signals, and Python handles them between two calls.
_EVENTS_AT_ONCE, _SENDS_AT_ONCE = 1 << 18, 1 << 21


class _Queues(NamedTuple):
    """Sends that wait for links, and events.

    Attributes:
        urgency: of each send where it leaves a rank, the least first; inside the network its time
            of arrival.
        waits: arrivals that each send still waits for.
        next_ptr, following: the sends that wait for each.
        heap_ptr, key, item, size: every link keeps the sends that wait for it in a heap of its own
            part of two arrays.
        awake: whether each link has an event ahead of it.
        times, events: heap of events. Send i reaches the end of a link, i; link l can take a send,
            sends + l. At any moment sends come first, so that a link sees every chunk that has
            arrived.
        begin: when each send starts on its first link.
        hop: where in ``path_link`` the link is that each send takes next.
    """

    urgency: np.ndarray
    waits: np.ndarray
    next_ptr: np.ndarray
    following: np.ndarray
    heap_ptr: np.ndarray
    key: np.ndarray
    item: np.ndarray
    size: np.ndarray
    awake: np.ndarray
    times: np.ndarray
    events: np.ndarray
    begin: np.ndarray
    hop: np.ndarray


def served(urgency, next_ptr, following, edge, path_ptr, path_link, busy, delay):
    """When each send starts on its first link, in ticks from 0, and when the last one arrives.

    Args:
        urgency: of each send, in ticks; the least goes first.
        next_ptr, following: ``following[next_ptr[i]:next_ptr[i + 1]]`` wait for send i.
        edge: edge of each send.
        path_ptr, path_link: links of each edge.
        busy: how long a send occupies each link, in ticks, at least 1.
        delay: how long it takes to the end of each link, in ticks, at least as long.
    """
    sends, links = len(edge), len(busy)
    heap_ptr = queue_starts(edge, path_ptr, path_link, links)
    now = _Queues(
        urgency,
        np.bincount(following, minlength=sends),
        next_ptr,
        following,
        heap_ptr=heap_ptr,
        key=np.empty(heap_ptr[-1], np.int64),
        item=np.empty(heap_ptr[-1], np.int64),
        size=np.zeros(links, np.int64),
        awake=np.zeros(links, np.bool_),
        times=np.empty(sends + links, np.int64),
        events=np.empty(sends + links, np.int64),
        begin=np.zeros(sends, np.int64),
        hop=path_ptr[edge],
    )
    pending = _wait_at_sources(path_link, now)
    end = 0
    while pending:
        pending, end = _serve(edge, path_ptr, path_link, busy, delay, now, pending)
    return now.begin, end


@kernel(cache=True, nogil=True)
def _wait_at_sources(path_link, now):
    """Let the sends that wait for none wait for their first links; how many events are to come."""
    sends, pending = len(now.waits), 0
    for i in range(sends):
        if now.waits[i] == 0:
            link = path_link[now.hop[i]]
            first, rank = now.heap_ptr[link], now.urgency[i]
            now.size[link] = heap.push(now.key, now.item, first, now.size[link], rank, i)
            if not now.awake[link]:
                now.awake[link] = True
                pending = heap.push(now.times, now.events, 0, pending, 0, sends + link)
    return pending


@kernel(cache=True, nogil=True)
def _serve(edge, path_ptr, path_link, busy, delay, now, pending):
    """Take some events; how many are to come, and the time of the last one taken."""
    next_ptr, following, heap_ptr = now.next_ptr, now.following, now.heap_ptr
    key, item, size, awake = now.key, now.item, now.size, now.awake
    times, events, begin, hop = now.times, now.events, now.begin, now.hop
    sends, taken, time = len(edge), 0, 0
    while pending and taken < _EVENTS_AT_ONCE:
        taken += 1
        time, event = times[0], events[0]
        pending = heap.pop(times, events, 0, pending)
        if event >= sends:
            link = event - sends
            awake[link] = size[link] > 0
            if awake[link]:
                i = item[heap_ptr[link]]
                size[link] = heap.pop(key, item, heap_ptr[link], size[link])
                if hop[i] == path_ptr[edge[i]]:
                    begin[i] = time
                hop[i] += 1
                pending = heap.push(times, events, 0, pending, time + delay[link], i)
                pending = heap.push(times, events, 0, pending, time + busy[link], event)
            continue
        # The send waits for the next link of its path, or those that follow it for their first.
        moves_on = hop[event] < path_ptr[edge[event] + 1]
        arrivals = 1 if moves_on else next_ptr[event + 1] - next_ptr[event]
        for a in range(arrivals):
            i, rank = event, time
            if not moves_on:
                i = following[next_ptr[event] + a]
                now.waits[i] -= 1
                if now.waits[i] > 0:
                    continue
                rank = now.urgency[i]
            link = path_link[hop[i]]
            size[link] = heap.push(key, item, heap_ptr[link], size[link], rank, i)
            if not awake[link]:
                awake[link] = True
                pending = heap.push(times, events, 0, pending, time, sends + link)
    return pending, time


@kernel(cache=True, nogil=True)
def time_left(next_ptr, following, edge, path_ptr, path_link, delay):
    """How long what each send carries takes to where it ends last, if nothing is in its way.

    Sends are waited for by sends of larger numbers.
    """
    left = np.zeros(len(edge), np.int64)
    for i in range(len(edge) - 1, -1, -1):
        for k in range(next_ptr[i], next_ptr[i + 1]):
            left[i] = max(left[i], left[following[k]])
        for h in range(path_ptr[edge[i]], path_ptr[edge[i] + 1]):
            left[i] += delay[path_link[h]]
    return left


def steps_of(order, next_ptr, following, edge, first_link, links):
    """The least step of each send: after all that it waits for, in order on its first link.

    Sends of one edge get steps of their own, so that they stay apart.

    Args:
        order: the sends, each after all that it waits for.
        first_link: of each edge.
    """
    step = np.zeros(len(order), np.int64)
    on_link, on_edge = np.zeros(links, np.int64), np.full(len(first_link), -1, np.int64)
    for first in range(0, len(order), _SENDS_AT_ONCE):
        some = order[first : first + _SENDS_AT_ONCE]
        _steps_of(some, next_ptr, following, edge, first_link, on_link, on_edge, step)
    return step


@kernel(cache=True, nogil=True)
def _steps_of(order, next_ptr, following, edge, first_link, on_link, on_edge, step):
    for i in order:
        e = edge[i]
        t = max(step[i], on_link[first_link[e]], on_edge[e] + 1)
        step[i] = on_link[first_link[e]] = on_edge[e] = t
        for k in range(next_ptr[i], next_ptr[i + 1]):
            step[following[k]] = max(step[following[k]], t + 1)
