"""Costs against closed forms of the papers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorstate
from experiments.models import load_model
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.cost import (
    SearchOptions,
    SearchResult,
    estimate_cost,
    seconds_by_collective,
)
from tensorstate.cost.memory import (
    EXACT,
    bytes_by_point,
    input_bytes,
    least_bytes_by_point,
    most_bytes,
)
from tensorstate.cost.reshard_plan import Decisions, find_kept, reshard_plans
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE, Hardware
from tensorstate.ir.placements import REPLICATED, SUM, MeshShape
from tensorstate.keeping.recomputed import RECOMPUTED
from tensorstate.keeping.saved import SAVED
from tensorstate.keeping.table import Kept, allowed
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import InnerSend, Problem
from tensorstate.solver.formulation import Formulation
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.solvers import recomputing
from tests.tensorstate.steps import s
from tests.tensorstate.tiny import LINES, gate, graph, problems, six_layers

DEVICES = 8
WIDTHS = (16, 32, 32, 8)


def problem_of(name: str, axis: str, size: int, loops: str = "keep", **changed) -> Problem:
    model = load_model(name, **changed)
    mesh = MeshShape.of({axis: size})
    network = AlphaBetaCosts(mesh, (1e-6,), (1e9,))
    graph = trace(model.step, model.abstract_args, loops=loops)  # type: ignore[arg-type]
    return Problem(graph, network, HARDWARE["CPU"])


PSI = sum(4 * (a * b + b) for a, b in itertools.pairwise(WIDTHS))
# What the backward pass reads of the parameters: all kernels but the first.
RECHECK_TIME_S = sum(4 * a * b for a, b in itertools.pairwise(WIDTHS[1:]))
LOSS = 4


@pytest.mark.parametrize(
    ("name", "volume"),
    [
        ("ddp", {"all_reduce": PSI + LOSS}),
        ("zero1", {"reduce_scatter": PSI, "all_gather": PSI, "all_reduce": LOSS}),
        ("zero2", {"reduce_scatter": PSI, "all_gather": PSI, "all_reduce": LOSS}),
        ("fsdp", {"reduce_scatter": PSI, "all_gather": PSI + RECHECK_TIME_S, "all_reduce": LOSS}),
    ],
)
def test_volumes_of_zero(name, volume):
    """2, 2 and 3 times the parameters (Rajbhandari et al., 2020, section 7).

    An all_reduce moves its buffer twice. The backward pass needs neither biases nor the first
    kernel, so a second gather of those is not needed.
    """
    cost = solve_baseline(problem_of("mlp", "data", DEVICES), name).cost
    assert cost.bytes_by_collective == {(kind, 0): nbytes for kind, nbytes in volume.items()}


@pytest.mark.parametrize(
    ("name", "placements", "gradients"),
    [("ddp", 1, 1), ("zero2", DEVICES, DEVICES), ("fsdp", DEVICES, DEVICES)],
)
def test_memory_of_zero(name, placements, gradients):
    """16 bytes per parameter: itself, its gradient and Adam's two moments, 4 bytes each.

    A gradient goes as its parameter is updated; so they are not all there at once.
    """
    memory = solve_baseline(problem_of("mlp", "data", DEVICES), name).cost.memory
    parameters = PSI // (DEVICES if name == "fsdp" else 1)
    batch = (16 * 16 + 16) * 4 // DEVICES
    count = 4
    assert memory.inputs == parameters + 2 * PSI // placements + batch + count
    assert memory.gradients < PSI // gradients


@pytest.mark.parametrize("clipped", [False, True])
def test_gradients_wait_for_each_other_where_their_norm_is_taken(clipped):
    """Three kernels, each as large as memory allows, and a batch of one row."""

    def step(kernels, x):
        def loss(kernels):
            return functools.reduce(lambda x, kernel: jnp.sin(x @ kernel), kernels, x).sum()

        gradients = jax.grad(loss)(kernels)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in gradients)) if clipped else 1.0
        return [k - g / norm for k, g in zip(kernels, gradients, strict=True)]

    kernel = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    traced = trace(step, ([kernel] * 3, jax.ShapeDtypeStruct((1, 64), jnp.float32)))
    problem = Problem(traced, AlphaBetaCosts(LINES[0], (0.0,), (1e9,)), HARDWARE["CPU"])
    memory = estimate_cost(
        problem, Decisions(tuple((REPLICATED,) for _ in traced.node_classes))
    ).memory
    there = memory.gradients + memory.temporaries
    assert there // kernel.size == (3 if clipped else 1) * 4


def test_tanh_is_saved_whether_the_backward_pass_reads_its_value_or_its_slope():
    """The slope is cheap, so it is recomputed from the value, which stays in memory."""

    def memory(residual: str, recomputed: bool):
        def step(w, x):
            def loss(w):
                return jnp.square(gate(residual)(x @ w[0]) @ w[1]).sum()

            return [a - b for a, b in zip(w, jax.grad(loss)(w), strict=True)]

        kernel, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 8), (64, 8)))
        traced = trace(step, ([kernel] * 2, x))
        problem = Problem(traced, AlphaBetaCosts(LINES[0], (0.0,), (1e9,)), HARDWARE["CPU"])
        in_forward = (
            g
            for g in range(len(traced.node_classes))
            if recomputed and problem.may_keep(g, RECOMPUTED)
        )
        nodes = frozenset(e for g in in_forward for e in traced.node_classes[g])
        strategies = tuple((REPLICATED,) for _ in traced.node_classes)
        return estimate_cost(problem, Decisions(strategies, recomputing(nodes))).memory

    for recomputed in (False, True):
        value, slope = (memory(saved, recomputed) for saved in ("value", "slope"))
        assert value == slope
        assert (slope.saved >= 64 * 8 * 4) != recomputed


def test_fused_tensors_take_memory_where_they_are_saved_for_a_recompute():
    """A barrier separates them, so the value cannot be recomputed where it is read."""
    problem, found = problem_of("gpt", "data", 1), 0
    strategies = tuple((REPLICATED,) for _ in problem.strategies)
    for number, group in enumerate(problem.tensor_groups):
        bound = problem.live_ranges(number).kept[SAVED]["for rerun"]
        consumers = {e for each in group.consumers for nodes in each for e in nodes}
        recomputed = frozenset(
            e for e in consumers if problem.may_keep(problem.graph.nodes[e].class_id, RECOMPUTED)
        )
        if group.is_input or not bound.any() or not recomputed:
            continue
        saved = dict.fromkeys(group.tensors, (REPLICATED,))
        for kept, takes in ((Kept(recomputing(recomputed)), 1), (Kept(), 0)):
            decisions = Decisions(strategies, kept.named, saved)
            reshards = list(reshard_plans(problem, decisions, kept, number))
            there = bytes_by_point(problem, number, strategies, reshards, kept)[0]
            assert (there[bound > 0] >= takes * group.nbytes).all()
            assert takes or not (there * (problem.live_ranges(number).fused_input == 0)).any()
        found += 1
    assert found > 3


@settings(max_examples=40)
@given(data=st.data())
def test_no_decisions_take_fewer_bytes_than_the_least(data):
    """Of any group, at any program point, in microbatches or not; a plan may be the least."""
    splittable = ("linear", "greatest")
    problem = data.draw(problems() | problems(splittable, LINES[:1], microbatches=(2, 4)))
    strategies = tuple(data.draw(st.sampled_from(each.all)) for each in problem.strategies)
    nodes = [e for e, node in enumerate(problem.graph.nodes) if node.phase == "forward"]
    recomputed = frozenset(data.draw(st.lists(st.sampled_from(nodes)))) if nodes else frozenset()
    decisions = Decisions(strategies, recomputing(recomputed))
    running, whole = find_kept(problem, decisions), 0.0
    for number, group in enumerate(problem.tensor_groups):
        try:
            reshards = [*reshard_plans(problem, decisions, running, number)]
        except PlanError:  # strategies that do not fit each other
            continue
        there = bytes_by_point(problem, number, strategies, reshards, running).sum(0)
        whole += there + input_bytes(problem, reshards)
        assert np.max(whole) <= most_bytes(problem)
        of_class = problem.strategies[group.class_id].all
        keepings = allowed(recompute=bool(recomputed))
        least = least_bytes_by_point(problem, number, of_class, keepings)
        assert (there >= least - EXACT).all()


def test_what_runs_again_has_its_operands_when_it_does():
    """The recompute gathers a kernel before its other consumers after the forward pass do."""
    problem, found = problem_of("llama", "data", 8, loops="unroll"), 0
    plan = solve_baseline(problem, "fsdp").decisions
    for number, group in enumerate(problem.tensor_groups):
        live_ranges = problem.live_ranges(number)
        is_earlier = (live_ranges.resharded_for_rerun > 0) & (
            live_ranges.resharded_after_forward == 0
        )
        consumers = {e for each in group.consumers for nodes in each for e in nodes}
        recomputed = frozenset(
            e for e in consumers if problem.may_keep(problem.graph.nodes[e].class_id, RECOMPUTED)
        )
        kept = (Kept(), Kept(recomputing(recomputed)))
        reshards = [[*reshard_plans(problem, plan, one, number)] for one in kept]
        assert not any(reshard.for_rerun.steps for reshard in reshards[0])
        if not is_earlier.any() or not all(reshard.for_rerun.steps for reshard in reshards[1]):
            continue
        pairs = zip(reshards, kept, strict=True)
        once, twice = (bytes_by_point(problem, number, plan.strategies, *pair)[3] for pair in pairs)
        assert (twice[is_earlier] > once[is_earlier]).all()
        assert (twice >= once).all()
        found += 1
    assert found > 3


def test_a_layer_of_megatron_has_two_and_two_all_reduces():
    """Shoeybi et al., 2019, section 3: of (batch, sequence, width) each."""
    costs = [
        solve_baseline(problem_of("gpt", "model", 4, layers=layers), "megatron").cost
        for layers in (2, 3)
    ]
    key = "all_reduce", 0
    assert costs[1].count_by_collective[key] - costs[0].count_by_collective[key] == 4
    batch = load_model("gpt", layers=2).abstract_args[2]
    tokens = math.prod(next(iter(batch.values())).shape)
    width = (costs[1].bytes_by_collective[key] - costs[0].bytes_by_collective[key]) / 4 / 4 / tokens
    assert width == 32
    assert {k: n for k, n in costs[1].count_by_collective.items() if k != key} == {
        k: n for k, n in costs[0].count_by_collective.items() if k != key
    }


def test_compute_is_arithmetic_or_memory_whichever_is_longer():
    mesh = LINES[0]
    strategies = tuple((REPLICATED,) for _ in graph("chain").node_classes)
    seconds = {}
    for flops, bandwidth in ((1e9, 1e18), (1e18, 1e9)):
        device = Hardware("one-sided", {4: flops}, bandwidth, 1e9)
        problem = Problem(graph("chain"), AlphaBetaCosts(mesh, (0.0,), (1e9,)), device)
        cost = estimate_cost(problem, Decisions(strategies))
        seconds[flops] = cost.compute
        assert cost.communication == 0
        assert cost.overlapped_seconds == cost.serial_seconds == cost.compute
    # (8, 4) by (4, 8) by (8, 4); tensors read and written: x, w, t, t, relu, relu, v, result.
    assert seconds[1e9] == pytest.approx(2 * 2 * 8 * 4 * 8 / 1e9)
    assert seconds[1e18] == pytest.approx(4 * (32 + 32 + 64 + 64 + 64 + 64 + 32 + 32) / 1e9)


def test_a_partial_sum_is_saved_where_a_later_consumer_takes_it_so():
    """No step makes a whole copy partial again, so only partial copies lead to such a consumer."""

    def step(weights, w, x):
        def loss(weights):
            hidden = x @ w
            return sum(jnp.square(hidden @ v).sum() for v in weights)

        return jax.grad(loss)(weights)

    traced = trace(step, [(s(8, 8), s(8, 8)), s(8, 8), s(8, 8)])
    mesh = MeshShape.of({"data": 2})
    problem = Problem(traced, AlphaBetaCosts(mesh, (1e-6,), (1e9,)), HARDWARE["CPU"])
    draw, num_saved = random.Random(0), 0
    for _ in range(100):
        strategies = tuple(draw.choice(each.all) for each in problem.strategies)
        program = Formulation(problem, [[strategy] for strategy in strategies]).program.solve()
        if program.status == "infeasible":
            continue
        plans = estimate_cost(problem, Decisions(strategies)).reshards
        num_saved += sum(plan.saved is not None and min(plan.saved) == SUM for plan in plans)
    assert num_saved


@given(data=st.data())
@settings(deadline=None, max_examples=50)
def test_what_the_backward_pass_slices_is_saved_as_the_slice(data):
    """The copy that is saved is as small as the one consumer after the forward pass allows."""
    problem = data.draw(problems())
    strategies = tuple(data.draw(st.sampled_from(each.all)) for each in problem.strategies)
    try:
        plans = estimate_cost(problem, Decisions(strategies)).reshards
    except PlanError:
        return
    for plan in plans:
        group, steps = problem.tensor_groups[plan.group], plan.after_forward.steps
        needed = {
            problem.required_placements(c, strategies[c.class_id])
            for c in group.consumer_classes
            if c.class_id is not None
        }
        if plan.saved is not None and plan.saved not in needed and not group.is_input:
            in_a_row = all(b.source == a.target for a, b in itertools.pairwise(steps))
            assert not (steps and in_a_row and all(step.kind == "slice" for step in steps))


@pytest.mark.parametrize("num_repeats", [1, 2])
@pytest.mark.parametrize("name", ["linear", "twice", "layers"])
def test_totals_are_sums_over_nodes_and_tensors(name, num_repeats):
    check_totals(tiny_problem(name, num_repeats))


def test_totals_of_identical_layers_are_sums_over_layers():
    """Some of which are recomputed; few classes are sharded, so that strategies fit each other."""
    network = AlphaBetaCosts(LINES[1], (1e-6,), (1e9,))
    problem = Problem(six_layers(), network, HARDWARE["CPU"])
    assert max(map(len, problem.graph.node_classes)) > 2
    check_totals(problem, sharded=0.1)


def check_totals(problem: Problem, sharded: float = 1.0) -> None:
    """One node and one tensor after another, each run and each collective counted by itself."""
    nodes = [e for e, node in enumerate(problem.graph.nodes) if node.phase == "forward"]
    draw, found = random.Random(0), 0
    while found < 10:
        strategies = tuple(
            draw.choice(each.all if draw.random() < sharded else each.all[:1])
            for each in problem.strategies
        )
        again = frozenset(draw.sample(nodes, draw.randint(0, len(nodes))))
        try:
            cost = estimate_cost(problem, Decisions(strategies, recomputing(again)))
        except PlanError:  # strategies that do not fit each other
            continue
        found += 1
        seconds = []
        for number, node in enumerate(problem.graph.nodes):
            once = problem.seconds(node.class_id, strategies[node.class_id])
            seconds += [once] * (2 if number in cost.kept.rerun else 1)
        assert cost.compute == pytest.approx(math.fsum(seconds), rel=1e-12)
        count, nbytes = Counter(), Counter()
        for plan in cost.reshards:
            for step, times in plan.counted_steps:
                for _ in plan.tensors:
                    count[step.kind, step.axis] += times
                    nbytes[step.kind, step.axis] += times * step.nbytes
        for counted in (count, nbytes):
            counted.pop(("slice", 0), None)  # local
        assert cost.count_by_collective == count
        assert cost.bytes_by_collective == nbytes
        by_collective = seconds_by_collective(problem, cost)
        assert by_collective.keys() == count.keys()
        assert math.fsum(by_collective.values()) == pytest.approx(cost.communication, rel=1e-12)


def tiny_problem(name: str, num_repeats: int = 1) -> Problem:
    network = AlphaBetaCosts(LINES[1], (1e-6,), (1e9,))
    return Problem(graph(name), network, HARDWARE["CPU"], num_repeats)


@pytest.mark.parametrize("copies", ["saved", "loop_resident"])
def test_no_cost_depends_on_what_was_estimated_before(copies):
    """A problem keeps the last costs of each tensor group, for decisions that differ elsewhere."""
    problem = tiny_problem("linear", 2)
    strategies = tuple((REPLICATED,) for _ in problem.strategies)
    first = estimate_cost(problem, Decisions(strategies))
    tensors = [t for plan in first.reshards for t in plan.tensors if getattr(plan, copies)]
    tensors = [t for t in tensors if problem.graph.tensors[t].sizes]
    peaks = {first.memory.peak}
    for placements in ((0,), (REPLICATED,), (0,)):
        decided = dict.fromkeys(tensors, placements)
        decisions = dataclasses.replace(Decisions(strategies), **{copies: decided})
        cost, fresh = (
            estimate_cost(one, decisions) for one in (problem, tiny_problem("linear", 2))
        )
        assert cost.communication == fresh.communication
        assert cost.count_by_collective == fresh.count_by_collective
        assert cost.memory == fresh.memory
        peaks.add(cost.memory.peak)
    assert len(peaks) > 1


@functools.cache
def ring_problem(dtype) -> tuple[Problem, Decisions]:
    """Attention in a ring of four devices; nothing about it is left to be found by trying."""

    def step(w, x):
        def loss(w):
            q, k, v = (jnp.tensordot(x, w[n], 1) for n in "qkv")
            return jnp.square(attention(q, k, v)).mean()

        return jax.grad(loss)(w)

    attention = tensorstate.declare(
        functools.partial(jax.nn.dot_product_attention, is_causal=True),
        "b q h d, b k h d, b k h d -> b q h d",
        whole="d",
        ring="q k",
        scale=4**-0.5,
        causal=True,
    )
    mesh = MeshShape.of({"sequence": 4})
    traced = trace(step, ({n: s(8, 2, 4, dtype=dtype) for n in "qkv"}, s(1, 16, 8, dtype=dtype)))
    problem = Problem(traced, AlphaBetaCosts(mesh, (1e-6,), (1e9,)), HARDWARE["CPU"])
    candidates = [
        [(each.pairing.label,)] if each.pairing is not None else each.all
        for each in problem.strategies
    ]
    formulation = Formulation(problem, candidates)
    return problem, formulation.decisions(formulation.program.solve(gap=1e-6))


def test_sends_around_a_ring_are_part_of_the_communication():
    """Keys and values once forward and twice backward, and once the sums of their gradients."""
    problem, decisions = ring_problem(jnp.float32)
    cost = estimate_cost(problem, decisions)
    assert cost.count_by_collective["permute", 0] == 6 * (4 - 1) + 2 * 4
    sends = cost.inner_sends
    assert cost.bytes_by_collective["permute", 0] == sum(x.times * x.nbytes for x in sends)
    seconds = seconds_by_collective(problem, cost)
    assert seconds["permute", 0] == math.fsum(problem.inner_send_seconds(x) for x in sends) > 0
    assert math.fsum(seconds.values()) == pytest.approx(cost.communication, rel=1e-12)


def test_sends_within_nodes_are_counted_in_each_of_their_runs(monkeypatch):
    """Three sends of 128 bytes in each node of a class, of which two are recomputed."""
    network = AlphaBetaCosts(LINES[1], (1e-6,), (1e9,))
    problem = Problem(six_layers(), network, HARDWARE["CPU"])
    nodes = next(
        nodes
        for number, nodes in enumerate(problem.graph.node_classes)
        if problem.may_keep(number, RECOMPUTED) and len(nodes) > 2
    )
    number = problem.graph.nodes[nodes[0]].class_id
    sends = {number: (InnerSend(0, 128, 3, "float32"),)}
    monkeypatch.setattr(problem, "inner_sends", lambda class_id, _of: sends.get(class_id, ()))
    strategies = tuple((REPLICATED,) for _ in problem.strategies)
    cost = estimate_cost(problem, Decisions(strategies, recomputing(nodes[:2])))
    assert cost.kept.rerun == frozenset(nodes[:2])
    runs = len(nodes) + 2
    assert cost.count_by_collective == {("permute", 0): 3 * runs}
    assert cost.bytes_by_collective == {("permute", 0): 3 * runs * 128}
    seconds = 3 * runs * (1e-6 + 128 / 1e9)
    assert cost.communication == pytest.approx(seconds)
    assert seconds_by_collective(problem, cost) == {("permute", 0): pytest.approx(seconds)}


@pytest.mark.parametrize(
    ("given", "limit"), [(None, None), (math.inf, math.inf), ("80GB", 80e9), (7, 7.0), (7.5, 7.5)]
)
def test_limits_are_bytes(given, limit):
    assert SearchOptions(memory_limit=given).memory_limit == limit


@pytest.mark.parametrize("limit", [0, -1.0, "much", -math.inf])
def test_limits_that_are_none_are_refused(limit):
    with pytest.raises(PlanError, match="memory_limit"):
        SearchOptions(memory_limit=limit)


def test_what_is_minimized_is_named():
    cost = solve_baseline(tiny_problem("linear"), "ddp").cost
    assert 0 < cost.overlapped_seconds < cost.serial_seconds
    values = {name: SearchOptions(objective=name).value(cost) for name in ("sum", "max", "overlap")}
    assert values["sum"] == cost.serial_seconds == cost.compute + cost.communication
    assert values["max"] == cost.overlapped_seconds == max(cost.compute, cost.communication)
    assert values["overlap"] == cost.timeline().seconds


@pytest.mark.parametrize("objective", ["sum", "max", "overlap"])
def test_programs_minimize_the_sum_where_a_schedule_is_asked_for(objective):
    solved = SearchOptions(objective=objective).linear.objective
    assert solved == ("sum" if objective == "overlap" else objective)


@pytest.mark.parametrize(
    ("objective", "bound", "gap"),
    [
        (4.0, 3.0, 0.25),
        (4.0, 4.0, 0.0),
        (4.0, 5.0, 0.0),
        (0.0, 0.0, 0.0),
        (0.5, 0.25, 0.5),
        (1.0, -math.inf, math.inf),
    ],
)
def test_the_gap_is_relative_to_the_objective(objective, bound, gap):
    plan = solve_baseline(tiny_problem("linear"), "ddp")
    result = SearchResult(plan.decisions, plan.cost, objective, bound, "milp", 0.0)
    assert result.gap == gap


def test_stacks_of_residuals_cost_the_same_whoever_chooses_them():
    """A loop's own residuals are laid into stacks by operators, those of a pair by the search."""

    def step(weights, x):
        def layer(h, w):
            return jnp.tanh(h @ w["up"]) @ w["down"] + h, None

        def loss(weights):
            return jnp.mean(jnp.square(jax.lax.scan(layer, x, weights)[0]))

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    weights = {"up": s(8, 32, 64), "down": s(8, 64, 32)}
    mesh = {"data": 2}
    network = AlphaBetaCosts(MeshShape.of(mesh), (1e-7,), (1e10,))
    asked = {"mesh": mesh, "network": network, "hardware": "CPU", "plain": False}
    own, chosen = (
        tensorstate.search(step, (weights, s(512, 32)), recompute=recompute, **asked)
        for recompute in (False, True)
    )
    assert chosen.cost.compute == pytest.approx(own.cost.compute, rel=0.02)
    # A stack is written and read, row by row; what no loop stores costs nothing.
    problem, bandwidth = chosen.problem, chosen.problem.hardware.memory_bandwidth
    stored = [r for r in chosen.cost.reshards if r.keeping_seconds]
    assert stored
    for reshard in stored:
        group = problem.tensor_groups[reshard.group]
        assert problem.graph.mirror(problem.graph.loops_around(reshard.tensors[0])) is not None
        assert reshard.saved is not None
        nbytes = 8 * problem.local_bytes(group, reshard.saved)
        assert reshard.keeping_seconds == pytest.approx(4 * nbytes / bandwidth)
    assert not any(r.keeping_seconds for r in own.cost.reshards)
