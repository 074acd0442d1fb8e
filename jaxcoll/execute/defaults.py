"""Defaults: the schedule that runs where the user gives none.

Devices that sit in one machine, or behind one switch, cost by the number of rounds rather than by
the wires. So the defaults take few: gathers and sums go dimension by dimension over a box whose
sides are the prime factors of n, data of a root go along a binomial tree. Long buffers cost by the
copies made, of which a ring makes fewest: what it receives it sends on as it is.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from jaxcoll import topologies
from jaxcoll.collective import ROOTED, Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth import Bucket, Direct, Ring, Synthesizer
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

# From shards of this many bytes on, a ring is as quick as few rounds (measured on CPU devices).
LONG_SHARD_BYTES = 96 << 10


@functools.lru_cache(maxsize=256)
def default_schedule(collective: Collective, is_long: bool = False) -> Schedule:
    """The default for a collective, verified.

    Dimension by dimension for all_gather, reduce_scatter and all_reduce (around a ring, where
    groups are no boxes or buffers are long), a binomial tree for those with a root, all at once for
    all_to_all.
    """
    if collective.kind in ROOTED:
        schedule = binomial(collective)
        verify(schedule)
        return schedule
    if collective.kind == "all_to_all":
        return synthesized(Direct(), collective)
    if is_long:
        return synthesized(Ring(bidirectional=False), collective)
    try:
        return synthesized(Bucket(), collective)
    except CollectiveError:
        return synthesized(Ring(bidirectional=False), collective)


@functools.lru_cache(maxsize=256)
def synthesized(synthesizer: Synthesizer, collective: Collective) -> Schedule:
    """What a synthesizer makes of a collective on the default topology, verified."""
    schedule = synthesizer.synthesize(default_topology(collective.num_ranks), collective)
    verify(schedule)
    return schedule


@functools.lru_cache(maxsize=64)
def default_topology(num_ranks: int) -> Topology:
    """The network assumed where none is given: a torus whose sides are the prime factors of n."""
    sides, rest = [], num_ranks
    for side in range(2, math.isqrt(num_ranks) + 1):
        while rest % side == 0:
            sides.append(side)
            rest //= side
    return topologies.torus(*sides, rest) if rest > 1 or not sides else topologies.torus(*sides)


def binomial(collective: Collective) -> Schedule:
    """Collectives with a root in ceil(log2 n) rounds, on a fully connected network.

    In step t the first 2**t places, counted from the root, send to those 2**t further: for
    broadcast all there is, for scatter (which goes from far to near) what the receiver and those it
    will serve are to have. The others are these backwards.
    """
    if collective.kind not in ("broadcast", "scatter"):
        return binomial(collective.dual()).reverse()
    k, root = collective.chunks_per_shard, collective.root or 0
    sends = []
    for ranks, first in zip(collective.groups, collective.chunk_ptr[:-1], strict=True):
        size = len(ranks)
        rounds = (size - 1).bit_length()
        for t in range(rounds):
            # Scatter halves what is sent in every step, so its far places come first.
            reach = 1 << (t if collective.kind == "broadcast" else rounds - 1 - t)
            stride = 1 if collective.kind == "broadcast" else 2 * reach
            holders = range(reach) if collective.kind == "broadcast" else range(0, size, stride)
            for holder in holders:
                if holder + reach < size:
                    served = [0]
                    if collective.kind == "scatter":
                        served = range(holder + reach, min(holder + stride, size))
                    places = [(root + p) % size for p in (holder, holder + reach)]
                    for p in served:
                        shard = (root + p) % size if collective.kind == "scatter" else 0
                        sends += [
                            (t, ranks[places[0]], ranks[places[1]], first + shard * k + j)
                            for j in range(k)
                        ]
    topology = topologies.fully_connected(collective.num_ranks)
    step, src, dst, chunk = np.asarray(sends, np.int64).reshape(-1, 4).T
    pairs = topology.src.astype(np.int64) * topology.num_ranks + topology.dst
    edge = np.searchsorted(pairs, src * topology.num_ranks + dst)
    provenance = Provenance("binomial")
    return Schedule.from_sends(topology, collective, step, edge, chunk, provenance=provenance)
