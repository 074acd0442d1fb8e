"""Functions of whole arrays give on parts what they give on the whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxcoll.errors import CollectiveError
from jaxcoll.execute import functions
from jaxcoll.training import evaluation
from jaxcoll.training.parts import Cut, Part, Ranks, is_value
from tests.execute.harness import mesh_of, sharded

# What acts on each element by itself. Every name in the list of evaluation stands for one of these.
ELEMENTWISE = {
    "abs neg sign square sqrt rsqrt cbrt exp exp2 log log1p expm1 logistic": (
        lambda x: [
            f(jnp.abs(x) + 1.5)
            for f in (
                *(lax.abs, lax.neg, lax.sign, lax.square, lax.sqrt, lax.rsqrt, lax.cbrt),
                *(lax.exp, lax.exp2, lax.log, lax.log1p, lax.expm1, lax.logistic),
            )
        ]
    ),
    "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh": lambda x: [
        f(y)
        for y in (lax.div(x, jnp.float32(16)),)
        for f in (
            *(lax.sin, lax.cos, lax.tan, lax.asin, lax.acos, lax.atan, lax.sinh, lax.cosh),
            *(lax.tanh, lax.asinh, lax.acosh, lax.atanh),
        )
    ],
    "erf erfc erf_inv": lambda x: [
        f(lax.div(x, jnp.float32(16))) for f in (lax.erf, lax.erfc, lax.erf_inv)
    ],
    "ceil floor round is_finite integer_pow reduce_precision copy": lambda x: [
        *(lax.ceil(x), lax.floor(x), lax.round(x), lax.is_finite(x), lax.integer_pow(x, 3)),
        *(lax.reduce_precision(x, 5, 4), jnp.array(x)),
    ],
    "add sub mul div rem max min pow atan2 nextafter": lambda x: [
        f(lax.abs(x), lax.add(lax.square(x), jnp.float32(1)))
        for f in (
            *(lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.pow, lax.atan2),
            lax.nextafter,
        )
    ],
    "eq ne ge gt le lt select_n clamp and or xor not convert_element_type": lambda x: [
        *(lax.eq(x, -x), lax.ne(x, -x), lax.ge(x, -x), lax.gt(x, -x), lax.le(x, -x)),
        *(lax.select_n(lax.lt(x, -x), x, -x), lax.clamp(jnp.float32(-1), x, jnp.float32(1))),
        *(f(lax.lt(x, -x), lax.gt(x, jnp.float32(1))) for f in (lax.bitwise_and, lax.bitwise_or)),
        lax.bitwise_xor(lax.lt(x, -x), lax.bitwise_not(lax.gt(x, jnp.float32(1)))),
        lax.convert_element_type(x, jnp.int32),
    ],
    "shift_left shift_right_arithmetic shift_right_logical population_count clz": lambda x: [
        f(n)
        for n in (lax.convert_element_type(x, jnp.int32),)
        for f in (
            *(lax.population_count, lax.clz, lambda n: lax.shift_left(n, jnp.int32(2))),
            lambda n: lax.shift_right_arithmetic(n, jnp.int32(2)),
            lambda n: lax.shift_right_logical(n, jnp.int32(2)),
        )
    ],
    "complex real imag conj": lambda x: [
        f(lax.complex(x, -x)) for f in (lax.real, lax.imag, lax.conj)
    ],
}

# What looks further than at an element, at shapes, or runs programs inside.
OTHERS = {
    "sums": lambda x: [jnp.sum(x), jnp.prod(x / 4), jnp.mean(x), jnp.var(x), jnp.linalg.norm(x)],
    "extremes": lambda x: [f(x, initial=-9.0 if f is jnp.max else 9.0) for f in (jnp.max, jnp.min)],
    "of integers": lambda x: [
        jnp.max(x.astype(jnp.int32), initial=-99),
        jnp.min(x.astype(jnp.int8), initial=99),
    ],
    "all and any": lambda x: [jnp.all(x < 1), jnp.any(x > 1), jnp.all(jnp.isfinite(1 / x))],
    "products": lambda x: [jnp.vdot(x, x + 1), jnp.vdot(x, jnp.ones_like(x))],
    "vector and matrix": lambda x: [
        jnp.ones(3) @ jnp.tile(x.reshape(-1), (3, 1)),
        x.reshape(-1) @ jnp.ones((x.size, 3)),
        x.reshape(-1) @ (x.reshape(-1, 1) * jnp.ones(2)),
    ],
    "normalized": lambda x: x / (1 + jnp.sqrt(jnp.sum(x * x))),
    "parts of a sum": lambda x: jnp.sum(x, axis=0) if x.ndim else x,
    "broadcast": lambda x: x - jnp.mean(x, axis=-1, keepdims=True) if x.ndim and x.size else x,
    "shapes": lambda x: [x.reshape(-1), x[None], jnp.broadcast_to(x, (2, *x.shape)), x.T],
    "reshaped": lambda x: jnp.sum(x.reshape(-1) ** 2) + x.reshape(1, -1),
    "order": lambda x: [jnp.sort(x.reshape(-1)), jnp.cumsum(x), jnp.flip(x)],
    "by shape": lambda x: x * (2 if x.ndim > 1 else 3) + x.size,
    "places": lambda x: x + jnp.arange(x.size, dtype=x.dtype).reshape(x.shape),
    "noise": lambda x: x + jax.random.normal(jax.random.key(1), x.shape),
    "a call": lambda x: jax.jit(lambda y: jnp.tanh(y) * jnp.sum(y))(x),
    "own derivatives": lambda x: [
        jax.nn.relu(x),
        jax.nn.silu(x),
        jax.grad(lambda y: y[0])([x.sum()]),
    ],
    "a branch": lambda x: lax.cond(
        jnp.sum(x) > 0, lambda y: (y, 1.0 * y.size), lambda y: (-y, jnp.sum(y)), x
    ),
    "a constant branch": lambda x: lax.cond(jnp.sum(x) > 0, lambda y: y, jnp.zeros_like, x),
    "switch": lambda x: lax.switch(
        jnp.int32(jnp.sum(jnp.abs(x))) % 3,
        [jnp.sin, lambda y: y.T.reshape(y.shape), jnp.ones_like],
        x,
    ),
    "a scan": lambda x: lax.scan(lambda c, t: (c * 0.5 + t, jnp.sum(c)), x, jnp.arange(3.0)),
    "a loop": lambda x: lax.while_loop(lambda c: jnp.sum(jnp.abs(c)) > 1, lambda c: c / 2, x),
    "constants": lambda x: [jnp.float32(3), np.arange(2.0, dtype=np.float32), jnp.zeros_like(x)],
    "the same": lambda x: x,
    "checkpoint": lambda x: jax.checkpoint(lambda y: jnp.sin(y) + jnp.sum(y))(x),
}


def on_ranks(function, x, n):
    """Results on ranks of vmap, which must be the same on all of them; none sees padding."""
    cut = Cut(x.shape, x.shape, ((),) * x.ndim, (1,) * x.ndim)
    # Padding that would be seen wherever it took part.
    flat = np.concatenate([x.reshape(-1), np.full(-x.size % n, np.nan, x.dtype)])

    def one(row):
        ranks = Ranks("r", lambda v: functions.all_gather(v, "r"))
        found = evaluation.run(function, ranks, Part(cut, row))
        return jax.tree.map(ranks.whole, found, is_leaf=is_value)

    return jax.vmap(one, axis_name="r")(flat.reshape(n, -1))


def check(function, x, n):
    expected = jax.tree.leaves(function(jnp.asarray(x)))
    for wanted, found in zip(expected, jax.tree.leaves(on_ranks(function, x, n)), strict=True):
        assert found.dtype == jnp.asarray(wanted).dtype
        for each in np.asarray(found):
            np.testing.assert_allclose(each, wanted, rtol=2e-5, atol=2e-5)


def array(shape, seed):
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_operation_of_the_list_is_elementwise(name):
    function, x = jax.jit(ELEMENTWISE[name]), array((7,), 0)
    other = np.where(np.arange(7) == 2, 5.0, x).astype(np.float32)
    for a, b in zip(function(x), function(other), strict=True):
        np.testing.assert_array_equal(np.delete(a, 2), np.delete(b, 2))


def test_the_list_is_what_is_tested():
    used = set()
    for function in ELEMENTWISE.values():
        used |= {eqn.primitive.name for eqn in jax.make_jaxpr(function)(jnp.ones((2, 3))).eqns}
    assert evaluation._ELEMENTWISE - used == {"add_any", "copy_p"}


SHAPES = [(), (1,), (3,), (4, 2), (0, 2), (2, 3, 2)]


@settings(max_examples=10)
@given(
    st.sampled_from(sorted({**ELEMENTWISE, **OTHERS})),
    st.sampled_from(SHAPES),
    st.sampled_from([1, 3, 4]),
    st.integers(0, 99),
)
@example("sums", (), 4, 0)
@example("all and any", (0, 2), 3, 0)
@example("a branch", (3,), 4, 1)
def test_parts_give_what_the_whole_gives(name, shape, n, seed):
    check({**ELEMENTWISE, **OTHERS}[name], array(shape, seed), n)


@pytest.mark.slow
@pytest.mark.parametrize("name", {**ELEMENTWISE, **OTHERS})
def test_every_function_on_every_shape(name):
    for i, shape in enumerate(SHAPES):
        check({**ELEMENTWISE, **OTHERS}[name], array(shape, i), 3 + i % 2)


# ---------------------------------------------------------------------- blocks of other axes


@pytest.mark.parametrize(
    ("spec", "check_vma"), [(P("y"), True), (P(None, "y"), True), (P(None, "y"), False)]
)
def test_parts_of_blocks_give_what_the_whole_gives(spec, check_vma):
    """On ranks of two axes, one of which shards the array along a dimension of its own."""
    x, mesh = array((4, 6), 3), mesh_of(3, 2)
    axes = tuple((name,) if name else () for name in (*spec, None)[:2])
    cut = Cut(x.shape, x.shape, axes, tuple(2 if names else 1 for names in axes))
    names = ["normalized", "products", "reshaped", "by shape", "broadcast", "shapes", "a branch"]

    def all_of(x):
        return [OTHERS[name](x) for name in names]

    def one(block):
        ranks = Ranks("x", lambda v: functions.all_gather(v, "x", to="invarying"))
        row = ranks.row(Part(cut, block=block), cut)
        found = evaluation.run(all_of, ranks, Part(cut, row))
        return jax.tree.map(ranks.whole, found, is_leaf=is_value)

    found = sharded(one, mesh, (spec,), P(), check_vma=check_vma)(x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(all_of(jnp.asarray(x))), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_what_differs_from_rank_to_rank_is_refused():
    def one(x):
        ranks = Ranks("x", lambda v: functions.all_gather(v, "x", to="invarying"))
        cut = Cut((8,), (8,), ((),), (1,))
        own = x.sum()
        found = evaluation.run(lambda v: v * own, ranks, Part(cut, x))
        return ranks.row(found, cut)

    with pytest.raises(CollectiveError, match=r"varies over axis 'x'.*pmean\(value, 'x'\)"):
        sharded(one, mesh_of(4), P("x"), P("x"))(jnp.ones(8))
