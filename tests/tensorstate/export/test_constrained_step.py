"""Plans as constraints and under Explicit axes: the same values, the collectives of the plan."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import tensorstate as ts
from tensorstate.cost.cost import estimate_cost
from tensorstate.errors import PlanError
from tensorstate.export.constrained_step import constrained_step, explicit_step
from tests.tensorstate.execution.test_sharded_step import SHALLOW, drawn, traced
from tests.tensorstate.oracle import assert_alike, jitted, on_devices
from tests.tensorstate.steps import s

SIZES = {"data": 2, "model": 2}
NETWORK = ts.AlphaBetaCosts(ts.MeshShape.of(SIZES), (1e-9, 1e-9), (1e12, 1e12))
DEVICES = jax.make_mesh((2, 2), ("data", "model"), (AxisType.Auto,) * 2, devices=jax.devices()[:4])


def attention(params, x):
    """Heads folded into a dimension, with a bias: plans may shard heads and their width."""

    def loss(params):
        q = (x @ params["q"] + params["bias"]).reshape(4, 8, 4, 4)
        return jnp.mean(jnp.tanh(jnp.einsum("bshd,bthd->bhst", q, q)) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


ARGS = {"q": s(8, 16), "bias": s(16)}, s(4, 8, 8)
GRAPH = ts.trace(attention, ARGS)


def planned(**options):
    return ts.search(GRAPH, mesh=SIZES, network=NETWORK, hardware="CPU", **options)


def values():
    keys = iter(jax.random.split(jax.random.key(0), 4))
    return jax.tree.map(lambda shape: jax.random.normal(next(keys), shape.shape), ARGS)


@pytest.mark.parametrize("way", [constrained_step, explicit_step])
@pytest.mark.in_every_run("constrained_step")
def test_drawn_decisions_give_the_values_of_one_device(way):
    problem = planned().problem
    decisions = drawn(problem, 0)
    cost = estimate_cost(problem, decisions)
    step = way(problem, decisions, cost, DEVICES)
    found = jitted(step)(*on_devices(values(), step))
    assert_alike(jax.device_get(found), jax.device_get(attention(*values())), 1e-4)


@pytest.mark.parametrize("way", ["apply", "constrain"])
def test_explicit_axes_take_arguments_that_are_not_sharded(way):
    """``jax.make_mesh`` makes such axes by default; they are a part of the type of an array."""
    plan, explicit = planned(), jax.make_mesh(tuple(SIZES.values()), tuple(SIZES))
    step = getattr(plan, way)(*([attention] if way == "constrain" else []), mesh=explicit)
    found = step.jit(donate=False)(*values())
    assert_alike(jax.device_get(found), jax.device_get(attention(*values())), 1e-4)
    assert plan.check(step=step, mesh=explicit).agrees


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("constrain", {}),
        ("explicit", {}),
        ("constrain", {"recompute": True, "memory_limit": 4000.0}),
    ],
)
def test_the_collectives_are_the_plans(way, options):
    """XLA's partitioner would make all-reduces of reduce-scatters, and complete open sums early."""
    plan = planned(**options)
    found = plan.check(step=getattr(plan, way)(attention, DEVICES), mesh=DEVICES)
    assert any(row.compiled_bytes for row in found.rows)
    assert found.agrees, str(found)
    assert found.compiled_seconds == pytest.approx(found.predicted_seconds)
    assert not found.by_tensor


def test_what_a_tensor_costs_beyond_the_plan_is_named():
    """Under the shardings of arguments and results alone, nothing is named."""
    plan = planned()
    applied = plan.apply(DEVICES)
    alone = jax.jit(
        attention, in_shardings=applied.in_shardings, out_shardings=applied.out_shardings
    )
    found = plan.check(step=alone, mesh=DEVICES)
    # With the lowest JAX, XLA finds no more collectives than the plan has. Then all is explained.
    assert {row.tensor for row in found.by_tensor} == (set() if found.is_explained else {""})
    assert ("of no tensor of the plan" in str(found)) != found.is_explained
    assert "time of collectives on the network" in str(found)


def test_what_has_no_form_as_constraints():
    with pytest.raises(PlanError, match="2 microbatches has no form as constraints"):
        planned(microbatches=2, batch="x").constrain()
    with pytest.raises(PlanError, match="2 microbatches has no form as constraints"):
        planned(microbatches=2, batch="x").explicit()
    with pytest.raises(PlanError, match="made for another step"):
        planned().constrain(lambda params, x: attention(params, 2 * x), DEVICES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    list(
        zip(
            ("gpt", "llama", "moe", "vit", "gpt_scan", "vgg"),
            itertools.cycle(("constrain", "explicit")),
        )
    ),
)
def test_models_keep_the_plans_bytes_and_memory(name, form):
    _, graph = traced(name, **SHALLOW.get(name, {}))
    sizes = {"data": 2, "model": 4}
    network = ts.AlphaBetaCosts(ts.MeshShape.of(sizes), (1e-6, 1e-6), (5e10, 5e10))
    solver = ts.Auto(gap=0.05, time_limit=30)
    plan = ts.search(graph, mesh=sizes, network=network, hardware="CPU", solver=solver)
    runner = plan.check().compiled_temporaries
    found = plan.check(step=getattr(plan, form)())
    assert found.agrees, str(found)
    assert found.compiled_temporaries <= 1.1 * runner
