"""Tables in use: calls without ``schedule=`` run as a table says, and a tuned step keeps its file.

``use`` traces a program with tables that were made before. ``table_at`` reads the table that a
tuned step goes on with and writes again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterator

import jax

from jaxcoll.configurations import Config, Task
from jaxcoll.errors import JaxcollError, TableWarning, TuneError
from jaxcoll.execute.choice import in_force, stated
from jaxcoll.numerics import checks
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine


def warn_skipped(reason: str) -> None:
    """Warn about a table, or a row of one, that is not used."""
    warnings.warn(TableWarning(reason), stacklevel=3)


def this_machine() -> Machine:
    """The machine that this process runs on: the devices of the default backend."""
    return Machine(stated.hardware(), jax.__version__)


class ByTable:
    """Runs tasks by a table (see ``jaxcoll.execute.choice.in_force.Choices``).

    A task that the table lacks runs by the default. So does a task whose configuration is refused
    while tracing, for example because it names a synthesizer that does not exist; ``skipped`` is
    then called. Objects are compared by content, so that equal tables share traced programs. Later
    changes of the table have no effect.
    """

    def __init__(
        self, table: Table, machine: Machine, skipped: Callable[[str], None] = warn_skipped
    ):
        self._table = Table({}, table.decisions, table.quarantined)
        self._machine, self._skipped = machine, skipped
        # This is part of the key of every jit cache. It has the decisions but not the history,
        # which grows with every trial and would make a new program each time.
        self._key = machine, frozenset(table.decisions.items()), frozenset(table.quarantined)

    def config(self, task: Task) -> Config | None:
        """The configuration of a task, or None if it runs by the default."""
        return self._table.lookup(task, self._machine)

    def run(self, task: Task, x: jax.Array, run_by: in_force.RunBy) -> jax.Array:
        """The result of a task on an operand."""
        config = self.config(task)
        if config is None:
            return run_by(x, None)
        # Training must continue, even if another version of the library wrote the row.
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
    """A context in which programs are traced with tables, where calls leave ``schedule=`` open.

    ::

        with jc.tune.use("table.json"):
            params, opt_state = step(params, opt_state, batch)

    Args:
        tables: tables or their files, merged. A file that is missing, damaged, newer or from
            another machine is skipped, and the defaults run.
        machine: the machine whose rows are read; None for the machine of this process.
        skipped: called with a line for each file or configuration that is not used; it warns by
            default.

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
    with in_force.choosing(ByTable(merged, machine, skipped)):
        yield merged


# ---------------------------------------------------------------------- the file of a tuned step


def table_at(path: str, is_writer: bool) -> Table:
    """The table that a tuned step begins with: that of its file; empty without a usable file.

    A file that is not usable may hold more than this run will find: it may be of a newer version,
    or edited by hand. So the process that is going to write the file renames it.

    Args:
        is_writer: whether this process writes the file.

    Raises:
        TuneError: this process writes the file and cannot rename it.
    """
    if is_writer:
        _check_path(path)
    if not os.path.exists(path):
        return Table()
    reasons: list[str] = []
    table = Table.load_usable([path], None, reasons.append)
    for reason in reasons:
        if is_writer:
            numbered = (f"{path}.skipped{number or ''}" for number in itertools.count())
            free = next(name for name in numbered if not os.path.lexists(name))
            try:
                os.rename(path, free)
            except OSError as error:
                raise TuneError(
                    f"table {checks.shown(path)} is not usable, nor renamed: {error}"
                ) from error
            reason = f"{reason}; it is kept as {free}"
        warn_skipped(reason)
    return table


def _check_path(path: str) -> None:
    """Refuse a path that no table can be written to, before hours of training, not after them."""
    folder = os.path.dirname(path) or os.curdir
    if not path or (os.path.exists(path) and not os.path.isfile(path)):
        raise TuneError(f"table must be the path of a file, got {checks.shown(path)}")
    if not os.path.isdir(folder):
        raise TuneError(
            f"table {checks.shown(path)} would be in {folder}, which does not exist; make it first"
        )
    if not os.access(folder, os.W_OK):
        raise TuneError(
            f"table {checks.shown(path)} cannot be written: no file can be made in {folder}"
        )
