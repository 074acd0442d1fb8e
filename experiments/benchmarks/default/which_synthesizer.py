"""Which synthesizer to take: every one of them on networks that people have, in every order.

A row per network, collective, order of execution and size: the time of the fastest schedule over
the bound, and all synthesizers within 1 % of it. Chunks are those that each takes for the size.
Nothing is charged beside the links, so the rows are the same on every machine. Left out are
``auto``, which tries the others, and the exact searches, which take minutes.

``--record`` adds the rows to ``which_synthesizer.json``, each network as it comes, and writes the
tables of ``docs/which-synthesizer.md``. Cases that are recorded are not run, so that a run that was
stopped goes on where it was; ``--again`` runs them all the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiments import choosing, page_tables
from experiments.timing import cpu_timed, kept, report
from jaxcoll import topologies
from jaxcoll.comparison import SEARCHES, compare
from jaxcoll.io.files import write_text
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.synth import SYNTHESIZERS
from jaxcoll.topology import Topology

NETWORKS: Mapping[str, Callable[[], Topology]] = {
    "torus 2x4": lambda: topologies.torus(2, 4),
    "dgx-h100 x1": lambda: topologies.dgx_h100(1),
    "dgx-h100 x2": lambda: topologies.dgx_h100(2),
    "torus 4x4": lambda: topologies.torus(4, 4),
    "switch of 8": lambda: topologies.switch(8),
    "mesh 3x3": lambda: topologies.mesh(3, 3),
    "rails 4x4": lambda: topologies.multi_rail(4, 4),
    "torus 2x4 less a link": lambda: topologies.torus(2, 4).without(links=[(0, 1), (1, 0)]),
    "mi250 x1": lambda: topologies.mi250(1),
    "fat tree of 16": lambda: topologies.fat_tree(4, 2),
    "torus 4x4x4": lambda: topologies.torus(4, 4, 4),
    "dgx-h100 x8": lambda: topologies.dgx_h100(8),
}
SMALL = tuple(name for name, made in NETWORKS.items() if made().num_ranks <= 16)
COLLECTIVES = ("all_reduce", "all_gather", "all_to_all", "broadcast")
# A machine of each order that charges nothing: its times are those of the links alone.
ORDERS: Mapping[str, ExecutionCosts | None] = {
    "links": None,
    "steps": ExecutionCosts("gpu", 0.0, 0.0, 0.0, 0.0, order="steps"),  # type: ignore[arg-type]
    "rounds": ExecutionCosts("cpu", 0.0, 0.0, 0.0, 0.0, order="rounds"),  # type: ignore[arg-type]
}
SIZES = {"1 KiB": 2**10, "1 MiB": 2**20, "256 MiB": 2**28}
NAMES = tuple(name for name in SYNTHESIZERS if name not in (*SEARCHES, "auto"))


def measure(network: str, kind: str, order: str) -> list[dict[str, Any]]:
    """The rows of a network, a collective and an order: one per size."""
    topology = NETWORKS[network]()
    times: dict[int, dict[str, float]] = {nbytes: {} for nbytes in SIZES.values()}
    least = {}
    for row in compare(
        topology, kind, [*SIZES.values()], synthesizers=NAMES, execution=ORDERS[order]
    ):
        least[row.nbytes] = row.bound_seconds
        if row.seconds is not None:
            times[int(row.nbytes)][row.synthesizer] = row.seconds
    return [
        {
            "network": network,
            "ranks": topology.num_ranks,
            "collective": kind,
            "order": order,
            "size": size,
            "us": min(times[nbytes].values()) * 1e6,
            "/ bound": round(min(times[nbytes].values()) / least[nbytes], 3),
            "over": _over(times[nbytes]),
        }
        for size, nbytes in SIZES.items()
    ]


def _over(seconds: Mapping[str, float]) -> dict[str, float]:
    """By name the time over the least of all, rounded up: no other is within 1 % by rounding."""
    best = min(seconds.values())
    return {name: math.ceil(1e4 * each / best - 1e-6) / 1e4 for name, each in seconds.items()}


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all cases that are asked for, printed as they come, and recorded if asked for."""
    known = page_tables.which_rows()
    for kind, order, network in itertools.product(
        options.collectives, options.orders, options.networks
    ):
        cases = [choosing.case(network, kind, order, size) for size in SIZES]
        if options.record and not options.again and all(case in known for case in cases):
            continue
        made, spent = cpu_timed(lambda: measure(network, kind, order))  # noqa: B023
        if options.record:
            known |= dict(zip(cases, made, strict=True))
            _save(known)
        for row in made:
            shown = {column: value for column, value in row.items() if column != "over"}
            yield shown | {"fastest": ", ".join(choosing.fastest(row)), "CPU s": spent / len(made)}


def _save(known: Mapping[str, Mapping[str, Any]]) -> None:
    """A line per case, in the order of the options, whatever was measured first."""
    cases = itertools.product(NETWORKS, COLLECTIVES, ORDERS, SIZES)
    ordered = [case for each in cases if (case := choosing.case(*each)) in known]
    lines = ",\n".join(f" {json.dumps(case)}: {json.dumps(known[case])}" for case in ordered)
    write_text(page_tables.WHICH, "{\n" + lines + "\n}\n")
    page_tables.write()


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="which_synthesizer", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=SMALL)
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--record", action="store_true", help="also for the page, and go on")
    parser.add_argument("--again", action="store_true", help="run what is recorded, too")
    options = parser.parse_args(argv)
    report("which_synthesizer", kept("which_synthesizer", rows(options)))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
