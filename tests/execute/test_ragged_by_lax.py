"""Derivatives of ragged calls that ``jax.lax`` runs, against loops; on CPU devices by a stand-in.

XLA for CPUs has no ragged all_to_all. Here that primitive of JAX is lowered there to the exchange
of blocks, so that calls that are handed to ``jax.lax``, and its own derivatives, run.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax._src.lax.parallel import ragged_all_to_all_p
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.execute import blocks
from tests.execute.harness import mesh_of
from tests.execute.test_ragged import GROUPS, OUT, ROWS, WIDTH, Case, case, expected, transposed

FULL = np.array([[1, 2, 3, 1], [2, 2, 2, 1], [3, 1, 1, 2], [1, 1, 4, 1]])


def by_blocks(operand, output, *columns, axis_name, axis_index_groups):
    options = {"axis_name": axis_name, "axis_index_groups": axis_index_groups}
    # With a schedule named, the call is not handed on again.
    return jc.ragged_all_to_all(
        operand, output, *columns, **options, schedule="direct", check=False
    )


# For the life of the process: nothing but a call of jax.lax on CPU devices sees it.
mlir.register_lowering(
    ragged_all_to_all_p, mlir.lower_fun(by_blocks, multiple_results=False), platform="cpu"
)


@pytest.fixture(autouse=True)
def cpu_has_it(monkeypatch):
    """Calls on CPU devices are handed to ``jax.lax``, as on GPUs and TPUs."""
    monkeypatch.setattr(blocks, "WITH_NATIVE", ("cpu",))


def packed(sizes: np.ndarray, groups=None) -> Case:
    """Slices one behind the other, on both sides: where one is empty, two begin at one row."""
    groups = groups or (tuple(range(len(sizes))),)
    targets, got = np.zeros_like(sizes), np.zeros_like(sizes)
    for group in groups:
        for b, dst in enumerate(group):
            at = 0
            for a, src in enumerate(group):
                targets[src, b], got[dst, a] = at, sizes[src, b]
                at += sizes[src, b]
    values = np.random.default_rng(0).normal(size=(len(sizes), ROWS + OUT, WIDTH))
    values = values.astype(np.float32)
    columns = np.cumsum(sizes, axis=1) - sizes, sizes, targets, got
    return Case(values[:, :ROWS], values[:, ROWS:], *(each.astype(np.int32) for each in columns))


def on_mesh(function, groups=None):
    def call(*arguments):
        mine = (each[0] for each in arguments)
        return function(*mine, axis_name="x", axis_index_groups=groups)[None]

    return jax.shard_map(call, mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x"))


@functools.cache
def pulled_back(function, groups):
    """A program for the value and the cotangents of operand and output."""
    program = on_mesh(function, groups)

    @jax.jit
    def both(cotangent, operand, output, *columns):
        value, back = jax.vjp(lambda *x: program(*x, *columns), operand, output)
        return value, back(cotangent)

    return both


def errors(given: Case, function, groups=None) -> tuple[float, float]:
    """The largest errors of the cotangents of operand and output."""
    cotangent = np.random.default_rng(1).normal(size=given.output.shape).astype(np.float32)
    value, found = pulled_back(function, groups)(cotangent, *given)
    np.testing.assert_array_equal(value, expected(given, groups))
    wanted = transposed(given, cotangent, groups)
    first, second = (
        float(abs(np.asarray(x) - y).max()) for x, y in zip(found, wanted, strict=True)
    )
    return first, second


def ours(*arguments, **options):
    return jc.ragged_all_to_all(*arguments, **options, check=False)


def test_calls_are_handed_to_lax():
    program = jax.make_jaxpr(on_mesh(ours))(*packed(FULL))
    assert "ragged_all_to_all[" in str(program)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=16, max_size=16))
def test_cotangents_are_those_of_loops(sizes):
    """With empty slices, which begin where others do."""
    assert max(errors(packed(np.array(sizes).reshape(4, 4)), ours)) < 1e-6


def test_cotangents_of_groups_and_of_shared_rows():
    assert max(errors(packed(FULL[:, :2], GROUPS), ours, GROUPS)) < 1e-6
    shared = case(15, np.full((4, 4), 2))._replace(input_offsets=np.zeros((4, 4), np.int32))
    assert shared.send_sizes.sum(axis=1).max() <= ROWS
    assert max(errors(shared, ours)) < 1e-6


def test_what_cannot_be_told_apart_is_nan():
    """Slices of a rank that share rows, and together have more than the operand."""
    shared = packed(np.full((4, 4), 4))._replace(input_offsets=np.zeros((4, 4), np.int32))
    of_operand, of_output = errors(shared, ours)
    assert np.isnan(of_operand)
    assert of_output == 0


@pytest.mark.slow
def test_where_derivatives_of_lax_differ():
    """Once this fails, JAX has mended them, and ``ragged._by_lax`` may go."""
    own = lax.ragged_all_to_all
    empty = FULL.copy()
    empty[1, 0] = 0
    assert errors(packed(FULL), own) == (0, 0)
    assert errors(packed(empty), own)[1] > 0.1
    shared = case(15, np.full((4, 4), 2))._replace(input_offsets=np.zeros((4, 4), np.int32))
    assert errors(shared, own)[0] > 0.1
    with pytest.raises(ValueError, match="has to be divisible by the size of the named axis"):
        errors(packed(FULL[:, :2], GROUPS), own, GROUPS)


@pytest.mark.slow
def test_forwards_twice_and_under_vmap():
    given = packed(np.where(FULL == 1, 0, FULL))
    program = on_mesh(ours)

    def loss(operand, output, *columns):
        return (program(operand, output, *columns) ** 3).sum()

    def by_loops(operand, output):
        value = expected(given._replace(operand=operand, output=output))
        return transposed(given, 3 * value**2)

    pair = given[:2]
    value, forward = jax.jvp(lambda *x: program(*x, *given[2:]), pair, pair)
    np.testing.assert_array_equal(forward, value)  # it is linear
    batch = [np.stack([each, 2 * each]) for each in pair]
    columns = [np.stack([each, each]) for each in given[2:]]
    found = jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1))))(*batch, *columns)
    for k in range(2):
        for x, y in zip(found, by_loops(*(each[k] for each in batch)), strict=True):
            np.testing.assert_allclose(x[k], y, rtol=1e-5, atol=1e-5)

    @jax.jit
    def of_gradient(operand):
        gradient = jax.grad(loss)(operand, *given[1:])
        return (gradient * jnp.cos(operand)).sum()

    again = jax.jit(jax.grad(of_gradient))(given.operand)
    step = 1e-2 * np.random.default_rng(2).normal(size=given.operand.shape).astype(np.float32)
    slope = (of_gradient(given.operand + step) - of_gradient(given.operand - step)) / 2
    assert float((again * step).sum()) == pytest.approx(float(slope), rel=0.02)
