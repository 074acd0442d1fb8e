"""Grid: ranks laid out on a grid of coordinates, some of whose dimensions wrap around."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks

__all__ = ["Grid", "Placement"]


@dataclasses.dataclass(frozen=True)
class Grid:
    """Coordinates of ranks: rank = ``ravel_multi_index(coordinates, shape)``, the last fastest.

    Attributes:
        shape: side of each dimension; sides of 1 are allowed and carry no links.
        wrap: whether the dimension closes into a ring. A side of 1 or 2 never wraps: the two
            neighbours of a side of 2 are the same rank, joined by one link each way.
    """

    shape: tuple[int, ...]
    wrap: tuple[bool, ...]

    def __post_init__(self) -> None:
        shape = checks.integers(self.shape, "shape", TopologyError)
        if not shape or min(shape) < 1:
            raise TopologyError(
                f"a grid needs one or more sides, each at least 1; got shape {shape}"
            )
        wrap = checks.sequence(self.wrap, "wrap", TopologyError)
        wrap = [checks.flag(w, f"wrap[{i}]", TopologyError) for i, w in enumerate(wrap)]
        if len(wrap) != len(shape):
            raise TopologyError(
                f"wrap needs one flag per dimension: shape {shape} has {len(shape)}, "
                f"got {len(wrap)}"
            )
        # Where nothing wraps in effect the flag is False, so that equal grids are equal.
        closed = tuple(bool(w) and side > 2 for w, side in zip(wrap, shape, strict=True))
        checks.put(self, shape=shape, wrap=closed)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.shape)

    def coordinates(self) -> np.ndarray:
        """Coordinates of every rank, int64 of shape (size, dimensions)."""
        return np.stack(np.unravel_index(np.arange(self.size), self.shape), axis=1)

    def neighbour_pairs(self, dimension: int) -> np.ndarray:
        """Directed neighbour pairs (src, dst) along one dimension, int64 of shape (pairs, 2)."""
        # With the dimension in front, neighbours are rows that follow each other.
        ranks = np.moveaxis(np.arange(self.size).reshape(self.shape), dimension, 0)
        pairs = [(ranks[:-1], ranks[1:])]
        if self.wrap[dimension]:
            pairs.append((ranks[-1:], ranks[:1]))
        forward = np.concatenate(
            [np.stack([low.ravel(), high.ravel()], axis=1) for low, high in pairs]
        )
        return np.concatenate([forward, forward[:, ::-1]])

    def translation(self, dimension: int, by: int = 1) -> np.ndarray:
        """The rank each lands on when all move ``by`` along a dimension, int64 of shape (size,)."""
        ranks = np.arange(self.size).reshape(self.shape)
        return np.roll(ranks, -by, axis=dimension).ravel()

    def generators(self) -> tuple[tuple[int, ...], ...]:
        """Translations that keep the grid's neighbour pairs, one per closed dimension."""
        # Two ranks that are joined both ways may trade places, too.
        return tuple(
            tuple(int(rank) for rank in self.translation(dimension))
            for dimension, side in enumerate(self.shape)
            if self.wrap[dimension] or side == 2
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Placement:
    """A grid, and the rank at each of its positions.

    Attributes:
        grid: the grid.
        ranks: the rank at each position, in row-major order (the last coordinate fastest).
    """

    grid: Grid
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        checks.instance(self.grid, Grid, "grid", TopologyError)
        checks.put(self, ranks=checks.integers(self.ranks, "ranks", TopologyError, least=0))
        count = len(self.ranks)
        if count != self.grid.size or sorted(self.ranks) != list(range(count)):
            raise TopologyError(
                f"a placement needs one rank for each of the {self.grid.size} places of its grid, "
                f"each once; got {count}"
            )

    @property
    def is_in_order(self) -> bool:
        """Whether the rank at position i is i, so that the grid alone describes the placement."""
        return self.ranks == tuple(range(len(self.ranks)))

    def __repr__(self) -> str:
        return f"Placement({len(self.ranks)} ranks on {self.grid})"

    def relabel(self, permutation: np.ndarray) -> Placement:
        """The same positions when rank r is called ``permutation[r]``."""
        return Placement(self.grid, tuple(permutation[list(self.ranks)]))


def per_dimension(value: Any, dimensions: int, what: str) -> tuple:
    """Repeat a scalar for each dimension, or check that a sequence has one value for each."""
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    if is_array or (isinstance(value, Sequence) and not isinstance(value, (str, bytes))):
        if len(value) != dimensions:
            raise TopologyError(
                f"{what} needs one value or one for each of {dimensions} dimensions, "
                f"got {len(value)}"
            )
        return tuple(value)
    return (value,) * dimensions


def checked_placement(
    grid: Grid | None, placement: Placement | None, num_ranks: int
) -> tuple[Grid | None, Placement | None]:
    """The grid of a network and its placement, from either of them.

    Returns:
        The placement, and its grid where ranks are numbered in the grid's order; else None.

    Raises:
        TopologyError: a grid of another number of ranks, or a grid and another grid's placement.
    """
    checks.optional(grid, checks.instance, Grid, "grid", TopologyError)
    checks.optional(placement, checks.instance, Placement, "placement", TopologyError)
    # A grid says that ranks are numbered in its order; a placement says it of any order. A network
    # has both where both are true, so that schedules for grids need not look at placements.
    of = grid if placement is None else placement.grid
    if of is None:
        return None, None
    if of.size != num_ranks:
        raise TopologyError(
            f"a grid of shape {of.shape} has {of.size} ranks, the network has {num_ranks}"
        )
    if placement is None:
        placement = _in_order(of)
    elif grid is not None and placement != _in_order(grid):
        raise TopologyError("give a grid or a placement, not two different ones")
    return placement.grid if placement.is_in_order else None, placement


def _in_order(grid: Grid) -> Placement:
    return Placement(grid, tuple(range(grid.size)))
