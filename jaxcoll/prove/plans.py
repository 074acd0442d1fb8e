"""Execution plans of MSCCL++ 0.8 and later, every thread block run as its kernel runs it.

There are no queues: a ``put`` writes another rank's memory at once, and blocks meet in channels
(the n-th wait meets the n-th signal), semaphores, barriers and packets (data with a flag, read
after it has arrived). Channels and semaphores count across runs, so at the end of a run each must
be at its first value again. ``plan_order`` knows which threads run independently. Uses without an
order are refused, so that one order of the replay gives the result of all orders. A plan runs
twice, and three times if two scratch buffers take turns, because leftovers of a run may not harm
the next one.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator

from jaxcoll.prove.answers import Asked, NotProved, NotRead, Proof
from jaxcoll.prove.contents import Buffers, Cell, Value, summed
from jaxcoll.prove.fields import integer, whole
from jaxcoll.prove.kinds import KINDS, named_in
from jaxcoll.prove.plan_file import (
    MOST_CHUNKS,
    MOST_GPUS,
    PUTS,
    End,
    Gpu,
    Layout,
    Op,
    cut_of,
    listed,
    word,
)
from jaxcoll.prove.plan_order import Clock, Lane, PlanOrder

COLLECTIVES = named_in("plan")
_MOST_CELLS = 2**20  # of plans whose chunks are cut
_ROUNDS = (1, 2, 3)  # numbers of rounds of pipelines; the real number depends on the message
_GIVING, _WAITS = ("signal", "rlxsignal", "pws", "pwsf"), ("wait", "rlxwait")


def prove(fields: dict, asked: Asked) -> Proof:
    """Replay a plan until all blocks have ended, and then again."""
    said = listed(fields, "gpus", MOST_GPUS)
    ranks = len(said)
    if not ranks or not all(isinstance(gpu, dict) for gpu in said):
        raise NotRead('"gpus" must be a list of objects, one per rank')
    named = word(fields, "collective", tuple(COLLECTIVES))
    kind = asked.agreed(COLLECTIVES[named], ranks)
    protocol, inside = word(fields, "protocol", ("Simple", "LL")), fields.get("inplace")
    if not isinstance(inside, bool) or not isinstance(fields.get("name"), str):
        raise NotRead('"inplace" must be true or false, and "name" a text')
    if "inputChunks" in said[0]:
        raise NotRead("a plan of MSCCL++ 0.7 or older (inputChunks), which 0.8 cannot read")
    sizes = [{name[0]: whole(gpu, f"{name}_chunks", 0, MOST_CHUNKS)
              for name in ("input", "output", "scratch")} for gpu in said]  # fmt: skip
    row = KINDS[kind]
    # The buffer that is whole, and its length relative to the other one.
    least = "output" if row.takes_shard else "input"
    most = ranks if row.takes_shard or row.gives_shard else 1
    chunks = whole(said[0], f"{least}_chunks", 1, MOST_CHUNKS)
    if any(size[least[0]] != chunks for size in sizes) or chunks % most:
        raise NotRead(f"all gpus must have as many {least}_chunks, a multiple of {most}")
    other = "i" if least == "output" else "o"
    if any(size[other] * most != chunks for size in sizes):
        raise NotRead(f"a chunk of input and one of output must be as long: {chunks} of {least} "
                      f"are {chunks // most} of the other")  # fmt: skip
    doubled = _checked(fields, sizes)
    threads = integer(1, 1024)(fields.get("num_threads_per_block", 1024), "num_threads_per_block")
    cut, pipelined = cut_of(said)
    moved = 0
    for rounds in _ROUNDS if pipelined else (1,):
        parts = cut * rounds
        if parts > 1 and parts * ranks * max(max(size.values()) for size in sizes) > _MOST_CELLS:
            raise NotRead(f"chunks cut in {parts} parts are more than the {_MOST_CELLS} cells that "
                          "are replayed")  # fmt: skip
        buffers = Buffers(kind, ranks, chunks * parts, inside, asked.roots)
        cells = [{name: count * parts for name, count in size.items()} for size in sizes]
        layout = Layout(cells, buffers, protocol == "LL", doubled, threads, parts, rounds)
        moved = _replayed(said, layout) // parts
    shown = ["complete, each contribution once", "every signal has its wait, and nothing stops",
             "uses of a chunk are ordered, over all ranks and threads, and of one run after "
             "another",
             f"read by MSCCL++ 0.8 and later: {protocol}"]  # fmt: skip
    if pipelined:
        shown.append(f"pipelines of {', '.join(map(str, _ROUNDS))} rounds are replayed")
    return Proof("MSCCL++ plan", kind, ranks, chunks, moved, tuple(shown))


def _replayed(said: list, layout: Layout) -> int:
    """The number of messages of a run; all of them are proved."""
    try:
        run = _Run([Gpu(gpu, rank, layout) for rank, gpu in enumerate(said)], layout)
        for _ in range(3 if layout.doubled else 2):
            run.to_end()
    except NotProved as error:
        if layout.parts == 1:
            raise
        chunk = None if error.chunk is None else error.chunk // layout.parts
        raise NotProved(f"{error} (chunks are counted in {layout.parts} parts each)", error.rank,
                        chunk) from None  # fmt: skip
    return run.moved


def _checked(fields: dict, sizes: list[dict[str, int]]) -> bool:
    """Whether there are two scratch buffers; chunks are checked to be aligned and fit scratch."""
    doubled, reuses = (fields.get(key, False) for key in
                       ("use_double_scratch_buffer", "reuse_resources"))  # fmt: skip
    if not isinstance(doubled, bool) or not isinstance(reuses, bool):
        raise NotRead('"use_double_scratch_buffer" and "reuse_resources" must be true or false')
    aligned = integer(1, 2**20)(fields.get("buffer_alignment", 16), "buffer_alignment")
    if aligned % 16:
        raise NotProved(f"the kernel moves 16 bytes at a time, and chunks begin at any {aligned}")
    most = 2**64 - 1
    longest = integer(0, most)(fields.get("max_message_size", most), "max_message_size")
    for rank, size in enumerate(sizes):
        room = 2**26 // (1 + doubled) // max(1, size["s"])  # in the scratch that plans share
        if reuses and size["s"] and longest > room * max(size["i"], size["o"]):
            raise NotProved(f"chunks of a message of {longest} bytes overlap in the shared scratch "
                            f"of rank {rank}", rank)  # fmt: skip
    return doubled


class _Semaphore:
    """A counter between the blocks of a rank."""

    def __init__(self, value: int):
        self.value = value
        self.gives = 0  # tokens given in a run
        self.takes: Counter[int] = Counter()
        self.restart()

    def restart(self) -> None:
        """Forget a run, all of whose blocks have ended before the next one."""
        self.given: list[Clock] = []
        self.taken: Counter[int] = Counter()
        self.in_turn = True  # whether the order in which tokens were given is certain

    def has(self, block: int) -> bool:
        """Whether a block finds a token for any number that the others have taken by then."""
        others = self.takes.total() - self.takes[block]
        return self.value + len(self.given) > self.taken[block] + others

    def take(self, block: int) -> list[Clock]:
        """The clocks of those that have certainly given, before a block continues."""
        self.taken[block] += 1
        least = max(0, self.taken[block] - self.value)
        return self.given[:least] if self.in_turn or least == self.gives else []


Stage = tuple[Op, list[deque[tuple[Op, int]]]]


def _stages(ops: list[Op]) -> Iterator[Stage]:
    """Moves and barriers one by one; between them, the work of each thread at channels in order."""
    threads: list[deque[tuple[Op, int]]] = []
    for op in ops:
        puts = op.on_port and bool(op.dst)
        if puts and op.name == "rppkt":
            yield op._replace(dst=[]), []
            yield Op("nop", [], [], [], [], op.place), []
        if not puts and (op.src or op.name in ("nop", "barrier")):
            if threads:
                yield op, threads
                threads = []
            yield op, []
            continue
        for i in range(len(op.dst) if puts else len(op.channels) + len(op.numbers)):
            threads += [] if i < len(threads) else [deque()]
            threads[i].append((op, i))
    if threads:
        yield ops[-1], threads


class _Run:
    """A plan that is running."""

    def __init__(self, gpus: list[Gpu], layout: Layout):
        self.layout, self.buffers, self.moved, self.number = layout, layout.buffers, 0, 0
        self.ops = [ops for gpu in gpus for ops in gpu.blocks]
        self.rank = [gpu.rank for gpu in gpus for _ in gpu.blocks]
        names = [f"block {b} of rank {gpu.rank}" for gpu in gpus for b in range(len(gpu.blocks))]
        used = {c for ops in self.ops for op in ops for c in op.channels if c[0] == "port"}
        self.port = {channel: len(names) + i for i, channel in enumerate(sorted(used))}
        self.order = PlanOrder(len(gpus), self.rank, names, len(used))
        self.signals: defaultdict[tuple, deque[tuple[Clock, bool]]] = defaultdict(deque)
        # For each channel, the threads that signal in every phase of a block: if there are several,
        # it is not known which signal came first.
        self.signalling: defaultdict[tuple, dict[tuple[int, int], set[int]]] = defaultdict(dict)
        for block, ops in enumerate(self.ops):
            phase = 0
            for op in ops:
                phase += op.name in ("nop", "barrier") or (op.name == "rppkt" and op.on_port)
                for i in range(len(op.channels)) if op.name in _GIVING else ():
                    at = self.signalling[op.channels[i]].setdefault((block, phase), set())
                    at.add(i)
        self.semaphores = {(gpu.rank, number): _Semaphore(value) for gpu in gpus
                           for number, value in enumerate(gpu.semaphores)}  # fmt: skip
        for block, op in ((block, op) for block, ops in enumerate(self.ops) for op in ops):
            for number in op.numbers if op.name.startswith("sem") else ():
                semaphore = self.semaphores[self.rank[block], number]
                semaphore.gives += op.name == "sem_release"
                semaphore.takes[block] += op.name == "sem_acquire"
        self._check_scratch()

    def _check_scratch(self) -> None:
        """Packets of chunk k are at the place of chunks 2 k and 2 k + 1."""
        ends = [end for ops in self.ops for op in ops for end in (*op.src, *op.dst)]
        plain = {(rank, at) for end in ends for rank, buffer, at in end.cells if buffer == "s"}
        for rank, buffer, at in (cell for end in ends for cell in end.cells):
            if buffer == "p" and {(rank, 2 * at), (rank, 2 * at + 1)} & plain:
                raise NotProved(f"packets of chunk {at} overlap other chunks in scratch of rank "
                                f"{rank}", rank, at)  # fmt: skip

    def to_end(self) -> None:
        """Run blocks in turn as far as possible, until all have ended or none can continue."""
        self.number += 1
        ranks = range(len(self.layout.sizes))
        for rank in ranks:
            self.order.begin(rank)
        for semaphore in self.semaphores.values():
            semaphore.restart()
        self.packets: dict[Cell, Clock] = {}
        self.arrived: defaultdict[tuple, list[int]] = defaultdict(list)  # blocks at a barrier
        self.left = [deque(_stages(ops)) for ops in self.ops]
        going, goes_on = list(range(len(self.ops))), True
        while going and goes_on:
            goes_on = False
            for block in going:
                while self.left[block] and self._advance(block):
                    goes_on = True
            going = [block for block in going if self.left[block]]
        if going:
            self._explain_stop(going)
        left = next((channel for channel, queue in self.signals.items() if queue), None)
        if left is not None:
            raise NotProved(f"nothing waits for a signal from rank {left[1]} to rank {left[2]}: "
                            "the next run is off by one", left[2])  # fmt: skip
        for (rank, number), semaphore in self.semaphores.items():
            if semaphore.gives != semaphore.takes.total():
                raise NotProved(f"semaphore {number} of rank {rank} is given {semaphore.gives} "
                                f"times and taken {semaphore.takes.total()} times: the next run is "
                                "off by the difference", rank)  # fmt: skip
        for rank in ranks:
            self.order.end(rank)
        if self.number == 1:
            self.buffers.check_end()

    def _explain_stop(self, going: list[int]) -> None:
        for block in going:
            op, threads = self.left[block][0]
            for op, i in (queue[0] for queue in threads if queue):
                if op.name == "sem_acquire":
                    semaphore = self.semaphores[self.rank[block], op.numbers[i]]
                    if semaphore.value + len(semaphore.given) > semaphore.taken.total():
                        raise NotProved(f"{op.place}: several blocks take semaphore "
                                        f"{op.numbers[i]}, and which one goes on is not certain",
                                        self.rank[block])  # fmt: skip
        op, threads = self.left[going[0]][0]
        op = next((queue[0][0] for queue in threads if queue), op)
        raise NotProved(f"stops: {op.place}, {op.name}, waits for ever", self.rank[going[0]])

    def _advance(self, block: int) -> bool:
        """Run something of the next stage of a block, if possible."""
        op, threads = self.left[block][0]
        if threads:
            moved = False
            for queue in threads:
                while queue and self._meets(block, *queue[0]):
                    queue.popleft()
                    moved = True
            if not any(threads):
                self.left[block].popleft()
            return moved
        if op.name in ("nop", "barrier"):
            return self._barrier(block, op)
        if not all(cell in self.packets for end in op.src if end.packed for cell in end.cells):
            return False
        self._move(op, block)
        self.left[block].popleft()
        return True

    def _barrier(self, block: int, op: Op) -> bool:
        """Whether all blocks of a barrier have arrived; the last one releases the others."""
        here = [block]
        if op.name == "barrier" and op.numbers[1] > 1:
            here = self.arrived[self.rank[block], op.numbers[0]]
            if block not in here:
                here.append(block)
            if len(here) < op.numbers[1]:
                return False
        self.order.meet(here)
        for each in here:
            self.left[each].popleft()
        here.clear()
        return True

    def _meets(self, block: int, op: Op, i: int) -> bool:
        """Let thread i of a block do its part at channels or semaphores; False if it cannot."""
        lane, rank, order = ("thread", i), self.rank[block], self.order
        if op.name.startswith("sem"):
            semaphore = self.semaphores[rank, op.numbers[i]]
            if op.name == "sem_release":
                place = (rank, "releases of semaphore", op.numbers[i])
                semaphore.in_turn &= order.ordered(block, lane, place)
                semaphore.given.append(order.knows(block, lane))
            elif not semaphore.has(block):
                return False
            else:
                for clock in semaphore.take(block):
                    order.learn(block, lane, clock)
            return True
        kind, _, peer, which = channel = op.channels[i]
        if op.name in _WAITS:
            queue = self.signals[kind, peer, rank, which]
            if not queue:
                return False
            # Both ends of a channel count without an atomic operation.
            order.use(block, lane, (rank, f"waits for rank {peer} on {kind} channel", which),
                      writes=True)  # fmt: skip
            seen, relaxed = queue.popleft()
            is_relaxed = relaxed or (op.name == "rlxwait" and kind == "memory")
            order.learn(block, lane, seen, relaxed=is_relaxed)
        if op.dst:
            self._put(op, i, block, lane)
        if op.name in _GIVING:
            self._signal(op, channel, block, lane)
        if op.name in ("flush", "pwsf"):
            order.learn(block, lane, order.after_puts(block, lane, self.port[channel]))
        return True

    def _signal(self, op: Op, channel: tuple, block: int, lane: Lane) -> None:
        """Whoever waits knows what all possible signals know, because only the count is visible."""
        phases = self.signalling[channel]
        if max(map(len, phases.values())) > 1:
            lane = None
        clock = self.order.knows(block, lane)
        if channel[0] == "port":
            clock = self.order.after_puts(block, lane, self.port[channel])
        several = len({block for block, _ in phases}) > 1
        relaxed = several or (op.name == "rlxsignal" and channel[0] == "memory")
        self.signals[channel].append((clock, relaxed))

    def _put(self, op: Op, i: int, block: int, lane: Lane) -> None:
        """A put over a port: its proxy reads and writes until it is done."""
        port = self.port[op.channels[i]]
        self.order.push(block, lane, port)
        source = op.src[min(i, len(op.src) - 1)]  # only one for packets that are passed on
        for a, b in zip(source.cells, op.dst[i].cells, strict=True):
            self.order.use_by_proxy(block, lane, port, self._place(a), writes=False)
            value = self._value(a)
            self.order.use_by_proxy(block, lane, port, self._place(b), writes=True)
            self._store(b, value, op.dst[i].packed, self.order.knows(block, lane), op, block)

    def _move(self, op: Op, block: int) -> None:
        """Let every lane of a block move its part: read its sources, then write its targets."""
        packs = any(end.packed for end in (*op.src, *op.dst))
        pairs = [(op.src, op.dst)]
        if op.name in ("get", *PUTS):
            pairs = [([a], [b]) for a, b in zip(op.src, op.dst, strict=True)]
        for sources, targets in pairs:
            for i in range(len(sources[0].cells)):
                lane = ("packets" if packs else "chunks", i)
                values = [self._read(block, lane, end, i) for end in sources]
                value = values[0]
                for other in values[1:]:
                    if value is not None and other is not None:
                        value = summed(value, other, self.rank[block])
                for end in targets:
                    self._write(block, lane, end, i, value, op)

    def _read(self, block: int, lane: Lane, end: End, i: int) -> Value | None:
        cell = end.cells[i]
        if end.packed:  # the reader of a packet has waited for it
            self.order.learn(block, lane, self.packets[cell], relaxed=True)
            self.order.wait_for(block, lane, self._place(cell))
        else:
            self.order.use(block, lane, self._place(cell), writes=False)
        self.moved += (self.number == 1) * (cell[0] != self.rank[block])
        return self._value(cell)

    def _write(self, block: int, lane: Lane, end: End, i: int, value, op: Op) -> None:
        cell = end.cells[i]
        self.order.use(block, lane, self._place(cell), writes=True)
        self._store(cell, value, end.packed, self.order.knows(block, lane), op, block)

    def _place(self, cell: Cell) -> Cell:
        """A cell, of the scratch buffer whose turn it is."""
        rank, buffer, at = cell
        turns = self.layout.doubled and buffer in ("s", "p")
        return (rank, f"{buffer}{self.number % 2}", at) if turns else cell

    def _value(self, cell: Cell) -> Value | None:
        # If all uses are ordered, the contents of one run equal those of every run.
        return self.buffers.read(cell) if self.number == 1 else None

    def _store(self, cell: Cell, value, packed: bool, clock: Clock, op: Op, block: int) -> None:
        if packed and cell in self.packets:
            raise NotProved(f"{op.place} writes a packet's slot twice", cell[0], cell[2])
        if packed:
            self.packets[cell] = clock
        if self.number == 1:
            self.buffers.held[cell] = value
            self.moved += cell[0] != self.rank[block]
