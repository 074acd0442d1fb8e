"""Runs a training step as decided: the factor graph, interpreted inside ``jax.shard_map``.

Every operator runs on the blocks that its way gives a device, and every change of state is a
collective. The forward pass is one era; what comes after it, backward pass and optimizer, the other
(see ``tensorstate.problem.problem``). Between them of every tensor that is read in both one copy is
kept, or none, if its makers run again.

Loops of the step itself, over layers or microbatches, are not rolled up again: every iteration
stands for itself, as in the graph.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding

from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.errors import PlanError
from tensorstate.execution.collectives import Collectives, scheduled
from tensorstate.execution.executor import LocalExecutor
from tensorstate.execution.placement_table import PlacementTable, to_partition_spec
from tensorstate.ir.graph import Graph
from tensorstate.problem.problem import Problem

# XLA on CPU would use more memory than a plan says. One of its passes removes barriers too early;
# one joins all sums of gradients, so that none is used before the last is there; and without
# looking closely it copies arguments that results replace, as the step begins. Since JAX 0.12 it
# makes one kernel of a small loop, and aborts where barriers are left in that.
CPU_PASSES = ("cse_barrier_expander", "cpu-all-reduce-combiner", "small-while-loop-hoisting")
CPU_OPTIONS = {
    "xla_disable_hlo_passes": ",".join(CPU_PASSES),
    "xla_cpu_copy_insertion_use_region_analysis": True,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Applied:
    """A training step on a mesh.

    Attributes:
        step: takes and returns global arrays, as the traced function does. Not yet jitted.
        in_shardings, out_shardings: trees of ``NamedSharding``, for ``jax.jit`` and
            ``jax.device_put``. New values have the shardings of what they replace, so the old ones
            can be donated.
        donate_argnums: arguments all of which are replaced by results.
        compiler_options: for ``jax.jit``; they keep the compiler from using more memory than is
            planned.
        unsaid: what shardings of arguments and results leave open, one phrase each.
    """

    step: Callable[..., Any]
    in_shardings: Any
    out_shardings: Any
    donate_argnums: tuple[int, ...]
    compiler_options: Mapping[str, str | bool]
    unsaid: tuple[str, ...]

    def jit(self, donate: bool = True) -> Callable[..., Any]:
        """The step, jitted with all of this."""
        return jax.jit(
            self.step,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=self.donate_argnums if donate else (),
            compiler_options=dict(self.compiler_options) or None,
        )

    def annotate(self, step_fn: Callable[..., Any], donate: bool = True) -> Callable[..., Any]:
        """The traced function itself, jitted with the shardings of arguments and results alone.

        XLA decides about the rest; a warning says of what, where that may be other than planned.
        """
        if self.unsaid:
            warnings.warn(
                f"shardings of arguments and results leave open {'; '.join(self.unsaid)}: XLA may "
                "choose otherwise. Applied.jit() runs the plan",
                stacklevel=2,
            )
        return jax.jit(
            step_fn,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=self.donate_argnums if donate else (),
        )


def apply(
    problem: Problem,
    decisions: Decisions,
    cost: Cost,
    mesh: jax.sharding.Mesh,
    collectives: Collectives | None = None,
) -> Applied:
    """The training step of a problem, run as decided.

    Args:
        problem: graph and mesh.
        decisions: the way of every class.
        cost: its price, which says how tensors travel and what runs again.
        mesh: devices; its axes are those of the problem.
        collectives: how to move tensors; schedules of the problem's network by default.

    Raises:
        PlanError: for a mesh of other axes.
    """
    axes = dict(zip(problem.mesh.names, problem.mesh.sizes, strict=True))
    if dict(mesh.shape) != axes:
        raise PlanError(f"the plan is for a mesh of {axes}, got one of {dict(mesh.shape)}")
    table = PlacementTable(problem, decisions, cost)
    graph = problem.graph
    in_specs = [
        to_partition_spec(table.input_view(i), table.produced_placements(i), problem.mesh)
        for i in graph.inputs
    ]
    out_specs = [to_partition_spec(o.view, table.returned(o), problem.mesh) for o in graph.outputs]

    on_cpu = mesh.devices.flat[0].platform == "cpu"
    moving = collectives or scheduled(problem.network.schedule)

    def on_device(*leaves):
        return LocalExecutor(table, moving, overlap=not on_cpu).run(leaves)

    body = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=tuple(in_specs),
        out_specs=tuple(out_specs),
        check_vma=False,
    )

    def step(*args):
        leaves, tree = jax.tree.flatten(args)
        if tree != graph.in_tree:
            raise PlanError(f"the step takes arguments of {graph.in_tree}, got {tree}")
        return jax.tree.unflatten(graph.out_tree, body(*leaves))

    def shardings(tree, specs):
        return jax.tree.unflatten(tree, [NamedSharding(mesh, spec) for spec in specs])

    return Applied(
        step,
        shardings(graph.in_tree, in_specs),
        shardings(graph.out_tree, out_specs),
        _replaced(graph),
        CPU_OPTIONS if on_cpu else {},
        _unsaid(table),
    )


def _unsaid(table: PlacementTable) -> tuple[str, ...]:
    """What of a plan is said by no sharding of an argument or result."""
    inside = {
        reshard.group
        for tensor, reshard in table.reshards.items()
        if table.graph.tensors[tensor].role == "activation"
        and any(
            step.kind in ("all_gather", "all_to_all", "reduce_scatter") for step in reshard.steps
        )
    }
    saved = {
        reshard.group
        for reshard in table.reshards.values()
        if reshard.saved not in (None, reshard.produced_placements)
    }
    recomputed = len(table.recomputed_nodes)
    found = (
        (len(inside), "how {} kinds of activations change their states"),
        (len(saved), "in which state {} kinds of tensors are kept for the backward pass"),
        (recomputed, "that {} groups of operators run again there"),
    )
    return tuple(text.format(count) for count, text in found if count)


def _replaced(graph: Graph) -> tuple[int, ...]:
    """The arguments of which every leaf is replaced by a result."""
    updated = {out.updates for out in graph.outputs}
    found, start = [], 0
    for number, child in enumerate(graph.in_tree.children()):
        leaves = range(start, start + child.num_leaves)
        start += child.num_leaves
        if leaves and updated.issuperset(leaves):
            found.append(number)
    return tuple(found)
