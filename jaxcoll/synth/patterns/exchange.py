"""Exchange: an all_to_all dimension by dimension, with one message for all chunks on one way.

For example, on a grid of 2 x 4 every rank has a chunk for each of 7 others. Along its row it sends
each of 3 ranks the 2 chunks for that rank's column. Each rank then passes on, along its column, the
chunks for the other rank there: that takes 4 messages instead of 7. No link carries more than it
must, since every message takes the shortest way along its line. The columns would idle while the
rows work, so half of the chunks go along the columns first.

If a link of the grid is slow or gone, or a rank is, the chunks that would cross it take detours.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.grid import Grid
from jaxcoll.kinds import those
from jaxcoll.numerics.ragged import take_rows
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import IN_BLOCKS, SOON, Counts, Problem, Synthesizer
from jaxcoll.synth.building.grids import (
    RankGrid,
    group_dimensions,
    is_all_at_once,
    rank_grid_of,
)
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.synth.routing.detours import PathSends, led_around, links_left
from jaxcoll.topology import Topology

_TURNS = 24  # turns in which chunks are dealt to orders of dimensions


@dataclasses.dataclass(frozen=True)
class Exchange(Synthesizer):
    """All-to-all along one dimension after another, with one message per way.

    The multiphase exchange of Bokhari, "Multiphase complete exchange on a circuit switched
    hypercube" (ICPP 1991), with direct exchanges along every line. In phase i a rank sends to every
    other rank of its line all chunks that it holds for ranks with that rank's coordinate. Chunks
    are dealt to as many orders of the dimensions as there are dimensions, each beginning with a
    different one, so that all dimensions work. Messages take the shorter way round rings; to the
    opposite rank, every second rank sends upwards. The longest ways leave first, so that links do
    not wait for chunks to forward.

    A chunk is sent at most once per dimension, which keeps schedules of thousands of ranks small.
    Networks and groups must be grids, as for ``BlueConnect``, or have been grids before links and
    ranks failed: the chunks whose ways cross a fault go around it (``routing.detours``).
    """

    name: ClassVar[str] = "exchange"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.is_pairwise)
    series: ClassVar[tuple[Counts, ...]] = ((1, 2, 4, 8),)
    put_off: ClassVar[float] = SOON

    def work(self, problem: Problem) -> float:
        """One send per dimension, in messages of many chunks.

        Raises:
            TopologyError: the network is not a grid.
        """
        grid = rank_grid_of(self._grid_network(problem.topology), self.name).grid
        dimensions = sum(side > 1 for side in grid.shape)
        return 2 * IN_BLOCKS * dimensions * problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a grid.
            CollectiveError: groups that are not subgrids of this grid.
        """
        whole = self._grid_network(topology)
        rank_grid = rank_grid_of(whole, self.name)
        dims = self._dimensions(whole, rank_grid, collective)
        pair, edges = _edges(whole, rank_grid, dims)
        load, speed = _usual(whole, rank_grid, dims, edges)
        seconds = np.asarray([(load[d] / speed).max() / rank_grid.grid.shape[d] for d in dims])
        chunk, step, at = _sends(rank_grid, dims, seconds, collective, _numbers(topology, whole))
        edge = np.searchsorted(pair, at)
        left = np.arange(topology.num_links) if whole is topology else links_left(topology)
        found = PathSends(edges.path_ptr, left[edges.path_link], edge, chunk, step)
        usual = topology.bandwidth.copy()
        usual[left[left >= 0]] = speed[left >= 0]
        return _in_order(topology, collective, led_around(topology, collective, found, usual))

    def _grid_network(self, topology: Topology) -> Topology:
        """The network itself, or the whole network before its faults if only that is a grid.

        Raises:
            TopologyError: it never was a grid.
        """
        try:
            rank_grid_of(topology, self.name)
        except TopologyError:
            if topology.whole is topology:
                raise
            return topology.whole
        return topology

    def _dimensions(
        self, whole: Topology, rank_grid: RankGrid, collective: Collective
    ) -> tuple[int, ...]:
        """The dimensions in which members of a group differ."""
        if collective.num_ranks == whole.num_ranks:
            return group_dimensions(rank_grid, collective, self.name)
        check_everyone(collective, f"{self.name} on a grid without some ranks")
        return tuple(d for d, side in enumerate(rank_grid.grid.shape) if side > 1)


def _numbers(topology: Topology, whole: Topology) -> np.ndarray:
    """The number of each rank in the network that is a grid, int64 of shape (ranks,)."""
    vertices = np.arange(topology.num_ranks) if whole is topology else topology.whole_vertices
    return vertices[: topology.num_ranks]


def _in_order(topology: Topology, collective: Collective, sends: PathSends) -> Schedule:
    """The schedule in which the longest ways of a step leave first.

    So chunks to forward arrive while a link serves its own rank's. Among equals, sends to the next
    rank leave first, so that all ranks send to different ones at any time.
    """
    edges = Edges.along(topology, sends.path_ptr, sends.path)
    ahead = (edges.dst - edges.src) % topology.num_ranks
    place = np.empty(len(edges), np.int64)
    place[np.lexsort((ahead, -edges.hops))] = np.arange(len(edges))
    order = np.lexsort((sends.chunk, place[sends.edge], sends.step))
    return Schedule.from_sends(
        topology,
        collective,
        sends.step[order],
        sends.edge[order],
        sends.chunk[order],
        edges=edges,
    )


def _sends(
    rank_grid: RankGrid,
    dims: tuple[int, ...],
    seconds: np.ndarray,
    collective: Collective,
    number: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chunk, phase and pair of ranks of the grid (src * ranks + dst) of every send.

    Args:
        seconds: for which chunks of all pairs of a line occupy its busiest link, by dimension.
        number: rank of the grid that each rank is.
    """
    grid, ranks, traits = rank_grid.grid, rank_grid.ranks, collective.traits
    index = _index_of(rank_grid)
    src, dst = (index[number[collective.ends(end)]] for end in (traits.before, traits.after))
    chunk = np.flatnonzero(src != dst)
    src, dst = src[chunk], dst[chunk]
    # The first dimension of each chunk is dealt so that each dimension has its share of the data
    # that a rank sends to the ranks beyond another, and of the data that it receives.
    across, deal = grid.coordinates()[:, list(dims)].sum(axis=1), _deal(seconds)
    turn = deal[(across[src] + across[dst] + chunk % collective.chunks_per_shard) % len(deal)]
    stride, side = _strides(grid), np.asarray(grid.shape)
    phases = []
    for phase in range(len(dims)):
        dim = np.asarray(dims)[(turn + phase) % len(dims)]
        here, there = (at // stride[dim] % side[dim] for at in (src, dst))
        to = src + (there - here) * stride[dim]
        goes = np.flatnonzero(here != there)
        pair = ranks[src[goes]] * grid.size + ranks[to[goes]]
        phases.append((chunk[goes], np.full(len(goes), phase), pair))
        src = to
    chunk, step, pair = (np.concatenate(columns) for columns in zip(*phases, strict=True))
    return chunk, step, pair


def _deal(seconds: np.ndarray) -> np.ndarray:
    """The first dimension of chunks, by turns; dimensions with fewer seconds are more frequent.

    A dimension with half the seconds takes twice the chunks. So the first phase ends everywhere at
    once, and the slowest dimension works from the first moment to the last.
    """
    share = 1 / seconds / (1 / seconds).sum()
    turns, dealt = [], np.zeros(len(seconds))
    for turn in range(1, _TURNS + 1):
        turns.append(int((share * turn - dealt).argmax()))
        dealt[turns[-1]] += 1
    return np.asarray(turns)


def _usual(
    topology: Topology, rank_grid: RankGrid, dims: tuple[int, ...], edges: Edges
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """How often all edges cross each link, by dimension; and how fast most links of its kind are.

    Links of a dimension that are crossed equally often are of one kind. A single slow link changes
    nothing here: chunks are led around it.

    Args:
        edges: see ``_edges``.
    """
    at = rank_grid.grid.coordinates()[_index_of(rank_grid)]
    along = np.repeat((at[edges.src] != at[edges.dst]).argmax(axis=1), edges.hops)
    load, speed = {}, topology.bandwidth.copy()
    for dim in dims:
        links = edges.path_link[along == dim]
        load[dim] = np.bincount(links, minlength=topology.num_links)
        for times in np.unique(load[dim][links]):
            same = load[dim] == times
            speed[same] = np.median(topology.bandwidth[same])
    return load, speed


def _index_of(rank_grid: RankGrid) -> np.ndarray:
    """The index in the grid of every rank."""
    index = np.empty(rank_grid.grid.size, np.int64)
    index[rank_grid.ranks] = np.arange(len(index))
    return index


def _strides(grid: Grid) -> np.ndarray:
    """The stride of the index along each dimension; the last one is the innermost."""
    return np.cumprod((1, *grid.shape[:0:-1]))[::-1]


def _edges(
    topology: Topology, rank_grid: RankGrid, dims: tuple[int, ...]
) -> tuple[np.ndarray, Edges]:
    """Paths between all ranks that differ in one of the dimensions, and their ascending pairs."""
    grid, ranks = rank_grid.grid, rank_grid.ranks
    coordinates, index = grid.coordinates(), np.arange(grid.size)[:, None]
    pairs, hops, links = [], [], []
    for dim in dims:
        side, here = grid.shape[dim], coordinates[:, dim, None]
        there = (here + np.arange(1, side)) % side
        to = index + (there - here) * int(_strides(grid)[dim])
        start, here, there = (a.ravel() for a in np.broadcast_arrays(index, here, there))
        src, dst = ranks[start], ranks[to.ravel()]
        if is_all_at_once(topology, rank_grid, dim):
            routes = shortest_routes(topology, src, dst)
            ptr, path = routes.path_ptr, routes.path_link
        else:
            ptr, path = _around(topology, rank_grid, dim, start, here, there)
        pairs.append(src * grid.size + dst)
        hops.append(np.diff(ptr))
        links.append(path)
    ptr = np.concatenate([[0], *hops]).cumsum()
    pair = np.concatenate(pairs)
    order = np.argsort(pair)
    return pair[order], Edges.along(topology, *take_rows(ptr, np.concatenate(links), order))


def _around(
    topology: Topology,
    rank_grid: RankGrid,
    dim: int,
    index: np.ndarray,
    here: np.ndarray,
    there: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The links from neighbour to neighbour along a line, or the shorter way round a ring.

    Args:
        index: index of the grid where each path starts; ``here`` is its coordinate, ``there`` that
            of the end.
    """
    grid, ranks = rank_grid.grid, rank_grid.ranks
    side, stride = grid.shape[dim], int(_strides(grid)[dim])
    up, is_ring = (there - here) % side, grid.wrap[dim]
    upwards = (2 * up < side) | ((2 * up == side) & (here % 2 == 0)) if is_ring else there > here
    count = np.where(upwards, up, side - up)
    # Every step of every path, and the route between the two neighbours that it joins.
    ptr = np.concatenate([[0], np.cumsum(count)])
    done = np.arange(ptr[-1]) - np.repeat(ptr[:-1], count)
    way, start = np.repeat(np.where(upwards, 1, -1), count), np.repeat(here, count)
    base = np.repeat(index - here * stride, count)
    src, dst = (base + (start + way * (done + more)) % side * stride for more in (0, 1))
    key, step = np.unique(ranks[src] * grid.size + ranks[dst], return_inverse=True)
    routes = shortest_routes(topology, key // grid.size, key % grid.size)
    links, path = routes.paths_of(step)
    return links[ptr], path
