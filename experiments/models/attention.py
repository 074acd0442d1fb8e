"""Shared by the transformers: causal attention and rotary positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def attention(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True) -> jax.Array:
    """Attention of heads, of which several queries may share a key and value.

    Args:
        q: queries of shape (batch, length, groups, queries a group, head).
        k, v: keys and values of shape (batch, length, groups, head).

    Returns:
        An array of the shape of ``q``.
    """
    scores = jnp.einsum("bqghd,bkgd->bghqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if causal:
        positions = jnp.arange(q.shape[1])
        scores = jnp.where(positions[:, None] >= positions[None, :], scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bghqk,bkgd->bqghd", weights, v)


def rotary(x: jax.Array, theta: float = 500_000.0) -> jax.Array:
    """Rotary positions (Su et al., RoFormer): halves of the last dimension, turned.

    Args:
        x: of shape (batch, length, ..., head).
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    angles = angles.reshape(1, x.shape[1], *(1 for _ in x.shape[2:-1]), half)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
