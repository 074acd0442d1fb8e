"""``search_mesh``: the best plan of every mesh shape and of every choice of links for its axes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from jaxcoll import executors
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Wanted, reporting
from jaxcoll.synth import Synthesizer
from jaxcoll.topology import Topology
from tensorstate.collective_costs import CANDIDATES, ScheduleCosts
from tensorstate.cost.cost import SearchResult, estimate_cost
from tensorstate.errors import PlanError
from tensorstate.hardware import hardware_named
from tensorstate.ir.graph import Graph
from tensorstate.plan import Plan
from tensorstate.problem.mesh_assignments import (
    MeshAssignment,
    checked_axes,
    checked_grid,
    mesh_assignments,
)
from tensorstate.problem.problem import Problem
from tensorstate.step_search import loop_form, search
from tensorstate.tracing.trace_step import graph_of


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
    """Find the best plan of every mesh assignment; returns them sorted by objective.

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
    grid_shape, axes = checked_grid(grid_shape), checked_axes(axes)
    if math.prod(grid_shape) != topology.num_ranks:
        raise PlanError(
            f"grid_shape {tuple(grid_shape)} has {math.prod(grid_shape)} ranks, the network has "
            f"{topology.num_ranks}; give sides whose product that is"
        )
    # Traced once for all meshes, which tracing knows nothing of.
    graph = graph_of(step, abstract_args, loop_form(**search_args))
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
        # Meshes without a plan do not take the plans of others away.
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
    # Of a plan only decisions come back: the graph and the network are here, and costs are computed
    # in milliseconds.
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
            problem = Problem(graph, network, *parts)
            cost = estimate_cost(problem, result.decisions)
            yield Plan(problem, dataclasses.replace(result, cost=cost), options)


def _best_result(graph, costs, search_args, assignment) -> tuple[SearchResult | PlanError, tuple]:
    """The parts of a plan, without the graph and the network that the caller has."""
    plan = _best_plan(graph, costs, search_args, assignment)
    if isinstance(plan, PlanError):
        return plan, ()
    # The arguments that make the problem again on the caller's side: no object of JAX's.
    problem = plan.problem
    stages = None if problem.pipeline is None else problem.pipeline.axis
    parts = problem.hardware, plan.microbatches, problem.batch, stages, None, problem.schedule
    return plan.result, (plan.options, *parts)


def _best_plan(
    graph: Graph, costs: Costs, search_args: Mapping[str, Any], assignment: MeshAssignment
) -> Plan | PlanError:
    network = costs(assignment.mesh, device_order=assignment.device_order)
    sizes = dict(zip(assignment.mesh.names, assignment.mesh.sizes, strict=True))
    try:
        return search(graph, mesh=sizes, network=network, **search_args)
    except PlanError as error:  # returned, so that an executor brings it back like a plan
        return error
