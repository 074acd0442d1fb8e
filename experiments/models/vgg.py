"""VGG (Simonyan and Zisserman, 2014; configuration E is VGG-19), in Flax nnx."""

from __future__ import annotations

import dataclasses
import itertools

import jax
from flax import nnx

from experiments.config import at_least
from experiments.errors import ConfigError
from experiments.models.training_step import Model, image_classifier


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a VGG.

    Attributes:
        channels: of every convolution of every stage; a stage ends by halving the image.
        hidden: width of the two layers before the last.
        classes: to tell apart.
        image_size: pixels of the image's side.
        batch: images a step.
    """

    channels: tuple[tuple[int, ...], ...]
    hidden: int
    classes: int
    image_size: int
    batch: int

    def __post_init__(self) -> None:
        for name in ("hidden", "classes", "batch"):
            at_least(f"model.{name}", getattr(self, name), 1)
        halvings = 2 ** len(self.channels)
        if self.image_size < halvings or self.image_size % halvings:
            raise ConfigError(
                f"model.image_size must be a multiple of {halvings}, got {self.image_size}"
            )


class VGG(nnx.Module):
    """Convolutions of 3 x 3 with ReLU, halved images, three linear layers."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
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


def model(config: Config) -> Model:
    """Its training step, on images and their classes."""
    return image_classifier(
        lambda rngs: VGG(config, rngs), config.batch, config.image_size, config.classes
    )
