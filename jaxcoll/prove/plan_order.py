"""The order of uses of a chunk while a plan of MSCCL++ runs: happens-before, by clocks.

The threads of a block run independently until a barrier (``nop`` is ``__syncthreads``, and nothing
else waits for all of them). It is known which thread moves which part. The i-th part of an
operation's chunks is moved by the same thread in every operation whose chunks begin at the same
place; this is called a *lane*. The i-th channel or semaphore of an operation is used by thread i.
So the uses of one lane, or of such a thread, are ordered, and the rest of the block is known to
have ended only at a barrier. A put over a port is done by a proxy, at any time until it is flushed
or until a signal sent after it on its channel has arrived. The caller fills inputs before a rank
begins and takes outputs after it has ended.

A clock holds, for every block, the number of its phases (the parts between barriers) that have
ended; for every port channel, the number of its puts that are done; and for every rank, the number
of runs it has begun. All earlier runs have then ended, and their caller has finished with its
buffers. Relaxed signals and packets do not order memory, but a thread that sees one knows which
ranks have begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from jaxcoll.prove.answers import NotProved

Lane = Hashable  # a thread of a block, or all threads that move one place of the chunks
Place = tuple[int, str, int]  # a cell, or another thing that threads may not use at once


_CALLERS = ("i", "o")  # buffers that belong to the caller between runs


class Clock(NamedTuple):
    """The events that have certainly happened."""

    done: tuple[int, ...]  # phases of each block, then puts of each port channel
    begun: tuple[int, ...]  # runs of each rank

    def join(self, other: Clock) -> Clock:
        """The events that either clock knows."""
        return Clock(
            tuple(map(max, self.done, other.done)), tuple(map(max, self.begun, other.begun))
        )

    def relaxed(self, other: Clock) -> Clock:
        """This clock, with the other's knowledge of ranks that have begun."""
        return Clock(self.done, tuple(map(max, self.begun, other.begun)))


class Use(NamedTuple):
    """A use of a place: who uses it, the phase or put, and the run of the rank."""

    by: int  # a block or a port, as in ``Clock.done``; -1 for the caller
    at: int
    lane: Lane
    rank: int
    run: int


class Race(NotProved):
    """Two uses of a cell without an order."""


class PlanOrder:
    """The clocks of the blocks of a plan, and the last uses of every place."""

    def __init__(self, ranks: int, ranks_of_blocks: list[int], names: list[str], ports: int):
        self.rank_of, self.names = ranks_of_blocks, names
        none = Clock((0,) * (len(names) + ports), (0,) * ranks)
        self.known = [none] * len(names)
        self.phase = [0] * len(names)
        self.lanes: list[dict[Lane, Clock]] = [{} for _ in names]  # events that only a lane knows
        self.puts: defaultdict[int, list[Use]] = defaultdict(list)  # the pushes of each port's puts
        self.ended = [none] * ranks
        self.run = [0] * ranks
        self.written: dict[Place, Use] = {}
        self.read: defaultdict[Place, dict[tuple[int, Lane], Use]] = defaultdict(dict)

    def knows(self, block: int, lane: Lane) -> Clock:
        """The clock of a lane in its present phase."""
        return self.lanes[block].get(lane, self.known[block])

    def learn(self, block: int, lane: Lane, seen: Clock, *, relaxed: bool = False) -> None:
        """Let a lane continue after the events that another one knew."""
        known = self.knows(block, lane)
        self.lanes[block][lane] = known.relaxed(seen) if relaxed else known.join(seen)

    def meet(self, blocks: Iterable[int]) -> None:
        """End a phase of all threads of some blocks, which then know what any of them knew."""
        blocks = list(blocks)
        known = self.known[blocks[0]]
        for block in blocks:
            for clock in (self.known[block], *self.lanes[block].values()):
                known = known.join(clock)
        done = list(known.done)
        for block in blocks:
            self.phase[block] = done[block] = self.phase[block] + 1
            self.lanes[block] = {}
        for block in blocks:
            self.known[block] = Clock(tuple(done), known.begun)

    # ------------------------------------------------------------------ runs

    def begin(self, rank: int) -> None:
        """Begin a run of a rank, after all of its blocks and its caller's work in between."""
        self.run[rank] += 1
        ended = self.ended[rank]
        begun = (*ended.begun[:rank], self.run[rank], *ended.begun[rank + 1 :])
        for block in self._blocks(rank):
            self.known[block] = Clock(ended.done, begun)

    def end(self, rank: int) -> None:
        """All blocks of a rank have ended; its caller takes the outputs, and fills the inputs.

        Raises:
            Race: another rank or a proxy may still use them.
        """
        blocks = self._blocks(rank)
        if blocks:
            self.meet(blocks)
            self.ended[rank] = self.known[blocks[0]]
        caller = Use(-1, 0, None, rank, self.run[rank])
        used = {**self.written, **self.read}
        for place in [p for p in used if p[0] == rank and p[1] in _CALLERS]:
            before = [(self.written.get(place), "has arrived")]
            before += [(use, "was read") for use in self.read[place].values()]
            for use, verb in before:
                if use is not None and not self._ended(use, self.ended[rank]):
                    what = f"chunk {place[2]} of buffer {place[1]!r}"
                    raise Race(f"rank {rank} may end before {what} {verb}", rank, place[2])
            self.written[place] = caller
            self.read[place] = {}

    def _blocks(self, rank: int) -> list[int]:
        return [block for block, of in enumerate(self.rank_of) if of == rank]

    # ------------------------------------------------------------------ uses

    def use(self, block: int, lane: Lane, place: Place, *, writes: bool) -> None:
        """Let a lane read or write a place.

        Raises:
            Race: another use of it may come before or after.
        """
        self._use(Use(block, self.phase[block], lane, self.rank_of[block],
                      self.run[self.rank_of[block]]), self.knows(block, lane), place, writes,
                  self.names[block])  # fmt: skip

    def wait_for(self, block: int, lane: Lane, place: Place) -> None:
        """Let a lane read a packet, whose flag tells that it has arrived."""
        rank = self.rank_of[block]
        use = Use(block, self.phase[block], lane, rank, self.run[rank])
        self.read[place][block, lane] = use

    def use_by_proxy(self, block: int, lane: Lane, port: int, place: Place, *, writes: bool):
        """Let the proxy of a port read or write a place for the put that a lane pushed last."""
        at, rank = len(self.puts[port]) - 1, self.rank_of[block]
        self._use(Use(port, at, None, rank, self.run[rank]), self.knows(block, lane), place, writes,
                  f"a put of {self.names[block]}")  # fmt: skip

    def _use(self, use: Use, known: Clock, place: Place, writes: bool, name: str) -> None:
        # Reads need no order among themselves; a write needs one after the last write and later
        # reads. A place without uses was filled by the caller before the rank began.
        rank, buffer, at = place
        first = Use(-1, 0, None, rank, self.run[rank] - 1) if buffer in _CALLERS else None
        before = list(self.read[place].values()) if writes else []
        for last in (self.written.get(place, first), *before):
            if last is None or self._ended(last, known):
                continue
            if last.by == use.by and self._in_turn(last, use, known):
                continue
            other = f"the caller of rank {rank}"
            if last.by >= 0:
                is_block = last.by < len(self.names)
                other = self.names[last.by] if is_block else "a put that is not done"
            if other == name:
                other = "threads"
            what = f"chunk {at} of buffer {buffer!r}" if len(buffer) < 3 else f"{buffer} {at}"
            raise Race(
                f"{other} and {name} use {what} of rank {rank} in no certain order", rank, at
            )
        if writes:
            self.written[place] = use
            self.read[place] = {}
        else:
            self.read[place][use.by, use.lane] = use

    def _in_turn(self, last: Use, use: Use, known: Clock) -> bool:
        """Whether two uses are of one lane in one phase, or of puts that were pushed in order."""
        if use.by < len(self.names):
            return (last.at, last.lane) == (use.at, use.lane)
        pushed = [self.puts[use.by][each.at] for each in (last, use)]
        return self._ended(pushed[0], known) or pushed[0][:4] == pushed[1][:4]

    def _ended(self, use: Use, known: Clock) -> bool:
        """Whether a use has ended for certain."""
        if use.by >= 0 and known.done[use.by] > use.at:
            return True
        # The proxies of a rank may continue after it has ended.
        return use.by < len(self.names) and known.begun[use.rank] > use.run

    # ------------------------------------------------------------------ puts by a proxy

    def push(self, block: int, lane: Lane, port: int) -> None:
        """Let a lane give a put to the proxy of a port."""
        rank = self.rank_of[block]
        self.puts[port].append(Use(block, self.phase[block], lane, rank, self.run[rank]))

    def after_puts(self, block: int, lane: Lane, port: int) -> Clock:
        """The clock of the receiver of a lane's next message on a port: earlier puts are done."""
        known, pushed = self.knows(block, lane), self.puts[port]
        certain = len(pushed)
        # From the last one backwards: those of earlier phases are all in order.
        for i, use in reversed(list(enumerate(pushed))):
            if self._ended(use, known):
                break
            if (use.by, use.lane) != (block, lane):
                certain = i
        return Clock((*known.done[:port], max(known.done[port], certain), *known.done[port + 1 :]),
                     known.begun)  # fmt: skip

    def ordered(self, block: int, lane: Lane, place: Place) -> bool:
        """Whether the last use of a place has certainly ended; then the lane uses it."""
        try:
            self.use(block, lane, place, writes=True)
        except Race:
            return False
        return True
