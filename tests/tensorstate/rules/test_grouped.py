"""``ragged_dot``: experts, rows and columns are sharded, forward and backward."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorstate as ts
from tensorstate.execution.placement_table import lax_collectives
from tests.tensorstate.oracle import assert_alike, check_operator, jitted, on_devices
from tests.tensorstate.steps import I32, s

SIZES = {"data": 2, "model": 2}
NETWORK = ts.AlphaBetaCosts(ts.MeshShape.of(SIZES), (1e-6, 1e-6), (1e9, 1e9))


def plain(x, w, sizes):
    return jnp.sum(jax.lax.ragged_dot(x, w, sizes) ** 2)


def folded(x, w, sizes):
    """Rows are sequences of a batch, and experts are of several pools."""
    return plain(x.reshape(16, 8), w.reshape(4, 8, 6), sizes)


def step(loss):
    def run(x, w, sizes):
        value, (dx, dw) = jax.value_and_grad(loss, argnums=(0, 1))(x, w, sizes)
        return value, x - 0.1 * dx, w - 0.1 * dw

    return run


STEPS: dict[str, Any] = {
    "plain": (step(plain), s(16, 8), s(4, 8, 6), s(4, dtype=I32)),
    "folded": (step(folded), s(4, 4, 8), s(2, 2, 8, 6), s(4, dtype=I32)),
}
# One group is empty, and two rows are of no group.
GROUPS = np.asarray([3, 5, 0, 6], np.int32)


def draw(*shapes):
    return [
        np.asarray(np.random.default_rng(k).normal(size=n), np.float32)
        for k, n in enumerate(shapes)
    ]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.slow
def test_every_label_can_be_sharded_but_that_of_the_sizes(name):
    function, *shapes = STEPS[name]
    graph = ts.trace(function, shapes)
    products = [o for o in graph.operators if o.primitive == "ragged_dot_general"]
    assert len(products) == 3
    for operator in products:
        uses = (*operator.operands, *operator.results)
        seen = {label for use in uses for label in use.labels}  # not that of exchanged rows
        assert len(operator.need_replication & seen) == 1
        sizes = [graph.tensors[use.tensor].sizes for use in operator.operands[:2]]
        # Every label that may be sharded, and each factor as a partial sum.
        parts = len(operator.sizes) - len(operator.need_replication) + 2
        assert check_operator(graph, operator, operands=[*draw(*sizes), GROUPS]) == parts


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "pin", [{"w": ("model",)}, {"x": ("data",)}, {"x": ("data",), "w": ("model",)}]
)
@pytest.mark.in_every_run("pin0-plain", "pin1-plain", "pin2-folded")
def test_plans_give_the_values_of_one_device(name, pin):
    function, *shapes = STEPS[name]
    args = (*draw(*(shape.shape for shape in shapes[:2])), GROUPS)
    plan = ts.search(function, shapes, mesh=SIZES, network=NETWORK, hardware="CPU", pin=pin)
    assert not plan.graph.replicated
    applied = plan.apply(None, lax_collectives)
    found = jitted(applied)(*on_devices(args, applied))
    assert_alike(jax.device_get(found), jax.device_get(function(*args)), 1e-4)


def test_other_ragged_products_are_replicated_and_named():
    """Rows that are ragged in every example of a batch."""
    numbers = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((2,), (1,)), ((), ())),
        lhs_ragged_dimensions=(1,),
        rhs_group_dimensions=(0,),
    )

    def batched(x, w, sizes):
        return jax.lax.ragged_dot_general(x, w, sizes, ragged_dot_dimension_numbers=numbers)

    graph = ts.trace(batched, [s(2, 8, 4), s(3, 4, 6), s(2, 3, dtype=I32)])
    assert [*graph.replicated] == ["ragged_dot_general"]
