"""A search by events, besides its ``state``: times, a heap of arrivals, messages under way.

Where links differ there is no step at which all of them start. The state of a search by events is
therefore a heap of arrivals, the ranks that an arrival has woken, and for each link the message
that it carries now. Ticks are whole, so that arrivals of one moment are equal and not nearly so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxcoll.collective import Collective, common_parts
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.simulation.timeline import Clock
from jaxcoll.synth.tacos.bits import bit_of
from jaxcoll.synth.tacos.rules import faster_ranks
from jaxcoll.synth.tacos.state import WORD, Holdings, Network, Slots, measure, place
from jaxcoll.topology import Topology

# Words in a block: the networks are smaller than those that run in lockstep.
WORDS = 8
BLOCK = WORD * WORDS

# Where a search is between two calls of its kernel, an int64 each: deliveries still wanted, the
# time, when the last send so far arrives, sends made, arrivals to come, and ranks that wait.
WANTED, TIME, FINISH, SENDS, UNDER_WAY, WAITING = range(6)

# Links times slots that are looked at in a call of a kernel, which sees no signals.
_PLACES_AT_ONCE = 1 << 24


class SendTimes(NamedTuple):
    """The time of a collective's chunks on the links of a network, in ticks of a clock.

    Attributes:
        clock: the unit of time.
        alpha: latency of each link, int64 of shape (links,).
        serial: time that a chunk of each size adds, int64 of shape (links, sizes).
        size: which size each chunk has, int32 of shape (chunks,).
    """

    clock: Clock
    alpha: np.ndarray
    serial: np.ndarray
    size: np.ndarray

    @property
    def chunk(self) -> np.ndarray:
        """What one chunk of the largest size costs on each link, int64 of shape (links,)."""
        return self.alpha + self.serial[:, -1]


def send_times(topology: Topology, collective: Collective, nbytes: Number) -> SendTimes:
    """What chunks cost when the buffer of a rank has ``nbytes``."""
    weight, total = common_parts(collective)
    sizes, size = np.unique(weight, return_inverse=True)
    whole = as_fraction(nbytes)
    distinct, which = topology.speeds
    alphas = [alpha for alpha, _ in distinct]
    serials = [whole * int(w) / total / bandwidth for _, bandwidth in distinct for w in sizes]
    # No run is longer than every rank receiving every chunk, one after another.
    most = collective.num_ranks * collective.num_chunks * (max(alphas) + max(serials))
    clock = Clock.for_durations([*alphas, *serials], most)
    # Where rounding up leaves nothing, a tick is the least that a chunk can take.
    ticks = np.maximum(clock.ticks(serials).reshape(len(distinct), len(sizes)), 1)
    return SendTimes(clock, clock.ticks(alphas)[which], ticks[which], size.astype(np.int32))


class Costs(NamedTuple):
    """The time that sends take, in ticks.

    Attributes:
        alpha: a message's latency, int64 of shape (links,).
        serial: time that each chunk adds to its message, int64 of shape (links, sizes), above 0.
        size: which size the chunk of each slot has, int32 of shape (slots,).
        rate: chunks that a link carries in a fixed time, for comparison, int64 of shape (links,).
        first, last, faster: slow-link avoidance (the rule patient): link i brings no chunk that one
            of the ranks ``faster[first[i]:last[i]]`` has or is about to get, int64; see
            ``rules``.
    """

    alpha: np.ndarray
    serial: np.ndarray
    size: np.ndarray
    rate: np.ndarray
    first: np.ndarray
    last: np.ndarray
    faster: np.ndarray

    @classmethod
    def of(cls, network: Network, times: SendTimes, slots: Slots, avoids: bool) -> Costs:
        """The times of sends by slot; ``avoids``: whether slow links are avoided (``rules``)."""
        first = last = np.zeros(len(network.src), np.int64)
        faster = np.zeros(0, np.int64)
        if avoids:
            first, last, faster = faster_ranks(network, times.chunk)
        cost = times.alpha + times.serial[:, 0]
        # In 64ths of the slowest link, as whole numbers: the rule scarce-link adds these up per
        # chunk.
        rate = cost.max() // np.maximum(cost // 64, 1)
        size = times.size[slots.chunk]
        return cls(times.alpha, times.serial, size, rate, first, last, faster)


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

    @classmethod
    def none(cls) -> PointToPoint:
        """The tables where chunks are copied: empty."""
        return cls(
            np.zeros((0, 0, WORDS), np.uint64), np.zeros(0, np.int32), np.empty((0, 0), np.int64)
        )

    @classmethod
    def towards(cls, target: np.ndarray, links: int, now: Holdings) -> PointToPoint:
        """The tables of chunks that have not been placed yet (``place_chunks``)."""
        blocks, ranks = now.have.shape[:2]
        onward = np.zeros((blocks, links, WORDS), np.uint64)
        return cls(onward, target, np.empty((ranks, ranks), np.int64))


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

    @classmethod
    def new(
        cls, network: Network, ranks: int, slots: int, most: int, random_state: np.uint64
    ) -> Workspace:
        """The workspace of a search that has not begun."""
        links = len(network.src)
        ports = int(np.diff(network.in_ptr).max())
        planes = int(np.diff(network.near_ptr).max()).bit_length()
        chunks = min(most * ports, slots)
        return cls(
            link=np.empty(ports, np.int64),
            load=np.empty(ports, np.int64),
            number=np.empty(ports, np.int64),
            head=np.empty(ports, np.int64),
            slot=np.empty(chunks, np.int32),
            next=np.empty(chunks, np.int64),
            candidates=np.empty(WORDS, np.uint64),
            planes=np.empty((1, planes, WORDS), np.uint64),
            carry=np.empty(WORDS, np.uint64),
            copies=np.ones(slots, np.int32),
            first=np.zeros(links, np.int64),
            last=np.zeros(links, np.int64),
            times=np.empty(links, np.int64),
            events=np.empty(links, np.int64),
            waiting=np.arange(ranks),
            waits=np.ones(ranks, np.bool_),
            random=np.array([random_state], np.uint64),
        )


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

    @classmethod
    def rows(cls, count: int) -> Sends:
        """Columns of so many rows, not yet filled."""
        return cls(*(np.empty(count, dtype) for dtype in (np.int64, np.int32, np.int32)))

    def with_more(self, count: int) -> Sends:
        """The same columns, and so many rows after them."""
        return Sends(*map(np.concatenate, zip(self, Sends.rows(count), strict=True)))

    def first(self, count: int) -> Sends:
        """The first rows."""
        return Sends(*(column[:count] for column in self))


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
        # A chunk that starts where it is wanted never moves.
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


# ---------------------------------------------------------------------- after the last event


@kernel(cache=True, nogil=True)
def retime(net: Network, costs: Costs, step_ptr, edge, slot, available, start):
    """When each send leaves if every message leaves as early as its link and its chunks allow.

    Args:
        step_ptr, edge, slot: the schedule.
        available: zeros, (ranks, slots), scratch.
        start: receives the start of each send, ticks.

    Returns:
        When the last one arrives.
    """
    free = np.zeros(len(net.src), np.int64)
    finish = np.int64(0)
    for t in range(len(step_ptr) - 1):
        i = step_ptr[t]
        while i < step_ptr[t + 1]:
            link = edge[i]
            u, v = net.src[link], net.dst[link]
            # Sends of a step on one link are one message, which pays its latency once.
            begin, load, end = free[link], costs.alpha[link], i
            while end < step_ptr[t + 1] and edge[end] == link:
                begin = max(begin, available[u, slot[end]])
                load += costs.serial[link, costs.size[slot[end]]]
                end += 1
            for j in range(i, end):
                start[j] = begin
                available[v, slot[j]] = begin + load
            free[link] = begin + load
            finish = max(finish, begin + load)
            i = end
    return finish
