"""Trees of one root in a pipeline: of the chunks that wait for a link, the most urgent goes first.

The stream of ``TreeFlow.to_schedule`` orders chunks by a run without latencies. Where several trees
share a link and a latency is as long as a chunk, chunks arrive in another order than that, and
chunks that have arrived wait for late ones. On a torus of 256 ranks with a slow link, which needs
16 trees, the stream of 4,096 chunks took 1.77 times the bound, and this order takes 1.03.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.numerics.ragged import followers
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.list_scheduling import LinkedSends, by_urgency, link_ticks, remaining
from jaxcoll.trees import TreeFlow, edge_before


def most_urgent_first(
    flow: TreeFlow, collective: Collective, nbytes: Fraction, pace: float, by_time: bool = False
) -> Schedule:
    """A schedule of trees of one root, one message per chunk and tree edge.

    Urgency grows with the time, latencies included, that a chunk takes from a link to the last rank
    below. A later chunk of a tree is less urgent.

    Args:
        collective: the broadcast, with a multiple of ``flow.granularity`` chunks.
        nbytes: bytes of the root's data.
        pace: how much less urgent each chunk is than the one before it, as a share of the time in
            which one chunk of every tree is sent.
        by_time: see ``LinkedSends.steps``.
    """
    share = flow.weight // (flow.k // flow.granularity)
    chunks = share * (collective.chunks_per_shard // flow.granularity)  # of each tree
    # A row per tree edge and chunk.
    size = np.repeat(chunks, flow.topology.num_ranks - 1)
    row = np.cumsum(size) - size
    edge = np.repeat(flow.edge.astype(np.int64), size)
    place = np.arange(len(edge)) - np.repeat(row, size)
    above = edge_before(flow)
    before = np.where(np.repeat(above, size) < 0, -1, np.repeat(row[above], size) + place)
    tree = np.repeat(np.arange(flow.num_trees), chunks * (flow.topology.num_ranks - 1))
    hops = int(flow.edges.hops[edge].sum())
    busy, delay = link_ticks(flow.topology, collective, nbytes, hops)
    sends = LinkedSends(
        flow.edges,
        edge,
        (np.cumsum(chunks) - chunks)[tree] + place,
        np.zeros(len(edge), bool),
        *followers(before),
    )
    load = np.asarray(flow.load) // (flow.k // flow.granularity)
    turn = round(pace * float((load * busy).max()))
    urgency = place // share[tree] * turn - remaining(sends, delay)
    return by_urgency(flow.topology, collective, sends, urgency, busy, delay, by_time)
