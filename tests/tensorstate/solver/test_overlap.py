"""Searches of the least schedule: never slower than the plans that they begin with."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorstate
from experiments.models import load_model
from tensorstate import AlphaBetaCosts, Auto, MeshShape, Milp, PlanError, search, solve_baseline
from tensorstate.cost.cost import SearchOptions, estimate_cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.deadline import OutOfTime
from tensorstate.hardware import HARDWARE
from tensorstate.problem.baselines import Baselines
from tensorstate.problem.problem import Problem
from tensorstate.report import units
from tensorstate.solver import overlap
from tensorstate.solver.overlap import (
    LEAST_SHARE,
    SAME_SHARE,
    SHARES,
    Shares,
    search_overlapped,
)
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.steps import s
from tests.tensorstate.tiny import problems, some_strategies

OPTIONS = SearchOptions(objective="overlap")
SLOW_FAST = AlphaBetaCosts(MeshShape.of({"hosts": 2, "gpus": 4}), (5e-6, 5e-6), (25e9, 200e9))


def least_schedule(problem, candidates) -> float:
    """Seconds of the shortest schedule, by enumeration."""
    best = math.inf
    for strategies in itertools.product(*candidates):
        with contextlib.suppress(PlanError):
            best = min(best, estimate_cost(problem, Decisions(strategies)).timeline().seconds)
    return best


@given(st.data())
@settings(deadline=None, max_examples=15)
@pytest.mark.slow
def test_the_schedule_is_between_the_bound_and_the_plan_of_the_sum(data):
    problem = data.draw(problems(("linear", "twice", "tanh")))
    candidates = data.draw(some_strategies(problem, 200))
    found = search_overlapped(problem, candidates, OPTIONS, Milp(gap=1e-4))
    summed = Milp(gap=1e-4).solve(problem, candidates, SearchOptions())
    assert found.objective == found.cost.timeline().seconds
    assert found.objective <= summed.cost.timeline().seconds * (1 + 2e-4)
    best = least_schedule(problem, candidates)
    assert found.bound <= best * (1 + 1e-9)
    assert best <= found.objective * (1 + 1e-9)


@given(st.data())
@settings(deadline=None, max_examples=25)
@pytest.mark.slow
def test_plans_that_send_nothing_are_near_their_bound(data):
    """Links so slow that whatever is sent takes longer than to compute all on every device."""
    problem = data.draw(problems(("linear", "chain")))
    axes = len(problem.mesh.sizes)
    seconds = data.draw(st.sampled_from((1.0, 1e-6, 1e-9)))
    problem = problem.on(AlphaBetaCosts(problem.mesh, (seconds,) * axes, (1e10,) * axes))
    candidates = data.draw(some_strategies(problem, 200))
    found = search_overlapped(problem, candidates, OPTIONS, Milp(gap=1e-4))
    assert found.bound <= least_schedule(problem, candidates) * (1 + 1e-9)
    if seconds == 1.0:
        assert found.cost.communication == 0
        assert found.bound >= found.objective / (1 + LEAST_SHARE * axes) * (1 - 1e-4)


@given(st.data())
@settings(deadline=None, max_examples=8)
def test_devices_that_overlap_nothing_get_the_plan_of_the_sum(data):
    problem = data.draw(problems(("linear", "tanh")))
    alone = dataclasses.replace(problem.hardware, overlaps=False)
    problem = problem.on(problem.network, alone)
    candidates = data.draw(some_strategies(problem, 200))
    found = search_overlapped(problem, candidates, OPTIONS, Milp(gap=1e-4))
    summed = Milp(gap=1e-4).solve(problem, candidates, SearchOptions())
    assert found.objective == pytest.approx(summed.objective, rel=2e-4)
    assert found.bound == pytest.approx(summed.bound)


def test_shares_move_along_the_axes_of_which_more_or_less_is_critical():
    """First where a plan and its shares differ most, then both, and the other way last."""
    shares = Shares((2, 5, 3))
    assert shares.assumed == (0.2, 0.7, 0.35)
    levels = [each.levels for each in shares.neighbours((0.25, 0.0, 1.0), (0, 1))]
    assert levels == [(2, 4, 3), (3, 5, 3), (3, 4, 3), (2, 6, 3), (1, 5, 3)]


@given(st.lists(st.tuples(st.integers(0, len(SHARES) - 1), st.floats(0, 1)), min_size=1))
def test_neighbours_of_shares_are_a_level_away(axes):
    levels, critical = zip(*axes, strict=True)
    moved = [each.levels for each in Shares(levels).neighbours(critical, range(len(axes)))]
    assert len(moved) >= 1
    for each in moved:
        assert each != levels
        assert all(
            abs(a - b) <= 1 and 0 <= a < len(SHARES) for a, b in zip(each, levels, strict=True)
        )


def test_tensors_that_a_schedule_exposes_pay_alone(graph):
    first, second, *_ = problem_of(graph).tensor_groups
    shares = Shares((0, 0))
    assert shares.raised({first: (LEAST_SHARE, SAME_SHARE), second: (0.0, 0.0)}) is None
    raised = shares.raised({first: (0.9, 0.0), second: (0.0, 0.1)})
    assert raised is not None
    assert raised.paid(first) == (0.9, LEAST_SHARE)
    assert raised.paid(second) == (LEAST_SHARE, LEAST_SHARE)
    assert raised.raised({first: (0.9, 0.0), second: (0.0, 0.0)}) is None
    by_axis = next(raised.neighbours([0.5, 0.0], (0,)))
    assert by_axis.paid(first) == (0.9, LEAST_SHARE)
    assert by_axis.paid(second) == (SHARES[1], LEAST_SHARE)


def block(params, x):
    def loss(params):
        hidden = x
        for up, down in params:
            inner = jax.nn.relu(hidden @ up.astype(jnp.bfloat16))
            hidden = hidden + inner @ down.astype(jnp.bfloat16)
        return jnp.square(hidden.astype(jnp.float32)).sum()

    gradients = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


@pytest.fixture(scope="module")
def graph():
    layers = [(s(4096, 16384), s(16384, 4096))] * 2
    return trace(block, (layers, s(32768, 4096, dtype=jnp.bfloat16)))


def problem_of(graph):
    return Problem(graph, SLOW_FAST, HARDWARE["H100"])


ASKED = {"mesh": {"hosts": 2, "gpus": 4}, "network": SLOW_FAST, "hardware": "H100"}


@pytest.fixture(scope="module")
def plan(graph):
    return search(graph, solver=Auto(time_limit=60), **ASKED)


@pytest.fixture(scope="module")
def summed(graph):
    return search(graph, objective="sum", **ASKED)


@pytest.mark.slow
def test_nothing_but_what_hides_goes_over_the_slow_links(plan, summed):
    """Tensor parallelism across hosts would be exposed: parameters and gradients are not."""
    assert plan.options.objective == "overlap"
    assert plan.timeline.seconds <= summed.timeline.seconds
    for name in ("fsdp", "ddp", "zero1", "ddp + megatron", "fsdp + megatron-sp"):
        named = solve_baseline(plan.problem, name)
        assert plan.timeline.seconds <= named.timeline.seconds * (1 + 1e-6), name
        assert named.result.bound <= named.result.objective
    batch = Baselines(plan.problem).batch
    activations = (
        seconds
        for (tensor, axis), seconds in plan.timeline.exposed_of.items()
        if axis == 0 and not batch.isdisjoint(plan.graph.tensors[tensor].dims)
    )
    assert math.fsum(activations) < 0.01 * plan.timeline.seconds
    assert plan.result.bound <= plan.timeline.seconds == plan.result.objective
    assert plan.timeline.exposed_seconds < 0.5 * plan.cost.communication


@dataclasses.dataclass(frozen=True)
class Counted(Milp):
    """Counts its programs."""

    programs: list[Problem] = dataclasses.field(default_factory=list)

    def answer(self, question):
        """See ``Milp``."""
        self.programs.append(question.problem)
        return super().answer(question)


@dataclasses.dataclass(frozen=True)
class Refusing(Counted):
    """Has no plan in time."""

    def answer(self, question):
        """See ``Milp``."""
        self.programs.append(question.problem)
        raise OutOfTime(f"none of program {len(self.programs)}")


def test_without_a_plan_in_time_no_other_program_is_begun(graph, monkeypatch):
    """A named strategy is the answer; where there is none, the reason is that of the first."""
    problem, asked = problem_of(graph), Refusing()
    candidates = [strategies.all for strategies in problem.strategies]
    found = search_overlapped(problem, candidates, OPTIONS, asked)
    assert len(asked.programs) == 2
    fsdp = solve_baseline(problem, "fsdp", memory_limit=math.inf)
    assert found.objective <= fsdp.result.objective * (1 + 1e-6)
    monkeypatch.setattr(overlap, "NAMED", ())
    with pytest.raises(OutOfTime, match="none of program 1"):
        search_overlapped(problem, candidates, OPTIONS, Refusing())
    monkeypatch.setattr(overlap, "deadline_after", lambda _: 0.0)
    late = Refusing(time_limit=60)
    with pytest.raises(OutOfTime, match="no plan was found in time"):
        search_overlapped(problem, candidates, OPTIONS, late)
    assert not late.programs


@pytest.mark.slow
def test_a_plan_within_two_gaps_of_the_bound_needs_no_other_program(graph, plan):
    """With links that hide all, the compute of the plan of the least shares is the bound."""
    links = AlphaBetaCosts(SLOW_FAST.mesh, (0.0, 0.0), (1e15, 1e15))
    fast, slow = Counted(), Counted()
    found = search(graph, solver=fast, **{**ASKED, "network": links})
    assert len(fast.programs) == 1
    assert found.timeline.seconds <= found.result.bound * 1.02
    assert search(graph, solver=slow, **ASKED).timeline.seconds >= plan.result.bound
    assert len(slow.programs) > 1


def test_the_last_gradient_hides_under_nothing():
    """Of three layers of a decoder those of the table and the head, by which 8 % were exposed.

    The shares of all that an axis sends are low, since the layers hide nearly all of it.
    """
    sizes = {"layers": 3, "hidden": 16384, "num_kv_heads": 32, "sequence_length": 2048}
    model = load_model("llama_3_1_8b", **sizes, batch=16, scan=False)
    graph = trace(model.step, model.abstract_args)
    solver = Counted()
    found = search(graph, solver=solver, **ASKED, memory_limit=math.inf).result
    assert found.objective <= found.bound * 1.02, found
    assert all(problem.shares for problem in solver.programs)  # "sum" was not needed


def test_a_plan_prints_the_time_of_its_schedule(plan, tmp_path):
    assert "of it exposed" in str(plan)
    assert "exposed" in str(plan.compare("fsdp")).splitlines()[0]
    plan.save(tmp_path / "plan.json")
    text = str(tensorstate.load(tmp_path / "plan.json"))
    assert units.seconds(plan.timeline.seconds) in text


def test_a_solver_alone_refuses_the_schedule(summed):
    problem = summed.problem
    with pytest.raises(PlanError, match="search"):
        Milp().solve(problem, [s.all for s in problem.strategies], OPTIONS)
