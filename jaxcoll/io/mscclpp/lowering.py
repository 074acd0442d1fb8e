"""MSCCL++ execution plans: schedules as the JSON that executors of version 0.8 and later run.

Every rank of a plan has the same thread blocks, and a block has the same chunks on every rank.
Chunks do not depend on each other, so a block never waits for another block of its rank. Between
ranks of one host, a memory channel serves: copies are put into the other rank's memory, and sums
are read from it. Between hosts, a port channel serves: copies and sums are both put, sums into
scratch. Before anything is put, both ends of every channel signal that they have begun, since until
then the other's buffer may be in use. The threads of a block run independently, and wait for each
other (``nop``) before one uses the result of another.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcoll.errors import FormatError, ScheduleError
from jaxcoll.io.sends import MSCCL_WORDS, Run, check_word, continues, runs
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule

# Limits of the executor: operations in a block, channel ids in an operation, and channels of one
# type in a block.
MOST_OPERATIONS, MOST_IDS, MOST_CHANNELS = 64, 8, 16
MOST_BLOCKS = 108  # multiprocessors of an A100: all blocks must run at the same time
MOST_BYTES = 2**32 - 16  # the executor's offsets have 32 bits

Plan = dict[str, Any]  # the JSON object


def lower(schedule: Schedule, *, name: str = "jaxcoll", ranks_per_host: int | None = None) -> Plan:
    """The in-place plan of a schedule, with the fewest blocks that hold its operations.

    Args:
        schedule: an all_gather, reduce_scatter or all_reduce of all ranks with equal shards.
        name: name of the plan, by which an executor tells plans apart.
        ranks_per_host: number of consecutive ranks on each host; port channels join ranks of
            different hosts. None takes the number from the names of the vertices ("host 1 gpu 0"),
            or all ranks if these do not tell.

    Raises:
        FormatError: the collective is another one or has groups; the ranks do not fill whole hosts;
            a rank has more peers than a block has channels; or more blocks are needed than can run
            at the same time (the text says how many operations a block has then).
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    checks.text(name, "name", FormatError)
    what = schedule.collective
    check_word(what, "MSCCL++ plans")
    ranks = what.num_ranks
    per_host = _per_host(schedule) if ranks_per_host is None else ranks_per_host
    per_host = checks.integer(per_host, "ranks_per_host", FormatError, least=1)
    if ranks % per_host:
        raise FormatError(f"{ranks} ranks are not of hosts of {per_host}; state ranks_per_host")
    return _plan(schedule, name, _blocks(schedule, per_host))


def _blocks(schedule: Schedule, per_host: int) -> list[_Block]:
    """The fewest blocks that hold the operations of their chunks.

    More blocks do not always have fewer operations each, since chunks sent in one message share
    operations. So every number of blocks is tried, from a lower bound: the blocks of a rank never
    have fewer operations together than one block for all chunks would have.

    Raises:
        FormatError: more blocks are needed than can run at the same time.
    """
    chunks = schedule.collective.num_chunks
    most_blocks, counted = min(MOST_BLOCKS, chunks), _Operations(schedule, per_host)
    # Every count is tried, not bisected: operations per block do not fall with every added block.
    least = max(1, -(-counted.most(np.zeros(chunks, np.int64)) // MOST_OPERATIONS))
    for count in range(least, most_blocks + 1):
        for block_of in _ways(chunks, count):
            if counted.most(block_of) <= MOST_OPERATIONS:
                return [
                    _Block(schedule, runs(schedule, counted.continues, block_of == b), per_host)
                    for b in range(count)
                ]
    fewest = min(map(counted.most, _ways(chunks, most_blocks)))
    raise FormatError(
        f"a block has {fewest} operations, MSCCL++ takes at most {MOST_OPERATIONS}, with "
        f"{most_blocks} blocks per rank; take fewer chunks per shard (--for-runtime mscclpp)"
    )


def _ways(chunks: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two ways to assign chunks to blocks: neighbours to one block, or one by one in turn.

    Neighbours are often sent in one operation. In trees, however, the root of a chunk has many
    times the operations of a leaf, and neighbours have the same root, whose block fills up first.
    """
    near = np.repeat(np.arange(count), np.diff(np.arange(count + 1) * chunks // count))
    return near, np.arange(chunks) % count


class _Operations:
    """Counts the operations of a rank's blocks, for any assignment of chunks to blocks.

    It counts, by columns, the operations that ``_Block`` makes, because making them for every
    number of blocks would take minutes.
    """

    def __init__(self, schedule: Schedule, per_host: int):
        edges, self.ranks = schedule.edges, schedule.collective.num_ranks
        known: dict[tuple[int, ...], int] = {}
        paths = [known.setdefault(edges.path(e), e) for e in range(len(edges))]
        self.step = np.asarray(schedule.step, np.int64)
        self.chunk = np.asarray(schedule.chunk, np.int64)
        self.adds = np.asarray(schedule.reduce, bool)
        edge = np.asarray(schedule.edge, np.int64)
        self.src, self.dst = (np.asarray(end, np.int64)[edge] for end in (edges.src, edges.dst))
        self.far = self.src // per_host != self.dst // per_host
        self.closes = schedule.collective.traits.ends_with_shard
        self.continues = continues(schedule, np.asarray(paths, np.int64)[edge])
        # Meetings (rank, step, chunk): places where a rank adds runs that begin at different
        # chunks. Cutting runs into blocks adds no meetings, since a block cuts all runs through a
        # chunk at the same place.
        self.met = np.zeros(0, np.int64)
        if (self.adds & self.continues).any():  # otherwise runs have one chunk, as in most trees
            adding = np.flatnonzero(self.adds)
            columns = (column[adding] for column in (self.dst, self.step, self.chunk))
            *self.meeting, which = _unique(*columns, inverse=True)
            apart = self._beginnings(adding, which, self.continues)[1][which] > 1
            self.met, self.met_at = adding[apart], which[apart]

    def _beginnings(
        self, sends: np.ndarray, meeting: np.ndarray, inside: np.ndarray
    ) -> list[np.ndarray]:
        """The meetings of some sends, and in how many places the runs of each begin."""
        begun = self.chunk[~inside][np.cumsum(~inside)[sends] - 1]
        meeting, _ = _unique(meeting, self.chunk[sends] - begun)
        return _unique(meeting, counts=True)

    def most(self, block_of: np.ndarray) -> int:
        """The number of operations of the fullest block of any rank."""
        block = block_of[self.chunk]
        inside = self.continues.copy()
        inside[1:] &= block[1:] == block[:-1]
        runs = np.flatnonzero(~inside)
        step, src, dst, far, adds = (
            each[runs] for each in (self.step, self.src, self.dst, self.far, self.adds)
        )
        sender, receiver = (block[runs] * self.ranks + rank for rank in (src, dst))
        cells = int(block_of.max() + 1) * self.ranks
        total = np.zeros(cells, np.int64)

        def each(cell: np.ndarray) -> None:
            total[:] += np.bincount(cell, minlength=cells)

        def once_a_step(cell: np.ndarray, chosen: np.ndarray) -> None:
            each(_unique(cell[chosen], step[chosen])[0])

        def meets(cell: np.ndarray, *place: np.ndarray, peer: np.ndarray, times: int = 1) -> None:
            """Count operations that each take up to ``MOST_IDS`` channels of one type."""
            cell, *rest, kind, _ = _unique(cell, *place, peer // self.ranks, peer)
            cell, *_, count = _unique(cell, *rest, kind, counts=True)
            for _ in range(times):
                total[:] += np.bincount(cell, -(-count // MOST_IDS), cells).astype(np.int64)

        def by_type(peer: np.ndarray) -> np.ndarray:
            return peer + self.ranks * far

        puts = far | ~adds
        each(sender[puts])
        once_a_step(sender, puts)
        meets(sender, step, peer=by_type(dst))
        meets(receiver, step, peer=by_type(src))
        once_a_step(receiver, np.ones(len(runs), bool))
        each(receiver[adds])
        once_a_step(receiver, adds)
        if len(self.met):
            met, parts = self._beginnings(self.met, self.met_at, inside)
            to, time, chunk = (column[met] for column in self.meeting)
            cell, time, parts = _unique(block_of[chunk] * self.ranks + to, time, parts)
            # Rows are sorted, so the last row of a cell and step is the meeting with the most
            # parts.
            last = (np.diff(cell, append=-1) != 0) | (np.diff(time, append=-1) != 0)
            total += np.bincount(cell[last], parts[last] - 1, cells).astype(np.int64)
        ends, peers = (
            np.concatenate([sender, receiver]),
            np.concatenate([by_type(dst), by_type(src)]),
        )
        meets(ends, peer=peers, times=2)
        each(np.unique(ends))
        meets(ends[peers >= self.ranks], peer=peers[peers >= self.ranks])
        if self.closes:
            meets(ends[peers < self.ranks], peer=peers[peers < self.ranks], times=2)
        return int(total.max(initial=0))


def _unique(*columns: np.ndarray, inverse: bool = False, counts: bool = False) -> list[np.ndarray]:
    """The sorted distinct rows of columns; on demand, their inverse indices and counts."""
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    numbers = np.ravel_multi_index(columns, sizes)
    found = np.unique(numbers, return_inverse=inverse, return_counts=counts)
    rows, *rest = found if inverse or counts else (found,)
    return [*np.unravel_index(rows, sizes), *rest]


def _per_host(schedule: Schedule) -> int:
    """Ranks per host by the names of the network's vertices; all ranks if the names do not tell."""
    ranks = schedule.collective.num_ranks
    found = [re.match("host ([0-9]+) ", name) for name in schedule.topology.vertex_names[:ranks]]
    hosts = [match[1] for match in found if match]
    if len(hosts) < ranks:
        return ranks
    per_host = hosts.count(hosts[0])
    rows = [set(hosts[i : i + per_host]) for i in range(0, ranks, per_host)]
    return per_host if all(len(row) == 1 for row in rows) and not ranks % per_host else ranks


def _plan(schedule: Schedule, name: str, ways: Sequence[_Block]) -> Plan:
    what = schedule.collective
    share, whole = what.chunks_per_shard, what.num_chunks
    scratch = [0] * what.num_ranks
    for way in ways:
        way.place_scratch(scratch)
    sizes = {
        "input_chunks": share if what.traits.starts_with_shard else whole,
        "output_chunks": share if what.traits.ends_with_shard else whole,
    }
    gpus = [
        {"id": rank, **sizes, "scratch_chunks": scratch[rank], **_gpu(ways, rank)}
        for rank in range(what.num_ranks)
    ]
    return {
        "name": name,
        "collective": MSCCL_WORDS[what.kind],
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": MOST_BYTES,
    }


def _gpu(ways: Sequence[_Block], rank: int) -> Plan:
    """The blocks of a rank, and the lists that they refer to."""
    # There are two levels of indices: an operation has indices into its block's lists, whose
    # entries are indices into the GPU's lists. The k-th channel from a to b meets the k-th from b
    # to a, so all blocks list their peers in the same order.
    channels: dict[str, list[int]] = {"memory": [], "port": []}
    remote: list[tuple[int, str, str]] = []  # rank, buffer, type of channel
    blocks = []
    for number, way in enumerate(ways):
        own, refs = [], []
        for kind, peers in way.peers[rank].items():
            first = len(channels[kind])
            channels[kind] += peers
            ids = list(range(first, first + len(peers)))
            own.append({"channel_type": kind, "channel_ids": ids})
        for kind, buffers in way.remote[rank].items():
            for peer, buffer in buffers:
                if (peer, buffer, kind) not in remote:
                    remote.append((peer, buffer, kind))
            ids = [remote.index((peer, buffer, kind)) for peer, buffer in buffers]
            refs.append({"access_channel_type": kind, "remote_buffer_ids": ids})
        blocks.append({
            "id": number, "ops": way.operations[rank], "channels": own, "remote_buffer_refs": refs,
        })  # fmt: skip
    return {
        "threadblocks": blocks,
        "channels": [
            {"channel_type": kind, "connected_to": peers}
            for kind, peers in channels.items()
            if peers
        ],
        "remote_buffers": [
            {"rank": peer, "type": buffer, "access_channel_types": [kind]}
            for peer, buffer, kind in remote
        ],
        "semaphores": [],
    }


def _said(run: Run) -> dict[str, Any]:
    """Keys that the runtime ignores and that reading a plan back needs."""
    return {"step": run.step, "place": run.place, "links": list(run.path)}


def _parts(sums: Sequence[Run]) -> list[list[Run]]:
    """A rank's sums of one step, in the fewest parts within which threads need not wait.

    Thread t of T adds the elements t, t + T, t + 2 T and so on, counted from the beginning of an
    operation. So sums into one chunk are done by the same thread if their runs begin at the same
    place. If they begin at different places, another thread may still be adding, and all threads
    must wait before the next sum.
    """
    after: dict[int, int] = {}  # of each beginning, the first chunk that no run from there has
    for run in sums:
        after[run.first] = max(after.get(run.first, 0), run.first + run.count)
    # Beginnings in ascending order each go to the first part that is free there. That takes no more
    # parts than there are different beginnings in one chunk, and these need a part each in any
    # order.
    part_of: dict[int, int] = {}
    free: list[int] = []  # the first chunk that each part leaves to others
    for first, end in sorted(after.items()):
        part = next((p for p, at in enumerate(free) if at <= first), len(free))
        free[part : part + 1] = [end]
        part_of[first] = part
    return [[run for run in sums if part_of[run.first] == p] for p in range(len(free))]


class _Block:
    """One block, on every rank, of some chunks: its operations, peers and remote buffers."""

    def __init__(self, schedule: Schedule, runs: Sequence[Run], per_host: int):
        self.kind, self.per_host = schedule.collective.traits, per_host
        # In place, input and output share memory: the whole buffer is the one that is not a shard.
        self.buffer = "o" if self.kind.starts_with_shard else "i"
        ranks = schedule.collective.num_ranks
        self.peers = [self._peers(runs, rank) for rank in range(ranks)]
        self.remote: list[dict[str, list[tuple[int, str]]]] = [{} for _ in range(ranks)]
        self.slots: list[list[tuple[dict, int, int]]] = [[] for _ in range(ranks)]
        by_time: defaultdict[tuple[int, int], list[Run]] = defaultdict(list)
        for run in runs:
            # A step has two moments: a rank first sends everything, then receives everything. If it
            # waited first, it could wait for a rank that waits for it.
            by_time[run.src, 2 * run.step].append(run)
            by_time[run.dst, 2 * run.step + 1].append(run)
        self.operations: list[list[dict]] = []
        for peers in self.peers:
            every = {peer for of_kind in peers.values() for peer in of_kind}
            rank = len(self.operations)
            begun = [self._meet(rank, name, every) for name in ("rlxsignal", "rlxwait")]
            # A block without peers has nobody to wait for.
            self.operations.append([*begun[0], *begun[1], {"name": "nop"}] if every else [])
        landing: dict[Run, dict] = {}
        for (rank, time), each in sorted(by_time.items(), key=lambda item: item[0][::-1]):
            make = self._receive if time % 2 else self._send
            self.operations[rank] += make(rank, each, landing)
        for rank in range(ranks):
            self.operations[rank] += self._closing(rank)

    def _type(self, a: int, b: int) -> str:
        return "memory" if a // self.per_host == b // self.per_host else "port"

    def _peers(self, runs: Sequence[Run], rank: int) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        others = {run.dst if run.src == rank else run.src
                  for run in runs if rank in (run.src, run.dst)}  # fmt: skip
        for other in sorted(others):
            found.setdefault(self._type(rank, other), []).append(other)
        for kind, peers in found.items():
            if len(peers) > MOST_CHANNELS:
                raise FormatError(
                    f"a block of rank {rank} has {len(peers)} {kind} channels, MSCCL++ takes at "
                    f"most {MOST_CHANNELS}; take a network of fewer links per rank"
                )
        return found

    def _meet(self, rank: int, name: str, others: set[int]) -> list[dict]:
        """The same operation on all channels to some ranks, with up to ``MOST_IDS`` in each."""
        made = []
        for kind, peers in self.peers[rank].items():
            # Signals and waits count per channel, so one operation may serve several channels.
            ids = [at for at, peer in enumerate(peers) if peer in others]
            made += [
                {"name": name, "channel_ids": ids[i : i + MOST_IDS], "channel_type": kind}
                for i in range(0, len(ids), MOST_IDS)
            ]
        return made

    def _foreign(self, rank: int, other: int, buffer: str) -> int:
        """The index of another rank's buffer in the list of this block."""
        known = self.remote[rank].setdefault(self._type(rank, other), [])
        # Buffers are listed in the order in which the block's operations first use them.
        if (other, buffer) not in known:
            known.append((other, buffer))
        return known.index((other, buffer))

    def _send(self, rank: int, runs: Sequence[Run], landing: dict[Run, dict]) -> list[dict]:
        """Put copies, and sums to other hosts; then signal to all receivers."""
        ops: list[dict] = []
        for run in runs:
            kind = self._type(rank, run.dst)
            # Inside a host the receiver adds from the sender's memory, so that a sum needs no copy.
            # A sum to another host is put into scratch there, and added from scratch.
            if run.reduce and kind == "memory":
                continue  # the receiver reads it
            at = {"index": run.first, "size": run.count}
            target = dict(at)
            if run.reduce:
                landing[run] = slot = {"type": "s", "index": 0, "size": run.count}
                self.slots[run.dst].append((slot, run.count, rank))
                target = slot
            buffer = "s" if run.reduce else self.buffer
            ops.append({
                "name": "put", "src_buff": [{"type": self.buffer, **at}],
                "dst_buff": [{"buffer_id": self._foreign(rank, run.dst, buffer), "of": target}],
                "channel_ids": [self.peers[rank][kind].index(run.dst)], "channel_type": kind,
                **_said(run),
            })  # fmt: skip
        return [
            *ops, *([{"name": "nop"}] if ops else []),
            *self._meet(rank, "signal", {run.dst for run in runs}),
        ]  # fmt: skip

    def _receive(self, rank: int, runs: Sequence[Run], landing: dict[Run, dict]) -> list[dict]:
        """Wait for all senders; then add from their memory or from scratch."""
        ops = [*self._meet(rank, "wait", {run.src for run in runs}), {"name": "nop"}]
        for part in _parts([run for run in runs if run.reduce]):
            for run in part:
                here = {"type": self.buffer, "index": run.first, "size": run.count}
                if run in landing:
                    ops.append({
                        "name": "re", "src_buff": [here, landing[run]], "dst_buff": [here],
                        **_said(run), "from": run.src,
                    })  # fmt: skip
                    continue
                there = {"buffer_id": self._foreign(rank, run.src, self.buffer), "index": run.first,
                         "size": run.count}  # fmt: skip
                ops.append({
                    "name": "rre", "src_buff": [here, there], "dst_buff": [here],
                    "channel_type": "memory", **_said(run), "from": run.src,
                })  # fmt: skip
            ops.append({"name": "nop"})
        return ops

    def _closing(self, rank: int) -> list[dict]:
        """Wait until no other rank reads this rank's buffer any more."""
        peers = self.peers[rank]
        # In an all_reduce every rank that contributed receives the total later, so nothing is read
        # after it ends.
        near = set(peers.get("memory", ())) if self.kind.ends_with_shard else set()
        signals, waits = (self._meet(rank, name, near) for name in ("signal", "wait"))
        flush = self._meet(rank, "flush", set(peers.get("port", ())))
        return [*signals, *waits, *flush]

    def place_scratch(self, used: list[int]) -> None:
        """Assign a separate place in scratch to every sum from another host."""
        for rank, slots in enumerate(self.slots):
            for slot, count, _ in slots:
                slot["index"] = used[rank]
                used[rank] += count
        for ops in self.operations:
            for op in ops:
                for end in op.get("dst_buff", ()):
                    target = end.pop("of", None)
                    if target is not None:
                        end |= {"index": target["index"], "size": target["size"]}
