"""NCCL's rules, and the file with which its example tuner plugin reads them.

A rule gives the algorithm, protocol, channels and chunk size of a collective, by its size.

The words, and the algorithm and protocol that NCCL runs where a rule does not state them, follow
``src/include/nccl_tuner.h`` and ``src/graph/tuning.cc`` of NCCL 2.30. A tuner of NCCL holds a list
of rules; the first that matches a collective decides.

``nccl_tuner.conf`` has one rule per line, with 8 to 10 columns (``plugins/tuner/example``)::

    collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]

-1 stands for any. The plugin is lenient: without a message it reads unknown words as allreduce,
ring and simple, and text as the number 0, and skips lines with fewer or more columns. It reads at
most 255 bytes of a line; the rest becomes another line. Here all of these are refused.

Its README says that ``channels`` -1 means NCCL's own number. But the plugin sets the number to 1
before it looks for a rule, and NCCL takes any number except 0 as given: with -1, and if no rule
matches, the collective runs on one channel. ``dumps`` therefore writes 0 for NCCL's own number, and
``loads`` reads both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxcoll.errors import FormatError, TuneError
from jaxcoll.fields import glimpse
from jaxcoll.kinds import names_in
from jaxcoll.numerics import checks

# NCCL's words for the collectives that a tuner decides, in the order of ncclFunc_t.
_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
COLLECTIVES = dict(sorted(names_in("nccl").items(), key=lambda each: _FUNCTIONS.index(each[1])))
# In the order of NCCL_ALGO_* and NCCL_PROTO_*.
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
MAX_CHANNELS = 128
MAX_BYTES = 2**64 - 1

# By collective; NCCL ignores rules for other algorithms without a message.
_SHARDED = ("ring", "collnet_direct", "nvls", "pat")
_RUNS = {
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "allgather": _SHARDED,
    "reducescatter": _SHARDED,
    "allreduce": ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"),
}


@dataclasses.dataclass(frozen=True)
class NcclRule:
    """A rule of NCCL's tuner.

    Attributes:
        collective: kind, as in ``Collective``.
        min_bytes, max_bytes: range of sizes of the whole buffer, inclusive: of the output of an
            all_gather, of the input of a reduce_scatter; ``max_bytes`` None means no upper limit.
        algorithm, protocol: NCCL's words, in lower case.
        channels: number of channels; None to keep NCCL's.
        nodes, ranks: hosts and ranks of the communicator; None for any.
        pipelined_ops: number of operations in the group; None for any.
        registered: whether the user buffer is registered; None for either.
        chunk_bytes: None to keep NCCL's; only tuners of interface v6 and NCCLX set it.

    Raises:
        TuneError: NCCL does not know a word (its example plugin reads such a word as allreduce,
            ring or simple), numbers are out of range, or NCCL never runs the combination (a rule
            with it has no effect).
    """

    collective: str
    min_bytes: int
    max_bytes: int | None
    algorithm: str
    protocol: str
    channels: int | None = None
    nodes: int | None = None
    ranks: int | None = None
    pipelined_ops: int | None = None
    registered: bool | None = None
    chunk_bytes: int | None = None

    def __post_init__(self) -> None:
        checks.choice(self.collective, tuple(COLLECTIVES), "collective", TuneError)
        checks.choice(self.algorithm, ALGORITHMS, "algorithm", TuneError)
        checks.choice(self.protocol, PROTOCOLS, "protocol", TuneError)
        low = checks.integer(self.min_bytes, "min_bytes", TuneError, least=0, most=MAX_BYTES)
        if self.max_bytes is not None:
            checks.integer(self.max_bytes, "max_bytes", TuneError, least=low, most=MAX_BYTES)
        for name, most in (
            ("channels", MAX_CHANNELS),
            ("nodes", 2**31 - 1),
            ("ranks", 2**31 - 1),
            ("pipelined_ops", 2**31 - 1),
            ("chunk_bytes", MAX_BYTES),
        ):
            value = getattr(self, name)
            checks.optional(value, checks.integer, name, TuneError, least=1, most=most)
        checks.optional(self.registered, checks.flag, "registered", TuneError)
        runs = _RUNS[COLLECTIVES[self.collective]]
        if self.algorithm not in runs:
            raise TuneError(
                f"NCCL never runs {self.collective} by {self.algorithm!r} and would ignore the "
                f"rule; it runs it by {', '.join(runs)}"
            )
        if self.algorithm not in ("tree", "ring") and self.protocol != "simple":
            raise TuneError(
                f"NCCL runs {self.algorithm!r} by the protocol 'simple' only and would ignore a "
                f"rule with {self.protocol!r}"
            )

    def matches(
        self, collective: str, nbytes: int, nodes: int, ranks: int, pipelined_ops: int = 1
    ) -> bool:
        """Whether the rule matches a collective of ``nbytes`` whose buffer is not registered.

        Raises:
            TuneError: no collective has these numbers or words.
        """
        asked = _checked_call(collective, nbytes, nodes, ranks, pipelined_ops)
        collective, nbytes, nodes, ranks, pipelined_ops = asked
        return (
            self.collective == collective
            and self.min_bytes <= nbytes
            and (self.max_bytes is None or nbytes <= self.max_bytes)
            and self.nodes in (None, nodes)
            and self.ranks in (None, ranks)
            and self.pipelined_ops in (None, pipelined_ops)
            and self.registered in (None, False)
        )


def _checked_call(
    collective: str, nbytes: int, nodes: int, ranks: int, pipelined_ops: int
) -> tuple[str, int, int, int, int]:
    return (
        checks.text(collective, "collective", TuneError),
        checks.integer(nbytes, "nbytes", TuneError, least=0),
        checks.integer(nodes, "nodes", TuneError, least=1),
        checks.integer(ranks, "ranks", TuneError, least=1),
        checks.integer(pipelined_ops, "pipelined_ops", TuneError, least=1),
    )


def checked_rules(rules: Iterable[NcclRule]) -> tuple[NcclRule, ...]:
    """Rules as a tuple.

    Raises:
        TuneError: there is something else among them.
    """
    return tuple(
        checks.instance(rule, NcclRule, f"rules[{i}]", TuneError)
        for i, rule in enumerate(checks.members(rules, "rules", TuneError))
    )


def answer(
    rules: Iterable[NcclRule],
    collective: str,
    nbytes: int,
    nodes: int,
    ranks: int,
    pipelined_ops: int = 1,
) -> NcclRule | None:
    """The first rule that matches, as NCCL's tuners choose.

    Raises:
        TuneError: no collective has these numbers or words, or there are no rules.
    """
    asked = _checked_call(collective, nbytes, nodes, ranks, pipelined_ops)
    return next((rule for rule in checked_rules(rules) if rule.matches(*asked)), None)


COLUMNS = (
    "collective", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes",
    "nRanks", "numPipeOps", "regBuff",
)  # fmt: skip
REQUIRED = 8
MAX_LINE_BYTES = 255
_ANY = "-1"
_KINDS = {word: kind for kind, word in COLLECTIVES.items()}


def dumps(rules: Iterable[NcclRule]) -> str:
    """Rules as a configuration file, in their order; the first that matches decides.

    Raises:
        TuneError: a rule has a chunk size, which the format cannot hold (``ncclx`` can).
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
        anyone = (rule.nodes, rule.ranks, rule.pipelined_ops, rule.registered)
        cells = [
            COLLECTIVES[rule.collective], rule.min_bytes,
            MAX_BYTES if rule.max_bytes is None else rule.max_bytes, rule.algorithm,
            rule.protocol, rule.channels or 0,
            *(_ANY if value is None else int(value) for value in anyone),
        ]  # fmt: skip
        lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def loads(text: str) -> tuple[NcclRule, ...]:
    """The rules of a configuration file.

    Raises:
        FormatError: NCCL's plugin would skip, cut or misread a line, or NCCL would ignore a rule;
            the error names the line.
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
    # ``dumps`` writes 2^64 - 1 for no limit. 2^32 - 1, as in the plugin's README, is a limit:
    # larger messages are left to NCCL.
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
