"""Schedules in time: against exhaustive ones of few tasks, and against sums and maxima of steps."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.numerics import list_schedule as scheduling
from jaxcoll.numerics.list_schedule import COMPUTE, WHOLE, FreeMemory, Tasks
from jaxcoll.synth import Ring
from tensorstate.collective_costs import AlphaBetaCosts, ScheduleCosts
from tensorstate.cost import timeline
from tensorstate.cost.cost import Cost, estimate_cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.cost.step_tasks import StepTasks
from tensorstate.hardware import HARDWARE, Hardware
from tensorstate.ir.placements import REPLICATED, MeshShape
from tensorstate.keeping.table import Kept
from tensorstate.plan import solve_baseline
from tensorstate.problem.node_strategies import NodeStrategies, Strategy
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.solvers import recomputing
from tests.tensorstate.steps import s
from tests.tensorstate.tiny import problems

LINKS = 1


class Task(NamedTuple):
    """One row of ``Tasks``."""

    seconds: float
    resource: int
    order: float
    before: tuple[int, ...] = ()
    ahead: int = 0
    behind: int = 0
    is_patient: bool = False


def list_schedule(
    tasks: list[Task], num_resources: int, room: float = math.inf
) -> tuple[list[float], float]:
    kinds = (float, np.int64, float, np.int64, np.int64, bool)
    names = ("seconds", "resource", "order", "ahead", "behind", "is_patient")
    columns = [
        np.array([getattr(task, name) for task in tasks], kind)
        for name, kind in zip(names, kinds, strict=True)
    ]
    waits = [(n, k) for n, task in enumerate(tasks) for k in task.before]
    columns += list(np.array(waits, np.int64).reshape(-1, 2).T)
    free = FreeMemory.of((), (), room)
    starts, held = scheduling.list_schedule(Tasks(*columns), num_resources, free)
    return starts.tolist(), held


def longest_path(tasks: list[Task]) -> float:
    ends: list[float] = []
    for task in tasks:
        ends.append(task.seconds + max((ends[k] for k in task.before), default=0.0))
    return max(ends, default=0.0)


def makespan(tasks: list[Task], starts: list[float]) -> float:
    return max((a + t.seconds for a, t in zip(starts, tasks, strict=True)), default=0.0)


def best_makespan(tasks: list[Task]) -> float:
    """The least over all orders, each of which every task starts in as early as it can."""
    best = math.inf
    for order in itertools.permutations(range(len(tasks))):
        place = {number: k for k, number in enumerate(order)}
        if any(place[k] > place[n] for n, task in enumerate(tasks) for k in task.before):
            continue
        free: dict[int, float] = {}
        ends: dict[int, float] = {}
        for number in order:
            task = tasks[number]
            ready = max((ends[k] for k in task.before), default=0.0)
            start = max(ready, free.get(task.resource, 0.0))
            free[task.resource] = ends[number] = start + task.seconds
        best = min(best, max(ends.values(), default=0.0))
    return best


@st.composite
def drawn_tasks(draw, most: int, num_resources: int) -> list[Task]:
    tasks = []
    for number in range(draw(st.integers(1, most))):
        before = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        resource = draw(st.integers(0, num_resources - 1))
        seconds = float(draw(st.integers(0, 9)))
        tasks.append(Task(seconds, resource, float(number), tuple(sorted(before))))
    return tasks


@given(drawn_tasks(40, 3))
@settings(deadline=None)
def test_no_resource_is_used_twice_and_nobody_starts_early(tasks):
    starts, _ = list_schedule(tasks, 3)
    ends = [a + t.seconds for a, t in zip(starts, tasks, strict=True)]
    for number, task in enumerate(tasks):
        assert all(ends[k] <= starts[number] for k in task.before)
    sums = []
    for resource in range(3):
        used = sorted((starts[n], ends[n]) for n, t in enumerate(tasks) if t.resource == resource)
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(used))
        sums.append(sum(end - start for start, end in used))
    found = makespan(tasks, starts)
    assert max(*sums, longest_path(tasks)) <= found <= sum(sums)


@given(drawn_tasks(6, 2))
@settings(deadline=None, max_examples=60)
def test_few_tasks_are_between_the_best_schedule_and_twice_it(tasks):
    """No resource idles while a task of it is ready, so that two resources lose at most half."""
    starts, _ = list_schedule(tasks, 2)
    best = best_makespan(tasks)
    assert best <= makespan(tasks, starts) <= 2 * best


def test_a_chain_takes_its_sum_and_independent_tasks_the_largest():
    chain = [Task(2.0, k % 2, float(k), (k - 1,) if k else ()) for k in range(6)]
    apart = [Task(2.0, k % 2, float(k)) for k in range(6)]
    assert makespan(chain, list_schedule(chain, 2)[0]) == 12.0
    assert makespan(apart, list_schedule(apart, 2)[0]) == 6.0


def gathered(nbytes: int, layers: int = 4) -> list[Task]:
    """Layers that compute one after another, each from a gather of its own."""
    tasks = []
    for layer in range(layers):
        tasks.append(Task(1.0, LINKS, float(layer), ahead=nbytes))
        before = (2 * layer, *([2 * layer - 1] if layer else []))
        tasks.append(Task(1.0, COMPUTE, float(layer), before))
    return tasks


def test_gathers_are_ahead_as_far_as_there_is_room():
    tasks = gathered(8)
    free, held = list_schedule(tasks, 2)
    assert makespan(tasks, free) == 5.0  # only the first gather is exposed
    assert held == 8  # one layer is read while the next is gathered
    none, held = list_schedule(tasks, 2, 7)
    assert makespan(tasks, none) == 8.0
    assert held == 0


def test_a_gather_that_is_not_read_yet_leaves_the_links_to_others():
    """The second gather has time: the reader of the first waits already."""
    tasks = [
        Task(1.0, COMPUTE, 0.0),
        Task(5.0, LINKS, 9.0, ahead=1),
        Task(1.0, LINKS, 1.0, (0,)),
        Task(1.0, COMPUTE, 1.0, (2,)),
        Task(1.0, COMPUTE, 9.0, (1, 3)),
    ]
    full, _ = list_schedule(tasks, 2, 0)
    assert full[2] == 1.0
    assert full[1] == 3.0


def test_computation_waits_where_gradients_would_take_too_much():
    """Three gradients of 4 bytes, reduced more slowly than they are produced."""
    tasks = []
    for layer in range(3):
        tasks.append(Task(1.0, COMPUTE, float(layer), ()))
        tasks.append(Task(3.0, LINKS, 9.0 + layer, (2 * layer,), behind=4))
    free, held = list_schedule(tasks, 2)
    assert [free[0], free[2], free[4]] == [0.0, 1.0, 2.0]
    assert held == 12
    tight, held = list_schedule(tasks, 2, 4)
    assert held <= 8  # what just ends is held as well
    assert tight[4] >= 4.0


def test_nothing_runs_beside_a_loop():
    tasks = [Task(1.0, COMPUTE, 0.0), Task(5.0, LINKS, 7.0, (0,)), Task(2.0, WHOLE, 1.0, (0,))]
    starts, _ = list_schedule(tasks, 2)
    assert sorted(starts[1:]) in ([1.0, 3.0], [1.0, 6.0])


@given(st.lists(st.integers(0, 9), max_size=20), st.data())
@settings(deadline=None, max_examples=50)
def test_the_room_between_two_places_is_the_least_of_the_points_between(left, data):
    """As ``min`` says, from the first point that is not before a place; none is beyond the last."""
    points = sorted(data.draw(st.lists(st.integers(0, 30), min_size=len(left), max_size=len(left))))
    room = FreeMemory.of(points, left, 8)
    first, last = sorted(data.draw(st.tuples(st.integers(-1, 31), st.integers(-1, 31))))
    start, end = (
        next((k for k, p in enumerate(points) if p >= x), len(left)) for x in (first, last)
    )
    expected = min([8, *left[start : end + 1]])
    assert room.between(first, last) == expected
    assert scheduling._least(room.least, start, end) == expected


def test_a_circle_is_refused():
    with pytest.raises(ValueError, match="circle"):
        list_schedule([Task(1.0, 0, 0.0, (1,)), Task(1.0, 0, 1.0, (0,))], 1)


# ---------------------------------------------------------------------- steps


def without_partials(strategies: NodeStrategies) -> st.SearchStrategy[Strategy]:
    """Partial operands cannot be made of others, and not all producers leave them."""
    return st.sampled_from([s for s in strategies.all if min(s) >= REPLICATED])


def check_bounds(problem: Problem, cost: Cost) -> None:
    """At least compute and what each axis sends, at most all of it; events as they are priced."""
    timeline = cost.timeline()
    spent = [0.0] * len(problem.mesh.sizes)
    for event in timeline.events:
        if event.axis >= 0:
            spent[event.axis] += event.seconds
    computed = math.fsum(e.seconds for e in timeline.events if e.axis < 0)
    assert computed == pytest.approx(cost.compute, rel=1e-9, abs=1e-18)
    most = math.fsum((computed, *spent))
    if not timeline.bucket_bytes:
        assert math.fsum(spent) == pytest.approx(cost.communication, rel=1e-9, abs=1e-18)
    assert max(computed, *spent) <= timeline.seconds * (1 + 1e-9)
    assert timeline.seconds <= most * (1 + 1e-9)
    assert timeline.seconds <= cost.serial_seconds * (1 + 1e-9)
    exposed = math.fsum(timeline.exposed_of.values())
    assert exposed == pytest.approx(timeline.exposed_seconds, rel=1e-6, abs=1e-12)
    critical = math.fsum(timeline.critical_of.values())
    assert timeline.exposed_seconds <= critical * (1 + 1e-9) + 1e-12
    assert critical <= min(timeline.seconds, math.fsum(spent)) * (1 + 1e-9)
    for axis in range(-1, len(spent)):
        own = [e for e in timeline.events if e.axis == axis]
        ends = [e.start + e.seconds for e in own]
        assert all(a <= b.start + 1e-15 for a, b in zip(ends, own[1:], strict=False))


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_the_time_of_a_step_is_between_the_largest_and_the_sum(data):
    problem = data.draw(problems())
    strategies = tuple(data.draw(without_partials(s)) for s in problem.strategies)
    nodes = [n.index for n in problem.graph.nodes if n.phase == "forward"]
    again = data.draw(st.sets(st.sampled_from(nodes)) if nodes else st.just(set()))
    check_bounds(problem, estimate_cost(problem, Decisions(strategies, recomputing(again))))
    alone = dataclasses.replace(problem.hardware, overlaps=False)
    serial = estimate_cost(problem.on(problem.network, alone), Decisions(strategies))
    assert serial.timeline().seconds == pytest.approx(serial.serial_seconds, rel=1e-9)


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_steps_in_microbatches_are_within_the_same_bounds(data):
    problem = data.draw(problems(("linear", "twice", "tanh"), microbatches=(2, 4)))
    strategies = tuple(data.draw(without_partials(s)) for s in problem.strategies)
    check_bounds(problem, estimate_cost(problem, Decisions(strategies)))


WIDTH, LAYERS = 2048, 6


def gradients(params, x):
    def loss(params):
        hidden = x
        for kernel in params:
            hidden = jax.nn.relu(hidden @ kernel)
        return jnp.square(hidden).sum()

    return jax.grad(loss)(params)


def layered(params, x):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients(params, x))


def with_momentum(params, momentum, x):
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients(params, x))
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum


def problem_of(bandwidth: float, batch: int = 8192, hardware: str | Hardware = "H100") -> Problem:
    mesh = MeshShape.of({"data": 4})
    arguments = [s(WIDTH, WIDTH)] * LAYERS, s(batch, WIDTH)
    network = AlphaBetaCosts(mesh, (1e-6,), (bandwidth,))
    device = HARDWARE[hardware] if isinstance(hardware, str) else hardware
    return Problem(trace(layered, arguments), network, device)


def test_fsdp_on_fast_links_hides_all_but_the_first_gather_and_the_last_reduction():
    plan = solve_baseline(problem_of(200e9, batch=1 << 15), "fsdp")
    problem, timeline = plan.problem, plan.timeline
    gather, scatter = (
        problem.network.collective_seconds(kind, 0, 4 * WIDTH * WIDTH)
        for kind in ("all_gather", "reduce_scatter")
    )
    update = [e for e in timeline.events if e.axis < 0][-1]
    exposed = timeline.exposed_seconds
    assert plan.cost.communication > 10 * gather
    assert gather + scatter - update.seconds <= exposed <= gather + scatter + 1e-9


def test_slow_links_are_the_time():
    plan = solve_baseline(problem_of(1e9), "ddp")
    first = min(e.start for e in plan.timeline.events if e.axis >= 0)
    last = max(e.start + e.seconds for e in plan.timeline.events if e.axis >= 0)
    assert plan.timeline.seconds == pytest.approx(last, rel=1e-2)
    assert last - first == pytest.approx(plan.cost.communication, rel=1e-2)


def test_less_memory_hides_less():
    plan = solve_baseline(problem_of(200e9), "fsdp")
    tight = plan.cost.timeline(plan.cost.memory.peak)
    assert plan.timeline.seconds < tight.seconds <= plan.cost.serial_seconds
    assert tight.held <= plan.timeline.held


def test_small_collectives_are_joined_where_latency_is_the_price():
    mesh = MeshShape.of({"data": 4})
    arguments = [s(64, 64)] * LAYERS, s(4096, 64)
    graph = trace(layered, arguments)
    slow_start = Problem(graph, AlphaBetaCosts(mesh, (1e-3,), (1e12,)), HARDWARE["H100"])
    timeline = solve_baseline(slow_start, "ddp").timeline
    assert sorted(len(bucket) for bucket in timeline.buckets) == [LAYERS]
    wide = Problem(graph, AlphaBetaCosts(mesh, (1e-12,), (1e8,)), HARDWARE["H100"])
    assert not solve_baseline(wide, "ddp").timeline.buckets


def test_new_parameters_are_joined_behind_the_optimizer_as_gradients_before_it_are():
    kernels = [s(64, 64)] * LAYERS
    graph = trace(with_momentum, (kernels, kernels, s(4096, 64)))
    network = AlphaBetaCosts(MeshShape.of({"data": 4}), (1e-3,), (1e12,))
    buckets = solve_baseline(Problem(graph, network, HARDWARE["H100"]), "zero1").timeline.buckets
    kinds = [[sent.step.kind for sent in bucket] for bucket in buckets]
    assert sorted(kinds) == [["all_gather"] * LAYERS, ["reduce_scatter"] * LAYERS]


def test_buckets_leave_something_to_hide_under():
    """Not all layers are in one, whose gather would have nothing before it."""
    mesh = MeshShape.of({"data": 4})
    graph = trace(layered, ([s(256, 256)] * LAYERS, s(1 << 16, 256)))
    problem = Problem(graph, AlphaBetaCosts(mesh, (5e-6,), (2e10,)), HARDWARE["H100"])
    plan = solve_baseline(problem, "fsdp")
    assert 1 < max(len(bucket) for bucket in plan.timeline.buckets) < LAYERS
    check_bounds(problem, plan.cost)


def tasks_of(problem: Problem, baseline: str) -> timeline._Step:
    plan = solve_baseline(problem, baseline)
    return timeline._Step(StepTasks(problem, plan.decisions, plan.cost.reshards, Kept()))


@pytest.mark.parametrize(("side", "tried"), [(64, 1), (256, 2), (4096, 0)])
def test_sizes_of_buckets_that_join_the_same_are_not_tried(side, tried):
    """Gathers fit into one bucket and reductions into another, where both together do not."""
    graph = trace(layered, ([s(side, side)] * LAYERS, s(4096, side)))
    network = AlphaBetaCosts(MeshShape.of({"data": 4}), (5e-6,), (2e10,))
    step = tasks_of(Problem(graph, network, HARDWARE["H100"]), "fsdp")
    sizes = [*step.worth_trying()]
    assert len(sizes) == tried
    buckets = [step.joined(nbytes) for nbytes in (0, *sizes)]
    assert all(before != after for before, after in itertools.pairwise(buckets))
    known = [0, *sizes]
    for nbytes in set(timeline.BUCKETS) - set(sizes):
        joined = [
            step.joined(tried_bytes)
            for tried_bytes in (nbytes, max(size for size in known if size <= nbytes))
        ]
        assert joined[0] == joined[1]
        assert all(first == bucket[0] for first, bucket in joined[0].items())


def test_one_collective_is_joined_with_nothing():
    network = AlphaBetaCosts(MeshShape.of({"data": 4}), (5e-6,), (2e10,))
    graph = trace(layered, ([s(64, 64)], s(4096, 64)))
    step = tasks_of(Problem(graph, network, HARDWARE["H100"]), "ddp")
    assert len(step.joinable) == 1
    assert not [*step.worth_trying()]


def test_axes_that_share_links_share_their_time():
    """Of a torus every axis has its own wires; through one switch all use the same."""
    mesh = MeshShape.of({"data": 2, "model": 4})
    torus = topologies.torus(2, 4, alpha=1e-6, bandwidth=5e10)
    switch = topologies.switch(8, alpha=1e-6, bandwidth=5e10)
    rings = ((Ring(), 1),)
    assert ScheduleCosts(torus, mesh, candidates=rings).link_groups() == (0, 1)
    assert len(set(ScheduleCosts(switch, mesh, candidates=rings).link_groups())) == 1


def scanned(params, x):
    def loss(params):
        hidden, _ = jax.lax.scan(lambda h, w: (jax.nn.relu(h @ w), None), x, params)
        return jnp.square(hidden).sum()

    return params - 0.1 * jax.grad(loss)(params)


def scan_of(layers: int, bandwidth: float) -> Problem:
    mesh = MeshShape.of({"data": 4})
    network = AlphaBetaCosts(mesh, (1e-6,), (bandwidth,))
    arguments = s(layers, WIDTH, WIDTH), s(8192, WIDTH)
    return Problem(trace(scanned, arguments), network, HARDWARE["H100"])


def test_iterations_of_a_scan_hide_each_others_gathers_and_reductions():
    problem = scan_of(LAYERS, 200e9)
    plan = solve_baseline(problem, "fsdp")
    check_bounds(problem, plan.cost)
    assert plan.timeline.unrolled == {0: 3, 1: 3}
    gather, scatter = (
        problem.network.collective_seconds(kind, 0, 4 * WIDTH * WIDTH)
        for kind in ("all_gather", "reduce_scatter")
    )
    # Of each of two bodies the first gather and the last reduction are exposed; a part of the first
    # gather backward hides under the gradient of the weights, which does not read them.
    exposed = plan.timeline.exposed_seconds
    assert 2 * (gather + scatter) < exposed < 2 * (2 * gather + scatter)
    # Two layers are gathered and received, and their gradients wait, beside the third.
    assert plan.timeline.held == 2 * 3 * 4 * WIDTH * WIDTH
    # With room for one layer's, a body is two iterations.
    room = 1.2 * 3 * 4 * WIDTH * WIDTH
    assert plan.cost.timeline(room / timeline.MOST_AHEAD).unrolled == {0: 2, 1: 2}
    # Without any, and where compute hides nothing or there is little to hide, it is one.
    tight = plan.cost.timeline(plan.cost.memory.peak)
    assert tight.unrolled == {}
    assert tight.held == 0
    assert tight.exposed_seconds > LAYERS * gather
    assert not solve_baseline(scan_of(LAYERS, 1e12), "ddp").timeline.unrolled
    assert not solve_baseline(scan_of(LAYERS, 1e13), "fsdp").timeline.unrolled


@given(st.integers(1, 13), st.sampled_from([20e9, 200e9]))
@example(4, 200e9)
@settings(deadline=None, max_examples=5)
def test_unrolled_scans_stay_loops_and_leave_at_most_one_iteration_behind(layers, bandwidth):
    problem = scan_of(layers, bandwidth)
    plan = solve_baseline(problem, "fsdp")
    check_bounds(problem, plan.cost)
    counts = plan.timeline.unrolled.values()
    assert all(layers % count <= 1 < count <= min(4, layers // 2) for count in counts)
