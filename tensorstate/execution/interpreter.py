"""Runs operators: on global arrays, or on the local shards of one device.

A tensor is stored as an array with one dimension per position. An operator reads it through its
view: a transpose, a broadcast and a reshape, as in the traced equation. Its primitive is bound with
size parameters of the local shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tensorstate.errors import PlanError
from tensorstate.execution.ordering import wait_for
from tensorstate.ir.graph import Graph, Operator, View
from tensorstate.rules import AbstractArray, LocalEqn
from tensorstate.rules.local_shard import LocalShard


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
