"""The boundary of loops: what passes into a body and out of it, unchanged.

The operators compute nothing. ``tensorstate.execution.step_loop`` hands their operands to
``lax.scan``, so these rules have dimensions, and only ``fill`` runs anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from tensorstate.rules.sharding_rule import AbstractArray, PrimitiveRule, ShardingRule, is_zero

LINEAR = (frozenset({0}),)
# A zero is the sum of this many terms: on meshes whose axes divide it, it can be open sums.
ZERO_TERMS = 2**14 * 3**3 * 5 * 7


def carry(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A carry, into the body or out of it."""
    # Linear, so that a gradient that a loop adds up stays an open sum in all iterations and is
    # completed once, after the loop.
    labels = tuple(range(len(results[0].shape)))
    return ShardingRule("loop", (labels,), (labels,), linear=LINEAR)


def stacked(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A row of a stack, or the stack of rows: every device has the rows of all iterations."""
    # All devices run the same iteration. If a stack were sharded by rows, in each iteration one
    # device would have to send its row to all others. (Pipeline stages do shard it: each runs other
    # layers.)
    ranks = len(arguments[0].shape), len(results[0].shape)
    labels = tuple(range(max(ranks)))
    ins, out = (labels[max(ranks) - rank :] for rank in ranks)
    return ShardingRule("loop", (ins,), (out,), linear=LINEAR, need_replication=frozenset({0}))


def fill(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A repeated scalar. A zero is also a sum of zeros, to which a loop adds open sums."""
    labels = tuple(range(len(results[0].shape)))
    if not is_zero(arguments[0]) or results[0].dtype.kind in "bO":
        return ShardingRule("source", (labels,), (labels,))
    # Sharded along a label of its terms, which no tensor has, it is partial on that axis. Both ends
    # of a carry have one strategy, so a carry that began complete could not go on as open sums.
    terms = len(labels)
    return ShardingRule("source", (labels,), (labels,), {terms: "sum"}, unseen={terms: ZERO_TERMS})


RULES: dict[str, PrimitiveRule] = {
    "carry_in": PrimitiveRule(carry),
    "carry_out": PrimitiveRule(carry),
    "while_condition": PrimitiveRule(carry),
    "sum_out": PrimitiveRule(carry),
    "scan_row": PrimitiveRule(stacked),
    "scan_stack": PrimitiveRule(stacked),
    "fill": PrimitiveRule(fill, lambda equation, arrays, shard: [jnp.asarray(arrays[0])]),
}
