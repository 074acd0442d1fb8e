"""Small functions with the operators of training steps, and the shapes of their arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

F32, I32 = jnp.float32, jnp.int32


def s(*shape: int, dtype=F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def matmul(x, w):
    return x @ w


def attention(x, wq, wk, wv, wo):
    """Heads reshaped from a product of all heads, as (batch, sequence, 4 * 2)."""
    batch, length, width = x.shape
    heads = [(x @ w).reshape(batch, length, 4, width // 4) for w in (wq, wk, wv)]
    scores = jnp.einsum("bqhd,bkhd->bhqk", heads[0], heads[1])
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, heads[2])
    return out.reshape(batch, length, width) @ wo


def rotary(x):
    """RoPE: halves of the last dimension, rotated and concatenated."""
    length, width = x.shape[-2:]
    angles = jnp.arange(length)[:, None] / 10.0 ** (jnp.arange(width // 2) / width)
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def embedding(table, tokens):
    return table[tokens]


def embedding_clipped(table, tokens):
    return jnp.take(table, tokens - 2, axis=0, mode="clip")


def embedding_filled(table, tokens):
    return jnp.take(table, tokens + 6, axis=0, mode="fill", fill_value=7)


def cross_entropy(logits, labels):
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -picked[..., 0].mean()


def gradient_of_embedding(table, tokens, out):
    return jax.grad(lambda t: (t[tokens] * out).sum())(table)


def gradient_of_loss(logits, labels):
    return jax.value_and_grad(cross_entropy)(logits, labels)


def scatter_into(table, tokens, rows):
    return table.at[tokens].add(rows), table.at[:, 1].set(3.0), table.at[tokens].max(rows)


def experts(x, scores):
    weights, chosen = lax.top_k(scores, 2)
    hot = jax.nn.one_hot(chosen, scores.shape[-1]).sum(1)
    place = jnp.cumsum(hot, axis=0) - hot
    return weights, (place * hot).sum(), jnp.sort(x, axis=-1), jnp.argmax(x, axis=0)


def layers(x, w):
    def layer(x, w):
        return jnp.tanh(x @ w), x.sum()

    return lax.scan(layer, x, w)


def gradient_of_layers(x, w):
    return jax.grad(lambda w: layers(x, w)[0].sum())(w)


def reversed_scan(x, w):
    return lax.scan(lambda c, w: (c * w, c.sum()), x, w, reverse=True)


def accumulated(w, x):
    """Gradients of microbatches, added up in a scan."""

    def one(total, x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.square(x @ w).mean())(w)
        return (total[0] + loss, total[1] + gradient), None

    zeros = (jnp.zeros(()), jnp.zeros_like(w))
    (loss, gradient), _ = lax.scan(one, zeros, x.reshape(4, -1, x.shape[-1]))
    return loss, w - 0.1 * gradient / 4


def recomputed(w, x):
    layer = jax.checkpoint(lambda w: jnp.tanh(jnp.sin(x @ w)))
    return jax.value_and_grad(lambda w: layer(w).sum())(w)


@jax.custom_vjp
def straight_through(x):
    return jnp.round(x)


straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


def custom(x):
    return jax.value_and_grad(lambda x: (straight_through(x) * jax.nn.relu(x)).sum())(x)


def dropout(x, key):
    first, second = jax.random.split(key)
    keep = jax.random.bernoulli(first, 0.7, x.shape)
    noise = jax.random.normal(second, x.shape), jax.random.bits(second, x.shape, "uint8")
    return jnp.where(keep, x / 0.7, 0), noise


def other_generator(x):
    return jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape) + x


def convolution(x, kernel):
    y = lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def gradient_of_convolution(x, kernel):
    return jax.grad(lambda x, k: convolution(x, k).sum(), argnums=(0, 1))(x, kernel)


def grouped(x, kernel):
    def run(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )  # fmt: skip

    return jax.value_and_grad(lambda x, k: run(x, k).sum(), argnums=(0, 1))(x, kernel)


def unaligned(x):
    """(4, 6) to (6, 4), which is not a view."""
    return x.reshape(x.shape[0], 6, 4).sum(1), x.reshape(-1, 3)


def moved(x, i):
    row = lax.dynamic_slice_in_dim(x, i, 2, 0)
    padded = jnp.pad(x, ((0, 0), (1, 2)))
    twice = lax.dynamic_update_slice_in_dim(x, row * 2, 0, 0)
    return twice, jnp.flip(x, 1), padded, jnp.roll(x, 1, axis=0), x[1:, ::2]


def reductions(x):
    return x.sum(0), x.max((0, 1)), x.min(), x.prod(1), jnp.any(x > 0, 0), jnp.all(x > 0)


CLOSED_OVER = np.arange(12.0, dtype=np.float32).reshape(3, 4)


def closed_over(x):
    return x @ CLOSED_OVER, jnp.float32(3), jnp.ones((2, 2)), x


KEY = jax.eval_shape(lambda: jax.random.key(0))
W = s(8, 8)

STEPS = {
    "matmul": (matmul, s(4, 6), s(6, 2)),
    "attention": (attention, s(2, 4, 8), W, W, W, W),
    "rotary": (rotary, s(2, 4, 6)),
    "embedding": (embedding, s(8, 6), s(2, 4, dtype=I32)),
    "embedding_clipped": (embedding_clipped, s(8, 6), s(2, 4, dtype=I32)),
    "embedding_filled": (embedding_filled, s(8, 6), s(2, 4, dtype=I32)),
    "gradient_of_embedding": (
        gradient_of_embedding,
        s(8, 6),
        s(2, 4, dtype=I32),
        s(2, 4, 6),
    ),
    "gradient_of_loss": (gradient_of_loss, s(2, 4, 8), s(2, 4, dtype=I32)),
    "scatter_into": (scatter_into, s(8, 6), s(4, dtype=I32), s(4, 6)),
    "experts": (experts, s(4, 6), s(8, 4)),
    "layers": (layers, s(4, 6), s(3, 6, 6)),
    "gradient_of_layers": (gradient_of_layers, s(4, 6), s(3, 6, 6)),
    "reversed_scan": (reversed_scan, s(4, 6), s(3, 4, 6)),
    "accumulated": (accumulated, s(6, 2), s(8, 6)),
    "recomputed": (recomputed, s(6, 2), s(4, 6)),
    "custom": (custom, s(4, 6)),
    "dropout": (dropout, s(4, 6), KEY),
    "other_generator": (other_generator, s(4, 6)),
    "convolution": (convolution, s(2, 4, 4, 2), s(3, 3, 2, 4)),
    "gradient_of_convolution": (gradient_of_convolution, s(2, 4, 4, 2), s(3, 3, 2, 4)),
    "grouped": (grouped, s(2, 4, 4, 4), s(3, 3, 2, 4)),
    "unaligned": (unaligned, s(2, 4, 6)),
    "moved": (moved, s(4, 6), s(dtype=I32)),
    "reduced": (reductions, s(2, 4, 6)),
    "closed_over": (closed_over, s(2, 3)),
}
