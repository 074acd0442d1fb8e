"""The boundary of loops: what passes into a body and out of it, unchanged.

The operators compute nothing. ``tensorstate.execution.step_loop`` hands their operands over to
``lax.scan``, so that these rules have dimensions and nothing to run but ``fill``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from tensorstate.rules.sharding_rule import AbstractArray, PrimitiveRule, ShardingRule, is_zero

LINEAR = (frozenset({0}),)
# Terms of which a zero is the sum: meshes whose axes divide this can have the zero as open sums.
ZERO_TERMS = 2**14 * 3**3 * 5 * 7


def carry(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A carry, into the body or out of it."""
    # Linear: a gradient that a loop adds up stays an open sum in all iterations, and is completed
    # once, behind the loop.
    labels = tuple(range(len(results[0].shape)))
    return ShardingRule("loop", (labels,), (labels,), linear=LINEAR)


def stacked(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A row of a stack, or the stack of rows: every device has the rows of all iterations."""
    # All devices run the same iteration: of a stack sharded by rows, one device would have to send
    # its row to all others in each. (Pipeline stages do shard it, since each runs other layers.)
    ranks = len(arguments[0].shape), len(results[0].shape)
    labels = tuple(range(max(ranks)))
    ins, out = (labels[max(ranks) - rank :] for rank in ranks)
    return ShardingRule("loop", (ins,), (out,), linear=LINEAR, need_replication=frozenset({0}))


def fill(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A repeated scalar. A zero is a sum of zeros too, to which a loop adds open sums."""
    labels = tuple(range(len(results[0].shape)))
    if not is_zero(arguments[0]) or results[0].dtype.kind in "bO":
        return ShardingRule("source", (labels,), (labels,))
    # Sharded along a label of its terms, which no tensor has, it is partial on that axis: both ends
    # of a carry have one strategy, so one that began complete could not go on as open sums.
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
