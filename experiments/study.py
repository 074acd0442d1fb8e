"""Experiments as the command line knows them, and how a study publishes its results.

A file is replaced whole, so that no reader sees half of it. Seconds depend on the machine besides
the code, so its description stands beside every table.

Notes below a table are sentences whose figures are looked up in its rows. A note is text with
fields ``{COLUMN | KEY=VALUE; KEY=VALUE | FORMAT}``: the value that COLUMN has in the row where
every KEY has its VALUE, printed by FORMAT (``.4g`` when omitted). ``{min: ...}``, ``{max: ...}``,
``{mean: ...}`` and ``{list: ...}`` take all rows that match; an empty condition matches every row.
So no figure of a note can differ from the table above it.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib
import importlib.metadata
import io
import json
import os
import platform
import re
import statistics
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from jaxcoll.io.files import write_bytes
from jaxcoll.progress import wipe


class ConfigError(ValueError):
    """A configuration that names what does not exist, or a value that cannot be."""


class CheckError(ValueError):
    """A check that an experiment makes of its own results has failed."""


Row = Mapping[str, str | int | float | bool | None]
T = TypeVar("T", bound=Mapping[str, object])


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment: where the function that runs it and its configuration are."""

    # Takes the configuration and returns rows, as ``module:name`` below this package; ``run`` where
    # only the module is named. The annotation of its argument is the frozen dataclass of the
    # configuration.
    function: str
    # The same as ``module:name``, of a study whose module starts JAX: its configuration says on
    # which devices, and is read before
    config: str = ""
    # Columns of its rows that are measured on the machine (seconds, memory), as shell patterns; two
    # runs of the same code may differ there
    measured: tuple[str, ...] = ()
    # Texts, as shell patterns, of rows whose search ends by the clock, so that a busy machine finds
    # less; two runs may differ in these rows and in remarks that match
    searched: tuple[str, ...] = ()
    # Texts, as shell patterns, of rows that depend on the version of a package, by package. JAX
    # traces other operators; a solver chooses another of equally good solutions.
    versions: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # Whether a page of docs/ shows its figure, kept there as ``images/NAME.png``
    pictured: bool = False

    def load(self) -> Callable[[Any], Any]:
        """The function that runs it."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"experiments.{module}"), name or "run")

    def load_config(self) -> type:
        """The type of the configuration."""
        if self.config:
            module, _, name = self.config.partition(":")
            return getattr(importlib.import_module(f"experiments.{module}"), name)
        return typing.get_type_hints(self.load())["config"]


class Rows(list[Any]):
    """The rows of a study, each printed as a line when it is added: studies may take minutes."""

    def __init__(self, rows: Iterable[Mapping[str, object]] = ()):
        super().__init__()
        self.extend(rows)

    def append(self, row: Mapping[str, object]) -> None:
        tell(row)
        super().append(row)

    def extend(self, rows: Iterable[Mapping[str, object]]) -> None:
        for row in rows:
            self.append(row)

    def __iadd__(self, rows: Iterable[Mapping[str, object]]) -> Rows:
        self.extend(rows)
        return self


def printed(rows: Iterable[T]) -> Iterator[T]:
    """The rows themselves, each printed as a line when it is made."""
    for row in rows:
        tell(row)
        yield row


def tell(row: Mapping[str, object]) -> None:
    """Print what is known by now: a row, or what later rows are made of."""
    wipe()
    print(", ".join(f"{name} {text(each)}" for name, each in row.items()), flush=True)


def text(value: object) -> str:
    """A value as rows and tables show it: floats to four digits."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
        title: the title of the table: the paper's figure or table.
        rows: a mapping from column to value each. Columns named "paper" or starting with "paper "
            hold the paper's numbers, beside ours.
        results: folder to write to, made when absent. Every file is replaced whole.
        figure: the picture, if there is one.
        notes: sentences to print below: differences from the paper, and why. Their fields are
            filled from the rows (``fill``).
        remarks: sentences that the run itself made, printed as they are.
        console: where to print; standard output when None.
    """
    # A file or a pipe has no width of its own to fold tables to.
    console = console or Console(width=None if sys.stdout.isatty() else 160)
    columns = print_table(title, rows, console)
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
    write_csv(results / "rows.csv", columns, rows)
    if figure is not None:
        write_figure(results / "figure.png", figure)


def print_table(title: str, rows: Sequence[Mapping[str, object]], console: Console) -> list[str]:
    """Prints rows as a table, texts to the left and numbers to the right; returns its columns."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(title=title, title_justify="left")
    for column in columns:
        is_text = all(isinstance(row.get(column), str | None) for row in rows)
        table.add_column(column, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(text(row.get(column)) for column in columns))
    console.print(table)
    return columns


# ---------------------------------------------------------------------- files, each replaced whole


def write_json(path: Path, content: object) -> Path:
    """Writes ``content`` as JSON and returns the path.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value is of a type that JSON does not have.
    """
    return _replace(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Writes rows as CSV with these columns and returns the path."""
    cells = io.StringIO()
    writer = csv.DictWriter(cells, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return _replace(path, cells.getvalue().encode())


def write_figure(path: Path, figure: Figure, dpi: int = 130) -> Path:
    """Writes a figure in the format of the path's suffix and returns the path."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=dpi, metadata={"Software": None})
    return _replace(path, buffer.getvalue())


def _replace(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return path


# ---------------------------------------------------------------------- the machine


PACKAGES = ("jaxcoll", "numpy", "numba", "jax", "highspy")


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory and versions, on which a timing depends besides the code."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _version(package: str) -> str | None:
    # From the metadata: importing jax only to name its version takes seconds.
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


Published = Sequence[Mapping[str, Any]]

_FIELD = re.compile(r"\{([^{}]*)\}")
_MANY: Mapping[str, Callable[[list[float]], float]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
}
_LIST = "list"


class NoRow(LookupError):
    """No row has the value that a field names."""


def fill(note: str, rows: Published) -> str:
    """The note with every field replaced by the figure it names.

    Raises:
        NoRow: a field names a row or a column that this run does not have.
        ConfigError: a field is ill-formed, or names several rows without saying how to join them.
    """
    return _FIELD.sub(lambda field: _figure(field[1], rows), note)


def filled(notes: Sequence[str], rows: Published) -> list[str]:
    """The notes that can be filled, without those that name a row of another size of the study."""
    found = []
    for note in notes:
        try:
            found.append(fill(note, rows))
        except NoRow:
            continue
    return found


def _figure(field: str, rows: Published) -> str:
    parts = [part.strip() for part in field.split("|")]
    if len(parts) not in (2, 3):
        raise ConfigError(f"a field of a note is {{column | key=value | format}}, got {field!r}")
    how, colon, column = parts[0].partition(":")
    how, column = (how, column.strip()) if colon and how in (*_MANY, _LIST) else ("", parts[0])
    wanted = [_condition(text, field) for text in parts[1].split(";") if text.strip()]
    matching = (row for row in rows if all(str(row.get(key)) == value for key, value in wanted))
    values = [row[column] for row in matching if row.get(column) is not None]
    if not values:
        raise NoRow(f"no row has {field!r}")
    form = parts[2] if len(parts) == 3 else ".4g"
    if how == _LIST:
        return ", ".join(_text(value, form) for value in values)
    if how:
        return _text(_MANY[how](values), form)
    if len(values) > 1:
        raise ConfigError(f"{len(values)} rows match {field!r}; use min:, max:, mean: or list:")
    return _text(values[0], form)


def _condition(text: str, field: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"a condition of a note is key=value, got {text!r} in {field!r}")
    return key.strip(), value.strip()


def _text(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float | int) else str(value)
