"""The interface for users of NCCL: files that NCCL reads, and the output of its benchmarks.

``NcclRule``, ``answer``, ``conf`` and ``ncclx`` come from ``jaxcoll.io.nccl``. In reading order:
``rules`` (for a tuner, from a table) and ``environment`` (variables of a process), ``nccl_tests``
(times that nccl-tests printed), ``shared_table`` (rules that change while a program runs, and the
plugin that follows them).
docs/tuner-tables.md describes the formats and their sources.
"""

from jaxcoll.io.nccl import conf, ncclx
from jaxcoll.io.nccl.conf import NcclRule, answer
from jaxcoll.tune.nccl import environment, nccl_tests, shared_table
from jaxcoll.tune.nccl.rules import rules_of

__all__ = [
    "NcclRule",
    "answer",
    "conf",
    "environment",
    "nccl_tests",
    "ncclx",
    "rules_of",
    "shared_table",
]
