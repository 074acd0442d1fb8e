"""Tables as text: what one holds, and how two differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from jaxcoll.configurations.config import Config
from jaxcoll.task import Task
from jaxcoll.tune.tables.decision import Decision, Machine, size_ranges
from jaxcoll.tune.tables.table_file import Parts

_HEADER = ("collective", "dtype", "ranks", "groups", "topology", "bytes", "configuration", "time")


def show(parts: Parts, machine: Machine | None = None) -> str:
    """Per machine the ranges of sizes with the configuration in use, then what is quarantined."""
    history, decisions, quarantined = parts
    machines = sorted({key[0] for section in parts for key in section})
    blocks = []
    for where in machines if machine is None else [machine]:
        rows = [_HEADER, *_rows({k[1]: d for k, d in decisions.items() if k[0] == where})]
        times = [len(times) for key, times in history.items() if key[0] == where]
        lines = [
            f"{where}: {len(rows) - 1} ranges, {sum(times)} times of {len(times)} trials",
            *(_aligned(rows) if len(rows) > 1 else ()),
            *_quarantine_lines(
                (task, config, why) for (w, task, config), why in quarantined.items() if w == where
            ),
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) if blocks else "an empty table"


def _rows(decisions: dict[Task, Decision]) -> list[tuple[str, ...]]:
    """A row per range of sizes of tasks that differ in size alone."""
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
            times = sorted(seconds for seconds in inside if seconds is not None)
            upper = "" if part.max_bytes is None else str(part.max_bytes)
            sizes = f"{part.min_bytes}..{upper}"
            row = (*map(str, family), sizes, format_config(part.config), _time_span(times))
            rows.append(row)
    return rows


def _family(task: Task) -> tuple:
    return task.collective, task.dtype, task.group_size, task.num_groups, str(task.topology)[:12]


def format_config(config: Config) -> str:
    """A configuration as "name=value" pairs."""
    return " ".join(f"{name}={value}" for name, value in config.to_json().items())


def _time_span(times: Sequence[float]) -> str:
    if not times:
        return "not measured"
    least, most = f"{times[0]:.3g} s", f"{times[-1]:.3g} s"
    return least if least == most else f"{least} to {most}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _quarantine_lines(entries: Iterable[tuple[Task, Config, str]]) -> list[str]:
    lines = [f"  {_task(task)}: {format_config(config)}: {why}" for task, config, why in entries]
    return (
        [f"  quarantined: {len(lines)}", *(f"  {line}" for line in sorted(lines))] if lines else []
    )


def _task(task: Task) -> str:
    return (
        f"{task.collective} of {task.nbytes} B {task.dtype} over {task.num_groups} x "
        f"{task.group_size} ranks"
    )


# ---------------------------------------------------------------------- differences


def diff(before: Parts, after: Parts) -> str:
    """Lines of "+" (only after), "-" (only before) and "~" (changed), by machine and task."""
    describe: tuple[Callable[..., str], ...] = _history, _decision, _why
    return "\n".join(
        line for i in range(len(describe)) for line in _changes(before[i], after[i], describe[i])
    )


def _changes(old: dict, new: dict, describe: Callable[..., str]) -> Iterator[str]:
    """The lines of one section."""
    for key in sorted({*old, *new}, key=_order):
        if old.get(key) == new.get(key):
            continue
        machine, task, *config = key
        name = f"{machine}: {_task(task)}" + "".join(f": {format_config(c)}" for c in config)
        if key not in old:
            yield f"+ {name}: {describe(new[key])}"
        elif key not in new:
            yield f"- {name}: {describe(old[key])}"
        else:
            yield f"~ {name}: {describe(old[key])} -> {describe(new[key])}"


def _order(key: tuple) -> tuple:
    machine, task, *config = key
    return machine, *_family(task), task.nbytes, [format_config(c) for c in config]


def _history(times: Sequence[float]) -> str:
    return f"{len(times)} times, median {sorted(times)[len(times) // 2]:.3g} s"


def _decision(decision: Decision) -> str:
    kind = "default" if decision.tuned is None else "tuned"
    seconds = "not measured" if decision.seconds is None else f"{decision.seconds:.3g} s"
    return f"{kind} {format_config(decision.in_use)}, {seconds}, generation {decision.generation}"


def _why(why: str) -> str:
    return f"quarantined, {why}"
