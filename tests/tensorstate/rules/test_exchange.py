"""Rows that are exchanged: against whole arrays for drawn routings, in plans, and their price."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from tensorstate.cost import memory
from tensorstate.cost.cost import estimate_cost
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.hardware import HARDWARE
from tensorstate.rules.exchange import Groups, Lookup
from tensorstate.rules.sharding_rule import Along, LocalShard
from tests.tensorstate.execution.test_sharded_step import devices
from tests.tensorstate.oracle import QUICK, assert_alike, jitted, on_devices
from tests.tensorstate.rules.test_grouped import STEPS as GROUPED
from tests.tensorstate.steps import s

MESH = {"data": 2, "expert": 4}
ROWS, EXPERTS, TABLE = 32, 8, 16
PADDED = pytest.mark.parametrize("is_padded", [True, False])


def on_mesh(run, specs, out):
    placed = jax.shard_map(run, mesh=devices(MESH), in_specs=specs, out_specs=out, check_vma=False)
    return jax.jit(placed, compiler_options=QUICK)


def shard_of(sizes: tuple[int, int], is_padded: bool) -> LocalShard:
    """Rows on both axes, the first the major; owners on the second, along which rows go."""
    data, expert = (jax.lax.axis_index(name) for name in MESH)
    along = Along("expert", 4, {0: 1, 1: 1}, is_padded)
    return LocalShard(sizes, (8, 4), {0: data * 4 + expert, 1: expert}, exchange=along)


@functools.cache
def grouped(is_padded: bool):
    """Every row times the number of its expert, by the device of the expert."""

    def run(x, scale, sizes):
        route = Groups.of(shard_of((ROWS, EXPERTS), is_padded), (0,), 1, sizes)
        arrived = route.out(x)
        of_row = jnp.repeat(scale, route.sizes, total_repeat_length=len(arrived))
        return route.back(arrived * of_row[:, None])

    both = P(("data", "expert"))
    return on_mesh(run, (both, P("expert"), P()), both)


def cut(draw_ends: list[int]) -> np.ndarray:
    """Sizes of groups between these ends; rows behind the last are of no group."""
    return np.diff([0, *sorted(draw_ends)]).astype(np.int32)


ENDS = st.lists(st.integers(0, ROWS), min_size=EXPERTS, max_size=EXPERTS)


@PADDED
@settings(max_examples=25, deadline=None)
@given(ENDS, st.sampled_from(["drawn", "one gets all", "none gets any"]))
def test_rows_meet_their_experts_and_come_back(is_padded, ends, kind):
    sizes = cut(ends)
    if kind != "drawn":
        sizes = np.zeros(EXPERTS, np.int32)
        sizes[ends[0] % EXPERTS] = ROWS if kind == "one gets all" else 0
    x = np.random.default_rng(len(set(ends))).normal(size=(ROWS, 3)).astype(np.float32)
    scale = np.arange(1, 1 + EXPERTS, dtype=np.float32)
    of_row = np.zeros(ROWS, np.float32)
    of_row[: sizes.sum()] = np.repeat(scale, sizes)
    found = grouped(is_padded)(x, scale, sizes)
    np.testing.assert_array_equal(found, x * of_row[:, None])


@functools.cache
def looked_up(is_padded: bool):
    def run(table, index, updates):
        shard = shard_of((ROWS, TABLE), is_padded)
        lookup = Lookup.of(shard, (1,), index)
        at = jnp.where(lookup.is_held, lookup.index, len(table))
        added = jnp.zeros_like(table).at[at].add(lookup.returned(updates), mode="drop")
        return lookup.found(table), jax.lax.psum(added, "data")

    both = P(("data", "expert"))
    return on_mesh(run, (P("expert"), both, both), (both, P("expert")))


@PADDED
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-2, TABLE + 1), min_size=ROWS, max_size=ROWS), st.booleans())
def test_rows_are_looked_up_and_added_to(is_padded, index, is_one):
    """Also where all look up one row; there is none below 0 or behind the table."""
    at = np.asarray(index[:1] * ROWS if is_one else index, np.int32)
    draw = np.random.default_rng(ROWS)
    table, updates = (draw.integers(-9, 9, (n, 3)).astype(np.float32) for n in (TABLE, ROWS))
    found, added = looked_up(is_padded)(table, at, updates)
    is_row = (at >= 0) & (at < TABLE)
    expected = np.where(is_row[:, None], table[np.clip(at, 0, TABLE - 1)], 0)
    np.testing.assert_array_equal(found, expected)
    sums = np.zeros_like(table)
    np.add.at(sums, at[is_row], updates[is_row])
    np.testing.assert_array_equal(added, sums)


# ---------------------------------------------------------------------- plans


def layer(p, x, chosen_by_each: int = 2):
    """A mixture of experts that drops no token: sorted by expert, and two grouped products."""
    weight, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), chosen_by_each)
    flat = chosen.reshape(-1)
    order, sizes = jnp.argsort(flat), jnp.bincount(flat, length=len(p["up"]))
    hidden = jax.nn.relu(jax.lax.ragged_dot(x[order // chosen_by_each], p["up"], sizes))
    y = jax.lax.ragged_dot(hidden, p["down"], sizes)[jnp.argsort(order)]
    return (y.reshape(len(x), chosen_by_each, -1) * weight[..., None]).sum(1)


def step(p, x, wanted):
    value, gradient = jax.value_and_grad(lambda p: jnp.mean((layer(p, x) - wanted) ** 2))(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), value


def shapes(tokens: int = 32, width: int = 8, hidden: int = 16, dtype=jnp.float32):
    p = {"router": (width, EXPERTS), "up": (EXPERTS, width, hidden)}
    p = {**p, "down": (EXPERTS, hidden, width)}
    leaves = {name: s(*shape, dtype=dtype) for name, shape in p.items()}
    return leaves, s(tokens, width, dtype=dtype), s(tokens, width, dtype=dtype)


def exchanging(function, args, mesh=MESH, hardware="CPU"):
    """A plan in which all that may exchange rows does."""
    axes = len(mesh)
    costs = ts.AlphaBetaCosts(ts.MeshShape.of(mesh), (1e-6,) * axes, (1e9,) * axes)
    problem = ts.Problem(ts.trace(function, args), costs, HARDWARE[hardware])
    candidates = [
        [w for w in each.all if each.pairing.label in w] if each.pairing else each.all
        for each in problem.strategies
    ]
    options = ts.SearchOptions(objective="sum")
    return ts.Plan(problem, ts.Auto().solve(problem, candidates, options), options)


def drawn(kind: str, seed: int = 0):
    draw = np.random.default_rng(seed)
    p, x, wanted = jax.tree.map(lambda a: draw.normal(size=a.shape).astype(a.dtype), shapes())
    if kind == "all to one":
        p["router"][:] = 0
        p["router"][:, 5] = 1
        x = np.abs(x)
    return p, x, wanted


@pytest.mark.parametrize(
    ("mesh", "collectives"),
    [
        (MESH, lax_collectives),
        pytest.param({"expert": 8}, None, marks=pytest.mark.slow),
        pytest.param(MESH, None, marks=pytest.mark.slow),
    ],
)
def test_a_mixture_of_experts_is_that_of_one_device(mesh, collectives):
    """Tokens to experts and back, forward and backward; some experts get none, or one gets all."""
    plan = exchanging(step, shapes(), mesh)
    kinds = {send.kind for send in plan.result.cost.inner_sends}
    assert kinds == {"all_gather", "all_to_all"}
    assert "expert parallel (rows exchanged)" in str(plan)
    applied = plan.apply(devices(mesh), collectives)
    run, whole = jitted(applied), jax.jit(step, compiler_options=QUICK)
    for kind, seed in (("drawn", 0), ("drawn", 1), ("all to one", 2)):
        args = drawn(kind, seed)
        found = jax.device_get(run(*on_devices(args, applied)))
        assert_alike(found, jax.device_get(whole(*args)), 1e-4)


@pytest.mark.slow
def test_other_ways_out_of_a_plan_exchange_rows_too():
    plan, args = exchanging(step, shapes()), drawn("drawn")
    expected = jax.device_get(jax.jit(step, compiler_options=QUICK)(*args))
    for applied in (plan.constrain(), plan.explicit()):
        found = jax.device_get(jitted(applied)(*on_devices(args, applied)))
        assert_alike(found, expected, 1e-4)


@pytest.mark.parametrize("hardware", ["CPU", pytest.param("H100", marks=pytest.mark.slow)])
def test_the_bytes_are_those_of_the_program(hardware):
    """Padded as on CPU devices, exactly; otherwise the check says what XLA for CPUs pads."""
    function, *args = GROUPED["plain"]
    plan = exchanging(function, args, {"expert": 2}, hardware)
    compared = plan.check()
    assert compared.agrees == (hardware == "CPU")
    assert compared.is_explained
    assert ("no all_to_all of these" in str(compared)) == (hardware != "CPU")
    found = {row.kind: row for row in compared.rows}["all_to_all"]
    # Rows of 8 and of 6 columns: there and back forward, there and back for the gradient of the
    # rows, and both there for that of the weights.
    padded = 3 * (16 * 8 + 16 * 6) * 4
    assert found.compiled_bytes == padded
    assert found.predicted_bytes == (padded if hardware == "CPU" else padded // 2 // 2)


def test_there_is_room_for_all_rows_with_every_expert(monkeypatch):
    """At the peak, of the gradient of the weights: rows of 8 and of 6 columns arrive."""
    function, *args = GROUPED["plain"]
    plan = exchanging(function, args, {"expert": 2}, "H100")
    before = plan.result.cost.memory.peak
    monkeypatch.setattr(memory, "_exchange_terms", lambda *_: iter(()))
    again = ts.Problem(plan.problem.graph, plan.problem.network, plan.problem.hardware)
    without = estimate_cost(again, plan.result.decisions).memory.peak
    assert before - without == (16 * 8 + 16 * 6) * 4


@pytest.mark.slow
def test_tokens_are_exchanged_where_that_is_fastest():
    """Eight GPUs of a host, with weights that would take longer to gather than tokens."""
    from jaxcoll import topologies

    plan = ts.search(
        step, shapes(65536, 4096, 14336, jnp.bfloat16), mesh={"expert": 8}, hardware="H100",
        topology=topologies.dgx_h100(1),
    )  # fmt: skip
    assert "expert parallel (rows exchanged)" in str(plan)
    assert plan.result.cost.count_by_collective["all_to_all", 0] > 6
