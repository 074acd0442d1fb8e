"""NCCLX: the rules of the tuner that is built into Meta's NCCL, as CSV and as JSON.

``NCCLX_TUNER_CONFIG_FILE`` names the file (``comms/ncclx/meta/tuner`` of torchcomms). Sizes are
bytes per rank, that is the whole buffer divided by the ranks; sizes, nodes and ranks per node are
intervals. With a malformed file the communicator fails to initialize.

CSV has 7 columns and optional ones, for which two dialects exist::

    collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks[,chunkSize]
    collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks[,numPipeOps[,regBuff[,chunkSize]]]

Rules without a chunk size are written in 7 columns, which both dialects read. JSON has names
instead of columns; builds with folly read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Literal

from jaxcoll import fields as readers
from jaxcoll.errors import FormatError, TuneError
from jaxcoll.fields import glimpse
from jaxcoll.io.nccl.conf import COLLECTIVES, NcclRule, checked_rules
from jaxcoll.numerics import checks

_KINDS = {word: kind for kind, word in COLLECTIVES.items()}
_INT64 = 2**63 - 1
_INTERVAL = re.compile(r"([\[(])\s*(-?[0-9]{0,19})\s*,\s*(-?[0-9]{0,19})\s*([\])])", re.ASCII)
_CONDITIONS = ("collective", "bytesPerRank", "nNodes", "nLocalRanks", "numPipeOps", "regBuff")
_SETTINGS = ("algorithm", "protocol", "channels", "chunkSize")
# Columns of the CSV, by their number: 8 belong to the first dialect, 9 and 10 to the second.
_REQUIRED = (
    "collective", "bytesPerRank", "algorithm", "protocol", "channels", "nNodes", "nLocalRanks",
)  # fmt: skip
_DIALECTS = {8: ("chunkSize",), 10: ("numPipeOps", "regBuff", "chunkSize")}

Interval = tuple[int | None, int | None]


# ---------------------------------------------------------------------- writing


def dumps_csv(rules: Iterable[NcclRule], columns: Literal[8, 10] = 8) -> str:
    """Rules as CSV.

    Args:
        columns: the dialect of rules with chunk sizes, or with numbers of pipelined operations: 8
            columns, or 10 as in newer versions.

    Raises:
        TuneError: a rule has no numbers of ranks and nodes, which NCCLX's conditions need; the
            nodes do not divide the ranks; or the dialect has no column for a condition.
    """
    if not isinstance(columns, int) or columns not in _DIALECTS:
        raise TuneError(
            f"NCCLX's CSV has dialects of 8 and 10 columns, got columns={checks.shown(columns)}"
        )
    lines = [f"# {','.join((*_REQUIRED, *_DIALECTS[columns]))}"]
    for rule in checked_rules(rules):
        cells = _cells(rule)
        optional = [cells.get(name) for name in _DIALECTS[columns]]
        if columns == 8 and ("numPipeOps" in cells or "regBuff" in cells):
            raise TuneError(
                "NCCLX's CSV of 8 columns cannot say numPipeOps or regBuff; write columns=10"
            )
        written = [str(cells.get(name, "-1")) for name in _REQUIRED]
        if any(value is not None for value in optional):
            defaults = {"chunkSize": 0, "numPipeOps": -1, "regBuff": -1}
            written += [str(cells.get(name, defaults[name])) for name in _DIALECTS[columns]]
        lines.append(",".join(written))
    return "\n".join(lines) + "\n"


def dumps_json(rules: Iterable[NcclRule]) -> str:
    """Rules as JSON.

    Raises:
        TuneError: a rule has no numbers of ranks and nodes, or the nodes do not divide the ranks.
    """
    written = []
    for rule in checked_rules(rules):
        cells = _cells(rule)
        conditions = {name: cells[name] for name in _CONDITIONS if name in cells}
        settings = {name: cells[name] for name in _SETTINGS if name in cells}
        written.append(f"    {json.dumps({'filter': conditions, 'config': settings})}")
    return '{\n  "rules": [\n' + ",\n".join(written) + "\n  ]\n}\n"


def _cells(rule: NcclRule) -> dict[str, str | int]:
    """The columns of a rule that are not at their defaults."""
    if rule.ranks is None or rule.nodes is None:
        raise TuneError(
            "NCCLX's conditions are bytes per rank, nodes and ranks per node: a rule needs its "
            f"ranks and its nodes to be written, and one has {rule.ranks} and {rule.nodes}"
        )
    if rule.ranks % rule.nodes:
        raise TuneError(f"{rule.ranks} ranks are not a multiple of {rule.nodes} nodes")
    # Rounded inwards: a size of the whole buffer inside the range is also inside it per rank.
    low = -(-rule.min_bytes // rule.ranks)
    high = None if rule.max_bytes is None else rule.max_bytes // rule.ranks
    if high is not None and low > high:
        raise TuneError(
            f"no number of bytes per rank lies in the rule's range ({low} to {high}): its sizes "
            "are smaller than its number of ranks"
        )
    unbounded = "*" if not low else f"[{low},)"
    cells: dict[str, str | int | None] = {
        "collective": COLLECTIVES[rule.collective],
        "bytesPerRank": unbounded if high is None else f"[{low},{high}]",
        "algorithm": rule.algorithm,
        "protocol": rule.protocol,
        "channels": rule.channels,
        "nNodes": rule.nodes,
        "nLocalRanks": rule.ranks // rule.nodes,
        "numPipeOps": rule.pipelined_ops,
        "regBuff": None if rule.registered is None else int(rule.registered),
        "chunkSize": rule.chunk_bytes,
    }
    return {name: value for name, value in cells.items() if value is not None}


# ---------------------------------------------------------------------- reading


def loads_csv(text: str, ranks: int, nodes: int = 1) -> tuple[NcclRule, ...]:
    """The rules of a CSV file that a communicator of ``ranks`` ranks on ``nodes`` hosts can match.

    A file with 8 columns belongs to the first dialect, unless the last column is -1.

    Raises:
        FormatError: NCCLX refuses a line, or NCCL would ignore a rule; the error names the line.
        TuneError: the ranks are not a multiple of the nodes.
    """
    shape = _shape(ranks, nodes)
    rules = []
    for number, line in enumerate(checks.text(text, "text", FormatError).splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            rules.append(_rule(_named(_split(line)), *shape))
        except (FormatError, TuneError) as error:
            raise FormatError(f"line {number}: {error}") from error
    return tuple(rule for rule in rules if rule is not None)


def loads_json(text: str, ranks: int, nodes: int = 1) -> tuple[NcclRule, ...]:
    """The rules of a JSON file that a communicator of ``ranks`` ranks on ``nodes`` hosts can match.

    Raises:
        FormatError: NCCLX refuses a rule, or NCCL would ignore it; the error names the rule.
        TuneError: the ranks are not a multiple of the nodes.
    """
    shape = _shape(ranks, nodes)
    whole = readers.Fields(readers.parse(text), "the file")
    entries = whole.take("rules", readers.items)
    rules = []
    for i, entry in enumerate(entries):
        rule = readers.Fields(entry, f"rules[{i}]")
        cells: dict[str, str] = {}
        for part, known in (("filter", _CONDITIONS), ("config", _SETTINGS)):
            section = readers.Fields(rule.take(part, lambda value, _: value), f"rules[{i}].{part}")
            for name in known:
                if name not in section.left:
                    continue
                value = section.take(name, lambda value, _: value)
                # Intervals are strings, and numbers may be; all are read like cells of the CSV.
                if not isinstance(value, str) and type(value) is not int:
                    raise FormatError(
                        f"rules[{i}].{name} must be a string or an integer, got {glimpse(value)}"
                    )
                cells[name] = str(value)
            section.end()
        try:
            rules.append(_rule(cells, *shape))
        except (FormatError, TuneError) as error:
            raise FormatError(f"rules[{i}]: {error}") from error
    return tuple(rule for rule in rules if rule is not None)


def _shape(ranks: object, nodes: object) -> tuple[int, int]:
    """Ranks and nodes of a communicator, checked."""
    ranks, nodes = (
        checks.integer(count, name, TuneError, least=1, most=2**31 - 1)
        for count, name in ((ranks, "ranks"), (nodes, "nodes"))
    )
    if ranks % nodes:
        raise TuneError(f"{ranks} ranks are not a multiple of {nodes} nodes")
    return ranks, nodes


def _split(line: str) -> list[str]:
    """The columns of a line; commas inside brackets belong to an interval."""
    # csv would split [1,8] in two, because brackets are not quotes to it.
    cells, depth, start = [], 0, 0
    for at, character in enumerate(line):
        depth += (character in "[(") - (character in "])")
        if character == "," and depth <= 0:
            cells.append(line[start:at].strip())
            start = at + 1
    return [*cells, line[start:].strip()]


def _named(cells: list[str]) -> dict[str, str]:
    optional = len(cells) - len(_REQUIRED)
    if not 0 <= optional <= 3:
        raise FormatError(
            f"a rule has 7 to 10 columns ({','.join(_REQUIRED)},..), got {len(cells)}; "
            "nccl_tuner.conf has another second column"
        )
    # Eight columns are ambiguous: a chunk size in one dialect, pipelined operations in the other.
    # -1 is the default of the second and is not a chunk size.
    names = _DIALECTS[8] if optional == 1 and cells[-1] != "-1" else _DIALECTS[10][:optional]
    return {
        name: cell for name, cell in zip((*_REQUIRED, *names), cells, strict=True) if cell != ""
    }


def _rule(cells: dict[str, str], ranks: int, nodes: int) -> NcclRule | None:
    """The rule for one shape of communicator; None if it cannot match there."""
    for name in ("collective", "algorithm", "protocol"):
        if name not in cells:
            raise FormatError(f"{name} is missing")
    if cells["collective"] not in _KINDS:
        raise FormatError(
            f"collective must be one of {', '.join(_KINDS)}, got {glimpse(cells['collective'])}"
        )
    intervals = [_interval(cells.get(n, "*"), n) for n in ("nNodes", "nLocalRanks", "bytesPerRank")]
    low, high = intervals[2]
    chunk_bytes = _whole("chunkSize", cells.get("chunkSize", "0"))
    channels, pipelined, registered = (
        None if cells.get(name, "-1") == "-1" else _whole(name, cells[name])
        for name in ("channels", "numPipeOps", "regBuff")
    )
    rule = NcclRule(
        _KINDS[cells["collective"]],
        (low or 0) * ranks,
        # NCCLX divides and drops the remainder, so sizes up to the next multiple match as well.
        None if high is None else high * ranks + ranks - 1,
        cells["algorithm"],
        cells["protocol"],
        channels=channels,
        nodes=nodes,
        ranks=ranks,
        pipelined_ops=pipelined,
        registered=None if registered is None else bool(registered),
        chunk_bytes=chunk_bytes or None,
    )
    fits = _inside(nodes, intervals[0]) and _inside(ranks // nodes, intervals[1])
    return rule if fits else None


def _interval(text: str, name: str) -> Interval:
    """An interval as its least and greatest integers, None if it is unbounded."""
    if text == "*":
        return None, None
    if not text.startswith(("[", "(")):
        exact = _whole(name, text)
        return exact, exact
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise FormatError(
            f"{name} must be *, a number or an interval such as [1,8], (1,) or (,4], got "
            f"{glimpse(text)}"
        )
    # Intervals of integers: (1,8) is 2 to 7. Negative bounds are accepted, and match as 0 does.
    low = None if match[2] == "" else int(match[2]) + (match[1] == "(")
    high = None if match[3] == "" else int(match[3]) - (match[4] == ")")
    if low is not None and high is not None and low > high:
        raise FormatError(f"{name} is an empty interval: {glimpse(text)}")
    return None if low is None else max(low, 0), high


def _inside(value: int, interval: Interval) -> bool:
    low, high = interval
    return (low is None or low <= value) and (high is None or value <= high)


def _whole(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 19 or int(value) > _INT64:
        raise FormatError(
            f"{name} must be a whole number of at most {_INT64}, got {glimpse(value)}"
        )
    return int(value)
