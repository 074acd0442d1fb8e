"""Arguments of the online tuner, refused before any work."""

from __future__ import annotations

import itertools
import numbers
import os
from collections.abc import Mapping

import jax

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.task import Task
from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.tables.in_use import warn_skipped
from jaxcoll.tune.tables.table import Table


def check_arguments(
    step: object, space: object, table: object, clock: object, log: object, joined: object
) -> None:
    """Refuse arguments of ``online`` of other types than it documents.

    Raises:
        TuneError: naming the argument.
    """
    if not isinstance(step, jax.stages.Wrapped):
        raise TuneError(
            f"online tunes what jax.jit returns, got {checks.shown(step)}; wrap the step in jax.jit"
        )
    if not (space is None or callable(space) or isinstance(space, Mapping)):
        raise TuneError(
            "space must be a function of a task, or the candidates of each task, got "
            f"{checks.shown(space)}"
        )
    for task, configs in space.items() if isinstance(space, Mapping) else ():
        checks.instance(task, Task, "a key of space", TuneError)
        for config in checks.members(configs, "the candidates of a task", TuneError):
            checks.instance(config, Config, "a candidate", TuneError)
    if not (table is None or isinstance(table, (Table, str, os.PathLike))):
        raise TuneError(f"table must be a Table or the path of one, got {checks.shown(table)}")
    if not callable(clock):
        raise TuneError(f"clock must be a function that returns seconds, got {checks.shown(clock)}")
    if not isinstance(now := clock(), numbers.Real):
        raise TuneError(f"clock must return seconds as a number, got {checks.shown(now)}")
    if joined is not None and not callable(getattr(joined, "exchange", None)):
        raise TuneError(
            f"joined must be a coordinator, as processes.coordinator() makes one, got "
            f"{checks.shown(joined)}"
        )
    if not (log is None or callable(log)):
        raise TuneError(f"log must be a function of a line, got {checks.shown(log)}")


def as_switch(programs: str) -> bool:
    """Whether one program holds all candidates, by the ``programs`` argument of ``online``."""
    checks.choice(programs, ("auto", "switch", "plain"), "programs", TuneError)
    return programs == "switch" or (programs == "auto" and jax.default_backend() == "cpu")


def table_at(path: str, is_writer: bool) -> Table:
    """The table of a file; empty where the file does not exist or is not usable.

    The process that writes the file renames one that is not usable, since it may hold more than
    what this run finds: a table of a newer version, or one that was edited.

    Args:
        is_writer: whether this process writes the file.

    Raises:
        TuneError: this process writes the file, and it could not.
    """
    if is_writer:
        _check_path(path)
    if not os.path.exists(path):
        return Table()
    reasons: list[str] = []
    table = Table.load_usable([path], None, reasons.append)
    for reason in reasons:
        warn_skipped(f"{reason}; it is kept as {_renamed(path)}" if is_writer else reason)
    return table


def _renamed(path: str) -> str:
    """The first free name beside a file, which it now has."""
    numbered = (f"{path}.skipped{number or ''}" for number in itertools.count())
    free = next(name for name in numbered if not os.path.lexists(name))
    try:
        os.rename(path, free)
    except OSError as error:
        raise TuneError(
            f"table {checks.shown(path)} is not usable, nor renamed: {error}"
        ) from error
    return free


def _check_path(path: str) -> None:
    """Refuse a path that no table can be written to, before hours of training rather than after."""
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
