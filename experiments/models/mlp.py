"""A perceptron that tells classes of vectors apart (Flax nnx)."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.config import at_least
from experiments.models.training_step import Model, cross_entropy, init_params, make_training_step


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a perceptron.

    Attributes:
        widths: features of the input, of every hidden layer, and the classes.
        batch: vectors a step.
        grad_accumulation: microbatches of a step.
    """

    widths: tuple[int, ...]
    batch: int
    grad_accumulation: int

    def __post_init__(self) -> None:
        at_least("model.widths", len(self.widths), 2)
        at_least("model.batch", self.batch, 1)
        at_least("model.grad_accumulation", self.grad_accumulation, 1)


class Perceptron(nnx.Module):
    """Linear layers with GELU between them."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        pairs = itertools.pairwise(config.widths)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.gelu(layer(x))
        return self.layers[-1](x)


def model(config: Config) -> Model:
    """Its training step, on batches of vectors and their classes."""
    graph, init = init_params(lambda rngs: Perceptron(config, rngs))

    def loss_of(params, batch):
        return cross_entropy(nnx.merge(graph, params)(batch["x"]), batch["label"])

    batch = {
        "x": jax.ShapeDtypeStruct((config.batch, config.widths[0]), jnp.float32),
        "label": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    return make_training_step(loss_of, init, batch, config.widths[-1], config.grad_accumulation)
