"""Programs in MSCCL XML, with every block run as the runtimes run it.

Blocks of a rank wait for each other by (depid, deps). Ranks meet only in messages: the n-th send
over (sender, receiver, channel) meets the n-th receive, and a connection holds a few messages, its
slots. Whether a program ends does not depend on how fast its blocks are: a block that can go on
takes nothing from another one. So a single run, in any order, decides it; and vector clocks
(``order``) show whether the uses of a chunk are ordered at all speeds.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator

from jaxcoll.prove.answers import Asked, NotProved, NotRead, Proof, quoted
from jaxcoll.prove.contents import Buffers, Value, summed
from jaxcoll.prove.msccl_file import RECEIVES, SENDS, SLOTS, Block, Program, Step, read
from jaxcoll.prove.order import Clock, Order, Race

# Bytes of a slot in the smallest buffers that a runtime has by default (NCCL_BUFFSIZE and similar
# variables change them): a step whose chunks fit into one slot is a single message.
_SLOT_BYTES = {"Simple": 2**21, "LL": 2**14, "LL128": 3 * 2**14}
# What each type of step does with its places, beside sending and receiving.
_READS_SRC = ("s", "cpy", "re", "rrs", "rrc", "rrcs")
_WRITES_DST = ("r", "cpy", "re", "rcs", "rrc", "rrcs")


def prove(text: str, asked: Asked) -> Proof:
    """Read a program as the runtimes do, and run it with the fewest slots that they give it."""
    program = read(text)
    ranks, slots = len(program.blocks), SLOTS[program.protocol]
    kind = asked.agreed(program.kind, ranks)
    _check_taken(program, asked.runtime)
    if not program.in_place:
        raise NotProved("neither in place nor out of place: no call chooses it")

    def run(in_place: bool, pieces: int) -> int:
        # Few programs order uses of a chunk through other ranks, and to follow that is slow. So it
        # is only done for those that seem to have a race without it.
        for everywhere in (False, True):
            buffers = Buffers(kind, ranks, program.chunks, in_place, asked.roots)
            try:
                return _Run(program, buffers, slots, pieces, everywhere).to_end()
            except Race:
                if everywhere:
                    raise
        return 0

    # A message has one chunk of a step, or as many as fit into a slot, up to the whole step. Small
    # messages fill slots soonest, and whole steps use their chunks in another order: both are run.
    longest = max((s.count for row in program.blocks for b in row for s in b.steps), default=1)
    sizes, sent = "of any size", 0
    for in_place in program.in_place:
        pieces = 1
        try:
            sent = run(in_place, pieces)
        except _Stops:
            # A call for which the program is not chosen does not run it, so it may stop there.
            pieces = _chunks_per_slot(program)
            if pieces == 1:
                raise
            sent, sizes = run(in_place, pieces), f"of up to {program.root.said['maxBytes']} bytes"
        if longest > pieces:
            run(in_place, longest)
    return Proof("MSCCL XML", kind, ranks, program.chunks, sent, (
        "complete, each contribution once", f"calls {sizes} do not stop with {slots} slots "
        "to a connection, in whole steps or cut to slots", "uses of a chunk are ordered",
        f"read by {', '.join(name for name, why in program.refusals.items() if not why)}",
        *(f"not by {name}: {why}" for name, why in program.refusals.items() if why),
    ))  # fmt: skip


def _check_taken(program: Program, runtime: str | None) -> None:
    """Check that a runtime takes the program, or that any does if none is asked for."""
    refusals = program.refusals
    if runtime not in (None, "any", *refusals):
        raise NotRead(f"no runtime is called {quoted(runtime)}; known: {', '.join(refusals)}")
    if runtime is not None and refusals.get(runtime):
        raise NotProved(f"{runtime} does not take it: {refusals[runtime]}")
    if all(refusals.values()):
        reasons = "; ".join(f"{name}: {why}" for name, why in refusals.items())
        raise NotProved(f"no runtime takes it: {reasons}")


def _chunks_per_slot(program: Program) -> int:
    """The chunks of the largest call that chooses the program that fit into a slot, at least 1."""
    largest = program.largest_call
    chunk_bytes = -(-largest // program.chunks)
    return max(1, _SLOT_BYTES[program.protocol] // chunk_bytes) if largest else 1


class _Stops(NotProved):
    """No block can continue."""


class _Run:
    """A program that is running.

    Args:
        slots: the messages that a connection holds.
        pieces: the most chunks of a message, which belong to one step.
        everywhere: whether uses may be ordered through other ranks, not only inside their own. It
            costs a clock of all blocks per message.
    """

    def __init__(
        self, program: Program, buffers: Buffers, slots: int, pieces: int, everywhere: bool
    ):
        self.rows, self.sizes, self.buffers = program.blocks, program.sizes, buffers
        self.slots, self.pieces, self.everywhere = slots, pieces, everywhere
        # The step that each block is at, and the first chunk of it that has not run.
        self.at = [[[0, 0] for _ in row] for row in self.rows]
        # The messages in each connection: the values of the chunks, and the clock of the sender.
        self.wires: defaultdict[tuple, deque[tuple[tuple[Value, ...], Clock]]] = defaultdict(deque)
        self.sent = 0
        self.gates = _gates(self.rows)
        self.is_gate = {(r, block, gate) for (r, block, _), gate in self.gates.items()}
        self.ended: dict[tuple[int, int, int], Clock] = {}
        # A thread is a block. Clocks are of the threads of all ranks, or of each rank alone.
        names = [[f"block {b} of rank {r}" for b in range(len(row))]
                 for r, row in enumerate(self.rows)]  # fmt: skip
        self.first_thread = [0] * len(names)
        self.orders = [Order(row) for row in names]
        if everywhere:
            self.first_thread = [sum(map(len, names[:r])) for r in range(len(names))]
            self.orders = [Order([*itertools.chain(*names)])] * len(names)

    def to_end(self) -> int:
        """Run every block as far as possible until all have ended; return the number of messages.

        Raises:
            NotProved: blocks stop, a message is left, two uses of a chunk have no order, or a rank
                ends without what the collective asks for.
        """
        waiting: defaultdict[tuple, list[tuple[int, int]]] = defaultdict(list)  # by event
        ready = deque((r, b) for r, row in enumerate(self.rows) for b in range(len(row)))
        while ready:
            r, b = ready.popleft()
            while self.at[r][b][0] < len(self.rows[r][b].steps):
                awaited = self._awaited(r, b)
                if awaited is not None:
                    waiting[awaited].append((r, b))
                    break
                for event in self._advance(r, b):
                    ready.extend(waiting.pop(event, ()))
        for event, stopped in waiting.items():
            raise self._stopped(event, *stopped[0])
        left = next((wire for wire, queue in self.wires.items() if queue), None)
        if left is not None:
            raise NotProved(f"nothing receives a message from rank {left[0]} to {left[1]}", left[1])
        self.buffers.check_end()
        return self.sent

    def _stopped(self, event: tuple, r: int, b: int) -> _Stops:
        step = self.rows[r][b].steps[self.at[r][b][0]]
        why = {"end": "another block", "in": "a message", "out": "a free slot"}[event[0]]
        cut = f" of {self.pieces} chunks" if self.pieces > 1 else ""
        said = f"line {step.line}, block {b} of rank {r} waits for {why} for ever"
        return _Stops(f"stops with {self.slots} slots to a connection{cut}: {said}", r, step.src[1])

    def _awaited(self, r: int, b: int) -> tuple | None:
        """The event that the next step of a block waits for; None if it can run."""
        block, step = self._next(r, b)
        if step.after:
            other, gate = step.after[0], self.gates[(r, *step.after)]
            if gate < 0 or self.at[r][other][0] <= gate:
                return "end", r, other, gate
        if step.type in RECEIVES and not self.wires[block.receive, r, block.channel]:
            return "in", block.receive, r, block.channel
        if step.type in SENDS and len(self.wires[r, block.send, block.channel]) >= self.slots:
            return "out", r, block.send, block.channel
        return None

    def _advance(self, r: int, b: int) -> Iterator[tuple]:
        """Run the next message of a block, or its next step, and yield the events."""
        (block, step), at = self._next(r, b), self.at[r][b]
        order, thread = self.orders[r], self.first_thread[r] + b
        order.done[thread] += 1
        if step.after and not at[1]:
            order.join(thread, self.ended[r, step.after[0], self.gates[(r, *step.after)]])
        width = min(self.pieces, step.count - at[1])
        arrived: tuple[Value, ...] = ()
        if step.type in RECEIVES:
            wire = (block.receive, r, block.channel)
            arrived, seen = self.wires[wire].popleft()
            if len(arrived) != width:
                raise NotProved(f"line {step.line}: rank {r} receives {width} chunks of a step of "
                                f"{len(arrived)} from rank {block.receive}", r)  # fmt: skip
            if self.everywhere:
                order.join(thread, seen)
            yield ("out", *wire)
        values = [self._chunk(step, r, at[1] + i, arrived[i : i + 1], thread) for i in range(width)]
        if step.type in SENDS:
            wire = (r, block.send, block.channel)
            clock = order.now(thread) if self.everywhere else ()
            self.wires[wire].append((tuple(values), clock))
            self.sent += width
            yield ("in", *wire)
        at[1] += width
        if at[1] >= step.count:
            ended, at[:] = at[0], [at[0] + 1, 0]
            if (r, b, ended) in self.is_gate:
                self.ended[r, b, ended] = order.now(thread)
            yield "end", r, b, ended

    def _next(self, r: int, b: int) -> tuple[Block, Step]:
        block = self.rows[r][b]
        return block, block.steps[self.at[r][b][0]]

    def _chunk(self, step: Step, r: int, i: int, arrived: tuple[Value, ...], thread: int) -> Value:
        """Run the i-th chunk of a step, and return the value that it sends."""
        kind, buffers, order = step.type, self.buffers, self.orders[r]
        for buffer, first in (step.src,) * (kind in _READS_SRC) + (step.dst,) * (
            kind in _WRITES_DST
        ):
            size = self.sizes[r, buffer]
            if first + i >= size:
                raise NotProved(f"line {step.line}: rank {r} uses chunk {first + i} of buffer "
                                f"{buffer!r} of {size}", r, first + i)  # fmt: skip
        # ``re`` adds its source to its target; the other steps that add have received one summand.
        values = list(arrived)
        for buffer, first in (step.src,) * (kind in _READS_SRC) + (step.dst,) * (kind == "re"):
            cell = buffers.cell(r, buffer, first + i)
            order.use(thread, cell, writes=False)
            values.append(buffers.read(cell))
        value = values[0] if len(values) == 1 else summed(values[-1], values[0], r)
        if kind in _WRITES_DST:
            dst = buffers.cell(r, step.dst[0], step.dst[1] + i)
            order.use(thread, dst, writes=True)
            buffers.held[dst] = value
        return value


def _gates(rows: list[list[Block]]) -> dict[tuple[int, int, int], int]:
    """For each (rank, block, step) that steps wait for, the step that lets them continue.

    A block tells others how far it is only after steps that are marked (``hasdep``). So whoever
    waits for another step goes on after the next marked one, and never (-1) if there is none.
    """
    found = {}
    for rank, blocks in enumerate(rows):
        marked = [[i for i, step in enumerate(block.steps) if step.awaited] for block in blocks]
        for block, step in {s.after for b in blocks for s in b.steps if s.after}:
            later = marked[block][bisect_left(marked[block], step) :]
            found[rank, block, step] = later[0] if later else -1
    return found
