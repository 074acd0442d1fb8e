"""Operators on arrays with a dimension per factor, instead of the dimensions of the traced program.

Heads and their width are two factors, mostly folded into one dimension. A plan may shard both. An
array with the folded dimension then has no sharding that XLA's partitioner knows, and would be
gathered; so products, reductions and elementwise operators run on factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from tensorstate.execution.microbatch_loop import read_view
from tensorstate.execution.step_loop import flat_view
from tensorstate.ir.graph import Operator
from tensorstate.rules.padding import BY_DIMENSION
from tensorstate.rules.sharding_rule import LocalEqn, LocalShard, bind

_SUMS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")


def run_on_factors(operator: Operator, arrays: Sequence[Any]) -> list[Any] | None:
    """The results of an operator, one dimension per position.

    ``None`` where it must see the dimensions of the traced program.

    Args:
        arrays: an array for each of ``operator.operands``, one dimension per position.
    """
    if operator.primitive == "dot_general":
        return _product(operator, arrays)
    if operator.primitive in _SUMS:
        return _sum(operator, arrays)
    if operator.kind != "elementwise" or len(operator.results) != 1:
        return None
    if operator.primitive in BY_DIMENSION:
        return None
    call = operator.eqn
    out = call.output_labels[0]
    if any(labels != out for labels in call.input_labels if labels):
        return None  # an argument of size 1 is broadcast
    outputs = tuple(flat_view(view) for view in call.outputs)
    equation = LocalEqn(call.primitive, call.params, (), (), ())
    run = call.rule.run_local if operator.primitive != "optimization_barrier" else bind
    full = LocalShard.full(operator.sizes)
    (result,) = run(equation, _arguments(operator, arrays), full)
    return [result] if result.shape == outputs[0].shape else None


def _product(operator: Operator, arrays: Sequence[Any]) -> list[Any] | None:
    """A product, by the labels of its operands: one that both have is summed, or kept in both."""
    call = operator.eqn
    (contracted, batch), params = call.params["dimension_numbers"], call.params
    left, right = call.input_labels
    for dims in (contracted, batch):
        if [left[d] for d in dims[0]] != [right[d] for d in dims[1]]:
            return None  # the dimensions are split otherwise
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
    # dot_general puts the kept dimensions first, then the free ones of either operand.
    free = [label for label in (*a, *b) if label not in (*summed, *kept)]
    wanted, made = _joined(call.output_labels[0]), [*kept, *free]
    return [result.transpose([made.index(label) for label in wanted])]


def _sum(operator: Operator, arrays: Sequence[Any]) -> list[Any]:
    """A reduction over all labels of its dimensions, in the order of the result's."""
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
