"""``online``: from a jitted step and options to the step that tunes itself."""

from __future__ import annotations

import functools
import itertools
import numbers
import os
import time
from collections.abc import Callable, Mapping

import jax

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.task import Task
from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.tables.in_use import warn_skipped
from jaxcoll.tune.tables.table import Table
from jaxcoll.tune.training_step.leader import Leader
from jaxcoll.tune.training_step.online_tuner import Online
from jaxcoll.tune.training_step.preparation import Preparation, Spaces
from jaxcoll.tune.training_step.processes import Coordinator, coordinator


def online(
    step: Callable,
    *,
    space: Spaces | None = None,
    candidates: int | None = None,
    table: Table | str | os.PathLike | None = None,
    seed: int = 0,
    steps: int | None = None,
    programs: str = "auto",
    profile: bool | None = None,
    watch_steps: int = 200,
    joined: Coordinator | None = None,
    clock: Callable[[], float] = time.perf_counter,
    log: Callable[[str], None] | None = None,
) -> Online:
    """A jitted step that tunes the collectives it calls without ``schedule=`` while it runs.

    Call it as the step itself: arguments, results, shardings and donation are the same. It blocks
    until the step has ended in those steps that it times. Calls by the same sequence of programs
    give bitwise the same results (``replay``); different schedules add in different orders.

    Args:
        step: what ``jax.jit`` returns.
        space: (task) -> the configurations to choose from, ``jax_space`` when omitted; or the
            configurations themselves, per task.
        candidates: most configurations per task that are tried, the default among them; when
            omitted 15, or fewer in steps of many tasks, since all of them are compiled.
        table: of earlier decisions. Tasks that it answers are not tuned. A path is read at first,
            where the file exists, and written when the step is settled: one file per tuned step.
        seed: of the order in which candidates are tried.
        steps: most steps of a search.
        programs: "switch" for one program of all candidates, "plain" for one each, as is needed
            where a conditional ends the overlap of collectives with computation; "auto" is
            "switch" on CPUs.
        profile: whether to profile the steps of a search, which tells the tasks apart in fewer
            steps and costs some time at the end of each; on CPUs alone. When omitted, where a step
            has several tasks.
        watch_steps: steps between two probes of the settled step.
        joined: joins the processes; made by ``processes.coordinator`` when omitted.
        clock: seconds.
        log: called with a line at every change of state.

    Raises:
        TuneError: a step that is not jitted, or arguments of other types or out of range.
    """
    check_arguments(step, space, table, clock, log, joined)
    switch = as_switch(programs)
    profile = checks.optional(profile, checks.flag, "profile", TuneError)
    joined = coordinator() if joined is None else joined
    leader = Leader(
        seed=checks.seed(seed, TuneError),
        most_steps=checks.optional(steps, checks.integer, "steps", TuneError, least=1),
        watch_steps=checks.integer(watch_steps, "watch_steps", TuneError, least=1),
    )
    most = checks.optional(candidates, checks.integer, "candidates", TuneError, least=1)
    path = None if table is None or isinstance(table, Table) else os.fspath(table)
    if path is not None:
        table = table_at(path, joined.is_leader)
    return Online(
        step,
        leader,
        prepare=functools.partial(
            Preparation, step, spaces=space, most=most, as_switch=switch, profile=profile
        ),
        table=Table() if table is None else table,  # type: ignore[arg-type]
        path=path,
        joined=joined,
        clock=clock,
        log=log,
    )


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
