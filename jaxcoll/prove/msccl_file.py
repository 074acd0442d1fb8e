"""Reads programs in MSCCL XML as the runtimes do, and finds the runtimes that take a program.

The rules are those of microsoft/msccl, Azure/msccl-executor-nccl and RCCL, taken from their
sources. All three have the same parser, written by hand: a tag stands on one line, one space
separates attributes, there are no entities, and unknown elements are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from jaxcoll.prove.answers import NotRead, quoted
from jaxcoll.prove.kinds import KINDS, named_in

COLLECTIVES = named_in("xml", "xml_of_microsoft")
# For each protocol, the messages that a connection holds before its sender waits.
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}
# For each runtime: the most steps of a block, blocks of a GPU, and channels.
RUNTIMES = {"msccl": (256, 216, 32), "azure": (256, 1024, 32), "rccl": (64, 64, 128)}
# Limits that all runtimes share. A GPU keeps so many elements: ``algo``, every ``gpu``, and its own
# blocks and steps.
_MOST_KEPT, _MOST_GPUS = 4095, 1024
_MOST_CHARACTERS, _MOST_ATTRIBUTES = 255, 16
_MOST_PLACE, _MOST_COUNT, _MOST_AWAITED = 2**15 - 1, 71, 127
# Limits of this checker, above those of any runtime, so that a hostile file is given up early.
_MOST_TAGS, _MOST_RANKS, _MOST_DEPTH = 2**20, 4096, 8

SENDS, RECEIVES = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrs", "rrc", "rrcs")
_TYPES = {*SENDS, *RECEIVES, "cpy", "re", "nop"}
_TAG = re.compile(r'<(/?)([A-Za-z_][A-Za-z_0-9]*)((?: [A-Za-z_0-9]+="[^"<&\n\r]*")*) *(/?)>')
_ATTRIBUTE = re.compile(r' ([A-Za-z_0-9]+)="([^"]*)"')
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_PARENTS = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}


class Step(NamedTuple):
    """A step of a block, and the line where it stands."""

    type: str
    src: tuple[str, int]  # a buffer and the first chunk there
    dst: tuple[str, int]
    count: int  # of chunks
    after: tuple[int, int] | None  # the block and step of its rank that must have ended before
    awaited: bool  # whether other blocks may wait for it
    line: int


class Block(NamedTuple):
    """A thread block, with its peers."""

    send: int  # the rank to which it sends, -1 for none
    receive: int  # the rank from which it receives, -1 for none
    channel: int
    steps: list[Step]


class Program(NamedTuple):
    """A program as its file says it.

    Attributes:
        kind: the collective, a key of ``KINDS``; None if the file calls it custom.
        protocol: a key of ``SLOTS``.
        chunks: chunks of the whole buffer.
        in_place: the calls that choose it: in place (True), out of place (False), both or none.
        blocks: the blocks of each rank.
        sizes: chunks of each (rank, buffer).
        refusals: for each runtime the reason why it does not take the program, empty if it does.
        root: the <algo>.
    """

    kind: str | None
    protocol: str
    chunks: int
    in_place: list[bool]
    blocks: list[list[Block]]
    sizes: dict[tuple[int, str], int]
    refusals: dict[str, str]
    root: _Element

    @property
    def largest_call(self) -> int:
        """The most bytes of a call that chooses the program; 0 if the file does not say."""
        return self.root.number("maxBytes", 0, 2**62) if "maxBytes" in self.root.said else 0


def read(text: str) -> Program:
    """The program of a text.

    Raises:
        NotRead: no runtime reads it; the error names the line.
    """
    root = _parsed(text)
    ranks = root.number("ngpus", 1, _MOST_RANKS)
    channels = root.number("nchannels", 1, 2**15)
    chunks = root.number("nchunksperloop", 1, _MOST_PLACE)
    protocol, coll = root.text("proto"), root.text("coll")
    if protocol not in SLOTS or coll not in COLLECTIVES:
        raise NotRead(f"line {root.line}: proto {quoted(protocol)} or coll {quoted(coll)} is not "
                      f"replayed; known: {', '.join((*SLOTS, *COLLECTIVES))}")  # fmt: skip
    gpus = {gpu.number("id", 0, ranks - 1): gpu for gpu in root.children}
    if len(gpus) < len(root.children) or len(gpus) < ranks:
        raise NotRead(f"line {root.line}: {ranks} gpus are needed, each once")
    blocks = [_blocks(gpus[rank], rank, ranks, channels) for rank in range(ranks)]
    inside = root.number("inplace", 0, 1) if "inplace" in root.said else 0
    outside = root.number("outofplace", 0, 1) if "outofplace" in root.said else 1 - inside
    return Program(
        COLLECTIVES[coll],
        protocol,
        chunks,
        [True] * inside + [False] * outside,
        blocks,
        {(rank, buffer): gpus[rank].number(f"{buffer}_chunks", 0, 2**31 - 1)
         for rank in range(ranks) for buffer in "ios"},
        {name: _refusal(root, gpus, name) for name in RUNTIMES},
        root,
    )  # fmt: skip


# ---------------------------------------------------------------------- blocks and steps


def _blocks(gpu: _Element, rank: int, ranks: int, channels: int) -> list[Block]:
    """The blocks of a <gpu>, by their ids, whose peers, channels and waits fit each other."""
    found: dict[int, Block] = {}
    taken: set[tuple[str, int, int]] = set()  # a connection has one block at each of its ends
    for tb in gpu.children:
        number = tb.number("id", 0, len(gpu.children) - 1)
        send, receive = (tb.number(end, -1, ranks - 1) for end in ("send", "recv"))
        channel = tb.number("chan", 0, channels - 1)
        steps = _numbered(list(map(_step, tb.children)))
        ends = {("send", send, channel)} if send >= 0 else set()
        ends |= {("recv", receive, channel)} if receive >= 0 else set()
        lacks_peer = (send < 0 and any(step.type in SENDS for step in steps)) or (
            receive < 0 and any(step.type in RECEIVES for step in steps))  # fmt: skip
        if number in found or rank in (send, receive) or ends & taken or lacks_peer:
            raise NotRead(f"line {tb.line}: block {number} of gpu {rank} exists twice, has itself "
                          "or nobody as a peer, or shares a peer and channel")  # fmt: skip
        taken |= ends
        found[number] = Block(send, receive, channel, steps)
    blocks = [found[number] for number in range(len(found))]
    for step in (step for block in blocks for step in block.steps):
        block, number = step.after or (0, 0)
        if step.after and not (block < len(blocks) and 0 <= number < len(blocks[block].steps)):
            raise NotRead(
                f"line {step.line}: there is no step {number} of block {block} to wait for"
            )
    return blocks


def _numbered(steps: list[Step]) -> list[Step]:
    """The steps that a runtime counts, by whose numbers other steps wait."""
    # A nop that waits for nothing takes no number, and shifts the numbers of all later steps.
    steps = [step for step in steps if step.type != "nop" or step.after is not None]
    for step, then in zip(steps, [*steps[1:], None], strict=False):
        if step.type == "nop" and (then is None or then.after is None):
            raise NotRead(f"line {step.line}: the step after a nop must wait for a block, too")
    return steps


def _step(each: _Element) -> Step:
    kind = each.text("type")
    if kind not in _TYPES:
        raise NotRead(f"line {each.line}: no kernel runs steps of type {quoted(kind)}")
    idle, places = kind == "nop", list[tuple[str, int]]()
    for end in ("src", "dst"):
        buffer = each.text(f"{end}buf")
        if buffer not in ("i", "o", "s"):
            raise NotRead(f"line {each.line}: a buffer is i, o or s, got {quoted(buffer)}")
        places.append((buffer, each.number(f"{end}off", -1 if idle else 0, _MOST_PLACE)))
    count = each.number("cnt", 0 if idle else 1, _MOST_COUNT) * (not idle)
    block, step = each.number("depid", -1, _MOST_AWAITED), each.number("deps", -1, 2**15)
    each.number("s", 0, 1023)
    awaited = bool(each.number("hasdep", 0, 1)) and not idle  # the runtimes ignore it on a nop
    after = (block, step) if block >= 0 else None
    return Step(kind, places[0], places[1], count, after, awaited, each.line)


# ---------------------------------------------------------------------- limits of the runtimes


def _refusal(root: _Element, gpus: dict[int, _Element], name: str) -> str:
    """The reason why a runtime does not take a program; empty if it does."""
    steps, blocks, channels = RUNTIMES[name]
    ranks, chunks, coll = len(gpus), root.said["nchunksperloop"], root.said["coll"]
    # The steps of each block of each GPU as they stand in the file, with every nop.
    counts = [[len(tb.children) for tb in gpu.children] for gpu in gpus.values()]
    for number, most, what in (
        (max((max(each, default=0) for each in counts), default=0), steps, "steps in a block"),
        (max(map(len, counts)), blocks, "blocks of a gpu"),
        (int(root.said["nchannels"]), channels, "channels"),
        (max(1 + ranks + len(each) + sum(each) for each in counts), _MOST_KEPT,
         "elements that a gpu reads"),
        (ranks, _MOST_GPUS, "gpus"),
    ):  # fmt: skip
        if number > most:
            return f"{number} {what}, at most {most}"
    row = KINDS.get(COLLECTIVES[coll] or "")
    # Where microsoft/msccl has a word of its own, it knows only that one, and the others do not.
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


# ---------------------------------------------------------------------- XML


class _Element(NamedTuple):
    """A tag that was opened: its attributes, its line, and its children of the next kind."""

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
        is_repeated = len(dict(pairs)) < len(pairs)
        if is_repeated or len(pairs) > _MOST_ATTRIBUTES or len(open_) > _MOST_DEPTH:
            raise NotRead(f"line {line}: <{tag[:40]}> repeats an attribute, has more than "
                          f"{_MOST_ATTRIBUTES}, or is nested too deeply")  # fmt: skip
        if any(len(value) > _MOST_CHARACTERS for _, value in pairs):
            raise NotRead(f"line {line}: a value of <{tag[:40]}> is longer than "
                          f"{_MOST_CHARACTERS} characters")  # fmt: skip
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
