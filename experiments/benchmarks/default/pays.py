"""Where schedules pay: the default inside JAX, and schedules of links, on users' networks.

The rows of ``jaxcoll explain`` for machines that people have. ``--record`` writes them to
``pays.json`` and the table of ``docs/when-it-pays.md``. Nothing is timed: all but the measured
times, which others published, are predictions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from experiments import page_tables
from experiments.timing import kept, report
from jaxcoll.io.files import write_text

# What is run, with the options of ``jaxcoll explain``.
CASES = {
    "one H100 host": ("h100-host", "--backend", "gpu"),
    "two H100 hosts": ("dgx-h100:2", "--backend", "gpu"),
    "four H100 hosts": ("dgx-h100:4", "--backend", "gpu"),
    "TPU v5e 4x4": ("v5e:4x4", "--backend", "tpu"),
    "TPU v5p 2x2x4": ("v5p:2x2x4", "--backend", "tpu"),
    "eight hosts, switch of 1 Gbit/s": (
        "switch:8", "--bandwidth", "1Gbit/s", "--alpha", "10us", "--backend", "links",
    ),
    "eight hosts, torus of 1 Gbit/s": (
        "torus:2x4", "--bandwidth", "1Gbit/s", "--alpha", "10us", "--backend", "links",
    ),
}  # fmt: skip
COLLECTIVES = ("all_reduce", "all_to_all")


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="pays", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--size", default="1MiB,64MiB", help="of a buffer (%(default)s)")
    parser.add_argument("--record", action="store_true", help="also for docs/when-it-pays.md")
    options = parser.parse_args(argv)
    report("pays", found := kept("pays", rows(options)))
    if options.record:
        write_text(page_tables.PAYS, json.dumps({"rows": found}, indent=1) + "\n")
        page_tables.write()


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for every case, collective and size."""
    for case in options.cases:
        for kind in options.collectives:
            command = [sys.executable, "-m", "jaxcoll", "explain", CASES[case][0], kind]
            asked = [*command, *CASES[case][1:], "--size", options.size, "--json"]
            done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True)
            said = json.loads(done.stdout)
            for row in said["rows"]:
                yield {"case": case, "backend": said["backend"], "collective": kind, **row}
