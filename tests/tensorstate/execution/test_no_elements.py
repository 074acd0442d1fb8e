"""Arrays without elements anywhere in a step: arguments, results, residuals, rows and carries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import tensorstate as ts
from tensorstate.cost.cost import estimate_cost
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import apply
from tests.tensorstate.execution.test_sharded_step import PLANE, devices, drawn
from tests.tensorstate.oracle import QUICK, arguments, assert_alike, jitted, on_devices
from tests.tensorstate.steps import s

MESH = ts.MeshShape.of(PLANE)
NETWORK = ts.AlphaBetaCosts(MESH, (1e-9, 1e-9), (1e12, 1e12))


def check(step, args, seeds=(0,), every=True, **options):
    """Plans against one device: a searched one and drawn ones.

    Args:
        every: also the searched one as constraints, and its check.
    """
    solver = ts.Auto(gap=0.1, time_limit=10)
    common = {"mesh": PLANE, "network": NETWORK, "hardware": "CPU", "solver": solver}
    plan = ts.search(step, args, **common, **options)
    values, mesh = arguments(args), devices(PLANE)
    expected = jax.jit(step, compiler_options=QUICK)(*values)
    problem = plan.problem
    applied = [plan.apply(mesh, lax_collectives)]
    applied += [plan.constrain(mesh=mesh)] if every else []
    for decisions in (drawn(problem, seed) for seed in seeds):
        cost = estimate_cost(problem, decisions)
        applied.append(apply(problem, decisions, cost, mesh, lax_collectives))
    for one in applied:
        assert_alike(jitted(one)(*on_devices(values, one)), expected)
    assert not every or str(plan.check(mesh=mesh))


# Loops whose bodies save rows for the backward pass, some of them without elements.
SAVING = {
    "cumprod": lambda r, p: jnp.cumprod(1 + r * p, 1),
    "associative_scan": lambda r, p: lax.associative_scan(lambda a, b: a * b + b, r * p),
    "cumlogsumexp": lambda r, p: lax.cumlogsumexp(r * p, axis=0),
    "cut": lambda r, p: jnp.concatenate([jnp.cos(r[:0] * p), jnp.sin(r * p)]),
}


def saving(name):
    def step(p, x):
        return jax.value_and_grad(lambda p: lax.map(lambda r: SAVING[name](r, p), x).mean())(p)

    return step, (s(), s(4, 8, 8))


def test_a_loop_that_saves_rows_without_elements():
    check(*saving("associative_scan"), seeds=(), every=False)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", SAVING)
def test_loops_that_save_rows_without_elements(name, recompute):
    check(*saving(name), recompute=recompute)


# (x, w) -> an array of the shape of x; x is (rows, columns), w is (columns, columns).
STEPS = {
    "sin": lambda x, w: jnp.sin(x),
    "product": lambda x, w: jnp.tanh(x @ w),
    "cumprod": lambda x, w: jnp.cumprod(1 + x, 1),
    "cumsum": lambda x, w: jnp.cumsum(x, 0),
    "reversed": lambda x, w: x[::-1] * w.sum(),
    "flat": lambda x, w: jnp.cos(x.reshape(-1)).reshape(x.shape),
    "joined": lambda x, w: jnp.concatenate([jnp.exp(x[:0]), x, w[:0] * 2]),
    "transposed": lambda x, w: (x.T * 2).T,
    "mean of rows": lambda x, w: x - x.sum(0, keepdims=True),
    "gathered": lambda x, w: x[jnp.arange(x.shape[0])],
    "padded": lambda x, w: jnp.pad(x, ((0, 1), (0, 0)))[: x.shape[0]],
    "scanned": lambda x, w: lax.scan(lambda c, r: (c + r, jnp.sin(c * r)), x.sum(0), x)[1],
    "mapped": lambda x, w: lax.map(lambda r: jnp.cumprod(1 + r, 0), x),
    "looped": lambda x, w: lax.fori_loop(0, 2, lambda i, c: jnp.sin(c @ w), x),
}
SIZES = st.sampled_from([0, 0, 1, 2, 4, 8])


def program(names, has_outputs):
    def loss(w, x):
        for name in names:
            x = STEPS[name](x, w)
        return jnp.square(x).sum() + jnp.square(w).sum(), x

    def step(w, x):
        (value, y), gradient = jax.value_and_grad(loss, has_aux=True)(w, x)
        outputs = (y, y[:0], jnp.zeros((0, 2))) if has_outputs else ()
        return w - 0.1 * gradient, value, outputs

    return step


def test_no_collective_is_counted_of_an_array_without_elements():
    args = s(8, 8), s(0, 8)
    step = program(["product", "transposed", "transposed"], has_outputs=False)
    plan = ts.search(step, args, mesh=PLANE, network=NETWORK, hardware="CPU")
    for seed in range(10):
        cost = estimate_cost(plan.problem, drawn(plan.problem, seed))
        assert all(cost.bytes_by_collective.values())
        assert cost.bytes_by_collective.keys() == cost.count_by_collective.keys()


PROGRAMS = (SIZES, SIZES, st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=3))


# A loop and an order of events whose results have no elements; and arguments of which none has.
@pytest.mark.parametrize(
    ("rows", "columns", "names"), [(0, 4, ["looped"]), (0, 2, ["product"]), (4, 0, ["transposed"])]
)
def test_arrays_without_elements(rows, columns, names):
    step, args = program(names, has_outputs=True), (s(columns, columns), s(rows, columns))
    check(step, args, seeds=(), every=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=100, deadline=None)
@given(
    *PROGRAMS,
    st.booleans(),
    st.sampled_from([{}, {"recompute": True}, {"microbatches": 2}]),
    st.integers(0, 9),
)
def test_any_arrays_without_elements(rows, columns, names, has_outputs, options, seed):
    step, args = program(names, has_outputs), (s(columns, columns), s(rows, columns))
    try:
        check(step, args, (seed,), **options)
    except PlanError:
        # Microbatches have reasons of their own to refuse a step.
        if "microbatches" not in options:
            raise
