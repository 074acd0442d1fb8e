"""Tests of updates that precede the scatter of a later gradient, on CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tensorstate
from tensorstate.execution.early_updates import early_updates, is_gradient_scatter
from tests.tensorstate.execution.test_sharded_step import LINE, devices

TABLES, ROWS, WIDTH, BATCH = 6, 2048, 16, 16
OPTIMIZER = optax.adagrad(0.1)


def step(tables, state, tokens):
    """A step of several embedding tables, each with its own gradient."""

    def loss(tables):
        rows = jnp.stack([jnp.tanh(table[tokens[:, k]]) for k, table in enumerate(tables)])
        return (rows.sum(0) ** 2).mean()

    gradients = jax.grad(loss)(tables)
    updates, state = OPTIMIZER.update(gradients, state, tables)
    return optax.apply_updates(tables, updates), state


def arguments():
    keys = jax.random.split(jax.random.key(0), TABLES + 1)
    tables = [jax.random.normal(key, (ROWS, WIDTH)) for key in keys[1:]]
    return tables, OPTIMIZER.init(tables), jax.random.randint(keys[0], (BATCH, TABLES), 0, ROWS)


@pytest.fixture(scope="module")
def plan():
    network = tensorstate.AlphaBetaCosts(tensorstate.MeshShape.of(LINE), (1e-6,), (1e9,))
    return tensorstate.search(step, arguments(), mesh=LINE, network=network, hardware="CPU")


@pytest.mark.parametrize("form", ["apply", "constrain"])
def test_gradients_of_tables_are_not_all_live_at_once(plan, form):
    mesh = devices(LINE)
    made = plan.apply(mesh) if form == "apply" else plan.constrain(mesh=mesh)
    compiled = made.jit().lower(*made.put(arguments())).compile()
    # All gradients together take TABLES of these; a scatter may copy its zeros.
    shard = 4 * ROWS * WIDTH // 8
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * shard
    for x, y in zip(
        jax.tree.leaves(compiled(*made.put(arguments()))),
        jax.tree.leaves(step(*arguments())),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_updates_wait_for_all_that_they_read(plan):
    graph = plan.graph
    done = {x for x, producer in ((t.index, t.producer) for t in graph.tensors) if producer is None}
    ran = set()
    for operator in graph.operators:
        early = early_updates(graph, operator, ran) if is_gradient_scatter(operator) else []
        for each in (*early, operator):
            if each.index not in ran:
                assert {use.tensor for use in each.operands} <= done
                ran.add(each.index)
                done |= {use.tensor for use in each.results}


def test_an_argument_read_again_is_not_updated_early():
    def again(tables, tokens):
        def loss(tables):
            first, second, third = tables
            whole = first[tokens] @ jax.lax.stop_gradient(third).T
            return (whole.sum(1, keepdims=True) * second[tokens] * third[tokens]).sum()

        gradients = jax.grad(loss)(tables)
        return [t - 0.1 * g for t, g in zip(tables, gradients, strict=True)]

    graph = tensorstate.trace(again, ([jnp.ones((64, 4))] * 3, jnp.arange(8)))
    third = graph.inputs[2]
    scatters = [operator for operator in graph.operators if is_gradient_scatter(operator)]
    updated = []
    for operator in scatters:
        early = early_updates(graph, operator, ())
        updated.append(any(use.tensor == third for each in early for use in each.operands))
    # The product of the first table's gradient reads the third after the second scatter.
    assert updated == [False, False, True]
