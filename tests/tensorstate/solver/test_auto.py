"""Which search ``auto`` runs, and how it combines the results of two."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tensorstate.cost.cost import Infeasible, SearchOptions, SearchResult
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE, AlphaBetaCosts
from tensorstate.problem.problem import Problem
from tensorstate.solver import auto as searches
from tensorstate.solver import exact
from tensorstate.solver.coordinate_descent import CoordinateDescent
from tensorstate.solver.exact import minimize_memory
from tensorstate.solver.linear_program import LinearProgram, Solution
from tests.tensorstate.solvers import (
    coordinate_descent,
    solve_auto,
    solve_milp,
    solve_within_limit,
)
from tests.tensorstate.tiny import MESHES, graph


@pytest.fixture(scope="module")
def problem():
    network = AlphaBetaCosts(MESHES[-1], (1e-6,) * 2, (1e9,) * 2)
    return Problem(graph("tanh"), network, HARDWARE["CPU"])


@pytest.fixture(scope="module")
def candidates(problem):
    return [strategies.all for strategies in problem.strategies]


@pytest.fixture(scope="module")
def limit(problem, candidates):
    """Bytes between those of the fastest plan and the least."""
    fastest = solve_milp(problem, candidates, gap=1e-7).cost.memory.peak
    least, _ = minimize_memory(problem, candidates, SearchOptions(recompute=True))
    assert least is not None
    assert least.cost.memory.peak < fastest
    return (least.cost.memory.peak + fastest) / 2


@pytest.fixture(scope="module")
def best(problem, candidates, limit):
    return solve_milp(problem, candidates, recompute=True, memory_limit=limit, gap=1e-7)


@pytest.mark.parametrize("seconds", [0.01, math.inf])
def test_a_plan_that_fits_is_found_whatever_the_time(problem, candidates, limit, best, seconds):
    found = solve_auto(problem, candidates, recompute=True, memory_limit=limit, time_limit=seconds)
    assert found.cost.memory.peak <= limit
    assert found.objective >= best.objective * (1 - 1e-6)
    assert found.bound <= best.objective * (1 + 1e-6)
    if seconds == math.inf:
        assert found.method == "milp"
        assert found.objective <= best.objective * 1.01


def decided(monkeypatch, first, second):
    """Makes the exact search and the descent return these results; errors are raised."""

    def result(*_args, **_options):
        if isinstance(second, Exception):
            raise second
        return second

    monkeypatch.setattr(searches, "solve_within_limit", lambda *_args, **_options: first)
    monkeypatch.setattr(CoordinateDescent, "solve", result)


def test_the_better_plan_has_the_higher_bound(monkeypatch, problem, candidates, limit, best):
    slow = dataclasses.replace(best, objective=2 * best.objective, bound=0.9 * best.objective)
    loose = dataclasses.replace(best, bound=0.5 * best.objective, method="descent")
    for first, second in ((slow, loose), (loose, slow)):
        decided(monkeypatch, first, second)
        found = solve_auto(problem, candidates, recompute=True, memory_limit=limit)
        assert (found.objective, found.bound) == (loose.objective, slow.bound)
        assert found.method == "descent"


def test_one_of_them_may_find_nothing(monkeypatch, problem, candidates, limit, best):
    loose = dataclasses.replace(best, bound=0.5 * best.objective)
    for first, second in ((Infeasible(proven=False), loose), (loose, PlanError("none in time"))):
        decided(monkeypatch, first, second)
        found = solve_auto(problem, candidates, recompute=True, memory_limit=limit)
        assert (found.objective, found.bound) == (loose.objective, loose.bound)
    decided(monkeypatch, Infeasible(proven=False), PlanError("none in time"))
    with pytest.raises(PlanError, match="none in time"):
        solve_auto(problem, candidates, recompute=True, memory_limit=limit)


def test_what_is_proved_is_not_tried_again(problem, candidates):
    with pytest.raises(PlanError, match=r"no plan fits into 1 bytes .* the least is about"):
        solve_auto(problem, candidates, recompute=True, memory_limit=1.0)
    with pytest.raises(PlanError, match=r"no plan was found that fits .* the least is about"):
        coordinate_descent(problem, candidates, recompute=True, memory_limit=1.0)


def test_likely_strategies_are_searched_when_there_is_no_time_for_all(
    monkeypatch, problem, candidates
):
    """Only the relaxation and the program of its likely strategies are solved."""
    solve, calls = LinearProgram.solve, []

    def hurried(self, **options):
        calls.append(options.get("relax", False))
        if len(calls) > 2:
            return Solution("limit", np.zeros(0), math.inf, -math.inf)
        found = solve(self, **options)
        return dataclasses.replace(found, bound=0.5 * found.objective)

    monkeypatch.setattr(exact, "DIRECT_SOLVE_MAX_VARS", 0)
    monkeypatch.setattr(LinearProgram, "solve", hurried)
    found = solve_milp(problem, candidates)
    assert calls == [True, False, False]
    assert 0 < found.bound < 0.6 * found.objective


def test_a_relaxation_without_fractions_is_the_plan(monkeypatch, problem, candidates):
    """Strategies that are all decided, as most of a baseline's, are one program and not two."""
    free = solve_milp(problem, candidates)
    fixed = [[strategy] for strategy in free.decisions.strategies]
    solve, calls = LinearProgram.solve, []

    def counted(self, **options):
        calls.append(options.get("relax", False))
        return solve(self, **options)

    monkeypatch.setattr(exact, "DIRECT_SOLVE_MAX_VARS", 0)
    monkeypatch.setattr(LinearProgram, "solve", counted)
    found = solve_milp(problem, fixed)
    assert calls == [True]
    assert found.decisions.strategies == free.decisions.strategies
    assert found.objective == pytest.approx(free.objective, rel=1e-9)
    assert found.bound == pytest.approx(free.objective, rel=1e-6)


def test_without_the_least_memory_it_is_said_that_it_is_not_known(monkeypatch, problem, candidates):
    monkeypatch.setattr(exact, "minimize_memory", lambda *_args: (None, -math.inf))
    with pytest.raises(PlanError, match="the minimum memory could not be determined"):
        solve_milp(problem, candidates, recompute=True, memory_limit=1.0)


def test_what_fits_whatever_it_costs_is_not_proved_not_to(monkeypatch, problem, candidates, limit):
    """A verdict of infeasibility on the program with costs is checked by the least memory."""
    solve = LinearProgram.solve  # the least memory has one cost

    def mistaken(self, **options):
        if sum(map(bool, self._costs)) > 1:
            return Solution("infeasible", np.zeros(0), math.inf, math.inf)
        return solve(self, **options)

    monkeypatch.setattr(LinearProgram, "solve", mistaken)
    options: dict[str, Any] = {"recompute": True}
    found = solve_within_limit(problem, candidates, memory_limit=limit, fall_back=False, **options)
    assert isinstance(found, Infeasible)
    assert not found.proven
    found = solve_within_limit(problem, candidates, memory_limit=limit, **options)
    assert isinstance(found, SearchResult)
    assert found.cost.memory.peak <= limit
    assert found.bound == -math.inf
    found = solve_within_limit(problem, candidates, memory_limit=1.0, **options)
    assert isinstance(found, Infeasible)
    assert found.proven
