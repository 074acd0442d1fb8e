"""Gathers and scatters, also along a sharded indexed dimension, with a mask.

A device that has rows 10 to 19 of a table looks these up and returns zero for every other row; the
sum over devices is the gather. A scatter drops updates outside the device's rows. Embeddings, their
gradients and the loss can therefore be sharded along the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorstate.ir.graph import Reduce
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


def gather(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """Rows of a table: batch dimensions, full windows, and indexed dimensions."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    table, index, out = arguments[0].shape, arguments[1].shape, results[0].shape
    labels = label_counter()
    need_replication, reductions = set[int](), dict[int, Reduce]()
    index_labels = [next(labels) for _ in index]
    need_replication.add(index_labels[-1])
    batch = iter(index_labels[:-1])
    out_labels = [-1 if d in numbers.offset_dims else next(batch) for d in range(len(out))]
    offsets = iter(numbers.offset_dims)
    table_labels = []
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    batching = dict(pairs)
    for d, (size, taken) in enumerate(zip(table, sizes, strict=True)):
        label = index_labels[batching[d]] if d in batching else next(labels)
        table_labels.append(label)
        if d in batching:
            continue
        if d in numbers.collapsed_slice_dims:
            if d in numbers.start_index_map and arguments[0].dtype.kind != "b":
                reductions[label] = "sum"
            else:
                need_replication.add(label)
            continue
        at = next(offsets)
        if size == taken and d not in numbers.start_index_map:
            out_labels[at] = label
        else:
            out_labels[at] = next(labels)
            need_replication |= {label, out_labels[at]}
    return ShardingRule(
        "gather",
        (tuple(table_labels), tuple(index_labels)),
        (tuple(out_labels),),
        reductions,
        (frozenset({0}),) if _fill_is_linear(params) else (),
        frozenset(need_replication),
        num_elements(results[0]),
    )


def _fill_is_linear(params: Mapping[str, Any]) -> bool:
    """Whether the fill value of indices outside the table is linear: f + f == f (0 or NaN)."""
    value = params["fill_value"]
    fills = Mode.from_any(params["mode"]) == Mode.FILL_OR_DROP
    return not fills or value is None or value == 0 or value != value


def _run_gather(equation: LocalEqn, arrays, shard: LocalShard):
    params, (table, index) = equation.params, arrays
    numbers, mode = params["dimension_numbers"], Mode.from_any(params["mode"])
    dims = equation.arguments[0]
    indexed = [d in numbers.start_index_map for d in range(len(dims))]
    sizes = tuple(
        min(taken, shard.size(labels)) if inside else _local(taken, labels, shard)
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
        # No device has a row outside the table: the first one returns the fill value.
        fills = ~inside & shard.is_first_shard([label for d in split for label in dims[d]])
        fill = jnp.asarray(_fill_value(params["fill_value"], out.dtype), out.dtype)
        out = jnp.where(lax.broadcast_in_dim(fills, out.shape, batch), fill, out)
    return [out]


def _local(taken: int, labels: Sequence[int], shard: LocalShard) -> int:
    return shard.size(labels) if taken == shard.global_size(labels) else taken


def _local_indices(index, dimensions: Sequence[int], dims, mode, shard: LocalShard):
    """Local indices, a mask of index rows on this device, and one of index rows in the table."""
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


def _fill_value(value, dtype):
    if value is not None:
        return value
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.nan
    info = jnp.iinfo(dtype)
    return info.max if info.min == 0 else info.min


# ---------------------------------------------------------------------- scatter


def _scatter(sums: bool):
    def sharding_rule(
        arguments: Sequence[AbstractArray],
        results: Sequence[AbstractArray],
        params: Mapping[str, Any],
    ) -> ShardingRule:
        numbers = params["dimension_numbers"]
        table, index, update = (argument.shape for argument in arguments)
        labels = label_counter()
        need_replication, reductions = set[int](), dict[int, Reduce]()
        index_labels = [next(labels) for _ in index]
        need_replication.add(index_labels[-1])
        batch = iter(index_labels[:-1])
        windows = numbers.update_window_dims
        update_labels = [-1 if d in windows else next(batch) for d in range(len(update))]
        offsets = iter(windows)
        table_labels = []
        pairs = zip(
            numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
        )
        batching = dict(pairs)
        for d, size in enumerate(table):
            label = index_labels[batching[d]] if d in batching else next(labels)
            table_labels.append(label)
            if d in batching or d in numbers.inserted_window_dims:
                continue
            at = next(offsets)
            if size == update[at] and d not in numbers.scatter_dims_to_operand_dims:
                update_labels[at] = label
            else:
                update_labels[at] = next(labels)
                need_replication |= {label, update_labels[at]}
        for label in set(index_labels[:-1]) - set(table_labels):
            if sums:
                reductions[label] = "sum"
            else:
                need_replication.add(label)
        return ShardingRule(
            "scatter",
            (tuple(table_labels), tuple(index_labels), tuple(update_labels)),
            (tuple(table_labels),),
            reductions,
            (frozenset({0, 2}),) if sums else (),
            frozenset(need_replication),
            num_elements(arguments[2]),
        )

    return sharding_rule


def _run_scatter(equation: LocalEqn, arrays, shard: LocalShard):
    table, index, update = arrays
    numbers = equation.params["dimension_numbers"]
    dims, index_dims, _ = equation.arguments
    table_labels = {label for labels in dims for label in labels}
    summed = [label for labels in index_dims[:-1] for label in labels if label not in table_labels]
    if shard.is_sharded(summed):
        # Every device adds its own updates; only the first adds them to the table.
        table = jnp.where(shard.is_first_shard(summed), table, jnp.zeros((), table.dtype))
    scattered = numbers.scatter_dims_to_operand_dims
    if not any(shard.is_sharded(dims[d]) for d in scattered):
        return bind_with(equation, (table, index, update))
    mode = Mode.from_any(equation.params["mode"])
    local, is_local, _ = _local_indices(index, scattered, dims, mode, shard)
    # Rows of other devices get an index behind the shard, at which updates are dropped. So indices
    # are neither sorted nor unique any more.
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
