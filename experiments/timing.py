"""Seconds that calls take, and what every benchmark writes of them.

Seconds are medians over several calls, of candidates in alternation: on a shared machine the speed
of one minute is not that of the next, and ratios of calls made side by side are what can be
repeated. A benchmark writes a table to read, and a file to compare with later.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import numpy as np
from rich.console import Console

from experiments.study import describe_machine, print_table, printed, write_json

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds that one call took, over several calls."""

    median: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        return (
            f"{format_seconds(self.median)} "
            f"({format_seconds(self.minimum)} .. {format_seconds(self.maximum)})"
        )


def time_it(call: Callable[[], object], repeat: int = 7) -> Timing:
    """Times ``call`` over ``repeat`` calls, after one that is not timed (it may compile)."""
    return compare({"": call}, repeat)[""]


def compare(candidates: Mapping[str, Callable[[], object]], repeat: int = 7) -> dict[str, Timing]:
    """Times each candidate ``repeat`` times by ``alternate``."""
    return {
        name: Timing(statistics.median(taken), min(taken), max(taken))
        for name, taken in alternate(candidates, repeat).items()
    }


def alternate(
    candidates: Mapping[str, Callable[[], object]],
    repeat: int,
    *,
    warm: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[str, list[float]]:
    """Seconds of ``repeat`` calls of each candidate, in turn: the i-th of all are of one round.

    A call that returns JAX arrays ends when they are computed.

    Args:
        warm: calls of each before, untimed, since a first call may compile.
        clock: by which to time; ``perf_counter`` where None.

    Raises:
        ValueError: ``repeat`` is less than 1, or there are no candidates.
    """
    clock = clock or perf_counter
    if repeat < 1:
        raise ValueError(f"repeat must be at least 1, got {repeat}")
    if not candidates:
        raise ValueError("nothing to time: candidates is empty")
    for call in [*candidates.values()] * warm:
        _finish(call())
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeat):
        # A machine that slows down for a while slows all of them down. Each round starts with
        # another candidate, so that none always runs in the wake, and the caches, of the same one.
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            _finish(candidates[name]())
            seconds[name].append(clock() - start)
    return seconds


def cpu_timed(call: Callable[[], T]) -> tuple[T, float]:
    """The result of a call, and its CPU seconds, which other work on the machine changes little."""
    start = process_time()
    return call(), process_time() - start


def format_seconds(seconds: float) -> str:
    """Three digits and a unit that fits: ``0.0123`` is ``12.3 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _finish(result: object) -> None:
    # JAX returns before it has computed. A benchmark that does not import it must not pay for it.
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.block_until_ready(result)


RESULTS = Path("results/bench")


def report(
    name: str,
    rows: Iterable[Mapping[str, object]],
    *,
    results: Path = RESULTS,
    console: Console | None = None,
) -> Path:
    """Prints ``rows`` as a table and writes them, with the machine and the time, to a JSON file.

    Args:
        name: the name of the benchmark; the file is ``results/name.json``.
        rows: a mapping from column to value each; those of an iterator are printed one by one when
            they are made, before the table, as by ``kept``. A ``Timing`` is printed in a fitting
            unit and written in seconds; numbers, strings, booleans, None and NumPy scalars are
            written as themselves, and numbers that are not finite as null.
        results: folder of the file, made when absent.
        console: where to print; standard output when None.

    Returns:
        The path of the file. It is replaced whole: no reader sees half of it.

    Raises:
        ValueError: ``name`` is not a plain file name.
        TypeError: a value is of another type. The table is printed all the same.
    """
    _check_name(name)
    if not isinstance(rows, Sequence):
        rows = kept(name, rows, results=results)
    # A file or a pipe has no width of its own to fold the table to.
    print_table(name, rows, console or Console(width=None if sys.stdout.isatty() else 200))
    return write(name, rows, results=results)


def kept(name: str, rows: Iterable[Mapping[str, Any]], *, results: Path = RESULTS) -> list[Any]:
    """The rows, each printed and in the file once it is made: a benchmark may be stopped midway."""
    made: list[Any] = []
    for row in printed(rows):
        made.append(row)
        write(name, made, results=results)
    return made


def write(name: str, rows: Sequence[Mapping[str, object]], *, results: Path = RESULTS) -> Path:
    """Writes rows as ``report`` does, without printing them.

    Returns:
        The path of the file. It is replaced whole: no reader sees half of it.

    Raises:
        ValueError: ``name`` is not a plain file name.
        TypeError: a value is of another type than ``report`` takes.
    """
    _check_name(name)
    content = {
        "benchmark": name,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "rows": [{column: _plain(value) for column, value in row.items()} for row in rows],
    }
    return write_json(results / f"{name}.json", content)


def earlier(name: str, *, results: Path = RESULTS) -> list[dict[str, Any]]:
    """The rows that an earlier run has written on this machine; none where there are none.

    Raises:
        ValueError: the file is not one that ``report`` writes, or was written on another machine,
            whose times are not to be mixed with those of this one.
    """
    path = results / f"{name}.json"
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or not {"machine", "rows"} <= content.keys():
        raise ValueError(f"{path} holds no rows of a benchmark; remove it")
    if content["machine"] != describe_machine():
        raise ValueError(
            f"{path} was written on another machine; move it, or measure all rows again"
        )
    return content["rows"]


def _check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"a benchmark's name is letters, digits, '_', '-' and '.', got {name!r}")


def _plain(value: object) -> object:
    """``value`` as JSON holds it."""
    if isinstance(value, Timing):
        return dataclasses.asdict(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"a row holds text, numbers and timings, got {value!r}")
