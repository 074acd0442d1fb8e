"""Plans: what a search found for a training step, to be read, compared and run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax

from jaxcoll.topology import Topology
from tensorstate.cost.cost import Cost, estimate_cost
from tensorstate.cost.reshard_plan import Decisions, has_no_partial
from tensorstate.cost.result import SearchResult, objective_value, result_order
from tensorstate.errors import PlanError
from tensorstate.execution.collectives import Collectives
from tensorstate.execution.sharded_step import Applied, apply
from tensorstate.hardware import HARDWARE, CollectiveCostModel, Hardware, ScheduleCosts
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MeshShape, Placements
from tensorstate.problem.baselines import BASELINES, Baselines, baseline_by_axis
from tensorstate.problem.constraints import Spec, apply_constraints
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.report import text as report
from tensorstate.report.hlo_check import HloComparison, compare_with_hlo
from tensorstate.report.web_page import page
from tensorstate.solver.auto import solve_auto
from tensorstate.solver.coordinate_descent import coordinate_descent
from tensorstate.solver.exact import solve_milp
from tensorstate.solver.linear_program import Progress
from tensorstate.tracing.trace_step import trace

CandidateStrategies = Sequence[Sequence[Strategy]]

SEARCHES = {"auto": solve_auto, "milp": solve_milp, "descent": coordinate_descent}


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A plan for a training step on a mesh.

    Attributes:
        problem: the training step on the mesh, with prices.
        found: the decisions, their cost, and the bound.
        memory_limit: bytes of a device that the search was given, or ``None``.
        objective: "sum" or "max" of compute and communication.
    """

    problem: Problem
    found: SearchResult
    memory_limit: float | None = None
    objective: str = "sum"

    @property
    def graph(self) -> Graph:
        """The traced training step."""
        return self.problem.traced

    @property
    def microbatches(self) -> int:
        """Turns of the loop over parts of the batch; 1 without one."""
        return self.problem.microbatches

    @property
    def decisions(self) -> Decisions:
        """What was decided."""
        return self.found.decisions

    @property
    def cost(self) -> Cost:
        """What it costs by the model."""
        return self.found.cost

    @property
    def gap(self) -> float:
        """How far, at most, the plan is from the best: a share of its objective."""
        return report.gap_of(self.found)

    def __str__(self) -> str:
        return report.summary(self.problem, self.found, self.memory_limit)

    def html(self, title: str = "Plan") -> str:
        """A web page with the graph, every entity coloured by its state."""
        return page(self.problem, self.found, self.memory_limit, title)

    def apply(
        self, mesh: jax.sharding.Mesh | None = None, collectives: Collectives | None = None
    ) -> Applied:
        """The training step, run as planned: ``plan.apply().jit()(params, placements, batch)``.

        Args:
            mesh: devices; its axes are those of the plan. By default JAX makes one.
            collectives: how to move tensors; by default by the schedules that were priced, and
                where there are none by ``jax.lax`` (``collectives.native``).

        Raises:
            PlanError: a mesh of other axes, or too few devices.
        """
        if mesh is None:
            count, wanted = jax.device_count(), self.problem.mesh.num_devices
            if count < wanted:
                raise PlanError(f"the plan is for {wanted} devices, JAX has {count}")
            sizes, names = self.problem.mesh.sizes, self.problem.mesh.names
            kinds = (jax.sharding.AxisType.Auto,) * len(names)
            mesh = jax.make_mesh(sizes, names, kinds, devices=jax.devices()[:wanted])
        return apply(self.problem, self.decisions, self.cost, mesh, collectives)

    def check(self, compiled: jax.stages.Compiled) -> HloComparison:
        """A compiled step beside its prediction: collectives, their bytes, memory.

        Args:
            compiled: ``plan.apply(collectives=native).jit().lower(...).compile()``: by schedules
                every collective is made of permutes, which are not told apart.

        Raises:
            FormatError: a compiler that does not show its HLO.
            PlanError: a program for another number of devices.
        """
        return compare_with_hlo(compiled, self.problem.mesh, self.cost)

    def explain(self, tensor: str) -> str:
        """The life of a tensor, by its name: state, moves, readers.

        Raises:
            PlanError: no tensor has the name.
        """
        return report.explain(self.problem, self.found, tensor)

    def compare(self, *names: str) -> Comparison:
        """The plan beside the best plans of named strategies, in as many microbatches.

        Args:
            names: of ``baselines.BASELINES``, or a data and a model family joined by ``+``; all
                families when left out.

        Raises:
            PlanError: no such strategy.
        """
        rows = {"this plan": self.found}
        for name in names or BASELINES:
            rows[name] = solve_baseline(self.problem, name, objective=self.objective)
        return Comparison(self.problem, rows, self.memory_limit)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Plans side by side.

    Attributes:
        problem: what they are plans for.
        rows: what was found, by name; the first is what the others are compared with.
        memory_limit: bytes of a device, or ``None``.
    """

    problem: Problem
    rows: Mapping[str, SearchResult]
    memory_limit: float | None

    def __str__(self) -> str:
        first = next(iter(self.rows.values())).cost.serial_seconds
        lines = [
            f"{'strategy':24} {'time':>9} {'ratio':>6} {'compute':>9} {'communication':>13} "
            f"{'memory':>9}"
        ]
        for name, found in self.rows.items():
            cost = found.cost
            over = "" if cost.memory.fits(self.memory_limit) else "  does not fit"
            lines.append(
                f"{name:24} {report.seconds(cost.serial_seconds):>9} "
                f"{cost.serial_seconds / first:>6.2f} "
                f"{report.seconds(cost.compute):>9} {report.seconds(cost.communication):>13} "
                f"{report.size(cost.memory.peak):>9}{over}"
            )
        return "\n".join(lines)


def solve_baseline(
    problem: Problem, name: str, *, objective: str = "sum", gap: float = 1e-3
) -> SearchResult:
    """The best plan of a named strategy (see ``baselines``), whatever its memory.

    Raises:
        PlanError: no such strategy, or the step cannot follow it.
    """
    chosen = baseline_by_axis(problem, name)
    found = solve_milp(problem, Baselines(problem).strategies(chosen), objective=objective, gap=gap)
    saved = _gathered_anew(problem, found, frozenset(chosen.values()))
    if not saved:
        return found
    decisions = dataclasses.replace(found.decisions, saved=saved)
    cost = estimate_cost(problem, decisions)
    return dataclasses.replace(
        found, decisions=decisions, cost=cost, objective=objective_value(cost, objective)
    )


def _gathered_anew(
    problem: Problem, found: SearchResult, baselines: frozenset[str]
) -> dict[int, Placements]:
    """The states in which tensors are kept that a family gathers again in the backward pass.

    ZeRO-3 does so with parameters; Megatron's sequence parallelism with activations, of which every
    device keeps its part of the sequence (Korthikanti et al., 2022, section 4.2.2).
    """
    saved: dict[int, Placements] = {}
    for reshard in found.cost.reshards:
        group, own = problem.tensor_groups[reshard.group], reshard.produced_placements
        if group.is_input and "fsdp" in baselines:
            saved |= dict.fromkeys(reshard.tensors, own)
        if not group.is_input and "megatron-sp" in baselines and reshard.saved is not None:
            larger = problem.local_bytes(group, reshard.saved) > problem.local_bytes(group, own)
            if has_no_partial(own) and larger:
                saved |= dict.fromkeys(reshard.tensors, own)
    return saved


def search(
    step: Callable[..., Any] | Graph,
    abstract_args: Sequence[Any] | None = None,
    *,
    mesh: Mapping[str, int],
    topology: Topology | None = None,
    network: CollectiveCostModel | None = None,
    hardware: str | Hardware = "A100",
    memory_limit: float | None = None,
    recompute: bool = False,
    microbatches: int | Sequence[int] | Literal["auto"] = 1,
    batch: str | None = None,
    pin: Mapping[str, Spec] | None = None,
    forbid: Mapping[str, str | Sequence[str]] | None = None,
    objective: str = "sum",
    method: str = "auto",
    gap: float = 1e-2,
    time_limit: float = math.inf,
    progress: Progress | None = None,
) -> Plan:
    """Choose the state of every tensor of a training step.

    Args:
        step: any function that JAX can trace, or its graph.
        abstract_args: its arguments, as ``jax.ShapeDtypeStruct``; none for a graph.
        mesh: sizes of the mesh's axes by name; the last varies fastest over devices.
        topology: the network of the devices, on whose wires collectives are priced.
        network: prices of collectives, instead of ``topology``.
        hardware: a device, or its name in ``HARDWARE``.
        memory_limit: bytes of a device that the plan may take.
        recompute: whether activations may be made again in the backward pass.
        microbatches: equal parts of the batch, one after another through forward and backward
            pass (see ``pipelining``); several numbers to choose from, of which 1 is none; or
            "auto": powers of 2, until it gets no better.
        batch: name of an input that begins with the batch, where that is not clear from the others.
        pin: states of inputs by patterns of their names (see see ``constraints``): a
            ``PartitionSpec`` each.
        forbid: mesh axes that must not shard inputs, by patterns.
        objective: minimize the "sum" of compute and communication, or the larger ("max").
        method: "milp" decides all axes at once; "descent" one after another, with a looser bound;
            "auto" takes the first up to two axes, else the
            second, which also helps on two axes under a memory limit (see ``search.auto``).
        gap: relative gap to a proved bound at which to stop.
        time_limit: seconds; the best plan until then is returned with its gap.
        progress: called with seconds, best objective and bound (both in microseconds).

    Raises:
        PlanError: arguments that contradict each other or the step, a network of another number
            of devices, a step that cannot run in microbatches: it names the operator that needs
            the whole batch; or a memory limit that nothing fits into: it says by how much, and
            what takes the memory.
    """
    sizes = MeshShape.of(dict(mesh))
    graph = _graph(step, abstract_args)
    network, device = _network(sizes, topology, network), _hardware(hardware)
    if objective not in ("sum", "max"):
        raise PlanError(f"objective must be 'sum' or 'max', got {objective!r}")
    if method not in SEARCHES:
        raise PlanError(f"method must be one of {', '.join(SEARCHES)}, got {method!r}")
    if memory_limit is not None and not memory_limit > 0:
        raise PlanError(f"memory_limit must be above 0 bytes, got {memory_limit}")
    options: dict[str, Any] = {
        "recompute": recompute,
        "memory_limit": memory_limit,
        "objective": objective,
        "time_limit": time_limit,
        "progress": progress,
    }
    options["gap"] = gap
    solve = SEARCHES[method]

    def ready(count: int) -> tuple[Problem, CandidateStrategies]:
        problem = Problem(graph, network, device, count, batch)
        return problem, apply_constraints(
            problem, [w.all for w in problem.strategies], pin or {}, forbid or {}
        )

    if isinstance(microbatches, int):
        problem, candidates = ready(microbatches)
        return Plan(problem, solve(problem, candidates, **options), memory_limit, objective)
    problem, found = _search_microbatches(ready, solve, microbatches, options)
    return Plan(problem, found, memory_limit, objective)


def _search_microbatches(
    ready: Callable[[int], tuple[Problem, CandidateStrategies]],
    solve: Callable[..., SearchResult],
    microbatches: Sequence[int] | str,
    options: Mapping[str, Any],
) -> tuple[Problem, SearchResult]:
    """The best over numbers of microbatches; its bound is for all that were searched.

    Each takes its share of the time, of an open list half of what is left.

    Raises:
        PlanError: of no number a plan fits; the reason is that of the last.
    """
    start, auto = time.perf_counter(), isinstance(microbatches, str)
    limit = options["memory_limit"]
    if isinstance(microbatches, str) and microbatches != "auto":
        raise PlanError(f'microbatches must be numbers or "auto", got {microbatches!r}')
    counts = (2**i for i in itertools.count()) if isinstance(microbatches, str) else microbatches
    best: tuple[Problem, SearchResult] | None = None
    bound, reason = math.inf, ""
    for number, count in enumerate(counts):
        left = options["time_limit"] - (time.perf_counter() - start)
        if (best is not None or reason) and left <= 0:
            break
        try:
            problem, candidates = ready(count)
        except PlanError:
            if not auto or count == 1:
                raise
            break
        try:
            share = left / (2 if isinstance(microbatches, str) else len(microbatches) - number)
            found = solve(problem, candidates, **{**options, "time_limit": max(1.0, share)})
        except PlanError as error:
            if limit is None:
                raise
            reason = f"in {count} microbatches {error}" if count > 1 else str(error)
            continue
        bound = min(bound, found.bound)
        if best is None or result_order(found, limit) < result_order(best[1], limit):
            best = problem, found
        elif auto:
            break
    if best is None:
        raise PlanError(reason or "no number of microbatches was given")
    seconds = time.perf_counter() - start
    return best[0], dataclasses.replace(best[1], bound=bound, seconds=seconds)


def _graph(step: Callable[..., Any] | Graph, abstract_args: Sequence[Any] | None) -> Graph:
    if isinstance(step, Graph):
        if abstract_args is not None:
            raise PlanError("a graph has its arguments; do not give abstract_args again")
        return step
    if abstract_args is None:
        raise PlanError("abstract_args must be given with a function")
    return trace(step, abstract_args)


def _network(
    mesh: MeshShape, topology: Topology | None, network: CollectiveCostModel | None
) -> CollectiveCostModel:
    if (topology is None) == (network is None):
        raise PlanError("give either topology, whose wires are priced, or network")
    if topology is not None:
        return ScheduleCosts(topology, mesh)
    if network is None or network.mesh != mesh:
        raise PlanError(f"the network prices another mesh than {mesh}")
    return network


def _hardware(hardware: str | Hardware) -> Hardware:
    if isinstance(hardware, Hardware):
        return hardware
    if hardware not in HARDWARE:
        raise PlanError(f"no hardware is called {hardware!r}; known: {', '.join(HARDWARE)}")
    return HARDWARE[hardware]
