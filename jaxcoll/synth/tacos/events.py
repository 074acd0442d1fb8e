"""The matching of TACOS on links of unequal cost, compiled: from one arrival to the next.

Links are no longer in step, so the network is expanded event by event (TACOS, Sec. IV-F): whenever
messages arrive, the links into the ranks concerned that are idle are matched, the one that would
be done first before the others. A chunk leaves only after it has arrived. Times are whole ticks.

Chunks that one rank wants (gather, scatter, all_to_all) move: there is one copy, and it only takes
links that bring it nearer. Chunks that many ranks want are copied. Bitsets and slots are those of
``tacos_tables``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from jaxcoll.synth.tacos import rules
from jaxcoll.synth.tacos.bitset import bit_of, draw_bit, next_random, random_below
from jaxcoll.synth.tacos.state import WORD, Holdings, Network, measure, next_block, place

# Words in a block: the networks are smaller than those that run in lockstep.
WORDS = 8
BLOCK = WORD * WORDS

_ZERO = np.uint64(0)
_RANDOM = int(rules.Rule.RANDOM)
_NEED = int(rules.Rule.DOWNSTREAM_NEED)
_RAREST = int(rules.Rule.RAREST_FIRST)
_SCARCE = int(rules.Rule.SCARCE_LINK)
_PATIENT = int(rules.Rule.PATIENT)
_NEVER = np.iinfo(np.int64).max


class Costs(NamedTuple):
    """What carrying takes, in ticks.

    Attributes:
        alpha: a message's latency, int64 of shape (links,).
        serial: what each chunk of a message adds, int64 of shape (links, sizes), above 0.
        size: which size the chunk of each slot has, int32 of shape (slots,).
        rate: chunks a link carries in some time, for comparison, int64 of shape (links,).
        first, last, quicker: a link brings nothing that one of the ranks
            ``quicker[first[i]:last[i]]`` has or is about to get, by the rule patient, int64; see
            ``tacos_patience``.
    """

    alpha: np.ndarray
    serial: np.ndarray
    size: np.ndarray
    rate: np.ndarray
    first: np.ndarray
    last: np.ndarray
    quicker: np.ndarray


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


class Desk(NamedTuple):
    """Room to work in, and who waits and what is on its way.

    Attributes:
        link, load, number, head: of the idle links into the rank in hand, int64: which it is, the
            ticks that what it takes needs, how many chunks that is, and the first of them.
        slot, next: of the chunks taken by these links: which it is, and the next of the same link.
        candidates, planes, carry: scratch of a block.
        copies: how many ranks hold each slot or soon will, int32.
        first, last: sends that each link carries now are ``first..last - 1``, int64; zeros.
        times, events: heap of arrivals in ticks, and their links, int64 of shape (links,).
        waiting, waits: ranks whose links are to be matched, and whether each rank is one.
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
        block, word, bit = place(slot[c], WORDS)
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
                block, word, bit = place(s, WORDS)
                tokens.onward[block, link, word] |= bit
    return wanted


# ---------------------------------------------------------------------- Algorithm 2, by events


@nb.njit(cache=True, nogil=True)
def expand(
    net: Network,
    now: Holdings,
    tokens: Tokens,
    costs: Costs,
    desk: Desk,
    wanted,
    rule,
    most,
    x,
    limit,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any, Any]:
    """Expands the network in time, arrival by arrival, until every postcondition holds.

    Args:
        wanted: deliveries without which the postcondition does not hold.
        rule: a number of ``rules.Rule``.
        most: chunks a message may carry.
        x: state of the random generator, uint64 above 0.
        limit: ticks to stay below. No link takes a chunk when even the smallest would arrive
            later, which leaves the chunk to a faster link; the search is given up when nothing
            faster can be found.

    Returns:
        (start, edge, slot, finish, done): of every send, message by message in order of their
        start; when the last one arrives; and whether the limit was enough.
    """
    have, left, relay, offer = now.have, now.left, now.relay, now.offer
    out_ptr, near_ptr, near, dst = net.out_ptr, net.near_ptr, net.near, net.dst
    target, moves, relays = tokens.target, len(tokens.onward) > 0, len(relay) > 0
    needs_all = limit < _NEVER and not moves and not relays
    waiting, waits, times, events = desk.waiting, desk.waits, desk.times, desk.events
    first, last = desk.first, desk.last
    ranks, blocks, slots = have.shape[1], have.shape[0], len(target)
    start = np.empty(1024, np.int64)
    edge, slot = np.empty(1024, np.int32), np.empty(1024, np.int32)
    size = sends = time = finish = nb.int64(0)
    count = nb.int64(ranks)
    for v in range(ranks):
        waiting[v], waits[v] = v, True
    while wanted > 0:
        x = next_random(x)
        block = random_below(x, blocks)
        for i in range(count - 1, 0, -1):
            x = next_random(x)
            j = random_below(x, i + 1)
            waiting[i], waiting[j] = waiting[j], waiting[i]
        room = nb.int64(0)
        for i in range(count):
            v = waiting[i]
            ports = net.in_ptr[v + 1] - net.in_ptr[v]
            room += ports * most if moves else min(ports * most, left[v])
        room = sends + (min(room, slots) if moves else room)
        if room > len(edge):
            start, edge, slot = _longer(start, room), _longer(edge, room), _longer(slot, room)
        if needs_all and not _is_in_time(net, costs, desk, left, most, count, time, limit):
            return start[:sends], edge[:sends], slot[:sends], finish, False
        sends, size, last_arrival, x = _match(
            net, now, tokens, costs, desk, rule, most, x, block, count, time, limit, size, sends,
            start, edge, slot,
        )  # fmt: skip
        finish = max(finish, last_arrival)
        if size == 0 or times[0] >= limit:
            return start[:sends], edge[:sends], slot[:sends], finish, False
        time = times[0]
        count = 0
        while size > 0 and times[0] == time:
            link = events[0]
            size = _pop(times, events, size)
            v = dst[link]
            for i in range(first[link], last[link]):
                b, word, bit = place(slot[i], WORDS)
                if moves:
                    if v == target[slot[i]]:
                        wanted -= 1
                        continue
                elif not relays or relay[b, v, word] & bit == _ZERO:
                    wanted -= 1
                have[b, v, word] |= bit
                for out in range(out_ptr[v], out_ptr[v + 1]):
                    offer[out, b >> 6] |= bit_of(b)
            first[link] = last[link]
            if not waits[v]:
                waits[v] = True
                waiting[count] = v
                count += 1
            for i in range(near_ptr[v], near_ptr[v + 1]):
                w = near[i]
                if not waits[w]:
                    waits[w] = True
                    waiting[count] = w
                    count += 1
    return start[:sends], edge[:sends], slot[:sends], finish, finish < limit


@nb.njit(cache=True, nogil=True)
def _is_in_time(net: Network, costs: Costs, desk: Desk, left, most, count, time, limit):
    """Whether the links into each waiting rank can still bring all that it lacks before the limit.

    Args:
        left: how many chunks each rank lacks.
        most: chunks a message may carry.
        count: how many ranks wait.
    """
    for i in range(count):
        v = desk.waiting[i]
        lacking = left[v]
        for j in range(net.in_ptr[v], net.in_ptr[v + 1]):
            link = net.in_link[j]
            each = costs.serial[link, 0] + (costs.alpha[link] if most == 1 else 0)
            lacking -= (limit - 1 - time) // each
        if lacking > 0:
            return False
    return True


@nb.njit(cache=True, nogil=True)
def _longer(column, room):
    """The column with at least as much room, and as much again as it has."""
    longer = np.empty(max(room, 2 * len(column)), column.dtype)
    for i in range(len(column)):
        longer[i] = column[i]
    return longer


# ---------------------------------------------------------------------- Algorithm 1, by events


@nb.njit(cache=True, nogil=True)
def _match(
    net, now, tokens, costs, desk, rule, most, x, start_block, count, time, limit, size, sends,
    start, edge, slot,
):  # fmt: skip
    """Gives chunks to the idle links into the ranks that wait.

    Of the links into one rank, each time the one that is done with a further chunk first gets it.

    Args:
        start_block: the block at which all links start to look.
        count: how many ranks wait.
        limit: ticks to stay below.
        size: arrivals to come; sends: sends so far.
        start, edge, slot: receive the sends, with room for all.

    Returns:
        (sends, size, finish, x): as given, and when the last of the new sends arrives.
    """
    in_ptr, in_link, src = net.in_ptr, net.in_link, net.src
    have, lack, left = now.have, now.lack, now.left
    onward, target, distance = tokens.onward, tokens.target, tokens.distance
    alpha, serial, sizes, rate = costs.alpha, costs.serial, costs.size, costs.rate
    links, load, number, head = desk.link, desk.load, desk.number, desk.head
    taken, following, copies = desk.slot, desk.next, desk.copies
    candidates, planes = desk.candidates, desk.planes
    first, last = desk.first, desk.last
    moves = len(onward) > 0
    finish = nb.int64(0)
    for w in range(count):
        v = desk.waiting[w]
        desk.waits[v] = False
        if left[v] == 0:
            continue
        idle = given = nb.int64(0)
        for i in range(in_ptr[v], in_ptr[v + 1]):
            link = in_link[i]
            if first[link] == last[link]:
                x = next_random(x)
                j = random_below(x, idle + 1)
                links[idle] = links[j]
                links[j] = link
                idle += 1
        for j in range(idle):
            load[j] = alpha[links[j]]
            number[j], head[j] = 0, -1
        while True:
            soonest, chosen = _NEVER, -1
            for j in range(idle):
                if number[j] < most:
                    done = load[j] + serial[links[j], 0]
                    if done < soonest:
                        soonest, chosen = done, j
            if chosen < 0 or time + soonest >= limit:
                break
            link = links[chosen]
            block = _look(net, now, tokens, costs, candidates, start_block, link, v)
            if block < 0:
                number[chosen] = most
                continue
            if moves:
                if rule == _NEED:
                    rules.keep_farthest(candidates, block, distance[v], target)
                elif rule == _SCARCE:
                    rules.keep_fewest_ways(candidates, net, onward, link, block)
            else:
                if rule == _RAREST:
                    rules.keep_rarest(candidates, block, copies)
                elif rule == _SCARCE:
                    rules.keep_scarcest(candidates, net, have, link, v, block, rate)
                if rule != _RANDOM:
                    rules.keep_most_needed(candidates, net, lack, v, block, planes, desk.carry)
                if rule in (_NEED, _SCARCE, _PATIENT):
                    rules.keep_rarest(candidates, block, copies)
            x = next_random(x)
            s = draw_bit(candidates, WORDS, x) + block * BLOCK
            block, word, bit = place(s, WORDS)
            if moves:
                have[block, src[link], word] &= ~bit
            else:
                lack[block, v, word] &= ~bit
                left[v] -= 1
                copies[s] += 1
            taken[given], following[given] = s, head[chosen]
            head[chosen] = given
            given += 1
            number[chosen] += 1
            load[chosen] += serial[link, sizes[s]]
        for j in range(idle):
            if head[j] < 0:
                continue
            link, k = links[j], head[j]
            first[link] = sends
            while k >= 0:
                start[sends], edge[sends], slot[sends] = time, link, taken[k]
                sends += 1
                k = following[k]
            last[link] = sends
            finish = max(finish, time + load[j])
            size = _push(desk.times, desk.events, size, time + load[j], link)
    return sends, size, finish, x


@nb.njit(inline="always")
def _look(net, now, tokens, costs, candidates, start, link, v):
    """The first block, from ``start`` on, in which a link into rank v could carry something.

    What that is goes to ``candidates``; -1 for nothing in any block.
    """
    have, lack, relay, offer = now.have, now.lack, now.relay, now.offer
    onward, near_ptr, near = tokens.onward, net.near_ptr, net.near
    blocks, u = have.shape[0], net.src[link]
    quicker, first, last = costs.quicker, costs.first[link], costs.last[link]
    moves, relays = len(onward) > 0, len(relay) > 0
    block = next_block(offer, link, start, start, blocks)
    while block >= 0:
        found = _ZERO
        for q in range(WORDS):
            if moves:
                word = have[block, u, q] & onward[block, link, q]
            else:
                word = have[block, u, q] & lack[block, v, q]
                if relays and word != _ZERO:
                    # A chunk to relay is worth taking only while somebody next to v lacks it.
                    lacked = ~relay[block, v, q]
                    for i in range(near_ptr[v], near_ptr[v + 1]):
                        lacked |= lack[block, near[i], q]
                    word &= lacked
            candidates[q] = word
            found |= word
        if first < last and found != _ZERO:
            for i in range(first, last):
                for q in range(WORDS):
                    candidates[q] &= lack[block, quicker[i], q]
            found = _ZERO
            for q in range(WORDS):
                found |= candidates[q]
        if found != _ZERO:
            break
        # Nothing more until the source receives something in this block.
        offer[link, block >> 6] &= ~bit_of(block)
        block = next_block(offer, link, block + 1, start, blocks)
    return block


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
