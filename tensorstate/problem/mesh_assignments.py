"""Assignments of the ranks of a network to the axes of a mesh: their sizes, and their links.

The ranks of a network form a grid: the dimensions of a torus, or hosts and the ranks of each host.
Every grid dimension is factorized over the mesh axes. The factors decide both the sizes of the mesh
axes and the links along which they communicate. Ranks are numbered in row-major order.

Axes that share a dimension are nested in it. For example, let axes of 2 and 4 share a ring of
eight; the inner axis then has neighbours. With the axis of 4 inside, its groups are {0, 1, 2, 3}
and {4, 5, 6, 7}, and the other's {0, 4}, {1, 5}, {2, 6} and {3, 7}. With the axis of 2 inside, they
are {0, 2, 4, 6} and {1, 3, 5, 7}, and {0, 1}, {2, 3}, {4, 5} and {6, 7}.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.placements import MOST_DEVICES, MeshShape


@dataclasses.dataclass(frozen=True)
class MeshAssignment:
    """An assignment of the ranks of a grid to a mesh.

    Attributes:
        mesh: the mesh.
        device_order: the rank of every device of the mesh.
        parts: for each grid dimension, the factor that every mesh axis takes of it.
    """

    mesh: MeshShape
    device_order: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]

    def groups(self) -> tuple[frozenset[frozenset[int]], ...]:
        """For each mesh axis, the sets of ranks that communicate along it."""
        ranks = np.asarray(self.device_order).reshape(self.mesh.sizes)
        return tuple(
            frozenset(
                frozenset(line.tolist())
                for line in np.moveaxis(ranks, axis, -1).reshape(-1, self.mesh.sizes[axis])
            )
            for axis in range(len(self.mesh.sizes))
        )


def mesh_assignments(grid_shape: Sequence[int], axes: Sequence[str]) -> tuple[MeshAssignment, ...]:
    """All assignments of a grid of ranks to mesh axes, each set of groups once.

    Args:
        grid_shape: ranks along every dimension of the grid.
        axes: names of the mesh axes.

    Raises:
        PlanError: there are no dimensions or axes, a dimension is below 1, or two axes have one
            name.
    """
    grid_shape, axes = checked_grid(grid_shape), checked_axes(axes)
    splits = [list(_ordered_factorizations(side, len(axes))) for side in grid_shape]
    nestings = list(itertools.permutations(range(len(axes))))
    by_groups: dict[object, MeshAssignment] = {}
    for parts in itertools.product(*splits):
        sizes = {name: math.prod(split[a] for split in parts) for a, name in enumerate(axes)}
        for nesting in itertools.product(nestings, repeat=len(grid_shape)):
            # The ranks as an array with a dimension for every factor; the outer factors of a grid
            # dimension come first: ``parts[d][a]`` of dimension d for axis a.
            factors = [(d, a) for d, nest in enumerate(nesting) for a in nest]
            ranks = np.arange(math.prod(grid_shape)).reshape([parts[d][a] for d, a in factors])
            # Row-major over mesh axes: all factors of the first axis precede those of the second.
            order = sorted(range(len(factors)), key=lambda i: (factors[i][1], factors[i][0]))
            device_order = tuple(ranks.transpose(order).ravel().tolist())
            assignment = MeshAssignment(MeshShape.of(sizes), device_order, parts)
            # If one axis has a dimension alone, its nestings differ only in name.
            by_groups.setdefault(assignment.groups(), assignment)
    return tuple(by_groups.values())


def checked_grid(grid_shape: Sequence[int]) -> tuple[int, ...]:
    sides = checks.integers(grid_shape, "grid_shape", PlanError, least=1, most=MOST_DEVICES)
    if not sides or math.prod(sides) > MOST_DEVICES:
        raise PlanError(
            f"grid_shape has at least one side, and at most {MOST_DEVICES} ranks, got "
            f"{checks.shown(sides)}"
        )
    return sides


def checked_axes(axes: Sequence[str]) -> tuple[str, ...]:
    names = checks.members(axes, "axes", PlanError)
    for name in names:
        checks.text(name, "the name of a mesh axis", PlanError)
    if not names or len(set(names)) < len(names):
        raise PlanError(f"axes must have distinct names, got {checks.shown(names)}")
    return names


def _ordered_factorizations(side: int, count: int) -> Iterator[tuple[int, ...]]:
    """The ordered factorizations of a number into ``count`` factors."""
    # Ordered, since axes have names: 8 over data and model is both (2, 4) and (4, 2).
    if count == 1:
        yield (side,)
        return
    for first in range(1, side + 1):
        if side % first == 0:
            yield from (
                (first, *rest) for rest in _ordered_factorizations(side // first, count - 1)
            )
