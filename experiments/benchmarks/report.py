"""What every benchmark writes: a table to read, and a file to compare with later."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.study import Rows, describe_machine, text
from experiments.timing import Timing
from jaxcoll.io.files import write_text

RESULTS = Path("results/bench")


def report(
    name: str,
    rows: Iterable[Mapping[str, object]],
    *,
    results: Path = RESULTS,
    console: Console | None = None,
) -> Path:
    """Prints ``rows`` as a table and writes them, with the machine and the time, to a JSON file.

    Args:
        name: of the benchmark; the file is ``results/name.json``.
        rows: a mapping from column to value each; those of an iterator are printed one by one when
            they are made, before the table. A ``Timing`` is printed in a fitting unit and
            written in seconds; numbers, strings, booleans, None and NumPy scalars stay what they
            are, and numbers that are not finite are written as null.
        results: folder of the file, made when absent.
        console: where to print; standard output when None.

    Returns:
        The path of the file. It is replaced whole: no reader sees half of it.

    Raises:
        ValueError: ``name`` is not a plain file name.
        TypeError: a value is of another type. The table is printed all the same.
    """
    _check_name(name)
    if not isinstance(rows, Sequence):
        rows = Rows(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(title=name)
    for column in columns:
        is_text = all(isinstance(row.get(column, ""), str) for row in rows)
        table.add_column(column, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(text(row.get(column, "")) for column in columns))
    # A file or a pipe has no width of its own to fold the table to.
    width = None if sys.stdout.isatty() else 200
    (console or Console(width=width)).print(table)
    return write(name, rows, results=results)


def write(name: str, rows: Sequence[Mapping[str, object]], *, results: Path = RESULTS) -> Path:
    """Writes rows as ``report`` does, without printing them: a benchmark may be stopped midway.

    Returns:
        The path of the file. It is replaced whole: no reader sees half of it.

    Raises:
        ValueError: ``name`` is not a plain file name.
        TypeError: a value is of another type than ``report`` takes.
    """
    _check_name(name)
    content = {
        "benchmark": name,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "rows": [{column: _plain(value) for column, value in row.items()} for row in rows],
    }
    path = results / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
    return path


def earlier(name: str, *, results: Path = RESULTS) -> list[dict[str, Any]]:
    """The rows that an earlier run has written on this machine; none where there are none.

    Raises:
        ValueError: the file is not one that ``report`` writes, or was written on another machine,
            whose times are not to be mixed with those of this one.
    """
    path = results / f"{name}.json"
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or not {"machine", "rows"} <= content.keys():
        raise ValueError(f"{path} holds no rows of a benchmark; remove it")
    if content["machine"] != describe_machine():
        raise ValueError(f"{path} is of another machine; move it, or measure all rows again")
    return content["rows"]


def _check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"a benchmark's name is letters, digits, '_', '-' and '.', got {name!r}")


def _plain(value: object) -> object:
    """``value`` as JSON holds it."""
    if isinstance(value, Timing):
        return dataclasses.asdict(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"a row holds text, numbers and timings, got {value!r}")
