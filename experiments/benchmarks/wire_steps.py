"""Training steps on emulated networks, ten buckets and FSDP: the default beside ``jax.lax``."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.timing import RESULTS, report
from experiments.wires import steps
from experiments.wires.networks import add_options, chosen
from experiments.wires.programs import lines_of
from jaxcoll.synth.native import JAX_LAX

_NETWORKS = ("torus 2x4", "switch of 8", "two hosts of 4")


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="wire_steps", description=__doc__)
    add_options(parser, _NETWORKS)
    parser.add_argument("--calls", type=int, default=5, help="of each program (%(default)s)")
    options = parser.parse_args(argv)
    report("wire_steps", _rows(options))


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name, topology in chosen(options):
        file = RESULTS / f"wire-steps-{name.replace(' ', '-')}.jsonl"
        program = ["-m", steps.__name__, str(file.absolute()), str(options.calls)]
        for line in lines_of(name, topology, program, file, len(steps.STEPS)):
            lax = statistics.median(line["seconds"][JAX_LAX])
            for program_name, calls in line["seconds"].items():
                median = statistics.median(calls)
                yield {
                    "network": name,
                    "step": line["step"],
                    "program": program_name,
                    "ms": 1e3 * median,
                    "least ms": 1e3 * min(calls),
                    "over lax": median / lax,
                }
