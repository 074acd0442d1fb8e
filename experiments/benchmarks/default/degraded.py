"""All-reduce on unequal and damaged networks: the default over the exact bound, and its rivals.

A row each for networks with a link down or slow, with ranks or a switch missing, with links of two
speeds, and whole; then forty random degraded networks and forty of ``users_networks``, drawn from
seeds of their own. Beside the default's time over ``jc.bound(..., exact=True)`` stand the chunks
per shard, the CPU seconds of the choice (kernels compiled before), the times of joint trees with
8, 16 and 32 chunks on tori, and the rivals: the fastest ring, and ForestColl's two phases at their
optimum. On whole networks the default is compared with itself without joint trees.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from time import process_time
from typing import Any

import networkx as nx
import numpy as np

from experiments.benchmarks.default import users_networks
from experiments.benchmarks.report import report, text, write
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.errors import JaxcollError
from jaxcoll.simulation import simulate
from jaxcoll.synth import Portfolio, synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.topology import Topology

NAME = "degraded"
SEED = 33
NBYTES = 2**28
# The time that is asked of the default, over the exact bound; of tori with up to 32 chunks.
WITHIN, WITHIN_ON_TORI = 1.05, 1.06
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
    return users_networks.wired(ranks, ranks, wires, f"random 4-regular {ranks}, two speeds")


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
    yield "random 4-regular 16, two speeds", of_two_speeds(16, SEED)
    yield "random 4-regular 64, two speeds", of_two_speeds(64, SEED)
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


def drawn(number: int, seed: int = SEED) -> Topology:
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


def measure(group: str, name: str, topology: Topology) -> dict[str, Any]:
    """The row of a network."""
    started = process_time()
    schedule = synthesize(topology, "all_reduce", nbytes=NBYTES)
    spent = process_time() - started
    seconds = simulate(schedule, NBYTES).time
    least = bound(topology, "all_reduce", NBYTES, exact=True).time
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
        others = Portfolio(NBYTES, names=tuple(n for n in names if n != "joint_trees"))
        started = process_time()
        row["without joint trees / bound"] = _seconds(topology, synthesizer=others) / least
        row["without, CPU s"] = process_time() - started
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
        topology = drawn(number, seed)
        yield "degraded", f"{number}: {topology.name}", topology
    for number in range(random_cases):
        topology, *_ = users_networks.drawn(number, seed)
        yield "users'", f"{number}: {topology.name}", topology


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--random", type=int, default=40, help="of either kind (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="networks whose name or group has this in it")
    options = parser.parse_args(argv)
    for topology in (topologies.mesh(2, 3, bandwidth=(1e9, 3e9)), topologies.dgx_a100(1)):
        measure("whole", "torus", topology)  # compiles every kernel
    rows: list[Mapping[str, Any]] = []
    for group, name, topology in networks(options.random, options.seed):
        if options.only not in f"{group} {name}":
            continue
        rows.append(measure(group, name, topology))
        print(", ".join(f"{key} {text(value)}" for key, value in rows[-1].items()), flush=True)
        write(NAME, rows)
    report(NAME, rows)
    for group in dict.fromkeys(row["group"] for row in rows):
        values = [row["/ bound"] for row in rows if row["group"] == group]
        print(f"{group}: / bound median {statistics.median(values):.4f}, most {max(values):.4f}")
    above = [row["network"] for row in rows if row["/ bound"] > WITHIN]
    print(f"Above {WITHIN} of the bound, of {len(rows)}: {'; '.join(above) or 'none'}.")
