"""Collectives with a root, along a binomial tree: as few rounds as there can be."""

from __future__ import annotations

import numpy as np

from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.schedule import Provenance, Schedule


def binomial(collective: Collective) -> Schedule:
    """A schedule for a collective with a root, in ceil(log2 n) rounds, on a full network.

    In step t the first 2**t positions, counted from the root, send to the positions 2**t further
    on. Broadcast sends everything; scatter, which goes from far to near, sends the shards of the
    receiver and of the positions that the receiver will serve. Reduce and gather are the reverse of
    these.
    """
    if not collective.traits.starts_at_root:
        return binomial(collective.dual()).reverse()
    k, root = collective.chunks_per_shard, collective.roots[0]
    is_scatter = collective.traits.moves
    sends = []
    for ranks, first in zip(collective.groups, collective.chunk_ptr[:-1], strict=True):
        size = len(ranks)
        rounds = (size - 1).bit_length()
        for t in range(rounds):
            # Scatter halves what is sent in every step, so its far places come first.
            reach = 1 << (rounds - 1 - t if is_scatter else t)
            for holder in range(0, size, 2 * reach) if is_scatter else range(reach):
                receiver = holder + reach
                if receiver >= size:
                    continue
                served = range(receiver, min(receiver + reach, size))
                shards = [(root + p) % size for p in served] if is_scatter else [0]
                src, dst = (ranks[(root + p) % size] for p in (holder, receiver))
                sends += [(t, src, dst, first + s * k + j) for s in shards for j in range(k)]
    topology = topologies.fully_connected(collective.num_ranks)
    step, src, dst, chunk = np.asarray(sends, np.int64).reshape(-1, 4).T
    pairs = topology.src.astype(np.int64) * topology.num_ranks + topology.dst
    edge = np.searchsorted(pairs, src * topology.num_ranks + dst)
    provenance = Provenance("binomial")
    return Schedule.from_sends(topology, collective, step, edge, chunk, provenance=provenance)
