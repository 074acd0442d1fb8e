"""The grid that a network is: its grid, or the one that its symmetries span.

Algorithms that work dimension by dimension need to know which ranks form a line. A torus says so
itself. A product of switches does not, but its generators do: if each of them shifts the ranks
along a dimension of its own, the orbits of one after the other lay the ranks out as a grid. A
product of a switch of 4 ranks and one of 8, say, is a grid of 4 x 8 by the shift in every row and
the shift in every column. Whether the shifts really are those of the grid found is checked at the
end, since generators may also be twisted, as those of a twisted torus are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
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
    """The grid on which ranks are placed; without one, that whose shifts are the generators.

    Products of rings, switches and fully connected networks have such generators, fat trees too.

    Args:
        who: the name of the algorithm that needs it, for errors.
        shape: the sides of the grid, if it is to be of consecutive ranks whatever the network is.

    Raises:
        TopologyError: the network is not a grid, or has not as many ranks as the shape.
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
        CollectiveError: no sides, or one that is not an integer of at least 1.
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
        turn = [ranks]
        while not np.array_equal(move[turn[-1]], ranks):
            if len(turn) * ranks.size > n:
                return None
            turn.append(move[turn[-1]])
        ranks = np.stack(turn, axis=-1)
    if not moves or not np.array_equal(np.sort(ranks, axis=None), np.arange(n)):
        return None
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
    pairs = np.unique(np.stack([subgrid_of, group_of]), axis=1)
    subgrids = int(subgrid_of.max()) + 1
    if (group_of < 0).any() or pairs.shape[1] != subgrids or len(collective.groups) != subgrids:
        raise CollectiveError(
            f"{who} needs groups that are subgrids of the network: all ranks that differ in "
            f"the same dimensions only; got {collective}"
        )
    return dims
