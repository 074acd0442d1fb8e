"""Operators of a plan, run in its order, and the loop over microbatches around them.

Operators run on global arrays, or on the local shards of one device. A tensor is stored as an array
with one dimension per position. An operator reads it through its view: a transpose, a broadcast and
a reshape, as in the traced equation. Its primitive is bound with size parameters of the local
shard.

``lax.optimization_barrier`` forces the order, since all its results depend on all its operands.
Three of its properties matter:

- XLA removes an operand whose result has no other consumer
  (``AlgebraicSimplifierVisitor::HandleOptimizationBarrier``), so a token that is only waited for
  would be lost. There are therefore two barriers per token.
- An array is live until all barriers that take it have executed. The token is therefore one element
  of the array.
- On CPU every barrier has its own table of pointers for the whole program. There are therefore as
  few barriers as possible.

The microbatch loop is a ``lax.scan``, which slices the batch of a device. Sums and other tensors
that are read after the loop are in its carry. Microbatches of tensors that the step returns are
stacked in the loop and concatenated after it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tensorstate.cost.reshard_plan import NO_RESHARD, ReshardPlan
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import PlacementTable, num_shards
from tensorstate.ir.graph import Graph, Operator, View
from tensorstate.ir.placements import MAX, MIN, REPLICATED, SUM, Placements
from tensorstate.rules import AbstractArray, LocalEqn
from tensorstate.rules.sharding_rule import LocalShard, MicrobatchSlice


def completion_scalar(x: jax.Array) -> jax.Array:
    """A token: one element of an array, available when the array is."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    if x.size == 0:  # available from the start
        return jnp.zeros((), x.dtype)
    return lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())


def token_on_device(x: jax.Array, placements: Placements) -> jax.Array:
    """A token of a device's shard, in any placements."""
    return completion_scalar(x)


def wait_for(arrays: Sequence[jax.Array], *tokens: jax.Array) -> list[jax.Array]:
    """The arrays, none of them available before all of them and all the tokens are."""
    # Two barriers with the same tokens: XLA would remove the tokens from a barrier that is their
    # only consumer.
    waiting = list(arrays)
    for _ in range(2 if waiting and tokens else 0):
        waiting = lax.optimization_barrier((*waiting, *tokens))[: len(waiting)]
    return list(waiting)


def materialize(x: jax.Array) -> jax.Array:
    """The array, kept from being fused into its consumers."""
    return lax.optimization_barrier((x,))[0]


class ExecutionOrder:
    """Delays arrays until the last result before them is available.

    A barrier takes the last token and the one before it, so that every token but the last is taken
    by two barriers.

    Args:
        token: makes the token of a result in given placements; called only if arrays wait for it.

    Attributes:
        num_events: number of results that arrays can wait for.
    """

    def __init__(self, token: Callable[[jax.Array, Placements], jax.Array] = token_on_device):
        self.num_events, self._token = 0, token
        self._last: tuple[jax.Array, Placements] | None = None
        self._tokens: list[jax.Array] = []  # the last two tokens, the latest first

    def restarted(self) -> ExecutionOrder:
        """An order with the same tokens function and no results yet, for the body of a loop."""
        return ExecutionOrder(self._token)

    def advance(self, result: jax.Array, placements: Placements = ()) -> None:
        """Make arrays that are delayed from here on wait for a result."""
        self.num_events += 1
        self._last = result, placements

    @property
    def latest(self) -> list[jax.Array]:
        """The token of the last event, if any."""
        if self._last is not None:
            self._tokens = [self._token(*self._last), *self._tokens[:1]]
            self._last = None
        return self._tokens[:1]

    def token(self, result: jax.Array, placements: Placements) -> jax.Array:
        """The token of any result."""
        return self._token(result, placements)

    def delay(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The arrays, none of them available before all of them and the last event are."""
        latest = self.latest
        if len(self._tokens) < 2:
            return wait_for(arrays, *latest)
        return list(lax.optimization_barrier((*arrays, *self._tokens))[: len(arrays)])


def updated_args(graph: Graph) -> dict[int, set[int]]:
    """The arguments that each gradient updates.

    A gradient reaches its argument's new value through operators on tensors of that size.
    """
    args: dict[int, set[int]] = defaultdict(set)
    for out in graph.outputs:
        if out.updates is None or out.view.tensor is None:
            continue
        updated, pending, seen = graph.inputs[out.updates], [out.view.tensor], set()
        while pending:
            tensor = graph.tensors[pending.pop()]
            if tensor.producer is None or tensor.index in seen:
                continue
            seen.add(tensor.index)
            operator = graph.operators[tensor.producer]
            if operator.phase != "optimizer":
                args[tensor.index].add(updated)
                continue
            # In Adam, equal sizes lead from the new weight through its moments to the gradient, but
            # not into the norm that clips all gradients.
            same = [use.tensor for use in operator.operands]
            pending += [t for t in same if graph.tensors[t].size == tensor.size]
    return args


# ---------------------------------------------------------------------- one operator after another


def run_operator(
    operator: Operator, arrays: Sequence[Any], shard: LocalShard, *tokens: Any
) -> list[Any]:
    """The local results of an operator, from the local shards of its operands.

    Args:
        arrays: an array for each of ``operator.operands``, one dimension per position.
        shard: the part of the operator's labels that the device has.
        tokens: arrays that must be available before zeros to scatter into are made; otherwise XLA
            would make them as the program begins, and keep them.

    Returns:
        An array for each of ``operator.results``, one dimension per position.
    """
    call = operator.eqn
    given = iter(arrays)
    arguments = [
        read_view(view, next(given) if view.tensor is not None else None, sizes)
        for view, sizes in zip(call.inputs, _sizes(call.input_labels, shard), strict=True)
    ]
    if operator.kind == "scatter" and tokens and call.inputs[0].tensor is None:
        zero = wait_for([jnp.asarray(call.inputs[0].value)], *tokens)[0]
        arguments[0] = lax.full_like(arguments[0], zero)
    outputs = tuple(AbstractArray(view.shape, view.dtype) for view in call.outputs)
    equation = LocalEqn(call.primitive, call.params, call.input_labels, call.output_labels, outputs)
    results = call.rule.run_local(equation, arguments, shard)
    return [
        result.reshape([size for dimension in sizes for size in dimension])
        for result, sizes in zip(results, _sizes(call.output_labels, shard), strict=True)
    ]


def _sizes(labels, shard: LocalShard) -> list[list[list[int]]]:
    return [
        [[shard.local_size(label) for label in dimension] for dimension in dims] for dims in labels
    ]


def read_view(view: View, array: Any, sizes: Sequence[Sequence[int]]) -> Any:
    """An array of the traced program, read from its tensor.

    Args:
        array: the tensor's array, one dimension per position; ``None`` for a constant.
        sizes: for every dimension its factors, as local sizes on this device.
    """
    shape = [math.prod(dimension) for dimension in sizes]
    if array is None:
        return lax.full(shape, view.value, view.dtype)
    # From tensor to array: put the positions in the array's order, repeat where the tensor has
    # none, then flatten. A device does the same with its local sizes, since a view never mixes
    # factors.
    positions = [position for dimension in view.positions for position in dimension]
    order = [position for position in positions if position is not None]
    if order != sorted(order):
        array = lax.transpose(array, order)
    if len(order) < len(positions):
        flat = [size for dimension in sizes for size in dimension]
        at = [i for i, position in enumerate(positions) if position is not None]
        array = lax.broadcast_in_dim(array, flat, at)
    return array.reshape(shape)


Copies = dict[Placements, jax.Array]
PlacedTensor = tuple[int, Placements]
"""A tensor in given placements."""

ACCUMULATE: Mapping[int, Callable[[Any, Any], Any]] = {
    SUM: jnp.add,
    MAX: jnp.maximum,
    MIN: jnp.minimum,
    REPLICATED: lambda before, now: now,  # the same in every microbatch
}


class MicrobatchLoop:
    """The microbatch loop of a plan.

    Args:
        table: the placements of all tensors of a problem with microbatches.
    """

    def __init__(self, table: PlacementTable):
        if table.problem.microbatch_split is None:
            raise PlanError("a step without microbatches has no loop")
        self.table, self.microbatch_split = table, table.problem.microbatch_split
        self.count, self.mesh = table.problem.microbatches, table.mesh
        graph = table.graph
        pairs = zip(graph.operators, self.microbatch_split.stages, strict=True)
        self.in_loop: list[Operator] = []
        self.after_loop: list[Operator] = []
        for operator, stage in pairs:
            (self.in_loop if stage == "loop" else self.after_loop).append(operator)
        inputs = [*graph.inputs, *(tensor for tensor, _ in graph.constants)]
        # The loop slices the local shard of the batch in any placements: see ``MicrobatchSlice``.
        # Inputs on different numbers of devices are cut at the same examples, which is why a common
        # multiple is taken. So are results, which may be on more devices than any input.
        placed = [*((t, table.produced_placements(t)) for t in inputs), *self.returned]
        parts = [self._devices(t, where) for t, where in placed if self.batch_placement(t) >= 0]
        self.batch_shards = math.lcm(*parts)
        self.sent_in_loop = self._sent_in_loop()

    def batch_placement(self, tensor: int) -> int:
        """The placement of a tensor along the loop."""
        return self.microbatch_split.batch_placements[tensor]

    def _sent_in_loop(self) -> set[int]:
        """The tensors that each microbatch gathers for itself, and all that they are made from."""
        sent = {
            tensor
            for tensor in self.table.reshards
            if self.batch_placement(tensor) == REPLICATED and self.table.is_sent(tensor)
        }
        for operator in reversed(self.in_loop):
            if any(result.tensor in sent for result in operator.results):
                sent.update(operand.tensor for operand in operator.operands)
        return sent

    def _devices(self, tensor: int, placements: Placements) -> int:
        """Number of shards of a tensor's batch dimension."""
        return num_shards(placements, self.batch_placement(tensor), self.mesh)

    @property
    def uses_after_loop(self) -> list[PlacedTensor]:
        """The tensors that are read after the loop, except inputs."""
        uses = []
        for tensor, reshard in self.table.reshards.items():
            group = self.table.problem.tensor_groups[reshard.group]
            if reshard.loop_resident is not None and not group.is_input:
                uses.append((tensor, reshard.loop_resident))
        return uses

    @property
    def returned(self) -> list[PlacedTensor]:
        """The tensors that the step returns split into microbatches."""
        outputs = self.table.graph.outputs
        return list(
            dict.fromkeys(
                (out.view.tensor, self.table.returned_placements(out))
                for out in outputs
                if out.view.tensor is not None and self.batch_placement(out.view.tensor) >= 0
            )
        )

    def reshards(self) -> dict[int, ReshardPlan]:
        """The reshard plans after the loop."""
        tensor_groups = self.table.problem.tensor_groups
        return {
            tensor: dataclasses.replace(
                reshard, in_forward=NO_RESHARD, after_forward=reshard.after_loop, saved=None
            )
            if tensor_groups[reshard.group].in_loop
            else reshard
            for tensor, reshard in self.table.reshards.items()
        }

    def inputs(
        self, before: Mapping[int, Copies], microbatch: MicrobatchSlice
    ) -> dict[int, Copies]:
        """The inputs of a microbatch: slices of the batch, and loop-resident copies.

        An input depends on the loop index if it, its slice or its cast is resharded in every
        microbatch; otherwise XLA would hoist the collectives out of the loop.
        """
        copies_of = {}
        for tensor, copies in before.items():
            reshard = self.table.reshards[tensor]
            if reshard.loop_resident is not None:
                copies = {reshard.loop_resident: copies[reshard.loop_resident]}
            if self.batch_placement(tensor) >= 0:
                copies_of[tensor] = {
                    placements: microbatch.slice_batch(
                        x, self.batch_placement(tensor), self._devices(tensor, placements)
                    )
                    for placements, x in copies.items()
                }
            elif tensor in self.sent_in_loop:
                arrays = wait_for([*copies.values()], microbatch.index)
                copies_of[tensor] = dict(zip(copies, arrays, strict=True))
            else:
                copies_of[tensor] = copies
        return copies_of

    def run(
        self, body: Callable[[MicrobatchSlice], Callable[[int, Placements], jax.Array]]
    ) -> dict[int, Copies]:
        """The tensors after the loop.

        Args:
            body: the body of the loop; it returns a function that gives a tensor's final copy.
        """
        dtypes = {
            tensor: self.table.graph.tensors[tensor].dtype for tensor, _ in self.uses_after_loop
        }
        # Random keys cannot be accumulated from zero.
        keys = [
            w for w in self.uses_after_loop if jnp.issubdtype(dtypes[w[0]], jax.dtypes.extended)
        ]
        carried = [where for where in self.uses_after_loop if where not in keys]
        stacked = [*self.returned, *keys]

        def microbatch(total: list[jax.Array], index: jax.Array):
            final_copy = body(MicrobatchSlice(index, self.count, self.batch_shards))
            after = []
            for (tensor, placements), before in zip(carried, total, strict=True):
                placement = self.batch_placement(tensor)
                now = final_copy(tensor, placements)
                added = ACCUMULATE[placement](before, now)
                # The carry begins with zeros, which suits a sum; a maximum may be below zero.
                is_extremum = placement in (MAX, MIN)
                after.append(jnp.where(index == 0, now, added) if is_extremum else added)
            return after, [final_copy(*where) for where in stacked]

        zeros = [jnp.zeros(self._sizes(*where), dtypes[where[0]]) for where in carried]
        totals, stacks = lax.scan(microbatch, zeros, jnp.arange(self.count))
        copies_of: dict[int, Copies] = {}
        for (tensor, placements), x in zip(carried, totals, strict=True):
            copies_of.setdefault(tensor, {})[placements] = x
        whole = MicrobatchSlice(0, self.count, self.batch_shards)
        for (tensor, placements), x in zip(stacked, stacks, strict=True):
            position = self.batch_placement(tensor)
            joined = x[-1]  # a key, the same in every microbatch
            if position >= 0:
                joined = whole.join_batch(x, position, self._devices(tensor, placements))
            copies_of.setdefault(tensor, {})[placements] = joined
        return copies_of

    def _sizes(self, tensor: int, placements: Placements) -> list[int]:
        sizes = enumerate(self.table.graph.tensors[tensor].sizes)
        return [size // num_shards(placements, position, self.mesh) for position, size in sizes]
