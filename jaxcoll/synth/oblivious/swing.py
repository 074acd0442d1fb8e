"""Swing and Trivance: partners at growing distances on both sides of a ring.

Halving-doubling on a ring sends over distances 1, 2, 4, ..., and messages over many links share
them. Both of these reach as many ranks over shorter ways.

- ``Swing``: distances 1, -1, 3, -5, 11, ...: a partner on the other side in every step.
- ``Trivance``: two partners at once, three times as far in every step.
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
from jaxcoll.synth.building.base import (
    ALL_PIECES,
    DOUBLINGS,
    LATER,
    Counts,
    InPieces,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.grids import dimension_counts
from jaxcoll.synth.building.sends import (
    Sends,
    check_everyone,
    exchanges,
    gather_in_order,
    gathered,
    is_power_of_two,
    on_ranks,
    schedule_of,
    tripling,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Swing(InPieces):
    """Exchanges with partners that swing from one side to the other, ever farther.

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

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """The variants that auto tries; see ``Synthesizer``."""
        return (cls(), cls(pieces=ALL_PIECES))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Two parts per dimension, each in as many pieces as shorten the pipeline."""
        sides = problem.topology.grid.shape if problem.topology.grid else ()
        parts = 2 * max(1, sum(side > 1 for side in sides))
        if self.pieces == 1:
            return ((1, parts),)
        return (tuple(parts * pieces for pieces in DOUBLINGS),)

    def work(self, problem: Problem) -> float:
        """Chunks go between any ranks: each is simulated on every link of its path."""
        return problem.hops

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a torus, or a dimension of it is not a power of two.
            CollectiveError: the groups are not all ranks in order.
        """
        grid = _torus(topology)
        check_everyone(collective, self.name)
        dims = [d for d, side in enumerate(grid.shape) if side > 1]
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
        rho = (1 - (-2) ** (s + 1)) // 3
        for d in dims:
            if s >= bits[d]:
                continue
            here = coordinates[:, d]
            moved = coordinates.copy()
            moved[:, d] = (here + sign * np.where(here % 2 == 0, rho, -rho)) % grid.shape[d]
            partners.append(np.ravel_multi_index(tuple(moved.T), grid.shape))
    return partners


@dataclasses.dataclass(frozen=True)
class Trivance(Synthesizer):
    """All-gather in ceil(log3 n) steps, both ways along a ring or the rings of a torus.

    Juerss, Addanki and Schmid, "Trivance: Latency-optimal AllReduce by shortcutting multiport
    networks" (arXiv 2602.17254): in each step ranks exchange with the two ranks at distance 3**t,
    and add up what comes from both at once; reduce_scatter takes the steps from near to far. On a
    torus the paper goes dimension by dimension.

    The paper was known here by its abstract and summaries; its listing was not at hand. Its
    all_reduce in ceil(log3 n) steps keeps the partial sums that it sends, which no schedule does
    here: a partial sum that is sent is given away. So this one is reduce_scatter and all_gather, in
    2 ceil(log3 n) steps and with the least bytes. Numbers of ranks other than powers of three are
    ours: a block goes on to ranks that it has yet to reach, half of it each way where both ways
    lead to one in the same step. So are the parts on a grid: chunks are dealt to one per dimension,
    each of which starts with another dimension.

    Defined on any network: the ranks of a group form a ring in their order, or those of a grid its
    rings, and pairs are routed over shortest paths.

    Attributes:
        near_first: whether the all-gather starts with the nearest partners; from far to near the
            largest messages go the shortest way.
        pieces: pieces that every message is cut into, at most one per chunk of a shard; they follow
            one another where a message crosses several links (``Sends.in_pieces``).

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    near_first: bool = False
    pieces: int = 1

    name: ClassVar[str] = "trivance"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        checks.flag_fields(self, CollectiveError, "near_first")
        checks.integer_fields(self, CollectiveError, "pieces")

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """The variants that auto tries; see ``Synthesizer``."""
        return (cls(), cls(near_first=True))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, two, and multiples of the dimensions, among which chunks are shared out."""
        return dimension_counts(problem.topology)

    def work(self, problem: Problem) -> float:
        """Chunks go between any ranks: each is simulated on every link of its path."""
        return problem.hops

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``."""
        chunks = collective.chunks_per_shard
        if topology.placement is not None and not collective.is_grouped:
            sends = self._over(topology.placement.grid, chunks).in_pieces(chunks, self.pieces)
            ranks = np.asarray(topology.placement.ranks)
            return schedule_of(topology, collective, on_ranks(sends, ranks))

        def along(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            return group, self._over(Grid((len(group),), (True,)), chunks)

        return gathered(topology, collective, along, self.pieces)

    def _over(self, grid: Grid, chunks: int) -> Sends:
        dims = [d for d, side in enumerate(grid.shape) if side > 1]
        rings = {d: tripling(grid.shape[d], far_first=not self.near_first) for d in dims}
        parts = []
        for part in range(min(len(dims), chunks)):
            index = np.arange(part, chunks, len(dims))
            parts.append(gather_in_order(grid, dims[part:] + dims[:part], rings, index))
        return Sends.joined(parts)
