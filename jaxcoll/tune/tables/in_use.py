"""Tables in use: the calls that leave ``schedule=`` open run by a table."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator

import jax

from jaxcoll.errors import JaxcollError
from jaxcoll.execute.choice import active, stated
from jaxcoll.task import Task
from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.tables.machine import Machine
from jaxcoll.tune.tables.table import Table


class TableWarning(UserWarning):
    """A table, or a row of one, that is not used."""


def warn_skipped(reason: str) -> None:
    """Warn about a table, or a row of one, that is not used."""
    warnings.warn(TableWarning(reason), stacklevel=3)


def this_machine() -> Machine:
    """The machine that this process runs on: the devices of the default backend."""
    return Machine(stated.hardware(), jax.__version__)


class ByTable:
    """How tasks run by a table (see ``jaxcoll.execute.choice.active.Choices``).

    A task that the table does not answer runs by the default. So does one whose configuration is
    refused while tracing, such as a synthesizer that does not exist: ``skipped`` is told.
    Compared by content: programs traced by equal tables are shared. Later changes of the table have
    no effect.
    """

    def __init__(
        self, table: Table, machine: Machine, skipped: Callable[[str], None] = warn_skipped
    ):
        self._table = Table({}, table.decisions, table.quarantined)
        self._machine = machine
        self._skipped = skipped
        self._key = (
            machine,
            frozenset(table.decisions.items()),
            frozenset(table.quarantined),
        )

    def config(self, task: Task) -> Config | None:
        """The configuration of a task, or None where it runs by the default."""
        return self._table.lookup(task, self._machine)

    def run(self, task: Task, x: jax.Array, run_by: active.RunBy) -> jax.Array:
        """The result of a task on an operand."""
        config = self.config(task)
        if config is None:
            return run_by(x, None)
        try:
            return run_by(x, config)
        except JaxcollError as error:
            self._skipped(f"skipped the configuration ({config}) of {task}: {error}")
            return run_by(x, None)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, ByTable) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)


@contextlib.contextmanager
def use(
    *tables: Table | str | os.PathLike,
    machine: Machine | None = None,
    skipped: Callable[[str], None] = warn_skipped,
) -> Iterator[Table]:
    """Trace programs with the tables' configurations where calls leave ``schedule=`` open.

    ::

        with jc.tune.use("table.json"):
            params, opt_state = step(params, opt_state, batch)

    Args:
        tables: tables or their files, merged. A file that is missing, damaged, newer or of another
            machine is skipped, and the defaults run.
        machine: whose rows are read; None for the machine of this process.
        skipped: called with a line per file or configuration that is not used; it warns by default.

    Yields:
        The merged table.
    """
    machine = this_machine() if machine is None else machine
    merged = Table()
    for table in tables:
        if isinstance(table, Table):
            merged = merged.merge(table)
        else:
            merged = merged.merge(Table.load_usable([table], machine, skipped))
    with active.choosing(ByTable(merged, machine, skipped)):
        yield merged
