"""A GPT written layer by layer (Flax nnx): learned positions, LayerNorm, GELU."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.config import at_least, one_of
from experiments.errors import ConfigError
from experiments.models.training_step import (
    Model,
    attention,
    cross_entropy,
    init_params,
    make_training_step,
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a GPT.

    Attributes:
        layers, width, heads: of the transformer.
        hidden: width inside its perceptrons.
        vocabulary: tokens there are.
        sequence_length: tokens of a sequence.
        batch: sequences a step.
        grad_accumulation: microbatches of a step.
        dropout: fraction of every block's output that is dropped.
        dtype: in which it computes; parameters are float32.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    sequence_length: int
    batch: int
    grad_accumulation: int
    dropout: float
    dtype: str

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "width",
            "heads",
            "hidden",
            "vocabulary",
            "sequence_length",
            "batch",
        ):
            at_least(f"model.{name}", getattr(self, name), 1)
        at_least("model.grad_accumulation", self.grad_accumulation, 1)
        one_of("model.dtype", self.dtype, ("float32", "bfloat16"))
        if self.width % self.heads:
            raise ConfigError(f"model.heads must divide the width {self.width}, got {self.heads}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.dropout must be from 0 to below 1, got {self.dropout}")
        if self.dropout and self.grad_accumulation > 1:
            raise ConfigError("model.dropout and model.grad_accumulation exclude each other")


class Block(nnx.Module):
    """Attention and a perceptron, each added to its input."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        width, self.heads = config.width, config.heads
        options = {"dtype": jnp.dtype(config.dtype), "rngs": rngs}
        self.before_attention = nnx.LayerNorm(width, **options)
        self.qkv = nnx.List([nnx.Linear(width, width, **options) for _ in range(3)])
        self.out = nnx.Linear(width, width, **options)
        self.before_mlp = nnx.LayerNorm(width, **options)
        self.up = nnx.Linear(width, config.hidden, **options)
        self.down = nnx.Linear(config.hidden, width, **options)
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        batch, length, width = x.shape
        y = self.before_attention(x)
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (linear(y).reshape(heads) for linear in self.qkv)
        y = attention(q[..., None, :], k, v).reshape(x.shape)
        x = x + self.dropout(self.out(y), rngs=rngs)
        y = nnx.gelu(self.up(self.before_mlp(x)))
        return x + self.dropout(self.down(y), rngs=rngs)


class GPT(nnx.Module):
    """From tokens to logits of the next ones."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        options = {"dtype": jnp.dtype(config.dtype), "rngs": rngs}
        self.tokens = nnx.Embed(config.vocabulary, config.width, **options)
        self.position_embedding = nnx.Embed(config.sequence_length, config.width, **options)
        self.layers = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.width, **options)
        self.head = nnx.Linear(config.width, config.vocabulary, use_bias=False, **options)

    def __call__(self, tokens: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        x = self.tokens(tokens) + self.position_embedding.embedding[...].astype(self.tokens.dtype)
        for layer in self.layers:
            x = layer(x, rngs)
        return self.head(self.norm(x))


def model(config: Config) -> Model:
    """Its training step, on sequences and the tokens that follow each of theirs."""
    graph, init = init_params(lambda rngs: GPT(config, rngs))

    def loss_of(params, batch):
        module = nnx.merge(graph, params)
        module.set_attributes(deterministic=not config.dropout, raise_if_not_found=False)
        rngs = nnx.Rngs(batch["key"]) if config.dropout else None
        return cross_entropy(module(batch["tokens"], rngs), batch["next"])

    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence_length), jnp.int32)
    batch = {"tokens": tokens, "next": tokens}
    if config.dropout:
        batch["key"] = jax.eval_shape(lambda: jax.random.key(0))
    return make_training_step(loss_of, init, batch, config.vocabulary, config.grad_accumulation)
