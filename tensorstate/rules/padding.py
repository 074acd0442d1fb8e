"""Operators that keep the added rows of padded dimensions out of results.

``mask_padding`` sets them to a value that does not change what reads them: 0 before a sum, minus
infinity before a maximum. ``bound_indices`` gives indices the bounds of the traced dimension, which
is shorter than the indexed one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from tensorstate.rules import elementwise
from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    LocalShard,
    PrimitiveRule,
    ShardingRule,
)

mask_padding_p = jax_internals.Primitive("mask_padding")
bound_indices_p = jax_internals.Primitive("bound_indices")


def _mask_rule(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """Elementwise; a mask with zeros is linear."""
    if np.any(np.asarray(params["value"])):
        return elementwise.sharding_rule(arguments, results, params)
    return elementwise.jointly_linear(arguments, results, params)


def _run_mask(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    """Replace the added rows of ``params["dims"]``: (dimension, traced sizes, padded sizes)."""
    (x,) = arrays
    inside = jnp.asarray(True)
    for d, sizes, padded in equation.params["dims"]:
        # Factor by factor, from the minor one: in a dimension of (3 of 4) heads of (5 of 6), a row
        # is an added one if its head is added, or its place in the head.
        index = shard.global_indices(equation.arguments[0][d])
        along = jnp.ones(index.shape, bool)
        for size, longer in zip(reversed(sizes), reversed(padded), strict=True):
            along &= index % longer < size
            index = index // longer
        inside &= lax.broadcast_in_dim(along, x.shape, (d,))
    return [jnp.where(inside, x, jnp.asarray(equation.params["value"], x.dtype))]


def _bound_rule(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """Elementwise, except along the last dimension, in which every column has its own bound."""
    rank = len(results[0].shape)
    labels = tuple(range(rank))
    replicated = frozenset({rank - 1})
    return ShardingRule("elementwise", (labels,), (labels,), need_replication=replicated)


def _run_bound(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    """Clip indices outside the traced dimension, or move them out of the padded one.

    ``params["columns"]`` holds (column, traced size, padded size).
    """
    (index,) = arrays
    column = jnp.arange(index.shape[-1])
    for k, size, padded in equation.params["columns"]:
        # Index 10 of a table of 10 rows padded to 12 is outside and must stay so: it would read an
        # added row. Negative ones are outside both.
        outside = (index >= size) & (column == k)
        index = jnp.where(
            outside,
            jnp.asarray(size - 1 if equation.params["clip"] else padded, index.dtype),
            index,
        )
    return [index]


# Elementwise operators whose parameters number the dimensions of the traced program.
BY_DIMENSION = frozenset({"mask_padding", "bound_indices"})

RULES: dict[str, PrimitiveRule] = {
    "mask_padding": PrimitiveRule(_mask_rule, _run_mask),
    "bound_indices": PrimitiveRule(_bound_rule, _run_bound),
}
