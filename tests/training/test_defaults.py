"""By default the training functions cost what ``jax.lax`` does: the same operations and memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.simulation.execution_costs import ExecutionCosts
from tests.execute.harness import integers, mesh_of, sharded

N = 8
FREE = ExecutionCosts("cpu", 0, 0, 0, 0, source="a machine that charges nothing")


def leaves() -> dict:
    """Forty leaves of four sizes, stacked over the ranks."""
    sizes = (3, 64, 1000, 20_000)
    return {f"{i}.{s}": integers((N, s), np.float32, i) for i in range(10) for s in sizes}


SPLIT = P("x")


def cost(step, *arguments, in_specs: Any = SPLIT, **options) -> tuple[int, int]:
    """Operations of a compiled program, and bytes of its temporaries."""
    mapped = sharded(step, mesh_of(N), in_specs, P(), **options)
    compiled = mapped.lower(*arguments).compile()
    text: Any = compiled.as_text()
    memory: Any = compiled.memory_analysis()
    return text.count(" = "), memory.temp_size_in_bytes


def reduced(stacked, **options):
    rows = jax.tree.map(lambda x: x[0], stacked)
    return jc.optax.all_reduce_gradients("x", **options).update(rows, optax.EmptyState())[0]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "fixed"},
        {"bucket_bytes": 0},
        {"window": 1, "bucket_bytes": 4000},
        {"leaf_order": "tree"},
    ],
)
@pytest.mark.in_every_run(
    "options0-True", "options1-False", "options2-True", "options3-False", "options4-True"
)
def test_gradients_are_averaged_as_by_lax(options, check_vma):
    def by_lax(stacked):
        return lax.pmean(jax.tree.map(lambda x: x[0], stacked), "x")

    ours = cost(lambda x: reduced(x, **options), leaves(), check_vma=check_vma)
    assert ours == cost(by_lax, leaves(), check_vma=check_vma)


def test_state_is_sharded_as_by_lax():
    inner = optax.sgd(0.5, momentum=0.9)

    def padded(x):
        return jnp.pad(x.reshape(-1), (0, -x.size % N)).reshape(N, -1)

    def by_lax(stacked):
        rows = jax.tree.map(lambda x: padded(x[0]), stacked)
        own = jax.tree.map(lambda x: x / N, lax.psum_scatter(rows, "x"))
        state = inner.init(jax.tree.map(jnp.zeros_like, own))
        steps = lax.all_gather(inner.update(own, state)[0], "x")
        return jax.tree.map(lambda s, x: s.reshape(-1)[: x[0].size], steps, stacked)

    def by_zero(stacked):
        gradients = jax.tree.map(lambda x: x[0], stacked)
        zero = jc.optax.zero("x", inner)
        return zero.update(gradients, zero.init(jax.tree.map(jnp.zeros_like, gradients)))[0]

    (ours, ours_memory), (theirs, memory) = (
        cost(step, leaves(), check_vma=False) for step in (by_zero, by_lax)
    )
    assert ours <= 1.1 * theirs
    assert ours_memory <= 1.1 * memory


def test_a_stack_of_layers_costs_what_it_does_by_lax():
    params = [{"w": integers((32, 32), np.float32, i) / 64} for i in range(4)]
    x = integers((N, 4, 32), np.float32)

    def layer(p, x):
        return jnp.tanh(x @ p["w"])

    def loss(x):
        return (x**2).mean()

    def by_lax(params, x):
        def whole(params):
            y = x[0]
            for p in params:
                y = layer(p, y)
            return loss(y)

        return lax.pmean(jax.grad(whole)(lax.pcast(params, "x", to="varying")), "x")

    def ours(params, x):
        return jc.optax.overlap([layer] * 4, loss, "x")(params, x[0])[1]

    specs = (P(), P("x"))
    counted, memory = cost(ours, params, x, in_specs=specs)
    by_hand, memory_by_hand = cost(by_lax, params, x, in_specs=specs)
    assert counted <= 1.1 * by_hand
    assert memory <= 1.1 * memory_by_hand
    a, b = (sharded(step, mesh_of(N), specs, P())(params, x) for step in (ours, by_lax))
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-5), a, b)


def test_where_a_schedule_is_cheapest_leaves_are_joined():
    """On a network without machine charges, one bucket in few rounds, and the same values."""
    stacked = leaves()
    with jc.use_topology(jc.topologies.fully_connected(N), execution=FREE):
        run = sharded(reduced, mesh_of(N), P("x"), P())
        text = run.lower(stacked).as_text()
        got = run(stacked)
    assert "all_reduce" not in text
    assert 0 < text.count("collective_permute") < 2 * len(stacked)
    for name, leaf in stacked.items():
        np.testing.assert_array_equal(got[name], leaf.mean(0))
