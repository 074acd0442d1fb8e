"""What all models share: a training step, parameters as plain dictionaries, and attention.

A training step is a loss, its gradients and an optimizer. ``make_training_step`` makes it of a loss
that is a function of parameters and a batch; ``language_model`` and ``image_classifier`` make that
loss of a Flax module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

Tree = Any


@dataclasses.dataclass(frozen=True)
class Model:
    """A model to train.

    Attributes:
        step: (parameters, optimizer state, batch) to (parameters, optimizer state, loss).
        abstract_args: the shapes of the arguments of ``step``, for which nothing is allocated.
        init: parameters, optimizer state and a random batch from a seed; for small models.
        loss_of: the loss of parameters and a batch with any number of samples.
    """

    step: Callable[[Tree, Tree, Tree], tuple[Tree, Tree, jax.Array]]
    abstract_args: tuple[Tree, Tree, Tree]
    init: Callable[[int], tuple[Tree, Tree, Tree]]
    loss_of: Callable[[Tree, Tree], jax.Array]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_args[0]))


def adamw() -> optax.GradientTransformation:
    """The optimizer of all models."""
    # Adam divides a gradient by its own size, so a gradient that is nothing but rounding error
    # would move its parameter by a whole step, in another direction under every sharding. A large
    # eps keeps such steps small, and the losses under two plans comparable.
    return optax.adamw(1e-3, b1=0.9, b2=0.95, eps=1e-5, weight_decay=0.1)


def make_training_step(
    loss_of: Callable[[Tree, Tree], jax.Array],
    init_params: Callable[[jax.Array], Tree],
    batch: Tree,
    integers_below: int,
    grad_accumulation: int = 1,
) -> Model:
    """The training step of a loss.

    Args:
        loss_of: the loss of parameters and a batch.
        init_params: parameters from a random key.
        batch: shapes of a batch.
        integers_below: the bound of the integers of a random batch.
        grad_accumulation: microbatches in a step: its gradients are the mean of theirs, added up in
            a ``lax.scan`` over parts of the batch's first dimension.
    """
    optimizer = adamw()

    def gradients_of(params, batch):
        if grad_accumulation == 1:
            return jax.value_and_grad(loss_of)(params, batch)

        def add(total, part):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_of)(params, part)), None

        parts = jax.tree.map(lambda x: x.reshape(grad_accumulation, -1, *x.shape[1:]), batch)
        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        # Gradients of all microbatches are added up, so one set of them is in memory.
        total, _ = jax.lax.scan(add, zero, parts)
        return jax.tree.map(lambda x: x / grad_accumulation, total)

    def step(params, state, batch):
        loss, gradients = gradients_of(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    def init(seed: int):
        params = jax.jit(init_params)(jax.random.key(seed))
        rng = np.random.default_rng(seed)
        return (
            params,
            optimizer.init(params),
            jax.tree.map(lambda leaf: _random(leaf, rng, integers_below), batch),
        )

    params = jax.eval_shape(init_params, jax.random.key(0))
    args = (params, jax.eval_shape(optimizer.init, params), batch)
    return Model(step, args, init, loss_of)


def data_parallel_step(
    model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, axis: str
) -> Callable[[Tree, Tree, Tree], tuple[Tree, Tree, jax.Array]]:
    """``step`` on the ranks of an axis, each with its part of the batch; to be jitted.

    Args:
        optimizer: takes each rank's own gradients, and sums them over the axis itself.
    """

    def step(params, state, batch):
        # Each rank differentiates its own copy; of replicated parameters JAX would sum the
        # gradients itself, before the optimizer can.
        own = lax.pcast(params, axis, to="varying")
        loss, gradients = jax.value_and_grad(model.loss_of)(own, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, lax.pmean(loss, axis)

    replicated, split = PartitionSpec(), PartitionSpec(axis)
    return jax.shard_map(
        step, mesh=mesh, in_specs=(replicated, replicated, split), out_specs=replicated
    )


def _random(leaf, rng: np.random.Generator, integers_below: int):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(int(rng.integers(2**31)))
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, integers_below, leaf.shape), leaf.dtype)
    return jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy in float32 of integer labels."""
    return optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), labels
    ).mean()


def language_model(
    module: nn.Module, shape: tuple[int, int], vocabulary: int, grad_accumulation: int
) -> Model:
    """The training step of a linen module that gives logits of the tokens that follow.

    Args:
        module: called with tokens of shape (batch, length).
        shape: the shape of a batch.
        vocabulary, grad_accumulation: as for ``make_training_step``.
    """
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)

    def init(key: jax.Array):
        return module.init(key, jnp.zeros((1, shape[1]), jnp.int32))["params"]

    def loss_of(params, batch):
        logits = cast(jax.Array, module.apply({"params": params}, batch["tokens"]))
        return cross_entropy(logits, batch["next"])

    return make_training_step(
        loss_of, init, {"tokens": tokens, "next": tokens}, vocabulary, grad_accumulation
    )


# ---------------------------------------------- models of Flax nnx as functions of their parameters


def init_params(
    make: Callable[[nnx.Rngs], nnx.Module],
) -> tuple[nnx.GraphDef, Callable[[jax.Array], Any]]:
    """The structure of a module, and its parameters from a random key, as plain dictionaries.

    ``nnx.merge(structure, parameters)`` is the module again.
    """

    def init(key: jax.Array):
        params = nnx.state(make(nnx.Rngs(key)), nnx.Param)
        return nnx.to_pure_dict(params)

    graph, _, _ = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param, ...)
    return graph, init


def image_classifier(
    make: Callable[[nnx.Rngs], nnx.Module], batch: int, side: int, classes: int
) -> Model:
    """The training step of a module that gives logits of the classes of square images.

    Args:
        make: the module, called with images of shape (batch, side, side, 3).
        batch, side: images a step, and pixels of a side.
        classes: to tell apart.
    """
    graph, init = init_params(make)

    def loss_of(params, batch):
        module = cast(Callable[[jax.Array], jax.Array], nnx.merge(graph, params))
        return cross_entropy(module(batch["image"]), batch["label"])

    shapes = {
        "image": jax.ShapeDtypeStruct((batch, side, side, 3), jnp.float32),
        "label": jax.ShapeDtypeStruct((batch,), jnp.int32),
    }
    return make_training_step(loss_of, init, shapes, classes)


# ----------------------------------------------- attention and rotary positions of the transformers


def attention(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True) -> jax.Array:
    """Attention of heads, of which several queries may share a key and value.

    Args:
        q: queries of shape (batch, length, groups, queries a group, head).
        k, v: keys and values of shape (batch, length, groups, head).

    Returns:
        An array of the shape of ``q``.
    """
    scores = jnp.einsum("bqghd,bkgd->bghqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if causal:
        positions = jnp.arange(q.shape[1])
        scores = jnp.where(positions[:, None] >= positions[None, :], scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bghqk,bkgd->bqghd", weights, v)


def rotary(x: jax.Array, theta: float = 500_000.0) -> jax.Array:
    """Rotary positions (Su et al., RoFormer): halves of the last dimension, turned.

    Args:
        x: an array of shape (batch, length, ..., head).
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    angles = angles.reshape(1, x.shape[1], *(1 for _ in x.shape[2:-1]), half)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
