"""Equations that return the elements of an operand have no operator in the graph."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tensorstate import trace
from tests.tensorstate.steps import s


def gradient(function):
    """The transposed function, on a tangent of its result: what JAX derives, and nothing else."""

    def transposed(x, tangent):
        return jax.vjp(function, x)[1](tangent)[0]

    return transposed


def window(sides):
    return lambda x: lax.reduce_window(x, 0.0, lax.add, sides, (1, 1), "SAME")


IDENTITIES = {  # shapes of the operands, and which of them is the result
    "a sum over one": (lambda x: x.sum(0), [(1, 4)], 0),
    "a sum over nothing": (lambda x: lax.reduce(x, 0.0, lax.add, ()), [(2, 4)], 0),
    "a maximum over one": (lambda x: x.max((0, 2)), [(1, 4, 1)], 0),
    "a product over one": (lambda x: x.prod(1), [(4, 1)], 0),
    "a mean over one": (lambda x: x.mean(0), [(1, 4)], 0),
    "a running sum over one": (lambda x: jnp.cumsum(x, 1), [(4, 1)], 0),
    "a sort of one": (lambda x: jnp.sort(x, 1), [(4, 1)], 0),
    "a reversal of one": (lambda x: jnp.flip(x, 0), [(1, 4)], 0),
    "a whole slice": (lambda x: lax.slice(x, (0, 0), (2, 4)), [(2, 4)], 0),
    "no padding": (lambda x: lax.pad(x, 0.0, [(0, 0, 0), (0, 0, 3)]), [(4, 1)], 0),
    "a whole dynamic slice": (lambda x: lax.dynamic_slice(x, (1, 1), (2, 4)), [(2, 4)], 0),
    "a whole update": (lambda x, y: lax.dynamic_update_slice(x, y, (1, 0)), [(2, 4), (2, 4)], 1),
    "one array joined": (lambda x: lax.concatenate_p.bind(x, dimension=0), [(2, 4)], 0),
    "joined with nothing": (lambda x, y: jnp.concatenate([x, y]), [(0, 4), (2, 4)], 1),
    "a window of one": (window((1, 1)), [(2, 4)], 0),
    "times one": (lambda x: 1.0 * x, [(2, 4)], 0),
    "over one": (lambda x: x / 1.0, [(2, 4)], 0),
    "to the first power": (lambda x: x**1, [(2, 4)], 0),
    "a known choice": (lambda x, y: lax.select(jnp.ones((2, 4), bool), y, x), [(2, 4), (2, 4)], 1),
    "the first of one": (lambda x: x[..., 0], [(4, 1)], 0),
    "and its gradient": (gradient(lambda x: x[..., 0]), [(4, 1), (4,)], 1),
    "the gradient of a row of one": (
        gradient(lambda x: lax.dynamic_index_in_dim(x, 0, 0, keepdims=False)), [(1, 6), (6,)], 1
    ),
    "the gradient of a mean": (gradient(lambda x: x[:, None].mean(1)), [(4, 6), (4, 6)], 1),
    "the gradient of a running sum": (gradient(lambda x: jnp.cumsum(x, 1)), [(4, 1), (4, 1)], 1),
    "the gradient of a stack of one": (gradient(lambda x: jnp.stack([x])), [(4, 6), (1, 4, 6)], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", IDENTITIES)
def test_what_changes_nothing_is_no_operator(name):
    function, shapes, number = IDENTITIES[name]
    graph = trace(function, [s(*shape) for shape in shapes], updates={})
    assert [operator.primitive for operator in graph.operators] == []
    assert graph.outputs[0].view.tensor == number
    # JAX itself says that it is one.
    arrays = [np.random.default_rng(0).normal(size=shape) for shape in shapes]
    result = jax.jit(function)(*arrays)
    np.testing.assert_array_equal(np.ravel(result), np.ravel(arrays[number].astype(result.dtype)))


CHANGES = {
    "a sum over two": (lambda x: x.sum(0), [(2, 4)]),
    "a running sum over two": (lambda x: jnp.cumsum(x, 1), [(1, 2)]),
    "a shift": (lambda x: lax.pad(x, 0.0, [(1, -1, 0), (0, 0, 0)]), [(2, 4)]),
    "a part": (lambda x: lax.slice(x, (0, 1), (2, 4)), [(2, 4)]),
    "every second": (lambda x: lax.slice(x, (0, 0), (2, 4), (1, 2)), [(2, 4)]),
    "a dynamic part": (lambda x: lax.dynamic_slice(x, (1, 1), (1, 4)), [(2, 4)]),
    "an update of a part": (lambda x, y: lax.dynamic_update_slice(x, y, (1, 0)), [(2, 4), (1, 4)]),
    "two arrays": (lambda x, y: jnp.concatenate([x, y]), [(2, 4), (2, 4)]),
    "a window of two": (window((1, 2)), [(2, 4)]),
    "minus one times": (lambda x: -1.0 * x, [(2, 4)]),
    "one over": (lambda x: 1.0 / x, [(2, 4)]),
    "plus zero": (lambda x: x + 0.0, [(2, 4)]),  # of -0.0 it makes 0.0
    "a square": (lambda x: x**2, [(2, 4)]),
    "a choice by data": (lambda x, y: jnp.where(x > 0, x, y), [(2, 4), (2, 4)]),
    "the index of one": (lambda x: jnp.argmax(x, 0), [(1, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_something_is_an_operator(name):
    function, shapes = CHANGES[name]
    assert trace(function, [s(*shape) for shape in shapes], updates={}).operators


def test_the_linear_layer_of_the_dissertation_has_its_four_operators():
    """Fig. 5.2b, with the gradients as JAX derives them."""

    def layer(x, w, b, tangent):
        result, transposed = jax.vjp(lambda w, b: jnp.einsum("cda,ab->cdb", x, w) + b, w, b)
        return result, transposed(tangent)

    graph = trace(layer, [s(3, 4, 5), s(5, 6), s(6), s(3, 4, 6)])
    kinds = sorted(operator.kind for operator in graph.operators)
    assert kinds == ["einsum", "einsum", "elementwise", "reduction"]


def test_a_diagonal_is_sharded_though_jax_computes_it_otherwise_inside_kernels():
    """As of the similarities of pairs in a contrastive loss; other choices of platforms stay."""
    graph = trace(lambda x: jnp.diagonal(x) * 2.0, [s(8, 8)])
    assert not graph.replicated
    assert "cond" not in {operator.primitive for operator in graph.operators}
    chosen = trace(lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), [s(8, 8)])
    assert "cond" in {operator.primitive for operator in chosen.operators}
