"""ssa: straight-line code, step after step; a round is one ``ppermute`` of its messages alone.

Where all ranks do about the same, received rows stay values that later permutes use directly
(``jaxcoll.execute.lowerings.dataflow``). Otherwise they are written to a buffer and read from it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from jaxcoll.execute.axes import Axes
from jaxcoll.execute.layout import at_least
from jaxcoll.execute.lowerings.buffer import initial_buffer, read_result, receive, source
from jaxcoll.execute.lowerings.dataflow import dataflow_of
from jaxcoll.execute.lowerings.grouped_permutes import permute_together
from jaxcoll.execute.lowerings.rounds import PermuteProgram, Round
from jaxcoll.execute.lowerings.ssa_dataflow import DataflowRun
from jaxcoll.execute.lowerings.step_splitting import split_long_steps

# A permute between CPU devices takes about as long as copying this many bytes.
LONG_ROW_BYTES = 1 << 18

# On TPU, steps of larger buffers are split. The messages in flight of smaller buffers, such as
# buckets of gradients, take little memory, and every part is a permute with a latency of its own.
UNCUT_BYTES = 1 << 25


def run(
    program: PermuteProgram,
    x: jax.Array,
    axes: Axes,
    width: int,
    target: str,
    op: Callable = lax.add,
) -> jax.Array:
    """Run a program.

    Args:
        program: the rounds.
        x: this rank's input rows, shape (input rows * width, ...).
        axes: where the ranks are.
        width: lines of ``x`` in a row.
        target: "cpu", "gpu", "gpu_ungrouped" or "tpu". Except on CPU, barriers separate the steps,
            so that all rounds of a step are in flight together; XLA's scheduler for TPUs otherwise
            lets early steps run ahead and late writes accumulate. On CPU a permute is a copy within
            one memory, so concatenating segments first would cost as much as sending them.
        op: combines two rows where the program adds them.

    Returns:
        This rank's output rows, shape (output rows * width, ...).
    """
    row_bytes = x.size // x.shape[0] * x.dtype.itemsize * width
    is_large = at_least(program.num_rows * row_bytes, UNCUT_BYTES + 1)
    if target == "tpu" and is_large and (cut := split_long_steps(program)) is not program:
        return _run_overlapped(cut, x, axes, width, target, op)
    is_long = at_least(row_bytes, LONG_ROW_BYTES)
    dataflow = dataflow_of(program, "flat" if target != "cpu" else "split" if is_long else "result")
    if dataflow is not None:
        return DataflowRun(program, dataflow, x, axes, width, op).run(target)
    if target != "cpu":
        return _run_overlapped(program, x, axes, width, target, op)
    return _run_buffer(program, x, axes, width, op)


def _run_buffer(program: PermuteProgram, x: jax.Array, axes: Axes, width: int, op) -> jax.Array:
    rank = axes.rank()
    buffer = initial_buffer(program, x, rank, width)
    for rounds in program.steps:
        # All of a step is read before any of it is written.
        sources = [source(buffer, round_, rank, width) for round_ in rounds]
        arrived = [axes.permute(s, r.pairs) for s, r in zip(sources, rounds, strict=True)]
        buffer = receive(buffer, arrived, rounds, rank, width, op)
    return read_result(program, buffer, rank, width)


def _run_overlapped(program: PermuteProgram, x: jax.Array, axes: Axes, width: int, target: str, op):
    """Steps separated by barriers; during the permutes of one, rows of the previous are written.

    The rows that the next step sends are read then, too, unless they are only just arriving.
    """
    rank = axes.rank()
    buffer = initial_buffer(program, x, rank, width)
    arrived, behind = [], ()  # of the last step, if it is not written yet
    for t, rounds in enumerate(program.steps):
        if t == 0 or _depends(rounds, program.steps[t - 1]):
            buffer, arrived = lax.optimization_barrier((buffer, arrived))
            buffer, arrived, behind = receive(buffer, arrived, behind, rank, width, op), [], ()
        # Otherwise nothing that is read here waits for the last step, and XLA may read early.
        sources = [source(buffer, round_, rank, width) for round_ in rounds]
        buffer, arrived, sources = lax.optimization_barrier((buffer, arrived, sources))
        here = permute_together(axes, sources, [r.pairs for r in rounds], target)
        buffer = receive(buffer, arrived, behind, rank, width, op)
        arrived, behind = here, rounds
    buffer = receive(buffer, arrived, behind, rank, width, op)
    return read_result(program, buffer, rank, width)


def _depends(rounds: tuple[Round, ...], before: tuple[Round, ...]) -> bool:
    """Whether some rank sends a row that it receives in the step before."""
    for earlier in before:
        for later in rounds:
            sent, got = later.send[:, :, None], earlier.recv[:, None, :]
            if ((sent == got) & (sent >= 0)).any():
                return True
    return False
