"""An MSCCL program run message by message, and the schedule that it carries out."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np

from jaxcoll import fields
from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError, TopologyError
from jaxcoll.io.msccl import program as form
from jaxcoll.io.msccl.program import Instruction, Program, whole_buffer
from jaxcoll.io.sends import edges_of, leads
from jaxcoll.kinds import KINDS
from jaxcoll.numerics import checks
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

Connection = tuple[int, int, int]  # sender, receiver, channel
Cell = tuple[str, int]  # buffer, and chunk in it
Event = tuple[str, int, int, int]  # a connection, or the end of (rank, block, instruction)
_MOST_MESSAGES = 2**24


@dataclasses.dataclass(frozen=True)
class _Message:
    """A chunk in flight: its number in the collective, the step of its send, its own number."""

    chunk: int
    step: int
    number: int


@dataclasses.dataclass
class _Value:
    """The content of a cell: its chunk, and the first step in which it can be sent."""

    chunk: int
    ready: int


def lift(program: Program, topology: Topology) -> Schedule:
    """The schedule that a program carries out, verified.

    The program is run, a chunk at a time, with only as many messages in flight as the protocol
    holds. A message goes in the first step in which its chunk has arrived and its connection has
    finished the previous one, or in a later step that the program states. Programs of ``lower``
    state theirs, so they give back the schedule. Data races are not looked for: the result is that
    of one order of instructions that have no order. ``read`` looks for races; a program of
    ``lower`` has none.

    Args:
        topology: the network; a connection uses the links that the program states, or the link
            between its ranks (channel k uses the k-th of several), or a shortest path if there is
            no link.

    Raises:
        FormatError: the program stops before its end, reads what was never written, adds different
            chunks, sends what nothing receives, or has other ranks than the topology.
        TopologyError: ranks that exchange messages have no path.
        ScheduleError: the program ends, but is not the collective that it states.
    """
    checks.instance(program, Program, "program", FormatError)
    checks.instance(topology, Topology, "topology", TopologyError)
    ranks = len(program.ranks)
    if ranks != topology.num_ranks:
        raise FormatError(
            f"the program is for {ranks} ranks, but {topology} has {topology.num_ranks}"
        )
    if program.chunks % ranks:
        raise FormatError(
            f"{program.chunks} chunks do not divide among {ranks} ranks; nchunksperloop must "
            f"be a multiple of ngpus"
        )
    run = _Run(program)
    run.to_end()
    connections = sorted({connection for connection, *_ in run.sent})
    # Channels into which one edge was split have one path, and become one edge again.
    edges, edge_of = edges_of(topology, _paths(program, topology, connections))
    number = dict(zip(connections, edge_of, strict=True))
    columns = [(step, number[connection], chunk) for connection, step, chunk, _ in run.sent]
    step, edge, chunk = np.asarray(columns, np.int64).reshape(-1, 3).T
    # Within a step, sends have the order that the program states, else the order of this run.
    order = np.lexsort((np.asarray([place for *_, place in run.sent]), step))
    collective = Collective(program.collective, ranks, program.chunks // ranks)
    counts = collective.num_chunks, collective.num_deliveries, len(columns)
    fields.check_claims("the program", ranks, *counts)
    reduce = np.asarray([run.added.get(i, False) for i in range(len(columns))], bool)
    step, edge, chunk, reduce = (column[order] for column in (step, edge, chunk, reduce))
    made = Provenance("msccl", {"name": program.name})
    columns = step, edge, chunk, reduce
    schedule = Schedule.from_sends(topology, collective, *columns, edges=edges, provenance=made)
    verify(schedule)
    return schedule


def _paths(
    program: Program, topology: Topology, connections: list[Connection]
) -> list[tuple[int, ...]]:
    """The links of each connection.

    They are those that the program states if they form a path on this network; else the link
    between its ranks, the k-th of several for channel k; else a shortest path.
    """
    paths: dict[Connection, tuple[int, ...]] = {
        (rank, block.send, block.channel): block.path or ()
        for rank, blocks in enumerate(program.ranks)
        for block in blocks
        if block.send is not None and leads(topology, block.path or (), rank, block.send)
    }
    links: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for link, ends in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        links[ends].append(link)
    rest = [c for c in connections if c not in paths and c[:2] not in links]
    src, dst = np.asarray([c[:2] for c in rest], np.int64).reshape(-1, 2).T
    routed = shortest_routes(topology, src, dst)
    paths |= {connection: routed.path(e) for e, connection in enumerate(rest)}
    for a, b, channel in connections:
        if (a, b, channel) not in paths:
            paths[a, b, channel] = (links[a, b][channel % len(links[a, b])],)
    return [paths[connection] for connection in connections]


class _Run:
    """A program that is running, with instructions cut into their chunks."""

    def __init__(self, program: Program):
        self.program = program
        self.at = [[[0, 0] for _ in blocks] for blocks in program.ranks]  # instruction, its chunk
        self.ended = [[-1 for _ in blocks] for blocks in program.ranks]  # last awaited that ended
        self.wires: defaultdict[Connection, deque[_Message]] = defaultdict(deque)
        self.last: dict[Connection, int] = {}
        self.sent: list[tuple[Connection, int, int, int]] = []  # with step, chunk and place
        self.added: dict[int, bool] = {}
        # Only cells that the program has used: a short program may claim very many.
        self.cells: list[dict[Cell, _Value]] = [{} for _ in program.ranks]

    def to_end(self) -> None:
        """Run every block as far as possible, and resume it after the event it waits for.

        Raises:
            FormatError: no block can continue, or messages are left.
        """
        blocks = [(r, b) for r, row in enumerate(self.program.ranks) for b in range(len(row))]
        waiting: defaultdict[Event, list[tuple[int, int]]] = defaultdict(list)
        ready = deque(blocks)
        while ready:
            rank, block = ready.popleft()
            while self.at[rank][block][0] < len(self.program.ranks[rank][block].instructions):
                awaited = self._awaited(rank, block)
                if awaited is not None:
                    waiting[awaited].append((rank, block))
                    break
                for event in self._advance(rank, block):
                    ready.extend(waiting.pop(event, ()))
        for rank, block in blocks:
            at = self.at[rank][block][0]
            if at < len(self.program.ranks[rank][block].instructions):
                raise FormatError(
                    f"the program stops: instruction {at} of block {block} of gpu {rank} waits for "
                    f"ever, with {form.PROTOCOLS[self.program.protocol]} messages to a connection"
                )
        left = next((connection for connection, wire in self.wires.items() if wire), None)
        if left is not None:
            raise FormatError(f"nothing receives a message from rank {left[0]} to rank {left[1]}")

    # Blocks are not polled: a block that cannot continue is filed under the event that it lacks, so
    # that programs of a million instructions run in one pass.
    def _awaited(self, rank: int, block: int) -> Event | None:
        """The event that the next instruction of a block waits for, or None if it can run."""
        body = self.program.ranks[rank][block]
        each = body.instructions[self.at[rank][block][0]]
        if each.after is not None and self.ended[rank][each.after[0]] < each.after[1]:
            return "end", rank, *each.after
        into, out = body.connections(rank)
        if each.type in form.RECEIVES and not self.wires[into]:
            return "send", *into
        room = form.PROTOCOLS[self.program.protocol]
        if each.type in form.SENDS and len(self.wires[out]) >= room:
            return "receive", *out
        return None

    def _advance(self, rank: int, block: int) -> Iterator[Event]:
        """Run one chunk of the next instruction of a block, and yield the events."""
        body, at = self.program.ranks[rank][block], self.at[rank][block]
        each = body.instructions[at[0]]
        into, out = body.connections(rank)
        # A nop has no chunks, and ends.
        if each.count:
            self._run(rank, each, at[1], into, out)
        if each.type in form.RECEIVES:
            yield "receive", *into
        if each.type in form.SENDS:
            yield "send", *out
        at[1] += 1
        if at[1] >= each.count:
            if each.awaited:
                before, self.ended[rank][block] = self.ended[rank][block], at[0]
                # Earlier instructions that no other one waits for have ended as well.
                yield from (("end", rank, block, i) for i in range(before + 1, at[0] + 1))
            at[:] = at[0] + 1, 0

    def _run(self, rank: int, each: Instruction, i: int, into: Connection, out: Connection) -> None:
        cells = self.cells[rank]
        src, dst = self._cell(rank, each.src, i), self._cell(rank, each.dst, i)
        if each.type == "cpy":
            cells[dst] = dataclasses.replace(self._read(rank, src))
        elif each.type in form.RECEIVES:
            message = self.wires[into].popleft()
            # The runtimes add to their own chunk and ignore src: msccl-tools writes the sender's
            # coordinates there.
            if each.type in ("rrc", "rrcs"):
                held = self._read(rank, dst)
                if held.chunk != message.chunk:
                    raise FormatError(
                        f"gpu {rank} adds chunk {message.chunk} to chunk {held.chunk}, at {dst}"
                    )
                # A sum can be sent on in the step after its last part.
                held.ready = max(held.ready, message.step + 1)
                self.added[message.number] = True
            else:
                cells[dst] = _Value(message.chunk, message.step + 1)
        if each.type in form.SENDS:
            value = self._read(rank, src if each.type == "s" else dst)
            # As early as data and connection allow, because a program has no steps, unless it is
            # from ``lower``.
            step = max(value.ready, self.last.get(out, 0), each.step or 0)
            self.last[out] = step
            if len(self.sent) >= _MOST_MESSAGES:
                raise FormatError(f"a program of more than {_MOST_MESSAGES} messages is not read")
            self.wires[out].append(_Message(value.chunk, step, len(self.sent)))
            place = len(self.sent) if each.place is None else each.place + i
            self.sent.append((out, step, value.chunk, place))

    def _cell(self, rank: int, place: tuple[str, int], i: int) -> Cell:
        """A cell; buffers that coincide in place have one name."""
        buffer, chunk = place[0], place[1] + i
        if not self.program.in_place or buffer == "s":
            return buffer, chunk
        share = self.program.chunks // len(self.program.ranks)
        kind, whole = KINDS[self.program.collective], whole_buffer(self.program.collective)
        # A shard is in the whole buffer, at the place of its rank.
        is_shard = kind.starts_with_shard if buffer == "i" else kind.ends_with_shard
        return whole, rank * share + chunk if is_shard else chunk

    def _read(self, rank: int, cell: Cell) -> _Value:
        cells = self.cells[rank]
        if cell not in cells:
            chunk = self._first(rank, cell)
            if chunk is None:
                raise FormatError(
                    f"gpu {rank} reads chunk {cell[1]} of buffer {cell[0]!r}, which nothing has "
                    "written"
                )
            cells[cell] = _Value(chunk, 0)
        return cells[cell]

    def _first(self, rank: int, cell: Cell) -> int | None:
        """The chunk that a cell holds before the program runs, None for no chunk."""
        buffer, place = cell
        program = self.program
        if not KINDS[program.collective].starts_with_shard:
            return place if buffer == "i" and place < program.chunks else None
        share = program.chunks // len(program.ranks)
        if program.in_place:
            return place if buffer == "o" and place // share == rank else None
        return rank * share + place if buffer == "i" and place < share else None
