"""The state of a search as kernels hold it: words of bits, chunks at ranks, links in order.

It is the paper's ``precond`` and ``postcond``, a bit per (rank, chunk). Every chunk has a *slot*, a
bit position, in random order: 64 slots are a word and some words a block. All ranks' bits of a
block lie together, so that work on one block stays in cache. How many words a block has is the
kernels' choice; here it is read off the tables. Searches by events have further state
(``event_state``).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.tacos.bits import bit_of, lowest_bit
from jaxcoll.topology import Topology

WORD = 64  # slots in a word

_ZERO = np.uint64(0)


def relays(collective: Collective) -> bool:
    """Whether chunks that are copied may pass ranks that do not want them."""
    copies = collective.traits.copies
    return copies and any(len(group) < collective.num_ranks for group in collective.groups)


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

    @classmethod
    def of(cls, topology: Topology) -> Network:
        """A topology without switches, as the kernels read it."""
        in_ptr, in_link = topology.in_links
        ranks = np.arange(topology.num_ranks + 1)
        joined = np.ones(topology.num_links, bool)
        # The first of parallel links: neighbours are counted once, however many links lead to them.
        joined[1:] = (np.diff(topology.src) != 0) | (np.diff(topology.dst) != 0)
        return cls(
            src=topology.src,
            dst=topology.dst,
            in_ptr=in_ptr,
            in_link=in_link,
            out_ptr=np.searchsorted(topology.src, ranks),
            near_ptr=np.searchsorted(topology.src[joined], ranks),
            near=topology.dst[joined],
        )


class Slots(NamedTuple):
    """Which bit stands for which chunk: the chunk of each slot, and the slot of each chunk.

    Random slots spread the chunks of every region of the network over all blocks. Those of a group
    stay together, so that a rank has few blocks to look at.
    """

    chunk: np.ndarray
    of_chunk: np.ndarray

    @classmethod
    def drawn(cls, collective: Collective, random: np.random.Generator) -> Slots:
        """Random slots for the chunks of a collective, int32 of shape (chunks,) each."""
        chunk = np.concatenate(
            [
                random.permutation(np.arange(first, last, dtype=np.int32))
                for first, last in itertools.pairwise(collective.chunk_ptr)
            ]
        )
        of_chunk = np.empty(collective.num_chunks, np.int32)
        of_chunk[chunk] = np.arange(collective.num_chunks)
        return cls(chunk, of_chunk)


class Holdings(NamedTuple):
    """The chunks that ranks hold and lack; one search's own copy, changed as it goes.

    Attributes:
        have: chunks each rank holds, uint64 of shape (blocks, ranks, words).
        lack: chunks each rank may still take: those it wants, and those it may relay; of the
            same shape, or without blocks where these are all chunks that it does not hold.
        relay: among the chunks that a rank lacked at first, those it does not want; of the same
            shape, or without blocks where every rank wants all it may take.
        left: how many chunks each rank may still take, int64 of shape (ranks,).
        offer: bitmap of the blocks in which a link's source may have something for its
            destination, uint64 of shape (links, words).
    """

    have: np.ndarray
    lack: np.ndarray
    relay: np.ndarray
    left: np.ndarray
    offer: np.ndarray

    @classmethod
    def empty(
        cls, links: int, collective: Collective, words: int, lists: bool, relay: bool
    ) -> Holdings:
        """Nobody holds, wants or relays anything.

        Args:
            words: words in a block.
            lists: whether to keep a table of what ranks lack.
            relay: whether ranks relay what they do not want.
        """
        blocks = -(-collective.num_chunks // (WORD * words))

        def table(wanted: bool) -> np.ndarray:
            return np.zeros((blocks if wanted else 0, collective.num_ranks, words), np.uint64)

        return cls(
            have=table(True),
            lack=table(lists),
            relay=table(relay),
            left=np.zeros(collective.num_ranks, np.int64),
            offer=np.zeros((links, -(-blocks // WORD)), np.uint64),
        )

    def fill(
        self, network: Network, cost: np.ndarray, slots: Slots, collective: Collective
    ) -> tuple[int, int]:
        """Take in the conditions of an all_gather or broadcast; see ``prepare``."""
        shard = slice(None, None, collective.chunks_per_shard)
        shards = collective.owner[shard], collective.group_of_chunk[shard]
        groups = collective.chunk_ptr, collective.group_of_rank
        return prepare(network, cost, slots.of_chunk, *shards, *groups, self)


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
        shard_owner, shard_group: owner and group of each shard, in order of its chunks.
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
