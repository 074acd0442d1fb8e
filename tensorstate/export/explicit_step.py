"""A plan under Explicit axes: the sharding of every array is a part of its type.

As ``constrained_step``, with reshards in place of constraints, and every operator inside
``jax.sharding.auto_axes``, whose operands and results have the shardings of the plan by type. So
the partitioner chooses inside of an operator only, where constraints leave it what is between.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.execution.placement_table import PlacementTable, to_partition_spec
from tensorstate.execution.sharded_step import ShardedStep, sharded_step
from tensorstate.export.constrained_step import GlobalExecutor, check_whole, num_open
from tensorstate.ir.graph import Operator, Output
from tensorstate.ir.placements import Placements
from tensorstate.problem.problem import Problem


def explicit_step(problem: Problem, decisions: Decisions, cost: Cost, mesh: Mesh) -> ShardedStep:
    """The step of a problem, typed as decided.

    Raises:
        PlanError: a plan in microbatches.
    """
    check_whole(problem)
    kinds = (AxisType.Explicit,) * len(mesh.axis_names)
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    table = PlacementTable(problem, decisions, cost)

    def whole(*leaves):
        return ExplicitExecutor(table, explicit).run(leaves)

    return sharded_step(table, explicit, whole)


class ExplicitExecutor(GlobalExecutor):
    """Traces the execution on global arrays whose types have their shardings."""

    def constrain(self, x: jax.Array, placements: Placements) -> jax.Array:
        """An array resharded to placements."""
        if not x.ndim:
            return x
        return jax.sharding.reshard(x, self.spec(placements, x.ndim - num_open(placements)))

    def shaped(self, x: jax.Array, sizes: Sequence[int], placements: Placements) -> jax.Array:
        """An argument with one dimension per position, of the type of its placements."""
        out = self.spec(placements, len(sizes))
        typed: Any = jax.sharding.auto_axes(lambda x: x.reshape(sizes), out_sharding=out)
        return typed(x)

    def on_whole_arrays(
        self, operator: Operator, arrays: Sequence[jax.Array]
    ) -> list[jax.Array] | None:
        """The results of an operator, whose types are those of the plan."""
        inherited = super().on_whole_arrays
        untyped = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
        if jax.eval_shape(functools.partial(inherited, operator), untyped) is None:
            return None
        specs = tuple(
            self.spec(self.table.produced_placements(use.tensor), len(use.labels))
            for use in operator.results
        )

        def run(*given):
            return tuple(inherited(operator, given) or ())

        typed: Any = jax.sharding.auto_axes(run, out_sharding=specs)
        return list(typed(*arrays))

    def returned(self, out: Output, x: jax.Array) -> jax.Array:
        """A result of the step, typed by its returned placements."""
        spec = to_partition_spec(out.view, self.table.returned_placements(out), self.mesh)
        inherited = super().returned
        typed: Any = jax.sharding.auto_axes(lambda x: inherited(out, x), out_sharding=spec)
        return typed(x)
