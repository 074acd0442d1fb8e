"""Trivance: exchanges with two partners at once, three times as far away in every step."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import LATER, Counts, Problem, Synthesizer
from jaxcoll.synth.building.grids import dimension_counts
from jaxcoll.synth.building.sends import (
    Sends,
    gather_rotated,
    gathered,
    on_ranks,
    schedule_of,
    tripling,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Trivance(Synthesizer):
    """All-gather in ceil(log3 n) steps, both ways along a ring or the rings of a torus.

    Juerss, Addanki and Schmid, "Trivance: Latency-optimal AllReduce by shortcutting multiport
    networks" (arXiv 2602.17254): in each step ranks exchange with the two ranks at distance 3**t,
    and add the data of both at once; reduce_scatter takes the steps from near to far. On a torus
    the paper goes dimension by dimension.

    This file follows the paper's abstract and summaries; its listing was not at hand. The paper's
    all_reduce in ceil(log3 n) steps keeps the partial sums that it sends, which no schedule does
    here: a rank that sends a partial sum gives it away. So this all_reduce is a reduce_scatter and
    an all_gather, in 2 ceil(log3 n) steps and with the least bytes. Two things are not from the
    paper. For numbers of ranks other than powers of three, a block goes on to ranks that it has not
    reached, half of it each way if both ways lead to one rank in the same step. On a grid, chunks
    are dealt to one part per dimension, each starting with a different dimension.

    Defined on any network: the ranks of a group form a ring in their order, or those of a grid its
    rings, and pairs are routed over shortest paths.

    Attributes:
        near_first: whether the all-gather starts with the nearest partners; otherwise, from far to
            near, the largest messages go the shortest way.
        pieces: as for ``InPieces``.

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    near_first: bool = False
    pieces: int = 1

    name: ClassVar[str] = "trivance"
    hop_work: ClassVar[float | None] = 1.0
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        checks.flag_fields(self, CollectiveError, "near_first")
        checks.integer_fields(self, CollectiveError, "pieces")

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        return (cls(), cls(near_first=True))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, two, and multiples of the number of dimensions, which share the chunks."""
        return dimension_counts(problem.topology)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        chunks = collective.chunks_per_shard
        if topology.placement is not None and not collective.is_grouped:
            sends = self._over(topology.placement.grid, chunks).in_pieces(chunks, self.pieces)
            ranks = np.asarray(topology.placement.ranks)
            return schedule_of(topology, collective, on_ranks(sends, ranks))

        def along(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            return group, self._over(Grid((len(group),), (True,)), chunks)

        return gathered(topology, collective, along, self.pieces)

    def _over(self, grid: Grid, chunks: int) -> Sends:
        dims = tuple(d for d, side in enumerate(grid.shape) if side > 1)
        rings = {d: tripling(grid.shape[d], far_first=not self.near_first) for d in dims}
        return gather_rotated(grid, dims, rings, chunks)
