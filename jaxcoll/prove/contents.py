"""Contents of buffers while a file is replayed: a chunk, and its contributions as bits."""

from __future__ import annotations

from typing import NamedTuple

from jaxcoll.prove.answers import NotProved
from jaxcoll.prove.kinds import KINDS


class Value(NamedTuple):
    """A chunk, and the ranks whose contributions it sums; a single bit if nothing is added."""

    chunk: int
    ranks: int


def summed(a: Value, b: Value, rank: int) -> Value:
    """The sum of two partial sums of one chunk, which must not share a contribution."""
    if a.chunk != b.chunk:
        raise NotProved(f"rank {rank} adds chunk {b.chunk} to chunk {a.chunk}", rank, b.chunk)
    twice = a.ranks & b.ranks
    if twice:
        raise NotProved(f"rank {rank} adds a contribution to chunk {a.chunk} twice, that of rank "
                        f"{(twice & -twice).bit_length() - 1}", rank, a.chunk)  # fmt: skip
    return Value(a.chunk, a.ranks | b.ranks)


Cell = tuple[int, str, int]  # rank, buffer, chunk in it


class Buffers:
    """Input, output and scratch of all ranks, in chunks; cells are created when first used."""

    def __init__(self, kind: str, ranks: int, chunks: int, in_place: bool, roots: tuple[int, ...]):
        row = KINDS[kind]
        if not row.is_replayed:
            raise NotProved(f"programs of {kind} are not replayed")
        if chunks % ranks and (row.takes_shard or row.gives_shard or row.is_exchange):
            raise NotProved(f"{chunks} chunks do not divide evenly among {ranks} ranks")
        for root in roots:
            if not 0 <= root < ranks:
                raise NotProved(f"the root must be a rank, 0 to {ranks - 1}, got {root}")
        if not roots or (len(roots) > 1 and row.roots != "some"):
            raise NotProved(f"{kind} cannot have {len(roots)} roots")
        self.kind, self.ranks, self.chunks = row, ranks, chunks
        self.in_place, self.roots, self.share = in_place, roots, max(1, chunks // ranks)
        # One bit per rank: a sum is complete if all are set, and two that share a bit count it
        # twice.
        self.full = (1 << ranks) - 1 if row.adds else 1
        self.held: dict[Cell, Value] = {}

    def cell(self, rank: int, buffer: str, at: int) -> Cell:
        """A cell; buffers that coincide in place have one name."""
        if not self.in_place or buffer == "s":
            return rank, buffer, at
        if self.kind.takes_shard:
            return rank, "o", at if buffer == "o" else rank * self.share + at
        # The whole buffer is the output of an all_gather, else the input; the other is a window of
        # it.
        at = rank * self.share + at if self.kind.gives_shard and buffer == "o" else at
        return rank, "i", at

    def read(self, cell: Cell) -> Value:
        """The value of a cell.

        Raises:
            NotProved: the cell was neither written nor given.
        """
        found = self.held.get(cell) or self.given(*cell)
        if found is None:
            rank, buffer, at = cell
            raise NotProved(f"rank {rank} reads chunk {at} of buffer {buffer!r}, which holds "
                            "nothing", rank, at)  # fmt: skip
        return found

    def given(self, rank: int, buffer: str, at: int) -> Value | None:
        """The value that the caller puts into a cell before the collective begins."""
        if self.kind.takes_shard:
            own = rank * self.share + at if buffer == "i" else at
            mine = buffer == "i" and at < self.share
            if mine or (self.in_place and buffer == "o" and at // self.share == rank):
                return Value(own, 1)
        elif buffer == "i" and at < self.chunks:
            if self.kind.adds:
                return Value(at, 1 << rank)
            if self.kind.is_exchange:
                return Value(rank * self.chunks + at, 1)
            return Value(at, 1) if rank in self.roots else None
        return None

    def check_end(self) -> None:
        """Check that every rank's output holds what the collective asks for.

        Raises:
            NotProved: a chunk is wrong; the error names the first rank and chunk.
        """
        for rank in range(self.ranks):
            if self.kind.adds and self.kind.is_rooted and rank not in self.roots:
                continue
            for at in range(self.share if self.kind.gives_shard else self.chunks):
                chunk = rank * self.share + at if self.kind.gives_shard else at
                if self.kind.is_exchange:
                    source, place = divmod(at, self.share)
                    chunk = source * self.chunks + rank * self.share + place
                cell = self.cell(rank, "o", at)
                check_value(self.held.get(cell) or self.given(*cell), chunk, self.full, rank)


def check_value(found: Value | None, chunk: int, full: int, rank: int) -> None:
    """Check that a rank ends with a whole chunk.

    Raises:
        NotProved: it ends with nothing, another chunk, or a sum that lacks a contribution.
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
