"""Experiments as the command line knows them, and how a study publishes its results."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.files import write_figure, write_json
from experiments.machine import describe_machine
from experiments.notes import filled
from jaxcoll.io.files import write_bytes

Row = Mapping[str, str | int | float | bool | None]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment: where its ``run(config)`` and the type of its configuration are.

    Attributes:
        module: whose ``run`` takes the configuration and returns rows.
        config: the frozen dataclass of the configuration, as ``module:name``; ``Config`` of
            ``module`` itself where empty.
        measured: columns of its rows that are measured on the machine (seconds, memory), as shell
            patterns; two runs of the same code may differ there.
        searched: texts, as shell patterns, of rows whose search ends by the clock, so that a busy
            machine finds less; two runs may differ in these rows and in remarks that match.
        versions: texts, as shell patterns, of rows that depend on the version of a package, by
            package. JAX traces other operators; HiGHS chooses another of equally good solutions.
    """

    module: str
    config: str = ""
    measured: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def load(self) -> ModuleType:
        """The module."""
        return importlib.import_module(self.module)

    def load_config(self) -> type:
        """The type of the configuration."""
        module, _, name = (self.config or f"{self.module}:Config").partition(":")
        return getattr(importlib.import_module(module), name)


def publish(
    title: str,
    rows: Sequence[Row],
    results: Path,
    *,
    figure: Figure | None = None,
    notes: Sequence[str] = (),
    remarks: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Prints a study's rows and writes ``rows.json``, ``rows.csv`` and ``figure.png``.

    Args:
        title: of the table: the paper's figure or table.
        rows: a mapping from column to value each. Columns named "paper" or starting with "paper "
            hold the paper's numbers, beside ours.
        results: folder to write to, made when absent. Every file is replaced whole.
        figure: the picture, if there is one.
        notes: sentences to print below: differences from the paper, and why. Their fields are
            filled from the rows (``experiments.notes``).
        remarks: sentences that the run itself made, printed as they are.
        console: where to print; standard output when None.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(title=title, title_justify="left", caption_justify="left")
    for column in columns:
        text = all(isinstance(row.get(column), str | None) for row in rows)
        table.add_column(column, justify="left" if text else "right")
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    # A file or a pipe has no width of its own to fold tables to.
    console = console or Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    said = filled(notes, rows)
    for sentence in (*said, *remarks):
        console.print(sentence, markup=False)
    content = {
        "title": title,
        "notes": said,
        "remarks": list(remarks),
        "machine": describe_machine(),
    }
    write_json(results / "rows.json", {**content, "rows": [dict(row) for row in rows]})
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(results / "rows.csv", text.getvalue().encode())
    if figure is not None:
        write_figure(results / "figure.png", figure)


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
