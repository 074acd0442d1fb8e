"""Ring: all-gathers around circles of links, or of ranks in their order.

On a circle of 3 ranks each passes on the shard that it received in the step before. That takes 2
steps, in which every link carries 2 shards, as few as a rank must receive. A circle is only as good
as its links.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import (
    LATER,
    ONE_CHUNK,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.circles import circles_of
from jaxcoll.synth.building.sends import (
    Sends,
    circle,
    first_chunk,
    gather_in_order,
    on_ranks,
    routed,
)
from jaxcoll.topology import Topology

ORDERS = ("links", "ranks")


@dataclasses.dataclass(frozen=True)
class Ring(Synthesizer):
    """All-gather around circles that follow links, each with an equal share of the chunks.

    The circles share no link, and there are as many as the search finds: those of a torus use all
    its links (``jaxcoll.synth.building.circles``). Among hosts behind switches there is one circle
    for each rank of a host. If links form no circle through all ranks, there is the single circle
    0, 1, ..., n-1, 0 (or the order of each group), whose neighbours are routed over shortest paths
    (``jaxcoll.paths.shortest_routes`` states the tie-break).

    In both directions, shards go to the opposite rank in n/2 steps; in one direction, they go all
    the way round in n-1 steps, upwards unless the routes downwards have fewer links (as on a
    one-way ring reversed for reduce_scatter).

    Attributes:
        bidirectional: whether shards go both ways round.
        order: "links" as above; "ranks" for the single circle in the order of ranks, regardless of
            the topology, with which the TACOS paper and others compare.
        circles: given orders of the ranks of a group, by index, instead. If several circles join
            the same two ranks, each has a separate link as far as there are parallel links.

    Raises:
        CollectiveError: the order is unknown, or circles are not orders of the ranks.
    """

    bidirectional: bool = True
    order: str = "links"
    circles: tuple[tuple[int, ...], ...] | None = None

    name: ClassVar[str] = "ring"
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        checks.flag_fields(self, CollectiveError, "bidirectional")
        checks.choice(self.order, ORDERS, "order", CollectiveError)
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

    def granularity(self, topology: Topology, collective: Collective) -> int:
        """The chunks per shard, or their multiples, with which circles carry equal shares."""
        groups = (np.asarray(group) for group in collective.groups if len(group) > 1)
        return max((len(self._circles(topology, group)) for group in groups), default=1)

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        return (cls(), cls(bidirectional=False))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk per circle, or two, as half of a shard comes from each direction."""
        if problem.collective.traits.has_root:
            return ONE_CHUNK
        circles = self.granularity(problem.topology, problem.collective)
        return ((circles, 2 * circles),)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: circles and a group have different numbers of ranks.
        """
        circles = functools.partial(self._circles, topology)
        return gather_around(topology, collective, circles, both_ways=self.bidirectional)

    def _circles(self, topology: Topology, ranks: np.ndarray) -> list[np.ndarray]:
        """The ranks of a group in the order of every circle."""
        # Two ranks are a circle on any links, and so is the order of ranks if no other circle is
        # found.
        circles = self.circles
        if circles is None and self.order == "links" and len(ranks) > 2:
            circles = circles_of(topology, ranks, self.bidirectional)
        if not circles:
            return [ranks]
        if len(circles[0]) != len(ranks):
            raise CollectiveError(
                f"the circles have {len(circles[0])} ranks, but a group has {len(ranks)}"
            )
        return [ranks[list(circle)] for circle in circles]


def gather_around(
    topology: Topology,
    collective: Collective,
    circles: Callable[[np.ndarray], Sequence[np.ndarray]],
    *,
    both_ways: bool,
    pieces: int = 1,
) -> Schedule:
    """The all_gather in which every circle of a group carries an equal share of the chunks.

    Args:
        circles: maps the ranks of a group to the ranks in the order of each circle.
        both_ways: whether shards go both ways round.
        pieces: see ``Sends.in_pieces``.
    """
    parts, lanes = [], []
    lane = np.zeros((topology.num_ranks, topology.num_ranks), np.int64)
    for group in collective.groups:
        if len(group) == 1:
            continue
        ranks, chunks = np.asarray(group), collective.chunks_per_shard
        found = circles(ranks)
        for turn, around in enumerate(found):
            # Chunks are dealt to the circles one by one; with fewer chunks than circles, some
            # circles are idle.
            index = np.arange(turn, chunks, len(found))
            part = _around(topology, around, index, both_ways).in_pieces(chunks, pieces)
            parts.append(part)
            # A circle that joins the same two ranks as an earlier one takes the next parallel link
            # there.
            lanes.append(lane[part.src, part.dst])
            ends = around, np.roll(around, -1)
            lane[ends] += 1
            lane[ends[::-1]] += 1
    sends = Sends.joined(parts)
    # Neighbours on a circle without a direct link are routed, over switches or ranks between them.
    chunk = first_chunk(collective)[sends.owner] + sends.index
    columns = (sends.step, sends.src, sends.dst, chunk)
    return routed(topology, collective, *columns, lane=np.concatenate(lanes))


def _around(topology: Topology, ranks: np.ndarray, index: np.ndarray, both_ways: bool) -> Sends:
    backwards = ranks[::-1]
    # The shorter of both directions is taken: on a network with links in one direction, the
    # other would follow routes round everything.
    if not both_ways and _links(topology, backwards) < _links(topology, ranks):
        ranks = backwards
    pattern = circle(len(ranks), both_ways=both_ways)
    sends = gather_in_order(Grid((len(ranks),), (True,)), (0,), {0: pattern}, index)
    return on_ranks(sends, ranks)


def _links(topology: Topology, circle: np.ndarray) -> int:
    """Links on the routes from each rank of a circle to the next."""
    return len(shortest_routes(topology, circle, np.roll(circle, -1)).path_link)
