"""State of the matching by events: times, point-to-point chunks, the workspace and its heap.

Where links differ there is no step at which all of them start. The state of a search by events is
therefore a heap of arrivals, the ranks that an arrival has woken, and for each link the message
that it carries now. Ticks are whole, so that arrivals of one moment are equal and not nearly so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.tacos.state import WORD, Holdings, Network, bit_of, measure, place

# Words in a block: the networks are smaller than those that run in lockstep.
WORDS = 8
BLOCK = WORD * WORDS

# Where a search is between two calls of its kernel, an int64 each: deliveries still wanted, the
# time, when the last send so far arrives, sends made, arrivals to come, and ranks that wait.
WANTED, TIME, FINISH, SENDS, UNDER_WAY, WAITING = range(6)

# Links times slots that are looked at in a call of a kernel, which sees no signals.
_PLACES_AT_ONCE = 1 << 24


class Costs(NamedTuple):
    """The time that sends take, in ticks.

    Attributes:
        alpha: a message's latency, int64 of shape (links,).
        serial: time that each chunk adds to its message, int64 of shape (links, sizes), above 0.
        size: which size the chunk of each slot has, int32 of shape (slots,).
        rate: chunks that a link carries in a fixed time, for comparison, int64 of shape (links,).
        first, last, faster: slow-link avoidance (the rule patient): link i brings no chunk that one
            of the ranks ``faster[first[i]:last[i]]`` has or is about to get, int64; see
            ``slow_links``.
    """

    alpha: np.ndarray
    serial: np.ndarray
    size: np.ndarray
    rate: np.ndarray
    first: np.ndarray
    last: np.ndarray
    faster: np.ndarray


class PointToPoint(NamedTuple):
    """Where point-to-point chunks may go; without blocks where chunks are copied.

    Attributes:
        onward: the chunks that each link brings nearer, bits of shape (blocks, links, WORDS).
        target: the rank that wants the chunk of each slot, int32 of shape (slots,).
        distance: from rank to rank, int64 of shape (ranks, ranks).
    """

    onward: np.ndarray
    target: np.ndarray
    distance: np.ndarray


class Workspace(NamedTuple):
    """Scratch of the search, the ranks that wait and the messages under way.

    Attributes:
        link, load, number, head: the idle links into the rank being matched, int64: the link, the
            ticks its message takes, the number of its chunks, and the first of them.
        slot, next: the chunks taken by these links: the slot, and the next chunk of the same link.
        candidates, planes, carry: scratch of a block.
        copies: how many ranks hold each slot or soon will, int32.
        first, last: each link carries the sends ``first..last - 1``, int64; zeros.
        times, events: heap of arrivals in ticks, and their links, int64 of shape (links,).
        waiting, waits: ranks whose links are to be matched, and whether each rank is one.
        random: state of the random generator, one uint64 above 0.
    """

    link: np.ndarray
    load: np.ndarray
    number: np.ndarray
    head: np.ndarray
    slot: np.ndarray
    next: np.ndarray
    candidates: np.ndarray
    planes: np.ndarray
    carry: np.ndarray
    copies: np.ndarray
    first: np.ndarray
    last: np.ndarray
    times: np.ndarray
    events: np.ndarray
    waiting: np.ndarray
    waits: np.ndarray
    random: np.ndarray


class Goal(NamedTuple):
    """The end of a search, and how it gets there.

    Attributes:
        rule: a number of ``rules.Rule``.
        most: chunks that a message may carry.
        limit: ticks to stay below. No link takes a chunk when even the smallest would arrive
            later, which leaves the chunk to a faster link; the search is given up when nothing
            faster can be found.
    """

    rule: int
    most: int
    limit: int


class Sends(NamedTuple):
    """Columns of the schedule: start in ticks, link and slot of every send."""

    start: np.ndarray
    edge: np.ndarray
    slot: np.ndarray


class Event(NamedTuple):
    """One instant: ``count`` ranks wait, ``size`` arrivals are to come, ``sends`` were made.

    ``block`` is the block at which all links start to look.
    """

    time: Any
    count: Any
    block: Any
    size: Any
    sends: Any


# ---------------------------------------------------------------------- before the first event


def place_chunks(net: Network, cost, holder, slot, direct: PointToPoint, now: Holdings):
    """Fills empty ``Holdings`` and ``PointToPoint``, but for targets; returns how many chunks move.

    Args:
        cost: length of each link on a path, int64 above 0 of shape (links,).
        holder: rank that has each chunk.
        slot: slot of each chunk.
    """
    wanted = _place_chunks(net, cost, holder, slot, direct, now)
    links, at_once = len(net.src), max(1, _PLACES_AT_ONCE // max(1, len(slot)))
    for first in range(0, links, at_once):
        _mark_onward(net, cost, direct, first, min(first + at_once, links))
    return wanted


@kernel(cache=True, nogil=True)
def _place_chunks(net: Network, cost, holder, slot, direct: PointToPoint, now: Holdings):
    """Where chunks are, and distances."""
    wanted = 0
    for v in range(len(now.left)):
        measure(net, cost, v, direct.distance[v])
    now.left[:] = 1  # a rank may always get something to pass on
    for c in range(len(slot)):
        block, word, bit = place(slot[c], WORDS)
        u, t = holder[c], direct.target[slot[c]]
        if u == t:
            continue
        wanted += 1
        now.have[block, u, word] |= bit
        for link in range(net.out_ptr[u], net.out_ptr[u + 1]):
            now.offer[link, block >> 6] |= bit_of(block)
    return wanted


@kernel(cache=True, nogil=True)
def _mark_onward(net: Network, cost, direct: PointToPoint, first, last):
    """Marks the chunks that some links bring nearer to their targets."""
    for link in range(first, last):
        u, v = net.src[link], net.dst[link]
        for s in range(len(direct.target)):
            t = direct.target[s]
            if direct.distance[v, t] + cost[link] == direct.distance[u, t]:
                block, word, bit = place(s, WORDS)
                direct.onward[block, link, word] |= bit


# ---------------------------------------------------------------------- arrivals


@kernel(inline="always")
def push(times, events, size, time, event):
    """Adds an arrival to a binary heap in order of time; the new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] <= time:
            break
        times[i], events[i] = times[parent], events[parent]
        i = parent
    times[i], events[i] = time, event
    return size + 1


@kernel(inline="always")
def pop(times, events, size):
    """Removes the first arrival; the new size."""
    size -= 1
    time, event = times[size], events[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[i], events[i] = times[child], events[child]
        i = child
    times[i], events[i] = time, event
    return size
