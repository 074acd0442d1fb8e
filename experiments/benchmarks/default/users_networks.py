"""The default on networks like those that users have: against every synthesizer, and the bound.

Sixty networks drawn from a fixed seed, a seventh of each family, each with one of five collectives
and one of three sizes: hosts with a switch or a ring inside and one NIC, rails, oversubscribed
trees of switches, tori with a link missing or at half speed, trees of PCIe switches, two sites far
apart, and random regular networks of one or two speeds. Beside the default's time stand the fastest
schedule of any one synthesizer over all chunk counts (``default --exhaustive``), the bound, and the
CPU seconds that choosing took, kernels compiled before. A default within 3 % of the bound is not
searched for: the bound is its best.

``degraded`` has networks that lost links or ranks, and all_reduces alone.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np

from experiments.benchmarks.default import WITHIN, Limits, search
from experiments.timing import cpu_timed, kept, report
from jaxcoll import executors, topologies
from jaxcoll.bounds import bound
from jaxcoll.errors import JaxcollError
from jaxcoll.simulation import simulate
from jaxcoll.synth import Portfolio, synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.topology import Topology

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
        # A random regular graph of few ranks may fall apart.
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
    schedule, spent = cpu_timed(lambda: synthesize(topology, kind, nbytes=nbytes))
    seconds = simulate(schedule, nbytes).time
    least = bound(topology.forwarding_only(), kind, nbytes).time
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
    parser = argparse.ArgumentParser(prog="users_networks", description=__doc__)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--sends", type=int, default=2**18, help="of a schedule (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU s a variant (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes (%(default)s)")
    options = parser.parse_args(argv)
    limits = Limits(options.sends, options.seconds)
    _compile(limits)
    case = functools.partial(measure, limits=limits, seed=options.seed)
    with executors.with_workers(options.workers) as executor:
        made = executors.ordered(case, range(options.cases), executor)
        rows = kept("users_networks", made)
    report("users_networks", rows)
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


DEGRADED_SEED = 33
NBYTES = 2**28
# The time that is asked of the default, over the exact bound.
NEAR = 1.05
FEW_CHUNKS = (8, 16, 32)
_MOST_RIVALED = 128  # ranks up to which rivals are looked for
# Ranks up to which joint trees are timed by their chunks: a minute each on the largest.
_MOST_BY_CHUNKS = 64


# ---------------------------------------------------------------------- networks


def less(topology: Topology, *wires: tuple[int, int]) -> Topology:
    """The network without some wires, each way."""
    return topology.without(links=[pair for u, v in wires for pair in ((u, v), (v, u))])


def half(topology: Topology, *wires: tuple[int, int]) -> Topology:
    """The network with some wires at half their speed, each way."""
    slow = [pair for u, v in wires for pair in ((u, v), (v, u))]
    return topology.scaled(dict.fromkeys(slow, Fraction(1, 2)))


def of_two_speeds(ranks: int, seed: int) -> Topology:
    """A random 4-regular network of 25 and 50 GB/s."""
    random = np.random.default_rng(seed)
    graph = nx.random_regular_graph(4, ranks, seed=seed)
    wires = [(u, v, 1e-6, float(random.choice([25e9, 50e9]))) for u, v in graph.edges]
    return wired(ranks, ranks, wires, f"random 4-regular {ranks}, two speeds")


def switch_of_two_speeds() -> Topology:
    """A switch with 16 ranks, half of them at half the speed."""
    slow = [(rank, 16) for rank in range(8, 16)]
    return half(topologies.switch(16), *slow)


def _hosts(count: int) -> Topology:
    return topologies.dgx_h100(count)


def _nic(hosts: Topology, rank: int) -> tuple[int, int]:
    return rank, hosts.num_vertices - 1


def _tori() -> Iterator[tuple[str, Topology]]:
    for sides in ((4, 4), (8, 8), (4, 4, 4)):
        torus = topologies.torus(*sides)
        name = f"torus {'x'.join(map(str, sides))}"
        yield f"{name} less a link", less(torus, (0, 1))
        yield f"{name}, a link at half speed", half(torus, (0, 1))
        yield f"{name} less a rank", torus.without(ranks=[5])


def cases() -> Iterator[tuple[str, Topology]]:
    """Networks with a weak spot each, by name."""
    yield from _tori()
    for count in (2, 4):
        hosts = _hosts(count)
        yield f"{count} DGX H100, a NIC at half speed", half(hosts, _nic(hosts, 3))
        yield f"{count} DGX H100, a NIC down", less(hosts, _nic(hosts, 3))
    yield (
        "hosts of 8, 7, 8 and 8",
        topologies.nvswitch_hosts((8, 7, 8, 8), inside=450e9, network=50e9),
    )
    rails = topologies.multi_rail(4, 8)
    rail = rails.num_vertices - 1
    ends = zip(rails.src.tolist(), rails.dst.tolist(), strict=True)
    yield "4 hosts of 8 less a rail", rails.without(links=[e for e in ends if rail in e])
    yield "switch of two speeds", switch_of_two_speeds()
    yield "random 4-regular 16, two speeds", of_two_speeds(16, DEGRADED_SEED)
    yield "random 4-regular 64, two speeds", of_two_speeds(64, DEGRADED_SEED)
    yield "ring 8, a link at half speed", half(topologies.ring(8), (0, 1))
    yield "mesh 4x4", topologies.mesh(4, 4)
    yield "torus 32x32 less a link", less(topologies.torus(32, 32), (0, 1))


def whole() -> Iterator[tuple[str, Topology]]:
    """Networks that nothing is wrong with."""
    for sides in ((4, 4), (8, 8), (4, 4, 4)):
        torus = topologies.torus(*sides)
        yield str(torus.name), torus
    yield "2 DGX H100", _hosts(2)
    yield "4 DGX H100", _hosts(4)
    yield "hypercube 5", topologies.hypercube(5)


def drawn_degraded(number: int, seed: int = DEGRADED_SEED) -> Topology:
    """A random degraded network: one to three wires down or slow, or a rank gone."""
    random = np.random.default_rng([seed, number])
    made: Sequence[Callable[[], Topology]] = (
        lambda: topologies.torus(*[(3, 4), (4, 4), (4, 8), (8, 8), (2, 4, 4)][random.integers(5)]),
        lambda: _hosts(int(random.choice([2, 4]))),
        lambda: topologies.multi_rail(int(random.choice([2, 4])), int(random.choice([4, 8]))),
        lambda: topologies.mesh(*[(4, 4), (3, 5), (2, 3, 4)][random.integers(3)]),
        lambda: topologies.hypercube(int(random.choice([3, 4, 5]))),
    )
    topology = made[number % len(made)]()
    while True:
        try:
            return _harmed(topology, random)
        except JaxcollError:  # cut in two: draw again
            continue


def _harmed(topology: Topology, random: np.random.Generator) -> Topology:
    kind = random.integers(3)
    if kind == 2:
        return topology.without(ranks=[int(random.integers(topology.num_ranks))])
    links = random.choice(topology.num_links, int(random.integers(1, 4)), replace=False)
    wires = [(int(topology.src[link]), int(topology.dst[link])) for link in links]
    return (less, half)[kind](topology, *wires)


# ---------------------------------------------------------------------- a row


def measure_degraded(group: str, name: str, topology: Topology) -> dict[str, Any]:
    """The row of a network."""
    schedule, spent = cpu_timed(lambda: synthesize(topology, "all_reduce", nbytes=NBYTES))
    seconds = simulate(schedule, NBYTES).time
    least = bound(topology.forwarding_only(), "all_reduce", NBYTES, exact=True).time
    row: dict[str, Any] = {
        "group": group,
        "network": name,
        "ranks": topology.num_ranks,
        "/ bound": seconds / least,
        "took": chosen_by_auto(schedule) or schedule.provenance.synthesizer,
        "chunks": schedule.collective.chunks_per_shard,
        "CPU s": spent,
    }
    is_small = topology.num_ranks <= _MOST_RIVALED
    for rival in ("ring", "forestcoll") if is_small else ():
        row[f"{rival} / bound"] = _seconds(topology, synthesizer=rival) / least
    if "torus" in name and topology.num_ranks <= _MOST_BY_CHUNKS:
        for count in FEW_CHUNKS:
            joint = _seconds(topology, synthesizer="joint_trees", chunks=count)
            row[f"k={count}"] = joint / least
    if group == "whole":
        names = tuple(name for name, kind in REGISTRY.items() if kind.tried_by_auto)
        # The default without joint trees: whole networks must not take longer with them.
        others = Portfolio(NBYTES, names=tuple(n for n in names if n != "joint_trees"))
        taken, spent = cpu_timed(lambda: _seconds(topology, synthesizer=others))
        row |= {"without joint trees / bound": taken / least, "without, CPU s": spent}
    return row


def _seconds(topology: Topology, **options: Any) -> float:
    """Seconds of one synthesizer's schedule; NaN where it is not defined for the network."""
    try:
        schedule = synthesize(topology, "all_reduce", nbytes=NBYTES, **options)
    except JaxcollError:
        return float("nan")
    return simulate(schedule, NBYTES).time


# ---------------------------------------------------------------------- the command


def networks(random_cases: int, seed: int) -> Iterator[tuple[str, str, Topology]]:
    """All networks to measure: group, name and network."""
    for name, topology in cases():
        yield "named", name, topology
    for name, topology in whole():
        yield "whole", name, topology
    for number in range(random_cases):
        topology = drawn_degraded(number, seed)
        yield "degraded", f"{number}: {topology.name}", topology
    for number in range(random_cases):
        topology, *_ = drawn(number, seed)
        yield "users'", f"{number}: {topology.name}", topology


def degraded(argv: Sequence[str]) -> None:
    """All-reduce on unequal and damaged networks: the default over the exact bound, and its rivals.

    A row each for networks with a link down or slow, with ranks or a switch missing, with links of
    two speeds, and whole; then forty random degraded networks and forty of ``users_networks``,
    drawn from seeds of their own. Beside the default's time over ``jc.bound(..., exact=True)``
    stand the chunks per shard, the CPU seconds of the choice (kernels compiled before), the times
    of joint trees with 8, 16 and 32 chunks on tori, and the rivals: the fastest ring, and
    ForestColl's two phases at their optimum. On whole networks the default is compared with itself
    without joint trees.
    """
    parser = argparse.ArgumentParser(prog="degraded", description=degraded.__doc__)
    parser.add_argument("--random", type=int, default=40, help="of either kind (%(default)s)")
    parser.add_argument("--seed", type=int, default=DEGRADED_SEED)
    parser.add_argument("--only", default="", help="networks whose name or group has this in it")
    options = parser.parse_args(argv)
    for topology in (topologies.mesh(2, 3, bandwidth=(1e9, 3e9)), topologies.dgx_a100(1)):
        measure_degraded("whole", "torus", topology)  # compiles every kernel
    made = (
        measure_degraded(group, name, topology)
        for group, name, topology in networks(options.random, options.seed)
        if options.only in f"{group} {name}"
    )
    report("degraded", rows := kept("degraded", made))
    for group in dict.fromkeys(row["group"] for row in rows):
        values = [row["/ bound"] for row in rows if row["group"] == group]
        print(f"{group}: / bound median {statistics.median(values):.4f}, most {max(values):.4f}")
    above = [row["network"] for row in rows if row["/ bound"] > NEAR]
    print(f"Above {NEAR} of the bound, of {len(rows)}: {'; '.join(above) or 'none'}.")
