"""Direct: everyone sends to everyone at once."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import LAST, Counts, Problem, Synthesizer
from jaxcoll.synth.building.routed import routed
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Direct(Synthesizer):
    """Every chunk goes from its holder straight to every rank that wants it, all in one step.

    Topology-oblivious: pairs that no link joins are routed over shortest paths
    (``jaxcoll.paths.shortest_routes`` states the tie-break). A rank sends to the next rank first,
    then to the one after it, and so on round.
    """

    name: ClassVar[str] = "direct"
    kinds: ClassVar[frozenset[str]] = frozenset(
        {"all_gather", "broadcast", "gather", "scatter", "all_to_all"}
    )
    put_off: ClassVar[float] = LAST

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk: more gain nothing."""
        return ((1,),)

    def work(self, problem: Problem) -> float:
        """Chunks go between any ranks: each is simulated on every link of its path."""
        return problem.hops

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``."""
        n = topology.num_ranks
        chunk, dst = _deliveries(collective)
        holder = collective.target if collective.kind == "scatter" else collective.owner
        src = holder[chunk].astype(np.int64)
        order = np.lexsort((chunk, src, (dst - src) % n))
        src, dst, chunk = src[order], dst[order], chunk[order]
        return routed(topology, collective, np.zeros(len(chunk), np.int64), src, dst, chunk)


def _deliveries(collective: Collective) -> tuple[np.ndarray, np.ndarray]:
    """Every (chunk, rank) that wants a chunk it does not hold."""
    chunks, ranks = [], []
    for g, group in enumerate(collective.groups):
        members = np.asarray(group)
        chunk = np.arange(collective.chunk_ptr[g], collective.chunk_ptr[g + 1])
        lacks = collective.wants(members, chunk[:, None]) & ~collective.holds(
            members, chunk[:, None]
        )
        i, j = np.nonzero(lacks)
        chunks.append(chunk[i])
        ranks.append(members[j])
    return np.concatenate(chunks), np.concatenate(ranks)
