"""Which uses of a chunk are ordered while a plan of MSCCL++ runs: happens-before, by clocks.

The threads of a block run apart until a barrier (``nop`` is ``__syncthreads``, and nothing else
waits for all of them). Which thread moves what is known: the i-th part of an operation's chunks is
moved by the same thread in every operation whose chunks begin at the same place, a *lane*; and the
i-th channel or semaphore of an operation is used by thread i. So a lane, or such a thread, is in
order by itself, and the rest of the block is known to have ended at a barrier only. A put over a
port is done by a proxy, at any time until it is flushed or a signal sent after it on its channel
has arrived. The caller fills inputs before a rank begins and takes outputs after it has ended.

A clock tells of every block how many of its phases (the parts between barriers) have ended, of
every port channel how many of its puts are done, and of every rank how many runs it has begun: all
of the runs before have ended then, and their caller has done with its buffers. Relaxed signals and
packets order no memory, but whoever sees one knows which ranks have begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from jaxcoll.prove.answers import NotProved

Lane = Hashable  # of a block: a thread, or all threads that move one place of an operation's chunks
Place = tuple[int, str, int]  # a cell; or what else threads may not use at the same time


_CALLERS = ("i", "o")  # buffers that are the caller's between runs


class Clock(NamedTuple):
    """The events that have happened for certain."""

    done: tuple[int, ...]  # phases of each block, then puts of each port channel
    begun: tuple[int, ...]  # runs of each rank

    def join(self, other: Clock) -> Clock:
        """What either knows."""
        return Clock(
            tuple(map(max, self.done, other.done)), tuple(map(max, self.begun, other.begun))
        )

    def relaxed(self, other: Clock) -> Clock:
        """With what the other knows of ranks that have begun."""
        return Clock(self.done, tuple(map(max, self.begun, other.begun)))


class Use(NamedTuple):
    """A use of a place: who, in which phase or as which put, and in which run of its rank."""

    by: int  # a block or a port, as in ``Clock.done``; -1 for the caller
    at: int
    lane: Lane
    rank: int
    run: int


class Race(NotProved):
    """Two uses of a cell that nothing orders."""


class PlanOrder:
    """The clocks of the blocks of a plan, and the last uses of every place."""

    def __init__(self, ranks: int, ranks_of_blocks: list[int], names: list[str], ports: int):
        self.rank_of, self.names = ranks_of_blocks, names
        none = Clock((0,) * (len(names) + ports), (0,) * ranks)
        self.known = [none] * len(names)
        self.phase = [0] * len(names)
        self.lanes: list[dict[Lane, Clock]] = [{} for _ in names]  # what a lane alone knows
        self.puts: defaultdict[int, list[Use]] = defaultdict(list)  # of each port, who pushed them
        self.ended = [none] * ranks
        self.run = [0] * ranks
        self.written: dict[Place, Use] = {}
        self.read: defaultdict[Place, dict[tuple[int, Lane], Use]] = defaultdict(dict)

    def knows(self, block: int, lane: Lane) -> Clock:
        """The clock of a lane in its present phase."""
        return self.lanes[block].get(lane, self.known[block])

    def learn(self, block: int, lane: Lane, seen: Clock, *, relaxed: bool = False) -> None:
        """A lane goes on after what another one knew."""
        known = self.knows(block, lane)
        self.lanes[block][lane] = known.relaxed(seen) if relaxed else known.join(seen)

    def meet(self, blocks: Iterable[int]) -> None:
        """All threads of some blocks end a phase, and know what any of them knew."""
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
        """A rank begins a run, after all of its blocks and its caller's work between."""
        self.run[rank] += 1
        ended = self.ended[rank]
        begun = (*ended.begun[:rank], self.run[rank], *ended.begun[rank + 1 :])
        for block in self._blocks(rank):
            self.known[block] = Clock(ended.done, begun)

    def end(self, rank: int) -> None:
        """All blocks of a rank have ended; its caller takes the outputs, and fills the inputs.

        Raises:
            Race: something of another rank or of a proxy may still use them.
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
        """A lane reads or writes a place.

        Raises:
            Race: another use of it may come before or after.
        """
        self._use(Use(block, self.phase[block], lane, self.rank_of[block],
                      self.run[self.rank_of[block]]), self.knows(block, lane), place, writes,
                  self.names[block])  # fmt: skip

    def wait_for(self, block: int, lane: Lane, place: Place) -> None:
        """A lane reads a packet, which itself says that it has come."""
        rank = self.rank_of[block]
        use = Use(block, self.phase[block], lane, rank, self.run[rank])
        self.read[place][block, lane] = use

    def use_by_proxy(self, block: int, lane: Lane, port: int, place: Place, *, writes: bool):
        """The proxy of a port reads or writes a place for the put that a lane pushed last."""
        at, rank = len(self.puts[port]) - 1, self.rank_of[block]
        self._use(Use(port, at, None, rank, self.run[rank]), self.knows(block, lane), place, writes,
                  f"a put of {self.names[block]}")  # fmt: skip

    def _use(self, use: Use, known: Clock, place: Place, writes: bool, name: str) -> None:
        # Reads need no order among themselves; a write, after the last write and all reads since.
        # What nobody has used yet, the caller has filled before the rank began.
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
        """Whether two uses are of one lane in one phase, or of puts that were pushed in turn."""
        if use.by < len(self.names):
            return (last.at, last.lane) == (use.at, use.lane)
        pushed = [self.puts[use.by][each.at] for each in (last, use)]
        return self._ended(pushed[0], known) or pushed[0][:4] == pushed[1][:4]

    def _ended(self, use: Use, known: Clock) -> bool:
        """Whether a use has ended for certain."""
        if use.by >= 0 and known.done[use.by] > use.at:
            return True
        # The proxies of a rank may go on when it has ended.
        return use.by < len(self.names) and known.begun[use.rank] > use.run

    # ------------------------------------------------------------------ puts by a proxy

    def push(self, block: int, lane: Lane, port: int) -> None:
        """A lane gives a put to the proxy of a port."""
        rank = self.rank_of[block]
        self.puts[port].append(Use(block, self.phase[block], lane, rank, self.run[rank]))

    def after_puts(self, block: int, lane: Lane, port: int) -> Clock:
        """The clock of who sees what a lane now sends over a port: the puts before are done."""
        known, pushed = self.knows(block, lane), self.puts[port]
        certain = len(pushed)
        # From the last one back: those of earlier phases are all in order.
        for i, use in reversed(list(enumerate(pushed))):
            if self._ended(use, known):
                break
            if (use.by, use.lane) != (block, lane):
                certain = i
        return Clock((*known.done[:port], max(known.done[port], certain), *known.done[port + 1 :]),
                     known.begun)  # fmt: skip

    def ordered(self, block: int, lane: Lane, place: Place) -> bool:
        """Whether the last use of a place has ended for certain; then a lane uses it."""
        try:
            self.use(block, lane, place, writes=True)
        except Race:
            return False
        return True
