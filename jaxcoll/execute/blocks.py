"""Blocks: an operand's dimension split into one block per rank, and the blocks joined again.

Both keep the sharding over Explicit axes outside the ``shard_map`` as ``jax.lax`` does: the axes of
a dimension still shard it after it has shrunk or grown.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.sharding import PartitionSpec

from jaxcoll.execute import jax_internals


def divide(x: jax.Array, dimension: int, parts: int) -> jax.Array:
    """Shape (..., parts * s, ...) as (parts, ..., s, ...).

    Axes in Auto mode that shard the dimension are gathered here, once. XLA would gather as many of
    its shards as make a block, and the rest when a result that is sharded over a part of an axis
    leaves the program.
    """
    if jax_internals.auto_sizes() and not jax_internals.explicit_axes():
        free: list = [PartitionSpec.UNCONSTRAINED] * x.ndim
        free[dimension] = None
        x = lax.with_sharding_constraint(x, PartitionSpec(*free))
    size = x.shape[dimension] // parts
    shape = (*x.shape[:dimension], parts, size, *x.shape[dimension + 1 :])
    spec = _spec(x)
    if spec is not None:
        if size % jax_internals.ways(spec[dimension]) and not jax_internals.RESHARD_ABORTS:
            # The shards of a block would not be equal.
            spec[dimension] = None
            x = jax.reshard(x, PartitionSpec(*spec))
        spec.insert(dimension, None)
    return move(_reshape(x, shape, spec), dimension, 0)


def merge(blocks: jax.Array, dimension: int) -> jax.Array:
    """Shape (parts, ..., s, ...) as (..., parts * s, ...)."""
    x = move(blocks, 0, dimension)
    parts, size = x.shape[dimension : dimension + 2]
    shape = (*x.shape[:dimension], parts * size, *x.shape[dimension + 2 :])
    spec = _spec(x)
    if spec is not None:
        del spec[dimension]
    return _reshape(x, shape, spec)


def sharded_as(x: jax.Array, like: jax.Array) -> jax.Array:
    """``x`` sharded over Explicit axes as another array of its shape, which ``divide`` may end."""
    spec, explicit = jax_internals.explicit_sharding(like)
    if explicit == jax_internals.explicit_sharding(x)[1] or jax_internals.RESHARD_ABORTS:
        return x
    return jax.reshard(x, spec)


def move(x: jax.Array, source: int, destination: int) -> jax.Array:
    """``x`` with a dimension in another place; unlike ``jnp.moveaxis`` no function of its own.

    The tangents of a jitted function take on the weak types of its operands.
    """
    order = [d for d in range(x.ndim) if d != source]
    order.insert(destination, source)
    return lax.transpose(x, order)


def _spec(x: jax.Array) -> list | None:
    """The Explicit axes that shard each dimension; ``None`` if none do."""
    spec, explicit = jax_internals.explicit_sharding(x)
    return [*spec, *(None,) * (x.ndim - len(spec))] if explicit else None


def _reshape(x: jax.Array, shape: tuple, spec: list | None) -> jax.Array:
    sharding = None if spec is None else PartitionSpec(*spec)
    return lax.reshape(x, shape, out_sharding=sharding)
