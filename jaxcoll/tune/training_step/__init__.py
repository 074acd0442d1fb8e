"""The online tuner, in reading order: ``state_machine``, ``regression`` (effects of candidates from
times of steps), ``processes`` (one decision for all, and the messages that lead to it),
``leader`` (what is measured, and runs next), ``programs`` and ``preparation`` (candidates
compiled and compared with ``jax.lax``), ``timing`` (and signals), ``report``,
``online_tuner``.
"""
