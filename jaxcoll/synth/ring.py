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
from jaxcoll.synth.blind import gathered
from jaxcoll.synth.dimensionwise import Sends, gather_in_order
from jaxcoll.synth.patterns import circle
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

        def around(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            backwards = group[::-1]
            if not self.bidirectional and _links(topology, backwards) < _links(topology, group):
                group = backwards
            chunks = collective.chunks_per_shard
            way = circle(len(group), both_ways=self.bidirectional)
            return group, gather_in_order(
                Grid((len(group),), (True,)), (0,), {0: way}, np.arange(chunks)
            )

        return gathered(topology, collective, around)


def _links(topology: Topology, circle: np.ndarray) -> int:
    """Links on the routes from each rank of a circle to the next."""
    return len(shortest_routes(topology, circle, np.roll(circle, -1)).path_link)
