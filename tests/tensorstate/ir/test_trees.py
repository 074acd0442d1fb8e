"""Trees whose structures differ in functions alone are the same; others are refused by a leaf."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tensorstate as ts
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.ir.trees import as_planned, first_difference
from tests.tensorstate.oracle import assert_alike

MESH = {"data": 2}
NETWORK = ts.AlphaBetaCosts(ts.MeshShape.of(MESH), (1e-6,), (1e9,))
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["weights", "opt"],
    meta_fields=["apply", "tx", "width"],
)
@dataclasses.dataclass
class State:
    """As Flax's ``TrainState``: functions beside arrays."""

    weights: Any
    opt: Any
    apply: Callable
    tx: Any
    width: int


def setup(tx=None, width=4) -> State:
    tx = optax.chain(optax.clip(1.0), optax.adam(0.1)) if tx is None else tx

    def apply(weights, x):
        return jnp.tanh(x @ weights)

    weights = jnp.eye(4)
    return State(weights, tx.init(weights), apply, tx, width)


def step(state, x):
    def loss(weights):
        return jnp.mean((state.apply(weights, x) - 1) ** 2)

    value, gradient = jax.value_and_grad(loss)(state.weights)
    updates, opt = state.tx.update(gradient, state.opt, state.weights)
    weights = optax.apply_updates(state.weights, updates)
    # A function of its own in the result, too.
    return dataclasses.replace(state, weights=weights, opt=opt, tx=setup().tx), value


@functools.cache
def planned():
    shapes = jax.eval_shape(setup), X
    return ts.search(step, shapes, mesh=MESH, network=NETWORK, hardware="CPU")


def test_a_state_made_later_is_that_of_the_plan():
    plan, state = planned(), setup()
    assert jax.tree.structure((state, X)) != plan.graph.in_tree
    assert any(out.updates is not None for out in plan.graph.outputs)
    applied = plan.apply(None, lax_collectives)
    run = applied.jit(donate=False)
    found = run(*applied.put((state, X)))
    expected = jax.jit(step)(state, X)
    assert_alike(jax.tree.leaves(found), jax.tree.leaves(expected), 1e-5)
    # What a step returns, and what another call has made, are arguments too.
    run(found[0], X)
    run(setup(), X)
    assert [x.shape for x in jax.tree.leaves(applied.get(expected))][-1] == ()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (setup(optax.sgd(0.1)), r"has no leaf '0/opt/1/0/count'"),
        (setup(width=5), r"has another State around '0/weights'"),
        (dataclasses.replace(setup(), weights={"w": jnp.eye(4)}), "has a leaf '0/weights/w' that"),
        (dataclasses.replace(setup(), apply=step), "has another State around"),
    ],
)
def test_another_state_is_refused_by_a_leaf(state, message):
    applied = planned().apply(None, lax_collectives)
    for take in (applied.put, lambda args: applied.jit()(*args), lambda args: applied.step(*args)):
        with pytest.raises(PlanError, match=message) as refusal:
            take((state, X))
        assert len(str(refusal.value)) <= 300


class Config:
    """Equal to itself alone, as most objects are."""

    def __init__(self, **values):
        self.__dict__.update(values)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (Config(f=lambda: 0), Config(f=lambda: 1), True),
        (Config(n=1), Config(n=2), False),
        ([len, {"a": (1, step)}], [len, {"a": (1, step)}], True),
        ([1], (1,), False),
        (functools.partial(step, 1), functools.partial(step, 1), True),
        (functools.partial(step, 1), functools.partial(step, 2), False),
        (Config(n=1).__init__, Config(n=1).__init__, True),
        (np.arange(3), np.arange(3), True),
        (np.arange(3), np.ones(3), False),
    ],
)
def test_what_a_tree_says_beside_its_leaves(a, b, same):
    one, other = (dataclasses.replace(setup(), tx=tx) for tx in (a, b))
    # The structure itself compares equal only where JAX can compare what it says.
    if isinstance(a, np.ndarray):
        one, other = (dataclasses.replace(setup(), tx=Config(a=tx)) for tx in (a, b))
    assert (first_difference(one, other) is None) == same


def test_what_has_a_cycle_is_compared_once():
    a, b = Config(), Config()
    vars(a)["own"], vars(b)["own"] = a, b
    one, other = (dataclasses.replace(setup(), tx=tx) for tx in (a, b))
    assert first_difference(one, other) is None
    assert as_planned(one, other, "arguments").tx is b
