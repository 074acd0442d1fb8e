"""Rules that the user declares: which labels are sharded, and values and gradients on devices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import tensorstate as ts
from tensorstate.errors import PlanError
from tests.tensorstate.execution.test_sharded_step import PLANE, devices
from tests.tensorstate.oracle import arguments, assert_alike, check_operator, jitted
from tests.tensorstate.steps import I32, s


def _attention(q, k, v, causal: bool = False):
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal)


ATTENTION = "b q h d, b k h d, b k h d -> b q h d"
Q = s(4, 8, 4, 8)


def shardable(graph: ts.Graph) -> list[set[int]]:
    """For every declared operator the dimensions of its first operand that can be sharded."""
    found = []
    for operator in (o for o in graph.operators if o.primitive == "declared"):
        labels = operator.operands[0].labels
        found.append({d for d, k in enumerate(labels) if k not in operator.need_replication})
    return found


@pytest.mark.parametrize(("causal", "expected"), [(False, {0, 1, 2}), (True, {0, 2})])
def test_labels_that_stay_whole_are_found(causal, expected):
    """Queries of a causal mask are not independent; the width and the keys never are."""
    attention = ts.declare(functools.partial(_attention, causal=causal), ATTENTION)
    assert shardable(ts.trace(attention, (Q, Q, Q))) == [expected]


def test_labels_that_stay_whole_are_given():
    attention = ts.declare(_attention, ATTENTION, whole="q d")
    assert shardable(ts.trace(attention, (Q, Q, Q))) == [{0, 2}]


def step(attention, w, x):
    """One step of gradient descent on projections around an attention."""

    def loss(w):
        q, k, v = (jnp.einsum("bsm,mhd->bshd", x, w[n]) for n in "qkv")
        return jnp.square(attention(q, k, v)).mean()

    value, gradients = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - g, w, gradients), value


@pytest.mark.parametrize("pin", [{"x": ("data", "model")}, {"w/*": (None, "model", None)}, {}])
def test_a_declared_attention_trains_on_devices(pin):
    """Sharded by batch and queries, whose keys have gradients that are summed; or by heads."""
    attention = ts.declare(_attention, ATTENTION)
    shapes = ({n: s(16, 4, 8) for n in "qkv"}, s(4, 8, 16))
    network = ts.AlphaBetaCosts(ts.MeshShape.of(PLANE), (1e-9,) * 2, (1e11,) * 2)

    def training(w, x):
        return step(attention, w, x)

    plan = ts.search(training, shapes, mesh=PLANE, network=network, hardware="CPU", pin=pin)
    assert not plan.graph.replicated
    declared = [o for o in plan.graph.operators if o.primitive == "declared"]
    assert [o.phase for o in declared] == ["forward", "backward"]
    assert all(check_operator(plan.graph, operator) >= 3 for operator in declared)
    args = tuple(arguments(shapes))
    expected = jax.jit(functools.partial(step, _attention))(*args)
    forms = [plan.apply(devices(PLANE), collectives=ts.lax_collectives)]
    forms += [plan.constrain(), plan.explicit()] if "x" in pin else []
    for applied in forms:
        found = jitted(applied)(*jax.device_put(args, applied.in_shardings))
        assert_alike(jax.device_get(found), expected, 1e-4)
    assert plan.check(step=forms[-1]).agrees


def test_a_pallas_kernel_is_sharded():
    """Opaque to tracing, it is replicated; declared, its rows are independent."""

    def kernel(x, scale, out):
        out[...] = x[...] * scale[...] / jnp.abs(x[...]).max(-1, keepdims=True)

    def scaled(x, scale):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x, scale)

    declared = ts.trace(ts.declare(scaled, "r c, c -> r c"), (s(8, 16), s(16)))
    assert shardable(declared) == [{0}]
    assert not declared.replicated


def test_a_declared_function_is_the_function():
    """Called, jitted, differentiated and batched, with integers among its operands."""

    def looked_up(table, index):
        return table[index]

    declared = ts.declare(looked_up, "v d, n -> n d")
    table, index = jnp.arange(12.0).reshape(4, 3), jnp.array([0, 3, 1])
    np.testing.assert_array_equal(jax.jit(declared)(table, index), looked_up(table, index))
    found = jax.grad(lambda t: jnp.square(declared(t, index)).sum())(table)
    np.testing.assert_allclose(found, jax.grad(lambda t: jnp.square(t[index]).sum())(table))
    batched = jax.vmap(declared, (None, 0))(table, index[:, None])
    np.testing.assert_array_equal(batched, table[index][:, None])
    assert shardable(ts.trace(declared, (s(4, 3), s(8, dtype=I32)))) == [{1}]


@pytest.mark.parametrize(
    ("labels", "whole", "message"),
    [
        ("b q, b q", None, "must name every dimension"),
        ("b b -> b", None, "must name every dimension"),
        ("b (q h) -> b", None, "must name every dimension"),
        ("b q -> b c", None, "have 'c', which no operand has"),
        ("b q -> b q", "d", "names 'd', which"),
    ],
)
def test_labels_that_say_nothing_are_refused(labels, whole, message):
    with pytest.raises(PlanError, match=message):
        ts.declare(jnp.sin, labels, whole=whole)


def test_calls_that_do_not_fit_are_refused():
    declared = ts.declare(jnp.add, "a b, a b -> a b")
    with pytest.raises(PlanError, match=r"a b, a b, and is called with \[4\], \[4\]"):
        ts.trace(declared, (s(4), s(4)))
    with pytest.raises(PlanError, match="with a of 4 and of 1"):
        ts.trace(declared, (s(4, 4), s(1, 4)))
    with pytest.raises(PlanError, match=r"has results of a, and returns \[4, 4\]"):
        ts.trace(ts.declare(jnp.sin, "a b -> a"), (s(4, 4),))

    def picky(x):
        if len(x) < 8:
            raise ValueError("too small")
        return x

    with pytest.raises(PlanError, match=r"picky.*name them by whole=.*too small"):
        ts.trace(ts.declare(picky, "a -> a"), (s(8),))
