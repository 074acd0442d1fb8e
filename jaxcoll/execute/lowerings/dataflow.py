"""Values: a program without its buffer, as a flow of values from permute to permute. NumPy only.

In straight-line code what arrives need not be stored to be sent on. A *value* is something all
ranks have under the same name: the input, what a round brought, or a sum taken on the spot. The
flow says for each round which rows of which values a rank sends, for sums which are added up, and
where the rows of the result are found in the end. Nothing is copied that is only passed on, a sum
is one fused addition, and nobody needs a buffer until the result is put together.

That pays where all ranks do about the same, as they do in schedules of symmetric networks. Where
they do not, there is no flow (``flow_of`` gives ``None``) and a buffer serves better.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxcoll.execute.lowerings.rounds import Program, Round

# More ways than this in which ranks put together what they send are not worth a selection.
MOST_VARIANTS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Variant:
    """How some ranks come by consecutive rows: as the sum of rows of values.

    Attributes:
        values: the values added up.
        start: first row in each of them, by rank; integers of shape (values, ranks).
    """

    values: tuple[int, ...]
    start: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive rows of a message or a sum.

    Attributes:
        length: rows.
        variants: the ways to come by them.
        which: the variant of each rank, integers of shape (ranks,).
    """

    length: int
    variants: tuple[Variant, ...]
    which: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """What makes a value: its pieces side by side, permuted unless ``pairs`` is None.

    Attributes:
        size: rows of the value.
        rows: instead of pieces, the rows of the result as far as it goes that are permuted, int32
            of shape (ranks, size), -1 for none.
    """

    pieces: tuple[Piece, ...]
    pairs: tuple[tuple[int, int], ...] | None
    size: int
    rows: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """A program as values: value 0 is the input, value i + 1 what the i-th operation makes.

    Attributes:
        steps: the operations of each step; none of a step uses a permuted value of the same step.
        found: the row of the result that each row of each value is, -1 for none; tables of shape
            (ranks, rows of the value).
    """

    steps: tuple[tuple[Op, ...], ...]
    found: tuple[np.ndarray, ...]


@functools.lru_cache(maxsize=256)
def flow_of(program: Program, style: str = "flat") -> Flow | None:
    """The flow of a program, or ``None`` where ranks differ too much for one.

    Args:
        style: how a message of several pieces comes about. "flat": they are put side by side.
            "result": it is read from the result where that has its rows, mostly in one piece.
            "split": if all pieces are values as they stand, each is permuted by itself (more
            permutes, but one copy less of all that is sent); else as "result".
    """
    try:
        return _Tracer(program, style).trace()
    except _Irregular:
        return None


class _Irregular(Exception):
    """Ranks differ in more ways than ``MOST_VARIANTS``."""


class _Tracer:
    """Follows where the rows of every rank are while a program runs.

    ``value[r, row, :count[r, row]]`` are the values, and ``place`` the rows in them, whose sum is
    what rank r has of a row.
    """

    def __init__(self, program: Program, style: str):
        self.program, self.style = program, style
        shape = (program.num_ranks, program.num_rows)
        self.count = np.zeros(shape, np.int32)
        self.value = np.full((*shape, 1), -1, np.int32)
        self.place = np.full((*shape, 1), -1, np.int32)
        self.sizes = [0]
        rows = program.input_rows()
        self.sizes[0] = rows.shape[1]
        for at in range(rows.shape[1]):
            here = np.flatnonzero(rows[:, at] >= 0)
            self._set(here, rows[here, at], 0, at)

    def trace(self) -> Flow:
        steps = []
        for rounds in self.program.steps:
            ops = self._settle(self._copied(rounds))
            # All of a step is looked up before any of it arrives.
            for op, recv, add in self._permutes(rounds):
                ops.append(op)
                self._receive(recv, add)
            steps.append(tuple(ops))
        wanted = self.program.output_rows()
        last = self._settle(wanted)
        return Flow((*steps, tuple(last)), self._found(wanted))

    # ------------------------------------------------------------------ sends

    def _permutes(self, rounds: tuple[Round, ...]):
        """The rounds of a step as operations, each with what of its tables arrives by it."""
        ordered = [self._ordered(r) for r in rounds]
        pieces = [self._pieces(r.send) for r in ordered]
        from_result = self._is_from_result(rounds, pieces)
        parts = []
        for given, round_, parted in zip(rounds, ordered, pieces, strict=True):
            if self._is_split(parted):
                parts += self._split(round_, parted)
            elif from_result:
                op = Op((), given.pairs, given.size, given.send)
                parts.append((op, given.recv, given.add))
            else:
                op = Op(parted, round_.pairs, round_.size)
                parts.append((op, round_.recv, round_.add))
        return parts

    def _is_from_result(self, rounds: tuple[Round, ...], pieces) -> bool:
        """Whether a step is read from the result: if one read does, and saves joining pieces.

        With several reads, or arrivals that need none, XLA would not know that all reading comes
        before what the step writes to the result, and copy it.
        """
        gathers = self.program.collective.kind in ("all_gather", "all_reduce")
        if self.style == "flat" or not gathers or any(map(self._is_split, pieces)):
            return False
        if any(len(parted) == 1 for parted in pieces) or any(r.add.any() for r in rounds):
            return False
        return len({r.send.tobytes() for r in rounds}) == 1

    def _is_split(self, pieces: tuple[Piece, ...]) -> bool:
        return self.style == "split" and len(pieces) > 1 and all(map(self._is_whole, pieces))

    def _is_whole(self, piece: Piece) -> bool:
        """Whether a piece is a value as it stands."""
        way = piece.variants[0]
        alone = len(piece.variants) == len(way.values) == 1 and not way.start.any()
        return alone and piece.length == self.sizes[way.values[0]]

    def _split(self, round_: Round, pieces: tuple[Piece, ...]):
        parts, at = [], 0
        for piece in pieces:
            here = slice(at, at := at + piece.length)
            pairs = tuple(pair for pair in round_.pairs if round_.send[pair[0], here.start] >= 0)
            op = Op((piece,), pairs, piece.length)
            parts.append((op, round_.recv[:, here], round_.add[:, here]))
        return parts

    def _ordered(self, round_: Round) -> Round:
        """A round with the columns of every message in the order in which its sender has them."""
        send, recv, add = round_.send.copy(), round_.recv.copy(), round_.add.copy()
        for u, v in round_.pairs:
            filled = send[u] >= 0
            rows = send[u][filled]
            order = np.lexsort((self.place[u, rows, 0], self.value[u, rows, 0]))
            send[u, : len(rows)] = rows[order]
            recv[v, : len(rows)] = recv[v][filled][order]
            add[v, : len(rows)] = add[v][filled][order]
        return Round(round_.pairs, send, recv, add)

    def _pieces(self, table: np.ndarray) -> tuple[Piece, ...]:
        """Rows given as a table of shape (ranks, columns), -1 for none, as pieces."""
        active = table >= 0
        rows = np.where(active, table, 0)
        ranks = np.arange(len(table))[:, None]
        count, value, place = (a[ranks, rows] for a in (self.count, self.value, self.place))
        count, value = np.where(active, count, 0), np.where(active[..., None], value, -1)
        if ((count == 0) & active).any():
            raise _Irregular
        goes_on = (active[:, 1:] == active[:, :-1]) & (count[:, 1:] == count[:, :-1])
        goes_on &= (value[:, 1:] == value[:, :-1]).all(-1)
        follows = (place[:, 1:] == place[:, :-1] + 1) | (value[:, 1:] < 0)
        goes_on &= follows.all(-1)
        first = np.flatnonzero(np.concatenate([[True], ~goes_on.all(axis=0)]))
        lengths = np.diff(np.append(first, table.shape[1]))
        return tuple(
            _piece(int(length), count[:, c], value[:, c], place[:, c])
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
        """Take the sums that are left to be taken in rows of a table, all in one operation."""
        mask = np.zeros(self.count.shape, bool)
        ranks, columns = np.nonzero(table >= 0)
        mask[ranks, table[ranks, columns]] = True
        rows = _as_table(mask & (self.count > 1))
        if rows.shape[1] == 0:
            return []
        op = Op(self._pieces(rows), None, rows.shape[1])
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

    def _set(self, ranks, rows, value: int, place: int) -> None:
        self.count[ranks, rows] = 1
        self.value[ranks, rows] = -1
        self.value[ranks, rows, 0] = value
        self.place[ranks, rows, 0] = place

    def _append(self, ranks, rows, value: int, place: int) -> None:
        at = self.count[ranks, rows]
        while len(at) and at.max() >= self.value.shape[2]:
            longer = [(0, 0), (0, 0), (0, self.value.shape[2])]
            self.value = np.pad(self.value, longer, constant_values=-1)
            self.place = np.pad(self.place, longer, constant_values=-1)
        self.value[ranks, rows, at] = value
        self.place[ranks, rows, at] = place
        self.count[ranks, rows] += 1

    def _found(self, wanted: np.ndarray) -> tuple[np.ndarray, ...]:
        n = self.program.num_ranks
        found = [np.full((n, size), -1, np.int32) for size in self.sizes]
        ranks, columns = np.nonzero(wanted >= 0)
        rows = wanted[ranks, columns]
        values, places = self.value[ranks, rows, 0], self.place[ranks, rows, 0]
        for value in np.unique(values):
            here = values == value
            found[value][ranks[here], places[here]] = columns[here]
        return tuple(found)


def _as_table(mask: np.ndarray) -> np.ndarray:
    """The rows marked on each rank, ascending, as a table of shape (ranks, most rows marked)."""
    table = np.full((len(mask), int(mask.sum(axis=1).max(initial=0))), -1, np.int32)
    ranks, rows = np.nonzero(mask)
    table[ranks, np.arange(len(rows)) - np.searchsorted(ranks, ranks)] = rows
    return table


def _piece(length: int, count: np.ndarray, value: np.ndarray, place: np.ndarray) -> Piece:
    kinds, which = np.unique(value[count > 0], axis=0, return_inverse=True)
    if len(kinds) > MOST_VARIANTS:
        raise _Irregular
    variant = np.zeros(len(count), np.int32)
    variant[count > 0] = which.ravel()
    variants = []
    for i, kind in enumerate(kinds):
        terms = int((kind >= 0).sum())
        mine = (count > 0) & (variant == i)
        # Ranks that do otherwise read where one that does so reads, which is sure to exist.
        start = np.where(mine[:, None], place[:, :terms], place[np.argmax(mine), :terms])
        variants.append(Variant(tuple(int(v) for v in kind[:terms]), start.T))
    return Piece(length, tuple(variants), variant)
