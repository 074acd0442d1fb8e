"""Equations that return the elements of an operand unchanged, so that no operator is needed.

JAX derives many of them. A bias that was added to a batch is summed by a ``reduce_sum`` over the
batch, and then by one over sides of length one; the mean of one element is divided by one; the
concatenation of a list of one array is that array. Each row below says when a primitive is the
identity, apart from sides of length one that are added or removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tensorstate.ir import jaxprs
from tensorstate.tracing.flat import FlatAtom, FlatVar, is_constant


def same_elements(eqn: Any, inputs: Sequence[FlatAtom]) -> Sequence[FlatVar] | None:
    """For every result of an equation, the operand with its elements; ``None`` if one has none.

    An equation that asks for a sharding of its result is kept, because it is the place of the
    request.
    """
    row = _ROWS.get(eqn.primitive.name)
    if row is None or jaxprs.asked_of(eqn) is not None:
        return None
    same = row(eqn.params, inputs)
    if same is None:
        return None
    found = [x for x in same if isinstance(x, FlatVar)]
    # A guard for every row: elements come from an array with the same number, of one dtype.
    fits = len(found) == len(eqn.outvars) and all(
        x.dtype == out.aval.dtype and math.prod(x.shape) == math.prod(out.aval.shape)
        for x, out in zip(found, eqn.outvars, strict=True)
    )
    return found if fits else None


_Row = Callable[[Mapping[str, Any], Sequence[FlatAtom]], Sequence[FlatAtom] | None]


def _gather(params: Mapping[str, Any], inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    """``x[..., 0]`` for a last dimension of length one, which is common in losses."""
    source, index = inputs
    is_first = is_constant(index) and index.value == 0
    return [source] if params["slice_sizes"] == source.shape and is_first else None


def _scatter_add(_, inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    """The transpose of such a gather, which adds all elements to zeros."""
    table, index, source = inputs
    is_first = is_constant(index) and index.value == 0
    is_full = math.prod(table.shape) == math.prod(source.shape)
    is_zero = is_constant(table) and table.value == 0
    return [source] if is_first and is_full and is_zero else None


def _reduction(params: Mapping[str, Any], inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    """A sum over no factor."""
    return inputs if all(inputs[0].shape[axis] == 1 for axis in params["axes"]) else None


def _scan(params: Mapping[str, Any], inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    return inputs if inputs[0].shape[params["axis"]] == 1 else None


def _sort(params: Mapping[str, Any], inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    return inputs if inputs[0].shape[params["dimension"]] == 1 else None


def _reverse(params: Mapping[str, Any], inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    return inputs if all(inputs[0].shape[d] == 1 for d in params["dimensions"]) else None


def _slice(params: Mapping[str, Any], inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    whole = not any(params["start_indices"]) and params["limit_indices"] == inputs[0].shape
    steps = params["strides"] or (1,)
    return inputs if whole and all(step == 1 for step in steps) else None


def _pad(params: Mapping[str, Any], inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    sides = zip(inputs[0].shape, params["padding_config"], strict=True)
    same = all(low == high == 0 and (gap == 0 or n == 1) for n, (low, high, gap) in sides)
    return inputs[:1] if same else None


def _dynamic_slice(
    params: Mapping[str, Any], inputs: Sequence[FlatAtom]
) -> Sequence[FlatAtom] | None:
    """A slice of all elements begins at the first one, since JAX clamps its indices."""
    return inputs[:1] if params["slice_sizes"] == inputs[0].shape else None


def _dynamic_update(_, inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    """An update of all elements, likewise."""
    return inputs[1:2] if inputs[1].shape == inputs[0].shape else None


def _concatenate(_, inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    """A concatenation of one array, or of one array and arrays without elements."""
    return [x for x in inputs if math.prod(x.shape)]


def _window(params: Mapping[str, Any], inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    sides = ("window_dimensions", "window_strides", "base_dilation")
    is_one = all(size == 1 for side in sides for size in params.get(side) or ())
    return inputs if is_one and not any(map(any, params["padding"])) else None


def _times_one(_, inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    """A product with one. A sum with zero is not an identity: it turns -0.0 into 0.0."""
    for k, x in enumerate(inputs):
        if is_constant(x) and x.value == 1:
            return [inputs[1 - k]]
    return None


def _over_one(_, inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    by = inputs[1]
    return inputs[:1] if is_constant(by) and by.value == 1 else None


def _first_power(
    params: Mapping[str, Any], inputs: Sequence[FlatAtom]
) -> Sequence[FlatAtom] | None:
    return inputs if params["y"] == 1 else None


def _select(_, inputs: Sequence[FlatAtom]) -> Sequence[FlatAtom] | None:
    which, *cases = inputs
    return [cases[int(which.value)]] if is_constant(which) else None


_ROWS: Mapping[str, _Row] = MappingProxyType(
    {
        "gather": _gather,
        "scatter-add": _scatter_add,
        **dict.fromkeys(
            ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
            _reduction,
        ),
        **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _scan),
        "sort": _sort,
        "rev": _reverse,
        "slice": _slice,
        "pad": _pad,
        "dynamic_slice": _dynamic_slice,
        "dynamic_update_slice": _dynamic_update,
        "concatenate": _concatenate,
        **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window),
        "mul": _times_one,
        "div": _over_one,
        "integer_pow": _first_power,
        "select_n": _select,
    }
)
"""For each primitive the operands whose elements are its results, in their order, or ``None``."""
