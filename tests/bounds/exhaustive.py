"""The fastest of all schedules on tiny networks, by looking at all of them.

Time comes in slots. A link of a direct network takes a chunk in a whole number of slots, which may
differ from link to link, and so may its latency. In each slot each idle link may begin to carry any
chunk that its tail holds: a copy where the chunk is complete or nothing is summed, else the partial
sum, which is given away. All states that can be reached are followed, slot by slot, so the first
slot with a finished state is the least time of any schedule of so many chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOST_SLOTS = 60


class Wire(NamedTuple):
    """A link: its ends, the slots that a chunk occupies it for, and its latency in slots."""

    src: int
    dst: int
    slots: int
    latency: int


class Chunk(NamedTuple):
    """Contributions that each rank holds first, as bits; all of them; the ranks that need those."""

    held: tuple[int, ...]
    whole: int
    wanted: tuple[int, ...]


class State(NamedTuple):
    """Where everything is at the beginning of a slot.

    ``held[chunk][rank]`` is the set of contributions there, as bits; ``flying`` lists (slots until
    it arrives, chunk, rank, contributions), ``busy`` the slots until each wire is idle.
    """

    held: tuple[tuple[int, ...], ...]
    flying: tuple[tuple[int, int, int, int], ...]
    busy: tuple[int, ...]


def copied(ranks: int, source: int, wanted: Sequence[int]) -> Chunk:
    return Chunk(tuple(int(r == source) for r in range(ranks)), 1, tuple(wanted))


def summed(ranks: int, members: Sequence[int], wanted: Sequence[int]) -> Chunk:
    held = tuple(1 << r if r in members else 0 for r in range(ranks))
    return Chunk(held, sum(held), tuple(wanted))


def least_slots(wires: list[Wire], chunks: list[Chunk], most_states: int) -> int | None:
    """Slots that the fastest schedule takes; None where there are too many states to look at."""
    # Of chunks that are equal, states that differ by their numbers only are one.
    are_equal = len(set(chunks)) == 1
    states = {State(tuple(chunk.held for chunk in chunks), (), (0,) * len(wires))}
    looked_at = 0
    for slot in range(MOST_SLOTS):
        after: set[State] = set()
        for state in states:
            if all(state.held[i][r] == c.whole for i, c in enumerate(chunks) for r in c.wanted):
                return slot
            for sent in _choices(wires, chunks, state, 0):
                looked_at += 1
                later = _later(sent)
                after.add(_sorted(later) if are_equal else later)
            if looked_at > most_states:
                return None
        states = after
    return None


def _choices(wires: list[Wire], chunks: list[Chunk], state: State, first: int) -> Iterator[State]:
    """All that wires from the first on may begin to carry in this slot."""
    if first == len(wires):
        yield state
        return
    yield from _choices(wires, chunks, state, first + 1)  # nothing
    if state.busy[first]:
        return
    src, dst, slots, latency = wires[first]
    for number, chunk in enumerate(chunks):
        carried = state.held[number][src]
        # Nobody uses a second copy of a chunk that has arrived, or is on its way.
        if not carried or state.held[number][dst] == chunk.whole:
            continue
        if any(c == number and r == dst and m == chunk.whole for _, c, r, m in state.flying):
            continue
        held = state.held
        if carried != chunk.whole:  # given away
            row = tuple(0 if rank == src else m for rank, m in enumerate(held[number]))
            held = (*held[:number], row, *held[number + 1 :])
        flight = (slots + latency, number, dst, carried)
        busy = (*state.busy[:first], slots, *state.busy[first + 1 :])
        sent = State(held, tuple(sorted((*state.flying, flight))), busy)
        yield from _choices(wires, chunks, sent, first + 1)


def _later(state: State) -> State:
    """One slot on: arrivals are added to the contributions that their rank holds."""
    held = [list(row) for row in state.held]
    flying = []
    for left, chunk, rank, carried in state.flying:
        if left == 1:
            held[chunk][rank] |= carried
        else:
            flying.append((left - 1, chunk, rank, carried))
    busy = tuple(max(0, left - 1) for left in state.busy)
    return State(tuple(map(tuple, held)), tuple(flying), busy)


def _sorted(state: State) -> State:
    """The state with equal chunks numbered by where their contributions are."""
    where = [
        (row, tuple((left, rank, carried) for left, c, rank, carried in state.flying if c == i))
        for i, row in enumerate(state.held)
    ]
    order = sorted(range(len(where)), key=where.__getitem__)
    number = {old: new for new, old in enumerate(order)}
    flying = sorted((left, number[c], rank, carried) for left, c, rank, carried in state.flying)
    return State(tuple(state.held[i] for i in order), tuple(flying), state.busy)
