"""Recorded results of the studies, from which ``docs/experiments.md`` is generated.

``docs/experiments/NAME.json`` holds up to two runs of a study, at size=ci and at size=paper. Each
has the rows as printed, the remarks that the run made, and the command, commit, date and machine it
ran with. A run is current as long as

- its settings, without wording, are those in ``configs/experiment/NAME.yaml`` (a digest tells), and
- the rows of size=ci are what the command prints today; a run at size=paper names the digest of the
  small rows that the same code printed, so that it goes stale together with them.

So code may be renamed and moved freely, and a change that alters any row of the small run marks
both runs stale. Columns that are measured on the machine (``Experiment.measured``: seconds, memory)
and rows whose search ends by the clock (``Experiment.searched``) are recorded and never compared;
rows that depend on the version of a package (``Experiment.versions``) are compared by the version
that they name.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.config import EXPERIMENTS, SIZES, configuration
from experiments.study import describe_machine
from jaxcoll.io.files import write_text

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "experiments"
SMALL, PAPER = SIZES
DIGITS = 6  # of a recorded figure; the page prints four
# Folders that a run depends on: a change there that is not committed is not in its commit.
CODE = ("jaxcoll", "tensorstate", "experiments", "configs")
# Settings that change no row, only the words around the table.
WORDING = frozenset({"title", "notes", "results"})

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """A recorded run of a study.

    Attributes:
        command: the command that made it, from the project's root.
        commit: the checkout's commit, with "+" if the code had uncommitted changes.
        date: the day of the run, UTC.
        machine: processor, cores, memory and versions of packages.
        settings: digest of the settings.
        small: digest of the rows that the same code printed at size=ci.
        title: title of the table.
        rows: the rows as printed, floats rounded to ``DIGITS`` digits.
        remarks: notes that the run itself made.
    """

    command: str
    commit: str
    date: str
    machine: Mapping[str, Any]
    settings: str
    small: str
    title: str
    rows: Sequence[Row]
    remarks: Sequence[str]


Study = dict[str, Run]  # the runs of a study by size


def load(name: str) -> Study:
    """The recorded runs of a study by size; none if it was never recorded."""
    path = RECORDS / f"{name}.json"
    if not path.is_file():
        return {}
    return {size: Run(**run) for size, run in json.loads(path.read_text()).items()}


def save(name: str, study: Study) -> None:
    """Write a study's runs, one row per line, so that a change shows which rows moved."""
    parts = []
    for size in SIZES:
        if size not in study:
            continue
        fields = dataclasses.asdict(study[size])
        lines = [f"  {json.dumps(key)}: {_lines(value)}" for key, value in fields.items()]
        parts.append(f" {json.dumps(size)}: {{\n" + ",\n".join(lines) + "\n }")
    RECORDS.mkdir(parents=True, exist_ok=True)
    write_text(RECORDS / f"{name}.json", "{\n" + ",\n".join(parts) + "\n}\n")


def _lines(value: object) -> str:
    if not isinstance(value, list | tuple) or not value:
        return json.dumps(value, allow_nan=False)
    inner = ",\n".join(f"   {json.dumps(item, allow_nan=False)}" for item in value)
    return f"[\n{inner}\n  ]"


def recorded(name: str, size: str, content: Mapping[str, Any], small: str = "") -> Run:
    """The record of a run that was just published.

    Args:
        content: the content of the ``rows.json`` that it wrote.
        small: digest of the rows of size=ci by the same code; those of this run when empty.
    """
    rows = [rounded(row) for row in content["rows"]]
    return Run(
        command=f"python -m experiments experiment={name} size={size}",
        commit=commit(),
        date=datetime.now(UTC).date().isoformat(),
        machine=describe_machine(),
        settings=settings(name, size),
        small=small or digest(unmeasured(name, rows)),
        title=content["title"],
        rows=rows,
        remarks=content["remarks"],
    )


def stale(name: str, study: Study) -> list[str]:
    """Why recorded runs do not describe the study as it is configured; empty if they do."""
    if SMALL not in study:
        return [f"{name} was never recorded at size={SMALL}"]
    reasons = [
        f"{name} at size={size} was recorded with other settings"
        for size, run in study.items()
        if run.settings != settings(name, size)
    ]
    rows = digest(unmeasured(name, study[SMALL].rows))
    reasons += [
        f"{name} at size={size} was recorded by code whose small run printed other rows"
        for size, run in study.items()
        if run.small != rows
    ]
    return reasons


def differences(name: str, was: Run, rows: Sequence[Row], remarks: Sequence[str]) -> list[str]:
    """How rows and remarks differ from a recorded run's, measured columns aside."""
    # Rows that depend on a package's version say nothing where that version has changed since.
    now = describe_machine()
    changed = [
        pattern
        for package, patterns in EXPERIMENTS[name].versions.items()
        if was.machine.get(package, now[package]) != now[package]
        for pattern in patterns
    ]
    old, new = (
        unmeasured(name, [rounded(r) for r in _unlike(each, changed)]) for each in (was.rows, rows)
    )
    found = [f"{len(old)} rows were recorded, {len(new)} are printed"] * (len(old) != len(new))
    for i, (before, after) in enumerate(zip(old, new, strict=False)):
        for column in dict.fromkeys([*before, *after]):
            if not _same(before.get(column), after.get(column)):
                place = f"row {i} ({_label(after)}), {column!r}"
                found.append(f"{place}: recorded {before.get(column)}, now {after.get(column)}")
    searched = EXPERIMENTS[name].searched
    before, after = (
        [r for r in each if not _matches(r, [*searched, *changed])]
        for each in (was.remarks, remarks)
    )
    if before != after:
        found.append(f"remarks: recorded {before}, now {after}")
    return found


def _same(a: object, b: object) -> bool:
    if isinstance(a, float | int) and isinstance(b, float | int):
        # Two units of the last digit recorded.
        return math.isclose(a, b, rel_tol=2 * 10.0 ** (1 - DIGITS), abs_tol=1e-12)
    return a == b


def _label(row: Row) -> str:
    return ", ".join(value for value in row.values() if isinstance(value, str))


def rounded(row: Row) -> dict[str, Any]:
    """A row with floats of ``DIGITS`` digits."""
    return {k: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for k, v in row.items()}


def unmeasured(name: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows that do not depend on the machine's speed, without the columns that do."""
    study = EXPERIMENTS[name]
    return [
        {k: v for k, v in row.items() if not _matches(k, study.measured)}
        for row in _unlike(rows, study.searched)
    ]


def _unlike(rows: Sequence[Row], patterns: Sequence[str]) -> list[Row]:
    """The rows in which no text matches a pattern."""
    return [row for row in rows if not any(_matches(v, patterns) for v in row.values())]


def _matches(text: object, patterns: Sequence[str]) -> bool:
    return isinstance(text, str) and any(fnmatch.fnmatchcase(text, p) for p in patterns)


def settings(name: str, size: str) -> str:
    """Digest of a study's settings at a size, wording aside."""
    config = configuration(name, size)
    return digest({k: v for k, v in _plain(config).items() if k not in WORDING})


def digest(value: object) -> str:
    """The first sixteen hexadecimal digits of the SHA-256 of a value's JSON."""
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def commit() -> str:
    """The checkout's commit, with "+" if code differs from it; "unknown" outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", *CODE)
        return git("rev-parse", "--short=10", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
