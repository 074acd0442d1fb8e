"""Plans are given back as pins, to their own step and to one that has changed."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from tensorstate.changed_step import _aligned
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.export.plan_file import plan_file
from tensorstate.export.plan_json import dumps, loads
from tests.tensorstate.oracle import assert_alike, jitted, on_devices
from tests.tensorstate.steps import s

MESH = ts.MeshShape.of({"x": 4})
NETWORK = ts.AlphaBetaCosts(MESH, (1e-6,), (1e9,))
LAYERS = 6


def step(params, x, y):
    def loss(params):
        hidden = x
        for weights in params["layers"]:
            hidden = jnp.tanh(hidden @ weights)
        return jnp.mean((hidden - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def arguments(layers=LAYERS, batch=32):
    return {"layers": [s(16, 16)] * layers}, s(batch, 16), s(batch, 16)


@functools.cache
def search(pins=(), layers=LAYERS):
    return ts.search(
        step, arguments(layers), mesh={"x": 4}, network=NETWORK, hardware="CPU", pin=dict(pins)
    )


def saved(plan):
    return ts.SavedPlan(loads(dumps(plan_file(plan.problem, plan.result, plan.options))))


def shardings(plan):
    return saved(plan).specs


# ---------------------------------------------------------------------- the same step


def mixed(*specs):
    return tuple((f"params/layers/{k}", spec) for k, spec in enumerate(specs))


PINS = {
    "free": (),
    "equal": mixed(*[P("x")] * LAYERS),
    "one in the middle": mixed(*[P()] * LAYERS)[2:3],
    "halves": mixed(*[P("x")] * 3, *[P(None, "x")] * 3),
    "a pattern and one": (("params/**", P(None, "x")), ("params/layers/4", P())),
}


@pytest.mark.parametrize("name", PINS)
@pytest.mark.parametrize("says", [lambda plan: dict(shardings(plan)), lambda plan: plan.path_rules])
def test_what_a_plan_says_pins_its_inputs(name, says):
    plan = search(PINS[name])
    given = [(pattern, P(*spec)) for pattern, spec in says(plan).items()]
    again = search(tuple(given))
    assert dict(shardings(again)) == dict(shardings(plan))
    assert again.result.objective == pytest.approx(plan.result.objective, rel=1e-3)


def test_layers_that_are_pinned_otherwise_are_decided_apart():
    free, one = search(), search(PINS["one in the middle"])
    assert shardings(one)["params/layers/2"] == P(None, None)
    # Those around it stay with the search; no plan with the pin is faster than one without.
    assert one.result.objective >= free.result.objective * (1 - 1e-6)
    assert free.graph.untied is None
    assert one.graph.untied is not None
    assert one.graph.untied.tied == len(free.graph.node_classes) < len(one.graph.node_classes)
    said = f"tell identical layers apart: {len(one.graph.node_classes)} decisions, "
    assert said in str(one)
    equal = search(PINS["equal"])
    assert len(equal.graph.node_classes) == len(free.graph.node_classes)
    # A graph that was untied is tied again for other pins.
    again = ts.search(one.graph, mesh={"x": 4}, network=NETWORK, hardware="CPU")
    assert again.graph.untied is None


def test_a_plan_with_untied_layers_is_saved():
    plan = search(PINS["halves"])
    again = saved(plan).on(step, arguments(), changed="refuse")
    assert str(again) == str(plan)


def test_axes_are_forbidden_to_some_layers():
    plan = ts.search(
        step,
        arguments(),
        mesh={"x": 4},
        network=NETWORK,
        hardware="CPU",
        forbid={"params/layers/0": "x"},
    )
    assert shardings(plan)["params/layers/0"] == P(None, None)


# ---------------------------------------------------------------------- a changed step


def with_metric(params, x, y):
    new, value = step(params, x, y)
    return new, value, sum(jnp.sum(w**2) for w in params["layers"])


def renamed(weights, inputs, targets):
    return step(weights, inputs, targets)


CHANGED = {
    "a metric": (with_metric, arguments(), "result 2"),
    "names": (renamed, arguments(), "argument weights/layers/0"),
    "another batch": (step, arguments(batch=64), "argument x is"),
    "a layer": (step, arguments(LAYERS + 1), f"argument params/layers/{LAYERS}"),
    "a layer less": (step, arguments(LAYERS - 1), "no argument"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_new_is_searched(name):
    function, args, message = CHANGED[name]
    with pytest.warns(UserWarning, match=rf"not as it was planned: .*{message}.* were searched"):
        plan = saved(search()).on(function, args)
    assert math.isinf(plan.result.bound)
    (before,) = {spec for at, spec in shardings(search()).items() if "layers" in at}
    assert {spec for at, spec in shardings(plan).items() if "layers" in at} == {before}
    searched = int(plan.result.method.rpartition(", ")[2].split(" of ")[0])
    assert searched < len(plan.graph.operators) / 3
    assert (searched > 0) == (name in ("a metric", "a layer"))
    free = ts.search(function, args, mesh={"x": 4}, network=NETWORK, hardware="CPU")
    assert free.result.objective * (1 - 1e-6) <= plan.result.objective
    assert plan.result.objective <= 1.25 * free.result.objective
    with pytest.raises(PlanError, match="made for another step"):
        saved(search()).on(function, args, changed="refuse")


def test_the_plan_of_a_changed_step_runs():
    function, args, _ = CHANGED["a metric"]
    with pytest.warns(UserWarning, match="were searched"):
        plan = saved(search()).on(function, args)
    keys = iter(jax.random.split(jax.random.key(0), 9))
    drawn = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), args)
    applied = plan.apply(None, lax_collectives)
    found = jitted(applied)(*on_devices(drawn, applied))
    assert_alike(jax.device_get(found), jax.device_get(function(*drawn)), 1e-4)


def test_another_step_is_refused():
    def other(params, x, y):
        return jax.tree.map(jnp.sin, params), jnp.sum(jnp.linalg.qr(x)[0])

    with pytest.raises(PlanError, match=r"another step: .* operators are the plan's: search again"):
        saved(search()).on(other, arguments())


def test_operators_are_aligned_as_lines_are():
    assert _aligned("abcd", "abcd") == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert _aligned("abcd", "abxcd") == [(0, 0), (1, 1), (2, 3), (3, 4)]
    assert _aligned("abxcd", "abcd") == [(0, 0), (1, 1), (3, 2), (4, 3)]
    assert _aligned("xaybz", "uavbw") == [(1, 1), (3, 3)]
    assert _aligned("aa", "aaa") == [(0, 0), (1, 1)]
    assert _aligned("", "a") == []
