"""A plan as sharding constraints: the step on whole arrays, under ``jax.jit`` alone.

The operators of the step run on global arrays, in the order of the plan. Every result is
constrained to the placements in which the plan produces it. Products, reductions and elementwise
operators are left to XLA's partitioner, whose operands and results have the plan's shardings.

Where the partitioner would run something else there is an *island*, a small ``jax.shard_map``
around one reshard or one operator:

- A reshard is one collective of ``jax.lax``. Given a constraint instead, XLA for CPU turns every
  reduce-scatter into an all-reduce of equal bytes and twice the time, and a reshard between two
  axes into whatever it finds.
- A partial sum has no sharding. It is a global array with one leading dimension per mesh axis on
  which it is open, sharded along that axis: every device has its own term. Operators that make or
  read open sums run on the terms. With constraints, a sum that stays open through several operators
  would be completed before the first of them.
- An operator that needs the dimensions of the traced program (a gather, a sort, random bits, a
  declared kernel) runs on shards as in ``Plan.apply``; the partitioner would gather its operands.

Under Explicit axes the sharding of every array is part of its type. Reshards then take the place of
constraints, and every operator runs inside ``jax.sharding.auto_axes``, with operands and results
whose types have the shardings of the plan. So the partitioner chooses only inside an operator,
whereas with constraints it also chooses what lies between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.errors import PlanError
from tensorstate.execution.executor import LocalExecutor, holds_copies
from tensorstate.execution.microbatch_loop import (
    ExecutionOrder,
    completion_scalar,
    read_view,
    run_operator,
)
from tensorstate.execution.placement_table import (
    PlacementTable,
    apply_reshard_step,
    lax_collectives,
    to_partition_spec,
)
from tensorstate.execution.sharded_step import ShardedStep, sharded_step
from tensorstate.execution.step_loop import flat_view
from tensorstate.ir.graph import Operator, Output
from tensorstate.ir.placements import REPLICATED, Placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.report.hlo_check import tensor_scope
from tensorstate.rules.padding import BY_DIMENSION
from tensorstate.rules.sharding_rule import LocalEqn, LocalShard, bind

_SUMS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")


def constrained_step(problem: Problem, decisions: Decisions, cost: Cost, mesh: Mesh) -> ShardedStep:
    """The step of a problem, constrained as decided.

    Raises:
        PlanError: the plan has microbatches, and no constraint expresses slices of every shard; or
            it has pipeline stages.
    """
    return _on_whole_arrays(problem, decisions, cost, mesh, AxisType.Auto)


def _on_whole_arrays(
    problem: Problem, decisions: Decisions, cost: Cost, mesh: Mesh, kind: AxisType
) -> ShardedStep:
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
    table = PlacementTable(problem, decisions, cost)
    executor = ExplicitExecutor if kind == AxisType.Explicit else GlobalExecutor
    # Constraints need Auto axes and types need Explicit ones, whichever the given mesh has.
    kinds = (kind,) * len(mesh.axis_names)
    devices = Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    held = holds_copies(table, mesh.devices.flat[0].platform)
    return sharded_step(table, devices, lambda *leaves: executor(table, devices, held).run(leaves))


class GlobalExecutor(LocalExecutor):
    """Traces the execution on global arrays, with one dimension per position of a tensor.

    An array has these after one leading dimension per mesh axis on which its sums are open.
    """

    def __init__(self, table: PlacementTable, mesh: Mesh, holds_copies: bool = True):
        overlap = mesh.devices.flat[0].platform != "cpu"
        super().__init__(table, lax_collectives, overlap, holds_copies=holds_copies)
        self.devices, self.order = mesh, ExecutionOrder(self.token)
        # The placements of an array of one element per device, with a dimension per mesh axis.
        self.by_device: Placements = tuple(range(len(mesh.axis_names)))

    def spec(self, placements: Placements, positions: int) -> PartitionSpec:
        """The sharding of an array: open sums along their mesh axes first, then the positions."""
        names = self.mesh.names
        return PartitionSpec(
            *(name for name, p in zip(names, placements, strict=True) if p < REPLICATED),
            *(
                tuple(name for name, p in zip(names, placements, strict=True) if p == position)
                for position in range(positions)
            ),
        )

    def constrain(self, x: jax.Array, placements: Placements) -> jax.Array:
        """An array, constrained to placements."""
        if not x.ndim:
            return x
        spec = self.spec(placements, x.ndim - num_open(placements))
        return lax.with_sharding_constraint(x, NamedSharding(self.devices, spec))

    def island(
        self,
        run: Callable[..., Sequence[jax.Array]],
        arrays: Sequence[jax.Array],
        given: Sequence[Placements],
        made: Sequence[tuple[Placements, int]],
    ) -> list[jax.Array]:
        """The results of a function that every device runs on its own shards and terms.

        Args:
            run: takes and returns local arrays, one dimension per position.
            given: placements of the arrays.
            made: placements and number of positions of the results.
        """

        # An open sum of [batch, width] on "data" of 4 devices is [4, batch, width] outside, sharded
        # along the 4. On a device it is one term, [1, batch, width], which ``run`` sees without the
        # 1.
        def on_device(*local):
            terms = (x.reshape(x.shape[num_open(p) :]) for x, p in zip(local, given, strict=True))
            results = zip(run(*terms), made, strict=True)
            return tuple(x.reshape((1,) * num_open(p) + x.shape) for x, (p, _) in results)

        mapped = jax.shard_map(
            on_device,
            mesh=self.devices,
            in_specs=tuple(
                self.spec(p, x.ndim - num_open(p)) for x, p in zip(arrays, given, strict=True)
            ),
            out_specs=tuple(self.spec(p, positions) for p, positions in made),
            check_vma=False,
        )
        return list(mapped(*arrays))

    def token(self, x: jax.Array, placements: Placements) -> jax.Array:
        """One element of every device's shard; one of the whole array would be sent to all."""
        # If the whole array were the token, it would live until all barriers that take it have
        # executed, and
        # be lost if only they take it: of an open sum, [1, ...] here, XLA reads the [...].
        axes = len(self.by_device)

        def run(local):
            if jnp.issubdtype(local.dtype, jax.dtypes.extended):
                local = jax.random.key_data(local)
            return [completion_scalar(local).reshape((1,) * axes)]

        return self.island(run, [x], [placements], [(self.by_device, axes)])[0]

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
        """The results of an operator, with one dimension per factor if it can run so."""
        # Constrained again: a barrier's result has no sharding of its own, and would take that of a
        # later reader.
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
        given = [
            self.table.read_placements(operator.index, k) for k in range(len(operator.operands))
        ]
        made = [self.table.produced_placements(use.tensor) for use in operator.results]
        # To the partitioner the terms of open sums are one more dimension, so these operators run
        # on shards.
        if not any(map(num_open, (*given, *made))):
            results = self.on_whole_arrays(operator, arrays)
            if results is not None:
                return results

        def run(*local):  # inside the island a device has its shard, as in ``LocalExecutor``
            shards, tokens = local[: len(arrays)], local[len(arrays) :]
            return run_operator(operator, shards, LocalExecutor.shard(self, operator), *tokens)

        results = zip(made, (len(use.labels) for use in operator.results), strict=True)
        given += [self.by_device for _ in zeroed]
        return self.island(run, [*arrays, *zeroed], given, [*results])

    def on_whole_arrays(
        self, operator: Operator, arrays: Sequence[jax.Array]
    ) -> list[jax.Array] | None:
        """The results of an operator that the partitioner shards; ``None`` if it cannot."""
        # XLA fuses the update of a weight, and writes it over the weight if the whole fusion is
        # elementwise. When it had a reshape to factors in it, weights were copied as the step
        # began.
        if is_elementwise(operator) and self.has_specs(operator):
            return run_operator(operator, arrays, LocalShard.full(operator.sizes))
        return run_on_factors(operator, arrays)

    def has_specs(self, operator: Operator) -> bool:
        """Whether all arrays of an operator have shardings in the traced dimensions."""
        call, table = operator.eqn, self.table
        read = [view for view in call.inputs if view.tensor is not None]
        placed = [(view, table.read_placements(operator.index, k)) for k, view in enumerate(read)]
        results = zip(call.outputs, operator.results, strict=True)
        placed += [(view, table.produced_placements(use.tensor)) for view, use in results]
        return all(to_partition_spec(*each, self.mesh) is not None for each in placed)

    def write(self, tensor: int, made: jax.Array, ready_at: int, in_forward: bool) -> None:
        """Store a result, constrained to the placements in which the plan produces it."""
        with self.named(tensor):
            made = self.constrain(made, self.table.produced_placements(tensor))
            super().write(tensor, made, ready_at, in_forward)

    def named(self, tensor: int):
        """The scope of a tensor's collectives, whose name ``Plan.check`` finds them by."""
        return jax.named_scope(tensor_scope(self.graph.tensors[tensor].name))

    def reshard_when_ready(self, tensor: int, *args, **kwargs) -> None:
        """Run the inherited method in the scope of the tensor."""
        with self.named(tensor):
            super().reshard_when_ready(tensor, *args, **kwargs)

    def reshard_step(self, step: ReshardStep, x: jax.Array) -> jax.Array:
        """Run the inherited method as an island."""

        def run(local):
            return [apply_reshard_step(step, local, self.mesh, self.collectives)]

        positions = x.ndim - num_open(step.source)
        return self.island(run, [x], [step.source], [(step.target, positions)])[0]

    def gradient_after_uses(self, tensor: int, placements: Placements, x: jax.Array) -> jax.Array:
        """The gradient itself."""
        # XLA's copy insertion puts the update of a weight after its uses by itself (measured with
        # JAX 0.10 and 0.12). Gradients that wait for these uses took up to 8 % more memory.
        return x


def num_open(placements: Placements) -> int:
    """The number of mesh axes on which the sums of a tensor are open."""
    return sum(placement < REPLICATED for placement in placements)


# ---------------------------------------------------------------------- explicit axes


def explicit_step(problem: Problem, decisions: Decisions, cost: Cost, mesh: Mesh) -> ShardedStep:
    """The step of a problem, typed as decided.

    Raises:
        PlanError: the plan has microbatches or pipeline stages, as for ``constrained_step``.
    """
    return _on_whole_arrays(problem, decisions, cost, mesh, AxisType.Explicit)


class ExplicitExecutor(GlobalExecutor):
    """Traces the execution on global arrays whose types have their shardings."""

    def constrain(self, x: jax.Array, placements: Placements) -> jax.Array:
        """An array resharded to placements."""
        if not x.ndim:
            return x
        return jax.sharding.reshard(x, self.spec(placements, x.ndim - num_open(placements)))

    def shaped(self, x: jax.Array, sizes: Sequence[int], placements: Placements) -> jax.Array:
        """An argument with one dimension per position, typed by its placements."""
        out = self.spec(placements, len(sizes))
        typed: Any = jax.sharding.auto_axes(lambda x: x.reshape(sizes), out_sharding=out)
        return typed(x)

    def on_whole_arrays(
        self, operator: Operator, arrays: Sequence[jax.Array]
    ) -> list[jax.Array] | None:
        """The results of an operator, typed by the plan."""
        inherited = super().on_whole_arrays
        # Shapes tell first whether it can run so: inside ``auto_axes`` it is too late to return
        # ``None``.
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


# ---------------------------------------------------------------------- a dimension per factor

# Heads and their width are two factors, mostly folded into one dimension. A plan may shard both. An
# array with the folded dimension then has no sharding that XLA's partitioner knows, and would be
# gathered. So products, reductions and elementwise operators run on factors.


def run_on_factors(operator: Operator, arrays: Sequence[Any]) -> list[Any] | None:
    """The results of an operator, one dimension per position.

    It is ``None`` if the operator must see the dimensions of the traced program.

    Args:
        arrays: an array for each of ``operator.operands``, one dimension per position.
    """
    if operator.primitive == "dot_general":
        return _product(operator, arrays)
    if operator.primitive in _SUMS:
        return _sum(operator, arrays)
    if not is_elementwise(operator):
        return None
    call = operator.eqn
    outputs = tuple(flat_view(view) for view in call.outputs)
    equation = LocalEqn(call.primitive, call.params, (), (), ())
    run = call.rule.run_local if operator.primitive != "optimization_barrier" else bind
    full = LocalShard.full(operator.sizes)
    (result,) = run(equation, _arguments(operator, arrays), full)
    return [result] if result.shape == outputs[0].shape else None


def is_elementwise(operator: Operator) -> bool:
    """Whether an operator computes the same on any dimensions that its arrays share."""
    if operator.kind != "elementwise" or len(operator.results) != 1:
        return False
    if operator.primitive in BY_DIMENSION:
        return False
    labels = operator.eqn.output_labels[0]
    # Other operators broadcast an argument of size 1.
    return all(given == labels for given in operator.eqn.input_labels if given)


def _product(operator: Operator, arrays: Sequence[Any]) -> list[Any] | None:
    """A product by the labels of its operands: a label of both is summed, or kept in both."""
    call = operator.eqn
    (contracted, batch), params = call.params["dimension_numbers"], call.params
    left, right = call.input_labels
    for dims in (contracted, batch):
        if [left[d] for d in dims[0]] != [right[d] for d in dims[1]]:
            return None  # the dimensions are split in another way
    a, b = (_joined(labels) for labels in (left, right))
    summed, kept = (_joined(left[d] for d in dims[0]) for dims in (contracted, batch))
    numbers = tuple(
        tuple([of.index(label) for label in labels] for of in (a, b)) for labels in (summed, kept)
    )
    result = lax.dot_general(
        *_arguments(operator, arrays),
        dimension_numbers=numbers,  # pyright: ignore[reportArgumentType]
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    # dot_general puts the kept dimensions first, then the free ones of the left and the right
    # operand.
    free = [label for label in (*a, *b) if label not in (*summed, *kept)]
    wanted, made = _joined(call.output_labels[0]), [*kept, *free]
    return [result.transpose([made.index(label) for label in wanted])]


def _sum(operator: Operator, arrays: Sequence[Any]) -> list[Any]:
    """A reduction over all labels of its dimensions, in the order of the result's labels."""
    call = operator.eqn
    labels, axes = call.input_labels[0], set(call.params["axes"])
    gone = {label for d, dimension in enumerate(labels) if d in axes for label in dimension}
    flat = tuple(k for k, label in enumerate(_joined(labels)) if label in gone)
    return [call.primitive.bind(*_arguments(operator, arrays), **{**call.params, "axes": flat})]


def _arguments(operator: Operator, arrays: Sequence[Any]) -> list[Any]:
    """The arguments of the equation, one dimension per label; scalars stay scalars."""
    given = iter(arrays)
    arguments = []
    for view in operator.eqn.inputs:
        flat = flat_view(view)
        array = next(given) if view.tensor is not None else None
        arguments.append(read_view(flat, array, flat.sizes))
    return arguments


def _joined(labels) -> list[int]:
    return [label for dimension in labels for label in dimension]
