"""Dataflow: a program without its buffer, as values from permute to permute. NumPy only.

Straight-line code can forward received rows without storing them. A *value* is an array that all
ranks have under the same name: the input, the rows received in a round, or a sum. The dataflow says
which rows of which values every rank sends in each round, which rows are added, and where the rows
of the result are. Forwarded rows are not copied, a sum is one fused addition, and no buffer is
needed until the result is assembled.

This pays if all ranks do about the same, as in schedules of symmetric networks. Otherwise
``dataflow_of`` returns ``None``, and the lowering uses a buffer.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxcoll.execute.lowerings.rounds import PermuteProgram, Round
from jaxcoll.kinds import Holder

# With more variants of one segment than this, a buffer is cheaper than selecting between them.
MOST_VARIANTS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Variant:
    """Consecutive rows that some ranks compute in the same way, as a sum of rows of values.

    Attributes:
        values: the values to add.
        start: first row in each of them, by rank; integers of shape (values, ranks).
    """

    values: tuple[int, ...]
    start: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive rows of a message or a sum.

    Attributes:
        length: number of rows.
        variants: the different sums that give these rows.
        which: the variant of each rank, integers of shape (ranks,).
    """

    length: int
    variants: tuple[Variant, ...]
    which: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """The operation that makes a value: segments concatenated, then permuted along ``pairs``.

    Attributes:
        segments: the rows to concatenate.
        pairs: (sender, receiver) of each message; None for a value that is not permuted.
        size: number of rows in the value.
        rows: alternative to segments: rows that are read from the result so far, int32 of shape
            (ranks, size), -1 for none.
    """

    segments: tuple[Segment, ...]
    pairs: tuple[tuple[int, int], ...] | None
    size: int
    rows: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Dataflow:
    """A program as values: value 0 is the input, value i + 1 the i-th operation's result.

    Attributes:
        steps: the operations of each step; no operation uses a permuted value of its own step.
        found: the row of the result that each row of each value is, -1 for none; tables of shape
            (ranks, rows of the value).
    """

    steps: tuple[tuple[Op, ...], ...]
    found: tuple[np.ndarray, ...]


@functools.lru_cache(maxsize=256)
def dataflow_of(program: PermuteProgram, style: str = "flat") -> Dataflow | None:
    """The dataflow of a program, or ``None`` if ranks differ too much for one.

    Args:
        style: how a message of several segments is made. With "flat" they are concatenated. With
            "result" the message is read from the result so far if that has its rows, mostly in one
            segment. With "split", if all segments are whole values, each is permuted by itself
            (more permutes, but one copy less of every message); otherwise it is as "result".
    """
    if program.pairs is not None:  # ranks differ, and there are too many rows to look at each
        return None
    try:
        return _DataflowBuilder(program, style).trace()
    except _Irregular:
        return None


class _Irregular(Exception):
    """Ranks differ in more ways than ``MOST_VARIANTS``."""


class _DataflowBuilder:
    """Traces a program and records which rows of which values add up to each row of each rank.

    Row ``row`` of rank r is the sum of rows ``offset[r, row, :count[r, row]]`` of the values
    ``value[r, row, :count[r, row]]``.
    """

    def __init__(self, program: PermuteProgram, style: str):
        self.program, self.style = program, style
        shape = (program.num_ranks, program.num_rows)
        self.count = np.zeros(shape, np.int32)
        self.value = np.full((*shape, 1), -1, np.int32)
        self.offset = np.full((*shape, 1), -1, np.int32)
        self.sizes = [0]
        rows = program.input_rows()
        self.sizes[0] = rows.shape[1]
        for at in range(rows.shape[1]):
            here = np.flatnonzero(rows[:, at] >= 0)
            self._set(here, rows[here, at], 0, at)

    def trace(self) -> Dataflow:
        steps = []
        for rounds in self.program.steps:
            # Sums are delayed: a row that is added to is a list of terms until it is sent on as
            # complete, or needed at the end. Then all its terms are added in one fused operation,
            # where a buffer would be read and written once per term. Partial sums are sent as terms
            # that the sender adds while it makes the message.
            ops = self._settle(self._copied(rounds))
            # All rows of a step are looked up before any of them arrives.
            for op, recv, add in self._permutes(rounds):
                ops.append(op)
                self._receive(recv, add)
            steps.append(tuple(ops))
        wanted = self.program.output_rows()
        last = self._settle(wanted)
        return Dataflow((*steps, tuple(last)), self._found(wanted))

    # ------------------------------------------------------------------ sends

    def _permutes(self, rounds: tuple[Round, ...]):
        """The rounds of a step as (operation, its ``recv`` table, its ``add`` table)."""
        ordered = [self._ordered(r) for r in rounds]
        segments = [self._segments(r.send) for r in ordered]
        from_result = self._is_from_result(rounds, segments)
        parts = []
        for given, round_, parted in zip(rounds, ordered, segments, strict=True):
            if self._is_split(parted):
                parts += self._split(round_, parted)
            elif from_result:
                op = Op((), given.pairs, given.size, given.send)
                parts.append((op, given.recv, given.add))
            else:
                op = Op(parted, round_.pairs, round_.size)
                parts.append((op, round_.recv, round_.add))
        return parts

    def _is_from_result(self, rounds: tuple[Round, ...], segments) -> bool:
        """Whether a step reads from the result: if one read does, and saves joining segments."""
        # With several reads, or arrivals that need none, XLA would not know that all reads come
        # before the step's writes to the result, and would copy it.
        kind = self.program.collective.traits
        gathers = kind.is_sharded and kind.after is Holder.ALL
        if self.style == "flat" or not gathers or any(map(self._is_split, segments)):
            return False
        if any(len(parted) == 1 for parted in segments) or any(r.add.any() for r in rounds):
            return False
        return len({r.send.tobytes() for r in rounds}) == 1

    def _is_split(self, segments: tuple[Segment, ...]) -> bool:
        return self.style == "split" and len(segments) > 1 and all(map(self._is_whole, segments))

    def _is_whole(self, segment: Segment) -> bool:
        """Whether a segment is one whole value."""
        variant = segment.variants[0]
        alone = len(segment.variants) == len(variant.values) == 1 and not variant.start.any()
        return alone and segment.length == self.sizes[variant.values[0]]

    def _split(self, round_: Round, segments: tuple[Segment, ...]):
        parts, at = [], 0
        for segment in segments:
            here = slice(at, at := at + segment.length)
            pairs = tuple(pair for pair in round_.pairs if round_.send[pair[0], here.start] >= 0)
            op = Op((segment,), pairs, segment.length)
            parts.append((op, round_.recv[:, here], round_.add[:, here]))
        return parts

    def _ordered(self, round_: Round) -> Round:
        """A round with the columns of every message in the order of its sender's values."""
        send, recv, add = round_.send.copy(), round_.recv.copy(), round_.add.copy()
        for u, v in round_.pairs:
            filled = send[u] >= 0
            rows = send[u][filled]
            # Sorting columns by the sender's values gives few, long segments. The receiver's tables
            # are reordered with them, so the change is not visible elsewhere.
            order = np.lexsort((self.offset[u, rows, 0], self.value[u, rows, 0]))
            send[u, : len(rows)] = rows[order]
            recv[v, : len(rows)] = recv[v][filled][order]
            add[v, : len(rows)] = add[v][filled][order]
        return Round(round_.pairs, send, recv, add)

    def _segments(self, table: np.ndarray) -> tuple[Segment, ...]:
        """The rows of a table of shape (ranks, columns), where -1 means none, as segments."""
        active = table >= 0
        rows = np.where(active, table, 0)
        ranks = np.arange(len(table))[:, None]
        count, value, offset = (a[ranks, rows] for a in (self.count, self.value, self.offset))
        count, value = np.where(active, count, 0), np.where(active[..., None], value, -1)
        # A row without a known value: such a program runs on a buffer.
        if ((count == 0) & active).any():
            raise _Irregular
        # Columns become one slice if on every rank the next row is the next row of the same values.
        # All ranks run one program, so a cut that one rank needs cuts the slice for all.
        goes_on = (active[:, 1:] == active[:, :-1]) & (count[:, 1:] == count[:, :-1])
        goes_on &= (value[:, 1:] == value[:, :-1]).all(-1)
        follows = (offset[:, 1:] == offset[:, :-1] + 1) | (value[:, 1:] < 0)
        goes_on &= follows.all(-1)
        first = np.flatnonzero(np.concatenate([[True], ~goes_on.all(axis=0)]))
        lengths = np.diff(np.append(first, table.shape[1]))
        return tuple(
            _segment(int(length), count[:, c], value[:, c], offset[:, c])
            for c, length in zip(first, lengths, strict=True)
        )

    # ------------------------------------------------------------------ sums

    def _copied(self, rounds: tuple[Round, ...]) -> np.ndarray:
        """The rows that a step copies, and which are therefore complete."""
        mask = np.zeros(self.count.shape, bool)
        for r in rounds:
            for u, v in r.pairs:
                mask[u, r.send[u][(r.send[u] >= 0) & ~r.add[v]]] = True
        return _as_table(mask)

    def _settle(self, table: np.ndarray) -> list[Op]:
        """Compute the pending sums of a table's rows, all in one operation."""
        mask = np.zeros(self.count.shape, bool)
        ranks, columns = np.nonzero(table >= 0)
        mask[ranks, table[ranks, columns]] = True
        rows = _as_table(mask & (self.count > 1))
        if rows.shape[1] == 0:
            return []
        op = Op(self._segments(rows), None, rows.shape[1])
        self._receive(rows, np.zeros(rows.shape, bool))
        return [op]

    # ------------------------------------------------------------------ arrivals

    def _receive(self, table: np.ndarray, add: np.ndarray) -> None:
        name = len(self.sizes)
        self.sizes.append(table.shape[1])
        for at in range(table.shape[1]):
            for adds in (False, True):
                here = np.flatnonzero((table[:, at] >= 0) & (add[:, at] == adds))
                if adds:
                    self._append(here, table[here, at], name, at)
                else:
                    self._set(here, table[here, at], name, at)

    def _set(self, ranks, rows, value: int, offset: int) -> None:
        self.count[ranks, rows] = 1
        self.value[ranks, rows] = -1
        self.value[ranks, rows, 0] = value
        self.offset[ranks, rows, 0] = offset

    def _append(self, ranks, rows, value: int, offset: int) -> None:
        at = self.count[ranks, rows]
        while len(at) and at.max() >= self.value.shape[2]:
            longer = [(0, 0), (0, 0), (0, self.value.shape[2])]
            self.value = np.pad(self.value, longer, constant_values=-1)
            self.offset = np.pad(self.offset, longer, constant_values=-1)
        self.value[ranks, rows, at] = value
        self.offset[ranks, rows, at] = offset
        self.count[ranks, rows] += 1

    def _found(self, wanted: np.ndarray) -> tuple[np.ndarray, ...]:
        n = self.program.num_ranks
        found = [np.full((n, size), -1, np.int32) for size in self.sizes]
        ranks, columns = np.nonzero(wanted >= 0)
        rows = wanted[ranks, columns]
        values, offsets = self.value[ranks, rows, 0], self.offset[ranks, rows, 0]
        for value in np.unique(values):
            here = values == value
            found[value][ranks[here], offsets[here]] = columns[here]
        return tuple(found)


def _as_table(mask: np.ndarray) -> np.ndarray:
    """The rows marked on each rank, ascending, as a table of shape (ranks, most rows marked)."""
    table = np.full((len(mask), int(mask.sum(axis=1).max(initial=0))), -1, np.int32)
    ranks, rows = np.nonzero(mask)
    table[ranks, np.arange(len(rows)) - np.searchsorted(ranks, ranks)] = rows
    return table


def _segment(length: int, count: np.ndarray, value: np.ndarray, offset: np.ndarray) -> Segment:
    # Ranks that read the same values differ only in the offset, which is looked up by rank. Other
    # values are another branch of the program, which all ranks run and then select from; with more
    # than a few branches the program runs on a buffer.
    kinds, which = np.unique(value[count > 0], axis=0, return_inverse=True)
    if len(kinds) > MOST_VARIANTS:
        raise _Irregular
    variant = np.zeros(len(count), np.int32)
    variant[count > 0] = which.ravel()
    variants = []
    for i, kind in enumerate(kinds):
        terms = int((kind >= 0).sum())
        mine = (count > 0) & (variant == i)
        # Ranks of other variants read the rows of a rank of this variant, which exist.
        start = np.where(mine[:, None], offset[:, :terms], offset[np.argmax(mine), :terms])
        variants.append(Variant(tuple(int(v) for v in kind[:terms]), start.T))
    return Segment(length, tuple(variants), variant)
