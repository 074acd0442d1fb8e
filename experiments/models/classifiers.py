"""The plainest models, which tell classes apart: a perceptron, VGG and a vision transformer.

All are written in Flax nnx. VGG is that of Simonyan and Zisserman (2014), whose configuration E is
VGG-19; the vision transformer is that of Dosovitskiy et al. (2020).
"""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.limits import Count, at_least
from experiments.models.training_step import (
    Model,
    attention,
    cross_entropy,
    image_classifier,
    init_params,
    make_training_step,
)
from experiments.study import ConfigError


@dataclasses.dataclass(frozen=True)
class MlpConfig:
    """Sizes of a perceptron."""

    widths: tuple[int, ...]  # features of the input, of every hidden layer, and the classes
    batch: Count  # vectors a step
    grad_accumulation: Count  # microbatches of a step

    def __post_init__(self) -> None:
        at_least("model.widths", len(self.widths), 2)


class Perceptron(nnx.Module):
    """Linear layers with GELU between them."""

    def __init__(self, config: MlpConfig, rngs: nnx.Rngs):
        pairs = itertools.pairwise(config.widths)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.gelu(layer(x))
        return self.layers[-1](x)


def mlp(config: MlpConfig) -> Model:
    """The training step of a perceptron, on batches of vectors and their classes."""
    graph, init = init_params(lambda rngs: Perceptron(config, rngs))

    def loss_of(params, batch):
        return cross_entropy(nnx.merge(graph, params)(batch["x"]), batch["label"])

    batch = {
        "x": jax.ShapeDtypeStruct((config.batch, config.widths[0]), jnp.float32),
        "label": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    return make_training_step(loss_of, init, batch, config.widths[-1], config.grad_accumulation)


@dataclasses.dataclass(frozen=True)
class VggConfig:
    """Sizes of a VGG."""

    # Channels of every convolution of every stage; a stage ends by halving the image.
    channels: tuple[tuple[int, ...], ...]
    hidden: Count  # width of the two layers before the last
    classes: Count  # to tell apart
    image_size: int  # pixels of the image's side
    batch: Count  # images a step

    def __post_init__(self) -> None:
        halvings = 2 ** len(self.channels)
        if self.image_size < halvings or self.image_size % halvings:
            raise ConfigError(
                f"model.image_size must be a multiple of {halvings}, got {self.image_size}"
            )


class VGG(nnx.Module):
    """Convolutions of 3 x 3 with ReLU, halved images, three linear layers."""

    def __init__(self, config: VggConfig, rngs: nnx.Rngs):
        stages, before = [], 3
        for channels in config.channels:
            stage = []
            for count in channels:
                stage.append(nnx.Conv(before, count, (3, 3), rngs=rngs))
                before = count
            stages.append(nnx.List(stage))
        self.stages = nnx.List(stages)
        side = config.image_size // 2 ** len(config.channels)
        widths = (side * side * before, config.hidden, config.hidden, config.classes)
        pairs = itertools.pairwise(widths)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        for stage in self.stages:
            for convolution in stage:
                x = nnx.relu(convolution(x))
            x = nnx.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def vgg(config: VggConfig) -> Model:
    """The training step of a VGG, on images and their classes."""
    return image_classifier(
        lambda rngs: VGG(config, rngs), config.batch, config.image_size, config.classes
    )


@dataclasses.dataclass(frozen=True)
class VitConfig:
    """Sizes of a vision transformer."""

    layers: Count
    width: Count
    heads: Count
    hidden: Count  # width inside its perceptrons
    classes: Count  # to tell apart
    image_size: Count  # pixels of the image's side
    patch: Count  # pixels of a patch's side
    batch: Count  # images a step

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"model.heads must divide the width {self.width}, got {self.heads}")
        if self.image_size % self.patch:
            raise ConfigError(
                f"model.patch must divide the side {self.image_size}, got {self.patch}"
            )


class VitBlock(nnx.Module):
    """Attention and a perceptron, each added to its input."""

    def __init__(self, config: VitConfig, rngs: nnx.Rngs):
        self.before_attention = nnx.LayerNorm(config.width, rngs=rngs)
        shape = (config.heads, config.width // config.heads)
        self.qkv = nnx.List([nnx.LinearGeneral(config.width, shape, rngs=rngs) for _ in range(3)])
        self.out = nnx.LinearGeneral(shape, config.width, axis=(-2, -1), rngs=rngs)
        self.before_mlp = nnx.LayerNorm(config.width, rngs=rngs)
        self.up = nnx.Linear(config.width, config.hidden, rngs=rngs)
        self.down = nnx.Linear(config.hidden, config.width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.before_attention(x)
        q, k, v = (linear(y) for linear in self.qkv)
        y = attention(q[..., None, :], k, v, causal=False)[..., 0, :]
        x = x + self.out(y)
        return x + self.down(nnx.gelu(self.up(self.before_mlp(x))))


class VisionTransformer(nnx.Module):
    """From images to logits of their classes, by the mean of all patches."""

    def __init__(self, config: VitConfig, rngs: nnx.Rngs):
        side = (config.patch, config.patch)
        self.patches = nnx.Conv(3, config.width, side, side, padding="VALID", rngs=rngs)
        count = (config.image_size // config.patch) ** 2
        self.position_embedding = nnx.Param(
            0.02 * jax.random.normal(rngs.params(), (count, config.width))
        )
        self.layers = nnx.List([VitBlock(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.head = nnx.Linear(config.width, config.classes, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        x = self.patches(image)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.position_embedding[...]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def vit(config: VitConfig) -> Model:
    """The training step of a vision transformer, on images and their classes."""
    return image_classifier(
        lambda rngs: VisionTransformer(config, rngs),
        config.batch,
        config.image_size,
        config.classes,
    )
