"""Ring attention: blocks against whole sequences, its sends against HLO, and where it is chosen."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from tensorstate.cost import memory
from tensorstate.cost.cost import estimate_cost
from tensorstate.errors import PlanError
from tensorstate.ir.placements import REPLICATED, divides_evenly
from tensorstate.rules.ring import Blocks, attend, attention_of, found, gradients
from tests.tensorstate.execution.test_sharded_step import devices
from tests.tensorstate.oracle import QUICK, arguments, assert_alike, jitted, on_devices
from tests.tensorstate.steps import s

HEADS = "b q h d, b k h d, b k h d -> b q h d"
# Heads of queries in groups that share one of keys: by two labels, and by labels of their own.
GROUPS = "b q m g d, b k m d, b k m d -> b q m g d"
GROUPED = "b q n d, b k m d, b k m d -> b q n d"
# The products take so long that sends hide behind them.
SLOW = ts.Hardware("slow", {4: 1e9}, 1e12, 1e9)


def attention(q, k, v, causal: bool = True):
    """The attention of ``jax.nn``, also of queries with two dimensions of heads."""
    heads = q.reshape(*q.shape[:2], -1, q.shape[-1])
    return jax.nn.dot_product_attention(heads, k, v, is_causal=causal).reshape(q.shape)


def parsed(labels: str):
    sides = [[tuple(part.split()) for part in side.split(",")] for side in labels.split("->")]
    operands, results = sides
    return attention_of(operands, results, ("q", "k"), labels)


SHAPES = {HEADS: ((2,), (2,)), GROUPS: ((2, 3), (2,)), GROUPED: ((6,), (2,))}


@pytest.mark.parametrize(
    ("labels", "mesh", "dtype", "causal"),
    [
        (GROUPED, {"a": 2, "b": 2}, jnp.float32, True),
        pytest.param(HEADS, {"a": 8}, jnp.float32, False, marks=pytest.mark.slow),
        pytest.param(GROUPS, {"a": 2, "b": 4}, jnp.float32, True, marks=pytest.mark.slow),
        pytest.param(GROUPED, {"a": 2, "b": 2, "c": 2}, jnp.bfloat16, True, marks=pytest.mark.slow),
    ],
)
def test_blocks_that_go_round_are_the_whole_sequence(labels, mesh, dtype, causal):
    """Values and gradients, of more keys than queries, around one, two and three axes."""
    function = functools.partial(attention, causal=causal)
    of_q, of_k = SHAPES[labels]
    draw = np.random.default_rng(0)
    shapes = ((1, 16, *of_q, 4), (1, 24, *of_k, 4), (1, 24, *of_k, 4), (1, 16, *of_q, 4))
    q, k, v, given = (jnp.asarray(draw.normal(size=shape), dtype) for shape in shapes)
    a = parsed(labels)._replace(scale=0.5, causal=causal)
    names = tuple(mesh)

    def on_device(q, k, v, given):
        places = jax.lax.axis_index(names) * q.shape[1] + jnp.arange(q.shape[1])
        blocks = Blocks(places, names)
        made = attend(a, (q, k, v), blocks)
        return (made, *gradients(a, (q, k, v), given, blocks))

    spec = P(None, names)
    placed = jax.shard_map(
        on_device, mesh=devices(mesh), in_specs=(spec,) * 4, out_specs=(spec,) * 4, check_vma=False
    )
    found_here = jax.jit(placed, compiler_options=QUICK)(q, k, v, given)

    def whole(q, k, v, given):
        made, pull = jax.vjp(function, q, k, v)
        return (made, *pull(given))

    expected = jax.jit(whole, compiler_options=QUICK)(q, k, v, given)
    tolerance = 1e-5 if dtype == jnp.float32 else 3e-2
    for x, y in zip(found_here, expected, strict=True):
        most = np.abs(np.asarray(y, np.float64)).max()
        np.testing.assert_allclose(
            np.asarray(x, np.float64), np.asarray(y, np.float64), atol=tolerance * most
        )


@pytest.mark.parametrize(("scale", "causal"), [(None, True), (1.0, False), (0.3, True)])
def test_scale_and_mask_are_found(scale, causal):
    function = functools.partial(jax.nn.dot_product_attention, is_causal=causal, scale=scale)
    sizes = (("b", 8), ("q", 64), ("h", 2), ("d", 16), ("k", 64))
    one = found(parsed(HEADS), lambda *x: (function(*x),), sizes, (np.dtype(np.float32),) * 3)
    assert one.causal == causal
    assert one.scale == pytest.approx(0.25 if scale is None else scale, rel=1e-4)


def step(function, w, x):
    """One step of gradient descent on projections around an attention."""

    def loss(w):
        q, k, v = (jnp.tensordot(x, w[n], 1) for n in "qkv")
        return jnp.square(function(q, k, v)).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - g, w, gradient), value


def inputs(batch: int = 2, places: int = 64):
    return {n: s(16, 2, 8) for n in "qkv"}, s(batch, places, 16)


def costs(mesh):
    axes = len(mesh)
    return ts.AlphaBetaCosts(ts.MeshShape.of(mesh), (1e-9,) * axes, (1e9,) * axes)


def around_a_ring():
    """The step with an attention that may run around a ring."""
    return functools.partial(step, ts.declare(attention, HEADS, ring="q k"))


def planned(mesh, shapes, **options):
    return ts.search(
        around_a_ring(), shapes, mesh=mesh, network=costs(mesh), hardware=SLOW, **options
    )


@pytest.mark.slow
def test_a_long_sequence_is_attended_to_around_a_ring():
    """Chosen where products hide the sends, named, exact in bytes, and equal to one device."""
    mesh, shapes = {"data": 2, "seq": 4}, inputs()
    plan = planned(mesh, shapes, pin={"x": ("data", "seq")})
    assert "context parallel (ring attention) on `seq`" in str(plan)
    args = tuple(arguments(shapes))
    expected = jax.jit(functools.partial(step, attention))(*args)
    for applied in (plan.apply(devices(mesh)), plan.constrain(), plan.explicit()):
        found = jitted(applied)(*on_devices(args, applied))
        assert_alike(jax.device_get(found), expected, 1e-5)
    compared = plan.check(step=applied)
    assert compared.agrees
    assert compared.compiled_seconds == pytest.approx(compared.predicted_seconds)


@pytest.mark.slow
def test_sends_around_two_axes_are_those_of_the_program():
    """Forced, since one axis of the ring and another of heads or rows sends less."""
    mesh, shapes = {"a": 2, "b": 4}, inputs(batch=1)
    graph = ts.trace(around_a_ring(), shapes)
    problem = ts.Problem(graph, costs(mesh), SLOW)
    candidates = []
    for strategies in problem.strategies:
        ring = strategies.pairing
        candidates.append([(ring.label,) * 2] if ring is not None else strategies.all)
        assert all(divides_evenly(w, strategies.node.sizes, problem.mesh) for w in candidates[-1])
    result = ts.Auto().solve(problem, candidates, ts.SearchOptions(objective="sum"))
    plan = ts.Plan(problem, result, ts.SearchOptions(objective="sum"))
    compared = plan.check()
    assert compared.agrees
    permutes = {row.axes: row.compiled_count for row in compared.rows if row.kind == "permute"}
    # Keys and values once forward and twice backward; the sums of their gradients once.
    assert permutes == {"a": 6 * (2 - 1) + 2 * 2, "b": 6 * (2 * 4 - 1) + 2 * 2 * 4}


@pytest.mark.slow
def test_queries_alone_are_sharded_under_a_causal_mask():
    """With keys gathered, by their places; without ring= they stay whole."""
    mesh, shapes = {"seq": 8}, inputs(batch=1)
    asked = {"pin": {"x": (None, "seq")}, "forbid": {"w/*": "seq"}, "objective": "sum"}
    plan = planned(mesh, shapes, **asked)
    assert "context parallel on `seq`" in str(plan)
    args = tuple(arguments(shapes))
    applied = plan.apply(devices(mesh))
    found = jitted(applied)(*on_devices(args, applied))
    assert_alike(jax.device_get(found), jax.jit(functools.partial(step, attention))(*args), 1e-5)


def windowed(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, local_window_size=(63, 0))


@pytest.mark.parametrize(
    ("window", "length", "causal"),
    [
        ((299, 0), 512, False),
        ((2000, 0), 4096, True),
        ((4096, 300), 512, False),
        (None, 4096, True),
        # Each window and each mask once more, of which the other cells run the code.
        pytest.param((299, 0), 512, True, marks=pytest.mark.slow),
        pytest.param((2000, 0), 4096, False, marks=pytest.mark.slow),
        pytest.param((4096, 300), 512, True, marks=pytest.mark.slow),
        pytest.param(None, 4096, False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.in_every_run("None-4096-True")
def test_windows_wider_than_the_tried_sequence_are_refused(window, length, causal):
    """At the ends of a long sequence, in memory that grows with its length."""

    def local(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, local_window_size=window)

    def traced():
        return ts.trace(ts.declare(local, HEADS, ring="q k"), (s(1, length, 2, 4),) * 3)

    sees_all = window is None or (window[0] >= length and causal)
    if sees_all:
        traced()
        return
    with pytest.raises(PlanError, match="does not return softmax attention"):
        traced()


@pytest.mark.parametrize(
    ("function", "labels", "options", "message"),
    [
        pytest.param(
            windowed,
            HEADS,
            {"ring": "q k"},
            "does not return softmax attention",
            marks=pytest.mark.slow,
        ),
        (attention, HEADS, {"ring": "q"}, "must name the labels of the queries and of the keys"),
        (attention, HEADS, {"ring": "k q"}, "must name the labels of the queries and of the keys"),
        (attention, HEADS, {"ring": "q k", "whole": "q d"}, "leave it out of whole="),
        (attention, HEADS, {"causal": True}, "declared with ring="),
        (attention, "b q h d, b k h d -> b q h d", {"ring": "q k"}, "of an attention"),
    ],
)
def test_what_is_no_attention_is_refused(function, labels, options, message):
    def declared():
        return ts.trace(ts.declare(function, labels, **options), (s(1, 128, 2, 4),) * 3)

    with pytest.raises(PlanError, match=message):
        declared()


def test_blocks_on_their_way_take_memory(monkeypatch):
    """At the peak, backward: two blocks of keys, of values, and of the sum of either's gradient."""
    mesh, shapes = {"seq": 8}, inputs(batch=1)
    graph = ts.trace(around_a_ring(), shapes)
    problem, again = (ts.Problem(graph, costs(mesh), SLOW) for _ in range(2))
    candidates = [
        [(w.pairing.label,)]
        if w.pairing is not None
        else [v for v in w.all if min(v) >= REPLICATED]
        for w in problem.strategies
    ]
    result = ts.Auto().solve(problem, candidates, ts.SearchOptions(objective="sum"))
    monkeypatch.setattr(memory, "_ring_terms", lambda *args: iter(()))
    without = estimate_cost(again, result.decisions).memory.peak
    block = 64 * 2 * 8 * 4 // 8
    assert result.cost.memory.peak - without == 4 * 2 * block
