"""TTO: an all_reduce over three trees on a 2D mesh."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.synth.baselines.tree_pipeline import AnySize, Tree, all_reduce
from jaxcoll.synth.building.base import LATER
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Tto(AnySize):
    """All-reduce over three trees of a 2D mesh, chunks overlapping.

    Laskar, Majhi, Kim, Shahid and Kim, "Enhancing collective communication in MCM accelerators for
    deep learning training" (HPCA 2024). The first tree goes from the first corner down the first
    column and along all rows; the second goes from the opposite corner along the last row and up
    all columns; the third goes from the end of the first row along the rows above the diagonal and
    down the columns below it. Every link carries at most the results of one tree and the sums of
    another, except around one corner. The third tree of the authors' simulator leaves that corner
    out, as it has two neighbours for three trees. Here both neighbours carry its data alternately.

    Defined on meshes and tori of two dimensions, for all ranks at once.

    Its field ``pieces`` is that of ``DoubleBinaryTree``.
    """

    name: ClassVar[str] = "tto"
    put_off: ClassVar[float] = LATER

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a mesh of two dimensions.
            CollectiveError: the groups are not all ranks in order.
        """
        sides = tuple(s for s in topology.grid.shape if s > 1) if topology.grid else ()
        if len(sides) != 2:
            raise TopologyError(
                f"tto needs a mesh of two dimensions with sides of at least 2; {topology} is "
                "not one"
            )
        check_everyone(collective, self.name)
        first, second, third, other = three_trees(*sides)
        # Six parts of the data, two for each tree: so each form of the third tree has one.
        parts = (first, second, third, first, second, other)
        return all_reduce(topology, collective, lambda _: parts, self.pieces)


def three_trees(rows: int, columns: int) -> tuple[Tree, Tree, Tree, Tree]:
    """The trees over the ranks of a mesh, numbered row by row, with both forms of the third."""
    rank = np.arange(rows * columns)
    row, column = np.divmod(rank, columns)
    up, down, left, right = rank - columns, rank + columns, rank - 1, rank + 1

    first = np.where(column > 0, left, up)
    first[0] = -1
    second = np.where(row < rows - 1, down, right)
    second[-1] = -1
    above_diagonal = row * (columns - 1) + column * (rows - 1) < (rows - 1) * (columns - 1)
    inside = (row > 0) & (column > 0)
    third = np.where(inside & ~above_diagonal, up, right)
    third[columns - 1] = -1
    corner = (rows - 1) * columns
    other = third.copy()
    other[corner] = corner - columns
    return tuple(Tree.from_parents(parent) for parent in (first, second, third, other))  # type: ignore[return-value]
