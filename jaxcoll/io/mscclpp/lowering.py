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
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcoll.errors import FormatError, ScheduleError
from jaxcoll.io.mscclpp.block import Block
from jaxcoll.io.mscclpp.operation_count import OperationCount
from jaxcoll.io.sends import MSCCL_WORDS, check_word, runs
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule

# Limits of the executor.
MOST_OPERATIONS = 64  # in a block
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
        raise FormatError(
            f"{ranks} ranks do not divide into hosts of {per_host}; give ranks_per_host="
        )
    return _plan(schedule, name, _blocks(schedule, per_host))


def _blocks(schedule: Schedule, per_host: int) -> list[Block]:
    """The fewest blocks that hold the operations of their chunks.

    More blocks do not always have fewer operations each, since chunks sent in one message share
    operations. So every number of blocks is tried, from a lower bound: the blocks of a rank never
    have fewer operations together than one block for all chunks would have.

    Raises:
        FormatError: more blocks are needed than can run at the same time.
    """
    chunks = schedule.collective.num_chunks
    most_blocks, counted = min(MOST_BLOCKS, chunks), OperationCount(schedule, per_host)
    # Every count is tried, not bisected: operations per block do not fall with every added block.
    least = max(1, -(-counted.most(np.zeros(chunks, np.int64)) // MOST_OPERATIONS))
    for count in range(least, most_blocks + 1):
        for block_of in _ways(chunks, count):
            if counted.most(block_of) <= MOST_OPERATIONS:
                return [
                    Block(schedule, runs(schedule, counted.continues, block_of == b), per_host)
                    for b in range(count)
                ]
    fewest = min(map(counted.most, _ways(chunks, most_blocks)))
    raise FormatError(
        f"a block has {fewest} operations with {most_blocks} blocks per rank, and "
        f"MSCCL++ takes at most {MOST_OPERATIONS}; take fewer chunks per shard "
        "(--for-runtime mscclpp)"
    )


def _ways(chunks: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two ways to assign chunks to blocks: neighbours to one block, or one by one in turn.

    Neighbours are often sent in one operation. In trees, however, the root of a chunk has many
    times the operations of a leaf, and neighbours have the same root, whose block fills up first.
    """
    near = np.repeat(np.arange(count), np.diff(np.arange(count + 1) * chunks // count))
    return near, np.arange(chunks) % count


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


def _plan(schedule: Schedule, name: str, ways: Sequence[Block]) -> Plan:
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


def _gpu(ways: Sequence[Block], rank: int) -> Plan:
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
