"""Tests of fused results that are recomputed after the forward pass, so that XLA keeps none."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorstate
from tensorstate.cost.cost import estimate_cost
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import apply
from tensorstate.report.hlo_check import compare_with_hlo
from tests.tensorstate.execution.test_sharded_step import LINE, devices
from tests.tensorstate.solvers import recomputing

LAYERS, BATCH, LENGTH, WIDTH = 6, 16, 256, 16
ACTIVATION = 4 * BATCH * LENGTH * WIDTH // 8


def group_norm(y, scale):
    """The gradient of the scale sums (y - mean) * dy."""
    mean, square = (z.mean((1, 2), keepdims=True) for z in (y, y * y))
    return (y - mean) * (jax.lax.rsqrt(square - mean * mean + 1e-3) * scale)


def layer_norm(y, scale):
    """The gradient of the scale sums dy * y * factor, with one factor for each row."""
    factor = jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-3)
    return y * (factor * scale)


def group_norm_silu(y, scale):
    """The gradient reads the normalized y, which is computed from y, and its logistic."""
    return jax.nn.silu(group_norm(y, scale))


def step(weights, x, layer):
    def loss(weights):
        h = x
        for weight, scale in weights:
            h = jnp.tanh(layer(h @ weight, scale))
        return (h * h).mean()

    gradients = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def arguments():
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    weights = [(jax.random.normal(k, (WIDTH, WIDTH)) / 4, jnp.ones(WIDTH)) for k in keys[1:]]
    return weights, jax.random.normal(keys[0], (BATCH, LENGTH, WIDTH))


def planned(layer) -> tensorstate.Plan:
    """The plan that shards the batch."""
    network = tensorstate.AlphaBetaCosts(tensorstate.MeshShape.of(LINE), (1e-6,), (1e9,))
    machine = {"mesh": LINE, "network": network, "hardware": "CPU"}
    pin = {"x": (*LINE, None, None)}
    return tensorstate.search(functools.partial(step, layer=layer), arguments(), pin=pin, **machine)


def check_results(compiled, applied, layer) -> None:
    found = compiled(*applied.put(arguments()))
    for x, y in zip(*map(jax.tree.leaves, (found, step(*arguments(), layer))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["apply", "constrain"])
@pytest.mark.parametrize("layer", [group_norm, layer_norm])
def test_what_reductions_read_is_not_kept(layer, form):
    plan, mesh = planned(layer), devices(LINE)
    made = plan.apply(mesh, lax_collectives) if form == "apply" else plan.constrain(mesh=mesh)
    compiled = made.jit().lower(*made.put(arguments())).compile()
    memory = plan.check(compiled)
    assert memory.agrees
    # Kept in all layers, it takes LAYERS activations.
    assert memory.compiled_temporaries < memory.predicted_temporaries + 2 * ACTIVATION
    check_results(compiled, made, layer)


@pytest.mark.parametrize("layer", [group_norm, layer_norm, group_norm_silu])
def test_the_first_results_of_recomputed_products_are_not_kept(layer):
    plan, mesh = planned(layer), devices(LINE)
    problem = plan.problem
    nodes = problem.graph.nodes
    products = [n.index for n in nodes if n.kind == "einsum" and n.phase == "forward"]
    assert len(products) == LAYERS
    decisions = dataclasses.replace(plan.decisions, kept=recomputing(products), saved={})
    cost = estimate_cost(problem, decisions)
    applied = apply(problem, decisions, cost, mesh, lax_collectives)
    compiled = applied.jit().lower(*applied.put(arguments())).compile()
    memory = compare_with_hlo(compiled, problem.mesh, cost)
    assert memory.agrees
    assert memory.compiled_temporaries < memory.predicted_temporaries + 2 * ACTIVATION
    check_results(compiled, applied, layer)
