"""Numba kernels of the simulator: a binary heap of arrivals, and links that serve in order.

A hop's arrival at the queue of its link is an event (time, message). Events are taken in order of
time and, at the same time, of message number, so a link serves first come, first served and the
moment of service is known as soon as the event is taken.
"""

from __future__ import annotations

import numba as nb
import numpy as np

_NONE = -1


@nb.njit(cache=True, nogil=True, inline="always")
def _before(time_a, message_a, time_b, message_b):
    return time_a < time_b or (time_a == time_b and message_a < message_b)


@nb.njit(cache=True, nogil=True)
def _push(times, messages, size, time, message):
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(time, message, times[parent], messages[parent]):
            break
        times[i], messages[i] = times[parent], messages[parent]
        i = parent
    times[i], messages[i] = time, message
    return size + 1


@nb.njit(cache=True, nogil=True)
def _pop(times, messages, size):
    """Remove the first event; the caller has read it from index 0."""
    size -= 1
    time, message = times[size], messages[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _before(
            times[child + 1], messages[child + 1], times[child], messages[child]
        ):
            child += 1
        if not _before(times[child], messages[child], time, message):
            break
        times[i], messages[i] = times[child], messages[child]
        i = child
    times[i], messages[i] = time, message
    return size


@nb.njit(cache=True, nogil=True)
def run_direct(message_ptr, chunk, src, dst, link, busy, delay, num_links, available, start):
    """Schedule on a network where every message is one hop.

    No message waits behind another's transit, so one pass in schedule order is the whole
    simulation: a message starts when its link is free and its chunks have arrived.

    Args:
        available: when each rank has the latest part of each chunk, ticks, (ranks, chunks),
            updated in place.
        start: filled with the start of each message, ticks.
    """
    free = np.zeros(num_links, np.int64)
    for m in range(len(message_ptr) - 1):
        first, last = message_ptr[m], message_ptr[m + 1]
        t = free[link[m]]
        have, get = available[src[m]], available[dst[m]]
        for i in range(first, last):
            t = max(t, have[chunk[i]])
        start[m] = t
        free[link[m]] = t + busy[m]
        arrival = t + delay[m]
        for i in range(first, last):
            get[chunk[i]] = max(get[chunk[i]], arrival)


@nb.njit(cache=True, nogil=True)
def arrivals_needed(step_ptr, chunk, src, dst, arrived, needed):
    """For each send, how many arrivals of its chunk at its source stand in earlier steps.

    Args:
        arrived: zeros, (ranks, chunks), scratch.
        needed: filled, one per send.
    """
    for t in range(len(step_ptr) - 1):
        for i in range(step_ptr[t], step_ptr[t + 1]):
            needed[i] = arrived[src[i], chunk[i]]
        for i in range(step_ptr[t], step_ptr[t + 1]):
            arrived[dst[i], chunk[i]] += 1


@nb.njit(cache=True, nogil=True)
def run_routed(
    message_ptr, chunk, src, dst, needed, queue_ptr, queue, hop_ptr, link, busy, delay, num_links,
    arrived, waiting, start,
):  # fmt: skip
    """Schedule whose messages cross several links.

    A message joins the queue of its first link when its chunks have arrived and the message before
    it in the schedule on that link has joined; further links serve messages in order of arrival.

    Args:
        needed: arrivals each send waits for, from ``arrivals_needed``.
        queue_ptr, queue: messages by first link, in schedule order.
        hop_ptr, link, busy, delay: hops of each message, durations in ticks.
        arrived: zeros, (ranks, chunks): arrivals so far.
        waiting: -1s, (ranks, chunks): first message that waits for a further arrival.
        start: filled with the start of each hop, ticks.

    Messages wait only for messages of earlier steps and for those before them on their link, so
    every one is served.
    """
    count = len(message_ptr) - 1
    free = np.zeros(num_links, np.int64)
    times, events = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    hop = hop_ptr[:-1].copy()
    next_waiting = np.full(count, _NONE, np.int64)
    head = queue_ptr[:-1].copy()
    size = 0
    for q in range(num_links):
        size = _join(
            q, 0, message_ptr, chunk, src, needed, queue_ptr, queue, head, arrived, waiting,
            next_waiting, times, events, size,
        )  # fmt: skip
    while size:
        now, m = times[0], events[0]
        size = _pop(times, events, size)
        h = hop[m]
        if h == hop_ptr[m + 1]:  # at its destination: its chunks have arrived
            for i in range(message_ptr[m], message_ptr[m + 1]):
                arrived[dst[m], chunk[i]] += 1
                waiter = waiting[dst[m], chunk[i]]
                waiting[dst[m], chunk[i]] = _NONE
                while waiter != _NONE:
                    following = next_waiting[waiter]
                    size = _join(
                        link[hop_ptr[waiter]], now, message_ptr, chunk, src, needed, queue_ptr,
                        queue, head, arrived, waiting, next_waiting, times, events, size,
                    )  # fmt: skip
                    waiter = following
            continue
        begin = max(now, free[link[h]])
        start[h] = begin
        free[link[h]] = begin + busy[h]
        hop[m] = h + 1
        size = _push(times, events, size, begin + delay[h], m)


@nb.njit(cache=True, nogil=True)
def _join(
    q, now, message_ptr, chunk, src, needed, queue_ptr, queue, head, arrived, waiting,
    next_waiting, times, events, size,
):  # fmt: skip
    """Let messages of link q join its queue in order, until one lacks a chunk and waits for it."""
    while head[q] < queue_ptr[q + 1]:
        m = queue[head[q]]
        for i in range(message_ptr[m], message_ptr[m + 1]):
            if arrived[src[m], chunk[i]] < needed[i]:
                next_waiting[m] = waiting[src[m], chunk[i]]
                waiting[src[m], chunk[i]] = m
                return size
        head[q] += 1
        size = _push(times, events, size, now, m)
    return size


@nb.njit(cache=True, nogil=True)
def run_messages(
    release, pending, after_ptr, after, hop_ptr, link, busy, delay, num_links, start, end
):
    """Any traffic: messages with release times that wait for other messages.

    Args:
        release: earliest time of each message, ticks; raised in place by those it waits for.
        pending: how many messages each waits for; counted down in place.
        after_ptr, after: the messages that wait for each.
        hop_ptr, link, busy, delay: hops of each message, durations in ticks.
        start: filled with the start of each hop, ticks.
        end: filled with the arrival of each message, ticks.

    Returns:
        Number of messages that arrived.
    """
    count = len(release)
    free = np.zeros(num_links, np.int64)
    times, events = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    hop = hop_ptr[:-1].copy()
    size = done = 0
    for m in range(count):
        if pending[m] == 0:
            size = _push(times, events, size, release[m], m)
    while size:
        now, m = times[0], events[0]
        size = _pop(times, events, size)
        h = hop[m]
        if h < hop_ptr[m + 1]:
            begin = max(now, free[link[h]])
            start[h] = begin
            free[link[h]] = begin + busy[h]
            hop[m] = h + 1
            size = _push(times, events, size, begin + delay[h], m)
            continue
        end[m] = now
        done += 1
        for i in range(after_ptr[m], after_ptr[m + 1]):
            waiter = after[i]
            release[waiter] = max(release[waiter], now)
            pending[waiter] -= 1
            if pending[waiter] == 0:
                size = _push(times, events, size, release[waiter], waiter)
    return done


@nb.njit(cache=True, nogil=True)
def run_events(
    release, pending, after_ptr, after, hop_ptr, link, busy, delay, num_links, start, end
):
    """As ``run_messages``, with events at the same time in the order in which they were pushed.

    The events of ASTRA-sim's congestion-aware analytical backend: a message arrives at a vertex, or
    is injected; a link becomes free. A message that starts pushes its arrival at the link's end,
    then the moment at which its link is free; a link that becomes free starts the first message of
    its queue. An event is its number, so that the heap of (time, number) keeps that order.
    """
    count, hops = len(release), len(link)
    what = np.empty(count + 2 * hops, np.int64)  # a message, or -1 - a link
    room = count + num_links + 1
    times, events = np.empty(room, np.int64), np.empty(room, np.int64)
    is_busy = np.zeros(num_links, np.bool_)
    first, last = np.full(num_links, _NONE, np.int64), np.full(num_links, _NONE, np.int64)
    behind = np.full(count, _NONE, np.int64)  # the message behind each in the queue of a link
    hop = hop_ptr[:-1].copy()
    size = number = done = 0
    for m in range(count):
        if pending[m] == 0:
            what[number] = m
            size = _push(times, events, size, release[m], number)
            number += 1
    while size:
        now, m = times[0], what[events[0]]
        size = _pop(times, events, size)
        if m >= 0 and hop[m] == hop_ptr[m + 1]:
            end[m] = now
            done += 1
            for i in range(after_ptr[m], after_ptr[m + 1]):
                waiter = after[i]
                release[waiter] = max(release[waiter], now)
                pending[waiter] -= 1
                if pending[waiter] == 0:
                    what[number] = waiter
                    size = _push(times, events, size, release[waiter], number)
                    number += 1
            continue
        if m >= 0:
            on = link[hop[m]]
            if is_busy[on]:
                if first[on] == _NONE:
                    first[on] = m
                else:
                    behind[last[on]] = m
                last[on] = m
                continue
        else:
            on = -1 - m
            is_busy[on] = False
            m = first[on]
            if m == _NONE:
                continue
            first[on], behind[m] = behind[m], _NONE
        h = hop[m]
        start[h] = now
        is_busy[on] = True
        hop[m] = h + 1
        what[number], what[number + 1] = m, -1 - on
        size = _push(times, events, size, now + delay[h], number)
        size = _push(times, events, size, now + busy[h], number + 1)
        number += 2
    return done
