"""The quickstart: an all-reduce synthesized, timed, compared with ``lax.psum`` and trained with.

Read in this order: ``quickstart`` (the study), ``candidates`` (schedules by synthesizer,
and their figures), ``digits`` (training).
"""
