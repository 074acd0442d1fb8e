"""Random bits: each device generates the bits of its own shard."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from tensorstate.rules.local_shard import LocalShard
from tensorstate.rules.shapes import source
from tensorstate.rules.sharding_rule import LocalEqn, PrimitiveRule, bind

THREEFRY = "key<fry>"


def _run(equation: LocalEqn, arrays, shard: LocalShard):
    """Generate the local shard only, if the generator is Threefry, which hashes element indices.

    Other generators generate the full array, of which the shard is taken.
    """
    (key,), (dims,) = arrays, equation.results
    if not any(shard.is_sharded(labels) for labels in dims):
        return bind(equation, arrays, shard)
    count = math.prod(shard.global_size(labels) for labels in dims)
    by_index = bool(jax.config.jax_threefry_partitionable)  # pyright: ignore[reportAttributeAccessIssue]
    if str(key.dtype) == THREEFRY and by_index and not key.ndim and count < 2**32:
        return [_threefry(key, equation.params["bit_width"], dims, shard)]
    (out,) = bind(equation, arrays, shard)
    for d, labels in enumerate(dims):
        if shard.is_sharded(labels):
            out = jnp.take(out, shard.global_indices(labels), axis=d, mode="clip")
    return [out]


def _threefry(key, width: int, dims, shard: LocalShard):
    """The local shard of ``jax.random.bits``."""
    index = jnp.zeros((), jnp.uint32)
    for labels in dims:
        along = shard.global_indices(labels).astype(jnp.uint32)
        index = index[..., None] * jnp.uint32(shard.global_size(labels)) + along
    first, second = jax.random.key_data(key)
    high, low = threefry2x32_p.bind(*jnp.broadcast_arrays(first, second, 0 * index, index))
    if width == 64:
        return high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)
    return (high ^ low).astype(jnp.dtype(f"uint{width}"))


RULES: dict[str, PrimitiveRule] = {"random_bits": PrimitiveRule(source, _run)}
