"""Gathers and scatters, also along a sharded indexed dimension, with a mask.

A device that has rows 10 to 19 of a table looks these up and returns zero for every other row; the
sum over devices is the gather. A scatter drops updates outside the device's rows. Embeddings, their
gradients and the loss can therefore be sharded along the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorstate.ir.graph import Reduce
from tensorstate.ir.placements import Exchange
from tensorstate.rules.exchange import Lookup
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

Mode = lax.GatherScatterMode


class Places(NamedTuple):
    """How the dimensions of a table, of indices, and of the rows at these indices belong together.

    Attributes:
        windows: dimensions of the rows that are windows into the table; the other dimensions are
            those of the indices except their last, which holds one index per column.
        batching: by dimension of the table, the dimension of the indices that goes along with it.
        gone: dimensions of the table without a window: rows are single elements along them.
        indexed: dimensions of the table that the columns index.
    """

    windows: Sequence[int]
    batching: Mapping[int, int]
    gone: Sequence[int]
    indexed: Sequence[int]


def _labelled(shapes: Sequence[tuple[int, ...]], places: Places):
    """Labels of table, indices and rows, and the labels that need replication.

    An embedding ``table[tokens]`` has table [vocabulary v, width w], indices [batch b, sequence s,
    1] and rows [b, s, w]: v is indexed and gone, and w a window of full size.
    """
    table, index, rows = shapes
    labels = label_counter()
    of_index = [next(labels) for _ in index]
    batch = iter(of_index[:-1])
    of_rows = [-1 if d in places.windows else next(batch) for d in range(len(rows))]
    need_replication, of_table, windows = {of_index[-1]}, [], iter(places.windows)
    for d, size in enumerate(table):
        batching = places.batching.get(d)
        of_table.append(next(labels) if batching is None else of_index[batching])
        if batching is not None or d in places.gone:
            continue
        at = next(windows)
        if size == rows[at] and d not in places.indexed:
            of_rows[at] = of_table[d]
        else:  # a part of the dimension, which does not line up with its shards
            of_rows[at] = next(labels)
            need_replication |= {of_table[d], of_rows[at]}
    return tuple(of_table), tuple(of_index), tuple(of_rows), need_replication


def gather(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """Rows of a table: batch dimensions, full windows, and indexed dimensions."""
    numbers, gone = params["dimension_numbers"], params["dimension_numbers"].collapsed_slice_dims
    batching = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    places = Places(numbers.offset_dims, dict(batching), gone, numbers.start_index_map)
    shapes = arguments[0].shape, arguments[1].shape, results[0].shape
    table, index, rows, need_replication = _labelled(shapes, places)
    reductions: dict[int, Reduce] = {}
    for d in sorted(set(gone) - places.batching.keys()):
        # All devices except the one that has the row give zero. Booleans have no sum.
        if d in places.indexed and arguments[0].dtype.kind != "b":
            reductions[table[d]] = "sum"
        else:
            need_replication.add(table[d])
    # The fill of indices outside the table must be linear too, f + f == f: it is 0 or NaN.
    fill, fills = params["fill_value"], Mode.from_any(params["mode"]) == Mode.FILL_OR_DROP
    is_linear = not fills or fill is None or fill == 0 or fill != fill
    exchange, unseen = None, {}
    if table[0] in reductions and not fills and _are_whole_rows(shapes, places):
        exchange, unseen = _exchange(shapes, (table, index, rows))
    return ShardingRule(
        "gather",
        (table, index),
        (rows,),
        reductions,
        (frozenset({0}),) if is_linear else (),
        frozenset(need_replication),
        num_elements(results[0]),
        unseen,
        exchange,
    )


def _are_whole_rows(shapes: Sequence[tuple[int, ...]], places: Places) -> bool:
    """Whether single indices look up whole rows of a table: ``x[order]``."""
    table, index, rows = shapes
    by_one = len(index) == 2 and index[1] == 1 and not places.batching
    are_first = tuple(places.gone) == tuple(places.indexed) == (0,)
    return (
        by_one
        and are_first
        and tuple(places.windows) == (*range(1, len(rows)),)
        and (rows[1:] == table[1:])
    )


def _exchange(
    shapes: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]]
) -> tuple[Exchange, dict[int, int]]:
    """The strategy that exchanges rows of a table by their index, and the size of its label."""
    new = 1 + max(label for of_array in labels for label in of_array)
    table, index, _ = labels
    return Exchange(new, index[0], table[0], True), {new: math.gcd(shapes[0][0], shapes[1][0])}


def _run_gather(equation: LocalEqn, arrays, shard: LocalShard):
    params, (table, index) = equation.params, arrays
    if shard.exchange is not None:
        lookup = _lookup(equation, index, shard)
        return [lookup.found(table)]
    numbers, mode = params["dimension_numbers"], Mode.from_any(params["mode"])
    dims = equation.arguments[0]
    indexed = [d in numbers.start_index_map for d in range(len(dims))]
    # A window of a whole dimension covers the whole shard; other windows are of replicated
    # dimensions.
    sizes = tuple(
        min(taken, shard.size(labels))
        if inside
        else (shard.size(labels) if taken == shard.global_size(labels) else taken)
        for taken, labels, inside in zip(params["slice_sizes"], dims, indexed, strict=True)
    )
    split = [d for d in numbers.start_index_map if shard.is_sharded(dims[d])]
    if not split:
        return bind_with(equation, arrays, slice_sizes=sizes)

    index, is_local, inside = _local_indices(index, numbers.start_index_map, dims, mode, shard)
    out = bind_with(equation, (table, index), slice_sizes=sizes, mode=Mode.CLIP, fill_value=None)[0]
    batch = [d for d in range(out.ndim) if d not in numbers.offset_dims]
    out = jnp.where(lax.broadcast_in_dim(is_local, out.shape, batch), out, jnp.zeros((), out.dtype))
    if mode == Mode.FILL_OR_DROP:
        # No device has a row outside the table, so the first one returns the fill value.
        fills = ~inside & shard.is_first_shard([label for d in split for label in dims[d]])
        fill = params["fill_value"]
        if fill is None:  # the value that ``lax.gather`` chooses
            inexact = jnp.issubdtype(out.dtype, jnp.inexact)
            info = None if inexact else jnp.iinfo(out.dtype)
            fill = np.nan if info is None else info.max if info.min == 0 else info.min
        fill = jnp.asarray(fill, out.dtype)
        out = jnp.where(lax.broadcast_in_dim(fills, out.shape, batch), fill, out)
    return [out]


def _lookup(equation: LocalEqn, index, shard: LocalShard) -> Lookup:
    """The route of the rows of a table that are looked up."""
    row, dims = index[:, 0], equation.arguments[0][0]
    if Mode.from_any(equation.params["mode"]) == Mode.CLIP:
        row = jnp.clip(row, 0, shard.global_size(dims) - 1)
    return Lookup.of(shard, dims, row)


def _local_indices(index, dimensions: Sequence[int], dims, mode, shard: LocalShard):
    """Local indices, a mask of index rows on this device, and a mask of those in the table."""
    columns, is_local = [], jnp.ones(index.shape[:-1], bool)
    inside = is_local
    for k, d in enumerate(dimensions):
        column, size = index[..., k], shard.global_size(dims[d])
        if mode == Mode.CLIP:
            column = jnp.clip(column, 0, size - 1)
        within = (column >= 0) & (column < size)
        local, has = shard.to_local(column, dims[d])
        is_local, inside = is_local & has & within, inside & within
        columns.append(local.astype(index.dtype))
    return jnp.stack(columns, axis=-1), is_local, inside


# ---------------------------------------------------------------------- scatter


def _scatter(sums: bool):
    def sharding_rule(
        arguments: Sequence[AbstractArray],
        results: Sequence[AbstractArray],
        params: Mapping[str, Any],
    ) -> ShardingRule:
        numbers = params["dimension_numbers"]
        batching = zip(
            numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
        )
        places = Places(
            numbers.update_window_dims,
            dict(batching),
            numbers.inserted_window_dims,
            numbers.scatter_dims_to_operand_dims,
        )
        shapes = [argument.shape for argument in arguments]
        table, index, update, need_replication = _labelled(shapes, places)
        # Two updates of one row, on two devices, add up; with ``scatter`` the later one must stay.
        reductions: dict[int, Reduce] = {}
        for label in sorted(set(index[:-1]) - set(table)):
            if sums:
                reductions[label] = "sum"
            else:
                need_replication.add(label)
        exchange, unseen = None, {}
        if arguments[2].value is None and _are_whole_rows(shapes, places):
            exchange, unseen = _exchange(shapes, (table, index, update))
        return ShardingRule(
            "scatter",
            (table, index, update),
            (table,),
            reductions,
            (frozenset({0, 2}),) if sums else (),
            frozenset(need_replication),
            num_elements(arguments[2]),
            unseen,
            exchange,
        )

    return sharding_rule


def _run_scatter(equation: LocalEqn, arrays, shard: LocalShard):
    table, index, update = arrays
    numbers = equation.params["dimension_numbers"]
    dims, index_dims, _ = equation.arguments
    table_labels = {label for labels in dims for label in labels}
    summed = [label for labels in index_dims[:-1] for label in labels if label not in table_labels]
    if shard.exchange is not None:
        lookup = _lookup(equation, index, shard)
        # Rows that are sharded along other axes too leave several terms of one part of the table.
        others = shard.at_place(0)
        if others.is_sharded(summed):
            table = jnp.where(others.is_first_shard(summed), table, jnp.zeros((), table.dtype))
        at = jnp.where(lookup.is_held, lookup.index, table.shape[0]).astype(index.dtype)
        return bind_with(
            equation,
            (table, at[:, None], lookup.returned(update)),
            mode=Mode.FILL_OR_DROP,
            indices_are_sorted=False,
            unique_indices=False,
        )
    if shard.is_sharded(summed):
        # Every device adds its own updates; only the first device adds them to the table.
        table = jnp.where(shard.is_first_shard(summed), table, jnp.zeros((), table.dtype))
    scattered = numbers.scatter_dims_to_operand_dims
    if not any(shard.is_sharded(dims[d]) for d in scattered):
        return bind_with(equation, (table, index, update))
    mode = Mode.from_any(equation.params["mode"])
    local, is_local, _ = _local_indices(index, scattered, dims, mode, shard)
    # Rows of other devices get an index behind the shard, where updates are dropped. So indices are
    # no longer sorted or unique.
    outside = jnp.asarray([shard.size(dims[d]) for d in scattered], index.dtype)
    return bind_with(
        equation,
        (table, jnp.where(is_local[..., None], local, outside), update),
        mode=Mode.FILL_OR_DROP,
        indices_are_sorted=False,
        unique_indices=False,
    )


RULES: dict[str, PrimitiveRule] = {
    "gather": PrimitiveRule(gather, _run_gather),
    "scatter-add": PrimitiveRule(_scatter(True), _run_scatter),
    "scatter-sub": PrimitiveRule(_scatter(True), _run_scatter),
    **{
        name: PrimitiveRule(_scatter(False), _run_scatter)
        for name in ("scatter", "scatter-mul", "scatter-min", "scatter-max")
    },
}
