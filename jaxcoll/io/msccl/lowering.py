"""The MSCCL program of a schedule: a block for each end of each connection."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np

from jaxcoll.errors import FormatError, ScheduleError
from jaxcoll.io.msccl import program as form
from jaxcoll.io.msccl.program import Block, Instruction, Program
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule

_BUFFER = {"all_gather": "o", "reduce_scatter": "i", "all_reduce": "i"}
Connection = tuple[int, int, int]  # sender, receiver, channel
Place = tuple[int, int]  # block, instruction


def lower(schedule: Schedule, *, name: str = "jaxcoll", protocol: str = "Simple") -> Program:
    """The program of a schedule, in place.

    A rank has one block for every link out of it and one for every link into it; parallel links are
    channels. Chunks of a message that are neighbours in the buffer are one instruction. Accesses to
    a chunk from several blocks of a rank, of which one writes, wait for each other in the order of
    the schedule; in a step, ranks send before they receive. As every wait is for something earlier
    in that order, as is every message that must leave a connection first, no program stops, however
    few messages a connection holds.

    Args:
        schedule: an all_gather, reduce_scatter or all_reduce of all ranks in order.
        protocol: Simple, LL or LL128.

    Raises:
        FormatError: another collective; groups; more chunks, blocks, instructions per block or
            awaited blocks than the runtimes take.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    checks.text(name, "name", FormatError)
    checks.choice(protocol, form.PROTOCOLS, "protocol", FormatError)
    if not name.isidentifier():
        raise FormatError(f"name must be letters, digits and _, got {checks.shown(name)}")
    collective = schedule.collective
    if collective.kind not in _BUFFER or collective.is_grouped or collective.shares is not None:
        raise FormatError(
            f"MSCCL programs are written of {', '.join(_BUFFER)} of all ranks with equal shards, "
            f"not of {collective}"
        )
    if collective.num_chunks > form.MOST_CHUNKS:
        raise FormatError(
            f"{collective} has {collective.num_chunks} chunks, a program at most "
            f"{form.MOST_CHUNKS}; take fewer chunks per shard"
        )
    ranks = [_Rank(rank) for rank in range(collective.num_ranks)]
    buffer = _BUFFER[collective.kind]
    for run in _runs(schedule):
        place = (buffer, run.first)
        sends = Instruction("s", place, place, run.count, step=run.step)
        receives = Instruction("rrc" if run.reduce else "r", place, place, run.count)
        ranks[run.connection[0]].add(("send", run.connection), sends, 2 * run.step, False)
        ranks[run.connection[1]].add(("receive", run.connection), receives, 2 * run.step + 1, True)
    rows = tuple(rank.finished() for rank in ranks)
    return Program(name, collective.kind, protocol, collective.num_chunks, True, rows)


@dataclasses.dataclass(frozen=True)
class _Run:
    """Neighbouring chunks of one message."""

    step: int
    connection: Connection
    first: int
    count: int
    reduce: bool


def _runs(schedule: Schedule) -> list[_Run]:
    """The sends as runs of neighbouring chunks, in the order of the schedule."""
    edges = schedule.edges
    channels: defaultdict[tuple[int, int], int] = defaultdict(int)
    connections: list[Connection] = []
    for src, dst in zip(edges.src.tolist(), edges.dst.tolist(), strict=True):
        connections.append((src, dst, channels[src, dst]))
        channels[src, dst] += 1
    step, edge, chunk = (
        np.asarray(c, np.int64) for c in (schedule.step, schedule.edge, schedule.chunk)
    )
    reduce = schedule.reduce
    breaks = np.ones(len(step), bool)
    breaks[1:] = (
        (step[1:] != step[:-1])
        | (edge[1:] != edge[:-1])
        | (chunk[1:] != chunk[:-1] + 1)
        | (reduce[1:] != reduce[:-1])
    )
    start = np.flatnonzero(breaks)
    rows = zip(start.tolist(), np.diff(np.append(start, len(step))).tolist(), strict=True)
    most = form.MOST_COUNT
    return [
        _Run(
            int(step[i]), connections[edge[i]], int(chunk[i + k]), min(n - k, most), bool(reduce[i])
        )
        for i, n in rows
        for k in range(0, n, most)
    ]


class _Rank:
    """The blocks of a rank, in the making."""

    def __init__(self, rank: int):
        self.rank = rank
        self.number: dict[tuple[str, Connection], int] = {}
        self.rows: list[list[Instruction]] = []
        self.pending: list[tuple[int, int, tuple[str, Connection], Instruction, bool]] = []

    def add(self, key: tuple[str, Connection], each: Instruction, time: int, writes: bool) -> None:
        """An instruction that reads, or reads and writes, its chunks at a time."""
        self.pending.append((time, len(self.pending), key, each, writes))

    def finished(self) -> tuple[Block, ...]:
        """The blocks, with what instructions wait for."""
        written: dict[int, Place] = {}
        readers: defaultdict[int, list[Place]] = defaultdict(list)
        for _, _, key, each, writes in sorted(self.pending, key=lambda row: row[:2]):
            block = self.number.setdefault(key, len(self.number))
            if block == len(self.rows):
                self.rows.append([])
            chunks = range(each.src[1], each.src[1] + each.count)
            before = [written[c] for c in chunks if c in written]
            if writes:
                before += [place for c in chunks for place in readers[c]]
            place = self._append(block, each, before)
            for c in chunks:
                if writes:
                    written[c] = place
                    readers[c] = []
                else:
                    readers[c].append(place)
        self._check()
        return tuple(
            Block(
                key[1][1] if key[0] == "send" else None,
                key[1][0] if key[0] == "receive" else None,
                key[1][2],
                tuple(self.rows[block]),
            )
            for key, block in self.number.items()
        )

    def _append(self, block: int, each: Instruction, before: list[Place]) -> Place:
        """The instruction after what it waits for; all waits but the last are of their own."""
        latest: dict[int, int] = {}
        for other, instruction in before:
            if other != block:
                latest[other] = max(latest.get(other, -1), instruction)
        waits = sorted(latest.items())
        row = self.rows[block]
        for wait in waits[:-1]:
            row.append(Instruction("nop", ("i", -1), ("o", -1), 0, wait))
        row.append(dataclasses.replace(each, after=waits[-1] if waits else None))
        for other, instruction in waits:
            awaited = self.rows[other][instruction]
            self.rows[other][instruction] = dataclasses.replace(awaited, awaited=True)
        return block, len(row) - 1

    def _check(self) -> None:
        advice = "take fewer chunks per shard, or fewer ranks"
        if len(self.rows) > form.MOST_BLOCKS:
            raise FormatError(
                f"rank {self.rank} has {len(self.rows)} blocks, a program at most "
                f"{form.MOST_BLOCKS}; take a network of fewer links per rank"
            )
        longest = max(map(len, self.rows), default=0)
        if longest > form.MOST_INSTRUCTIONS:
            raise FormatError(
                f"a block of rank {self.rank} has {longest} instructions, a program at most "
                f"{form.MOST_INSTRUCTIONS}; {advice}"
            )
        for block, row in enumerate(self.rows):
            if block > form.MOST_AWAITED and any(each.awaited for each in row):
                raise FormatError(
                    f"block {block} of rank {self.rank} is waited for; only the first "
                    f"{form.MOST_AWAITED + 1} can be: take a network of fewer links per rank"
                )
