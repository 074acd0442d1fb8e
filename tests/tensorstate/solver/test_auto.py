"""Which search ``auto`` runs, and how it combines the results of two."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np
import pytest

from jaxcoll.numerics.program import Solution, Status
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.cost import Infeasible, SearchOptions, SearchResult
from tensorstate.cost.memory import most_bytes
from tensorstate.deadline import OutOfTime
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE
from tensorstate.problem.problem import Problem
from tensorstate.solver import auto as searches
from tensorstate.solver import coordinate_descent as descents
from tensorstate.solver import exact
from tensorstate.solver import named as strategies
from tensorstate.solver.base import Question
from tensorstate.solver.coordinate_descent import CoordinateDescent
from tensorstate.solver.exact import minimize_memory
from tensorstate.solver.growing_program import GrowingProgram
from tensorstate.solver.repair import Repaired
from tests.tensorstate.solvers import (
    coordinate_descent,
    options_of,
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
    least, _ = minimize_memory(Question(problem, candidates, options_of(recompute=True)))
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


def replace_exact_search(monkeypatch, solve):
    """Of all candidates, and of those of named strategies."""
    for module in (searches, strategies):
        monkeypatch.setattr(module, "solve_within_limit", solve)


def decided(monkeypatch, free, exact_one, named, descended):
    """Makes every stage return its result, in place of a search; errors are raised."""

    def solve(question, _solver, *, prune_placements=False, **_options):
        if question.options.memory_limit is None:
            return free
        return named if prune_placements else exact_one

    def descend(*_args, **_options):
        if isinstance(descended, Exception):
            raise descended
        return descended

    monkeypatch.setattr(searches, "repair", lambda *_args, **_options: Repaired(None, free))
    replace_exact_search(monkeypatch, solve)
    monkeypatch.setattr(CoordinateDescent, "descend", descend)


@pytest.fixture(scope="module")
def free(problem, candidates):
    return solve_milp(problem, candidates, gap=1e-7)


NOTHING = Infeasible(proven=False)


def test_a_plan_without_a_limit_that_fits_is_the_answer(monkeypatch, problem, candidates, free):
    """Nothing is searched under the limit, and the bound is that of all plans."""
    decided(monkeypatch, free, None, None, AssertionError("a descent"))
    limit = free.cost.memory.peak
    found = solve_auto(problem, candidates, recompute=True, memory_limit=limit)
    assert found.decisions is free.decisions
    assert found.bound == free.bound


def test_branch_and_bound_is_coarse_only_where_a_plan_may_not_fit(
    monkeypatch, problem, candidates, free
):
    """To the gap it takes as long again: once, if the limit holds all tensors whole."""
    gaps = []

    def solve(question, milp, **_):
        gaps.append(milp.gap)
        return dataclasses.replace(free, bound=free.objective * (1 - milp.gap))

    monkeypatch.setattr(searches, "solve_within_limit", solve)
    for limit in (most_bytes(problem), most_bytes(problem) - 1):
        solve_auto(problem, candidates, memory_limit=limit)
    gap = searches.Auto().gap
    assert gaps == [gap, searches.COARSE_GAP, gap]


def test_the_best_plan_has_the_highest_bound(monkeypatch, problem, candidates, limit, best, free):
    """Whichever stage finds it."""
    objective = free.objective
    slow = dataclasses.replace(best, objective=9 * objective, bound=2 * objective)
    loose = dataclasses.replace(best, objective=8 * objective, bound=0.5 * objective)
    fast = dataclasses.replace(best, objective=4 * objective, bound=objective, method="descent")
    for stages in ((slow, loose, fast), (slow, fast, loose), (slow, NOTHING, fast)):
        decided(monkeypatch, free, *stages)
        found = solve_auto(problem, candidates, recompute=True, memory_limit=limit)
        assert (found.objective, found.bound) == (fast.objective, slow.bound)
        assert found.method == "descent"


def test_a_bound_is_never_below_that_without_a_limit(
    monkeypatch, problem, candidates, limit, best, free
):
    loose = dataclasses.replace(best, objective=9 * best.objective, bound=-math.inf)
    decided(monkeypatch, free, loose, NOTHING, PlanError("none in time"))
    found = solve_auto(problem, candidates, recompute=True, memory_limit=limit)
    assert found.bound == free.bound


def test_a_program_that_is_not_built_in_time_leaves_the_repaired_plan(
    monkeypatch, problem, candidates, limit, best, free
):
    """As of an optimizer of many products: the repaired plan was lost, and the search had none."""

    def solve(question, _solver, **_options):
        if question.options.memory_limit is None:
            return free
        raise OutOfTime

    decided(monkeypatch, free, NOTHING, NOTHING, PlanError("none in time"))
    replace_exact_search(monkeypatch, solve)
    slow = dataclasses.replace(best, objective=9 * free.objective)
    monkeypatch.setattr(searches, "repair", lambda *_args, **_options: Repaired(slow, slow))
    found = solve_auto(problem, candidates, recompute=True, memory_limit=limit)
    assert found.objective == slow.objective
    assert found.bound == free.bound


def test_stages_that_find_nothing_leave_it_to_the_next(
    monkeypatch, problem, candidates, limit, best, free
):
    none = PlanError("none in time")
    for stages in ((NOTHING, NOTHING, best), (NOTHING, best, none), (best, NOTHING, none)):
        decided(monkeypatch, free, *stages)
        found = solve_auto(problem, candidates, recompute=True, memory_limit=limit)
        assert found.objective == best.objective
    decided(monkeypatch, free, NOTHING, NOTHING, none)
    found = solve_auto(problem, candidates, recompute=True, memory_limit=limit)
    assert found.cost.memory.peak <= limit
    assert found.bound == free.bound
    decided(monkeypatch, free, NOTHING, NOTHING, none)
    with pytest.raises(PlanError, match=r"no plan fits .* the least is about"):
        solve_auto(problem, candidates, recompute=True, memory_limit=1.0)


def test_a_limit_is_refused_as_soon_as_it_is_refuted(monkeypatch, problem, candidates, limit, free):
    """The proof is that of the exact search, which finds none where a plan fits."""
    proofs = list[bool]()

    def repair(_question, _start, *, refute, **_options):
        proofs.append(refute())
        return Repaired(None, free, is_refuted=True)

    monkeypatch.setattr(searches, "repair", repair)
    for each in (limit, limit / 1e6):
        with pytest.raises(PlanError, match="no plan fits"):
            solve_auto(problem, candidates, recompute=True, memory_limit=each)
    assert proofs == [False, True]


def test_a_keeping_that_may_be_chosen_makes_no_plan_slower(
    monkeypatch, problem, candidates, limit, best, free
):
    """Where the search is not within the gap, it also searches with fewer keepings."""
    decided(monkeypatch, free, NOTHING, NOTHING, PlanError("none in time"))
    asked = list[tuple[str, ...]]()

    def repair(question, *_args, **_options):
        asked.append(tuple(map(str, question.options.keepings)))
        objective = (1.5 + len(asked[-1])) * free.objective
        plan = dataclasses.replace(best, objective=objective)
        return Repaired(plan, plan)

    monkeypatch.setattr(searches, "repair", repair)
    options: dict[str, Any] = {"recompute": True, "offload": True, "memory_limit": limit}
    found = solve_auto(problem, candidates, **options)
    three = ("saved", "recomputed", "offloaded")
    assert asked == [three, three[:2], (three[0], three[2]), three[:1]]
    assert found.objective == 2.5 * free.objective
    # Within the gap there is nothing to gain.
    asked.clear()
    close = dataclasses.replace(best, objective=free.bound)
    monkeypatch.setattr(searches, "repair", lambda *_args, **_options: Repaired(close, close))
    assert solve_auto(problem, candidates, **options).objective == free.bound
    assert not asked


def test_named_strategies_are_taken_where_no_search_has_a_plan_in_time(
    monkeypatch, problem, candidates, free
):
    def solve(*_args, prune_placements=False, **_options):
        if not prune_placements:
            raise OutOfTime
        return next(named)

    named = iter([dataclasses.replace(free, objective=k * free.objective) for k in (3, 2, 4, 5)])
    replace_exact_search(monkeypatch, solve)
    monkeypatch.setattr(CoordinateDescent, "answer", solve)
    found = solve_auto(problem, candidates)
    assert (found.objective, found.bound) == (2 * free.objective, -math.inf)


@pytest.mark.parametrize("memory_limit", [None, 1e12])
def test_no_named_strategy_and_no_descent_is_better_where_time_ends_the_search(
    monkeypatch, problem, candidates, free, memory_limit
):
    """An exact search that time ended has a plan of replicated tensors, far from its bound."""
    late = dataclasses.replace(free, objective=9 * free.objective)
    named = dataclasses.replace(free, objective=3 * free.objective, bound=-math.inf)
    descended = dataclasses.replace(free, objective=2 * free.objective, bound=-math.inf)

    def solve(*_args, prune_placements=False, **_options):
        return named if prune_placements else late

    replace_exact_search(monkeypatch, solve)
    for answer, best in ((descended, 2), (PlanError("none in time"), 3)):

        def descend(_solver, _question, starts, answer=answer, **_options):
            assert {late.objective, named.objective} == {start.objective for start in starts}
            if isinstance(answer, PlanError):
                raise answer
            return answer

        monkeypatch.setattr(CoordinateDescent, "descend", descend)
        found = solve_auto(problem, candidates, memory_limit=memory_limit)
        assert (found.objective, found.bound) == (best * free.objective, free.bound)


def test_the_seconds_of_a_descent_count_its_start(monkeypatch, problem, candidates):
    def start(*_args):
        time.sleep(0.2)

    monkeypatch.setattr(descents, "_merged_axes_start", start)
    assert CoordinateDescent().solve(problem, candidates).seconds >= 0.2


def test_the_seconds_of_a_descent_from_known_plans_are_those_of_all_its_visits(
    monkeypatch, problem, candidates
):
    start, run = solve_auto(problem, candidates), descents._Descent.run

    def slowly(*args):
        time.sleep(0.2)
        return run(*args)

    monkeypatch.setattr(descents._Descent, "run", slowly)
    question = Question(problem, candidates, SearchOptions())
    assert CoordinateDescent().descend(question, [start], bounded=False).seconds >= 0.2


def test_what_is_proved_is_not_tried_again(problem, candidates):
    with pytest.raises(PlanError, match=r"no plan fits into 1 bytes .* the least is about"):
        solve_auto(problem, candidates, recompute=True, memory_limit=1.0)
    unproved = r"no plan was found that fits .* the least that was found is"
    with pytest.raises(PlanError, match=unproved):
        coordinate_descent(problem, candidates, recompute=True, memory_limit=1.0)


def test_likely_strategies_are_searched_when_there_is_no_time_for_all(
    monkeypatch, problem, candidates
):
    """What finds something is the relaxation and the small program of its likely strategies."""
    solve, calls = GrowingProgram.solve, []

    def hurried(self, **options):
        calls.append(options.get("relax", False))
        if len(calls) > 2:
            return Solution(Status.LIMIT, np.zeros(0), math.inf, -math.inf)
        found = solve(self, **options)
        return dataclasses.replace(found, bound=0.5 * found.objective)

    monkeypatch.setattr(exact, "DIRECT_SOLVE_MAX_VARS", 0)
    monkeypatch.setattr(GrowingProgram, "solve", hurried)
    found = solve_milp(problem, candidates)
    assert calls == [True, False, False, False]
    assert 0 < found.bound < 0.6 * found.objective


def test_a_relaxation_without_fractions_is_the_plan(monkeypatch, problem, candidates):
    """Strategies that are all decided, as most of a baseline's, are one program and not two."""
    free = solve_milp(problem, candidates)
    fixed = [[strategy] for strategy in free.decisions.strategies]
    solve, calls = GrowingProgram.solve, []

    def counted(self, **options):
        calls.append(options.get("relax", False))
        return solve(self, **options)

    monkeypatch.setattr(exact, "DIRECT_SOLVE_MAX_VARS", 0)
    monkeypatch.setattr(GrowingProgram, "solve", counted)
    found = solve_milp(problem, fixed)
    assert calls == [True]
    assert found.decisions.strategies == free.decisions.strategies
    assert found.objective == pytest.approx(free.objective, rel=1e-9)
    assert found.bound == pytest.approx(free.objective, rel=1e-6)


def test_without_the_least_memory_it_is_said_that_it_is_not_known(monkeypatch, problem, candidates):
    monkeypatch.setattr(exact, "minimize_memory", lambda *_args, **_options: (None, -math.inf))
    with pytest.raises(PlanError, match="the minimum memory could not be determined"):
        solve_milp(problem, candidates, recompute=True, memory_limit=1.0)


def test_what_fits_whatever_it_costs_is_not_proved_not_to(monkeypatch, problem, candidates, limit):
    """A verdict of infeasibility on the program with costs is checked by the least memory."""
    solve = GrowingProgram.solve  # the least memory has one cost

    def mistaken(self, **options):
        if sum(map(bool, self._costs)) > 1:
            return Solution(Status.INFEASIBLE, np.zeros(0), math.inf, math.inf)
        return solve(self, **options)

    monkeypatch.setattr(GrowingProgram, "solve", mistaken)
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
