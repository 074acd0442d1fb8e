"""The buffer that holds a rank's rows: filled, read, written and emptied.

A row is ``width`` lines of an array; a line is the part of the array at one index of its leading
dimension, which is one element of a flat array. Row numbers that differ between ranks are looked up
by rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxcoll.execute.lowerings.rounds import PermuteProgram, Round
from jaxcoll.jax_internals import explicit_axes, varying


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Columns of a table that are consecutive rows on every rank that has them.

    Attributes:
        column: the first column.
        length: the number of columns.
        start: the first row on each rank; ranks where ``active`` is False have that of some active
            rank.
        active: whether the rank has these columns, bool of shape (ranks,).
        add: whether each rank adds them, bool of shape (ranks,).
    """

    column: int
    length: int
    start: np.ndarray
    active: np.ndarray
    add: np.ndarray


def runs(table: np.ndarray, add: np.ndarray | None = None) -> Iterator[Run]:
    """The fewest runs that make up a table of shape (ranks, columns), where -1 means no entry."""
    active = table >= 0
    add = np.zeros_like(active) if add is None else add
    # A run ends if the rows of some rank do not follow each other, or if other ranks take part or
    # add. Within a run one slice serves all ranks, and the program has an operation per run instead
    # of one per row.
    goes_on = np.where(active[:, 1:], table[:, 1:] == table[:, :-1] + 1, True)
    goes_on &= (active[:, 1:] == active[:, :-1]) & (add[:, 1:] == add[:, :-1])
    first = np.flatnonzero(np.concatenate([[True], ~goes_on.all(axis=0)]))
    for column, end in zip(first, np.append(first[1:], table.shape[1]), strict=True):
        has = active[:, column]
        if has.any():
            start = np.where(has, table[:, column], table[np.argmax(has), column])
            yield Run(int(column), int(end - column), start, has, add[:, column])


def lookup(table: np.ndarray, rank: jax.Array):
    """This rank's entry of a table of shape (ranks,).

    An entry that is the same for all ranks is a Python number; an entry that is linear in the rank
    is computed from it. So symmetric schedules need no tables.
    """
    first, rise = int(table[0]), int(table[-1]) - int(table[0])
    stride = rise // max(1, len(table) - 1)
    if table.dtype != bool and np.array_equal(table, first + stride * np.arange(len(table))):
        if stride == 0:
            return first
        scaled = rank if stride == 1 else rank * stride
        return scaled + first if first else scaled
    column = np.asarray(table, bool if table.dtype == bool else np.int32)
    entry = lax.dynamic_slice(column, (rank,), (1,), allow_negative_indices=False)
    return lax.squeeze(entry, (0,))


def read(buffer: jax.Array, row, count: int, width: int) -> jax.Array:
    """Read ``count`` rows from ``row`` on."""
    if isinstance(row, int):
        return lax.slice_in_dim(buffer, row * width, (row + count) * width)
    sizes = (count * width, *buffer.shape[1:])
    return lax.dynamic_slice(buffer, _at(buffer, row, width), sizes, allow_negative_indices=False)


def write(buffer: jax.Array, rows: jax.Array, row, width: int) -> jax.Array:
    """Write ``rows`` to the buffer from ``row`` on, and return it."""
    return lax.dynamic_update_slice(
        buffer, rows, _at(buffer, row, width), allow_negative_indices=False
    )


def _at(buffer: jax.Array, row, width: int) -> tuple:
    # All indices have one type, even if Python integers would become 64-bit ones.
    zero = 0 if isinstance(row, int) else row.dtype.type(0)
    return (row * width, *(zero for _ in buffer.shape[1:]))


def blank(like: jax.Array, length: int) -> jax.Array:
    """``length`` lines of unspecified elements, varying over the axes that ``like`` does."""
    # Every row of the result is written before it is read, so filling the buffer would only cost
    # memory traffic.
    shape = (length, *like.shape[1:])
    sharding = PartitionSpec(*(None for _ in shape)) if explicit_axes() else None
    return cast_like(lax.empty(shape, like.dtype, out_sharding=sharding), like)


def cast_like(x: jax.Array, like: jax.Array) -> jax.Array:
    """``x`` typed as varying over the axes that ``like`` varies over."""
    missing = tuple(sorted(varying(like) - varying(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


# ---------------------------------------------------------------------- in and out


def initial_buffer(
    program: PermuteProgram, x: jax.Array, rank: jax.Array, width: int, op: Callable
) -> jax.Array:
    """The buffer before the first step.

    Args:
        op: as in ``Setting``.
    """
    collective, k = program.collective, program.collective.chunks_per_shard
    length = program.num_rows * width
    if program.pairs is not None:  # rows that ranks keep are not in the buffer
        return write(blank(x, length), x, program.outputs, width)
    if collective.traits.starts_with_shard:
        start = lookup(program.group_index * k, rank)
        return write(blank(x, length), x, start, width)
    if collective.traits.is_pairwise:
        # A rank's block for itself is in its final row from the start.
        buffer = write(blank(x, length), x, program.group_size * k, width)
        start = lookup(program.group_index * k, rank)
        return write(buffer, read(x, start, k, width), start, width)
    if x.shape[0] == length:
        return x
    if collective.is_reducing:
        # A rank that only forwards a chunk may add arrivals to its row, which must not change them.
        rest = [(0, length - x.shape[0], 0), *((0, 0, 0) for _ in x.shape[1:])]
        return lax.pad(x, _neutral(op, x.dtype), rest)
    return write(blank(x, length), x, 0, width)


def _neutral(op: Callable, dtype) -> jax.Array:
    """The neutral element of an operation: combined with any element it gives that element."""
    if op in (lax.max, lax.min):
        extreme = lax.reduce_max if op is lax.max else lax.reduce_min
        return extreme(jnp.zeros(0, dtype), (0,))
    return jnp.asarray(-0.0 if jnp.issubdtype(dtype, jnp.inexact) else 0, dtype)


def read_result(
    program: PermuteProgram, buffer: jax.Array, rank: jax.Array, width: int
) -> jax.Array:
    """The rows of the result, after the last step; zeros at ranks without a result."""
    collective, k = program.collective, program.collective.chunks_per_shard
    if collective.traits.ends_with_shard:
        return read(buffer, lookup(program.group_index * k, rank), k, width)
    result = read(buffer, 0, program.outputs, width)
    if collective.traits.ends_at_root:
        is_root = lookup(np.isin(program.group_index, collective.roots), rank)
        return lax.select(_everywhere(is_root, result), result, lax.full_like(result, 0))
    return result


def _everywhere(flag, like: jax.Array) -> jax.Array:
    return lax.broadcast(jnp.asarray(flag, bool), like.shape)


def resolve(run: Run, look: Callable[[np.ndarray], object]) -> tuple:
    """The destination of a run on this rank, for ``put``: (row, active or None, add or None).

    Args:
        look: returns this rank's entry of a table of shape (ranks,).
    """
    active = None if run.active.all() else look(run.active)
    # A flag that all ranks share is known while tracing, and needs no select.
    mixed = run.add.any() and not run.add[run.active].all()
    return look(run.start), active, look(run.add) if mixed else None


def put(
    buffer: jax.Array,
    arrived: jax.Array,
    run: Run,
    where: tuple,
    width: int,
    op: Callable = lax.add,
) -> jax.Array:
    """Copy or add one run of the received rows to the buffer, unchanged on idle ranks.

    Args:
        op: combines two rows if one is added.
    """
    row, active, add = where
    new = read(arrived, run.column, run.length, width)
    # If all ranks copy, the old rows are not read, and no select is needed.
    if active is None and not run.add.any():
        return write(buffer, new, row, width)
    old = read(buffer, row, run.length, width)
    if run.add.any():
        total = op(old, new)
        new = total if add is None else lax.select(_everywhere(add, new), total, new)
    if active is not None:
        new = lax.select(_everywhere(active, new), new, old)
    return write(buffer, new, row, width)


# ---------------------------------------------------------------------- steps


def source(buffer: jax.Array, round_: Round, rank: jax.Array, width: int) -> jax.Array:
    """The rows that this rank sends in a round."""
    parts = [
        read(buffer, lookup(part.start, rank), part.length, width) for part in runs(round_.send)
    ]
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, 0)


def receive(
    buffer: jax.Array,
    arrived: Sequence[jax.Array],
    rounds: Sequence[Round],
    rank: jax.Array,
    width: int,
    op: Callable = lax.add,
) -> jax.Array:
    """The buffer after the rows received in the rounds of a step are copied or added."""
    for rows, round_ in zip(arrived, rounds, strict=True):
        for part in runs(round_.recv, round_.add):
            where = resolve(part, lambda table: lookup(table, rank))
            buffer = put(buffer, rows, part, where, width, op)
    return buffer
