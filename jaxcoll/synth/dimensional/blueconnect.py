"""BlueConnect: one dimension after another, chunks in a pipeline."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import IN_BLOCKS, LATER, Counts, Problem, Synthesizer
from jaxcoll.synth.building.dimensions import dimension_counts, dimension_patterns
from jaxcoll.synth.building.grids import checked_shape, group_dimensions, rank_grid_of
from jaxcoll.synth.building.routed import on_ranks, schedule_of
from jaxcoll.synth.building.sends import Sends, gather_along, steps
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class BlueConnect(Synthesizer):
    """Reduce-scatter along every dimension from the innermost out, and all-gather back.

    Cho, Finkler, Serrano, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning
    on heterogeneous network hierarchy" (2019). All chunks take the dimensions in the same order and
    follow one another: while one is in the second dimension, the next is in the first. Along a
    dimension ranks use its basic algorithm
    (``jaxcoll.synth.building.dimensions.dimension_patterns``).

    The network must be a grid: a mesh or torus, or a product of rings, switches and fully
    connected networks; or it is taken for one. Groups must be subgrids of it.

    Attributes:
        shape: the sides of a grid of consecutive ranks, outermost first, to be laid over the
            network; None for the network's own.

    Raises:
        CollectiveError: a shape that is none.
    """

    shape: tuple[int, ...] | None = None

    name: ClassVar[str] = "blueconnect"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, two, and multiples of the dimensions, among which chunks are shared out."""
        return dimension_counts(problem.topology)

    def work(self, problem: Problem) -> float:
        """Blocks of many shards are one message: most of the work is done once a message."""
        return IN_BLOCKS * problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a grid.
            CollectiveError: groups that are not subgrids of this grid.
        """
        rank_grid = rank_grid_of(topology, self.name, self.shape)
        dims = group_dimensions(rank_grid, collective, self.name)
        patterns = dimension_patterns(topology, rank_grid, dims)
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
