"""Rules of NCCL's tuners, and the files that hold them.

In reading order: ``conf`` (what a rule says and which decides, and ``nccl_tuner.conf`` of NCCL's
example plugin), ``ncclx`` (CSV and JSON of Meta's NCCLX). ``jc.tune.nccl`` is their face.
docs/tuner-tables.md describes the formats and their sources.
"""
