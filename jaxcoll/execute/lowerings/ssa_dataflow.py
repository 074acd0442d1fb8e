"""The flow of a program as JAX operations: the better half of the ``ssa`` lowering."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from jaxcoll.execute.axes import Axes
from jaxcoll.execute.lowerings.buffer import (
    blank,
    lookup,
    put,
    read,
    resolve,
    runs,
)
from jaxcoll.execute.lowerings.dataflow import Flow, Op, Piece, Variant
from jaxcoll.execute.lowerings.grouped_permutes import permute_together
from jaxcoll.execute.lowerings.rounds import Program


class FlowRun:
    """A flow being run on one rank: its values so far, and the result as far as it goes."""

    def __init__(
        self,
        program: Program,
        flow: Flow,
        x: jax.Array,
        axes: Axes,
        width: int,
        op: Callable = lax.add,
    ):
        self.flow, self.axes, self.width, self.op = flow, axes, width, op
        self.rank = axes.rank()
        self.values = [x]
        self.whole = _whole_value(flow)
        self.rows = None if self.whole is not None else _start(program, x, width)
        self.placed = 0  # values that are in the result already

    def run(self, target: str) -> jax.Array:
        """The rows of the result; but for CPU steps are kept apart by barriers."""
        sources = self._prepare(self.flow.steps[0])
        if target != "cpu":
            sources = self._barrier(sources)
        for t, ops in enumerate(self.flow.steps):
            pairs = [op.pairs for op in ops if op.pairs is not None]
            arrived = permute_together(self.axes, sources, pairs, target)
            # Beside these permutes, what was there before them goes where it belongs.
            self._place()
            self.values += arrived
            if t + 1 < len(self.flow.steps):
                sources = self._prepare(self.flow.steps[t + 1])
                if arrived and target != "cpu":
                    sources = self._barrier(sources)
        self._place()
        return self.rows if self.whole is None else self.values[self.whole]  # type: ignore

    def _barrier(self, sources: list[jax.Array]) -> list[jax.Array]:
        """Let nothing after it start before arrivals and what is sent next are there."""
        fresh = self.values[self.placed :]
        self.rows, fresh, sources = lax.optimization_barrier((self.rows, fresh, sources))
        self.values[self.placed :] = fresh
        return sources

    def _place(self) -> None:
        """Put all values that the result has not got yet into it."""
        if self.rows is not None:
            for value in range(self.placed, len(self.values)):
                for part in runs(self.flow.found[value]):
                    where = resolve(part, self._look)
                    self.rows = put(self.rows, self.values[value], part, where, self.width)
        self.placed = len(self.values)

    def _prepare(self, ops: tuple[Op, ...]) -> list[jax.Array]:
        """What a step's permutes send; sums taken on the spot become values at once."""
        sources = []
        for op in ops:
            pieces = [self._piece(piece) for piece in op.pieces]
            if op.rows is not None:
                pieces = self._from_result(op.rows)
            source = pieces[0] if len(pieces) == 1 else lax.concatenate(pieces, 0)
            (self.values if op.pairs is None else sources).append(source)
        return sources

    def _from_result(self, table: np.ndarray) -> list[jax.Array]:
        self._place()
        if self.rows is None:
            raise RuntimeError("a flow that reads from its result has one to read from")
        return [
            read(self.rows, self._look(part.start), part.length, self.width) for part in runs(table)
        ]

    def _piece(self, piece: Piece) -> jax.Array:
        ways = [self._sum(way, piece.length) for way in piece.variants]
        if len(ways) == 1:
            return ways[0]
        which = self._look(piece.which)
        return lax.select_n(which if len(ways) > 2 else which != 0, *ways)

    def _sum(self, way: Variant, length: int) -> jax.Array:
        terms = [
            read(self.values[value], self._look(start), length, self.width)
            for value, start in zip(way.values, way.start, strict=True)
        ]
        return functools.reduce(self.op, terms)

    def _look(self, table: np.ndarray):
        return lookup(table, self.rank)


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
