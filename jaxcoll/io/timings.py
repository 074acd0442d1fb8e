"""Measured times of collectives from many tools, in one form.

The content tells the format: the output of nccl-tests (text or JSON), MSCCL++'s tables (``| Size |
Time (us) | ..``) and its executor's lines (``Execution time: 12.3 us, data size: ..``), rows of
this project's benchmarks (``scripts/bench``), and this module's own two forms. Its CSV has a header
with the columns ``collective``, ``ranks``, ``nbytes`` and ``seconds``, and may have ``synthesizer``
and ``chunks`` (per shard) of the schedule that ran::

    collective,ranks,nbytes,seconds,synthesizer,chunks
    all_reduce,8,1048576,2.1e-05,ring,2

JSON is ``{"format": "jaxcoll.timings/1", "rows": [..]}`` with the same names.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator

from jaxcoll import fields as readers
from jaxcoll.errors import FormatError
from jaxcoll.fields import glimpse
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.io.nccl import nccl_tests
from jaxcoll.kinds import NAMES
from jaxcoll.numerics import checks

FORMAT = "jaxcoll.timings/1"
_MOST_RANKS = 2**20
_LEAST_SECONDS, _MOST_SECONDS = 1e-12, 1e6
_COLUMNS = ("collective", "ranks", "nbytes", "seconds", "synthesizer", "chunks")
_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50}
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) (B|KiB|MiB|GiB|TiB|PiB)")
_EXECUTED = re.compile(
    r"Execution time: ([0-9.eE+-]{1,40}) us, (?:per-iter )?data size: ([0-9]{1,18}) bytes"
)
_HEADINGS = ("Size", "Time (us)")


@dataclasses.dataclass(frozen=True)
class Timing:
    """One measured time.

    Attributes:
        collective: its kind.
        ranks: the number of ranks that took part.
        nbytes: bytes of a rank's buffer, the larger of input and output.
        seconds: the time.
        synthesizer: synthesizer of the schedule that ran; None if it is unknown, as for NCCL.
        chunks: chunks per shard of that schedule; None if they are unknown.

    Raises:
        FormatError: the kind does not exist, or numbers are not above 0.
    """

    collective: str
    ranks: int
    nbytes: int
    seconds: float
    synthesizer: str | None = None
    chunks: int | None = None

    def __post_init__(self) -> None:
        checks.choice(self.collective, NAMES, "collective", FormatError)
        for name, most in (("ranks", _MOST_RANKS), ("nbytes", readers.INT64)):
            checks.integer(getattr(self, name), name, FormatError, least=1, most=most)
        # From a picosecond to eleven days; other times have a mistaken unit.
        limits = {"least": _LEAST_SECONDS, "most": _MOST_SECONDS}
        checks.put(self, seconds=checks.between(self.seconds, "seconds", FormatError, **limits))
        checks.optional(self.synthesizer, checks.text, "synthesizer", FormatError)
        checks.optional(
            self.chunks, checks.integer, "chunks", FormatError, least=1, most=readers.INT32
        )


@dataclasses.dataclass(frozen=True)
class Timings:
    """The times that a log holds.

    Attributes:
        rows: the times in the order of the log.
        torn: number of rows that were skipped, because another process had printed into them or
            their results were wrong.
    """

    rows: tuple[Timing, ...]
    torn: int = 0


def loads(text: str, collective: str | None = None, ranks: int | None = None) -> Timings:
    """The times of a log; see the module.

    Args:
        collective: the collective, if the log does not state it: nccl-tests before 2.17 and MSCCL++
            do not.
        ranks: the number of ranks, if the log does not state it: MSCCL++ does not.

    Raises:
        FormatError: the format is another one, a row cannot be read, collective or ranks are not
            stated, or the log states others than are given.
    """
    checks.text(text, "text", FormatError)
    checks.optional(collective, checks.choice, NAMES, "collective", FormatError)
    checks.optional(ranks, checks.integer, "ranks", FormatError, least=1, most=_MOST_RANKS)
    found = _read(text, collective, ranks)
    # The log's own statement counts: a sum taken for a gather would seem half as fast as it is.
    for name, given in (("collective", collective), ("ranks", ranks)):
        said = {getattr(row, name) for row in found.rows}
        if given is not None and said and given not in said:
            listed = ", ".join(map(str, sorted(said)[:4]))
            raise FormatError(f"the log states {name} {listed}, but {given} was given")
    return found


def _read(text: str, collective: str | None, ranks: int | None) -> Timings:
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("{"):
        return _of_json(text, collective, ranks)
    if start.partition("\n")[0].strip().startswith("collective,"):
        return Timings(tuple(_of_csv(start)))
    if any(_is_heading(line) for line in text.splitlines()):
        return Timings(tuple(_of_table(text, *_stated(collective, ranks, "MSCCL++'s table"))))
    if found := _EXECUTED.findall(text):
        kind, count = _stated(collective, ranks, "MSCCL++'s executor")
        return Timings(
            tuple(Timing(kind, count, int(size), 1e-6 * _float(time)) for time, size in found)
        )
    # Last, because it has no first line of its own: anything may come before its header. Rows that
    # other processes printed into are only counted, because a log of hours is worth more than one
    # row.
    return _of_nccl(nccl_tests.loads(text, skip_torn=True), collective)


def passed_over(torn: int) -> str:
    """The warning for a log some of whose rows do not count."""
    rows = "1 row" if torn == 1 else f"{torn} rows"
    return f"{rows} of the log could not be read, or had wrong results, and were passed over"


def _stated(collective: str | None, ranks: int | None, who: str) -> tuple[str, int]:
    if collective is None or ranks is None:
        raise FormatError(f"{who} states neither collective nor ranks; give collective= and ranks=")
    return collective, ranks


def _of_nccl(read: nccl_tests.Measurements, collective: str | None) -> Timings:
    """The rows with a size and a time, right results only."""
    kind = read.collective or collective
    if kind is None:
        raise FormatError("these times do not state their collective; give collective=")
    # nccl-tests also prints rows of size 0, and continues after wrong values: the time of a row of
    # size 0 is not a latency, and that of wrong values is not a result.
    rows = [row for row in read.rows if row.nbytes]
    right = [row for row in rows if row.seconds > 0 and not row.wrong]
    timings = tuple(Timing(kind, read.ranks, row.nbytes, row.seconds) for row in right)
    return Timings(timings, read.torn + len(rows) - len(right))


def _of_json(text: str, collective: str | None, ranks: int | None) -> Timings:
    whole = readers.parse(text)
    if isinstance(whole, dict) and "results" in whole:
        return _of_nccl(nccl_tests.loads_json(text, collective), collective)
    fields = readers.Fields(whole, "the file")
    if "benchmark" not in fields.left:
        fields.take("format", readers.exactly(FORMAT))
        rows = fields.take("rows", readers.items)
        fields.end()
        return Timings(tuple(_of_fields(row, f"rows[{i}]", {}) for i, row in enumerate(rows)))
    # Rows of scripts/bench, which have other measurements besides the times.
    given = {"collective": collective, "ranks": ranks}
    rows = fields.take("rows", readers.items)
    timed = [(i, row) for i, row in enumerate(rows) if isinstance(row, dict) and "seconds" in row]
    if not timed:
        raise FormatError("no row of this benchmark has seconds")
    return Timings(tuple(_of_fields(row, f"rows[{i}]", given, strict=False) for i, row in timed))


def _of_fields(row: object, where: str, given: dict, strict: bool = True) -> Timing:
    fields = readers.Fields(row, where)
    if not strict and "bytes" in fields.left:  # the name in some benchmarks
        fields.left.setdefault("nbytes", fields.left.pop("bytes"))
    for name, value in given.items():
        if value is not None:
            fields.left.setdefault(name, value)
    values = {
        "collective": fields.take("collective", readers.text),
        "ranks": fields.take("ranks", readers.whole(1, _MOST_RANKS)),
        "nbytes": fields.take("nbytes", readers.whole(1, readers.INT64)),
        "seconds": fields.take("seconds", readers.number),
        "synthesizer": fields.optional("synthesizer", readers.text),
        "chunks": fields.optional("chunks", readers.whole(1, readers.INT32)),
    }
    if strict:
        fields.end()
    try:
        return Timing(**values)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None


def _of_csv(text: str) -> Iterator[Timing]:
    lines = text.splitlines()
    header = [name.strip() for name in lines[0].split(",")]
    lacks = [name for name in _COLUMNS[:4] if name not in header]
    if lacks or len(set(header)) < len(header) or not set(header) <= set(_COLUMNS):
        raise FormatError(
            f"line 1: expected the columns {', '.join(_COLUMNS)}, of which the last two may be "
            f"left out, got {glimpse(lines[0])}"
        )
    for number, line in enumerate(lines[1:], 2):
        if not line.strip() or line.startswith("#"):
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(header):
            raise FormatError(
                f"line {number} has {len(cells)} columns where the header has {len(header)}: "
                f"{glimpse(line)}"
            )
        cell = dict(zip(header, cells, strict=True))
        try:
            yield Timing(
                cell["collective"], _whole(cell["ranks"]), _whole(cell["nbytes"]),
                _float(cell["seconds"]), cell.get("synthesizer") or None,
                _whole(cell["chunks"]) if cell.get("chunks") else None,
            )  # fmt: skip
        except FormatError as error:
            raise FormatError(f"line {number}: {error}") from None


def _is_heading(line: str) -> bool:
    return line.lstrip().startswith("|") and all(name in line for name in _HEADINGS)


def _of_table(text: str, collective: str, ranks: int) -> Iterator[Timing]:
    """MSCCL++'s own times in its table, without those of NCCL beside them or wrong results.

    Sizes in the table are rounded to a tenth of their unit.
    """
    header: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if _is_heading(line):
            header = cells
            if not set(_HEADINGS) <= set(header):
                raise FormatError(f"line {number}: expected {_HEADINGS}, got {glimpse(line)}")
        elif header is not None and line.lstrip().startswith("|"):
            row = dict(zip(header, cells, strict=False))
            size = _SIZE.fullmatch(row["Size"])
            if size is None or len(cells) != len(header):
                raise FormatError(
                    f"line {number}: expected a row of {glimpse(header)}, got {glimpse(line)}"
                )
            if row.get("Correctness", "PASS") == "PASS":
                nbytes = round(float(size[1]) * 2 ** _UNITS[size[2]])
                yield Timing(collective, ranks, nbytes, 1e-6 * _float(row["Time (us)"]))


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise FormatError(f"expected a whole number, got {glimpse(text)}")
    return int(text)


def _float(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", text):
        raise FormatError(f"expected a number above 0, got {glimpse(text)}")
    return float(text)


# ---------------------------------------------------------------------- writing


def dumps(timings: Iterable[Timing]) -> str:
    """Times as CSV.

    Raises:
        FormatError: there is something else among them, or a cell cannot hold a synthesizer's name.
    """
    lines = [",".join(_COLUMNS)]
    for row in _checked(timings):
        name = row.synthesizer or ""
        if not re.fullmatch(r"[\w.-]*", name):
            raise FormatError(f"a synthesizer's name is letters and digits, got {glimpse(name)}")
        chunks = "" if row.chunks is None else row.chunks
        lines.append(f"{row.collective},{row.ranks},{row.nbytes},{row.seconds!r},{name},{chunks}")
    return "\n".join(lines) + "\n"


def dumps_json(timings: Iterable[Timing]) -> str:
    """Times as JSON.

    Raises:
        FormatError: there is something else among them.
    """
    rows = [dataclasses.asdict(row) for row in _checked(timings)]
    kept = ({key: value for key, value in row.items() if value is not None} for row in rows)
    lines = ",\n".join(json.dumps(row) for row in kept)
    return f'{{"format": "{FORMAT}", "rows": [\n{lines}\n]}}\n'


def _checked(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    rows = checks.members(timings, "timings", FormatError)
    return tuple(
        checks.instance(row, Timing, f"timings[{i}]", FormatError) for i, row in enumerate(rows)
    )


def save(path: str | os.PathLike, timings: Iterable[Timing]) -> None:
    """Write times, all or nothing: JSON if the name ends with .json, else CSV.

    Raises:
        OSError: the file cannot be written.
    """
    write_text(path, (dumps_json if str(path).endswith(".json") else dumps)(timings))


def load(
    path: str | os.PathLike,
    collective: str | None = None,
    ranks: int | None = None,
    *,
    max_bytes: int = MAX_BYTES,
) -> Timings:
    """The times of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, collective=collective, ranks=ranks)
