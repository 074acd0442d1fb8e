"""Data-parallel training steps in the shape that public repositories give them.

Each is a pair of functions of the library of collectives, ``jax.lax`` or ``jaxcoll``, whose names
it uses as its authors would: the step of one rank, and its first arguments. Gradients are averaged
by ``pmean``, or by a transformation of Optax in its place.

- an image classifier: ResNet blocks whose batch statistics are averaged (Flax's imagenet example);
- a decoder: a small GPT with summed metrics (Flax's lm1b example, nanoGPT);
- a variational autoencoder (Flax's vae example);
- a diffusion UNet with averaged weights (denoising-diffusion repositories);
- PPO: advantages normalized over all ranks, several epochs of minibatches (purejaxrl, Brax).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

AXIS = "data"
Tree = Any


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step of one rank."""

    # (state, batch) to (state, metrics); state and metrics are the same on all ranks
    run: Callable[[Tree, Tree], tuple[Tree, Tree]]
    state: Tree  # the first state
    batch: Tree  # arrays whose first dimension is split over the ranks


@dataclasses.dataclass(frozen=True)
class Library:
    """The library of collectives that a step is written with."""

    collectives: ModuleType  # ``jax.lax`` or ``jaxcoll``
    # A transformation that averages gradients, in place of ``pmean``; or None
    reduce: optax.GradientTransformation | None = None

    def averaged(self, gradients: Tree) -> Tree:
        """The gradients averaged over the ranks."""
        if self.reduce is None:
            return self.collectives.pmean(gradients, AXIS)
        return self.reduce.update(gradients, optax.EmptyState())[0]

    def mean(self, tree: Tree) -> Tree:
        """Other values averaged over the ranks."""
        return self.collectives.pmean(tree, AXIS)

    def total(self, tree: Tree) -> Tree:
        """Other values summed over the ranks."""
        return self.collectives.psum(tree, AXIS)


def _own(tree: Tree) -> Tree:
    """Copies that each rank differentiates by itself."""
    return lax.pcast(tree, AXIS, to="varying")


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _variables(model: nn.Module, rng: np.random.Generator, *inputs: np.ndarray) -> Any:
    """Random variables of a model; its own ``init`` would take longer to compile than its step."""

    def one(path, leaf):
        if path[-1].key in ("scale", "var"):
            return np.ones(leaf.shape, leaf.dtype)
        return 0.05 * _normal(rng, *leaf.shape)

    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    return jax.tree_util.tree_map_with_path(one, shapes)


def _update(optimizer, params: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


# ---------------------------------------------------------------------- image classifier


class _ResNet(nn.Module):
    widths: tuple[int, ...] = (8, 16, 32)

    @nn.compact
    def __call__(self, x):
        def norm(x):
            return nn.BatchNorm(use_running_average=False, momentum=0.9)(x)

        x = nn.Conv(self.widths[0], (3, 3))(x)
        for i, width in enumerate(self.widths):
            strides = (1, 1) if i == 0 else (2, 2)
            y = nn.relu(norm(nn.Conv(width, (3, 3), strides, use_bias=False)(x)))
            y = norm(nn.Conv(width, (3, 3), use_bias=False)(y))
            x = nn.relu(y + norm(nn.Conv(width, (1, 1), strides, use_bias=False)(x)))
        return nn.Dense(10)(x.mean(axis=(1, 2)))


def image_classifier(library: Library, rng: np.random.Generator) -> Step:
    """ResNet blocks on 32 x 32 images; batch statistics are averaged with the gradients."""
    model, optimizer = _ResNet(), optax.sgd(0.1, momentum=0.9, nesterov=True)
    batch = {"image": _normal(rng, 32, 32, 32, 3), "label": rng.integers(0, 10, 32)}
    variables = _variables(model, rng, batch["image"][:1])

    def run(state, batch):
        params, statistics, inner = state

        def loss_of(params):
            logits, changed = model.apply(
                {"params": params, "batch_stats": _own(statistics)},
                batch["image"],
                mutable=["batch_stats"],
            )
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
            return loss, (logits, changed["batch_stats"])

        (loss, (logits, seen)), gradients = jax.value_and_grad(loss_of, has_aux=True)(_own(params))
        params, inner = _update(optimizer, params, library.averaged(gradients), inner)
        accuracy = (logits.argmax(-1) == batch["label"]).mean()
        metrics = library.mean({"loss": loss, "accuracy": accuracy})
        return (params, library.mean(seen), inner), metrics

    params = variables["params"]
    return Step(run, (params, variables["batch_stats"], optimizer.init(params)), batch)


# ---------------------------------------------------------------------- decoder


class _Decoder(nn.Module):
    vocabulary: int = 256
    width: int = 96
    depth: int = 3

    @nn.compact
    def __call__(self, tokens):
        place = self.param("place", nn.initializers.normal(), (tokens.shape[1], self.width))
        x = nn.Embed(self.vocabulary, self.width)(tokens) + place
        for _ in range(self.depth):
            y = nn.LayerNorm()(x)
            x += nn.SelfAttention(num_heads=4)(y, mask=nn.make_causal_mask(tokens))
            y = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x += nn.Dense(self.width)(y)
        return nn.Dense(self.vocabulary, use_bias=False)(nn.LayerNorm()(x))


def decoder(library: Library, rng: np.random.Generator) -> Step:
    """A GPT of three layers; metrics are sums of losses and of tokens."""
    model = _Decoder()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, weight_decay=0.1))
    tokens = rng.integers(0, model.vocabulary, (16, 65))
    params = _variables(model, rng, tokens[:1, :-1])["params"]

    def run(state, tokens):
        params, inner = state

        def loss_of(params):
            logits: Any = model.apply({"params": params}, tokens[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return losses.mean(), losses.sum()

        (_, total), gradients = jax.value_and_grad(loss_of, has_aux=True)(_own(params))
        params, inner = _update(optimizer, params, library.averaged(gradients), inner)
        count = jnp.full((), tokens.size) + 0 * total
        return (params, inner), library.total({"loss": total, "tokens": count})

    return Step(run, (params, optimizer.init(params)), tokens)


# ---------------------------------------------------------------------- variational autoencoder


class _Vae(nn.Module):
    hidden: int = 400
    latents: int = 20

    @nn.compact
    def __call__(self, x, noise):
        y = nn.relu(nn.Dense(self.hidden)(x))
        mean, log_variance = nn.Dense(self.latents)(y), nn.Dense(self.latents)(y)
        y = nn.relu(nn.Dense(self.hidden)(mean + noise * jnp.exp(0.5 * log_variance)))
        return nn.Dense(x.shape[-1])(y), mean, log_variance


def autoencoder(library: Library, rng: np.random.Generator) -> Step:
    """A variational autoencoder of 28 x 28 images."""
    model, optimizer = _Vae(), optax.adam(1e-3)
    batch = {
        "image": rng.random((512, 784)).astype(np.float32),
        "noise": _normal(rng, 512, model.latents),
    }
    params = _variables(model, rng, batch["image"][:1], batch["noise"][:1])["params"]

    def run(state, batch):
        params, inner = state

        def loss_of(params):
            outputs: Any = model.apply({"params": params}, batch["image"], batch["noise"])
            logits, mean, log = outputs
            pixels = optax.sigmoid_binary_cross_entropy(logits, batch["image"]).sum(-1).mean()
            divergence = -0.5 * (1 + log - mean**2 - jnp.exp(log)).sum(-1).mean()
            return pixels + divergence, {"pixels": pixels, "divergence": divergence}

        (_, parts), gradients = jax.value_and_grad(loss_of, has_aux=True)(_own(params))
        params, inner = _update(optimizer, params, library.averaged(gradients), inner)
        return (params, inner), library.mean(parts)

    return Step(run, (params, optimizer.init(params)), batch)


# ---------------------------------------------------------------------- diffusion


class _UNet(nn.Module):
    widths: tuple[int, ...] = (8, 16)

    @nn.compact
    def __call__(self, x, time):
        frequencies = jnp.exp(-jnp.arange(16) / 2)
        angles = time[:, None] * frequencies
        time = nn.silu(nn.Dense(64)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)))

        def block(x, width):
            y = nn.Conv(width, (3, 3))(nn.silu(nn.GroupNorm(4)(x)))
            y += nn.Dense(width)(time)[:, None, None]
            return nn.Conv(width, (3, 3))(nn.silu(y)) + nn.Conv(width, (1, 1))(x)

        x, kept = nn.Conv(self.widths[0], (3, 3))(x), []
        for width in self.widths:
            x = block(x, width)
            kept.append(x)
            x = nn.avg_pool(x, (2, 2), (2, 2))
        x = block(x, self.widths[-1])
        for width in reversed(self.widths):
            x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
            x = block(jnp.concatenate([x, kept.pop()], -1), width)
        return nn.Conv(3, (3, 3))(x)


def diffusion(library: Library, rng: np.random.Generator) -> Step:
    """A UNet that predicts noise, with a moving average of its weights."""
    model = _UNet()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-4))
    batch = {
        "image": _normal(rng, 16, 16, 16, 3),
        "noise": _normal(rng, 16, 16, 16, 3),
        "time": rng.random(16).astype(np.float32),
    }
    params = _variables(model, rng, batch["image"][:1], batch["time"][:1])["params"]

    def run(state, batch):
        params, average, inner = state

        def loss_of(params):
            kept = jnp.cos(batch["time"] * jnp.pi / 2)[:, None, None, None]
            noisy = kept * batch["image"] + jnp.sqrt(1 - kept**2) * batch["noise"]
            found = model.apply({"params": params}, noisy, 1000 * batch["time"])
            return ((found - batch["noise"]) ** 2).mean()

        loss, gradients = jax.value_and_grad(loss_of)(_own(params))
        params, inner = _update(optimizer, params, library.averaged(gradients), inner)
        average = optax.incremental_update(params, average, 1e-3)
        return (params, average, inner), library.mean(loss)

    return Step(run, (params, params, optimizer.init(params)), batch)


# ---------------------------------------------------------------------- PPO


class _ActorCritic(nn.Module):
    actions: int = 6
    width: int = 128

    @nn.compact
    def __call__(self, observation):
        def tower(outputs):
            x = nn.tanh(nn.Dense(self.width)(observation))
            return nn.Dense(outputs)(nn.tanh(nn.Dense(self.width)(x)))

        return tower(self.actions), tower(1)[..., 0]


def ppo(library: Library, rng: np.random.Generator) -> Step:
    """Two epochs of four minibatches; each update averages its gradients."""
    model = _ActorCritic()
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-5))
    count = 2048
    batch = {
        "observation": _normal(rng, count, 32),
        "action": rng.integers(0, model.actions, count),
        "log_probability": -np.abs(_normal(rng, count)),
        "advantage": _normal(rng, count),
        "value": _normal(rng, count),
    }
    params = _variables(model, rng, batch["observation"][:1])["params"]

    def loss_of(params, part):
        logits, value = model.apply({"params": params}, part["observation"])
        log = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log, part["action"][:, None], 1)[:, 0]
        ratio = jnp.exp(chosen - part["log_probability"])
        gain = part["advantage"]
        policy = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
        entropy = -(jnp.exp(log) * log).sum(-1).mean()
        return policy + 0.5 * ((value - part["value"]) ** 2).mean() - 0.01 * entropy

    def update(state, part):
        params, inner = state
        loss, gradients = jax.value_and_grad(loss_of)(_own(params), part)
        return _update(optimizer, params, library.averaged(gradients), inner), library.mean(loss)

    def run(state, batch):
        gain = batch["advantage"]
        mean = library.mean(gain.mean())
        deviation = jnp.sqrt(library.mean(((gain - mean) ** 2).mean()))
        batch = batch | {"advantage": (gain - mean) / (deviation + 1e-8)}
        parts = jax.tree.map(lambda x: jnp.tile(x.reshape(4, -1, *x.shape[1:]), _twice(x)), batch)
        return lax.scan(update, state, parts)

    return Step(run, (params, optimizer.init(params)), batch)


def _twice(x: jax.Array) -> tuple[int, ...]:
    return 2, *(1 for _ in x.shape)


STEPS = {
    "image classifier": image_classifier,
    "decoder": decoder,
    "autoencoder": autoencoder,
    "diffusion UNet": diffusion,
    "PPO": ppo,
}
