"""Steps without written rules: searched and drawn plans give the results of one device."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import pytest

from tensorstate import AlphaBetaCosts, Auto, MeshShape, search, trace
from tensorstate.cost.cost import estimate_cost
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import apply
from tests.tensorstate.execution.test_sharded_step import PLANE, devices, drawn
from tests.tensorstate.oracle import QUICK, assert_alike, jitted, on_devices
from tests.tensorstate.unseen import UNSEEN

NETWORK = AlphaBetaCosts(MeshShape.of(PLANE), (1e-9, 1e-9), (1e12, 1e12))
# One per kind of rule: inferred, selected, replicated, in another order.
QUICKLY = ("cond", "while", "while of each example", "dropout")
DOUBLE = ("special", "noise", "cumlogsumexp", "switch", "adafactor", "gamma", "fori_loop of data")


def planned(name: str, loops: Literal["keep", "unroll"] = "keep"):
    """The searched plan of a step whose batch is sharded."""
    unseen = UNSEEN[name]
    graph = trace(unseen.step, jax.eval_shape(unseen.init), loops=loops)
    pin = {"x": ("data", None)}
    return search(
        graph,
        mesh=PLANE,
        network=NETWORK,
        hardware="CPU",
        pin=pin,
        solver=Auto(gap=0.1, time_limit=20),
    )


def check(name: str, seeds: tuple[int, ...] = (0,)) -> None:
    """Two steps by the searched plan and by drawn ones, against two steps on one device."""
    unseen, plan = UNSEEN[name], planned(name)
    args = unseen.init()
    alone = jax.jit(unseen.step, compiler_options=QUICK)
    first = alone(*args)
    expected = alone(first[0], first[1], *args[2:])
    problem, mesh = plan.problem, devices(PLANE)
    decisions = [drawn(problem, seed) for seed in seeds]
    applied = [plan.apply(mesh, lax_collectives)]
    applied += [
        apply(problem, d, estimate_cost(problem, d), mesh, lax_collectives) for d in decisions
    ]
    for one in applied:
        run = jitted(one)
        found = run(*on_devices(args, one))
        recomputed = (found[0], found[1], *args[2:])
        found = run(*on_devices(recomputed, one))
        assert_alike(jax.device_get(found), jax.device_get(expected), unseen.rtol)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.slow) for name in UNSEEN],
)
def test_plans_of_unseen_steps_are_the_steps(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", DOUBLE)
def test_plans_of_unseen_steps_in_64_bits(name):
    """By the searched plan: which strategies there are does not depend on the digits."""
    with jax.enable_x64(True):
        check(name, seeds=())


def test_a_plan_names_what_runs_on_every_device():
    text = str(planned("while", loops="unroll"))
    assert "replicated for want of a rule: while (" in text
    assert "unseen.py" in text
    assert "for want of a rule" not in str(planned("while"))


def test_both_branches_of_a_choice_can_be_sharded():
    def step(w, x):
        return jax.lax.cond(x[0, 0] > 0, lambda: jnp.tanh(x @ w), lambda: x @ w)

    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph = trace(step, (shape, shape))
    assert not graph.replicated
    (choice,) = [o for o in graph.operators if o.primitive == "select_n"]
    assert choice.sizes == (8, 8)
    assert not choice.need_replication
