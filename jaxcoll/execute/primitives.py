"""One JAX primitive a collective, with its transpose, batching and typing rules.

All work on the leading dimension, which is cut into one block a rank of a group; what the others
are does not matter. Their parameters:

- ``axes``: the mesh axes (``Axes``).
- ``schedule``: a verified schedule of the collective, its ranks numbered as those of ``axes``.
- ``lowering``: the name of a lowering, or "auto".
- ``invarying``: whether the result is typed as the same on all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll.collective import DUALS
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import internals
from jaxcoll.execute.axes import Axes
from jaxcoll.execute.lowerings import pallas, scan, ssa
from jaxcoll.execute.lowerings.buffer import lookup
from jaxcoll.execute.program import Program, program_of
from jaxcoll.execute.values import flow_of
from jaxcoll.schedule import Schedule

# XLA takes about 20 ms a permute in straight-line code, and longer the longer the code is.
MOST_STRAIGHT_PERMUTES = 128

LOWERINGS = {"ssa": ssa.run, "scan": scan.run, "pallas": pallas.run}


def bind(
    x: jax.Array, axes: Axes, schedule: Schedule, *, lowering: str = "auto", invarying: bool = False
) -> jax.Array:
    """Run a collective; ``x`` varies over ``axes.over``.

    Args:
        x: shape (s, ...) for all_gather and gather; (g * s, ...) for reduce_scatter, scatter and
            all_to_all, g being the size of a group; any shape for the others.

    Returns:
        Shape (g * s, ...), (s, ...), (g * s, ...) and that of ``x``, respectively. For reduce and
        gather zeros on ranks other than the root.
    """
    if lowering not in ("auto", *LOWERINGS):
        raise CollectiveError(f"unknown lowering {lowering!r}; known: auto, {', '.join(LOWERINGS)}")
    _check_indices(x, program_of(schedule))
    primitive = PRIMITIVES[schedule.collective.kind]
    return primitive.bind(x, axes=axes, schedule=schedule, lowering=lowering, invarying=invarying)


def _check_indices(x: jax.Array, program: Program) -> None:
    """Refuse what the 32-bit offsets into a rank's buffer cannot reach."""
    elements = program.num_rows * -(-x.size // (program.blocks[0] * program.block_rows))
    if elements > np.iinfo(np.int32).max:
        raise CollectiveError(
            f"{program.collective.kind} of shape {x.shape} needs a buffer of {elements} elements a "
            "rank, more than 2**31 - 1; cut the operand into parts"
        )


def vary(x: jax.Array, names: Sequence[str]) -> jax.Array:
    """``x`` typed as varying over (at least) some axes."""
    missing = tuple(name for name in names if name not in internals.varying(x))
    return lax.pcast(x, missing, to="varying") if missing else x


# ---------------------------------------------------------------------- rules


def _shape(shape, *, schedule, **_):
    program = program_of(schedule)
    into, out = program.blocks
    return shape if program.is_whole else (shape[0] // into * out, *shape[1:])


def _out_varying(varying, *, axes, invarying, **_):
    return varying - set(axes.over) if invarying else varying


def _transpose(cotangent, *, axes, schedule, lowering, invarying):
    kind = schedule.collective.kind
    if invarying:
        # The cotangent is the same on all ranks, and each rank's operand counts once.
        varied = lax.pcast(cotangent, axes.over, to="varying")
        return _own_block(varied, axes, schedule) if kind == "all_gather" else varied
    dual = schedule if kind == "all_reduce" else reversed_schedule(schedule)
    return bind(cotangent, axes, dual, lowering=lowering)


def _own_block(x: jax.Array, axes: Axes, schedule: Schedule) -> jax.Array:
    program = program_of(schedule)
    size = x.shape[0] // program.group_size
    place = lookup(program.place, axes.rank())
    return lax.dynamic_slice_in_dim(x, place * size, size, allow_negative_indices=False)


def _batch(x, dimension, *, schedule, **params):
    # Only the leading dimension counts: batch elements travel together, as one longer chunk.
    if dimension == 0 and not program_of(schedule).is_whole:
        x, dimension = jnp.moveaxis(x, 0, 1), 1
    return bind(x, schedule=schedule, **params), dimension


@functools.lru_cache(maxsize=256)
def reversed_schedule(schedule: Schedule) -> Schedule:
    """``schedule.reverse()``, made once."""
    return schedule.reverse()


# ---------------------------------------------------------------------- running


def run(x, *, axes, schedule, lowering, invarying, target="cpu"):
    """``bind`` in terms of other primitives, in the form for "cpu", "gpu" or "tpu"."""
    program = program_of(schedule)
    shape = _shape(x.shape, schedule=schedule)
    x = vary(x, axes.names)
    if x.size == 0:
        return x.reshape(shape)
    chosen = _chosen(program, lowering, target)
    lower, (into, out) = LOWERINGS[chosen], program.blocks
    lines = _whole_tiles(x, into * program.block_rows) if target == "tpu" else None
    if lines is not None and chosen != "pallas":
        width = lines.shape[0] // (into * program.block_rows)
        return lower(program, lines, axes, width, target).reshape(shape)
    size = x.size // into
    width = -(-size // program.block_rows)
    padding = program.block_rows * width - size
    flat = x.reshape(into, size)
    if padding:
        flat = lax.pad(flat, jnp.zeros((), x.dtype), [(0, 0, 0), (0, padding, 0)])
    result = lower(program, flat.reshape(-1), axes, width, target)
    return result.reshape(out, size + padding)[:, :size].reshape(shape)


def _whole_tiles(x: jax.Array, rows: int) -> jax.Array | None:
    """``x`` with its leading dimensions merged until they can be cut into rows, if rows are tiles.

    TPUs keep arrays as tiles of 8 x 128 elements over the last two dimensions. To flatten an array
    is to copy it there, and what is sent in whole tiles need not be flattened.

    Returns:
        Shape (rows * lines, ...), or ``None`` where tiles would be cut or the array is flat.
    """
    merged = 1
    for d in range(x.ndim - 1):
        merged *= x.shape[d]
        rest = x.shape[d + 1 :]
        if merged % rows == 0:
            second = merged // rows if len(rest) == 1 else rest[-2]
            return x.reshape(merged, *rest) if rest[-1] % 128 == second % 8 == 0 else None
    return None


def _chosen(program: Program, lowering: str, target: str) -> str:
    """The lowering of a program: straight-line code while that compiles in a few seconds.

    On CPU only if it needs no buffer: barriers do not outlive the compiler there, and without them
    it copies the whole buffer in every step. "pallas" is a kernel for TPUs; elsewhere it stands for
    "auto".
    """
    if lowering in LOWERINGS and (lowering != "pallas" or target == "tpu"):
        return lowering
    size = program.num_permutes
    if target == "tpu":
        # There every run of rows is a kernel, and it is those that take the compiler its time.
        size = sum(r.size for rounds in program.steps for r in rounds)
    if size > MOST_STRAIGHT_PERMUTES:
        return "scan"
    return "scan" if target == "cpu" and flow_of(program, "result") is None else "ssa"


def _declare(kind: str):
    return internals.define(
        f"jaxcoll_{kind}",
        shape=_shape,
        out_varying=_out_varying,
        transpose=_transpose,
        batch=_batch,
        run=run,
        platforms={
            platform: functools.partial(run, target=target)
            for platform, target in (("tpu", "tpu"), ("cuda", "gpu"), ("rocm", "gpu"))
        },
    )


PRIMITIVES = {kind: _declare(kind) for kind in DUALS}
