"""A vision transformer (Dosovitskiy et al., 2020), in Flax nnx."""

from __future__ import annotations

import dataclasses

import jax
from flax import nnx

from experiments.config import at_least
from experiments.errors import ConfigError
from experiments.models.training_step import Model, attention, image_classifier


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a vision transformer.

    Attributes:
        layers, width, heads: of the transformer.
        hidden: width inside its perceptrons.
        classes: to tell apart.
        image_size: pixels of the image's side.
        patch: pixels of a patch's side.
        batch: images a step.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    classes: int
    image_size: int
    patch: int
    batch: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            at_least(f"model.{field.name}", getattr(self, field.name), 1)
        if self.width % self.heads:
            raise ConfigError(f"model.heads must divide the width {self.width}, got {self.heads}")
        if self.image_size % self.patch:
            raise ConfigError(
                f"model.patch must divide the side {self.image_size}, got {self.patch}"
            )


class Block(nnx.Module):
    """Attention and a perceptron, each added to its input."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
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

    def __init__(self, config: Config, rngs: nnx.Rngs):
        side = (config.patch, config.patch)
        self.patches = nnx.Conv(3, config.width, side, side, padding="VALID", rngs=rngs)
        count = (config.image_size // config.patch) ** 2
        self.position_embedding = nnx.Param(
            0.02 * jax.random.normal(rngs.params(), (count, config.width))
        )
        self.layers = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.head = nnx.Linear(config.width, config.classes, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        x = self.patches(image)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.position_embedding[...]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def model(config: Config) -> Model:
    """Its training step, on images and their classes."""
    return image_classifier(
        lambda rngs: VisionTransformer(config, rngs),
        config.batch,
        config.image_size,
        config.classes,
    )
