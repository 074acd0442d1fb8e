"""An all_reduce on v5p 4x4x4 less a link, compiled: permutes in flight, memory, compile time.

Joint trees of 64 to 256 chunks beside the ring of the whole slice, as one loop (``scan``). Nothing
runs: the TPU compiler must be there, as ``scripts/bench`` installs it for ``targets``. Temporary
memory is in multiples of a rank's buffer, compile time in CPU seconds (the median of several in
turns, after one that is not counted) and in multiples of the ring's.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from statistics import median
from time import process_time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.benchmarks.report import report
from jaxcoll import aot

NAME = "degraded_compiled"
SLICE, CHUNKS = "v5p:4x4x4", (1, 2, 4)  # chunks per shard of 64 shards


def measure(target: aot.Target, name: str, schedule: jc.Schedule, mebibytes: int) -> dict[str, Any]:
    """The row of a schedule."""
    mesh, n = target.mesh(), len(target.devices)
    # Chunks in lines of 128, as TPUs keep them.
    x = jax.ShapeDtypeStruct((n * mebibytes * 2**18 // 128, 128), jnp.float32)
    total = functools.partial(jc.psum, axis_name="i", schedule=schedule, lowering="scan")
    options = jc.compiler_options(mesh, schedule)
    started = process_time()
    compiled = aot.compile_for(mesh, total, [x], [P("i")], P(), options=options)
    spent = process_time() - started
    summary = aot.summarize(compiled)
    return {
        "schedule": name,
        "chunks": schedule.collective.num_chunks,
        "steps": schedule.num_steps,
        "permutes": summary.permutes,
        "in flight": summary.in_flight,
        "temporary": summary.temp_ratio,
        "compile CPU s": spent,
    }


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=64, help="of a rank (%(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="compilations (%(default)s)")
    options = parser.parse_args(argv)
    target = aot.target(SLICE)
    whole = target.topology
    u, v = int(whole.src[0]), int(whole.dst[0])
    left = whole.without([(u, v), (v, u)])
    schedules = {"ring, whole": jc.synthesize(whole, "all_reduce", "ring", chunks=1)}
    for count in CHUNKS:
        nbytes = options.mebibytes * 2**20
        made = jc.synthesize(left, "all_reduce", "joint_trees", chunks=count, nbytes=nbytes)
        schedules[f"joint trees x{count}"] = made
    measured = [
        [measure(target, name, each, options.mebibytes) for name, each in schedules.items()]
        for _ in range(1 + options.repeat)
    ]
    rows = measured[-1]
    for i, row in enumerate(rows):
        row["compile CPU s"] = median(turn[i]["compile CPU s"] for turn in measured[1:])
    ring = rows[0]["compile CPU s"]
    report(NAME, [{**row, "/ ring": row["compile CPU s"] / ring} for row in rows])
