"""Direct: every rank sends to every other in one step, without looking at the network."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.kinds import those
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import (
    LAST,
    ONE_CHUNK,
    Counts,
    Synthesizer,
)
from jaxcoll.synth.building.sends import (
    routed,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Direct(Synthesizer):
    """Every chunk goes directly from its holder to every rank that wants it, all in one step.

    Topology-oblivious: pairs without a direct link are routed over shortest paths
    (``jaxcoll.paths.shortest_routes`` states the tie-break). A rank sends to the next rank first,
    then to the one after it, and so on round.
    """

    name: ClassVar[str] = "direct"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: not kind.adds)
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK
    hop_work: ClassVar[float | None] = 1.0
    put_off: ClassVar[float] = LAST

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        n, kind = topology.num_ranks, collective.traits
        src = collective.ends(kind.before).astype(np.int64)
        if kind.moves:
            dst = collective.ends(kind.after).astype(np.int64)
            chunk = np.flatnonzero(src != dst)
            dst = dst[chunk]
        else:
            chunk, dst = _wanted(collective)
        src = src[chunk]
        # A link serves the sends of a step in order. They are sorted by distance first, so that at
        # any time all ranks send to different ones; by destination, all would queue for rank 0
        # first.
        order = np.lexsort((chunk, src, (dst - src) % n))
        src, dst, chunk = src[order], dst[order], chunk[order]
        return routed(topology, collective, np.zeros(len(chunk), np.int64), src, dst, chunk)


def _wanted(collective: Collective) -> tuple[np.ndarray, np.ndarray]:
    """Every chunk and every rank that wants it and does not hold it."""
    chunks, ranks = [], []
    for g, group in enumerate(collective.groups):
        members = np.asarray(group)
        listed = np.arange(collective.chunk_ptr[g], collective.chunk_ptr[g + 1])
        wants = collective.wants(members, listed[:, None])
        i, j = np.nonzero(wants & ~collective.holds(members, listed[:, None]))
        chunks.append(listed[i])
        ranks.append(members[j])
    return np.concatenate(chunks), np.concatenate(ranks)
