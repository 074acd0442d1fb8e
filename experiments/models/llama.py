"""A Llama-style transformer (Flax linen): RMSNorm, grouped queries, rotary positions, SwiGLU."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.config import at_least, one_of
from experiments.errors import ConfigError
from experiments.models.training_step import Model, attention, language_model, rotary


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a Llama.

    Attributes:
        layers, width, heads: of the transformer.
        num_kv_heads: of heads that share a key and a value.
        hidden: width inside its perceptrons.
        vocabulary: tokens there are.
        sequence_length: tokens of a sequence.
        batch: sequences a step.
        grad_accumulation: microbatches of a step.
        scan: whether layers are one, scanned over stacked parameters.
        remat: whether layers are recomputed in the backward pass.
        dtype: in which it computes; parameters are float32.
    """

    layers: int
    width: int
    heads: int
    num_kv_heads: int
    hidden: int
    vocabulary: int
    sequence_length: int
    batch: int
    grad_accumulation: int
    scan: bool
    remat: bool
    dtype: str

    def __post_init__(self) -> None:
        sizes = (
            "layers",
            "width",
            "heads",
            "num_kv_heads",
            "hidden",
            "vocabulary",
            "sequence_length",
            "batch",
        )
        for name in (*sizes, "grad_accumulation"):
            at_least(f"model.{name}", getattr(self, name), 1)
        one_of("model.dtype", self.dtype, ("float32", "bfloat16"))
        if self.width % (2 * self.heads) or self.heads % self.num_kv_heads:
            raise ConfigError(
                f"model.heads={self.heads} must divide the width {self.width} into even parts, and "
                f"be a multiple of model.num_kv_heads={self.num_kv_heads}"
            )


class Layer(nn.Module):
    """Attention and a gated perceptron, each added to its input."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        config = self.config
        dtype, width = jnp.dtype(config.dtype), config.width
        head, each = width // config.heads, config.heads // config.num_kv_heads

        def linear(features, name: str, axis: int | tuple[int, ...] = -1):
            return nn.DenseGeneral(features, axis, use_bias=False, dtype=dtype, name=name)

        y = nn.RMSNorm(dtype=dtype, name="before_attention")(x)
        q = rotary(linear((config.num_kv_heads, each, head), "query")(y))
        k = rotary(linear((config.num_kv_heads, head), "key")(y))
        v = linear((config.num_kv_heads, head), "value")(y)
        x = x + linear(width, "out", (-3, -2, -1))(attention(q, k, v))
        y = nn.RMSNorm(dtype=dtype, name="before_mlp")(x)
        y = nn.silu(linear(config.hidden, "gate")(y)) * linear(config.hidden, "up")(y)
        return x + linear(width, "down")(y), None


class Llama(nn.Module):
    """From tokens to logits of the next ones."""

    config: Config

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        dtype = jnp.dtype(config.dtype)
        layer = nn.remat(Layer, prevent_cse=not config.scan) if config.remat else Layer
        x = nn.Embed(config.vocabulary, config.width, dtype=dtype, name="tokens")(tokens)
        if config.scan:
            scanned = nn.scan(
                layer,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=config.layers,
            )
            x, _ = scanned(config, name="layers")(x)
        else:
            for i in range(config.layers):
                x, _ = layer(config, name=f"layers_{i}")(x)
        x = nn.RMSNorm(dtype=dtype, name="norm")(x)
        return nn.Dense(config.vocabulary, use_bias=False, dtype=dtype, name="head")(x)


def model(config: Config) -> Model:
    """Its training step, on sequences and the tokens that follow each of theirs."""
    shape = (config.batch, config.sequence_length)
    return language_model(Llama(config), shape, config.vocabulary, config.grad_accumulation)
