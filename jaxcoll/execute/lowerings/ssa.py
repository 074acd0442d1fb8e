"""The lowering "ssa": straight-line code, step after step, with one ``ppermute`` per round.

A permute sends only the messages of its round. If all ranks do nearly the same, received rows
remain values that later permutes use directly (``jaxcoll.execute.lowerings.dataflow``). Otherwise
they are written to a buffer and read from it.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax

from jaxcoll.execute.layout import Setting, at_least, permute_together
from jaxcoll.execute.lowerings.buffer import (
    blank,
    initial_buffer,
    lookup,
    put,
    read,
    read_result,
    receive,
    resolve,
    runs,
    source,
)
from jaxcoll.execute.lowerings.dataflow import Dataflow, Op, Segment, Variant, dataflow_of
from jaxcoll.execute.lowerings.rounds import PermuteProgram, Round, split_long_steps

# A permute between CPU devices takes about as long as copying this many bytes.
LONG_ROW_BYTES = 1 << 18

# On TPU, steps of larger buffers are split. In smaller buffers, such as buckets of gradients,
# messages in flight take little memory, and every part would be a permute with its own latency.
UNCUT_BYTES = 1 << 25


def run(program: PermuteProgram, x: jax.Array, setting: Setting) -> jax.Array:
    """Run a program.

    Except on CPU, barriers separate the steps, so that all rounds of a step are in flight together.
    Without them XLA's scheduler for TPUs lets early steps run ahead and late writes accumulate. On
    CPU a permute is a copy within one memory, so concatenating segments before it would cost as
    much as sending them.

    Args:
        program: the rounds of every step.
        x: this rank's input rows, shape (input rows * width, ...).
        setting: where the ranks are, and how rows are sent and combined.

    Returns:
        This rank's output rows, shape (output rows * width, ...).
    """
    if program.is_direct:
        return _run_direct(program, x, setting)
    width, target = setting.width, setting.target
    row_bytes = x.size // x.shape[0] * x.dtype.itemsize * width
    is_large = at_least(program.num_rows * row_bytes, UNCUT_BYTES + 1)
    if target == "tpu" and is_large and (cut := split_long_steps(program)) is not program:
        return _run_overlapped(cut, x, setting)
    is_long = at_least(row_bytes, LONG_ROW_BYTES)
    dataflow = dataflow_of(program, "flat" if target != "cpu" else "split" if is_long else "result")
    if dataflow is not None:
        return DataflowRun(program, dataflow, x, setting).run()
    if target != "cpu":
        return _run_overlapped(program, x, setting)
    return _run_buffer(program, x, setting)


def _run_buffer(program: PermuteProgram, x: jax.Array, setting: Setting) -> jax.Array:
    axes, width = setting.axes, setting.width
    rank = axes.rank()
    buffer = initial_buffer(program, x, rank, width, setting.op)
    for rounds in program.steps:
        # All rows that a step sends are read before any row that it receives is written.
        sources = [source(buffer, round_, rank, width) for round_ in rounds]
        arrived = [axes.permute(s, r.pairs) for s, r in zip(sources, rounds, strict=True)]
        buffer = receive(buffer, arrived, rounds, rank, width, setting.op)
    return read_result(program, buffer, rank, width)


def _run_direct(program: PermuteProgram, x: jax.Array, setting: Setting) -> jax.Array:
    """Run unequal blocks placed by rounds: messages are input slices, and make up the result."""
    width, found, arrived = setting.width, [], []
    for rounds in program.steps:
        sources = [
            read(x, int(r.send.max(axis=0)[0]) - program.outputs, r.size, width) for r in rounds
        ]
        if arrived and setting.target != "cpu":  # steps follow one another
            sources, arrived = lax.optimization_barrier((sources, arrived))
        found += arrived
        pairs = [r.pairs for r in rounds]
        arrived = permute_together(setting.axes, sources, pairs, setting.target)
    found += arrived
    return found[0] if len(found) == 1 else lax.concatenate(found, 0)


def _run_overlapped(program: PermuteProgram, x: jax.Array, setting: Setting) -> jax.Array:
    """Run steps between barriers; a step's rows are written during the next step's permutes."""
    # The rows that the next step sends are also read then, unless they are just arriving.
    width, op = setting.width, setting.op
    rank = setting.axes.rank()
    buffer = initial_buffer(program, x, rank, width, op)
    arrived, behind = [], ()  # rows and rounds of the last step, unless already written
    for t, rounds in enumerate(program.steps):
        if t == 0 or _depends(rounds, program.steps[t - 1]):
            buffer, arrived = lax.optimization_barrier((buffer, arrived))
            buffer, arrived, behind = receive(buffer, arrived, behind, rank, width, op), [], ()
        # Otherwise no row that is read here comes from the last step, so XLA may read early.
        sources = [source(buffer, round_, rank, width) for round_ in rounds]
        buffer, arrived, sources = lax.optimization_barrier((buffer, arrived, sources))
        pairs = [r.pairs for r in rounds]
        here = permute_together(setting.axes, sources, pairs, setting.target)
        buffer = receive(buffer, arrived, behind, rank, width, op)
        arrived, behind = here, rounds
    buffer = receive(buffer, arrived, behind, rank, width, op)
    return read_result(program, buffer, rank, width)


def _depends(rounds: tuple[Round, ...], before: tuple[Round, ...]) -> bool:
    """Whether some rank sends a row that it received in the step before."""
    for earlier in before:
        for later in rounds:
            sent, got = later.send[:, :, None], earlier.recv[:, None, :]
            if ((sent == got) & (sent >= 0)).any():
                return True
    return False


# Each time it runs, XLA's algebraic simplifier moves a reshape of the result past one update; after
# 50 runs it logs an error that it is stuck (JAX 0.10 and 0.12, CPU). A barrier keeps the reshape in
# place.
MOST_UPDATES = 40


class DataflowRun:
    """Runs a dataflow on one rank; holds the values and the rows of the result so far."""

    def __init__(self, program: PermuteProgram, dataflow: Dataflow, x: jax.Array, setting: Setting):
        self.dataflow, self.setting, self.width = dataflow, setting, setting.width
        self.rank = setting.axes.rank()
        self.values = [x]
        # If one value is the whole result, row by row, nothing has to be assembled.
        used = [value for value, found in enumerate(dataflow.found) if (found >= 0).any()]
        only = dataflow.found[used[0]] if len(used) == 1 else None
        is_whole = only is not None and (only == np.arange(only.shape[1])).all()
        self.whole, self.rows = used[0] if is_whole else None, None
        if not is_whole:
            self.rows = blank(x, program.blocks[1] * program.block_rows * self.width)
            if program.collective.traits.ends_at_root:  # ranks other than the root return zeros
                self.rows = lax.full_like(self.rows, 0)
        self.placed = 0  # number of values that are already in the result
        self.updates = 0  # number of updates of the result

    def run(self) -> jax.Array:
        """The rows of the result; except on CPU, barriers keep the steps apart."""
        axes, target = self.setting.axes, self.setting.target
        sources = self._prepare(self.dataflow.steps[0])
        if target != "cpu":
            sources = self._barrier(sources)
        for t, ops in enumerate(self.dataflow.steps):
            pairs = [op.pairs for op in ops if op.pairs is not None]
            arrived = permute_together(axes, sources, pairs, target)
            # While these permutes are in flight, earlier values are written to the result.
            self._place()
            self.values += arrived
            if t + 1 < len(self.dataflow.steps):
                sources = self._prepare(self.dataflow.steps[t + 1])
                if arrived and target != "cpu":
                    sources = self._barrier(sources)
        self._place()
        if self.whole is not None:
            return self.values[self.whole]
        is_long = self.updates > MOST_UPDATES
        return lax.optimization_barrier(self.rows) if is_long else self.rows  # type: ignore

    def _barrier(self, sources: list[jax.Array]) -> list[jax.Array]:
        """Order later operations after the received values and the sources of the next step."""
        fresh = self.values[self.placed :]
        self.rows, fresh, sources = lax.optimization_barrier((self.rows, fresh, sources))
        self.values[self.placed :] = fresh
        return sources

    def _place(self) -> None:
        """Write the values to the result that are not in it yet."""
        if self.rows is not None:
            for value in range(self.placed, len(self.values)):
                for part in runs(self.dataflow.found[value]):
                    where = resolve(part, self._look)
                    self.rows = put(self.rows, self.values[value], part, where, self.width)
                    self.updates += 1
        self.placed = len(self.values)

    def _prepare(self, ops: tuple[Op, ...]) -> list[jax.Array]:
        """The sources of a step's permutes; sums without a permute become values at once."""
        sources = []
        for op in ops:
            segments = [self._segment(segment) for segment in op.segments]
            if op.rows is not None:
                self._place()
                if self.rows is None:
                    raise RuntimeError("a dataflow that reads from its result has one to read from")
                segments = [
                    read(self.rows, self._look(part.start), part.length, self.width)
                    for part in runs(op.rows)
                ]
            source = segments[0] if len(segments) == 1 else lax.concatenate(segments, 0)
            (self.values if op.pairs is None else sources).append(source)
        return sources

    def _segment(self, segment: Segment) -> jax.Array:
        sums = [self._sum(variant, segment.length) for variant in segment.variants]
        if len(sums) == 1:
            return sums[0]
        # All ranks compute all variants and keep one: branches would separate the ranks' permutes.
        which = self._look(segment.which)
        return lax.select_n(which if len(sums) > 2 else which != 0, *sums)

    def _sum(self, variant: Variant, length: int) -> jax.Array:
        terms = [
            read(self.values[value], self._look(start), length, self.width)
            for value, start in zip(variant.values, variant.start, strict=True)
        ]
        return functools.reduce(self.setting.op, terms)

    def _look(self, table: np.ndarray):
        return lookup(table, self.rank)
