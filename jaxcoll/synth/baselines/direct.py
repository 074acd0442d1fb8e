"""Direct: every rank sends to every other in one step, without looking at the network."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.kinds import those
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import (
    BUCKET_BYTES,
    IN_BLOCKS,
    LAST,
    ONE_CHUNK,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.circles import has_one_port
from jaxcoll.synth.building.sends import routed
from jaxcoll.synth.routing.spread_routes import spread_routes
from jaxcoll.topology import Topology

# Up to this number of ranks routes are the shortest, whatever they load.
_FEW_RANKS = 64
# Latencies of its link in which a rank may send little data.
_FEW_LATENCIES = 8


@dataclasses.dataclass(frozen=True)
class Direct(Synthesizer):
    """Every chunk goes directly from its holder to every rank that wants it, all in one step.

    Topology-oblivious: pairs without a direct link are routed over shortest paths
    (``jaxcoll.paths.shortest_routes`` states the tie-break), or, beyond 64 ranks, over
    ``spread_routes``. A rank sends to the next rank first,
    then to the one after it, and so on round.
    """

    name: ClassVar[str] = "direct"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: not kind.adds)
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK
    put_off: ClassVar[float] = LAST

    def leads(self, problem: Problem) -> bool:
        """Whether many ranks have one link each, which an all_to_all or little data fill anyway.

        Data are little if a rank's link carries those of all ranks in the time of few latencies.
        """
        topology, kind = problem.topology, problem.collective.traits
        if topology.num_ranks <= _FEW_RANKS or not has_one_port(topology):
            return False
        if kind.is_pairwise or kind.has_root or problem.nbytes is None:
            return kind.is_pairwise
        of_ranks = topology.src < topology.num_ranks
        alpha, speed = topology.alpha[of_ranks], topology.bandwidth[of_ranks]
        return float(problem.nbytes) <= _FEW_LATENCIES * float(np.median(alpha * speed))

    def work(self, problem: Problem) -> float:
        """Every link of a path is simulated; of many ranks, hardly anything else takes time."""
        is_large = problem.topology.num_ranks > _FEW_RANKS
        return (IN_BLOCKS if is_large else 1.0) * problem.hops

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
        step = np.zeros(len(chunk), np.int64)
        if n <= _FEW_RANKS:
            return routed(topology, collective, step, src, dst, chunk)
        pair, edge, many = np.unique(src * n + dst, return_inverse=True, return_counts=True)
        nbytes = Fraction(BUCKET_BYTES, collective.num_chunks)
        edges = spread_routes(topology, pair // n, pair % n, many, nbytes)
        return Schedule.from_sends(topology, collective, step, edge, chunk, edges=edges)


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
