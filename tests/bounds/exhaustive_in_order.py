"""The fastest of all schedules on tiny networks whose ranks wait, by looking at all of them.

The machine is that of ``jaxcoll.simulation.execution_order``, on a direct network without parallel
links, where every message takes one link. There messages never share a link, so a message from u
to v takes its latency and its length from the moment at which both ranks have done all that came
before in their own orders, and a rank's clock after a block is the last end of its messages there.
So a schedule is a list of blocks, and a state is what ranks hold together with their clocks. A
block whose messages fall into parts without a common rank is as good as these parts one after the
other, and so only connected blocks are looked at. A chunk that one rank wants moves, since no other
copy is of use. Of two states that hold the same, one whose clocks are all no later is as good.
States are taken in the order of the least time at which they can end, and the first finished one
is the optimum (A*; Hart, Nilsson and Raphael 1968).

In "steps" a block is any set of messages. In "rounds" a rank sends one message and receives one,
and all messages of a block are as long as its longest. Where a pair is half duplex, of two messages
that meet the one whose latency is over first goes first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.bounds.exhaustive import Chunk, Wire

# Per chunk and rank the contributions there, as bits; ``GIVEN`` once its partial sum has gone.
Held = tuple[tuple[int, ...], ...]
GIVEN = -1
Clocks = tuple[int, ...]


class Message(NamedTuple):
    """A wire's number, and the chunks that it carries."""

    wire: int
    chunks: tuple[int, ...]


class Fastest(NamedTuple):
    """The slots of the fastest schedule, and its blocks in order."""

    slots: int
    blocks: tuple[tuple[Message, ...], ...]


class Machine(NamedTuple):
    """How ranks wait: see the module."""

    by_round: bool
    half_duplex: bool


def fastest(
    ranks: int, wires: Sequence[Wire], chunks: Sequence[Chunk], machine: Machine, most: int
) -> Fastest | None:
    """The fastest schedule; None where more than ``most`` blocks would have to be looked at."""
    way = _distances(ranks, wires)
    into = [[w for w in wires if w.dst == rank] for rank in range(ranks)]
    first: Held = tuple(chunk.held for chunk in chunks)
    zero: Clocks = (0,) * ranks
    queue: list[tuple[float, int, Held, Clocks, tuple]] = [(0.0, 0, first, zero, ())]
    seen: dict[Held, list[Clocks]] = {first: [zero]}
    order, looked_at = itertools.count(1), 0
    while queue:
        _, _, held, clocks, before = heapq.heappop(queue)
        if not any(held[i][r] != c.whole for i, c in enumerate(chunks) for r in c.wanted):
            return Fastest(max(clocks), _unrolled(before))
        if clocks not in seen[_alike(held, chunks)]:
            continue  # another state is as good
        for block in _blocks(wires, chunks, held, machine):
            looked_at += 1
            if looked_at > most:
                return None
            later = _moved(wires, chunks, held, block)
            at = _clocks(wires, clocks, block, machine)
            if _is_new(seen, _alike(later, chunks), at):
                ahead = _least(chunks, later, at, way, into, machine)
                heapq.heappush(queue, (ahead, next(order), later, at, (before, block)))
    return None


def _unrolled(before: tuple) -> tuple[tuple[Message, ...], ...]:
    blocks = []
    while before:
        before, block = before
        blocks.append(block)
    return tuple(reversed(blocks))


def _distances(ranks: int, wires: Sequence[Wire]) -> list[list[float]]:
    """The least slots in which one chunk comes from a rank to another."""
    way = [[0.0 if u == v else float("inf") for v in range(ranks)] for u in range(ranks)]
    for wire in wires:
        way[wire.src][wire.dst] = wire.slots + wire.latency
    for k, u, v in itertools.product(range(ranks), repeat=3):
        way[u][v] = min(way[u][v], way[u][k] + way[k][v])
    return way


def _alike(held: Held, chunks: Sequence[Chunk]) -> Held:
    """The same for states that differ by the numbers of equal chunks only."""
    return tuple(sorted(held)) if len(set(chunks)) == 1 else held


def _is_new(seen: dict[Held, list[Clocks]], held: Held, at: Clocks) -> bool:
    """Whether no state known so far is as good; if so it is known from now on."""
    known = seen.setdefault(held, [])
    if any(all(a <= b for a, b in zip(other, at, strict=True)) for other in known):
        return False
    known[:] = [o for o in known if not all(a <= b for a, b in zip(at, o, strict=True))]
    known.append(at)
    return True


def _blocks(
    wires: Sequence[Wire], chunks: Sequence[Chunk], held: Held, machine: Machine
) -> Iterator[tuple[Message, ...]]:
    """All connected blocks of messages that are of use."""
    loads = [_loads(wire, chunks, held) for wire in wires]
    carrying = [number for number, choices in enumerate(loads) if choices]
    for count in range(1, len(carrying) + 1):
        for some in itertools.combinations(carrying, count):
            if not _is_block(wires, some, machine):
                continue
            for carried in itertools.product(*(loads[number] for number in some)):
                block = tuple(Message(*each) for each in zip(some, carried, strict=True))
                if _is_sound(wires, chunks, held, block):
                    yield block


def _loads(wire: Wire, chunks: Sequence[Chunk], held: Held) -> list[tuple[int, ...]]:
    """All sets of chunks that a wire may carry; none of them empty."""
    useful = [
        number
        for number, chunk in enumerate(chunks)
        if held[number][wire.src] > 0
        and held[number][wire.dst] != chunk.whole
        and any(held[number][rank] != chunk.whole for rank in chunk.wanted)
    ]
    sizes = range(1, len(useful) + 1)
    return [some for size in sizes for some in itertools.combinations(useful, size)]


def _is_block(wires: Sequence[Wire], some: Sequence[int], machine: Machine) -> bool:
    """Whether wires are connected, and in rounds no rank sends or receives twice."""
    used = [wires[number] for number in some]
    if machine.by_round:
        for ends in ([w.src for w in used], [w.dst for w in used]):
            if len(set(ends)) < len(ends):
                return False
    reached, left = {used[0].src, used[0].dst}, used[1:]
    while touching := [w for w in left if w.src in reached or w.dst in reached]:
        reached.update(end for w in touching for end in (w.src, w.dst))
        left = [w for w in left if w not in touching]
    return not left


def _moves(chunk: Chunk, carried: int) -> bool:
    """Whether a sender has nothing of a chunk left: of a partial sum, or for one rank alone."""
    return carried != chunk.whole or len(chunk.wanted) == 1


def _is_sound(
    wires: Sequence[Wire], chunks: Sequence[Chunk], held: Held, block: Sequence[Message]
) -> bool:
    """Whether no rank gives twice what it has once, and gets no chunk that it had to wait for.

    A complete chunk comes once; a contribution comes to no rank that has given its own away, or
    does so in this block.
    """
    given, taken, added = [], [], []
    for wire, carried in block:
        src, dst = wires[wire].src, wires[wire].dst
        for number in carried:
            bits = held[number][src]
            is_partial = bits != chunks[number].whole
            (added if is_partial else taken).append((dst, number))
            if _moves(chunks[number], bits):
                given.append((src, number))
    if len({*given}) < len(given) or len({*taken}) < len(taken):
        return False
    return not any(held[number][rank] == GIVEN or (rank, number) in given for rank, number in added)


def _moved(
    wires: Sequence[Wire], chunks: Sequence[Chunk], held: Held, block: Sequence[Message]
) -> Held:
    rows = [list(row) for row in held]
    for wire, carried in block:
        src, dst = wires[wire].src, wires[wire].dst
        for number in carried:
            bits, whole = held[number][src], chunks[number].whole
            rows[number][dst] = whole if bits == whole else rows[number][dst] | bits
            if _moves(chunks[number], bits):
                rows[number][src] = 0 if bits == whole else GIVEN
    return tuple(map(tuple, rows))


def _clocks(
    wires: Sequence[Wire], clocks: Clocks, block: Sequence[Message], machine: Machine
) -> Clocks:
    """The ends of a block's ranks."""
    longest = max(len(carried) for _, carried in block)
    size = {wires[wire]: longest if machine.by_round else len(carried) for wire, carried in block}
    after = list(clocks)
    for wire, count in size.items():
        start = max(clocks[wire.src], clocks[wire.dst])
        end = start + wire.latency + wire.slots * count
        back = next((w for w in size if (w.src, w.dst) == (wire.dst, wire.src)), None)
        if machine.half_duplex and back is not None:
            one, two = sorted((wire, back), key=lambda w: w.latency)
            end = start + one.latency + one.slots * size[one]
            end = max(end, start + two.latency) + two.slots * size[two]
        for rank in (wire.src, wire.dst):
            after[rank] = max(after[rank], end)
    return tuple(after)


def _least(
    chunks: Sequence[Chunk],
    held: Held,
    clocks: Clocks,
    way: Sequence[Sequence[float]],
    into: Sequence[Sequence[Wire]],
    machine: Machine,
) -> float:
    """Slots before which no schedule can end that goes on from here."""
    pace = max if machine.by_round else sum
    rate = [pace(1 / wire.slots for wire in wires) if wires else 0.0 for wires in into]
    # Each chunk that still has to be sent comes into a rank after that rank's clock.
    left = sum(_left(chunk, row) for chunk, row in zip(chunks, held, strict=True))
    done = sum(clock * r for clock, r in zip(clocks, rate, strict=True))
    least = max(float(max(clocks)), (left + done) / sum(rate) - 1e-9)
    for rank, wires in enumerate(into):
        missing = [
            number
            for number, chunk in enumerate(chunks)
            if rank in chunk.wanted and held[number][rank] != chunk.whole
        ]
        if not missing:
            continue
        # Each missing chunk comes over one of the rank's links.
        flowing = len(missing) / rate[rank]
        least = max(least, clocks[rank] + min(w.latency for w in wires) + flowing - 1e-9)
        # Each contribution comes from one of the ranks that hold it.
        for number in missing:
            row, whole = held[number], chunks[number].whole
            for bit in range(whole.bit_length()):
                if whole >> bit & 1 and not max(row[rank], 0) >> bit & 1:
                    holding = [u for u, bits in enumerate(row) if bits > 0 and bits >> bit & 1]
                    least = max(least, min(clocks[u] + way[u][rank] for u in holding))
    return least


def _left(chunk: Chunk, row: Sequence[int]) -> int:
    """How often a chunk must still be sent, at least."""
    if chunk.whole in row:
        return sum(row[rank] != chunk.whole for rank in chunk.wanted)
    # Partial sums meet in one rank, which may be one that wants the sum.
    return sum(bits > 0 for bits in row) - 1 + len(chunk.wanted) - 1
