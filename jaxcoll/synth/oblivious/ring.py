"""Ring: ranks in a circle, whatever the wires are."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import Synthesizer
from jaxcoll.synth.building.patterns import circle
from jaxcoll.synth.building.routed import first_chunk, on_ranks, routed
from jaxcoll.synth.building.sends import Sends, gather_in_order
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Ring(Synthesizer):
    """All-gather around the circle 0, 1, ..., n-1, 0 (or the order of each group).

    Topology-oblivious: neighbours on the circle that no link joins are routed over shortest
    paths (``jaxcoll.paths.shortest_routes`` states the tie-break). Both ways round, shards go
    to the rank opposite in n/2 steps; one way, all the way round in n-1 steps, upwards unless the
    routes downwards have fewer links (as on a one-way ring reversed for reduce_scatter).

    Attributes:
        bidirectional: whether shards go both ways round.
        circles: orders of the ranks of a group, by index, each of which carries an equal share of
            every shard's chunks; the order of the group when None. Where several circles join the
            same two ranks, each has a link of its own if there are parallel ones.

    Raises:
        CollectiveError: circles that are not orders of the ranks.
    """

    bidirectional: bool = True
    circles: tuple[tuple[int, ...], ...] | None = None

    name: ClassVar[str] = "ring"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})

    def __post_init__(self) -> None:
        checks.flag_fields(self, CollectiveError, "bidirectional")
        if self.circles is None:
            return
        circles = [
            checks.integers(circle, f"circles[{i}]", CollectiveError)
            for i, circle in enumerate(checks.members(self.circles, "circles", CollectiveError))
        ]
        if not circles or any(sorted(c) != list(range(len(circles[0]))) for c in circles):
            raise CollectiveError(
                f"circles must be one or more orders of the same indices 0, 1, ..., "
                f"got {checks.shown(self.circles)}"
            )
        checks.put(self, circles=tuple(circles))

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: circles of another number of ranks than a group has.
        """
        parts, lanes = [], []
        lane = np.zeros((topology.num_ranks, topology.num_ranks), np.int64)
        for group in collective.groups:
            if len(group) == 1:
                continue
            ranks, chunks = np.asarray(group), collective.chunks_per_shard
            circles = self._circles(ranks)
            for turn, around in enumerate(circles):
                index = np.arange(turn, chunks, len(circles))
                part = self._around(topology, around, index)
                parts.append(part)
                lanes.append(lane[part.src, part.dst])
                ends = (
                    np.append(around, np.roll(around, -1)),
                    np.append(np.roll(around, -1), around),
                )
                lane[ends] += 1
        sends = Sends.joined(parts)
        chunk = first_chunk(collective)[sends.owner] + sends.index
        columns = (sends.step, sends.src, sends.dst, chunk)
        return routed(topology, collective, *columns, lane=np.concatenate(lanes))

    def _circles(self, ranks: np.ndarray) -> list[np.ndarray]:
        if self.circles is None:
            return [ranks]
        if len(self.circles[0]) != len(ranks):
            raise CollectiveError(
                f"the circles are of {len(self.circles[0])} ranks, a group has {len(ranks)} ranks"
            )
        return [ranks[list(circle)] for circle in self.circles]

    def _around(self, topology: Topology, ranks: np.ndarray, index: np.ndarray) -> Sends:
        backwards = ranks[::-1]
        if not self.bidirectional and _links(topology, backwards) < _links(topology, ranks):
            ranks = backwards
        pattern = circle(len(ranks), both_ways=self.bidirectional)
        sends = gather_in_order(Grid((len(ranks),), (True,)), (0,), {0: pattern}, index)
        return on_ranks(sends, ranks)


def _links(topology: Topology, circle: np.ndarray) -> int:
    """Links on the routes from each rank of a circle to the next."""
    return len(shortest_routes(topology, circle, np.roll(circle, -1)).path_link)
