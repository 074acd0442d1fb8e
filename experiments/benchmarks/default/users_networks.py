"""The default on networks like those that users have: against every synthesizer, and the bound.

Sixty networks drawn from a fixed seed, a seventh of each family, each with one of five collectives
and one of three sizes: hosts with a switch or a ring inside and one NIC, rails, oversubscribed
trees of switches, tori with a link missing or at half speed, trees of PCIe switches, two sites far
apart, and random regular networks of one or two speeds. Beside the default's time stand the fastest
schedule of any one synthesizer over all chunk counts (``default --exhaustive``), the bound, and the
CPU seconds that choosing took, kernels compiled before. A default within 3 % of the bound is not
searched for: the bound is its best.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import process_time
from typing import Any

import networkx as nx
import numpy as np

from experiments.benchmarks.default.default import WITHIN, Limits, search
from experiments.benchmarks.report import report, write
from experiments.study import printed
from jaxcoll import executors, topologies
from jaxcoll.bounds import bound
from jaxcoll.simulation import simulate
from jaxcoll.synth import synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.topology import Topology

NAME = "users_networks"
SEED = 27
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")
SIZES = {"4 KiB": 2**12, "1 MiB": 2**20, "256 MiB": 2**28}

# A wire is two vertices, seconds and bytes per second, with a link each way.
Wire = tuple[int, int, float, float]


# ---------------------------------------------------------------------- networks


def wired(ranks: int, vertices: int, wires: Iterable[Wire], name: str) -> Topology:
    """The network of some wires; vertices from ``ranks`` on are switches."""
    u, v, alpha, bandwidth = zip(*wires, strict=True)
    return Topology(
        ranks,
        np.asarray(u + v),
        np.asarray(v + u),
        np.asarray(alpha + alpha),
        np.asarray(bandwidth + bandwidth),
        num_vertices=vertices,
        name=name,
    )


def hosts_with_a_nic(random: np.random.Generator) -> Topology:
    """Hosts of four or eight with a switch or a ring inside, and one NIC for all of a host."""
    hosts, inner = int(random.choice([2, 4])), int(random.choice([4, 8]))
    n, nic = hosts * inner, float(random.choice([12.5e9, 25e9]))
    wires: list[Wire] = []
    if random.random() < 0.5:
        wires += [(r, n + 1 + r // inner, 1e-6, 150e9) for r in range(n)]
        wires += [(n + 1 + h, n, 5e-6, nic) for h in range(hosts)]
        return wired(n, n + 1 + hosts, wires, f"{hosts} hosts of {inner} on a switch, one NIC")
    for h in range(hosts):
        first = h * inner
        wires += [(first + i, first + (i + 1) % inner, 1e-6, 50e9) for i in range(inner)]
        wires.append((first, n, 5e-6, nic))
    return wired(n, n + 1, wires, f"{hosts} hosts of rings of {inner}, one NIC")


def rails(random: np.random.Generator) -> Topology:
    """Hosts around a switch each, and a rail for every rank of a host."""
    hosts, inner = int(random.choice([2, 3, 4])), int(random.choice([4, 8]))
    rail = float(random.choice([12.5e9, 25e9, 50e9]))
    return topologies.multi_rail(hosts, inner, bandwidth=(300e9, rail))


def oversubscribed(random: np.random.Generator) -> Topology:
    """Two levels of switches, with two to four times as much bandwidth below as above."""
    leaves, ranks = int(random.choice([2, 4])), int(random.choice([4, 8]))
    spines, ratio = int(random.choice([1, 2])), int(random.choice([2, 4]))
    return topologies.leaf_spine(leaves, ranks, spines, oversubscription=ratio)


def damaged_torus(random: np.random.Generator) -> Topology:
    """A torus with a wire missing, or at half its speed."""
    sides = [(2, 4), (4, 4), (3, 5), (4, 8), (2, 4, 4)][random.integers(5)]
    torus = topologies.torus(*sides)
    link = int(random.integers(torus.num_links))
    u, v = int(torus.src[link]), int(torus.dst[link])
    if random.random() < 0.5:
        return torus.without(links=[(u, v), (v, u)])
    graph = torus.to_networkx()
    for ends in ((u, v), (v, u)):
        graph.edges[ends]["bandwidth"] /= 2
    graph.name += ", a wire at half speed"
    return Topology.from_networkx(graph)


def pcie_trees(random: np.random.Generator) -> Topology:
    """Hosts in which pairs of ranks share a PCIe switch, the switches a root with the NIC."""
    hosts, pairs = int(random.choice([1, 2])), int(random.choice([2, 4]))
    n, nic = 2 * pairs * hosts, float(random.choice([12.5e9, 25e9]))
    switch, root = n, n + pairs * hosts
    wires: list[Wire] = [(r, switch + r // 2, 1e-6, 25e9) for r in range(n)]
    wires += [(switch + s, root + s // pairs, 1e-6, 25e9) for s in range(pairs * hosts)]
    if hosts > 1:
        wires += [(root + h, root + hosts, 5e-6, nic) for h in range(hosts)]
    vertices = root + hosts + (hosts > 1)
    return wired(n, vertices, wires, f"{hosts} PCIe trees of {2 * pairs}")


def two_sites(random: np.random.Generator) -> Topology:
    """Two clusters, each around a switch, over one wire of milliseconds between the switches."""
    inner, far = int(random.choice([4, 8, 16])), float(random.choice([1e-4, 5e-3]))
    n = 2 * inner
    wires: list[Wire] = [(r, n + r // inner, 1e-6, 50e9) for r in range(n)]
    wires.append((n, n + 1, far, float(random.choice([1.25e9, 12.5e9]))))
    return wired(n, n + 2, wires, f"2 sites of {inner}")


def random_regular(random: np.random.Generator) -> Topology:
    """A random regular network, of one speed or two."""
    n, degree = int(random.choice([8, 16, 32, 64])), int(random.choice([3, 4]))
    is_mixed = random.random() < 0.5
    while True:
        graph = nx.random_regular_graph(degree, n, seed=int(random.integers(2**31)))
        if nx.is_connected(graph):
            break
    speeds = [50e9, 25e9] if is_mixed else [50e9]
    wires: list[Wire] = [(u, v, 1e-6, float(random.choice(speeds))) for u, v in graph.edges]
    name = f"random {degree}-regular {n}" + (", two speeds" if is_mixed else "")
    return wired(n, n, wires, name)


FAMILIES: Sequence[Callable[[np.random.Generator], Topology]] = (
    hosts_with_a_nic,
    rails,
    oversubscribed,
    damaged_torus,
    pcie_trees,
    two_sites,
    random_regular,
)


def drawn(number: int, seed: int = SEED) -> tuple[Topology, str, str]:
    """The network, the collective and the size of a case."""
    random = np.random.default_rng([seed, number])
    topology = FAMILIES[number % len(FAMILIES)](random)
    return topology, str(random.choice(COLLECTIVES)), str(random.choice(list(SIZES)))


# ---------------------------------------------------------------------- a case


def measure(number: int, limits: Limits, seed: int = SEED) -> dict[str, Any]:
    """The row of a case."""
    topology, kind, size = drawn(number, seed)
    nbytes = SIZES[size]
    started = process_time()
    schedule = synthesize(topology, kind, nbytes=nbytes)
    spent = process_time() - started
    seconds = simulate(schedule, nbytes).time
    least = bound(topology, kind, nbytes).time
    best, by = least, "bound"
    if seconds > WITHIN * least:
        found = search(topology, kind, limits, {size: nbytes}).best[size]
        best, by = found.seconds, f"{found.synthesizer} x{found.chunks}"
    return {
        "case": number,
        "network": topology.name,
        "ranks": topology.num_ranks,
        "collective": kind,
        "size": size,
        "us": seconds * 1e6,
        "took": f"{chosen_by_auto(schedule)} x{schedule.collective.chunks_per_shard}",
        "/ best": seconds / best,
        "best by": by,
        "/ bound": seconds / least,
        "CPU s": spent,
    }


# ---------------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--sends", type=int, default=2**18, help="of a schedule (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU s a variant (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes (%(default)s)")
    options = parser.parse_args(argv)
    limits = Limits(options.sends, options.seconds)
    _compile(limits)
    rows: list[Mapping[str, Any]] = []
    case = functools.partial(measure, limits=limits, seed=options.seed)
    with executors.with_workers(options.workers) as executor:
        for row in printed(executors.ordered(case, range(options.cases), executor)):
            rows.append(row)
            write(NAME, rows)
    report(NAME, rows)
    for column in ("/ best", "/ bound", "CPU s"):
        values = [row[column] for row in rows]
        print(f"{column}: median {statistics.median(values):.3f}, most {max(values):.3f}")
    above = [str(row["case"]) for row in rows if row["/ best"] > WITHIN]
    cases = ", ".join(f"case {number}" for number in above) or "none"
    print(f"Above {WITHIN} of the best, of {len(rows)} cases: {cases}.")


def _compile(limits: Limits) -> None:
    """Run every kernel once, so that later timings count no compilation."""
    few = Limits(2**10, limits.seconds)
    for topology in (topologies.mesh(2, 3, bandwidth=(1e9, 3e9)), topologies.dgx_a100(1)):
        for kind in COLLECTIVES:
            for size in ("4 KiB", "256 MiB"):
                search(topology, kind, few, {size: SIZES[size]})
