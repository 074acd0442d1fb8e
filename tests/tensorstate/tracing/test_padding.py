"""Padded programs return what the step returns, and arguments' new values keep zeros."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import tensorstate
from tensorstate.errors import PlanError
from tensorstate.ir.padded import Padding
from tensorstate.tracing.trace_step import graph_of
from tests.tensorstate.one_device import interpret
from tests.tensorstate.oracle import QUICK, arguments, assert_alike, check_operator
from tests.tensorstate.steps import I32, KEY, s

ROWS, COLUMNS, WIDTH = 5, 7, 4  # the first two are padded to 8
PAD_TO = {ROWS: 8, COLUMNS: 8}


def rows_of(x, order):
    """A square of columns by a product, and back."""
    return jnp.tanh(x @ order @ order.T)


# On x[ROWS, COLUMNS], w[COLUMNS, WIDTH], tokens[ROWS] and a key; each returns the shape of x.
PARTS = {
    "elementwise": lambda x, w, tokens, key: jnp.exp(jnp.cos(x)) / (1 + x * x),
    "softmax": lambda x, w, tokens, key: jax.nn.softmax(x, axis=1) + jax.nn.log_softmax(x, axis=0),
    "norm": lambda x, w, tokens, key: x / jnp.sqrt(jnp.mean(x**2) + 1e-3) + jnp.var(x, axis=0),
    "product": lambda x, w, tokens, key: rows_of(x, w),
    "scores": lambda x, w, tokens, key: jax.nn.softmax(x @ x.T, axis=1) @ jnp.cos(x),
    "extrema": lambda x, w, tokens, key: (
        x - x.max(1, keepdims=True) + x.min(0) + x.prod(0) + jnp.argmax(x, 1)[:, None]
    ),
    "booleans": lambda x, w, tokens, key: (
        x + (x > 0).all(1)[:, None] + (x > 9).any(0) + jnp.argmin(x, 0)
    ),
    "cumulative": lambda x, w, tokens, key: (
        jnp.cumsum(jnp.exp(x), 1) + lax.cumsum(jnp.exp(x), 0, reverse=True)
    ),
    "best": lambda x, w, tokens, key: x + lax.top_k(x, 3)[0].sum() + jnp.sort(w, 1).sum(),
    "rows": lambda x, w, tokens, key: x[tokens] + jnp.take(x, tokens + 3, axis=0, mode="clip"),
    "filled": lambda x, w, tokens, key: jnp.take(x, tokens + 3, axis=0, mode="fill", fill_value=2),
    "picked": lambda x, w, tokens, key: x + jnp.take_along_axis(x, tokens[:, None] + 4, axis=1),
    "scattered": lambda x, w, tokens, key: x.at[tokens + 2].add(jnp.exp(x), mode="drop"),
    "wrapped": lambda x, w, tokens, key: x.at[tokens - 5].add(jnp.exp(x)),
    "hot": lambda x, w, tokens, key: x * jax.nn.one_hot(tokens, COLUMNS) + jnp.arange(COLUMNS),
    "dropped": lambda x, w, tokens, key: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0),
    "shifted": lambda x, w, tokens, key: x + (x[:, 1:] - x[:, :-1]).sum(1, keepdims=True),
    "joined": lambda x, w, tokens, key: jnp.cos(x).reshape(-1).reshape(x.shape) + x.ravel().sum(),
    "stacked": lambda x, w, tokens, key: jnp.stack([x, jnp.exp(x)])[::-1].mean(0),
    "counted": lambda x, w, tokens, key: x / jnp.ones_like(x).sum() + jnp.ones(x.shape).sum(0),
    "scanned": lambda x, w, tokens, key: lax.scan(
        lambda c, row: (c + jnp.exp(row).sum(1), c.sum() + row), x[:, 0], jnp.stack([x, x + 1])
    )[1].sum(0),
    "looped": lambda x, w, tokens, key: lax.while_loop(
        lambda c: c.sum() < 1e3, lambda c: jnp.exp(jnp.abs(c)) + c, x
    ),
    "mapped": lambda x, w, tokens, key: jax.vmap(lambda row, t: row[t] + row)(x, tokens),
}  # fmt: skip
SHAPES = (s(ROWS, COLUMNS), s(COLUMNS, WIDTH), s(ROWS, dtype=I32), s(dtype=KEY.dtype))


ADDED = {"mask_padding", "bound_indices", "random_bits"}


def padding_of(graph: tensorstate.Graph) -> Padding:
    assert graph.padding is not None
    return graph.padding


def check(step, shapes, pad_to=PAD_TO, **options):
    """A padded graph, on padded arguments, gives the step's results and zeros in added rows."""
    graph = tensorstate.trace(step, shapes, pad_to=pad_to, **options)
    padding = padding_of(graph)
    args = arguments(shapes)
    leaves, tree = jax.tree.flatten(args)
    for k, array in padding.inputs.items():
        leaves[k] = array.pad(leaves[k], jnp)
    found = jax.jit(interpret(graph), compiler_options=QUICK)(*jax.tree.unflatten(tree, leaves))
    results, tree = jax.tree.flatten(found)
    for k, array in padding.outputs.items():
        if graph.outputs[k].updates is not None:
            np.testing.assert_array_equal(results[k], array.pad(array.unpad(results[k]), jnp))
        results[k] = array.unpad(results[k])
    assert_alike(
        jax.tree.unflatten(tree, results), jax.jit(step, compiler_options=QUICK)(*args), 1e-4
    )
    return graph


def step_of(names, x, w, tokens, key):
    """An update of x by a gradient through some parts."""

    def loss(x, w):
        y = x
        for name in names:
            y = jnp.tanh(PARTS[name](y, w, tokens, key))
        return (y * jnp.cos(x)).sum(), y

    gradients, y = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, w)
    return x - 0.1 * gradients[0] + 1, w - 0.1 * jnp.exp(gradients[1]), y.sum(0)


@pytest.mark.parametrize("name", sorted(set(PARTS) - {"looped"}))
def test_every_part_returns_what_it_returns_unpadded(name):
    check(lambda *args: (PARTS[name](*args), PARTS[name](*args).sum(0)), SHAPES, updates={})


def test_loops_whose_length_depends_on_data_run_as_often():
    check(lambda *args: PARTS["looped"](*args), SHAPES)


@settings(max_examples=2)
@given(st.lists(st.sampled_from(sorted(set(PARTS) - {"looped"})), min_size=2, max_size=3))
def test_random_programs_and_their_gradients_are_the_same_padded(names):
    check(functools.partial(step_of, names), SHAPES)


def test_operators_of_padded_programs_can_be_sharded():
    step = functools.partial(step_of, ["softmax", "picked", "dropped", "scattered"])
    graph = tensorstate.trace(step, SHAPES, pad_to=PAD_TO)
    added = {o.primitive: o for o in graph.operators if o.primitive in ADDED}
    assert added.keys() == ADDED
    for operator in added.values():
        given = [
            x if getattr(x, "dtype", None) != np.int32 else x + 5
            for x in arguments(
                [
                    s(*graph.tensors[u.tensor].sizes, dtype=graph.tensors[u.tensor].dtype)
                    for u in operator.operands
                ]
            )
        ]
        check_operator(graph, operator, operands=given)


def test_an_array_of_infinite_numbers_does_not_reach_sums_through_added_rows():
    """0 * inf is not a number: added rows are masked before a sum, not trusted to be zeros."""

    def step(x, scale):
        return x, (x / scale).sum(), (x.T @ (1 / x)).sum()

    x, scale = jnp.ones(5), jnp.zeros(())
    graph = tensorstate.trace(step, (s(5), s()), pad_to={5: 8})
    padded = padding_of(graph).inputs[0].pad(x, jnp)
    _, total, product = interpret(graph)(padded, scale + 1)
    assert total == 5
    assert product == 5


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda x: jnp.sort(x, axis=0), "sort mixes its rows"),
        (lambda x: x[::-1], "rev mixes its rows"),
        (lambda x: jnp.concatenate([x, x]), "concatenate mixes its rows"),
        (lambda x: jnp.fft.fft(x, axis=0), "fft has no rule"),
        (lambda x: lax.dynamic_slice_in_dim(x, jnp.argmax(x[0]), 2), "dynamic_slice mixes"),
        (lambda x: x + lax.iota(jnp.float32, 15).reshape(5, 3), "iota numbers several factors"),
    ],
)
def test_what_mixes_rows_in_another_way_is_refused_by_its_line(step, reason):
    with pytest.raises(PlanError, match=rf"5 cannot be padded to 8: {reason}.*test_padding"):
        tensorstate.trace(step, (s(5, 3),), pad_to={5: 8})
    graph = graph_of(step, (s(5, 3),), pad_to={5: 8})
    assert graph.padding is None
    assert graph.tensors[0].sizes == (5, 3)


def test_one_refusal_leaves_other_dimensions_padded():
    def step(x, y):
        return jnp.sort(x, axis=0), y.sum(0)

    graph = graph_of(step, (s(5, 3), s(7, 3)), pad_to=PAD_TO)
    assert padding_of(graph).inputs.keys() == {1}
    assert "sort" in padding_of(graph).refused[5]


def test_sizes_that_no_argument_has_are_refused():
    with pytest.raises(PlanError, match="no argument of the step has a dimension of 11"):
        tensorstate.trace(lambda x: x, (s(5),), pad_to={11: 12})


@pytest.mark.parametrize("sizes", [{5: 4}, {5: 11}, {1: 2}, {"5": 8}, [5, 8], {5: 8.0}])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(PlanError):
        tensorstate.trace(lambda x: x, (s(5),), pad_to=sizes)
