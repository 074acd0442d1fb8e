"""Notes below a study's table: sentences whose figures are looked up in its rows.

A note is text with fields ``{COLUMN | KEY=VALUE; KEY=VALUE | FORMAT}``: the value that COLUMN has
in the row where every KEY has its VALUE, printed by FORMAT (``.4g`` when omitted). ``{min: ...}``,
``{max: ...}``, ``{mean: ...}`` and ``{list: ...}`` take all rows that match; an empty condition
matches every row. So no figure of a note can differ from the table above it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.errors import ConfigError

Rows = Sequence[Mapping[str, Any]]

_FIELD = re.compile(r"\{([^{}]*)\}")
_MANY: Mapping[str, Callable[[list[float]], float]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
}
_LIST = "list"


class NoRow(LookupError):
    """No row has the value that a field names."""


def fill(note: str, rows: Rows) -> str:
    """The note with every field replaced by the figure it names.

    Raises:
        NoRow: a field names a row or a column that this run does not have.
        ConfigError: a field is ill-formed, or names several rows without saying how to join them.
    """
    return _FIELD.sub(lambda field: _figure(field[1], rows), note)


def filled(notes: Sequence[str], rows: Rows) -> list[str]:
    """The notes that can be filled, without those that name a row of another size of the study."""
    found = []
    for note in notes:
        try:
            found.append(fill(note, rows))
        except NoRow:
            continue
    return found


def _figure(field: str, rows: Rows) -> str:
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
