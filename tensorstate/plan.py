"""Plans: the result of a search for a training step, to be read, compared, checked and run."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxcoll import pictures
from jaxcoll.io.files import write_text
from jaxcoll.numerics import checks
from tensorstate.collective_costs import CollectiveCostModel
from tensorstate.cost.cost import Cost, Infeasible, SearchOptions, SearchResult, estimate_cost
from tensorstate.cost.memory import CATEGORIES
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.cost.timeline import StepSchedule
from tensorstate.errors import PlanError
from tensorstate.execution.device_order import priced_mesh, warn_of_other_order
from tensorstate.execution.placement_table import Collectives, lax_collectives
from tensorstate.execution.sharded_step import ShardedStep, abstract_args, apply, check_axes
from tensorstate.export.axis_rules import AxisRules, axis_rules, path_rules
from tensorstate.export.constrained_step import constrained_step, explicit_step
from tensorstate.export.plan_file import plan_file
from tensorstate.export.plan_json import dumps
from tensorstate.export.specs import PlanSpecs, plan_specs
from tensorstate.ir.graph import Graph
from tensorstate.keeping.table import allowed, check_priced
from tensorstate.problem.baselines import BASELINES
from tensorstate.problem.problem import Problem
from tensorstate.report import text as report
from tensorstate.report.hlo_check import HloComparison, compare_with_hlo
from tensorstate.report.parallelism import parallelism_name, sentence
from tensorstate.report.web_page import Shown, page
from tensorstate.solver.auto import Auto
from tensorstate.solver.base import CandidateStrategies, Question, Solver
from tensorstate.solver.exact import Milp, solve_within_limit
from tensorstate.solver.named import best_baseline
from tensorstate.solver.overlap import retimed
from tensorstate.tracing.trace_step import graph_of

Compiled = jax.stages.Lowered | jax.stages.Compiled
COMPILED = (jax.stages.Lowered, jax.stages.Compiled)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A plan for a training step on a mesh.

    ``print(plan)`` describes it: time, memory, placements, and collectives.

    Attributes:
        problem: the training step on the mesh, with costs of operators and collectives.
        result: the decisions, their cost, and the bound.
        options: the objective and the constraints of the search.
    """

    problem: Problem
    result: SearchResult
    options: SearchOptions

    @property
    def graph(self) -> Graph:
        """The traced training step."""
        return self.problem.traced

    @property
    def microbatches(self) -> int:
        """Number of microbatches, of a loop or of pipeline stages; 1 without either."""
        return self.problem.num_parts

    @property
    def memory_limit(self) -> float | None:
        """Bytes per device that the search was given, or ``None``."""
        return self.options.memory_limit

    @property
    def decisions(self) -> Decisions:
        """The strategies of all operators, and how tensors are kept."""
        return self.result.decisions

    @property
    def cost(self) -> Cost:
        """The predicted time and memory of a step."""
        return self.result.cost

    @functools.cached_property
    def timeline(self) -> StepSchedule:
        """The predicted schedule of compute and of each mesh axis; its ``seconds`` are a step's."""
        return self.cost.timeline(self.memory_limit)

    @property
    def gap(self) -> float:
        """Largest possible distance from the optimum, relative to the objective."""
        return self.result.gap

    def __repr__(self) -> str:
        return (
            f"Plan({len(self.problem.graph.operators)} operators on mesh {self.problem.mesh.text}, "
            f"{report.seconds(self.timeline.seconds)} per step, "
            f"{report.size(self.cost.memory.peak)} per device, by {self.result.method})"
        )

    def __str__(self) -> str:
        return report.summary(self.problem, self.result, self.memory_limit)

    def _repr_html_(self) -> str:
        cost = self.cost
        rows = {
            "mesh": self.problem.mesh.text,
            "time of a step": report.seconds(self.timeline.seconds),
            "compute": report.seconds(cost.compute),
            "communication": report.seconds(cost.communication),
            "of it exposed": report.seconds(self.timeline.exposed_seconds),
            "memory": report.size(cost.memory.peak),
            **({"on the host": report.size(cost.memory.host)} if cost.memory.host else {}),
            "gap": "no bound" if math.isinf(self.result.bound) else f"{100 * self.gap:.2g} %",
            "as a page": "plan.html()",
        }
        # Bars of the running sum, so that the last one is the peak.
        room = self.memory_limit or self.problem.hardware.memory
        parts = [getattr(cost.memory, name) for name in ("inputs", *CATEGORIES)]
        filled = [sum(parts[: i + 1]) / room for i in range(len(parts))]
        drawing = pictures.bars(filled, "inputs, saved, resident, gradients, temporaries")
        return pictures.table(parallelism_name(self.problem, self.decisions, cost), rows, drawing)

    def sentence(self) -> str:
        """The plan in a sentence: by mesh axis the part of the step that each device has."""
        return sentence(self.problem, self.decisions, self.cost)

    def html(
        self,
        title: str = "Plan",
        *,
        other: Plan | None = None,
        names: tuple[str, str] = ("this plan", "the other"),
    ) -> str:
        """An interactive page, one HTML file that needs nothing else.

        From the top: the plan in a sentence; layers by the model's names, with pictures of how
        their arrays lie on the devices; the most expensive collectives, and who needs them; compute
        and links over a step; memory over a step, with the buffers at its peak. A click leads to
        tensors and operators, and to the costs of other shardings.

        Args:
            title: the title of the page.
            other: a plan to stand beside this one, as ``solve_baseline`` makes it; its mesh, its
                limit and its step may be others.
            names: names of the two plans.

        Raises:
            PlanError: a title or names that are not texts, or an ``other`` that is not a plan.
        """
        checks.text(title, "title", PlanError)
        checks.optional(other, checks.instance, Plan, "other", PlanError)
        if len(checks.sequence(names, "names", PlanError)) != 2:
            raise PlanError(
                f"names must be two, of this plan and of the other, got {checks.shown(names)}"
            )
        plans = (self,) if other is None else (self, other)
        return page(
            title,
            *(
                Shown(
                    each.problem,
                    each.result,
                    each.memory_limit,
                    checks.text(name, "a name of a plan", PlanError),
                )
                for each, name in zip(plans, names)  # noqa: B905  (of one plan the first alone)
            ),
        )

    def make_mesh(self, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
        """The plan's mesh, with devices in the order that was priced.

        Args:
            devices: as many as the plan is for, in the order of ranks; by default the first ones of
                JAX. Those with coordinates (TPU) are placed so that links of the network join them.

        Raises:
            PlanError: another number of devices, or devices that the network's links do not join.
        """
        return priced_mesh(self.problem.network, devices)

    @property
    def specs(self) -> PlanSpecs:
        """The shardings of arguments, results and activations, as trees of ``PartitionSpec``."""
        return plan_specs(self.problem, self.decisions, self.cost)

    def save(self, path: str | os.PathLike) -> None:
        """Write the plan to a JSON file, which ``tensorstate.load`` reads in any other process.

        The step, its arguments and devices are not in it. Cost models and charges of your own are
        not either, and must be given again.

        Raises:
            FormatError: no path, or that of a folder or device.
            OSError: the file cannot be written; an existing one is unchanged.
        """
        write_text(path, dumps(plan_file(self.problem, self.result, self.options)))

    def apply(
        self, mesh: jax.sharding.Mesh | None = None, collectives: Collectives | None = None
    ) -> ShardedStep:
        """The training step, run as planned: ``plan.apply().jit()(params, state, batch)``.

        Args:
            mesh: devices; its axes are those of the plan. By default ``make_mesh()``. One with the
                devices in another order uses other links than were priced: a warning says so.
            collectives: how tensors are resharded: by default by the schedules that the plan was
                priced with, or by ``jax.lax`` with ``lax_collectives``.

        Raises:
            PlanError: a mesh of other axes, or too few devices.
        """
        checks.optional(collectives, checks.function, "collectives", PlanError)
        decided = self.problem, self.decisions, self.cost
        return apply(*decided, self._mesh(mesh), collectives, self.timeline)

    def _mesh(self, mesh: jax.sharding.Mesh | None) -> jax.sharding.Mesh:
        """The mesh that was given, checked, or else the plan's own."""
        # Another order of devices runs as well, on links that nobody has priced.
        if mesh is None:
            return self.make_mesh()
        checks.instance(mesh, jax.sharding.Mesh, "mesh", PlanError)
        check_axes(self.problem, mesh)
        warn_of_other_order(self.problem.network, mesh)
        return mesh

    def rules(self, names: Any, *, solver: Solver | None = None) -> AxisRules:
        """The plan as logical axis rules for Flax and MaxText, with their loss against the plan.

        Args:
            names: the logical names of the dimensions of parameters: a tree of ``PartitionSpec`` or
                of tuples of names, as ``nn.get_partition_spec(variables)`` and
                ``nnx.get_partition_spec(state)`` give them. They are for all arguments whose paths
                end in theirs: also for moments of an optimizer.
            solver: the solver that searches the best plan under the rules; ``Auto`` by default.

        Raises:
            PlanError: names of no argument, or of more dimensions than it has; a padded plan.
        """
        checks.optional(solver, checks.instance, Solver, "solver", PlanError)
        # Rules say less than a plan, so the best plan under them is searched, and its loss stated.
        found_by = Auto() if solver is None else solver
        return axis_rules(self.problem, self.result, self.options, names, found_by)

    @property
    def path_rules(self) -> dict[str, jax.sharding.PartitionSpec]:
        """The sharding of every argument by patterns of paths, for code that shards by path.

        Raises:
            PlanError: a padded plan, whose shardings do not divide the arguments.
        """
        return path_rules(self.problem, self.result)

    def constrain(
        self,
        step_fn: Callable[..., Any] | None = None,
        mesh: jax.sharding.Mesh | None = None,
    ) -> ShardedStep:
        """The training step under ``jax.jit`` alone, each reshard of the plan as constraints.

        XLA's partitioner then makes the collectives; ``plan.check(step=plan.constrain())`` compares
        them with the plan's.

        Args:
            step_fn: the step, to make sure that it still is the one that was planned.
            mesh: as for ``apply``.

        Raises:
            PlanError: as for ``apply``; a plan in microbatches or in stages; or another step.
        """
        self._check_step(step_fn)
        return constrained_step(self.problem, self.decisions, self.cost, self._mesh(mesh))

    def explicit(
        self,
        step_fn: Callable[..., Any] | None = None,
        mesh: jax.sharding.Mesh | None = None,
    ) -> ShardedStep:
        """The training step under Explicit axes: every array has the plan's sharding by type.

        Args:
            step_fn, mesh: as for ``constrain``; the step runs on a mesh of the same devices whose
                axes are Explicit.

        Raises:
            PlanError: as for ``constrain``.
        """
        self._check_step(step_fn)
        return explicit_step(self.problem, self.decisions, self.cost, self._mesh(mesh))

    def _check_step(self, step_fn: Callable[..., Any] | None) -> None:
        """Refuse a function that is not the planned step."""
        if step_fn is None:
            return
        # Two traces of one function are never the same object, so what a file keeps of a step is
        # compared: the texts of its operators, and the shapes and names of its arguments.
        content = plan_file(self.problem, self.result, self.options)
        loops, padding = self.graph.loop_form, self.graph.padding
        sizes = {} if padding is None else padding.sizes
        args = abstract_args(self.graph, padded=False)
        graph = graph_of(step_fn, args, loops, sizes, context=self.graph.context)
        difference = content.leaf_difference(graph) or content.operator_difference(graph)
        if difference is not None:
            raise PlanError(
                f"the plan was made for another step: {difference}; give that step, or search again"
            )

    def check(
        self,
        *args,
        mesh: jax.sharding.Mesh | None = None,
        step: ShardedStep | jax.stages.Wrapped | Compiled | None = None,
    ) -> HloComparison:
        """Compile the step, and compare the compiled program with the prediction.

        The step is compiled with the collectives of ``jax.lax``. Schedules would compile to
        permutes, which cannot be matched with the predicted collectives.

        Args:
            args: arguments of the step, as arrays or ``jax.ShapeDtypeStruct``; by default the
                abstract arguments with which it was traced. A step that is already compiled or
                lowered may be given instead, as the only argument.
            mesh: as for ``apply``.
            step: another form of the step on the plan's mesh: ``plan.constrain()``, or the step
                under ``jax.jit`` with the plan's shardings; also lowered or compiled.

        Raises:
            FormatError: a compiler that does not show its HLO.
            PlanError: as for ``apply``, or arguments of another structure.
        """
        if step is None and len(args) == 1 and isinstance(args[0], COMPILED):
            step, args = args[0], ()
        known = (ShardedStep, jax.stages.Wrapped, *COMPILED)
        checks.optional(step, checks.instance, known, "step", PlanError)
        made = self.apply(mesh, lax_collectives) if step is None else step
        made = made.jit() if isinstance(made, ShardedStep) else made
        if not isinstance(made, COMPILED):
            made = made.lower(*(args or abstract_args(self.graph)))
        compiled = made.compile() if isinstance(made, jax.stages.Lowered) else made
        # XLA for CPUs overlaps nothing, so it holds nothing ahead of time, whatever was planned.
        (sharding, *_) = jax.tree.leaves(compiled.input_shardings) or [None]
        on_cpu = sharding is None or next(iter(sharding.device_set)).platform == "cpu"
        held = 0.0 if on_cpu else self.timeline.held
        names = None if step is None else {t.index: t.name for t in self.graph.tensors}
        network = self.problem.network
        return compare_with_hlo(
            compiled, self.problem.mesh, self.cost, network, names, held, self.problem.graph
        )

    def explain(self, tensor: str) -> str:
        """One tensor, by its name: its placements, how it is resharded, and its consumers.

        Raises:
            PlanError: no tensor has the name.
        """
        return report.explain(self.problem, self.result, tensor)

    def compare(self, *names: str) -> Comparison:
        """The plan beside the best plans of baselines, under the same limit.

        They have as many microbatches, no pipeline stages, and may keep tensors as the plan may.
        A baseline that does not fit says so in its row, which then shows its best plan without a
        limit.

        Args:
            names: baselines of ``tensorstate.BASELINES``, or one for data and one for model
                parallelism joined by ``+``; all baselines when left out.

        Raises:
            PlanError: an unknown baseline.
        """
        # Baselines are of data and tensor parallelism: with stages they would be other strategies.
        plans: dict[str, Plan] = {"this plan": self}
        for name in names or BASELINES:
            plans[name] = _compared(self.problem.without_stages(), name, self.options)
        return Comparison(plans, self.memory_limit)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Plans for one problem side by side; ``print(comparison)`` is a table.

    Attributes:
        plans: the plans by name; times are relative to the first.
        memory_limit: bytes per device, or ``None``.
    """

    plans: Mapping[str, Plan]
    memory_limit: float | None

    def __repr__(self) -> str:
        names = ", ".join([*self.plans][:5]) + (", ..." if len(self.plans) > 5 else "")
        return f"Comparison({len(self.plans)} plans: {names})"

    def __str__(self) -> str:
        lines = [
            f"{'strategy':24} {'time':>9} {'ratio':>6} {'compute':>9} {'communication':>13} "
            f"{'exposed':>9} {'memory':>9}"
        ]
        first = next(iter(self.plans.values())).timeline.seconds
        for name, plan in self.plans.items():
            cost, timeline = plan.cost, plan.timeline
            over = "" if cost.memory.fits(self.memory_limit) else "  does not fit"
            lines.append(
                f"{name:24} {report.seconds(timeline.seconds):>9} {timeline.seconds / first:>6.2f} "
                f"{report.seconds(cost.compute):>9} {report.seconds(cost.communication):>13} "
                f"{report.seconds(timeline.exposed_seconds):>9} "
                f"{report.size(cost.memory.peak):>9}{over}"
            )
        return "\n".join(lines)


# The solver of a comparison's baselines. Its time limit keeps a table within minutes.
COMPARED = Milp(gap=1e-3, time_limit=20.0)


def solve_baseline(
    problem: Problem,
    name: str,
    *,
    objective: str = "overlap",
    memory_limit: float | str | None = None,
    recompute: bool = False,
    offload: bool = False,
    solver: Solver = Milp(gap=1e-3),  # noqa: B008  (frozen)
) -> Plan:
    """Find the best plan of a named baseline such as "fsdp" or "ddp + megatron".

    Args:
        problem: the training step on a mesh: ``plan.problem`` of any plan for it.
        name: a baseline of ``tensorstate.BASELINES``, or one for data and one for model parallelism
            joined by ``+``.
        objective: "overlap", "sum" or "max", as for ``search``.
        memory_limit: bytes per device, as for ``search``, but without a limit by default.
        recompute, offload: as for ``search``.
        solver: as for ``search``.

    Raises:
        PlanError: an unknown baseline, a step that cannot follow it, or a limit that no plan of the
            baseline fits into.
    """
    checks.instance(problem, Problem, "problem", PlanError)
    checks.instance(solver, Solver, "solver", PlanError)
    keepings = allowed(recompute=recompute, offload=offload)
    check_priced(keepings, problem.hardware)
    options = SearchOptions(keepings, memory_limit, objective)  # type: ignore[arg-type]
    strategies, found = best_baseline(
        problem,
        name,
        options,
        lambda strategies, options: solver.solve(problem, strategies, options),
    )
    return Plan(problem, retimed(problem, strategies, options, found), options)


def _compared(problem: Problem, name: str, options: SearchOptions) -> Plan:
    """A baseline's best plan within the limit, or without it if no plan fits."""

    def solve(strategies: CandidateStrategies, options: SearchOptions) -> SearchResult:
        # The least memory is not searched: the row of the table says that nothing fits.
        asked = Question(problem, strategies, options)
        found = solve_within_limit(asked, COMPARED, fall_back=False)
        if isinstance(found, Infeasible):
            raise PlanError(f"no plan of {name} fits into the memory; give a larger memory_limit")
        return found

    strategies, found = best_baseline(problem, name, options, solve, or_free=True)
    return Plan(problem, retimed(problem, strategies, options, found), options)


def reprice(plan: Plan, network: CollectiveCostModel) -> Cost:
    """Compute the cost of a plan's decisions on another network of the same mesh.

    Raises:
        PlanError: another mesh.
    """
    checks.instance(plan, Plan, "plan", PlanError)
    checks.instance(network, CollectiveCostModel, "network", PlanError)
    # A strategy has a placement per mesh axis, so on other axes it would mean nothing.
    if network.mesh != plan.problem.mesh:
        raise PlanError(
            f"the plan is for {plan.problem.mesh}, but the network is for {network.mesh}; give the "
            "network of the plan's mesh, or search again"
        )
    return estimate_cost(plan.problem.on(network), plan.decisions)
