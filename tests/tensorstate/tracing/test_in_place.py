"""Steps that change ``flax.nnx`` models in place, and steps of which nothing would be left."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import lax_collectives
from tests.tensorstate.oracle import assert_alike, jitted
from tests.tensorstate.steps import s

nnx = pytest.importorskip("flax.nnx")
MESH = ts.MeshShape.of({"data": 2, "model": 2})
NETWORK = ts.AlphaBetaCosts(MESH, (1e-6, 1e-6), (1e9, 1e9))


class Model(nnx.Module):
    """Two layers, with statistics and random numbers that every call changes."""

    def __init__(self, rngs):
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.down = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.down(self.drop(self.norm(nnx.relu(self.up(x)))))


@nnx.jit
def train(model, optimizer, x, y):
    value, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return value


def silent(model, optimizer, x, y):
    train(model, optimizer, x, y)


def init():
    model = Model(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (8, 8))
    return model, nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param), x, jnp.sin(x[:, :4])


@pytest.mark.parametrize("step", [train, silent])
@pytest.mark.in_every_run("train")
def test_steps_in_place_return_what_they_change(step):
    args = init()
    plan = ts.search(step, args, mesh={"data": 2, "model": 2}, network=NETWORK, hardware="CPU")
    assert plan.graph.changed == ("model", "optimizer")
    assert "changes them in place: model, optimizer" in str(plan)
    assert sum(tensor.role == "parameter" for tensor in plan.graph.tensors) >= 6
    model, optimizer, x, y = args
    applied = plan.apply(None, lax_collectives)
    run = jitted(applied)
    first, state = jax.device_put(nnx.clone((model, optimizer)), applied.in_shardings[:2])
    for _ in range(3):
        first, state, *_ = run(first, state, x, y)
        train(model, optimizer, x, y)
    assert_alike(jax.device_get(nnx.state(first)), jax.device_get(nnx.state(model)), 1e-4)


def merged(finish):
    """A functional step: it merges a state, changes what it has merged, and returns a pytree."""

    def made():
        model, optimizer, x, y = init()
        graphdef, state = nnx.split((model, optimizer))

        def step(state, x, y):
            model, optimizer = nnx.merge(graphdef, state)
            value = train(model, optimizer, x, y)
            return finish(model, optimizer, value)

        return step, (state, x, y)

    return made


def returned_model():
    model, optimizer, x, y = init()

    def step(model, optimizer, x, y):
        value = train(model, optimizer, x, y)
        return {"optimizer": nnx.state(optimizer), "model": model, "value": value}

    return step, (model, optimizer, x, y)


FUNCTIONAL = {
    "state and value": merged(lambda m, o, value: (nnx.state((m, o)), value)),
    "parts": merged(lambda m, o, value: {"o": nnx.state(o), "m": nnx.state(m), "v": [value]}),
    "a part": merged(lambda m, o, value: (value, nnx.state(m, nnx.Param), nnx.state(o))),
    "split": merged(lambda m, o, value: (nnx.split((m, o))[1], value)),
    "the model": returned_model,
}


@pytest.mark.parametrize("name", FUNCTIONAL)
@pytest.mark.in_every_run("parts")
def test_functional_steps_return_the_pytree_that_they_return(name):
    step, args = FUNCTIONAL[name]()
    plan = ts.search(step, args, mesh={"data": 2, "model": 2}, network=NETWORK, hardware="CPU")
    assert plan.graph.changed == ()
    expected = jax.device_get(jax.jit(step)(*nnx.clone(args)))
    assert plan.graph.out_tree == jax.tree.structure(expected)
    if name not in ("state and value", "the model"):
        return  # compiled once is enough
    applied = plan.apply(None, lax_collectives)
    found = jax.device_get(jitted(applied)(*jax.device_put(nnx.clone(args), applied.in_shardings)))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert_alike([*jax.tree.leaves(found)], [*jax.tree.leaves(expected)], 1e-4)


def evaluation(state, x):
    model, _ = nnx.merge(GRAPHDEF, state)
    return {"logits": model(x)}  # changes statistics and counters


def lossy(state, x, y):
    model, optimizer = nnx.merge(GRAPHDEF, state)
    return train(model, optimizer, x, y)


GRAPHDEF = nnx.graphdef(init()[:2])
STEPS = {  # with what each gets back first
    evaluation: (),
    lossy: ("state",),
    merged(lambda m, o, value: [nnx.state(m), nnx.state(o), value])()[0]: (),
    train.__wrapped__: ("model", "optimizer"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("jit", [jax.jit, nnx.jit, lambda step: nnx.jit(jax.jit(step))])
def test_a_step_and_its_jitted_forms_are_one(step, jit):
    model, optimizer, x, y = init()
    _, state = nnx.split((model, optimizer))
    args = {"state": state, "model": model, "optimizer": optimizer, "x": x, "y": y}
    given = [args[name] for name in inspect.signature(step).parameters]
    graph, jitted_graph = ts.trace(step, nnx.clone(given)), ts.trace(jit(step), given)
    assert graph.changed == jitted_graph.changed == STEPS[step]
    assert graph.out_tree == jitted_graph.out_tree
    assert [o.primitive for o in graph.operators] == [o.primitive for o in jitted_graph.operators]


def test_an_evaluation_returns_what_it_returns():
    model, optimizer, x, _ = init()
    graph = ts.trace(evaluation, (nnx.split((model, optimizer))[1], x))
    assert [(out.name, out.view.shape) for out in graph.outputs] == [("logits", (8, 4))]


def test_a_jitted_plan_has_abstract_results():
    step = ts.search(
        lambda w, x: {"w": w - x.sum(0)},
        (s(8), s(4, 8)),
        mesh={"data": 2, "model": 2},
        network=NETWORK,
    ).apply(None, lax_collectives)
    assert jax.eval_shape(step.jit(), s(8), s(4, 8)) == {"w": s(8)}


def test_what_a_step_in_place_does_not_return_is_returned_first():
    model, optimizer, x, y = init()

    def some(model, optimizer, x, y):
        value = train(model, optimizer, x, y)
        return nnx.state(model, nnx.Param), value

    graph = ts.trace(some, (model, optimizer, x, y))
    assert graph.changed == ("model", "optimizer")


def nothing(x):
    jnp.sin(x)


def only_temporary(batch):
    batch["x"] = batch["x"] / 2


def averaged(x):
    return jax.lax.pmean(x, "batch")


def mapped(x):
    total = functools.partial(jax.lax.psum, axis_name="i")
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))
    return jax.shard_map(total, mesh=mesh, in_specs=P("i"), out_specs=P())(x)


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (nothing, [s(4)], "returns no array.*nnx.merge"),
        (only_temporary, [{"x": s(4)}], "returns no array"),
        (averaged, [s(4)], r"the collective 'pmean' \(.*test_in_place.py:\d+\).*whole batch"),
        (mapped, [s(4)], r"'shard_map' with the collective 'psum\w*' \(.*test_in_place.py:\d+"),
    ],
)
def test_steps_that_cannot_be_planned(function, args, message):
    with pytest.raises(PlanError, match=message):
        ts.trace(function, args)


def test_a_step_does_not_change_what_it_closes_over():
    model, optimizer, *_ = init()
    with pytest.raises(PlanError, match="closes over: pass it as an argument"):
        ts.trace(lambda x: train(model, optimizer, x, x[:, :4]), [s(8, 8)])
