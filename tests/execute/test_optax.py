"""Gradient transformations: what ``lax.pmean`` and an unsharded optimizer give, by schedules."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.buckets import plan_buckets
from jaxcoll.execute.calls import UnboundAxisError
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
def test_integers_are_reduced_as_by_lax(mean, check_vma, bucket_bytes, order):
    lax_one = lax.pmean if mean else lax.psum
    theirs = sharded(lambda x: lax_one(own(x), "x"), mesh_of(N), P("x"), P())(tree())
    transformation = jc.optax.all_reduce_gradients(
        "x", schedule=schedule("all_reduce"), mean=mean, bucket_bytes=bucket_bytes, order=order
    )
    assert_same(reduced(transformation, tree(), check_vma=check_vma), theirs)


@pytest.mark.parametrize("chosen", [None, "ring", schedule("all_gather")])
def test_any_schedule_that_psum_takes(chosen):
    transformation = jc.optax.all_reduce_gradients("x", schedule=chosen)
    theirs = sharded(lambda x: lax.pmean(own(x), "x"), mesh_of(N), P("x"), P())(tree())
    assert_same(reduced(transformation, tree()), theirs)


def test_buckets_fill_up_in_order():
    def leaf(elements, dtype: type = np.float32):
        return jax.ShapeDtypeStruct((elements,), dtype)

    leaves = [
        leaf(4), leaf(5), leaf(2, np.float16), leaf(100), leaf(0), leaf(3), leaf(1, np.float16),
    ]  # fmt: skip
    paths = [((i,), x) for i, x in enumerate(leaves)]
    assert plan_buckets(paths, 32) == [[5, 4], [3], [6, 2], [1], [0]]
    assert plan_buckets(paths, 36) == [[5, 4], [3], [6, 2], [1, 0]]
    assert plan_buckets(paths, 32, "tree") == [[0], [1], [3], [4, 5], [2, 6]]
    assert sorted(plan_buckets(paths, 0)) == [[i] for i in range(7)]
    far_first = plan_buckets(paths, 32, lambda path: -path[0])
    assert far_first == plan_buckets(paths, 32)
    assert plan_buckets([], 32) == []


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
        transformation = jc.optax.all_reduce_gradients("x", bucket_bytes=bucket_bytes)

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
        ({"order": "sideways"}, CollectiveError, "order is 'reverse', 'tree' or a function"),
        ({"schedule": "fastest"}, CollectiveError, "unknown synthesizer 'fastest'"),
        ({"schedule": 3}, ScheduleError, "schedule= takes a Schedule"),
        ({"axis_name": "z"}, CollectiveError, "axis 'z' is not bound"),
    ],
)
@pytest.mark.parametrize("sharded_state", [True, False])
def test_bad_arguments_are_refused(arguments, error, match, sharded_state):
    arguments = {"axis_name": "x", **arguments}
    name = arguments.pop("axis_name")
    if sharded_state:
        transformation = jc.optax.zero(name, optax.sgd(1.0), **arguments)
    else:
        transformation = jc.optax.all_reduce_gradients(name, **arguments)
    with pytest.raises(error, match=match):
        reduced(transformation, tree())


def test_zero_outside_of_shard_map_is_refused():
    with pytest.raises(UnboundAxisError, match=r"init and update of zero inside jax\.shard_map"):
        jc.optax.zero("x", optax.sgd(1.0)).init({"w": jnp.ones(3)})


# ---------------------------------------------------------------------- sharded optimizers


def weights():
    rng = np.random.default_rng(1)
    return {
        "kernel": rng.standard_normal((5, 7)).astype(np.float32),
        "bias": rng.standard_normal(3).astype(np.float32),
        "scale": np.float32(0.5),
        "empty": np.zeros((0, 2), np.float32),
        "half": rng.standard_normal(20).astype(jnp.bfloat16),
    }


def decayed(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "bias" not in str(path), params)


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw with a mask": lambda: optax.adamw(1e-2, weight_decay=0.1, mask=decayed),
    "lion on a schedule": lambda: optax.lion(optax.linear_schedule(1e-2, 0.0, 8)),
    "rmsprop, parts": lambda: optax.partition(
        {True: optax.rmsprop(1e-2), False: optax.set_to_zero()}, decayed
    ),
    "hyperparameters in the state": lambda: optax.inject_hyperparams(optax.adam)(1e-2),
}


def batches(params, steps: int):
    """Gradients of every rank for some steps: small integers, whose sums are exact."""

    def of(w, t):
        return integers((4, *w.shape), w.dtype, t) - 3

    return [jax.tree.map(functools.partial(of, t=t), params) for t in range(steps)]


@pytest.mark.parametrize(
    ("name", "check_vma"), [(name, i % 2 == 0) for i, name in enumerate(OPTIMIZERS)]
)
def test_zero_is_the_optimizer_it_wraps(name, check_vma):
    mesh, params = mesh_of(4), jax.tree.map(jnp.asarray, weights())
    plain = OPTIMIZERS[name]()
    scattering = schedule("reduce_scatter", 2, 2)
    ours = jc.optax.zero("x", plain, schedule=scattering, bucket_bytes=120)
    options = {"check_vma": check_vma}
    state = sharded(ours.init, mesh, P(), P("x"), **options)(params)

    def step(params, state, gradients):
        updates, state = ours.update(own(gradients), state, params)
        return optax.apply_updates(params, updates), state

    run = sharded(step, mesh, (P(), P("x"), P("x")), (P(), P("x")), **options)

    @jax.jit
    def reference(params, state, gradients):
        mean = jax.tree.map(lambda g: g.mean(0, dtype=np.float32).astype(g.dtype), gradients)
        updates, state = plain.update(mean, state, params)
        return optax.apply_updates(params, updates), state

    expected, expected_state = params, plain.init(params)
    for gradients in batches(params, 6):
        params, state = run(params, state, gradients)
        expected, expected_state = reference(expected, expected_state, gradients)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        # The sums are the same; XLA joins multiplications and additions here and there.
        eps = float(jnp.finfo(a.dtype).eps)
        values = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(*values, rtol=8 * eps, atol=8 * eps)


def test_the_state_is_shared_out():
    params = {"kernel": jnp.ones((100, 40)), "bias": jnp.ones(5)}
    ours = jc.optax.zero("x", optax.adam(1.0))
    state = sharded(ours.init, mesh_of(N), P(), P("x"))(params)
    for leaf in jax.tree.leaves(state):
        assert leaf.shape[0] == N
        assert len({shard.index[0].start for shard in leaf.addressable_shards}) == N
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
    full = sum(leaf.nbytes for leaf in jax.tree.leaves(optax.adam(1.0).init(params)))
    assert held <= full / N + 16


def test_extra_arguments_reach_the_inner_optimizer():
    def scaled(updates, state, params=None, *, factor):
        return jax.tree.map(lambda u: factor * u, updates), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), scaled)  # type: ignore[arg-type]
    ours = optax.chain(jc.optax.zero("x", inner, mean=False), optax.scale(-1.0))

    def step(x):
        state = ours.init(x[0])
        return ours.update(x[0], state, factor=3.0)[0]

    x = integers((N, 5), np.float32)
    np.testing.assert_array_equal(sharded(step, mesh_of(N), P("x"), P())(x), -3 * x.sum(0))


def test_ranks_may_be_those_of_vmap():
    x = {"w": integers((4, 3), np.float32)}
    for transformation in (
        jc.optax.all_reduce_gradients("b"),
        jc.optax.zero("b", optax.identity()),
    ):

        def one(v, transformation=transformation) -> Any:
            return transformation.update(v, transformation.init(v), v)[0]

        result = jax.vmap(one, axis_name="b")(x)["w"]
        np.testing.assert_array_equal(result, np.tile(x["w"].mean(0), (4, 1)))


def test_a_scan_carries_the_state():
    ours = jc.optax.zero("x", optax.adam(1e-2))

    def train(params, gradients):
        def body(carry, gradient):
            params, state = carry
            updates, state = ours.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        return lax.scan(body, (params, ours.init(params)), gradients[0])[0][0]

    gradients = integers((N, 4, 9), np.float32)
    params = sharded(train, mesh_of(N), (P(), P("x")), P())(jnp.ones(9), gradients)
    assert np.isfinite(params).all()


def test_another_state_is_refused():
    ours = jc.optax.zero("x", optax.adam(1e-2))
    with pytest.raises(CollectiveError, match="what its init gave, got EmptyState"):
        sharded(lambda x: ours.update(x, optax.EmptyState())[0], mesh_of(N), P("x"), P())(
            jnp.ones(N)
        )


# ---------------------------------------------------------------------- Flax

STEPS = 6


def data():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4 * N, 6)).astype(np.float32)
    return x, np.sin(x.sum(1, keepdims=True)).astype(np.float32)


class LinenModel(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.tanh(linen.Dense(9)(x)))


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(6, 9, rngs=rngs)
        self.second = nnx.Linear(9, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.tanh(self.first(x)))


def linen_problem():
    model = LinenModel()
    return jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 6))), model.apply


def nnx_problem():
    graph, params = nnx.split(NnxModel(nnx.Rngs(0)), nnx.Param)
    return params, lambda p, x: nnx.merge(graph, p)(x)


def losses(problem, optimizer, state_spec, check_vma) -> list[float]:
    params, apply = problem()

    def step(params, state, x, y):
        mine = lax.pcast(params, "x", to="varying") if check_vma else params
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean((apply(p, x) - y) ** 2))(mine)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, lax.pmean(loss, "x")

    options = {"check_vma": check_vma}
    state = sharded(optimizer.init, mesh_of(N), P(), state_spec, **options)(params)
    run = sharded(
        step, mesh_of(N), (P(), state_spec, P("x"), P("x")), (P(), state_spec, P()), **options
    )
    found = []
    for _ in range(STEPS):
        params, state, loss = run(params, state, *data())
        found.append(float(loss))
    return found


@functools.cache
def native_losses(problem, check_vma) -> list[float]:
    native = optax.chain(optax.stateless(lambda g, _: lax.pmean(g, "x")), optax.adam(1e-2))
    return losses(problem, native, P(), check_vma)


@pytest.mark.parametrize(("problem", "check_vma"), [(linen_problem, True), (nnx_problem, False)])
def test_flax_models_train_as_with_pmean(problem, check_vma):
    adam = functools.partial(optax.adam, 1e-2)
    expected = native_losses(problem, check_vma)
    assert expected[-1] < expected[0]
    reduce = jc.optax.all_reduce_gradients("x", schedule=schedule("all_reduce"))
    ours = losses(problem, optax.chain(reduce, adam()), P(), check_vma)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    zero = jc.optax.zero("x", adam(), schedule=schedule("all_gather"))
    np.testing.assert_allclose(losses(problem, zero, P("x"), check_vma), expected, rtol=1e-5)


def test_an_nnx_optimizer_takes_it():
    def train(x, y):
        model = NnxModel(nnx.Rngs(0))
        graph, params, rest = nnx.split(model, nnx.Param, ...)
        model = nnx.merge(graph, lax.pcast(params, "x", to="varying"), rest)
        reduce = jc.optax.all_reduce_gradients("x")
        optimizer = nnx.Optimizer(model, optax.chain(reduce, optax.adam(1e-2)), wrt=nnx.Param)
        found = []
        for _ in range(STEPS):
            loss, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
            optimizer.update(model, gradients)
            found.append(lax.pmean(loss, "x"))
        return jnp.stack(found)

    run = sharded(train, mesh_of(N), (P("x"), P("x")), P(), check_vma=False)
    np.testing.assert_allclose(run(*data()), native_losses(nnx_problem, False), rtol=1e-5)
