"""Partners at growing distances: halving and doubling, and its kin on rings and tori.

Of 4 ranks, rank 0 exchanges with rank 1 and then with rank 2: its data double in every step, so
that log2(n) steps are enough, where rings take n - 1. On a ring the distances 1, 2, 4, ... send
messages over many links, which then share them; Swing and Trivance reach as many ranks over shorter
ways.

- ``Rhd``: recursive halving-doubling, of 2**k ranks.
- ``Bruck``: one way round, so that any number of ranks takes as many steps, rounded up.
- ``Hdrm``: ranks mapped so that no two messages share a link of a BiGraph.
- ``Halving``: any number of ranks, and every element is added in one order.
- ``Swing``: distances 1, -1, 3, -5, 11, ...: a partner on the other side in every step.
- ``Trivance``: two partners at once, three times as far in every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.grid import Grid
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule, concatenate
from jaxcoll.synth.building import sends
from jaxcoll.synth.building.base import (
    ALL_PIECES,
    DOUBLINGS,
    LAST,
    LATER,
    ONE_CHUNK,
    Counts,
    InPieces,
    Problem,
    Synthesizer,
    in_pieces,
)
from jaxcoll.synth.building.grids import dimension_counts
from jaxcoll.synth.building.sends import (
    Sends,
    check_everyone,
    doubling,
    exchanges,
    gather_in_order,
    gather_rotated,
    gathered,
    is_power_of_two,
    on_ranks,
    schedule_of,
    tripling,
)
from jaxcoll.topologies import bigraph
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Rhd(Synthesizer):
    """All-gather by recursive doubling; reduce-scatter, run backwards, by recursive halving.

    In each of log2(n) steps all ranks exchange all they have in pairs, at distances 1, 2, 4, ...
    (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
    2005, Sec. 3). Topology-oblivious: pairs are routed over shortest paths. Groups must have
    2**k ranks; of a group, ranks pair by their indices.

    Attributes:
        far_first: whether the all-gather starts with the farthest partner, so that the largest
            messages go to the nearest (Rabenseifner's order of reduce-scatter).
        pieces: as for ``InPieces``.

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    far_first: bool = False
    pieces: int = 1

    name: ClassVar[str] = "rhd"
    put_off: ClassVar[float] = LAST

    def __post_init__(self) -> None:
        checks.flag_fields(self, CollectiveError, "far_first")
        checks.integer_fields(self, CollectiveError, "pieces")

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        cut = (cls(pieces=ALL_PIECES), cls(far_first=True, pieces=ALL_PIECES))
        return (*cut, cls(), cls(far_first=True)) if fixed else cut

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or, where messages are cut into pieces, as many as shorten the pipeline."""
        return in_pieces(self.pieces)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: a group's size is not a power of two.
        """
        for group in collective.groups:
            if not is_power_of_two(len(group)):
                raise CollectiveError(
                    f"{self.name} halves and doubles: it needs a power of two ranks in every "
                    f"group, got {len(group)}; bruck, ring and direct take any number"
                )
        index = np.arange(collective.chunks_per_shard)

        def pairwise(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            pattern = doubling(len(group), far_first=self.far_first)
            return group, gather_in_order(Grid((len(group),), (False,)), (0,), {0: pattern}, index)

        return gathered(topology, collective, pairwise, self.pieces)


@dataclasses.dataclass(frozen=True)
class Bruck(InPieces):
    """All-gather in ceil(log2 n) steps for any number of ranks.

    In step t rank r sends what it has to rank r - 2**t, counted round (Bruck, Ho, Kipnis, Upfal and
    Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing
    systems", 1997). Topology-oblivious: pairs are routed over shortest paths.

    Its field ``pieces`` is that of ``InPieces``.
    """

    name: ClassVar[str] = "bruck"

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        index = np.arange(collective.chunks_per_shard)

        def shifted(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            pattern = sends.bruck(len(group))
            return group, gather_in_order(Grid((len(group),), (False,)), (0,), {0: pattern}, index)

        return gathered(topology, collective, shifted, self.pieces)


@dataclasses.dataclass(frozen=True)
class Hdrm(InPieces):
    """Halving-doubling on a BiGraph, every exchange between an upper and a lower switch.

    Dong et al., "EFLOPS" (HPCA 2020), as the MultiTree paper describes it (Sec. II-C): each pair is
    one rank of an upper and one of a lower switch. Positions with an even number of ones are upper
    ranks, so all partners of one are lower; the low bits choose the upper switch, the high bits the
    lower one. The partners of a switch's ranks are then spread evenly over the switches of the
    other half, in every step, and with no more ranks a switch than switches a half no two messages
    share a link.

    Defined on networks made by ``topologies.bigraph`` with powers of two of ranks a switch and of
    switches, for all ranks at once.

    Its field ``pieces`` is that of ``InPieces``.
    """

    name: ClassVar[str] = "hdrm"

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is no BiGraph, or one of other sizes.
            CollectiveError: the groups are not all ranks in order.
        """
        ranks, switches = _shape(topology)
        check_everyone(collective, self.name)
        n = topology.num_ranks
        everyone = Grid((n,), (False,))
        index = np.arange(collective.chunks_per_shard)
        sends = gather_in_order(everyone, (0,), {0: doubling(n)}, index)
        sends = sends.in_pieces(collective.chunks_per_shard, self.pieces)
        mapping = rank_mapping(ranks, switches)
        return schedule_of(topology, collective, on_ranks(sends, mapping))


def rank_mapping(ranks: int, switches: int) -> np.ndarray:
    """The rank at each position of the halving-doubling, int64 of shape (ranks * switches,).

    Args:
        ranks: ranks of a switch, a power of two.
        switches: upper and lower switches, a power of two.
    """
    half = switches // 2
    position = np.arange(ranks * switches)
    # Two positions that exchange differ in one bit, so one has an even number of ones and the other
    # an odd number: putting the even ones on upper switches makes every exchange cross from one
    # half to the other.
    ones = np.zeros_like(position)
    # Parity of the ones: an exchange flips one bit, so partners have unlike parity.
    for bit in range(int(position[-1]).bit_length()):
        ones += position >> bit & 1
    upper, lower = position % half, half + position // (2 * ranks)
    switch = np.where(ones % 2 == 0, upper, lower)
    mapping = np.empty_like(position)
    mapping[np.argsort(switch, kind="stable")] = position  # a switch's ranks in order of position
    return mapping


def _shape(topology: Topology) -> tuple[int, int]:
    """Ranks of a switch, and switches, of a BiGraph."""
    n, switches = topology.num_ranks, topology.num_vertices - topology.num_ranks
    if switches >= 2 and switches % 2 == 0 and n % switches == 0:
        expected = bigraph(n // switches, switches)
        if np.array_equal(topology.src, expected.src) and np.array_equal(
            topology.dst, expected.dst
        ):
            if is_power_of_two(n // switches) and is_power_of_two(switches):
                return n // switches, switches
            raise TopologyError(
                f"hdrm halves and doubles: it needs powers of two of ranks a switch and of "
                f"switches, {topology} has {n // switches} and {switches}"
            )
    raise TopologyError(f"hdrm is defined on BiGraph networks only, {topology} is none")


@dataclasses.dataclass(frozen=True)
class Halving(Synthesizer):
    """Recursive halving and doubling of any number of ranks; all chunks are added in one order.

    The places of a group form a balanced binary tree: a run of places is halved, the first half the
    longer one, down to single places. A chunk is added along this tree, the sum of a run being that
    of its first half and that of its second; only where the sums are taken differs from chunk to
    chunk. So an element's sum does not depend on the chunk it lies in, and therefore not on the
    size of its buffer (``jaxcoll.simulation.sum_orders`` is 1).

    The sum of a run is taken at a rank of the run, at its end at the chunk's owner. In the half
    without this rank it is taken at the place as far from the half's start, modulo its length,
    which spreads the chunks evenly. Of 2**k ranks these are Rabenseifner's exchanges, those of
    ``Rhd(far_first=True)`` (Thakur, Rabenseifner and Gropp, "Optimization of collective
    communication operations in MPICH", 2005, Sec. 4). Any number takes ceil(log2 n) steps each way
    and n - 1 sends per chunk, the least there are. Topology-oblivious: pairs are routed over
    shortest paths.
    """

    name: ClassVar[str] = "halving"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.is_sharded)
    # Of powers of two the same as a variant of rhd; asked for by name, for its order of addition.
    tried_by_auto: ClassVar[bool] = False
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Sums are the gather reversed step by step, where other synthesizers reverse its simulated
        run (``reverse_in_time``): of two runs that a switch let arrive early, that may add either
        first.
        """
        gather, kind = collective.with_kind("all_gather"), collective.traits
        if kind.copies:
            return self._gathered(topology, gather)
        # On the transposed network, so that the reversed sends run over links that there are.
        scatter = self._gathered(topology.transpose(), gather).reverse()
        if not kind.has_phases:
            return scatter
        return concatenate(scatter, self._gathered(topology, gather))

    @staticmethod
    def _gathered(topology: Topology, collective: Collective) -> Schedule:
        # One send per shard first, then as many as it has chunks: all take the same way, or sums of
        # one shard's elements would differ in their order.
        index = np.arange(collective.chunks_per_shard)

        def write(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            owner = np.arange(len(group))
            parts = [
                Sends(np.full(len(owner), step), src, dst, owner, np.zeros_like(owner))
                for step, src, dst in _exchanges(owner, 0, len(group), 0)
            ]
            sends = Sends.joined(parts)
            names = [field.name for field in dataclasses.fields(sends)]
            every = {name: np.repeat(getattr(sends, name), len(index)) for name in names}
            return group, Sends(**every | {"index": np.tile(index, len(sends.step))})

        return gathered(topology, collective, write)


def _exchanges(
    holder: np.ndarray, start: int, end: int, step: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(step, from, to) of the gather within a run of places, each chunk starting at its holder.

    Args:
        holder: the place in ``start``, ..., ``end - 1`` that has each chunk.
    """
    if end - start < 2:
        return
    # The tree of runs is the same for all chunks; only the ranks at which sums are taken differ. So
    # every element is added in one order, whatever chunk it lies in.
    middle = start + (end - start + 1) // 2
    # The half that a chunk is in already needs no message; the other half gets it at one place.
    is_first = holder < middle
    across = np.where(
        is_first,
        middle + (holder - start) % (end - middle),
        start + (holder - middle) % (middle - start),
    )
    yield step, holder, across
    # In each half the chunk now has one holder, and the halves go on apart in the same steps.
    yield from _exchanges(np.where(is_first, holder, across), start, middle, step + 1)
    yield from _exchanges(np.where(is_first, across, holder), middle, end, step + 1)


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
    hop_work: ClassVar[float | None] = 1.0

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        return (cls(), cls(pieces=ALL_PIECES))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Two parts per dimension, each in as many pieces as shorten the pipeline."""
        sides = problem.topology.grid.shape if problem.topology.grid else ()
        parts = 2 * max(1, sum(side > 1 for side in sides))
        if self.pieces == 1:
            return ((1, parts),)
        return (tuple(parts * pieces for pieces in DOUBLINGS),)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a torus, or a dimension of it is not a power of two.
            CollectiveError: the groups are not all ranks in order.
        """
        grid = _torus(topology)
        check_everyone(collective, self.name)
        dims = [d for d, side in enumerate(grid.shape) if side > 1]
        # Parts one way first: with few chunks different dimensions matter more than both
        # directions.
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
        # The Jacobsthal numbers 1, -1, 3, -5, 11, ...: even ranks go one way and odd ones the
        # other.
        rho = (1 - (-2) ** (s + 1)) // 3
        for d in dims:
            # Shorter dimensions are done earlier; the longer ones go on alone.
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
        """One chunk, two, and multiples of the dimensions, among which chunks are shared out."""
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
