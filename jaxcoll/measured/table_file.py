"""Tables of measured times as JSON, a curve per line::

    {"format": "jaxcoll.measured/1", "name": "..", "source": "..", "licence": "..", ...,
     "curves": [
      {"machine": "h100-host", "collective": "all_gather", "ranks": 8, "dtype": "f32",
       "nbytes": [1024, 2048], "ns": [31904, 35009]},
      ...
    ]}

Sizes are bytes and times nanoseconds, whole numbers both: nothing is rounded on the way.
"""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np

from jaxcoll import fields as readers
from jaxcoll.errors import FormatError
from jaxcoll.io.files import write_text
from jaxcoll.measured.table import TEXTS, Curve, Table
from jaxcoll.numerics import checks

FORMAT = "jaxcoll.measured/1"
_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(Curve)
    if field.default is not dataclasses.MISSING
}


def loads(text: str) -> Table:
    """The table of a text.

    Raises:
        FormatError: another format, or anything that ``table.checked`` refuses, by name.
    """
    whole = readers.Fields(readers.parse(text), "the file")
    whole.take("format", readers.exactly(FORMAT))
    texts = {name: whole.take(name, readers.text) for name in TEXTS}
    rows = whole.take("curves", readers.items)
    whole.end()
    return Table(**texts, curves=tuple(_curve(row, f"curves[{i}]") for i, row in enumerate(rows)))


def _curve(row: object, where: str) -> Curve:
    fields = readers.Fields(row, where)
    column = readers.column(readers.INT64, np.int64)
    values = {
        "machine": fields.take("machine", readers.text),
        "collective": fields.take("collective", readers.text),
        "ranks": fields.take("ranks", readers.whole(2, 2**20)),
        "nbytes": fields.take("nbytes", column),
        "ns": fields.take("ns", column),
        "groups": fields.take("groups", readers.whole(1, 2**20), 1),
        "algorithm": fields.take("algorithm", readers.text, ""),
        "dtype": fields.take("dtype", readers.text, ""),
        "in_place": fields.optional("in_place", readers.flag),
        "step": fields.take("step", readers.number, 0.0),
    }
    fields.end()
    return Curve(**values)


def dumps(table: Table) -> str:
    """A table as JSON, which ``loads`` reads.

    Raises:
        FormatError: no table.
    """
    checks.instance(table, Table, "table", FormatError)
    head = {"format": FORMAT} | {name: getattr(table, name) for name in TEXTS}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    curves = ",\n".join(f"  {json.dumps(_fields(curve))}" for curve in table.curves)
    return "{\n" + "\n".join(lines) + f'\n "curves": [\n{curves}\n ]\n}}\n'


def _fields(curve: Curve) -> dict[str, object]:
    values = {field.name: getattr(curve, field.name) for field in dataclasses.fields(curve)}
    columns = {name: values.pop(name).tolist() for name in ("nbytes", "ns")}
    said = {
        name: value
        for name, value in values.items()
        if name not in _DEFAULTS or value != _DEFAULTS[name]
    }
    return said | columns


def save(path: str | os.PathLike, table: Table) -> None:
    """Write a table, all or nothing.

    Raises:
        FormatError: no table.
        OSError: the file cannot be written.
    """
    write_text(path, dumps(table))
