"""``nccl_tuner.conf``: the rules of NCCL's example tuner plugin.

One rule per line, 8 to 10 columns (``plugins/tuner/example`` of NCCL 2.30)::

    collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]

-1 stands for any. The plugin is lenient: it reads unknown words as allreduce, ring and simple, text
as the number 0, and skips lines with fewer or more columns, in silence. It reads at most 255 bytes
of a line; the rest becomes another line. Here all of these are refused.

Its README gives ``channels`` -1 the meaning "NCCL's own number". But the plugin sets the number to
1 before it looks for a rule, and NCCL takes any number but 0 as given: with -1, and wherever no
rule matches, the collective runs on one channel. ``dumps`` therefore writes 0 for NCCL's own
number, and ``loads`` reads both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jaxcoll.errors import FormatError, TuneError
from jaxcoll.fields import glimpse
from jaxcoll.io.nccl.rules import COLLECTIVES, MAX_BYTES, NcclRule, checked_rules
from jaxcoll.numerics import checks

COLUMNS = (
    "collective",
    "min_bytes",
    "max_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nNodes",
    "nRanks",
    "numPipeOps",
    "regBuff",
)
REQUIRED = 8
MAX_LINE_BYTES = 255
_ANY = "-1"
_KINDS = {word: kind for kind, word in COLLECTIVES.items()}


def dumps(rules: Iterable[NcclRule]) -> str:
    """Rules as a configuration file, in their order; the first that matches decides.

    Raises:
        TuneError: a rule with a chunk size, which the format cannot hold (``ncclx`` can).
    """
    lines = [
        f"# {','.join(COLUMNS)}",
        "# channels 0: NCCL's own number. Without a rule: 1 channel.",
    ]
    for rule in checked_rules(rules):
        if rule.chunk_bytes is not None:
            raise TuneError(
                f"nccl_tuner.conf has no column for chunk_bytes={rule.chunk_bytes}; write the "
                "rules with nccl.ncclx, or drop chunk_bytes from them"
            )
        lines.append(",".join(_cells(rule)))
    return "\n".join(lines) + "\n"


def _cells(rule: NcclRule) -> Iterator[str]:
    yield COLLECTIVES[rule.collective]
    yield str(rule.min_bytes)
    yield str(MAX_BYTES if rule.max_bytes is None else rule.max_bytes)
    yield rule.algorithm
    yield rule.protocol
    yield str(rule.channels or 0)
    for value in (rule.nodes, rule.ranks, rule.pipelined_ops, rule.registered):
        yield _ANY if value is None else str(int(value))


def loads(text: str) -> tuple[NcclRule, ...]:
    """The rules of a configuration file.

    Raises:
        FormatError: naming the line: what NCCL's plugin would skip, cut or misread, and rules that
            NCCL would ignore.
    """
    rules = []
    for number, line in enumerate(checks.text(text, "text", FormatError).splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if len(line.encode()) > MAX_LINE_BYTES:
            raise FormatError(
                f"line {number} has more than the {MAX_LINE_BYTES} bytes of a line that NCCL reads"
            )
        try:
            rules.append(_rule([cell.strip(" \t") for cell in line.split(",")]))
        except (FormatError, TuneError) as error:
            raise FormatError(f"line {number}: {error}") from error
    return tuple(rules)


def _rule(cells: list[str]) -> NcclRule:
    if not REQUIRED <= len(cells) <= len(COLUMNS):
        raise FormatError(
            f"a rule has {REQUIRED} to {len(COLUMNS)} columns ({','.join(COLUMNS)}), got "
            f"{len(cells)}; NCCL would skip it"
        )
    cell: dict[str, str] = dict(zip(COLUMNS, cells, strict=False))
    if cell["collective"] not in _KINDS:
        raise FormatError(
            f"NCCL knows the collectives {', '.join(_KINDS)} and would read "
            f"{glimpse(cell['collective'])} as allreduce"
        )
    registered = _number(cell, "regBuff", 1)
    most = _whole("max_bytes", cell["max_bytes"])
    return NcclRule(
        _KINDS[cell["collective"]],
        _whole("min_bytes", cell["min_bytes"]),
        None if most == MAX_BYTES else most,
        cell["algorithm"],
        cell["protocol"],
        channels=_number(cell, "channels") or None,
        nodes=_number(cell, "nNodes"),
        ranks=_number(cell, "nRanks"),
        pipelined_ops=_number(cell, "numPipeOps"),
        registered=None if registered is None else bool(registered),
    )


def _number(cell: dict[str, str], name: str, most: int = 2**31 - 1) -> int | None:
    value = cell.get(name, _ANY)
    return None if value == _ANY else _whole(name, value, most)


def _whole(name: str, value: str, most: int = MAX_BYTES) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 20 or int(value) > most:
        raise FormatError(f"{name} must be a whole number of at most {most}, got {glimpse(value)}")
    return int(value)
