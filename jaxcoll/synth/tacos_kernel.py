"""The matching of TACOS, compiled: Algorithms 1 and 2 of the paper on bitsets.

Every chunk has a *slot*, a bit position, in random order: 64 slots are a word and 8 words a block,
which is one cache line of a rank. Of all the chunks a link could carry, those of one block are
looked at together, and in one step all links start at the same block, so that the step works on a
few columns of the bitsets that stay in cache. ``Holdings.offer`` remembers which blocks are worth
looking at, which keeps a search that finds nothing from reading every block.

Time is O(sends) in practice, memory 2 bits a (rank, chunk).
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from jaxcoll.synth.bits import bit_of, count_bits, lowest_bit, next_random, random_below
from jaxcoll.synth.rules import keep_highest

WORD = 64  # slots in a word
WORDS = 8  # words in a block
BLOCK = WORD * WORDS
# Below, shifts stand for divisions by these: Numba's // also minds negative numbers, and it shows.

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


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
    """Who holds and who lacks what; one search's own copy, changed as it goes.

    Attributes:
        have: chunks each rank holds, uint64 of shape (blocks, ranks, WORDS).
        lack: chunks each rank may still take: those it wants, and those it may relay; alike.
        relay: of what a rank lacked at first, the chunks it does not want; alike, or without
            blocks where every rank wants all it may take.
        left: bits set in each rank's ``lack``, int64 of shape (ranks,).
        offer: bitmap of the blocks in which a link's source may have something for its
            destination, uint64 of shape (links, words).
    """

    have: np.ndarray
    lack: np.ndarray
    relay: np.ndarray
    left: np.ndarray
    offer: np.ndarray


@nb.njit(inline="always")
def place(slot):
    """Block, word in the block, and bit of a slot."""
    return slot >> 9, (slot >> 6) & 7, bit_of(slot)


# ---------------------------------------------------------------------- before the first step


@nb.njit(cache=True, nogil=True)
def prepare(net, cost, slot, shard_owner, shard_group, chunk_ptr, group_of_rank, now: Holdings):
    """Fills empty ``Holdings`` with the conditions of an all_gather or broadcast.

    Where ``now.relay`` has blocks, ranks also lack the chunks that they do not want but that pass
    them on a shortest path from the chunk's owner to a rank of its group.

    Args:
        cost: what makes a path short, int64 above 0 of shape (links,).
        slot: slot of each chunk; the chunks of a group have the slots of a group, in any order.
        shard_owner, shard_group: of each shard, in order of its chunks.
        chunk_ptr: chunks of group g are ``chunk_ptr[g]..chunk_ptr[g + 1] - 1``.
        group_of_rank: group of each rank, -1 for none.

    Returns:
        (wanted, most): sends without which the postcondition does not hold, and the most there
        can be.
    """
    ranks = len(group_of_rank)
    for v in range(ranks):
        g = group_of_rank[v]
        if g >= 0:
            c = chunk_ptr[g]
            while c < chunk_ptr[g + 1]:
                block, word, bit = place(c)
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
        block, word, bit = place(slot[c])
        now.have[block, v, word] |= bit
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
                    block, word, bit = place(slot[c])
                    now.lack[block, v, word] |= bit
                    now.relay[block, v, word] |= bit
                now.left[v] += k
    return wanted, now.left.sum()


@nb.njit(cache=True, nogil=True)
def measure(net: Network, cost, source, distance):
    """Least total cost of links from a rank to every rank, into ``distance``, int64."""
    ranks = len(distance)
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


@nb.njit(cache=True, nogil=True)
def _mark_shortest_paths(net, cost, owner, group, group_of_rank, on_way):
    """Marks the ranks on some shortest path from ``owner`` to a rank of ``group``."""
    distance = np.empty(len(on_way), np.int64)
    measure(net, cost, owner, distance)
    for v in np.argsort(-distance):
        on_way[v] = group_of_rank[v] == group
        for link in range(net.out_ptr[v], net.out_ptr[v + 1]):
            w = net.dst[link]
            on_way[v] |= distance[w] == distance[v] + cost[link] and on_way[w]


# ---------------------------------------------------------------------- Algorithm 2


@nb.njit(cache=True, nogil=True)
def expand(net, now: Holdings, wanted, planes, random, limit, chunk_of_slot, edge, chunk):
    """Expands the network in time, step by step, until every postcondition holds (Algorithm 2).

    It ends, for every step carries something: along a shortest path to a rank that still lacks a
    chunk it wants, some rank is the last to have the chunk, and its link to the next can carry it.

    Args:
        wanted: sends without which the postcondition does not hold.
        planes: bits of the largest number of ranks that one rank has links to, for the rule
            downstream-need; 0 for the rule random.
        random: a generator's state for each rank, and a last one for the steps, uint64 above 0.
        limit: give up when this many steps are not enough.
        chunk_of_slot: chunk of each slot.
        edge, chunk: receive the link and the chunk of each send, with room for every one.

    Returns:
        (step_ptr, done): as in ``Schedule``, and whether the limit was enough.
    """
    ranks, links, blocks = now.have.shape[1], len(net.src), now.have.shape[0]
    carried = np.empty(links, np.int32)
    step_ptr = np.zeros(min(limit, 1024) + 1, np.int64)
    step = sends = 0
    while wanted > 0 and step < limit:
        start = next_start(random, blocks)
        match(net, now, planes, random, start, 0, ranks, carried)
        wanted -= deliver(net, now, carried, 0, ranks)
        for link in range(links):
            if carried[link] >= 0:
                edge[sends], chunk[sends] = link, chunk_of_slot[carried[link]]
                sends += 1
        step += 1
        if step == len(step_ptr):
            longer = np.zeros(2 * step, np.int64)
            longer[:step] = step_ptr
            step_ptr = longer
        step_ptr[step] = sends
    return step_ptr[: step + 1], wanted == 0


@nb.njit(cache=True, nogil=True)
def next_start(random, blocks):
    """The block at which all links start in the next step; drawn from the last state."""
    random[-1] = next_random(random[-1])
    return random_below(random[-1], blocks)


# ---------------------------------------------------------------------- Algorithm 1


@nb.njit(cache=True, nogil=True)
def match(net, now: Holdings, planes, random, start, first, last, carried):
    """Chooses what every link into the ranks first..last-1 carries in one step (Algorithm 1).

    Ranks match their incoming links in random order, and each takes a chunk that its source has,
    the rank lacks and none of the links before it brings. Where the paper draws among all such
    chunks, this draws among those of the first block, from ``start`` on, that has any; the rule
    downstream-need among those of them that most ranks next to the rank lack.

    Ranks only look at what was held before the step and have generators of their own, so the
    result does not depend on how the ranks are divided among calls.

    Args:
        start: the block at which all links start.
        carried: receives the slot that each link carries, or -1; int32 of shape (links,).
    """
    blocks = now.have.shape[0]
    degree = 0
    for v in range(first, last):
        degree = max(degree, net.in_ptr[v + 1] - net.in_ptr[v])
    order = np.empty(degree, np.int32)
    # For the rank in hand and each block that it has come to: what it can take, and how many ranks
    # next to it lack that, as binary numbers written down the planes.
    seen_by = np.full(blocks, -1, np.int32)
    free = np.empty((blocks, WORDS), np.uint64)
    need = np.empty((blocks, planes, WORDS), np.uint64)
    scratch = np.empty(WORDS, np.uint64)
    for v in range(first, last):
        degree = net.in_ptr[v + 1] - net.in_ptr[v]
        if now.left[v] == 0:
            for i in range(net.in_ptr[v], net.in_ptr[v + 1]):
                carried[net.in_link[i]] = -1
            continue
        x = random[v]
        for i in range(degree):
            x = next_random(x)
            j = random_below(x, i + 1)
            order[i] = order[j]
            order[j] = net.in_link[net.in_ptr[v] + i]
        for i in range(degree):
            link = order[i]
            u = net.src[link]
            slot = nb.int64(-1)
            block = next_block(now.offer, link, start, start, blocks)
            while block >= 0:
                if seen_by[block] != v:
                    seen_by[block] = v
                    _look_at(net, now, v, block, free, need, planes, scratch)
                found = _ZERO
                for q in range(WORDS):
                    scratch[q] = now.have[block, u, q] & free[block, q]
                    found |= scratch[q]
                if found != _ZERO:
                    keep_highest(scratch, need, block, planes)
                    x = next_random(x)
                    slot = draw(scratch, x)
                    free[block, slot >> 6] &= ~bit_of(slot)
                    slot += block << 9
                    break
                # Nothing more until the source receives something in this block.
                now.offer[link, block >> 6] &= ~bit_of(block)
                block = next_block(now.offer, link, block + 1, start, blocks)
            carried[link] = slot
        random[v] = x


@nb.njit(cache=True, nogil=True)
def deliver(net, now: Holdings, carried, first, last):
    """Hands what links carry to the ranks first..last-1; the number of chunks they wanted."""
    wanted = 0
    for v in range(first, last):
        for i in range(net.in_ptr[v], net.in_ptr[v + 1]):
            slot = carried[net.in_link[i]]
            if slot < 0:
                continue
            block, word, bit = place(slot)
            now.have[block, v, word] |= bit
            now.lack[block, v, word] &= ~bit
            now.left[v] -= 1
            if len(now.relay) == 0 or now.relay[block, v, word] & bit == _ZERO:
                wanted += 1
            for link in range(net.out_ptr[v], net.out_ptr[v + 1]):
                now.offer[link, block >> 6] |= bit_of(block)
    return wanted


@nb.njit(inline="always")
def next_block(offer, link, block, start, blocks):
    """The first block on offer from ``block`` on, going round to ``start``; -1 for none."""
    if block >= start:
        while block < blocks:
            word = offer[link, block >> 6] >> np.uint64(block & 63)
            if word != _ZERO:
                return block + lowest_bit(word)
            block = ((block >> 6) + 1) << 6
        block = nb.int64(0)
    while block < start:
        word = offer[link, block >> 6] >> np.uint64(block & 63)
        if word != _ZERO:
            block += lowest_bit(word)
            return block if block < start else nb.int64(-1)
        block = ((block >> 6) + 1) << 6
    return nb.int64(-1)


@nb.njit(inline="always")
def _look_at(net, now, v, block, free, need, planes, carry):
    """What rank v can take of a block, and, where there are planes, how much it is needed."""
    lack = now.lack
    for q in range(WORDS):
        free[block, q] = lack[block, v, q]
    for p in range(planes):
        for q in range(WORDS):
            need[block, p, q] = _ZERO
    if planes:
        for i in range(net.near_ptr[v], net.near_ptr[v + 1]):
            w = net.near[i]
            for q in range(WORDS):
                carry[q] = lack[block, w, q]
            for p in range(planes):
                for q in range(WORDS):
                    digit = need[block, p, q]
                    need[block, p, q] = digit ^ carry[q]
                    carry[q] &= digit
    if len(now.relay):
        # A chunk to relay is worth taking only while somebody next to v lacks it.
        for q in range(WORDS):
            lacked = _ZERO
            for i in range(net.near_ptr[v], net.near_ptr[v + 1]):
                lacked |= lack[block, net.near[i], q]
            free[block, q] &= lacked | ~now.relay[block, v, q]


@nb.njit(inline="always")
def draw(candidates, x):
    """A random slot of those set in a block, of which there is at least one; all equally likely."""
    count = nb.int64(0)
    for q in range(WORDS):
        count += count_bits(candidates[q])
    draw = random_below(x, count)
    # Which word the draw falls into is as good as random: without a branch nobody need guess it.
    count = before = q = nb.int64(0)
    for i in range(WORDS - 1):
        count += count_bits(candidates[i])
        if count <= draw:
            before = count
            q = i + 1
    word = candidates[q]
    for _ in range(draw - before):
        word &= word - _ONE
    return (q << 6) + lowest_bit(word)


@nb.njit(cache=True, nogil=True)
def pack(carried, chunk_of_slot, active, chunk):
    """Writes what links carry in a step as a row of a compact schedule (see ``CompactSchedule``).

    Args:
        active: zeros, uint8; receives the bitmap.
        chunk: receives the chunks, with room for one a link.

    Returns:
        How many links carry something.
    """
    sends = 0
    for link in range(len(carried)):
        if carried[link] >= 0:
            active[link >> 3] |= np.uint8(1 << (link & 7))
            chunk[sends] = chunk_of_slot[carried[link]]
            sends += 1
    return sends


# ---------------------------------------------------------------------- after the last step


@nb.njit(cache=True, nogil=True)
def prune(net, relay, slot, step_ptr, edge, chunk):
    """Drops the sends to ranks that neither want the chunk nor pass it on, and steps left empty.

    Args:
        relay: as in ``Holdings``; on return, what was relayed in vain.
        slot: slot of each chunk.
        step_ptr, edge, chunk: the schedule; edge and chunk are rewritten in place.

    Returns:
        step_ptr of the new schedule, whose sends are the first ones of the columns.
    """
    keep = np.zeros(step_ptr[-1], np.bool_)
    for i in range(step_ptr[-1] - 1, -1, -1):
        block, word, bit = place(slot[chunk[i]])
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
