"""NCCL ring: the rings of NCCL and RCCL, one way round in many channels.

Two hosts of 4 ranks have 4 channels. Each goes through the ranks of one host and on to the other,
and leaves a host at another rank than the other channels do, so that all network ports work.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.baselines.ring import gather_around
from jaxcoll.synth.building.base import (
    DOUBLINGS,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.circles import circles_of
from jaxcoll.synth.building.sends import (
    routed,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class NcclRing(Synthesizer):
    """All-gather and broadcast over the rings of NCCL and RCCL, each in one direction.

    Among hosts there is a channel for each rank of a host, so that all network ports are in use:
    each channel goes through the ranks of a host and on to the next host, entering and leaving at
    another rank than the other channels, and keeping to rails where there are some (NCCL 2.x,
    ``graph/search.cc`` and ``ncclTopoPostset`` in ``graph/connect.cc``; RCCL shares both). On
    networks of links between ranks, as in a DGX-1, a channel goes each way round every circle over
    links. The library searches channels in the paths and speeds of the real machine; here they are
    those of ``jaxcoll.synth.building.circles``. The library's slices are the pieces of a channel's
    data here: a rank passes one on before the next has arrived.

    Attributes:
        pieces: pieces of every message, at most one per chunk of a channel; None for one per chunk.

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    pieces: int | None = None

    name: ClassVar[str] = "nccl_ring"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.copies)

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "pieces", or_none=True)

    def granularity(self, topology: Topology, collective: Collective) -> int:
        """The chunks per shard, or their multiples, with which channels carry equal shares."""
        groups = (np.asarray(group) for group in collective.groups if len(group) > 1)
        return max((len(_channels(topology, group)) for group in groups), default=1)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """The numbers of chunks per channel that are worth trying for a pipeline."""
        channels = self.granularity(problem.topology, problem.collective)
        return (tuple(channels * pieces for pieces in DOUBLINGS),)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        if collective.traits.has_root:
            return self._broadcast(topology, collective)
        channels = functools.partial(_channels, topology)
        each = -(-collective.chunks_per_shard // self.granularity(topology, collective))
        pieces = each if self.pieces is None else min(self.pieces, each)
        return gather_around(topology, collective, channels, both_ways=False, pieces=pieces)

    def _broadcast(self, topology: Topology, collective: Collective) -> Schedule:
        """Send from the root round every channel, in pieces that follow one another."""
        columns = []
        for g, group in enumerate(collective.groups):
            if len(group) == 1:
                continue
            root = collective.root_of(group)
            channels = _channels(topology, np.asarray(group))
            chunks = np.arange(collective.chunk_ptr[g], collective.chunk_ptr[g + 1])
            # The number of links of a pair that earlier channels have taken, as in
            # ``gather_around``.
            used: Counter[tuple[int, int]] = Counter()
            for turn, around in enumerate(channels):
                mine = chunks[turn :: len(channels)]
                count = len(mine) if self.pieces is None else min(self.pieces, len(mine))
                piece = np.arange(len(mine)) * count // max(1, len(mine))
                # Every channel starts at the root and ends before it returns to the root.
                way = np.roll(around, -int(np.flatnonzero(around == root)[0]))
                pairs = [*itertools.pairwise(way.tolist())]
                lane = [used[pair] for pair in pairs]
                used.update(pairs)
                hops = np.column_stack([np.arange(len(pairs)), way[:-1], way[1:], lane])
                step, *ends = np.repeat(hops, len(mine), axis=0).T
                columns.append(
                    (step + np.tile(piece, len(pairs)), *ends, np.tile(mine, len(pairs)))
                )
        step, src, dst, lane, chunk = (np.concatenate(c) for c in zip(*columns, strict=True))
        return routed(topology, collective, step, src, dst, chunk, lane=lane)


def _channels(topology: Topology, ranks: np.ndarray) -> list[np.ndarray]:
    """The ranks of a group in the order of every channel; their own order if there is none."""
    found = circles_of(topology, ranks, False) if len(ranks) > 2 else ()
    circles = [ranks[list(circle)] for circle in found] or [ranks]
    if not topology.is_direct or len(ranks) == 2:
        return circles
    joined = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    ends = [zip(np.roll(c, -1).tolist(), c.tolist(), strict=True) for c in circles]
    # If links go both ways, each circle gives one more channel backwards, over links that the first
    # one leaves idle.
    returns = [c[::-1] for c, pairs in zip(circles, ends, strict=True) if joined.issuperset(pairs)]
    return circles + returns
