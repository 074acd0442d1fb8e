"""Primitives that slice, join, reorder or generate arrays, windows over them, and random bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from tensorstate.ir.graph import Kind
from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    LocalShard,
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
    """The rule of arrays of one rank, which share the labels of the dimensions that are ``same``.

    Other dimensions are replicated.
    """
    labels = label_counter()
    shared = [next(labels) if is_same else None for is_same in same]

    def labelled(shape: Shape) -> tuple[int, ...]:
        return tuple(next(labels) if label is None else label for label in shared[: len(shape)])

    ins, outs = tuple(map(labelled, shapes)), tuple(map(labelled, results))
    need_replication = frozenset(range(next(labels))) - {
        label for label in shared if label is not None
    }
    return ShardingRule(kind, ins, outs, need_replication=need_replication, **more)


def _equal(a: Shape, b: Shape) -> list[bool]:
    return [x == y for x, y in zip(a, b, strict=True)]


# ---------------------------------------------------------------------- parts


def slice_(arguments, results, params) -> ShardingRule:
    """Replicated along the sliced dimensions."""
    a, b = arguments[0].shape, results[0].shape
    return _rule_with_shared_dims("opaque", [a], [b], _equal(a, b), linear=LINEAR_IN_FIRST)


def _run_slice(equation: LocalEqn, arrays, shard: LocalShard):
    start = list(equation.params["start_indices"])
    limit = list(equation.params["limit_indices"])
    for d, labels in enumerate(equation.results[0]):
        if labels == equation.arguments[0][d]:  # not sliced, so to the end of the shard
            limit[d] = shard.size(labels)
    return bind_with(equation, arrays, start_indices=tuple(start), limit_indices=tuple(limit))


def split(arguments, results, params) -> ShardingRule:
    """Replicated along the split dimension."""
    shape, axis = arguments[0].shape, params["axis"]
    same = [d != axis for d in range(len(shape))]
    return _rule_with_shared_dims(
        "opaque", [shape], [result.shape for result in results], same, linear=LINEAR_IN_FIRST
    )


def concatenate(arguments, results, params) -> ShardingRule:
    """Replicated along the concatenated dimension; jointly linear in all arguments."""
    # Two arrays of 4 rows, each sharded in two, have rows 0, 1 and 4, 5 of the result on the first
    # device. Joined there, they are not the first half of the 8 rows.
    shapes, axis = [argument.shape for argument in arguments], params["dimension"]
    same = [d != axis for d in range(len(shapes[0]))]
    linear = (frozenset(range(len(shapes))),)
    return _rule_with_shared_dims("opaque", shapes, [results[0].shape], same, linear=linear)


def pad(arguments, results, params) -> ShardingRule:
    """Replicated along the padded dimensions; linear if padded by 0."""
    same = [tuple(config) == (0, 0, 0) for config in params["padding_config"]]
    linear = LINEAR_IN_FIRST if is_zero(arguments[1]) else ()
    return _rule_with_shared_dims(
        "opaque", [arguments[0].shape, ()], [results[0].shape], same, linear=linear
    )


def reverse(arguments, results, params) -> ShardingRule:
    """Replicated along the reversed dimensions."""
    shape = arguments[0].shape
    same = [d not in params["dimensions"] for d in range(len(shape))]
    return _rule_with_shared_dims("opaque", [shape], [shape], same, linear=LINEAR_IN_FIRST)


def dynamic_slice(arguments, results, params) -> ShardingRule:
    """Replicated along the sliced dimensions; the start indices are scalars."""
    a, b = arguments[0].shape, results[0].shape
    shapes = [a, *(() for _ in arguments[1:])]
    return _rule_with_shared_dims("opaque", shapes, [b], _equal(a, b), linear=LINEAR_IN_FIRST)


def _run_dynamic_slice(equation: LocalEqn, arrays, shard: LocalShard):
    sizes = tuple(shard.size(labels) for labels in equation.results[0])
    return bind_with(equation, arrays, slice_sizes=sizes)


def dynamic_update_slice(arguments, results, params) -> ShardingRule:
    """Replicated along partially updated dimensions; the start indices are scalars."""
    a, b = arguments[0].shape, arguments[1].shape
    shapes = [a, b, *(() for _ in arguments[2:])]
    linear = (frozenset({0, 1}),)
    return _rule_with_shared_dims("opaque", shapes, [a], _equal(a, b), linear=linear)


def reshape(arguments, results, params) -> ShardingRule:
    """A reshape that is not a view: only unchanged first and last dimensions can be sharded."""
    # [batch, 4, 6] to [batch, 6, 4]: neither 4 nor 6 is a product of parts of the other, so no
    # factors explain the reshape (see ``tracing.propagate``), but the batch is the same in both.
    a, b = arguments[0].shape, results[0].shape
    head = next(i for i, (x, y) in enumerate(zip((*a, 0), (*b, -1), strict=False)) if x != y)
    max_tail = min(len(a), len(b)) - head
    pairs = zip(reversed(a), reversed(b), strict=False)
    tail = min(max_tail, next((i for i, (x, y) in enumerate(pairs) if x != y), max_tail))
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


# ---------------------------------------------------------------------- sources


def source(arguments, results, params) -> ShardingRule:
    """Generated from no arguments, or from replicated keys: each shard can be generated alone."""
    # It costs no communication in any placements: an ``iota`` of positions or a mask of dropout is
    # made where it is read, in the placements in which it is read.
    labels = label_counter()
    ins = tuple(tuple(next(labels) for _ in argument.shape) for argument in arguments)
    need_replication = frozenset(label for dims in ins for label in dims)
    outs = tuple(tuple(next(labels) for _ in result.shape) for result in results)
    return ShardingRule(
        "source", ins, outs, need_replication=need_replication, flops=num_elements(results[0])
    )


def _run_iota(equation: LocalEqn, arrays, shard: LocalShard):
    dims = equation.results[0]
    shape = [shard.size(labels) for labels in dims]
    dimension = equation.params["dimension"]
    indices = shard.global_indices(dims[dimension]).astype(equation.params["dtype"])
    return [lax.broadcast_in_dim(indices, shape, (dimension,))]


# ---------------------------------------------------------------------- windows


def _is_pointwise(params: Mapping[str, Any], rank: int) -> list[bool]:
    """For every dimension, whether each window is one element and each element in one window."""
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
    """Run ``select_and_scatter_add``; for adjacent windows, by a reshape and a comparison.

    XLA's expansion on CPU and GPU (``SelectAndScatterExpander``) allocates four index tables of the
    size of the operand at the start of the program.
    """
    (source, operand), params = arrays, equation.params
    windows, extremum = params["window_dimensions"], WINDOW_SELECT.get(params["select_prim"].name)
    covered = tuple(n * w for n, w in zip(source.shape, windows, strict=True))
    adjacent = tuple(params["window_strides"]) == tuple(windows) and operand.shape == covered
    if extremum is None or not adjacent or any(map(any, params["padding"])):
        return bind(equation, arrays, shard)
    pairs = list(zip(source.shape, windows, strict=True))
    by_window = operand.reshape([size for pair in pairs for size in pair])
    inside = tuple(range(1, by_window.ndim, 2))
    indices = jnp.arange(math.prod(windows)).reshape([s for w in windows for s in (1, w)])
    is_extremum = by_window == extremum(by_window, axis=inside, keepdims=True)
    # The first of several equal elements is selected.
    selected = jnp.where(is_extremum, indices, indices.size).min(inside, keepdims=True)
    per_window = source.reshape([size for n in source.shape for size in (n, 1)])
    return [jnp.where(indices == selected, per_window, 0).reshape(operand.shape)]


# The comparison of a window's elements, with the reduction to the element that it selects.
WINDOW_SELECT = {"ge": jnp.max, "le": jnp.min}

RULES: dict[str, PrimitiveRule] = {
    "slice": PrimitiveRule(slice_, _run_slice),
    "split": PrimitiveRule(split),
    "concatenate": PrimitiveRule(concatenate),
    "pad": PrimitiveRule(pad),
    "rev": PrimitiveRule(reverse),
    "dynamic_slice": PrimitiveRule(dynamic_slice, _run_dynamic_slice),
    "dynamic_update_slice": PrimitiveRule(dynamic_update_slice),
    "reshape": PrimitiveRule(
        reshape, lambda eqn, arrays, shard: [arrays[0].reshape([*map(shard.size, eqn.results[0])])]
    ),
    "iota": PrimitiveRule(source, _run_iota),
    "reduce_window_sum": PrimitiveRule(_window(LINEAR_IN_FIRST)),
    "reduce_window_max": PrimitiveRule(_window()),
    "reduce_window_min": PrimitiveRule(_window()),
    "reduce_window": PrimitiveRule(_window()),
    "select_and_scatter_add": PrimitiveRule(_window(LINEAR_IN_FIRST), _run_select_and_scatter),
    "select_and_gather_add": PrimitiveRule(_window(LINEAR_IN_FIRST)),
}


# ---------------------------------------------------------------------- random numbers


THREEFRY = "key<fry>"


def _run(equation: LocalEqn, arrays, shard: LocalShard):
    """Generate the local shard only, if the generator is Threefry, which hashes element indices.

    Other generators generate the full array and take the shard from it. The traced shape numbers
    the elements; padded dimensions are longer, with arbitrary values in their added rows.
    """
    (key,), (dims,) = arrays, equation.results
    shape = (*key.shape, *equation.params["shape"])
    if shape == tuple(shard.size(labels) for labels in dims):
        return bind(equation, arrays, shard)
    count = math.prod(shape)
    # Without this JAX option the bits of an element depend on the size of the whole array.
    by_index = bool(jax.config.jax_threefry_partitionable)  # pyright: ignore[reportAttributeAccessIssue]
    if str(key.dtype) == THREEFRY and by_index and not key.ndim and count < 2**32:
        return [_threefry(key, equation.params["bit_width"], dims, shape, shard)]
    (out,) = bind(equation, arrays, shard)
    for d, labels in enumerate(dims):
        if shape[d] != shard.size(labels):
            out = jnp.take(out, shard.global_indices(labels), axis=d, mode="clip")
    return [out]


def _threefry(key, width: int, dims, shape: Sequence[int], shard: LocalShard):
    """The local shard of the ``jax.random.bits`` of a shape."""
    index = jnp.zeros((), jnp.uint32)
    for labels, size in zip(dims, shape, strict=True):
        along = shard.global_indices(labels).astype(jnp.uint32)
        index = index[..., None] * jnp.uint32(size) + along
    # JAX hashes the number of an element in 64 bits; below 2**32 elements the upper 32 are 0.
    first, second = jax.random.key_data(key)
    words = jnp.broadcast_arrays(first, second, 0 * index, index)
    high, low = jax_internals.threefry(*words)
    if width == 64:
        return high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)
    return (high ^ low).astype(jnp.dtype(f"uint{width}"))


RANDOM: dict[str, PrimitiveRule] = {"random_bits": PrimitiveRule(source, _run)}
