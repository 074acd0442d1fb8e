"""ssa: straight-line code, step after step; a round is one ``ppermute`` of its messages alone."""

from __future__ import annotations

import jax
from jax import lax

from jaxcoll.execute.axes import Axes
from jaxcoll.execute.lowerings.buffer import empty, fill, lookup, put, read, resolve, runs
from jaxcoll.execute.program import Program, Round


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
