"""The matching of TACOS on links of unequal cost, compiled: from one arrival to the next.

Links are no longer in step, so the network is expanded event by event (TACOS, Sec. IV-F): whenever
messages arrive, the links into the ranks concerned that are idle are matched, the one that would
be done first before the others. A chunk leaves only after it has arrived. Times are whole ticks.

Point-to-point chunks, which one rank wants (gather, scatter, all_to_all), move: there is one copy,
and it only takes links that bring it nearer. Chunks that many ranks want are copied. Bitsets and
slots are those of ``state``.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from jaxcoll.synth.tacos import rules
from jaxcoll.synth.tacos.bitset import bit_of, draw_bit, next_random, random_below
from jaxcoll.synth.tacos.event_state import (
    BLOCK,
    WORDS,
    Costs,
    Event,
    Goal,
    PointToPoint,
    Sends,
    Workspace,
    pop,
    push,
)
from jaxcoll.synth.tacos.state import Holdings, Network, next_block, place

_ZERO = np.uint64(0)
_RANDOM = int(rules.Rule.RANDOM)
_NEED = int(rules.Rule.DOWNSTREAM_NEED)
_RAREST = int(rules.Rule.RAREST_FIRST)
_SCARCE = int(rules.Rule.SCARCE_LINK)
_PATIENT = int(rules.Rule.PATIENT)
_NEVER = np.iinfo(np.int64).max


# ---------------------------------------------------------------------- Algorithm 2, by events


@nb.njit(cache=True, nogil=True)
def expand(
    net: Network, now: Holdings, direct: PointToPoint, costs: Costs, work: Workspace, goal: Goal
) -> tuple[Sends, Any, Any]:
    """Expands the network in time, arrival by arrival, until every postcondition holds.

    Algorithm 2 with an arrival in place of "t <- t + 1" (Sec. IV-F).

    Returns:
        (sends, finish, done): the sends, message by message in order of their start; when the last
        one arrives; and whether the limit was enough.
    """
    left, limit, wanted = now.left, goal.limit, goal.wanted
    moves, relays = len(direct.onward) > 0, len(now.relay) > 0
    needs_all = limit < _NEVER and not moves and not relays
    times, waiting, waits = work.times, work.waiting, work.waits
    ranks, blocks = now.have.shape[1], now.have.shape[0]
    columns = Sends(np.empty(1024, np.int64), np.empty(1024, np.int32), np.empty(1024, np.int32))
    size = sends = time = finish = nb.int64(0)
    count = nb.int64(ranks)
    for v in range(ranks):
        waiting[v], waits[v] = v, True
    done = True
    while wanted > 0 and done:
        block = _shuffle(waiting, work.random, count, blocks)
        room = sends + _most_sends(net, direct, waiting, left, count, goal.most)
        if room > len(columns.edge):
            columns = Sends(
                _longer(columns.start, room),
                _longer(columns.edge, room),
                _longer(columns.slot, room),
            )
        if needs_all and not _is_in_time(net, costs, waiting, left, goal, count, time):
            done = False
            break
        event = Event(time, count, block, size, sends)
        sends, size, last_arrival = _match(
            net, now, direct, costs, work, goal, event, columns
        )  # fmt: skip
        finish = max(finish, last_arrival)
        done = size > 0 and times[0] < limit
        if done:
            time = times[0]
            size, count, arrived = _arrive(net, now, direct, work, columns.slot, size)
            wanted -= arrived
    sent = Sends(columns.start[:sends], columns.edge[:sends], columns.slot[:sends])
    return sent, finish, done and finish < limit


@nb.njit(inline="always")
def _shuffle(waiting, random, count, blocks):
    """Draws the block at which all links start to look, and the order of the waiting ranks."""
    x = next_random(random[0])
    block = random_below(x, blocks)
    for i in range(count - 1, 0, -1):
        x = next_random(x)
        j = random_below(x, i + 1)
        waiting[i], waiting[j] = waiting[j], waiting[i]
    random[0] = x
    return block


@nb.njit(inline="always")
def _most_sends(net, direct, waiting, left, count, most):
    """The most sends that the links into the waiting ranks can take."""
    in_ptr, slots = net.in_ptr, len(direct.target)
    moves = len(direct.onward) > 0
    room = nb.int64(0)
    for i in range(count):
        v = waiting[i]
        ports = in_ptr[v + 1] - in_ptr[v]
        room += ports * most if moves else min(ports * most, left[v])
    return min(room, slots) if moves else room


@nb.njit(inline="always")
def _arrive(net, now, direct, work, slot, size):
    """Delivers the messages that arrive first, and lets the ranks concerned wait.

    Returns:
        (size, count, arrived): arrivals to come, ranks that wait, and wanted deliveries.
    """
    have, relay, offer, target = now.have, now.relay, now.offer, direct.target
    out_ptr, near_ptr, near, dst = net.out_ptr, net.near_ptr, net.near, net.dst
    waiting, waits, times, events = work.waiting, work.waits, work.times, work.events
    first, last = work.first, work.last
    moves, relays = len(direct.onward) > 0, len(relay) > 0
    time = times[0]
    count = arrived = nb.int64(0)
    while size > 0 and times[0] == time:
        link = events[0]
        size = pop(times, events, size)
        v = dst[link]
        for i in range(first[link], last[link]):
            b, word, bit = place(slot[i], WORDS)
            if moves:
                if v == target[slot[i]]:
                    arrived += 1
                    continue
            elif not relays or relay[b, v, word] & bit == _ZERO:
                arrived += 1
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
    return size, count, arrived


@nb.njit(cache=True, nogil=True)
def _is_in_time(net: Network, costs: Costs, waiting, left, goal: Goal, count, time):
    """Whether the links into each waiting rank can still bring all that it lacks before the limit.

    Args:
        left: how many chunks each rank lacks.
        count: how many ranks wait.
    """
    for i in range(count):
        v = waiting[i]
        lacking = left[v]
        for j in range(net.in_ptr[v], net.in_ptr[v + 1]):
            link = net.in_link[j]
            each = costs.serial[link, 0] + (costs.alpha[link] if goal.most == 1 else 0)
            lacking -= (goal.limit - 1 - time) // each
        if lacking > 0:
            return False
    return True


@nb.njit(cache=True, nogil=True)
def _longer(column, room):
    """The column with at least ``room`` entries, and at least twice as many as before."""
    longer = np.empty(max(room, 2 * len(column)), column.dtype)
    for i in range(len(column)):
        longer[i] = column[i]
    return longer


# ---------------------------------------------------------------------- Algorithm 1, by events


@nb.njit(cache=True, nogil=True)
def _match(net, now, direct, costs, work, goal, event, columns):
    """Gives chunks to the idle links into the ranks that wait.

    Algorithm 1, "Make link-chunk matches". Of the links into one rank, the one that would be done
    first with a further chunk gets the next one.

    Args:
        columns: receive the sends, with room for all.

    Returns:
        (sends, size, finish): see ``Event``; and when the last of the new sends arrives.
    """
    have, lack, left = now.have, now.lack, now.left
    alpha, serial, sizes, src = costs.alpha, costs.serial, costs.size, net.src
    links, load, number, head = work.link, work.load, work.number, work.head
    taken, following, copies = work.slot, work.next, work.copies
    candidates, random = work.candidates, work.random
    moves, most, time, limit = len(direct.onward) > 0, goal.most, event.time, goal.limit
    sends, size, finish = event.sends, event.size, nb.int64(0)
    for w in range(event.count):
        v = work.waiting[w]
        work.waits[v] = False
        if left[v] == 0:
            continue
        idle = _idle_links(net, work, v)
        for j in range(idle):
            load[j] = alpha[links[j]]
            number[j], head[j] = 0, -1
        given = nb.int64(0)
        while True:
            chosen, soonest = _done_first(links, load, number, serial, idle, most)
            if chosen < 0 or time + soonest >= limit:
                break
            link = links[chosen]
            block = _look(net, now, direct, costs, candidates, event.block, link, v)
            if block < 0:
                number[chosen] = most
                continue
            _keep_best(net, now, direct, costs, work, goal.rule, link, v, block)
            random[0] = next_random(random[0])
            s = draw_bit(candidates, WORDS, random[0]) + block * BLOCK
            block, word, bit = place(s, WORDS)
            if moves:
                have[block, src[link], word] &= ~bit
            else:  # Algorithm 1, "Mark link-chunk match"
                lack[block, v, word] &= ~bit
                left[v] -= 1
                copies[s] += 1
            taken[given], following[given] = s, head[chosen]
            head[chosen] = given
            given += 1
            number[chosen] += 1
            load[chosen] += serial[link, sizes[s]]
        for j in range(idle):
            if head[j] >= 0:
                sends = _send(work, columns, j, time, sends)
                size = push(work.times, work.events, size, time + load[j], links[j])
                finish = max(finish, time + load[j])
    return sends, size, finish


@nb.njit(inline="always")
def _idle_links(net, work, v):
    """The idle links into rank v, in random order, into ``work.link``; their number."""
    in_ptr, in_link = net.in_ptr, net.in_link
    links, first, last, random = work.link, work.first, work.last, work.random
    idle, x = nb.int64(0), random[0]
    for i in range(in_ptr[v], in_ptr[v + 1]):
        link = in_link[i]
        if first[link] == last[link]:
            x = next_random(x)
            j = random_below(x, idle + 1)
            links[idle] = links[j]
            links[j] = link
            idle += 1
    random[0] = x
    return idle


@nb.njit(inline="always")
def _done_first(links, load, number, serial, idle, most):
    """The idle link that would be done first with one more of the smallest chunks, and when."""
    soonest, chosen = _NEVER, -1
    for j in range(idle):
        if number[j] < most:
            done = load[j] + serial[links[j], 0]
            if done < soonest:
                soonest, chosen = done, j
    return chosen, soonest


@nb.njit(inline="always")
def _keep_best(net, now, direct, costs, work, rule, link, v, block):
    """Keeps the candidates that the rule prefers."""
    candidates, target = work.candidates, direct.target
    if len(direct.onward) > 0:
        if rule == _NEED:
            rules.keep_farthest(candidates, block, direct.distance[v], target)
        elif rule == _SCARCE:
            rules.keep_fewest_ways(candidates, net, direct.onward, link, block)
    else:
        if rule == _RAREST:
            rules.keep_rarest(candidates, block, work.copies)
        elif rule == _SCARCE:
            rules.keep_scarcest(candidates, net, now.have, link, v, block, costs.rate)
        if rule != _RANDOM:
            rules.keep_most_needed(candidates, net, now.lack, v, block, work.planes, work.carry)
        if rule in (_NEED, _SCARCE, _PATIENT):
            rules.keep_rarest(candidates, block, work.copies)


@nb.njit(inline="always")
def _send(work, columns, j, time, sends):
    """Writes the message of the idle link j; the number of sends with it."""
    slot, following, link, k = work.slot, work.next, work.link[j], work.head[j]
    work.first[link] = sends
    while k >= 0:
        columns.start[sends], columns.edge[sends], columns.slot[sends] = time, link, slot[k]
        sends += 1
        k = following[k]
    work.last[link] = sends
    return sends


@nb.njit(inline="always")
def _look(net, now, direct, costs, candidates, start, link, v):
    """The first block, from ``start`` on, in which a link into rank v could carry a chunk; or -1.

    ``candidates`` receives the chunks of this block that it could carry.
    """
    have, lack, relay, offer = now.have, now.lack, now.relay, now.offer
    onward, near_ptr, near = direct.onward, net.near_ptr, net.near
    blocks, u = have.shape[0], net.src[link]
    faster, first, last = costs.faster, costs.first[link], costs.last[link]
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
                    candidates[q] &= lack[block, faster[i], q]
            found = _ZERO
            for q in range(WORDS):
                found |= candidates[q]
        if found != _ZERO:
            break
        # Nothing more until the source receives something in this block.
        offer[link, block >> 6] &= ~bit_of(block)
        block = next_block(offer, link, block + 1, start, blocks)
    return block


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
