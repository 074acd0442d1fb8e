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
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import networkx as nx
import numpy as np

from experiments import page_tables, recording
from experiments.benchmarks.default.users_networks import half, less
from experiments.forestcoll.tables import GB, PAPER_STAGES
from experiments.study import describe_machine
from experiments.timing import cpu_timed, kept, report
from jaxcoll.bounds.throughput import optimum
from jaxcoll.io.files import write_text
from jaxcoll.synth.forestcoll import forest
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.tree_packing import pack_trees
from jaxcoll.topologies import (
    dgx1,
    dgx_a100,
    dgx_h100,
    dragonfly,
    fat_tree,
    hypercube,
    leaf_spine,
    mesh,
    mi250,
    multi_rail,
    torus,
)
from jaxcoll.topology import Topology

Pair = tuple[int, int]


def less_some(topology: Topology, count: int, seed: int) -> Topology:
    """The network without a number of random wires."""
    wires = sorted({(min(p), max(p)) for p in zip(topology.src, topology.dst, strict=True)})
    return less(topology, *Random(seed).sample(wires, count))


def wired(ranks: int, wires: Mapping[Pair, int], vertices: int | None = None) -> Topology:
    """Links in both directions, from pairs of vertices with their GB/s."""
    ends = np.asarray(list(wires)).T
    src, dst = np.concatenate([ends, ends[::-1]], axis=1)
    speeds = np.asarray([speed * GB for speed in wires.values()] * 2)
    return Topology(
        ranks, src, dst, np.full(len(src), 1e-6), speeds, num_vertices=vertices or ranks
    )  # type: ignore[arg-type]


def random_regular(degree: int, ranks: int, seed: int) -> Topology:
    """Random wires, as many at every rank."""
    graph = nx.random_regular_graph(degree, ranks, seed=seed)
    return wired(ranks, dict.fromkeys(sorted(graph.edges), 1))


def random_eulerian(ranks: int, cycles: int, seed: int) -> Topology:
    """One-way links of 1 to 9 GB/s: random Hamiltonian cycles of one bandwidth each."""
    random, amount = Random(seed), {}
    for _ in range(cycles):
        order, speed = random.sample(range(ranks), ranks), random.randint(1, 9)
        for i in range(ranks):
            pair = order[i - 1], order[i]
            amount[pair] = amount.get(pair, 0) + speed * GB
    src, dst = np.asarray(list(amount)).T
    return Topology(ranks, src, dst, np.full(len(src), 1e-6), list(amount.values()))  # type: ignore[arg-type]


def random_digraph(ranks: int, degree: int, seed: int) -> Topology:
    """Random one-way links of 1 to 9 GB/s over a ring, neither paired nor balanced."""
    random = Random(seed)
    pairs = {(r, (r + 1) % ranks) for r in range(ranks)}
    while len(pairs) < degree * ranks:
        u, v = random.sample(range(ranks), 2)
        pairs.add((u, v))
    src, dst = np.asarray(sorted(pairs)).T
    speeds = [random.randint(1, 9) * GB for _ in src]
    return Topology(ranks, src, dst, np.full(len(src), 1e-6), speeds)  # type: ignore[arg-type]


def two_rings(ranks: int) -> Topology:
    """Two rings that two pairs of links join: the cut between them is tight."""
    around = {(r + u, r + (u + 1) % ranks): 2 for r in (0, ranks) for u in range(ranks)}
    return wired(2 * ranks, around | {(u, u + ranks): 1 for u in (0, ranks // 2)})


def star_of_rings(rings: int, ranks: int) -> Topology:
    """Rings, two ranks of each joined to one switch."""
    n = rings * ranks
    around = {
        (r * ranks + u, r * ranks + (u + 1) % ranks): 2 for r in range(rings) for u in range(ranks)
    }
    up = {(r * ranks + u, n): 1 for r in range(rings) for u in (0, ranks // 2)}
    return wired(n, around | up, n + 1)


def joined(first: Topology, second: Topology, wires: int, speed: int) -> Topology:
    """Two networks, wires of some bytes per second between the first ranks of both."""
    graph = nx.DiGraph()
    for part, topology in (("a", first), ("b", second)):
        n = topology.num_ranks
        names = [("rank" if v < n else "switch", part, v) for v in range(topology.num_vertices)]
        graph.add_nodes_from((name, {"kind": name[0]}) for name in names)
        for u, v, b in zip(topology.src, topology.dst, topology.exact_bandwidth, strict=True):
            graph.add_edge(names[u], names[v], bandwidth=b)
    for r in range(wires):
        ends = ("rank", "a", r), ("rank", "b", r)
        graph.add_edge(*ends, bandwidth=Fraction(speed))
        graph.add_edge(*ends[::-1], bandwidth=Fraction(speed))
    return Topology.from_networkx(graph, alpha=1e-6)


def _ports(topology: Topology, ranks: Iterable[int]) -> list[Pair]:
    """The wires between some ranks and the network switch of a cluster."""
    return [(rank, topology.num_vertices - 1) for rank in ranks]


def _cluster(make: Callable[[int], Topology], hosts: int, dead=(), slow=()) -> Topology:
    topology = make(hosts)
    if slow:
        topology = half(topology, *_ports(topology, slow))
    return less(topology, *_ports(topology, dead)) if dead else topology


NETWORKS: Mapping[str, Callable[[], Topology]] = {
    "torus 8x8x8 less a wire": lambda: less(torus(8, 8, 8), (0, 1)),
    "torus 8x8x8 less a rank": lambda: torus(8, 8, 8).without(ranks=[77]),
    "torus 8x8x16 less 16 wires": lambda: less_some(torus(8, 8, 16), 16, 0),
    "torus 32x32 less a wire": lambda: less(torus(32, 32), (0, 1)),
    "mesh 32x32": lambda: mesh(32, 32).without(),
    "hypercube 9": lambda: hypercube(9).without(),
    "hypercube 10 less 8 wires": lambda: less_some(hypercube(10), 8, 1),
    "random 4-regular 512": lambda: random_regular(4, 512, 0),
    "random 6-regular 1024": lambda: random_regular(6, 1024, 0),
    "random Eulerian 512": lambda: random_eulerian(512, 5, 0),
    "random Eulerian 1024": lambda: random_eulerian(1024, 5, 1),
    "random digraph 512": lambda: random_digraph(512, 5, 0),
    "random digraph 1024": lambda: random_digraph(1024, 5, 1),
    "fat tree 16-ary 2-level": lambda: fat_tree(16, 2),
    "fat tree 8-ary 3-level": lambda: fat_tree(8, 3),
    "fat tree 8-ary 3-level less a wire": lambda: less(fat_tree(8, 3), (512, 576)),
    "fat tree 32-ary 2-level": lambda: fat_tree(32, 2),
    "fat tree 10-ary 3-level": lambda: fat_tree(10, 3),
    "leaf-spine 32x16 under 8, 2:1": lambda: leaf_spine(32, 16, 8, oversubscription=2),
    "leaf-spine 64x16 under 16, 4:1": lambda: leaf_spine(64, 16, 16, oversubscription=4),
    "leaf-spine 32x16 under 8 less a wire": lambda: less(leaf_spine(32, 16, 8), (512, 544)),
    "A100 x64 with a dead NIC": lambda: _cluster(dgx_a100, 64, dead=[5]),
    "A100 x64 with a slow NIC": lambda: _cluster(dgx_a100, 64, slow=[5]),
    "A100 x128 with 4 dead NICs": lambda: _cluster(dgx_a100, 128, dead=[5, 6, 300, 901]),
    "H100 x128 with a slow NIC": lambda: _cluster(dgx_h100, 128, slow=[77]),
    "MI250 x32 with a dead NIC": lambda: _cluster(mi250, 32, dead=[5]),
    "MI250 x64 with a slow NIC": lambda: _cluster(mi250, 64, slow=[5]),
    "64 hosts of 8 on rails less a wire": lambda: less(multi_rail(64, 8), (3, 512 + 3)),
    "dragonfly 33x16": lambda: dragonfly(33, 16).without(),
    "dragonfly 32x32 less 8 wires": lambda: less_some(dragonfly(32, 32), 8, 2),
    "two rings of 128": lambda: two_rings(128),
    "two rings of 256": lambda: two_rings(256),
    "two rings of 512": lambda: two_rings(512),
    "star of 8 rings of 64": lambda: star_of_rings(8, 64),
    "star of 16 rings of 64": lambda: star_of_rings(16, 64),
    "torus 16x16 and fat tree 16-ary 2-level": lambda: joined(
        torus(16, 16, bandwidth=GB), fat_tree(16, 2, bandwidth=GB), 8, GB
    ),
    "hypercube 9 and A100 x64": lambda: joined(
        hypercube(9, bandwidth=50 * GB), dgx_a100(64), 16, 50 * GB
    ),
}


# ---------------------------------------------------------------------- the benchmark


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


def measure(topology: Topology) -> dict[str, Any]:
    """One row: every stage of one network, and the peer's."""
    best, search = cpu_timed(lambda: optimum(topology))
    # Without guesses, which is the way that the authors' code takes.
    logical, removal = cpu_timed(lambda: remove_switches(topology, best.scaling))
    capacity = logical.capacity()
    _, packing = cpu_timed(lambda: pack_trees(topology.num_ranks, capacity, best.scaling.trees))
    flow, whole = cpu_timed(lambda: forest(topology))
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
    best, search = cpu_timed(lambda: optimum(topology))
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
    best, search = cpu_timed(lambda: optimum(topology))
    flow, whole = cpu_timed(lambda: forest(topology))
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
    record = json.loads(page_tables.SCALE.read_text()) if page_tables.SCALE.exists() else {}
    where = {"commit": recording.commit(), "machine": describe_machine()["cpu"]}
    record |= {str(row["network"]): {**row, **where} for row in rows}
    ordered = {name: record[name] for name in NETWORKS if name in record}
    write_text(page_tables.SCALE, json.dumps(ordered, indent=1) + "\n")
    page_tables.write()


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
        rows = kept("forestcoll-scale", (measure_scale(name, make()) for name, make in chosen))
        report("forestcoll-scale", rows)
        if options.record:
            record_scale(rows)
        return
    report("forestcoll", (measure(make()) for make in SMALL))
    if options.large:
        report("forestcoll-large", (measure_large(make(), peer) for make, peer in LARGE))
    print("Seconds are CPU seconds of one call after compilation; the peer's were taken elsewhere.")
