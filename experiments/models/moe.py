"""A transformer whose perceptrons are a mixture of experts (Flax nnx).

Tokens are sent to their experts by einsums with one-hot slots, as in GShard (Lepikhin et al.,
2020): expert parallelism is then a matter of sharding the experts' axis.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.config import above, at_least
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
    """Sizes of a mixture of experts.

    Attributes:
        layers, width, heads: of the transformer.
        hidden: width inside an expert.
        experts: how many there are in a layer.
        top_k: how many a token is sent to.
        capacity: tokens of a sequence that an expert takes, as a multiple of its fair share.
        vocabulary: tokens there are.
        sequence_length: tokens of a sequence.
        batch: sequences a step.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    experts: int
    top_k: int
    capacity: float
    vocabulary: int
    sequence_length: int
    batch: int

    def __post_init__(self) -> None:
        names = (
            "layers",
            "width",
            "heads",
            "hidden",
            "top_k",
            "vocabulary",
            "sequence_length",
            "batch",
        )
        for name in names:
            at_least(f"model.{name}", getattr(self, name), 1)
        at_least("model.experts", self.experts, self.top_k)
        above("model.capacity", self.capacity, 0)
        if self.width % self.heads:
            raise ConfigError(f"model.heads must divide the width {self.width}, got {self.heads}")

    @property
    def slots(self) -> int:
        """Tokens of a sequence that an expert takes."""
        return max(1, round(self.capacity * self.sequence_length * self.top_k / self.experts))


class Experts(nnx.Module):
    """Perceptrons, of which every token visits a few."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.config = config
        scale = nnx.initializers.lecun_normal(in_axis=1, out_axis=2, batch_axis=(0,))
        up = (config.experts, config.width, config.hidden)
        down = (config.experts, config.hidden, config.width)
        self.router = nnx.Linear(config.width, config.experts, use_bias=False, rngs=rngs)
        self.up = nnx.Param(scale(rngs.params(), up))
        self.down = nnx.Param(scale(rngs.params(), down))

    def __call__(self, x: jax.Array) -> jax.Array:
        send, receive = self.routes(jax.nn.softmax(self.router(x)))
        inside = jnp.einsum("bsec,bsd->ebcd", send, x)
        hidden = nnx.gelu(jnp.einsum("ebcd,edf->ebcf", inside, self.up[...]))
        outside = jnp.einsum("ebcf,efd->ebcd", hidden, self.down[...])
        return jnp.einsum("bsec,ebcd->bsd", receive, outside)

    def routes(self, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Which token goes to which place of which expert, and how much of it comes back.

        Args:
            scores: of shape (batch, length, experts).

        Returns:
            Two arrays of shape (batch, length, experts, slots).
        """
        experts, slots = self.config.experts, self.config.slots
        weights, chosen = jax.lax.top_k(scores, self.config.top_k)
        hot = jax.nn.one_hot(chosen, experts)  # (batch, length, chosen, experts)
        # First come, first served: first choices of all tokens before second ones.
        order = hot.swapaxes(1, 2).reshape(hot.shape[0], -1, experts)
        before = (jnp.cumsum(order, axis=1) - order).reshape(hot.swapaxes(1, 2).shape)
        before = before.swapaxes(1, 2)
        place = jax.nn.one_hot(before.astype(jnp.int32), slots) * hot[..., None]
        return place.sum(2), (place * weights[..., None, None]).sum(2)


class Block(nnx.Module):
    """Attention and experts, each added to its input."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.heads = config.heads
        self.before_attention = nnx.LayerNorm(config.width, rngs=rngs)
        shape = (config.heads, config.width // config.heads)
        self.qkv = nnx.List([nnx.LinearGeneral(config.width, shape, rngs=rngs) for _ in range(3)])
        self.out = nnx.LinearGeneral(shape, config.width, axis=(-2, -1), rngs=rngs)
        self.before_experts = nnx.LayerNorm(config.width, rngs=rngs)
        self.experts = Experts(config, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.before_attention(x)
        q, k, v = (linear(y) for linear in self.qkv)
        x = x + self.out(attention(q[..., None, :], k, v)[..., 0, :])
        return x + self.experts(self.before_experts(x))


class Mixture(nnx.Module):
    """From tokens to logits of the next ones."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(config.vocabulary, config.width, rngs=rngs)
        self.layers = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.head = nnx.Linear(config.width, config.vocabulary, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def model(config: Config) -> Model:
    """Its training step, on sequences and the tokens that follow each of theirs."""
    graph, init = init_params(lambda rngs: Mixture(config, rngs))

    def loss_of(params, batch):
        return cross_entropy(nnx.merge(graph, params)(batch["tokens"]), batch["next"])

    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence_length), jnp.int32)
    return make_training_step(loss_of, init, {"tokens": tokens, "next": tokens}, config.vocabulary)
