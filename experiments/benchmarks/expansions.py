"""Expansions: the networks of 1024 ranks of Table 3.4, built, verified and costed.

Seconds are CPU seconds after compilation, from the base's schedule to the verified one. T_L and T_B
are measured on the schedule built; the paper's are those of the dissertation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from fractions import Fraction
from time import process_time
from typing import Any

from experiments.benchmarks.report import report
from jaxcoll.bounds.moore import Cost, cost
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.expansions import (
    CartesianPower,
    Expansion,
    LineGraph,
)
from jaxcoll.synth.direct_connect.searched import base_all_gather
from jaxcoll.topologies import generative
from jaxcoll.topologies.generative import Digraph
from jaxcoll.verifier import verify

Built = tuple[Digraph, Schedule]

# Table 3.4: base, expansions in order, and the paper's T_L and T_B, the latter as exact fractions.
TABLE_3_4: Sequence[tuple[Callable[[], Digraph], Sequence[Expansion], Cost]] = (
    (lambda: generative.generalized_kautz(4, 1024), (), Cost(5, Fraction(341, 256))),
    (
        lambda: generative.circulant(16, (3, 4)),
        (LineGraph(), LineGraph(), LineGraph()),
        Cost(6, Fraction(261, 256)),
    ),
    (
        generative.diamond,
        (CartesianPower(2), LineGraph(), LineGraph()),
        Cost(8, Fraction(257, 256)),
    ),
    (
        lambda: generative.modified_de_bruijn(2, 4),
        (CartesianPower(2), LineGraph()),
        Cost(11, Fraction(1)),
    ),
    (
        lambda: generative.cartesian_product(
            generative.unidirectional_ring(1, 4), generative.unidirectional_ring(1, 8)
        ),
        (CartesianPower(2),),
        Cost(20, Fraction(1023, 1024)),
    ),
)


def expand(base: Digraph, expansions: Sequence[Expansion]) -> Built:
    """A base and its best known schedule, expanded."""
    digraph, schedule = base, base_all_gather(base)
    for expansion in expansions:
        digraph, schedule = expansion.all_gather(digraph, schedule)
    verify(schedule)
    return digraph, schedule


def row(base: Digraph, expansions: Sequence[Expansion], paper: Cost) -> dict[str, Any]:
    """One row of the table."""
    start = process_time()
    digraph, schedule = expand(base, expansions)
    seconds = process_time() - start
    found = cost(schedule, digraph.degree)
    return {
        "network": digraph.name,
        "ranks": digraph.size,
        "sends": schedule.num_sends,
        "T_L": found.steps,
        "T_B": str(found.inverse_bandwidth),
        "diameter": digraph.diameter,
        "as in the paper": found == paper,
        "seconds": seconds,
    }


def main(argv: Sequence[str]) -> None:
    """Builds and prints all rows."""
    parser = argparse.ArgumentParser(prog="expansions", description=__doc__)
    parser.parse_args(argv)
    expand(generative.complete_bipartite(2), (CartesianPower(2), LineGraph()))  # compiles
    report("expansions", (row(base(), chain, paper) for base, chain, paper in TABLE_3_4))
