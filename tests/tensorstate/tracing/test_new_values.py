"""A result is the new value of an argument only if it is computed from it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from tests.tensorstate.steps import s

TX = optax.adam(0.1)
PARAMS = {"w": s(4, 4), "b": s(4)}
STATE = jax.eval_shape(TX.init, PARAMS)
X = s(8, 4)


def trained(params, state, x):
    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - x) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = TX.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def named(params, state, x):
    new, state, value = trained(params, state, x)
    return {"loss": value, "model": {"params": new}, "opt": state}


def listed(params, state, x):
    return [*trained(params, state, x)]


def reconstructed(params, state, x):
    new, state, value = trained(params, state, x)
    return jnp.tanh(x @ params["w"]), new, state, value


def swapped(velocity, params, x):
    """Of two trees of one structure, neither in the order of the arguments."""
    gradients = jax.grad(lambda p: jnp.sum((x @ p["w"] + p["b"]) ** 2))(params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradients)
    return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity


def in_a_loop(params, x):
    def body(params, row):
        gradients = jax.grad(lambda p: jnp.sum((row @ p["w"] + p["b"]) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), 0

    return jax.lax.scan(body, params, x[:, None])[0]


# By the name of every result that is a new value its argument; of the others nothing.
CASES = {
    "a tuple": (trained, (PARAMS, STATE, X), {"0": "params", "1": "state"}),
    "a list": (listed, (PARAMS, STATE, X), {"0": "params", "1": "state"}),
    "by names": (named, (PARAMS, STATE, X), {"model/params": "params", "opt": "state"}),
    "a reconstruction": (reconstructed, (PARAMS, STATE, X), {"1": "params", "2": "state"}),
    "other order": (swapped, (PARAMS, PARAMS, X), {"0": "params", "1": "velocity"}),
    "a loop": (in_a_loop, (PARAMS, X), {"": "params"}),
    "a product": (lambda a, b: a @ b, (s(4, 4), s(4, 4)), {}),
    "a transpose": (lambda a: a.T, (s(4, 4),), {}),
    "a residual": (lambda a, b: b + a @ b, (s(4, 4), s(4, 4)), {"": "b"}),
    "a cache": (
        lambda cache, row: jax.lax.dynamic_update_slice(cache, row, (2, 0)),
        (s(8, 4), s(1, 4)),
        {"": "cache"},
    ),
    "other types": (lambda n: n.astype(jnp.int32), (s(4),), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_new_values(name):
    function, args, expected = CASES[name]
    graph = ts.trace(function, args)
    inputs = [graph.tensors[index].name for index in graph.inputs]
    updated = {o.name: inputs[o.updates] for o in graph.outputs if o.updates is not None}
    # Every leaf of a tree, at the same place in it.
    for result, argument in updated.items():
        wanted = next(
            (to for at, to in expected.items() if f"{result}/".startswith(f"{at}/" if at else "")),
            None,
        )
        assert wanted == argument.partition("/")[0]
        if "/" in argument:
            assert result.endswith(argument.partition("/")[2])
    leaves = dict.fromkeys(expected.values(), 0)
    counted = {name: sum(i.partition("/")[0] == name for i in inputs) for name in leaves}
    assert len(updated) == sum(counted.values())


def test_a_product_stays_where_it_is_computed():
    """jax#21562: taken for the new value of its first factor, it was resharded."""
    network = ts.AlphaBetaCosts(ts.MeshShape.of({"x": 4}), (1e-6,), (1e9,))
    plan = ts.search(
        lambda a, b: a @ b,
        (s(64, 64), s(64, 64)),
        mesh={"x": 4},
        network=network,
        hardware="CPU",
        pin={"a": (), "b": (None, "x")},
    )
    assert plan.specs.results == P(None, "x")
    assert plan.cost.communication == 0
