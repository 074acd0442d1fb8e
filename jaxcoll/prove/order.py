"""The order of uses of a chunk: happens-before, by vector clocks.

A clock holds, for every thread, the number of its operations that have certainly ended. Two uses of
a cell, at least one of which writes, must be ordered for any speeds of the threads.
"""

from __future__ import annotations

from collections import defaultdict

from jaxcoll.prove.answers import NotProved
from jaxcoll.prove.contents import Cell

Clock = tuple[int, ...]


class Race(NotProved):
    """Two uses of a cell without an order."""


class Order:
    """The clocks of some threads, and the last uses of every cell."""

    def __init__(self, names: list[str]):
        self.names = names
        self.done = [0] * len(names)  # operations of each thread, including the present one
        self.known: list[Clock] = [(0,) * len(names)] * len(names)
        self.written: dict[Cell, tuple[int, int]] = {}
        self.read: defaultdict[Cell, dict[int, int]] = defaultdict(dict)

    def now(self, thread: int) -> Clock:
        """The clock of a thread that has seen this thread's present operation end."""
        known = self.known[thread]
        return (*known[:thread], self.done[thread], *known[thread + 1 :])

    def join(self, thread: int, seen: Clock) -> None:
        """Let a thread continue after the events that another one saw."""
        self.known[thread] = tuple(map(max, self.known[thread], seen))

    def use(self, thread: int, cell: Cell, writes: bool) -> None:
        """Let the present operation read or write a cell.

        Raises:
            Race: another thread's use of the cell may come before or after.
        """
        known = self.known[thread]
        # Reads need no order among themselves; a write needs one after the last write and later
        # reads.
        before = dict(self.read[cell]) if writes else {}
        if cell in self.written:
            before.setdefault(*self.written[cell])
        for other, count in before.items():
            if other != thread and known[other] < count:
                rank, buffer, at = cell
                raise Race(f"{self.names[other]} and {self.names[thread]} use chunk {at} of buffer "
                           f"{buffer!r} of rank {rank} in no certain order", rank, at)  # fmt: skip
        if writes:
            self.written[cell] = (thread, self.done[thread])
            self.read[cell] = {}
        else:
            self.read[cell][thread] = self.done[thread]
