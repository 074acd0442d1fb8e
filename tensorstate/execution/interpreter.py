"""Runs operators, on global arrays or on the local shards of one device, in the order of the plan.

A tensor is stored as an array with one dimension per position. An operator reads it through its
view: a transpose, a broadcast and a reshape, as in the traced equation. Its primitive is bound with
size parameters of the local shard.

The order is forced by ``lax.optimization_barrier``, all of whose results depend on all of its
operands. Three properties of it matter. XLA removes an operand whose result has no other consumer
(``AlgebraicSimplifierVisitor::HandleOptimizationBarrier``), so that a token which is only waited
for is lost: hence two barriers per token. An array is live until all barriers that take it have
executed: hence the token is one element of the array. On CPU every barrier has its own table of
pointers for the whole program: hence as few barriers as possible.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph, Operator, View
from tensorstate.rules import AbstractArray, LocalEqn
from tensorstate.rules.sharding_rule import LocalShard


def completion_scalar(x: jax.Array) -> jax.Array:
    """A token: one element of an array, available when the array is."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())


def wait_for(arrays: Sequence[jax.Array], *tokens: jax.Array) -> list[jax.Array]:
    """The arrays, none available before all of them and all the tokens are."""
    waiting = list(arrays)
    for _ in range(2 if waiting and tokens else 0):
        waiting = lax.optimization_barrier((*waiting, *tokens))[: len(waiting)]
    return list(waiting)


def materialize(x: jax.Array) -> jax.Array:
    """The array, not fused into its consumers."""
    return lax.optimization_barrier((x,))[0]


class ExecutionOrder:
    """Delays arrays until the last result before them is available.

    A barrier takes the last token and the one before it, so that every token but the last is taken
    by two barriers.

    Attributes:
        num_events: number of results that arrays can wait for.
    """

    def __init__(self):
        self.num_events = 0
        self._last_result: jax.Array | None = None
        self._tokens: list[jax.Array] = []  # the last two tokens, the latest first

    def advance(self, result: jax.Array) -> None:
        """Arrays that are delayed from here on wait for a result."""
        self.num_events += 1
        self._last_result = result

    @property
    def latest(self) -> list[jax.Array]:
        """The token of the last event, if any."""
        if self._last_result is not None:
            self._tokens = [completion_scalar(self._last_result), *self._tokens[:1]]
            self._last_result = None
        return self._tokens[:1]

    def delay(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The arrays, none available before all of them and the last event are."""
        latest = self.latest
        if len(self._tokens) < 2:
            return wait_for(arrays, *latest)
        return list(lax.optimization_barrier((*arrays, *self._tokens))[: len(arrays)])


def updated_args(graph: Graph) -> dict[int, set[int]]:
    """By gradient, the arguments that it updates.

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
            same = [use.tensor for use in operator.operands]
            pending += [t for t in same if graph.tensors[t].size == tensor.size]
    return args


# ---------------------------------------------------------------------- one operator after another


def run_operator(
    operator: Operator, arrays: Sequence[Any], shard: LocalShard, token: Any = None
) -> list[Any]:
    """The local results of an operator, from the local shards of its operands.

    Args:
        arrays: an array for each of ``operator.operands``, one dimension per position.
        shard: the part of the operator's labels that the device has.
        token: an array before which no zeros are made to scatter into; XLA would make them as the
            program begins, and keep them.

    Returns:
        An array for each of ``operator.results``, one dimension per position.
    """
    call = operator.eqn
    given = iter(arrays)
    arguments = [
        read_view(view, next(given) if view.tensor is not None else None, sizes)
        for view, sizes in zip(call.inputs, _sizes(call.input_labels, shard), strict=True)
    ]
    if operator.kind == "scatter" and token is not None and call.inputs[0].tensor is None:
        zero = wait_for([jnp.asarray(call.inputs[0].value)], token)[0]
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
        array: the tensor's, one dimension per position; ``None`` for a constant.
        sizes: for every dimension what it is the product of, on this device.
    """
    shape = [math.prod(dimension) for dimension in sizes]
    if array is None:
        return lax.full(shape, view.value, view.dtype)
    positions = [position for dimension in view.positions for position in dimension]
    order = [position for position in positions if position is not None]
    if order != sorted(order):
        array = lax.transpose(array, order)
    if len(order) < len(positions):
        flat = [size for dimension in sizes for size in dimension]
        at = [i for i, position in enumerate(positions) if position is not None]
        array = lax.broadcast_in_dim(array, flat, at)
    return array.reshape(shape)


def evaluate(graph: Graph, leaves: Sequence[Any]) -> dict[int, Any]:
    """All tensors of a graph, as global arrays, from its arguments."""
    values: dict[int, Any] = {}
    for index, leaf in (*zip(graph.inputs, leaves, strict=True), *graph.constants):
        values[index] = jnp.asarray(leaf).reshape(graph.tensors[index].sizes)
    for operator in graph.operators:
        arrays = [values[use.tensor] for use in operator.operands]
        results = run_operator(operator, arrays, LocalShard.full(operator.sizes))
        for use, result in zip(operator.results, results, strict=True):
            values[use.tensor] = result
    return values


def interpret(graph: Graph) -> Callable[..., Any]:
    """The step of a graph on one device, with the signature of the traced function."""

    def step(*args):
        leaves, tree = jax.tree.flatten(args)
        if tree != graph.in_tree:
            raise PlanError(f"the step takes arguments of {graph.in_tree}, got {tree}")
        values = evaluate(graph, leaves)
        outputs = [
            read_view(
                out.view,
                None if out.view.tensor is None else values[out.view.tensor],
                out.view.sizes,
            )
            for out in graph.outputs
        ]
        return jax.tree.unflatten(graph.out_tree, outputs)

    return step
