"""The online tuner, in reading order: ``measure`` (effects of candidates from times of steps),
``leader`` (what runs next), ``processes`` (one decision for all), ``programs`` and ``comparison``
(candidates compiled and compared with ``jax.lax``), ``preparation``, ``report``, ``history``,
``replayed``, ``online_tuner``.
"""
