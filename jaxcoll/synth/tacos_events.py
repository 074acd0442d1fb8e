"""The matching of TACOS on links of unequal cost, compiled: from one arrival to the next.

Links are no longer in step, so the network is expanded event by event (TACOS, Sec. IV-F): whenever
messages arrive, the links into the ranks concerned that are idle are matched, the one that would
be done first before the others. A chunk leaves only after it has arrived. Times are whole ticks.

Chunks that one rank wants (gather, scatter, all_to_all) move: there is one copy, and it only takes
links that bring it nearer. Chunks that many ranks want are copied. Bitsets and slots are those of
``tacos_kernel``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from jaxcoll.synth import rules
from jaxcoll.synth.bits import bit_of, next_random, random_below
from jaxcoll.synth.tacos_kernel import (
    WORDS,
    Holdings,
    Network,
    draw,
    measure,
    next_block,
    place,
)

_ZERO = np.uint64(0)
_RANDOM = int(rules.Rule.RANDOM)
_NEED = int(rules.Rule.DOWNSTREAM_NEED)
_RAREST = int(rules.Rule.RAREST_FIRST)
_SCARCE = int(rules.Rule.SCARCE_LINK)


class Costs(NamedTuple):
    """What carrying takes, in ticks.

    Attributes:
        alpha: a message's latency, int64 of shape (links,).
        serial: what each chunk of a message adds, int64 of shape (links, sizes), above 0.
        size: which size the chunk of each slot has, int32 of shape (slots,).
        rate: chunks a link carries in some time, for comparison, int64 of shape (links,).
    """

    alpha: np.ndarray
    serial: np.ndarray
    size: np.ndarray
    rate: np.ndarray


class Tokens(NamedTuple):
    """Where chunks that one rank wants may go; without blocks where chunks are copied.

    Attributes:
        onward: what each link brings nearer, bits of shape (blocks, links, WORDS).
        target: the rank that wants the chunk of each slot, int32 of shape (slots,).
        distance: from rank to rank, int64 of shape (ranks, ranks).
    """

    onward: np.ndarray
    target: np.ndarray
    distance: np.ndarray


# ---------------------------------------------------------------------- before the first event


@nb.njit(cache=True, nogil=True)
def place_tokens(net: Network, cost, holder, slot, tokens: Tokens, now: Holdings):
    """Fills empty ``Holdings`` and ``Tokens``, but for targets; the number of chunks to move.

    Args:
        cost: what makes a path short, int64 above 0 of shape (links,).
        holder: rank that has each chunk.
        slot: slot of each chunk.
    """
    wanted = 0
    for v in range(len(now.left)):
        measure(net, cost, v, tokens.distance[v])
    now.left[:] = 1  # a rank may always get something to pass on
    for c in range(len(slot)):
        block, word, bit = place(slot[c])
        u, t = holder[c], tokens.target[slot[c]]
        if u == t:
            continue
        wanted += 1
        now.have[block, u, word] |= bit
        for link in range(net.out_ptr[u], net.out_ptr[u + 1]):
            now.offer[link, block >> 6] |= bit_of(block)
    for link in range(len(net.src)):
        u, v = net.src[link], net.dst[link]
        for s in range(len(slot)):
            t = tokens.target[s]
            if tokens.distance[v, t] + cost[link] == tokens.distance[u, t]:
                block, word, bit = place(s)
                tokens.onward[block, link, word] |= bit
    return wanted


# ---------------------------------------------------------------------- Algorithm 2, by events


@nb.njit(cache=True, nogil=True)
def expand(
    net: Network, now: Holdings, tokens: Tokens, costs: Costs, wanted, rule, most, x, limit
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any, Any]:
    """Expands the network in time, arrival by arrival, until every postcondition holds.

    Args:
        wanted: deliveries without which the postcondition does not hold.
        rule: a number of ``rules.Rule``.
        most: chunks a message may carry.
        x: state of the random generator, uint64 above 0.
        limit: give up when nothing quicker than this many ticks can be found.

    Returns:
        (start, edge, slot, finish, done): of every send, message by message in order of their
        start; when the last one arrives; and whether the limit was enough.
    """
    ranks, links, blocks = now.have.shape[1], len(net.src), now.have.shape[0]
    # Sends that the link carries now are first[link]..last[link] - 1.
    first, last = np.zeros(links, np.int64), np.zeros(links, np.int64)
    times, events = np.empty(links + 1, np.int64), np.empty(links + 1, np.int64)
    start = np.empty(1024, np.int64)
    edge, slot = np.empty(1024, np.int32), np.empty(1024, np.int32)
    waiting = np.arange(ranks)
    waits = np.ones(ranks, np.bool_)
    copies = np.ones(len(costs.size), np.int32)
    degree = planes = nb.int64(0)
    for v in range(ranks):
        degree = max(degree, net.in_ptr[v + 1] - net.in_ptr[v])
        while (net.near_ptr[v + 1] - net.near_ptr[v]) >> planes:
            planes += 1
    desk = _Desk(
        np.empty(degree, np.int64),
        np.empty(degree, np.int64),
        np.empty(degree, np.int64),
        np.empty(degree, np.int64),
        np.empty(min(most * degree, len(costs.size)) + 1, np.int32),
        np.empty(min(most * degree, len(costs.size)) + 1, np.int64),
        np.empty(WORDS, np.uint64),
        np.empty((1, planes, WORDS), np.uint64),
        copies,
    )
    size = sends = count = nb.int64(0)
    count = ranks
    time = finish = nb.int64(0)
    while wanted > 0:
        x = next_random(x)
        block = random_below(x, blocks)
        for i in range(count - 1, 0, -1):
            x = next_random(x)
            j = random_below(x, i + 1)
            waiting[i], waiting[j] = waiting[j], waiting[i]
        for i in range(count):
            v = waiting[i]
            waits[v] = False
            if now.left[v] == 0:
                continue
            taken, idle, x = _match(
                net, now, tokens, costs, rule, most, x, block, v, first, last, desk
            )
            while sends + taken > len(edge):
                start, edge, slot = _longer(start), _longer(edge), _longer(slot)
            for j in range(idle):
                if desk.head[j] < 0:
                    continue
                link = desk.link[j]
                first[link] = sends
                k = desk.head[j]
                while k >= 0:
                    start[sends], edge[sends], slot[sends] = time, link, desk.slot[k]
                    sends += 1
                    k = desk.next[k]
                last[link] = sends
                arrival = time + desk.load[j]
                finish = max(finish, arrival)
                size = _push(times, events, size, arrival, link)
        if size == 0 or times[0] >= limit:
            return start[:sends], edge[:sends], slot[:sends], finish, False
        time = times[0]
        count = 0
        while size > 0 and times[0] == time:
            link = events[0]
            size = _pop(times, events, size)
            v = net.dst[link]
            for i in range(first[link], last[link]):
                b, word, bit = place(slot[i])
                if len(tokens.onward):
                    if v == tokens.target[slot[i]]:
                        wanted -= 1
                        continue
                elif len(now.relay) == 0 or now.relay[b, v, word] & bit == _ZERO:
                    wanted -= 1
                now.have[b, v, word] |= bit
                for out in range(net.out_ptr[v], net.out_ptr[v + 1]):
                    now.offer[out, b >> 6] |= bit_of(b)
            first[link] = last[link]
            if not waits[v]:
                waits[v] = True
                waiting[count] = v
                count += 1
            for i in range(net.near_ptr[v], net.near_ptr[v + 1]):
                w = net.near[i]
                if not waits[w]:
                    waits[w] = True
                    waiting[count] = w
                    count += 1
    return start[:sends], edge[:sends], slot[:sends], finish, finish < limit


class _Desk(NamedTuple):
    """Room to match the links into one rank: its idle links, and the chunks given to each.

    ``link``, ``load``, ``number`` and ``head`` are by idle link: which it is, the ticks that what
    it takes needs, how many chunks that is, and the first of them; ``slot`` and ``next`` are by
    chunk taken. The rest is scratch, and ``copies`` counts who holds each slot.
    """

    link: np.ndarray
    load: np.ndarray
    number: np.ndarray
    head: np.ndarray
    slot: np.ndarray
    next: np.ndarray
    candidates: np.ndarray
    planes: np.ndarray
    copies: np.ndarray


# ---------------------------------------------------------------------- Algorithm 1, for one rank


@nb.njit(cache=True, nogil=True)
def _match(net, now, tokens, costs, rule, most, x, block, v, first, last, desk):
    """Gives chunks to the idle links into rank v, each time to the link that is done with it first.

    Returns:
        (taken, idle, x): chunks given, and the number of idle links.
    """
    idle = nb.int64(0)
    for i in range(net.in_ptr[v], net.in_ptr[v + 1]):
        link = net.in_link[i]
        if first[link] == last[link]:
            x = next_random(x)
            j = random_below(x, idle + 1)
            desk.link[idle] = desk.link[j]
            desk.link[j] = link
            idle += 1
    for j in range(idle):
        desk.load[j] = costs.alpha[desk.link[j]]
        desk.number[j], desk.head[j] = 0, -1
    taken = nb.int64(0)
    while True:
        best, chosen = np.iinfo(np.int64).max, -1
        for j in range(idle):
            if desk.number[j] < most:
                done = desk.load[j] + costs.serial[desk.link[j], 0]
                if done < best:
                    best, chosen = done, j
        if chosen < 0:
            return taken, idle, x
        link = desk.link[chosen]
        slot, x = _choose(net, now, tokens, costs, rule, x, block, link, v, desk)
        if slot < 0:
            desk.number[chosen] = most
            continue
        b, word, bit = place(slot)
        if len(tokens.onward):
            now.have[b, net.src[link], word] &= ~bit
        else:
            now.lack[b, v, word] &= ~bit
            now.left[v] -= 1
            desk.copies[slot] += 1
        desk.slot[taken], desk.next[taken] = slot, desk.head[chosen]
        desk.head[chosen] = taken
        desk.number[chosen] += 1
        desk.load[chosen] += costs.serial[link, costs.size[slot]]
        taken += 1


@nb.njit(cache=True, nogil=True)
def _choose(net, now, tokens, costs, rule, x, start, link, v, desk):
    """What a link into rank v takes, by the rule, in the first block from ``start`` that has any.

    Returns:
        (slot, x): -1 for nothing.
    """
    blocks, u, candidates = now.have.shape[0], net.src[link], desk.candidates
    block = next_block(now.offer, link, start, start, blocks)
    while block >= 0:
        found = _ZERO
        for q in range(WORDS):
            if len(tokens.onward):
                candidates[q] = now.have[block, u, q] & tokens.onward[block, link, q]
            else:
                candidates[q] = now.have[block, u, q] & now.lack[block, v, q]
                if len(now.relay) and candidates[q] != _ZERO:
                    # A chunk to relay is worth taking only while somebody next to v lacks it.
                    lacked = ~now.relay[block, v, q]
                    for i in range(net.near_ptr[v], net.near_ptr[v + 1]):
                        lacked |= now.lack[block, net.near[i], q]
                    candidates[q] &= lacked
            found |= candidates[q]
        if found != _ZERO:
            if rule != _RANDOM:
                _narrow(net, now, tokens, costs, rule, block, link, v, desk)
            x = next_random(x)
            return draw(candidates, x) + (block << 9), x
        # Nothing more until the source receives something in this block.
        now.offer[link, block >> 6] &= ~bit_of(block)
        block = next_block(now.offer, link, block + 1, start, blocks)
    return nb.int64(-1), x


@nb.njit(cache=True, nogil=True)
def _narrow(net, now, tokens, costs, rule, block, link, v, desk):
    """Keeps the candidates on the desk that the rule likes best."""
    candidates = desk.candidates
    if len(tokens.onward):
        if rule == _NEED:
            rules.keep_farthest(candidates, block, tokens.distance[v], tokens.target)
        elif rule == _SCARCE:
            rules.keep_fewest_ways(candidates, net, tokens.onward, link, block)
        return
    if rule == _RAREST:
        rules.keep_rarest(candidates, block, desk.copies)
    elif rule == _SCARCE:
        rules.keep_scarcest(candidates, net, now.have, link, v, block, costs.rate)
    rules.keep_most_needed(candidates, net, now.lack, v, block, desk.planes)
    if rule != _RAREST:
        rules.keep_rarest(candidates, block, desk.copies)


@nb.njit(inline="always")
def _longer(column):
    """The column with room for as much again."""
    longer = np.empty(2 * len(column), column.dtype)
    longer[: len(column)] = column
    return longer


# ---------------------------------------------------------------------- arrivals


@nb.njit(inline="always")
def _push(times, events, size, time, event):
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


@nb.njit(inline="always")
def _pop(times, events, size):
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


# ---------------------------------------------------------------------- after the last event


@nb.njit(cache=True, nogil=True)
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
    finish = nb.int64(0)
    for t in range(len(step_ptr) - 1):
        i = step_ptr[t]
        while i < step_ptr[t + 1]:
            link = edge[i]
            u, v = net.src[link], net.dst[link]
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
