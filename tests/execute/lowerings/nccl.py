"""GPUs with NCCL, without either: streams, events, communicators and memory as their rules say.

A stream does its work in order. An event is what stood in its stream when it was recorded. A
communicator does what a rank gives it in order; a send and a receive meet when both are at the head
of theirs, or a send is small enough to leave its buffer before. Everything else comes in any order.
Memory holds nonsense from when something begins to be written there until it has been.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from jaxcoll.execute.links.queues import (
    COMBINE,
    COPY,
    MESSAGE,
    RECORD,
    WAIT,
    ZERO,
    Instruction,
    QueuedProgram,
)

NONSENSE = -(10**9)


class Stuck(Exception):
    """Streams that wait for each other for ever."""


class Work(NamedTuple):
    """Work of a stream, and what it waits for: how much of other streams must be done."""

    instruction: Instruction
    after: tuple[tuple[int, int], ...]


def streams_of(instructions: tuple[Instruction, ...], queues: int) -> list[list[Work]]:
    """What the host hands to each stream."""
    streams: list[list[Work]] = [[] for _ in range(queues + 1)]
    waits: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    recorded: dict[int, list[tuple[int, int]]] = {}
    for each in instructions:
        queue = each.queue
        if each.code == RECORD:
            # Of an event that follows only waits, those are what it stands for.
            recorded[each.numbers[0]] = [(queue, len(streams[queue])), *waits[queue]]
        elif each.code == WAIT:
            waits[queue] += recorded[each.numbers[0]]
        else:
            streams[queue].append(Work(each, tuple(waits.pop(queue, ()))))
    return streams


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

    def at(self, rank: int, where: int, row: int, count: int) -> np.ndarray:
        found = self.memory[rank][where][row : row + count]
        assert len(found) == count
        return found

    def head(self, rank: int, queue: int) -> Instruction | None:
        """What a stream does next, if it may."""
        place = self.done[rank][queue]
        if place == len(self.streams[rank][queue]):
            return None
        work = self.streams[rank][queue][place]
        ready = all(self.done[rank][q] >= count for q, count in work.after)
        return work.instruction if ready else None

    def runs(self, rank: int, instruction: Instruction) -> list[np.ndarray]:
        numbers = instruction.numbers[3:]
        return [self.at(rank, *numbers[i : i + 3]) for i in range(0, len(numbers), 3)]

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


class AnyOrder:
    """A run in which chance says what comes next.

    Attributes:
        left: rows that have left before they were received, by sender, receiver and queue.
        flying: sender, receiver and queue of messages that have begun.
    """

    def __init__(self, gpus: Gpus, dice: random.Random):
        self.gpus, self.dice = gpus, dice
        self.left: defaultdict[tuple[int, int, int], list[list[np.ndarray]]] = defaultdict(list)
        self.flying: list[tuple[int, int, int]] = []
        self.early = dice.choice((0.0, 0.1, 1.0))

    def goes_on(self, rank: int, queue: int) -> bool:
        """Whether a stream could do something; done if so."""
        each = self.gpus.head(rank, queue)
        if each is None or any((rank, queue) in ((u, q), (v, q)) for u, v, q in self.flying):
            return False
        if each.code != MESSAGE:
            self.gpus.alone(rank, each)
            self.gpus.done[rank][queue] += 1
            return True
        arrives, other = each.numbers[:2]
        if arrives:
            waiting = self.left[other, rank, queue]
            if waiting:
                self.land(other, rank, queue, waiting.pop(0))
                return True
            return False
        theirs = self.gpus.head(other, queue)
        is_met = theirs is not None and theirs.code == MESSAGE and theirs.numbers[:2] == (1, rank)
        if self.dice.random() < self.early:
            rows = [rows.copy() for rows in self.gpus.runs(rank, each)]
            self.left[rank, other, queue].append(rows)
            self.gpus.done[rank][queue] += 1
            return True
        if is_met and theirs is not None and not self.left[rank, other, queue]:
            for into in self.gpus.runs(other, theirs):
                into[:] = NONSENSE
            self.flying.append((rank, other, queue))
            return True
        return False

    def land(self, u: int, v: int, queue: int, sent: list[np.ndarray]) -> None:
        """What a rank sent is there."""
        into = self.gpus.runs(v, self.gpus.streams[v][queue][self.gpus.done[v][queue]].instruction)
        for a, b in zip(sent, into, strict=True):
            b[:] = a
        self.gpus.done[v][queue] += 1

    def end(self, u: int, v: int, queue: int) -> None:
        """A message ends that has begun: what it sends is read as late as can be."""
        sending = self.gpus.streams[u][queue][self.gpus.done[u][queue]].instruction
        self.land(u, v, queue, self.gpus.runs(u, sending))
        self.gpus.done[u][queue] += 1
        self.flying.remove((u, v, queue))


def in_any_order(program: QueuedProgram, x: np.ndarray, dice: random.Random) -> np.ndarray:
    """The results of a run in which chance says what comes next.

    Raises:
        Stuck: nothing can come next.
    """
    gpus = Gpus(program, x)
    run = AnyOrder(gpus, dice)
    streams = [(rank, queue) for rank in range(len(x)) for queue in range(program.queues + 1)]
    lazy, slow = dice.choice((0.05, 0.5, 0.95)), dice.choice(streams)
    while not gpus.is_over():
        if run.flying and dice.random() > lazy:
            run.end(*dice.choice(run.flying))
            continue
        dice.shuffle(streams)
        order = sorted(streams, key=lambda each: each == slow)
        if any(run.goes_on(*each) for each in order):
            continue
        if run.flying:
            run.end(*dice.choice(run.flying))
        elif run.early == 0:
            raise Stuck(str([gpus.head(*each) for each in streams]))
    return np.stack([memory[1] for memory in gpus.memory])
