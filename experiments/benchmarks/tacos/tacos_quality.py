"""TACOS: times against bounds and the peer's, on unequal links and with small data.

The peer is the TACOS authors' C++ (v1.3.0), one chunk per rank. On unequal links it lets 4-9 % of
the chunks leave before they have arrived, so that its schedules cannot run; ours are proved. Times
are simulated by the link model "tacos"; ideal is the paper's (Sec. V-A), a yardstick and not a
bound.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from experiments.benchmarks.report import report
from experiments.study import Rows
from jaxcoll.bounds import bound, ideal
from jaxcoll.collective import Collective
from jaxcoll.simulation import simulate
from jaxcoll.synth.auto import Portfolio
from jaxcoll.synth.entry import synthesize
from jaxcoll.synth.tacos.synthesizer import Tacos
from jaxcoll.topologies import hypercube, mesh, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

MIB, GIB = 2**20, 2**30

# (x, y) in GiB/s -> side of the mesh -> the peer's time of an all_gather of 1 GiB, us, the median
# of its seeds.
PEER_MICROSECONDS = {
    (50, 75): {4: 7920, 8: 7936, 12: 8006, 16: 8045},
    (16, 73): {4: 19539, 6: 15639, 8: 13146, 10: 11903},
}
# Networks of small data, and the peer's share of ideal at 1 MiB where it is known.
SMALL: Sequence[tuple[Topology, float | None]] = (
    (mesh(4, 4), None),
    (mesh(8, 8), 0.64),
    (torus(8, 8), None),
    (mesh(4, 4, 4), None),
    (hypercube(6), None),
)
LARGE: Sequence[tuple[Topology, float | None]] = (
    (mesh(16, 16), 0.34),
    (torus(16, 16), None),
    (hypercube(8), None),
    (mesh(8, 8, 8), 0.20),
    (torus(8, 8, 8), 0.20),
)


def measure_unequal(speeds: tuple[int, int], side: int, seeds: int, attempts: int | None) -> dict:
    """One row: an all_gather of 1 GiB on a mesh whose dimensions differ in bandwidth."""
    topology = mesh(side, side, bandwidth=(speeds[1] * GIB, speeds[0] * GIB))
    collective = Collective("all_gather", side**2)
    tacos, times = Tacos(nbytes=GIB, attempts=attempts), []
    for seed in range(seeds):
        schedule = tacos.synthesize(topology, collective, seed)
        verify(schedule)
        times.append(simulate(schedule, GIB, "tacos").time * 1e6)
    ours, peer = statistics.median(times), PEER_MICROSECONDS[speeds][side]
    return {
        "GiB/s": f"{speeds[0]}/{speeds[1]}",
        "mesh": f"{side}x{side}",
        "bound us": bound(topology, collective, GIB).time * 1e6,
        "ours us": ours,
        "best us": min(times),
        "peer us": peer,
        "ours / peer": ours / peer,
    }


def measure_small(topology: Topology, peer: float | None, seed: int) -> dict[str, Any]:
    """One row: the best all_gather of 1 MiB that auto finds by itself, by either link model."""
    row: dict[str, Any] = {"network": topology.name}
    for model in ("astra", "tacos"):
        auto = Portfolio(nbytes=MIB, model=model)
        schedule = synthesize(topology, "all_gather", auto, seed=seed)
        time = simulate(schedule, MIB, model).exact_time
        row[f"ideal / ours, {model}"] = float(ideal(topology, "all_gather", MIB) / time)
        row[f"found by, {model}"] = schedule.provenance.certificate["chosen"]
        row[f"chunks, {model}"] = schedule.collective.chunks_per_shard
    return row if peer is None else {**row, "peer's": peer}


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tacos-quality", description=__doc__)
    parser.add_argument("--all", action="store_true", help="small data on up to 512 ranks too")
    parser.add_argument("--seeds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--attempts", type=int, help="as many as TACOS takes by itself")
    parser.add_argument("--skip-small", action="store_true", help="unequal links only")
    options = parser.parse_args(argv)
    rows = Rows(
        measure_unequal(speeds, side, options.seeds, options.attempts)
        for speeds, sides in PEER_MICROSECONDS.items()
        for side in sides
    )
    report("tacos-unequal", rows)
    slower = sum(row["ours us"] > row["peer us"] + 0.5 for row in rows)  # the peer's are rounded
    print(f"Slower than the peer's median on {slower} of {len(rows)} meshes.")
    if not options.skip_small:
        networks = [*SMALL, *(LARGE if options.all else ())]
        report("tacos-small", (measure_small(*network, 0) for network in networks))
