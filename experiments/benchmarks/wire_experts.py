"""Tokens to experts on emulated networks: unequal blocks beside padded ones and ``jax.lax``."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from experiments.timing import RESULTS, report
from experiments.wires.networks import NETWORKS
from experiments.wires.programs import lines_of
from jaxcoll.synth.native import JAX_LAX

_NETWORKS = ("torus 2x4", "switch of 8", "two hosts of 4")
_CASES = 3


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="wire_experts", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=_NETWORKS)
    parser.add_argument("--mbits", type=int, default=50, help="of a cable (%(default)s)")
    parser.add_argument("--tokens", type=int, default=512, help="of a rank (%(default)s)")
    parser.add_argument("--token", type=int, default=512, help="floats of a token (%(default)s)")
    parser.add_argument("--skew", type=float, default=1.0, help="exponent of Zipf (%(default)s)")
    parser.add_argument("--calls", type=int, default=5, help="of each program (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all numbers (%(default)s)")
    report("wire_experts", _rows(parser.parse_args(argv)))


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    speed = Fraction(options.mbits * 10**6, 8)
    for name in options.networks:
        file = RESULTS / f"wire-experts-{name.replace(' ', '-')}.jsonl"
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / "plan.json"
            plan.write_text(json.dumps(vars(options)))
            program = ["-m", "experiments.wires.experts", str(plan), str(file.absolute())]
            lines = lines_of(name, NETWORKS[name](speed), program, file, _CASES)
        for line in lines:
            lax = statistics.median(line["seconds"][JAX_LAX])
            for way, calls in line["seconds"].items():
                median = statistics.median(calls)
                yield {
                    "network": name,
                    "case": line["case"],
                    "program": way,
                    "ms": 1e3 * median,
                    "over lax": median / lax,
                    "MB sent": line["bytes"][way] / 1e6,
                    "largest error": line["error"][way],
                }
