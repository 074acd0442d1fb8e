"""ssa: straight-line code, step after step; a round is one ``ppermute`` of its messages alone.

Where all ranks do about the same, arrivals stay values that later permutes use as they are
(``jaxcoll.execute.values``). Otherwise they go to a buffer and are read from there.
"""

from __future__ import annotations

import functools
import operator

import jax
import numpy as np
from jax import lax

from jaxcoll.execute.axes import Axes
from jaxcoll.execute.lowerings.buffer import (
    blank,
    empty,
    fill,
    lookup,
    put,
    read,
    resolve,
    runs,
)
from jaxcoll.execute.program import Program, Round
from jaxcoll.execute.values import Flow, Piece, Variant, flow_of


def run(program: Program, x: jax.Array, axes: Axes, width: int, strict: bool) -> jax.Array:
    """Run a program on a flat input.

    Args:
        program: the rounds.
        x: this rank's input rows, shape (input rows * width,).
        axes: where the ranks are.
        width: elements in a row.
        strict: whether to keep the steps apart by barriers, so that all rounds of a step are in
            flight together. XLA's TPU scheduler otherwise lets early steps run ahead and late
            writes pile up.

    Returns:
        This rank's output rows, shape (output rows * width,).
    """
    flow = flow_of(program)
    if flow is None:
        return _run_buffer(program, x, axes, width, strict)
    return _run_values(program, flow, x, axes, width, strict)


# ---------------------------------------------------------------------- with values


def _run_values(program: Program, flow: Flow, x, axes: Axes, width: int, strict: bool):
    rank = axes.rank()
    values, placed = [x], 0
    whole = _whole_value(flow)
    rows = None if whole is not None else _start(program, x, width)

    def place(rows, value):
        if rows is not None:
            for part in runs(flow.found[value]):
                where = resolve(part, lambda table: lookup(table, rank))
                rows = put(rows, values[value], part, where, width)
        return rows

    sources = _prepare(flow.steps[0], values, rank, width)
    for t, ops in enumerate(flow.steps):
        permuted = (op.pairs for op in ops if op.pairs is not None)
        arrived = [axes.permute(s, pairs) for s, pairs in zip(sources, permuted, strict=True)]
        # Beside these permutes, what was there before them goes where it belongs.
        for value in range(placed, len(values)):
            rows = place(rows, value)
        placed = len(values)
        values += arrived
        if t + 1 < len(flow.steps):
            sources = _prepare(flow.steps[t + 1], values, rank, width)
            if strict and arrived:
                held = (rows, values[placed:], sources)
                rows, values[placed:], sources = lax.optimization_barrier(held)
    for value in range(placed, len(values)):
        rows = place(rows, value)
    return values[whole] if rows is None else rows


def _whole_value(flow: Flow) -> int | None:
    """The value that is the result as it stands, if one is."""
    for value, found in enumerate(flow.found):
        if found.size and (found == np.arange(found.shape[1])).all():
            used = sum((table >= 0).any() for table in flow.found)
            return value if used == 1 else None
    return None


def _start(program: Program, x: jax.Array, width: int) -> jax.Array:
    rows = blank(x, program.blocks[1] * program.block_rows * width)
    has_zeros = program.collective.kind in ("reduce", "gather")
    return lax.full_like(rows, 0) if has_zeros else rows


def _prepare(ops, values: list[jax.Array], rank: jax.Array, width: int) -> list[jax.Array]:
    """What a step's permutes send; sums taken on the spot become values at once."""
    sources = []
    for op in ops:
        pieces = [_piece(piece, values, rank, width) for piece in op.pieces]
        source = pieces[0] if len(pieces) == 1 else lax.concatenate(pieces, 0)
        (values if op.pairs is None else sources).append(source)
    return sources


def _piece(piece: Piece, values: list[jax.Array], rank: jax.Array, width: int) -> jax.Array:
    ways = [_sum(way, piece.length, values, rank, width) for way in piece.variants]
    if len(ways) == 1:
        return ways[0]
    which = lookup(piece.which, rank)
    return lax.select_n(which if len(ways) > 2 else which.astype(bool), *ways)


def _sum(way: Variant, length: int, values, rank: jax.Array, width: int) -> jax.Array:
    terms = [
        read(values[value], lookup(start, rank), length, width)
        for value, start in zip(way.values, way.start, strict=True)
    ]
    return functools.reduce(operator.add, terms)


# ---------------------------------------------------------------------- with a buffer


def _run_buffer(program: Program, x, axes: Axes, width: int, strict: bool) -> jax.Array:
    rank = axes.rank()
    buffer = fill(program, x, rank, width)
    for rounds in program.steps:
        # All of a step is read before any of it is written.
        sources = [_source(buffer, round_, rank, width) for round_ in rounds]
        arrived = [axes.permute(s, r.pairs) for s, r in zip(sources, rounds, strict=True)]
        if strict:
            buffer, *arrived = lax.optimization_barrier((buffer, *arrived))
        for rows, round_ in zip(arrived, rounds, strict=True):
            for part in runs(round_.recv, round_.add):
                where = resolve(part, lambda table: lookup(table, rank))
                buffer = put(buffer, rows, part, where, width)
    return empty(program, buffer, rank, width)


def _source(buffer: jax.Array, round_: Round, rank: jax.Array, width: int) -> jax.Array:
    parts = [
        read(buffer, lookup(part.start, rank), part.length, width) for part in runs(round_.send)
    ]
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, 0)
