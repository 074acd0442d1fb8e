"""Hierarchical ring: rings inside blocks of ranks, and rings across the blocks."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.synth.building.base import IN_BLOCKS, LATER, Counts, Synthesizer
from jaxcoll.synth.building.circles import ranks_per_host
from jaxcoll.synth.building.sends import (
    Sends,
    circle,
    gather_in_order,
    gathered,
)
from jaxcoll.topology import Topology


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
