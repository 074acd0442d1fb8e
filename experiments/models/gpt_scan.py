"""A GPT whose layers are one, scanned over stacked parameters (Flax linen)."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.config import at_least
from experiments.errors import ConfigError
from experiments.models.training_step import Model, attention, language_model


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a GPT; as those of ``experiments.models.gpt``."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    sequence_length: int
    batch: int
    grad_accumulation: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            at_least(f"model.{field.name}", getattr(self, field.name), 1)
        if self.width % self.heads:
            raise ConfigError(f"model.heads must divide the width {self.width}, got {self.heads}")


class Block(nn.Module):
    """Attention and a perceptron, each added to its input."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        width, heads = self.config.width, self.config.heads
        y = nn.LayerNorm(name="before_attention")(x)
        qkv = nn.DenseGeneral((3, heads, width // heads), name="qkv")(y)
        q, k, v = qkv[..., 0, :, :], qkv[..., 1, :, :], qkv[..., 2, :, :]
        y = attention(q[..., None, :], k, v)[..., 0, :]
        x = x + nn.DenseGeneral(width, (-2, -1), name="out")(y)
        y = nn.Dense(self.config.hidden, name="up")(nn.LayerNorm(name="before_mlp")(x))
        return x + nn.Dense(width, name="down")(nn.gelu(y)), None


class GPT(nn.Module):
    """From tokens to logits of the next ones."""

    config: Config

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        x = nn.Embed(config.vocabulary, config.width, name="tokens")(tokens)
        x = x + self.param(
            "position_embedding",
            nn.initializers.normal(0.02),
            (config.sequence_length, config.width),
            jnp.float32,
        )
        layers = nn.scan(
            Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=config.layers
        )
        x, _ = layers(config, name="layers")(x)
        return nn.Dense(config.vocabulary, use_bias=False, name="head")(nn.LayerNorm()(x))


def model(config: Config) -> Model:
    """Its training step, on sequences and the tokens that follow each of theirs."""
    shape = (config.batch, config.sequence_length)
    return language_model(GPT(config), shape, config.vocabulary, config.grad_accumulation)
