"""2D ring: rings along the rows and the columns of a mesh or torus."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.grid import Grid
from jaxcoll.schedule import Schedule
from jaxcoll.synth.baselines.bucket import Blocks
from jaxcoll.synth.building.grids import group_dimensions, rank_grid_of
from jaxcoll.synth.building.sends import (
    gather_by_dimension,
    on_ranks,
    schedule_of,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Ring2D(Blocks):
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
