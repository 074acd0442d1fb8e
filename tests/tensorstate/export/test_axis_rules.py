"""Rules for named dimensions say the same as the plan, or print their loss."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from tensorstate.errors import PlanError
from tests.tensorstate.steps import s

nn = pytest.importorskip("flax.linen")
SIZES = {"data": 2, "model": 2}
NETWORK = ts.AlphaBetaCosts(ts.MeshShape.of(SIZES), (1e-9, 1e-9), (1e12, 1e12))
LAYER = {"up": s(8, 16), "down": s(16, 8)}
ARGS = {"layers": [LAYER, LAYER, LAYER]}, s(8, 8)
NAMES = {"up": ("embed", "mlp"), "down": P("mlp", "embed")}


def step(params, x):
    def loss(params):
        y = x
        for layer in params["layers"]:
            y = y + jnp.tanh(y @ layer["up"]) @ layer["down"]
        return jnp.mean(y**2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


GRAPH = ts.trace(step, ARGS)


@functools.cache
def planned(**pin):
    pins = {f"params/layers/*/{name}": spec for name, spec in pin.items()}
    return ts.search(GRAPH, mesh=SIZES, network=NETWORK, hardware="CPU", pin=pins)


def test_rules_of_a_plan_that_names_can_say():
    plan = planned(up=(None, "model"), down=("model", None))
    rules = plan.rules({"layers": [NAMES] * 3})
    assert dict(rules.rules) == {"mlp": ("model",), "embed": ()}
    assert rules.loss == pytest.approx(1, rel=1e-6)
    assert not rules.otherwise
    assert rules.specs["params/layers/2/down"] == P("model", None)
    assert rules.maxtext == "logical_axis_rules:\n  - ['embed', []]\n  - ['mlp', ['model']]\n"
    spec = nn.logical_to_mesh_axes(("embed", "mlp"), rules.flax)
    assert spec == rules.specs["params/layers/0/up"]


def test_what_names_cannot_say_is_lost_and_printed():
    plan = planned(up=(None, ("data", "model")), down=("model", "data"))
    rules = plan.rules({"layers": [NAMES] * 3})
    assert {*rules.otherwise} in (
        {f"params/layers/{k}/up" for k in range(3)},
        {f"params/layers/{k}/down" for k in range(3)},
    )
    again = planned(**{n: tuple(rules.specs[f"params/layers/0/{n}"]) for n in ("up", "down")})
    assert rules.cost.serial_seconds == pytest.approx(again.cost.serial_seconds, rel=1e-3)
    assert "against the plan's" in str(rules)
    assert "the plan has params/layers/0/" in str(rules)


def test_an_axis_goes_to_the_first_rule_and_must_divide():
    """As in Flax."""
    plan = planned(up=("model", None), down=(None, "data"))
    rules = plan.rules({"up": ("a", "b"), "down": ("b", "a")})
    for name, spec in rules.specs.items():
        names = ("a", "b") if name.endswith("up") else ("b", "a")
        assert spec == nn.logical_to_mesh_axes(names, rules.flax)


def test_paths_of_layers_are_one_pattern():
    plan = planned(up=(None, "model"))
    rules = plan.path_rules
    assert rules["params/layers/*/up"] == P(None, "model")
    assert {*rules} == {"params/layers/*/up", "params/layers/*/down", "x"}
    pins = {pattern: tuple(spec) for pattern, spec in rules.items()}
    again = ts.search(GRAPH, mesh=SIZES, network=NETWORK, hardware="CPU", pin=pins)
    assert again.path_rules == rules


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"sideways": ("a", "b")}, "path ends in sideways; there are params/layers/0/down"),
        ({"up": ("a", "b", "c")}, "has 2 dimensions, and .* names more"),
        ({"up": "embed"}, "must be a PartitionSpec or a tuple"),
        ({}, "no names"),
    ],
)
def test_names_of_no_argument(names, message):
    with pytest.raises(PlanError, match=message):
        planned().rules(names)
