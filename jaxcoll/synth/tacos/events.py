"""The matching of TACOS on links of unequal cost, compiled: from one arrival to the next.

Links of unequal cost are not in step, so the network is expanded event by event (TACOS, Sec. IV-F):
whenever messages arrive, the idle links into the ranks concerned are matched, beginning with the
one that would be done first. A chunk leaves only after it has arrived. Times are whole ticks.

Point-to-point chunks, which one rank wants (gather, scatter, all_to_all), move: there is one copy,
and it only takes links that bring it nearer. Chunks that many ranks want are copied. Bitsets and
slots are those of ``state``.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.tacos import rules
from jaxcoll.synth.tacos.bits import bit_of, draw_bit, next_random, random_below
from jaxcoll.synth.tacos.event_state import (
    BLOCK,
    FINISH,
    SENDS,
    TIME,
    UNDER_WAY,
    WAITING,
    WANTED,
    WORDS,
    Costs,
    Goal,
    PointToPoint,
    Sends,
    Workspace,
)
from jaxcoll.synth.tacos.state import Holdings, Network, next_block, place

_ZERO = np.uint64(0)
_RANDOM = int(rules.Rule.RANDOM)
_NEED = int(rules.Rule.DOWNSTREAM_NEED)
_RAREST = int(rules.Rule.RAREST_FIRST)
_SCARCE = int(rules.Rule.SCARCE_LINK)
_NEVER = np.iinfo(np.int64).max

# Ranks matched in one call: kernels see no signals, and Python handles them between two calls.
_AT_ONCE = 1 << 16


# ---------------------------------------------------------------------- Algorithm 2, by events


@kernel(cache=True, nogil=True)
def expand(
    net: Network,
    now: Holdings,
    direct: PointToPoint,
    costs: Costs,
    work: Workspace,
    goal: Goal,
    sent: Sends,
    at,
):
    """Expands the network in time, arrival by arrival, until every postcondition holds.

    Algorithm 2 with an arrival in place of "t <- t + 1" (Sec. IV-F). A call ends early, to be
    repeated, when the columns are full or after ``_AT_ONCE`` looks at ranks.

    Args:
        sent: receive the sends, message by message in order of their start.
        at: where the search is, by ``event_state.WANTED`` and what follows it; updated.

    Returns:
        The rows that the columns must have before the next call, or 0 after the last.
    """
    # Fields of a tuple that are read in a loop would be reference-counted in every iteration.
    have, left, relay, offer, target = now.have, now.left, now.relay, now.offer, direct.target
    in_ptr, out_ptr, near_ptr, near, dst = net.in_ptr, net.out_ptr, net.near_ptr, net.near, net.dst
    waiting, waits, times, arrivals = work.waiting, work.waits, work.times, work.events
    first, last, random, slot = work.first, work.last, work.random, sent.slot
    limit, moves, relays = goal.limit, len(direct.onward) > 0, len(relay) > 0
    wanted, time, finish = at[WANTED], at[TIME], at[FINISH]
    sends, size, count = at[SENDS], at[UNDER_WAY], at[WAITING]
    room, looks = np.int64(0), np.int64(0)
    while wanted > 0:
        # The columns must be large enough before anything is matched: a call can end here and be
        # repeated, but in the middle of a match there is no way back.
        room = sends + _most_sends(in_ptr, waiting, left, count, goal.most, moves, len(target))
        if room > len(slot) or looks >= _AT_ONCE:
            break
        room, looks = np.int64(0), looks + count
        block = _shuffle(waiting, random, count, have.shape[0])
        needs_all = limit < _NEVER and not moves and not relays
        # Only if every rank wants every chunk, what its links can still carry is a bound.
        if needs_all and not _is_in_time(net, costs, waiting, left, goal, count, time):
            break
        sends, size, last_arrival = _match(
            net, now, direct, costs, work, goal, sent, time, count, block, size, sends
        )
        finish = max(finish, last_arrival)
        if size == 0 or times[0] >= limit:
            break
        # All arrivals of one moment come before any match, because a link that is matched between
        # two of them would not see the chunk of the second.
        time, count = times[0], np.int64(0)
        while size > 0 and times[0] == time:
            link = arrivals[0]
            size = pop(times, arrivals, size)
            v = dst[link]
            for i in range(first[link], last[link]):
                b, word, bit = place(slot[i], WORDS)
                if moves:
                    # Arrived at its target, a point-to-point chunk goes no further: v does not
                    # offer it to others.
                    if v == target[slot[i]]:
                        wanted -= 1
                        continue
                elif not relays or relay[b, v, word] & bit == _ZERO:
                    wanted -= 1
                have[b, v, word] |= bit
                for out in range(out_ptr[v], out_ptr[v + 1]):
                    offer[out, b >> 6] |= bit_of(b)
            first[link] = last[link]  # the link is idle again
            # Links into v are free, and links out of v have something new to offer: only these
            # ranks can gain a match by this arrival.
            count = _let_wait(waiting, waits, count, v, near_ptr, near)
    at[WANTED], at[TIME], at[FINISH] = wanted, time, finish
    at[SENDS], at[UNDER_WAY], at[WAITING] = sends, size, count
    return room


@kernel(inline="always")
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


@kernel(inline="always")
def _most_sends(in_ptr, waiting, left, count, most, moves, slots):
    """The most sends that the links into the waiting ranks can take."""
    room = np.int64(0)
    for i in range(count):
        v = waiting[i]
        ports = in_ptr[v + 1] - in_ptr[v]
        room += ports * most if moves else min(ports * most, left[v])
    return min(room, slots) if moves else room


@kernel(cache=True, nogil=True)
def _let_wait(waiting, waits, count, v, near_ptr, near):
    """Adds rank v and the ranks next to it to those that wait, each once; their number."""
    for i in range(near_ptr[v] - 1, near_ptr[v + 1]):
        w = near[i] if i >= near_ptr[v] else v
        if not waits[w]:
            waits[w] = True
            waiting[count] = w
            count += 1
    return count


@kernel(cache=True, nogil=True)
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


# ---------------------------------------------------------------------- Algorithm 1, by events


@kernel(cache=True, nogil=True)
def _match(net, now, direct, costs, work, goal, columns, time, count, first_block, size, sends):
    """Gives chunks to the idle links into the ranks that wait.

    Algorithm 1, "Make link-chunk matches": for each of these ranks, one chunk after another is
    added to the message of one of its idle links, and then all its messages leave.

    Args:
        columns: receive the sends, with room for all.
        count: how many ranks wait.
        first_block: at which all links start to look.
        size, sends: arrivals to come, and sends made.

    Returns:
        (sends, size, finish): the new numbers, and when the last of the new sends arrives.
    """
    # Fields of a tuple that are read in a loop would be reference-counted in every iteration.
    in_ptr, in_link, src, lack, left = net.in_ptr, net.in_link, net.src, now.lack, now.left
    have, alpha, serial, sizes = now.have, costs.alpha, costs.serial, costs.size
    links, load, number, head = work.link, work.load, work.number, work.head
    taken, following, copies, candidates = work.slot, work.next, work.copies, work.candidates
    first, last, planes, carry, random = work.first, work.last, work.planes, work.carry, work.random
    onward, target, distance, rate = direct.onward, direct.target, direct.distance, costs.rate
    moves, most, rule, finish = len(direct.onward) > 0, goal.most, goal.rule, np.int64(0)
    start, edge, slot = columns.start, columns.edge, columns.slot
    for w in range(count):
        v = work.waiting[w]
        work.waits[v] = False
        if left[v] == 0:
            continue
        # Each idle link has an empty message. The chunks of a message are a linked list: ``head``
        # is the last that was added, and ``following`` leads from each to the one before it.
        idle, given = _idle_links(in_ptr, in_link, first, last, links, random, v), np.int64(0)
        for j in range(idle):
            load[j], number[j], head[j] = alpha[links[j]], 0, -1
        while True:
            # "TACOS prioritizes the link with the lowest cost" (Sec. IV-F). Where a message may
            # carry several chunks, that is the link that would be done first with one more.
            chosen, soonest = _done_first(links, load, number, serial, idle, most)
            if chosen < 0 or time + soonest >= goal.limit:
                break
            link = links[chosen]
            block = _look(net, now, direct, costs, candidates, first_block, link, v)
            if block < 0:
                number[chosen] = most  # as if it were full: there is nothing more that it can carry
                continue
            if moves:
                _prefer_moved(candidates, net, onward, target, distance, rule, link, v, block)
            elif rule != _RANDOM:
                _prefer_copied(
                    candidates, net, have, lack, copies, rate, planes, carry, rule, link, v, block
                )
            random[0] = next_random(random[0])
            s = draw_bit(candidates, WORDS, random[0]) + block * BLOCK
            block, word, bit = place(s, WORDS)
            # A point-to-point chunk is in one place: it leaves its source as it is sent. A copied
            # chunk is marked at once as no longer lacked, so that no other link brings it too.
            if moves:
                have[block, src[link], word] &= ~bit
            else:  # "Mark link-chunk match"
                lack[block, v, word] &= ~bit
                left[v] -= 1
                copies[s] += 1
            taken[given], following[given], head[chosen] = s, head[chosen], given
            given += 1
            number[chosen] += 1
            load[chosen] += serial[link, sizes[s]]
        for j in range(idle):
            if head[j] >= 0:
                first[links[j]] = sends
                k = head[j]
                while k >= 0:
                    start[sends], edge[sends], slot[sends] = time, links[j], taken[k]
                    sends, k = sends + 1, following[k]
                last[links[j]] = sends
                finish = max(finish, time + load[j])
                size = push(work.times, work.events, size, time + load[j], links[j])
    return sends, size, finish


@kernel(inline="always")
def _prefer_moved(candidates, net, onward, target, distance, rule, link, v, block):
    """Keeps, of the point-to-point chunks that a link could carry, those that the rule prefers."""
    if rule == _NEED:
        rules.keep_farthest(candidates, block, distance[v], target)
    elif rule == _SCARCE:
        rules.keep_fewest_ways(candidates, net, onward, link, block)


@kernel(inline="always")
def _prefer_copied(candidates, net, have, lack, copies, rate, planes, carry, rule, link, v, block):
    """Keeps, of the copied chunks that a link could carry, those that the rule prefers.

    A preference is followed by others, which choose among its equals.
    """
    if rule == _RAREST:
        rules.keep_rarest(candidates, block, copies)
    elif rule == _SCARCE:
        rules.keep_scarcest(candidates, net, have, link, v, block, rate)
    rules.keep_most_needed(candidates, net, lack, v, block, planes, carry)
    if rule != _RAREST:
        rules.keep_rarest(candidates, block, copies)


@kernel(inline="always")
def _idle_links(in_ptr, in_link, first, last, links, random, v):
    """The idle links into rank v, in random order, into ``links``; their number."""
    idle, x = np.int64(0), random[0]
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


@kernel(inline="always")
def _done_first(links, load, number, serial, idle, most):
    """The idle link that would be done first with one more of the smallest chunks, and when."""
    soonest, chosen = _NEVER, -1
    for j in range(idle):
        if number[j] < most:
            done = load[j] + serial[links[j], 0]
            if done < soonest:
                soonest, chosen = done, j
    return chosen, soonest


@kernel(inline="always")
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
            # Slow-link avoidance: a chunk that one of these ranks has comes from there earlier.
            found = _ZERO
            for q in range(WORDS):
                for i in range(first, last):
                    candidates[q] &= lack[block, faster[i], q]
                found |= candidates[q]
        if found != _ZERO:
            break
        # This link has nothing to carry until its source receives a chunk of this block.
        offer[link, block >> 6] &= ~bit_of(block)
        block = next_block(offer, link, block + 1, start, blocks)
    return block


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
