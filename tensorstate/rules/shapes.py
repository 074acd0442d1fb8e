"""Primitives that move, cut, join or make num_elements, and windows over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorstate.ir.graph import Kind
from tensorstate.rules.local_shard import LocalShard
from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    PrimitiveRule,
    ShardingRule,
    bind,
    bind_with,
    is_zero,
    label_counter,
    num_elements,
)

LINEAR_IN_FIRST = (frozenset({0}),)
Shape = tuple[int, ...]


def _rule_with_shared_dims(
    kind: Kind, shapes: Sequence[Shape], results: Sequence[Shape], same: Sequence[bool], **more
) -> ShardingRule:
    """Arrays of one rank: a dimension that is ``same`` in all has one label, others stand alone."""
    labels = label_counter()
    shared = [next(labels) if one else None for one in same]

    def place(shape: Shape) -> tuple[int, ...]:
        return tuple(next(labels) if label is None else label for label in shared[: len(shape)])

    ins, outs = tuple(place(shape) for shape in shapes), tuple(place(shape) for shape in results)
    need_replication = frozenset(range(next(labels))) - {
        label for label in shared if label is not None
    }
    return ShardingRule(kind, ins, outs, need_replication=need_replication, **more)


def _equal(a: Shape, b: Shape) -> list[bool]:
    return [x == y for x, y in zip(a, b, strict=True)]


# ---------------------------------------------------------------------- parts


def slice_(arguments, results, params) -> ShardingRule:
    """Whole along what is cut."""
    a, b = arguments[0].shape, results[0].shape
    return _rule_with_shared_dims("opaque", [a], [b], _equal(a, b), linear=LINEAR_IN_FIRST)


def _run_slice(equation: LocalEqn, arrays, shard: LocalShard):
    start = list(equation.params["start_indices"])
    limit = list(equation.params["limit_indices"])
    for d, labels in enumerate(equation.results[0]):
        if labels == equation.arguments[0][d]:
            limit[d] = shard.size(labels)
    return bind_with(equation, arrays, start_indices=tuple(start), limit_indices=tuple(limit))


def split(arguments, results, params) -> ShardingRule:
    """Whole along what is cut."""
    shape, axis = arguments[0].shape, params["axis"]
    same = [d != axis for d in range(len(shape))]
    return _rule_with_shared_dims(
        "opaque", [shape], [result.shape for result in results], same, linear=LINEAR_IN_FIRST
    )


def concatenate(arguments, results, params) -> ShardingRule:
    """Whole along what is joined; a sum of joined arrays is the joined sums."""
    shapes, axis = [argument.shape for argument in arguments], params["dimension"]
    same = [d != axis for d in range(len(shapes[0]))]
    joint = (frozenset(range(len(shapes))),)
    return _rule_with_shared_dims("opaque", shapes, [results[0].shape], same, linear=joint)


def pad(arguments, results, params) -> ShardingRule:
    """Whole along what is padded."""
    same = [tuple(config) == (0, 0, 0) for config in params["padding_config"]]
    linear = LINEAR_IN_FIRST if is_zero(arguments[1]) else ()
    return _rule_with_shared_dims(
        "opaque", [arguments[0].shape, ()], [results[0].shape], same, linear=linear
    )


def reverse(arguments, results, params) -> ShardingRule:
    """Whole along what is reversed."""
    shape = arguments[0].shape
    same = [d not in params["dimensions"] for d in range(len(shape))]
    return _rule_with_shared_dims("opaque", [shape], [shape], same, linear=LINEAR_IN_FIRST)


def dynamic_slice(arguments, results, params) -> ShardingRule:
    """Whole along what is cut; the places are scalars."""
    a, b = arguments[0].shape, results[0].shape
    shapes = [a, *(() for _ in arguments[1:])]
    return _rule_with_shared_dims("opaque", shapes, [b], _equal(a, b), linear=LINEAR_IN_FIRST)


def _run_dynamic_slice(equation: LocalEqn, arrays, shard: LocalShard):
    sizes = tuple(shard.size(labels) for labels in equation.results[0])
    return bind_with(equation, arrays, slice_sizes=sizes)


def dynamic_update_slice(arguments, results, params) -> ShardingRule:
    """Whole along what is overwritten in part; the places are scalars."""
    a, b = arguments[0].shape, arguments[1].shape
    shapes = [a, b, *(() for _ in arguments[2:])]
    both = (frozenset({0, 1}),)
    return _rule_with_shared_dims("opaque", shapes, [a], _equal(a, b), linear=both)


def reshape(arguments, results, params) -> ShardingRule:
    """A reshape that is no view: only leading and trailing dimensions that stay can be sharded."""
    a, b = arguments[0].shape, results[0].shape
    head = next(i for i, (x, y) in enumerate(zip((*a, 0), (*b, -1), strict=False)) if x != y)
    rest = min(len(a), len(b)) - head
    pairs = zip(reversed(a), reversed(b), strict=False)
    tail = min(rest, next((i for i, (x, y) in enumerate(pairs) if x != y), rest))
    labels = label_counter()
    first = [next(labels) for _ in range(head)]
    last = [next(labels) for _ in range(tail)]
    ends = frozenset(first + last)
    middle_in = [next(labels) for _ in a[head : len(a) - tail]]
    middle_out = [next(labels) for _ in b[head : len(b) - tail]]
    return ShardingRule(
        "opaque",
        ((*first, *middle_in, *last),),
        ((*first, *middle_out, *last),),
        linear=LINEAR_IN_FIRST,
        need_replication=frozenset(range(next(labels))) - ends,
    )


def _run_reshape(equation: LocalEqn, arrays, shard: LocalShard):
    return [jnp.reshape(arrays[0], [shard.size(labels) for labels in equation.results[0]])]


# ---------------------------------------------------------------------- sources


def source(arguments, results, params) -> ShardingRule:
    """Made from nothing, or from keys that are whole: any part of it can be."""
    labels = label_counter()
    ins = tuple(tuple(next(labels) for _ in argument.shape) for argument in arguments)
    need_replication = frozenset(label for one in ins for label in one)
    outs = tuple(tuple(next(labels) for _ in result.shape) for result in results)
    return ShardingRule(
        "source", ins, outs, need_replication=need_replication, flops=num_elements(results[0])
    )


def _run_iota(equation: LocalEqn, arrays, shard: LocalShard):
    labels = equation.results[0]
    shape = [shard.size(one) for one in labels]
    dimension = equation.params["dimension"]
    places = shard.global_indices(labels[dimension]).astype(equation.params["dtype"])
    return [lax.broadcast_in_dim(places, shape, (dimension,))]


# ---------------------------------------------------------------------- windows


def _is_pointwise(params: Mapping[str, Any], rank: int) -> list[bool]:
    """For every dimension whether its windows are single num_elements, each once."""
    once = [1] * rank
    dims = params["window_dimensions"]
    strides = params.get("window_strides", once)
    dilations = zip(
        params.get("base_dilation", once), params.get("window_dilation", once), strict=True
    )
    padding = params["padding"]
    return [
        (size, stride, *dilation, *pads) == (1, 1, 1, 1, 0, 0)
        for size, stride, dilation, pads in zip(dims, strides, dilations, padding, strict=True)
    ]


def _window(linear: tuple[frozenset[int], ...] = ()):
    def sharding_rule(
        arguments: Sequence[AbstractArray],
        results: Sequence[AbstractArray],
        params: Mapping[str, Any],
    ) -> ShardingRule:
        same = _is_pointwise(params, len(results[0].shape))
        shapes = [argument.shape for argument in arguments]
        flops = num_elements(results[0]) * int(np.prod(params["window_dimensions"]))
        outs = [result.shape for result in results]
        return _rule_with_shared_dims("window", shapes, outs, same, linear=linear, flops=flops)

    return sharding_rule


def _run_select_and_scatter(equation: LocalEqn, arrays, shard: LocalShard):
    """Where windows do not overlap, without tables of places as large as what they cover.

    XLA makes four of them on CPU and GPU as the program begins (``SelectAndScatterExpander``).
    """
    (source, operand), params = arrays, equation.params
    windows, best = params["window_dimensions"], WINDOW_SELECT.get(params["select_prim"])
    covered = tuple(n * w for n, w in zip(source.shape, windows, strict=True))
    apart = tuple(params["window_strides"]) == tuple(windows) and operand.shape == covered
    if best is None or not apart or any(map(any, params["padding"])):
        return bind(equation, arrays, shard)
    pairs = list(zip(source.shape, windows, strict=True))
    split = operand.reshape([size for pair in pairs for size in pair])
    inside = tuple(range(1, split.ndim, 2))
    places = jnp.arange(math.prod(windows)).reshape([s for w in windows for s in (1, w)])
    chosen = split == best(split, axis=inside, keepdims=True)
    # Of several that are best the first one is chosen.
    first = jnp.where(chosen, places, places.size).min(inside, keepdims=True)
    whole = source.reshape([size for n in source.shape for size in (n, 1)])
    return [jnp.where(places == first, whole, 0).reshape(operand.shape)]


# How elements of a window are compared, and which of them is best.
WINDOW_SELECT = {lax.ge_p: jnp.max, lax.le_p: jnp.min}

RULES: dict[str, PrimitiveRule] = {
    "slice": PrimitiveRule(slice_, _run_slice),
    "split": PrimitiveRule(split),
    "concatenate": PrimitiveRule(concatenate),
    "pad": PrimitiveRule(pad),
    "rev": PrimitiveRule(reverse),
    "dynamic_slice": PrimitiveRule(dynamic_slice, _run_dynamic_slice),
    "dynamic_update_slice": PrimitiveRule(dynamic_update_slice),
    "reshape": PrimitiveRule(reshape, _run_reshape),
    "iota": PrimitiveRule(source, _run_iota),
    "reduce_window_sum": PrimitiveRule(_window(LINEAR_IN_FIRST)),
    "reduce_window_max": PrimitiveRule(_window()),
    "reduce_window_min": PrimitiveRule(_window()),
    "reduce_window": PrimitiveRule(_window()),
    "select_and_scatter_add": PrimitiveRule(_window(LINEAR_IN_FIRST), _run_select_and_scatter),
    "select_and_gather_add": PrimitiveRule(_window(LINEAR_IN_FIRST)),
}
