"""``search_mesh``: chooses the mesh shape and the links of every mesh axis along with the plan.

The ranks of a network form a grid: the dimensions of a torus, or hosts and the ranks of each host.
Every grid dimension is factorized over the mesh axes. The factors decide both the sizes of the mesh
axes and the links along which they communicate. Ranks are numbered in row-major order.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from jaxcoll import executors
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Wanted, reporting
from jaxcoll.synth import Synthesizer
from jaxcoll.topology import Topology
from tensorstate.cost.cost import SearchResult
from tensorstate.errors import PlanError
from tensorstate.hardware import CANDIDATES, ScheduleCosts, hardware_named
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MOST_DEVICES, MeshShape
from tensorstate.plan import Plan
from tensorstate.problem.problem import Problem
from tensorstate.step_search import search, unrolls
from tensorstate.tracing.trace_step import graph_of


@dataclasses.dataclass(frozen=True)
class MeshAssignment:
    """An assignment of the ranks of a grid to a mesh.

    Attributes:
        mesh: the mesh.
        device_order: the rank of every device of the mesh.
        parts: by grid dimension, the factor that every mesh axis takes of it.
    """

    mesh: MeshShape
    device_order: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]

    def groups(self) -> tuple[frozenset[frozenset[int]], ...]:
        """By mesh axis, the sets of ranks that communicate along it."""
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
        PlanError: no dimensions or axes, a dimension below 1, or two axes of one name.
    """
    grid_shape, axes = _checked_grid(grid_shape), _checked_axes(axes)
    splits = [list(_ordered_factorizations(side, len(axes))) for side in grid_shape]
    nestings = list(itertools.permutations(range(len(axes))))
    by_groups: dict[object, MeshAssignment] = {}
    for parts in itertools.product(*splits):
        for nesting in itertools.product(nestings, repeat=len(grid_shape)):
            assignment = _assign(parts, nesting, axes)
            by_groups.setdefault(assignment.groups(), assignment)
    return tuple(by_groups.values())


def _checked_grid(grid_shape: Sequence[int]) -> tuple[int, ...]:
    sides = checks.integers(grid_shape, "grid_shape", PlanError, least=1, most=MOST_DEVICES)
    if not sides or math.prod(sides) > MOST_DEVICES:
        raise PlanError(
            f"grid_shape has at least one side, and at most {MOST_DEVICES} ranks, got "
            f"{checks.shown(sides)}"
        )
    return sides


def _checked_axes(axes: Sequence[str]) -> tuple[str, ...]:
    names = checks.members(axes, "axes", PlanError)
    for name in names:
        checks.text(name, "the name of a mesh axis", PlanError)
    if not names or len(set(names)) < len(names):
        raise PlanError(f"axes must have distinct names, got {checks.shown(names)}")
    return names


def _ordered_factorizations(side: int, count: int) -> Iterator[tuple[int, ...]]:
    """The ordered factorizations of a number into ``count`` factors."""
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
    """The mesh whose axis a takes ``parts[d][a]`` of dimension d, nested in the given order."""
    shape = [split[a] for split, nest in zip(parts, nesting, strict=True) for a in nest]
    mesh_dims = [(d, a) for d, nest in enumerate(nesting) for a in nest]
    # Row-major over mesh axes: all factors of the first axis precede those of the second.
    order = sorted(range(len(mesh_dims)), key=lambda i: (mesh_dims[i][1], mesh_dims[i][0]))
    device_order = np.arange(math.prod(shape)).reshape(shape).transpose(order).ravel()
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
    executor: Executor | None = None,
    progress: Wanted = None,
    **search_args: Any,
) -> tuple[Plan, ...]:
    """The best plan of every mesh assignment, sorted by objective.

    A plan's ``problem.network`` is a ``ScheduleCosts`` with the mesh and the device order of its
    assignment.

    Args:
        step, abstract_args: as for ``search``.
        topology: the network.
        grid_shape: ranks along every dimension of the grid.
        axes: names of the mesh axes; an axis may have size 1 in the result.
        candidates, seed: as for ``ScheduleCosts``.
        executor: where the assignments are searched, see ``jaxcoll.executors``.
        progress: as for ``synthesize``, told after every assignment.
        search_args: further arguments of ``search``: hardware, memory_limit, solver, and so on.

    Raises:
        PlanError: a grid of another number of ranks, arguments that ``search`` refuses, or no
            assignment with a plan that fits, with the reason of the last.
    """
    checks.instance(topology, Topology, "topology", PlanError)
    grid_shape, axes = _checked_grid(grid_shape), _checked_axes(axes)
    if math.prod(grid_shape) != topology.num_ranks:
        raise PlanError(
            f"grid_shape {tuple(grid_shape)} has {math.prod(grid_shape)} ranks, the network has "
            f"{topology.num_ranks}"
        )
    graph = graph_of(step, abstract_args, unrolls(**search_args))
    executors.checked(executor, PlanError)
    device = hardware_named(search_args.get("hardware", "A100"))
    costs = functools.partial(
        ScheduleCosts, topology, candidates=candidates, seed=seed, execution=device.execution
    )
    assignments = mesh_assignments(grid_shape, axes)
    plans: list[Plan] = []
    reason = None
    with reporting(progress, "searching mesh shapes", PlanError) as report:
        found = _plans(graph, costs, search_args, assignments, executor)
        for done, plan in enumerate(found, 1):
            if isinstance(plan, Plan):
                plans.append(plan)
            else:
                reason = plan
            if report is not None:
                report(Progress(done, len(assignments), "mesh shapes"))
    if not plans:
        raise PlanError(
            f"no assignment of {topology} to the axes {tuple(axes)} has a plan: {reason}"
        )
    return tuple(sorted(plans, key=lambda plan: plan.result.objective))


Costs = Callable[..., ScheduleCosts]


def _plans(
    graph: Graph,
    costs: Costs,
    search_args: Mapping[str, Any],
    assignments: Sequence[MeshAssignment],
    executor: Executor | None,
) -> Iterator[Plan | PlanError]:
    """The best plan of every assignment, or why it has none."""
    if executor is None:
        for assignment in assignments:
            yield _best_plan(graph, costs, search_args, assignment)
        return
    # What JAX traced cannot be pickled, and no search reads it.
    operators = tuple(dataclasses.replace(each, eqn=None) for each in graph.operators)
    bare = dataclasses.replace(graph, operators=operators)
    best = functools.partial(_best_result, bare, costs, search_args)
    found = executors.ordered(best, assignments, executor)
    for assignment, (result, plan) in zip(assignments, found, strict=True):
        if isinstance(result, PlanError):
            yield result
        else:
            options, *parts = plan
            network = costs(assignment.mesh, device_order=assignment.device_order)
            yield Plan(Problem(graph, network, *parts), result, options)


def _best_result(graph, costs, search_args, assignment) -> tuple[SearchResult | PlanError, tuple]:
    """The parts of a plan, without the graph and the network that the caller has."""
    plan = _best_plan(graph, costs, search_args, assignment)
    if isinstance(plan, PlanError):
        return plan, ()
    problem = plan.problem
    return plan.result, (plan.options, problem.hardware, problem.microbatches, problem.batch)


def _best_plan(
    graph: Graph, costs: Costs, search_args: Mapping[str, Any], assignment: MeshAssignment
) -> Plan | PlanError:
    network = costs(assignment.mesh, device_order=assignment.device_order)
    sizes = dict(zip(assignment.mesh.names, assignment.mesh.sizes, strict=True))
    try:
        return search(graph, mesh=sizes, network=network, **search_args)
    except PlanError as error:
        return error
