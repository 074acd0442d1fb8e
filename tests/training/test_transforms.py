"""Gradient transformations: what ``lax.pmean`` and an unsharded optimizer give, by schedules."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError, ScheduleError
from tests.execute.harness import integers, mesh_of, sharded

N = 8


@functools.cache
def schedule(kind: str, *sides: int) -> jc.Schedule:
    return jc.synthesize(jc.topologies.torus(*sides or (2, 4)), kind, "bucket", chunks=1)


def tree(dtype=np.float32):
    """Gradients of every rank, stacked: all kinds of leaves."""
    return {
        "a": integers((N, 3, 5), dtype),
        "b": [integers((N, 7), np.int32, 1), integers((N,), dtype, 2)],
        "c": {"half": integers((N, 11), jnp.bfloat16, 3), "none": integers((N, 0, 3), dtype)},
        "nothing": (),
        "d": integers((N, 2, 2, 2), np.float16, 4),
    }


def updated(transformation, gradients) -> Any:
    return transformation.update(gradients, optax.EmptyState())[0]


def own(x):
    """A rank's part of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[0], x)


def reduced(transformation, grads, **options) -> Any:
    def step(stacked):
        state = transformation.init(own(stacked))
        return transformation.update(own(stacked), state)[0]

    return sharded(step, mesh_of(N), P("x"), P(), **options)(grads)


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------------- all_reduce_gradients


@pytest.mark.parametrize(
    ("mean", "check_vma", "bucket_bytes", "order"),
    [
        (True, True, 1 << 20, "reverse"),
        (True, False, 64, "tree"),
        (False, True, 40, lambda path: str(path)),
        (False, False, 0, "reverse"),
    ],
)
@pytest.mark.in_every_run("True-False-64-tree", "False-True-40-*")
def test_integers_are_reduced_as_by_lax(mean, check_vma, bucket_bytes, order):
    lax_one = lax.pmean if mean else lax.psum
    theirs = sharded(lambda x: lax_one(own(x), "x"), mesh_of(N), P("x"), P())(tree())
    transformation = jc.optax.all_reduce_gradients(
        "x", schedule=schedule("all_reduce"), mean=mean, bucket_bytes=bucket_bytes, leaf_order=order
    )
    assert_same(reduced(transformation, tree(), check_vma=check_vma), theirs)


@pytest.mark.parametrize("chosen", [None, "ring", schedule("all_gather")])
@pytest.mark.in_every_run("None", "chosen2")
def test_any_schedule_that_psum_takes(chosen):
    transformation = jc.optax.all_reduce_gradients("x", schedule=chosen)
    theirs = sharded(lambda x: lax.pmean(own(x), "x"), mesh_of(N), P("x"), P())(tree())
    assert_same(reduced(transformation, tree()), theirs)


def test_floats_differ_by_the_order_of_addition_only():
    x = np.random.default_rng(0).standard_normal((N, 1000)).astype(np.float32)
    ours = reduced(jc.optax.all_reduce_gradients("x", bucket_bytes=512), {"w": x})["w"]
    exact = x.astype(np.float64).mean(0)
    eps = np.finfo(np.float32).eps
    assert (np.abs(ours - exact) <= N * eps * np.abs(x).sum(0) / N + eps * np.abs(exact)).all()


def test_sums_may_be_taken_in_a_wider_dtype():
    # 256 + 1 rounds to 256 in bfloat16; the mean of 8 such sums does not overflow float16 either.
    x = np.full((N, 4), 257 / 256, np.float32).astype(jnp.bfloat16)
    big = np.full((N, 3), 60000.0, np.float16)
    wide = jc.optax.all_reduce_gradients("x", accum_dtype=np.float32)
    ours = reduced(wide, {"x": x, "big": big})
    np.testing.assert_array_equal(ours["big"], big[0])
    np.testing.assert_array_equal(ours["x"], x[0])
    assert np.isinf(reduced(jc.optax.all_reduce_gradients("x"), {"big": big})["big"]).all()


def test_one_collective_a_bucket():
    def collectives(bucket_bytes):
        transformation = jc.optax.all_reduce_gradients(
            "x", schedule="bucket", bucket_bytes=bucket_bytes
        )

        def step(stacked):
            return updated(transformation, own(stacked))

        run = jax.shard_map(step, mesh=mesh_of(N), in_specs=P("x"), out_specs=P())
        return str(jax.make_jaxpr(run)(tree())).count("jaxcoll_all_reduce[")

    assert collectives(1 << 20) == 4  # float32, int32, bfloat16, float16
    assert collectives(0) == 6


def test_several_axes_in_any_order():
    mesh = mesh_of(2, 4)
    transformation = jc.optax.all_reduce_gradients(("y", "x"), schedule=schedule("all_reduce"))
    theirs = sharded(lambda x: lax.pmean(own(x), ("x", "y")), mesh, P(("x", "y")), P())(tree())
    ours = sharded(lambda x: updated(transformation, own(x)), mesh, P(("x", "y")), P())(tree())
    assert_same(ours, theirs)


def test_gradients_of_integers_stay():
    def step(x):
        mine = {"w": x[0], "index": jnp.arange(3)}
        gradients = jax.grad(lambda p: (p["w"] ** 2).sum(), allow_int=True)(mine)
        result = updated(jc.optax.all_reduce_gradients("x"), gradients)
        assert result["index"].dtype == jax.dtypes.float0
        return result["w"]

    x = integers((N, 4), np.float32)
    np.testing.assert_array_equal(sharded(step, mesh_of(N), P("x"), P())(x), 2 * x.mean(0))


def test_leaves_sharded_further_by_explicit_axes_travel_alone():
    mesh = jax.make_mesh((4, 2), ("x", "y"))

    def step(w, x):
        transformation = jc.optax.all_reduce_gradients("x")
        gradients = {"w": w * x.sum(), "v": x[0], "u": x[0]}
        return updated(transformation, gradients)["w"]

    with jax.set_mesh(mesh):
        w = jax.device_put(jnp.arange(6.0).reshape(2, 3), P("y"))
        x = jax.device_put(jnp.arange(8.0).reshape(8, 1), P("x"))
        run = jax.shard_map(step, in_specs=(P(), P("x")), out_specs=P(), axis_names={"x"})
        np.testing.assert_array_equal(jax.jit(run)(w, x), np.arange(6.0).reshape(2, 3) * 7)


# ---------------------------------------------------------------------- what is refused


def test_gradients_that_jax_has_summed_are_refused():
    def step(w, x):
        gradients = {"deep": [jax.grad(lambda w: (w * x).sum())(w)]}
        return updated(jc.optax.all_reduce_gradients("x"), gradients)

    arguments = (jnp.ones(3), jnp.ones((N, 3)))
    specs = (P(), P("x"))
    with pytest.raises(CollectiveError, match=r"gradient \['deep'\]\[0\] is the same.*pcast"):
        sharded(step, mesh_of(N), specs, P())(*arguments)
    unchecked = sharded(step, mesh_of(N), specs, P(), check_vma=False)(*arguments)
    np.testing.assert_array_equal(unchecked["deep"][0], np.ones(3))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"bucket_bytes": -1}, CollectiveError, "bucket_bytes must be an integer of at least 0"),
        ({"bucket_bytes": 1.5}, CollectiveError, "bucket_bytes must be an integer"),
        (
            {"leaf_order": "up"},
            CollectiveError,
            "leaf_order must be 'reverse', 'tree' or a function",
        ),
        ({"schedule": "fastest"}, CollectiveError, "unknown synthesizer 'fastest'"),
        ({"schedule": 3}, ScheduleError, "schedule= takes a Schedule"),
        ({"axis_name": "z"}, CollectiveError, "axis 'z' is not bound"),
        ({"window": -1}, CollectiveError, "window must be an integer of at least 0"),
        ({"window": 1.0}, CollectiveError, "window must be an integer"),
        # Integers of the tree are added in int32, and its floats in their own; nothing is complex.
        ({"accum_dtype": np.complex64}, CollectiveError, "complex64 cannot hold sums of float"),
        ({"accum_dtype": np.int8}, CollectiveError, "accum_dtype=int8 cannot hold sums of int32"),
    ],
)
@pytest.mark.parametrize("sharded_state", [True, False])
def test_bad_arguments_are_refused(arguments, error, match, sharded_state):
    arguments = {"axis_name": "x", **arguments}
    name = arguments.pop("axis_name")

    def made():
        if sharded_state:
            return jc.optax.zero(name, optax.sgd(1.0), **arguments)
        return jc.optax.all_reduce_gradients(name, **arguments)

    with pytest.raises(error, match=match):
        reduced(made(), tree())


def step_with(transformation):
    """Gradients of parameters that were cast, averaged by ``transformation``."""

    def step(w, x):
        mine = lax.pcast(w, "x", to="varying")
        gradient = jax.grad(lambda w: (w * x).sum())(mine)
        return transformation.update(gradient, transformation.init(w), w)[0]

    return sharded(step, mesh_of(N), (P(), P("x")), P())


REDUCE = jc.optax.all_reduce_gradients("x")


def test_reducing_twice_is_refused_with_advice_that_fits():
    before = optax.stateless(lambda g, _: lax.pmean(g, "x"))
    for ours in (REDUCE, jc.optax.zero("x", optax.sgd(1.0))):
        with pytest.raises(CollectiveError, match="a pmean or psum has reduced it before: leave"):
            step_with(optax.chain(before, ours))(jnp.ones(3), jnp.ones((N, 3)))


def test_multi_steps_go_around():
    arguments = jnp.ones(3), integers((N, 3), np.float32)
    inside = optax.MultiSteps(optax.chain(REDUCE, optax.sgd(1.0)), 2)
    with pytest.raises(CollectiveError, match=r"optax.MultiSteps.*put it around or before"):
        step_with(inside.gradient_transformation())(*arguments)
    outside = optax.chain(REDUCE, optax.MultiSteps(optax.sgd(1.0), 1))  # type: ignore[arg-type]
    np.testing.assert_array_equal(step_with(outside)(*arguments), -arguments[1].mean(0))
    inner = optax.MultiSteps(optax.sgd(1.0), 1)
    sharded_state = jc.optax.zero("x", inner)  # type: ignore[arg-type]
    np.testing.assert_array_equal(step_with(sharded_state)(*arguments), -arguments[1].mean(0))
