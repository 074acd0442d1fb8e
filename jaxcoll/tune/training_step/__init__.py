"""The online tuner, in reading order: ``regression`` and ``measure`` (effects of candidates from
times of steps), ``leader`` (what runs next), ``processes`` (one decision for all), ``programs`` and
``comparison`` (candidates compiled and compared with ``jax.lax``), ``profile``, ``preparation``,
``timing``, ``interrupts``, ``report``, ``replayed``, ``online_tuner``, ``entry``.

The states of a tuner, each of some steps:

- *warm*: the default runs while candidates are compiled and compared with ``jax.lax``;
- *search*: one program holds all candidates, and every task tries another in every step;
- *compile*: the likely winner runs in that program while finalists are compiled as plain programs;
- *final*: these and the default run in alternation, until the difference is known;
- *settled*: the winner runs; a *probe* now and then times it, and if it became slower for long the
  search begins again.
"""
