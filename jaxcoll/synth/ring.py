"""Ring: ranks in a circle, whatever the wires are."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.grid import Grid
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.base import Synthesizer
from jaxcoll.synth.bucket import first_chunk
from jaxcoll.synth.dimensionwise import gather_by_dimension
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Ring(Synthesizer):
    """All-gather around the circle 0, 1, ..., n-1, 0 (or the order of each group).

    Blind to the topology: neighbours on the circle that no link joins are routed over shortest
    paths (``jaxcoll.paths.shortest_routes`` states the tie-break). Both ways round, shards travel
    to the rank opposite in n/2 steps; one way, all the way round in n-1 steps, upwards unless the
    routes downwards have fewer links (as on a one-way ring turned round for reduce_scatter).

    Attributes:
        bidirectional: whether shards travel both ways round.
    """

    bidirectional: bool = True

    name: ClassVar[str] = "ring"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule without random choices; ``seed`` changes nothing."""
        first = first_chunk(collective)
        step, src, dst, chunk = [], [], [], []
        for group in collective.groups:
            if len(group) == 1:
                continue
            ranks = np.asarray(group)
            if not self.bidirectional and _links(topology, ranks[::-1]) < _links(topology, ranks):
                ranks = ranks[::-1]
            circle = Grid((len(group),), (True,))
            sends = gather_by_dimension(
                circle, (0,), collective.chunks_per_shard, both_ways=self.bidirectional
            )
            step.append(sends.step)
            src.append(ranks[sends.src])
            dst.append(ranks[sends.dst])
            chunk.append(first[ranks[sends.owner]] + sends.index)
        return routed(topology, collective, *map(np.concatenate, (step, src, dst, chunk)))


def _links(topology: Topology, circle: np.ndarray) -> int:
    """Links on the routes from each rank of a circle to the next."""
    return len(shortest_routes(topology, circle, np.roll(circle, -1)).path_link)


def routed(
    topology: Topology,
    collective: Collective,
    step: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    chunk: np.ndarray,
) -> Schedule:
    """The schedule of sends between any ranks, each pair joined by its shortest route."""
    n = topology.num_ranks
    pairs, edge = np.unique(src.astype(np.int64) * n + dst, return_inverse=True)
    edges = shortest_routes(topology, pairs // n, pairs % n)
    return Schedule.from_sends(topology, collective, step, edge, chunk, edges=edges)
