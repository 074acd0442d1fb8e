"""Programs in MSCCL XML, parsed like the runtimes, with every block run as they run it.

The rules are those of microsoft/msccl, Azure/msccl-executor-nccl and RCCL, taken from their
sources. Blocks of a rank wait for each other by (depid, deps). Ranks meet only in messages: the
n-th send over (sender, receiver, channel) meets the n-th receive.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from jaxcoll.prove.answers import Asked, NotProved, NotRead, Proof, quoted
from jaxcoll.prove.contents import Buffers, Value, summed
from jaxcoll.prove.kinds import KINDS, named_in
from jaxcoll.prove.order import Clock, Order, Race

COLLECTIVES = named_in("xml", "xml_of_microsoft")
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}
# Bytes of a slot in the smallest buffers that a runtime has by default (NCCL_BUFFSIZE and similar
# variables change them): a step whose chunks fit into one slot is a single message.
_SLOT_BYTES = {"Simple": 2**21, "LL": 2**14, "LL128": 3 * 2**14}
# For each runtime: the most steps of a block, blocks of a GPU, and channels.
RUNTIMES = {"msccl": (256, 216, 32), "azure": (256, 1024, 32), "rccl": (64, 64, 128)}
# The most of all runtimes: elements, characters of a value, attributes, children, place of a chunk.
NODES, VALUE, ATTRIBUTES, CHILDREN, OFFSETS = 4095, 255, 16, 1024, 2**15 - 1
_MOST_TAGS, _MOST_RANKS, _MOST_COUNT, _MOST_AWAITED = 2**20, 4096, 71, 127
_SENDS, _RECEIVES = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrs", "rrc", "rrcs")
_READS = ("s", "cpy", "re", "rrs", "rrc", "rrcs")
_WRITES = ("r", "cpy", "re", "rcs", "rrc", "rrcs")
_TYPES = {*_SENDS, *_RECEIVES, "cpy", "re", "nop"}
_TAG = re.compile(r'<(/?)([A-Za-z_][A-Za-z_0-9]*)((?: [A-Za-z_0-9]+="[^"<&\n\r]*")*) *(/?)>')
_ATTRIBUTE = re.compile(r' ([A-Za-z_0-9]+)="([^"]*)"')
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_PARENTS = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}


class Step(NamedTuple):
    type: str
    src: tuple[str, int]  # a buffer and the first chunk there
    dst: tuple[str, int]
    count: int  # of chunks
    after: tuple[int, int] | None  # the block and step of its rank that must have ended before
    awaited: bool  # whether other blocks may wait for it
    line: int


class Block(NamedTuple):
    send: int  # the rank to which it sends, -1 for none
    receive: int  # the rank from which it receives, -1 for none
    channel: int
    steps: list[Step]


class _Element(NamedTuple):
    """An open tag: its attributes, its line, and its children of the next kind."""

    tag: str
    said: dict[str, str]
    line: int
    children: list

    def text(self, key: str) -> str:
        if key not in self.said:
            raise NotRead(f"line {self.line}: <{self.tag}> lacks {key!r}")
        return self.said[key]

    def number(self, key: str, least: int, most: int) -> int:
        text = self.text(key)
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise NotRead(f"line {self.line}: {key} of <{self.tag}> must be an integer from "
                          f"{least} to {most}, got {quoted(text)}")  # fmt: skip
        return int(text)


def _tags(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Tags with their lines; as in the runtimes, only spaces and line ends separate them."""
    at, line, end = 0, 1, len(text)
    while at < end:
        if text[at] in " \r\n":
            line += text[at] == "\n"
            at += 1
        elif text.startswith("<!--", at):
            stop = text.find("-->", at)
            if stop < 0:
                raise NotRead(f"line {line}: a comment has no end")
            line += text.count("\n", at, stop)
            at = stop + 3
        else:
            found = _TAG.match(text, at)
            if found is None:
                raise NotRead(f"line {line}: expected a tag as the runtimes read it (one line, one "
                              f"space between attributes), got {text[at : at + 24]!r}")  # fmt: skip
            yield found, line
            at = found.end()


def _parsed(text: str) -> _Element:
    """The <algo> of a text; elements that no runtime knows are skipped, as the runtimes do."""
    open_: list[_Element] = []
    root: _Element | None = None
    for count, (found, line) in enumerate(_tags(text)):
        closes, tag, attributes, empty = found.groups()
        if count > _MOST_TAGS:
            raise NotRead(f"line {line}: more than {_MOST_TAGS} tags")
        if closes:
            if not open_ or open_.pop().tag != tag:
                raise NotRead(f"line {line}: </{tag[:40]}> closes nothing that is open")
            continue
        pairs = _ATTRIBUTE.findall(attributes)
        if len(dict(pairs)) < len(pairs) or len(pairs) > ATTRIBUTES or len(open_) > 8:
            raise NotRead(f"line {line}: <{tag[:40]}> repeats an attribute, has more than "
                          f"{ATTRIBUTES}, or is nested too deeply")  # fmt: skip
        if any(len(value) > VALUE for _, value in pairs):
            raise NotRead(f"line {line}: a value of <{tag[:40]}> is longer than {VALUE} characters")
        each = _Element(tag, dict(pairs), line, [])
        if not open_ and (root is not None or tag != "algo"):
            raise NotRead(f"line {line}: expected one <algo>, got <{tag[:40]}>")
        if not open_:
            root = each
        elif _PARENTS.get(tag) == open_[-1].tag:
            open_[-1].children.append(each)
        elif tag in _PARENTS:
            raise NotRead(f"line {line}: <{tag}> inside <{open_[-1].tag[:40]}>")
        if not empty:
            open_.append(each)
    if root is None or open_:
        raise NotRead(f"cut short: <{open_[-1].tag[:40]}> is not closed" if open_ else "no <algo>")
    return root


def _step(each: _Element) -> Step:
    kind = each.text("type")
    if kind not in _TYPES:
        raise NotRead(f"line {each.line}: no kernel runs steps of type {quoted(kind)}")
    idle, places = kind == "nop", list[tuple[str, int]]()
    for end in ("src", "dst"):
        buffer = each.text(f"{end}buf")
        if buffer not in ("i", "o", "s"):
            raise NotRead(f"line {each.line}: a buffer is i, o or s, got {quoted(buffer)}")
        places.append((buffer, each.number(f"{end}off", -1 if idle else 0, OFFSETS)))
    count = each.number("cnt", 0 if idle else 1, _MOST_COUNT) * (not idle)
    block, step = each.number("depid", -1, _MOST_AWAITED), each.number("deps", -1, 2**15)
    each.number("s", 0, 1023)
    awaited = bool(each.number("hasdep", 0, 1)) and not idle  # the runtimes ignore it on a nop
    after = (block, step) if block >= 0 else None
    return Step(kind, places[0], places[1], count, after, awaited, each.line)


def _blocks(gpu: _Element, rank: int, ranks: int, channels: int) -> list[Block]:
    """The blocks of a <gpu>, by their ids, whose peers, channels and waits fit each other."""
    found: dict[int, Block] = {}
    ends: set[tuple[str, int, int]] = set()
    for tb in gpu.children:
        number, send, receive = tb.number("id", 0, len(gpu.children) - 1), *(
            tb.number(end, -1, ranks - 1) for end in ("send", "recv"))  # fmt: skip
        channel = tb.number("chan", 0, channels - 1)
        # A nop that waits for nothing takes no number, and shifts the numbers of all later steps.
        steps = [s for s in map(_step, tb.children) if s.type != "nop" or s.after is not None]
        for a, b in zip(steps, steps[1:] + [None] * bool(steps), strict=True):
            if a.type == "nop" and (b is None or b.after is None):
                raise NotRead(f"line {a.line}: the step after a nop must wait for a block, too")
        used = {("send", send, channel), ("recv", receive, channel)} - {
            ("send", -1, channel), ("recv", -1, channel)}  # fmt: skip
        lacks = (send < 0 and any(s.type in _SENDS for s in steps)) or (
            receive < 0 and any(s.type in _RECEIVES for s in steps))  # fmt: skip
        if number in found or rank in (send, receive) or used & ends or lacks:
            raise NotRead(f"line {tb.line}: block {number} of gpu {rank} exists twice, has itself "
                          "or nobody as a peer, or shares a peer and channel")  # fmt: skip
        ends |= used
        found[number] = Block(send, receive, channel, steps)
    blocks = [found[number] for number in range(len(found))]
    for each in (s for block in blocks for s in block.steps):
        block, step = each.after or (0, 0)
        if each.after and (block >= len(blocks) or not 0 <= step < len(blocks[block].steps)):
            raise NotRead(f"line {each.line}: there is no step {step} of block {block} to wait for")
    return blocks


def _limits(root: _Element, rows: list[list[Block]], gpus: dict, name: str) -> str:
    """The reason why a runtime does not take a program; empty if it does."""
    steps, blocks, channels = RUNTIMES[name]
    ranks, chunks, coll = len(rows), root.said["nchunksperloop"], root.said["coll"]
    parts = [[len(tb.children) for tb in gpu.children] for gpu in gpus.values()]
    for number, most, what in (
        (max((max(p, default=0) for p in parts), default=0), steps, "steps in a block"),
        (max(map(len, parts)), blocks, "blocks of a gpu"),
        (int(root.said["nchannels"]), channels, "channels"),
        (max(1 + ranks + len(p) + sum(p) for p in parts), NODES, "elements that a gpu reads"),
        (ranks, CHILDREN, "gpus"),
    ):  # fmt: skip
        if number > most:
            return f"{number} {what}, at most {most}"
    row = KINDS.get(COLLECTIVES[coll] or "")
    other = row and row.xml_of_microsoft and (row.xml if name == "msccl" else row.xml_of_microsoft)
    if coll == other:
        return f"it calls no collective {coll}"
    if name != "msccl":
        lacks = [k for k in ("outofplace", "minBytes", "maxBytes") if k not in root.said]
        return f"needs the attribute {lacks[0]}" if lacks else ""
    for gpu in gpus.values():  # only microsoft/msccl checks this
        for buffer in "io":
            is_shard = row and (row.takes_shard if buffer == "i" else row.gives_shard)
            size = gpu.number(f"{buffer}_chunks", 0, 2**31 - 1) * (ranks if is_shard else 1)
            if size not in (0, int(chunks)):
                return f"line {gpu.line}: {buffer}_chunks does not fit nchunksperloop {chunks}"
    return ""


def prove(text: str, asked: Asked) -> Proof:
    """Read a program as the runtimes do, and run it with the fewest slots that they give it."""
    root = _parsed(text)
    ranks = root.number("ngpus", 1, _MOST_RANKS)
    channels = root.number("nchannels", 1, 2**15)
    chunks = root.number("nchunksperloop", 1, OFFSETS)
    proto, coll = root.text("proto"), root.text("coll")
    if proto not in SLOTS or coll not in COLLECTIVES:
        raise NotRead(f"line {root.line}: proto {quoted(proto)} or coll {quoted(coll)} is not "
                      f"replayed; known: {', '.join((*SLOTS, *COLLECTIVES))}")  # fmt: skip
    kind = asked.agreed(COLLECTIVES[coll], ranks)
    gpus = {gpu.number("id", 0, ranks - 1): gpu for gpu in root.children}
    if len(gpus) < len(root.children) or len(gpus) < ranks:
        raise NotRead(f"line {root.line}: {ranks} gpus are needed, each once")
    rows = [_blocks(gpus[rank], rank, ranks, channels) for rank in range(ranks)]
    takes = {name: _limits(root, rows, gpus, name) for name in RUNTIMES}
    runtimes = [name for name in takes if not takes[name]]
    if (asked.runtime or "any") not in (*runtimes, "any"):
        raise NotProved(f"{asked.runtime} does not take it: {takes.get(str(asked.runtime))}")
    if not runtimes:
        raise NotProved(f"no runtime takes it: {'; '.join(f'{n}: {t}' for n, t in takes.items())}")
    inside = root.number("inplace", 0, 1) if "inplace" in root.said else 0
    outside = root.number("outofplace", 0, 1) if "outofplace" in root.said else 1 - inside
    if not inside and not outside:
        raise NotProved("neither in place nor out of place: no call chooses it")
    limits = {(rank, b): gpus[rank].number(f"{b}_chunks", 0, 2**31 - 1)
              for rank in range(ranks) for b in "ios"}  # fmt: skip

    def run(in_place: bool, pieces: int) -> int:
        # Few programs order uses of a chunk through other ranks, and to follow that is slow.
        for everywhere in (False, True):
            started = _Run(rows, Buffers(kind, ranks, chunks, in_place, asked.roots), limits)
            try:
                return started.to_end(SLOTS[proto], pieces, everywhere=everywhere)
            except Race:
                if everywhere:
                    raise
        return 0

    most = max((s.count for blocks in rows for b in blocks for s in b.steps), default=1)
    sizes = "of any size"
    for in_place in [True] * inside + [False] * outside:
        pieces = 1
        try:
            sent = run(in_place, pieces)
        except _Stops:
            # A call for which the program is not chosen does not run it, so it may stop there.
            pieces = _fitting(root, proto, chunks)
            if pieces == 1:
                raise
            sent, sizes = run(in_place, pieces), f"of up to {root.said['maxBytes']} bytes"
        if most > pieces:
            run(in_place, most)
    return Proof("MSCCL XML", kind, ranks, chunks, sent, (
        "complete, each contribution once", f"calls {sizes} do not stop with {SLOTS[proto]} slots "
        "to a connection, in whole steps or cut to slots", "uses of a chunk are ordered",
        f"read by {', '.join(runtimes)}",
        *(f"not by {name}: {why}" for name, why in takes.items() if why),
    ))  # fmt: skip


def _fitting(root: _Element, proto: str, chunks: int) -> int:
    """The number of chunks of the program's largest call that fit into a slot, at least 1."""
    largest = root.number("maxBytes", 0, 2**62) if "maxBytes" in root.said else 0
    return max(1, _SLOT_BYTES[proto] // -(-largest // chunks)) if largest else 1


class _Stops(NotProved):
    """No block can continue."""


class _Run:
    """A program that is running."""

    def __init__(self, rows: list[list[Block]], buffers: Buffers, limits: dict):
        self.rows, self.buffers, self.limits = rows, buffers, limits
        self.at = [[[0, 0] for _ in blocks] for blocks in rows]  # step of each block, and its chunk
        self.wires: defaultdict[tuple, deque[tuple[tuple[Value, ...], Clock]]] = defaultdict(deque)
        marks = [[[i for i, s in enumerate(b.steps) if s.awaited] for b in blocks]
                 for blocks in rows]  # fmt: skip
        # (rank, block, step) that a step waits for -> the marked step that lets it continue.
        self.gate: dict[tuple[int, int, int], int] = {}
        for rank, blocks in enumerate(rows):
            for block, step in {s.after for b in blocks for s in b.steps if s.after}:
                later = marks[rank][block][bisect_left(marks[rank][block], step) :]
                self.gate[rank, block, step] = later[0] if later else -1
        self.gates = {(r, block, gate) for (r, block, _), gate in self.gate.items()}
        self.ended: dict[tuple[int, int, int], Clock] = {}
        self.sent = 0

    def to_end(self, slots: int, pieces: int, everywhere: bool) -> int:
        """Run every block as far as possible until all have ended; return the number of messages.

        Args:
            pieces: the most chunks of a message, which belong to one step.
            everywhere: whether uses may be ordered through other ranks, not only inside their own.
                It costs a clock of all blocks per message, and few programs need it.
        """
        blocks = [(r, b) for r, row in enumerate(self.rows) for b in range(len(row))]
        names = [f"block {b} of rank {r}" for r, b in blocks]
        single = Order(names) if everywhere else None
        self.orders, self.thread = [], {}
        for r, row in enumerate(self.rows):
            first = len(self.thread)
            self.thread |= {(r, b): b + first * everywhere for b in range(len(row))}
            self.orders.append(single or Order(names[first : first + len(row)]))
        self.slots, self.pieces, self.everywhere = slots, pieces, everywhere
        waiting: defaultdict[tuple, list[tuple[int, int]]] = defaultdict(list)
        ready = deque(blocks)
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
            r, b = stopped[0]
            step = self.rows[r][b].steps[self.at[r][b][0]]
            why = {"end": "another block", "in": "a message", "out": "a free slot"}[event[0]]
            cut = f" of {pieces} chunks" if pieces > 1 else ""
            raise _Stops(f"stops with {slots} slots to a connection{cut}: "
                            f"line {step.line}, block {b} of rank {r} waits for {why} for ever", r,
                            step.src[1])  # fmt: skip
        left = next((wire for wire, queue in self.wires.items() if queue), None)
        if left is not None:
            raise NotProved(f"nothing receives a message from rank {left[0]} to {left[1]}", left[1])
        self.buffers.check_end()
        return self.sent

    def _awaited(self, r: int, b: int) -> tuple | None:
        """The event that the next step of a block waits for."""
        block, (at, _) = self.rows[r][b], self.at[r][b]
        step = block.steps[at]
        if step.after:
            other, gate = step.after[0], self.gate[(r, *step.after)]
            if gate < 0 or self.at[r][other][0] <= gate:
                return "end", r, other, gate
        if step.type in _RECEIVES and not self.wires[block.receive, r, block.channel]:
            return "in", block.receive, r, block.channel
        full = len(self.wires[r, block.send, block.channel]) >= self.slots
        if step.type in _SENDS and full:
            return "out", r, block.send, block.channel
        return None

    def _advance(self, r: int, b: int) -> Iterator[tuple]:
        """Run the next chunk of a block, or its next step, and yield the events."""
        block, at = self.rows[r][b], self.at[r][b]
        step, order, thread = block.steps[at[0]], self.orders[r], self.thread[r, b]
        order.done[thread] += 1
        if step.after and not at[1]:
            order.join(thread, self.ended[(r, step.after[0], self.gate[(r, *step.after)])])
        width = min(self.pieces, step.count - at[1])
        arrived: tuple[Value, ...] = ()
        if step.type in _RECEIVES:
            wire = (block.receive, r, block.channel)
            arrived, seen = self.wires[wire].popleft()
            if len(arrived) != width:
                raise NotProved(f"line {step.line}: rank {r} receives {width} chunks of a step of "
                                f"{len(arrived)} from rank {block.receive}", r)  # fmt: skip
            if self.everywhere:
                order.join(thread, seen)
            yield ("out", *wire)
        values = [self._chunk(step, r, at[1] + i, arrived[i : i + 1], (order, thread))
                  for i in range(width)]  # fmt: skip
        if step.type in _SENDS:
            wire = (r, block.send, block.channel)
            clock = order.now(thread) if self.everywhere else ()
            self.wires[wire].append((tuple(values), clock))
            self.sent += width
            yield ("in", *wire)
        at[1] += width
        if at[1] >= step.count:
            if (r, b, at[0]) in self.gates:
                self.ended[r, b, at[0]] = order.now(thread)
            ended, at[:] = at[0], [at[0] + 1, 0]
            yield "end", r, b, ended

    def _chunk(self, step: Step, r: int, i: int, arrived: tuple[Value, ...], who) -> Value:
        """Run one chunk of a step, and return the value that it sends."""
        (order, thread), buffers, kind = who, self.buffers, step.type
        for buffer, first in (step.src,) * (kind in _READS) + (step.dst,) * (kind in _WRITES):
            size = self.limits[r, buffer]
            if first + i >= size:
                raise NotProved(f"line {step.line}: rank {r} uses chunk {first + i} of buffer "
                                f"{buffer!r} of {size}", r, first + i)  # fmt: skip
        values = list(arrived)
        for buffer, first in (step.src,) * (kind in _READS) + (step.dst,) * (kind == "re"):
            cell = buffers.cell(r, buffer, first + i)
            order.use(thread, cell, writes=False)
            values.append(buffers.read(cell))
        value = values[0] if len(values) == 1 else summed(values[-1], values[0], r)
        if kind in _WRITES:
            dst = buffers.cell(r, step.dst[0], step.dst[1] + i)
            order.use(thread, dst, writes=True)
            buffers.held[dst] = value
        return value
