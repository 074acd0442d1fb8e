"""nccl-tests: the times that NCCL's benchmarks print, as text or as JSON, read and written.

The columns are found by their names in the header, so all versions can be read: those before 2.13
(``error`` instead of ``#wrong``; ``redop`` and ``root`` are missing or blank if they do not apply),
later ones, and those with the statistics of 2.19 after each half. Lines of other programs in
between are ignored.

Files are written as the text of 2.17 or the JSON of version 3. The text has times to a femtosecond.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable

from jaxcoll import fields as readers
from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError
from jaxcoll.fields import glimpse
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.kinds import KINDS, names_in
from jaxcoll.numerics import checks
from jaxcoll.simulation import Timeline

# Names of its programs (all_reduce_perf) and types; some have other names here.
_PROGRAMS = names_in("nccl_tests")
_KINDS = {name: kind for kind, name in _PROGRAMS.items()}
_DTYPES = {
    **{name: name for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64")},
    "half": "float16", "float": "float32", "double": "float64", "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
_DEVICE = re.compile(r"#\s+Rank\s+([0-9]{1,9})\s")
_STARTING = re.compile(r"Collective test starting: ([a-z_]+)_perf")
# The name of a called program, if no line states which collective it tests.
_CALLED = re.compile(r"(?:^|[\s/\"'])([a-z_]{4,20})_perf(?:_mpi)?(?:[\s\"']|$)")
# Prefixes of mpirun (``[1,0]<stdout>:``, or with the job's name before it) and srun -l (``0: ``).
_PREFIX = re.compile(r"^(?:\[[^\s<>\[\]]{1,80}\]<(?:stdout|stderr)>:\s?|[0-9]{1,7}:\s)")
_TIMES = ("time", "cputime")
_MOST_CALL = 4096  # characters of a line that is searched for the name of a program


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A row of nccl-tests.

    Attributes:
        nbytes: bytes of the larger buffer of a rank.
        dtype: name in NumPy, or in ml_dtypes.
        seconds: time out of place.
        seconds_in_place: time in place; None if it was not measured.
        wrong: number of values that differed from the expected ones; None if it was not checked.
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
        collective: kind, as in ``Collective``; None if the text does not state it (before 2.17, if
            no program was named in it).
        ranks: number of ranks in the list of devices.
        torn: number of rows that were skipped, see ``loads``.
    """

    collective: str | None
    ranks: int
    rows: tuple[Measurement, ...]
    torn: int = 0


def loads(text: str, *, skip_torn: bool = False) -> Measurements:
    """The times in the output of a benchmark of nccl-tests.

    Args:
        skip_torn: whether to skip rows that cannot be read, such as those into which another
            process has printed, instead of refusing them; ``torn`` counts them.

    Raises:
        FormatError: there is no header of nccl-tests, no list of devices, or no row; a row does not
            match the header; or its dtype does not exist.
    """
    checks.flag(skip_torn, "skip_torn", FormatError)
    said, called, ranks, rows, torn = [], set(), set(), [], 0
    header: list[str] | None = None
    for number, raw in enumerate(checks.text(text, "text", FormatError).splitlines(), 1):
        line = _PREFIX.sub("", raw).strip()
        if started := _STARTING.search(line):
            said.append(_KINDS.get(started[1]))
        elif device := _DEVICE.match(line):
            ranks.add(int(device[1]))
        elif line.startswith("#") and "size" in line and "algbw" in line:
            header = line.lstrip("#").split()
            where = f"line {number}: "
            if "size" not in header or not set(_TIMES) & set(header):
                raise FormatError(f"{where}a header must have size and time, got {glimpse(line)}")
            if header.index("size") > min(i for i, name in enumerate(header) if name in _TIMES):
                raise FormatError(
                    f"{where}the size must come before the times, got {glimpse(line)}"
                )
        elif header is not None and re.match(r"[0-9]", line):
            try:
                rows.append(_row(line, header, number))
            except FormatError:
                if not skip_torn:
                    raise
                torn += 1
        elif "_perf" in line and len(line) < _MOST_CALL:
            called |= {_KINDS[name] for name in _CALLED.findall(line) if name in _KINDS}
    if header is None or not ranks:
        what = "header with size, time and algbw" if header is None else "list of devices"
        raise FormatError(f"not the output of a benchmark of nccl-tests: it has no {what}")
    if not rows:
        raise FormatError("the benchmark ended before its first row")
    # A collective that a line names takes precedence over the program in a command line; a log of
    # several benchmarks has several of these.
    collective = said[-1] if said else called.pop() if len(called) == 1 else None
    return Measurements(collective, len(ranks), tuple(rows), torn)


def _row(line: str, header: list[str], number: int) -> Measurement:
    cells = line.split()
    # Some versions leave redop blank if nothing is reduced, and root if there is none.
    blank = ("redop", "root")[: max(0, len(header) - len(cells))]
    if set(blank) <= set(header):
        shorter = [name for name in header if name not in blank]
        given = dict(zip(shorter, cells, strict=False))
        is_root = re.fullmatch(r"-?[0-9]{1,9}", given.get("root", "0"))
        if len(shorter) == len(cells) and is_root and given.get("type") in _DTYPES:
            header = shorter
    if len(cells) != len(header):
        raise FormatError(
            f"line {number} has {len(cells)} columns where the header has {len(header)}: "
            f"{glimpse(line)}"
        )
    # There are two halves with equal names, out of place and in place, each beginning with its
    # time: statistics and further columns of a version stay inside their half.
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
    """The number of wrong values; for versions before 2.13, whether the error is above 0."""
    text = half.get("#wrong", half.get("error", "N/A"))
    if text == "N/A":
        return None
    # The error is the largest difference. Rounding of a sum also causes some, but far below 0.01.
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
        collective: the collective, if the file's ``args`` do not name the program.

    Raises:
        FormatError: the text is not such a file, or fields have other types.
    """
    whole = readers.Fields(readers.parse(text), "the file")
    devices = whole.take("devices", readers.items)
    called = whole.take("args", lambda value, _: value, None)
    rows = []
    for i, entry in enumerate(whole.take("results", readers.items)):
        result = readers.Fields(entry, f"results[{i}]")
        nbytes = result.take("size", readers.whole(0, readers.INT64))
        dtype = _dtype(result.take("type", readers.text), f"results[{i}]")
        out_of_place, in_place = (
            _json_half(result.take(name, lambda value, _: value), f"results[{i}].{name}", must)
            for name, must in (("out_of_place", True), ("in_place", False))
        )
        wrong = [w for _, w in (out_of_place, in_place) if w is not None]
        seconds, again = out_of_place[0], in_place[0]
        rows.append(Measurement(nbytes, dtype, seconds or 0.0, again, max(wrong, default=None)))
    if not devices or not rows:
        raise FormatError("the file has no devices or no results; give the output of a whole run")
    # The program is the first word of the command line, given as a list or as one text.
    first = called[0] if isinstance(called, list) and called else called
    named = _CALLED.search(first) if isinstance(first, str) and len(first) < _MOST_CALL else None
    found = _KINDS.get(named[1]) if named else None
    return Measurements(found or collective, len(devices), tuple(rows))


def _json_half(value: object, where: str, must: bool) -> tuple[float | None, int | None]:
    half = readers.Fields(value, where)
    taken = half.take("time", lambda value, _: value)
    wrong = half.take("nwrong", lambda value, _: value, None)
    unmeasured = not must and taken in (None, "nan", "N/A")
    microseconds = None if unmeasured else readers.number(taken, f"{where}.time")
    if microseconds is not None and microseconds < 0:
        raise FormatError(f"{where}.time must be a number of us, got {glimpse(taken)}")
    seconds = None if microseconds is None else microseconds / 1e6
    return seconds, wrong if type(wrong) is int and wrong >= 0 else None


# ---------------------------------------------------------------------- writing

_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# Widths as in nccl-tests, so that tools which cut columns by place can read these tables, too.
_HEADER = (
    "#{0:54}{1:^36}{2:^36}\n"
    "#{3:>12}{4:>14}{5:>10}{6:>8}{7:>8}{8:>14}{9:>8}{10:>8}{11:>7}{8:>15}{9:>8}{10:>8}{11:>7}\n"
    "#{12:>12}{13:>14}{14:>40}{15:>8}{15:>8}{16:>22}{15:>8}{15:>8}"
).format(
    "", "out-of-place", "in-place", "size", "count", "type", "redop", "root", "time", "algbw",
    "busbw", "#wrong", "(B)", "(elements)", "(us)", "(GB/s)", "(us)",
)  # fmt: skip


def dumps(measured: Measurements) -> str:
    """The table of nccl-tests 2.17, times to a femtosecond.

    Raises:
        FormatError: nccl-tests does not have the dtype or collective.
    """
    rows = _columns(measured)
    lines = ["# nccl-tests version 2.17.6, written by jaxcoll"]
    if measured.collective is not None:
        lines.append(f"# Collective test starting: {_PROGRAMS[measured.collective]}_perf")
    lines += ["# Using devices"]
    lines += [
        f"#  Rank {r:2} Group  0 Pid {r + 1:6} on      rank device {r:2} [0000:00:00] unknown"
        for r in range(measured.ranks)
    ]
    lines += ["#", _HEADER]
    for row, count, redop, root in rows:
        halves = []
        for seconds in (row.seconds, row.seconds_in_place):
            algbw, busbw = _bandwidths(measured, row.nbytes, seconds)
            wrong = "N/A" if row.wrong is None or seconds is None else row.wrong
            time = "N/A" if seconds is None else _microseconds(seconds)
            halves.append(f" {time:>14} {algbw:>7} {busbw:>7} {wrong:>6}")
        name = _NAMES[row.dtype]
        columns = f"{row.nbytes:>13} {count:>13} {name:>9} {redop:>7} {root:>7}"
        lines.append(columns + "".join(halves))
    lines.append("# Out of bounds values : unknown")
    if measured.collective is not None:
        lines.append(f"# Collective test concluded: {_PROGRAMS[measured.collective]}_perf")
    return "\n".join(lines) + "\n"


def dumps_json(measured: Measurements) -> str:
    """The JSON that nccl-tests writes with ``-J``, version 3.

    Raises:
        FormatError: see ``dumps``.
    """
    results = []
    for row, count, redop, root in _columns(measured):
        halves = {}
        for name, seconds in (("out_of_place", row.seconds), ("in_place", row.seconds_in_place)):
            algbw, busbw = _bandwidths(measured, row.nbytes, seconds)
            halves[name] = {
                "time": "nan" if seconds is None else _exact_microseconds(seconds),
                "alg_bw": "nan" if algbw == "N/A" else float(algbw),
                "bus_bw": "nan" if busbw == "N/A" else float(busbw),
                "nwrong": "N/A" if row.wrong is None or seconds is None else row.wrong,
            }
        results.append({
            "size": row.nbytes, "count": count, "type": _NAMES[row.dtype], "redop": redop,
            "root": str(root), **halves,
        })  # fmt: skip
    whole: dict[str, object] = {"version": 3}
    if measured.collective is not None:
        whole["args"] = [f"{_PROGRAMS[measured.collective]}_perf"]
    devices = [{"rank": rank, "group": 0, "device": rank} for rank in range(measured.ranks)]
    return json.dumps(whole | {"devices": devices, "results": results}, indent=1) + "\n"


def of_timelines(runs: Iterable[Timeline]) -> Measurements:
    """Simulated times of one collective as a benchmark would have measured them, in float32.

    Raises:
        FormatError: there are no runs, they belong to several collectives, or buffers are not whole
            bytes.
    """
    rows, kinds = [], set()
    for i, run in enumerate(checks.members(runs, "runs", FormatError)):
        checks.instance(run, Timeline, f"runs[{i}]", FormatError)
        what = run.schedule.collective
        kinds.add((what.kind, what.num_ranks))
        if run.nbytes.denominator != 1 or not run.time:
            raise FormatError(
                f"runs[{i}] must have whole bytes and a time above 0, got {float(run.nbytes):g} "
                f"bytes in {run.time:g} s"
            )
        rows.append(Measurement(int(run.nbytes), "float32", run.time, None, None))
    if len(kinds) != 1:
        raise FormatError(f"a table holds times of one collective, got runs of {len(kinds)}")
    ((kind, ranks),) = kinds
    return Measurements(kind, ranks, tuple(rows))


def _columns(measured: Measurements) -> list[tuple[Measurement, int, str, int]]:
    """Each row with its count, redop and root."""
    checks.instance(measured, Measurements, "measured", FormatError)
    kind = measured.collective
    if kind is not None:
        checks.choice(kind, _PROGRAMS, "the collective of nccl-tests", FormatError)
    columns = []
    for row in measured.rows:
        name = _NAMES[checks.choice(row.dtype, _NAMES, "the dtype of nccl-tests", FormatError)]
        elements = row.nbytes // _ITEM_BYTES[name]
        # If the log does not state the collective, it is treated as one that moves the whole
        # buffer.
        row_of = None if kind is None else KINDS[kind]
        is_part = row_of is not None and not row_of.is_whole  # ``count`` is that of one rank's part
        count = elements // measured.ranks if is_part else elements
        redop = "sum" if row_of is not None and row_of.adds else "none"
        root = 0 if row_of is not None and row_of.has_root else -1
        columns.append((row, count, redop, root))
    return columns


_ITEM_BYTES = {
    name: 8 if "64" in name or name == "double" else 4 if "32" in name or name == "float"
    else 2 if name in ("half", "bfloat16") else 1
    for name in _DTYPES
}  # fmt: skip


def _bandwidths(measured: Measurements, nbytes: int, seconds: float | None) -> tuple[str, str]:
    """algbw and busbw in GB/s; without a collective the busbw is not known."""
    if seconds is None:
        return "N/A", "N/A"
    algbw = nbytes / seconds / 1e9 if seconds else 0.0
    if measured.collective is None:
        return f"{algbw:.2f}", "0.00"
    root = 0 if KINDS[measured.collective].has_root else None
    what = Collective(measured.collective, measured.ranks, root=root)
    return f"{algbw:.2f}", f"{algbw * float(what.busbw_factor()):.2f}"


def _microseconds(seconds: float) -> str:
    whole, _, rest = f"{1e6 * seconds:.9f}".partition(".")
    return f"{whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def _exact_microseconds(seconds: float) -> float:
    """A number of microseconds that is read back as the same float of seconds, if there is one."""
    # 1e6 * seconds / 1e6 does not always give the same float, but one of its neighbours mostly
    # does.
    near = 1e6 * seconds
    tried = (near, math.nextafter(near, 0.0), math.nextafter(near, math.inf))
    return next((time for time in tried if time / 1e6 == seconds), near)


# ---------------------------------------------------------------------- files


def save(path: str | os.PathLike, measured: Measurements) -> None:
    """Write times, all or nothing: JSON if the name ends with .json, else the table.

    Raises:
        OSError: the file cannot be written.
    """
    is_json = str(path).endswith(".json")
    write_text(path, dumps_json(measured) if is_json else dumps(measured))


def load(path: str | os.PathLike, *, max_bytes: int = MAX_BYTES) -> Measurements:
    """Read the output of a benchmark, the table or the JSON; see ``loads`` and ``loads_json``.

    Raises:
        OSError: the file cannot be read.
    """
    return load_text(
        path, lambda text: (loads_json if text.lstrip()[:1] == "{" else loads)(text), max_bytes
    )
