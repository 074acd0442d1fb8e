"""A plan as sharding constraints: the step on whole arrays, under ``jax.jit`` alone.

The operators of the step run on global arrays, in the order of the plan. Every result is
constrained to the placements in which the plan produces it, and every reshard is written step by
step, a constraint for each: XLA's partitioner then finds one collective per step. Written at the
reads only, several steps are one constraint, for which it takes collectives of its own choice.

A partial sum has no sharding. Where the plan reduces it, it is constrained to be complete first and
to its shard then: XLA for GPU and TPU makes one reduce-scatter of the two, XLA for CPU an
all-reduce of as many bytes. Constrained to the shard alone, the partitioner rather gathers the
operands of the product. Sums that the plan leaves open through several operators may be completed
before the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions, has_no_partial
from tensorstate.errors import PlanError
from tensorstate.execution.executor import LocalExecutor
from tensorstate.execution.microbatch_loop import Copies
from tensorstate.execution.placement_table import PlacementTable, lax_collectives
from tensorstate.execution.sharded_step import ShardedStep, sharded_step
from tensorstate.export.factored import run_on_factors
from tensorstate.ir.graph import Operator
from tensorstate.ir.placements import REPLICATED, MeshShape, Placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.report.hlo_check import tensor_scope
from tensorstate.rules.sharding_rule import LocalShard


def constrained_step(problem: Problem, decisions: Decisions, cost: Cost, mesh: Mesh) -> ShardedStep:
    """The step of a problem, constrained as decided.

    Raises:
        PlanError: a plan in microbatches, whose slices of every shard no constraint expresses.
    """
    check_whole(problem)
    table = PlacementTable(problem, decisions, cost)

    def whole(*leaves):
        return GlobalExecutor(table, mesh).run(leaves)

    return sharded_step(table, mesh, whole)


def check_whole(problem: Problem) -> None:
    """Refuse a plan in microbatches or in pipeline stages.

    Raises:
        PlanError: with the remedy.
    """
    if problem.microbatches > 1:
        raise PlanError(
            f"a plan of {problem.microbatches} microbatches has no form as constraints: run it by "
            "plan.apply(), or search with microbatches=1"
        )
    if (staged := problem.pipeline) is not None:
        raise PlanError(
            f"a plan of {staged.stages} pipeline stages on {staged.axis!r} has no form as "
            "constraints: run it by plan.apply(), or search without stages="
        )


class GlobalExecutor(LocalExecutor):
    """Traces the execution on global arrays, with one dimension per position of a tensor."""

    def __init__(self, table: PlacementTable, mesh: Mesh):
        super().__init__(table, lax_collectives, overlap=mesh.devices.flat[0].platform != "cpu")
        self.devices, self.order = mesh, WholeOrder()

    def constrain(self, x: jax.Array, placements: Placements) -> jax.Array:
        """An array in placements; as it is where sums are open."""
        if not x.ndim or not has_no_partial(placements):
            return x
        spec = position_spec(placements, x.ndim, self.mesh)
        return lax.with_sharding_constraint(x, NamedSharding(self.devices, spec))

    def load_inputs(self, leaves: Sequence[jax.Array]) -> None:
        """The global arguments and constants."""
        values = [*zip(self.graph.inputs, leaves, strict=True), *self.graph.constants]
        for tensor, value in values:
            placements = self.table.produced_placements(tensor)
            sizes = self.table.traced.tensors[tensor].sizes
            self.inputs[tensor] = {placements: self.shaped(jnp.asarray(value), sizes, placements)}

    def shaped(self, x: jax.Array, sizes: Sequence[int], placements: Placements) -> jax.Array:
        """An argument with one dimension per position, in its placements."""
        return self.constrain(x.reshape(sizes), placements)

    def sizes(self, tensor: int, placements: Placements) -> list[int]:
        """Elements of every position, on all devices together."""
        return list(self.table.traced.tensors[tensor].sizes)

    def shard(self, operator: Operator) -> LocalShard:
        """The whole operator."""
        return LocalShard.full(operator.sizes)

    def results_of(
        self, operator: Operator, arrays: Sequence[jax.Array], zeroed: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """The results of an operator, on a dimension per factor where it can run so."""
        # Again: a barrier's result has no sharding of its own, and would take a later reader's.
        arrays = [
            self.constrain(x, self.table.read_placements(operator.index, k))
            for k, x in enumerate(arrays)
        ]
        with self.named(operator.results[0].tensor):
            return self.compute(operator, arrays, zeroed)

    def compute(
        self, operator: Operator, arrays: Sequence[jax.Array], zeroed: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """The results of an operator on constrained operands."""
        results = run_on_factors(operator, arrays)
        return super().results_of(operator, arrays, zeroed) if results is None else results

    def write(self, tensor: int, made: jax.Array, ready_at: int, in_forward: bool) -> None:
        """Store a result, constrained to the placements in which the plan produces it."""
        with self.named(tensor):
            made = self.constrain(made, self.table.produced_placements(tensor))
            super().write(tensor, made, ready_at, in_forward)

    def named(self, tensor: int):
        """The scope of a tensor's collectives, by whose name ``Plan.check`` finds them."""
        return jax.named_scope(tensor_scope(self.graph.tensors[tensor].name))

    def reshard_when_ready(self, tensor: int, *args, **kwargs) -> None:
        """As inherited, in the scope of the tensor."""
        with self.named(tensor):
            super().reshard_when_ready(tensor, *args, **kwargs)

    def reshard(self, copies: Copies, steps: Sequence[ReshardStep]) -> Copies:
        """All copies after reshard steps, a constraint for each."""
        for step in steps:
            x = copies[step.source]
            if not has_no_partial(step.source):
                x = self.constrain(x, tuple(max(p, REPLICATED) for p in step.source))
            copies[step.target] = self.constrain(x, step.target)
        return copies

    def gradient_after_uses(self, tensor: int, placements: Placements, x: jax.Array) -> jax.Array:
        """The gradient itself: XLA orders the uses of a weight on whole arrays."""
        return x


class WholeOrder:
    """As ``ExecutionOrder``, with whole results as tokens.

    One element of a sharded result, which is the token on a device's own shard, would be sent to
    all devices.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self.latest: list[jax.Array] = []

    def advance(self, result: jax.Array) -> None:
        """Arrays that are delayed from here on wait for a result."""
        self.num_events += 1
        self.latest = [result]

    def delay(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The arrays, none available before all of them and the last event are."""
        return list(lax.optimization_barrier((*arrays, *self.latest))[: len(arrays)])


def position_spec(placements: Placements, positions: int, mesh: MeshShape) -> PartitionSpec:
    """The spec of an array with one dimension per position."""
    axes = [
        tuple(n for n, placement in zip(mesh.names, placements, strict=True) if placement == p)
        for p in range(positions)
    ]
    return PartitionSpec(*axes)
