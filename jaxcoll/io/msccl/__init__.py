"""MSCCL XML: schedules as programs that MSCCL, its executor for NCCL, and RCCL run.

``lower`` makes the program of a schedule: one block for each end of each link, or as many as a
runtime needs.

- ``program``: a program as data, its XML, and the limits of the runtimes that read it;
- ``replay``: a program run message by message, and the schedule that it carries out.
"""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict

import numpy as np

from jaxcoll.errors import FormatError, ScheduleError
from jaxcoll.io.files import MAX_BYTES, read_text, write_text
from jaxcoll.io.msccl import program as form
from jaxcoll.io.msccl.program import (
    MOST_CHARACTERS,
    MOST_ELEMENTS,
    Block,
    Instruction,
    Program,
    Runtime,
    loads,
    whole_buffer,
    written,
    written_for,
)
from jaxcoll.io.msccl.replay import lift
from jaxcoll.io.sends import Run, check_word, continues, runs
from jaxcoll.numerics import checks
from jaxcoll.prove import NotProved, NotRead, prove_text
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

Connection = tuple[int, int, int]  # sender, receiver, channel
Place = tuple[int, int]  # block, instruction
_MOST_TRIALS = 8


def lower(
    schedule: Schedule, *, name: str = "jaxcoll", protocol: str = "Simple", dialect: str = "msccl"
) -> Program:
    """The program of a schedule, in place, within the limits of a runtime.

    A rank has one block for every outgoing edge and one for every incoming edge; several edges
    between two ranks are channels. An edge with more instructions than a block holds has several
    channels, each of which begins when the previous one has ended, so the order on the edge is
    kept. Chunks of a message that are neighbours in the buffer share one instruction. Accesses to a
    chunk from several blocks of a rank, at least one of which writes, wait for each other in the
    order of the schedule; in a step, ranks send before they receive. Every wait is for something
    earlier in that order, and so is every message that must leave a connection first. Therefore no
    program stops, even if a connection holds few messages.

    Args:
        schedule: an all_gather, reduce_scatter or all_reduce of all ranks in order.
        protocol: Simple, LL or LL128.
        dialect: ``msccl`` or ``azure``, the runtime whose limits are kept.

    Raises:
        FormatError: the collective or dialect is another one, there are groups, or there are more
            chunks, blocks, channels, elements or awaited blocks than the runtime takes; the error
            names the number.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    checks.text(name, "name", FormatError)
    checks.choice(protocol, form.PROTOCOLS, "protocol", FormatError)
    runtime = written_for(dialect)
    if len(name) > MOST_CHARACTERS:
        raise FormatError(
            f"name has {len(name)} characters, and runtimes take at most {MOST_CHARACTERS}; "
            "shorten it"
        )
    if not name.isidentifier():
        raise FormatError(f"name must be letters, digits and _, got {checks.shown(name)}")
    collective = schedule.collective
    check_word(collective, "MSCCL programs")
    if collective.num_chunks > form.MOST_CHUNKS:
        raise FormatError(
            f"{collective} has {collective.num_chunks} chunks, and a program has at most "
            f"{form.MOST_CHUNKS}; take fewer chunks per shard"
        )
    found = runs(schedule, continues(schedule, schedule.edge), most=form.MOST_COUNT)
    # Refused before the work: too many instructions, not counting those that only wait.
    ranks = collective.num_ranks
    ends = [rank for run in found for rank in (run.src, run.dst)]
    count = np.bincount(np.asarray(ends, np.int64), minlength=ranks)
    rank = int(count.argmax())
    if 1 + ranks + count[rank] > MOST_ELEMENTS:
        raise FormatError(
            f"rank {rank} would read {1 + ranks + count[rank]} or more elements of the "
            f"program, and {runtime.name} takes at most {MOST_ELEMENTS}; take fewer chunks "
            "per shard (--for-runtime chooses them), or fewer links per rank"
        )
    return _fitting(schedule, found, name, protocol, runtime)


def _fitting(
    schedule: Schedule, found: list[Run], name: str, protocol: str, runtime: Runtime
) -> Program:
    """The program with the fewest channels that keep blocks within the runtime's instructions."""
    collective = schedule.collective
    longest = runtime.instructions
    for _ in range(_MOST_TRIALS):
        rows = _rows(found, schedule, longest)
        program = Program(name, collective.kind, protocol, collective.num_chunks, True, rows)
        most = max((len(b.instructions) for row in rows for b in row), default=0)
        if most <= runtime.instructions or longest < 2:
            break
        # Waits are instructions, too, and their number is known only when blocks are: use fewer
        # runs.
        longest = min(longest - 1, longest * runtime.instructions // most)
    form.check_limits(program, runtime)
    return program


def _rows(found: list[Run], schedule: Schedule, longest: int) -> tuple[tuple[Block, ...], ...]:
    """The blocks of every rank, with at most ``longest`` runs in each."""
    ranks = [_Rank() for _ in range(schedule.collective.num_ranks)]
    connections = _connections(found, schedule, longest)
    buffer = whole_buffer(schedule.collective.kind)
    for run, (connection, before) in zip(found, connections, strict=True):
        place = (buffer, run.first)
        sends = Instruction("s", place, place, run.count, step=run.step, place=run.place)
        receives = Instruction("rrc" if run.reduce else "r", place, place, run.count)
        for rank, end, each, time in (
            (connection[0], "send", sends, 2 * run.step),
            (connection[1], "receive", receives, 2 * run.step + 1),
        ):
            # Both ends split at the same run, because the n-th send of a connection meets the n-th
            # receive.
            key, last = (end, connection), None if before is None else (end, before)
            ranks[rank].add(key, each, time, last)
            ranks[rank].paths[key] = run.path if end == "send" else None
    return tuple(rank.finished() for rank in ranks)


def _connections(
    runs: list[Run], schedule: Schedule, longest: int
) -> list[tuple[Connection, Connection | None]]:
    """The connection of each run, and the earlier one of its edge after which it begins."""
    ends = list(zip(schedule.edges.src.tolist(), schedule.edges.dst.tolist(), strict=True))
    channels: defaultdict[tuple[int, int], int] = defaultdict(int)
    present: dict[int, Connection] = {}
    filled: defaultdict[int, int] = defaultdict(int)
    found: list[tuple[Connection, Connection | None]] = []
    # Whole edges come first, in their order, so that an edge that is not split keeps its number.
    for e, pair in enumerate(ends):
        present[e] = (*pair, channels[pair])
        channels[pair] += 1
    for run in runs:
        pair, before = ends[run.edge], None
        if filled[run.edge] == longest:
            before, filled[run.edge] = present[run.edge], 0
            present[run.edge] = (*pair, channels[pair])
            channels[pair] += 1
        filled[run.edge] += 1
        found.append((present[run.edge], before))
    return found


Key = tuple[str, Connection]  # end of a connection


class _Rank:
    """The blocks of a rank, under construction."""

    def __init__(self):
        self.number: dict[Key, int] = {}
        self.rows: list[list[Instruction]] = []
        self.paths: dict[Key, tuple[int, ...] | None] = {}
        self.pending: list[tuple[int, int, Key, Instruction, Key | None]] = []

    # Rows arrive by edge within a step; ``finished`` sorts them by time, because every wait must be
    # for something earlier.
    def add(self, key: Key, each: Instruction, time: int, last: Key | None) -> None:
        """Add an instruction at a time, after the last one of another end of a connection."""
        self.pending.append((time, len(self.pending), key, each, last))

    def finished(self) -> tuple[Block, ...]:
        """The blocks, with the instructions that each waits for."""
        written: dict[int, Place] = {}
        for _, _, key, each, last in sorted(self.pending, key=lambda row: row[:2]):
            block = self.number.setdefault(key, len(self.number))
            if block == len(self.rows):
                self.rows.append([])
            writes = each.type != "s"
            chunks = range(each.src[1], each.src[1] + each.count)
            # Readers and writers both wait for the last writer. Nothing waits for readers: a
            # partial sum is given away once, and nothing is added to it afterwards (``verify``);
            # the complete value that is written over it contains it, so its sender has received
            # what was read here.
            before = [written[c] for c in chunks if c in written]
            if last is not None:
                other = self.number[last]
                before.append((other, len(self.rows[other]) - 1))
            place = self._append(block, each, before)
            for c in chunks:
                if writes:
                    written[c] = place
        return tuple(
            Block(
                key[1][1] if key[0] == "send" else None,
                key[1][0] if key[0] == "receive" else None,
                key[1][2],
                tuple(self.rows[block]),
                self.paths[key],
            )
            for key, block in self.number.items()
        )

    def _append(self, block: int, each: Instruction, before: list[Place]) -> Place:
        """Add an instruction after those it waits for; all waits but the last are separate."""
        latest: dict[int, int] = {}
        for other, instruction in before:
            if other != block:
                # A block runs in order, so its latest instruction stands for all earlier ones.
                latest[other] = max(latest.get(other, -1), instruction)
        # An instruction waits for one other; for more, instructions that only wait precede it.
        waits = sorted(latest.items())
        row = self.rows[block]
        for wait in waits[:-1]:
            row.append(Instruction("nop", ("i", -1), ("o", -1), 0, wait))
        row.append(dataclasses.replace(each, after=waits[-1]) if waits else each)
        for other, instruction in waits:
            awaited = self.rows[other][instruction]
            if not awaited.awaited:  # a copy costs more than everything else here
                self.rows[other][instruction] = dataclasses.replace(awaited, awaited=True)
        return block, len(row) - 1


__all__ = [
    "Block", "Instruction", "Program", "dumps", "lift", "load", "loads", "lower", "read", "save",
]  # fmt: skip


def dumps(program: Program | Schedule, *, dialect: str = "msccl", max_bytes: int = 2**30) -> str:
    """The XML of a program, or of that of a schedule; see ``program.written`` and ``lower``.

    Raises:
        FormatError: the dialect is another one, a bound is below 1, no program can carry out the
            schedule, or it exceeds the limits of the runtime.
    """
    given = lower(program, dialect=dialect) if isinstance(program, Schedule) else program
    return written(given, dialect=dialect, max_bytes=max_bytes)


def save(
    path: str | os.PathLike,
    schedule: Schedule,
    *,
    name: str = "jaxcoll",
    protocol: str = "Simple",
    dialect: str = "msccl",
    max_bytes: int = 2**30,
) -> None:
    """Write the program of a schedule, all or nothing; see ``lower`` and ``program.written``.

    Raises:
        FormatError: no program of this format can carry out the schedule, or it exceeds the limits
            of the dialect's runtime; the error names the number.
        OSError: the file cannot be written.
    """
    program = lower(schedule, name=name, protocol=protocol, dialect=dialect)
    write_text(path, written(program, dialect=dialect, max_bytes=max_bytes))


def read(text: str, topology: Topology) -> Schedule:
    """The schedule that XML text carries out on a network, for any order of its blocks.

    ``lift`` runs a program in one order. A program with races, or one that no runtime takes, could
    run well in this order, so the text is proved, too (``jaxcoll.prove``).

    Raises:
        FormatError: the text is not a program, or the program stops before its end.
        ScheduleError: it ends, but in some order or by its runtime is not the collective that it
            states.
    """
    schedule = lift(loads(text), topology)
    try:
        prove_text(text)
    except NotRead as error:
        raise FormatError(f"no runtime reads it: {error}") from None
    except NotProved as error:
        raise ScheduleError(f"the program is wrong: {error}") from None
    return schedule


def load(path: str | os.PathLike, topology: Topology, max_bytes: int = MAX_BYTES) -> Schedule:
    """The schedule that a file carries out on a network; see ``read``.

    Raises:
        FormatError: not a program, or one that stops before its end.
        ScheduleError: it ends, and is not the collective it is said to be.
        OSError: the file cannot be read.
    """
    return read(read_text(path, max_bytes), topology)
