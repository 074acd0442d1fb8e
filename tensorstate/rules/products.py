"""Sums of products (``dot_general``, convolutions), reductions, cumulative reductions, sorting.

``ragged_dot`` multiplies groups of rows by weights of their own, as the experts of a mixture do.
The rows of a group follow each other. In the forward product every group of rows meets its own
weights: experts and rows can be sharded. A device with some of the experts computes the rows of
these, and zeros for all others, so the shards are summed. In the gradient of the weights the rows
are summed, each group for itself, and experts are a dimension of the result. Where both are sharded
together, rows are sent to their experts (``exchange``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from tensorstate.ir.graph import Reduce
from tensorstate.ir.placements import Exchange
from tensorstate.rules.exchange import Groups
from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    LocalShard,
    PrimitiveRule,
    ShardingRule,
    bind_with,
    label_counter,
    num_elements,
)

BILINEAR = (frozenset({0}), frozenset({1}))


class ProductLabels(NamedTuple):
    """A product of two operands in labels.

    Attributes:
        left, right, out: labels of every dimension of the operands and of the result.
        reductions: the labels that are summed over.
        unused: more labels.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]
    reductions: dict[int, Reduce]
    unused: Iterator[int]


def product_labels(
    arguments: Sequence[AbstractArray], numbers: Any, groups: Sequence[int] = ()
) -> ProductLabels:
    """The labels of a product, as in ``jnp.einsum``.

    Args:
        numbers: contracted and batch dimensions of both operands, as for ``lax.dot_general``.
        groups: dimensions of the right operand alone that are summed over too.
    """
    (left_sum, right_sum), (left_batch, right_batch) = numbers
    labels = label_counter()
    a: list[int | None] = [None] * len(arguments[0].shape)
    b: list[int | None] = [None] * len(arguments[1].shape)
    for i, j in zip(left_batch, right_batch, strict=True):
        a[i] = b[j] = next(labels)
    reductions: dict[int, Reduce] = {}
    for i, j in zip(left_sum, right_sum, strict=True):
        a[i] = b[j] = label = next(labels)
        reductions[label] = "sum"
    for j in groups:
        b[j] = label = next(labels)
        reductions[label] = "sum"
    left = tuple(next(labels) if label is None else label for label in a)
    right = tuple(next(labels) if label is None else label for label in b)
    # JAX puts the batch first, then the free dimensions of the left operand, then of the right.
    out = [left[i] for i in left_batch]
    out += [label for i, label in enumerate(left) if i not in (*left_sum, *left_batch)]
    gone = (*right_sum, *right_batch, *groups)
    out += [label for j, label in enumerate(right) if j not in gone]
    return ProductLabels(left, right, tuple(out), reductions, labels)


def dot_general(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """An einsum of two operands: batch, free and contracted dimensions."""
    numbers = params["dimension_numbers"]
    left, right, out, reductions, _ = product_labels(arguments, numbers)
    summed = math.prod(arguments[0].shape[i] for i in numbers[0][0])
    flops = 2 * math.prod(results[0].shape) * summed
    return ShardingRule("einsum", (left, right), (out,), reductions, BILINEAR, flops=flops)


def convolution(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """Batch and features as in an einsum; space is replicated: windows would cross its shards."""
    # [N, H, W, C] with [3, 3, C, F] is sharded by N, by F, or by C with partial sums. The gradient
    # of the
    # kernel is a convolution too, which contracts images: its ``numbers`` then call N the features,
    # so it needs no case of its own.
    numbers = params["dimension_numbers"]
    kernel = arguments[1].shape
    labels = label_counter()
    batch, channels, features, *unshared = (next(labels) for _ in range(6))
    need_replication = set(unshared)
    sides = ((batch, channels), (features, channels), (batch, features))
    # Group counts split the features or batch of one array only, so these dimensions share no
    # label.
    # Features are replicated too: a device with half of them would have half of the groups, so
    # another group count, and other channels of the image.
    if params["feature_group_count"] > 1:
        sides = ((batch, unshared[0]), (features, unshared[1]), (batch, features))
        need_replication.add(features)
    elif params["batch_group_count"] > 1:
        sides = ((unshared[0], channels), (features, channels), (unshared[1], features))
        need_replication.add(features)

    def labelled(spec: Sequence[int], side: tuple[int, int]) -> tuple[int, ...]:
        space = [next(labels) for _ in spec[2:]]
        need_replication.update(space)
        at = dict(zip(spec, (*side, *space), strict=True))
        return tuple(at[dimension] for dimension in range(len(spec)))

    specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    image, weights, out = (labelled(spec, side) for spec, side in zip(specs, sides, strict=True))
    reductions: dict[int, Reduce] = {channels: "sum"} if channels in image else {}
    window = math.prod(kernel[d] for d in numbers.rhs_spec[1:])
    flops = 2 * math.prod(results[0].shape) * window
    return ShardingRule(
        "window", (image, weights), (out,), reductions, BILINEAR, frozenset(need_replication), flops
    )


def ragged_dot(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """An einsum with a label for the groups, which is summed over or belongs to the result."""
    contracted, batch, _, groups = _grouped_numbers(params)
    left, right, out, reductions, unused = product_labels(arguments, (contracted, batch), groups)
    # Forward, [rows, k] with [experts, k, n] gives [rows, n]: every row meets one expert, like a
    # sum over experts in which all terms but one are 0. The gradient of the weights, [rows, k] with
    # [rows, n], is [experts, k, n]: no operand has the dimension of experts.
    sizes = next(unused)
    if not groups:
        out = (next(unused), *out)
    gone = (*contracted[1], *batch[1], *groups)
    columns = math.prod(n for j, n in enumerate(arguments[1].shape) if j not in gone)
    _, _, ragged, _ = _grouped_numbers(params)
    rows, expert = left[ragged[0]], right[groups[0]] if groups else out[0]
    num_experts = arguments[1].shape[groups[0]] if groups else results[0].shape[0]
    exchange = Exchange(next(unused), rows, expert)
    return ShardingRule(
        "einsum",
        (left, right, (sizes,)),
        (out,),
        reductions,
        BILINEAR,
        # Every device needs the sizes of all groups, to know where its own groups begin.
        frozenset({sizes}),
        # Every row counts once, however many experts there are.
        2 * math.prod(arguments[0].shape) * columns,
        {exchange.label: math.gcd(arguments[0].shape[ragged[0]], num_experts)},
        exchange,
    )


def _grouped_numbers(params: Mapping[str, Any]):
    """Contracted and batch dimensions of both operands, the ragged one, and that of groups."""
    numbers = params["ragged_dot_dimension_numbers"]
    contracted, batch = numbers.dot_dimension_numbers
    return contracted, batch, numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions


def _is_grouped(arguments: Sequence[AbstractArray], params: Mapping[str, Any]) -> bool:
    """Whether rows are ragged, not batches, and every group has its weights and one size."""
    _, (left_batch, _), ragged, _ = _grouped_numbers(params)
    known = params.get("group_offset") is None and len(arguments) == 3
    return (
        known and len(arguments[2].shape) == 1 and len(ragged) == 1 and ragged[0] not in left_batch
    )


def _run_grouped(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    """The product of a device's rows with its experts' weights."""
    left, right, sizes = arrays
    _, _, ragged, groups = _grouped_numbers(equation.params)
    if shard.exchange is not None:
        return _run_exchanged(equation, arrays, shard)
    rows = equation.arguments[0][ragged[0]]
    experts = equation.arguments[1][groups[0]] if groups else equation.results[0][0]
    if shard.is_sharded(rows):
        # The sizes of groups on this device, from the group of every row that it has. Groups of 3,
        # 0 and 5 rows on two devices are (3, 0, 1) and (0, 0, 4).
        group_of = jnp.searchsorted(jnp.cumsum(sizes), shard.global_indices(rows), side="right")
        sizes = (group_of[:, None] == jnp.arange(len(sizes))).sum(0, dtype=sizes.dtype)
    if not shard.is_sharded(experts):
        return bind_with(equation, (left, right, sizes))
    mine = shard.global_indices(experts)
    if shard.is_sharded(experts[1:]):  # several blocks of experts: all, others with weights 0
        if not groups:
            return [result[mine] for result in bind_with(equation, (left, right, sizes))]
        at = (*(slice(None),) * groups[0], mine)
        shape = (*right.shape[: groups[0]], len(sizes), *right.shape[groups[0] + 1 :])
        return bind_with(equation, (left, jnp.zeros(shape, right.dtype).at[at].set(right), sizes))
    first, count = mine[0], shard.size(experts)
    # The rows before a device's experts are a group of their own, with zero weights.
    before = jnp.where(jnp.arange(len(sizes)) < first, sizes, 0).sum(keepdims=True)
    own = lax.dynamic_slice_in_dim(sizes, first, count)
    sizes = jnp.concatenate([before.astype(sizes.dtype), own])
    if groups:
        zeros = jnp.zeros_like(lax.slice_in_dim(right, 0, 1, axis=groups[0]))
        right = jnp.concatenate([zeros, right], axis=groups[0])
        return bind_with(equation, (left, right, sizes))
    return [result[1:] for result in bind_with(equation, (left, right, sizes))]


def _run_exchanged(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    """The product of rows that are sent to their experts; results of rows are sent back."""
    left, right, sizes = arrays
    contracted, _, ragged, groups = _grouped_numbers(equation.params)
    rows = equation.arguments[0][ragged[0]]
    (expert,) = equation.arguments[1][groups[0]] if groups else equation.results[0][0]
    route = Groups.of(shard, rows, expert, sizes)

    def sent(x, at):
        return jnp.moveaxis(route.out(jnp.moveaxis(x, at, 0)), 0, at)

    left = sent(left, ragged[0])
    if not groups:  # the gradient of the weights: both operands have the rows
        left_sum, right_sum = contracted
        right = sent(right, right_sum[left_sum.index(ragged[0])])
        return bind_with(equation, (left, right, route.sizes))
    (made,), at = bind_with(equation, (left, right, route.sizes)), equation.results[0].index(rows)
    return [jnp.moveaxis(route.back(jnp.moveaxis(made, at, 0)), 0, at)]


RULES: dict[str, PrimitiveRule] = {
    "dot_general": PrimitiveRule(dot_general),
    "conv_general_dilated": PrimitiveRule(convolution),
    "ragged_dot_general": PrimitiveRule(ragged_dot, _run_grouped, applies=_is_grouped),
}


# ---------------------------------------------------------------------- reductions


LINEAR_IN_FIRST = (frozenset({0}),)

REDUCE_OPS: dict[str, Reduce | None] = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "max",
    "reduce_and": "min",
    # Results of their shards cannot be combined by a sum, a maximum or a minimum.
    "reduce_prod": None,
    "reduce_xor": None,
    "argmax": None,
    "argmin": None,
}
SCAN_OPS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort")
TOP_OPS = ("top_k", "approx_top_k")
# The parameter that names the dimension, where it is not "axis".
AXIS_OF = {"sort": "dimension", "approx_top_k": "reduction_dimension"}


def _reduction(name: str, reduce_op: Reduce | None) -> Callable[..., ShardingRule]:
    def sharding_rule(
        arguments: Sequence[AbstractArray],
        results: Sequence[AbstractArray],
        params: Mapping[str, Any],
    ) -> ShardingRule:
        shape = arguments[0].shape
        axes = {int(axis) for axis in params["axes"]}
        labels = tuple(range(len(shape)))
        kept = tuple(label for label in labels if label not in axes)
        return ShardingRule(
            "reduction",
            (labels,),
            (kept,),
            {} if reduce_op is None else dict.fromkeys(sorted(axes), reduce_op),
            LINEAR_IN_FIRST if name == "reduce_sum" else (),
            frozenset(axes) if reduce_op is None else frozenset(),
            num_elements(arguments[0]),
        )

    return sharding_rule


def _cumulative_rule(name: str) -> Callable[..., ShardingRule]:
    def sharding_rule(
        arguments: Sequence[AbstractArray],
        results: Sequence[AbstractArray],
        params: Mapping[str, Any],
    ) -> ShardingRule:
        """Replicated along one dimension; independent along the others."""
        # A sharded ``cumsum`` would need the totals of all devices before it, and a sharded
        # ``sort`` the rows of all devices.
        rank = len(arguments[0].shape)
        axis = params[AXIS_OF.get(name, "axis")] % rank
        labels = tuple(range(rank))
        shortened = arguments[0].shape[axis] != results[0].shape[axis]  # only in ``TOP_OPS``
        kept = tuple(rank if i == axis and shortened else i for i in labels)
        return ShardingRule(
            "reduction" if name in TOP_OPS else "opaque",
            tuple(labels for _ in arguments),
            tuple(kept for _ in results),
            linear=LINEAR_IN_FIRST if name == "cumsum" else (),
            need_replication=frozenset({axis, kept[axis]}),
            flops=num_elements(arguments[0]),
        )

    return sharding_rule


REDUCTIONS: dict[str, PrimitiveRule] = {
    **{name: PrimitiveRule(_reduction(name, op)) for name, op in REDUCE_OPS.items()},
    **{name: PrimitiveRule(_cumulative_rule(name)) for name in (*SCAN_OPS, *TOP_OPS)},
}
