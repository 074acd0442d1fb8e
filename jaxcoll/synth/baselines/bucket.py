"""Bucket: dimension-wise all-gathers on meshes, tori and hypercubes, all dimensions busy at once.

On a grid of 4 x 4 a ring of all ranks takes 15 steps; rings along both dimensions take 3 + 3.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import IN_BLOCKS, LATER, ONE_CHUNK, Counts, Problem, Synthesizer
from jaxcoll.synth.building.grids import RankGrid, group_dimensions
from jaxcoll.synth.building.sends import (
    first_chunk,
    gather_by_dimension,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Blocks(Synthesizer):
    """An all_gather with messages of many shards, which are blocks along a dimension of a grid."""

    send_work: ClassVar[float] = IN_BLOCKS
    put_off: ClassVar[float] = LATER

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or as many as load all links of a grid equally (``Bucket.granularity``)."""
        if problem.topology.placement is None:
            return ONE_CHUNK
        return (tuple(sorted({1, Bucket.granularity(problem.topology)})),)


@dataclasses.dataclass(frozen=True)
class Bucket(Blocks):
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
