"""BlueConnect: a dimension of a grid per stage, chunks in a pipeline, all in one order.

On a grid of 2 x 4 a chunk is gathered along one dimension, and then the gathered block along the
other, while the next chunk is gathered along the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import IN_BLOCKS, LATER, Counts, Problem, Synthesizer
from jaxcoll.synth.building.grids import (
    RankGrid,
    checked_shape,
    dimension_counts,
    dimension_patterns,
    group_dimensions,
    rank_grid_of,
)
from jaxcoll.synth.building.sends import (
    Pattern,
    Sends,
    gather_along,
    on_ranks,
    schedule_of,
    steps,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class InPhases(Synthesizer):
    """An algorithm whose chunks take one dimension of a grid after another, in whole blocks."""

    shape: tuple[int, ...] | None = None

    send_work: ClassVar[float] = IN_BLOCKS
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, two, and multiples of the dimensions, among which chunks are shared out."""
        return dimension_counts(problem.topology)

    def _laid_out(
        self, topology: Topology, collective: Collective
    ) -> tuple[RankGrid, tuple[int, ...], Mapping[int, Pattern]]:
        """The grid, the dimensions that the groups span, and the pattern along each.

        Raises:
            TopologyError: the network is not a grid.
            CollectiveError: groups that are not subgrids of this grid.
        """
        rank_grid = rank_grid_of(topology, self.name, self.shape)
        dims = group_dimensions(rank_grid, collective, self.name)
        return rank_grid, dims, dimension_patterns(topology, rank_grid, dims)


@dataclasses.dataclass(frozen=True)
class BlueConnect(InPhases):
    """Reduce-scatter along every dimension from the innermost out, and all-gather back.

    Cho, Finkler, Serrano, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning
    on heterogeneous network hierarchy" (2019). All chunks take the dimensions in the same order and
    follow one another: while one is in the second dimension, the next is in the first. Along a
    dimension ranks use its basic algorithm
    (``jaxcoll.synth.building.grids.dimension_patterns``).

    The network must be a grid: a mesh or torus, or a product of rings, switches and fully
    connected networks; or ``shape`` declares it one. Groups must be subgrids of it.

    Attributes:
        shape: the sides of a grid of consecutive ranks, outermost first, to lay over the network;
            None for the network's own grid.

    Raises:
        CollectiveError: the shape is not one.
    """

    name: ClassVar[str] = "blueconnect"

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        rank_grid, dims, patterns = self._laid_out(topology, collective)
        # All phases last a slot of the longest pattern, so that chunks never meet in a dimension.
        # In BlueConnect's pipeline, chunk c is in dimension p during slot c + p.
        slot = max(steps(pattern) for pattern in patterns.values())
        phases = []
        for chunk in range(collective.chunks_per_shard):
            for phase, dim in enumerate(dims):
                start = (chunk + phase) * slot
                index = np.asarray([chunk])
                phases.append(
                    gather_along(rank_grid.grid, dims[:phase], dim, patterns[dim], index, start)
                )
        return schedule_of(topology, collective, on_ranks(Sends.joined(phases), rank_grid.ranks))
