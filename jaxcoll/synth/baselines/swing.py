"""Swing: distances 1, -1, 3, -5, 11, ..., with partners on alternating sides of the ring.

On a ring the distances 1, 2, 4, ... of halving and doubling send messages over many links, which
many messages then share. Swing's distances reach as many ranks over shorter ways.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.grid import Grid
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import ALL_PIECES, DOUBLINGS, Counts, InPieces, Problem
from jaxcoll.synth.building.sends import (
    Sends,
    check_everyone,
    exchanges,
    gather_in_order,
    is_power_of_two,
    schedule_of,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Swing(InPieces):
    """Exchanges with partners that swing from one side to the other, farther in every step.

    De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher bandwidth allreduce"
    (NSDI 2024), the bandwidth-optimal variant. In step s of a reduce-scatter rank r of a ring
    exchanges with r + rho(s) if r is even and r - rho(s) if odd, rho(s) = (1 - (-2)**(s+1)) / 3:
    the distances 1, 1, 3, 5, 11, ... are shorter than halving-doubling's. On a torus steps
    alternate between the dimensions (Sec. 4.1), and shards are cut into 2 parts per dimension, one
    starting with each dimension and one mirrored, so that all links are busy (Sec. 4.2). The
    all-gather is the reduce-scatter backwards. Pairs are routed over shortest paths.

    Defined on tori whose sides are powers of two, for all ranks at once.

    Its field ``pieces`` is that of ``InPieces``.
    """

    name: ClassVar[str] = "swing"
    hop_work: ClassVar[float | None] = 1.0

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        return (cls(), cls(pieces=ALL_PIECES))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Two parts per dimension, with the numbers of pieces worth trying for a pipeline."""
        sides = problem.topology.grid.shape if problem.topology.grid else ()
        parts = 2 * max(1, sum(side > 1 for side in sides))
        if self.pieces == 1:
            return ((1, parts),)
        return (tuple(parts * pieces for pieces in DOUBLINGS),)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a torus, or one of its sides is not a power of two.
            CollectiveError: the groups are not all ranks in order.
        """
        grid = _torus(topology)
        check_everyone(collective, self.name)
        dims = [d for d, side in enumerate(grid.shape) if side > 1]
        # Parts in one direction come first: with few chunks, different dimensions matter more than
        # both directions.
        ways = [(first, sign) for sign in (1, -1) for first in range(len(dims))]
        everyone = Grid((grid.size,), (False,))
        parts = []
        for part, (first, sign) in enumerate(ways[: collective.chunks_per_shard]):
            partners = _partners(grid, dims[first:] + dims[:first], sign)
            index = np.arange(part, collective.chunks_per_shard, len(ways))
            parts.append(gather_in_order(everyone, (0,), {0: exchanges(partners[::-1])}, index))
        sends = Sends.joined(parts).in_pieces(collective.chunks_per_shard, self.pieces)
        return schedule_of(topology, collective, sends)


def _torus(topology: Topology) -> Grid:
    # A side of 2 is closed by its only link.
    grid = topology.grid
    if grid is None or not all(w or s <= 2 for w, s in zip(grid.wrap, grid.shape, strict=True)):
        raise TopologyError(f"swing needs a torus; {topology} has no grid, or one with a border")
    for side in grid.shape:
        if not is_power_of_two(side):
            raise TopologyError(
                f"swing needs a torus whose sides are powers of two, {topology} has a side of "
                f"{side}; bucket takes any"
            )
    return grid


def _partners(grid: Grid, dims: list[int], sign: int) -> list[np.ndarray]:
    """The partner of every rank in each step of a reduce-scatter, dimensions alternating."""
    coordinates = grid.coordinates()
    bits = {d: grid.shape[d].bit_length() - 1 for d in dims}
    partners = []
    for s in range(max(bits.values())):
        # The Jacobsthal numbers 1, -1, 3, -5, 11, ...: even ranks go one way and odd ranks the
        # other.
        rho = (1 - (-2) ** (s + 1)) // 3
        for d in dims:
            # Shorter dimensions are done earlier, and the longer ones continue alone.
            if s >= bits[d]:
                continue
            here = coordinates[:, d]
            moved = coordinates.copy()
            moved[:, d] = (here + sign * np.where(here % 2 == 0, rho, -rho)) % grid.shape[d]
            partners.append(np.ravel_multi_index(tuple(moved.T), grid.shape))
    return partners
