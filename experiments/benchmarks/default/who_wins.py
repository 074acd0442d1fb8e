"""The map of who wins: machine, collective and size, a schedule of ours or its own, by evidence.

The verdicts of ``jaxcoll compare --machine`` on the machines of the shipped tables. ``--record``
writes them to ``who_wins.json`` and the tables of ``docs/who-wins.md``: those of the machines that
ran, beside the recorded rows of all others. A run that was stopped goes on with ``--go-on``.
Nothing is timed here: own times were measured by others, ours are priced.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from experiments import page_tables
from experiments.timing import earlier, kept, report
from jaxcoll.contest import contest
from jaxcoll.io.files import write_text
from jaxcoll.kinds import names_in
from jaxcoll.measured import curves_of

# All synthesizers up to 16 ranks. On racks and tori those whose schedules are made in seconds and
# are among the fastest of all on parts of them; on thousands of ranks none: algorithms that were
# forced there say it all.
_RACK = ("nccl_ring", "direct", "rhd", "bruck", "double_binary_tree")
_TORUS = ("bucket", "rhd", "swing", "bfb", "exchange")
CASES: dict[str, Sequence[str] | None] = {
    "h100-host": None,
    "h200-host": None,
    "a100-host": None,
    "a100-hosts": ("rhd", "rail_gather", "double_binary_tree"),
    "h100-2-hosts": None,
    "a3-mega-2-hosts": None,
    "b200-host": None,
    "gb200-rack": _RACK,
    "gb300-rack": _RACK,
    "rubin-rack": _RACK,
    "mi300x-host": None,
    "mi355x-host": None,
    # Of these slices nobody has published a time of a collective at these sizes.
    "tpu-v5p-8": (),
    "tpu-v6e-8": (),
    "tpu-v6e-256": (),
    "fugaku-4x4x4": _TORUS,
    "fugaku-8x8x8": ("bucket", "rhd"),
    "fugaku-64x64": (),
    "fugaku-32x256": (),
}
COLLECTIVES = tuple(sorted(names_in("lax")))
SIZES = (2**20, 2**26, 2**29)


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="who_wins", description=__doc__)
    parser.add_argument("--machines", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--go-on", action="store_true", help="with the rows of an earlier run")
    parser.add_argument("--record", action="store_true", help="also for docs/who-wins.md")
    options = parser.parse_args(argv)
    before = earlier("who_wins") if options.go_on else []
    report("who_wins", found := kept("who_wins", rows(options.machines, before)))
    if options.record:
        together = beside(found, recorded())
        write_text(page_tables.WHO_WINS, json.dumps({"rows": together}, indent=1) + "\n")
        page_tables.write()


def recorded() -> list[dict[str, Any]]:
    """The rows that are recorded; none where nothing is."""
    path = page_tables.WHO_WINS
    return json.loads(path.read_text())["rows"] if path.is_file() else []


def beside(made: Sequence[dict], others: Sequence[dict]) -> list[dict[str, Any]]:
    """Rows that were made, and the others of machines that were not run, in the order of CASES."""
    ran = {row["machine"] for row in made}
    rows = [*made, *(row for row in others if row["machine"] not in ran)]
    return [row for machine in CASES for row in rows if row["machine"] == machine]


def rows(machines: Sequence[str], before: Sequence[dict[str, Any]] = ()) -> Iterator[dict]:
    """A row for each machine, collective that was measured on it, and size."""
    for machine in machines:
        for kind in COLLECTIVES:
            made = [row for row in before if (row["machine"], row["collective"]) == (machine, kind)]
            # A machine that was not measured at all of the sizes has fewer rows, in no time.
            yield from made if len(made) == len(SIZES) else _held(machine, kind)


def _held(machine: str, kind: str) -> Iterator[dict[str, Any]]:
    if kind not in measured_on(machine):
        return
    held = contest(machine, kind, SIZES)
    sizes = [size for size, own in zip(SIZES, held.own, strict=True) if own is not None]
    if not sizes:
        return
    held = contest(machine, kind, sizes)
    for verdict in held.verdicts(held.entries(CASES[machine])):
        own, forced = verdict.own, verdict.forced
        yield {
            "machine": machine, "collective": kind, "nbytes": int(verdict.nbytes),
            "answer": verdict.answer.value, "best": verdict.best, "share": verdict.share,
            "factor": verdict.factor, "seconds": verdict.seconds,
            "own_seconds": None if own is None else own.seconds,
            "table": None if own is None else own.table.name,
            "bound_seconds": verdict.bound_seconds,
            "forced": None if forced is None else forced.algorithm,
            "forced_seconds": None if forced is None else forced.seconds,
            "priced_by": held.price.said,
        }  # fmt: skip


def measured_on(machine: str) -> set[str]:
    """The collectives whose own times somebody has published."""
    return {curve.collective for _, curve in curves_of(machine) if curve.is_chosen}
