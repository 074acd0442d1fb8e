"""Lowerings: ways to turn a program into JAX operations, one a file.

Each is a function ``run(program, x, axes, width, target) -> y`` over arrays, called inside
``shard_map``: ``x`` holds the rows of a rank's input one after another along its leading dimension,
``y`` those of its output. "pallas" takes flat arrays only.
"""
