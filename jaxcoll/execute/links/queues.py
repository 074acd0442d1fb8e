"""A schedule as GPUs play it: messages in queues, and what they wait for.

A *queue* is an NCCL communicator and a CUDA stream of its own. NCCL does what one communicator is
given in the order given, so messages that shall not wait for each other lie in different queues.
Kernels of many communicators would not find room on a GPU beside each other; so messages share few
queues: those that are under way at a rank at the same time, by ``simulate``, get different ones, as
intervals are coloured.

A rank's program is a list of instructions, which its host hands to NCCL and CUDA in this order and
without waiting (``gpu_player.cc``). All ranks' messages stand in one order, by steps, so a message
stands behind all that it needs on any rank, and no circle of waits exists.

Rows are read where they are. A row of the input is sent from the operand until something arrives
there; from then on it lies at its place in the result, or in the workspace if it is no part of
that. What is added arrives beside and is combined into the row. Where a row leaves in the step in
which something arrives there, what arrives waits beside too until it has been read.

An instruction waits, by an event, for the last one that wrote what it reads and for those that use
what it overwrites; within a queue order is enough, and what an earlier wait implies is not said
again.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links.program import operations
from jaxcoll.execute.lowerings.rounds import PermuteProgram
from jaxcoll.simulation import Timeline

# With kernels of 32 blocks, of which an H100 runs two on each of its 132 multiprocessors, six
# queues leave room for additions; a kernel that finds none could wait for ever.
QUEUES = 6
# A program is part of the compiled code, which XLA keeps as text.
_MOST_NUMBERS = 4_000_000

MESSAGE, COMBINE, COPY, ZERO, RECORD, WAIT = range(6)
INPUT, RESULT, WORK = range(3)

Place = tuple[int, int]  # which of the three memories, and the row in it
# Seconds from the begin at which a message, by step, sender and receiver, leaves and arrives.
Times = Mapping[tuple[int, int, int], tuple[float, float]]


class Instruction(NamedTuple):
    """What a rank's host hands to NCCL or CUDA.

    Attributes:
        code: MESSAGE (numbers: whether it arrives, the other rank, how many runs, and of each run
            memory, row and rows), COMBINE (two numbers for the place of the result, of what was
            there and of what is added, and rows), COPY (to, from, rows), ZERO (place, rows), RECORD
            and WAIT (event).
        queue: where; the number of queues for XLA's own stream.
    """

    code: int
    queue: int
    numbers: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class QueuedProgram:
    """A schedule as instructions.

    Attributes:
        queues: how many.
        inputs, outputs: rows of a rank's input and of its result.
        work: rows of its workspace, the most of any rank.
        events: events that it needs, the most of any rank.
        instructions: of each rank.
    """

    queues: int
    inputs: int
    outputs: int
    work: int
    events: int
    instructions: tuple[tuple[Instruction, ...], ...]

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """All of it as the player reads it, int32.

        Raises:
            CollectiveError: more numbers than a compiled program can hold.
        """
        head = [len(self.instructions), self.queues, self.events, self.inputs, self.outputs]
        parts = [[i.code, i.queue, *i.numbers] for each in self.instructions for i in each]
        sizes = [sum(2 + len(i.numbers) for i in each) for each in self.instructions]
        first = len(head) + 1 + len(sizes) + 1
        starts = [first + before for before in itertools.accumulate(sizes, initial=0)]
        if starts[-1] > _MOST_NUMBERS:
            raise CollectiveError(
                f"links: the schedule takes {starts[-1]:,} numbers as a program for GPUs, at most "
                f"{_MOST_NUMBERS:,} fit; take fewer chunks, or another lowering"
            )
        return np.array([*head, self.work, *starts, *itertools.chain(*parts)], np.int32)


class Message(NamedTuple):
    """Rows that go from one rank to another in a step."""

    step: int
    src: int
    dst: int
    sent: list[int]
    got: list[int]
    adds: list[bool]


def queued(
    program: PermuteProgram,
    times: Times | None = None,
    is_ordered: bool = False,
    most: int = QUEUES,
) -> QueuedProgram:
    """The instructions of all ranks.

    Args:
        times: when messages are under way; a step takes one second when omitted.
        is_ordered: whether additions in a row happen in the order of the program's rounds.
        most: queues.
    """
    messages = messages_of(program, is_ordered)
    queue = assigned(messages, times or {}, most)
    inputs, outputs = program.input_rows(), program.output_rows()
    count = max(queue, default=0) + 1
    ranks = [_Rank(into, out, count) for into, out in zip(inputs, outputs, strict=True)]
    for _, step in itertools.groupby(zip(messages, queue, strict=True), lambda each: each[0].step):
        now = list(step)
        for message, _ in now:
            ranks[message.src].leaving.update(message.sent)
        for message, of in now:
            sender, receiver = ranks[message.src], ranks[message.dst]
            origins = [sender.place(row) for row in message.sent]
            beside = [
                add or row in receiver.leaving
                for row, add in zip(message.got, message.adds, strict=True)
            ]
            targets = receiver.targets(message.got, beside, of)
            sizes = _run_sizes(origins, targets)
            sender.message(of, False, message.dst, _runs(origins, sizes))
            receiver.message(of, True, message.src, _runs(targets, sizes))
            receiver.later(of, message, targets, beside)
        for rank in ranks:
            rank.apply()
    for rank in ranks:
        rank.end()
    done = [rank.instructions() for rank in ranks]
    return QueuedProgram(
        count, inputs.shape[1], outputs.shape[1],
        max(rank.rows for rank in ranks), max(events for _, events in done),
        tuple(found for found, _ in done),
    )  # fmt: skip


def times_of(run: Timeline) -> Times:
    """When messages leave and arrive in a simulated run."""
    sent, last = run.schedule, run.hop_ptr[1:] - 1
    begin = run.clock.seconds(run.hop_start[run.hop_ptr[:-1]])
    end = run.clock.seconds(run.hop_start[last] + run.hop_delay[last])
    at = sent.message_ptr[:-1]
    keys = zip(sent.step[at].tolist(), sent.src[at].tolist(), sent.dst[at].tolist(), strict=True)
    found: dict[tuple[int, int, int], tuple[float, float]] = {}
    for key, b, e in zip(keys, begin.tolist(), end.tolist(), strict=True):
        before = found.get(key, (b, e))
        found[key] = min(b, before[0]), max(e, before[1])
    return found


def messages_of(program: PermuteProgram, by_round: bool = False) -> list[Message]:
    """The messages of a program by their steps, and in a step by the first round that has one.

    Args:
        by_round: whether what goes from one rank to another in several rounds of a step is as many
            messages, not one.
    """
    step, src, dst, sent, got, add = (column.tolist() for column in operations(program))
    found: dict[tuple[int, ...], Message] = {}
    round_, before = 0, (-1, -1, -1)
    for t, u, v, a, b, adds in zip(step, src, dst, sent, got, add, strict=True):
        if by_round and (t, u, v) != before:
            round_, before = round_ + 1, (t, u, v)
        message = found.setdefault((t, u, v, round_), Message(t, u, v, [], [], []))
        message.sent.append(a)
        message.got.append(b)
        message.adds.append(adds)
    return list(found.values())


def assigned(messages: list[Message], times: Times, most: int) -> list[int]:
    """The queue of each message: one that is free at both ends when it leaves, the latest such.

    Where none is, the one that is free first.
    """
    free: defaultdict[int, list[float]] = defaultdict(lambda: [0.0] * most)
    queues = []
    for message in messages:
        begin, end = times.get(message[:3], (message.step, message.step + 1))
        ready = [max(a, b) for a, b in zip(free[message.src], free[message.dst], strict=True)]
        if min(ready) <= begin:
            queue = max((t, -i) for i, t in enumerate(ready) if t <= begin)[1] * -1
        else:
            queue = ready.index(min(ready))
        queues.append(queue)
        for rank in (message.src, message.dst):
            free[rank][queue] = max(ready[queue], begin) + end - begin
    used = {queue: i for i, queue in enumerate(dict.fromkeys(queues))}
    return [used[queue] for queue in queues]


def _run_sizes(origins: list[Place], targets: list[Place]) -> list[int]:
    """How many rows each run has: those that follow one another in memory at both ends."""
    sizes: list[int] = []
    for i, (a, b) in enumerate(zip(origins, targets, strict=True)):
        follows = i and all(
            places[i] == (places[i - 1][0], places[i - 1][1] + 1) for places in (origins, targets)
        )
        if follows:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes


def _runs(places: list[Place], sizes: list[int]) -> list[tuple[Place, int]]:
    firsts = itertools.accumulate(sizes[:-1], initial=0)
    return [(places[first], size) for first, size in zip(firsts, sizes, strict=True)]


class _Use(NamedTuple):
    """An instruction by its queue and its place in it."""

    queue: int
    place: int


@dataclasses.dataclass
class _Emitted:
    """An instruction with what it waits for."""

    instruction: Instruction
    use: _Use
    after: list[_Use]


class _Rank:
    """A rank's instructions as they are made.

    Attributes:
        rows: rows of the workspace so far.
        leaving: rows that leave in the present step.
    """

    def __init__(self, into: np.ndarray, out: np.ndarray, queues: int):
        self.queues, self.rows = queues, 0
        self.leaving: set[int] = set()
        self._now: dict[int, Place] = {
            row: (INPUT, i) for i, row in enumerate(into.tolist()) if row >= 0
        }
        self._home: dict[int, Place] = {}
        self._out = out.tolist()
        for i, row in enumerate(self._out):
            if row >= 0:
                self._home.setdefault(row, (RESULT, i))
        self._emitted: list[_Emitted] = []
        self._length = [0] * (queues + 1)
        self._wrote: dict[Place, _Use] = {}
        self._read: defaultdict[Place, list[_Use]] = defaultdict(list)
        # Rows of the workspace beside, by queue: taken again in the same queue they cost no wait.
        self._beside: list[list[int]] = [[] for _ in range(queues)]
        self._waiting: list[tuple[int, int, Place, bool]] = []

    def place(self, row: int) -> Place:
        """Where a row is now; its place in the result or the workspace if it is nowhere yet."""
        return self._now.get(row) or self._at_home(row)

    def _at_home(self, row: int) -> Place:
        if row not in self._home:
            self._home[row] = (WORK, self.rows)
            self.rows += 1
        return self._home[row]

    def targets(self, rows: list[int], beside: list[bool], queue: int) -> list[Place]:
        """Where rows arrive, those beside in a run of the workspace.

        What is added to a row that holds nothing arrives as if it replaced it.
        """
        spare = self._beside[queue]
        found = []
        for row, is_beside in zip(rows, beside, strict=True):
            if not is_beside or row not in self._now:
                found.append(self._at_home(row))
                continue
            if not spare:
                spare.append(self.rows)
                self.rows += 1
            found.append((WORK, heapq.heappop(spare)))
        return found

    def message(self, queue: int, arrives: bool, other: int, runs: list[tuple[Place, int]]) -> None:
        """Send or receive runs of rows."""
        places = [(where, row + i) for (where, row), size in runs for i in range(size)]
        numbers = [int(arrives), other, len(runs)]
        numbers += itertools.chain(*((where, row, size) for (where, row), size in runs))
        reads, writes = ([], places) if arrives else (places, [])
        self._emit(Instruction(MESSAGE, queue, tuple(numbers)), reads, writes)

    def later(
        self, queue: int, message: Message, targets: list[Place], beside: list[bool]
    ) -> None:
        """Remember what becomes of rows that have arrived when the step's have left."""
        each = zip(message.got, targets, message.adds, beside, strict=True)
        for row, target, add, is_beside in each:
            if is_beside and target != self._home.get(row):
                self._waiting.append((queue, row, target, add and row in self._now))
            else:
                self._now[row] = target

    def apply(self) -> None:
        """Put rows that arrived beside in their places."""
        for queue, runs in itertools.groupby(self._waiting, lambda each: each[0]):
            for run in self._together(list(runs)):
                _, row, target, add = run[0]
                home, was, size = self._at_home(row), self._now.get(row), len(run)
                beside = [(where, at + i) for where, at in [target] for i in range(size)]
                into = [(home[0], home[1] + i) for i in range(size)]
                if add and was is not None:
                    read = [(was[0], was[1] + i) for i in range(size)]
                    numbers = (*home, *was, *target, size)
                    self._emit(Instruction(COMBINE, queue, numbers), [*read, *beside], into)
                else:
                    numbers = (*home, *target, size)
                    self._emit(Instruction(COPY, queue, numbers), beside, into)
                for i, (_, each, _, _) in enumerate(run):
                    self._now[each] = into[i]
                    heapq.heappush(self._beside[queue], beside[i][1])
        self._waiting.clear()
        self.leaving.clear()

    def _together(
        self, waiting: list[tuple[int, int, Place, bool]]
    ) -> Iterator[list[tuple[int, int, Place, bool]]]:
        """Runs of rows that follow one another wherever they are."""
        run: list[tuple[int, int, Place, bool]] = []
        for each in waiting:
            if run:
                before = run[-1]
                ends = [
                    (place(before), place(each))
                    for place in (
                        lambda x: self._at_home(x[1]),
                        lambda x: self._now.get(x[1], (INPUT, -1)),
                        lambda x: x[2],
                    )
                ]
                follows = before[3] == each[3] and all(
                    b == (a[0], a[1] + 1) or (not each[3] and k == 1)
                    for k, (a, b) in enumerate(ends)
                )
                if not follows:
                    yield run
                    run = []
            run.append(each)
        if run:
            yield run

    def end(self) -> None:
        """Make the result whole: rows that nothing arrived in, rows asked for twice, zeros."""
        main = self.queues
        moves: list[tuple[int, Place | None]] = []
        for i, row in enumerate(self._out):
            now = self._now.get(row) if row >= 0 else None
            if now != (RESULT, i):
                moves.append((i, now))
        while moves:
            i, place = moves[0]
            size = 1
            while size < len(moves) and moves[size] == (
                i + size, place and (place[0], place[1] + size)
            ):  # fmt: skip
                size += 1
            into = [(RESULT, i + k) for k in range(size)]
            if place is None:
                self._emit(Instruction(ZERO, main, (RESULT, i, size)), [], into)
            else:
                read = [(place[0], place[1] + k) for k in range(size)]
                self._emit(Instruction(COPY, main, (RESULT, i, *place, size)), read, into)
            del moves[:size]

    def _emit(self, instruction: Instruction, reads: list[Place], writes: list[Place]) -> None:
        use = _Use(instruction.queue, self._length[instruction.queue])
        self._length[instruction.queue] += 1
        after = {self._wrote[place] for place in (*reads, *writes) if place in self._wrote}
        for place in writes:
            after.update(self._read.pop(place, ()))
            self._wrote[place] = use
        for place in reads:
            if place[0] != INPUT:  # which nothing overwrites
                self._read[place].append(use)
        others = [each for each in after if each.queue != use.queue]
        self._emitted.append(_Emitted(instruction, use, sorted(others)))

    def instructions(self) -> tuple[tuple[Instruction, ...], int]:
        """All of them with the events between queues, and how many events that takes."""
        main = self.queues
        used = [queue for queue in range(main) if self._length[queue]]
        needed = self._needed()
        # An event can be recorded again when all that wait for it have been handed out.
        last: dict[_Use, int] = {}
        for i, each in enumerate(self._emitted):
            last.update(dict.fromkeys(needed[i], i))
        ends: defaultdict[int, list[_Use]] = defaultdict(list)
        for use, i in last.items():
            ends[i].append(use)
        spare: list[int] = []
        events, count = {}, 1
        found = [Instruction(RECORD, main, (0,))] if used else []
        found += [Instruction(WAIT, queue, (0,)) for queue in used]
        for i, each in enumerate(self._emitted):
            found += [Instruction(WAIT, each.use.queue, (events[use],)) for use in needed[i]]
            found.append(each.instruction)
            if each.use in last:
                if not spare:
                    spare.append(count)
                    count += 1
                events[each.use] = heapq.heappop(spare)
                found.append(Instruction(RECORD, each.use.queue, (events[each.use],)))
            for use in ends[i]:
                heapq.heappush(spare, events[use])
        # XLA's stream goes on when all queues are done; none of their events is waited for now.
        for event, queue in enumerate(used, 1):
            found.append(Instruction(RECORD, queue, (event,)))
            found.append(Instruction(WAIT, main, (event,)))
        return tuple(found), max(count, len(used) + 1)

    def _needed(self) -> list[list[_Use]]:
        """For each instruction those to wait for that no earlier wait implies."""
        # What a queue has waited for, by queue: all up to this place.
        seen = [[-1] * (self.queues + 1) for _ in range(self.queues + 1)]
        at: dict[_Use, list[int]] = {}
        found = []
        for each in self._emitted:
            mine, waits = seen[each.use.queue], []
            for use in sorted(each.after, key=lambda use: -use.place):
                if mine[use.queue] < use.place:
                    waits.append(use)
                    mine[:] = map(max, mine, at[use])
            mine[each.use.queue] = each.use.place
            at[each.use] = list(mine)
            found.append(waits)
        return found
