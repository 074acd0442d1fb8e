"""ForestColl: seconds by stage, optima and heights of trees, beside the authors'.

The authors' Python takes the exact way only, so its seconds stand beside ours of the same stages
without guesses; the last columns are what a user gets, guesses first, every forest counted link
by link. Its seconds were taken on another machine: they tell orders of magnitude, not ratios.

``--scale --record`` adds the rows of the networks it measures to ``forestcoll_scale.json``, from
which ``docs/forestcoll.md`` has its table of networks without a grid, and writes that page.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.benchmarks.forestcoll.degraded_networks import NETWORKS, less, two_rings
from experiments.benchmarks.report import report
from experiments.forestcoll.printed import GB, PAPER_FIXED_K, PAPER_STAGES, fixed_row
from experiments.machine import describe_machine
from experiments.recording import pages, records
from jaxcoll.bounds.throughput import optimum
from jaxcoll.collective import Collective
from jaxcoll.io.files import write_text
from jaxcoll.simulation import simulate
from jaxcoll.synth.forestcoll import ForestColl, forest
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.packing.tree_packing import pack_trees
from jaxcoll.topologies import dgx1, dgx_a100, dgx_h100, hypercube, mesh, mi250, torus
from jaxcoll.topology import Topology

SMALL: Sequence[Callable[[], Topology]] = (
    lambda: dgx1(),
    lambda: dgx_a100(2),
    lambda: dgx_a100(4),
    lambda: dgx_a100(8),
    lambda: dgx_h100(2),
    lambda: dgx_h100(4),
    lambda: dgx_h100(8),
    lambda: mi250(2),
    lambda: mi250(2, ranks=8),
    lambda: torus(8, 8, bandwidth=1e9),
    lambda: torus(4, 4, 4, bandwidth=1e9),
    lambda: hypercube(6, bandwidth=1e9),
)


def listed(topology: Topology, broken: tuple[int, int] | None = None) -> Topology:
    """The links as a plain list, which tells no structure, those of a broken pair left out."""
    ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    gone = (broken, broken and broken[::-1])
    keep = [e for e, pair in enumerate(ends) if pair not in gone]
    name = topology.name + (" as a list" if broken is None else " less a link")
    src, dst, alpha = topology.src[keep], topology.dst[keep], topology.alpha[keep]
    bandwidth = np.asarray(topology.bandwidth)[keep]
    return Topology(topology.num_ranks, src, dst, alpha, bandwidth, name=name)


LARGE: Sequence[tuple[Callable[[], Topology], float | None]] = (
    (lambda: dgx_a100(128), sum(PAPER_STAGES["A100 x128"])),
    (lambda: dgx_h100(128), None),
    (lambda: mi250(64), sum(PAPER_STAGES["MI250 64 x 16"])),
    (lambda: torus(32, 32, bandwidth=1e9), None),
    (lambda: torus(16, 16, 4, bandwidth=1e9), None),
    (lambda: hypercube(10, bandwidth=1e9), None),
    (lambda: listed(hypercube(7, bandwidth=1e9)), None),
    (lambda: listed(hypercube(10, bandwidth=1e9)), None),
    (lambda: listed(torus(8, 8, 8, bandwidth=1e9), (0, 1)), None),
    (lambda: listed(torus(32, 32, bandwidth=1e9), (0, 1)), None),
)

# Optima of the authors' code, 1/x* in seconds a GB and k; CPU seconds of its three stages.
PEER_OPTIMA = {
    "A100 x2": ("3/65", 13),
    "A100 x4": ("3/25", 1),
    "A100 x8": ("7/25", 1),
    "H100 x2": ("3/100", 2),
    "H100 x4": ("31/500", 10),
    "H100 x8": ("7/50", 1),
    "MI250 16+16": ("15/166", 83),
    "MI250 8+8": ("1/13", 13),
    "torus 8x8": ("63/4", 4),
    "torus 4x4x4": ("21/2", 2),
    "hypercube 6": ("21/2", 2),
}
PEER_SECONDS = {
    "A100 x8": (1.0, 134.0, 16.6),
    "H100 x8": (0.84, 121.0, 17.8),
    "MI250 16+16": (0.5, 5.6, 15.8),
    "torus 8x8": (0.8, 0.1, 45.0),
}


def seconds_of(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and the CPU seconds it takes."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def measure(topology: Topology) -> dict[str, Any]:
    """One row: every stage of one network, and the peer's."""
    best, search = seconds_of(lambda: optimum(topology))
    logical, removal = seconds_of(lambda: remove_switches(topology, best.scaling, guess=False))
    capacity = logical.capacity()
    _, packing = seconds_of(lambda: pack_trees(topology.num_ranks, capacity, best.scaling.trees))
    flow, whole = seconds_of(lambda: forest(topology))
    peer = PEER_OPTIMA.get(topology.name)
    times = PEER_SECONDS.get(topology.name, (None, None, None))
    figures = {
        "network": topology.name,
        "ranks": topology.num_ranks,
        "1/x* (s/GB)": str(best.inverse * GB),
        "k": best.k,
        "as the peer's": None if peer is None else (str(best.inverse * GB), best.k) == peer,
        "search s": search,
        "peer's": times[0],
        "exact removal s": removal,
        "peer's ": times[1],
        "exact packing s": packing,
        "peer's  ": times[2],
        "forest s": whole,
        "height": flow.height,
        "mean height": flow.mean_height,
        "way": str(flow.certificate["trees"]),
    }
    return {column: figure for column, figure in figures.items() if figure is not None}


def measure_large(topology: Topology, peer: float | None) -> dict[str, Any]:
    """One row: a forest of 128 to 1024 ranks, counted."""
    best, search = seconds_of(lambda: optimum(topology))
    start = time.perf_counter()
    flow = forest(topology)
    figures = {
        "network": topology.name,
        "ranks": topology.num_ranks,
        "1/x* (s/GB)": str(best.inverse * GB),
        "optimal": flow.check_load() == best.inverse,
        "search CPU s": search,
        "forest wall s": time.perf_counter() - start,
        "paper's wall s": peer,
        "height": flow.height,
        "trees": flow.num_trees,
        "way": str(flow.certificate["trees"]),
    }
    return {column: figure for column, figure in figures.items() if figure is not None}


def measure_scale(name: str, topology: Topology) -> dict[str, Any]:
    """One row: a network without a known structure, its forest counted."""
    best, search = seconds_of(lambda: optimum(topology))
    flow, whole = seconds_of(lambda: forest(topology))
    return {
        "network": name,
        "ranks": topology.num_ranks,
        "vertices": topology.num_vertices,
        "k": best.k,
        "optimal": flow.check_load() == best.inverse,
        "search CPU s": search,
        "forest CPU s": whole,
        "limit CPU s": 10 if topology.num_ranks <= 512 else 60,
        "height": flow.height,
    }


def record_scale(rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to the record, each with its commit and machine, and write the page with them."""
    record = json.loads(pages.SCALE.read_text()) if pages.SCALE.exists() else {}
    where = {"commit": records.commit(), "machine": describe_machine()["cpu"]}
    record |= {str(row["network"]): {**row, **where} for row in rows}
    ordered = {name: record[name] for name in NETWORKS if name in record}
    write_text(pages.SCALE, json.dumps(ordered, indent=1) + "\n")
    pages.write()


def converge(topology: Topology, pieces: Sequence[int]) -> dict[str, Any]:
    """One row: simulated time over the optimum, by pieces, for 1 GB."""
    best = float(optimum(topology).inverse) * GB / topology.num_ranks
    row: dict[str, Any] = {"network": topology.name}
    for count in pieces:
        chunks = ForestColl().granularity(topology) * count
        collective = Collective("all_gather", topology.num_ranks, chunks)
        schedule = ForestColl(pieces=count).synthesize(topology, collective)
        row[f"{count} pieces"] = simulate(schedule, GB).time / best
    return row


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="forestcoll", description=__doc__)
    parser.add_argument("--large", action="store_true", help="also networks of up to 1024 ranks")
    parser.add_argument(
        "--scale",
        nargs="*",
        metavar="WORD",
        help="only networks without a grid whose names contain one of the words, or all of them",
    )
    parser.add_argument("--record", action="store_true", help="what --scale measures")
    options = parser.parse_args(argv)
    if options.record and options.scale is None:
        parser.error("--record is for what --scale measures; give both")
    for topology in (torus(3, 3), dgx_a100(2), dgx_a100(3)):  # compile
        measure(topology)
    if options.scale is not None:
        chosen = [
            (name, make)
            for name, make in NETWORKS.items()
            if not options.scale or any(word in name for word in options.scale)
        ]
        for make in (lambda: less(mesh(9, 9)), lambda: two_rings(33)):  # compile
            forest(make())
        rows = [measure_scale(name, make()) for name, make in chosen]
        report("forestcoll-scale", rows)
        if options.record:
            record_scale(rows)
        return
    report("forestcoll", [measure(make()) for make in SMALL])
    report("forestcoll-table-4-1", [fixed_row(mi250(2), k, x) for k, x in PAPER_FIXED_K.items()])
    networks = (dgx_a100(2), dgx_h100(2), mi250(2))
    report("forestcoll-pieces", [converge(topology, (1, 4, 16, 64)) for topology in networks])
    if options.large:
        report("forestcoll-large", [measure_large(make(), peer) for make, peer in LARGE])
    print("Seconds are CPU seconds of one call after compilation; the peer's were taken elsewhere.")
