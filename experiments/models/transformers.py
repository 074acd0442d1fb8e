"""Transformers from tokens to logits of the next ones, in Flax, as their users write them.

Four ways to write the same step, since a search over shardings reads what was written: a GPT layer
by layer (nnx: learned positions, LayerNorm, GELU), one whose layers are one, scanned over stacked
parameters (linen), one whose perceptrons are a mixture of experts (nnx), and a Llama (linen:
RMSNorm, grouped queries, rotary positions, SwiGLU).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from experiments.limits import Count, Positive, among, at_least
from experiments.models.training_step import (
    Model,
    attention,
    cross_entropy,
    init_params,
    language_model,
    make_training_step,
    rotary,
)
from experiments.study import ConfigError


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes that all of these transformers have."""

    # layers, width, heads: of the transformer
    layers: Count
    width: Count
    heads: Count
    hidden: Count  # width inside its perceptrons, or inside an expert
    vocabulary: Count  # tokens there are
    sequence_length: Count  # tokens of a sequence
    batch: Count  # sequences a step

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"model.heads must divide the width {self.width}, got {self.heads}")


@dataclasses.dataclass(frozen=True)
class TypedSizes(Sizes):
    """Sizes of a transformer that may compute in another type than its parameters have."""

    # In which it computes; parameters are float32
    dtype: Annotated[str, among(("float32", "bfloat16"))]


@dataclasses.dataclass(frozen=True)
class GptConfig(TypedSizes):
    """Sizes of a GPT."""

    grad_accumulation: Count  # microbatches of a step
    dropout: float  # fraction of every block's output that is dropped

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.dropout must be from 0 to below 1, got {self.dropout}")
        if self.dropout and self.grad_accumulation > 1:
            raise ConfigError("model.dropout and model.grad_accumulation exclude each other")


class GptBlock(nnx.Module):
    """Attention and a perceptron, each added to its input."""

    def __init__(self, config: GptConfig, rngs: nnx.Rngs):
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

    def __init__(self, config: GptConfig, rngs: nnx.Rngs):
        options = {"dtype": jnp.dtype(config.dtype), "rngs": rngs}
        self.tokens = nnx.Embed(config.vocabulary, config.width, **options)
        self.position_embedding = nnx.Embed(config.sequence_length, config.width, **options)
        self.layers = nnx.List([GptBlock(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.width, **options)
        self.head = nnx.Linear(config.width, config.vocabulary, use_bias=False, **options)

    def __call__(self, tokens: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        x = self.tokens(tokens) + self.position_embedding.embedding[...].astype(self.tokens.dtype)
        for layer in self.layers:
            x = layer(x, rngs)
        return self.head(self.norm(x))


def gpt(config: GptConfig) -> Model:
    """Its training step, on sequences and the tokens that follow each of theirs."""
    # The structure is closed over, so that the step is a function of plain dictionaries of arrays.
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


@dataclasses.dataclass(frozen=True)
class GptScanConfig(Sizes):
    """Sizes of a GPT of one layer, scanned."""

    grad_accumulation: Count  # microbatches of a step


class GptScanBlock(nn.Module):
    """Attention and a perceptron, each added to its input."""

    config: GptScanConfig

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


def _scanned(block: Any, config: Sizes) -> Any:
    """Blocks of one kind one after another, as a scan over their stacked parameters."""
    return nn.scan(
        block, variable_axes={"params": 0}, split_rngs={"params": True}, length=config.layers
    )


class GptScan(nn.Module):
    """From tokens to logits of the next ones."""

    config: GptScanConfig

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
        x, _ = _scanned(GptScanBlock, config)(config, name="layers")(x)
        return nn.Dense(config.vocabulary, use_bias=False, name="head")(nn.LayerNorm()(x))


def gpt_scan(config: GptScanConfig) -> Model:
    """Its training step, on sequences and the tokens that follow each of theirs."""
    shape = (config.batch, config.sequence_length)
    return language_model(GptScan(config), shape, config.vocabulary, config.grad_accumulation)


@dataclasses.dataclass(frozen=True)
class MoeConfig(Sizes):
    """Sizes of a mixture of experts."""

    experts: Count  # how many there are in a layer
    top_k: Count  # how many a token is sent to
    capacity: Positive  # tokens of a sequence that an expert takes, as a multiple of its fair share

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("model.experts", self.experts, self.top_k)

    @property
    def slots(self) -> int:
        """Tokens of a sequence that an expert takes."""
        return max(1, round(self.capacity * self.sequence_length * self.top_k / self.experts))


class Experts(nnx.Module):
    """Perceptrons, of which every token visits a few.

    Tokens are sent to their experts by einsums with one-hot slots, as in GShard (Lepikhin et al.,
    2020): expert parallelism is then a matter of sharding the experts' axis.
    """

    def __init__(self, config: MoeConfig, rngs: nnx.Rngs):
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
            scores: an array of shape (batch, length, experts).

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


class MoeBlock(nnx.Module):
    """Attention and experts, each added to its input."""

    def __init__(self, config: MoeConfig, rngs: nnx.Rngs):
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

    def __init__(self, config: MoeConfig, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(config.vocabulary, config.width, rngs=rngs)
        self.layers = nnx.List([MoeBlock(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.head = nnx.Linear(config.width, config.vocabulary, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def moe(config: MoeConfig) -> Model:
    """Its training step, on sequences and the tokens that follow each of theirs."""
    graph, init = init_params(lambda rngs: Mixture(config, rngs))

    def loss_of(params, batch):
        return cross_entropy(nnx.merge(graph, params)(batch["tokens"]), batch["next"])

    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence_length), jnp.int32)
    return make_training_step(loss_of, init, {"tokens": tokens, "next": tokens}, config.vocabulary)


@dataclasses.dataclass(frozen=True)
class LlamaConfig(TypedSizes):
    """Sizes of a Llama."""

    num_kv_heads: Count  # of heads that share a key and a value
    grad_accumulation: Count  # microbatches of a step
    scan: bool  # whether layers are one, scanned over stacked parameters
    remat: bool  # whether layers are recomputed in the backward pass

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads) or self.heads % self.num_kv_heads:
            raise ConfigError(
                f"model.heads={self.heads} must divide the width {self.width} into even parts, and "
                f"be a multiple of model.num_kv_heads={self.num_kv_heads}"
            )


class LlamaLayer(nn.Module):
    """Attention and a gated perceptron, each added to its input."""

    config: LlamaConfig

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

    config: LlamaConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        config = self.config
        dtype = jnp.dtype(config.dtype)
        layer = nn.remat(LlamaLayer, prevent_cse=not config.scan) if config.remat else LlamaLayer
        x = nn.Embed(config.vocabulary, config.width, dtype=dtype, name="tokens")(tokens)
        if config.scan:
            x, _ = _scanned(layer, config)(config, name="layers")(x)
        else:
            for i in range(config.layers):
                x, _ = layer(config, name=f"layers_{i}")(x)
        x = nn.RMSNorm(dtype=dtype, name="norm")(x)
        return nn.Dense(config.vocabulary, use_bias=False, dtype=dtype, name="head")(x)


def llama(config: LlamaConfig) -> Model:
    """Its training step, on sequences and the tokens that follow each of theirs."""
    shape = (config.batch, config.sequence_length)
    return language_model(Llama(config), shape, config.vocabulary, config.grad_accumulation)
