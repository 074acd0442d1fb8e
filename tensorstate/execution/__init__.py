"""Runs a training step as decided, inside ``jax.shard_map``.

In reading order: ``sharded_step`` (the public result), ``executor`` (one device's operators),
``microbatch_loop`` (the loop around them), ``placement_table`` (the placements of every tensor, and
the collectives between them), ``interpreter`` (one operator, and barriers that fix the order).
"""
