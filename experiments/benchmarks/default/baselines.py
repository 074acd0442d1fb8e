"""Baselines: all-reduce time of every synthesizer on the networks of the TACOS paper's Table IV,
and on two DGX H100.

Times are simulated, link by link, and printed with the percentage of them that the bound is. Every
synthesizer is shown with the variant and the number of chunks that are fastest at each size.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.benchmarks.report import report
from experiments.study import printed
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.synth import REGISTRY, SYNTHESIZERS, Portfolio, Synthesizer, synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.topology import Topology

SIZES = {"1 KB": 10**3, "1 MB": 10**6, "1 GB": 10**9}

# Table IV, at the speeds of Sec. V-B (footnote) and VI-B.1; the paper's 3D Hypercube is a mesh.
NETWORKS: Mapping[str, Callable[[], Topology]] = {
    "ring": lambda: topologies.ring(64),
    "fully-connected": lambda: topologies.fully_connected(64),
    "torus-2d": lambda: topologies.torus(8, 8),
    "torus-3d": lambda: topologies.torus(4, 4, 4),
    "mesh-2d": lambda: topologies.mesh(8, 8),
    "mesh-3d": lambda: topologies.mesh(4, 4, 4),
    "switch-2d": lambda: topologies.switch_2d(8, 4),
    "3d-rfs": lambda: topologies.ring_fc_switch(2, 4, 8),
    "dragonfly": lambda: topologies.dragonfly(5, 4),
    "dgx-h100": lambda: topologies.dgx_h100(2),
}

CHUNKS = (1, 4, 12)  # multiples of what bucket and Swing cut shards into


@dataclasses.dataclass(frozen=True, order=True)
class Result:
    """The fastest schedule of a synthesizer at one size; of equals the one with fewer messages.

    Attributes:
        seconds: simulated time.
        messages: messages of the schedule.
        chunks: chunks per shard.
        took: the algorithm that auto took; empty for every other.
    """

    seconds: float
    messages: int
    chunks: int
    took: str


def results_of(
    topology: Topology, name: str, chunks: Sequence[int], model: str
) -> dict[str, Result]:
    """The best of a synthesizer's variants and numbers of chunks at every size, by size.

    Raises:
        CollectiveError, TopologyError: none of them is defined for the network.
    """
    variants = _variants(name, model)
    found: dict[str, list[Result]] = {size: [] for size in SIZES}
    refusal: CollectiveError | TopologyError | None = None
    for count, variant in itertools.product(chunks, variants):
        made: dict[Synthesizer, Schedule] = {}
        for size, nbytes in SIZES.items():
            synthesizer = variant.with_nbytes(nbytes)
            try:
                if synthesizer not in made:
                    made[synthesizer] = synthesize(
                        topology, "all_reduce", synthesizer, chunks=count
                    )
            except (CollectiveError, TopologyError) as error:
                refusal = error
                break
            schedule = made[synthesizer]
            seconds = simulate(schedule, nbytes, model).time
            found[size].append(
                Result(seconds, schedule.num_messages, count, chosen_by_auto(schedule))
            )
    if refusal and not all(found.values()):
        raise refusal
    return {size: min(results) for size, results in found.items()}


def _variants(name: str, model: str) -> Sequence[Synthesizer]:
    if name == Portfolio.name:
        return [Portfolio(model=model, tolerance=0)]
    return REGISTRY[name].variants(fixed=True) or [SYNTHESIZERS[name]()]


def measure(
    topology: Topology, names: Sequence[str], chunks: Sequence[int], model: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A row for each synthesizer that is defined for a network, and why the others are not."""
    found, refused = {}, {}
    for name in names:
        try:
            found[name] = results_of(topology, name, chunks, model)
        except (CollectiveError, TopologyError) as error:
            refused[name] = str(error)
    rows = []
    least = {size: bound(topology, "all_reduce", n).time for size, n in SIZES.items()}
    for name, results in found.items():
        row: dict[str, Any] = {"network": topology.name, "synthesizer": name}
        for size, result in results.items():
            row[size] = result.seconds
            row[f"% at {size}"] = 100 * least[size] / result.seconds
        row["chunks"] = "/".join(str(result.chunks) for result in results.values())
        if name == Portfolio.name:
            row["took"] = " / ".join(result.took for result in results.values())
        rows.append(row)
    return rows, refused


def winners(rows: Sequence[Mapping[str, Any]], size: str) -> list[str]:
    """The synthesizers that are fastest at a size, of the rows of one network."""
    fastest = min(row[size] for row in rows)
    return [row["synthesizer"] for row in rows if row[size] <= fastest * (1 + 1e-9)]


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="baselines", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument(
        "--synthesizers", nargs="+", choices=SYNTHESIZERS, default=list(SYNTHESIZERS)
    )
    parser.add_argument(
        "--chunks",
        nargs="+",
        type=int,
        default=CHUNKS,
        help="chunks per shard to try (%(default)s)",
    )
    parser.add_argument("--model", choices=MODELS, default="astra", help="(%(default)s)")
    options = parser.parse_args(argv)
    table, lines, silent = [], [], []
    for network in options.networks:
        topology = NETWORKS[network]()
        rows, refused = measure(topology, options.synthesizers, options.chunks, options.model)
        table += printed(rows)
        for size in SIZES:
            lines.append(f"{topology.name}, {size}: {', '.join(winners(rows, size))}")
        if refused:
            silent.append(f"{topology.name}: {', '.join(refused)}")
    report("baselines", table)
    print("Times in seconds by the link model", options.model, "and the bound in percent of them.")
    print("The fastest, of equals all:", *lines, sep="\n  ")
    print("Not defined:", *silent, sep="\n  ")
