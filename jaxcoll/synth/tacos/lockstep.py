"""The matching of TACOS, compiled: Algorithms 1 and 2 of the paper on bitsets.

Of all the chunks that a link could carry, those of one block of slots (see ``state``) are looked at
together, and in one step all links start at the same block, so that the step works on a few
columns of the bitsets that stay in cache. ``Holdings.offer`` remembers which blocks are worth
looking at, which keeps a search that finds nothing from reading every block.

Algorithm 1 shuffles all unsatisfied (rank, chunk) pairs and draws a source for each. Here ranks
shuffle their incoming links, and each link draws a chunk. A match is the same thing, a chunk that
the source has and the rank lacks, but no work goes to the many pairs that find no free link. On a
ring of 4 ranks with links both ways the first step has one choice per link, its source's own
chunk; in the second the two links into a rank can bring the same last chunk, and one stays idle.

Time is O(sends) in practice, memory one bit per (rank, chunk) where every rank wants every chunk.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.tacos.bits import bit_of, draw_bit, lowest_bit, next_random, random_below
from jaxcoll.synth.tacos.rules import keep_highest
from jaxcoll.synth.tacos.state import WORD, Holdings, next_block, place

# Words in a block. Two cache lines per rank: with one, more links find nothing in the first block
# they look at, with four, each look takes longer.
WORDS = 16
BLOCK = WORD * WORDS

_ZERO = np.uint64(0)


# ---------------------------------------------------------------------- Algorithm 2


@kernel(cache=True, nogil=True, superlinear=True)
def expand(net, now: Holdings, wanted, planes, random, chunk_of_slot, edge, chunk, sends):
    """Expands the network in time, step by step (Algorithm 2), for as many steps as asked for.

    The search ends, for every step carries something: along a shortest path to a rank that still
    lacks a chunk it wants, some rank is the last to have the chunk, and its link to the next can
    carry it.

    Args:
        wanted: sends without which the postcondition does not hold.
        planes: bits of the largest number of ranks that one rank has links to, for the rule
            downstream-need; None, for which Numba compiles a kernel of its own, for the rule
            random.
        random: a generator's state for each rank, and a last one for the steps, uint64 above 0.
        chunk_of_slot: chunk of each slot.
        edge, chunk: receive the link and the chunk of each send, with room for every one.
        sends: receives the number of sends of each step, one entry per step asked for.

    Returns:
        (steps, wanted): steps done, fewer than asked for where the postcondition holds; and the
        sends without which it does not yet.
    """
    links, blocks = len(net.src), now.have.shape[0]
    ranks = np.arange(now.have.shape[1])
    carried = np.empty(links, np.int32)
    step = total = 0
    while wanted > 0 and step < len(sends):  # "while there are unsatisfied postconditions"
        # "t <- t + 1": a time span is never stored; the holdings are its state, the sends its arcs.
        start = next_start(random, blocks)
        # First all matches, then all deliveries: a chunk that arrives in a span leaves in the next.
        match(net, now, planes, random, start, ranks, carried)
        wanted -= deliver(net, now, carried, ranks)
        before = total
        for link in range(links):
            if carried[link] >= 0:
                edge[total], chunk[total] = link, chunk_of_slot[carried[link]]
                total += 1
        sends[step] = total - before
        step += 1
    return step, wanted


@kernel(cache=True, nogil=True)
def next_start(random, blocks):
    """The block at which all links start in the next step; drawn from the last state."""
    random[-1] = next_random(random[-1])
    return random_below(random[-1], blocks)


# ---------------------------------------------------------------------- Algorithm 1


@kernel(cache=True, nogil=True)
def match(net, now: Holdings, planes, random, start, ranks, carried):
    """Chooses what every link into some ranks carries in one step (Algorithm 1).

    Ranks match their incoming links in random order, and each takes a chunk that its source has,
    the rank lacks and none of the links before it brings. Where the paper draws among all such
    chunks, this draws among those of the first block, from ``start`` on, that has any; the rule
    downstream-need among those of them that most ranks next to the rank lack. A link that is left
    with nothing takes the chunk of one before it, where that finds another (see ``_exchange``).

    Ranks only read the holdings before the step and have generators of their own, so the
    result does not depend on how the ranks are divided among calls.

    Args:
        start: the block at which all links start.
        ranks: the ranks, int64.
        carried: receives the slot that each link carries, or -1; int32 of shape (links,).
    """
    # Fields of a tuple that are read in a loop would be reference-counted in every iteration.
    have, lack, relay, left, offer = now.have, now.lack, now.relay, now.left, now.offer
    src, in_ptr, in_link, near_ptr, near = net.src, net.in_ptr, net.in_link, net.near_ptr, net.near
    blocks = have.shape[0]
    order = np.empty(len(src), np.int32)
    # For the rank being matched and each block that it has read: the chunks it can take, and how
    # many ranks next to it lack each, as binary numbers, one plane per digit.
    seen_by = np.full(blocks, -1, np.int32)
    free = np.empty((blocks, WORDS), np.uint64)
    need = _need(blocks, planes)
    scratch = np.empty(WORDS, np.uint64)
    for v in ranks:
        first, degree = in_ptr[v], in_ptr[v + 1] - in_ptr[v]
        if left[v] == 0:  # no postcondition of this rank is unsatisfied
            for i in range(first, first + degree):
                carried[in_link[i]] = -1
            continue
        # The paper shuffles the unsatisfied pairs (d, c) and asks for each which link brings it.
        # Here each link into d, in random order, asks which c it can bring: a pass over bits
        # instead of a list of ranks times chunks.
        x = random[v]
        for i in range(degree):  # "random_shuffle"
            x = next_random(x)
            j = random_below(x, i + 1)
            order[i], order[j] = order[j], in_link[first + i]
        for i in range(degree):
            link = order[i]
            u = src[link]
            slot = np.int64(-1)
            block = next_block(offer, link, start, start, blocks)
            # ``offer`` marks the blocks in which a link may still find something, so that late in a
            # search, when most blocks are full, no link reads them again.
            while block >= 0:
                if seen_by[block] != v:
                    seen_by[block] = v
                    for q in range(WORDS):
                        free[block, q] = lack[block, v, q] if len(lack) else ~have[block, v, q]
                    if planes is not None:
                        _count_need(have, lack, near_ptr, near, v, block, need, planes, scratch)
                    if len(relay):
                        _keep_useful(lack, relay, near_ptr, near, v, block, free)
                # Chunks that the source has ("precond[s][c] is True") and the rank may take, 64
                # at a time.
                found = _ZERO
                for q in range(WORDS):
                    scratch[q] = have[block, u, q] & free[block, q]
                    found |= scratch[q]
                if found != _ZERO:
                    if planes is not None:
                        keep_highest(scratch, need, block, planes)
                    x = next_random(x)
                    slot = draw_bit(scratch, WORDS, x)
                    # "precond[d][c] <- True": no other link into the rank brings it in this span.
                    free[block, slot >> 6] &= ~bit_of(slot)
                    slot += block * BLOCK
                    break
                # Nothing more until the source receives something in this block.
                offer[link, block >> 6] &= ~bit_of(block)
                block = next_block(offer, link, block + 1, start, blocks)
            if slot < 0:
                slot = _exchange(have, free, seen_by, src, order, i, v, carried)
            carried[link] = slot
        random[v] = x


@kernel(cache=True, nogil=True)
def _exchange(have, free, seen_by, src, order, i, v, carried):
    """A chunk that the i-th link takes from one before it, which takes another instead; -1 if none.

    Chosen one after another, the last links into a rank may be left with nothing though all of them
    could carry something. On a 3x3 torus one attempt in 360 would be as short as can be.
    """
    for j in range(i):
        slot = carried[order[j]]
        if slot < 0:
            continue
        taken, word, bit = place(slot, WORDS)
        if have[taken, src[order[i]], word] & bit == _ZERO:
            continue
        for block in range(len(free)):
            if seen_by[block] != v:
                continue
            for q in range(WORDS):
                other = have[block, src[order[j]], q] & free[block, q]
                if other != _ZERO:
                    lowest = lowest_bit(other)
                    free[block, q] &= ~bit_of(lowest)
                    carried[order[j]] = block * BLOCK + 64 * q + lowest
                    return np.int64(slot)
    return np.int64(-1)


@kernel(cache=True, nogil=True)
def _need(blocks, planes):
    """Scratch for the need of the chunks of all blocks; empty for the rule random."""
    if planes is None:
        return np.empty((0, 0, WORDS), np.uint64)
    return np.empty((blocks, planes, WORDS), np.uint64)


@kernel(cache=True, nogil=True)
def _count_need(have, lack, near_ptr, near, v, block, need, planes, carry):
    """How many ranks next to rank v lack each chunk of a block."""
    for p in range(planes):
        for q in range(WORDS):
            need[block, p, q] = _ZERO
    for i in range(near_ptr[v], near_ptr[v + 1]):
        w = near[i]
        if len(lack):
            for q in range(WORDS):
                carry[q] = lack[block, w, q]
        else:
            for q in range(WORDS):
                carry[q] = ~have[block, w, q]
        # One more lacks each chunk of ``carry``: 64 counters add at once, digit by digit, as a
        # ripple-carry adder does. Counting chunk by chunk would read every bit by itself.
        for p in range(planes):
            for q in range(WORDS):
                digit = need[block, p, q]
                need[block, p, q] = digit ^ carry[q]
                carry[q] &= digit


@kernel(inline="always")
def _keep_useful(lack, relay, near_ptr, near, v, block, free):
    """Of chunks that rank v would relay, only those that a rank next to it lacks."""
    for q in range(WORDS):
        lacked = _ZERO
        for i in range(near_ptr[v], near_ptr[v + 1]):
            lacked |= lack[block, near[i], q]
        free[block, q] &= lacked | ~relay[block, v, q]


@kernel(cache=True, nogil=True)
def deliver(net, now: Holdings, carried, ranks):
    """Delivers the chunks on links to some ranks; the number of chunks they wanted."""
    have, lack, relay, left, offer = now.have, now.lack, now.relay, now.left, now.offer
    in_ptr, in_link, out_ptr = net.in_ptr, net.in_link, net.out_ptr
    wanted = 0
    for v in ranks:
        for i in range(in_ptr[v], in_ptr[v + 1]):
            slot = carried[in_link[i]]
            if slot < 0:
                continue
            block, word, bit = place(slot, WORDS)
            have[block, v, word] |= bit
            if len(lack):
                lack[block, v, word] &= ~bit
            left[v] -= 1
            if len(relay) == 0 or relay[block, v, word] & bit == _ZERO:
                wanted += 1
            # Whatever ``match`` has noted, the block is worth a look again by links out of here.
            for link in range(out_ptr[v], out_ptr[v + 1]):
                offer[link, block >> 6] |= bit_of(block)
    return wanted


@kernel(cache=True, nogil=True)
def pack(carried, chunk_of_slot, active, chunk):
    """Writes the sends of a step as a row of a compact schedule (see ``CompactSchedule``).

    Args:
        active: zeros, uint8; receives the bitmap.
        chunk: receives the chunks, with room for one per link.

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
