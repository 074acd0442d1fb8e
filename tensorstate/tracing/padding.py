"""Pads dimensions of a flat program, so that mesh axes divide them, without changing its results.

A factor of n elements gets more elements wherever it occurs. An equation may have a padded
dimension only if it is listed here. If it treats every row independently, added rows give added
rows of its result. If it mixes rows, they are masked with the neutral element. If indices select
rows, the indices keep their bounds. Any other equation refuses, and its factors are not padded. New
values of arguments are masked with zeros again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Tensor
from tensorstate.ir.padded import PaddedArray, Padding
from tensorstate.rules import ShardingRule
from tensorstate.rules.padding import bound_indices_p
from tensorstate.tracing.flat import FlatAtom, FlatEqn, FlatJaxpr, FlatVar, SplatConstant
from tensorstate.tracing.padder import Handler, Padder, RefusedError, context_of, equal, zero_of
from tensorstate.tracing.propagate import propagate


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedProgram:
    """A program with padded dimensions.

    Attributes:
        program: the program on longer arrays.
        inputs, outputs: numbers of the leaves that have padded dimensions.
        refused: for each size of a factor that could not be padded, the line and the reason.
    """

    program: FlatJaxpr
    inputs: Mapping[int, PaddedArray]
    outputs: Mapping[int, PaddedArray]
    refused: Mapping[int, str]

    def check(self, sizes: Mapping[int, int]) -> None:
        """Refuse sizes for which a dimension was not padded.

        Raises:
            PlanError: a dimension was not padded; the error names the line that mixes its rows.
        """
        for size, reason in self.refused.items():
            raise PlanError(f"a dimension of {size} cannot be padded to {sizes[size]}: {reason}")
        found = {n for array in self.inputs.values() for n in itertools.chain(*array.sizes)}
        if missing := sizes.keys() - found:
            raise PlanError(
                f"pad_to: no argument of the step has a dimension of {min(missing)} to be padded"
            )

    def padding(self, sizes: Mapping[int, int], tensors: Sequence[Tensor]) -> Padding | None:
        """The padded dimensions, in a graph of these tensors; ``None`` if there are none."""
        factors = {
            factor: n
            for number, array in self.inputs.items()
            for factor, n, longer in zip(
                tensors[number].dims, *map(itertools.chain.from_iterable, array[1:]), strict=True
            )
            if n != longer
        }
        if not factors:
            return None
        return Padding(sizes, factors, self.inputs, self.outputs, self.refused)


def checked_sizes(pad_to: object) -> dict[int, int]:
    """Sizes of dimensions with their larger sizes; empty for ``None``.

    Raises:
        PlanError: a value has another type, or a padded size is not larger.
    """
    given: Any = {} if pad_to is None else pad_to
    sizes = dict(checks.instance(given, Mapping, "pad_to", PlanError))
    for size, longer in sizes.items():
        checks.integer(size, "a size in pad_to", PlanError, least=2)
        checks.integer(longer, f"the padded size of {size}", PlanError, least=size, most=2 * size)
    return {int(size): int(longer) for size, longer in sizes.items() if size != longer}


def pad_program(
    program: FlatJaxpr,
    sizes: Mapping[int, int],
    updates: Mapping[int, int],
    names: tuple[Sequence[str], Sequence[str]],
) -> PaddedProgram:
    """Pad every factor of an argument that has one of the given sizes, if possible.

    Args:
        sizes: maps sizes of factors to their padded sizes.
        updates: maps outputs to the inputs whose new values they are.
        names: names of the inputs and of the outputs.
    """
    dims, related = propagate(program)
    longer = {
        leaf: sizes[dims.factors.size(leaf)]
        for variable in program.inputs
        for leaf in itertools.chain(*dims.leaves(variable))
        if dims.factors.size(leaf) in sizes
    }
    refused: dict[int, str] = {}
    while True:
        padder = Padder(dims, longer, HANDLERS)
        try:
            padded = padder.program(program, related, updates)
        except RefusedError as refusal:
            # Earlier equations have already padded the factor, so all are written again without it,
            # at most as many times as there are factors.
            for leaf in refusal.leaves:
                longer.pop(leaf)
                refused[dims.factors.size(leaf)] = refusal.reason
            continue
        leaves = (program.inputs, program.outputs)
        inputs, outputs = (
            {
                k: PaddedArray(names_of[k], *padder.sizes(atom))
                for k, atom in enumerate(of)
                if isinstance(atom, FlatVar) and padder.padded(atom)
            }
            for names_of, of in zip(names, leaves, strict=True)
        )
        for k, updated in updates.items():
            if updated in inputs:  # even if the new value is a constant
                outputs[k] = inputs[updated]._replace(name=names[1][k])
        return PaddedProgram(padded, inputs, outputs, refused)


# ---------------------------------------------------------------------- families of primitives


def _neutral(reduction: str, dtype: np.dtype) -> np.ndarray:
    """The element that a reduction ignores."""
    if reduction in ("sum", "or", "xor"):
        return np.zeros((), dtype)
    if reduction == "prod":
        return np.ones((), dtype)
    if dtype.kind == "b":  # a maximum of Booleans is "or"
        return np.asarray(reduction in ("min", "and"))
    if reduction == "and":
        return np.asarray(-1).astype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        # Some 8-bit floats have no infinity; their casts give NaN or the largest number.
        infinite = np.asarray(np.inf if reduction == "min" else -np.inf).astype(dtype)
        if np.isinf(infinite.astype(np.float32)):
            return infinite
        info: Any = jnp.finfo(dtype)
    else:
        info = jnp.iinfo(dtype)
    return np.asarray(info.max if reduction == "min" else info.min).astype(dtype)


_REDUCTIONS = {
    "reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_or": "or",
    "reduce_and": "and", "reduce_prod": "prod", "reduce_xor": "xor", "argmax": "max",
    "argmin": "min",
}  # fmt: skip
_CUMULATIVE = {
    "cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min", "cumlogsumexp": "max",
}  # fmt: skip


def _reduce(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """Added rows do not change a reduction; among equal elements ``argmax`` takes the first."""
    (x,) = eqn.inputs
    name, value = eqn.primitive.name, _neutral(_REDUCTIONS[eqn.primitive.name], x.dtype)
    fill = padder.fill(x)
    keeps = name in ("reduce_max", "reduce_min") or (
        name == "reduce_sum" and equal(fill, np.zeros((), x.dtype))
    )
    inputs = padder.splat(eqn, sharding)
    if isinstance(x, FlatVar):
        inputs = [padder.masked(x, eqn.params["axes"], value, eqn)]
    padder.write(eqn, inputs, eqn.params, fill if keeps else None)


def _cumulate(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """Added rows come last, so they matter only to a cumulation from the end."""
    (x,) = eqn.inputs
    if eqn.params["reverse"]:
        value = _neutral(_CUMULATIVE[eqn.primitive.name], x.dtype)
        masked = padder.masked(x, [eqn.params["axis"]], value, eqn)
    else:
        masked = padder.atom(x)
    padder.write(eqn, [masked], eqn.params, None)


def _top_k(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """Among equal elements the first are taken, which are not added ones."""
    (x,) = eqn.inputs
    axis = eqn.params["axis"] % len(x.shape)
    if any(axis in padder.padded(out) for out in eqn.outputs):
        padder.forbid(eqn, sharding, [axis])
    masked = padder.masked(x, [axis], _neutral("max", x.dtype), eqn)
    padder.write(eqn, [masked], eqn.params, None)


def _product(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """Both factors need zeros in the added rows of a sum."""
    # Zero in one of them is not enough, because the other may be infinite, such as 1 / x in added
    # rows of an argument, and 0 * inf is NaN.
    padder.forbid(eqn, sharding, sharding.need_replication)
    inputs = []
    given = zip(padder.splat(eqn, sharding), eqn.inputs, sharding.arguments, strict=True)
    for atom, x, labels in given:
        if isinstance(x, FlatVar):
            dims = [d for d, label in enumerate(labels) if label in sharding.reductions]
            atom = padder.masked(x, dims, zero_of(x), eqn)
        inputs.append(atom)
    padder.write(eqn, inputs, eqn.params, None)


def _sized(param: str) -> Handler:
    """Primitives with the result's shape as a parameter; rows of a label are independent."""

    def write(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
        padder.forbid(eqn, sharding, sharding.need_replication)
        params = dict(eqn.params)
        if param:
            params[param] = padder.shape(eqn.outputs[0])
        fills = [padder.fill(x) for x in eqn.inputs if x.shape]
        same = all(equal(fills[0], fill) for fill in fills)
        if sharding.kind == "window" and same:  # it may add up several rows
            same = not np.any(fills[0])
        padder.write(eqn, padder.splat(eqn, sharding), params, fills[0] if same else None)

    return write


def _slice(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """A slice of the traced rows contains none of the added ones."""
    (x,), (out,) = eqn.inputs, eqn.outputs
    params, shape = dict(eqn.params), padder.shape(out)
    limits = zip(params["limit_indices"], shape, strict=True)
    params["limit_indices"] = tuple(
        n if d in padder.padded(out) else limit for d, (limit, n) in enumerate(limits)
    )
    same = padder.padded(x) == padder.padded(out)
    padder.write(eqn, [padder.atom(x)], params, padder.fill(x) if same else None)


def _pad(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """A border after the traced rows grows by the added rows, as in the gradient of a slice."""
    (x, border), (out,) = eqn.inputs, eqn.outputs
    config = [tuple(dimension) for dimension in eqn.params["padding_config"]]
    bordered = {d for d, dimension in enumerate(config) if dimension != (0, 0, 0)}
    labels = {label for d, label in enumerate(sharding.arguments[0]) if d in bordered}
    padder.forbid(eqn, sharding, (label for label in labels if label is not None))
    grown = padder.padded(out) & bordered
    for d in grown:
        low, high, interior = config[d]
        config[d] = low, high + padder.shape(out)[d] - out.shape[d], interior
    fill = padder.fill(border)
    same = padder.padded(x) == padder.padded(out) - grown and (
        not padder.padded(x) or equal(padder.fill(x), fill)
    )
    kept = same and all(eqn.params["padding_config"][d][1] >= 0 for d in grown)
    params = {**eqn.params, "padding_config": tuple(config)}
    padder.write(eqn, padder.splat(eqn, sharding), params, fill if kept else None)


def _iota(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """Continue counting through the added rows."""
    (out,), dimension = eqn.outputs, eqn.params["dimension"]
    if dimension in padder.padded(out) and len(padder.leaves(out)[dimension]) > 1:
        raise padder.refuse(f"iota numbers several factors ({eqn.source})", (out, {dimension}))
    padder.write(eqn, [], {**eqn.params, "shape": padder.shape(out)}, None)


def _random(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """Parameters keep the traced shape, which numbers the bits (see ``rules.shapes``)."""
    (out,) = eqn.outputs
    several = {d for d in padder.padded(out) if len(padder.leaves(out)[d]) > 1}
    if several:
        raise padder.refuse(f"random bits of several factors ({eqn.source})", (out, several))
    padder.write(eqn, padder.splat(eqn, sharding), eqn.params, None)


def _loop_boundary(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """A carry has another value in every iteration, so its fill is unknown."""
    padder.forbid(eqn, sharding, sharding.need_replication)
    (x,) = eqn.inputs
    rows = eqn.primitive.name in ("scan_row", "scan_stack", "fill")
    inputs = padder.splat(eqn, sharding)
    padder.write(eqn, inputs, eqn.params, padder.fill(x) if rows else None)


def _bounded(padder: Padder, eqn: FlatEqn, table: FlatVar | SplatConstant, dims) -> FlatAtom:
    """The indices of a gather or scatter, within the bounds of the traced dimensions.

    Args:
        dims: the dimension of the table that each column of the indices refers to.
    """
    index = eqn.inputs[1]
    # A scatter into zeros gets its sizes from the result.
    sized = table if isinstance(table, FlatVar) else eqn.outputs[0]
    padded = padder.padded(sized)
    columns = tuple(
        (k, sized.shape[d], padder.shape(sized)[d]) for k, d in enumerate(dims) if d in padded
    )
    mode = lax.GatherScatterMode.from_any(eqn.params["mode"])
    modes = lax.GatherScatterMode
    if not columns or mode == modes.PROMISE_IN_BOUNDS:
        return padder.atom(index)
    if isinstance(index, SplatConstant):
        if all(0 <= index.value < size for _, size, _ in columns):
            return index
        raise padder.refuse(f"an index outside of it ({eqn.source})", (sized, padded))
    if max(longer for *_, longer in columns) > jnp.iinfo(index.dtype).max:
        raise padder.refuse(f"indices of {index.dtype} ({eqn.source})", (sized, padded))
    params = {"columns": columns, "clip": mode == modes.CLIP}
    out = FlatVar(padder.shape(index), index.dtype, loops=eqn.loops)
    padder.eqns.append(
        FlatEqn(bound_indices_p, params, [padder.atom(index)], [out], *context_of(eqn))
    )
    return out


def _check_rows(padder: Padder, eqn: FlatEqn, sized: FlatVar, dims, rows) -> None:
    """Refuse indexed dimensions whose windows are longer than one row."""
    wrong = (padder.padded(sized) & set(dims)) - set(rows)
    if wrong:
        reason = f"{eqn.primitive.name} takes several rows at once ({eqn.source})"
        raise padder.refuse(reason, (sized, wrong))


def _gather(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """Traced rows are looked up; other dimensions are taken as a whole."""
    (table, index), numbers = eqn.inputs, eqn.params["dimension_numbers"]
    padder.forbid(eqn, sharding, (f for f in sharding.arguments[1][-1:] if f is not None))
    made, bounded = padder.splat(eqn, sharding)
    taken = list(eqn.params["slice_sizes"])
    if isinstance(table, FlatVar):
        rows = [d for d, size in enumerate(taken) if size == 1]
        _check_rows(padder, eqn, table, numbers.start_index_map, rows)
        bounded = _bounded(padder, eqn, table, numbers.start_index_map)
    for d, (size, longer) in enumerate(zip(table.shape, made.shape, strict=True)):
        if size != longer and taken[d] != 1:
            if taken[d] != size:
                padder.forbid(
                    eqn, sharding, (f for f in sharding.arguments[0][d : d + 1] if f is not None)
                )
            taken[d] = longer
    modes = lax.GatherScatterMode
    keeps = not padder.padded(index) and modes.from_any(eqn.params["mode"]) != modes.FILL_OR_DROP
    params = {**eqn.params, "slice_sizes": tuple(taken)}
    padder.write(eqn, [made, bounded], params, padder.fill(table) if keeps else None)


def _scatter(padder: Padder, eqn: FlatEqn, sharding: ShardingRule) -> None:
    """Updates of added rows are zeros, and indices keep their bounds."""
    table, _, update = eqn.inputs
    out, numbers = eqn.outputs[0], eqn.params["dimension_numbers"]
    scattered = numbers.scatter_dims_to_operand_dims
    no_window = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = dict(
        zip(
            (d for d in range(len(out.shape)) if d not in no_window),
            (update.shape[d] for d in numbers.update_window_dims),
            strict=True,
        )
    )
    rows = {d for d in scattered if windows.get(d, 1) == 1}
    _check_rows(padder, eqn, out, scattered, rows)
    alone = {sharding.results[0][d] for d in rows}
    padder.forbid(eqn, sharding, sharding.need_replication - alone)
    inputs = padder.splat(eqn, sharding)
    labels = sharding.arguments[2]
    summed = [d for d, label in enumerate(labels) if label in sharding.reductions]
    if isinstance(update, FlatVar):
        inputs[2] = padder.masked(update, summed, zero_of(update), eqn)
    elif np.any(np.asarray(update.value)):  # a constant for every row, including added ones
        padder.forbid(eqn, sharding, sharding.reductions)
    inputs[1] = _bounded(padder, eqn, table, scattered)
    # No update reaches an added row of the table's indexed dimensions, so these rows do not change.
    # Windows of updates do reach added rows of other dimensions, and only sums with zeros keep
    # those.
    fill = padder.fill(table)
    only_rows = padder.padded(out) <= set(scattered)
    zero = np.zeros((), out.dtype)
    adds_zeros = (
        not numbers.operand_batching_dims
        and eqn.primitive.name in ("scatter-add", "scatter-sub")
        and equal(padder.fill(update), zero)
    )
    padder.write(eqn, inputs, eqn.params, fill if only_rows or adds_zeros else None)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_CUMULATIVE, _cumulate),
    "top_k": _top_k,
    "dot_general": _product,
    "conv_general_dilated": _product,
    "reshape": _sized("new_sizes"),
    "concatenate": _sized(""),
    "pad": _pad,
    "rev": _sized(""),
    "split": _sized(""),
    "sort": _sized(""),
    "dynamic_update_slice": _sized(""),
    "dynamic_slice": _sized("slice_sizes"),
    "reduce_window_sum": _sized(""),
    "reduce_window_max": _sized(""),
    "reduce_window_min": _sized(""),
    "select_and_scatter_add": _sized(""),
    "slice": _slice,
    "iota": _iota,
    "random_bits": _random,
    **dict.fromkeys(
        ("carry_in", "carry_out", "while_condition", "scan_row", "scan_stack", "fill"),
        _loop_boundary,
    ),
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub"), _scatter),
}
