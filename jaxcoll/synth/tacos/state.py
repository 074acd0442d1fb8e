"""The state of a search as kernels hold it: words of bits, chunks at ranks, links in order.

It is the paper's ``precond`` and ``postcond``, a bit per (rank, chunk). Every chunk has a *slot*, a
bit position, in random order: 64 slots are a word and some words a block. All ranks' bits of a
block lie together, so that work on one block stays in cache. How many words a block has is the
kernels' choice; here it is read off the tables.

Where links differ there is no step at which all of them start. The state of a search by events is
therefore a heap of arrivals, the ranks that an arrival has woken, and for each link the message
that it carries now. Ticks are whole, so that arrivals of one moment are equal and not nearly so.

Random numbers are made here too, from a state of 64 bits, so that kernels draw the same whether
they run as Python or compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxcoll.numerics.compiled import instruction, kernel


def _trailing_zeros(builder: Any, word: Any) -> Any:
    from llvmlite import ir  # as Numba: imported when the first kernel is compiled

    return builder.cttz(word, ir.Constant(ir.IntType(1), 1))


@instruction(_trailing_zeros)
def lowest_bit(word: Any) -> Any:
    """Position of the lowest bit set in a uint64, int64; undefined for 0."""
    bits = int(word)
    return np.int64((bits & -bits).bit_length() - 1)


@instruction(lambda builder, word: builder.ctpop(word))
def count_bits(word: Any) -> Any:
    """Number of bits set in a uint64, int64."""
    return np.int64(int(word).bit_count())


@kernel(inline="always")
def bit_of(i):
    """The word in which only bit i mod 64 is set, uint64."""
    return np.uint64(1) << np.uint64(i & 63)


@kernel(inline="always")
def next_random(x):
    """The uint64 that follows one above 0 (xorshift64: Marsaglia 2003, "Xorshift RNGs", p. 4)."""
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    return x


@kernel(inline="always")
def random_below(x, count):
    """A number 0..count-1, int64, from the upper half of a random uint64; count < 2**32."""
    return np.int64(((x >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@kernel(inline="always")
def draw_bit(candidates, words, x):
    """A random bit of those set in some words, of which there is at least one; all equally likely.

    Args:
        candidates: the words, uint64.
        words: how many there are; a constant makes it fast.
        x: a random uint64.
    """
    count = np.int64(0)
    for q in range(words):
        count += count_bits(candidates[q])
    draw = random_below(x, count)
    # Which word the draw falls into is as good as random: without a branch nobody need guess it.
    count = before = q = np.int64(0)
    for i in range(words - 1):
        count += count_bits(candidates[i])
        if count <= draw:
            before = count
            q = i + 1
    word = candidates[q]
    for _ in range(draw - before):
        word &= word - np.uint64(1)
    return (q << 6) + lowest_bit(word)


WORD = 64  # slots in a word

_ZERO = np.uint64(0)


class Network(NamedTuple):
    """A direct network as the kernel reads it; links are sorted by source.

    ``src`` and ``dst`` of each link; incoming links of rank v are
    ``in_link[in_ptr[v]:in_ptr[v + 1]]``, its outgoing ones ``out_ptr[v]..out_ptr[v + 1] - 1``, and
    the ranks these lead to, each once, ``near[near_ptr[v]:near_ptr[v + 1]]``.
    """

    src: np.ndarray
    dst: np.ndarray
    in_ptr: np.ndarray
    in_link: np.ndarray
    out_ptr: np.ndarray
    near_ptr: np.ndarray
    near: np.ndarray


class Holdings(NamedTuple):
    """The chunks that ranks hold and lack; one search's own copy, changed as it goes.

    Attributes:
        have: chunks each rank holds, uint64 of shape (blocks, ranks, words).
        lack: chunks each rank may still take: those it wants, and those it may relay; of the
            same shape, or without blocks where these are all chunks that it does not hold.
        relay: of the chunks that a rank lacked at first, those it does not want; of the same shape,
            or without blocks where every rank wants all it may take.
        left: how many chunks each rank may still take, int64 of shape (ranks,).
        offer: bitmap of the blocks in which a link's source may have something for its
            destination, uint64 of shape (links, words).
    """

    have: np.ndarray
    lack: np.ndarray
    relay: np.ndarray
    left: np.ndarray
    offer: np.ndarray


@kernel(inline="always")
def place(slot, words):
    """Block, word in the block, and bit of a slot, in blocks of ``words`` words, a power of two."""
    # Without a sign, a division is a shift: Numba's // minds negative numbers, and it shows.
    word = np.uint64(slot) >> np.uint64(6)
    block = np.int64(word // np.uint64(words))
    return block, np.int64(word) & (words - 1), bit_of(slot)


# ---------------------------------------------------------------------- before the first step


@kernel(cache=True, nogil=True)
def prepare(net, cost, slot, shard_owner, shard_group, chunk_ptr, group_of_rank, now: Holdings):
    """Fills empty ``Holdings`` with the conditions of an all_gather or broadcast.

    Where ``now.relay`` has blocks, ranks also lack the chunks that they do not want but that pass
    them on a shortest path from the chunk's owner to a rank of its group.

    Args:
        cost: length of each link on a path, int64 above 0 of shape (links,).
        slot: slot of each chunk; the chunks of a group have the slots of a group, in any order.
        shard_owner, shard_group: of each shard, in order of its chunks.
        chunk_ptr: chunks of group g are ``chunk_ptr[g]..chunk_ptr[g + 1] - 1``.
        group_of_rank: group of each rank, -1 for none.

    Returns:
        (wanted, most): sends without which the postcondition does not hold, and the most there
        can be.
    """
    ranks, words, lists = len(group_of_rank), now.have.shape[2], len(now.lack) > 0
    for v in range(ranks):
        g = group_of_rank[v]
        if g >= 0:
            c = chunk_ptr[g]
            while lists and c < chunk_ptr[g + 1]:
                block, word, bit = place(c, words)
                if c & 63 == 0 and c + WORD <= chunk_ptr[g + 1]:
                    now.lack[block, v, word] = ~_ZERO
                    c += WORD
                else:
                    now.lack[block, v, word] |= bit
                    c += 1
            now.left[v] = chunk_ptr[g + 1] - chunk_ptr[g]
    shards = len(shard_owner)
    k = len(slot) // shards
    for c in range(len(slot)):
        v = shard_owner[c // k]
        block, word, bit = place(slot[c], words)
        now.have[block, v, word] |= bit
        if lists:
            now.lack[block, v, word] &= ~bit
        now.left[v] -= 1
        for link in range(net.out_ptr[v], net.out_ptr[v + 1]):
            now.offer[link, block >> 6] |= bit_of(block)
    wanted = now.left.sum()
    if len(now.relay):
        on_way = np.empty(ranks, np.bool_)
        for shard in range(shards):
            _mark_shortest_paths(
                net, cost, shard_owner[shard], shard_group[shard], group_of_rank, on_way
            )
            for v in range(ranks):
                if not on_way[v] or group_of_rank[v] == shard_group[shard]:
                    continue
                for c in range(shard * k, (shard + 1) * k):
                    block, word, bit = place(slot[c], words)
                    now.lack[block, v, word] |= bit
                    now.relay[block, v, word] |= bit
                now.left[v] += k
    return wanted, now.left.sum()


@kernel(cache=True, nogil=True)
def measure(net: Network, cost, source, distance):
    """Least total cost of links from a rank to every rank, into ``distance``, int64."""
    ranks = len(distance)
    # A queue that takes a rank again whenever it gets nearer (Moore 1959), not a heap: where all
    # links cost the same no rank comes twice.
    queue = np.empty(ranks + 1, np.int64)
    waits = np.zeros(ranks, np.bool_)
    distance[:] = np.iinfo(np.int64).max
    distance[source] = 0
    queue[0] = source
    head, tail = 0, 1
    while head != tail:
        u = queue[head]
        head = (head + 1) % (ranks + 1)
        waits[u] = False
        for link in range(net.out_ptr[u], net.out_ptr[u + 1]):
            v = net.dst[link]
            if distance[u] + cost[link] < distance[v]:
                distance[v] = distance[u] + cost[link]
                if not waits[v]:
                    waits[v] = True
                    queue[tail] = v
                    tail = (tail + 1) % (ranks + 1)


@kernel(cache=True, nogil=True)
def _mark_shortest_paths(net, cost, owner, group, group_of_rank, on_way):
    """Marks the ranks on some shortest path from ``owner`` to a rank of ``group``."""
    distance = np.empty(len(on_way), np.int64)
    measure(net, cost, owner, distance)
    # From the farthest rank back: when a rank is looked at, all that it could pass chunks on to are
    # marked.
    for v in np.argsort(-distance):
        on_way[v] = group_of_rank[v] == group
        for link in range(net.out_ptr[v], net.out_ptr[v + 1]):
            w = net.dst[link]
            on_way[v] |= distance[w] == distance[v] + cost[link] and on_way[w]


# ---------------------------------------------------------------------- which blocks to look at


@kernel(inline="always")
def next_block(offer, link, block, start, blocks):
    """The first block on offer from ``block`` on, going round to ``start``; -1 for none."""
    if block >= start:
        while block < blocks:
            word = offer[link, block >> 6] >> np.uint64(block & 63)
            if word != _ZERO:
                return block + lowest_bit(word)
            block = ((block >> 6) + 1) << 6
        block = np.int64(0)
    while block < start:
        word = offer[link, block >> 6] >> np.uint64(block & 63)
        if word != _ZERO:
            block += lowest_bit(word)
            return block if block < start else np.int64(-1)
        block = ((block >> 6) + 1) << 6
    return np.int64(-1)


# ---------------------------------------------------------------------- after the last step


@kernel(cache=True, nogil=True)
def prune(net, relay, slot, step_ptr, edge, chunk):
    """Drops the sends to ranks that neither want the chunk nor pass it on, and steps left empty.

    Args:
        relay: as in ``Holdings``; on return, the chunks relayed in vain.
        slot: slot of each chunk.
        step_ptr, edge, chunk: the schedule; edge and chunk are rewritten in place.

    Returns:
        step_ptr of the new schedule, whose sends are the first ones of the columns.
    """
    keep = np.zeros(step_ptr[-1], np.bool_)
    for i in range(step_ptr[-1] - 1, -1, -1):
        block, word, bit = place(slot[chunk[i]], relay.shape[2])
        # From the last send back, so that a rank that passes a chunk on is known to be of use
        # before the send that brings it the chunk is judged.
        keep[i] = relay[block, net.dst[edge[i]], word] & bit == _ZERO
        if keep[i]:
            relay[block, net.src[edge[i]], word] &= ~bit
    kept_ptr = np.zeros(len(step_ptr), np.int64)
    sends = steps = 0
    for t in range(len(step_ptr) - 1):
        for i in range(step_ptr[t], step_ptr[t + 1]):
            if keep[i]:
                edge[sends], chunk[sends] = edge[i], chunk[i]
                sends += 1
        if sends > kept_ptr[steps]:
            steps += 1
            kept_ptr[steps] = sends
    return kept_ptr[: steps + 1]


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
            ``rules``.
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
