"""Execution plans of MSCCL++ 0.8 and later, every thread block run as its kernel runs it.

There are no queues: a ``put`` writes another rank's memory at once, and blocks meet in channels
(the n-th wait meets the n-th signal), semaphores, barriers and packets (data with a flag, read when
it has come). An operation's ``channel_ids`` and ``buffer_id`` are places in its block's lists,
whose entries are places in the lists of the GPU; the k-th channel of a type from a to b is the k-th
from b to a. Signals and waits that are relaxed order no memory. In a block, operations are taken to
end one after another, as ``nop`` has them do.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from jaxcoll.prove.contents import Asked, Buffers, Cell, NotProved, NotRead, Proof, Value, summed
from jaxcoll.prove.fields import column, whole
from jaxcoll.prove.order import Clock, Order

COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "custom": None,
}  # fmt: skip
_PUTS = ("put", "pws", "pwsf", "ppkt", "rppkt")
_SUMS = ("re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt")
_MOVES = (*_PUTS, *_SUMS, "get", "copy", "cpkt", "upkt")
_MEETS = ("signal", "wait", "rlxsignal", "rlxwait", "flush", "sem_acquire", "sem_release")
_OPS = (*_MOVES, *_MEETS, "nop", "barrier")
_READ_PACKETS = ("upkt", "rppkt", "repkt", "respkt", "recpkt", "recspkt")  # after the first source
_WRITE_PACKETS = ("ppkt", "cpkt", "rppkt", "respkt", "recpkt", "recspkt")  # after the first target
_MOST_OPS, _MOST_CHANNELS, _MOST_IDS, _MOST_SEMAPHORES = 64, 16, 8, 16
_MOST_GPUS, _MOST_CHUNKS = 1024, 2**20


class Op(NamedTuple):
    name: str
    src: list[list[Cell]]
    dst: list[list[Cell]]
    channels: list[tuple]  # (type, from, to, which)
    numbers: list[int]  # of semaphores, or a barrier and how many blocks meet there
    place: str


def _list(fields: object, key: str, most: int) -> list:
    values = fields.get(key, []) if isinstance(fields, dict) else None
    if not isinstance(values, list) or len(values) > most:
        raise NotRead(f'"{key}" must be a list of at most {most}, got {values!r:.40}')
    return values


def _word(fields: object, key: str, known: tuple[str, ...]) -> str:
    value = fields.get(key) if isinstance(fields, dict) else None
    if not isinstance(value, str) or value not in known:
        raise NotRead(f'"{key}" must be one of {", ".join(known)}, got {value!r:.40}')
    return value


class _Gpu:
    """The lists that a GPU's operations refer to."""

    def __init__(self, said: dict, rank: int, sizes: list[dict[str, int]], buffers: Buffers):
        ranks = len(sizes)
        if whole(said, "id", 0, ranks - 1) != rank:
            raise NotRead(f"gpus[{rank}] must have the id {rank}")
        self.rank, self.sizes, self.buffers = rank, sizes, buffers
        self.channels: dict[str, list[tuple]] = {"memory": [], "port": []}
        count: defaultdict[tuple, int] = defaultdict(int)
        for each in _list(said, "channels", _MOST_CHUNKS):
            kind = _word(each, "channel_type", ("memory", "port"))
            for peer in column(each, "connected_to", 0, ranks - 1):
                self.channels[kind].append((kind, rank, peer, count[kind, peer]))
                count[kind, peer] += 1
        self.remote = [(whole(b, "rank", 0, ranks - 1), _word(b, "type", ("i", "o", "s")))
                       for b in _list(said, "remote_buffers", _MOST_CHUNKS)]  # fmt: skip
        self.semaphores = [whole(s, "init_value", 0, _MOST_CHUNKS)
                           for s in _list(said, "semaphores", _MOST_CHUNKS)]  # fmt: skip
        blocks = _list(said, "threadblocks", _MOST_GPUS)
        self.blocks = [self._block(block, at) for at, block in enumerate(blocks)]

    def _block(self, said: dict, number: int) -> list[Op]:
        if whole(said, "id", 0, _MOST_GPUS) != number:
            raise NotRead(f"block {number} of gpu {self.rank} must have the id {number}")
        channels: dict[str, list[tuple]] = {"memory": [], "port": []}
        remote: dict[str, list[tuple]] = {"memory": [], "port": []}
        for each in _list(said, "channels", 8):
            kind = _word(each, "channel_type", ("memory", "port"))
            ids = column(each, "channel_ids", 0, len(self.channels[kind]) - 1)
            channels[kind] += [self.channels[kind][i] for i in ids]
        for each in _list(said, "remote_buffer_refs", 8):
            ids = column(each, "remote_buffer_ids", 0, len(self.remote) - 1)
            remote[_word(each, "access_channel_type", ("memory", "port"))] += [
                self.remote[i] for i in ids]  # fmt: skip
        ops = _list(said, "ops", _MOST_OPS)
        if max(map(len, channels.values())) > _MOST_CHANNELS:
            raise NotRead(f"block {number} of gpu {self.rank} has more than {_MOST_CHANNELS} "
                          "channels of a type")  # fmt: skip
        return [self._op(op, channels, remote, f"operation {i} of block {number} of rank "
                         f"{self.rank}") for i, op in enumerate(ops)]  # fmt: skip

    def _op(self, said: dict, channels: dict, remote: dict, place: str) -> Op:
        name = said.get("name") if isinstance(said, dict) else None
        if name not in _OPS or "tbg_info" in said:
            raise NotRead(f"{place}: {name!r:.20} is not replayed (no pipeline, switch or groups)")
        kind = "none"
        if name in (*_PUTS, "get", "res", "rre", "rres", "respkt", "recspkt", *_MEETS[:5]):
            kind = _word(said, "channel_type", ("memory", "port"))
        known = channels.get(kind, [])
        ids = said.get("channel_ids", []) if kind != "none" else []
        ids = column({"channel_ids": ids}, "channel_ids", 0, len(known) - 1)
        numbers = column({"s": said.get("semaphore_ids", [])}, "s", 0, len(self.semaphores) - 1)
        if name == "barrier":
            numbers = [whole(said, "barrier_id", 0, 15),
                       whole(said, "num_threadblocks", 1, _MOST_GPUS)]  # fmt: skip
        if len(ids) > _MOST_IDS or len(numbers) > _MOST_SEMAPHORES:
            raise NotRead(f"{place}: more than {_MOST_IDS} channels or {_MOST_SEMAPHORES} "
                          "semaphores")  # fmt: skip
        ends = [
            [self._cells(each, remote.get(kind, []), place) for each in _list(said, end, 64)]
            for end in ("src_buff", "dst_buff") if name in _MOVES
        ] or [[], []]  # fmt: skip
        if name in _MOVES and not (ends[0] and ends[1]):
            raise NotRead(f"{place}: {name} needs src_buff and dst_buff")
        return Op(name, ends[0], ends[1], [known[i] for i in ids], numbers, place)

    def _cells(self, said: dict, remote: list, place: str) -> list[Cell]:
        first, size = whole(said, "index", 0, _MOST_CHUNKS), whole(said, "size", 1, 2**16)
        rank, buffer = self.rank, "i"
        if "buffer_id" in said:
            rank, buffer = remote[whole(said, "buffer_id", 0, len(remote) - 1)]
        else:
            buffer = _word(said, "type", ("i", "o", "s"))
        if first + size > self.sizes[rank][buffer]:
            raise NotProved(
                f"{place} uses chunk {first + size - 1} of buffer {buffer!r} of "
                f"{self.sizes[rank][buffer]} of rank {rank}", rank, first + size - 1,
            )  # fmt: skip
        return [self.buffers.cell(rank, buffer, first + i) for i in range(size)]


def prove(fields: dict, asked: Asked) -> Proof:
    """Replay a plan until all blocks have ended."""
    said = _list(fields, "gpus", _MOST_GPUS)
    ranks = len(said)
    if not ranks or not all(isinstance(gpu, dict) for gpu in said):
        raise NotRead('"gpus" must be a list of objects, one per rank')
    named = _word(fields, "collective", tuple(COLLECTIVES))
    kind = asked.agreed(COLLECTIVES[named], ranks)
    protocol, inside = _word(fields, "protocol", ("Simple", "LL")), fields.get("inplace")
    if not isinstance(inside, bool) or not isinstance(fields.get("name"), str):
        raise NotRead('"inplace" must be true or false, and "name" a text')
    if "inputChunks" in said[0]:
        raise NotRead("a plan of MSCCL++ 0.7 or older (inputChunks), which 0.8 cannot read")
    least, most = {"all_gather": ("output", ranks), "reduce_scatter": ("input", ranks)}.get(
        kind, ("input", 1))  # fmt: skip
    chunks = whole(said[0], f"{least}_chunks", 1, _MOST_CHUNKS)
    if any(gpu.get(f"{least}_chunks") != chunks for gpu in said) or chunks % most:
        raise NotRead(f"all gpus must have as many {least}_chunks, a multiple of {most}")
    buffers = Buffers(kind, ranks, chunks, inside, asked.root)
    sizes = [{name[0]: whole(gpu, f"{name}_chunks", 0, _MOST_CHUNKS)
              for name in ("input", "output", "scratch")} for gpu in said]  # fmt: skip
    gpus = [_Gpu(gpu, rank, sizes, buffers) for rank, gpu in enumerate(said)]
    run = _Run(gpus, buffers)
    run.to_end()
    return Proof("MSCCL++ plan", kind, ranks, chunks, run.moved, (
        "complete, each contribution once", "every signal has its wait, and nothing stops",
        "uses of a chunk are ordered, over all ranks", f"read by MSCCL++ 0.8 and later: {protocol}",
    ))  # fmt: skip


class _Run:
    def __init__(self, gpus: list[_Gpu], buffers: Buffers):
        self.gpus, self.buffers, self.moved = gpus, buffers, 0
        self.threads = [ops for gpu in gpus for ops in gpu.blocks]
        self.rank = [gpu.rank for gpu in gpus for _ in gpu.blocks]
        self.order = Order([f"block {b} of rank {gpu.rank}"
                            for gpu in gpus for b in range(len(gpu.blocks))])  # fmt: skip
        self.at = [0] * len(self.threads)
        self.signals: defaultdict[tuple, deque[Clock | None]] = defaultdict(deque)
        self.packets: dict[Cell, Clock] = {}
        self.arrived: defaultdict[tuple, list[int]] = defaultdict(list)  # blocks at a barrier
        for gpu in gpus:
            for number, value in enumerate(gpu.semaphores):
                self.signals["sem", gpu.rank, number].extend([None] * value)

    def to_end(self) -> None:
        """Run blocks in turn as far as each gets, until all have ended or none goes on."""
        going, goes_on = list(range(len(self.threads))), True
        while going and goes_on:
            goes_on = False
            for thread in going:
                while self.at[thread] < len(self.threads[thread]) and self._advance(thread):
                    goes_on = True
            going = [t for t in going if self.at[t] < len(self.threads[t])]
        if going:
            op = self.threads[going[0]][self.at[going[0]]]
            raise NotProved(f"stops: {op.place}, {op.name}, waits for ever", self.rank[going[0]])
        left = next((key for key, queue in self.signals.items() if queue and key[0] != "sem"), None)
        if left is not None:
            raise NotProved(f"nothing waits for a signal from rank {left[1]} to rank {left[2]}: "
                            "the next run is off by one", left[2])  # fmt: skip
        self._check_arrived()
        self.buffers.check_end()

    def _check_arrived(self) -> None:
        """No rank ends before it knows of all that others have put into its buffers."""
        ends: dict[int, Clock] = {}
        for thread, rank in enumerate(self.rank):
            now = self.order.now(thread)
            ends[rank] = tuple(map(max, ends.get(rank, now), now))
        for (rank, buffer, at), (writer, count) in self.order.written.items():
            if buffer != "s" and ends[rank][writer] < count:
                text = f"rank {rank} may end before chunk {at} of buffer {buffer!r} has arrived"
                raise NotProved(text, rank, at)

    def _awaited(self, op: Op, thread: int) -> list[tuple]:
        """The queues of which an operation takes a signal each."""
        if op.name in ("wait", "rlxwait"):
            return [(kind, peer, me, which) for kind, me, peer, which in op.channels]
        if op.name == "sem_acquire":
            return [("sem", self.rank[thread], number) for number in op.numbers]
        return []

    def _advance(self, thread: int) -> bool:
        """Run the next operation of a block, if it can."""
        op, order = self.threads[thread][self.at[thread]], self.order
        queues = self._awaited(op, thread)
        if not all(len(self.signals[key]) >= queues.count(key) for key in queues):
            return False
        packed = (cells for cells, packed in self._sources(op) if packed)
        if not all(cell in self.packets for cells in packed for cell in cells):
            return False
        if op.name == "barrier" and not self._meets(op, thread):
            return False
        order.done[thread] += 1
        for key in queues:
            seen = self.signals[key].popleft()
            if seen is not None and op.name != "rlxwait":
                order.join(thread, seen)
        if op.name in _MOVES:
            self._move(op, thread)
        clock = None if op.name == "rlxsignal" else order.now(thread)
        if op.name in ("signal", "rlxsignal", "pws", "pwsf"):
            for channel in op.channels:
                self.signals[channel].append(clock)
        if op.name == "sem_release":
            for number in op.numbers:
                self.signals["sem", self.rank[thread], number].append(clock)
        self.at[thread] += 1
        return True

    def _meets(self, op: Op, thread: int) -> bool:
        """Whether all blocks of a barrier have come; the last one brings the others on."""
        here = self.arrived[self.rank[thread], op.numbers[0]]
        if thread not in here:
            here.append(thread)
        if len(here) < op.numbers[1]:
            return False
        clocks = [self.order.now(each) for each in here]
        for each in here:
            for clock in clocks:
                self.order.join(each, clock)
            if each != thread:
                self.at[each] += 1
        here.clear()
        return True

    def _sources(self, op: Op) -> Iterator[tuple[list[Cell], bool]]:
        """Sources, and whether each is read as packets: all, or all but the first of a sum."""
        sums = op.name in _SUMS
        for i, cells in enumerate(op.src):
            yield cells, op.name in _READ_PACKETS and (i > 0 or not sums)

    def _read(self, thread: int, cell: Cell, packed: bool) -> Value:
        if packed:
            self.order.join(thread, self.packets[cell])
        self.order.use(thread, cell, writes=False)
        self.moved += cell[0] != self.rank[thread]
        return self.buffers.read(cell)

    def _move(self, op: Op, thread: int) -> None:
        rank, wide = self.rank[thread], len(op.src[0])
        if any(len(cells) != wide for cells in (*op.src, *op.dst)):
            raise NotProved(f"{op.place}: sources and targets are not equally long", rank)
        sums = op.name in _SUMS
        for i in range(wide):
            values = [self._read(thread, cells[i], packed) for cells, packed in self._sources(op)]
            if sums:
                total = values[0]
                for value in values[1:]:
                    total = summed(total, value, rank)
                values = [total]
            if len(values) not in (1, len(op.dst)):
                raise NotProved(
                    f"{op.place}: {len(values)} sources for {len(op.dst)} targets", rank
                )
            for j, cells in enumerate(op.dst):
                packed = op.name in _WRITE_PACKETS and (j > 0 or op.name not in _SUMS)
                self._write(thread, cells[i], values[j % len(values)], packed, op)

    def _write(self, thread: int, cell: Cell, value: Value, packed: bool, op: Op) -> None:
        if packed and cell in self.packets:
            raise NotProved(f"{op.place} writes a packet's slot twice", cell[0], cell[2])
        self.order.use(thread, cell, writes=True)
        self.buffers.held[cell] = value
        self.moved += cell[0] != self.rank[thread]
        if packed:
            self.packets[cell] = self.order.now(thread)
