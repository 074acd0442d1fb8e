"""Reads plans of MSCCL++ 0.8 and later: blocks, and the cells and threads of operations.

The ``channel_ids`` and ``buffer_id`` of an operation are indices into its block's lists, whose
entries are indices into the lists of the GPU. The k-th channel of a type from a to b is the k-th
from b to a. An operation is read as the kernel runs it (MSCCL++'s source, 1f5f065d), which does
less than a plan can say: a ``put`` over memory takes all its sources from the buffer of the first,
``get`` uses the offset of each end for the other one, and the kernel ignores ends that an operation
does not use.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from jaxcoll.prove.answers import NotProved, NotRead, quoted
from jaxcoll.prove.contents import Buffers, Cell
from jaxcoll.prove.fields import column, whole

_MOST_OPS, _MOST_CHANNELS, _MOST_IDS, _MOST_SEMAPHORES, _MOST_ENDS = 64, 16, 8, 16, 10
MOST_GPUS, MOST_CHUNKS = 1024, 2**20

# For each operation that moves data, the kinds of its sources and of its targets: "here", "there"
# (in another rank's memory), "p" and "P" (packets here and there). The kind of the last is followed
# by * if it may be repeated. A packet has the bytes of a chunk and as many bytes of flags, and lies
# in scratch.
_ENDS = {
    "put": (("here*",), ("there*",)), "pws": (("here*",), ("there*",)),
    "pwsf": (("here*",), ("there*",)), "get": (("there*",), ("here*",)),
    "copy": (("here",), ("here",)), "re": (("here", "here*"), ("here",)),
    "res": (("here", "here*"), ("here", "there*")), "rre": (("here", "there*"), ("here",)),
    "rres": (("here", "there*"), ("here", "there*")), "cpkt": (("here",), ("p",)),
    "upkt": (("p",), ("here",)), "ppkt": (("here*",), ("P*",)), "rppkt": (("p",), ("P*",)),
    "repkt": (("here", "p*"), ("here",)), "respkt": (("here", "p*"), ("here", "P*")),
    "recpkt": (("here", "p*"), ("here", "p")), "recspkt": (("here", "p*"), ("here", "p", "P*")),
}  # fmt: skip
PUTS = ("put", "pws", "pwsf", "ppkt")
_ON_PORTS = (*PUTS, "rppkt", "signal", "wait", "rlxsignal", "rlxwait", "flush")
_ON_MEMORY = {*_ON_PORTS, "get", "res", "rre", "rres", "respkt", "recspkt"} - {"flush"}
_MEETS = ("signal", "wait", "rlxsignal", "rlxwait", "flush")
_SEMAPHORES = ("sem_acquire", "sem_release")


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
        sizes: chunks of each buffer ("i", "o", "s") of each rank.
        buffers: the cells of buffers.
        packets: whether scratch has room for the flags of packets.
        doubled: whether runs use two scratch buffers in turn.
        threads: threads of a block.
    """

    sizes: list[dict[str, int]]
    buffers: Buffers
    packets: bool
    doubled: bool
    threads: int


class Gpu:
    """The blocks of a GPU, and the lists that their operations refer to."""

    def __init__(self, said: dict, rank: int, layout: Layout):
        ranks = len(layout.sizes)
        if whole(said, "id", 0, ranks - 1) != rank:
            raise NotRead(f"gpus[{rank}] must have the id {rank}")
        self.rank, self.layout = rank, layout
        self.channels: dict[str, list[tuple]] = {"memory": [], "port": []}
        count: defaultdict[tuple, int] = defaultdict(int)
        for each in listed(said, "channels", MOST_CHUNKS):
            kind = word(each, "channel_type", ("memory", "port"))
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
        """Check that each barrier counts all blocks that use it; otherwise any of them may meet."""
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
        for each in listed(said, "channels", 8):
            kind = word(each, "channel_type", ("memory", "port"))
            ids = column(each, "channel_ids", 0, len(self.channels[kind]) - 1)
            channels[kind] += [self.channels[kind][i] for i in ids]
        for each in listed(said, "remote_buffer_refs", 8):
            kind = word(each, "access_channel_type", ("memory", "port"))
            for i in column(each, "remote_buffer_ids", 0, len(self.remote) - 1):
                if kind not in self.remote[i][2]:
                    raise NotRead(f"{where}: remote buffer {i} is not accessed by {kind} channels")
                remote[kind].append(self.remote[i])
        ops = listed(said, "ops", _MOST_OPS)
        if max(map(len, (*channels.values(), *remote.values()))) > _MOST_CHANNELS:
            raise NotRead(f"{where} has more than {_MOST_CHANNELS} channels of a type")
        return [self._op(op, channels, remote, f"operation {i} of block {number} of rank "
                         f"{self.rank}") for i, op in enumerate(ops)]  # fmt: skip

    def _op(self, said: dict, channels: dict, remote: dict, place: str) -> Op:
        name = said.get("name") if isinstance(said, dict) else None
        known = (*_ENDS, *_MEETS, *_SEMAPHORES, "nop", "barrier")
        if not isinstance(name, str) or name not in known or "tbg_info" in said:
            raise NotRead(
                f"{place}: {quoted(name)} is not replayed (no pipeline, switch or groups)"
            )
        kind = "none"
        if name in (*_ON_PORTS, *_ON_MEMORY):
            kind = word(said, "channel_type", ("memory", "port"))
            if name not in (_ON_PORTS if kind == "port" else _ON_MEMORY):
                raise NotProved(f"{place}: {name} uses no {kind} channels", self.rank)
        ids = said.get("channel_ids", []) if kind != "none" else []
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
            self._ends(said, name, side, kind, remote.get(kind, []), place) for side in (0, 1)
        )
        moved = Op(name, src, dst, [channels[kind][i] for i in ids], [], place)
        return self._as_it_runs(moved, said, kind)

    def _ends(self, said: dict, name: str, side: int, kind: str, remote: list, place: str):
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
                what = "p"  # the proxy only copies, so the source has packets too
            found.append(self._end(each, what, remote, place))
        return found

    def _end(self, said: object, what: str, remote: list, place: str) -> End:
        first, size = whole(said, "index", 0, MOST_CHUNKS), whole(said, "size", 1, 2**16)
        rank, is_there = self.rank, isinstance(said, dict) and "buffer_id" in said
        if is_there != (what in ("there", "P")):
            raise NotProved(f"{place} takes a buffer of {'this' if is_there else 'another'} rank "
                            "there", self.rank)  # fmt: skip
        if is_there:
            rank, buffer, _ = remote[whole(said, "buffer_id", 0, len(remote) - 1)]
        else:
            buffer = word(said, "type", ("i", "o", "s"))
        packed, most = what in ("p", "P"), self.layout.sizes[rank][buffer]
        if packed and buffer != "s":
            raise NotProved(f"{place}: packets lie in scratch, not in {buffer!r}", rank)
        if packed and not self.layout.packets:
            most //= 2  # scratch of the protocol Simple has no room for flags
        if first + size > most:
            raise NotProved(f"{place} uses chunk {first + size - 1} of buffer {buffer!r} of {most} "
                            f"of rank {rank}", rank, first + size - 1)  # fmt: skip
        if is_there and buffer == "s" and self.layout.doubled and not packed:
            raise NotProved(f"{place}: of two scratch buffers in turn only packets find that of "
                            "another rank", rank)  # fmt: skip
        if packed:
            return End([(rank, "p", first + i) for i in range(size)], True)
        return End([self.layout.buffers.cell(rank, buffer, first + i) for i in range(size)], False)

    def _as_it_runs(self, op: Op, said: dict, kind: str) -> Op:
        """The operation, if the kernel runs it as the plan says; else an error."""
        rank = self.rank
        if len({len(end.cells) for end in (*op.src, *op.dst)}) > 1:
            raise NotProved(f"{op.place}: sources and targets are not equally long", rank)
        if op.name == "get":
            starts = [[each["index"] for each in said[key]] for key in ("src_buff", "dst_buff")]
            if starts[0] != starts[1]:
                raise NotProved(f"{op.place}: get takes each offset for the other end, so that "
                                "only equal ones are right", rank)  # fmt: skip
        if op.name in PUTS and kind == "memory":
            kinds = [each["type"] for each in said["src_buff"]]
            read = [self._end({**each, "type": kinds[0]}, "here", [], op.place)
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
