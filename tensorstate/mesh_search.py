"""Which wires every mesh axis gets, chosen together with the mesh's shape and all states.

The ranks of a network stand in a grid: the sides of a torus, or boxes and the ranks of each. Every
side is split over the mesh axes, which says both how large the axes are and along which wires they
run. A rank that stands at (i, j, ...) has the number that the grid gives it, its last side fastest.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxcoll.synth import Synthesizer
from jaxcoll.topology import Topology
from tensorstate.cost.cost import Cost, estimate_cost
from tensorstate.errors import PlanError
from tensorstate.hardware import CANDIDATES, CollectiveCostModel, ScheduleCosts
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import Plan, search
from tensorstate.tracing.trace_step import trace


@dataclasses.dataclass(frozen=True)
class MeshAssignment:
    """A mesh laid over a grid of ranks.

    Attributes:
        mesh: its axes.
        device_order: the rank of every device of the mesh.
        parts: for every side of the grid, the devices along it of every axis.
    """

    mesh: MeshShape
    device_order: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]

    def groups(self) -> tuple[frozenset[frozenset[int]], ...]:
        """For every axis the sets of ranks that stand along it."""
        ranks = np.asarray(self.device_order).reshape(self.mesh.sizes)
        return tuple(
            frozenset(
                frozenset(line.tolist())
                for line in np.moveaxis(ranks, axis, -1).reshape(-1, self.mesh.sizes[axis])
            )
            for axis in range(len(self.mesh.sizes))
        )


def mesh_assignments(grid_shape: Sequence[int], axes: Sequence[str]) -> tuple[MeshAssignment, ...]:
    """All ways of laying mesh axes over a grid of ranks, each set of groups once.

    Args:
        grid_shape: ranks along every side of the grid.
        axes: names of the mesh axes.

    Raises:
        PlanError: no sides or axes, a side below 1, or two axes of one name.
    """
    if not grid_shape or min(grid_shape) < 1:
        raise PlanError(f"sides must be integers of at least 1, got {tuple(grid_shape)}")
    if not axes or len(set(axes)) < len(axes):
        raise PlanError(f"axes must have names of their own, got {tuple(axes)}")
    splits = [list(_ordered_factorizations(side, len(axes))) for side in grid_shape]
    nestings = list(itertools.permutations(range(len(axes))))
    found: dict[object, MeshAssignment] = {}
    for parts in itertools.product(*splits):
        for nesting in itertools.product(nestings, repeat=len(grid_shape)):
            assignment = _assign(parts, nesting, axes)
            found.setdefault(assignment.groups(), assignment)
    return tuple(found.values())


def _ordered_factorizations(side: int, count: int) -> Iterator[tuple[int, ...]]:
    """The ordered ways of writing a number as a product of so many."""
    if count == 1:
        yield (side,)
        return
    for first in range(1, side + 1):
        if side % first == 0:
            yield from (
                (first, *rest) for rest in _ordered_factorizations(side // first, count - 1)
            )


def _assign(
    parts: tuple[tuple[int, ...], ...], nesting: Sequence[tuple[int, ...]], axes: Sequence[str]
) -> MeshAssignment:
    """The mesh whose axis a takes ``parts[d][a]`` of side d, where the axes nest as given."""
    shape = [split[a] for split, nest in zip(parts, nesting, strict=True) for a in nest]
    places = [(d, a) for d, nest in enumerate(nesting) for a in nest]
    # All parts of the first axis come first, then those of the next: devices vary in that order.
    turned = sorted(range(len(places)), key=lambda i: (places[i][1], places[i][0]))
    device_order = np.arange(math.prod(shape)).reshape(shape).transpose(turned).ravel()
    sizes = {name: math.prod(split[a] for split in parts) for a, name in enumerate(axes)}
    return MeshAssignment(MeshShape.of(sizes), tuple(device_order.tolist()), parts)


def search_mesh(
    step: Callable[..., Any] | Graph,
    abstract_args: Sequence[Any] | None = None,
    *,
    topology: Topology,
    grid_shape: Sequence[int],
    axes: Sequence[str],
    candidates: Sequence[tuple[Synthesizer, int]] = CANDIDATES,
    seed: int = 0,
    **options: Any,
) -> tuple[Plan, ...]:
    """The best plan of every layout of a mesh on a network, the best of all first.

    A plan's ``problem.network`` is ``ScheduleCosts``, with the mesh and the order of its layout.

    Args:
        step, abstract_args: as for ``search``.
        topology: the network.
        grid_shape: of the grid in which its ranks stand.
        axes: names of the mesh axes; an axis may come out with a single device.
        candidates, seed: as for ``ScheduleCosts``.
        options: of ``search``: hardware, memory_limit, recompute and so on.

    Raises:
        PlanError: sides of another number of ranks, what ``search`` refuses, or no layout into
            whose devices the step fits: with the reason of the last.
    """
    if math.prod(grid_shape) != topology.num_ranks:
        raise PlanError(
            f"sides {tuple(grid_shape)} make {math.prod(grid_shape)} ranks, the network has "
            f"{topology.num_ranks}"
        )
    if not isinstance(step, Graph):
        if abstract_args is None:
            raise PlanError("abstract_args must be given with a function")
        step, abstract_args = trace(step, abstract_args), None
    plans, reason = [], None
    for assignment in mesh_assignments(grid_shape, axes):
        network = ScheduleCosts(
            topology,
            assignment.mesh,
            device_order=assignment.device_order,
            candidates=candidates,
            seed=seed,
        )
        sizes = dict(zip(assignment.mesh.names, assignment.mesh.sizes, strict=True))
        try:
            plans.append(search(step, abstract_args, mesh=sizes, network=network, **options))
        except PlanError as error:
            reason = error
    if not plans:
        raise PlanError(f"no layout of {tuple(axes)} over {topology} has a plan: {reason}")
    return tuple(sorted(plans, key=lambda plan: plan.found.objective))


def reprice(plan: Plan, network: CollectiveCostModel) -> Cost:
    """What a plan costs on another network of the same mesh: what is decided stays.

    Raises:
        PlanError: another mesh.
    """
    if network.mesh != plan.problem.mesh:
        raise PlanError(f"the plan is for {plan.problem.mesh}, the network for {network.mesh}")
    return estimate_cost(plan.problem.on(network), plan.decisions)
