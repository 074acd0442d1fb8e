"""nccl-tests: the times that NCCL's benchmarks printed, as text or as JSON.

The columns are found by their names in the header, so that all versions are read: before 2.13
(``error`` in place of ``#wrong``, ``redop`` and ``root`` only where they apply), since then, and
with the statistics of 2.19 after each half. Lines of other programs in between are passed over.
"""

from __future__ import annotations

import dataclasses
import re

from jaxcoll import fields as readers
from jaxcoll.configurations.config import Config, Task
from jaxcoll.errors import FormatError, TuneError
from jaxcoll.fields import glimpse
from jaxcoll.numerics import checks
from jaxcoll.tune.tables.decision import Machine
from jaxcoll.tune.tables.table import Table

_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_DTYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
_DEVICE = re.compile(r"#\s+Rank\s+([0-9]{1,9})\s")
_STARTING = re.compile(r"Collective test starting: ([a-z_]+)_perf")
_PREFIX = re.compile(r"^\[[0-9]+,[0-9]+\]<(?:stdout|stderr)>:\s?")
_TIMES = ("time", "cputime")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A row of nccl-tests.

    Attributes:
        nbytes: of the larger buffer of a rank.
        dtype: name in NumPy, or in ml_dtypes.
        seconds: out of place.
        seconds_in_place: None where it was not measured.
        wrong: values that differed from the expected ones; None where it was not checked.
    """

    nbytes: int
    dtype: str
    seconds: float
    seconds_in_place: float | None
    wrong: int | None


@dataclasses.dataclass(frozen=True)
class Measurements:
    """The times that a run of nccl-tests printed.

    Attributes:
        collective: kind, as in ``Collective``; None where the text does not say (before 2.17).
        ranks: in the list of devices.
    """

    collective: str | None
    ranks: int
    rows: tuple[Measurement, ...]

    def add_to(
        self, table: Table, config: Config, machine: Machine, collective: str | None = None
    ) -> int:
        """Record the times of a configuration in a table; the number of times recorded.

        Rows with wrong values are quarantined; rows of 0 bytes are left out.

        Args:
            collective: where the text does not say it.

        Raises:
            FormatError: neither says the collective.
            TuneError: a table, configuration or machine that is none.
        """
        checks.instance(table, Table, "table", TuneError)
        kind = self.collective or collective
        if kind is None:
            raise FormatError(
                "these times do not say of which collective they are; give collective="
            )
        recorded = 0
        for row in self.rows:
            task = Task(kind, row.nbytes, row.dtype, self.ranks)
            if row.wrong:
                table.quarantine(task, config, f"{row.wrong} wrong values", machine)
            elif row.nbytes and row.seconds > 0:
                table.record(task, config, row.seconds, machine)
                recorded += 1
        return recorded


def loads(text: str) -> Measurements:
    """The times in the output of a benchmark of nccl-tests.

    Raises:
        FormatError: no header of nccl-tests, no list of devices, no row; a row that does not match
            the header, or one of a dtype that does not exist.
    """
    collective, ranks, header, rows = None, set(), None, []
    for number, raw in enumerate(checks.text(text, "text", FormatError).splitlines(), 1):
        line = _PREFIX.sub("", raw).strip()
        if started := _STARTING.search(line):
            collective = _KINDS.get(started[1])
        elif device := _DEVICE.match(line):
            ranks.add(int(device[1]))
        elif line.startswith("#") and "size" in line and "algbw" in line:
            header = _header(line, number)
        elif header is not None and re.match(r"[0-9]", line):
            rows.append(_row(line, header, number))
    if header is None or not ranks:
        what = "header with size, time and algbw" if header is None else "list of devices"
        raise FormatError(f"not the output of a benchmark of nccl-tests: it has no {what}")
    if not rows:
        raise FormatError("the benchmark ended before its first row")
    return Measurements(collective, len(ranks), tuple(rows))


def _header(line: str, number: int) -> list[str]:
    """The names of the columns, a size and a time at least."""
    header = line.lstrip("#").split()
    if "size" not in header or not set(_TIMES) & set(header):
        raise FormatError(f"line {number}: a header has size and time, got {glimpse(line)}")
    if header.index("size") > min(i for i, name in enumerate(header) if name in _TIMES):
        raise FormatError(f"line {number}: the size comes before the times, got {glimpse(line)}")
    return header


def _row(line: str, header: list[str], number: int) -> Measurement:
    cells = line.split()
    if len(cells) != len(header):
        raise FormatError(
            f"line {number} has {len(cells)} columns where the header has {len(header)}: "
            f"{glimpse(line)}"
        )
    starts = [i for i, name in enumerate(header) if name in _TIMES]
    first = dict(zip(header[: starts[0]], cells, strict=False))
    halves = [
        dict(zip(header[start:end], cells[start:end], strict=True))
        for start, end in zip(starts, [*starts[1:], len(cells)], strict=True)
    ]
    times = [_seconds(half, number) for half in halves]
    if times[0] is None:
        raise FormatError(f"line {number} has no time: {glimpse(line)}")
    return Measurement(
        _whole(first["size"], "size", number),
        _dtype(first.get("type", ""), f"line {number}"),
        times[0],
        times[1] if len(times) > 1 else None,
        max((w for half in halves if (w := _wrong(half, number)) is not None), default=None),
    )


def _seconds(half: dict[str, str], number: int) -> float | None:
    text = next(half[name] for name in _TIMES if name in half)
    if text == "N/A":
        return None
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", text):
        raise FormatError(f"line {number}: a time must be a number of us, got {glimpse(text)}")
    return float(text) / 1e6


def _wrong(half: dict[str, str], number: int) -> int | None:
    """The number of wrong values; of versions before 2.13, whether the error is above 0."""
    text = half.get("#wrong", half.get("error", "N/A"))
    if text == "N/A":
        return None
    if "#wrong" not in half:
        try:
            return int(float(text[:40]) > 1e-2)
        except ValueError:
            raise FormatError(
                f"line {number}: error must be a number, got {glimpse(text)}"
            ) from None
    return _whole(text, "#wrong", number)


def _whole(text: str, name: str, number: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise FormatError(f"line {number}: {name} must be a whole number, got {glimpse(text)}")
    return int(text)


def _dtype(name: str, where: str) -> str:
    if name not in _DTYPES:
        raise FormatError(
            f"{where}: the type must be one of {', '.join(_DTYPES)}, got {glimpse(name)}"
        )
    return _DTYPES[name]


# ---------------------------------------------------------------------- JSON


def loads_json(text: str, collective: str | None = None) -> Measurements:
    """The times in the file that a benchmark wrote with ``-J`` (nccl-tests 2.17 and newer).

    Args:
        collective: as the file does not name it.

    Raises:
        FormatError: not such a file, or fields of other types.
    """
    whole = readers.Fields(readers.parse(text), "the file")
    devices = whole.take("devices", readers.items)
    rows = []
    for i, entry in enumerate(whole.take("results", readers.items)):
        result = readers.Fields(entry, f"results[{i}]")
        nbytes = result.take("size", readers.whole(0, readers.INT64))
        dtype = _dtype(result.take("type", readers.text), f"results[{i}]")
        halves = [
            _json_half(result.take(name, lambda value, _: value), f"results[{i}].{name}")
            for name in ("out_of_place", "in_place")
        ]
        wrong = [w for _, w in halves if w is not None]
        rows.append(
            Measurement(nbytes, dtype, halves[0][0], halves[1][0], max(wrong, default=None))
        )
    if not devices or not rows:
        raise FormatError("the file has no devices, or no results")
    return Measurements(collective, len(devices), tuple(rows))


def _json_half(value: object, where: str) -> tuple[float, int | None]:
    half = readers.Fields(value, where)
    seconds = half.take("time", readers.number) / 1e6
    wrong = half.take("nwrong", lambda value, _: value, None)
    return seconds, wrong if type(wrong) is int else None
