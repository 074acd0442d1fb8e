"""What buffers hold while a file is replayed: a chunk, and the set of its contributions as bits."""

from __future__ import annotations

from typing import NamedTuple

from jaxcoll.prove.answers import NotProved

REDUCING = ("all_reduce", "reduce_scatter", "reduce")
KINDS = (*REDUCING, "all_gather", "all_to_all", "broadcast", "gather", "scatter")
MOST_RANKS = 2**16


class Value(NamedTuple):
    """A chunk, and the ranks whose contributions it sums; a single bit where nothing is added."""

    chunk: int
    ranks: int


def summed(a: Value, b: Value, rank: int) -> Value:
    """The sum of two partial sums of one chunk, which have no contribution in common."""
    if a.chunk != b.chunk:
        raise NotProved(f"rank {rank} adds chunk {b.chunk} to chunk {a.chunk}", rank, b.chunk)
    twice = a.ranks & b.ranks
    if twice:
        raise NotProved(f"rank {rank} adds a contribution to chunk {a.chunk} twice, that of rank "
                        f"{(twice & -twice).bit_length() - 1}", rank, a.chunk)  # fmt: skip
    return Value(a.chunk, a.ranks | b.ranks)


Cell = tuple[int, str, int]  # rank, buffer, chunk of it


class Buffers:
    """Input, output and scratch of all ranks, in chunks; made as they are touched."""

    def __init__(self, kind: str, ranks: int, chunks: int, in_place: bool, root: int):
        if kind in ("gather", "scatter"):
            raise NotProved(f"programs of {kind} are not replayed")
        if chunks % ranks and kind not in ("all_reduce", "broadcast", "reduce"):
            raise NotProved(f"{chunks} chunks are not equally many for {ranks} ranks")
        if not 0 <= root < ranks:
            raise NotProved(f"the root must be a rank, 0 to {ranks - 1}, got {root}")
        self.kind, self.ranks, self.chunks = kind, ranks, chunks
        self.in_place, self.root, self.share = in_place, root, max(1, chunks // ranks)
        # A bit per rank: a sum is complete when all are set, and two that share one count it twice.
        self.full = (1 << ranks) - 1 if kind in REDUCING else 1
        self.held: dict[Cell, Value] = {}

    def cell(self, rank: int, buffer: str, at: int) -> Cell:
        """A cell; buffers that are one in place have one name."""
        if not self.in_place or buffer == "s":
            return rank, buffer, at
        if self.kind == "all_gather":
            return rank, "o", at if buffer == "o" else rank * self.share + at
        # Of an all_gather the output is whole, else the input; the other is a window of it.
        at = rank * self.share + at if (self.kind, buffer) == ("reduce_scatter", "o") else at
        return rank, "i", at

    def read(self, cell: Cell) -> Value:
        """The value of a cell.

        Raises:
            NotProved: nothing was written or given.
        """
        found = self.held.get(cell) or self.given(*cell)
        if found is None:
            rank, buffer, at = cell
            raise NotProved(f"rank {rank} reads chunk {at} of buffer {buffer!r}, which holds "
                            "nothing", rank, at)  # fmt: skip
        return found

    def given(self, rank: int, buffer: str, at: int) -> Value | None:
        """The value that the caller puts into a cell before the collective begins."""
        if self.kind == "all_gather":
            own = rank * self.share + at if buffer == "i" else at
            mine = buffer == "i" and at < self.share
            if mine or (self.in_place and buffer == "o" and at // self.share == rank):
                return Value(own, 1)
        elif buffer == "i" and at < self.chunks:
            if self.kind in REDUCING:
                return Value(at, 1 << rank)
            if self.kind == "all_to_all":
                return Value(rank * self.chunks + at, 1)
            return Value(at, 1) if rank == self.root else None
        return None

    def check_end(self) -> None:
        """Every rank holds in its output what the collective asks for.

        Raises:
            NotProved: naming the first rank and chunk that is wrong.
        """
        for rank in range(self.ranks):
            if self.kind == "reduce" and rank != self.root:
                continue
            for at in range(self.share if self.kind == "reduce_scatter" else self.chunks):
                chunk = rank * self.share + at if self.kind == "reduce_scatter" else at
                if self.kind == "all_to_all":
                    source, place = divmod(at, self.share)
                    chunk = source * self.chunks + rank * self.share + place
                cell = self.cell(rank, "o", at)
                check_value(self.held.get(cell) or self.given(*cell), chunk, self.full, rank)


def check_value(found: Value | None, chunk: int, full: int, rank: int) -> None:
    """A rank ends with a whole chunk.

    Raises:
        NotProved: with nothing, another chunk, or a sum that lacks a contribution.
    """
    if found == (chunk, full):
        return
    if found is None:
        text = f"never receives chunk {chunk}"
    elif found.chunk != chunk:
        text = f"ends with chunk {found.chunk} where chunk {chunk} belongs"
    else:
        lacks = full & ~found.ranks
        lost = (lacks & -lacks).bit_length() - 1
        text = f"lacks the contribution of rank {lost} to chunk {chunk}"
    raise NotProved(f"rank {rank} {text}", rank, chunk)
