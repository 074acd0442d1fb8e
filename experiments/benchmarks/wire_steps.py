"""Training steps on emulated networks, ten buckets and FSDP: the default beside ``jax.lax``."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from experiments.study import CheckError
from experiments.timing import RESULTS, report
from experiments.wires import steps
from experiments.wires.networks import NETWORKS
from jaxcoll.emulation import emulate
from jaxcoll.synth.native import JAX_LAX

_NETWORKS = ("torus 2x4", "switch of 8", "two hosts of 4")


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="wire_steps", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=_NETWORKS)
    parser.add_argument("--mbits", type=int, default=50, help="of a cable (%(default)s)")
    parser.add_argument("--calls", type=int, default=5, help="of each program (%(default)s)")
    options = parser.parse_args(argv)
    report("wire_steps", _rows(options))


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    speed = Fraction(options.mbits * 10**6, 8)
    for name in options.networks:
        file = RESULTS / f"wire-steps-{name.replace(' ', '-')}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        # By its name: its own folder would hide modules of the standard library.
        program = ["-m", steps.__name__, str(file.absolute()), str(options.calls)]
        root = str(Path(__file__).parents[2])
        status = emulate(
            NETWORKS[name](speed), [sys.executable, *program], scale=1,
            environment={"XLA_FLAGS": "", "PYTHONPATH": root},
        )  # fmt: skip
        if status:
            raise CheckError(f"the steps on the {name} ended with status {status}")
        for line in map(json.loads, file.read_text().splitlines()):
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
