"""Instructions of ranks to NCCL and CUDA, and the time that they take on a network.

The clock belongs to a machine on which only links take time. A stream does its work in order, and
an event stands for the work that its stream had when it was recorded. A group of sends and receives
begins when its stream reaches it, and ends with the last of them. A message flows while both of its
ends are at it, over the links of its path one after the other; each link serves first come, first
served.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxcoll.errors import CollectiveError
from jaxcoll.schedule import Schedule

# A program is part of the compiled code, which XLA stores as text. XLA for CPUs took 2.3 s and
# 0.7 GB to compile a call with so many numbers, which are those of 256 ranks: less than it takes to
# make them. Their number grows with the square of the ranks.
_MOST_NUMBERS = 16_000_000

MESSAGES, COMBINE, COPY, ZERO, RECORD, WAIT = range(6)


class Instruction(NamedTuple):
    """An instruction of a rank's host to NCCL or CUDA.

    Attributes:
        code: MESSAGES (numbers: how many runs of rows are sent or received together, and for each
            run whether it arrives, the other rank, memory, row and rows), COMBINE (the places, two
            numbers each, of the sum and of its two operands, and rows), COPY (to, from, rows), ZERO
            (place, rows), RECORD and WAIT (event).
        queue: the queue that it runs on; the number of queues stands for XLA's own stream.
    """

    code: int
    queue: int
    numbers: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class QueuedProgram:
    """A schedule as instructions.

    Attributes:
        queues: number of queues.
        inputs, outputs: rows of a rank's input and of its result.
        work: rows of the workspace, the maximum over ranks.
        events: number of events, the maximum over ranks.
        instructions: the instructions of each rank.
    """

    queues: int
    inputs: int
    outputs: int
    work: int
    events: int
    instructions: tuple[tuple[Instruction, ...], ...]

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """The whole program as the player reads it, int32.

        Raises:
            CollectiveError: there are more numbers than a compiled program can hold.
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


class Links(NamedTuple):
    """The links that messages cross.

    Attributes:
        paths: for each ordered pair of ranks, the links on its way; a missing pair has a link of
            its own, on which a row takes a second.
        row_seconds: for each link, the seconds for which a row occupies it.
        alpha: for each link, the seconds until a row that has left it arrives.
    """

    paths: Mapping[tuple[int, int], Sequence[int]]
    row_seconds: Sequence[float]
    alpha: Sequence[float]


def links_of(schedule: Schedule, nbytes: float) -> Links:
    """The links of a schedule for rows of a buffer of so many bytes.

    If two ranks have several edges, the last one that the schedule names stands for all.
    """
    topology, first = schedule.topology, schedule.message_ptr[:-1]
    ends = zip(schedule.src[first].tolist(), schedule.dst[first].tolist(), strict=True)
    edges = dict(zip(ends, schedule.edge[first].tolist(), strict=True))
    paths = {pair: schedule.edges.path(edge) for pair, edge in edges.items()}
    row = float(max(schedule.collective.chunk_bytes(nbytes)))
    return Links(paths, (row / topology.bandwidth).tolist(), topology.alpha.tolist())


class Work(NamedTuple):
    """Work of a stream, and the amount of other streams' work that must be done before."""

    instruction: Instruction
    after: tuple[tuple[int, int], ...]


def streams_of(instructions: Iterable[Instruction], queues: int) -> list[list[Work]]:
    """The work that a rank's host hands to each stream; XLA's stream is last."""
    streams: list[list[Work]] = [[] for _ in range(queues + 1)]
    waits: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    recorded: dict[int, list[tuple[int, int]]] = {}
    for each in instructions:
        queue = each.queue
        if each.code == RECORD:
            # An event also stands for the waits of its stream.
            recorded[each.numbers[0]] = [(queue, len(streams[queue])), *waits[queue]]
        elif each.code == WAIT:
            waits[queue] += recorded[each.numbers[0]]
        else:
            streams[queue].append(Work(each, tuple(waits.pop(queue, ()))))
    return streams


class Replay:
    """A program that is running.

    Attributes:
        done: the amount of work that each stream of each rank has done.
        open: for a rank and queue at a group, the messages of it that have not ended: whether each
            arrives, and the other rank.
    """

    def __init__(self, program: QueuedProgram, links: Links):
        self._links = links
        self._streams = [streams_of(each, program.queues) for each in program.instructions]
        self.done = [[0] * (program.queues + 1) for _ in program.instructions]
        self.open: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        self._busy = [0.0] * len(links.row_seconds)
        # Arrivals at links of a path: time, number, message, links before, rows.
        self._events: list[tuple[float, int, tuple[int, int, int], int, int]] = []
        self._number = itertools.count()

    def seconds(self) -> float:
        """The time when the last work is done.

        Raises:
            CollectiveError: streams wait for each other forever.
        """
        now = 0.0
        for rank, queues in enumerate(self._streams):
            for queue in range(len(queues)):
                self._go_on(rank, queue, now)
        while self._events:
            now, _, message, hop, rows = heapq.heappop(self._events)
            u, v, queue = message
            path = self._links.paths[u, v]
            if hop < len(path):
                link = path[hop]
                leaves = max(now, self._busy[link]) + rows * self._links.row_seconds[link]
                self._busy[link] = leaves
                self._flow(leaves + self._links.alpha[link], message, hop + 1, rows)
                continue
            for rank, part in ((u, (0, v)), (v, (1, u))):
                left = self.open[rank, queue]
                del left[part]
                if not left:
                    del self.open[rank, queue]
                    self.done[rank][queue] += 1
            for rank in (u, v):
                if (rank, queue) not in self.open:
                    for each in range(len(self._streams[rank])):
                        self._go_on(rank, each, now)
        for done, streams in zip(self.done, self._streams, strict=True):
            if done != [len(works) for works in streams]:
                raise CollectiveError("the queues of a program wait for each other; report this")
        return now

    def _flow(self, at: float, message: tuple[int, int, int], hop: int, rows: int) -> None:
        heapq.heappush(self._events, (at, next(self._number), message, hop, rows))

    def _go_on(self, rank: int, queue: int, now: float) -> None:
        """Run a stream as far as possible, and then other streams that waited for it."""
        works, done = self._streams[rank][queue], self.done[rank]
        before = done[queue]
        while done[queue] < len(works) and (rank, queue) not in self.open:
            work = works[done[queue]]
            if any(done[other] < count for other, count in work.after):
                break
            if work.instruction.code != MESSAGES:
                done[queue] += 1
                continue
            self._begin(rank, queue, work.instruction, now)
        if done[queue] > before:
            for each in range(len(done)):
                if each != queue:
                    self._go_on(rank, each, now)

    def _begin(self, rank: int, queue: int, group: Instruction, now: float) -> None:
        parts: dict[tuple[int, int], int] = {}
        for arrives, other, *_, rows in transfers(group):
            parts[arrives, other] = parts.get((arrives, other), 0) + rows
        self.open[rank, queue] = parts
        for (arrives, other), rows in parts.items():
            if (1 - arrives, rank) in self.open.get((other, queue), ()):
                u, v = (other, rank) if arrives else (rank, other)
                self._flow(now, (u, v, queue), 0, rows)


def transfers(group: Instruction) -> list[tuple[int, ...]]:
    """The runs of a group: whether each arrives, the other rank, memory, row, rows."""
    return [group.numbers[i : i + 5] for i in range(1, len(group.numbers), 5)]
