"""Charges of GPUs, fitted to published times, and their errors on rows that were held out.

``--record`` writes ``jaxcoll/simulation/charges.json``, which the library ships: the charges of all
rows, each with the errors of the charges that saw only a part of them. Nothing is timed here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jaxcoll
from experiments.timing import report
from jaxcoll.io.files import write_text
from jaxcoll.simulation.execution_costs import FORMAT, ExecutionCosts
from jaxcoll.validation import Prediction, errors, predictions
from jaxcoll.validation.charges import MEMORY, fitted

SHIPPED = Path(jaxcoll.__file__).parent / "simulation" / "charges.json"
_FROM = 2**20  # bytes of the rows whose errors are told


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="charges", description=__doc__)
    parser.add_argument("--record", action="store_true", help="also for the library")
    options = parser.parse_args(argv)
    found = [each for each in predictions("charges") if each.nbytes >= _FROM]
    report("charges", list(rows(found)))
    if options.record:
        write_text(SHIPPED, text(found))


def rows(found: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
    """A row for each machine and collective."""
    for (machine, kind), each in errors(found, ("machine", "collective")).items():
        yield {
            "machine": machine, "collective": kind, "rows": each.rows,
            "mean error": each.mean, "worst error": each.worst.error,
        }  # fmt: skip


def text(found: Sequence[Prediction]) -> str:
    """The file of the charges, a machine per line."""
    known = errors(found, ("machine",))
    lines = []
    for name in MEMORY:
        costs, error = fitted(name), known[(name,)]
        fields = _fields(costs) | {
            "source": f"{costs.source}; rows from 1 MiB that were held out are off by "
            f"{100 * error.mean:.0f} % on average"
        }
        lines.append(f"  {json.dumps(name)}: {json.dumps(fields)}")
    return f'{{\n "format": "{FORMAT}",\n "machines": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def _fields(costs: ExecutionCosts) -> dict[str, Any]:
    prices = {name: getattr(costs, name) for name in ("permute", "step", "copied", "added")}
    natives = [[each.kind, each.seconds, each.per_byte] for each in costs.native]
    delays = [[each.peers, list(each.nbytes), list(each.seconds)] for each in costs.delays]
    return prices | {"native": natives, "delays": delays}
