"""Hierarchical ring: rings of blocks of ranks, and rings across them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import IN_BLOCKS, LATER, Counts, Problem, Synthesizer
from jaxcoll.synth.building.hosts import ranks_per_host
from jaxcoll.synth.building.routed import gathered
from jaxcoll.synth.building.sends import Sends, circle, gather_in_order
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class HierarchicalRing(Synthesizer):
    """Reduce-scatter in blocks of consecutive ranks, all-reduce across blocks, all-gather in them.

    Ranks at equal indices in all blocks form a ring, and so do the ranks of a block; each ring
    moves both ways (Jia et al., "Highly scalable deep learning training system with
    mixed-precision", 2018, Sec. 4.2). Topology-oblivious: neighbours on a ring are routed over
    shortest paths.

    Attributes:
        inner: ranks of a block, which divides the ranks of every group; None for those of a host
            (what the links above the least bandwidth join), or the innermost dimension of a network
            that is a grid.

    Raises:
        CollectiveError: ``inner`` is less than 1.
    """

    inner: int | None = None

    name: ClassVar[str] = "hierarchical_ring"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "inner", or_none=True)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or one for each way round."""
        return ((1, 2),)

    def work(self, problem: Problem) -> float:
        """Blocks of many shards are one message: most of the work is done once a message."""
        return IN_BLOCKS * problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: blocks do not divide a group.
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
            rings = {d: circle(side, both_ways=True) for d, side in enumerate(shape)}
            return group, gather_in_order(Grid(shape, (True, True)), (0, 1), rings, index)

        return gathered(topology, collective, in_blocks)
