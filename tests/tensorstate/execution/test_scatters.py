"""Tests of sums that every device scatters into, on CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorstate
from tensorstate.execution.placement_table import lax_collectives
from tests.tensorstate.execution.test_sharded_step import LINE, devices

READS, NODES, WIDTH, EDGES = 4, 4096, 4, 512


def step(weight, nodes, edges):
    """Each edge reads several nodes, as in a graph network."""

    def loss(weight):
        h = jnp.tanh(nodes @ weight)
        read = [jnp.tanh(h[edges[:, k]]) for k in range(READS)]
        return jnp.square(jnp.stack(read).sum(0)).mean()

    return weight - 0.1 * jax.grad(loss)(weight)


def arguments():
    keys = jax.random.split(jax.random.key(0), 3)
    weight = jax.random.normal(keys[0], (WIDTH, WIDTH)) / 2
    nodes = jax.random.normal(keys[1], (NODES, WIDTH))
    return weight, nodes, jax.random.randint(keys[2], (EDGES, READS), 0, NODES)


@pytest.mark.parametrize("form", ["apply", "constrain"])
def test_a_scatter_begins_when_the_sum_before_it_has_been_reduced(form):
    network = tensorstate.AlphaBetaCosts(tensorstate.MeshShape.of(LINE), (1e-6,), (1e9,))
    pin = {"nodes": (*LINE, None), "edges": (*LINE, None)}
    plan = tensorstate.search(
        step, arguments(), mesh=LINE, network=network, hardware="CPU", pin=pin
    )
    scatters = [o for o in plan.graph.operators if o.kind == "scatter"]
    assert len(scatters) == READS
    mesh = devices(LINE)
    made = plan.apply(mesh, lax_collectives) if form == "apply" else plan.constrain(mesh=mesh)
    compiled = made.jit().lower(*made.put(arguments())).compile()
    memory = plan.check(compiled)
    assert memory.agrees
    # All at once would take 1.33 times the memory of the plan.
    assert memory.compiled_temporaries < 1.1 * memory.predicted_temporaries
    found, expected = compiled(*made.put(arguments())), step(*arguments())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
