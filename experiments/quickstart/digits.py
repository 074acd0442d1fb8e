"""Data-parallel training on real handwritten digits, with the all-reduce of your choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from sklearn.datasets import load_digits

from experiments.config import TrainConfig
from experiments.quickstart.candidates import AXIS
from jaxcoll.execute.buckets import plan_buckets

HELD_OUT = 360  # of the 1797 digits


class Classifier(nn.Module):
    """A perceptron on 8 x 8 pixels.

    Attributes:
        hidden: width of each hidden layer.
    """

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Logits of the ten digits, of shape (batch, 10), from pixels of shape (batch, 64)."""
        x = pixels
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


@dataclasses.dataclass(frozen=True)
class Digits:
    """The digits of scikit-learn, 8 x 8 pixels from 0 to 1, split by a fixed permutation."""

    train_pixels: np.ndarray
    train_labels: np.ndarray
    held_out_pixels: np.ndarray
    held_out_labels: np.ndarray

    @classmethod
    def load(cls, seed: int) -> Digits:
        """1437 digits to train on and 360 held out; the same ones for the same seed."""
        pixels, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(labels))
        pixels = (pixels[order] / 16.0).astype(np.float32)
        labels = labels[order].astype(np.int32)
        return cls(pixels[HELD_OUT:], labels[HELD_OUT:], pixels[:HELD_OUT], labels[:HELD_OUT])

    def batches(self, size: int, steps: int, seed: int) -> np.ndarray:
        """Indices of every step's digits, of shape (steps, size); each epoch in a new order."""
        rng = np.random.default_rng(seed)
        count = len(self.train_labels)
        epochs = -(-steps * size // count)
        order = np.concatenate([rng.permutation(count) for _ in range(epochs)])
        return order[: steps * size].reshape(steps, size)


@dataclasses.dataclass(frozen=True)
class Curves:
    """How a run went, one value per step, float64 of shape (steps,).

    Attributes:
        loss: mean cross entropy of the step's batch, before the update.
        accuracy: of the held-out digits, after the update.
    """

    loss: np.ndarray
    accuracy: np.ndarray


def gradient_buckets(config: TrainConfig) -> tuple[int, int]:
    """Number of buckets that the gradients of the classifier fill, and bytes of the largest."""
    leaves = jax.tree.leaves_with_path(jax.eval_shape(lambda: _init(config, seed=0)))
    buckets = plan_buckets(leaves, config.bucket_bytes)
    largest = max(sum(leaves[i][1].size for i in members) for members in buckets)
    return len(buckets), 4 * largest


def train(
    config: TrainConfig,
    digits: Digits,
    mesh: Mesh,
    reduce: optax.GradientTransformation,
    seed: int,
    after_step: Callable[[], None] = lambda: None,
) -> Curves:
    """Train on all ranks of the mesh, each on its share of every batch.

    Two runs that differ in ``reduce`` alone see the same parameters, digits and order.

    Args:
        reduce: takes the mean of gradients over the mesh's axis; called inside ``jax.shard_map``.
        after_step: called after every step, for progress.
    """
    # Adam divides a gradient by its own size. With its usual eps of 1e-8 it would make whole steps
    # of what rounding leaves where a gradient cancels, and runs would part for no reason of theirs.
    optimizer = optax.chain(reduce, optax.adam(config.learning_rate, eps=1e-5))
    params = jax.jit(lambda: _init(config, seed))()
    state = optimizer.init(params)
    run = _training_step(config, mesh, optimizer)
    # No digit is labelled -1: the padding of the last rank's share is never counted as correct.
    fill = -len(digits.held_out_labels) % mesh.size
    held_out_pixels = jnp.asarray(np.pad(digits.held_out_pixels, ((0, fill), (0, 0))))
    held_out_labels = jnp.asarray(np.pad(digits.held_out_labels, (0, fill), constant_values=-1))

    losses, correct = [], []
    for batch in digits.batches(config.batch, config.steps, seed):
        params, state, loss, num_correct = run(
            params,
            state,
            digits.train_pixels[batch],
            digits.train_labels[batch],
            held_out_pixels,
            held_out_labels,
        )
        losses.append(float(loss))
        correct.append(int(num_correct))
        after_step()
    accuracy = np.asarray(correct, float) / len(digits.held_out_labels)
    return Curves(np.asarray(losses), accuracy)


def _training_step(
    config: TrainConfig, mesh: Mesh, optimizer: optax.GradientTransformation
) -> Callable[..., Any]:
    """A jitted step: new parameters and state, the mean loss, and how many guesses are correct."""
    model = Classifier(config.hidden)
    predict = cast(Callable[[Any, Any], jax.Array], model.apply)

    def loss_of(params, pixels, labels):
        logits = predict(params, pixels)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(params, state, pixels, labels, held_out_pixels, held_out_labels):
        # Every rank differentiates its own copy; otherwise jax.grad would sum the gradients itself.
        local = jax.lax.pcast(params, AXIS, to="varying")
        loss, gradients = jax.value_and_grad(loss_of)(local, pixels, labels)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        guess = predict(params, held_out_pixels).argmax(axis=-1)
        correct = jax.lax.psum((guess == held_out_labels).sum(), AXIS)
        return params, state, jax.lax.pmean(loss, AXIS), correct

    replicated, sharded = PartitionSpec(), PartitionSpec(AXIS)
    in_specs = (replicated, replicated, sharded, sharded, sharded, sharded)
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=replicated))


def _init(config: TrainConfig, seed: int):
    return Classifier(config.hidden).init(jax.random.key(seed), jnp.zeros((1, 64)))
