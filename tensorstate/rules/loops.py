"""The boundary of loops: what passes into a body and out of it, unchanged.

The operators compute nothing. ``tensorstate.execution.step_loop`` hands their operands over to
``lax.scan``, so that these rules have dimensions and nothing to run but ``fill``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    LocalShard,
    PrimitiveRule,
    ShardingRule,
    is_zero,
)

LINEAR = (frozenset({0}),)
# Terms of which a zero is the sum: meshes whose axes divide this can have the zero as open sums.
ZERO_TERMS = 2**14 * 3**3 * 5 * 7


def carry(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A carry, into the body or out of it."""
    labels = tuple(range(len(results[0].shape)))
    return ShardingRule("loop", (labels,), (labels,), linear=LINEAR)


def row(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A row of a stack: every device has the rows of all iterations."""
    labels = tuple(range(len(arguments[0].shape)))
    replicated = frozenset({0})
    return ShardingRule(
        "loop", (labels,), (labels[1:],), linear=LINEAR, need_replication=replicated
    )


def stack(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """The stack of the rows of all iterations."""
    labels = tuple(range(len(results[0].shape)))
    replicated = frozenset({0})
    return ShardingRule(
        "loop", (labels[1:],), (labels,), linear=LINEAR, need_replication=replicated
    )


def fill(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """A repeated scalar. A zero is a sum of zeros too, to which a loop adds open sums."""
    labels = tuple(range(len(results[0].shape)))
    if not is_zero(arguments[0]) or results[0].dtype.kind in "bO":
        return ShardingRule("source", (labels,), (labels,))
    terms = len(labels)
    return ShardingRule("source", (labels,), (labels,), {terms: "sum"}, unseen={terms: ZERO_TERMS})


def _run_fill(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    return [jnp.asarray(arrays[0])]


RULES: dict[str, PrimitiveRule] = {
    "carry_in": PrimitiveRule(carry),
    "carry_out": PrimitiveRule(carry),
    "while_condition": PrimitiveRule(carry),
    "sum_out": PrimitiveRule(carry),
    "scan_row": PrimitiveRule(row),
    "scan_stack": PrimitiveRule(stack),
    "fill": PrimitiveRule(fill, _run_fill),
}
