"""The grid of a network, declared or spanned by its symmetries, and patterns for its lines.

Algorithms that work dimension by dimension need to know which ranks form a line. A torus declares
its grid. A product of switches does not, but its generators show it: if each of them shifts the
ranks along a different dimension, their orbits, one after the other, lay the ranks out as a grid.
For example, a product of a switch of 4 ranks and one of 8 is a grid of 4 x 8 by the shift in every
row and the shift in every column. At the end the shifts are compared with those of the grid, since
generators may also be twisted, as in a twisted torus.

All lines along a dimension are images of the first by symmetry, so only that one is examined. If
its ranks are equally far from one another they are behind a switch or fully connected, and all send
to all at once; otherwise the line is a ring or a chain, and blocks follow the links.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.synth.building.base import DOUBLINGS, Counts
from jaxcoll.synth.building.sends import Pattern, circle, direct, line
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class RankGrid:
    """Ranks in a grid of symmetric dimensions.

    Attributes:
        grid: the sides; the last dimension is the innermost.
        ranks: the rank at each index, int64 of shape (ranks,).
    """

    grid: Grid
    ranks: np.ndarray


def rank_grid_of(topology: Topology, who: str, shape: tuple[int, ...] | None = None) -> RankGrid:
    """The grid on which ranks are placed, or else the grid whose shifts are the generators.

    Products of rings, switches and fully connected networks have such generators, fat trees too.

    Args:
        who: the name of the algorithm that needs it, for errors.
        shape: the sides of the grid, if it must consist of consecutive ranks on any network.

    Raises:
        TopologyError: the network is not a grid, or the shape has another number of ranks.
    """
    if shape is not None:
        if math.prod(shape) != topology.num_ranks:
            raise TopologyError(
                f"{who} was given the shape {'x'.join(map(str, shape))}, which has "
                f"{math.prod(shape)} ranks; {topology} has {topology.num_ranks}"
            )
        return RankGrid(Grid(shape, (True,) * len(shape)), np.arange(topology.num_ranks))
    if topology.placement is not None:
        return RankGrid(topology.placement.grid, np.asarray(topology.placement.ranks))
    ranks = _spanned(topology)
    if ranks is None:
        raise TopologyError(
            f"{who} needs a network of symmetric dimensions (a product of rings, switches, meshes "
            f"and fully connected networks); {topology} has neither a grid nor generators that "
            f"are shifts of a grid; some algorithms take a shape="
        )
    return RankGrid(Grid(ranks.shape, (True,) * ranks.ndim), ranks.ravel())


def checked_shape(shape: Sequence[int] | None) -> tuple[int, ...] | None:
    """Sides of a grid as a tuple.

    Raises:
        CollectiveError: there are no sides, or a side is not an integer of at least 1.
    """
    if shape is None:
        return None
    sides = checks.integers(shape, "shape", CollectiveError, least=1)
    if not sides:
        raise CollectiveError("shape needs one or more sides of at least 1, got none")
    return sides


def _spanned(topology: Topology) -> np.ndarray | None:
    """Ranks by coordinates, if the generators are the shifts of a grid, each along a dimension."""
    n = topology.num_ranks
    moves = [np.asarray(generator)[:n] for generator in topology.generators]
    ranks = np.zeros((), np.int64)
    for move in moves:
        # The ranks spanned so far and their images under this generator, until it returns to them,
        # are one more dimension. The ranks are read off and never guessed, so any numbering will
        # do.
        turn = [ranks]
        while not np.array_equal(move[turn[-1]], ranks):
            # A turn that visits more ranks than the network has is not a shift of a grid.
            if len(turn) * ranks.size > n:
                return None
            turn.append(move[turn[-1]])
        ranks = np.stack(turn, axis=-1)
    if not moves or not np.array_equal(np.sort(ranks, axis=None), np.arange(n)):
        return None
    # A generator may also act on the other dimensions (a twist), which the turn alone does not
    # show.
    shifts = (np.roll(ranks, -1, axis=axis) for axis in range(ranks.ndim))
    if not all(np.array_equal(m[ranks], s) for m, s in zip(moves, shifts, strict=True)):
        return None
    return ranks


def group_dimensions(rank_grid: RankGrid, collective: Collective, who: str) -> tuple[int, ...]:
    """The dimensions in which members of a group differ.

    Args:
        who: the name of the algorithm, for errors.

    Raises:
        CollectiveError: the groups are not all subgrids that span the same dimensions in full.
    """
    grid = rank_grid.grid
    coordinates = np.empty_like(grid.coordinates())
    # Indexed by rank, unlike ``grid.coordinates``, since groups name ranks.
    coordinates[rank_grid.ranks] = grid.coordinates()
    group_of = collective.group_of_rank
    sample = coordinates[list(collective.groups[0])]
    dims = tuple(int(d) for d in np.flatnonzero((sample != sample[0]).any(axis=0)))
    across = [d for d in range(len(grid.shape)) if d not in dims]
    subgrid_of = (
        np.ravel_multi_index(
            tuple(coordinates[:, d] for d in across), [grid.shape[d] for d in across]
        )
        if across
        else np.zeros(grid.size, np.int64)
    )
    # If there are as many pairs as subgrids and as groups, each subgrid is one group.
    pairs = np.unique(np.stack([subgrid_of, group_of]), axis=1)
    subgrids = int(subgrid_of.max()) + 1
    if (group_of < 0).any() or pairs.shape[1] != subgrids or len(collective.groups) != subgrids:
        raise CollectiveError(
            f"{who} needs groups that are subgrids of the network: all ranks that differ in "
            f"the same dimensions only; got {collective}"
        )
    return dims


def dimension_patterns(
    topology: Topology, rank_grid: RankGrid, dims: tuple[int, ...], *, close: bool = True
) -> dict[int, Pattern]:
    """The basic algorithm that suits the lines of every dimension (TACOS paper, Table I).

    Ranks send all at once if those of a line are equally far from one another, that is, fully
    connected or behind one switch; otherwise rings go both ways. The paper uses halving-doubling
    behind switches, but switches store and forward messages, and an exchange that waits for the one
    before leaves the links idle half the time.

    Args:
        close: whether a ring takes the long way back along dimensions that do not wrap; if not,
            blocks are sent to both ends there.
    """
    found = {}
    for dim in dims:
        side = rank_grid.grid.shape[dim]
        if is_all_at_once(topology, rank_grid, dim):
            found[dim] = direct(side)
        elif close or rank_grid.grid.wrap[dim]:
            found[dim] = circle(side, both_ways=True)
        else:
            found[dim] = line(side)
    return found


def is_all_at_once(topology: Topology, rank_grid: RankGrid, dim: int) -> bool:
    """Whether the ranks of a line are equally far from one another, so that all send to all."""
    # Hops decide, not the name of the construction: a line behind one switch is like a fully
    # connected one.
    hops = _routes(topology, rank_grid, dim, direct(rank_grid.grid.shape[dim])).hops
    return bool((hops == hops[0]).all())


def dimension_bandwidth(
    topology: Topology, rank_grid: RankGrid, dim: int, pattern: Pattern
) -> Fraction:
    """Bytes per second that the first rank can send along a dimension, over the links it uses."""
    used = np.unique(_routes(topology, rank_grid, dim, pattern).first_link)
    return sum((topology.exact_bandwidth[link] for link in used), Fraction(0))


def dimension_seconds(
    topology: Topology, rank_grid: RankGrid, dim: int, pattern: Pattern
) -> Fraction:
    """Seconds for which the busiest link of the first line is occupied if blocks have one byte."""
    ranks = _first_line(rank_grid, dim)
    src, dst, halves = [], [], []
    for move in pattern:
        here = np.flatnonzero(move.to >= 0)
        src.append(ranks[here])
        dst.append(ranks[move.to[here]])
        # Loads are counted in half blocks, so that they are whole numbers.
        halves.append(np.full(len(here), 2 if move.half < 0 else 1))
    edges = shortest_routes(topology, np.concatenate(src), np.concatenate(dst))
    load = np.zeros(topology.num_links, np.int64)
    np.add.at(load, edges.path_link, np.repeat(np.concatenate(halves), edges.hops))
    used = np.flatnonzero(load)
    return max(Fraction(int(load[i]), 2) / topology.exact_bandwidth[i] for i in used)


def _routes(topology: Topology, rank_grid: RankGrid, dim: int, pattern: Pattern) -> Edges:
    """Routes from the first rank of the grid to the ranks of its line that it sends to."""
    line = _first_line(rank_grid, dim)
    places = np.unique([move.to[0] for move in pattern])
    to = line[places[places > 0]]
    return shortest_routes(topology, np.full(len(to), line[0]), to)


def _first_line(rank_grid: RankGrid, dim: int) -> np.ndarray:
    """The ranks along a dimension from the first rank of the grid."""
    lines = np.moveaxis(rank_grid.ranks.reshape(rank_grid.grid.shape), dim, 0)
    return lines.reshape(rank_grid.grid.shape[dim], -1)[:, 0]


def dimension_counts(topology: Topology) -> tuple[Counts, ...]:
    """Chunk counts worth trying if dimensions share chunks: 1, 2 and multiples of their number."""
    sides = topology.placement.grid.shape if topology.placement else ()
    dimensions = max(1, sum(side > 1 for side in sides))
    return (tuple(sorted({1, 2, *(dimensions * pieces for pieces in DOUBLINGS)})),)
