"""Products of groups of rows with weights of their own: ``ragged_dot``, the experts of a mixture.

The rows of a group follow each other. In the forward product every group of rows meets its own
weights: experts and rows can be sharded. A device with some of the experts computes the rows of
these, and zeros for all others, so the shards are summed. In the gradient of the weights the rows
are summed, each group for itself, and experts are a dimension of the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from tensorstate.rules.products import BILINEAR, product_labels
from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    LocalShard,
    PrimitiveRule,
    ShardingRule,
    bind_with,
)


def ragged_dot(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """An einsum with a label for the groups: summed over, or of the result."""
    contracted, batch, _, groups = _numbers(params)
    left, right, out, reductions, unused = product_labels(arguments, (contracted, batch), groups)
    # Forward, [rows, k] with [experts, k, n] gives [rows, n]: every row meets one expert, which is
    # as a sum over experts of which all terms but one are 0. The gradient of the weights, [rows, k]
    # with [rows, n], is [experts, k, n]: no operand has that dimension.
    sizes = next(unused)
    if not groups:
        out = (next(unused), *out)
    gone = (*contracted[1], *batch[1], *groups)
    columns = math.prod(n for j, n in enumerate(arguments[1].shape) if j not in gone)
    return ShardingRule(
        "einsum",
        (left, right, (sizes,)),
        (out,),
        reductions,
        BILINEAR,
        # Every device needs the sizes of all groups, to know where its own begin.
        frozenset({sizes}),
        # Of every row once, however many experts there are.
        2 * math.prod(arguments[0].shape) * columns,
    )


def _numbers(params: Mapping[str, Any]):
    """Contracted and batch dimensions of both operands, the ragged one, and the groups' one."""
    numbers = params["ragged_dot_dimension_numbers"]
    contracted, batch = numbers.dot_dimension_numbers
    return contracted, batch, numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions


def _applies(arguments: Sequence[AbstractArray], params: Mapping[str, Any]) -> bool:
    """Whether rows are ragged, not batches, and every group has its weights and one size."""
    _, (left_batch, _), ragged, _ = _numbers(params)
    known = params.get("group_offset") is None and len(arguments) == 3
    return (
        known and len(arguments[2].shape) == 1 and len(ragged) == 1 and ragged[0] not in left_batch
    )


def _run(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    """The product of a device's rows with its experts' weights."""
    left, right, sizes = arrays
    _, _, ragged, groups = _numbers(equation.params)
    rows = equation.arguments[0][ragged[0]]
    experts = equation.arguments[1][groups[0]] if groups else equation.results[0][0]
    if shard.is_sharded(rows):
        # The sizes of groups on this device: by the group of every row that it has. Groups of 3, 0
        # and 5 rows on two devices are (3, 0, 1) and (0, 0, 4).
        group_of = jnp.searchsorted(jnp.cumsum(sizes), shard.global_indices(rows), side="right")
        sizes = (group_of[:, None] == jnp.arange(len(sizes))).sum(0, dtype=sizes.dtype)
    if not shard.is_sharded(experts):
        return bind_with(equation, (left, right, sizes))
    mine = shard.global_indices(experts)
    if shard.is_sharded(experts[1:]):  # experts of several blocks: all, the others with weights 0
        if not groups:
            return [result[mine] for result in bind_with(equation, (left, right, sizes))]
        at = (*(slice(None),) * groups[0], mine)
        shape = (*right.shape[: groups[0]], len(sizes), *right.shape[groups[0] + 1 :])
        return bind_with(equation, (left, jnp.zeros(shape, right.dtype).at[at].set(right), sizes))
    first, count = mine[0], shard.size(experts)
    # The rows before a device's experts are a group of their own, with weights of 0.
    before = jnp.where(jnp.arange(len(sizes)) < first, sizes, 0).sum(keepdims=True)
    own = lax.dynamic_slice_in_dim(sizes, first, count)
    sizes = jnp.concatenate([before.astype(sizes.dtype), own])
    if groups:
        zeros = jnp.zeros_like(lax.slice_in_dim(right, 0, 1, axis=groups[0]))
        right = jnp.concatenate([zeros, right], axis=groups[0])
        return bind_with(equation, (left, right, sizes))
    return [result[1:] for result in bind_with(equation, (left, right, sizes))]


RULES: dict[str, PrimitiveRule] = {
    "ragged_dot_general": PrimitiveRule(ragged_dot, _run, applies=_applies)
}
