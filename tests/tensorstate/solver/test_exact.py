"""The exact search against enumeration of all decisions, and its errors."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.numerics.program import Solution, Status
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.cost import Infeasible, SearchOptions, SearchResult, estimate_cost
from tensorstate.deadline import OutOfTime
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE, Hardware
from tensorstate.ir.placements import SUM, MeshShape
from tensorstate.problem.problem import Problem
from tensorstate.solver import exact
from tensorstate.solver.base import Question
from tensorstate.solver.exact import Milp, is_near
from tests.tensorstate.exhaustive import Every
from tests.tensorstate.solvers import coordinate_descent, formulation_of, solve_milp
from tests.tensorstate.tiny import LINES, MESHES, SPLITTABLE, graph, problems, some_strategies

CPU = HARDWARE["CPU"]
OBJECTIVES = st.sampled_from(("sum", "max"))
GAP = 1e-7


def _check(problem: Problem, found: SearchResult, objective: str, least: float) -> None:
    """The plan is optimal, its cost is the program's objective, and its bound is valid."""
    cost = estimate_cost(problem, found.decisions)
    reachable = cost.serial_seconds if objective == "sum" else cost.overlapped_seconds
    assert reachable == pytest.approx(least, rel=1e-6)
    assert found.bound <= least * (1 + 1e-6)
    assert found.bound >= least * (1 - 1e-4)


@given(st.data(), OBJECTIVES)
@settings(max_examples=40)
@pytest.mark.slow
def test_no_strategies_are_better(data, objective):
    problem = data.draw(problems())
    candidates = data.draw(some_strategies(problem, 50_000))
    least = Every(problem, candidates).best(objective)[0]
    found = solve_milp(problem, candidates, objective=objective, gap=GAP)
    _check(problem, found, objective, least)


@given(st.data())
@settings(max_examples=15)
def test_no_strategies_are_better_in_a_large_program(data):
    """Its relaxation splits the costs of shared steps first."""
    problem = data.draw(problems())
    candidates = data.draw(some_strategies(problem, 50_000))
    least = Every(problem, candidates).best("sum")[0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exact, "DIRECT_SOLVE_MAX_VARS", 0)
        found = solve_milp(problem, candidates, gap=GAP)
        patched.setattr(exact, "SPLIT_MIN_VARS", 0)
        near = solve_milp(problem, candidates, gap=0.2)
    _check(problem, found, "sum", least)
    assert near.bound <= least * (1 + 1e-6)
    assert near.objective <= least / (1 - 0.2)


def test_likeliest_strategies_that_nothing_connects_are_no_plan():
    """A relaxed solution has other shares beside the likeliest, which alone may be inconsistent."""
    mesh = MeshShape.of({"data": 2, "model": 2})
    problem = Problem(graph("chain"), AlphaBetaCosts(mesh, (1e-6,) * 2, (1e9,) * 2), CPU)
    candidates = [strategies.all for strategies in problem.strategies]
    full = formulation_of(problem, candidates)
    solutions = [*_of_strategies(full, candidates)]
    plans = [solution for solution in solutions if _is_plan(full, solution)]
    near = [solution for solution in solutions if is_near(full, 0.9, solution)]
    assert near
    assert len(plans) < len(solutions)
    assert all(_is_plan(full, solution) for solution in near)


def _of_strategies(full, candidates):
    """Solutions in which a class has one strategy: of each class the first, or one other."""
    for class_id, choices in enumerate(candidates):
        for chosen in choices:
            values = np.zeros(full.program.num_variables)
            for other, variables in enumerate(full.choices.x):
                strategy = chosen if other == class_id else candidates[other][0]
                values[[v for (s, _), v in variables.items() if s == strategy]] = 1.0
            bound = full.program.costs @ values
            yield Solution(Status.OPTIMAL, values, bound, bound)


def _is_plan(full, solution) -> bool:
    try:
        full.result(solution, SearchOptions())
    except PlanError:
        return False
    return True


@given(st.data(), OBJECTIVES)
@settings(max_examples=20)
@pytest.mark.slow
def test_no_recomputation_is_better(data, objective):
    """Without a memory limit recomputation gains nothing, and must lose nothing."""
    problem = data.draw(problems())
    candidates = data.draw(some_strategies(problem, 2_000))
    least = Every(problem, candidates, recompute=True).best(objective)[0]
    found = solve_milp(problem, candidates, recompute=True, objective=objective, gap=GAP)
    _check(problem, found, objective, least)


def _check_limited(data, problem: Problem, recompute: bool, most: int) -> None:
    """At peaks of plans that no other beats, and a byte below them: there a byte counted wrong,
    or a limit a little too strict or too loose, loses a plan or finds one that does not fit.
    """
    candidates, objective = data.draw(some_strategies(problem, most)), data.draw(OBJECTIVES)
    every = Every(problem, candidates, recompute=recompute, save=True)
    limits = [peak - less for peak, _ in every.frontier(objective) for less in (0, 1)]
    for limit in data.draw(st.lists(st.sampled_from(limits), min_size=1, max_size=3, unique=True)):
        least, _ = every.best(objective, limit)
        options = {"memory_limit": limit, "recompute": recompute, "objective": objective}
        if math.isinf(least):
            with pytest.raises(PlanError, match="no plan fits"):
                solve_milp(problem, candidates, gap=GAP, **options)
            continue
        found = solve_milp(problem, candidates, gap=GAP, **options)
        _check(problem, found, objective, least)
        assert found.cost.memory.peak <= limit


@given(st.data(), st.booleans())
@settings(max_examples=25)
def test_nothing_that_fits_is_better(data, trained):
    """Under a memory limit, over all strategies and all saved placements."""
    names = ("linear",) if trained else ("norm", "residual", "greatest", "chain")
    problem = data.draw(problems(names, LINES if trained else MESHES))
    _check_limited(data, problem, False, 400)


def test_no_tensor_is_split_between_reshardings_to_fit():
    """Each of two ways to reshard the product takes 512 bytes; half of it each way would fit."""
    network = AlphaBetaCosts(MESHES[-1], (3.41e-7, 1.88e-7), (1.83e8, 5.98e7))
    problem = Problem(graph("greatest"), network, Hardware("drawn", {4: 1e9}, 1e9, 1e9))
    several = ((-1, -1), (0, 1), (1, -1), (1, 0), (1, 1))
    product = ((-1, -1), (1, 1), (-3, -2), (-3, -3))
    candidates = (product, ((-1, -1), (1, -1), (1, 0), (1, 1)), several, several)
    least = Every(problem, candidates, save=True).least_peak
    with pytest.raises(PlanError, match="no plan fits"):
        solve_milp(problem, candidates, memory_limit=0.9375 * least, gap=GAP)
    assert solve_milp(problem, candidates, memory_limit=least, gap=GAP).cost.memory.peak == least


@given(st.data())
@settings(max_examples=8)
@pytest.mark.slow
def test_no_recomputation_that_fits_is_better(data):
    """The same, and over all sets of recomputed operators."""
    problem = data.draw(problems(("linear", "residual", "greatest", "chain"), LINES))
    _check_limited(data, problem, True, 200)


@given(st.data())
@settings(max_examples=6)
def test_nothing_that_fits_is_better_where_only_fused_operators_read_tanh(data):
    problem = data.draw(problems(("slope",), LINES))
    (number,) = (n for n, group in enumerate(problem.tensor_groups) if not group.consumer_classes)
    assert problem.live_ranges(number).fused_input.any()
    _check_limited(data, problem, True, 60)


@given(st.data(), OBJECTIVES)
@settings(max_examples=30)
@pytest.mark.slow
def test_in_microbatches_no_strategies_are_better(data, objective):
    problem = data.draw(problems(SPLITTABLE, microbatches=(2, 4)))
    candidates = data.draw(some_strategies(problem, 2_000))
    least = Every(problem, candidates, recompute=True).best(objective)[0]
    found = solve_milp(problem, candidates, recompute=True, objective=objective, gap=GAP)
    _check(problem, found, objective, least)


@given(st.data())
@settings(max_examples=8)
def test_in_microbatches_nothing_that_fits_is_better(data):
    """Over all placements of saved tensors, gathered parameters and accumulated gradients."""
    problem = data.draw(problems(("linear", "greatest"), LINES[:1], microbatches=(2, 4)))
    _check_limited(data, problem, False, 60)


@given(st.data(), st.booleans(), OBJECTIVES)
@settings(max_examples=6)
@pytest.mark.slow
def test_one_axis_at_a_time_is_between_the_bound_and_nothing_at_all(data, recompute, objective):
    """Descent is not better than the exact search, its bound no higher, and it keeps limits."""
    problem = data.draw(problems(("linear", "residual"), MESHES[-1:]))
    candidates = [strategies.all for strategies in problem.strategies]
    options = {"recompute": recompute, "objective": objective}
    free = solve_milp(problem, candidates, gap=GAP, **options)
    limit = data.draw(st.sampled_from((None, 1.2 * free.cost.memory.peak)))
    exact = solve_milp(problem, candidates, gap=GAP, memory_limit=limit, **options)
    found = coordinate_descent(problem, candidates, memory_limit=limit, **options)
    assert found.method == "descent"
    assert found.objective >= exact.objective * (1 - 1e-6)
    assert found.bound <= exact.objective * (1 + 1e-6)
    assert limit is None or found.cost.memory.peak <= limit


def test_less_memory_is_never_quicker():
    """Identical layers under ever lower limits; one too low is refused with the least memory."""
    network = AlphaBetaCosts(MESHES[0], (1e-7,), (1e8,))
    problem = Problem(graph("layers"), network, Hardware("slow", {4: 1e9}, 1e9, 1e9))
    candidates = [strategies.all for strategies in problem.strategies]
    free = solve_milp(problem, candidates, recompute=True)
    limits = [free.cost.memory.peak * share / 8 for share in range(8, 0, -1)]
    seconds, refused = [free.objective], ""
    for limit in limits:
        try:
            found = solve_milp(problem, candidates, recompute=True, memory_limit=limit, gap=GAP)
        except PlanError as error:
            refused = str(error)
            break
        assert found.cost.memory.peak <= limit
        seconds.append(found.objective)
    assert len(seconds) > 2
    assert seconds == sorted(seconds)
    said = rf"fits into {limit:.0f} bytes .+: the least is about (\d+) bytes \((.+?)\)"
    least, parts = re.findall(said, refused)[0]
    least = int(least)
    assert sum(map(int, re.findall(r"(\d+) bytes", parts))) == pytest.approx(least, abs=2)
    names = re.findall(r"(?:are|,) ([^,:]+): \d+ bytes", refused)
    assert len(names) == 3
    solve_milp(problem, candidates, recompute=True, memory_limit=least)


def test_the_least_memory_is_not_searched_again_for_the_message(monkeypatch):
    problem = Problem(graph("twice"), AlphaBetaCosts(MESHES[0], (1e-7,), (1e8,)), CPU)
    candidates = [strategies.all for strategies in problem.strategies]
    late = Solution(Status.LIMIT, np.zeros(0), math.inf, 0.0)
    full = formulation_of(problem, candidates, memory_limit=100.0)
    monkeypatch.setattr(exact, "solve_by_size", lambda *_args: (full, late))
    monkeypatch.setattr(exact, "minimize_memory", lambda *_args, **_options: (None, 120.0))
    question = Question(problem, candidates, SearchOptions(memory_limit=100.0))
    searched = exact.solve_within_limit(question, Milp())
    assert isinstance(searched, Infeasible)
    assert (searched.proven, searched.least_memory, searched.least_bytes) == (False, None, 120.0)
    monkeypatch.delattr(exact, "minimize_memory")
    told = exact.refusal(question, searched)
    assert isinstance(told, OutOfTime)
    assert "could not be determined in time, at least 120 bytes" in str(told)


def test_a_plan_that_the_message_finds_is_not_called_more_than_the_limit():
    problem = Problem(graph("twice"), AlphaBetaCosts(MESHES[0], (1e-7,), (1e8,)), CPU)
    candidates = [strategies.all for strategies in problem.strategies]
    limit = solve_milp(problem, candidates).cost.memory.peak
    question = Question(problem, candidates, SearchOptions(memory_limit=limit))
    told = str(exact.refusal(question, Infeasible(proven=False)))
    assert told.startswith("no plan was found that fits")
    assert told.endswith("allow more time")


def test_saved_copies_come_from_the_produced_tensor():
    """Copies do not come from a cycle of reshard steps, whose fractions would cost less."""
    network = AlphaBetaCosts(MESHES[-1], (1e-8,) * 2, (1e8,) * 2)
    problem = Problem(graph("twice"), network, Hardware("slow", {4: 1e9}, 1e8, 1e9))
    found = solve_milp(problem, [strategies.all for strategies in problem.strategies], gap=GAP)
    assert found.objective == pytest.approx(9.33e-6, rel=1e-6)
    assert found.bound == pytest.approx(found.objective, rel=1e-6)


def test_inconsistent_strategies_are_refused():
    problem = Problem(graph("residual"), AlphaBetaCosts(MESHES[0], (0.0,), (1e9,)), CPU)
    candidates = [
        tuple(strategy for strategy in strategies.all if strategy[0] == SUM) or strategies.all
        for strategies in problem.strategies
    ]
    with pytest.raises(PlanError, match="no consistent assignment of strategies"):
        solve_milp(problem, candidates)


def test_the_same_search_finds_the_same():
    problem = Problem(graph("tanh"), AlphaBetaCosts(MESHES[-1], (1e-7,) * 2, (1e9,) * 2), CPU)
    candidates = [strategies.all for strategies in problem.strategies]
    first, second = (solve_milp(problem, candidates, recompute=True) for _ in range(2))
    assert first.decisions.strategies == second.decisions.strategies
    assert first.decisions.kept == second.decisions.kept
    assert first.bound == second.bound
