"""What only offloading promises: bytes of the host, seconds of its link, and copies there and back.

That memory, program, plan file and report follow from its row is tested in ``test_table``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random
import re
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorstate as ts
from tensorstate import PlanError
from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.memory import bytes_by_point
from tensorstate.cost.reshard_plan import reshard_plans
from tensorstate.hardware import HARDWARE, Hardware
from tensorstate.ir.placements import REPLICATED
from tensorstate.keeping import offloaded
from tensorstate.keeping.offloaded import OFFLOADED
from tensorstate.keeping.recomputed import RECOMPUTED
from tensorstate.keeping.saved import SAVED
from tensorstate.keeping.table import Kept
from tensorstate.problem.problem import Problem
from tensorstate.report.hlo_check import compare_with_hlo
from tensorstate.report.units import size
from tests.tensorstate.execution.test_sharded_step import devices
from tests.tensorstate.exhaustive import Every
from tests.tensorstate.keeping.test_table import deep, scanned
from tests.tensorstate.oracle import arguments, assert_alike, jitted, on_devices
from tests.tensorstate.solvers import solve_milp
from tests.tensorstate.steps import s
from tests.tensorstate.tiny import LINES, problems, rates, some_strategies

LINE = ts.MeshShape.of({"x": 2})
NETWORK = ts.AlphaBetaCosts(LINE, (1e-6,), (1e9,))
SLOW = Hardware("slow", {4: 1e9}, 1e9, 1e9, overlaps=False, host_bandwidth=2e9)
STEPS: dict[str, Any] = {
    "layers": (deep, ([s(16, 16)] * 4, s(512, 16))),
    "a pair of scans": (scanned, (s(4, 16, 16), s(512, 16))),
}


@pytest.fixture
def small(monkeypatch) -> None:
    """Tensors of tests are."""
    monkeypatch.setattr(offloaded, "LEAST_BYTES", 0)


@functools.cache
def problem_of(name: str, hardware: str = "slow", microbatches: int = 1) -> Problem:
    traced = ts.trace(*STEPS[name], loops="pair" if microbatches == 1 else "keep")
    device = SLOW if hardware == "slow" else HARDWARE[hardware]
    return Problem(traced, NETWORK, device, microbatches)


def searched(name: str, share: float | None, **options: Any) -> ts.Plan:
    """A plan in a share of the memory that the fastest one takes."""
    asked: dict[str, Any] = {"mesh": LINE, "network": NETWORK, "hardware": SLOW}
    asked |= {"solver": ts.Milp(gap=1e-4), "plain": False, "memory_limit": math.inf}
    if share is not None:
        free = ts.search(*STEPS[name], **asked | {"recompute": True})
        asked["memory_limit"] = share * free.cost.memory.peak
    return ts.search(*STEPS[name], **asked | {"offload": True} | options)


def on_the_host(problem: Problem, cost: ts.Cost) -> int:
    """The shards of all tensors that are offloaded, of all iterations of their loops."""
    total = 0
    for reshard in cost.reshards:
        if reshard.keeping != OFFLOADED or reshard.saved is None:
            continue
        for tensor in reshard.tensors:
            found = problem.graph.tensors[tensor]
            shards = problem.mesh.num_shards(reshard.saved)
            repeats = problem.graph.num_repeats(problem.graph.loops_around(tensor))
            total += repeats * found.nbytes // shards
    return total


# ---------------------------------------------------------------------- model


@given(st.sampled_from([*STEPS]), st.randoms(use_true_random=False), st.sampled_from([1, 2]))
@settings(max_examples=30)
def test_bytes_of_the_host_are_those_of_what_is_offloaded(name, draw: random.Random, count):
    """Whatever the strategies and the others: the host has all as the forward pass ends."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(offloaded, "LEAST_BYTES", 0)
        problem = problem_of(name, microbatches=count)
        forward = [n.index for n in problem.graph.nodes if n.phase == "forward"]
        kept = {node: draw.choice((SAVED, OFFLOADED)) for node in forward}
        chosen = tuple(draw.choice(each.all) for each in problem.strategies)
        try:
            cost = estimate_cost(problem, ts.Decisions(chosen, kept))
        except PlanError:  # strategies that do not fit each other
            chosen = tuple((REPLICATED,) for _ in problem.strategies)
            cost = estimate_cost(problem, ts.Decisions(chosen, kept))
        assert cost.memory.host == on_the_host(problem, cost)
        nothing = estimate_cost(problem, ts.Decisions(chosen))
    assert nothing.memory.host == 0


@pytest.mark.parametrize("name", STEPS)
def test_no_tensor_takes_more_of_the_device_where_it_is_offloaded(small, name):
    """At any point but where one is made that would else be computed by its readers."""
    problem, found = problem_of(name), 0
    strategies = tuple((REPLICATED,) for _ in problem.strategies)
    forward = [n.index for n in problem.graph.nodes if problem.may_keep(n.class_id, OFFLOADED)]
    for number, group in enumerate(problem.tensor_groups):
        is_fused = any(problem.liveness.is_fused(tensor) for tensor in group.tensors)
        if group.is_input or is_fused or not group.needed_after_forward:
            continue
        there = {}
        for keeping in (SAVED, OFFLOADED):
            kept = Kept(dict.fromkeys(forward, keeping) if keeping == OFFLOADED else {})
            decisions = ts.Decisions(strategies, kept.named)
            plans = list(reshard_plans(problem, decisions, kept, number))
            there[keeping] = bytes_by_point(problem, number, strategies, plans, kept).sum(0)
        assert (there[OFFLOADED] <= there[SAVED]).all()
        found += (there[OFFLOADED] < there[SAVED]).any()
    assert found >= 2


@given(st.data(), rates(6, 10), st.booleans())
@settings(max_examples=12)
def test_nothing_that_fits_is_better_over_all_ways_to_keep(data, bandwidth, recompute):
    """Of tiny steps all strategies, all ways to keep every node, and all stored placements."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(offloaded, "LEAST_BYTES", 0)
        drawn = data.draw(problems(("linear", "tanh"), LINES))
        hardware = dataclasses.replace(drawn.hardware, host_bandwidth=bandwidth)
        problem = Problem(drawn.graph, drawn.network, hardware)
        candidates = data.draw(some_strategies(problem, 60))
        every = Every(problem, candidates, recompute=recompute, offload=True, save=True)
        limits = [peak - less for peak, _ in every.frontier() for less in (0, 1)]
        limit = data.draw(st.sampled_from(limits))
        asked: dict[str, Any] = {"recompute": recompute, "offload": True, "gap": 1e-5}
        least, _ = every.best("sum", limit)
        if math.isinf(least):
            with pytest.raises(PlanError, match="no plan fits"):
                solve_milp(problem, candidates, memory_limit=limit, **asked)
            return
        found = solve_milp(problem, candidates, memory_limit=limit, **asked)
        again = estimate_cost(problem, found.decisions)
        assert again.serial_seconds == pytest.approx(least, rel=1e-6)
        assert found.bound <= least * (1 + 1e-6)
        assert again.memory.peak <= limit


# ---------------------------------------------------------------------- search


@pytest.mark.parametrize("name", STEPS)
def test_without_a_limit_nothing_is_offloaded(small, name):
    plan = searched(name, None)
    assert not plan.cost.kept.named
    assert plan.cost.memory.host == 0
    assert "host" not in plan.sentence() + str(plan)


@pytest.mark.parametrize(("bandwidth", "keeping"), [(1e15, OFFLOADED), (1e3, RECOMPUTED)])
def test_a_fast_link_is_used_and_a_slow_one_is_not(small, bandwidth, keeping):
    hardware = dataclasses.replace(SLOW, host_bandwidth=bandwidth)
    plan = searched("layers", 0.8, recompute=True, hardware=hardware)
    assert {*plan.cost.kept.named.values()} == {keeping}


@pytest.mark.parametrize("name", STEPS)
def test_within_a_limit_what_is_offloaded_is_counted_and_said(small, name, tmp_path):
    plan = searched(name, 0.75)
    host = plan.cost.memory.host
    nodes = plan.cost.kept.nodes(OFFLOADED)
    assert nodes
    assert host == on_the_host(plan.problem, plan.cost) > 0
    assert plan.cost.memory.peak <= (plan.memory_limit or 0)
    # The plan says so: in a sentence, in its report, on its page and as a cell of a notebook.
    said = size(host)
    assert f"on the host wait {said} of activations of each" in plan.sentence()
    assert f"; on the host {said}" in " ".join(str(plan).split())
    # One number: of tensors, and of a scan those of all iterations.
    (of_name,) = re.findall(r"(\d+) activations? offloaded\b(?! to)", str(plan))
    (of_list,) = re.findall(r"^activations offloaded to the host .*: (\d+), ", str(plan), re.M)
    assert of_name == of_list
    assert int(of_name) == sum(
        plan.graph.num_repeats(plan.graph.loops_around(tensor))
        for r in plan.cost.reshards
        if r.keeping == OFFLOADED and r.saved is not None
        for tensor in r.tensors
    )
    for page in (plan.html("step"), plan._repr_html_()):
        assert "on the host" in page
        assert said in page
    # Copies are priced there and back, and nothing is computed meanwhile.
    spent = math.fsum(r.multiplicity * r.keeping_seconds for r in plan.cost.reshards)
    stacked = 0 if name == "layers" else 4 * host / SLOW.memory_bandwidth
    least = 2 * host / (SLOW.host_bandwidth or 1)
    assert least <= spent
    if not stacked:
        assert spent == pytest.approx(least)
    assert plan.timeline.seconds == pytest.approx(plan.cost.serial_seconds, rel=1e-9)
    # Its file keeps it; without offloading the file does not know the word.
    plan.save(tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["offloaded"] == nodes
    assert written["options"]["offload"] is True
    assert written["hardware"]["host_bandwidth"] == 2e9
    loaded = ts.load(tmp_path / "plan.json")
    again = loaded.on(*STEPS[name])
    assert again.decisions.kept == plan.decisions.kept
    assert again.cost.memory == plan.cost.memory
    with pytest.raises(PlanError, match=r"offload=True needs the rate of copies to the host"):
        loaded.on(*STEPS[name], hardware=dataclasses.replace(SLOW, host_bandwidth=None))


def test_what_is_small_is_never_offloaded():
    """Not even where nothing else fits."""
    assert offloaded.LEAST_BYTES == 1 << 20
    problem = problem_of("layers")  # of tensors of 32 KiB
    assert not any(
        problem.may_keep(class_id, OFFLOADED) for class_id in range(len(problem.strategies))
    )


def test_what_a_compiler_would_move_back_is_not_offloaded(small):
    """XLA for TPUs keeps on the device what waits outside of loops; scans leave it on the host."""
    assert not any(HARDWARE[f"TPU {name}"].holds_host_copies for name in ("v4", "v5e", "v5p"))
    for name, waits in (("layers", False), ("a pair of scans", True)):
        problem = problem_of(name)
        moved = Problem(
            problem.traced, NETWORK, dataclasses.replace(SLOW, holds_host_copies=False), 1
        )
        classes = range(len(problem.strategies))
        assert any(problem.may_keep(class_id, OFFLOADED) for class_id in classes)
        assert any(moved.may_keep(class_id, OFFLOADED) for class_id in classes) == waits


@pytest.mark.parametrize("name", STEPS)
def test_the_report_lists_as_much_as_waits_on_the_host(small, name):
    """Of a scan that of all iterations."""
    plan = searched(name, 0.6)
    assert plan.cost.memory.host > 0
    (line,) = (row for row in str(plan).splitlines() if row.startswith("activations offloaded"))
    assert f"{size(plan.cost.memory.host)} per device" in line


def test_hardware_without_the_rate_is_refused():
    asked: dict[str, Any] = {"mesh": LINE, "network": NETWORK, "hardware": "CPU"}
    expected = r"offload=True needs .* CPU does not say: give dataclasses.replace\(hardware, host_b"
    with pytest.raises(PlanError, match=expected):
        ts.search(*STEPS["layers"], offload=True, **asked)
    problem = problem_of("layers", "CPU")
    with pytest.raises(PlanError, match=expected):
        ts.solve_baseline(problem, "ddp", offload=True)
    with pytest.raises(PlanError, match="offload must be True or False, got 1"):
        ts.search(*STEPS["layers"], offload=1, **asked)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="host_bandwidth of CPU must be"):
        dataclasses.replace(HARDWARE["CPU"], host_bandwidth=0)
    with pytest.raises(PlanError, match="cannot be combined with offload=True"):
        ts.search(*STEPS["layers"], offload=True, stages="x", **asked | {"hardware": SLOW})


# ---------------------------------------------------------------------- execution


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.slow_members("*scans*", "*2*")
def test_values_are_those_of_the_step(small, name, count):
    """In all three forms; copies to the host stand in the program as such."""
    plan = searched(name, 0.75, microbatches=count) if count == 1 else _halves(name)
    step, shapes = STEPS[name]
    assert plan.cost.kept.nodes(OFFLOADED)
    args, mesh = tuple(arguments(shapes)), devices({"x": 2})
    expected = jax.jit(step)(*args)
    forms = [plan.apply(mesh)]
    if count == 1:
        forms += [plan.constrain(step, mesh), plan.explicit(step, mesh)]
    for form in forms:
        traced = str(form.jit(donate=False).trace(*shapes).jaxpr)
        assert traced.lower().count("host") >= len(plan.cost.kept.nodes(OFFLOADED))
        jit = jitted(form)
        check = compare_with_hlo(jit.lower(*shapes).compile(), LINE, plan.cost)
        assert check.agrees
        assert check.predicted_host == check.compiled_host == 0  # the memory of CPUs is the host's
        found = jit(*on_devices(args, form))
        assert_alike(jax.device_get(found), expected, 1e-5)


def _halves(name: str) -> ts.Plan:
    """A plan in two microbatches, all of whose large results are offloaded."""
    problem = problem_of(name, microbatches=2)
    candidates = [each.all for each in problem.strategies]
    free = ts.Milp().solve(problem, candidates, ts.SearchOptions())
    nodes = [n.index for n in problem.graph.nodes if problem.may_keep(n.class_id, OFFLOADED)]
    decisions = ts.Decisions(free.decisions.strategies, dict.fromkeys(nodes, OFFLOADED))
    result = dataclasses.replace(free, decisions=decisions, cost=estimate_cost(problem, decisions))
    return ts.Plan(problem, result, ts.SearchOptions())
