"""The quickstart: an all-reduce synthesized, timed, compared with ``lax.psum`` and trained with.

Read in this order: ``quickstart`` (the study, and training on digits), ``candidates``
(schedules by synthesizer, and their figures).
"""
