"""Sums of products (``dot_general``, convolutions), reductions, cumulative reductions, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorstate.ir.graph import Reduce
from tensorstate.rules.sharding_rule import (
    AbstractArray,
    PrimitiveRule,
    ShardingRule,
    label_counter,
    num_elements,
)

BILINEAR = (frozenset({0}), frozenset({1}))


def dot_general(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """An einsum of two operands: batch, free and contracted dimensions."""
    left, right = (argument.shape for argument in arguments)
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    labels = label_counter()
    a: list[int | None] = [None] * len(left)
    b: list[int | None] = [None] * len(right)
    for i, j in zip(left_batch, right_batch, strict=True):
        a[i] = b[j] = next(labels)
    reductions: dict[int, Reduce] = {}
    for i, j in zip(left_sum, right_sum, strict=True):
        a[i] = b[j] = label = next(labels)
        reductions[label] = "sum"
    a = [next(labels) if label is None else label for label in a]
    b = [next(labels) if label is None else label for label in b]
    out = [a[i] for i in left_batch]
    out += [a[i] for i in range(len(left)) if i not in left_sum and i not in left_batch]
    out += [b[j] for j in range(len(right)) if j not in right_sum and j not in right_batch]
    summed = math.prod(left[i] for i in left_sum)
    flops = 2 * math.prod(results[0].shape) * summed
    return ShardingRule(
        "einsum", (tuple(a), tuple(b)), (tuple(out),), reductions, BILINEAR, flops=flops
    )


def convolution(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """Batch and features as in an einsum. Space is replicated: windows would cross its shards."""
    numbers = params["dimension_numbers"]
    kernel = arguments[1].shape
    labels = label_counter()
    batch, channels, features, *unshared = (next(labels) for _ in range(6))
    need_replication = set(unshared)
    sides = ((batch, channels), (features, channels), (batch, features))
    # Group counts split the features or batch of one array only: these dimensions share no label.
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


RULES: dict[str, PrimitiveRule] = {
    "dot_general": PrimitiveRule(dot_general),
    "conv_general_dilated": PrimitiveRule(convolution),
}


# ---------------------------------------------------------------------- reductions


LINEAR_IN_FIRST = (frozenset({0}),)

REDUCE_OPS: dict[str, Reduce | None] = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "max",
    "reduce_and": "min",
    # Results of shards of these cannot be combined by a sum, a maximum or a minimum.
    "reduce_prod": None,
    "reduce_xor": None,
    "argmax": None,
    "argmin": None,
}
SCAN_OPS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "top_k")


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
        rank = len(arguments[0].shape)
        axis = params["dimension" if name == "sort" else "axis"] % rank
        labels = tuple(range(rank))
        shortened = arguments[0].shape[axis] != results[0].shape[axis]
        kept = tuple(rank if i == axis and shortened else i for i in labels)
        return ShardingRule(
            "reduction" if name == "top_k" else "opaque",
            tuple(labels for _ in arguments),
            tuple(kept for _ in results),
            linear=LINEAR_IN_FIRST if name == "cumsum" else (),
            need_replication=frozenset({axis, kept[axis]}),
            flops=num_elements(arguments[0]),
        )

    return sharding_rule


REDUCTIONS: dict[str, PrimitiveRule] = {
    **{name: PrimitiveRule(_reduction(name, op)) for name, op in REDUCE_OPS.items()},
    **{name: PrimitiveRule(_cumulative_rule(name)) for name in SCAN_OPS},
}
