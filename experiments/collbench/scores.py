"""Scores of a folder of schedules against the best that are known: MSCCL XML, or jaxcoll's JSON.

A file is called by the problems that it is for, NETWORK.COLLECTIVE[.SIZE[.ORDER]]; of a problem the
fastest file counts. Every file is proved by the independent checker of files before it is read, and
is timed as everything here is. A file that is not proved, or is for another network, has a row that
says so and no score.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import recording
from experiments.collbench.problems import Problem, meant_by, network
from experiments.study import ConfigError
from jaxcoll import io, prove
from jaxcoll.errors import JaxcollError
from jaxcoll.io.files import read_text
from jaxcoll.prove.answers import NotProved, NotRead
from jaxcoll.schedule import Schedule
from jaxcoll.trees import TreeFlow

SUFFIXES = (".json", ".xml")


@dataclasses.dataclass(frozen=True)
class Score:
    """A file's time at a problem.

    Attributes:
        file: its name.
        problem: the problem in its name; None if the name has none.
        seconds: seconds of its schedule; None where it has no score.
        refusal: why it has none.
    """

    file: str
    problem: Problem | None
    seconds: float | None
    refusal: str | None = None


def scores(folder: Path) -> Iterator[Score]:
    """A score for each problem of each file of a folder, by name.

    Raises:
        ConfigError: no folder, or none of its files is XML or JSON.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; name one with schedules as XML or JSON")
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not files:
        raise ConfigError(f"{folder} has no file that ends with {' or '.join(SUFFIXES)}")
    for path in files:
        try:
            problems = meant_by(path.stem)
            schedule = proved(path, problems[0])
        except (ConfigError, JaxcollError, NotProved, NotRead, OSError) as error:
            yield Score(path.name, None, None, " ".join(str(error).split()))
            continue
        for problem in problems:
            yield Score(path.name, problem, problem.seconds(schedule))


def proved(path: Path, problem: Problem) -> Schedule:
    """The schedule of a file, after a proof of the file itself.

    Raises:
        NotRead, NotProved: see ``jaxcoll.prove``.
        JaxcollError: see ``jaxcoll.io.load``.
        ConfigError: no schedule, or one on another network.
        OSError: the file cannot be read.
    """
    on = network(problem.network)
    prove.prove_text(read_text(path), problem.collective, on.num_ranks)
    # XML names no network; our own files have theirs, and are refused beside another.
    found = io.load(path, on) if path.suffix == ".xml" else io.load(path)
    found = found.to_schedule(1) if isinstance(found, TreeFlow) else found
    if not isinstance(found, Schedule):
        raise ConfigError(f"{path.name} holds a {type(found).__name__}, not a schedule")
    if found.topology.links_digest != on.links_digest:
        raise ConfigError(
            f"{path.name} is on {found.topology.name}, whose links are not those of "
            f"{problem.network}"
        )
    return found


Known = Mapping[Problem, Mapping[str, Any]]


def known(size: str) -> Known:
    """The recorded row of each problem, of a run at a size.

    Raises:
        ConfigError: nothing is recorded at that size.
    """
    study = recording.load("collbench")
    if size not in study:
        recorded = ", ".join(study) or "none"
        raise ConfigError(f"collbench is not recorded at size={size}; recorded: {recorded}")
    return by_problem(study[size].rows)


def by_problem(rows: Iterable[Mapping[str, Any]]) -> Known:
    """Rows of the study by their problems."""
    names = [field.name for field in dataclasses.fields(Problem)]
    return {Problem(*(row[name] for name in names)): row for row in rows}


def beside(found: Iterable[Score], best: Known) -> Iterator[dict[str, Any]]:
    """Rows: the fastest file of each problem beside the best known; then the files without score.

    A share of 1 is as fast as the best known, below 1 is faster.
    """
    fastest: dict[Problem, Score] = {}
    refused = []
    for score in found:
        if score.problem is None or score.seconds is None:
            refused.append(score)
        elif score.problem not in fastest or score.seconds < _seconds(fastest[score.problem]):
            fastest[score.problem] = score
    for problem, score in sorted(fastest.items()):
        row = best.get(problem)
        us = _seconds(score) * 1e6
        least = problem.bound().time * 1e6 if row is None else row["bound us"]
        yield {
            "file": score.file, **dataclasses.asdict(problem), "us": us, "/ bound": us / least,
            "best known us": None if row is None else row["best us"],
            "/ best known": None if row is None else us / row["best us"], "refused": None,
        }  # fmt: skip
    for score in refused:
        yield {"file": score.file, "refused": score.refusal}


def _seconds(score: Score) -> float:
    return math.inf if score.seconds is None else score.seconds


def summary(rows: Sequence[Mapping[str, Any]], best: Known) -> list[str]:
    """A line per order: problems that were scored, the mean share, and how many were beaten."""
    lines = []
    orders = dict.fromkeys(problem.order for problem in best)
    for order in orders:
        shares = [
            row["/ best known"]
            for row in rows
            if row.get("order") == order and row["/ best known"] is not None
        ]
        total = sum(problem.order == order for problem in best)
        if not shares:
            lines.append(f"{order}: none of {total} problems")
            continue
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        # Times are floats of exact sums: equal ones differ in the last digits that are recorded.
        won = sum(share < 1 - 1e-5 for share in shares)
        lines.append(
            f"{order}: {len(shares)} of {total} problems, {mean:.3f} of the best known time "
            f"(geometric mean), {won} faster than it"
        )
    refused = sum(row["refused"] is not None for row in rows)
    return [*lines, f"{refused} files without a score"] if refused else lines
