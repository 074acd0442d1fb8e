"""Backward passes of pooling, beside those of XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from tensorstate.tracing.trace_step import trace
from tests.tensorstate.one_device import interpret
from tests.tensorstate.oracle import assert_same

POOL = {"max": (lax.max, -jnp.inf), "min": (lax.min, jnp.inf)}


def pooling(kind: str, windows, strides, padding):
    """The backward pass of a pooling, as a function of the cotangent and of the operand."""
    combine, start = POOL[kind]

    def pool(x):
        return lax.reduce_window(x, start, combine, windows, strides, padding)

    return lambda x, shape: jax.vjp(pool, x)[1](shape)[0], pool


@st.composite
def cases(draw):
    """A kind, windows, strides, paddings, and an operand in which many elements are equal."""
    windows = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    is_apart = draw(st.booleans())
    strides = windows if is_apart else [draw(st.integers(1, w + 1)) for w in windows]
    padding = [(0, 0) if is_apart else (draw(st.integers(0, w - 1)), 0) for w in windows]
    sizes = [w * draw(st.integers(1, 3)) for w in windows]
    # Elements left over at the end are in no window.
    sizes = [size + (0 if is_apart else draw(st.integers(0, 2))) for size in sizes]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.integers(-2, 3, sizes).astype(np.float32)
    return draw(st.sampled_from(sorted(POOL))), windows, strides, padding, x


@given(cases())
@settings(max_examples=12)
@pytest.mark.slow
def test_cotangents_go_to_the_first_extremum_of_a_window(case):
    kind, windows, strides, padding, x = case
    backward, pool = pooling(kind, windows, strides, padding)
    shape = jax.eval_shape(pool, x).shape
    back = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    assert_same(trace(backward, (x, back)), backward, (x, back), rtol=0.0)


@pytest.mark.parametrize("strides", [(2, 2), (1, 2)])
def test_windows_that_do_not_overlap_are_not_scattered(strides):
    """So XLA allocates no index tables; overlapping windows are left to XLA."""
    backward, pool = pooling("max", (2, 2), strides, [(0, 0)] * 2)
    x = jnp.zeros((4, 4))
    args = x, jnp.zeros(jax.eval_shape(pool, x).shape)
    found = jax.make_jaxpr(interpret(trace(backward, args)))(*args)
    assert ("select_and_scatter_add" in str(found)) == (strides == (1, 2))
