"""Maxima and minima by schedules, in every lowering."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.execute import primitives
from jaxcoll.execute.layout import Axes, Setting
from jaxcoll.execute.lowerings import pallas
from jaxcoll.execute.lowerings.rounds import permute_program
from tests.execute.harness import mesh_of, schedule_of, sharded

# (network, synthesizer, chunks, dtype)
CASES = [
    ("torus", "bucket", 1, np.int8),
    ("mesh", "tacos", 2, jnp.bfloat16),
    ("ring", "ring", 1, np.bool_),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
@pytest.mark.in_every_run("ring", "tacos")
def test_against_numpy(case):
    network, synthesizer, chunks, dtype = case
    schedule = schedule_of(network, 4, "all_reduce", synthesizer, chunks)
    x = np.random.default_rng(0).integers(-100, 100, (4, 5, 7)).astype(dtype)
    axes = Axes(("x",), (4,), ("x",))

    run = functools.partial(primitives.run, axes=axes, schedule=schedule, invarying=False)

    def body(v):
        return [
            run(v[0], lowering=lowering, op=op, target=target)[None]
            for op in ("max", "min")
            for lowering in ("ssa", "scan")
            for target in ("cpu", "tpu")
        ]

    found = sharded(body, mesh_of(4), P("x"), P("x"), check_vma=False)(x)
    for got, want in zip(found, [x.max(0)] * 4 + [x.min(0)] * 4, strict=True):
        np.testing.assert_array_equal(got, np.broadcast_to(want, x.shape))


def test_as_the_kernel_takes_them():
    schedule = schedule_of("ring", 4, "all_reduce", "ring")
    program, axes = permute_program(schedule), Axes(("x",), (4,), ("x",))
    x = np.random.default_rng(0).integers(-100, 100, (4, 4 * 16)).astype(np.float32)
    body = lambda v: pallas.run(program, v[0], Setting(axes, 16, "cpu", lax.max))[None]  # noqa: E731
    got = sharded(body, mesh_of(4), P("x"), P("x"), check_vma=False)(x)
    np.testing.assert_array_equal(got, np.broadcast_to(x.max(0), x.shape))


def test_a_rank_outside_the_group_adds_nothing_of_its_own():
    """The hub of a star sums for the others, in rows that hold nothing before."""
    schedule = schedule_of("star", 4, "all_reduce", "middle_trees", groups=((1, 2, 3),))
    assert (schedule.dst[schedule.reduce] == 0).all()
    x = np.random.default_rng(0).integers(1, 9, (4, 5, 7))
    # Beside zeros the maximum of negative numbers is lost, and the minimum of positive ones.
    given = {"sum": x.astype(jnp.bfloat16), "max": -x.astype(np.float32), "min": x.astype(np.int8)}
    axes = Axes(("x",), (4,), ("x",))
    run = functools.partial(primitives.run, axes=axes, schedule=schedule, invarying=False)

    def body(v):
        return {
            (op, *way): run(v[op][0], lowering=way[0], op=op, target=way[1])[None]
            for op in given
            for way in (("scan", "cpu"), ("ssa", "tpu"))
        }

    found = sharded(body, mesh_of(4), P("x"), P("x"), check_vma=False)(given)
    want = {op: getattr(np, op)(given[op][1:], axis=0) for op in given}
    for (op, *_), got in found.items():
        np.testing.assert_array_equal(got[1:], np.broadcast_to(want[op], got[1:].shape))


@pytest.mark.parametrize("function", ["pmax", "pmin"])
def test_one_rank_with_nan_gives_nan_to_all(function):
    # lax.max's meaning. XLA's collectives on CPU devices lose some, depending on their order.
    x = np.zeros((8, 16), np.float32)
    x[np.arange(8), np.arange(8)] = np.nan
    f = lambda v: getattr(jc, function)(v, "x")  # noqa: E731
    got = np.asarray(sharded(f, mesh_of(8), P("x"), P())(x))[0]
    np.testing.assert_array_equal(np.isnan(got), np.arange(16) < 8)


@pytest.mark.parametrize("check_vma", [True, False])
def test_neither_has_a_derivative(check_vma):
    for m in (jc, lax):
        f = sharded(lambda v: m.pmax(v, "x").sum(), mesh_of(8), P("x"), P(), check_vma=check_vma)  # noqa: B023
        with pytest.raises(NotImplementedError, match=r"[Dd]ifferentiation rule"):
            jax.grad(f)(jnp.ones(8))
        # A value that is not differentiated may depend on one, as in a stable softmax.
        g = sharded(
            lambda v: lax.psum(jnp.exp(v - m.pmax(lax.stop_gradient(v), "x")).sum(), "x"),  # noqa: B023
            mesh_of(8),
            P("x"),
            P(),
            check_vma=check_vma,
        )
        assert jax.grad(g)(jnp.ones(8)).shape == (8,)


def test_trees_and_groups():
    x = {"a": np.arange(24.0).reshape(8, 3), "b": np.arange(8)}
    groups = [[0, 3, 5, 6], [1, 2, 4, 7]]

    def both(v):
        return [m.pmax(v, "x", axis_index_groups=groups) for m in (jc, lax)]

    got, want = sharded(both, mesh_of(8), P("x"), P("x"), check_vma=False)(x)
    jax.tree.map(np.testing.assert_array_equal, got, want)
