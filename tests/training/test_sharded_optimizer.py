"""``zero``: the optimizer it wraps, its state one row per rank, on any number of ranks."""

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
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.calls import UnboundAxisError
from tests.execute.harness import integers, mesh_of, placed, sharded

N = 8


@functools.cache
def schedule(kind: str, *sides: int) -> jc.Schedule:
    return jc.synthesize(jc.topologies.torus(*sides or (2, 4)), kind, "bucket")


def own(x):
    """A rank's part of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[0], x)


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


# The others have states of the same forms.
SLOW = ("sgd", "lion on a schedule", "hyperparameters in the state")


@pytest.mark.parametrize(
    ("name", "check_vma"),
    [
        pytest.param(name, i % 2 == 0, marks=[pytest.mark.slow] * (name in SLOW))
        for i, name in enumerate(OPTIMIZERS)
    ],
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

    params, expected, expected_state = placed(params, mesh), params, plain.init(params)
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
    with pytest.raises(CollectiveError, match="what init of zero returned, got EmptyState"):
        sharded(lambda x: ours.update(x, optax.EmptyState())[0], mesh_of(N), P("x"), P())(
            jnp.ones(N)
        )


# ---------------------------------------------------------------------- outside of shard_map


def same_leaves(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)


def test_zero_without_a_mesh_is_refused():
    match = r"init and update of zero inside jax\.shard_map.*zero\('x', inner, mesh=mesh\)"
    with pytest.raises(UnboundAxisError, match=match):
        jc.optax.zero("x", optax.sgd(1.0)).init({"w": jnp.ones(3)})
    ours = jc.optax.zero("x", optax.sgd(1.0), mesh=mesh_of(4))
    state = ours.init(jnp.ones(3))
    with pytest.raises(UnboundAxisError, match="axis 'x' is not bound here"):
        ours.update(jnp.ones(3), state)


@pytest.mark.parametrize(
    ("mesh", "match"),
    [(mesh_of(4), r"axis 'z', and its mesh has the axes \('x',\)"), ("x", "takes a jax.sharding")],
)
def test_a_mesh_without_the_axis_is_refused(mesh, match):
    with pytest.raises(CollectiveError, match=match):
        jc.optax.zero("z", optax.sgd(1.0), mesh=mesh)


def test_init_on_a_mesh_is_init_inside_of_shard_map():
    params = jax.tree.map(jnp.asarray, weights())
    ours = jc.optax.zero("x", optax.adam(1e-2), mesh=mesh_of(4))
    expected = sharded(ours.init, mesh_of(4), P(), P("x"))(params)
    # Wherever the parameters are: on the default device, on one bound, or spread over the mesh.
    for given in (params, jax.device_put(params, jax.devices()[1])):
        state = ours.init(given)
        same_leaves(state, expected)
        for leaf in jax.tree.leaves(state):
            assert leaf.size == 0 or leaf.addressable_shards[0].data.shape == (1, *leaf.shape[1:])
    same_leaves(jax.jit(ours.init)(params), expected)
    with jax.set_mesh(mesh_of(4)):
        same_leaves(jc.optax.zero("x", optax.adam(1e-2)).init(params), expected)
    several = jc.optax.zero(("y", "x"), optax.adam(1e-2), mesh=mesh_of(2, 2))
    same_leaves(several.init(params), expected)


def test_specs_of_a_training_state():
    ours = jc.optax.zero("x", optax.adam(1e-2), mesh=mesh_of(4))
    state = {"params": jnp.ones(3), "state": (ours.init(jnp.ones(3)), 0)}
    specs = jc.optax.state_specs(state, "x")
    assert specs["params"] == specs["state"][1] == P()
    assert set(jax.tree.leaves(specs["state"][0])) == {P("x")}
    # Without the class, as nnx.split leaves it, the sharding says the same; types alone need it.
    bare = jc.optax.state_specs(tuple(state["state"][0].inner[0]), ("x",))
    assert set(jax.tree.leaves(bare)) == {P("x")}
    abstract = jax.eval_shape(lambda: state)
    assert set(jax.tree.leaves(jc.optax.state_specs(abstract, "x")["state"][0])) == {P("x")}


# ---------------------------------------------------------------------- other numbers of ranks


@functools.cache
def program(n: int, ours):
    """A step on ``n`` ranks, which all see the same gradients."""

    def step(params, state, gradients):
        mine = lax.pcast(gradients, "x", to="varying")
        updates, state = ours.update(mine, state, params)
        return optax.apply_updates(params, updates), state

    return sharded(step, mesh_of(n), (P(), P("x"), P()), (P(), P("x")))


def trained(n: int, ours, params, state, steps) -> tuple[Any, Any]:
    """Parameters and state after some steps on ``n`` ranks."""
    mesh, run = mesh_of(n), program(n, ours)
    if state is None:
        state = sharded(ours.init, mesh, P(), P("x"))(params)
    params, state = placed(params, mesh), placed(state, mesh, P("x"))
    for gradients in batches(params, steps):
        params, state = run(params, state, own(gradients))
    return jax.tree.map(np.asarray, params), state


def with_tiny_leaves():
    """Of 0, 1, 2 and more elements: on 8 ranks and on 4 most shards are of one."""
    return {**weights(), "nested": {"bias": np.array([0.25, -1], np.float32)}}


CONVERTIBLE = {
    "adamw with a mask": OPTIMIZERS["adamw with a mask"],
    "rmsprop, parts": OPTIMIZERS["rmsprop, parts"],
    "hyperparameters in the state": OPTIMIZERS["hyperparameters in the state"],
    "several steps": lambda: optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 3),
}


@pytest.mark.parametrize(
    ("name", "to"),
    [
        pytest.param(name, to, marks=[pytest.mark.slow] * (to != 3))
        for name, to in zip(CONVERTIBLE, (4, 3, 1, 5), strict=True)
    ],
)
def test_training_goes_on_on_another_number_of_ranks(name, to):
    ours, params = jc.optax.zero("x", CONVERTIBLE[name]()), with_tiny_leaves()
    halfway, state = trained(N, ours, params, None, 3)
    expected, last = trained(N, ours, halfway, state, 4)
    converted = jc.optax.reshard_zero({"opt": (state, 7)}, params, N, to)
    assert converted["opt"][1] == 7
    found, there = trained(to, ours, halfway, converted["opt"][0], 4)
    back = jc.optax.reshard_zero(there, params, to, N)
    for a, b in zip(jax.tree.leaves((found, back)), jax.tree.leaves((expected, last)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        # XLA joins multiplications and additions differently for shards of other lengths.
        eps = float(jnp.finfo(a.dtype).eps) if jnp.issubdtype(a.dtype, jnp.floating) else 0
        values = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(*values, rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("ranks", [(8, 4), (4, 8), (8, 3), (3, 8), (8, 1), (1, 8), (8, 8)])
def test_every_element_keeps_its_place(ranks):
    n, to = ranks
    params = {"w": np.zeros((5, 7)), "b": np.zeros(3), "s": np.zeros(()), "none": np.zeros((0, 2))}
    mu = {k: np.arange(x.size, dtype=np.float32).reshape(x.shape) + 1 for k, x in params.items()}

    def state(n):
        rows = {k: np.pad(x.reshape(-1), (0, -x.size % n)).reshape(n, -1) for k, x in mu.items()}
        return jc.optax.ZeroState((np.full(n, 5), rows, {"never": np.full((n, 2), 3)}))

    same_leaves(jc.optax.reshard_zero(state(n), params, n, to), state(to))
    alone = jc.optax.ZeroState(state(n).inner[1]["w"])
    expected = jc.optax.ZeroState(state(to).inner[1]["w"])
    same_leaves(jc.optax.reshard_zero(alone, params["w"], n, to), expected)


@pytest.mark.parametrize("leaf", [jnp.ones(3), jnp.ones(40)])
def test_the_state_of_more_ranks_is_refused_by_name(leaf):
    ours = jc.optax.zero("x", optax.adam(1e-2))
    _, state = trained(N, ours, {"w": leaf}, None, 1)
    state = jax.tree.map(np.asarray, state)
    match = r"2 rows per rank at .*expected 1: it is the state of 8 ranks, and axis 'x' has 4"
    with pytest.raises(CollectiveError, match=match + r".*reshard_zero\(state, params, 8, 4\)"):
        trained(4, ours, {"w": leaf}, state, 1)


def state_of_40() -> Any:
    """Of one parameter of 40 elements on 8 ranks, no two shards the same."""
    shards = np.arange(40.0, dtype=np.float32).reshape(8, 5)
    return jc.optax.ZeroState({"count": np.full(8, 3), "mu": {"w": shards}})


@pytest.mark.parametrize(
    ("ranks", "name", "elements", "match"),
    [
        ((8, 0), "w", 40, "to_ranks must be an integer of at least 1, got 0"),
        ((True, 4), "w", 40, "from_ranks must be an integer"),
        ((4, 2), "w", 40, r"has shape \(8,\), and from_ranks=4 means 4 rows"),
        ((8, 4), "v", 40, "differs from rank to rank, and no parameter of that path"),
        ((8, 4), "w", 90, "differs from rank to rank, and no parameter of that path"),
    ],
)
def test_what_cannot_be_converted_is_refused(ranks, name, elements, match):
    with pytest.raises(CollectiveError, match=match):
        jc.optax.reshard_zero(state_of_40(), {name: jnp.ones(elements)}, *ranks)


def test_another_state_cannot_be_converted():
    with pytest.raises(CollectiveError, match="there is no ZeroState in EmptyState"):
        jc.optax.reshard_zero(optax.EmptyState(), {"w": jnp.ones(40)}, 8, 4)
