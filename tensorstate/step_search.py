"""``search`` and ``search_mesh``: the best plan of a step on one mesh, and over mesh shapes.

``search``: from a training step, a mesh and a network to the best plan.

``search_mesh``: chooses the mesh shape and the links of every mesh axis along with the plan.

The ranks of a network form a grid: the dimensions of a torus, or hosts and the ranks of each host.
Every grid dimension is factorized over the mesh axes. The factors decide both the sizes of the mesh
axes and the links along which they communicate. Ranks are numbered in row-major order.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal

import jax
import numpy as np

from jaxcoll import executors
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress as Told
from jaxcoll.progress import Wanted, checked, reporting
from jaxcoll.synth import Synthesizer
from jaxcoll.topology import Topology
from tensorstate.cost.cost import SearchOptions, SearchResult, result_order
from tensorstate.errors import PlanError
from tensorstate.hardware import CANDIDATES, CollectiveCostModel, Hardware, ScheduleCosts
from tensorstate.hardware import hardware_named as named
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MOST_DEVICES, MeshShape
from tensorstate.plan import Plan
from tensorstate.problem.baselines import (
    Spec,
    apply_constraints,
    checked_forbidden,
    checked_pins,
)
from tensorstate.problem.problem import Problem
from tensorstate.solver.auto import Auto
from tensorstate.solver.base import CandidateStrategies, Solver
from tensorstate.solver.linear_program import Progress
from tensorstate.tracing.trace_step import trace

log = logging.getLogger(__name__)

# Least seconds of the search of one number of microbatches.
MIN_TIME_S = 1.0


def search(
    step: Callable[..., Any] | Graph,
    abstract_args: Sequence[Any] | None = None,
    *,
    mesh: Mapping[str, int] | jax.sharding.Mesh | jax.sharding.AbstractMesh,
    topology: Topology | None = None,
    network: CollectiveCostModel | None = None,
    hardware: str | Hardware = "A100",
    memory_limit: float | str | None = None,
    recompute: bool = False,
    microbatches: int | Sequence[int] | Literal["auto"] = 1,
    batch: str | None = None,
    pin: Mapping[str, Spec] | None = None,
    forbid: Mapping[str, str | Sequence[str]] | None = None,
    objective: str = "sum",
    solver: Solver = Auto(),  # noqa: B008  (frozen)
    progress: Wanted = None,
) -> Plan:
    """Choose the placements of every tensor of a training step.

    Args:
        step: a function that JAX can trace, or its graph from ``trace``.
        abstract_args: its arguments, as ``jax.ShapeDtypeStruct``; not given with a graph.
        mesh: sizes of the mesh axes by name, the last of which varies fastest over devices; or a
            mesh of JAX, with devices or abstract, of which they are read.
        topology: the network of the devices; collectives cost what their schedules cost on it, and
            what ``hardware`` charges beside it.
        network: a cost model of collectives, instead of ``topology``.
        hardware: a device, or its name in ``HARDWARE``.
        memory_limit: bytes per device, as a number or as a text such as "80GB"; by default the
            device's memory, ``math.inf`` for no limit.
        recompute: whether activations may be recomputed in the backward pass.
        microbatches: number of equal parts of the batch, each of which runs through the forward and
            the backward pass before the next. Several numbers: the best of them. "auto": powers of
            2 while they improve the plan.
        batch: name of an input whose first dimension is the batch, if that is ambiguous.
        pin: a ``PartitionSpec`` of inputs, by patterns of their names (see
            ``tensorstate.problem.baselines``).
        forbid: mesh axes that must not shard inputs, by patterns of their names.
        objective: minimize the "sum" of compute and communication, or the larger ("max").
        solver: ``Milp``, ``CoordinateDescent`` or ``Auto``, with the gap and the time at which to
            stop.
        progress: True for a line in the terminal, or a function called during the search with a
            ``jaxcoll.progress.Progress``: seconds so far, the best objective and its bound, both in
            seconds.

    Raises:
        PlanError: contradictory arguments; a network for another number of devices; a step that
            cannot run in microbatches, with the operator that needs the whole batch; a memory limit
            that no plan fits into, with the least memory and the largest tensors.
    """
    sizes, device = _mesh_shape(mesh), named(hardware)
    checked(progress, PlanError)
    checks.optional(batch, checks.text, "batch", PlanError)
    if not isinstance(solver, Solver):
        raise PlanError(
            f"solver must be Milp, CoordinateDescent or Auto, got {checks.shown(solver)}"
        )
    with reporting(progress, "searching", PlanError) as report:
        question = _Question(
            options=_options(recompute, memory_limit, objective, device),
            counts=_microbatches(microbatches),
            pin=checked_pins(pin),
            forbid=checked_forbidden(forbid),
            network=_network(sizes, topology, network, device),
            hardware=device,
            batch=batch,
            solver=solver,
            progress=report,
            graph=_graph(step, abstract_args),  # last: it traces, others are refused at once
        )
        plan = question.plan()
    log.info(
        "a plan of %d operators on %s: %.6g s per step, gap %.3g",
        len(plan.graph.operators), plan.problem.mesh, plan.cost.serial_seconds, plan.gap,
    )  # fmt: skip
    return plan


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Question:
    """The arguments of a search, each checked where it entered; below, none is checked again.

    A plan is found in one order: problem, candidate strategies, solution, plan. Several numbers of
    microbatches are several problems, of whose plans the best is taken.

    Attributes:
        counts: numbers of microbatches; ``None`` for powers of 2 while they improve the plan.
        solver: its time limit is for all numbers together.
    """

    options: SearchOptions
    counts: int | tuple[int, ...] | None
    pin: Mapping[str, Spec]
    forbid: Mapping[str, tuple[str, ...]]
    network: CollectiveCostModel
    hardware: Hardware
    batch: str | None
    solver: Solver
    progress: Progress | None
    graph: Graph

    def plan(self) -> Plan:
        """The answer."""
        if not isinstance(self.counts, int):
            return self._best_of(self.counts)
        problem, candidates = self._problem(self.counts)
        return Plan(problem, self._solve(problem, candidates, self.solver), self.options)

    def _problem(self, count: int) -> tuple[Problem, CandidateStrategies]:
        """The step in a number of microbatches, and the strategies that pins leave."""
        problem = Problem(self.graph, self.network, self.hardware, count, self.batch)
        every = [strategies.all for strategies in problem.strategies]
        return problem, apply_constraints(problem, every, self.pin, self.forbid)

    def _solve(
        self, problem: Problem, candidates: CandidateStrategies, solver: Solver
    ) -> SearchResult:
        return solver.solve(problem, candidates, self.options, self.progress)

    def _best_of(self, counts: tuple[int, ...] | None) -> Plan:
        """The best plan; its bound is for all numbers that were searched.

        Given numbers share the time equally; each power of 2 takes half of the remaining time.

        Raises:
            PlanError: no plan fits, whatever the number; with the reason of the last.
        """
        start, limit = time.perf_counter(), self.options.memory_limit
        best: tuple[Problem, SearchResult] | None = None
        bound, reason = math.inf, ""
        numbers: Iterable[int] = (2**i for i in itertools.count()) if counts is None else counts
        for tried, count in enumerate(numbers):
            left = self.solver.time_limit - (time.perf_counter() - start)
            if (best is not None or reason) and left <= 0:
                break
            try:
                problem, candidates = self._problem(count)
            except PlanError:
                if counts is not None or count == 1:
                    raise
                break
            share = left / (2 if counts is None else len(counts) - tried)
            solver = dataclasses.replace(self.solver, time_limit=max(MIN_TIME_S, share))
            try:
                candidate = self._solve(problem, candidates, solver)
            except PlanError as error:
                if limit is None:
                    raise
                reason = f"in {count} microbatches {error}" if count > 1 else str(error)
                continue
            bound = min(bound, candidate.bound)
            if best is None or result_order(candidate, limit) < result_order(best[1], limit):
                best = problem, candidate
            elif counts is None:
                break
        if best is None:
            raise PlanError(reason or "no number of microbatches was given")
        seconds = time.perf_counter() - start
        result = dataclasses.replace(best[1], bound=bound, seconds=seconds)
        return Plan(best[0], result, self.options)


def _options(
    recompute: bool, memory_limit: float | str | None, objective: str, device: Hardware
) -> SearchOptions:
    """The limit is the device's memory unless another is given; an infinite one is none."""
    limit: Any = device.memory if memory_limit is None else memory_limit
    is_none = isinstance(limit, float) and limit == math.inf
    return SearchOptions(recompute, None if is_none else limit, objective)


def _mesh_shape(mesh: object) -> MeshShape:
    if isinstance(mesh, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        return MeshShape.of(dict(mesh.shape))
    if isinstance(mesh, MeshShape):
        return mesh
    if not isinstance(mesh, Mapping):
        raise PlanError(
            "mesh must be the sizes of its axes by name, as {'data': 2, 'model': 4}, or a "
            f"jax.sharding.Mesh, got {checks.shown(mesh)}"
        )
    return MeshShape.of(mesh)


def _microbatches(given: object) -> int | tuple[int, ...] | None:
    """A number of microbatches, several to choose from, or None for "auto"."""
    if isinstance(given, str) and given == "auto":
        return None
    if isinstance(given, Sequence) and not isinstance(given, str):
        return checks.integers(given, "microbatches", PlanError, least=1, most=MOST_DEVICES)
    if not isinstance(given, (int, np.integer)):
        raise PlanError(f'microbatches must be numbers or "auto", got {checks.shown(given)}')
    return checks.integer(given, "microbatches", PlanError, least=1, most=MOST_DEVICES)


def _graph(step: Callable[..., Any] | Graph, abstract_args: Sequence[Any] | None) -> Graph:
    if isinstance(step, Graph):
        if abstract_args is not None:
            raise PlanError("a graph has its arguments; do not give abstract_args again")
        return step
    if abstract_args is None:
        raise PlanError("abstract_args must be given with a function")
    return trace(step, abstract_args)


def _network(
    mesh: MeshShape,
    topology: Topology | None,
    network: CollectiveCostModel | None,
    device: Hardware,
) -> CollectiveCostModel:
    if (topology is None) == (network is None):
        raise PlanError("give either topology, whose links are priced, or network")
    if topology is not None:
        return ScheduleCosts(topology, mesh, execution=device.execution)
    checks.instance(network, CollectiveCostModel, "network", PlanError)
    if network is None or network.mesh != mesh:
        raise PlanError(f"the network prices another mesh than {mesh}")
    return network


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
    if not isinstance(step, Graph):
        if abstract_args is None:
            raise PlanError("abstract_args must be given with a function")
        step, abstract_args = trace(step, abstract_args), None
    executors.checked(executor, PlanError)
    device = named(search_args.get("hardware", "A100"))
    costs = functools.partial(
        ScheduleCosts, topology, candidates=candidates, seed=seed, execution=device.execution
    )
    assignments = mesh_assignments(grid_shape, axes)
    plans: list[Plan] = []
    reason = None
    with reporting(progress, "searching mesh shapes", PlanError) as report:
        found = _plans(step, costs, search_args, assignments, executor)
        for done, plan in enumerate(found, 1):
            if isinstance(plan, Plan):
                plans.append(plan)
            else:
                reason = plan
            if report is not None:
                report(Told(done, len(assignments), "mesh shapes"))
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
