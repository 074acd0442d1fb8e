"""NCCL's rules: algorithm, protocol, channels and chunk size of each collective, by its size.

The words, and the algorithm and protocol that NCCL runs where a rule is silent, follow
``src/include/nccl_tuner.h`` and ``src/graph/tuning.cc`` of NCCL 2.30. A tuner of NCCL holds a list
of rules; the first that matches a collective decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks

# NCCL's words for the collectives that a tuner decides, in the order of ncclFunc_t.
COLLECTIVES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_reduce": "allreduce",
}
# In the order of NCCL_ALGO_* and NCCL_PROTO_*.
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
MAX_CHANNELS = 128
MAX_BYTES = 2**64 - 1

_SHARDED = ("ring", "collnet_direct", "nvls", "pat")
_RUNS = {
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": _SHARDED,
    "reduce_scatter": _SHARDED,
    "all_reduce": ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"),
}


@dataclasses.dataclass(frozen=True)
class NcclRule:
    """A rule of NCCL's tuner.

    Attributes:
        collective: kind, as in ``Collective``.
        min_bytes, max_bytes: of the whole buffer, both included: of the output of an all_gather, of
            the input of a reduce_scatter; ``max_bytes`` None: without an upper limit.
        algorithm, protocol: NCCL's words, in lower case.
        channels: None to keep NCCL's.
        nodes, ranks: hosts and ranks of the communicator; None for any.
        pipelined_ops: operations in the group; None for any.
        registered: whether the user buffer is registered; None for either.
        chunk_bytes: None to keep NCCL's; only tuners of interface v6 and NCCLX set it.

    Raises:
        TuneError: a word that NCCL does not know (its example plugin reads such a word as
            allreduce, ring or simple), numbers out of range, or a combination that NCCL never runs
            (a rule with one has no effect).
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
        self._check_runs()

    def _check_runs(self) -> None:
        runs = _RUNS[self.collective]
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
        """Whether the rule is for a collective of ``nbytes``, its buffer not registered.

        Raises:
            TuneError: numbers or words that no collective has.
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
        TuneError: something else among them.
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
        TuneError: numbers or words that no collective has, or no rules.
    """
    asked = _checked_call(collective, nbytes, nodes, ranks, pipelined_ops)
    return next((rule for rule in checked_rules(rules) if rule.matches(*asked)), None)
