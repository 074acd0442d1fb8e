"""A machine that runs plans of MSCCL++ thread by thread, in any order.

Written from the kernel's source (1f5f065d) and shares nothing with the prover. A chunk is a few
elements of two halves; a thread of a block moves elements t, t + T, t + 2 T of an operation, halves
where they are packets. Threads wait at ``nop`` for each other, and thread i alone at the i-th
channel. A rank's writes to other ranks stand in a buffer until a release lets them out, or chance
does. A proxy per port channel does what was pushed, a put half by half, and a signal or flush after
the puts before it. Ranks begin their runs each when their last has ended, and between them the
caller takes the outputs and fills the inputs.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

THREADS, ELEMENTS = 3, 4
KINDS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
_PACKETS = ("ppkt", "rppkt", "cpkt", "upkt", "repkt", "respkt", "recpkt", "recspkt")

Address = tuple[int, str, int]  # rank, buffer, half element


class Next(NamedTuple):
    """The next action of a thread: its condition, and the address that it reads or writes."""

    may: Callable[[], bool]
    at: Address | None = None
    writes: bool = False


Step = Iterator[Next]
NOW = Next(lambda: True)


class Wrong(Exception):
    """A run that ends with other contents than its collective asks for, or not at all."""


def threads(ops: list[dict]) -> int:
    """Threads of a block: one for each channel of an operation, and one that waits for none."""
    ids = [len(op.get(k, ())) for op in ops for k in ("channel_ids", "semaphore_ids")]
    return max([THREADS, *(1 + count for count in ids)])


class Machine:
    """A plan under way.

    Args:
        runs: how often the caller calls it.
    """

    def __init__(self, text: str, seed: int, runs: int):
        plan = json.loads(text)
        self.gpus, self.runs, self.dice = plan["gpus"], runs, random.Random(seed)
        self.kind, self.inside = KINDS[plan["collective"]], plan["inplace"]
        self.doubled = plan.get("use_double_scratch_buffer", False)
        self.memory: dict[Address, Any] = {}
        self.late: defaultdict[int, list[tuple[Address, Any]]] = defaultdict(list)  # by rank
        self.counts: defaultdict[tuple, int] = defaultdict(int)  # of signals that have arrived
        self.waited: defaultdict[tuple, int] = defaultdict(int)
        self.tokens = {(gpu["id"], n): s["init_value"] for gpu in self.gpus
                       for n, s in enumerate(gpu.get("semaphores", []))}  # fmt: skip
        self.fifo: defaultdict[tuple, deque] = defaultdict(deque)
        self.flushed: defaultdict[tuple, int] = defaultdict(int)
        self.run = [0] * len(self.gpus)
        self.going: dict[tuple, tuple[Step, Next]] = {}
        self.at: defaultdict[tuple, int] = defaultdict(int)  # barriers that a thread has come to
        self.threads = {(rank, number): threads(block["ops"]) for rank, gpu in enumerate(self.gpus)
                        for number, block in enumerate(gpu["threadblocks"])}  # fmt: skip
        self.proxies: dict[tuple, tuple[Step, Next]] = {}

    # ------------------------------------------------------------------ contents

    def address(self, rank: int, buffer: str, half: int) -> Address:
        if not self.inside or buffer not in "io":
            return rank, buffer, half
        share = (
            2 * ELEMENTS * min(self.gpus[rank]["input_chunks"], self.gpus[rank]["output_chunks"])
        )
        if (self.kind, buffer) in (("all_gather", "i"), ("reduce_scatter", "o")):
            half += rank * share
        return rank, "b", half

    def fill(self, rank: int) -> None:
        """The caller makes the inputs of a run; of the rest of its buffers anything."""
        run = self.run[rank] + 1
        for buffer in ("output", "input"):
            for half in range(2 * ELEMENTS * self.gpus[rank][f"{buffer}_chunks"]):
                at = self.address(rank, buffer[0], half)
                self.memory[at] = ("nothing",)
                if buffer == "input":
                    whole = half if self.kind != "all_gather" else (
                        half + rank * 2 * ELEMENTS * self.gpus[rank]["input_chunks"])  # fmt: skip
                    part = frozenset([rank]) if self.kind != "all_gather" else frozenset()
                    self.memory[at] = (run, whole, part)

    def check(self, rank: int) -> None:
        """The caller takes the outputs."""
        every = frozenset(range(len(self.gpus))) if self.kind != "all_gather" else frozenset()
        for half in range(2 * ELEMENTS * self.gpus[rank]["output_chunks"]):
            whole = half if self.kind != "reduce_scatter" else (
                half + rank * 2 * ELEMENTS * self.gpus[rank]["output_chunks"])  # fmt: skip
            found = self.memory.get(self.address(rank, "o", half))
            if found != (self.run[rank], whole, every):
                raise Wrong(f"rank {rank}, half {half} of run {self.run[rank]}: {found}")

    @staticmethod
    def sum(a: Any, b: Any) -> Any:
        if not a or not b or not len(a) == len(b) == 3 or a[:2] != b[:2] or a[2] & b[2]:
            return ("a wrong sum",)
        return (*a[:2], a[2] | b[2])

    def read(self, rank: int, at: Address) -> Any:
        """A rank sees its own writes at once."""
        for place, value in reversed(self.late[rank]):
            if place == at:
                return value
        return self.memory.get(at)

    def write(self, rank: int, at: Address, value: Any) -> None:
        if at[0] == rank:
            self.memory[at] = value
        else:
            self.late[rank].append((at, value))

    def release(self, rank: int) -> None:
        """All that a rank has written before is seen by all."""
        for at, value in self.late.pop(rank, []):
            self.memory[at] = value

    # ------------------------------------------------------------------ threads

    def scratch(self, rank: int, remote: bool = False) -> int:
        """Where the scratch of the present run begins; not known of other ranks but for packets."""
        return (self.run[rank] % 2) * 10**6 if self.doubled and not remote else 0

    def thread(self, rank: int, number: int, t: int) -> Step:
        """What one thread of a block does in one run."""
        block = self.gpus[rank]["threadblocks"][number]
        for op in block["ops"]:
            name, ids = op["name"], op.get("channel_ids", [])
            port = op.get("channel_type") == "port"
            if name in ("nop", "barrier"):
                yield from self.barrier(rank, number, op, t)
            elif name in ("signal", "rlxsignal", "wait", "rlxwait", "flush"):
                if t < len(ids):
                    yield from self.meet(rank, block, name, ids[t], port)
            elif name.startswith("sem"):
                if t < len(op["semaphore_ids"]):
                    yield from self.semaphore(rank, name, op["semaphore_ids"][t])
            elif port and name == "rppkt":
                yield from self.move(rank, block, {**op, "dst_buff": []}, t)
                yield from self.barrier(rank, number, {"name": "nop"}, t)
                yield from self.push(rank, block, op, t)
            elif port and name in ("put", "pws", "pwsf", "ppkt"):
                yield from self.push(rank, block, op, t)
            else:
                yield from self.move(rank, block, op, t)

    def barrier(self, rank: int, number: int, op: dict, t: int) -> Step:
        """``nop``; a ``barrier`` is one, a meeting of the first threads of blocks, and another."""
        for stage in range(1 + 2 * (op["name"] == "barrier" and op["num_threadblocks"] > 1)):
            if stage == 1:
                if t == 0:
                    key = (rank, "sync", op["barrier_id"])
                    self.counts[key] += 1
                    turn = -(-self.counts[key] // op["num_threadblocks"]) * op["num_threadblocks"]
                    yield Next(lambda key=key, turn=turn: self.counts[key] >= turn)
                continue
            here = (rank, number, t)
            self.at[here] += 1
            come = (rank, number, "come to", self.at[here])
            self.at[come] += 1
            yield Next(lambda come=come: self.at[come] == self.threads[come[:2]])

    def channel(self, rank: int, block: dict, place: int, port: bool) -> tuple:
        """(port, from, to, which) of a block's channel."""
        kind = "port" if port else "memory"
        of_block = [i for c in block["channels"] if c["channel_type"] == kind
                    for i in c["channel_ids"]]  # fmt: skip
        peers = [p for c in self.gpus[rank]["channels"] if c["channel_type"] == kind
                 for p in c["connected_to"]]  # fmt: skip
        at = of_block[place]
        return port, rank, peers[at], peers[:at].count(peers[at])

    def meet(self, rank: int, block: dict, name: str, place: int, port: bool) -> Step:
        yield NOW
        channel = self.channel(rank, block, place, port)
        if name in ("signal", "rlxsignal"):
            if port:
                self.signal_by_proxy(rank, channel)
            else:
                if name == "signal":
                    self.release(rank)
                self.counts[channel] += 1
        elif name in ("wait", "rlxwait"):
            back = (port, channel[2], rank, channel[3])
            yield Next(NOW.may, (rank, str(back), 0), True)  # no atomic operation
            self.waited[back] = awaited = self.waited[back] + 1
            yield Next(lambda: self.counts[back] >= awaited)
        else:
            yield from self.flush(channel)

    def signal_by_proxy(self, rank: int, channel: tuple) -> None:
        """A relaxed signal of a port releases too: a push into the queue of a proxy is a store with
        release for the whole system (fifo_device.hpp), and who sees the proxy's count comes after.
        """
        self.release(rank)
        self.fifo[channel].append(("signal",))

    def flush(self, channel: tuple) -> Step:
        self.counts["flush", channel] += 1
        mine = self.counts["flush", channel]
        self.fifo[channel].append(("flush", mine))
        yield Next(lambda: self.flushed[channel] >= mine)

    def semaphore(self, rank: int, name: str, number: int) -> Step:
        yield NOW
        key = (rank, number)
        if name == "sem_acquire":
            yield Next(lambda: self.tokens[key] > 0)
            self.tokens[key] -= 1
        else:
            self.tokens[key] += 1

    def base(self, rank: int, block: dict, end: dict, port: bool, packed: bool) -> Address:
        """Rank, buffer and first half of a source or target."""
        first = 2 * ELEMENTS * end["index"]
        if "buffer_id" not in end:
            buffer = "p" if packed else end["type"]
            return rank, buffer, first + (self.scratch(rank) if buffer in "sp" else 0)
        kind = "port" if port else "memory"
        ids = [i for r in block["remote_buffer_refs"] if r["access_channel_type"] == kind
               for i in r["remote_buffer_ids"]]  # fmt: skip
        there = self.gpus[rank]["remote_buffers"][ids[end["buffer_id"]]]
        buffer = "p" if packed else there["type"]
        return (
            there["rank"],
            buffer,
            first + (self.scratch(rank, not packed) if buffer in "sp" else 0),
        )

    def move(self, rank: int, block: dict, op: dict, t: int) -> Step:
        """A thread's part of an operation that all threads share."""
        name, srcs, dsts = op["name"], op["src_buff"], op["dst_buff"]
        pairs = [(srcs, dsts)]
        if name in ("put", "pws", "pwsf", "ppkt", "get"):
            firsts = [{**s, "type": srcs[0]["type"]} if "type" in s else s for s in srcs]
            pairs = [([s], [d]) for s, d in zip(firsts, dsts, strict=True)]
            if name == "get":
                pairs = [([{**s[0], "index": d[0]["index"]}], [{**d[0], "index": s[0]["index"]}])
                         for s, d in pairs]  # fmt: skip
        width = 1 if name in _PACKETS else 2
        count = self.threads[rank, block["id"]]
        for sources, targets in pairs:
            ins = [(end, name in ("upkt", "rppkt") or (name in _PACKETS[4:] and i > 0))
                   for i, end in enumerate(sources)]  # fmt: skip
            outs = [(end, name in ("ppkt", "rppkt", "cpkt") or (name in _PACKETS[4:] and i > 0))
                    for i, end in enumerate(targets)]  # fmt: skip
            halves = 2 * ELEMENTS * sources[0]["size"]
            for unit in range(t, halves // width, count):
                for half in range(unit * width, unit * width + width):
                    values = []
                    for end, packed in ins:
                        at = self.base(rank, block, end, False, packed)
                        place = self.moved(at, half, packed)
                        if packed:
                            yield Next(lambda p=place: self.has_packet(rank, p))
                            values.append(self.memory[place][1])
                        else:
                            yield Next(NOW.may, place)
                            values.append(self.read(rank, place))
                    total = values[0]
                    for value in values[1:]:
                        total = self.sum(total, value)
                    for end, packed in outs:
                        at = self.base(rank, block, end, False, packed)
                        place = self.moved(at, half, packed)
                        yield Next(NOW.may, place, True)
                        self.write(rank, place, (self.run[rank], total) if packed else total)

    def moved(self, at: Address, half: int, packed: bool) -> Address:
        """A half element of a source or target."""
        rank, buffer, first = at
        return (rank, buffer, first + half) if packed else self.address(rank, buffer, first + half)

    def has_packet(self, rank: int, place: Address) -> bool:
        found = self.memory.get(place)
        return found is not None and found[0] == self.run[rank]

    def push(self, rank: int, block: dict, op: dict, t: int) -> Step:
        """Thread i gives the i-th target of a put to the proxy of its channel."""
        yield NOW
        name, dsts = op["name"], op["dst_buff"]
        if t >= len(dsts):
            return
        packed = name in ("ppkt", "rppkt")
        source = op["src_buff"][0 if name == "rppkt" else t]
        channel = self.channel(rank, block, op["channel_ids"][t], True)
        a = self.base(rank, block, source, True, packed)
        b = self.base(rank, block, dsts[t], True, packed)
        moves = []
        for half in range(2 * ELEMENTS * source["size"]):
            moves.append((self.moved(a, half, packed), self.moved(b, half, packed)))
        self.fifo[channel].append(("put", moves))
        if name in ("pws", "pwsf"):
            self.signal_by_proxy(rank, channel)
        if name == "pwsf":
            yield from self.flush(channel)

    def proxy(self, channel: tuple) -> Step:
        """The work of the proxy of a port channel, without end."""
        while True:
            yield Next(lambda: bool(self.fifo[channel]))
            what, *said = self.fifo[channel].popleft()
            if what == "put":
                for a, b in self.dice.sample(said[0], len(said[0])):
                    yield Next(NOW.may, a)
                    value = self.memory.get(a)
                    yield Next(NOW.may, b, True)
                    self.memory[b] = value
            elif what == "signal":
                self.counts[channel] += 1
            else:
                self.flushed[channel] = said[0]

    # ------------------------------------------------------------------ runs

    def begin(self, rank: int) -> None:
        self.fill(rank)
        self.run[rank] += 1
        for number in range(len(self.gpus[rank]["threadblocks"])):
            for t in range(self.threads[rank, number]):
                self.step((rank, number, t), self.thread(rank, number, t), self.going)
        if not any(key[0] == rank for key in self.going):
            self.end(rank)

    def step(self, key: tuple, thread: Step, where: dict) -> None:
        """Run a thread to the next thing that it waits for.

        Raises:
            Wrong: the action could as well come after that of another one.
        """
        doing = where[key][1] if key in where else NOW
        if doing.at is not None:
            here = doing.at
            for others in (self.going, self.proxies):
                for other, (_, next_) in others.items():
                    if next_.at != here or other == key:
                        continue
                    if (doing.writes or next_.writes) and next_.may():
                        raise Wrong(f"{key} and {other} use {here} in any order")
            me = key[1] if key[0] is True else key[0]
            for rank, writes in self.late.items():
                if rank != me and any(at == here for at, _ in writes):
                    raise Wrong(f"{key} uses {here}, which has not arrived")
        try:
            where[key] = thread, next(thread)
        except StopIteration:
            where.pop(key, None)

    def to_end(self) -> None:
        """Run all that there is in any order.

        Raises:
            Wrong: the first output that is, or threads that wait for ever.
        """
        for rank in range(len(self.gpus)):
            self.begin(rank)
        # What falls behind: a rank, its proxies, all proxies, or a thread of every block.
        rank, t = self.dice.randrange(len(self.gpus)), self.dice.randrange(THREADS)
        is_slow = self.dice.choice((
            lambda key: key[0] is not True and key[0] == rank,
            lambda key: key[0] is True and key[1] == rank, lambda key: key[0] is True,
            lambda key: key[0] is not True and key[-1] == t, lambda key: False,
        ))  # fmt: skip
        late = self.dice.choice((0.5, 0.9, 1))
        while self.going:
            for channel in [c for c in self.fifo if c not in self.proxies]:
                self.step(channel, self.proxy(channel), self.proxies)
            ready = [(key, where) for where in (self.going, self.proxies)
                     for key, (_, next_) in where.items() if next_.may()]  # fmt: skip
            if not ready and any(self.late.values()):
                for rank in list(self.late):
                    self.release(rank)
                continue
            if not ready:
                raise Wrong(f"stops in runs {self.run}")
            if self.dice.random() < late:
                ready = [each for each in ready if not is_slow(each[0])] or ready
            key, where = self.dice.choice(ready)
            for _ in range(self.dice.choice((1, 1, 4, 30))):  # a while at one of them
                self.step(key, where[key][0], where)
                if key not in where or not where[key][1].may():
                    break
            for rank in [r for r in self.late if self.dice.random() < 0.02]:
                self.release(rank)
            if where is self.going and not any(k[0] == key[0] for k in self.going):
                self.end(key[0])

    def end(self, rank: int) -> None:
        """All threads of a rank have ended, and with them what they wrote is seen.

        Raises:
            Wrong: another rank or a proxy may still use what is the caller's now.
        """
        self.release(rank)
        self.check(rank)
        uses = [at for writes in self.late.values() for at, _ in writes]
        uses += [next_.at for where in (self.going, self.proxies)
                 for _, next_ in where.values() if next_.may()]  # fmt: skip
        uses += [at for pushed in self.fifo.values() for what, *said in pushed
                 if what == "put" for move in said[0] for at in move]  # fmt: skip
        for at in uses:
            if at is not None and at[0] == rank and at[1] in ("b", "i", "o"):
                raise Wrong(f"rank {rank} ends while {at} is used")
        if self.run[rank] < self.runs:
            self.begin(rank)


def fault(text: str, seeds: int, runs: int = 2) -> str:
    """What goes wrong in some order of a plan's threads; nothing where none was found."""
    for seed in range(seeds):
        machine = Machine(text, seed, runs)
        start = dict(machine.tokens)
        try:
            machine.to_end()
        except Wrong as error:
            return f"seed {seed}: {error}"
        pushed = [c for c, said in machine.fifo.items() for each in said if each[0] == "signal"]
        sent = {c: n + pushed.count(c) for c, n in machine.counts.items() if isinstance(c[0], bool)}
        if {c: n for c, n in sent.items() if n} != {c: n for c, n in machine.waited.items() if n}:
            return "a signal is left over"
        if machine.tokens != start:
            return "a semaphore ends elsewhere than it began"
    return ""
