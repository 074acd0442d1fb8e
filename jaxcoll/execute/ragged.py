"""``ragged_all_to_all``: slices of unequal sizes that are known only when the program runs.

Programs are compiled for arrays of known shapes. So every pair of ranks has a bound on the rows
that one sends to the other (``largest``), and blocks of that size are exchanged (``blocks``):
slices are gathered from the operand into blocks, the blocks are sent by a schedule, and the rows
that belong to slices are written to the output. Other rows are never read. As in ``jax.lax``,
senders choose where in a receiver's output their slices go; they send these places and the lengths
beforehand, in an all_to_all of a few integers.

The function is linear in operand and output, and made of operations that JAX differentiates: the
transpose gathers from the cotangent of the result, runs the schedule backwards, and adds up the
rows of the operand that several slices share.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import functions, primitives
from jaxcoll.execute.blocks import Blocks, Exchange
from jaxcoll.execute.calls import (
    AxisName,
    Groups,
    array,
    axes_of,
    group_size,
    is_symbolic,
    opened,
)
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.faults import Fault, agreed
from jaxcoll.execute.layout import Axes
from jaxcoll.numerics import checks

_OFFSETS_AND_SIZES = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def ragged_all_to_all(
    operand,
    output,
    input_offsets,
    send_sizes,
    output_offsets,
    recv_sizes,
    *,
    axis_name: AxisName,
    axis_index_groups: Groups = None,
    largest=None,
    schedule: Choice = None,
    lowering: str = "auto",
    check: bool = True,
):
    """Send slices of unequal sizes to every rank of an axis. See ``jax.lax.ragged_all_to_all``.

    Slice i of a rank, ``operand[input_offsets[i]:input_offsets[i] + send_sizes[i]]``, goes to rank
    i // s of its group, where s is the number of slices per rank. It is written to the rows from
    ``output_offsets[i]`` on of ``output`` there. ``recv_sizes`` are the sizes that arrive, by
    source. Rows that no slice is written to keep their values; if several slices write the same
    row, that of the last source counts.

    The function is differentiable in ``operand`` and ``output``, forwards and backwards. If
    ``jax.lax`` has the collective, on GPUs and TPUs, calls that leave ``largest``, ``schedule`` and
    ``lowering`` open are handed to it; XLA for CPU does not have it. Their derivatives are ours,
    since those of ``jax.lax`` are wrong for empty slices and refuse groups. Slices of a rank that
    share rows of the operand, and together have more than it, then need ``largest``: without it
    their cotangents are NaN.

    Args:
        operand: an array of shape (N, ...).
        output: an array of shape (M, ...) and the dtype of ``operand``.
        input_offsets, send_sizes, output_offsets, recv_sizes: integers of shape (K,), K a multiple
            of the size of a group. They may differ from rank to rank and from step to step.
        largest: the most rows that a rank sends to another, all slices together: a number for all
            pairs, or integers of shape (size, size), from source (row) to destination, by place in
            the group, the same on all ranks and known while tracing. Pairs with 0 exchange nothing,
            and the given number of rows is sent for any sizes. If omitted, it is the number of rows
            that operand and output can hold. That is right for any sizes but expensive, because
            every pair then sends as much as one rank could. Larger numbers than that are reduced to
            it.
        schedule: a schedule of all_to_all, also of unequal shares (``Collective(shares=)``), which
            need not match: rows of ``largest`` are sent, along its paths.
        check: whether sizes and offsets are checked when the program runs. A fault then ends the
            program with one error on all ranks, before anything is exchanged. The check costs an
            all_gather of five integers and, on GPUs, the host's wait for it, and programs to be
            exported (``jax.export``) cannot have it. Without it negative sizes count as 0, slices
            end where ``largest`` and the arrays do, and if the two ranks of a pair give different
            sizes, the smaller one counts.

    Returns:
        ``output`` with the slices of all ranks written to it.

    Raises:
        CollectiveError: arguments have wrong shapes or dtypes or symbolic shapes, or ``largest`` is
            negative or has a wrong shape; and when the program runs, as part of JAX's error, sizes
            or offsets are wrong (``check``).
    """
    checks.flag(check, "check", CollectiveError)
    if check and not jax_internals.is_fully_manual():
        raise CollectiveError(
            "ragged_all_to_all checks sizes when the program runs, by a call of the host, which "
            "JAX has only where all axes of the mesh are manual; leave axis_names= of shard_map "
            "out, or give check=False"
        )
    names = opened(axis_name, axis_index_groups, schedule, lowering)
    axes = axes_of(names)
    size = group_size(axes, axis_index_groups)
    arrays = _arrays(operand, output, axes)
    slices = Slices.of((input_offsets, send_sizes, output_offsets, recv_sizes), size, axes)
    most = _largest(largest, size, len(slices.peer) // size, *arrays)
    exchange = Exchange(axes, axis_index_groups, most, schedule, lowering)
    sizes = exchange.mine(most), exchange.mine(most.T)
    clipped = slices.clipped(sizes[0], *arrays)
    is_by_lax = exchange.is_by_lax(arrays[0], largest is None)
    if check or not is_by_lax:
        theirs = clipped.told(axis_name, axis_index_groups)
    if check:
        # The exchange depends on the result, so that no rank waits for one that has ended.
        fine = agreed(slices.faults(theirs[1], sizes[0], *arrays), axes)
        slices, clipped = slices.after(fine), clipped.after(fine)
    if is_by_lax:
        return _by_lax(slices, names, axis_index_groups, *arrays)
    return _exchanged(clipped, theirs, exchange, *arrays)


# ---------------------------------------------------------------------- arguments


def _arrays(operand, output, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """Operand and output as arrays that vary over the axes of the mesh, checked to fit."""
    operand, output = _array(operand, "operand"), _array(output, "output")
    if is_symbolic((operand, output)):
        raise CollectiveError(
            f"ragged_all_to_all needs shapes known while tracing, got {operand.shape} and "
            f"{output.shape}; export for definite shapes"
        )
    is_fit = operand.ndim and output.ndim and operand.shape[1:] == output.shape[1:]
    if not is_fit or operand.dtype != output.dtype:
        raise CollectiveError(
            "ragged_all_to_all takes an operand of shape (N, ...) and an output of shape (M, ...) "
            f"and its dtype, got {operand.dtype} of shape {operand.shape} and {output.dtype} of "
            f"shape {output.shape}"
        )
    return _varied(operand, axes), _varied(output, axes)


def _array(given, name: str) -> jax.Array:
    """An argument as an array; lists, numbers and texts are refused."""
    is_array = isinstance(given, (jax.Array, jax_internals.Tracer))
    if isinstance(given, np.ndarray):
        is_array = any(jnp.issubdtype(given.dtype, kind) for kind in (np.number, np.bool_))
    if not is_array:
        raise CollectiveError(
            f"ragged_all_to_all takes {name} as an array, got {checks.shown(given)}"
        )
    return array(given, "ragged_all_to_all")


def _varied(x: jax.Array, axes: Axes) -> jax.Array:
    """An array typed as varying over the axes that belong to the mesh."""
    return primitives.vary(x, axes.canonical)


def _largest(given, size: int, per_rank: int, operand, output) -> np.ndarray:
    """The rows of every pair, int64 of shape (size, size)."""
    # Slices may share rows of the operand, but not rows of the output.
    fits = min(operand.shape[0] * per_rank, output.shape[0])
    if given is None:
        return np.full((size, size), fits, np.int64)
    if isinstance(given, jax_internals.Tracer):
        raise CollectiveError(
            "largest must be known while tracing: a Python integer or a NumPy array of integers, "
            f"got {checks.shown(given)}"
        )
    is_known = isinstance(given, (int, np.integer, np.ndarray, list, tuple))
    rows = np.asarray(given if is_known else "")
    if rows.dtype.kind not in "iu" or rows.shape not in ((), (size, size)):
        raise CollectiveError(
            f"largest must be an integer or a matrix of {size} x {size} integers, one for "
            f"each pair of ranks of a group; got {checks.shown(given)}"
        )
    if rows.min() < 0:
        raise CollectiveError(f"largest must be at least 0, got {rows.min()}")
    return np.broadcast_to(np.minimum(rows, fits), (size, size)).astype(np.int64)


# ---------------------------------------------------------------------- slices


@dataclasses.dataclass(frozen=True)
class Slices:
    """The slices that a rank sends, and those that it gets; all of shape (slices,), int32.

    Attributes:
        size: ranks of a group, each with as many slices.
        input_offsets, send_sizes, output_offsets, recv_sizes: as for ``ragged_all_to_all``.
    """

    size: int
    input_offsets: jax.Array
    send_sizes: jax.Array
    output_offsets: jax.Array
    recv_sizes: jax.Array

    @classmethod
    def of(cls, given, size: int, axes: Axes) -> Slices:
        """The slices that a call names, after checking that they are integers of equal number.

        Raises:
            CollectiveError: they are not integers, or not the same number for each of ``size``
                ranks.
        """
        found = [_array(each, name) for each, name in zip(given, _OFFSETS_AND_SIZES, strict=True)]
        shapes = {each.shape for each in found}
        length = found[0].shape[0] if found[0].ndim == 1 else 0
        are_integers = all(jnp.issubdtype(each.dtype, jnp.integer) for each in found)
        if not are_integers or len(shapes) > 1 or not length or length % size:
            shown = ", ".join(
                f"{name} {each.dtype} of shape {each.shape}"
                for name, each in zip(_OFFSETS_AND_SIZES, found, strict=True)
            )
            raise CollectiveError(
                f"ragged_all_to_all over {axes} takes offsets and sizes as integers of one shape "
                f"(K,), K a multiple of the {size} ranks of a group, got {shown}"
            )
        return cls(size, *(_varied(_as_int32(each), axes) for each in found))

    @property
    def columns(self) -> tuple[jax.Array, ...]:
        """Offsets and sizes in the order of ``jax.lax``."""
        return self.input_offsets, self.send_sizes, self.output_offsets, self.recv_sizes

    @property
    def peer(self) -> np.ndarray:
        """The place in the group of each slice's target and source; int32 of shape (slices,)."""
        per_rank = self.send_sizes.shape[0] // self.size
        return np.repeat(np.arange(self.size, dtype=np.int32), per_rank)

    def clipped(self, most: jax.Array, operand: jax.Array, output: jax.Array) -> Slices:
        """The slices, with offsets and sizes cut to the arrays and to the bound of each pair.

        Args:
            most: rows for each rank of the group, int32 of shape (size,).
        """
        length = operand.shape[0]
        start = jnp.clip(self.input_offsets, 0, length)
        ends = jnp.clip(self.send_sizes, 0, length - start).reshape(self.size, -1).cumsum(axis=1)
        ends = jnp.minimum(ends, most[:, None])
        sizes = jnp.diff(ends, axis=1, prepend=0).ravel()
        target = jnp.clip(self.output_offsets, 0, output.shape[0])
        return Slices(self.size, start, sizes, target, jnp.maximum(self.recv_sizes, 0))

    def told(self, axis_name: AxisName, groups: Groups) -> tuple[jax.Array, jax.Array]:
        """The places of the slices that this rank gets in its output, and their lengths."""
        both = jnp.stack([self.output_offsets, self.send_sizes])
        both = functions.all_to_all(both, axis_name, 1, 1, axis_index_groups=groups, tiled=True)
        return both[0], both[1]

    def after(self, fine: jax.Array) -> Slices:
        """The same slices, made to depend on a number that is 0."""
        offsets = self.input_offsets + fine
        return dataclasses.replace(self, input_offsets=offsets)

    def faults(self, told, most: jax.Array, operand: jax.Array, output: jax.Array) -> list[Fault]:
        """Faults that the slices may have.

        Args:
            told: sizes that arrive, as their senders state them.
            most: as for ``clipped``.
        """
        sizes = self.send_sizes
        ends = jnp.maximum(sizes, 0).reshape(self.size, -1).cumsum(axis=1)
        room = jnp.repeat(most, ends.shape[1])
        found = [
            Fault(f"{name}[{{at}}] is {{value}}; sizes are at least 0", each < 0, each, 0)
            for name, each in (("send_sizes", sizes), ("recv_sizes", self.recv_sizes))
        ]
        for name, whole, start, length in (
            ("input_offsets", "operand", self.input_offsets, operand.shape[0]),
            ("output_offsets", "output", self.output_offsets, output.shape[0]),
        ):
            is_out = (sizes > 0) & ((start < 0) | (start > length) | (sizes > length - start))
            found += [
                Fault(f"{name}[{{at}}] is {{value}}", is_out & (start < 0), start, length),
                Fault(
                    f"send_sizes[{{at}}] rows from {name}[{{at}}] on end at {{value}}; {whole} has "
                    "{limit}",
                    is_out, jnp.minimum(start, np.iinfo(np.int32).max - sizes) + sizes, length,
                ),
            ]  # fmt: skip
        found += [
            Fault(
                "up to send_sizes[{at}] there are {value} rows for one rank; largest= allows "
                "{limit}",
                ends.ravel() > room, ends.ravel(), room,
            ),
            Fault(
                "recv_sizes[{at}] is {value}, but the rank it is from sends {limit} rows",
                self.recv_sizes != told, self.recv_sizes, told,
            ),
        ]  # fmt: skip
        return found


def _as_int32(x: jax.Array) -> jax.Array:
    """Integers as int32, cut to its range; no array has more rows than that."""
    limits = np.iinfo(np.int32)
    if x.dtype.itemsize > 2 and x.dtype != np.int32:
        least = limits.min if jnp.issubdtype(x.dtype, jnp.signedinteger) else 0
        x = jnp.clip(x, x.dtype.type(least), x.dtype.type(limits.max))
    return x.astype(np.int32)


# ---------------------------------------------------------------------- as jax.lax runs it


def _by_lax(
    slices: Slices, axis_name: tuple[str, ...], groups: Groups, operand, output
) -> jax.Array:
    """The collective of ``jax.lax``, with derivatives of our own.

    Transposes of ``jax.lax`` (0.10 to 0.12) refuse groups; keep cotangents of rows that were
    overwritten where an empty slice begins at the same row as another, as offsets by cumulative
    sums do; and of slices that share rows of the operand return the cotangent of one.
    """
    params = {"axis_name": axis_name, "axis_index_groups": groups}

    @jax.custom_jvp
    def moved(columns, arrays):
        return lax.ragged_all_to_all(*arrays, *columns, **params)

    @moved.defjvp
    def derivative(primals, tangents):
        (columns, arrays), (_, (of_operand, of_output)) = primals, tangents
        rows = output.shape[0]
        there = _into_zeros.bind(of_operand, *columns, rows=rows, sent=len(operand), **params)
        offset, size = Slices(slices.size, *columns).told(axis_name, groups)
        is_written, _, _ = _holders(rows, offset, size)
        kept = _where(~is_written, of_output, jnp.zeros((), of_output.dtype))
        return moved(columns, arrays), there + kept

    return moved(slices.columns, (operand, output))


def _moved_into_zeros(x: jax.Array, *columns, rows: int, sent: int, **params) -> jax.Array:
    """What arrives of ``sent`` rows of a rank, with zeros for all else."""
    del sent
    output = jnp.zeros((rows, *x.shape[1:]), x.dtype)
    output = primitives.vary(output, axes_of(params["axis_name"]).canonical)
    return lax.ragged_all_to_all(x, output, *columns, **params)


def _moved_back(
    cotangent: jax.Array, *columns, rows: int, sent: int, axis_name, axis_index_groups
) -> jax.Array:
    """The cotangent of the rows that were sent.

    It comes back packed, one slice behind the other, into as many rows as were sent, and is added
    to those that it is of. Slices that share so many rows that they do not fit there are none that
    this can tell apart: all of the cotangent is then NaN.
    """
    slices = Slices(group_size(axes_of(axis_name), axis_index_groups), *columns)
    sizes = jnp.maximum(slices.send_sizes, 0)
    ends = jnp.cumsum(sizes)
    starts = (ends - sizes).astype(np.int32)
    at = functions.all_to_all(
        starts, axis_name, 0, 0, axis_index_groups=axis_index_groups, tiled=True
    )
    offset, size = slices.told(axis_name, axis_index_groups)
    packed = _moved_into_zeros(
        cotangent, offset, size, at, sizes,
        rows=sent, sent=rows, axis_name=axis_name, axis_index_groups=axis_index_groups,
    )  # fmt: skip
    is_there, which, nth = _holders(sent, starts, sizes)
    row = jnp.where(is_there, slices.input_offsets[which] + nth, sent)
    added = jnp.zeros_like(packed).at[row].add(packed, mode="drop")
    return jnp.where(ends[-1] <= sent, added, jnp.asarray(jnp.nan, added.dtype))


_into_zeros = jax_internals.define_linear(
    "ragged_all_to_all_into_zeros", _moved_into_zeros, _moved_back, "rows"
)


# ---------------------------------------------------------------------- to blocks and back


def _exchanged(
    slices: Slices, theirs: tuple[jax.Array, jax.Array], exchange: Exchange, operand, output
) -> jax.Array:
    """The output with the slices of all ranks written to it."""
    blocks, own = exchange.blocks(operand), exchange.place()
    is_own = jnp.asarray(slices.peer) == own
    got = None
    if blocks.sent:
        sizes = slices.send_sizes if blocks.has_own else jnp.where(is_own, 0, slices.send_sizes)
        packed = _gathered(dataclasses.replace(slices, send_sizes=sizes), blocks, operand)
        got = blocks.run(packed)
    offset, told = theirs
    size = jnp.minimum(told, slices.recv_sizes)
    is_written, which, nth = _holders(output.shape[0], offset, size)
    result = output
    if got is not None:
        first = blocks.got_first()[slices.peer] + _before(told, slices.size)
        result = _where(is_written, _rows(got, first[which] + nth), result)
    if got is None or not blocks.has_own:
        kept = _rows(operand, slices.input_offsets[which] + nth)
        result = _where(is_written & is_own[which], kept, result)
    return result


def _gathered(slices: Slices, blocks: Blocks, operand: jax.Array) -> jax.Array:
    """The rows that a rank sends, block by block; zeros if a block is longer than its slices."""
    first = blocks.sent_first()[slices.peer] + _before(slices.send_sizes, slices.size)
    is_sent, which, nth = _holders(blocks.sent, first, slices.send_sizes)
    # Rows after a slice are never read, but on the way back nothing undefined may arrive there.
    rows = _rows(operand, slices.input_offsets[which] + nth)
    return _where(is_sent, rows, jnp.zeros((), operand.dtype))


def _holders(rows: int, first: jax.Array, size: jax.Array):
    """For each row whether a slice has it, the last slice that does, and the row's place in it."""
    # Rows times slices comparisons, which XLA fuses with the selection: less work than copying rows
    # that have more elements than there are slices.
    row = lax.iota(np.int32, rows)
    nth = row[:, None] - first
    number = np.arange(size.shape[0], dtype=np.int32)
    which = jnp.where((nth >= 0) & (nth < size), number, -1).max(axis=1)
    return which >= 0, which, row - first[which]


def _before(sizes: jax.Array, size: int) -> jax.Array:
    """The number of rows before each slice in the slices of its pair."""
    parts = sizes.reshape(size, -1)
    return (parts.cumsum(axis=1) - parts).ravel().astype(np.int32)


def _rows(x: jax.Array, index: jax.Array) -> jax.Array:
    if x.shape[0] == 0:
        return jnp.zeros((*index.shape, *x.shape[1:]), x.dtype)
    return jnp.take(x, index, axis=0, mode="clip")


def _where(flag: jax.Array, rows: jax.Array, others: jax.Array) -> jax.Array:
    return jnp.where(flag.reshape(-1, *(1,) * (rows.ndim - 1)), rows, others)
