"""Rules of NCCL's tuners, and the files that hold them.

In reading order: ``conf`` (the content of a rule, which rule decides, and ``nccl_tuner.conf`` of
NCCL's example plugin), ``ncclx`` (CSV and JSON of Meta's NCCLX). Users reach them through
``jc.tune.nccl``. docs/tuner-tables.md describes the formats and their sources.
"""
