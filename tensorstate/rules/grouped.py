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

from tensorstate.ir.graph import Reduce
from tensorstate.rules.products import BILINEAR
from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    LocalShard,
    PrimitiveRule,
    ShardingRule,
    bind_with,
    label_counter,
)


def ragged_dot(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """An einsum with a label for the groups: summed over, or of the result."""
    (left_sum, right_sum), (left_batch, right_batch), _, groups = _numbers(params)
    labels = label_counter()
    a: list[int | None] = [None] * len(arguments[0].shape)
    b: list[int | None] = [None] * len(arguments[1].shape)
    reductions: dict[int, Reduce] = {}
    for i, j in zip(left_batch, right_batch, strict=True):
        a[i] = b[j] = next(labels)
    for i, j in zip(left_sum, right_sum, strict=True):
        a[i] = b[j] = label = next(labels)
        reductions[label] = "sum"
    group, sizes = next(labels), next(labels)
    if groups:
        b[groups[0]] = group
        reductions[group] = "sum"
    a = [next(labels) if label is None else label for label in a]
    b = [next(labels) if label is None else label for label in b]
    free = [a[i] for i in range(len(a)) if i not in (*left_sum, *left_batch)]
    free += [b[j] for j in range(len(b)) if j not in (*right_sum, *right_batch, *groups)]
    out = [*([] if groups else [group]), *(a[i] for i in left_batch), *free]
    gone = (*right_sum, *right_batch, *groups)
    columns = math.prod(n for j, n in enumerate(arguments[1].shape) if j not in gone)
    return ShardingRule(
        "einsum",
        (tuple(a), tuple(b), (sizes,)),
        (tuple(out),),
        reductions,
        BILINEAR,
        # Every device needs the sizes of all groups, to know where its own begin.
        frozenset({sizes}),
        2 * math.prod(arguments[0].shape) * columns,
    )


def _numbers(params: Mapping[str, Any]):
    """Contracted and batch dimensions of both operands, the ragged one, and the groups' one."""
    numbers = params["ragged_dot_dimension_numbers"]
    contracted, batch = numbers.dot_dimension_numbers
    return contracted, batch, numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions


def _applies(arguments: Sequence[AbstractArray], params: Mapping[str, Any]) -> bool:
    """Whether rows are ragged and not batches, all groups are there, with one size each."""
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
