"""Predicted and measured times on emulated networks, beside ``jax.lax``: a part of the study."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.timing import RESULTS, report
from experiments.wires.measured import Effort, measured, summary
from experiments.wires.networks import add_options, chosen

_NETWORKS = ("torus 2x4", "ring 0-2-1-3-4-6-5-7", "two hosts of 4")
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_SIZES = (1 << 20, 1 << 22)
_EFFORT = Effort(
    best=1, by_chance=0, longest=1.5, seconds=3.5, least_calls=1, most_calls=5, seed=0
)  # fmt: skip


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="wires", description=__doc__)
    add_options(parser, _NETWORKS)
    parser.add_argument("--collectives", nargs="+", choices=_COLLECTIVES, default=_COLLECTIVES)
    parser.add_argument("--sizes", nargs="+", type=int, default=_SIZES, help="bytes (%(default)s)")
    options = parser.parse_args(argv)
    report("wires", _rows(options))


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    rows = []
    for name, topology in chosen(options):
        file = RESULTS / f"wires-{name.replace(' ', '-')}.jsonl"
        made = measured(name, topology, options.collectives, options.sizes, _EFFORT, file)
        for row in made:
            rows.append(row)
            yield row
    yield from summary(rows)
