"""Runs a training step as decided, inside ``jax.shard_map``.

In reading order: ``sharded_step`` (the public result), ``executor`` (one device's operators),
``step_loop`` (the loops of the step itself),
``collective_order`` (collectives that wait for loops, on CPU),
``microbatch_loop`` (one operator, barriers that fix the order, and the loop around them),
``placement_table`` (the placements of every tensor, and the collectives between them).
"""
