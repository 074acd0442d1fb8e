"""The simulator's loops: links that serve messages in order, by a heap of arrivals.

A hop's arrival at the queue of its link is an event (time, message). Events are taken in order of
time and, at the same time, of message number, so a link serves first come, first served, and the
moment of service is known as soon as the event is taken. For example, two messages of 1 s that
reach a link without latency at 0 s and 0.5 s start at 0 s and 1 s, and arrive at 1 s and 2 s.

Four runs share this, in order of complexity. ``run_direct``: every message is one hop, so that no
heap is needed. ``run_routed``: a schedule over several links, whose messages also wait for their
place on the first link. ``run_messages``: any traffic, with messages that wait for others.
``run_events``: the same in the order of another simulator, ASTRA-sim.

A run decides when messages may start. The duration of a message is read from its hop, or computed
by a law at the moment when it starts (``_settle``, ``link_models.py``).

A call of a kernel handles as many events as take a few tenths of a second, and the next call
continues: Python handles signals between two calls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import spans

_NONE = -1
# The most events of a call, which takes a few tenths of a second; Python handles signals between
# calls.
_EVENTS_AT_ONCE = 1 << 18
_SENDS_AT_ONCE = 1 << 20  # the same, of runs that need no heap
# The most pairs of a rank and a chunk that are all places, 256 MiB; and the most that have a
# number.
_MOST_PAIRS, _MOST_NUMBERED = 1 << 26, (1 << 31) - 2


class Hops(NamedTuple):
    """The links that every message crosses, in order.

    Attributes:
        ptr: message m has the hops ``ptr[m]..ptr[m + 1] - 1``.
        link: link of each hop.
        case: number of the size and speed of each hop. A network has few of these, so a hop's time
            is read from two short columns instead of two that grow with the run.
        busy: ticks that a hop of each case occupies its link.
        delay: ticks from the start of a hop of each case to its arrival at the link's end.
    """

    ptr: np.ndarray
    link: np.ndarray
    case: np.ndarray
    busy: np.ndarray
    delay: np.ndarray


class HopsByLaw(NamedTuple):
    """Hops whose times a law computes when they start; each hop is a separate case.

    Attributes:
        ptr, link: as in ``Hops``.
        case: the number of each hop itself.
        busy, delay: ticks of each hop, filled as the hops start.
        what: the size and speed of each hop, by number.
        nbytes, serial, alpha: bytes of each of these, and the ticks of bytes / bandwidth and alpha.
    """

    ptr: np.ndarray
    link: np.ndarray
    case: np.ndarray
    busy: np.ndarray
    delay: np.ndarray
    what: np.ndarray
    nbytes: np.ndarray
    serial: np.ndarray
    alpha: np.ndarray


class Waits(NamedTuple):
    """Messages that wait for other messages.

    Attributes:
        release: earliest time of each message, ticks; raised in place by those it waits for.
        pending: number of messages that each waits for; counted down in place.
        ptr, after: the messages that wait for m are ``after[ptr[m]:ptr[m + 1]]``.
    """

    release: np.ndarray
    pending: np.ndarray
    ptr: np.ndarray
    after: np.ndarray


class Places(NamedTuple):
    """The places from which sends take chunks and to which they bring them: (rank, chunk) pairs.

    Attributes:
        have, get: the place of each send's chunk at its source and at its destination, int32.
        count: number of places; the last one is for chunks that never arrive at their senders.
    """

    have: np.ndarray
    get: np.ndarray
    count: int


class Queues(NamedTuple):
    """Messages of a schedule, by the link they cross first, and the chunks they carry.

    Attributes:
        message_ptr: message m has the sends ``message_ptr[m]..message_ptr[m + 1] - 1``.
        have, get: as in ``Places``.
        needed: number of arrivals of its chunk that each send waits for, by ``arrivals_needed``.
        dst: destination rank of each message.
        ptr, message: messages of first link q, in schedule order: ``message[ptr[q]:ptr[q + 1]]``.
        out_ptr, out: the links out of rank r: ``out[out_ptr[r]:out_ptr[r + 1]]``.
    """

    message_ptr: np.ndarray
    have: np.ndarray
    get: np.ndarray
    needed: np.ndarray
    dst: np.ndarray
    ptr: np.ndarray
    message: np.ndarray
    out_ptr: np.ndarray
    out: np.ndarray


class _Traffic(NamedTuple):
    """Messages on their way.

    Attributes:
        hop: the hop that each message takes next.
        free: the tick when each link is free again.
        behind: the message behind each on the link that both are on, or -1.
        last: the last message on each link, or -1.
        times, events: the heap of arrivals: of the first message on each link, and of messages
            that wait for service.
        start: filled with the start of each hop, ticks.
    """

    hop: np.ndarray
    free: np.ndarray
    behind: np.ndarray
    last: np.ndarray
    times: np.ndarray
    events: np.ndarray
    start: np.ndarray


class _Replay(NamedTuple):
    """The state of a replay.

    Attributes:
        head: the next message of each first link that has not joined the link's queue.
        is_shared: whether each link also serves messages that other links bring.
        arrived: number of arrivals at every place.
        lacks: the place that the next message of each first link waits for, or -1. Few messages
            wait at a time, so a column of places is not needed.
    """

    head: np.ndarray
    is_shared: np.ndarray
    arrived: np.ndarray
    lacks: np.ndarray


@kernel(cache=True, nogil=True, inline="always")
def _settle(hops, h, ready, begin):
    """Compute the duration of a hop that starts now; here its case has it already.

    The runs of a link model with a law have another function in this place (``link_models.py``).

    Args:
        ready: the tick when the message came to the queue of the link.
        begin: the tick when it starts.
    """


def places_of(src, dst, chunk, ranks, chunks):
    """The places of some sends.

    Every (rank, chunk) pair is a place, unless there are many more pairs than receiving ones: an
    all_to_all of 1,024 ranks has 2**30 pairs, and a million sends.

    Args:
        src, dst, chunk: ends and chunk of each send.
        ranks, chunks: the number of ranks and chunks.
    """
    pairs = ranks * chunks
    if pairs <= max(_MOST_PAIRS, min(4 * len(chunk), _MOST_NUMBERED)):
        numbers = (at.astype(np.int32) * np.int32(chunks) for at in (src, dst))
        have, get = (number + chunk for number in numbers)
        return Places(have, get, pairs + 1)
    have, get = np.empty(len(chunk), np.int32), np.empty(len(chunk), np.int32)
    brought = _places_brought_to(src, dst, chunk, np.zeros(chunks + 1, np.int64), ranks, have, get)
    return Places(have, get, brought + 1)


@kernel(cache=True, nogil=True)
def _places_brought_to(src, dst, chunk, last, ranks, have, get):
    """Number the pairs to which sends bring chunks, and return their count.

    Args:
        last: zeros, one per chunk and one more; scratch.
        have, get: filled with numbers of pairs.
    """
    for i in range(len(chunk)):
        last[chunk[i] + 1] += 1
    for c in range(1, len(last)):
        last[c] += last[c - 1]
    order = np.empty(len(chunk), np.int32)
    for i in range(len(chunk)):  # by chunk, as they stand; moves each start to the next chunk's
        order[last[chunk[i]]] = i
        last[chunk[i]] += 1
    place, of, count, first = np.empty(ranks, np.int32), np.full(ranks, -1, np.int32), 0, 0
    for c in range(len(last) - 1):
        for j in range(first, last[c]):
            v = dst[order[j]]
            if of[v] != c:
                of[v], place[v] = c, count
                count += 1
            get[order[j]] = place[v]
        for j in range(first, last[c]):
            u = src[order[j]]
            have[order[j]] = place[u] if of[u] == c else -1
        first = last[c]
    for i in range(len(chunk)):
        if have[i] < 0:
            have[i] = count
    return count


def run_direct(message_ptr, places, hops, free, available, start):
    """Run a schedule on a network where every message is one hop.

    No message waits behind another's transit, so one pass in schedule order is the whole
    simulation: a message starts when its link is free and its chunks have arrived. Laws are not
    called here, because the pass does not know when a message came to its queue.

    Args:
        hops: one per message.
        free: zeros, one per link: when each is free again, ticks.
        available: zeros, one per place: when the latest part of its chunk has arrived, ticks.
        start: filled with the start of each message, ticks.
    """
    for some in spans(message_ptr, _SENDS_AT_ONCE):
        _run_direct(*some, message_ptr, places.have, places.get, hops, free, available, start)


@kernel(cache=True, nogil=True)
def _run_direct(begin, end, message_ptr, have, get, hops, free, available, start):
    for m in range(begin, end):
        first, last, link = message_ptr[m], message_ptr[m + 1], hops.link[m]
        t = free[link]
        # A sum is complete with its last contribution, so a chunk is available when its latest part
        # is.
        for i in range(first, last):
            t = max(t, available[have[i]])
        start[m] = t
        free[link] = t + hops.busy[hops.case[m]]
        arrival = t + hops.delay[hops.case[m]]
        for i in range(first, last):
            available[get[i]] = max(available[get[i]], arrival)


def arrivals_needed(step_ptr, places):
    """For each send, the number of arrivals of its chunk at its source in earlier steps."""
    arrived, needed = np.zeros(places.count, np.int32), np.zeros(len(places.have), np.int32)
    for first, last in spans(step_ptr, _SENDS_AT_ONCE):
        some = step_ptr[first : last + 1]
        _arrivals_needed(some, places.have, places.get, arrived, needed)
    return needed


@kernel(cache=True, nogil=True)
def _arrivals_needed(step_ptr, have, get, arrived, needed):
    for t in range(len(step_ptr) - 1):
        for i in range(step_ptr[t], step_ptr[t + 1]):
            # First all sends are read, then all arrivals count: a step's sends do not wait for one
            # another.
            needed[i] = arrived[have[i]]
        for i in range(step_ptr[t], step_ptr[t + 1]):
            arrived[get[i]] += 1


def run_routed(queues, hops, num_links, arrived, start):
    """Run a schedule whose messages cross several links.

    A message joins the queue of its first link when its chunks have arrived and the message before
    it in the schedule on that link has joined; further links serve messages in order of arrival.

    Args:
        arrived: zeros, one per place: arrivals so far.
        start: filled with the start of each hop, ticks.

    Messages wait only for messages of earlier steps and for those before them on their link, so
    every one is served.
    """
    traffic = _traffic(hops, num_links, start)
    # A link that only starts messages serves them in the order of the schedule, without a heap. A
    # link that other messages pass through needs the order of arrival, which the heap provides.
    further = np.ones(len(hops.link), np.bool_)
    further[hops.ptr[:-1]] = False
    is_shared = np.zeros(num_links, np.bool_)
    is_shared[hops.link[further]] = True
    lacks = np.full(num_links, _NONE, np.int64)
    replay = _Replay(queues.ptr[:-1].copy(), is_shared, arrived, lacks)
    size = _join_all(queues, replay, hops, traffic)
    # A kernel runs without Python, which handles signals only between calls. Limited calls keep
    # Ctrl-C prompt.
    while size:
        size = _run_routed(queues, replay, hops, traffic, size)


@kernel(cache=True, nogil=True)
def _run_routed(queues, replay, hops, traffic, size):
    """Take some events; how many are to come."""
    taken = 0
    while size and taken < _EVENTS_AT_ONCE:
        taken += 1
        now, m = traffic.times[0], traffic.events[0]
        size = _take(m, hops, traffic, size)
        # At a vertex inside its path the message joins the next link at once (store and forward).
        if traffic.hop[m] < hops.ptr[m + 1]:
            size = _serve(m, now, hops, traffic, size)
            continue
        rank = queues.dst[m]
        for i in range(queues.message_ptr[m], queues.message_ptr[m + 1]):  # at its destination
            place = queues.get[i]
            replay.arrived[place] += 1
            # Each link remembers the one place that its head lacks, so an arrival costs a
            # comparison per link out of the rank, without a search.
            for j in range(queues.out_ptr[rank], queues.out_ptr[rank + 1]):
                q = queues.out[j]
                if replay.lacks[q] == place:
                    size = _join(q, now, queues, replay, hops, traffic, size)
    return size


@kernel(cache=True, nogil=True)
def _join_all(queues, replay, hops, traffic):
    """Let the first messages of all links join; returns the number of pending events."""
    size = 0
    for q in range(len(replay.head)):
        size = _join(q, 0, queues, replay, hops, traffic, size)
    return size


def _traffic(hops, num_links, start):
    """The traffic without any message on a link."""
    count = len(hops.ptr) - 1
    behind, last = np.full(count, _NONE, np.int64), np.full(num_links, _NONE, np.int64)
    times, events = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    free = np.zeros(num_links, np.int64)
    return _Traffic(hops.ptr[:-1].copy(), free, behind, last, times, events, start)


@kernel(cache=True, nogil=True)
def _take(m, hops, traffic, size):
    """Take the earliest event, an arrival of message m; the message behind it is next."""
    h = traffic.hop[m] - 1
    if h < hops.ptr[m]:  # waited for its first link
        return heap.pop(traffic.times, traffic.events, 0, size)
    following = traffic.behind[m]
    if following == _NONE:
        traffic.last[hops.link[h]] = _NONE
        return heap.pop(traffic.times, traffic.events, 0, size)
    # Messages arrive at the end of a link in the order of their service, since each starts when the
    # one before it has left the link. So the heap holds only the first message on every link. It is
    # as small as the network, however many messages are on their way, and replacing its top avoids
    # a pop and a push.
    traffic.behind[m] = _NONE
    g = traffic.hop[following] - 1
    arrival = traffic.start[g] + hops.delay[hops.case[g]]
    heap.replace(traffic.times, traffic.events, 0, size, arrival, following)
    return size


@kernel(cache=True, nogil=True)
def _serve(m, now, hops, traffic, size):
    """Let a message take its next hop as soon as the link is free."""
    h = traffic.hop[m]
    link = hops.link[h]
    # First come, first served: events are taken in order of time, so the first to ask gets the
    # link.
    begin = max(now, traffic.free[link])
    _settle(hops, h, now, begin)
    traffic.start[h] = begin
    traffic.free[link] = begin + hops.busy[hops.case[h]]
    traffic.hop[m] = h + 1
    before = traffic.last[link]
    traffic.last[link] = m
    if before == _NONE:
        arrival = begin + hops.delay[hops.case[h]]
        return heap.push(traffic.times, traffic.events, 0, size, arrival, m)
    traffic.behind[before] = m
    return size


@kernel(cache=True, nogil=True)
def _join(q, now, queues, replay, hops, traffic, size):
    """Let messages of link q join its queue in order, until one lacks a chunk and waits for it.

    If no other message joins, the order in the queue is that of the schedule, and they are served.
    """
    # Only the head waits: the schedule orders the messages of a first link, and one that is ready
    # must not overtake another that is not.
    while replay.head[q] < queues.ptr[q + 1]:
        m = queues.message[replay.head[q]]
        for i in range(queues.message_ptr[m], queues.message_ptr[m + 1]):
            place = queues.have[i]
            if replay.arrived[place] < queues.needed[i]:
                replay.lacks[q] = place
                return size
        replay.head[q] += 1
        if replay.is_shared[q]:
            size = heap.push(traffic.times, traffic.events, 0, size, now, m)
        else:
            size = _serve(m, now, hops, traffic, size)
    replay.lacks[q] = _NONE
    return size


def run_messages(waits, hops, num_links, start, end):
    """Run any traffic: messages with release times that wait for other messages.

    Args:
        start: filled with the start of each hop, ticks.
        end: filled with the arrival of each message, ticks.

    Returns:
        Number of messages that arrived.
    """
    traffic = _traffic(hops, num_links, start)
    ready, order = _released(waits, traffic.times)
    traffic.events[: len(order)] = ready[order]
    size, done = len(order), 0
    while size:
        size, arrived = _run_messages(waits, hops, traffic, end, size)
        done += arrived
    return done


def _released(waits, times):
    """The messages that wait for no other, sorted by release.

    Sorted times are already a heap.
    """
    ready = np.flatnonzero(waits.pending == 0)
    release = waits.release[ready]
    order = np.argsort(release, kind="stable")
    times[: len(order)] = release[order]
    return ready, order


@kernel(cache=True, nogil=True)
def _run_messages(waits, hops, traffic, end, size):
    """Handle some events; returns the number of pending events, and of arrived messages."""
    done = taken = 0
    while size and taken < _EVENTS_AT_ONCE:
        taken += 1
        now, m = traffic.times[0], traffic.events[0]
        size = _take(m, hops, traffic, size)
        if traffic.hop[m] < hops.ptr[m + 1]:
            size = _serve(m, now, hops, traffic, size)
            continue
        end[m] = now
        done += 1
        for i in range(waits.ptr[m], waits.ptr[m + 1]):
            waiter = waits.after[i]
            if _is_released(waits, waiter, now):
                release = waits.release[waiter]
                size = heap.push(traffic.times, traffic.events, 0, size, release, waiter)
    return size, done


@kernel(cache=True, nogil=True, inline="always")
def _is_released(waits, waiter, now):
    """Count one arrival that ``waiter`` waits for; returns whether it was the last."""
    # A message may be released later than the last message that it waits for arrives.
    waits.release[waiter] = max(waits.release[waiter], now)
    waits.pending[waiter] -= 1
    return waits.pending[waiter] == 0


class _Served(NamedTuple):
    """Messages on links that serve them one by one.

    Attributes:
        subject: the subject of each event by its number: a message, or -1 - a link.
        times, events: the heap of events.
        is_busy: whether each link carries a message.
        first, last: first and last message in the queue of each link, or -1.
        behind: the message behind each in the queue of a link, or -1.
        hop: the hop that each message takes next.
    """

    subject: np.ndarray
    times: np.ndarray
    events: np.ndarray
    is_busy: np.ndarray
    first: np.ndarray
    last: np.ndarray
    behind: np.ndarray
    hop: np.ndarray


def run_events(waits, hops, num_links, start, end):
    """As ``run_messages``, with events at the same time in the order in which they were pushed.

    These are the events of ASTRA-sim's congestion-aware analytical backend: a message arrives at a
    vertex, or is injected; a link becomes free. A message that starts pushes its arrival at the
    link's end, then the moment at which its link is free; a link that becomes free starts the first
    message of its queue. Events are numbered, so that the heap of (time, number) keeps that order.
    """
    count, ahead = len(waits.release), len(waits.release) + num_links + 1
    state = _Served(
        subject=np.empty(count + 2 * len(hops.link), np.int64),
        times=np.empty(ahead, np.int64),
        events=np.empty(ahead, np.int64),
        is_busy=np.zeros(num_links, np.bool_),
        first=np.full(num_links, _NONE, np.int64),
        last=np.full(num_links, _NONE, np.int64),
        behind=np.full(count, _NONE, np.int64),
        hop=hops.ptr[:-1].copy(),
    )
    ready, order = _released(waits, state.times)
    state.subject[: len(ready)], state.events[: len(order)] = ready, order
    size, number, done = len(ready), len(ready), 0
    while size:
        size, number, arrived = _run_events(waits, hops, state, start, end, size, number)
        done += arrived
    return done


@kernel(cache=True, nogil=True)
def _run_events(waits, hops, state, start, end, size, number):
    """Take some events; how many are to come, how many were pushed, how many messages arrived."""
    subject, times, events, hop = state.subject, state.times, state.events, state.hop
    is_busy, first, last, behind = state.is_busy, state.first, state.last, state.behind
    done = taken = 0
    while size and taken < _EVENTS_AT_ONCE:
        taken += 1
        now, m = times[0], subject[events[0]]
        size = heap.pop(times, events, 0, size)
        if m >= 0 and hop[m] == hops.ptr[m + 1]:
            end[m] = now
            done += 1
            for i in range(waits.ptr[m], waits.ptr[m + 1]):
                waiter = waits.after[i]
                if _is_released(waits, waiter, now):
                    subject[number] = waiter
                    size = heap.push(times, events, 0, size, waits.release[waiter], number)
                    number += 1
            continue
        if m >= 0:
            on = hops.link[hop[m]]
            start[hop[m]] = now  # its arrival, until it starts
            if is_busy[on]:
                _queue(m, on, first, last, behind)
                continue
        else:
            on = -1 - m
            is_busy[on] = False
            m = first[on]
            if m == _NONE:
                continue
            first[on], behind[m] = behind[m], _NONE
        h = hop[m]
        _settle(hops, h, start[h], now)
        start[h], is_busy[on], hop[m] = now, True, h + 1
        subject[number], subject[number + 1] = m, -1 - on
        # The arrival gets its number before the moment at which the link is free, in the order of
        # ASTRA-sim: of events at the same time the lower number is first.
        size = heap.push(times, events, 0, size, now + hops.delay[hops.case[h]], number)
        size = heap.push(times, events, 0, size, now + hops.busy[hops.case[h]], number + 1)
        number += 2
    return size, number, done


@kernel(cache=True, nogil=True, inline="always")
def _queue(m, on, first, last, behind):
    """Put a message at the end of the queue of a link."""
    if first[on] == _NONE:
        first[on] = m
    else:
        behind[last[on]] = m
    last[on] = m
