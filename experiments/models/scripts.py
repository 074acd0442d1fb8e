"""Training steps as people write them, each with what another has not: what plans must carry.

Sizes are tiny, and multiples of eight. The steps are functions of a state, which their results
replace in the order of the arguments, and of a batch; the last result is the loss.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

from experiments.models.training_step import adamw, attention, cross_entropy, rotary

BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 8, 16, 32, 4, 64

Tree = Any


@dataclasses.dataclass(frozen=True)
class Script:
    """A training step with arguments."""

    step: Callable[..., Any]  # ``step(*state, *batch)`` returns a new state and a loss
    init: Callable[[], tuple[Any, ...]]
    state: int = 2  # how many of them its results replace


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    """Normal numbers."""
    return scale * jax.random.normal(jax.random.key(seed), shape)


def matrices(seed: int, **shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    """Normal matrices whose products keep the scale."""
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {
        name: jax.random.normal(key, shape) * shape[-2 if len(shape) > 1 else 0] ** -0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def tokens(seed: int, *shape: int) -> jax.Array:
    """Random tokens."""
    return jax.random.randint(jax.random.key(seed), shape or (BATCH, LENGTH), 0, VOCABULARY)


def functional(
    loss: Callable[..., jax.Array],
    params: Callable[[], Tree],
    batch: Callable[[], tuple[Any, ...]],
    optimizer: optax.GradientTransformation | None = None,
) -> Script:
    """A step of a loss of parameters and a batch."""
    update = optimizer or adamw()

    def step(params, state, *batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        changes, state = update.update(gradients, state, params)
        return optax.apply_updates(params, changes), state, value

    def init():
        made = params()
        return (made, update.init(made), *batch())

    return Script(step, init)


def in_place(
    make: Callable[[], nnx.Module],
    loss: Callable[..., jax.Array],
    batch: Callable[[], tuple[Any, ...]],
) -> Script:
    """A step of ``flax.nnx`` that changes model and optimizer in place."""
    update = adamw()  # a second one would make another tree

    def step(model, optimizer, *batch):
        value, gradients = nnx.value_and_grad(loss)(model, *batch)
        optimizer.update(model, gradients)
        return value

    def init():
        model = make()
        return (model, nnx.Optimizer(model, update, wrt=nnx.Param), *batch())

    return Script(step, init)


def labelled(*shape: int) -> Callable[[], tuple[Any, ...]]:
    """A batch of arrays of normal numbers, and a class for each."""
    return lambda: (normal(9, BATCH, *shape), tokens(8, BATCH) % 8)


def sequences() -> tuple[Any, ...]:
    """A batch of sequences, and of the tokens that follow."""
    return tokens(6), tokens(7)


# ---------------------------------------------------------------------- transformers


def decoder() -> Script:
    """Rotary positions, queries that share keys, and one table for tokens and logits."""
    head, groups = WIDTH // HEADS, HEADS // 2

    def loss(p, given, following):
        x = p["tokens"][given]
        y = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
        q = rotary((y @ p["query"]).reshape(BATCH, LENGTH, groups, 2, head))
        k = rotary((y @ p["key"]).reshape(BATCH, LENGTH, groups, head))
        v = (y @ p["value"]).reshape(BATCH, LENGTH, groups, head)
        x = x + attention(q, k, v).reshape(BATCH, LENGTH, WIDTH) @ p["out"]
        x = x + jax.nn.silu(x @ p["gate"]) * (x @ p["up"]) @ p["down"]
        return cross_entropy(x @ p["tokens"].T, following)

    shapes = {
        "tokens": (VOCABULARY, WIDTH),
        "query": (WIDTH, WIDTH),
        "key": (WIDTH, groups * head),
        "value": (WIDTH, groups * head),
        "out": (WIDTH, WIDTH),
        "gate": (WIDTH, 2 * WIDTH),
        "up": (WIDTH, 2 * WIDTH),
        "down": (2 * WIDTH, WIDTH),
    }
    return functional(loss, lambda: matrices(0, **shapes), sequences)


class EncoderDecoder(nnx.Module):
    """One layer of each, with dropout."""

    def __init__(self, rngs: nnx.Rngs):
        options: dict[str, Any] = {"rngs": rngs, "decode": False}
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.encoder = nnx.MultiHeadAttention(HEADS, WIDTH, **options)
        self.decoder = nnx.MultiHeadAttention(HEADS, WIDTH, **options)
        self.across = nnx.MultiHeadAttention(HEADS, WIDTH, **options)
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(3)])
        self.dropout = nnx.Dropout(0.1)
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, source: jax.Array, target: jax.Array, rngs: nnx.Rngs) -> jax.Array:
        x = self.embed(source)
        x = x + self.dropout(self.encoder(self.norms[0](x)), rngs=rngs)
        y = self.embed(target)
        y = y + self.decoder(self.norms[1](y), mask=nnx.make_causal_mask(target))
        y = y + self.dropout(self.across(self.norms[2](y), x), rngs=rngs)
        return self.head(y)


def encoder_decoder() -> Script:
    """Cross attention and dropout, from a key that is an argument."""

    def loss(model, source, target, following, key):
        return cross_entropy(model(source, target, nnx.Rngs(dropout=key)), following)

    batch = (tokens(5), *sequences(), jax.random.key(1))
    return in_place(lambda: EncoderDecoder(nnx.Rngs(0)), loss, lambda: batch)


def lora() -> Script:
    """A frozen matrix, and a trained product of small rank beside it."""

    def loss(p, frozen, x, labels):
        up = x @ frozen["up"] + x @ p["a"] @ p["b"]
        return cross_entropy(jax.nn.gelu(up) @ frozen["down"], labels)

    def batch():
        frozen = matrices(1, up=(WIDTH, 4 * WIDTH), down=(4 * WIDTH, 8))
        return (frozen, *labelled(WIDTH)())

    def params():
        return {"a": normal(2, WIDTH, 4, scale=0.1), "b": jnp.zeros((4, 4 * WIDTH))}

    return functional(loss, params, batch)


# ---------------------------------------------------------------------- images


class Residual(nnx.Module):
    """Two convolutions with batch norms, added to their input."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.convolutions = nnx.List(
            [nnx.Conv(width, width, (3, 3), use_bias=False, rngs=rngs) for _ in range(2)]
        )
        self.norms = nnx.List([nnx.BatchNorm(width, rngs=rngs) for _ in range(2)])

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norms[0](self.convolutions[0](x)))
        return nnx.relu(x + self.norms[1](self.convolutions[1](y)))


class ResNet(nnx.Module):
    """A stem, a residual block and a head."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.block = Residual(8, rngs)
        self.head = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.block(self.stem(x)).mean((1, 2)))


def resnet() -> Script:
    """Statistics of the batch, kept from step to step."""
    return in_place(
        lambda: ResNet(nnx.Rngs(0)),
        lambda model, image, label: cross_entropy(model(image), label),
        labelled(8, 8, 3),
    )


class UNet(nnx.Module):
    """One level down and up, with group norms and a connection across."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.down = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.up = nnx.ConvTranspose(16, 8, (2, 2), strides=(2, 2), rngs=rngs)
        self.last = nnx.Conv(16, 3, (3, 3), rngs=rngs)
        self.norms = nnx.List([nnx.GroupNorm(n, num_groups=4, rngs=rngs) for n in (8, 16)])
        self.time = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        phases = time[:, None] * jnp.arange(1, 5)
        waves = jnp.concatenate([jnp.sin(phases), jnp.cos(phases)], -1)
        x = nnx.silu(self.norms[0](self.first(x)) + self.time(waves)[:, None, None])
        y = self.up(nnx.silu(self.norms[1](self.down(x))))
        return self.last(jnp.concatenate([x, y], -1))


def unet(noised: bool = False) -> Script:
    """Group norms, and an exponential moving average of the parameters; or noised, as in DDPM."""
    graph, weights, rest = nnx.split(UNet(nnx.Rngs(0)), nnx.Param, ...)
    optimizer = adamw()

    def loss(params, image, key):
        model = nnx.merge(graph, params, rest)
        one, two = jax.random.split(key)
        time = jax.random.uniform(one, image.shape[:1])
        noise = jax.random.normal(two, image.shape) if noised else image
        kept = jnp.cos(time * jnp.pi / 2)[:, None, None, None]
        given = kept * image + jnp.sqrt(1 - kept**2) * noise
        return jnp.square(model(given, time) - noise).mean()

    def step(params, average, state, image, key):
        value, gradients = jax.value_and_grad(loss)(params, image, key)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 0.01)
        return params, average, state, value

    def init():
        copied = jax.tree.map(jnp.copy, weights)
        return (
            weights,
            copied,
            optimizer.init(weights),
            normal(4, BATCH, 8, 8, 3),
            jax.random.key(2),
        )

    return Script(step, init, state=3)


# ---------------------------------------------------------------------- recurrent networks


def recurrent(kind: type, carry: Callable[[jax.Array], Any]) -> Script:
    """An ``nnx.RNN`` over sequences."""

    def loss(network, x):
        return jnp.square(jnp.asarray(network(x, initial_carry=carry(x[:, 0])))).mean()

    def make():
        return nnx.RNN(kind(WIDTH, WIDTH, rngs=nnx.Rngs(0)))

    return in_place(make, loss, lambda: (normal(3, BATCH, LENGTH, WIDTH),))


def scanned_lstm() -> Script:
    """The same written as a scan, whose weights every iteration reads."""

    def loss(p, xs):
        def cell(carry, x):
            h, c = carry
            i, f, g, o = jnp.split(x @ p["x"] + h @ p["h"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((BATCH, WIDTH))
        return jnp.square(lax.scan(cell, (zero, zero), xs.swapaxes(0, 1))[1] - 0.5).mean()

    shapes = {"x": (WIDTH, 4 * WIDTH), "h": (WIDTH, 4 * WIDTH)}
    return functional(
        loss, lambda: matrices(0, **shapes), lambda: (normal(3, BATCH, LENGTH, WIDTH),)
    )


# ---------------------------------------------------------------------- mixtures of experts

EXPERTS = 8


def mixture(route: Callable[..., jax.Array]) -> Script:
    """Experts of which every token visits one."""

    def loss(p, x, target):
        rows = x.reshape(-1, WIDTH)
        gates = jax.nn.softmax(rows @ p["router"])
        chosen = jnp.argmax(gates, -1)
        out = route(p, rows, chosen) * jnp.take_along_axis(gates, chosen[:, None], -1)
        return jnp.square(out.reshape(x.shape) - target).mean()

    shapes = {
        "router": (WIDTH, EXPERTS),
        "up": (EXPERTS, WIDTH, 2 * WIDTH),
        "down": (EXPERTS, 2 * WIDTH, WIDTH),
    }

    def batch():
        return normal(3, BATCH, LENGTH, WIDTH), normal(4, BATCH, LENGTH, WIDTH)

    return functional(loss, lambda: matrices(0, **shapes), batch)


def by_einsum(p: Tree, rows: jax.Array, chosen: jax.Array) -> jax.Array:
    """Tokens sent to places of experts by one-hot products."""
    hot = jax.nn.one_hot(chosen, EXPERTS)
    place = (jnp.cumsum(hot, 0) - hot) * hot
    places = jax.nn.one_hot(place.astype(jnp.int32), 32) * hot[..., None]
    inside = jnp.einsum("tec,td->ecd", places, rows)
    hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", inside, p["up"]))
    return jnp.einsum("tec,ecf,efd->td", places, hidden, p["down"])


def by_sort(p: Tree, rows: jax.Array, chosen: jax.Array) -> jax.Array:
    """Tokens sorted by their expert, in groups of one size."""
    order = jnp.argsort(chosen)
    groups = rows[order].reshape(EXPERTS, -1, WIDTH)
    hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", groups, p["up"]))
    out = jnp.einsum("ecf,efd->ecd", hidden, p["down"]).reshape(rows.shape)
    return out[jnp.argsort(order)]


def by_ragged_dot(p: Tree, rows: jax.Array, chosen: jax.Array) -> jax.Array:
    """Tokens sorted by their expert, in groups of any size."""
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=EXPERTS).astype(jnp.int32)
    hidden = jax.nn.gelu(lax.ragged_dot(rows[order], p["up"], sizes))
    return lax.ragged_dot(hidden, p["down"], sizes)[jnp.argsort(order)]


# ---------------------------------------------------------------------- ways to differentiate


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    """The identity, whose gradient is clipped."""
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e-3, 1e-3),))


def perceptron(wrap: Callable[..., Any], cast: Any = jnp.float32, optimizer: Any = None) -> Script:
    """Two residual layers, each wrapped; computed in a dtype, with parameters in float32."""

    def layer(x, up, down):
        return x + jax.nn.gelu(x @ up) @ down

    def loss(p, x, labels):
        p, x = jax.tree.map(lambda a: a.astype(cast), (p, x))
        for up, down in (("up", "down"), ("up2", "down2")):
            x = wrap(layer)(x, p[up], p[down])
        return cross_entropy(x @ p["head"], labels)

    wide, narrow = (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
    shapes = {"up": wide, "down": narrow, "up2": wide, "down2": narrow, "head": (WIDTH, 8)}
    return functional(loss, lambda: matrices(0, **shapes), labelled(WIDTH), optimizer)


def remat() -> Script:
    """Layers that are recomputed, but for products without batch dimensions."""
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return perceptron(functools.partial(jax.checkpoint, policy=policy))


# ---------------------------------------------------------------------- several losses


def gan() -> Script:
    """A generator and a discriminator, each with its loss and its optimizer."""
    optimizer = adamw()

    def generated(g, noise):
        return jnp.tanh(jax.nn.relu(noise @ g["up"]) @ g["down"])

    def judged(d, x):
        return (jax.nn.leaky_relu(x @ d["up"]) @ d["down"])[:, 0]

    def discriminator_loss(d, g, real, noise):
        fake = lax.stop_gradient(generated(g, noise))
        return jax.nn.softplus(-judged(d, real)).mean() + jax.nn.softplus(judged(d, fake)).mean()

    def generator_loss(g, d, noise):
        return jax.nn.softplus(-judged(d, generated(g, noise))).mean()

    def step(g, d, states, real, noise):
        loss, gradients = jax.value_and_grad(discriminator_loss)(d, g, real, noise)
        updates, of_d = optimizer.update(gradients, states[1], d)
        d = optax.apply_updates(d, updates)
        other, gradients = jax.value_and_grad(generator_loss)(g, d, noise)
        updates, of_g = optimizer.update(gradients, states[0], g)
        return optax.apply_updates(g, updates), d, (of_g, of_d), loss + other

    def init():
        wide = 2 * WIDTH
        g = matrices(0, up=(WIDTH, wide), down=(wide, WIDTH))
        d = matrices(1, up=(WIDTH, wide), down=(wide, 8))
        states = optimizer.init(g), optimizer.init(d)
        return g, d, states, normal(2, BATCH, WIDTH), normal(3, BATCH, WIDTH)

    return Script(step, init, state=3)


def ppo() -> Script:
    """A clipped policy loss with advantages that are discounted backwards in time."""

    def loss(p, seen, actions, rewards, before):
        hidden = jnp.tanh(seen @ p["up"])
        logits, values = hidden @ p["policy"], (hidden @ p["value"])[..., 0]
        following = jnp.concatenate([values[:, 1:], values[:, -1:]], 1)
        errors = lax.stop_gradient(rewards + 0.99 * following - values)

        def discounted(total, error):
            total = error + 0.95 * total
            return total, total

        zero = jnp.zeros(errors.shape[:1])
        _, ahead = lax.scan(discounted, zero, errors.T, reverse=True)
        advantages = (ahead.T - ahead.mean()) / (ahead.std() + 1e-6)
        logs = jax.nn.log_softmax(logits)
        mine = jnp.take_along_axis(logs, actions[..., None], -1)[..., 0]
        ratio = jnp.exp(mine - before)
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
        entropy = -(jnp.exp(logs) * logs).sum(-1)
        error = jnp.square(values - lax.stop_gradient(values) - errors)
        return (0.5 * error - gain - 0.01 * entropy).mean()

    def batch():
        shape = (BATCH, LENGTH)
        actions = tokens(1, *shape) % 8
        return normal(2, *shape, WIDTH), actions, normal(3, *shape), jnp.full(shape, -2.0)

    shapes = {"up": (WIDTH, 2 * WIDTH), "policy": (2 * WIDTH, 8), "value": (2 * WIDTH, 8)}
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), adamw())
    return functional(loss, lambda: matrices(0, **shapes), batch, optimizer)


SCRIPTS: dict[str, Callable[[], Script]] = {
    "decoder, rotary, shared keys, tied": decoder,
    "ResNet, batch norm": resnet,
    "encoder-decoder, dropout": encoder_decoder,
    "UNet, group norm, average": unet,
    "LSTM, nnx.RNN": lambda: recurrent(nnx.OptimizedLSTMCell, lambda x: (0 * x, 0 * x)),
    "LSTM, scan": scanned_lstm,
    "GRU, nnx.RNN": lambda: recurrent(nnx.GRUCell, jnp.zeros_like),
    "experts, einsum": lambda: mixture(by_einsum),
    "experts, sort": lambda: mixture(by_sort),
    "experts, ragged_dot": lambda: mixture(by_ragged_dot),
    "remat, policy": remat,
    "custom_vjp": lambda: perceptron(lambda layer: lambda *args: clipped(layer(*args))),
    "bfloat16, float32 parameters": lambda: perceptron(lambda layer: layer, jnp.bfloat16),
    "LoRA": lora,
    "DDPM": lambda: unet(noised=True),
    "GAN": gan,
    "PPO": ppo,
    "MultiSteps": lambda: perceptron(
        lambda layer: layer,
        optimizer=optax.MultiSteps(adamw(), every_k_schedule=2).gradient_transformation(),
    ),
}
