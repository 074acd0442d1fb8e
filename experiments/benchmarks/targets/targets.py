"""Schedules compiled for TPU slices and H100 hosts that are not here, beside jax.lax.

Needs the compilers, which ``scripts/bench targets`` installs. Nothing is timed but compilation:
the figures are what the compiled programs would do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from experiments.benchmarks.report import report
from jaxcoll import aot

TARGETS = ("v5p:4x4x4", "v5e:4x4 closed", "v4:2x2x2", "h100:8", "h100:16x8")


def main(argv: Sequence[str]) -> int:
    """Prints and writes both tables; 1 if a target could not be compiled for."""
    parser = argparse.ArgumentParser(prog="targets", description=__doc__)
    parser.add_argument("--targets", nargs="+", default=TARGETS, metavar="NAME", help=f"{TARGETS}")
    options = parser.parse_args(argv)
    rows, failed = [], 0
    for name in options.targets:
        platform = "gpu" if name.startswith(aot.GPUS) else "tpu"
        if not aot.is_available(platform):
            print(f"{name}: its compiler is not installed", file=sys.stderr)
            failed = 1
            continue
        found, why = compiled_for(name)
        rows += found
        if why:
            print(f"{name}: compilation ended early; {why}", file=sys.stderr)
            failed = 1
    training = [row for row in rows if row["function"].startswith("train step")]
    report("targets", [row for row in rows if row not in training])
    print("sent, temp: parts of the gathered or summed buffer; sent is what a device hands over.")
    report("targets-training", training)
    print("covered: matrix products that run while a permute is in flight.")
    return failed


def compiled_for(name: str, *only: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of a target, from a process of its own, and why it failed if it did.

    All of them, or those of one function.

    A compiler may end its process, and the two kinds of them need other settings.
    """
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.targets.compiled", name, *only],
        env={**os.environ, **aot.ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return rows, "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]
