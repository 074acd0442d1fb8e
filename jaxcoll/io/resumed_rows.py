"""Rows of independent jobs as CSV: a run goes on with the table of an interrupted one.

A row names its job in the first columns, the key. Cells are kept as the text they were written as,
so that a table made in two runs has the bytes of one made in a single run.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from jaxcoll import executors
from jaxcoll.errors import FormatError
from jaxcoll.io.files import load_text, write_text

# Seconds between two writings of the whole file.
_INTERVAL = 2.0

Row = Mapping[str, Any]
Key = tuple[str, ...]


def completed(
    path: str | os.PathLike,
    columns: Sequence[str],
    jobs: Mapping[Key, Any],
    function: Callable[[Any], Sequence[Row]],
    executor: Executor | None = None,
    *,
    only: bool = False,
) -> Iterator[tuple[Key, list[dict[str, str]]]]:
    """Each job's rows, in the order of the jobs; those not in the file yet are made and added.

    The file is complete when the iterator has ended, and holds what was done when it is stopped.

    Args:
        path: of the CSV file; its folder exists.
        columns: of every row; the first ones are the key.
        jobs: by key, texts that the first columns of the job's rows hold; at least one row each.
        function: the rows of a job.
        executor: where the function runs, see ``jaxcoll.executors``.
        only: refuse a file with rows of other jobs, which a complete table drops.

    Raises:
        FormatError: the file is a table of other columns, or of other jobs too.
        OSError: the file cannot be read or written.
    """
    width = len(next(iter(jobs), ()))
    try:
        kept = _earlier(path, columns, width)
    except FileNotFoundError:
        kept = {}
    others = [key for key in kept if key not in jobs]
    if only and others:
        raise FormatError(
            f"{os.fspath(path)} has rows of another job, {' '.join(others[0])}; give another file"
        )
    missing = [key for key in jobs if key not in kept]
    made = executors.ordered(function, [jobs[key] for key in missing], executor)
    rows: dict[Key, list[dict[str, str]]] = {}
    written = time.monotonic()
    try:
        for key in jobs:
            if key not in kept:
                kept[key] = [_texts(columns, row) for row in next(made)]
            rows[key] = kept[key]
            if time.monotonic() - written > _INTERVAL:
                # What an earlier run did stays, wherever in the table this one stopped.
                _write(path, columns, {**rows, **kept})
                written = time.monotonic()
            yield key, rows[key]
    finally:
        made.close()  # type: ignore[attr-defined]
        _write(path, columns, {**rows, **kept} if len(rows) < len(jobs) else rows)


def _earlier(path, columns: Sequence[str], width: int) -> dict[Key, list[dict[str, str]]]:
    def loads(text: str) -> dict[Key, list[dict[str, str]]]:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        try:
            if list(reader.fieldnames or ()) != list(columns):
                raise FormatError(
                    f"expected the columns {', '.join(columns)}, got "
                    f"{', '.join(reader.fieldnames or ()) or 'none'}; give another file to write to"
                )
            found: dict[Key, list[dict[str, str]]] = {}
            for row in reader:
                if None in row or None in row.values():
                    raise FormatError(f"line {reader.line_num} has not {len(columns)} cells")
                found.setdefault(tuple(row[name] for name in columns[:width]), []).append(row)
        except csv.Error as error:
            raise FormatError(f"line {reader.line_num} is not CSV: {error}") from error
        return found

    return load_text(path, loads)


def _texts(columns: Sequence[str], row: Row) -> dict[str, str]:
    return {name: "" if row[name] is None else str(row[name]) for name in columns}


def _write(path, columns: Sequence[str], rows: Mapping[Key, Sequence[Row]]) -> None:
    text = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for of_job in rows.values():
        writer.writerows(of_job)
    write_text(path, text.getvalue())
