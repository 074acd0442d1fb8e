"""Joined collectives and unrolled scans: the same values and bytes, in as many as were priced."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from experiments.models import load_model
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.execution import sharded_step
from tensorstate.execution.buckets import apply_joined
from tensorstate.execution.placement_table import apply_reshard_step, lax_collectives
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import REPLICATED, SUM, MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.report.hlo_check import compare_with_hlo
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.oracle import assert_alike, on_devices

MESH = MeshShape.of({"data": 2, "model": 4})
ALL = P(("data", "model"))
COLLECTIVES = re.compile(r"stablehlo\.(?:all_gather|reduce_scatter|all_reduce)\b")
# Latency is the price, and bytes cost nothing: all that can be joined is.
NETWORK = AlphaBetaCosts(MESH, (1e-2, 1e-2), (1e15, 1e15))


def steps_of(kind: str) -> tuple[list[ReshardStep], list[tuple[int, ...]]]:
    """Steps along "model" and the shards before, of tensors of several ranks."""
    shapes = [(4, 6), (8, 3, 4), (4,), (2, 12)]
    positions = [0, 2, 0, 1]
    ends = {
        "all_gather": lambda p: (p, REPLICATED),
        "reduce_scatter": lambda p: (SUM, p),
        "all_reduce": lambda p: (SUM, REPLICATED),
    }[kind]
    steps = []
    for position in positions:
        before, after = ends(position)
        steps.append(ReshardStep(kind, 1, (REPLICATED, before), (REPLICATED, after), 64))
    return steps, shapes


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_joined_collectives_are_those_that_they_replace(kind):
    steps, shapes = steps_of(kind)
    mesh = jax.make_mesh((2, 4), MESH.names, axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def own(k: int, shape: tuple[int, ...]) -> jax.Array:
        rank = jax.lax.axis_index("data") * 4 + jax.lax.axis_index("model")
        return jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape) * (k + 1) + 100 * rank

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(), out_specs=ALL, check_vma=False)
    def both():
        arrays = [own(k, shape) for k, shape in enumerate(shapes)]
        one = [
            apply_reshard_step(step, x, MESH, lax_collectives)
            for step, x in zip(steps, arrays, strict=True)
        ]
        joined = apply_joined(steps, arrays, MESH, lax_collectives)
        assert [x.shape for x in one] == [x.shape for x in joined]
        return one, joined

    jax.tree.map(np.testing.assert_array_equal, *both())


@functools.cache
def problem_of(name: str, **sizes: int) -> tuple:
    model = load_model(name, **sizes)
    return model, Problem(trace(model.step, model.abstract_args), NETWORK, HARDWARE["H100"])


@pytest.fixture
def in_overlap(monkeypatch):
    """CPU devices in the order of devices that overlap."""
    overlapping = sharded_step.LocalExecutor
    monkeypatch.setattr(
        sharded_step, "LocalExecutor", lambda *args, **_: overlapping(*args, overlap=True)
    )


@pytest.mark.usefixtures("in_overlap")
@pytest.mark.parametrize("how", ["fsdp", "zero1"])
@pytest.mark.in_every_run("fsdp")
def test_a_step_with_buckets_is_the_step(how):
    model, problem = problem_of("mlp")
    plan = solve_baseline(problem, how)
    buckets = plan.timeline.buckets
    assert buckets
    mesh = plan.make_mesh(jax.devices()[:8])
    args = model.init(0)
    found = {}
    for name, timeline in (("apart", None), ("joined", plan.timeline)):
        applied = sharded_step.apply(
            problem, plan.decisions, plan.cost, mesh, functools.partial(lax_collectives), timeline
        )
        placed = on_devices(args, applied)
        lowered = applied.jit(donate=False).lower(*placed)
        found[name] = len(COLLECTIVES.findall(lowered.as_text()))
        assert_alike(lowered.compile()(*placed), jax.jit(model.step)(*args))
    fewer = sum(len(bucket) - 1 for bucket in buckets)
    assert found["joined"] == found["apart"] - fewer


def scanned(params, x):
    def layer(h, w):
        return h + jnp.tanh(h @ w["up"]) @ w["down"], h.mean()

    def loss(params):
        h, means = jax.lax.scan(layer, x, params)
        return jnp.square(h).mean() + means.sum()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@pytest.mark.usefixtures("in_overlap")
@pytest.mark.slow
def test_an_unrolled_scan_is_the_scan_with_the_same_bytes():
    """Seven layers in bodies of three: two bodies, and one layer beside them."""
    params = {"up": jnp.ones((7, 16, 32)) / 16, "down": jnp.ones((7, 32, 16)) / 32}
    args = params, jnp.linspace(-1, 1, 64 * 16).reshape(64, 16)
    # Axes of one speed leave ties, which are scheduled differently.
    network = AlphaBetaCosts(MESH, (1e-7, 1e-7), (1e9, 2e9))
    problem = Problem(trace(scanned, args), network, HARDWARE["H100"])
    plan = solve_baseline(problem, "fsdp")
    assert set(plan.timeline.unrolled.values()) == {3}
    mesh = plan.make_mesh(jax.devices()[:8])
    decided = problem, plan.decisions, plan.cost, mesh, lax_collectives
    counts = []
    for timeline in (None, plan.timeline):
        applied = sharded_step.apply(*decided, timeline)
        placed = on_devices(args, applied)
        compiled = applied.jit(donate=False).lower(*placed).compile()
        counts.append(len(re.findall(r" all-(?:gather|reduce)\(", compiled.as_text())))
        assert compare_with_hlo(compiled, problem.mesh, plan.cost).agrees
        assert_alike(compiled(*placed), jax.jit(scanned)(*args))
    assert counts[1] >= 3 * counts[0]
