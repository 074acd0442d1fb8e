"""Files for users of NCCL: those that NCCL reads, and the output of its benchmarks.

In reading order: ``rules`` (the rules that NCCL's tuners follow, from a table), ``conf``
(``nccl_tuner.conf`` of NCCL's example plugin), ``ncclx`` (CSV and JSON of Meta's NCCLX),
``environment`` (what can be set only for a whole process), ``nccl_tests`` (times that nccl-tests
printed), ``shared_table`` (rules that change while a program runs, and the plugin that follows
them). docs/tuner-tables.md describes the formats and their sources.
"""

from jaxcoll.tune.nccl import conf, environment, nccl_tests, ncclx, shared_table
from jaxcoll.tune.nccl.rules import NcclRule, answer, rules_of

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
