"""Tables: measurements (history), decisions, and configurations that failed (quarantine).

AutoCCL (NSDI 2025, Section 5.1 and Fig. 6) keeps a history table on the leader, and on every
process a configuration table with a default and a tuned configuration per task. ``Table`` holds
both, for any number of machines, and a list of configurations that must not be tried again. Files
are in ``table_file``; printing tables and their differences is at the end of this module.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TuneError
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.numerics import checks
from jaxcoll.tune import table_file
from jaxcoll.tune.table_file import (
    Decision,
    Machine,
    Parts,
    SizeRange,
    nearest,
    positive_seconds,
    size_ranges,
)

# The reason of quarantine for a configuration that was being tried when its process ended.
ENDED_IN_TRIAL = "the process that tried it ended before the trial did"


class Table:
    """Times, decisions and failures of tuning, by machine and task.

    Attributes:
        history: seconds per (machine, task, configuration), ascending.
        decisions: the decision per (machine, task).
        quarantined: the reason why a (machine, task, configuration) must not be tried again.
    """

    def __init__(
        self,
        history: Mapping[tuple[Machine, Task, Config], Iterable[float]] | None = None,
        decisions: Mapping[tuple[Machine, Task], Decision] | None = None,
        quarantined: Mapping[tuple[Machine, Task, Config], str] | None = None,
    ):
        self.history = {
            _checked_key(*key): tuple(
                sorted(map(positive_seconds, checks.members(times, "times", TuneError)))
            )
            for key, times in _entries(history, 3, "history")
        }
        self.decisions = {
            _checked_key(*key): checks.instance(decision, Decision, "a decision", TuneError)
            for key, decision in _entries(decisions, 2, "decisions")
        }
        self.quarantined = {
            _checked_key(*key): _checked_reason(why)
            for key, why in _entries(quarantined, 3, "quarantined")
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._parts() == other._parts()

    __hash__ = None  # type: ignore[assignment]

    def _parts(self) -> tuple:
        return self.history, self.decisions, self.quarantined

    # ------------------------------------------------------------------ writing

    def record(self, task: Task, config: Config, seconds: float, machine: Machine) -> None:
        """Add a measured time to the history.

        Raises:
            TuneError: the time is not a positive finite number of seconds, or the task,
                configuration or machine has another type.
        """
        key = _checked_key(machine, task, config)
        self.history[key] = tuple(sorted([*self.history.get(key, ()), positive_seconds(seconds)]))

    def choose(
        self,
        task: Task,
        default: Config,
        tuned: Config | None,
        seconds: float | None,
        machine: Machine,
    ) -> Decision:
        """Decide a task; a later decision has a larger generation and replaces this one.

        Args:
            default: the configuration without tuning.
            tuned: the configuration to use; None to keep the default.
            seconds: time of the configuration in use, or None if it was not measured.

        Raises:
            TuneError: see ``record``.
        """
        key = _checked_key(machine, task)
        before = self.decisions.get(key)
        generation = 1 if before is None else before.generation + 1
        self.decisions[key] = Decision(default, tuned, seconds, generation)
        return self.decisions[key]

    def quarantine(self, task: Task, config: Config, why: str, machine: Machine) -> None:
        """Note that a configuration failed, so that it is not tried again.

        Raises:
            TuneError: there is no reason, or the task, configuration or machine has another type.
        """
        self.quarantined[_checked_key(machine, task, config)] = _checked_reason(why)

    def begin_trial(self, task: Task, config: Config, machine: Machine) -> None:
        """Quarantine a configuration until ``end_trial``.

        Save the table before a trial that may end the process, so that the next process knows which
        configuration did.
        """
        self.quarantined.setdefault(_checked_key(machine, task, config), ENDED_IN_TRIAL)

    def end_trial(self, task: Task, config: Config, machine: Machine) -> None:
        """Undo ``begin_trial``; a configuration that failed otherwise stays in quarantine."""
        key = _checked_key(machine, task, config)
        if self.quarantined.get(key) == ENDED_IN_TRIAL:
            del self.quarantined[key]

    # ------------------------------------------------------------------ reading

    def is_quarantined(self, task: Task, config: Config, machine: Machine) -> bool:
        """Whether a configuration failed on this task and machine."""
        return _checked_key(machine, task, config) in self.quarantined

    def times(self, task: Task, machine: Machine) -> dict[Config, tuple[float, ...]]:
        """The history of a task: seconds per configuration, ascending."""
        _checked_key(machine, task)
        return {
            config: times
            for (where, what, config), times in self.history.items()
            if (where, what) == (machine, task)
        }

    def lookup(self, task: Task, machine: Machine) -> Config | None:
        """The configuration in use for a task: its own, or that of the nearest tuned size.

        Tasks that differ only in size share ranges (see ``size_ranges``). If no size of the task's
        dtype was tuned, the dtype with the nearest item size answers. A configuration that failed
        on this very task does not answer.

        Returns:
            None if nothing that this machine tuned applies.
        """
        tuned = self._of_any_size(task, machine)
        if not tuned:
            return None
        config = tuned[nearest(task.nbytes, tuned)].in_use
        return None if self.is_quarantined(task, config, machine) else config

    def ranges(self, task: Task, machine: Machine) -> tuple[SizeRange, ...]:
        """The size ranges of all configurations, for tasks that differ only in size."""
        return size_ranges(self._of_any_size(task, machine))

    def _of_any_size(self, task: Task, machine: Machine) -> dict[int, Decision]:
        """Decisions for the tasks that differ from a task only in size, by size."""
        _checked_key(machine, task)
        by_dtype: dict[str, dict[int, Decision]] = {}
        for (where, what), decision in self.decisions.items():
            same_size = dataclasses.replace(what, nbytes=task.nbytes, dtype=task.dtype)
            if where == machine and same_size == task:
                by_dtype.setdefault(what.dtype, {})[what.nbytes] = decision
        if not by_dtype:
            return {}
        # Messages are bytes: float32 answers for int32, and float16 rather than float64 does. Among
        # equally near dtypes the first by name answers, so that all processes agree.
        bits = _bits(task.dtype)
        nearest_first = sorted(by_dtype, key=lambda d: (d != task.dtype, abs(_bits(d) - bits), d))
        return by_dtype[nearest_first[0]]

    def machines(self) -> tuple[Machine, ...]:
        """The machines of the table, in order."""
        keys = (*self.history, *self.decisions, *self.quarantined)
        return tuple(sorted({key[0] for key in keys}))

    # ------------------------------------------------------------------ tables

    def merge(self, other: Table) -> Table:
        """A table with the entries of both; merging twice, or in another order, changes nothing.

        Of two decisions the one with the larger generation wins, then the faster, then the first in
        the order of their JSON.
        """
        checks.instance(other, Table, "a table", TuneError)
        history = dict(self.history)
        for key, times in other.history.items():
            # A union of multisets: times in both files were measured once, since one file was saved
            # from the other.
            together = Counter(history.get(key, ())) | Counter(times)
            history[key] = tuple(sorted(together.elements()))
        decisions = dict(self.decisions)
        for key, decision in other.decisions.items():
            decisions[key] = min(decision, decisions.get(key, decision), key=Decision.precedence)
        quarantined = dict(self.quarantined)
        for key, why in other.quarantined.items():
            quarantined[key] = min(why, quarantined.get(key, why))
        return Table(history, decisions, quarantined)

    def diff(self, other: Table) -> str:
        """The changes from this table to another, one line per difference; "" if there are none."""
        checks.instance(other, Table, "a table", TuneError)
        return diff(self._parts(), other._parts())

    def show(self, machine: Machine | None = None) -> str:
        """The table as text, for one machine or for all."""
        checks.optional(machine, checks.instance, Machine, "machine", TuneError)
        return show(self._parts(), machine)

    # ------------------------------------------------------------------ files

    def dumps(self) -> str:
        """The table as JSON, as ``save`` writes it."""
        return table_file.dumps(self._parts())

    @classmethod
    def loads(cls, text: str) -> Table:
        """The table of a JSON text.

        Raises:
            FormatError: the text is not a table, or the table is damaged or of a newer version.
        """
        return cls(*table_file.loads(text))

    def save(self, path: str | os.PathLike) -> None:
        """Write the table, all or nothing; an interrupted write leaves the old file unchanged.

        Raises:
            OSError: the file cannot be written.
        """
        write_text(path, self.dumps())

    @classmethod
    def load(cls, path: str | os.PathLike, machine: Machine | None = None) -> Table:
        """Read a table that ``save`` has written.

        Args:
            machine: refuse a table that has no entries for this machine.

        Raises:
            FormatError: the file, which is named, is not a table, cut short, damaged, or of a newer
                version.
            TuneError: the table has no entries for ``machine``.
            OSError: the file cannot be read.
        """
        checks.optional(machine, checks.instance, Machine, "machine", TuneError)
        table = cls(*load_text(path, table_file.loads, MAX_BYTES))
        if machine is not None and machine not in table.machines():
            made_on = "; ".join(map(str, table.machines())) or "no machine"
            raise TuneError(
                f"{os.fspath(path)} was tuned on {made_on}, not on {machine}; tune here with "
                "jc.tune.offline or jc.tune.online, or load it without machine= to inspect it"
            )
        return table

    @classmethod
    def load_usable(
        cls,
        paths: str | os.PathLike | Iterable[str | os.PathLike],
        machine: Machine | None = None,
        skipped: Callable[[str], None] = lambda reason: None,
    ) -> Table:
        """The tables of a file, or of several merged, without those that cannot be used.

        It serves training, which must continue: a file that is missing, cannot be read, is damaged,
        newer or from another machine is skipped, and ``skipped`` is called with a line that names
        the file and the reason.
        """
        checks.optional(machine, checks.instance, Machine, "machine", TuneError)
        if isinstance(paths, (str, os.PathLike)):
            paths = (paths,)
        merged = cls()
        for path in checks.members(paths, "paths", TuneError):
            try:
                merged = merged.merge(cls.load(path, machine))
            except (OSError, ValueError) as error:
                skipped(f"skipped the tuner table {path}: {error}")
        return merged


def _checked_key(machine: Machine, task: Task, *config: Config) -> tuple:
    """The key of an entry, which must be one that a file can hold."""
    checks.instance(machine, Machine, "machine", TuneError)
    checks.instance(task, Task, "task", TuneError)
    for each in config:
        checks.instance(each, Config, "config", TuneError)
    return machine, task, *config


def _checked_reason(why: str) -> str:
    """The reason why a configuration must not be tried again, in one line."""
    if not isinstance(why, str) or not why.strip():
        raise TuneError(f"why must say how a configuration failed, got {checks.shown(why)}")
    return " ".join(why.split())


def _entries(given: object, parts: int, name: str) -> Iterable[tuple[tuple, Any]]:
    """The entries of a mapping whose keys have so many parts; none for None."""
    if given is None:
        return ()
    entries = checks.instance(given, Mapping, name, TuneError).items()
    for key, _ in entries:
        if not isinstance(key, tuple) or len(key) != parts:
            raise TuneError(f"a key of {name} has {parts} parts, got {checks.shown(key)}")
    return entries


def _bits(dtype: str) -> int:
    """Bits of an item, from the name of its dtype: 16 for "bfloat16", 8 for "bool"."""
    digits = "".join(c if c.isdigit() else " " for c in dtype).split()
    return int(digits[0]) if digits else 8


_HEADER = ("collective", "dtype", "ranks", "groups", "topology", "bytes", "configuration", "time")


def show(parts: Parts, machine: Machine | None = None) -> str:
    """For each machine the ranges of sizes with the configuration in use, then the quarantine."""
    history, decisions, quarantined = parts
    machines = sorted({key[0] for section in parts for key in section})
    blocks = []
    for where in machines if machine is None else [machine]:
        rows = [_HEADER, *_rows({k[1]: d for k, d in decisions.items() if k[0] == where})]
        times = [len(times) for key, times in history.items() if key[0] == where]
        lines = [f"{where}: {len(rows) - 1} ranges, {sum(times)} times of {len(times)} trials"]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows if len(rows) > 1 else ():
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  " + "  ".join(cells).rstrip())
        failed = sorted(
            f"    {_task(task)}: {format_config(config)}: {why}"
            for (w, task, config), why in quarantined.items()
            if w == where
        )
        if failed:
            lines += [f"  quarantined: {len(failed)}", *failed]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) if blocks else "an empty table"


def _rows(decisions: dict[Task, Decision]) -> list[tuple[str, ...]]:
    """A row per range of sizes, for tasks that differ only in size."""
    families: dict[tuple, dict[int, Decision]] = {}
    for task, decision in decisions.items():
        families.setdefault(_family(task), {})[task.nbytes] = decision
    rows = []
    for family in sorted(families):
        tuned = families[family]
        for part in size_ranges(tuned):
            inside = [
                decision.seconds
                for size, decision in tuned.items()
                if part.min_bytes <= size <= (part.max_bytes or size)
            ]
            times = [f"{s:.3g} s" for s in sorted(s for s in inside if s is not None)]
            span = " to ".join(dict.fromkeys((times[0], times[-1]))) if times else "not measured"
            upper = "" if part.max_bytes is None else str(part.max_bytes)
            sizes = f"{part.min_bytes}..{upper}"
            rows.append((*map(str, family), sizes, format_config(part.config), span))
    return rows


def _family(task: Task) -> tuple:
    return task.collective, task.dtype, task.group_size, task.num_groups, str(task.topology)[:12]


def format_config(config: Config) -> str:
    """A configuration as "name=value" pairs."""
    return " ".join(f"{name}={value}" for name, value in config.to_json().items())


def _task(task: Task) -> str:
    return (
        f"{task.collective} of {task.nbytes} B {task.dtype} over {task.num_groups} x "
        f"{task.group_size} ranks"
    )


# ---------------------------------------------------------------------- differences


def diff(before: Parts, after: Parts) -> str:
    """Lines of "+" (only after), "-" (only before) and "~" (changed), by machine and task."""
    lines = []
    describers: tuple[Callable[..., str], ...] = _history, _decision, "quarantined, {}".format
    for i, describe in enumerate(describers):
        old: dict = before[i]
        new: dict = after[i]
        changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
        for machine, task, *config in sorted(changed, key=_order):
            key = (machine, task, *config)
            name = f"{machine}: {_task(task)}" + "".join(f": {format_config(c)}" for c in config)
            if key not in old:
                lines.append(f"+ {name}: {describe(new[key])}")
            elif key not in new:
                lines.append(f"- {name}: {describe(old[key])}")
            else:
                lines.append(f"~ {name}: {describe(old[key])} -> {describe(new[key])}")
    return "\n".join(lines)


def _order(key: tuple) -> tuple:
    machine, task, *config = key
    return machine, *_family(task), task.nbytes, [format_config(c) for c in config]


def _history(times: Sequence[float]) -> str:
    return f"{len(times)} times, median {sorted(times)[len(times) // 2]:.3g} s"


def _decision(decision: Decision) -> str:
    kind = "default" if decision.tuned is None else "tuned"
    seconds = "not measured" if decision.seconds is None else f"{decision.seconds:.3g} s"
    return f"{kind} {format_config(decision.in_use)}, {seconds}, generation {decision.generation}"
