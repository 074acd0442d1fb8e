"""Flax models train by schedules as people write it: linen, nnx, TrainState, nnx.Optimizer."""

from __future__ import annotations

import functools

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from tests.execute.harness import mesh_of, placed, sharded

N = 4


@functools.cache
def schedule(kind: str) -> jc.Schedule:
    return jc.synthesize(jc.topologies.torus(2, 2), kind, "bucket")


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
    params = placed(params, mesh_of(N))

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
@pytest.mark.in_every_run("nnx_problem-False")
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


# ---------------------------------------------------------------------- the state in one object

MESH_SPECS = (P("x"), P("x"))


def zero_adam():
    return jc.optax.zero("x", optax.adam(1e-2), schedule=schedule("all_gather"), mesh=mesh_of(N))


def stepped(step, state, specs, check_vma: bool):
    """The state after ``STEPS`` steps, and the loss of each."""
    in_specs, out_specs = (specs, *MESH_SPECS), (specs, P())
    run = sharded(step, mesh_of(N), in_specs, out_specs, check_vma=check_vma)
    found = []
    state = placed(state, mesh_of(N), specs)
    for _ in range(STEPS):
        state, loss = run(state, *data())
        found.append(float(loss))
    return state, found


@pytest.mark.parametrize("check_vma", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_train_state_is_created_as_ever(check_vma):
    params, apply = linen_problem()
    state = TrainState.create(apply_fn=apply, params=params, tx=zero_adam())
    specs = jc.optax.state_specs(state, "x")

    def step(state, x, y):
        mine = lax.pcast(state.params, "x", to="varying") if check_vma else state.params
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean((state.apply_fn(p, x) - y) ** 2))(
            mine
        )
        return state.apply_gradients(grads=gradients), lax.pmean(loss, "x")

    _, found = stepped(step, state, specs, check_vma)
    np.testing.assert_allclose(found, native_losses(linen_problem, check_vma), rtol=1e-5)


@pytest.mark.parametrize("check_vma", [pytest.param(True, marks=pytest.mark.slow), False])
def test_an_nnx_optimizer_is_made_as_ever(check_vma):
    model = NnxModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, zero_adam(), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))
    specs = jc.optax.state_specs(state, "x")

    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        kept, params = nnx.split(model, nnx.Param)
        mine = nnx.merge(kept, lax.pcast(params, "x", to="varying") if check_vma else params)
        loss, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(mine)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), lax.pmean(loss, "x")

    state, found = stepped(step, state, specs, check_vma)
    np.testing.assert_allclose(found, native_losses(nnx_problem, False), rtol=1e-5)
    nnx.update((model, optimizer), state)
    params = nnx.state(model, nnx.Param)
    fewer = jc.optax.reshard_zero(optimizer.opt_state, params, N, 2)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(fewer)} == {2}


class Noisy(nnx.Module):
    """With counts of dropout and statistics of all ranks beside its parameters."""

    def __init__(self, rngs):
        # Statistics take a bias away, so that rounding alone would move it.
        self.first = nnx.Linear(6, 9, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(9, axis_name="x", momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.second = nnx.Linear(9, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(nnx.tanh(self.norm(self.first(x)))))


def noisy_state(tx):
    """The objects after ``STEPS`` steps of the recipe of the page, and the loss of each."""
    model = Noisy(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        definition, params, rest = nnx.split(model, nnx.Param, ...)
        own = nnx.merge(definition, lax.pcast(params, "x", to="varying"), rest)
        loss, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(own)
        optimizer.update(model, gradients)
        nnx.update(model, nnx.state(own, nnx.Not(nnx.Param)))
        return nnx.state((model, optimizer)), lax.pmean(loss, "x")

    specs = jc.optax.state_specs(state, "x")
    state, found = stepped(step, state, specs, check_vma=True)
    nnx.update((model, optimizer), state)
    return model, found


def test_a_model_with_dropout_and_statistics_trains_as_with_pmean():
    model, found = noisy_state(zero_adam())
    native = optax.chain(optax.stateless(lambda g, _: lax.pmean(g, "x")), optax.adam(1e-2))
    other, expected = noisy_state(native)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # Counts and statistics have moved on with every step.
    assert set(map(int, jax.tree.leaves(nnx.state(model, nnx.RngCount)))) >= {STEPS}
    for one, two in zip(jax.tree.leaves(nnx.state(model, nnx.BatchStat)),
                        jax.tree.leaves(nnx.state(other, nnx.BatchStat)), strict=True):  # fmt: skip
        np.testing.assert_allclose(one, two, rtol=1e-4)
        assert float(jnp.abs(one - jnp.round(one)).max()) > 0


# ---------------------------------------------------------------------- other models


class Recurrent(linen.Module):
    @linen.compact
    def __call__(self, x):
        cell = linen.SimpleCell(5)
        # The scan of nn.RNN starts from zeros, which are the same on all ranks, and its later
        # carries are not: check_vma wants both to be typed as varying.
        start = jax.tree.map(
            lambda zeros: lax.pcast(zeros, "x", to="varying"),
            cell.initialize_carry(jax.random.key(0), x[:, 0].shape),
        )
        hidden = jnp.asarray(linen.RNN(cell)(x, initial_carry=start))
        return linen.Dense(1)(hidden[:, -1])


class Normalized(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.BatchNorm(use_running_average=False, axis_name="x")(linen.Dense(9)(x))
        x = linen.Dropout(0.5, deterministic=False, rng_collection="drop")(x)
        return linen.Dense(1)(linen.LayerNorm()(jax.nn.relu(x)))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Recurrent(), "all_reduce"),
        (Normalized(), "zero"),
        pytest.param(Recurrent(), "zero", marks=pytest.mark.slow),
        pytest.param(Normalized(), "all_reduce", marks=pytest.mark.slow),
    ],
    ids=["rnn", "batch norm, dropout, zero", "rnn, zero", "batch norm, dropout"],
)
@pytest.mark.in_every_run("batch norm, dropout, zero")
def test_models_of_many_kinds(model, kind):
    x, y = data()
    x = x.reshape(4 * N, 3, 2) if isinstance(model, Recurrent) else x
    key, drop = jax.random.split(jax.random.key(0))
    start = sharded(
        lambda x: lax.pmean(model.init({"params": key, "drop": drop}, x), "x"),
        mesh_of(N),
        P("x"),
        P(),
    )(x)
    inner = optax.adamw(1e-2, mask=lambda p: jax.tree.map(lambda leaf: leaf.ndim > 1, p))
    if kind == "zero":
        ours, spec = jc.optax.zero("x", inner, mesh=mesh_of(N), bucket_bytes=64), P("x")
    else:
        # What looks across elements comes after the reduction, on whole gradients.
        after = optax.chain(optax.clip_by_global_norm(0.5), inner)
        ours, spec = optax.chain(jc.optax.all_reduce_gradients("x", bucket_bytes=64), after), P()
        inner = after
    native = optax.chain(optax.stateless(lambda g, _: lax.pmean(g, "x")), inner)

    def run(optimizer, spec) -> list[float]:
        params, rest = start["params"], {k: v for k, v in start.items() if k != "params"}
        state = sharded(optimizer.init, mesh_of(N), P(), spec)(params)

        def step(params, state, rest, x, y):
            mine = lax.pcast(params, "x", to="varying")

            def loss_of(p):
                rank_key = jax.random.fold_in(drop, lax.axis_index("x"))
                out, changed = model.apply(
                    {"params": p, **rest}, x, rngs={"drop": rank_key}, mutable=[*rest]
                )
                return jnp.mean((out - y) ** 2), changed

            (loss, changed), gradients = jax.value_and_grad(loss_of, has_aux=True)(mine)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, changed, lax.pmean(loss, "x")

        mapped = sharded(step, mesh_of(N), (P(), spec, P(), P("x"), P("x")), (P(), spec, P(), P()))
        found = []
        for _ in range(3):
            params, state, rest, loss = mapped(params, state, rest, x, y)
            found.append(float(loss))
        return found

    if kind == "zero":
        np.testing.assert_allclose(run(ours, spec), run(zero_reference(inner), P()), rtol=1e-5)
    else:
        np.testing.assert_allclose(run(ours, spec), run(native, P()), rtol=1e-5)


def zero_reference(inner):
    """What ``zero`` does, unsharded: the mask of its inner optimizer sees vectors."""

    def flat(tree):
        return jax.tree.map(lambda x: x.reshape(-1), tree)

    def update(updates, state, params):
        steps, state = inner.update(flat(lax.pmean(updates, "x")), state, flat(params))
        return jax.tree.map(lambda s, p: s.reshape(p.shape), steps, params), state

    return optax.GradientTransformation(lambda p: inner.init(flat(p)), update)  # type: ignore[arg-type]
