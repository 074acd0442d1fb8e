"""Loops over whole steps, as updates by minibatches and accumulated gradients, stay loops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax

import tensorstate as ts
from tensorstate.report.hlo_check import compare_with_hlo
from tensorstate.tracing import inline
from tests.tensorstate.execution.test_sharded_step import LINE, PLANE, devices
from tests.tensorstate.oracle import arguments, assert_alike, assert_same, jitted, on_devices
from tests.tensorstate.steps import s

ADAM = optax.adam(1e-2)
EXAMPLES, EPOCHS, MINIBATCHES = 64, 4, 8
PARAMS = {"torso": s(8, 16), "policy": s(16, 4), "value": s(16, 8)}
BATCH = {"seen": s(EXAMPLES, 8), "advantage": s(EXAMPLES, 4)}
KEY = jax.eval_shape(lambda: jax.random.key(0))


def loss(params, batch):
    """A policy and a value, whose advantages are normalized over the batch."""
    hidden = jnp.tanh(batch["seen"] @ params["torso"])
    advantage = batch["advantage"] - batch["advantage"].mean()
    policy = jax.nn.log_softmax(hidden @ params["policy"]) * advantage
    return jnp.square(hidden @ params["value"]).mean() - policy.mean()


def updated(params, state, batch):
    """One update by one batch."""
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, state = ADAM.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def shuffled(params, state, batch, key):
    """One update by one shuffled batch."""
    order = jax.random.permutation(key, EXAMPLES)
    return updated(params, state, jax.tree.map(lambda x: x[order], batch))


def by_minibatches(params, state, batch, key):
    """Epochs of minibatches, shuffled each, as of proximal policy optimization."""

    def epoch(carry, key):
        order = jax.random.permutation(key, EXAMPLES)

        def split(x):
            return x[order].reshape(MINIBATCHES, -1, *x.shape[1:])

        def minibatch(carry, batch):
            params, state, value = updated(carry[0], carry[1], batch)
            return (params, state), value

        return lax.scan(minibatch, carry, jax.tree.map(split, batch))

    (params, state), values = lax.scan(epoch, (params, state), jax.random.split(key, EPOCHS))
    return params, state, values.mean()


def accumulated(params, state, batch):
    """One update by the gradients of parts of the batch, one after the other."""

    def part(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, batch)), None

    parts = jax.tree.map(lambda x: x.reshape(-1, 4, *x.shape[1:]).swapaxes(0, 1), batch)
    gradients, _ = lax.scan(part, jax.tree.map(jnp.zeros_like, params), parts)
    updates, state = ADAM.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


def meta_learned(params, batch):
    """Parameters from which a few steps of gradient descent lead to little loss."""

    def outer(params):
        def inner(params, batch):
            gradients = jax.grad(loss)(params, batch)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), None

        tasks = jax.tree.map(lambda x: x.reshape(3, -1, *x.shape[1:]), batch)
        return loss(lax.scan(inner, params, tasks)[0], batch)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(outer)(params))


STATE: Any = jax.eval_shape(ADAM.init, PARAMS)
STEPS: dict[str, tuple[Any, ...]] = {
    "one": (shuffled, PARAMS, STATE, BATCH, KEY),
    "minibatches": (by_minibatches, PARAMS, STATE, BATCH, KEY),
    "accumulated": (accumulated, PARAMS, STATE, BATCH),
    "meta": (meta_learned, PARAMS, {"seen": s(48, 8), "advantage": s(48, 4)}),
}


def planned(name: str, axes: dict[str, int], **more: Any) -> ts.Plan:
    step, *shapes = STEPS[name]
    network = ts.AlphaBetaCosts(ts.MeshShape.of(axes), (1e-9,) * len(axes), (1e11,) * len(axes))
    return ts.search(step, shapes, mesh=axes, network=network, hardware="CPU", **more)


@pytest.mark.parametrize("axes", [LINE, PLANE], ids=len)
@pytest.mark.parametrize("name", ["minibatches", "accumulated", "meta"])
@pytest.mark.in_every_run("minibatches-1", "accumulated-1", "meta-1")
def test_a_planned_loop_of_steps_has_the_values_and_bytes_of_its_plan(name, axes, monkeypatch):
    monkeypatch.setattr(inline, "MAX_ACCUMULATED", 0)
    step, *shapes = STEPS[name]
    plan, args = planned(name, axes), tuple(arguments(shapes))
    assert plan.graph.loops
    applied = plan.apply(devices(axes), collectives=ts.lax_collectives)
    placed = on_devices(args, applied)
    compiled = jitted(applied).lower(*placed).compile()
    assert_alike(jax.device_get(compiled(*placed)), jax.jit(step)(*args), 1e-4)
    report = compare_with_hlo(compiled, plan.problem.mesh, plan.cost)
    # Numbers that are shuffled are the same in every epoch: XLA gathers them once.
    assert report.is_explained if name == "minibatches" else report.agrees, str(report)


def test_thirty_two_updates_in_loops_are_a_program_of_less_than_twice_one_update():
    """Operators, lines of the program, and loops, of which there are no more than in the step."""
    sizes = []
    for name in ("one", "minibatches"):
        step, *shapes = STEPS[name]
        plan = planned(name, LINE)
        lowered = plan.apply(devices(LINE), collectives=ts.lax_collectives).jit().lower(*shapes)
        lines = len(lowered.as_text().splitlines())
        programs = lowered.compile().as_text(), jax.jit(step).lower(*shapes).compile().as_text()
        loops, own = (str(program).count(" while(") for program in programs)
        assert loops <= own
        sizes.append((len(plan.graph.operators), lines))
    assert all(many <= 2 * one for one, many in zip(*sizes, strict=True)), sizes


@pytest.mark.parametrize("name", ["minibatches", "accumulated"])
def test_tensors_of_a_loop_of_steps_have_the_roles_of_one_step(name, monkeypatch):
    """Moments are the optimizer's, and named strategies shard them or do not."""
    monkeypatch.setattr(inline, "MAX_ACCUMULATED", 0)
    graph = ts.trace(STEPS[name][0], STEPS[name][1:])
    roles = {graph.tensors[i].name: graph.tensors[i].role for i in graph.inputs}
    assert {role for of, role in roles.items() if of.startswith("params/")} == {"parameter"}
    moments = {role for of, role in roles.items() if "/mu/" in of or "/nu/" in of}
    assert moments == {"optimizer"}
    assert {role for of, role in roles.items() if of.startswith("batch/")} == {"input"}
    assert any(tensor.role == "gradient" for tensor in graph.tensors)


@pytest.mark.parametrize("loops", ["keep", "pair"])
def test_a_short_scan_that_accumulates_gradients_is_unrolled(loops, monkeypatch):
    """Its layers may be kept in other ways, and be stages; a scan that trains is a loop."""
    step, *shapes = STEPS["accumulated"]
    short = ts.trace(step, shapes, loops=loops)
    assert not short.loops
    assert_same(short, step, tuple(arguments(shapes)))
    monkeypatch.setattr(inline, "MAX_ACCUMULATED", 0)
    assert [loop.length for loop in ts.trace(step, shapes, loops=loops).loops] == [4]
    step, *shapes = STEPS["minibatches"]
    lengths = [loop.length for loop in ts.trace(step, shapes, loops=loops).loops]
    assert lengths[:2] == [EPOCHS, MINIBATCHES]


def test_steps_of_a_jitted_function_train():
    """As a training script that scans its own step."""
    step = jax.jit(updated)

    def many(params, state, batches):
        def one(carry, batch):
            params, state, value = step(*carry, batch)
            return (params, state), value

        (params, state), values = lax.scan(one, (params, state), batches)
        return params, state, values

    batches = jax.tree.map(lambda x: s(3, *x.shape), BATCH)
    shapes = PARAMS, STATE, batches
    graph = ts.trace(many, shapes)
    assert [loop.length for loop in graph.loops] == [3]
    assert_same(graph, many, tuple(arguments(shapes)))
