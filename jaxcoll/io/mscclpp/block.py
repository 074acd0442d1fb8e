"""A thread block of an MSCCL++ plan, on every rank: its operations, peers and remote buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from jaxcoll.errors import FormatError
from jaxcoll.io.sends import Run
from jaxcoll.schedule import Schedule

# Limits of the executor: channel ids in an operation, and channels of one type in a block.
MOST_IDS, MOST_CHANNELS = 8, 16


def _said(run: Run) -> dict[str, Any]:
    """Keys that the runtime ignores and that reading a plan back needs."""
    return {"step": run.step, "place": run.place, "links": list(run.path)}


def in_parts(sums: Sequence[Run]) -> list[list[Run]]:
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


class Block:
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
                    f"a block of rank {rank} has {len(peers)} {kind} channels, and MSCCL++ takes "
                    f"at most {MOST_CHANNELS}; take a network of fewer links per rank"
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
        for part in in_parts([run for run in runs if run.reduce]):
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
