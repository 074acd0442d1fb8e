"""Random bits: each device makes those of its own part."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from tensorstate.rules.local_shard import LocalBlock
from tensorstate.rules.shapes import source
from tensorstate.rules.sharding_rule import Equation, Rule, bind

THREEFRY = "key<fry>"


def _run(equation: Equation, arrays, block: LocalBlock):
    """Threefry hashes every element's place, so a part can be made by itself.

    Of other generators the whole is made, and the device's part kept.
    """
    (key,), (dims,) = arrays, equation.results
    if not any(block.split(labels) for labels in dims):
        return bind(equation, arrays, block)
    count = math.prod(block.global_size(labels) for labels in dims)
    by_place = bool(jax.config.jax_threefry_partitionable)  # pyright: ignore[reportAttributeAccessIssue]
    if str(key.dtype) == THREEFRY and by_place and not key.ndim and count < 2**32:
        return [_threefry(key, equation.params["bit_width"], dims, block)]
    (out,) = bind(equation, arrays, block)
    for d, labels in enumerate(dims):
        if block.split(labels):
            out = jnp.take(out, block.positions(labels), axis=d, mode="clip")
    return [out]


def _threefry(key, width: int, dims, block: LocalBlock):
    """The bits of some places: what ``jax.random.bits`` gives there."""
    place = jnp.zeros((), jnp.uint32)
    for labels in dims:
        own = block.positions(labels).astype(jnp.uint32)
        place = place[..., None] * jnp.uint32(block.global_size(labels)) + own
    first, second = jax.random.key_data(key)
    high, low = threefry2x32_p.bind(*jnp.broadcast_arrays(first, second, 0 * place, place))
    if width == 64:
        return high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)
    return (high ^ low).astype(jnp.dtype(f"uint{width}"))


RULES: dict[str, Rule] = {"random_bits": Rule(source, _run)}
