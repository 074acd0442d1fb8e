"""TACOS: steps against the bound and the peer's, and seconds to synthesize an all_gather.

The peer is the TACOS authors' C++ (v1.3.0), one chunk per rank, one thread. Its seconds were taken
on another machine: they tell orders of magnitude, not ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from experiments.benchmarks.report import report
from experiments.study import Rows
from experiments.timing import time_it
from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective
from jaxcoll.synth.tacos.synthesizer import Tacos
from jaxcoll.topologies import hypercube, mesh, torus
from jaxcoll.topology import Topology

Family = Callable[..., Topology]

# Which sizes are shown, and all sizes in which steps are expected to equal the bound.
SHOWN: Sequence[tuple[Family, Sequence[tuple[int, ...]]]] = (
    (mesh, [(side, side) for side in (4, 8, 16, 24, 32, 64)]),
    (torus, [(side, side) for side in (4, 8, 16, 32, 64)]),
    (mesh, [(side,) * 3 for side in (3, 5, 8)]),
    (torus, [(side,) * 3 for side in (3, 5, 8)]),
    (hypercube, [(dimensions,) for dimensions in (3, 5, 8)]),
)
ALL: Sequence[tuple[Family, Sequence[tuple[int, ...]]]] = (
    (mesh, [(side, side) for side in range(4, 33)]),
    (torus, [(side, side) for side in range(4, 33)]),
    (mesh, [(side,) * 3 for side in range(3, 9)]),
    (torus, [(side,) * 3 for side in range(3, 9)]),
    (hypercube, [(dimensions,) for dimensions in range(3, 9)]),
)

PEER_STEPS = {
    "mesh 16x16": 128,
    "mesh 32x32": 512,
    "torus 4x4": 5,
    "torus 8x8": 17,
    "torus 16x16": 65,
    "torus 32x32": 258,
}
PEER_SECONDS = {
    "mesh 16x16": 0.50,
    "mesh 24x24": 7.9,
    "mesh 32x32": 55.7,
    "torus 32x32": 42.0,
    "mesh 8x8x8": 3.3,
}


def measure(topology: Topology, synthesizer: Tacos, seed: int, repeat: int) -> dict[str, Any]:
    """One row: what one network takes."""
    collective = Collective("all_gather", topology.num_ranks)

    def synthesize():
        return synthesizer.synthesize(topology, collective, seed)

    figures = {
        "network": topology.name,
        "ranks": topology.num_ranks,
        "bound": step_bound(topology, collective),
        "steps": synthesize().num_steps,
        "seconds": time_it(synthesize, repeat).median,
        "peer's steps": PEER_STEPS.get(topology.name),
        "peer's seconds": PEER_SECONDS.get(topology.name),
    }
    return {column: figure for column, figure in figures.items() if figure is not None}


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tacos", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every size up to 1,024 ranks")
    parser.add_argument("--rule", default=Tacos.rule, help="the matching rule (%(default)s)")
    parser.add_argument("--attempts", type=int, help="as many as TACOS takes by itself")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="calls to time (%(default)s)")
    options = parser.parse_args(argv)
    synthesizer = Tacos(options.rule, options.attempts)
    rows = Rows(
        measure(family(*size), synthesizer, options.seed, options.repeat)
        for family, sizes in (ALL if options.all else SHOWN)
        for size in sizes
    )
    report("tacos", rows)
    met = sum(row["steps"] == row["bound"] for row in rows)
    print(f"{met} of {len(rows)} networks in as few steps as the bound allows.")
    print("Seconds are the median of wall times after compilation; the schedule is checked by its")
    print("constructor and not by the verifier. The peer's are TACOS v1.3.0 (C++), elsewhere.")
