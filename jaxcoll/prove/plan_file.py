"""Reads plans of MSCCL++ 0.8 and later: blocks, and the cells and threads of operations.

The ``channel_ids`` and ``buffer_id`` of an operation are indices into its block's lists, whose
entries are indices into the lists of the GPU. The k-th channel of a type from a to b is the k-th
from b to a. An operation is read as the kernel runs it (MSCCL++'s source, 1f5f065d), which does
less than a plan can express: a ``put`` over memory takes all its sources from the buffer of the
first, ``get`` uses the offset of each end for the other one, and the kernel ignores ends that an
operation does not use.

Blocks of a group (``tbg_info``) move equal parts of an operation's chunks, and a pipeline runs its
operations on one part of their chunks after the other. So chunks are cut until each part is a cell
of its own. The number of rounds of a pipeline depends on the message's size, so a plan is replayed
with several numbers. Switch operations reduce from, and store to, the same place of all ranks of a
channel.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from jaxcoll.prove.answers import NotProved, NotRead, quoted
from jaxcoll.prove.contents import Buffers, Cell
from jaxcoll.prove.fields import column, whole

_MOST_OPS, _MOST_CHANNELS, _MOST_IDS, _MOST_SEMAPHORES, _MOST_ENDS = 64, 16, 8, 16, 10
MOST_GPUS, MOST_CHUNKS = 1024, 2**20

# For each operation that moves data, the kinds of its sources and of its targets: "here", "there"
# (in another rank's memory), "p" and "P" (packets here and there). The last kind is followed by *
# if it may be repeated. A packet has the bytes of a chunk and the same number of bytes of flags,
# and is in scratch.
_ENDS = {
    "put": (("here*",), ("there*",)), "pws": (("here*",), ("there*",)),
    "pwsf": (("here*",), ("there*",)), "get": (("there*",), ("here*",)),
    "copy": (("here",), ("here",)), "re": (("here", "here*"), ("here",)),
    "res": (("here", "here*"), ("here", "there*")), "rre": (("here", "there*"), ("here",)),
    "rres": (("here", "there*"), ("here", "there*")), "cpkt": (("here",), ("p",)),
    "upkt": (("p",), ("here",)), "ppkt": (("here*",), ("P*",)), "rppkt": (("p",), ("P*",)),
    "repkt": (("here", "p*"), ("here",)), "respkt": (("here", "p*"), ("here", "P*")),
    "recpkt": (("here", "p*"), ("here", "p")), "recspkt": (("here", "p*"), ("here", "p", "P*")),
    "glres": (("switch",), ("switch",)), "gstore": (("here",), ("switch",)),
}  # fmt: skip
PUTS = ("put", "pws", "pwsf", "ppkt")
_ON_PORTS = (*PUTS, "rppkt", "signal", "wait", "rlxsignal", "rlxwait", "flush")
_ON_MEMORY = {*_ON_PORTS, "get", "res", "rre", "rres", "respkt", "recspkt"} - {"flush"}
_MEETS = ("signal", "wait", "rlxsignal", "rlxwait", "flush")
_SEMAPHORES = ("sem_acquire", "sem_release")
_ON_SWITCHES = ("glres", "gstore")
_MOST_PARTS = 64  # that a chunk is cut into


class End(NamedTuple):
    """The cells of a source or target, and whether they are packets."""

    cells: list[Cell]
    packed: bool


class Op(NamedTuple):
    name: str
    src: list[End]
    dst: list[End]
    channels: list[tuple]  # (type, from, to, number), each served by its own thread
    numbers: list[int]  # semaphores; or a barrier and its count of blocks
    place: str

    @property
    def on_port(self) -> bool:
        """Whether it writes another machine's memory, through the proxy of a port channel."""
        return any(channel[0] == "port" for channel in self.channels)


def listed(fields: object, key: str, most: int) -> list:
    """A list among the fields of an object, of bounded length; empty if it is absent."""
    values = fields.get(key, []) if isinstance(fields, dict) else None
    if not isinstance(values, list) or len(values) > most:
        raise NotRead(f'"{key}" must be a list of at most {most}, got {quoted(values)}')
    return values


def word(fields: object, key: str, known: tuple[str, ...]) -> str:
    """A text among the fields of an object, which must be one of the known ones."""
    value = fields.get(key) if isinstance(fields, dict) else None
    if not isinstance(value, str) or value not in known:
        raise NotRead(f'"{key}" must be one of {", ".join(known)}, got {quoted(value)}')
    return value


class Layout(NamedTuple):
    """The facts of a plan that concern all ranks.

    Attributes:
        sizes: parts of each buffer ("i", "o", "s") of each rank.
        buffers: the cells of buffers.
        packets: whether scratch has room for the flags of packets.
        doubled: whether runs use two scratch buffers in turn.
        threads: threads of a block.
        parts: the number of parts into which each chunk is cut.
        rounds: the number of parts that a pipeline processes one after the other.
    """

    sizes: list[dict[str, int]]
    buffers: Buffers
    packets: bool
    doubled: bool
    threads: int
    parts: int = 1
    rounds: int = 1


class Share(NamedTuple):
    """The part of an operation's chunks that a block moves in a round of a pipeline."""

    block: int = 0
    blocks: int = 1
    round: int = 0
    rounds: int = 1

    def of(self, first: int, count: int) -> tuple[int, int]:
        """The first part among some parts, and the number of parts."""
        each = count // self.blocks
        some = each // self.rounds
        return first + self.block * each + self.round * some, some


def groups_of(said: object) -> int:
    """The number of blocks in the group of an operation."""
    if not isinstance(said, dict) or "tbg_info" not in said:
        return 1
    return whole(said["tbg_info"], "tbg_size", 1, _MOST_PARTS)


def operations(said: object) -> list[tuple[object, bool]]:
    """The operations of a block, and whether each is in a pipeline; a pipeline's own ones count."""
    found: list[tuple[object, bool]] = []
    for op in listed(said, "ops", _MOST_OPS):
        inner = isinstance(op, dict) and op.get("name") == "pipeline"
        found += [(each, True) for each in listed(op, "ops", _MOST_OPS)] if inner else [(op, False)]
    if len(found) > _MOST_OPS:
        raise NotRead(f"a block has at most {_MOST_OPS} operations, those of pipelines counted")
    return found


def cut_of(gpus: list[dict]) -> tuple[int, bool]:
    """The number of parts of each chunk for groups of blocks, and whether pipelines exist."""
    parts, pipelined = 1, False
    for gpu in gpus:
        for block in listed(gpu, "threadblocks", MOST_GPUS):
            for op, is_inner in operations(block):
                parts, pipelined = math.lcm(parts, groups_of(op)), pipelined or is_inner
                if parts > _MOST_PARTS:
                    raise NotRead(f"groups of blocks cut chunks in more than {_MOST_PARTS} parts")
    return parts, pipelined


class Gpu:
    """The blocks of a GPU, and the lists that their operations refer to."""

    def __init__(self, said: dict, rank: int, layout: Layout):
        ranks = len(layout.sizes)
        if whole(said, "id", 0, ranks - 1) != rank:
            raise NotRead(f"gpus[{rank}] must have the id {rank}")
        self.rank, self.layout = rank, layout
        self.channels: dict[str, list[tuple]] = {"memory": [], "port": []}
        count: defaultdict[tuple, int] = defaultdict(int)
        self.switches: list[tuple[str, list[int]]] = []
        for each in listed(said, "channels", MOST_CHUNKS):
            kind = word(each, "channel_type", ("memory", "port", "switch"))
            if kind == "switch":
                buffer = word(each, "buffer_type", ("i", "o", "s"))
                for group in listed(each, "rank_groups", MOST_GPUS):
                    self.switches.append((buffer, column(group, "ranks", 0, ranks - 1)))
                continue
            for peer in column(each, "connected_to", 0, ranks - 1):
                self.channels[kind].append((kind, rank, peer, count[kind, peer]))
                count[kind, peer] += 1
        self.remote = [(whole(b, "rank", 0, ranks - 1), word(b, "type", ("i", "o", "s")),
                        listed(b, "access_channel_types", 8))
                       for b in listed(said, "remote_buffers", MOST_CHUNKS)]  # fmt: skip
        self.semaphores = [whole(s, "init_value", 0, MOST_CHUNKS)
                           for s in listed(said, "semaphores", MOST_CHUNKS)]  # fmt: skip
        blocks = listed(said, "threadblocks", MOST_GPUS)
        self.blocks = [self._block(block, at) for at, block in enumerate(blocks)]
        self._check_barriers()

    def _check_barriers(self) -> None:
        """Check that each barrier counts all blocks that use it; otherwise a subset might meet."""
        meeting: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
        for number, ops in enumerate(self.blocks):
            for op in ops:
                if op.name == "barrier" and op.numbers[1] > 1:
                    meeting[op.numbers[0]].add((number, op.numbers[1]))
        for barrier, users in meeting.items():
            if {count for _, count in users} != {len({number for number, _ in users})}:
                raise NotProved(f"barrier {barrier} of rank {self.rank} does not count the blocks "
                                "that meet there", self.rank)  # fmt: skip

    def _block(self, said: dict, number: int) -> list[Op]:
        where = f"block {number} of gpu {self.rank}"
        if whole(said, "id", 0, MOST_GPUS) != number:
            raise NotRead(f"{where} must have the id {number}")
        channels: dict[str, list[tuple]] = {"memory": [], "port": []}
        remote: dict[str, list[tuple]] = {"memory": [], "port": []}
        switches: list[tuple[str, list[int]]] = []
        for each in listed(said, "channels", 8):
            kind = word(each, "channel_type", ("memory", "port", "switch"))
            if kind == "switch":
                ids = column(each, "channel_ids", 0, len(self.switches) - 1)
                switches += [self.switches[i] for i in ids]
                continue
            ids = column(each, "channel_ids", 0, len(self.channels[kind]) - 1)
            channels[kind] += [self.channels[kind][i] for i in ids]
        for each in listed(said, "remote_buffer_refs", 8):
            kind = word(each, "access_channel_type", ("memory", "port"))
            for i in column(each, "remote_buffer_ids", 0, len(self.remote) - 1):
                if kind not in self.remote[i][2]:
                    raise NotRead(f"{where}: remote buffer {i} is not accessed by {kind} channels")
                remote[kind].append(self.remote[i])
        if max(map(len, (*channels.values(), *remote.values()))) > _MOST_CHANNELS:
            raise NotRead(f"{where} has more than {_MOST_CHANNELS} channels of a type")
        lists = {**remote, "switch": switches}
        return [
            self._op(op, channels, lists, f"operation {i} of block {number} of rank {self.rank}",
                     share)
            for i, (op, share) in enumerate(self._in_rounds(said, remote))
        ]  # fmt: skip

    def _in_rounds(
        self, said: dict, remote: dict[str, list[tuple]]
    ) -> Iterator[tuple[dict, Share]]:
        """The operations in the order in which they run; those of a pipeline round by round."""
        for op in listed(said, "ops", _MOST_OPS):
            inner = operations({"ops": [op]})
            rounds = 1
            if inner and inner[0][1]:
                self._check_pipeline(op, remote)
                rounds = self.layout.rounds
            for at in range(rounds):
                for each, _ in inner:
                    blocks = groups_of(each)
                    info = each["tbg_info"] if isinstance(each, dict) and blocks > 1 else {}
                    block = whole(info, "tb_id", 0, blocks - 1) if blocks > 1 else 0
                    yield each, Share(block, blocks, at, rounds)  # type: ignore[misc]

    def _check_pipeline(self, said: dict, remote: dict[str, list[tuple]]) -> None:
        """Check that rounds have equal parts of equally many chunks, none of them in scratch."""
        whole(said.get("iter_context"), "unit_size", 1, 2**32)
        whole(said.get("iter_context"), "num_chunks", 1, MOST_CHUNKS)
        sizes = set()
        for op in listed(said, "ops", _MOST_OPS):
            lists = remote.get(str(op.get("channel_type")) if isinstance(op, dict) else "", [])
            for key in ("src_buff", "dst_buff"):
                for end in listed(op, key, _MOST_ENDS):
                    sizes.add(whole(end, "size", 1, 2**16))
                    buffer = end.get("type")
                    if "buffer_id" in end and lists:
                        buffer = lists[whole(end, "buffer_id", 0, len(lists) - 1)][1]
                    if buffer == "s":
                        raise NotRead(f"a pipeline of rank {self.rank} uses scratch, whose parts "
                                      "its rounds use in turn; that is not replayed")  # fmt: skip
        if len(sizes) > 1:
            raise NotRead(f"a pipeline of rank {self.rank} has operations on "
                          f"{' and '.join(map(str, sorted(sizes)))} chunks; only equal numbers "
                          "are replayed")  # fmt: skip

    def _op(self, said: dict, channels: dict, remote: dict, place: str, share: Share) -> Op:
        name = said.get("name") if isinstance(said, dict) else None
        known = (*_ENDS, *_MEETS, *_SEMAPHORES, "nop", "barrier")
        if not isinstance(name, str) or name not in known:
            raise NotRead(f"{place}: {quoted(name)} is not replayed")
        kind = "none"
        if name in _ON_SWITCHES:
            word(said, "channel_type", ("switch",))
            kind = "switch"
        if name in (*_ON_PORTS, *_ON_MEMORY):
            kind = word(said, "channel_type", ("memory", "port"))
            if name not in (_ON_PORTS if kind == "port" else _ON_MEMORY):
                raise NotProved(f"{place}: {name} uses no {kind} channels", self.rank)
        ids = said.get("channel_ids", []) if kind not in ("none", "switch") else []
        ids = column({"channel_ids": ids}, "channel_ids", 0, len(channels.get(kind, [])) - 1)
        asked = said.get("semaphore_ids", []) if name in _SEMAPHORES else []
        numbers = column({"semaphore_ids": asked}, "semaphore_ids", 0, len(self.semaphores) - 1)
        if len(ids) > _MOST_IDS or len(numbers) > _MOST_SEMAPHORES:
            raise NotRead(f"{place}: more than {_MOST_IDS} channels or {_MOST_SEMAPHORES} "
                          "semaphores")  # fmt: skip
        if max(len(ids), len(numbers)) > self.layout.threads:
            raise NotProved(f"{place}: a block has {self.layout.threads} threads, one for each "
                            "channel", self.rank)  # fmt: skip
        if name == "barrier":
            numbers = [whole(said, "barrier_id", 0, 15),
                       whole(said, "num_threadblocks", 1, MOST_GPUS)]  # fmt: skip
        if name not in _ENDS:
            return Op(name, [], [], [channels[kind][i] for i in ids], numbers, place)
        counts = [len(listed(said, key, _MOST_ENDS)) for key in ("src_buff", "dst_buff")]
        if name in (*PUTS, "get") and counts[0] != counts[1]:
            raise NotProved(f"{place}: {counts[0]} sources for {counts[1]} targets", self.rank)
        src, dst = (
            self._ends(said, name, side, kind, remote.get(kind, []), place, share)
            for side in (0, 1)
        )
        moved = Op(name, src, dst, [channels[kind][i] for i in ids], [], place)
        return self._as_it_runs(moved, said, kind, share)

    def _ends(
        self, said: dict, name: str, side: int, kind: str, remote: list, place: str, share: Share
    ) -> list[End]:
        key, kinds = ("src_buff", "dst_buff")[side], _ENDS[name][side]
        given = listed(said, key, _MOST_ENDS)
        if not len(kinds) - kinds[-1].endswith("*") <= len(given) or not given or (
            len(given) > len(kinds) and not kinds[-1].endswith("*")
        ):  # fmt: skip
            raise NotProved(f"{place}: {name} uses another number of {key} than {len(given)}",
                            self.rank)  # fmt: skip
        found = []
        for i, each in enumerate(given):
            what = kinds[min(i, len(kinds) - 1)].rstrip("*")
            if name == "ppkt" and kind == "port" and side == 0:
                what = "p"  # the proxy only copies, so the source has packets, too
            if what == "switch":
                found += self._switch_ends(each, remote, place, share)
            else:
                found.append(self._end(each, what, remote, place, share))
        return found

    def _range(self, said: object, share: Share) -> tuple[int, int]:
        """The parts of the chunks that an end names which belong to a block and a round."""
        first, size = whole(said, "index", 0, MOST_CHUNKS), whole(said, "size", 1, 2**16)
        return share.of(first * self.layout.parts, size * self.layout.parts)

    def _switch_ends(self, said: object, remote: list, place: str, share: Share) -> list[End]:
        """The same place on all ranks of a switch channel."""
        first, size = self._range(said, share)
        buffer, ranks = remote[whole(said, "switch_channel_id", 0, len(remote) - 1)]
        if self.rank not in ranks or (buffer == "s" and self.layout.doubled):
            why = "of two scratch buffers in turn" if self.rank in ranks else "of other ranks"
            raise NotProved(f"{place} uses a switch channel {why}", self.rank)
        for rank in ranks:
            most = self.layout.sizes[rank][buffer]
            if first + size > most:
                raise NotProved(f"{place} uses chunk {first + size - 1} of buffer {buffer!r} of "
                                f"{most} of rank {rank}", rank, first + size - 1)  # fmt: skip
        return [
            End([self.layout.buffers.cell(rank, buffer, first + i) for i in range(size)], False)
            for rank in ranks
        ]

    def _end(self, said: object, what: str, remote: list, place: str, share: Share) -> End:
        first, size = self._range(said, share)
        rank, is_there = self.rank, isinstance(said, dict) and "buffer_id" in said
        if is_there != (what in ("there", "P")):
            raise NotProved(f"{place} needs a buffer of {'this' if is_there else 'another'} rank "
                            "in this place", self.rank)  # fmt: skip
        if is_there:
            rank, buffer, _ = remote[whole(said, "buffer_id", 0, len(remote) - 1)]
        else:
            buffer = word(said, "type", ("i", "o", "s"))
        packed, most = what in ("p", "P"), self.layout.sizes[rank][buffer]
        if packed and buffer != "s":
            raise NotProved(f"{place}: packets must lie in scratch, not in {buffer!r}", rank)
        if packed and not self.layout.packets:
            most //= 2  # scratch of the protocol Simple has no room for flags
        if first + size > most:
            raise NotProved(f"{place} uses chunk {first + size - 1} of buffer {buffer!r} of {most} "
                            f"of rank {rank}", rank, first + size - 1)  # fmt: skip
        if is_there and buffer == "s" and self.layout.doubled and not packed:
            raise NotProved(f"{place}: with two scratch buffers in turn, only packets find the "
                            "one of another rank", rank)  # fmt: skip
        if packed:
            return End([(rank, "p", first + i) for i in range(size)], True)
        return End([self.layout.buffers.cell(rank, buffer, first + i) for i in range(size)], False)

    def _as_it_runs(self, op: Op, said: dict, kind: str, share: Share) -> Op:
        """The operation, after checking that the kernel runs it as the plan states."""
        rank = self.rank
        if len({len(end.cells) for end in (*op.src, *op.dst)}) > 1:
            raise NotProved(f"{op.place}: sources and targets must be equally long", rank)
        if op.name == "get":
            starts = [[each["index"] for each in said[key]] for key in ("src_buff", "dst_buff")]
            if starts[0] != starts[1]:
                raise NotProved(f"{op.place}: get uses the offset of one end for the other, so "
                                "both must be equal", rank)  # fmt: skip
        if op.name in PUTS and kind == "memory":
            kinds = [each["type"] for each in said["src_buff"]]
            read = [self._end({**each, "type": kinds[0]}, "here", [], op.place, share)
                    for each in said["src_buff"]]  # fmt: skip
            if read != op.src:
                raise NotProved(f"{op.place}: {op.name} over memory takes all its sources from the "
                                "buffer of the first", rank)  # fmt: skip
        if kind == "port" and op.name in (*PUTS, "rppkt"):
            ends = [end.cells[0][0] for end in op.dst]
            if [channel[2] for channel in op.channels[: len(ends)]] != ends:
                raise NotProved(f"{op.place}: a put needs a channel to the rank of its target",
                                rank)  # fmt: skip
        return op
