"""Schedules of ``jaxcoll.schedule/1``, replayed step by step."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from jaxcoll.prove.answers import Asked, NotProved, NotRead, Proof
from jaxcoll.prove.contents import Value, check_value, summed
from jaxcoll.prove.kinds import KINDS
from jaxcoll.prove.schedule_file import File, What, read

# A rank that has sent its partial sum no longer holds the chunk: if it kept the sum, the data that
# comes back could contain its own contribution twice.
_GIVEN = Value(-1, 0)  # stands for a partial sum that was given away


class _Shard(NamedTuple):
    """The ranks that first have its chunks, those that want them, and all contributions to them."""

    holders: frozenset[int]
    wanted: Sequence[int]
    full: int


class _Shards:
    """The chunks, their first holders and the ranks that want them, from the definition."""

    def __init__(self, what: What):
        row = KINDS[what.kind]
        self.adds = row.adds
        self.rows: list[_Shard] = []
        for group in what.groups:
            every = frozenset(group)
            # For a sum the bits of all ranks, for other chunks the bit that stands for the only
            # content.
            full = sum(1 << rank for rank in every) if self.adds else 1
            # One set serves all shards if all ranks have them.
            self.rows += [
                _Shard(every if has is group else frozenset(has), wanted, full)
                for has, wanted in row.ends(group, [group[place] for place in what.roots])
            ]
        self.first = [0, *accumulate(what.of_shards)]  # chunks are numbered shard by shard

    def of(self, chunk: int) -> _Shard:
        return self.rows[bisect.bisect_right(self.first, chunk) - 1]


def prove(fields: dict, asked: Asked) -> Proof:
    """Replay a schedule: in every step senders come before receivers, and steps are in order."""
    file = read(fields)
    what = file.what
    asked.agreed(what.kind, what.ranks)
    return Proof("jaxcoll.schedule/1", what.kind, what.ranks, what.chunks, len(file.edge),
                 replayed(file))  # fmt: skip


def replayed(file: File) -> tuple[str, ...]:
    """Replay the sends of a file, and say what that shows."""
    what = file.what
    if any(file.reduce) and not KINDS[what.kind].adds:
        raise NotProved(f"a send adds, and {what.kind} does not",
                        chunk=file.chunk[file.reduce.index(1)])  # fmt: skip
    replay = _Replay(_Shards(what))
    for step, sends in enumerate(_steps(file)):
        replay.step(step, sends)
    replay.check_end()
    return (
        "complete, each contribution once",
        "every send over links of the network",
        "steps end one after another: no send waits for a later one",
    )


def _steps(file: File) -> Iterable[list[tuple[int, int, int, int]]]:
    """Source, destination, chunk and whether it adds, for the sends of every step.

    Raises:
        NotRead: sends of one path are not consecutive, although they are one message.
    """
    for step, (begin, end) in enumerate(pairwise(file.step_ptr)):
        edges = [file.edges[e] for e in file.edge[begin:end]]
        messages = [edge.links for edge, _ in groupby(edges)]
        if len(set(messages)) < len(messages):
            raise NotRead(f"step {step}: the sends of an edge must stand together")
        columns = (edges, file.chunk[begin:end], file.reduce[begin:end])
        yield [(edge.src, edge.dst, c, adds) for edge, c, adds in zip(*columns, strict=True)]


class _Replay:
    def __init__(self, shards: _Shards):
        self.shards = shards
        self.held: dict[tuple[int, int], Value] = {}

    def at(self, rank: int, chunk: int) -> Value | None:
        """The part of a chunk that a rank holds; None for nothing yet."""
        if (rank, chunk) in self.held:
            return self.held[rank, chunk]
        has = rank in self.shards.of(chunk).holders
        return Value(chunk, 1 << rank if self.shards.adds else 1) if has else None

    def step(self, step: int, sends: list[tuple[int, int, int, int]]) -> None:
        """Run a step: senders are read, and give chunks away, before anything arrives."""
        moved: list[Value] = []
        for u, v, c, adds in sends:
            value = self.at(u, c)
            if value in (None, _GIVEN) or not (adds or value.ranks == self.shards.of(c).full):
                part = "a part" if value not in (None, _GIVEN) else "none"
                text = f"step {step}: rank {u} sends chunk {c} to rank {v} and holds {part} of it"
                raise NotProved(text, u, c)
            moved.append(value)
        for u, _, c, adds in sends:
            if adds and self.held.get((u, c)) is _GIVEN:
                raise NotProved(f"step {step}: rank {u} gives chunk {c} away twice", u, c)
            if adds:
                self.held[u, c] = _GIVEN
        for (u, v, c, adds), value in zip(sends, moved, strict=True):
            here = self.at(v, c)
            if (here is _GIVEN) if adds else here not in (None, _GIVEN):
                had = "has given it away" if adds else "has some of it"
                text = f"step {step}: rank {v} receives chunk {c} from rank {u}, and {had}"
                raise NotProved(text, v, c)
            self.held[v, c] = summed(here, value, v) if here and adds else value

    def check_end(self) -> None:
        for row, (first, end) in zip(self.shards.rows, pairwise(self.shards.first), strict=True):
            for chunk in range(first, end):
                for rank in row.wanted:
                    found = self.at(rank, chunk)
                    check_value(None if found is _GIVEN else found, chunk, row.full, rank)
