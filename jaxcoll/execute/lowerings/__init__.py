"""Lowerings: ways to turn a program into JAX operations, one a file.

Each is a function ``run(program, x, axes, width, target) -> y`` over flat arrays, called inside
``shard_map``: ``x`` holds the rows of a rank's input one after another, ``y`` those of its output.
"""
