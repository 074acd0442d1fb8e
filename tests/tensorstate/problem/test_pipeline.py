"""Pipeline stages: their price, the steps that have them, and refusals."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import tensorstate as ts
from jaxcoll import topologies
from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.errors import PlanError
from tensorstate.ir.placements import REPLICATED, SUM
from tensorstate.problem.pipeline import stream_counts
from tests.tensorstate.execution.test_step_loop import layers, sgd
from tests.tensorstate.steps import s

ALPHA, BANDWIDTH = 1e-6, 1e9


def network(axes: dict[str, int]) -> ts.AlphaBetaCosts:
    each = len(axes)
    return ts.AlphaBetaCosts(ts.MeshShape.of(axes), (ALPHA,) * each, (BANDWIDTH,) * each)


def stack(params, x):
    """Products, scanned."""
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params)[0]


def problem(step, shapes, axes, microbatches, **stages: Any) -> ts.Problem:
    graph = ts.trace(step, shapes)
    batch = "x" if step is stack else None
    return ts.Problem(graph, network(axes), ts.HARDWARE["CPU"], microbatches, batch, **stages)


def products(found: ts.Problem) -> list[int]:
    return [
        class_id
        for class_id in range(len(found.graph.node_classes))
        if found.node(class_id).kind == "einsum"
    ]


@pytest.mark.parametrize(("layers", "stages", "microbatches"), [(4, 4, 8), (8, 2, 4), (4, 2, 1)])
def test_the_price_of_a_stream(layers, stages, microbatches):
    """Compute x (M + S - 1) / (M S), a send of a microbatch per tick, and memory / S."""
    shapes = s(layers, 512, 512), s(256, 512)
    axes = {"stage": stages}
    whole = problem(stack, shapes, axes, 1)
    staged = problem(stack, shapes, axes, microbatches, stages="stage")
    ticks = microbatches + stages - 1
    (product,) = products(staged)
    (alone,) = products(whole)
    assert math.isclose(
        staged.seconds(product, (-1,)),
        whole.seconds(alone, (-1,)) * ticks / (microbatches * stages),
    )
    first = Decisions(tuple(strategies.all[0] for strategies in staged.strategies))
    cost = estimate_cost(staged, first)
    nbytes = 256 * 512 * 4 // microbatches
    assert cost.count_by_collective["permute", 0] == ticks
    assert cost.bytes_by_collective["permute", 0] == ticks * nbytes
    sends = [reshard for reshard in cost.reshards if reshard.num_sends]
    assert len(sends) == 1
    assert math.isclose(sends[0].seconds, ticks * (ALPHA + nbytes / BANDWIDTH))
    (stacked,) = [g for g in staged.tensor_groups if g.is_input and len(g.sizes) == 3]
    placements = staged.produced_placements(stacked, staged.strategies[stacked.class_id].all[0])
    assert staged.local_bytes(stacked, (0,)) * stages == stacked.nbytes
    assert placements == (-1,)  # an input is placed by the search


def classified(params, x, y):
    """Layers, a head and a cross entropy over as many classes as weigh in memory."""
    h, _ = lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None)), x, params["layers"])
    logp = jax.nn.log_softmax(h @ params["head"])
    return -jnp.take_along_axis(logp, y[:, None], 1).mean()


CLASSIFIED = {"layers": s(4, 8, 8), "head": s(8, 64)}, s(64, 8), s(64, dtype=jnp.int32)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 8), (2, 2), (4, 16)])
def test_the_price_of_1f1b(stages, microbatches):
    """The layers' compute and sends of GPipe, and residuals of 2 S - 1 microbatches of M."""
    seconds, stacked, memory, held = {}, {}, {}, {}
    for schedule in ("gpipe", "1f1b"):
        found = problem(
            sgd(classified),
            CLASSIFIED,
            {"stage": stages},
            microbatches,
            stages="stage",
            schedule=schedule,
        )
        staged, graph = found.pipeline, found.graph
        assert staged is not None
        held[schedule] = staged.held
        loops = {
            c: graph.operators[found.node(c).members[0].operator].loops for c in products(found)
        }
        inside = [c for c, around in loops.items() if set(around) & staged.loops]
        seconds[schedule] = sum(found.seconds(c, (-1,)) for c in inside)
        stacked[schedule] = sum(
            graph.tensors[use.tensor].nbytes
            for operator in graph.operators
            for use in operator.results
            if operator.primitive == "scan_stack" and staged.labels[operator.index] is not None
        )
        first = Decisions(tuple(strategies.all[0] for strategies in found.strategies))
        memory[schedule] = estimate_cost(found, first).memory.peak
        sends = [found.sends(group, (-1,))[1] for group in found.tensor_groups]
        assert max(sends) == microbatches + stages - 1
    assert held == {"gpipe": microbatches, "1f1b": min(microbatches, 2 * stages - 1)}
    assert seconds["1f1b"] == pytest.approx(seconds["gpipe"])
    assert stacked["1f1b"] * held["gpipe"] == stacked["gpipe"] * held["1f1b"] > 0
    assert memory["1f1b"] < memory["gpipe"]


@pytest.mark.slow
def test_the_order_of_stages_is_chosen_by_the_memory():
    """GPipe, which is never slower, until only 1F1B fits; then that is found, and said."""
    given: dict[str, Any] = {"microbatches": 8, "shapes": CLASSIFIED}
    peaks, plans = {}, {}
    for schedule in ("gpipe", "1f1b"):
        plans[schedule] = search(sgd(classified), pipeline_schedule=schedule, **given)
        peaks[schedule] = plans[schedule].cost.memory.peak
    assert peaks["1f1b"] < peaks["gpipe"]
    assert plans["gpipe"].result.objective <= plans["1f1b"].result.objective
    assert search(sgd(classified), **given).problem.schedule == "gpipe"
    limit = peaks["1f1b"]
    best = search(sgd(classified), memory_limit=limit, **given)
    assert best.cost.memory.fits(limit)
    assert best.problem.schedule == "1f1b"
    assert "1F1B, bubble 11 %" in str(best)
    assert "residuals of 3 held" in str(best)
    with pytest.raises(PlanError, match=r"kB|GiB|KiB|bytes|memory"):
        search(sgd(classified), memory_limit=limit, pipeline_schedule="gpipe", **given)


def test_a_plan_of_1f1b_is_saved(tmp_path):
    plan = search(sgd(classified), CLASSIFIED, microbatches=4, pipeline_schedule="1f1b")
    plan.save(tmp_path / "plan.json")
    again = ts.load(tmp_path / "plan.json").on(sgd(classified), CLASSIFIED)
    assert again.problem.schedule == "1f1b"
    assert again.cost.serial_seconds == plan.cost.serial_seconds
    assert again.cost.memory == plan.cost.memory
    exits = [t.name for t in plan.problem.graph.tensors if "of all microbatches" in t.name]
    assert exits
    assert "factors" in plan.explain(exits[0])
    repriced = ts.reprice(plan, network({"stage": 2}))
    assert repriced.communication == plan.cost.communication
    assert plan.compare("ddp").plans["ddp"].problem.pipeline is None


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        # The derivative of a square of a mean needs the mean of all.
        (
            lambda h: jnp.square(h.mean()),
            r"carry_in .* of all microbatches, by reduce_sum .*test_pipeline",
        ),
        (lambda h: (h - h.mean(0)).var(), r"full batch is needed at once by sub"),
        (
            lambda h: lax.scan(lambda c, r: (c + jnp.square(r).sum(), None), 0.0, h.T)[0],
            r"a loop of its own",
        ),
    ],
)
def test_what_1f1b_cannot_run_between_its_scans(loss, message):
    def model(params, x):
        h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params)
        return loss(h)

    shapes = s(4, 8, 8), s(16, 8)
    with pytest.raises(PlanError, match=rf'{message}.*pipeline_schedule="gpipe"'):
        search(sgd(model), shapes, microbatches=4, pipeline_schedule="1f1b")
    assert search(sgd(model), shapes, microbatches=4).problem.schedule == "gpipe"


def test_1f1b_takes_one_scan_forward_and_one_backward():
    with pytest.raises(PlanError, match=r"and has 1 and 0"):
        search(stack, (s(4, 8, 8), s(16, 8)), batch="x", microbatches=4, pipeline_schedule="1f1b")

    def returned(params, x):
        h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params)
        return jnp.square(h).mean(), h

    def step(params, x):
        (loss, h), gradient = jax.value_and_grad(returned, has_aux=True)(params, x)
        return params - gradient, loss, h

    with pytest.raises(PlanError, match=r"the step returns .*, which has a row for every example"):
        search(step, (s(4, 8, 8), s(16, 8)), batch="x", microbatches=4, pipeline_schedule="1f1b")


def test_everything_of_a_scan_is_fixed_on_its_axis():
    """Stacks are sharded by their layers, bodies are replicated, and carries leave as sums."""
    found = problem(sgd(layers), ({"layers": {"up": s(4, 8, 16), "down": s(4, 16, 8)},
        "head": s(8, 8)}, s(16, 8)), {"data": 2, "stage": 2}, 4, stages="stage")  # fmt: skip
    staged = found.pipeline
    assert staged is not None
    assert len(staged.loops) == 2
    assert staged.bubble == 1 / 5
    for class_id, strategies in enumerate(found.strategies):
        node = found.node(class_id)
        operator = found.graph.operators[node.members[0].operator] if node.members else None
        if operator is None or not operator.loops:
            assert strategies.fixed is None
            continue
        is_stack = operator.primitive in ("scan_row", "scan_stack")
        (layer,) = node.need_replication if is_stack else (-1,)
        assert {strategy[1] for strategy in strategies.all} == {layer}
    for group in found.tensor_groups:
        producer = found.graph.tensors[group.tensors[0]].producer
        if producer is not None and found.graph.operators[producer].primitive == "carry_out":
            for strategy in found.strategies[group.class_id].all:
                assert found.produced_placements(group, strategy)[1] == SUM


def test_no_reshard_in_a_body_leads_along_the_axis_of_the_stages():
    """There devices have other layers. After the scan a reshard may lead along all axes."""
    params = {"layers": {"up": s(4, 8, 16), "down": s(4, 16, 8)}, "head": s(8, 8)}
    axes = {"data": 2, "stage": 2}
    found = problem(sgd(layers), (params, s(16, 8)), axes, 2, stages="stage")
    assert found.pipeline is not None
    inside = 0
    for group in found.tensor_groups:
        loops = found.graph.loops_around(group.tensors[0])
        reached = found.reshard_graph(group).reachable([(SUM, REPLICATED)])
        along = {placements[1] for placements in reached}
        if loops and loops[0] in found.pipeline.loops:
            inside += 1
            assert along == {REPLICATED}
        elif group.sizes == (16, 8):
            assert along > {REPLICATED}
    assert inside > 5


def test_sends_on_a_network_take_its_wires():
    """Along a ring all stages send at once; a row of a torus beside it does not matter."""
    size = 1 << 20
    for topology, axes in (
        (topologies.ring(4, bandwidth=1e9, alpha=1e-6), {"stage": 4}),
        (topologies.torus(2, 4, bandwidth=1e9, alpha=1e-6), {"data": 2, "stage": 4}),
    ):
        costs = ts.ScheduleCosts(topology, ts.MeshShape.of(axes))
        assert math.isclose(costs.send_seconds(len(axes) - 1, size), 1e-6 + size / 1e9)
    assert costs.send_seconds(0, 0) == 0


@settings(max_examples=8)
@given(
    alpha=st.floats(1e-9, 1e-3),
    bandwidth=st.floats(1e6, 1e12),
    microbatches=st.sampled_from([1, 2, 4]),
    stages=st.sampled_from([2, 4]),
)
def test_the_best_plan_in_stages_is_the_least_of_all(alpha, bandwidth, microbatches, stages):
    graph = ts.trace(stack, (s(4, 8, 8), s(8, 8)))
    costs = ts.AlphaBetaCosts(ts.MeshShape.of({"stage": stages}), (alpha,), (bandwidth,))
    staged = ts.Problem(graph, costs, ts.HARDWARE["CPU"], microbatches, "x", "stage")
    found = ts.search(
        graph,
        mesh={"stage": stages},
        network=costs,
        hardware="CPU",
        microbatches=(microbatches,),
        batch="x",
        stages="stage",
        objective="sum",
        solver=ts.Milp(gap=0),
    )
    every = itertools.product(*(strategies.all for strategies in staged.strategies))
    values = []
    for chosen in every:
        try:
            values.append(estimate_cost(staged, Decisions(chosen)).serial_seconds)
        except PlanError:  # nothing makes a sum of a value
            continue
    assert found.cost.serial_seconds == pytest.approx(min(values), rel=1e-6)


def test_numbers_of_microbatches_to_choose_from():
    assert stream_counts(16, 4) == (4, 8, 16)
    assert stream_counts(12, 4) == (4, 12)
    assert stream_counts(6, 4) == (6,)
    assert stream_counts(2, 4) == (2,)


# ---------------------------------------------------------------------- choices and refusals


W = {"layers": {"up": s(6, 8, 16), "down": s(6, 16, 8)}, "head": s(8, 8)}
SHAPES = W, s(16, 8)


def search(step=None, shapes=SHAPES, axes=None, **more: Any) -> ts.Plan:
    axes = axes or {"stage": 2}
    more = {"stages": "stage", "hardware": "CPU", **more}
    return ts.search(step or sgd(layers), shapes, mesh=axes, network=network(axes), **more)


@pytest.mark.parametrize(
    ("axes", "more", "message"),
    [
        ({"stage": 4}, {}, r"scan over 6 layers of params/layers/down, params/layers/up .* not a "
         r"multiple of the 4 stages of mesh axis 'stage': 1, 2, 3, 6 would fit"),
        ({"stage": 8}, {}, r"has fewer than the 8 stages of mesh axis 'stage': 1, 2, 3, 6 would"),
        ({"stage": 2}, {"microbatches": 3}, r"batch of 16 \(x\) cannot be streamed through 2 "
         r"stages in 3 equal microbatches: .* as 2, 4, 1|as 1, 2, 4 do"),
        ({"stage": 2}, {"stages": "pipe"}, r"stages='pipe': expected an axis of the mesh, stage"),
        ({"stage": 2}, {"recompute": True}, r"scanning jax.checkpoint\(layer\)"),
        ({"stage": 2}, {"stages": 3}, r"stages must be a str"),
        ({"stage": 2}, {"pipeline_schedule": "zb"}, r"must be one of auto, gpipe, 1f1b, got 'zb'"),
        ({"stage": 2}, {"stages": None, "pipeline_schedule": "1f1b"}, r"there are none: give"),
    ],
)  # fmt: skip
def test_what_is_refused(axes, more, message):
    with pytest.raises(PlanError, match=message):
        search(axes=axes, **more)


def test_a_step_without_a_scan_is_told_to_write_one():
    def unrolled(params, x):
        for i in range(6):
            x = x + jnp.tanh(x @ params["layers"]["up"][i]) @ params["layers"]["down"][i]
        return jnp.square(x @ params["head"]).mean()

    message = r"no scan over stacked parameters: write .*jax.lax.scan\(layer, x, params\['layers'\]"
    with pytest.raises(PlanError, match=message):
        search(sgd(unrolled))
    with pytest.raises(PlanError, match=message):
        search(ts.trace(sgd(layers), SHAPES, loops="unroll"), None)
    with pytest.raises(PlanError, match="give mesh="):
        ts.search(sgd(layers), SHAPES, topology=topologies.ring(2), stages="stage")


def test_a_layer_that_needs_the_whole_batch_is_named():
    def normed(params, x):
        def layer(h, w):
            h = h - h.mean(0)
            return jnp.tanh(h @ w), None

        return jnp.square(lax.scan(layer, x, params)[0]).mean()

    with pytest.raises(PlanError, match=r"full batch is needed at once by sub .*test_pipeline.py"):
        search(sgd(normed), (s(4, 8, 8), s(16, 8)))


def test_a_carry_without_the_batch_is_refused():
    def pooled(params, x):
        h, _ = lax.scan(lambda h, w: (jnp.tanh(w @ h), None), x.mean(0), params)
        return jnp.square(h).mean()

    def keyed(params, x):
        key = jax.random.key(0)

        def layer(carry, w):
            return (carry[0] @ w, jax.random.split(carry[1])[0]), None

        (h, key), _ = lax.scan(layer, (x, key), params)
        return jax.random.uniform(key) * jnp.square(h).mean()

    with pytest.raises(PlanError, match=r"carries no array with the batch of arg1 as a dimension"):
        search(sgd(pooled), (s(4, 8, 8), s(16, 8)))
    with pytest.raises(PlanError, match=r"carries an array of key<fry> that is read after it"):
        search(sgd(keyed), (s(4, 8, 8), s(16, 8)))


def test_an_axis_of_one_device_has_no_stages():
    plan = search(axes={"stage": 1, "data": 2}, microbatches=4)
    assert plan.problem.pipeline is None
    assert plan.microbatches == 1


def test_the_best_axis_and_number_are_chosen():
    """No worse than any axis and number alone, than no stages, and named in the plan."""
    axes = {"stage": 2, "more": 3}
    given: dict[str, Any] = {"axes": axes, "batch": "x"}
    forward = stack, (s(6, 8, 8), s(16, 8))
    best = search(*forward, stages="auto", microbatches=(2, 4), **given)
    alone = [
        search(*forward, stages=axis, microbatches=count, **given)
        for axis, count in itertools.product(axes, (2, 4))
    ]
    alone.append(search(*forward, stages=None, **given))
    values = [plan.result.objective for plan in alone]
    assert best.result.objective <= min(values) * (1 + 1e-2)
    chosen = search(*forward, microbatches="auto", batch="x")
    assert chosen.microbatches in stream_counts(16, 2)


def test_a_plan_in_stages_says_so(tmp_path):
    plan = search(microbatches=4)
    text = str(plan)
    assert "pipeline parallel (2 stages, 4 microbatches, bubble 20 %) on `stage`" in text
    assert "4 microbatches of 4 of a batch of 16 in its stages" in text
    assert "permute" in text
    carry = next(
        t.name
        for t in plan.problem.graph.tensors
        if plan.problem.pipeline is not None and plan.problem.pipeline.num_sends(t.index)
    )
    assert "to the next stage, 5 times: permute over stage" in plan.explain(carry)
    assert "20 %" in plan.html()
    assert plan.specs.arguments[0]["layers"]["up"][0] == "stage"
    plan.save(tmp_path / "plan.json")
    again = ts.load(tmp_path / "plan.json").on(sgd(layers), SHAPES)
    assert again.cost.serial_seconds == plan.cost.serial_seconds
    assert again.microbatches == 4
    assert str(again).split("\n")[1] == text.split("\n")[1]
    assert ts.reprice(plan, network({"stage": 2})).communication == plan.cost.communication
    rows = plan.compare("ddp").plans
    assert rows["ddp"].problem.pipeline is None
    for form in (plan.constrain, plan.explicit):
        with pytest.raises(PlanError, match=r"2 pipeline stages on 'stage' has no form"):
            form()
