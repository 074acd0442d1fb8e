"""What real machines were measured to do: published times of collectives, with their sources.

::

    for table in jc.measured.tables():
        print(table)
    table, left_out = jc.measured.from_xla("jax_cuda12_pjrt-0.12.0.1-py3-none-any.whl")

Every time is of a buffer of ``nbytes``, the larger of a rank's input and output, as everywhere in
this library. Each table states its source, licence, software and date, and is checked when it is
read (``table``). ``machines`` has the machines, with the network that the library takes each for.
"""

from __future__ import annotations

import functools
import importlib.resources
import os

from jaxcoll.errors import FormatError
from jaxcoll.io.files import load_text
from jaxcoll.measured.log_machine import machine_of_log
from jaxcoll.measured.machines import MACHINES, Machine, machine_like, machine_of
from jaxcoll.measured.table import COLLECTIVES, PERMUTE, Curve, Table
from jaxcoll.measured.table_file import dumps, loads, save
from jaxcoll.measured.xla_plugin import read as from_xla
from jaxcoll.numerics import checks

__all__ = [
    "MACHINES",
    "PERMUTE",
    "Curve",
    "Machine",
    "Table",
    "curves_of",
    "dumps",
    "from_xla",
    "load",
    "loads",
    "machine_like",
    "machine_of",
    "machine_of_log",
    "save",
    "tables",
]


@functools.cache
def tables() -> tuple[Table, ...]:
    """The tables that the library ships, by name."""
    folder = importlib.resources.files("jaxcoll.measured") / "data"
    files = sorted(
        (each for each in folder.iterdir() if each.name.endswith(".json")),
        key=lambda each: each.name,
    )
    return tuple(loads(each.read_text(encoding="utf-8")) for each in files)


def load(path: str | os.PathLike) -> Table:
    """The table of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads)


def curves_of(machine: str, collective: str | None = None) -> tuple[tuple[Table, Curve], ...]:
    """The shipped curves of a machine, each with its table.

    Raises:
        FormatError: nobody has measured the machine; an unknown collective.
    """
    name = machine_of(machine).name
    checks.optional(collective, checks.choice, COLLECTIVES, "collective", FormatError)
    return tuple(
        (table, curve)
        for table in tables()
        for curve in table.curves
        if curve.machine == name and collective in (None, curve.collective)
    )
