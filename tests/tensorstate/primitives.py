"""An example of every primitive for which one can be built, with its graph."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.extend import core
from jax.extend.random import threefry2x32_p

from jaxcoll import jax_internals
from tensorstate.ir.graph import Graph
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.steps import F32, I32, KEY, s

C64, U32, BOOL = jnp.complex64, jnp.uint32, jnp.bool_
X, SQUARE, KEYS = s(4, 6), s(2, 4, 4), s(2, 2, dtype=KEY.dtype)


def _symmetric(x):
    return x + jnp.swapaxes(x, -1, -2) + 4 * jnp.eye(x.shape[-1])


def _window(reducer, start):
    return lambda x: lax.reduce_window(x, start, reducer, (1, 2), (1, 2), "VALID")


def _scatter(how: str):
    return lambda x, i, u: getattr(x.at[i], how)(u)


def _solved(x, b):
    def solve(_, b):
        return b / (2 + x)

    return lax.custom_linear_solve(lambda v: (2 + x) * v, b, solve, symmetric=True)


def _linear_called(x, y):
    call = jax.custom_derivatives.linear_call
    return call(lambda r, x: x * r, lambda r, t: t * r, x, y)


def _printed(x):
    jax.debug.print("{}", x)
    return x


@jax.custom_batching.custom_vmap
def _batched_by_hand(x):
    return jnp.sin(x)


@jax.custom_jvp
def _differentiated_by_hand(x):
    return jnp.sin(x)


@jax.custom_vjp
def _transposed_by_hand(x):
    return jnp.sin(x)


_batched_by_hand.def_vmap(lambda size, batched, x: (jnp.sin(x), batched[0]))
_differentiated_by_hand.defjvp(lambda p, t: (jnp.sin(p[0]), jnp.cos(p[0]) * t[0]))
_transposed_by_hand.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.cos(x) * g,))


def _linalg(name: str) -> Callable[..., Any]:
    return getattr(lax.linalg, name)


INDEX, ROWS = s(3, dtype=I32), s(3, 6)
CONVOLUTION = functools.partial(
    lax.conv_general_dilated,
    window_strides=(1, 1),
    padding="SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
)

# Primitives whose parameters or operands only a public function can build.
EXAMPLES: dict[str, tuple[Callable[..., Any], *tuple[Any, ...]]] = {
    "abs": (lax.abs, X),
    "add_any": (lambda x: jax.grad(lambda x: (jnp.sin(x) * jnp.cos(x)).sum())(x), X),
    "approx_top_k": (lambda x: lax.approx_max_k(x, 2), X),
    "argmax": (lambda x: lax.argmax(x, 1, I32), X),
    "argmin": (lambda x: lax.argmin(x, 0, I32), X),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, I32), X),
    "broadcast_in_dim": (lambda x: lax.broadcast(x, (2,)) + 1, X),
    "cholesky": (lambda x: lax.linalg.cholesky(_symmetric(x)), SQUARE),
    "cholesky_update": (lambda x, w: _linalg("cholesky_update")(_symmetric(x), w), s(4, 4), s(4)),
    "clamp": (lambda x: lax.clamp(-0.05, x, 0.05), X),
    "composite": (lax.composite(lambda x: x * 2, "test.twice"), X),
    "concatenate": (lambda x: lax.concatenate([x, x], 1), X),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), X),
    "conv_general_dilated": (CONVOLUTION, s(2, 4, 4, 2), s(3, 3, 2, 4)),
    "convert_element_type": (lambda x: x.astype(jnp.bfloat16), X),
    "copy": (lambda x: jnp.array(x) + 1, X),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), X),
    "cummax": (lambda x: lax.cummax(x, 0), X),
    "cummin": (lambda x: lax.cummin(x, 1), X),
    "cumprod": (lambda x: lax.cumprod(x, 1), X),
    "cumsum": (lambda x: lax.cumsum(x, 0), X),
    "custom_jvp_call": (_differentiated_by_hand, X),
    "custom_linear_solve": (_solved, X, X),
    "custom_vjp_call": (_transposed_by_hand, X),
    "custom_vmap_call": (_batched_by_hand, X),
    "debug_print": (_printed, X),
    "dot_general": (lambda x, y: x @ y, X, s(6, 4)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, 0), X, s(dtype=I32)),
    "dynamic_update_slice": (
        lambda x, i: lax.dynamic_update_slice_in_dim(x, x[:2], i, 0),
        X,
        s(dtype=I32),
    ),
    "eig": (lambda x: lax.linalg.eig(_symmetric(x))[0], SQUARE),
    "eigh": (lambda x: _linalg("eigh")(_symmetric(x), symmetrize_input=False), SQUARE),
    "fft": (lambda x: jnp.fft.fft(x), X),
    "gather": (lambda x, i: x[i], X, INDEX),
    "hessenberg": (lambda x: _linalg("hessenberg")(x), SQUARE),
    "householder_product": (lambda x, t: _linalg("householder_product")(x, t), SQUARE, s(2, 4)),
    "integer_pow": (lambda x: x**3, X),
    "io_callback": (lambda x: io_callback(lambda v: v, x, x), X),
    "iota": (lambda x: x + lax.broadcasted_iota(F32, (4, 6), 0), X),
    "jit": (jax.jit(jnp.sin), X),
    "linear_call": (_linear_called, X, X),
    "lu": (lambda x: _linalg("lu")(_symmetric(x)), SQUARE),
    "lu_pivots_to_permutation": (
        lambda x: _linalg("lu_pivots_to_permutation")(x, 4),
        s(2, 4, dtype=I32),
    ),
    "name": (lambda x: checkpoint_name(x, "x") + 1, X),
    "nextafter": (lax.nextafter, X, X),
    "optimization_barrier": (lambda x: lax.optimization_barrier((x, x[0])), X),
    "pad": (lambda x: lax.pad(x, 0.0, [(1, 1, 0), (0, 0, 0)]), X),
    "platform_index": (lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), X),
    "pure_callback": (lambda x: jax.pure_callback(lambda v: v, x, x), X),
    "qr": (lambda x: _linalg("qr")(x), SQUARE),
    "ragged_dot_general": (lax.ragged_dot, X, s(2, 6, 4), s(2, dtype=I32)),
    "random_bits": (lambda k: jax.random.bits(k, (4, 6)), KEY),
    "random_clone": (jax.random.clone, KEYS),
    "random_fold_in": (lambda k, i: jax.random.fold_in(k, i), KEY, s(dtype=U32)),
    "random_gamma": (lambda k, x: jax.random.gamma(k, 1 + x * x), KEY, X),
    "random_seed": (lambda x: jax.random.key_data(jax.random.key(x)), s(dtype=U32)),
    "random_split": (lambda k: jax.random.split(k, 3), KEY),
    "random_unwrap": (jax.random.key_data, KEYS),
    "random_wrap": (jax.random.wrap_key_data, s(2, 2, dtype=U32)),
    "reduce": (lambda x: lax.reduce(x, 1.0, lambda a, b: a * b + a, (1,)), X),
    "reduce_and": (lambda x: (x > 0).all(0), X),
    "reduce_max": (lambda x: x.max(0), X),
    "reduce_min": (lambda x: x.min(1), X),
    "reduce_or": (lambda x: (x > 0).any(0), X),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 10), X),
    "reduce_prod": (lambda x: x.prod(1), X),
    "reduce_sum": (lambda x: x.sum(0), X),
    "reduce_window": (_window(lambda a, b: a * b + a, 1.0), X),
    "reduce_window_max": (_window(lax.max, -jnp.inf), X),
    "reduce_window_min": (_window(lax.min, jnp.inf), X),
    "reduce_window_sum": (_window(lax.add, 0.0), X),
    "reduce_xor": (lambda x: lax.reduce(x, False, lax.bitwise_xor, (1,)), s(4, 6, dtype=BOOL)),
    "remat2": (jax.checkpoint(jnp.sin), X),
    "reshape": (lambda x: x.reshape(3, 8), X),
    "rev": (lambda x: x[::-1], X),
    "rng_bit_generator": (
        lambda k: lax.rng_bit_generator(k, (4, 6))[1],
        s(4, dtype=U32),
    ),
    "round": (lax.round, X),
    "scan": (lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x), X),
    "scatter": (_scatter("set"), X, INDEX, ROWS),
    "scatter-add": (_scatter("add"), X, INDEX, ROWS),
    "scatter-max": (_scatter("max"), X, INDEX, ROWS),
    "scatter-min": (_scatter("min"), X, INDEX, ROWS),
    "scatter-mul": (_scatter("multiply"), X, INDEX, ROWS),
    "scatter-sub": (_scatter("subtract"), X, INDEX, ROWS),
    "schur": (lambda x: lax.linalg.schur(_symmetric(x)), SQUARE),
    "select_and_gather_add": (
        lambda x, t: jax.jvp(_window(lax.max, -jnp.inf), (x,), (t,))[1],
        X,
        X,
    ),
    "select_and_scatter_add": (jax.grad(lambda x: _window(lax.max, -jnp.inf)(x).sum()), X),
    "select_n": (lambda x: jnp.where(x > 0, x, -1.0), X),
    "slice": (lambda x: x[1:3, ::2], X),
    "sort": (lambda x: lax.sort(x, dimension=1), X),
    "split": (lambda x: jnp.split(x, 2, axis=1), X),
    "squeeze": (lambda x: lax.squeeze(x[:1], (0,)), X),
    "stack": (lambda x, y: jnp.stack([x, y], 1), X, X),
    "stop_gradient": (lambda x: lax.stop_gradient(x) + 1, X),
    "svd": (lambda x: jnp.linalg.svd(x, compute_uv=False), SQUARE),
    "symmetric_product": (
        lambda x, y: lax.linalg.symmetric_product(x, y),
        s(2, 4, 3),
        SQUARE,
    ),
    "threefry2x32": (threefry2x32_p.bind, *(s(4, 6, dtype=U32),) * 4),
    "top_k": (lambda x: lax.top_k(x, 2), X),
    "transpose": (lambda x: x.T @ x, X),
    "triangular_solve": (
        lambda x, y: lax.linalg.triangular_solve(_symmetric(x), y, left_side=True, lower=True),
        SQUARE,
        s(2, 4, 3),
    ),
    "tridiagonal": (lambda x: lax.linalg.tridiagonal(_symmetric(x)), SQUARE),
    "tridiagonal_solve": (
        lambda a, d, b: lax.linalg.tridiagonal_solve(a.at[:, 0].set(0), 4 + d, 0 * d, b),
        s(2, 4),
        s(2, 4),
        s(2, 4, 3),
    ),
    "unstack": (lambda x: jnp.unstack(x, axis=1), X),
    "while": (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x), X),
}


class Example(NamedTuple):
    """A function that uses a primitive, and its arguments."""

    function: Callable[..., Any]
    shapes: tuple[Any, ...]


def example(primitive: core.Primitive) -> Example | None:
    """A function of the primitive: a listed one, or the primitive itself on a few operands.

    So a new elementwise primitive of a new JAX has an example without being listed.
    """
    listed = EXAMPLES.get(primitive.name)
    if listed is not None:
        return Example(listed[0], listed[1:])
    if not jax_internals.broadcasts(primitive):
        return None
    for count, dtype, params in itertools.product(
        (1, 2, 3, 4), (F32, I32, U32, C64, BOOL), ({}, {"accuracy": None}, {"out_dtype": None})
    ):
        shapes = (s(4, 6, dtype=dtype),) * count
        run = functools.partial(primitive.bind, **params)
        try:
            jax.jit(run).lower(*shapes)
        except Exception:  # whatever a primitive says of operands that it does not take
            continue
        return Example(run, shapes)
    return None


@functools.cache
def traced(primitive: core.Primitive) -> tuple[Example, Graph] | None:
    """The primitive's example and its graph."""
    found = example(primitive)
    return found and (found, trace(found.function, found.shapes, updates={}))
