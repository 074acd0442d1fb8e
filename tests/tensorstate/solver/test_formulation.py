"""The program of a problem: its objective is the price, and its relaxation a bound."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.decisions import Decisions
from tensorstate.errors import PlanError
from tensorstate.problem.problem import Problem
from tests.tensorstate.execution.test_sharded_step import problem_of
from tests.tensorstate.solvers import formulation_of
from tests.tensorstate.tiny import CUT, LINES, problems, some_ways


def _price(problem: Problem, decisions: Decisions, objective: str) -> float:
    """Infinite where nothing leads from a partial state to another that is demanded."""
    try:
        cost = estimate_cost(problem, decisions)
    except PlanError:
        return math.inf
    return cost.serial_seconds if objective == "sum" else cost.overlapped_seconds


def _check_price(data: st.DataObject, problem: Problem, objective: str) -> None:
    """With any ways given the program is the price."""
    strategies = tuple(
        data.draw(st.sampled_from(strategies.all)) for strategies in problem.strategies
    )
    formulation = formulation_of(
        problem, [(strategy,) for strategy in strategies], objective=objective
    )
    solution = formulation.program.solve(gap=1e-9)
    expected = _price(problem, Decisions(strategies), objective)
    if math.isinf(expected):
        assert solution.status == "infeasible"
        return
    assert solution.status == "optimal"
    assert formulation.seconds(solution.objective) == pytest.approx(expected, rel=1e-6)
    assert formulation.decisions(solution).strategies == strategies


@given(st.data(), st.sampled_from(("sum", "max")))
@settings(max_examples=150)
def test_for_given_ways_the_program_is_the_price(data, objective):
    """Trees of moves included: with the ways given, no fractions of moves do better."""
    problem = data.draw(problems())
    _check_price(data, problem, objective)


@given(st.data(), st.sampled_from(("sum", "max")))
@settings(max_examples=80)
def test_in_microbatches_the_program_is_the_price(data, objective):
    """What is gathered or summed once or in every turn is decided alike."""
    problem = data.draw(problems(CUT, microbatches=(2, 4)))
    _check_price(data, problem, objective)


@given(st.data(), st.floats(0.0, 1.0))
@settings(max_examples=25)
def test_in_microbatches_a_memory_limit_is_kept(data, share):
    """Whatever is held and kept to meet it costs what the program says."""
    problem = data.draw(problems(CUT, LINES, microbatches=(2, 4)))
    candidates = data.draw(some_ways(problem, 1_000))
    least = formulation_of(problem, candidates, memory_limit=math.inf)
    least.minimize_memory()
    low = estimate_cost(problem, least.decisions(least.program.solve(gap=1e-6))).memory.peak
    free = formulation_of(problem, candidates)
    high = estimate_cost(problem, free.decisions(free.program.solve(gap=1e-9))).memory.peak
    limit = low + share * (high - low) + 1
    formulation = formulation_of(problem, candidates, memory_limit=limit)
    solution = formulation.program.solve(gap=1e-9)
    cost = estimate_cost(problem, formulation.decisions(solution))
    assert cost.memory.peak <= limit + 1
    assert formulation.seconds(solution.objective) == pytest.approx(cost.serial_seconds, rel=1e-5)


@given(st.data(), st.booleans())
@settings(max_examples=30)
def test_the_relaxation_is_a_bound(data, recompute):
    problem = data.draw(problems())
    candidates = data.draw(some_ways(problem, 1_000))
    formulation = formulation_of(problem, candidates, recompute=recompute)
    whole = formulation.program.solve(gap=1e-9)
    relaxed = formulation.program.solve(relax=True)
    assert relaxed.bound <= whole.objective * (1 + 1e-6)
    assert relaxed.objective == relaxed.bound
    assert whole.bound <= whole.objective * (1 + 1e-9)


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_to_make_again_gains_no_time_in_parts_either(name):
    """Of the relaxation: parts that are made again are no others' to take."""
    problem = problem_of(name, {"data": 8})
    candidates = [strategies.all for strategies in problem.strategies]
    without = formulation_of(problem, candidates).program.solve(relax=True)
    recomputed = formulation_of(problem, candidates, recompute=True).program.solve(relax=True)
    assert recomputed.objective == pytest.approx(without.objective, rel=1e-6)


@given(st.data(), st.booleans(), st.sampled_from(("sum", "max")))
@settings(max_examples=30)
def test_the_interior_of_the_relaxation_proves_a_bound_and_says_what_is_likely(
    data, recompute, objective
):
    problem = data.draw(problems())
    candidates = data.draw(some_ways(problem, 1_000))
    formulation = formulation_of(problem, candidates, recompute=recompute, objective=objective)
    relaxed = formulation.program.solve(relax=True)
    inside = formulation.program.solve_ipm_relaxation(tolerance=1e-6)
    assert inside.bound <= relaxed.objective * (1 + 1e-9)
    if not len(inside.values):
        return
    assert inside.bound >= relaxed.objective * (1 - 1e-2)
    fractional_support = formulation.choices.fractional_support(inside)
    assert all(
        set(some) <= set(every) for some, every in zip(fractional_support, candidates, strict=True)
    )
    fewer = formulation_of(problem, fractional_support, recompute=recompute, objective=objective)
    recomputed = fewer.program.solve(relax=True)
    assert recomputed.objective == pytest.approx(relaxed.objective, rel=2e-2)


@given(st.data())
@settings(max_examples=20)
def test_the_least_memory_is_no_more_than_any(data):
    problem = data.draw(problems(("linear", "residual", "norm")))
    candidates = data.draw(some_ways(problem, 1_000))
    formulation = formulation_of(problem, candidates, memory_limit=math.inf)
    formulation.minimize_memory()
    solution = formulation.program.solve(gap=1e-6)
    least = estimate_cost(problem, formulation.decisions(solution)).memory.peak
    for _ in range(5):
        strategies = tuple(data.draw(st.sampled_from(choices)) for choices in candidates)
        if math.isfinite(_price(problem, Decisions(strategies), "sum")):
            assert estimate_cost(problem, Decisions(strategies)).memory.peak >= least
