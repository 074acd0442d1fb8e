"""The online tuner on emulated networks: steps until it is settled, their cost, and its choice."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.timing import RESULTS, report
from experiments.wires import tuning
from experiments.wires.networks import add_options, chosen
from experiments.wires.programs import lines_of

_NETWORKS = ("torus 2x4", "ring 0-2-1-3-4-6-5-7", "two hosts of 4")


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tune_wires", description=__doc__)
    add_options(parser, _NETWORKS)
    parser.add_argument("--kib", type=int, default=1024, help="of the weights (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="at most (%(default)s)")
    options = parser.parse_args(argv)
    report("tune_wires", _rows(options))


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name, topology in chosen(options):
        file = RESULTS / f"tune-wires-{name.replace(' ', '-')}.jsonl"
        program = ["-m", tuning.__name__, str(file.absolute()), str(options.kib << 10)]
        (found,) = lines_of(name, topology, [*program, str(options.steps)], file, 1)
        yield {"network": name, **row(found)}


def row(found: dict[str, Any]) -> dict[str, Any]:
    """The row of a run: how soon it settled, at what cost, and how good the choice is.

    Lost is the share beyond as many steps that each take as long as a fast one of the run.
    Choice and default are compared with the best by the medians of the sweep, in which nothing else
    runs.
    """
    medians = {name: statistics.median(seconds) for name, seconds in found["swept"].items()}
    default = medians.get("None")
    spent = sum(found["step seconds"])
    # A step is a little more than its sum, which the sweep times: a fast one, at a quarter of
    # them, stands for all.
    usual = sorted(found["step seconds"])[len(found["step seconds"]) // 4]
    return {
        "settled": found["done"],
        "steps": len(found["step seconds"]),
        "seconds": found["seconds"],
        "step ms": 1e3 * usual,
        "lost %": 100 * (spent / (len(found["step seconds"]) * usual) - 1),
        "candidates": len(medians),
        "chosen": found["chosen"],
        "over the best": medians[found["chosen"]] / min(medians.values()) if medians else 1.0,
        "default over the best": default / min(medians.values()) if default else 1.0,
    }
