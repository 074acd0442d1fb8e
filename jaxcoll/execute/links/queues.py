"""A schedule as GPUs play it: messages in queues, and events between queues.

A *queue* is an NCCL communicator with its own CUDA stream. NCCL runs the work of one communicator
in the order in which it gets it, so messages that shall not wait for each other go to different
queues. Kernels of many communicators would not fit on a GPU together, so queues are few. All that a
rank sends and receives in one step and queue is one *group* of NCCL: its messages flow at the same
time, and end together. On tori one queue is enough, since the messages of a step begin and end at
the same times. Between hosts, where some messages take longer, several queues are needed, and list
scheduling assigns messages to them.

A rank's program is a list of instructions, which its host hands to NCCL and CUDA in this order and
without waiting (``gpu_player.cc``). A rank has at most one group in a queue and step, and its
groups are in the order of steps. So there is no circle of waits: when all groups of earlier steps
have ended, on all ranks, those of a step can begin.

Rows are read in place. A row of the input is sent from the operand until something arrives for it;
from then on it is in its place in the result, or in the workspace if the result does not have it.
Addends arrive in separate rows of the workspace and are combined into the row. If a row leaves in
the step in which another arrives for it, that one waits in the workspace, too, until the old row
has been read.

An instruction waits, by events, for the last writer of all that it reads, and for the readers and
the writer of the memory that it overwrites. Within a queue the order is enough. Waits that are
implied by an earlier one are left out.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxcoll.execute.links.instructions import (
    COMBINE,
    COPY,
    MESSAGES,
    RECORD,
    WAIT,
    ZERO,
    Instruction,
    Links,
    QueuedProgram,
    Replay,
)
from jaxcoll.execute.links.program import operations
from jaxcoll.execute.lowerings.rounds import PermuteProgram

# With kernels of 32 blocks, of which an H100 runs two on each of its 132 multiprocessors, six
# queues leave room for additions; a kernel that finds no room could wait forever.
QUEUES = (1, 2, 3, 4, 6)
# With so many messages only the least and the largest number of queues are tried.
_MANY = 4_000
# Seconds in which a host hands out a group: it took 140 to 210 us for 20 groups of a send and a
# receive on an H200's host (NCCL 2.28.9).
LAUNCH = 8e-6
INPUT, RESULT, WORK = range(3)

Place = tuple[int, int]  # which of the three memories, and the row in it


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
    links: Links | None = None,
    is_ordered: bool = False,
    tried: Sequence[int] = QUEUES,
) -> QueuedProgram:
    """The instructions of all ranks.

    Args:
        links: the links that messages cross; a link for each pair of ranks if omitted.
        is_ordered: whether additions in a row happen in the order of the program's rounds.
        tried: numbers of queues, of which the one that ends first is used; the first number if
            their times are unknown.
    """
    messages = messages_of(program, is_ordered)
    if links is None or not messages:
        return _laid_out(program, messages, assigned(messages, links, tried[0]))
    if len(messages) > _MANY:
        tried = (tried[0], tried[-1])
    # If few queues are used, larger numbers of queues repeat an assignment.
    queues = dict.fromkeys(tuple(assigned(messages, links, most)) for most in tried)
    found = (_laid_out(program, messages, queue) for queue in queues)
    return min(found, key=lambda each: Replay(each, links).seconds())


def _laid_out(
    program: PermuteProgram, messages: list[Message], queue: Sequence[int]
) -> QueuedProgram:
    """The instructions for messages in queues."""
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
            targets = receiver.targets(message, of)
            sizes = _run_sizes(origins, targets)
            sender.together(of, False, message.dst, _runs(origins, sizes))
            receiver.together(of, True, message.src, _runs(targets, sizes))
        for rank in ranks:
            rank.end_step()
    for rank in ranks:
        rank.end()
    done = [rank.instructions() for rank in ranks]
    return QueuedProgram(
        count, inputs.shape[1], outputs.shape[1],
        max(rank.rows for rank in ranks), max(events for _, events in done),
        tuple(found for found, _ in done),
    )  # fmt: skip


def messages_of(program: PermuteProgram, by_round: bool = False) -> list[Message]:
    """The messages of a program, sorted by step, and in a step by the first round with a message.

    Args:
        by_round: whether the rows from one rank to another in several rounds of a step are separate
            messages instead of one.
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


class Clock:
    """The time of messages in queues.

    A group begins when each part of it can, and its rows can be used when the last part has ended.
    A queue's groups follow one another, and the host hands out a rank's groups one by one. Links
    serve first come, first served.

    Attributes:
        free: for a rank and queue, the time when its last group ends.
        host: for a rank, the time when it has handed out its last group.
        ready: for a rank and row, the time when its arrivals can be used.
    """

    def __init__(self, links: Links | None):
        self._paths, self._row_seconds, self._alpha = links or ({}, (), ())
        self._busy = [0.0] * len(self._row_seconds)
        self.launch = LAUNCH if links else 0.0
        self.free: defaultdict[tuple[int, int], float] = defaultdict(float)
        self.host: defaultdict[int, float] = defaultdict(float)
        self.ready: defaultdict[tuple[int, int], float] = defaultdict(float)

    def can(self, message: Message) -> float:
        """The time when all rows of a message have arrived at its sender."""
        return max(self.ready[message.src, row] for row in message.sent)

    def arrives(self, message: Message, start: float, goes: bool = True) -> float:
        """The arrival time of a message that begins now; if ``goes``, it keeps links busy."""
        path, rows = self._paths.get((message.src, message.dst)), len(message.sent)
        if path is None:
            return start + rows
        for link in path:
            leaves = max(start, self._busy[link]) + rows * self._row_seconds[link]
            start = leaves + self._alpha[link]
            if goes:
                self._busy[link] = leaves
        return start

    def end_step(self, ends: Mapping[tuple[int, int], float], step: list[tuple[Message, int]]):
        """End the groups of a step."""
        self.free.update(ends)
        for message, queue in step:
            for row in message.got:
                key = message.dst, row
                self.ready[key] = max(self.ready[key], ends[message.dst, queue])


def assigned(messages: list[Message], links: Links | None, most: int) -> list[int]:
    """The queue of each message, chosen so that it waits least and makes others wait least.

    This is list scheduling: the messages of a step in order, each as early as possible.
    """
    if most == 1:
        return [0] * len(messages)
    clock, queues = Clock(links), []
    for _, group in itertools.groupby(messages, lambda message: message.step):
        begins: dict[tuple[int, int], float] = {}
        ends: dict[tuple[int, int], float] = {}
        step = []
        for message in group:
            ranks, can = (message.src, message.dst), clock.can(message)
            best: tuple[Any, ...] = ()
            for queue in range(most):
                keys = [(rank, queue) for rank in ranks]
                start = max(can, *(
                    begins.get(key, max(clock.free[key], clock.host[key[0]] + clock.launch))
                    for key in keys
                ))  # fmt: skip
                until = clock.arrives(message, start, goes=False)
                beside = [key for key in keys if key in begins]
                harm = sum(start - begins[key] + abs(until - ends[key]) for key in beside)
                # Among equal queues, one that has a group already, then the one used last.
                idle = start - max(clock.free[key] for key in keys)
                choice = until + harm, -len(beside), idle, queue, start
                best = min(best or choice, choice)
            *_, queue, start = best
            until = clock.arrives(message, start)
            step.append((message, queue))
            for key in ((rank, queue) for rank in ranks):
                if key not in begins:
                    clock.host[key[0]] += clock.launch
                begins[key] = max(begins.get(key, start), start)
                ends[key] = max(ends.get(key, until), until)
        clock.end_step(ends, step)
        queues += [queue for _, queue in step]
    used = {queue: i for i, queue in enumerate(dict.fromkeys(queues))}
    return [used[queue] for queue in queues]


def _span(place: Place, size: int) -> list[Place]:
    """Consecutive rows from a place on."""
    return [(place[0], place[1] + i) for i in range(size)]


def _run_sizes(origins: list[Place], targets: list[Place]) -> list[int]:
    """The length of each run of rows that follow one another in memory at both ends."""
    sizes: list[int] = []
    for i in range(len(origins)):
        follows = i and all(
            places[i - 1 : i + 1] == _span(places[i - 1], 2) for places in (origins, targets)
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
    """An instruction, named by its queue and its place in it."""

    queue: int
    place: int


@dataclasses.dataclass
class _Emitted:
    """An instruction, and those that it waits for."""

    instruction: Instruction
    use: _Use
    after: list[_Use]


class _Rank:
    """A rank's instructions under construction.

    Attributes:
        rows: number of rows in the workspace so far.
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
        # Free rows of the workspace, by queue: reusing them in the same queue costs no wait.
        self._beside: list[list[int]] = [[] for _ in range(queues)]
        self._waiting: list[tuple[int, int, Place, bool]] = []
        # For this step, by queue: runs of rows, and the places that are read and written.
        self._groups: defaultdict[int, tuple[list[tuple[int, ...]], list[Place], list[Place]]] = (
            defaultdict(lambda: ([], [], []))
        )

    def place(self, row: int) -> Place:
        """The present place of a row; without one, its place in the result or the workspace."""
        return self._now.get(row) or self._at_home(row)

    def _at_home(self, row: int) -> Place:
        if row not in self._home:
            self._home[row] = (WORK, self.rows)
            self.rows += 1
        return self._home[row]

    def targets(self, message: Message, queue: int) -> list[Place]:
        """The places where rows of a message arrive: their own, or separate ones in the workspace.

        An addend of an empty row arrives as if it replaced the row.
        """
        spare = self._beside[queue]
        found = []
        for row, add in zip(message.got, message.adds, strict=True):
            if row not in self._now or not (add or row in self.leaving):
                found.append(self._at_home(row))
                self._now[row] = found[-1]
                continue
            if not spare:
                spare.append(self.rows)
                self.rows += 1
            found.append((WORK, heapq.heappop(spare)))
            self._waiting.append((queue, row, found[-1], add))
        return found

    def together(
        self, queue: int, arrives: bool, other: int, runs: list[tuple[Place, int]]
    ) -> None:
        """Send or receive runs of rows together with all others of this step and queue."""
        numbers, reads, writes = self._groups[queue]
        for place, size in runs:
            numbers.append((int(arrives), other, *place, size))
            (writes if arrives else reads).extend(_span(place, size))

    def end_step(self) -> None:
        """Emit the step's groups, then move rows that arrived in the workspace to their places."""
        for queue in sorted(self._groups):
            transfers, reads, writes = self._groups[queue]
            numbers = (len(transfers), *itertools.chain(*transfers))
            self._emit(Instruction(MESSAGES, queue, numbers), reads, writes)
        self._groups.clear()
        self._apply()

    def _apply(self) -> None:
        for queue, runs in itertools.groupby(self._waiting, lambda each: each[0]):
            for run in self._together(list(runs)):
                _, row, target, add = run[0]
                home, was, size = self._at_home(row), self._now[row], len(run)
                beside, into = _span(target, size), _span(home, size)
                if add:
                    numbers = (*home, *was, *target, size)
                    reads = [*_span(was, size), *beside]
                    self._emit(Instruction(COMBINE, queue, numbers), reads, into)
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
        """Runs of rows that follow one another in every memory."""
        run: list[tuple[int, int, Place, bool]] = []
        for each in waiting:
            if run:
                before = run[-1]
                ends = [
                    (place(before), place(each))
                    for place in (
                        lambda x: self._at_home(x[1]),
                        lambda x: self._now[x[1]],
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
        """Complete the result: rows without arrivals, rows that are asked for twice, zeros."""
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
            into = _span((RESULT, i), size)
            if place is None:
                self._emit(Instruction(ZERO, main, (RESULT, i, size)), [], into)
            else:
                numbers = (RESULT, i, *place, size)
                self._emit(Instruction(COPY, main, numbers), _span(place, size), into)
            del moves[:size]

    def _emit(self, instruction: Instruction, reads: list[Place], writes: list[Place]) -> None:
        use = _Use(instruction.queue, self._length[instruction.queue])
        self._length[instruction.queue] += 1
        after = {self._wrote[place] for place in (*reads, *writes) if place in self._wrote}
        for place in writes:
            after.update(self._read.pop(place, ()))
            self._wrote[place] = use
        for place in reads:
            if place[0] != INPUT:  # the input is never overwritten
                self._read[place].append(use)
        others = [each for each in after if each.queue != use.queue]
        self._emitted.append(_Emitted(instruction, use, sorted(others)))

    def instructions(self) -> tuple[tuple[Instruction, ...], int]:
        """All instructions with the events between queues, and the number of events."""
        main = self.queues
        used = [queue for queue in range(main) if self._length[queue]]
        needed = self._needed()
        # An event can be recorded again after all that wait for it have been handed out.
        last: dict[_Use, int] = {}
        for i, uses in enumerate(needed):
            last.update(dict.fromkeys(uses, i))
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
        # XLA's stream continues when all queues are done; by then no other wait uses their events.
        for event, queue in enumerate(used, 1):
            found.append(Instruction(RECORD, queue, (event,)))
            found.append(Instruction(WAIT, main, (event,)))
        return tuple(found), max(count, len(used) + 1)

    def _needed(self) -> list[list[_Use]]:
        """For each instruction those to wait for that no earlier wait implies."""
        # For each queue, the place in every other queue up to which it has already waited.
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
