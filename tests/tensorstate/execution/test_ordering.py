"""Barriers that order execution after XLA's passes have removed some of them."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tensorstate import AlphaBetaCosts, solve_baseline, trace
from tensorstate.execution.microbatch_loop import (
    ExecutionOrder,
    completion_scalar,
    materialize,
    wait_for,
)
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import CPU_OPTIONS
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import MeshShape
from tensorstate.problem.problem import Problem

MESH = MeshShape.of({"x": 2})
W = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)), jnp.float32)


def barriers(function) -> list[int]:
    """Number of arrays of each barrier that XLA leaves in a program of two matrices."""
    compiled = jax.jit(function, compiler_options=CPU_OPTIONS).lower(W, W).compile()
    lines = re.findall(r"= (.*) opt-barrier\(", compiled.as_text() or "")
    return [len(re.findall(r"\w+\[", line)) for line in lines]


def alone(x, y):
    return lax.optimization_barrier((y, (x @ x).reshape(4, 16)))[0] @ x


def loop_resident(x, y):
    return wait_for([y], (x @ x).reshape(4, 16))[0] @ x


def test_one_barrier_does_not_hold():
    """XLA drops the dependency; if it kept it, ``wait_for`` would need one barrier only."""
    assert barriers(alone) == [1]
    assert barriers(loop_resident) == [2, 2]


@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 4)])
def test_a_moment_is_one_number_of_an_array(shape):
    x = jnp.arange(np.prod(shape, dtype=int), dtype=jnp.float32).reshape(shape) + 1
    assert completion_scalar(x).shape == ()
    assert completion_scalar(x) == 1


def test_values_stay_what_they_are():
    key = jax.random.key(0)
    found = jax.jit(
        lambda x, key: wait_for([x, x + 1], completion_scalar(key), completion_scalar(x))
    )(W, key)
    np.testing.assert_array_equal(found[0], W)
    np.testing.assert_array_equal(found[1], W + 1)
    np.testing.assert_array_equal(jax.jit(materialize)(W), W)
    assert wait_for([], completion_scalar(W)) == []
    assert wait_for([W])[0] is W


def test_what_is_made_apart_is_not_made_where_it_is_read():
    """A sum that two products of another size read."""

    def fused(x, y):
        return jnp.tanh(x).sum(0) * y

    assert barriers(fused) == []
    assert barriers(lambda x, y: materialize(jnp.tanh(x).sum(0)) * y) == [1]


def in_order(count: int):
    """Products in order, though none reads the result of another."""

    def products(x, y):
        order, made = ExecutionOrder(), []
        for power in range(count):
            operand = order.delay([y * (power + 1)])[0]
            made.append(operand @ x)
            order.advance(made[-1])
        return made

    return products


def test_an_order_needs_one_barrier_for_each_token_but_the_first():
    """Two wait for the first; the last waits for the token before its own, which XLA drops."""
    assert barriers(in_order(1)) == []
    assert barriers(in_order(2)) == [2, 2]
    assert sorted(barriers(in_order(5))) == [2, 2, 2, 3, 3]


def test_an_order_tells_the_last_event():
    order = ExecutionOrder()
    assert order.latest == []
    assert order.delay([W]) == [W]
    order.advance(W)
    order.advance(2 * W)
    assert order.num_events == 2
    np.testing.assert_array_equal(order.latest, [2 * W[0, 0]])
    np.testing.assert_array_equal(order.delay([W + 1])[0], W + 1)


def test_casts_of_narrow_arguments_wait_for_the_products_before_them():
    """Nothing else would keep XLA from making the wide weights of all layers at first."""

    def step(biases, narrow, x):
        def loss(biases):
            y = x
            for bias, weights in zip(biases, narrow, strict=True):
                y = jnp.tanh(y @ weights.astype(jnp.float32) + bias)
            return jnp.mean(y**2)

        return [b - g for b, g in zip(biases, jax.grad(loss)(biases), strict=True)]

    layers = 3
    biases = [jax.ShapeDtypeStruct((16,), jnp.float32)] * layers
    narrow = [jax.ShapeDtypeStruct((16, 16), jnp.int8)] * layers
    arguments = (biases, narrow, jax.ShapeDtypeStruct((32, 16), jnp.float32))
    plan = solve_baseline(
        Problem(trace(step, arguments), AlphaBetaCosts(MESH, (1e-6,), (1e9,)), HARDWARE["CPU"]),
        "ddp",
    )
    text = plan.apply(collectives=lax_collectives).jit().lower(*arguments).as_text()
    behind = set(re.findall(r"(%\d+)(?::\d+)? = stablehlo.optimization_barrier", text))
    casts = re.findall(r"convert (%\w+)\S* : \(tensor<16x16xi8>\)", text)
    assert len(casts) == layers
    assert [cast in behind for cast in casts] == [False, *[True] * (layers - 1)]


def test_operands_in_another_order_wait_for_the_products_before_them():
    """XLA copies them for the gradient of a kernel, which it could do as early as they are made."""

    def step(kernels, x):
        def loss(kernels):
            y = x
            for kernel in kernels:
                dims = ("NHWC", "HWIO", "NHWC")
                y = jnp.tanh(lax.conv_general_dilated(y, kernel, (1, 1), "SAME", None, None, dims))
            return jnp.mean(y**2)

        return [k - g for k, g in zip(kernels, jax.grad(loss)(kernels), strict=True)]

    kernels = [jax.ShapeDtypeStruct((3, 3, 4, 4), jnp.float32)] * 2
    arguments = (kernels, jax.ShapeDtypeStruct((4, 8, 8, 4), jnp.float32))
    plan = solve_baseline(
        Problem(trace(step, arguments), AlphaBetaCosts(MESH, (1e-6,), (1e9,)), HARDWARE["CPU"]),
        "ddp",
    )
    text = plan.apply(collectives=lax_collectives).jit().lower(*arguments).as_text()
    behind = set(re.findall(r"(%\d+)(?::\d+)? = stablehlo.optimization_barrier", text))
    gradients = re.findall(r"convolution\((%\w+)\S*, \S+\) dim_numbers = \[f,", text)
    assert len(gradients) == 2
    assert set(gradients) <= behind
