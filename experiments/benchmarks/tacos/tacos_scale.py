"""TACOS at scale: compact schedules of tens of thousands of ranks, and a 3D-RFS in milliseconds.

An all_gather on meshes of growing size is synthesized straight to disk and proved by replaying it.
The paper needs 2.52 h for an all_reduce on a mesh of 40,000 ranks and 3.29 h for one of 43,000, on
64 threads; another machine, so these tell orders of magnitude. Memory is the peak of the process so
far, mapped files included.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.report import report
from experiments.study import Rows
from experiments.tacos.synthesis import growth, measure_mesh
from experiments.timing import time_it
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.simulation import simulate
from jaxcoll.synth.building.base import Synthesizer
from jaxcoll.synth.dimensional.cascade import BlueConnect, Cascade
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.tacos.synthesizer import Tacos
from jaxcoll.synth.trees.multitree import MultiTree
from jaxcoll.topologies import ring_fc_switch
from jaxcoll.verifier import verify

SHOWN: Sequence[tuple[int, ...]] = ((32, 32), (64, 64), (16, 16, 16))
PAPER: Sequence[tuple[int, ...]] = ((100, 100), (200, 200), (35, 35, 35))


# The synthesizers tried on 3D-RFS, by bytes. With much data TACOS keeps slow links for chunks that
# only they bring; with little, alpha is what costs, and its messages carry all they can.
ON_RFS: Mapping[int, Sequence[Synthesizer]] = {
    10**9: (Cascade(1e9), Tacos("patient", 1, 1e9, degree=4), ForestColl()),
    10**6: (
        Cascade(1e6),
        Tacos("patient", 1, 1e6, degree=4, aggregate=None),
        MultiTree(),
        ForestColl(nbytes=1e6),
        BlueConnect(),
    ),
}


def measure_rfs(seed: int, repeat: int) -> list[dict[str, Any]]:
    """Rows: an all_reduce on 128 ranks of 3D-RFS, 4 chunks per shard (paper: 1.08 s)."""
    topology = ring_fc_switch(2, 4, 16)
    collective = Collective("all_reduce", topology.num_ranks, 4)
    rows = []
    for nbytes, synthesizers in ON_RFS.items():
        least = bound(topology, collective, nbytes).time
        for synthesizer in synthesizers:
            synthesize = functools.partial(synthesizer.synthesize, topology, collective, seed)
            schedule = synthesize()  # compiles
            verify(schedule)
            row = {
                "network": topology.name,
                "bytes": nbytes,
                "synthesizer": synthesizer.name,
                "milliseconds": time_it(synthesize, repeat).median * 1e3,
                "processor ms": processor_seconds(synthesize, repeat) * 1e3,
                "bound us": least * 1e6,
            }
            for model in ("tacos", "astra"):
                seconds = simulate(schedule, nbytes, model).time
                row |= {f"us, {model}": seconds * 1e6, f"of the bound, {model}": seconds / least}
            rows.append(row)
    return rows


def processor_seconds(call: Callable[[], object], repeat: int) -> float:
    """The least of several calls, which a machine busy with other things changes little."""
    seconds = []
    for _ in range(repeat):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds)


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tacos-scale", description=__doc__)
    parser.add_argument("--paper", action="store_true", help="up to 40,000 ranks: 4 GB on disk")
    parser.add_argument(
        "--sides", type=int, nargs="+", action="append", help="one mesh of your own"
    )
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="calls to time (%(default)s)")
    parser.add_argument("--folder", help="where schedules are written and removed again")
    options = parser.parse_args(argv)
    sizes = options.sides or [*SHOWN, *(PAPER if options.paper else ())]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure_mesh((4, 4), Path(folder), options.threads, options.seed)  # compiles
        rows = Rows(
            measure_mesh(sides, Path(folder), options.threads, options.seed) for sides in sizes
        )
    report("tacos-scale", rows)
    planar = [row for row in rows if str(row["network"]).count("x") == 1]
    if len(planar) > 1:
        print(f"Processor time on 2D meshes grows as ranks to the power {growth(planar):.2f}.")
    report("tacos-rfs", measure_rfs(options.seed, options.repeat))
