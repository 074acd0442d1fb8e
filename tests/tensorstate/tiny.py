"""Problems small enough to enumerate all decisions, on drawn networks and devices."""

from __future__ import annotations

import functools
import math
import random

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.hardware import Hardware
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MeshShape
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.steps import I32, s


def _sgd(loss):
    def step(w, *batch):
        value, gradient = jax.value_and_grad(loss)(w, *batch)
        return w - 0.1 * gradient, value

    return step


def _norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


def _tied(x, ws):
    for w in ws:
        x = jnp.tanh(x @ w)
    return x.sum()


def gate(saved):
    """Half of tanh, whose backward pass reads ``saved``: its value or its slope.

    JAX keeps the value up to 0.10, and the slope from 0.12 on.
    """

    @jax.custom_vjp
    def half(x):
        return 0.5 * jnp.tanh(x)

    def forward(x):
        value = jnp.tanh(x)
        return 0.5 * value, value if saved == "value" else 1 - value * value

    def backward(residual, gradient):
        slope = 1 - residual * residual if saved == "value" else residual
        return (0.5 * gradient * slope,)

    half.defvjp(forward, backward)
    return half


X, W = s(8, 4), s(4, 4)

TINY = {
    "chain": (lambda x, w, v: jax.nn.relu(x @ w) @ v, X, s(4, 8), s(8, 4)),
    "einsums": (lambda a, b, c: jnp.einsum("ab,bc,cd->ad", a, b, c), W, s(4, 8), s(8, 4)),
    "norm": (_norm, X),
    "greatest": (lambda x, w: (x @ w).max(0), X, s(4, 8)),
    "residual": (lambda x, w: x + jax.nn.relu(x @ w), X, W),
    "embedding": (lambda t, i, w: (t[i] @ w).sum(), s(8, 4), s(4, dtype=I32), W),
    "linear": (_sgd(lambda w, x: jnp.square(x @ w).sum()), W, X),
    "twice": (_sgd(lambda w, x: (jax.nn.relu(x @ w) @ w).sum()), W, X),
    "tanh": (_sgd(lambda w, x: jnp.tanh(jnp.tanh(x @ w)).sum()), W, X),
    "slope": (_sgd(lambda w, x: gate("slope")(x @ w).sum()), W, X),
    "layers": (_sgd(lambda ws, x: _tied(x, ws)), s(2, 4, 4), X),
}
# The functions that can be split into microbatches.
SPLITTABLE = (
    "chain",
    "einsums",
    "greatest",
    "embedding",
    "linear",
    "twice",
    "tanh",
    "slope",
    "layers",
)
LINES = (MeshShape.of({"data": 2}), MeshShape.of({"data": 4}))
MESHES = (*LINES, MeshShape.of({"data": 2, "model": 2}))


@functools.cache
def graph(name: str) -> Graph:
    """The graph of one of these functions."""
    function, *shapes = TINY[name]
    return trace(function, shapes)


@functools.cache
def six_layers() -> Graph:
    """The gradient of a scan over six layers, unrolled: equal operators of layers are a class."""

    def step(ws, x):
        def layer(y, w):
            return jnp.sin(jnp.tanh(y @ w) * 2 + 1) @ w + y, None

        return jax.grad(lambda ws: jnp.square(jax.lax.scan(layer, x, ws)[0]).sum())(ws)

    return trace(step, (s(6, 8, 8), s(8, 8)), loops="unroll")


def rates(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers between powers of ten."""
    return st.floats(low, high).map(lambda exponent: float(f"{10**exponent:.3g}"))


@st.composite
def problems(draw, names=tuple(TINY), meshes=MESHES, microbatches=(1,)) -> Problem:
    """One of these functions on a mesh, with links and devices of any speed."""
    mesh = draw(st.sampled_from(meshes))
    axes = len(mesh.sizes)
    network = AlphaBetaCosts(
        mesh,
        tuple(draw(st.lists(rates(-9, -6), min_size=axes, max_size=axes))),
        tuple(draw(st.lists(rates(7, 10), min_size=axes, max_size=axes))),
    )
    device = Hardware("drawn", {4: draw(rates(8, 10))}, draw(rates(7, 10)), 1e9)
    num_repeats = draw(st.sampled_from(microbatches))
    return Problem(graph(draw(st.sampled_from(names))), network, device, num_repeats)


@st.composite
def some_strategies(draw, problem: Problem, most: int) -> tuple[tuple[Strategy, ...], ...]:
    """Candidate strategies: some of each class, so that their product stays small.

    A class keeps the replicated strategy and, if it can be sharded, a sharded one, so that a
    consistent choice exists.
    """
    saved = [list(strategies.all) for strategies in problem.strategies]
    while math.prod(map(len, saved)) > most:
        largest = max(range(len(saved)), key=lambda class_id: len(saved[class_id]))
        saved[largest].pop(draw(st.integers(1, len(saved[largest]) - 1)))
    return tuple(map(tuple, saved))


def few_strategies(problem: Problem, most: int) -> tuple[tuple[Strategy, ...], ...]:
    """The same, with the strategies to leave out always drawn the same."""
    rng, kept = random.Random(0), [list(strategies.all) for strategies in problem.strategies]
    while math.prod(map(len, kept)) > most:
        largest = max(kept, key=len)
        largest.pop(rng.randrange(1, len(largest)))
    return tuple(map(tuple, kept))
