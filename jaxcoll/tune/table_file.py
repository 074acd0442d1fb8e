"""Decisions, and the files of tables that hold them: versioned JSON, one line per entry.

A decision is the configuration in use for a task on a machine. A size that was not tuned runs by
the nearest tuned size, by ratio (``nearest``); ``size_ranges`` expresses this as ranges.

A file is written all or nothing. The same table always gives the same bytes. A checksum detects
damaged files; a person who edits a file removes the checksum.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Mapping

from jaxcoll import fields as readers
from jaxcoll.configurations import Config, Task
from jaxcoll.errors import FormatError, JaxcollError, TuneError
from jaxcoll.numerics import checks


@dataclasses.dataclass(frozen=True, order=True)
class Machine:
    """The hardware and the version of jax that a configuration was tuned on.

    The third part of a table's key, the topology, belongs to the task.

    Attributes:
        hardware: backend, kind of device and, if devices share them, host resources, as
            ``this_machine`` writes them: "cpu: 2 cores" or "gpu: NVIDIA H100 80GB HBM3".
        jax: the version of jax, such as "0.12.0".

    Raises:
        TuneError: a part is not a non-empty string of one line.
    """

    hardware: str
    jax: str

    def __post_init__(self) -> None:
        for name in ("hardware", "jax"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip() or not value.isprintable():
                raise TuneError(
                    f"Machine({name}=...) must be a non-empty printable string, got "
                    f"{checks.shown(value)}"
                )

    def __str__(self) -> str:
        return f"{self.hardware}, jax {self.jax}"


def positive_seconds(seconds: float) -> float:
    """A time as a float.

    Raises:
        TuneError: it is not a positive finite number.
    """
    try:
        return float(checks.positive(seconds, "a time", TuneError))
    except TuneError:
        raise TuneError(
            f"a time must be a positive finite number of seconds, got {checks.shown(seconds)}; "
            "tell a failed trial with quarantine()"
        ) from None


@dataclasses.dataclass(frozen=True)
class Decision:
    """The row of a task in the configuration table (AutoCCL, Section 5.1).

    Attributes:
        default: the configuration without tuning.
        tuned: the configuration in use, or None if the default is in use.
        seconds: time of the configuration in use, or None if it was not measured.
        generation: counts the decisions about this task, from 1.

    Raises:
        TuneError: the time is not positive and finite, or the generation is below 1.
    """

    default: Config
    tuned: Config | None = None
    seconds: float | None = None
    generation: int = 1

    def __post_init__(self) -> None:
        for name in ("default", "tuned"):
            value = getattr(self, name)
            if name == "default" or value is not None:
                checks.instance(value, Config, name, TuneError)
        checks.put(
            self,
            generation=checks.integer(self.generation, "generation", TuneError, least=1),
            seconds=checks.optional(self.seconds, positive_seconds),
        )

    @property
    def in_use(self) -> Config:
        """The tuned configuration, or the default if there is none."""
        return self.default if self.tuned is None else self.tuned

    def precedence(self) -> tuple:
        """The sort key of decisions about one task; the first one wins (see ``Table.merge``)."""
        seconds = math.inf if self.seconds is None else self.seconds
        written = [self.in_use.to_json(), self.default.to_json()]
        return -self.generation, seconds, json.dumps(written, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class SizeRange:
    """Buffers of ``min_bytes`` to ``max_bytes``, inclusive; None means no upper limit."""

    min_bytes: int
    max_bytes: int | None
    config: Config


def nearest(nbytes: int, sizes: Collection[int]) -> int:
    """The size nearest to ``nbytes`` by ratio; of two equally near sizes the smaller one."""
    ordered = sorted(sizes)
    answer = ordered[0]
    for below, above in itertools.pairwise(ordered):
        if nbytes > last_below(below, above):
            answer = above
    return answer


def last_below(below: int, above: int) -> int:
    """The largest size that is nearer by ratio to the smaller of two: their geometric mean."""
    # In integers, because the square root of a product of floats would be off by one for some
    # sizes.
    return math.isqrt(below * above)


def size_ranges(decisions: Mapping[int, Decision]) -> tuple[SizeRange, ...]:
    """The ranges from 0 bytes upwards that ``nearest`` implies; equal neighbours are joined."""
    sizes = sorted(decisions)
    ranges: list[SizeRange] = []
    for i, size in enumerate(sizes):
        low = 0 if i == 0 else last_below(sizes[i - 1], size) + 1
        high = None if i == len(sizes) - 1 else last_below(size, sizes[i + 1])
        config = decisions[size].in_use
        if ranges and ranges[-1].config == config:
            low = ranges.pop().min_bytes
        ranges.append(SizeRange(low, high, config))
    return tuple(ranges)


FORMAT = "jaxcoll.tuner-table"
VERSION = 1

History = dict[tuple[Machine, Task, Config], tuple[float, ...]]
Decisions = dict[tuple[Machine, Task], Decision]
Quarantined = dict[tuple[Machine, Task, Config], str]
Parts = tuple[History, Decisions, Quarantined]

_SECTIONS = ("history", "decisions", "quarantine")


# ---------------------------------------------------------------------- writing


def dumps(parts: Parts) -> str:
    """A table as JSON text."""
    history, decisions, quarantined = parts
    sections = {
        "history": [_key(*key) | {"seconds": list(times)} for key, times in history.items()],
        "decisions": [
            _key(*key)
            | {
                "default": decision.default.to_json(),
                "tuned": None if decision.tuned is None else decision.tuned.to_json(),
                "seconds": decision.seconds,
                "generation": decision.generation,
            }
            for key, decision in decisions.items()
        ],
        "quarantine": [_key(*key) | {"why": why} for key, why in quarantined.items()],
    }
    # Sorted lines, one per entry: the same table gives the same bytes, and version control shows
    # which entries changed.
    lines = {name: sorted(map(_compact, entries)) for name, entries in sections.items()}
    body = ",\n".join(
        f"{json.dumps(name)}: [" + "".join(f"\n{line}," for line in entries)[:-1] + "\n]"
        for name, entries in lines.items()
    )
    head = {"format": f"{FORMAT}/{VERSION}", "checksum": _checksum(lines)}
    opening = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
    return "{\n" + opening + body + "\n}\n"


def _key(machine: Machine, task: Task, config: Config | None = None) -> dict:
    key = {"hardware": machine.hardware, "jax": machine.jax, "task": task.to_json()}
    return key if config is None else key | {"config": config.to_json()}


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(lines: dict[str, list[str]]) -> str:
    text = "\n".join(f"{name}\n" + "\n".join(entries) for name, entries in lines.items())
    return f"crc32:{zlib.crc32(text.encode()):08x}"


# ---------------------------------------------------------------------- reading


def loads(text: str) -> Parts:
    """The table that ``dumps`` has written.

    Raises:
        FormatError: the text is not JSON or is cut short, is not a table, is of a newer version or
            damaged, has an entry twice, or has an entry that a task, a configuration or a decision
            refuses.
    """
    whole = readers.parse(text)
    _check_format(whole)  # first, because another version may have other fields
    fields = readers.Fields(whole, "the table")
    fields.take("format", readers.text)
    checksum = fields.optional("checksum", readers.text)
    raw = {name: fields.take(name, readers.items) for name in _SECTIONS}
    fields.end()
    if checksum is not None:
        try:
            # The checksum covers the entries, not the bytes: a person may change spaces and the
            # order of lines.
            found = _checksum({name: sorted(map(_compact, raw[name])) for name in _SECTIONS})
        except RecursionError:
            raise FormatError("nested deeper than any table") from None
        if found != checksum:
            raise FormatError(
                f"damaged or edited: its entries have the checksum {found}, but it says "
                f"{readers.glimpse(checksum)}; restore it, or remove the checksum to accept edits"
            )
    return (
        _section(raw["history"], "history", True, _times),
        _section(raw["decisions"], "decisions", False, _decision),
        _section(raw["quarantine"], "quarantine", True, lambda f: f.take("why", _reason)),
    )


def _check_format(whole: object) -> None:
    name = whole.get("format") if isinstance(whole, dict) else None
    match = re.fullmatch(rf"{re.escape(FORMAT)}/([0-9]{{1,9}})", str(name))
    if match is None:
        raise FormatError(
            f'not a tuner table: expected an object with "format": "{FORMAT}/{VERSION}", got '
            + (f'"format": {readers.glimpse(name)}' if name is not None else "none")
        )
    if int(match[1]) > VERSION:
        raise FormatError(
            f"written by a newer version: its format is {readers.glimpse(name)}, and this one "
            f"reads up to {FORMAT}/{VERSION}; update jaxcoll, or tune again"
        )
    if int(match[1]) < 1:
        raise FormatError(f"no such version of a tuner table: {name}")


def _section(entries: list, where: str, has_config: bool, read: Callable) -> dict:
    """The entries of a section by their keys."""
    section: dict = {}
    for i, entry in enumerate(entries):
        fields = readers.Fields(entry, f"{where}[{i}]")
        try:
            machine = Machine(
                fields.take("hardware", readers.text), fields.take("jax", readers.text)
            )
            key: tuple = machine, fields.take("task", _checked(Task))
            if has_config:
                key += (fields.take("config", _checked(Config)),)
            value = read(fields)
        except FormatError:
            raise
        except JaxcollError as error:
            raise FormatError(f"{where}[{i}]: {error}") from error
        fields.end()
        # With two times for one key, the order of the lines would decide which one counts.
        if key in section:
            raise FormatError(f"{where}[{i}] repeats an earlier entry; give each once")
        section[key] = value
    return section


def _checked(kind: type) -> Callable[[object, str], object]:
    """A reader of a ``Task`` or a ``Config`` whose errors name the field."""

    def read(value: object, name: str) -> object:
        if not isinstance(value, dict):
            raise FormatError(f"{name} must be an object, got {readers.glimpse(value)}")
        try:
            return kind.from_json(value)
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{name}: {error}") from error

    return read


def _times(fields: readers.Fields) -> tuple[float, ...]:
    times = fields.take("seconds", readers.list_of(readers.number))
    if not times or min(times) <= 0 or list(times) != sorted(times):
        raise FormatError(f"{fields.where}.seconds must be positive times in ascending order")
    return times


def _reason(value: object, name: str) -> str:
    reason = readers.text(value, name)
    if not reason.strip():
        raise FormatError(
            f"{name} must say how a configuration failed, got {readers.glimpse(value)}"
        )
    return reason


def _decision(fields: readers.Fields) -> Decision:
    read_config = _checked(Config)
    return Decision(
        fields.take("default", read_config),
        fields.optional("tuned", read_config),
        fields.optional("seconds", readers.number),
        fields.take("generation", readers.whole(1, readers.INT64)),
    )
