"""Holds XLA to the order in which a plan runs operators.

What comes out of ``lax.optimization_barrier`` is there no sooner than all that goes into it. Two
things about barriers are easily overlooked. XLA takes out of a barrier what nothing else reads
(``AlgebraicSimplifierVisitor::HandleOptimizationBarrier``), so that whoever only waits for it waits
no more: hence two barriers each. And an array stays in memory until all barriers that wait for it
have been passed: hence to wait for one number of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def moment(x: jax.Array) -> jax.Array:
    """A number that is known once an array is."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())


def after(arrays: Sequence[jax.Array], *moments: jax.Array) -> list[jax.Array]:
    """Arrays that are there no sooner than one another, and than moments."""
    found = list(arrays)
    for _ in range(2 if found and moments else 0):
        found = lax.optimization_barrier((*found, *moments))[: len(found)]
    return list(found)


def apart(x: jax.Array) -> jax.Array:
    """An array that is made by itself, rather than by what reads it."""
    return lax.optimization_barrier((x,))[0]
