"""Training steps beyond the models of experiments, for which no rule was written.

Each is a function ``step(params, state, x, key) -> params, state, loss`` and a function that makes
its arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

BATCH, WIDTH = 8, 8


class Unseen(NamedTuple):
    """A training step, its arguments from a seed, and how exactly plans must repeat it."""

    step: Callable[..., Any]
    init: Callable[[], tuple[Any, ...]]
    rtol: float = 1e-4


def training(
    model: Callable[..., Any],
    optimizer: optax.GradientTransformation | None = None,
    dtype: Any = jnp.float32,
    rtol: float = 1e-4,
    value: bool = False,
) -> Unseen:
    """A step of a model ``model(params, x, key) -> y`` with two matrices as parameters."""
    optimizer = optimizer or optax.sgd(0.1)

    def step(params, state, x, key):
        def loss(params):
            return jnp.square(model(params, x, key).astype(jnp.float32)).mean()

        value_of, gradients = jax.value_and_grad(loss)(params)
        more = {"value": value_of} if value else {}
        updates, state = optimizer.update(gradients, state, params, **more)
        return optax.apply_updates(params, updates), state, value_of

    def init():
        keys = jax.random.split(jax.random.key(0), 4)
        params = {
            "up": 0.3 * jax.random.normal(keys[0], (WIDTH, 2 * WIDTH), dtype),
            "down": 0.3 * jax.random.normal(keys[1], (2 * WIDTH, WIDTH), dtype),
        }
        x = jax.random.normal(keys[2], (BATCH, WIDTH), dtype)
        return params, optimizer.init(params), x, keys[3]

    return Unseen(step, init, rtol)


def through(hidden: Callable[..., Any], **more: Any) -> Unseen:
    """A perceptron with ``hidden`` between its matrices."""
    return training(lambda p, x, key: hidden(x @ p["up"]) @ p["down"], **more)


def keyed(hidden: Callable[..., Any]) -> Unseen:
    """The same, with random numbers."""
    return training(lambda p, x, key: hidden(x @ p["up"], key) @ p["down"])


def optimized(optimizer: optax.GradientTransformation, **more: Any) -> Unseen:
    """A perceptron with another optimizer."""
    return through(jnp.tanh, optimizer=optimizer, **more)


# ---------------------------------------------------------------------- models


def positive(p):
    """A positive definite matrix of the parameters."""
    return p["down"].T @ p["down"] + jnp.eye(WIDTH)


def cholesky(p, x, key):
    return x @ jnp.linalg.cholesky(positive(p))


def solved(p, x, key):
    return jnp.linalg.solve(positive(p), x.T)


def batch_of_solves(p, x, key):
    matrices = positive(p)[None] + jax.vmap(jnp.diag)(jnp.square(x))
    return jnp.linalg.solve(matrices, x[..., None])[..., 0]


def orthogonal(p, x, key):
    return x @ jnp.linalg.qr(p["down"])[0].T


def whitened(p, x, key):
    values, vectors = jnp.linalg.eigh(positive(p))
    return x @ vectors @ jnp.diag(values**-0.5)


def fixed_point(p, x, key):
    """A loop whose length depends on the data, whose result has no gradient."""

    def far(carry):
        y, before, count = carry
        return (jnp.abs(y - before).max() > 1e-3) & (count < 50)

    def recomputed(carry):
        y, _, count = carry
        return 0.5 * jnp.tanh(y) + x, y, count + 1

    y, _, _ = lax.while_loop(far, recomputed, (x, x + 1, 0))
    return (lax.stop_gradient(y) + x) @ p["up"]


def fixed_point_of_each(p, x, key):
    """The same for every example by itself: each ends when its own condition no longer holds."""
    return jax.vmap(lambda row: fixed_point(p, row, key))(x)


def chosen(p, x, key):
    y = x @ p["up"]
    return lax.cond(y.sum() > 0, lambda y: jnp.tanh(y), lambda y: y * 2, y) @ p["down"]


def switched(p, x, key):
    y, which = x @ p["up"], jnp.argmax(x[0]) % 3
    return lax.switch(which, [jnp.sin, jnp.cos, lambda y: y @ p["down"] @ p["up"]], y)


def repeated(p, x, key):
    return lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y @ p["up"] @ p["down"]), x)


def counted(p, x, key):
    """A loop whose length is an argument's."""
    y = lax.fori_loop(0, jnp.int32(x.sum() > 0) + 2, lambda i, y: y * 0.9, lax.stop_gradient(x))
    return y @ p["up"]


def spectrum(p, x, key):
    y = jnp.fft.rfft(x @ p["up"], axis=-1)
    return jnp.fft.irfft(y * jnp.exp(-jnp.arange(y.shape[-1]) / 4), axis=-1)


def spectrum_of_the_batch(p, x, key):
    return jnp.abs(jnp.fft.fft2(x @ p["up"]))


def convolved(p, x, key):
    return jax.vmap(lambda row: jnp.convolve(row, p["down"][:, 0], mode="same"))(x @ p["up"])


def sorted_rows(p, x, key):
    y = x @ p["up"]
    order = jnp.argsort(y, axis=-1)
    return jnp.sort(y, axis=0) + jnp.take_along_axis(y, order, axis=-1)


def top(p, x, key):
    values, places = lax.top_k(jax.nn.softmax(x @ p["up"]), 4)
    return values * places


def prefix(p, x, key):
    """A linear recurrence, in parallel."""
    y = x @ p["up"]

    def after(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    return lax.associative_scan(after, (jax.nn.sigmoid(y), y), axis=1)[1]


def resized(p, x, key):
    return jax.image.resize((x @ p["up"]).reshape(BATCH, 4, 4), (BATCH, 8, 8), "bilinear")


def attention(p, x, key):
    y = (x @ p["up"]).reshape(2, 4, 4, 4)
    return jax.nn.dot_product_attention(y, y, y, is_causal=True)


def interpolated(p, x, key):
    return jnp.interp(x, jnp.linspace(-2, 2, 16), p["down"][:, 0])


def segments(p, x, key):
    return jax.ops.segment_sum(x @ p["up"], jnp.arange(BATCH) % 3, num_segments=3)


def experts_in_groups(p, x, key):
    sizes = jnp.array([3, 5], jnp.int32)
    return lax.ragged_dot(x, jnp.stack([p["up"], 2 * p["up"]]), sizes)


def called_back(p, x, key):
    y = lax.stop_gradient(x)
    return x @ p["up"] + jax.pure_callback(lambda v: 2 * v, y, y).sum()


def checkpointed(p, x, key):
    shard = jax.checkpoint(
        lambda y: jnp.sin(y @ p["up"]) @ p["down"],
        policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    )
    return shard(shard(x))


def by_example(p, x, key):
    """Per-example gradients, clipped, as in differential privacy."""
    gradients = jax.vmap(jax.grad(lambda row: jnp.tanh(row @ p["up"]).sum()))(x)
    norms = jnp.linalg.norm(gradients, axis=-1, keepdims=True)
    return gradients / jnp.maximum(1.0, norms) @ p["up"]


def recurrent(kind: type, carry: Callable[..., Any]) -> Unseen:
    """An ``nnx.RNN`` over a sequence of 4."""
    optimizer = optax.adamw(1e-2)

    # Not where it is listed: every process of tests reads the list, few run it.
    @functools.cache
    def parts():
        with jax.ensure_compile_time_eval():  # ``step`` and ``init`` are traced
            network = nnx.RNN(kind(WIDTH, WIDTH, rngs=nnx.Rngs(0)))
        return nnx.split(network, nnx.Param, ...)

    def step(params, state, x, key):
        graphdef, _, rest = parts()

        def loss(params):
            network = nnx.merge(graphdef, params, rest)
            outputs = network(x, initial_carry=carry(x[:, 0]))
            return jnp.square(jnp.asarray(outputs)).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def init():
        _, weights, _ = parts()
        x = jax.random.normal(jax.random.key(1), (BATCH, 4, WIDTH))
        return weights, optimizer.init(weights), x, jax.random.key(0)

    return Unseen(step, init)


def _dropped(y, key):
    keep = jax.random.bernoulli(key, 0.8, y.shape)
    return jnp.where(keep, y / 0.8, 0)


def _noisy(y, key):
    first, second = jax.random.split(jax.random.fold_in(key, 3))
    return y + jax.random.normal(first, y.shape) * jax.random.uniform(second, y.shape[-1:])


def _shuffled(y, key):
    return jax.random.permutation(key, y, axis=0) + jax.random.categorical(key, y)[:, None]


def _gamma(y, key):
    return y * jax.random.gamma(key, 2.0, y.shape) + jax.random.truncated_normal(key, -1, 1)


def sharpness_aware() -> Unseen:
    """A gradient at the point that another gradient leads to: two forward and backward passes."""
    plain = through(jnp.tanh)

    def step(params, state, x, key):
        def loss(params):
            return jnp.square(jnp.tanh(x @ params["up"]) @ params["down"]).mean()

        first = jax.grad(loss)(params)
        there = jax.tree.map(lambda p, g: p + 0.05 * g / optax.global_norm(first), params, first)
        value, second = jax.value_and_grad(loss)(there)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, second), state, value

    return Unseen(step, plain.init)


def two_steps() -> Unseen:
    """Two updates in one step, and a loss without a gradient at last."""
    plain = optimized(optax.adam(1e-2))

    def step(params, state, x, key):
        params, state, _ = plain.step(params, state, x, key)
        params, state, value = plain.step(params, state, x[::-1], key)
        return params, state, value + jnp.square(x @ params["up"]).mean()

    return Unseen(step, plain.init)


UNSEEN: dict[str, Unseen] = {
    "gelu": through(functools.partial(jax.nn.gelu, approximate=False)),
    "silu": through(jax.nn.silu),
    "softmax": through(jax.nn.softmax),
    "log_softmax": through(lambda y: jax.nn.log_softmax(y, axis=0)),
    "logsumexp": through(lambda y: y - jax.nn.logsumexp(y, axis=-1, keepdims=True)),
    "standardize": through(jax.nn.standardize),
    "glu": training(lambda p, x, key: jax.nn.glu(x @ p["up"])),
    "mish": through(lambda y: jax.nn.mish(y) + jax.nn.celu(y) + jax.nn.hard_tanh(y)),
    "special": through(
        lambda y: jax.scipy.special.gammaln(1 + y * y) + jax.scipy.special.i0e(y) + jnp.sinc(y)
    ),
    "erf": through(lambda y: jax.scipy.special.erf(y) * jax.scipy.special.ndtri(jax.nn.sigmoid(y))),
    "complex": through(lambda y: jnp.abs(y * jnp.exp(1j * y)) + jnp.angle(1 + 1j * y)),
    "median": through(lambda y: y - jnp.median(y, axis=-1, keepdims=True)),
    "cumlogsumexp": through(lambda y: lax.cumlogsumexp(y, axis=1)),
    "cumprod": through(lambda y: jnp.cumprod(1 + 0.1 * y, axis=0) + lax.cummax(y, axis=1)),
    "cholesky": training(cholesky),
    "solve": training(solved),
    "solves": training(batch_of_solves),
    "qr": training(orthogonal),
    "eigh": training(whitened, rtol=1e-3),
    "while": training(fixed_point),
    "while of each example": training(fixed_point_of_each),
    "cond": training(chosen),
    "switch": training(switched),
    "fori_loop": training(repeated),
    "fori_loop of data": training(counted),
    "rfft": training(spectrum),
    "fft2": training(spectrum_of_the_batch),
    "convolve": training(convolved),
    "sort": training(sorted_rows),
    "top_k": training(top),
    "approx_max_k": through(lambda y: y * (y >= lax.approx_max_k(y, 4)[0].min(-1, keepdims=True))),
    "associative_scan": training(prefix),
    "resize": training(resized),
    "dot_product_attention": training(attention),
    "interp": training(interpolated),
    "segment_sum": training(segments),
    "ragged_dot": training(experts_in_groups),
    "pure_callback": training(called_back),
    "checkpoint policy": training(checkpointed),
    "per-example gradients": training(by_example),
    "dropout": keyed(_dropped),
    "noise": keyed(_noisy),
    "permutation": keyed(_shuffled),
    "gamma": keyed(_gamma),
    "bfloat16": through(jax.nn.gelu, dtype=jnp.bfloat16, rtol=5e-2),
    "LSTM": recurrent(nnx.OptimizedLSTMCell, lambda x: (0 * x, 0 * x)),
    "GRU": recurrent(nnx.GRUCell, jnp.zeros_like),
    "sgd with momentum": optimized(optax.sgd(0.1, momentum=0.9, nesterov=True)),
    "adafactor": optimized(optax.adafactor(0.1, min_dim_size_to_factor=4)),
    "lion": optimized(optax.lion(1e-3)),
    "lamb": optimized(optax.lamb(1e-2)),
    "rmsprop": optimized(optax.rmsprop(1e-2, centered=True)),
    "clipped": optimized(optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))),
    "schedule": optimized(optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 20))),
    "multi steps": optimized(
        optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2).gradient_transformation()
    ),
    "finite": optimized(optax.apply_if_finite(optax.adam(1e-2), 3)),
    "lookahead": optimized(optax.contrib.schedule_free_sgd(0.1)),
    "plateau": optimized(
        optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1)), value=True
    ),
    "muon": optimized(optax.contrib.muon(1e-2), rtol=1e-2),
    "novograd": optimized(optax.novograd(1e-2)),
    "sharpness-aware": sharpness_aware(),
    "two steps": two_steps(),
}
