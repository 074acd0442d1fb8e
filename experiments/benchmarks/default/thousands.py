"""The default at 256 to 16,384 ranks: time over the bound, CPU seconds and memory.

A row for every network, collective and size, printed as it comes, each in a process of its own: the
memory is the most that the process ever had. CPU seconds are those of ``jc.synthesize``, with its
proof. A case that is refused, or killed, or takes more than its seconds on the clock, has a row
that says so. With ``--faults`` a wire of each network is slow or lost, or a host is. With
``--orbits`` schedules are those of ``jc.synthesize_orbit``, by the sends of one
rank, and the rows are of another table. ``--record`` adds the rows to ``thousands.json``, each as
it comes, and writes the tables of ``docs/thousands.md``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from experiments import page_tables
from experiments.benchmarks.forestcoll import random_regular
from experiments.study import describe_machine
from experiments.timing import cpu_timed, report
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.errors import JaxcollError, SearchWarning
from jaxcoll.io.files import write_text
from jaxcoll.kinds import names_in
from jaxcoll.simulation import simulate
from jaxcoll.synth import synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.orbits import synthesize_orbit
from jaxcoll.topology import Topology

RANKS = (256, 1024, 4096, 16384)
_SIDES = {256: (4, 8, 8), 1024: (8, 8, 16), 4096: (16, 16, 16), 16384: (16, 32, 32)}
_LEVELS = {256: 4, 1024: 5, 4096: 6, 16384: 7}
NETWORKS: Mapping[str, Callable[[int], Topology]] = {
    "dgx-h100": lambda n: topologies.dgx_h100(n // 8),
    "dgx-a100": lambda n: topologies.dgx_a100(n // 8),
    "rails": lambda n: topologies.multi_rail(n // 8, 8),
    "torus-2d": lambda n: topologies.torus(round(n**0.5), round(n**0.5)),
    "torus-unequal": lambda n: topologies.torus(round(n**0.5) // 2, round(n**0.5) * 2),
    "torus-3d": lambda n: topologies.torus(*_SIDES[n]),
    "dragonfly": lambda n: topologies.dragonfly(round(n**0.5), round(n**0.5)),
    "fat-tree": lambda n: topologies.fat_tree(4, _LEVELS[n]),
    "leaf-spine-3:1": lambda n: topologies.leaf_spine(n // 32, 32, 8, oversubscription=3),
    "random-4-regular": lambda n: random_regular(4, n, 0),
}


def _wire(network: Topology) -> tuple[int, int]:
    """The slowest wire of a rank in the middle; if it has only one, one of its switch upwards."""
    at = network.num_ranks // 2
    links = np.flatnonzero(network.src == at)
    if len(links) == 1:
        at = int(network.dst[links[0]])
        links = np.flatnonzero((network.src == at) & (network.dst >= network.num_ranks))
    return at, int(network.dst[links[network.bandwidth[links].argmin()]])


def _slow(network: Topology) -> Topology:
    u, v = _wire(network)
    return network.scaled({(u, v): Fraction(1, 5), (v, u): Fraction(1, 5)})


def _cut(network: Topology) -> Topology:
    u, v = _wire(network)
    return network.without(links=[(u, v), (v, u)])


def _smaller(network: Topology) -> Topology:
    middle = network.num_ranks // 2
    names = network.vertex_names
    return network.without(ranks=[names[middle].partition(" rank")[0] if names else middle])


# What happens to a network; ranks are one if the network has no hosts.
FAULTS: Mapping[str, Callable[[Topology], Topology]] = {
    "none": lambda network: network,
    "slow-wire": _slow,
    "lost-wire": _cut,
    "lost-host": _smaller,
}


def case_name(network: str, fault: str) -> str:
    """The name of a network with a fault in rows."""
    return network if fault == "none" else f"{network}, {fault}"


def network_called(name: str, ranks: int) -> Topology:
    """The network of a row, that had so many ranks before its fault."""
    network, _, fault = name.partition(", ")
    return FAULTS[fault or "none"](NETWORKS[network](ranks))


COLLECTIVES = (*names_in("lax"), "broadcast", "reduce")
CASE = ("network", "ranks", "collective", "size")
SIZES = {"1 KiB": 2**10, "1 MiB": 2**20, "64 MiB": 2**26, "1 GiB": 2**30}


def measure(
    network: str, ranks: int, kind: str, size: str, by_orbits: bool = False
) -> dict[str, Any]:
    """The row of one case, in this process."""
    topology, nbytes = network_called(network, ranks), SIZES[size]
    make = synthesize_orbit if by_orbits else synthesize
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", SearchWarning)
        try:
            schedule, spent = cpu_timed(lambda: make(topology, kind, nbytes=nbytes))
        except JaxcollError as error:
            return {"refused": str(error)[:100]}
    seconds = simulate(schedule, nbytes).time
    least = bound(topology.forwarding_only(), kind, nbytes).time
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "/ bound": seconds / least,
        "us": seconds * 1e6,
        "took": chosen_by_auto(schedule) or schedule.provenance.synthesizer,
        "chunks": schedule.collective.chunks_per_shard,
        "CPU s": spent,
        "GiB": peak / 2**30,
        "warned": any(issubclass(each.category, SearchWarning) for each in seen),
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for every case, measured in a process of its own."""
    cases = (
        (case_name(network, fault), ranks, kind, size)
        for ranks in options.ranks
        for network in options.networks
        for fault in options.faults
        for kind in options.collectives
        for size in options.sizes
    )
    for case in cases:
        command = [sys.executable, "-m", __spec__.name, *map(str, case)]
        row: dict[str, Any] = dict(zip(CASE, case, strict=True))
        if options.orbits:
            command.append("orbits")
            row["by_orbits"] = True
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=options.seconds, check=True
            )
            yield row | json.loads(done.stdout)
        except subprocess.CalledProcessError as error:
            # Killed by a signal, as for memory, or by an error: the other cases still count.
            last = (error.stderr.strip().splitlines() or ["no word"])[-1]
            code = error.returncode
            why = f"killed by signal {-code}" if code < 0 else f"ended with {code}: {last[:60]}"
            yield row | {"refused": why}
        except subprocess.TimeoutExpired:
            yield row | {"refused": f"took more than {options.seconds:g} s"}


def recorded(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same rows, each in the record and on the page before the next is measured."""
    path = page_tables.THOUSANDS
    for row in rows:
        known = json.loads(path.read_text())["rows"] if path.exists() else {}
        # In the order of the options, whatever was measured first.
        ordered = sorted([*known.values(), row], key=_place)
        found = {_name(each): each for each in ordered}
        record = {"machine": describe_machine(), "rows": found}
        write_text(path, json.dumps(record, indent=1) + "\n")
        page_tables.write()
        yield row


def _name(row: Mapping[str, Any]) -> str:
    return " ".join(str(row[part]) for part in CASE) + " by orbits" * row.get("by_orbits", False)


def _place(row: Mapping[str, Any]) -> tuple[int, ...]:
    names = [case_name(network, fault) for network in NETWORKS for fault in FAULTS]
    lists = (names, list(RANKS), list(COLLECTIVES), list(SIZES))
    network, ranks, kind, size = (
        listed.index(row[part]) for listed, part in zip(lists, CASE, strict=True)
    )
    return ranks, network, kind, size


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="thousands", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", choices=RANKS, default=RANKS[:2])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=["none"])
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["64 MiB"])
    parser.add_argument("--seconds", type=float, default=600.0, help="of a row (%(default)s)")
    parser.add_argument("--orbits", action="store_true", help="by jc.synthesize_orbit")
    parser.add_argument("--record", action="store_true", help="also for docs/thousands.md")
    options = parser.parse_args(argv)
    measured = rows(options)
    report("thousands", recorded(measured) if options.record else measured)


if __name__ == "__main__":
    _network, _ranks, _kind, _size, *_how = sys.argv[1:]
    print(json.dumps(measure(_network, int(_ranks), _kind, _size, bool(_how))))
