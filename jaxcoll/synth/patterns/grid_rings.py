"""Rings along the dimensions of a grid, one dimension after another.

On a grid of 4 x 4 a ring of all ranks takes 15 steps; rings along both dimensions take 3 + 3.

- ``Ring2D``: rings along the rows and the columns of a mesh or torus.
- ``HierarchicalRing``: rings of blocks of ranks, and rings across them.
- ``Bucket``: dimension-wise all-gather on meshes, tori and hypercubes, all dimensions busy at once.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.synth.building.base import IN_BLOCKS, LATER, ONE_CHUNK, Counts, Problem, Synthesizer
from jaxcoll.synth.building.circles import ranks_per_host
from jaxcoll.synth.building.grids import RankGrid, group_dimensions, rank_grid_of
from jaxcoll.synth.building.sends import (
    Sends,
    circle,
    first_chunk,
    gather_by_dimension,
    gather_in_order,
    gathered,
    on_ranks,
    schedule_of,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Blocks(Synthesizer):
    """An all_gather with messages of many shards, which are blocks along a dimension of a grid."""

    send_work: ClassVar[float] = IN_BLOCKS
    put_off: ClassVar[float] = LATER

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or as many as load all links of a grid equally (``Bucket.granularity``)."""
        if problem.topology.placement is None:
            return ONE_CHUNK
        return (tuple(sorted({1, Bucket.granularity(problem.topology)})),)


@dataclasses.dataclass(frozen=True)
class Ring2D(_Blocks):
    """Half of every shard goes round the rows, then the columns; half in the other order.

    Ying et al., "Image classification at supercomputer scale" (2018), Sec. 3.3. On an open border a
    ring closes over a route back along the line, which is why the MultiTree paper finds 2D-Ring
    slow on meshes (Sec. VI-A).

    That paper counts a whole all-reduce in either dimension, about twice the least volume. Here the
    second dimension only gets the data that the first has scattered, which is the least volume:
    ranks that kept a partial sum and also gave it away would count contributions twice.
    """

    name: ClassVar[str] = "ring_2d"

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a grid of two dimensions.
            CollectiveError: groups that are not subgrids of this grid.
        """
        rank_grid = rank_grid_of(topology, self.name)
        if sum(side > 1 for side in rank_grid.grid.shape) != 2:
            raise TopologyError(
                f"{self.name} needs two dimensions, {topology} has a grid of "
                f"{'x'.join(map(str, rank_grid.grid.shape))}; take bucket or blueconnect"
            )
        dims = group_dimensions(rank_grid, collective, self.name)
        # Every dimension counts as closed: on an open border the pattern of a circle stays, and its
        # last link becomes a route back along the line.
        circles = Grid(rank_grid.grid.shape, (True,) * len(rank_grid.grid.shape))
        sends = gather_by_dimension(circles, dims, collective.chunks_per_shard, both_ways=True)
        return schedule_of(topology, collective, on_ranks(sends, rank_grid.ranks))


@dataclasses.dataclass(frozen=True)
class HierarchicalRing(Synthesizer):
    """Reduce-scatter in blocks of consecutive ranks, all-reduce across them, all-gather in them.

    Ranks at equal indices in all blocks form a ring, and so do the ranks of a block; data go both
    ways round each ring (Jia et al., "Highly scalable deep learning training system with
    mixed-precision", 2018, Sec. 4.2). Topology-oblivious: neighbours on a ring are routed over
    shortest paths.

    Attributes:
        inner: number of ranks of a block, which must divide the ranks of every group; None for the
            ranks of a host (joined by links above the least bandwidth), or the innermost dimension
            of a grid.
        alternating: whether, with two blocks, no two ranks send to each other in one step. Messages
            from the first block go to equal indices, and those from the second to the next ones, so
            that messages between them follow a circle that alternates. Otherwise half-duplex pairs
            of processes leave a cable idle, whichever of each pair sends first.

    Raises:
        CollectiveError: ``inner`` is less than 1, or ``alternating`` is not a flag.
    """

    inner: int | None = None
    alternating: bool = False

    name: ClassVar[str] = "hierarchical_ring"
    series: ClassVar[tuple[Counts, ...]] = ((1, 2),)  # one chunk for each direction
    send_work: ClassVar[float] = IN_BLOCKS
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "inner", or_none=True)
        checks.flag_fields(self, CollectiveError, "alternating")

    def in_order(self, execution: ExecutionCosts | None) -> tuple[Self, ...]:
        if execution is None or not execution.half_duplex:
            return (self,)
        return (self, dataclasses.replace(self, alternating=True))

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: blocks do not divide a group, or ``alternating`` blocks are not two of
                two ranks or more.
            TopologyError: ``inner`` is None and the network has neither hosts nor a grid.
        """
        inner = ranks_per_host(topology, self.name) if self.inner is None else self.inner
        index = np.arange(collective.chunks_per_shard)

        def in_blocks(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            if len(group) % inner:
                raise CollectiveError(
                    f"{self.name} cuts groups into blocks of {inner} ranks, which does not divide "
                    f"{len(group)}; give another inner="
                )
            shape = (len(group) // inner, inner)
            if self.alternating and (shape[0] != 2 or inner == 1):
                raise CollectiveError(
                    f"{self.name} alternates between two blocks of two ranks or more; a group of "
                    f"{len(group)} has {shape[0]} of {inner}; leave alternating out"
                )
            # Dimension 0 is across blocks, dimension 1 inside a block. The all_gather goes across
            # first, so that the reduce_scatter derived from it starts inside the blocks.
            rings = {d: circle(side, both_ways=True) for d, side in enumerate(shape)}
            sends = gather_in_order(Grid(shape, (True, True)), (0, 1), rings, index)
            return group, _alternating(sends, inner) if self.alternating else sends

        return gathered(topology, collective, in_blocks)


def _alternating(sends: Sends, inner: int) -> Sends:
    """The sends of two blocks, where the second block sends to the next index in the first.

    Index a of the first block then has the shard of index a - 1 of the second, and brings it to its
    own block.
    """
    src, dst, owner = sends.src, sends.dst, sends.owner
    crosses = (src >= inner) & (dst < inner)
    brings = (src < inner) & (dst < inner) & (owner >= inner)
    return dataclasses.replace(
        sends,
        dst=np.where(crosses, (dst + 1) % inner, dst),
        owner=np.where(brings, inner + (owner - inner - 1) % inner, owner),
    )


@dataclasses.dataclass(frozen=True)
class Bucket(_Blocks):
    """Gather along one dimension after another; each part of the data starts with a different one.

    There are as many steps as the diameter of the grid. On homogeneous grids with equal sides the
    time of an all_gather is the TACOS paper's Ideal at every size, when chunks per shard are a
    multiple of ``granularity``. Groups must be subgrids of it: all ranks that differ only in some
    dimensions.

    The idea is the multi-dimensional bucket algorithm (Barnett et al., 1993; Jain and Sabharwal,
    "Optimal bucket algorithms for large MPI collectives on torus interconnects", 2010).
    """

    name: ClassVar[str] = "bucket"

    @staticmethod
    def granularity(topology: Topology) -> int:
        """The number of chunks per shard, or its multiples, with which links carry equal shares.

        There is one part per dimension, and two if a closed even side is reached both ways.
        """
        # On a closed even side half a block goes each way, so that a shard must have halves.
        grid = _rank_grid(topology).grid
        sides = [(s, w) for s, w in zip(grid.shape, grid.wrap, strict=True) if s > 1]
        halves = any(wrap and side % 2 == 0 for side, wrap in sides)
        return max(1, len(sides)) * (2 if halves else 1)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        rank_grid = _rank_grid(topology)
        dims = group_dimensions(rank_grid, collective, self.name)
        sends = gather_by_dimension(
            rank_grid.grid, dims, collective.chunks_per_shard, both_ways=True
        )
        # Links join the neighbours of a grid, so no routes are searched: a pair without a link
        # means that the grid is wrong.
        return Schedule.from_sends(
            topology,
            collective,
            sends.step,
            _links(topology, rank_grid.ranks[sends.src], rank_grid.ranks[sends.dst]),
            first_chunk(collective)[rank_grid.ranks[sends.owner]] + sends.index,
        )


def _rank_grid(topology: Topology) -> RankGrid:
    if topology.placement is None:
        raise TopologyError(
            f"bucket needs a mesh, torus or hypercube; {topology} has no grid. Build it with "
            f"jaxcoll.topologies, or pass grid= to Topology"
        )
    return RankGrid(topology.placement.grid, np.asarray(topology.placement.ranks))


def _links(topology: Topology, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """The (first) link between neighbours of the grid."""
    pairs = topology.src.astype(np.int64) * topology.num_vertices + topology.dst
    wanted = src * topology.num_vertices + dst
    # Links are sorted by source and then by end (canonical order), so this finds the first of
    # parallel links.
    link = np.searchsorted(pairs, wanted)
    found = pairs[np.minimum(link, len(pairs) - 1)] == wanted
    if not found.all():
        i = int(np.flatnonzero(~found)[0])
        raise TopologyError(
            f"the grid says that ranks {src[i]} and {dst[i]} are neighbours, but {topology} has no "
            f"link {src[i]}->{dst[i]}"
        )
    return link
