"""Plans: the result of a search for a training step, to be read, compared, checked and run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax

from jaxcoll.numerics import checks
from jaxcoll.pictures import markup
from tensorstate.cost.cost import Cost, Infeasible, SearchOptions, SearchResult, estimate_cost
from tensorstate.cost.reshard_plan import Decisions, has_no_partial
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import Collectives, lax_collectives
from tensorstate.execution.sharded_step import ShardedStep, abstract_args, apply
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import Placements
from tensorstate.problem.baselines import BASELINES, Baselines, baseline_by_axis
from tensorstate.problem.problem import Problem
from tensorstate.report import text as report
from tensorstate.report.hlo_check import HloComparison, compare_with_hlo
from tensorstate.report.text import parallelism_name
from tensorstate.report.web_page import page
from tensorstate.solver.base import Solver
from tensorstate.solver.exact import Milp, solve_within_limit


@dataclasses.dataclass(frozen=True, eq=False)
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
        """Number of microbatches; 1 without a microbatch loop."""
        return self.problem.microbatches

    @property
    def memory_limit(self) -> float | None:
        """Bytes per device that the search was given, or ``None``."""
        return self.options.memory_limit

    @property
    def decisions(self) -> Decisions:
        """The strategies of all operators, and the recomputed and saved tensors."""
        return self.result.decisions

    @property
    def cost(self) -> Cost:
        """The predicted time and memory of a step."""
        return self.result.cost

    @property
    def gap(self) -> float:
        """Largest possible distance from the optimum, relative to the objective."""
        return self.result.gap

    def __str__(self) -> str:
        return report.summary(self.problem, self.result, self.memory_limit)

    def _repr_html_(self) -> str:
        cost, mesh, options = self.cost, self.problem.mesh, self.options
        rows = {
            "mesh": " x ".join(f"{n} {s}" for n, s in zip(mesh.names, mesh.sizes, strict=True)),
            "time of a step": report.seconds(cost.serial_seconds),
            "compute": report.seconds(cost.compute),
            "communication": report.seconds(cost.communication),
            "memory": report.size(cost.memory.peak),
            "gap": "no bound" if math.isinf(self.result.bound) else f"{100 * self.gap:.2g} %",
            "as a page": "plan.html()",
        }
        room = options.memory_limit or self.problem.hardware.memory
        parts = dataclasses.astuple(cost.memory)
        filled = [sum(parts[: i + 1]) / room for i in range(len(parts))]
        drawing = markup.bars(filled, "inputs, saved, resident, gradients, temporaries")
        return markup.table(parallelism_name(self.problem, self.decisions, cost), rows, drawing)

    def html(self, title: str = "Plan") -> str:
        """An interactive page, one HTML file that needs nothing else.

        It shows operators and inputs coloured by their shardings and what each other strategy would
        cost there, compute and links over a step, and memory over a step.

        Raises:
            PlanError: a title that is not a text.
        """
        checks.text(title, "title", PlanError)
        return page(self.problem, self.result, self.memory_limit, title)

    def apply(
        self, mesh: jax.sharding.Mesh | None = None, collectives: Collectives | None = None
    ) -> ShardedStep:
        """The training step, run as planned: ``plan.apply().jit()(params, state, batch)``.

        Args:
            mesh: devices; its axes are those of the plan. By default JAX makes one.
            collectives: how tensors are resharded: by default by the schedules that the plan was
                priced with, or by ``jax.lax`` with ``lax_collectives``.

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
        checks.instance(mesh, jax.sharding.Mesh, "mesh", PlanError)
        checks.optional(collectives, checks.function, "collectives", PlanError)
        return apply(self.problem, self.decisions, self.cost, mesh, collectives)

    def check(self, *args, mesh: jax.sharding.Mesh | None = None) -> HloComparison:
        """Compile the step, and compare the compiled program with the prediction.

        The step is compiled with the collectives of ``jax.lax``. Schedules would compile to
        permutes, which cannot be matched with the predicted collectives.

        Args:
            args: arguments of the step, as arrays or ``jax.ShapeDtypeStruct``; by default the
                abstract arguments with which it was traced.
            mesh: as for ``apply``.

        Raises:
            FormatError: a compiler that does not show its HLO.
            PlanError: as for ``apply``, or arguments of another structure.
        """
        step = self.apply(mesh, lax_collectives)
        compiled = step.jit().lower(*(args or abstract_args(self.graph))).compile()
        return compare_with_hlo(compiled, self.problem.mesh, self.cost)

    def explain(self, tensor: str) -> str:
        """One tensor, by its name: its placements, how it is resharded, and its consumers.

        Raises:
            PlanError: no tensor has the name.
        """
        return report.explain(self.problem, self.result, tensor)

    def compare(self, *names: str) -> Comparison:
        """The plan beside the best plans of baselines, under the same limit.

        They have as many microbatches, and recompute if the plan may. What does not fit says so in
        its row, which is that of the baseline's best plan without a limit.

        Args:
            names: baselines of ``tensorstate.BASELINES``, or one for data and one for model
                parallelism joined by ``+``; all baselines when left out.

        Raises:
            PlanError: an unknown baseline.
        """
        plans: dict[str, Plan] = {"this plan": self}
        for name in names or BASELINES:
            plans[name] = _compared(self.problem, name, self.options)
        return Comparison(plans, self.memory_limit)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Plans for one problem side by side; ``print(comparison)`` is a table.

    Attributes:
        plans: the plans by name; times are relative to the first.
        memory_limit: bytes per device, or ``None``.
    """

    plans: Mapping[str, Plan]
    memory_limit: float | None

    def __str__(self) -> str:
        first = next(iter(self.plans.values())).cost.serial_seconds
        lines = [
            f"{'strategy':24} {'time':>9} {'ratio':>6} {'compute':>9} {'communication':>13} "
            f"{'memory':>9}"
        ]
        for name, plan in self.plans.items():
            cost = plan.cost
            over = "" if cost.memory.fits(self.memory_limit) else "  does not fit"
            lines.append(
                f"{name:24} {report.seconds(cost.serial_seconds):>9} "
                f"{cost.serial_seconds / first:>6.2f} "
                f"{report.seconds(cost.compute):>9} {report.seconds(cost.communication):>13} "
                f"{report.size(cost.memory.peak):>9}{over}"
            )
        return "\n".join(lines)


# Of the baselines of a comparison, each within the limit.
COMPARED = Milp(gap=1e-3, time_limit=20.0)


def solve_baseline(
    problem: Problem,
    name: str,
    *,
    objective: str = "sum",
    memory_limit: float | str | None = None,
    recompute: bool = False,
    solver: Solver = Milp(gap=1e-3),  # noqa: B008  (frozen)
) -> Plan:
    """The best plan of a named baseline such as "fsdp" or "ddp + megatron".

    Args:
        problem: the training step on a mesh: ``plan.problem`` of any plan for it.
        name: a baseline of ``tensorstate.BASELINES``, or one for data and one for model parallelism
            joined by ``+``.
        objective: "sum" or "max", as for ``search``.
        memory_limit: bytes per device, as for ``search``, but without a limit by default.
        recompute: as for ``search``.
        solver: as for ``search``.

    Raises:
        PlanError: an unknown baseline, a step that cannot follow it, or a limit that no plan of the
            baseline fits into.
    """
    checks.instance(problem, Problem, "problem", PlanError)
    checks.instance(solver, Solver, "solver", PlanError)
    options = SearchOptions(recompute, memory_limit, objective)  # type: ignore[arg-type]
    strategies = Baselines(problem).strategies(baseline_by_axis(problem, name))
    fitting = _fitting(
        problem, name, options, lambda options: solver.solve(problem, strategies, options)
    )
    return Plan(problem, fitting, options)


def _compared(problem: Problem, name: str, options: SearchOptions) -> Plan:
    """A baseline's best plan; if none fits that without a limit."""
    strategies = Baselines(problem).strategies(baseline_by_axis(problem, name))

    def solve(options: SearchOptions) -> SearchResult:
        found = solve_within_limit(problem, strategies, options, COMPARED, fall_back=False)
        if isinstance(found, Infeasible):
            raise PlanError(f"{name} was found no plan that fits")
        return found

    try:
        return Plan(problem, _fitting(problem, name, options, solve), options)
    except PlanError:
        free = dataclasses.replace(options, memory_limit=None, recompute=False)
        return Plan(problem, _fitting(problem, name, free, solve), options)


def _fitting(
    problem: Problem,
    name: str,
    options: SearchOptions,
    solve: Callable[[SearchOptions], SearchResult],
) -> SearchResult:
    """A baseline's best plan: without the limit if that fits, and within it otherwise."""
    baselines = frozenset(baseline_by_axis(problem, name).values())
    free = solve(dataclasses.replace(options, memory_limit=None, recompute=False))
    free = _regather(problem, free, options, baselines)
    if free.cost.memory.fits(options.memory_limit):
        return free
    return _regather(problem, solve(options), options, baselines)


def _regather(
    problem: Problem, result: SearchResult, options: SearchOptions, baselines: frozenset[str]
) -> SearchResult:
    """The result with the copies that the baselines do not save between the passes."""
    saved = _regathered_in_backward(problem, result, baselines)
    if not saved:
        return result
    decisions = dataclasses.replace(result.decisions, saved={**result.decisions.saved, **saved})
    cost = estimate_cost(problem, decisions)
    return dataclasses.replace(
        result, decisions=decisions, cost=cost, objective=options.value(cost)
    )


def _regathered_in_backward(
    problem: Problem, result: SearchResult, baselines: frozenset[str]
) -> dict[int, Placements]:
    """The saved placements of tensors that a baseline gathers a second time in the backward pass.

    ZeRO-3 does so with parameters. Megatron's sequence parallelism does so with activations, of
    which every device saves its part of the sequence (Korthikanti et al., 2022, section 4.2.2).
    """
    saved: dict[int, Placements] = {}
    for reshard in result.cost.reshards:
        group, produced = problem.tensor_groups[reshard.group], reshard.produced_placements
        if group.is_input and "fsdp" in baselines:
            saved |= dict.fromkeys(reshard.tensors, produced)
        if not group.is_input and "megatron-sp" in baselines and reshard.saved is not None:
            larger = problem.local_bytes(group, reshard.saved) > problem.local_bytes(
                group, produced
            )
            if has_no_partial(produced) and larger:
                saved |= dict.fromkeys(reshard.tensors, produced)
    return saved
