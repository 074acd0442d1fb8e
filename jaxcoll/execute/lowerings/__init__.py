"""Lowerings: from a schedule to JAX operations.

Read in this order:

- ``rounds``: a schedule as a ``PermuteProgram``, that is rounds of one ``ppermute`` each, into
  which an edge colouring divides the messages of a step; long steps are split.
- ``ssa``, ``scan``, ``pallas``: the lowerings. Each is a function ``run(program, x, setting) -> y``
  over arrays, called inside ``shard_map``: ``x`` holds the rows of a rank's input one after another
  along its leading dimension, ``y`` those of its output. "pallas" takes flat arrays.
- ``buffer``: the array that holds a rank's rows.
- ``dataflow``: the values that are sent and combined if straight-line code needs no buffer.
"""
