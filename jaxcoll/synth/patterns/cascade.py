"""Cascade: all-gathers by stages, a dimension per stage, whose chunks do not wait for each other.

On a grid of 2 x 4 a chunk is gathered along one dimension, and then the gathered block along the
other. While one dimension works the other would idle, so chunks follow one another, each in the
order of dimensions that loads all of them equally.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule, concatenate
from jaxcoll.synth.building.base import FIRST, Counts, Problem, Synthesizer
from jaxcoll.synth.building.grids import (
    RankGrid,
    checked_shape,
    dimension_counts,
    dimension_patterns,
    dimension_seconds,
    group_dimensions,
    rank_grid_of,
)
from jaxcoll.synth.building.list_scheduling import as_they_arrive
from jaxcoll.synth.building.sends import (
    Pattern,
    Sends,
    first_chunk,
    gather_along,
    on_ranks,
    steps,
)
from jaxcoll.topology import Topology

_MOST_PERMUTED = 5  # the most dimensions of which all orders are examined


@dataclasses.dataclass(frozen=True)
class Cascade(Synthesizer):
    """All-gather dimension by dimension without phases: a chunk moves on as soon as it arrives.

    As in Themis, every chunk of a shard has its own order of dimensions, chosen greedily so that
    the load of the busiest dimension is least. Unlike in Themis, nothing is sent in blocks: a rank
    passes on every chunk separately, whether or not the rest of its phase has arrived. Each link
    serves the chunk with the longest remaining way first, in a run with latencies for a given size.

    In an all_reduce the chunks of a shard are gathered in the order in which their sums become
    complete, so the second half starts while the first still runs, and little data takes hardly
    longer than its latency and the traffic on the slowest dimension together.

    A message is one chunk, which is slow for little data if alpha occupies a link (link model
    "tacos"). Networks and groups must be grids, as for ``BlueConnect``. Along a dimension ranks use
    its basic algorithm (``building.grids.dimension_patterns``); open lines stay open.

    Attributes:
        nbytes: bytes of a rank's buffer for which to be fast; 64 MiB when omitted.
        shape: see ``BlueConnect``.

    Raises:
        CollectiveError: a field is out of range, or the shape is not one.
    """

    nbytes: float = 2**26
    shape: tuple[int, ...] | None = None

    name: ClassVar[str] = "cascade"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather", "all_reduce"})
    has_nbytes: ClassVar[bool] = True
    put_off: ClassVar[float] = FIRST

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        object.__setattr__(self, "shape", checked_shape(self.shape))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, two, and multiples of the dimensions, among which chunks are shared out."""
        return dimension_counts(problem.topology)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a grid.
            CollectiveError: groups that are not subgrids of this grid.
        """
        gather = self._gather(topology, collective.with_kind("all_gather"))
        if collective.traits.copies:
            return gather
        back = topology.transpose()
        scatter = gather if topology.has_links_of(back) else self._gather(back, gather.collective)
        # In the reversed schedule, the chunk that gathers last is summed first. Chunks are
        # renumbered in reverse, so that the chunk with which the all_gather starts is complete
        # first, and the phases overlap.
        chunks, chunk = collective.chunks_per_shard, scatter.chunk
        renamed = dataclasses.replace(scatter, chunk=chunk + chunks - 1 - 2 * (chunk % chunks))
        return concatenate(renamed.reverse(), gather)

    def _gather(self, topology: Topology, collective: Collective) -> Schedule:
        rank_grid = rank_grid_of(topology, self.name, self.shape)
        dims = group_dimensions(rank_grid, collective, self.name)
        patterns = dimension_patterns(topology, rank_grid, dims, close=False)
        seconds = {d: dimension_seconds(topology, rank_grid, d, patterns[d]) for d in dims}
        side = {d: rank_grid.grid.shape[d] for d in dims}
        orders = least_load_orders(side, seconds, collective.chunks_per_shard)
        sends = on_ranks(Sends.joined(list(_phases(rank_grid, orders, patterns))), rank_grid.ranks)
        chunk = first_chunk(collective)[sends.owner] + sends.index
        n = topology.num_ranks
        pair, edge = np.unique(sends.src * n + sends.dst, return_inverse=True)
        edges = shortest_routes(topology, pair // n, pair % n)
        # In an all_gather every rank receives a chunk once, so a single number tells the send that
        # brought it. Phases are dropped here: every send waits only for the send that brought its
        # chunk.
        brought = np.full((n, collective.num_chunks), -1, np.int64)
        brought[sends.dst, chunk] = np.arange(len(chunk))
        before, nbytes = brought[sends.src, chunk], as_fraction(self.nbytes)
        return as_they_arrive(topology, collective, edges, edge, chunk, before, nbytes)


def least_load_orders(
    side: Mapping[int, int], seconds: Mapping[int, Fraction], chunks: int
) -> list[tuple[int, ...]]:
    """The order of dimensions along which each chunk gathers.

    One after another, chunks take the order with which the busiest dimension has the least load so
    far; among equals, the least total load; then the first order, outer dimensions before inner
    ones.

    Args:
        side: number of ranks along every dimension, outermost first.
        seconds: time of each dimension for blocks of one byte.
        chunks: number of chunks.
    """
    load, dims = dict.fromkeys(side, Fraction(0)), tuple(side)
    # With many dimensions, only the cyclic orders in both directions are examined.
    around = [way[i:] + way[:i] for way in (dims, dims[::-1]) for i in range(len(dims))]
    choice = around if len(dims) > _MOST_PERMUTED else list(itertools.permutations(dims))
    orders = []
    for _ in range(chunks):
        # A chunk that gathers along a dimension late moves larger blocks there. So the orders of
        # all chunks decide the load of each dimension, and the busiest dimension decides the time.
        loads = [_loaded(load, order, side, seconds) for order in choice]
        # The busiest dimension decides the time; among equals, less total work leaves more freedom.
        much = [(max(each.values()), sum(each.values())) for each in loads]
        least = much.index(min(much))
        load = loads[least]
        orders.append(choice[least])
    return orders


def _loaded(
    load: Mapping[int, Fraction],
    order: tuple[int, ...],
    side: Mapping[int, int],
    seconds: Mapping[int, Fraction],
) -> dict[int, Fraction]:
    """The loads with one more chunk, whose blocks grow by the sides gathered before."""
    after, block = dict(load), 1
    for d in order:
        after[d] += block * seconds[d]
        block *= side[d]
    return after


def _phases(
    rank_grid: RankGrid, orders: list[tuple[int, ...]], patterns: Mapping[int, Pattern]
) -> Iterator[Sends]:
    """Sends between grid indices, each after the send that brings its data.

    To the opposite rank, the chunks of an order take both directions alternately.
    """
    taken: Counter[tuple[int, ...]] = Counter()
    for chunk, order in enumerate(orders):
        start = 0
        for phase, dim in enumerate(order):
            index = np.asarray([chunk])
            yield gather_along(
                rank_grid.grid, order[:phase], dim, patterns[dim], index, start, taken[order]
            )
            start += steps(patterns[dim])
        taken[order] += 1
