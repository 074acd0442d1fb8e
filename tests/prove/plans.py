"""MSCCL++ plans in the styles of other tools, made here: packets, semaphores, barriers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def plan(collective: str, gpus: Sequence[dict], **said: Any) -> str:
    whole = {"name": "a", "collective": collective, "protocol": "Simple", "inplace": True,
             "reuse_resources": False, "gpus": list(gpus), **said}  # fmt: skip
    return json.dumps(whole, indent=1)


def gpu(rank: int, sizes: tuple[int, int, int], blocks: Sequence[Sequence[dict]], **lists) -> dict:
    """A GPU whose blocks share all of its channels and foreign buffers, of one peer each."""
    peers, remote = lists.get("peers", []), lists.get("remote", [])
    near = [{"channel_type": "memory", "connected_to": peers}]
    return {
        "id": rank,
        "input_chunks": sizes[0],
        "output_chunks": sizes[1],
        "scratch_chunks": sizes[2],
        "threadblocks": [
            {
                "id": at,
                "ops": list(ops),
                "channels": [{"channel_type": "memory", "channel_ids": list(range(len(peers)))}],
                "remote_buffer_refs": [{
                    "access_channel_type": "memory", "remote_buffer_ids": list(range(len(remote))),
                }],
            }
            for at, ops in enumerate(blocks)
        ],
        "channels": near if peers else [],
        "remote_buffers": [
            {"rank": other, "type": buffer, "access_channel_types": ["memory"]}
            for other, buffer in remote
        ],
        "semaphores": [{"init_value": value} for value in lists.get("semaphores", [])],
    }  # fmt: skip


def op(name: str, src=None, dst=None, **said: Any) -> dict:
    """An operation; ends are (buffer, index), a buffer being a type or a foreign one's place."""
    made: dict[str, Any] = {"name": name, **said}
    for key, ends in (("src_buff", src), ("dst_buff", dst)):
        if ends is not None:
            made[key] = [
                {"type" if isinstance(buffer, str) else "buffer_id": buffer, "index": at, "size": 1}
                for buffer, at in ends
            ]
    return made


MEMORY = {"channel_type": "memory"}


def packets() -> str:
    """An all_gather of two ranks by packets: put, copied, read and passed on from scratch."""
    first = [
        [op("ppkt", [("o", 0)], [(0, 0)], **MEMORY)],
        [op("upkt", [("s", 1)], [("o", 1)])],
    ]
    second = [
        [op("cpkt", [("o", 1)], [("s", 1)])],
        [op("rppkt", [("s", 1)], [(0, 1)], **MEMORY)],
        [op("upkt", [("s", 0)], [("o", 0)])],
    ]
    return plan("allgather", [
        gpu(0, (1, 2, 2), first, peers=[1], remote=[(1, "s")]),
        gpu(1, (1, 2, 2), second, peers=[0], remote=[(0, "s")]),
    ], protocol="LL", use_double_scratch_buffer=True)  # fmt: skip


def pair(*, between: str = "semaphore") -> str:
    """An all_reduce of two ranks: each reads the other's half, and puts the sum.

    Args:
        between: how a second block, which puts, learns that the first one has added.
    """
    gpus = []
    for rank in range(2):
        meet = {"channel_ids": [0], **MEMORY}
        barrier = op("barrier", barrier_id=0, num_threadblocks=2)
        end = {"semaphore": op("sem_release", semaphore_ids=[0]), "barrier": barrier,
               "none": op("nop")}  # fmt: skip
        begin = {"semaphore": op("sem_acquire", semaphore_ids=[0]), "barrier": barrier,
                 "none": op("nop")}  # fmt: skip
        adds = [
            op("signal", **meet), op("wait", **meet), op("nop"),
            op("rre", [("i", rank), (0, rank)], [("i", rank)], **MEMORY), op("nop"),
end[between],
        ]  # fmt: skip
        puts = [
            # ``sem_acquire`` holds one thread back, and ``nop`` the others until it goes on.
            begin[between], op("nop"), op("put", [("i", rank)], [(0, rank)], **meet), op("nop"),
            op("signal", channel_ids=[1], **MEMORY), op("wait", channel_ids=[1], **MEMORY),
        ]  # fmt: skip
        other = 1 - rank
        gpus.append(gpu(rank, (2, 2, 0), [adds, puts], peers=[other, other],
                        remote=[(other, "i")], semaphores=[0]))  # fmt: skip
    return plan("allreduce", gpus)


def _in_step(relaxed: bool) -> list[dict]:
    """Both ranks come here before either goes on, relaxed as to memory or not."""
    how = "rlx" if relaxed else ""
    nop = {"name": "nop"}
    meets = [{"name": f"{how}{what}", "channel_ids": [0], "channel_type": "memory"}
             for what in ("signal", "wait")]  # fmt: skip
    return [nop, meets[0], dict(nop), meets[1], dict(nop)]


def through_switch(
    *, relaxed: bool = False, pipelined: bool = False, before: bool = True, after: bool = True,
    chunks: int = 1,
) -> str:  # fmt: skip
    """An all_reduce of two ranks: each sums its part of all buffers and stores it to all."""
    gpus = []
    for rank in range(2):
        end = {"switch_channel_id": 0, "index": chunks * rank, "size": chunks}
        op: dict[str, Any] = {
            "name": "glres", "src_buff": [end], "dst_buff": [dict(end)], "channel_type": "switch",
            "reduce_op": "sum",
        }  # fmt: skip
        if pipelined:
            context = {"unit_size": 2**20, "num_chunks": 1}
            op = {"name": "pipeline", "iter_context": context, "ops": [op]}
        ops = [*(_in_step(relaxed) if before else []), op, *(_in_step(relaxed) if after else [])]
        made = gpu(rank, (2 * chunks, 2 * chunks, 0), [ops], peers=[1 - rank])
        made["channels"].append({
            "channel_type": "switch", "buffer_type": "i",
            "rank_groups": [{"size": 2, "ranks": [0, 1]}],
        })  # fmt: skip
        made["threadblocks"][0]["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        gpus.append(made)
    return plan("allreduce", gpus)


def in_groups(blocks: int = 2, numbers: Sequence[int] | None = None) -> str:
    """An all_gather of two ranks by packets, each moved by a group of blocks, a part each."""
    gpus = []
    for rank in range(2):
        groups: list[list[dict]] = []
        for name in ("ppkt", "upkt"):
            for number in numbers or range(blocks):
                sends = name == "ppkt"
                here = {"type": "o", "index": rank, "size": 1}
                there = {"buffer_id": 0, "index": rank, "size": 1}
                came = {"type": "s", "index": 1 - rank, "size": 1}
                out = {"type": "o", "index": 1 - rank, "size": 1}
                op: dict[str, Any] = {
                    "name": name, "src_buff": [here if sends else came],
                    "dst_buff": [there if sends else out],
                    "tbg_info": {"tb_id": number, "tbg_size": blocks},
                }  # fmt: skip
                groups.append([op | ({"channel_type": "memory"} if sends else {})])
        gpus.append(gpu(rank, (1, 2, 2), groups, peers=[1 - rank], remote=[(1 - rank, "s")]))
    return plan("allgather", gpus, protocol="LL", use_double_scratch_buffer=True)


def of_all_kinds() -> tuple[str, ...]:
    """A plan of each way of moving data."""
    return packets(), through_switch(pipelined=True), in_groups()
