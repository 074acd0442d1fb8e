"""GPUs with NCCL, without either: streams, events, communicators and memory as their rules say.

A stream does its work in order. An event is what stood in its stream when it was recorded. A
communicator does what a rank gives it in order; a send and a receive meet when both are at the head
of theirs, or a send is small enough to leave its buffer before. Everything else comes in any order.
Memory holds nonsense from when something begins to be written there until it has been.
"""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np

from jaxcoll.execute.links.instructions import (
    COMBINE,
    COPY,
    MESSAGES,
    ZERO,
    Instruction,
    QueuedProgram,
    streams_of,
    transfers,
)

NONSENSE = -(10**9)


class Stuck(Exception):
    """Streams that wait for each other for ever."""


def others(each: Instruction, arrives: bool) -> list[int]:
    """The ranks that a group sends to, or receives from."""
    return list(dict.fromkeys(said[1] for said in transfers(each) if said[0] == arrives))


class Gpus:
    """Ranks under way."""

    def __init__(self, program: QueuedProgram, x: np.ndarray):
        n, width = len(program.instructions), x.shape[-1]
        self.memory = [
            [x[rank].copy(), *(np.full((rows, width), NONSENSE, x.dtype)
                               for rows in (program.outputs, program.work))]
            for rank in range(n)
        ]  # fmt: skip
        self.streams = [streams_of(each, program.queues) for each in program.instructions]
        self.done = [[0] * (program.queues + 1) for _ in range(n)]

    def at(self, rank: int, *place: int) -> np.ndarray:
        """The rows of a place: memory, row, rows."""
        where, row, count = place
        found = self.memory[rank][where][row : row + count]
        assert len(found) == count
        return found

    def head(self, rank: int, queue: int) -> Instruction | None:
        """The next instruction of a stream, if it may begin."""
        place = self.done[rank][queue]
        if place == len(self.streams[rank][queue]):
            return None
        work = self.streams[rank][queue][place]
        ready = all(self.done[rank][q] >= count for q, count in work.after)
        return work.instruction if ready else None

    def runs(self, rank: int, each: Instruction, arrives: bool, other: int) -> list[np.ndarray]:
        """Rows that a group sends to another rank, or receives from it."""
        return [
            self.at(rank, *said[2:]) for said in transfers(each) if said[:2] == (arrives, other)
        ]

    def alone(self, rank: int, each: Instruction) -> None:
        """Work of one rank."""
        numbers = each.numbers
        if each.code == COMBINE:
            size = numbers[6]
            total = self.at(rank, *numbers[2:4], size) + self.at(rank, *numbers[4:6], size)
            self.at(rank, *numbers[:2], size)[:] = total
        elif each.code == COPY:
            size = numbers[4]
            self.at(rank, *numbers[:2], size)[:] = self.at(rank, *numbers[2:4], size).copy()
        else:
            assert each.code == ZERO
            self.at(rank, *numbers)[:] = 0

    def is_over(self) -> bool:
        return all(
            done == len(work)
            for ranks, streams in zip(self.done, self.streams, strict=True)
            for done, work in zip(ranks, streams, strict=True)
        )


class Groups:
    """Groups of sends and receives under way.

    Attributes:
        left: rows that have left before they were received, by sender, receiver and queue.
        flying: sender, receiver and queue of messages that have begun.
        open: for a rank and queue, what of its present group has not ended.
    """

    def __init__(self, gpus: Gpus):
        self.gpus = gpus
        self.left: defaultdict[tuple[int, int, int], list[list[np.ndarray]]] = defaultdict(list)
        self.flying: list[tuple[int, int, int]] = []
        self.open: dict[tuple[int, int], set[tuple[bool, int]]] = {}

    def group(self, rank: int, queue: int) -> Instruction | None:
        """The group that a stream is at, begun if it can be."""
        each = self.gpus.head(rank, queue)
        if each is None or each.code != MESSAGES:
            return None
        if (rank, queue) not in self.open:
            parts = {(arrives, o) for arrives in (False, True) for o in others(each, arrives)}
            self.open[rank, queue] = parts
        return each

    def meets(self, u: int, v: int, queue: int) -> bool:
        """Whether both ends of a message are at it."""
        both = self.group(u, queue) is not None and self.group(v, queue) is not None
        return both and (True, u) in self.open[v, queue] and (u, v, queue) not in self.flying

    def rows(self, u: int, v: int, queue: int, arrives: bool) -> list[np.ndarray]:
        rank, other = (v, u) if arrives else (u, v)
        each = self.group(rank, queue)
        assert each is not None
        return self.gpus.runs(rank, each, arrives, other)

    def over(self, rank: int, queue: int, arrives: bool, other: int) -> None:
        """A rank's part of a message has ended, and with the last the group."""
        parts = self.open[rank, queue]
        parts.remove((arrives, other))
        if not parts:
            del self.open[rank, queue]
            self.gpus.done[rank][queue] += 1

    def land(self, u: int, v: int, queue: int, sent: list[np.ndarray]) -> None:
        """A message arrives."""
        for a, b in zip(sent, self.rows(u, v, queue, True), strict=True):
            b[:] = a
        self.over(v, queue, True, u)

    def end(self, u: int, v: int, queue: int) -> None:
        """A message ends that has begun; its rows are read as late as can be."""
        self.flying.remove((u, v, queue))
        self.land(u, v, queue, self.rows(u, v, queue, False))
        self.over(u, queue, False, v)


def goes_on(groups: Groups, dice: random.Random, early: float, rank: int, queue: int) -> bool:
    """Whether a stream could do something; done if so."""
    gpus = groups.gpus
    each = gpus.head(rank, queue)
    if each is None:
        return False
    if each.code != MESSAGES:
        gpus.alone(rank, each)
        gpus.done[rank][queue] += 1
        return True
    groups.group(rank, queue)
    parts = sorted(groups.open[rank, queue])
    for arrives, other in dice.sample(parts, len(parts)):
        if arrives:
            waiting = groups.left[other, rank, queue]
            if waiting:
                groups.land(other, rank, queue, waiting.pop(0))
                return True
            continue
        if (rank, other, queue) in groups.flying:
            continue
        if dice.random() < early:
            rows = [rows.copy() for rows in groups.rows(rank, other, queue, False)]
            groups.left[rank, other, queue].append(rows)
            groups.over(rank, queue, False, other)
            return True
        if groups.meets(rank, other, queue) and not groups.left[rank, other, queue]:
            for into in groups.rows(rank, other, queue, True):
                into[:] = NONSENSE
            groups.flying.append((rank, other, queue))
            return True
    return False


def in_any_order(program: QueuedProgram, x: np.ndarray, dice: random.Random) -> np.ndarray:
    """The results of a run in which chance says what comes next.

    Raises:
        Stuck: nothing can come next.
    """
    gpus = Gpus(program, x)
    groups = Groups(gpus)
    streams = [(rank, queue) for rank in range(len(x)) for queue in range(program.queues + 1)]
    lazy, slow = dice.choice((0.05, 0.5, 0.95)), dice.choice(streams)
    early = dice.choice((0.0, 0.1, 1.0))
    while not gpus.is_over():
        if groups.flying and dice.random() > lazy:
            groups.end(*dice.choice(groups.flying))
            continue
        dice.shuffle(streams)
        order = sorted(streams, key=lambda each: each == slow)
        if any(goes_on(groups, dice, early, *each) for each in order):
            continue
        if groups.flying:
            groups.end(*dice.choice(groups.flying))
        elif early == 0:
            raise Stuck(str([gpus.head(*each) for each in streams]))
    return np.stack([memory[1] for memory in gpus.memory])
