"""Minimum congestion: data for single ranks over paths that share the load among the links.

Chunk after chunk takes the path that is cheapest at the loads so far, and a link costs more the
nearer it is to being the fullest. Then every chunk is taken out and routed again, as the first ones
saw nothing of the later ones. Then the order on links is chosen: the chunk with the longest way to
go leaves first, since a run is as long as its slowest chunk.

On a ring of 3 ranks each pair is joined by a link, and nobody forwards. Without the link from 0 to
1, chunks from 0 to 1 go over 2, on one link with those from 0 to 2 and on one with those from 2
to 1.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import DOUBLINGS, Counts, Problem, Synthesizer
from jaxcoll.synth.building.list_scheduling import as_they_arrive, link_ticks
from jaxcoll.synth.building.routed import distinct_edges
from jaxcoll.synth.routing import min_congestion_kernel as kernel
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class MinCongestion(Synthesizer):
    """Every chunk takes the path of least latency and congestion; links serve the farthest first.

    Minimum-congestion routing by dual variables (Raghavan and Thompson, "Randomized rounding",
    1987, state the problem; Basu et al., "Efficient all-to-all collective communication schedules
    for direct-connect topologies", HPDC 2024, route all_to_all that way): chunk after chunk, rank
    after rank, takes the cheapest path. A link costs alpha + bytes / bandwidth, and more the nearer
    it is to being the fullest by the chunks routed so far, so small data take the paths of least
    latency and large data spread. Every further pass routes each chunk again, given all others.

    A message is a chunk. It leaves a rank as soon as it has arrived and the link is free, and where
    several wait, the one with the longest way to go leaves first. The chunks of a shard may take
    different paths, so more chunks share the load more evenly and wait less to be stored and
    forwarded.

    Attributes:
        nbytes: bytes of a rank's buffer to route for; 64 MiB when omitted.
        passes: how many times every chunk is routed.
        power: of a link's part of the fullest link's load, by which its load is multiplied. With 0
            every chunk's own way is short, which is best for little data.

    Raises:
        CollectiveError: a field out of range.
    """

    nbytes: float = 2**26
    passes: int = 2
    power: int = 5

    name: ClassVar[str] = "min_congestion"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_to_all", "gather", "scatter"})
    has_nbytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        checks.integer_fields(self, CollectiveError, "passes")
        power = checks.integer(self.power, "power", CollectiveError, least=0, most=100)
        checks.put(self, power=power)

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """Both powers that were best somewhere."""
        return cls(), cls(power=0)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """More chunks share the load more evenly."""
        return (DOUBLINGS,)

    def work(self, problem: Problem) -> float:
        """Chunks take paths of several links, each of which is searched and simulated."""
        return 2 * problem.hops

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``."""
        order, source, target, batch_ptr = _batches(collective)
        nbytes = as_fraction(self.nbytes)
        hops = 4 * len(order) * topology.num_vertices
        busy, delay = link_ticks(topology, collective, nbytes, hops)
        ptr, link = topology.out_links
        src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
        into = kernel.route(
            ptr, link, src, dst, busy, delay, source, target, batch_ptr, self.passes, self.power
        )  # fmt: skip
        path_ptr, path, place, before = kernel.sends_along(
            into, src, topology.num_ranks, source, target, batch_ptr
        )
        if topology.is_direct:
            edges, edge = Edges.from_links(topology), path
        else:
            edges, edge = distinct_edges(topology, path_ptr, path)
        return as_they_arrive(topology, collective, edges, edge, order[place], before, nbytes)


def _batches(collective: Collective) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Chunks that must move, those of one piece of one rank's data together, or one by one.

    Returns:
        order: the chunks, int64.
        source: where each batch starts.
        target: where each chunk of ``order`` ends.
        batch_ptr: chunks of batch b are ``order[batch_ptr[b]:batch_ptr[b + 1]]``.
    """
    ends = collective.owner.astype(np.int64), collective.target.astype(np.int64)
    src, dst = ends[::-1] if collective.kind == "scatter" else ends
    chunk = np.flatnonzero(src != dst)
    piece = chunk % collective.chunks_per_shard
    ahead = (dst[chunk] - src[chunk]) % collective.num_ranks  # no rank is sent to by all at once
    order = chunk[np.lexsort((ahead, src[chunk], piece))]
    key = order % collective.chunks_per_shard * collective.num_ranks + src[order]
    if collective.kind == "scatter":
        key = np.arange(len(order))  # all of a piece on one tree would leave the root by few links
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    return order, src[order[first]], dst[order], np.append(first, len(order))
