"""Bucket: dimension-wise all-gather on meshes, tori and hypercubes."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import IN_BLOCKS, LATER, Counts, Problem, Synthesizer
from jaxcoll.synth.building.grids import RankGrid, group_dimensions
from jaxcoll.synth.building.routed import first_chunk
from jaxcoll.synth.building.sends import gather_by_dimension
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Bucket(Synthesizer):
    """Gather along one dimension after another, each part of the data starting with another one.

    Steps are as many as the diameter of the grid. On homogeneous grids with equal sides the time of
    an all_gather is the TACOS paper's Ideal at every size, when chunks per shard are a multiple of
    ``granularity``. Groups must be subgrids of it: all ranks that differ in some dimensions
    only.

    The idea is the multi-dimensional bucket algorithm (Barnett et al., 1993; Jain and Sabharwal,
    "Optimal bucket algorithms for large MPI collectives on torus interconnects", 2010).
    """

    name: ClassVar[str] = "bucket"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})
    put_off: ClassVar[float] = LATER

    @staticmethod
    def granularity(topology: Topology) -> int:
        """Chunks per shard (or a multiple) with which every link carries equal shares.

        One part a dimension, and two where a closed even side is reached both ways.
        """
        grid = _rank_grid(topology).grid
        sides = [(s, w) for s, w in zip(grid.shape, grid.wrap, strict=True) if s > 1]
        halves = any(wrap and side % 2 == 0 for side, wrap in sides)
        return max(1, len(sides)) * (2 if halves else 1)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or as many as load all links of a grid equally."""
        if problem.topology.placement is None:
            return ((1,),)
        return (tuple(sorted({1, self.granularity(problem.topology)})),)

    def work(self, problem: Problem) -> float:
        """Blocks of many shards are one message: most of the work is done once a message."""
        return IN_BLOCKS * problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``."""
        rank_grid = _rank_grid(topology)
        dims = group_dimensions(rank_grid, collective, self.name)
        sends = gather_by_dimension(
            rank_grid.grid, dims, collective.chunks_per_shard, both_ways=True
        )
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
    link = np.searchsorted(pairs, wanted)
    found = pairs[np.minimum(link, len(pairs) - 1)] == wanted
    if not found.all():
        i = int(np.flatnonzero(~found)[0])
        raise TopologyError(
            f"the grid says that ranks {src[i]} and {dst[i]} are neighbours, but {topology} has no "
            f"link {src[i]}->{dst[i]}"
        )
    return link
