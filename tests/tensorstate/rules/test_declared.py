"""Rules that the user declares: which labels are sharded, and values and gradients on devices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash_kernel,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

import tensorstate as ts
from tensorstate.errors import PlanError
from tensorstate.report.hlo_check import compare_with_hlo
from tests.tensorstate.execution.test_sharded_step import PLANE, devices
from tests.tensorstate.oracle import arguments, assert_alike, check_operator, jitted, on_devices
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


@pytest.mark.parametrize(
    "pin",
    [
        {"x": ("data", "model")},
        {"w/*": (None, "model", None)},
        pytest.param({}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
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
        placed = on_devices(args, applied)
        compiled = jitted(applied).lower(*placed).compile()
        assert_alike(jax.device_get(compiled(*placed)), expected, 1e-4)
        assert compare_with_hlo(compiled, plan.problem.mesh, plan.cost).agrees


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


def grouped(lhs, rhs, sizes):
    return gmm(
        lhs,
        rhs,
        sizes,
        preferred_element_type=jnp.float32,
        tiling=(32, 32, 32),
        interpret=True,
    )


@pytest.mark.slow
def test_megablox_is_sharded_by_columns_and_by_terms():
    """Two grouped products as Megatron shards them: the second sums over what the first split."""

    def experts(product, p, x, sizes):
        def loss(p):
            return jnp.square(product(jax.nn.relu(product(x, p["up"], sizes)), p["down"], sizes))

        value, gradients = jax.value_and_grad(lambda p: loss(p).mean())(p)
        return jax.tree.map(lambda w, g: w - g, p, gradients), value

    product = ts.declare(grouped, "m k, g k n, g -> m n", whole="m g", summed="k")
    args = tuple(arguments(({"up": s(2, 32, 64), "down": s(2, 64, 32)}, s(64, 32))))
    args = (*args, jnp.array([24, 40], jnp.int32))
    plan = ts.search(
        functools.partial(experts, product),
        jax.eval_shape(lambda: args),
        mesh={"model": 4},
        network=ts.AlphaBetaCosts(ts.MeshShape.of({"model": 4}), (1e-9,), (1e11,)),
        hardware="CPU",
        pin={"p/up": (None, None, "model")},
    )
    assert plan.specs.arguments[0]["down"] == jax.P(None, "model", None)
    applied = plan.constrain()
    assert plan.check(step=applied).agrees
    found = jitted(applied)(*on_devices(args, applied))
    assert_alike(
        jax.device_get(found), experts(jax.lax.ragged_dot, args[0], args[1], args[2]), 1e-4
    )


def splash(q, k, v):
    heads, length = q.shape[1:3]
    mask = splash_mask.MultiHeadMask([splash_mask.CausalMask((length, length))] * heads)
    return jax.vmap(splash_kernel.make_splash_mha_single_device(mask, interpret=True))(q, k, v)


@pytest.mark.slow
def test_splash_attention_is_sharded_by_batch_and_heads():
    declared = ts.declare(splash, "b h q d, b h k d, b h k d -> b h q d", whole="q k d")
    shape = s(2, 4, 128, 128)
    plan = ts.search(
        lambda x: jax.grad(lambda x: jnp.square(declared(x, x, x)).sum())(x),
        (shape,),
        mesh={"data": 2, "model": 2},
        network=ts.AlphaBetaCosts(ts.MeshShape.of({"data": 2, "model": 2}), (1.0,) * 2, (1e9,) * 2),
        hardware="CPU",
        pin={"x": ("data", "model")},
    )
    assert plan.cost.communication == 0
    (x,) = arguments((shape,))
    applied = plan.constrain()
    found = jitted(applied)(jax.device_put(x, *applied.in_shardings))

    def plain(x):
        return jax.nn.dot_product_attention(*[x.swapaxes(1, 2)] * 3, scale=1.0, is_causal=True)

    expected = jax.grad(lambda x: jnp.square(plain(x)).sum())(x)
    assert_alike(jax.device_get(found), expected, 1e-4)


def test_cudnn_attention_is_lowered_for_its_shards(monkeypatch):
    """For GPUs that are not here: the call of cuDNN has the heads of a device."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda *_: True)
    kernel = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
    attention = ts.declare(kernel, ATTENTION, whole="q k d")
    shape = s(4, 64, 8, 64, dtype=jnp.bfloat16)
    network = ts.AlphaBetaCosts(ts.MeshShape.of(PLANE), (1.0,) * 2, (1e9,) * 2)
    plan = ts.search(
        lambda x: attention(x, x, x),
        (shape,),
        mesh=PLANE,
        network=network,
        hardware="CPU",
        pin={"x": ("data", None, "model")},
    )
    applied = plan.constrain()
    jitted_step = jax.jit(applied.step, in_shardings=applied.in_shardings)
    text = jitted_step.trace(shape).lower(lowering_platforms=("cuda",)).as_text()
    (call,) = [line for line in text.splitlines() if "__cudnn$fmhaSoftmax(" in line]
    assert call.count("tensor<2x64x2x64xbf16>") == 3


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


@pytest.mark.parametrize("summed", ["m", "q", "g", "n"])
def test_labels_that_are_not_summed_are_refused(summed):
    """One of the results, an unknown one, and one that stays whole."""
    with pytest.raises(PlanError, match=f"summed='{summed}' must name labels of operands"):
        ts.declare(grouped, "m k, g k n, g -> m n", whole="m g", summed=summed)


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
