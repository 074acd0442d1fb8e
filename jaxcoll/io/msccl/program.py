"""MSCCL programs as data and as XML, and the runtimes that read them.

A rank runs blocks in parallel. A block sends to one rank, receives from one, and runs its
instructions in order. Ranks and blocks meet in only two ways: the n-th send over a connection
(sender, receiver, channel) meets the n-th receive, and an instruction may wait for one of another
block of its rank.

Limits of the runtimes come from their sources: microsoft/msccl (September 2023),
Azure/msccl-executor-nccl (December 2024) and RCCL 2.27.7 (ROCm 7.2). RCCL removed its runtime in
April 2026 (ROCm/rocm-systems#4340), so programs for it are read and proved, but not written. All
three share a parser, written by hand: one space between attributes, one line per tag, no entities.
It ignores unknown attributes, and keeps the elements of one GPU only: ``algo``, every ``gpu``, and
its own blocks and steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping

from jaxcoll.errors import FormatError
from jaxcoll.io import xml
from jaxcoll.io.sends import MSCCL_WORDS
from jaxcoll.kinds import KINDS, REDUCE_SCATTER
from jaxcoll.numerics import checks

# Limits that all runtimes share: elements of the file that a GPU keeps, and characters of a value.
MOST_ELEMENTS, MOST_CHARACTERS = 4095, 255


# ---------------------------------------------------------------------- the runtimes


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A runtime's limits.

    Attributes:
        name: name of the dialect.
        instructions: the most instructions of a block.
        blocks: the most blocks of a rank.
        channels: the most channels of a program.
        reduce_scatter: its word for this collective, the only one that they spell differently.
    """

    name: str
    instructions: int
    blocks: int
    channels: int
    reduce_scatter: str


RUNTIMES: Mapping[str, Runtime] = {
    "msccl": Runtime("msccl", 256, 216, 32, REDUCE_SCATTER.name),
    "azure": Runtime("azure", 256, 1024, 32, MSCCL_WORDS[REDUCE_SCATTER.name]),
    "rccl": Runtime("rccl", 64, 64, 128, MSCCL_WORDS[REDUCE_SCATTER.name]),
}
# The most that any runtime takes; no runtime reads more.
MOST_INSTRUCTIONS = max(each.instructions for each in RUNTIMES.values())
MOST_BLOCKS = max(each.blocks for each in RUNTIMES.values())
MOST_CHANNELS = max(each.channels for each in RUNTIMES.values())


def written_for(dialect: object) -> Runtime:
    """The runtime of a dialect that can be written.

    Raises:
        FormatError: the dialect is another one; for RCCL the error names the version that removed
            it.
    """
    if isinstance(dialect, str) and dialect == "rccl":
        raise FormatError(
            "RCCL removed its MSCCL runtime after ROCm 7.2 (ROCm/rocm-systems#4340), so programs "
            "are not written for it; take dialect='azure', which older ones read within 64 steps"
        )
    return RUNTIMES[checks.choice(dialect, ("msccl", "azure"), "dialect", FormatError)]


# ---------------------------------------------------------------------- programs

# MSCCL's names of collectives -> jaxcoll's kinds.
COLLECTIVES = {name: kind for kind, name in MSCCL_WORDS.items()}
# microsoft/msccl writes two words where others write one.
COLLECTIVES |= {kind: kind for kind in COLLECTIVES.values() if KINDS[kind].ends_with_shard}
# The number of messages that a connection holds before its sender waits, by the buffers of NCCL's
# protocols; a program that needs more deadlocks.
PROTOCOLS = {"Simple": 2, "LL": 8, "LL128": 8}
SENDS, RECEIVES = ("s", "rcs", "rrcs"), ("r", "rcs", "rrc", "rrcs")
# From the device structures: chunks of a step, block numbers in a signed byte, places of chunks.
MOST_COUNT, MOST_AWAITED, MOST_CHUNKS = 71, 127, 2**15 - 1
# Limits of this reader, so that a hostile file is refused before it takes memory.
MOST_RANKS, MOST_STEPS = 2**12, 2**24
_TYPES = {*SENDS, *RECEIVES, "cpy", "nop"}
# Instructions of other tools that schedules of single sends do not have, and ``ra``, at which the
# kernel stops; ``jaxcoll.prove`` runs the first two.
_NOT_READ = {"re", "rrs", "ra"}
_TAGS = ("algo", "gpu", "tb", "step")  # each is inside the one before


def whole_buffer(kind: str) -> str:
    """The buffer that is whole in place: of input and output the one that is not a shard."""
    return "o" if KINDS[kind].starts_with_shard else "i"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A ``step`` of a block.

    Attributes:
        type: ``s`` send, ``r`` receive, ``rcs`` receive and pass on, ``rrc`` receive and add,
            ``rrcs`` receive, add and pass on, ``cpy`` copy, ``nop`` wait only.
        src, dst: (buffer, first chunk); buffers are ``i`` input, ``o`` output, ``s`` scratch.
        count: number of chunks.
        after: (block, instruction) of the same rank that must have ended, or None.
        awaited: whether another instruction waits for it.
        step: for a send, its step of the schedule: the attribute ``at``, which runtimes ignore;
            None in files of other tools.
        place: the place of the send among those of its step: the attribute ``no``.
    """

    type: str
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    after: tuple[int, int] | None = None
    awaited: bool = False
    step: int | None = None
    place: int | None = None


@dataclasses.dataclass(frozen=True)
class Block:
    """A thread block: the rank it sends to and the one it receives from, or None; its channel.

    ``path`` holds the links that its sends take: the attribute ``links``, which runtimes ignore.
    """

    send: int | None
    receive: int | None
    channel: int
    instructions: tuple[Instruction, ...]
    path: tuple[int, ...] | None = None

    def connections(self, rank: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The connection that a block of a rank receives over, and the one that it sends over.

        A side without a peer has rank 0, which no instruction uses.
        """
        return (self.receive or 0, rank, self.channel), (rank, self.send or 0, self.channel)


@dataclasses.dataclass(frozen=True)
class Program:
    """The blocks of every rank.

    Attributes:
        name: a label.
        collective: one of the values of ``COLLECTIVES``.
        protocol: a key of ``PROTOCOLS``.
        chunks: number of chunks of the whole buffer, ``nchunksperloop``.
        in_place: whether input and output are one buffer.
        ranks: the blocks of each rank.
    """

    name: str
    collective: str
    protocol: str
    chunks: int
    in_place: bool
    ranks: tuple[tuple[Block, ...], ...]


# ---------------------------------------------------------------------- writing


def written(program: Program, *, dialect: str = "msccl", max_bytes: int = 2**30) -> str:
    """The XML of a program.

    Args:
        dialect: ``msccl`` for microsoft/msccl, ``azure`` for Azure's executor, which calls
            reduce_scatter ``reducescatter``. Other collectives have one spelling.
        max_bytes: the largest call for which the runtime is to choose the program.

    Raises:
        FormatError: the dialect is another one, a bound is below 1, or the program exceeds the
            limits.
    """
    checks.instance(program, Program, "program", FormatError)
    runtime = written_for(dialect)
    max_bytes = checks.integer(max_bytes, "max_bytes", FormatError, least=1)
    check_limits(program, runtime)
    kind = KINDS[program.collective]
    collective = runtime.reduce_scatter if kind.ends_with_shard else kind.msccl
    channels = _channels(program)
    # Azure's executor refuses files without outofplace, minBytes and maxBytes (Azure/msccl#26); the
    # others ignore them.
    here, other = str(int(program.in_place)), str(int(not program.in_place))
    lines = [
        _tag("algo", name=program.name, proto=program.protocol, nchannels=channels,
             nchunksperloop=program.chunks, ngpus=len(program.ranks), coll=collective,
             inplace=here, outofplace=other, minBytes=0, maxBytes=max_bytes) + ">"
    ]  # fmt: skip
    for rank, blocks in enumerate(program.ranks):
        sizes = dict.fromkeys("ios", 0)  # one past the last chunk that is used
        for each in (each for block in blocks for each in block.instructions if each.count):
            for buffer, first in (each.src, each.dst):
                sizes[buffer] = max(sizes[buffer], first + each.count)
        # In place, the single buffer is whole and the other one has no chunks: microsoft/msccl
        # compares both with nchunksperloop.
        if program.in_place:
            sizes[whole_buffer(program.collective)] = program.chunks
        of_buffers = {f"{buffer}_chunks": size for buffer, size in sizes.items()}
        lines.append("  " + _tag("gpu", id=rank, **of_buffers) + ">")
        for number, block in enumerate(blocks):
            ends = {"send": _or_minus(block.send), "recv": _or_minus(block.receive)}
            # A longer value would be refused; without it some path is found, perhaps another one.
            path = ",".join(map(str, block.path or ()))
            links = {"links": path} if 0 < len(path) <= MOST_CHARACTERS else {}
            lines.append("    " + _tag("tb", id=number, **ends, chan=block.channel, **links) + ">")
            lines += [_step(s, each) for s, each in enumerate(block.instructions)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _channels(program: Program) -> int:
    return 1 + max((b.channel for rank in program.ranks for b in rank), default=0)


def check_limits(program: Program, runtime: Runtime) -> None:
    """Refuse a program that a runtime would not read.

    Raises:
        FormatError: the program exceeds a limit; the error names the number.
    """
    ranks = len(program.ranks)
    found = [
        (len(program.name), MOST_CHARACTERS, "the name has {} characters"),
        (_channels(program), runtime.channels, "the program has {} channels"),
    ]
    for rank, blocks in enumerate(program.ranks):
        longest = max((len(block.instructions) for block in blocks), default=0)
        elements = 1 + ranks + len(blocks) + sum(len(block.instructions) for block in blocks)
        awaited = max(
            (b for b, block in enumerate(blocks) if any(i.awaited for i in block.instructions)),
            default=0,
        )
        # The parser keeps the elements of one GPU at a time, so its limit does not apply to the
        # file.
        found += [
            (len(blocks), runtime.blocks, f"rank {rank} has {{}} blocks"),
            (longest, runtime.instructions, f"a block of rank {rank} has {{}} instructions"),
            (elements, MOST_ELEMENTS, f"rank {rank} would read {{}} elements of the program"),
            (awaited, MOST_AWAITED, f"other blocks would wait for block {{}} of rank {rank}"),
        ]
    for number, most, text in found:
        if number > most:
            raise FormatError(
                f"{text.format(number)}, and {runtime.name} takes at most {most}; take fewer "
                "chunks per shard (--for-runtime chooses them), or fewer links per rank"
            )


def _tag(tag: str, /, **attributes: object) -> str:
    return f"<{tag} " + " ".join(f'{key}="{value}"' for key, value in attributes.items())


def _or_minus(rank: int | None) -> int:
    return -1 if rank is None else rank


def _step(s: int, each: Instruction) -> str:
    block, instruction = each.after or (-1, -1)
    tag = _tag(
        "step", s=s, type=each.type, srcbuf=each.src[0], srcoff=each.src[1], dstbuf=each.dst[0],
        dstoff=each.dst[1], cnt=each.count, depid=block, deps=instruction, hasdep=int(each.awaited),
    )  # fmt: skip
    at = "" if each.step is None else f' at="{each.step}"'
    no = "" if each.place is None else f' no="{each.place}"'
    return f"      {tag}{at}{no}/>"


# ---------------------------------------------------------------------- reading


def loads(text: str) -> Program:
    """The program of XML text.

    Raises:
        FormatError: the text is malformed, has entities, or is cut short; an attribute is missing
            or out of range; or a collective or instruction is not supported.
    """
    root = xml.parsed(text, "algo", MOST_RANKS * MOST_ELEMENTS, frozenset(_TAGS), nested=_TAGS)
    collective = COLLECTIVES[checks.choice(root.text("coll"), COLLECTIVES, "coll", FormatError)]
    protocol = checks.choice(root.text("proto"), PROTOCOLS, "proto", FormatError)
    ranks = root.integer("ngpus", 1, MOST_RANKS)
    channels = root.integer("nchannels", 1, MOST_CHANNELS)
    if len(root.text("name")) > MOST_CHARACTERS:
        raise FormatError(f"the name is longer than the {MOST_CHARACTERS} characters of a runtime")
    chunks = root.integer("nchunksperloop", 1, MOST_CHUNKS)
    in_place = bool(root.integer("inplace", 0, 1)) if "inplace" in root.said else False
    blocks: dict[int, tuple[Block, ...]] = {}
    for gpu in root.children:
        number = gpu.integer("id", 0, ranks - 1)
        if number in blocks:
            raise FormatError(f"gpu {number} is given twice; give it once")
        blocks[number] = _blocks(gpu, ranks, number, channels)
    if len(blocks) < ranks:
        missing = next(r for r in range(ranks) if r not in blocks)
        raise FormatError(f"the program of {ranks} ranks has no gpu {missing}; add it")
    rows = tuple(blocks[rank] for rank in range(ranks))
    return Program(root.text("name"), collective, protocol, chunks, in_place, rows)


def _blocks(gpu: xml.Element, ranks: int, rank: int, channels: int) -> tuple[Block, ...]:
    found: dict[int, Block] = {}
    steps = [len(tb.children) for tb in gpu.children]
    longest, elements = max(steps, default=0), 1 + ranks + len(steps) + sum(steps)
    for number, most, what in (
        (len(gpu.children), MOST_BLOCKS, "blocks"),
        (longest, MOST_INSTRUCTIONS, "instructions in a block"),
        (elements, MOST_ELEMENTS, "elements to read"),
    ):
        if number > most:
            raise FormatError(f"gpu {rank} has {number} {what}; runtimes take at most {most}")
    for tb in gpu.children:
        number = tb.integer("id", 0, len(gpu.children) - 1)
        if number in found:
            raise FormatError(f"block {number} of gpu {rank} is given twice; give it once")
        peers = [tb.integer(end, -1, ranks - 1) for end in ("send", "recv")]
        if rank in peers:
            raise FormatError(f"block {number} of gpu {rank} has its own rank as a peer")
        send, receive = (None if peer < 0 else peer for peer in peers)
        channel = tb.integer("chan", 0, channels - 1)
        instructions = tuple(_instruction(step, len(gpu.children)) for step in tb.children)
        path = _path(tb) if "links" in tb.said else None
        found[number] = Block(send, receive, channel, instructions, path)
        for each in instructions:
            if (each.type in SENDS and send is None) or (each.type in RECEIVES and receive is None):
                raise FormatError(
                    f"block {number} of gpu {rank} has an instruction {each.type!r}, which needs a "
                    "peer, and names none"
                )
    blocks = tuple(found[number] for number in range(len(found)))
    for end in ("send", "receive"):
        used = sorted((p, b.channel) for b in blocks if (p := getattr(b, end)) is not None)
        twice = next((pair for pair, after in itertools.pairwise(used) if pair == after), None)
        if twice:
            raise FormatError(
                f"two blocks of gpu {rank} {end} with rank {twice[0]} on channel {twice[1]}; give "
                f"each its own channel"
            )
    return blocks


def _path(tb: xml.Element) -> tuple[int, ...]:
    words = tb.said["links"].split(",")
    if not all(re.fullmatch("[0-9]{1,9}", word, re.ASCII) for word in words):
        raise FormatError(
            f"links of <tb> must be numbers separated by commas, got {checks.shown(words)}"
        )
    return tuple(map(int, words))


def _instruction(step: xml.Element, blocks: int) -> Instruction:
    kind = step.text("type")
    if kind in _NOT_READ:
        known = ", ".join(sorted(_TYPES))
        raise FormatError(f"instructions of type {kind!r} are not read; known: {known}")
    checks.choice(kind, sorted(_TYPES), "type", FormatError)
    is_nop = kind == "nop"
    places = []
    for end in ("src", "dst"):
        buffer = checks.choice(step.text(f"{end}buf"), ("i", "o", "s"), f"{end}buf", FormatError)
        least = -1 if is_nop else 0
        places.append((buffer, step.integer(f"{end}off", least, MOST_CHUNKS)))
    count = step.integer("cnt", 0 if is_nop else 1, MOST_COUNT)
    block = step.integer("depid", -1, min(blocks - 1, MOST_AWAITED))
    instruction = step.integer("deps", -1, MOST_INSTRUCTIONS - 1)
    awaited = bool(step.integer("hasdep", 0, 1))
    after = (block, instruction) if block >= 0 else None
    at = step.integer("at", 0, MOST_STEPS) if "at" in step.said else None
    no = step.integer("no", 0, MOST_STEPS) if "no" in step.said else None
    return Instruction(kind, places[0], places[1], count, after, awaited, at, no)
