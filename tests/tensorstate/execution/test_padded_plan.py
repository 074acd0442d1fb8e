"""Plans that pad: a vocabulary and a batch that no axis divides, trained beside one device."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tensorstate
from tensorstate.errors import PlanError
from tests.tensorstate.oracle import assert_alike, jitted

VOCABULARY, BATCH, WIDTH = 61, 15, 4
MESH = {"data": 2, "model": 4}
NETWORK = tensorstate.AlphaBetaCosts(tensorstate.MeshShape.of(MESH), (1e-6,) * 2, (1e9,) * 2)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2))
SEARCH = {"mesh": MESH, "network": NETWORK, "hardware": "CPU"}
PINS = {"params/embedding": ("model", None), "tokens": ("data",)}
STEPS = 10


def step(params, state, tokens):
    def loss(params):
        rows = params["embedding"][tokens]
        logits = jnp.tanh(rows @ params["kernel"]) @ params["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[::1]).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def init():
    keys = jax.random.split(jax.random.key(0), 3)
    embedding = jax.random.normal(keys[0], (VOCABULARY, WIDTH))
    params = {"embedding": embedding, "kernel": jax.random.normal(keys[1], (WIDTH, WIDTH))}
    tokens = jax.random.randint(keys[2], (BATCH,), 0, VOCABULARY)
    return params, OPTIMIZER.init(params), tokens


@functools.cache
def plan() -> tensorstate.Plan:
    sizes = {VOCABULARY: 64, BATCH: 16}
    solver = tensorstate.CoordinateDescent()
    shapes = jax.eval_shape(init)
    return tensorstate.search(step, shapes, padding=sizes, pin=PINS, solver=solver, **SEARCH)


@functools.cache
def one_device():
    params, state, tokens = init()
    run = jax.jit(step)
    for _ in range(STEPS):
        params, state, loss = run(params, state, tokens)
    return params, state, loss


@pytest.mark.parametrize("route", ["apply", "constrain", "explicit"])
@pytest.mark.slow_members("apply", "explicit")
def test_ten_steps_of_a_padded_plan_are_those_of_one_device(route):
    applied = getattr(plan(), route)()
    run = jitted(applied)
    params, state, tokens = applied.put(init())
    assert params["embedding"].shape == (64, WIDTH)
    assert params["embedding"].addressable_shards[0].data.shape == (16, WIDTH)
    for _ in range(STEPS):
        params, state, loss = run(params, state, tokens)
    for padded in (params, state[1][0].mu, state[1][0].nu):
        assert not np.asarray(padded["embedding"])[VOCABULARY:].any()
    assert_alike(applied.get((params, state, loss)), one_device(), 1e-4)
    again = applied.put((params, state, init()[-1]))  # a state that was put already
    assert again[0]["embedding"].shape == (64, WIDTH)


def test_bytes_of_the_compiled_program_are_those_of_the_longer_arrays():
    comparison = plan().check()
    assert comparison.agrees
    assert plan().specs.padded["params/embedding"] == ((61, WIDTH), (64, WIDTH))
    assert plan().specs.padded["tokens"] == ((15,), (16,))
    text = str(plan())
    assert "padded: 15 to 16 (6.7 % more) in tokens; 61 to 64 (4.9 % more) in params/emb" in text


def test_a_padded_plan_is_saved_and_loaded_for_the_step_as_traced(tmp_path):
    plan().save(tmp_path / "plan.json")
    saved = tensorstate.load(tmp_path / "plan.json")
    again = saved.on(step, jax.eval_shape(init))
    assert again.cost.memory == plan().cost.memory
    assert again.specs.padded == plan().specs.padded
    plan().constrain(step)  # the same step
    shorter = jax.eval_shape(lambda: (*init()[:2], init()[2][:14]))
    with pytest.raises(PlanError, match=r"another step.*tokens is int32\[14\]"):
        saved.on(step, shorter, changed="refuse")


def test_arrays_of_other_shapes_are_refused_by_name():
    applied = plan().apply()
    arguments = init()
    with pytest.raises(PlanError, match=r"embedding is \[61, 4\], and the plan pads it.*put"):
        jax.eval_shape(applied.step, *arguments)
    wrong = {**arguments[0], "embedding": jnp.zeros((62, WIDTH))}
    with pytest.raises(PlanError, match=r"padded to \[64, 4\] by the plan, got \[62, 4\]"):
        applied.put((wrong, *arguments[1:]))
    with pytest.raises(PlanError, match="the tree of arguments"):
        applied.put(arguments[:2])


def test_ways_on_which_the_users_code_runs_refuse_padded_plans():
    with pytest.raises(PlanError, match="padding=False"):
        plan().apply().jit_with_io_shardings(step)
    with pytest.raises(PlanError, match="code with shardings by path"):
        assert plan().path_rules
    with pytest.raises(PlanError, match="padding=False"):
        plan().rules({"embedding": ("vocabulary", "width")})


def test_a_search_pads_what_it_then_shards_where_that_is_faster():
    """The product over a long dimension of 1,021 is faster sharded; a width of 3 is not padded."""

    def loss(w, x):
        return jnp.tanh(x @ w).sum()

    shapes = (
        jax.ShapeDtypeStruct((1021, 3), jnp.float32),
        jax.ShapeDtypeStruct((7, 1021), jnp.float32),
    )
    found = tensorstate.search(loss, shapes, padding=True, **SEARCH)
    whole = tensorstate.search(loss, shapes, **SEARCH)
    assert found.graph.padding is not None
    assert dict(found.graph.padding.sizes) == {1021: 1024}
    assert found.cost.serial_seconds < whole.cost.serial_seconds
    assert "no axis divides dimensions of 1021" in str(whole)
    assert tensorstate.search(loss, shapes, padding=0.0005, **SEARCH).graph.padding is None


def test_what_cannot_be_padded_is_refused_where_sizes_are_given():
    shapes = (jax.ShapeDtypeStruct((15, 3), jnp.float32),)
    with pytest.raises(PlanError, match="a dimension of 15 cannot be padded to 16: sort"):
        tensorstate.search(lambda x: jnp.sort(x, axis=0), shapes, padding={15: 16}, **SEARCH)
    found = tensorstate.search(lambda x: jnp.sort(x, axis=0), shapes, padding=True, **SEARCH)
    assert found.graph.padding is None
    graph = tensorstate.trace(lambda x: x, shapes)
    with pytest.raises(PlanError, match="pad_to"):
        tensorstate.search(graph, padding=True, **SEARCH)
