"""Primitives that move, cut, join or make elements, and windows over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorstate.ir.graph import Kind
from tensorstate.rules.local_shard import LocalBlock
from tensorstate.rules.sharding_rule import (
    Argument,
    Equation,
    Rule,
    Signature,
    bind,
    bind_with,
    elements,
    fresh,
    is_zero,
)

FIRST = (frozenset({0}),)
Shape = tuple[int, ...]


def _cut(
    kind: Kind, shapes: Sequence[Shape], results: Sequence[Shape], same: Sequence[bool], **more
) -> Signature:
    """Arrays of one rank: a dimension that is ``same`` in all has one label, others stand alone."""
    labels = fresh()
    shared = [next(labels) if one else None for one in same]

    def place(shape: Shape) -> tuple[int, ...]:
        return tuple(next(labels) if label is None else label for label in shared[: len(shape)])

    ins, outs = tuple(place(shape) for shape in shapes), tuple(place(shape) for shape in results)
    frozen = frozenset(range(next(labels))) - {label for label in shared if label is not None}
    return Signature(kind, ins, outs, frozen=frozen, **more)


def _equal(a: Shape, b: Shape) -> list[bool]:
    return [x == y for x, y in zip(a, b, strict=True)]


# ---------------------------------------------------------------------- parts


def slice_(arguments, results, params) -> Signature:
    """Whole along what is cut."""
    a, b = arguments[0].shape, results[0].shape
    return _cut("opaque", [a], [b], _equal(a, b), linear=FIRST)


def _run_slice(equation: Equation, arrays, block: LocalBlock):
    start = list(equation.params["start_indices"])
    limit = list(equation.params["limit_indices"])
    for d, labels in enumerate(equation.results[0]):
        if labels == equation.arguments[0][d]:
            limit[d] = block.size(labels)
    return bind_with(equation, arrays, start_indices=tuple(start), limit_indices=tuple(limit))


def split(arguments, results, params) -> Signature:
    """Whole along what is cut."""
    shape, axis = arguments[0].shape, params["axis"]
    same = [d != axis for d in range(len(shape))]
    return _cut("opaque", [shape], [result.shape for result in results], same, linear=FIRST)


def concatenate(arguments, results, params) -> Signature:
    """Whole along what is joined; a sum of joined arrays is the joined sums."""
    shapes, axis = [argument.shape for argument in arguments], params["dimension"]
    same = [d != axis for d in range(len(shapes[0]))]
    joint = (frozenset(range(len(shapes))),)
    return _cut("opaque", shapes, [results[0].shape], same, linear=joint)


def pad(arguments, results, params) -> Signature:
    """Whole along what is padded."""
    same = [tuple(config) == (0, 0, 0) for config in params["padding_config"]]
    linear = FIRST if is_zero(arguments[1]) else ()
    return _cut("opaque", [arguments[0].shape, ()], [results[0].shape], same, linear=linear)


def reverse(arguments, results, params) -> Signature:
    """Whole along what is reversed."""
    shape = arguments[0].shape
    same = [d not in params["dimensions"] for d in range(len(shape))]
    return _cut("opaque", [shape], [shape], same, linear=FIRST)


def dynamic_slice(arguments, results, params) -> Signature:
    """Whole along what is cut; the places are scalars."""
    a, b = arguments[0].shape, results[0].shape
    shapes = [a, *(() for _ in arguments[1:])]
    return _cut("opaque", shapes, [b], _equal(a, b), linear=FIRST)


def _run_dynamic_slice(equation: Equation, arrays, block: LocalBlock):
    sizes = tuple(block.size(labels) for labels in equation.results[0])
    return bind_with(equation, arrays, slice_sizes=sizes)


def dynamic_update_slice(arguments, results, params) -> Signature:
    """Whole along what is overwritten in part; the places are scalars."""
    a, b = arguments[0].shape, arguments[1].shape
    shapes = [a, b, *(() for _ in arguments[2:])]
    both = (frozenset({0, 1}),)
    return _cut("opaque", shapes, [a], _equal(a, b), linear=both)


def reshape(arguments, results, params) -> Signature:
    """A reshape that is no view: only leading and trailing dimensions that stay can be sharded."""
    a, b = arguments[0].shape, results[0].shape
    head = next(i for i, (x, y) in enumerate(zip((*a, 0), (*b, -1), strict=False)) if x != y)
    rest = min(len(a), len(b)) - head
    pairs = zip(reversed(a), reversed(b), strict=False)
    tail = min(rest, next((i for i, (x, y) in enumerate(pairs) if x != y), rest))
    labels = fresh()
    first = [next(labels) for _ in range(head)]
    last = [next(labels) for _ in range(tail)]
    ends = frozenset(first + last)
    middle_in = [next(labels) for _ in a[head : len(a) - tail]]
    middle_out = [next(labels) for _ in b[head : len(b) - tail]]
    return Signature(
        "opaque",
        ((*first, *middle_in, *last),),
        ((*first, *middle_out, *last),),
        linear=FIRST,
        frozen=frozenset(range(next(labels))) - ends,
    )


def _run_reshape(equation: Equation, arrays, block: LocalBlock):
    return [jnp.reshape(arrays[0], [block.size(labels) for labels in equation.results[0]])]


# ---------------------------------------------------------------------- sources


def source(arguments, results, params) -> Signature:
    """Made from nothing, or from keys that are whole: any part of it can be."""
    labels = fresh()
    ins = tuple(tuple(next(labels) for _ in argument.shape) for argument in arguments)
    frozen = frozenset(label for one in ins for label in one)
    outs = tuple(tuple(next(labels) for _ in result.shape) for result in results)
    return Signature("source", ins, outs, frozen=frozen, flops=elements(results[0]))


def _run_iota(equation: Equation, arrays, block: LocalBlock):
    labels = equation.results[0]
    shape = [block.size(one) for one in labels]
    dimension = equation.params["dimension"]
    places = block.positions(labels[dimension]).astype(equation.params["dtype"])
    return [lax.broadcast_in_dim(places, shape, (dimension,))]


# ---------------------------------------------------------------------- windows


def _reaches(params: Mapping[str, Any], rank: int) -> list[bool]:
    """For every dimension whether its windows are single elements, each once."""
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
    def describe(
        arguments: Sequence[Argument], results: Sequence[Argument], params: Mapping[str, Any]
    ) -> Signature:
        same = _reaches(params, len(results[0].shape))
        shapes = [argument.shape for argument in arguments]
        flops = elements(results[0]) * int(np.prod(params["window_dimensions"]))
        outs = [result.shape for result in results]
        return _cut("window", shapes, outs, same, linear=linear, flops=flops)

    return describe


def _run_select_and_scatter(equation: Equation, arrays, block: LocalBlock):
    """Where windows do not overlap, without tables of places as large as what they cover.

    XLA makes four of them on CPU and GPU as the program begins (``SelectAndScatterExpander``).
    """
    (source, operand), params = arrays, equation.params
    windows, best = params["window_dimensions"], BEST.get(params["select_prim"])
    covered = tuple(n * w for n, w in zip(source.shape, windows, strict=True))
    apart = tuple(params["window_strides"]) == tuple(windows) and operand.shape == covered
    if best is None or not apart or any(map(any, params["padding"])):
        return bind(equation, arrays, block)
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
BEST = {lax.ge_p: jnp.max, lax.le_p: jnp.min}

RULES: dict[str, Rule] = {
    "slice": Rule(slice_, _run_slice),
    "split": Rule(split),
    "concatenate": Rule(concatenate),
    "pad": Rule(pad),
    "rev": Rule(reverse),
    "dynamic_slice": Rule(dynamic_slice, _run_dynamic_slice),
    "dynamic_update_slice": Rule(dynamic_update_slice),
    "reshape": Rule(reshape, _run_reshape),
    "iota": Rule(source, _run_iota),
    "reduce_window_sum": Rule(_window(FIRST)),
    "reduce_window_max": Rule(_window()),
    "reduce_window_min": Rule(_window()),
    "reduce_window": Rule(_window()),
    "select_and_scatter_add": Rule(_window(FIRST), _run_select_and_scatter),
    "select_and_gather_add": Rule(_window(FIRST)),
}
