"""The deadline of a search, by a clock that runs only where programs are built and solved."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import time

import numpy as np
import pytest

from jaxcoll.numerics.program import NOTHING_KNOWN, Status
from tensorstate import Auto, PlanError, search
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.deadline import (
    LEAST_LIMIT_S,
    LIMITED_S,
    LIMITED_TIMES,
    Budget,
    OutOfTime,
    check,
    deadline_after,
)
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import MeshShape
from tensorstate.problem.problem import Problem
from tensorstate.solver import exact
from tensorstate.solver.base import Question
from tensorstate.solver.coordinate_descent import lower_bound_on_axes
from tensorstate.solver.exact import Milp, minimize_memory
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.growing_program import GrowingProgram
from tensorstate.solver.named import best_among
from tensorstate.solver.refusal import least_live
from tensorstate.solver.repair import repair
from tensorstate.solver.reshard_constraints import ReshardConstraints
from tests.tensorstate.solvers import options_of
from tests.tensorstate.tiny import graph

AXES = {"a": 2, "b": 2, "c": 2}
MESHES = [dict([*AXES.items()][:count]) for count in (1, 2, 3)]


@dataclasses.dataclass
class Clock:
    """Seconds that pass by being added in the main thread; those of others pass beside them."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def add(self, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """A tenth of a second for each tensor group of a program, and a second for its solve.

    A program that has less time left is late by a tenth, as large ones are.
    """
    clock, add_group, solve = Clock(), ReshardConstraints.add_group, GrowingProgram.solve

    def add_group_in_time(self, number):
        clock.add(0.1)
        return add_group(self, number)

    def solve_in_time(self, *, time_limit=math.inf, **options):
        found = solve(self, **options)
        if found is NOTHING_KNOWN:
            return found
        clock.add(min(1.0, time_limit + 0.1))
        return dataclasses.replace(found, status=Status.LIMIT) if time_limit < 1.0 else found

    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "process_time", clock)
    monkeypatch.setattr(ReshardConstraints, "add_group", add_group_in_time)
    monkeypatch.setattr(GrowingProgram, "solve", solve_in_time)
    return clock


def network_of(mesh) -> AlphaBetaCosts:
    return AlphaBetaCosts(MeshShape.of(mesh), (1e-6,) * len(mesh), (1e9,) * len(mesh))


def question_of(name="tanh", mesh=MESHES[-1], **options) -> Question:
    problem = Problem(graph(name), network_of(mesh), HARDWARE["CPU"])
    candidates = [strategies.all for strategies in problem.strategies]
    return Question(problem, candidates, options_of(**options))


@functools.cache
def peak_without_limit(name) -> float:
    asked = question_of(name, MESHES[0])
    return Milp().solve(asked.problem, asked.candidates).cost.memory.peak


@pytest.mark.parametrize("seconds", [2, 10])
@pytest.mark.parametrize("mesh", MESHES, ids=len)
@pytest.mark.parametrize("hardware", ["CPU", "H100"])
@pytest.mark.parametrize(
    "options",
    [
        {"memory_limit": math.inf},
        {"memory_limit": 0.8},
        {"memory_limit": 0.8, "recompute": True},
        {"memory_limit": 0.6, "microbatches": (1, 2, 4)},
        {"memory_limit": 0.01, "microbatches": "auto"},
        {"memory_limit": 0.8, "objective": "max"},
    ],
    ids=str,
)
@pytest.mark.in_every_run("*-CPU-3-10", "*-H100-1-2", "*-H100-2-10")
def test_a_time_limit_is_kept(clock, seconds, mesh, hardware, options):
    """Within a tenth, and a program that began before the deadline."""
    name = "twice"
    limit = options["memory_limit"] * peak_without_limit(name)
    options = {**options, "memory_limit": limit, "solver": Auto(time_limit=seconds)}
    start = clock.now
    try:
        found = search(
            graph(name), mesh=mesh, network=network_of(mesh), hardware=hardware, **options
        )
    except PlanError as error:
        assert "no plan" in str(error)  # noqa: PT017
    else:
        assert found.cost.memory.peak <= limit
    assert clock.now - start <= 1.1 * seconds + 0.2


@pytest.mark.parametrize("mesh", MESHES, ids=len)
@pytest.mark.parametrize("memory_limit", [math.inf, 0.8])
def test_however_short_a_search_a_named_strategy_is_found(clock, mesh, memory_limit):
    """Programs of all strategies take longer than there is time; that of a name takes less."""
    limit = memory_limit * peak_without_limit("twice")
    options = {"memory_limit": limit, "solver": Auto(time_limit=3.0)}
    found = search(graph("twice"), mesh=mesh, network=network_of(mesh), hardware="H100", **options)
    assert found.cost.memory.peak <= limit


@pytest.fixture
def hard_clock(clock, monkeypatch):
    """Programs with rows of memory take all of their time, or an hour, and find nothing."""
    solve = GrowingProgram.solve

    def solve_hard(self, *, time_limit=math.inf, **options):
        if not len(self._is_lazy):
            return solve(self, time_limit=time_limit, **options)
        clock.add(min(3600.0, time_limit))
        return NOTHING_KNOWN

    monkeypatch.setattr(GrowingProgram, "solve", solve_hard)
    return clock


@pytest.mark.parametrize("mesh", MESHES, ids=len)
@pytest.mark.parametrize("hardware", ["CPU", "H100"])
@pytest.mark.in_every_run("CPU-2", "H100-2")
def test_without_a_time_limit_all_stages_under_a_memory_limit_share_one(hard_clock, mesh, hardware):
    """If nothing is found and nothing proved, the error says after how many seconds.

    In a program of every share of the communication the stages begin again, with the rest of them.
    """
    asked = functools.partial(search, graph("twice"), mesh=mesh, network=network_of(mesh))
    free = asked(hardware=hardware, memory_limit=math.inf)
    question = question_of("twice", mesh)
    limit = 1.1 * least_live(question.problem, question.candidates, question.options)
    start = hard_clock.now
    told = r"no plan was found that fits into .* in \d+ s: .*at least .*longer time_limit="
    with pytest.raises(OutOfTime, match=told) as refused:
        asked(hardware=hardware, memory_limit=limit)
    assert len(str(refused.value)) <= 300
    assert hard_clock.now - start <= 1.1 * LIMITED_S + (LIMITED_TIMES + 2) * free.result.seconds


def test_a_budget_begins_with_the_first_stage_and_no_stage_has_more_than_its_part(clock):
    budget = Budget(part=0.5)
    clock.now = 100.0
    assert (budget.end, budget.spent) == (math.inf, 0.0)
    assert budget.until(0.1) == 100.0 + 0.5 * LIMITED_S
    clock.now = 100.0 + 0.75 * LIMITED_S
    assert budget.spent == 0.75
    assert budget.until(1e3) == budget.end == 100.0 + LIMITED_S
    larger = Budget()
    assert larger.until(LIMITED_S) == clock.now + LIMITED_TIMES * LIMITED_S


@pytest.mark.parametrize(("passed", "times"), [(0.0, 1.0), (1.0, 1.0), (3.0, 3.0), (99.0, 8.0)])
def test_a_budget_is_longer_on_a_busy_machine(clock, monkeypatch, passed, times):
    """By the seconds that pass for each CPU second; but not without end."""
    worked = Clock()
    monkeypatch.setattr(time, "process_time", worked)
    budget = Budget()
    clock.now, worked.now = passed, 1.0
    assert budget.until(0.0) == clock.now + times * LIMITED_S


def test_after_the_deadline_nothing_is_built_and_nothing_solved(monkeypatch):
    """By no part of a search: each ends with the plan that it was given, or without any."""
    asked = question_of(memory_limit=1.0)
    free = Milp().solve(asked.problem, asked.candidates)
    late = dataclasses.replace(asked, deadline=time.perf_counter() - 1)
    monkeypatch.setattr(exact, "solve_relaxation", None)
    with pytest.raises(OutOfTime, match="no plan was found in time; allow more time"):
        Formulation(asked.problem, asked.candidates, deadline=late.deadline)
    program = GrowingProgram(late.deadline)
    program.add_variable(cost=1.0)
    for found in (program.solve(), program.solve(relax=True), program.solve_ipm_relaxation()):
        assert (found.status, len(found.values), found.bound) == ("limit", 0, -math.inf)
    with pytest.raises(OutOfTime):
        exact.solve_within_limit(late, Milp())
    assert minimize_memory(late) == (None, -math.inf)
    assert lower_bound_on_axes(late, (0, 1)) == -math.inf
    assert best_among(late, Milp()) is None
    assert repair(late, free).fitting is None
    assert repair(dataclasses.replace(late, deadline=np.inf), free, until=0.0).fitting is None


def test_a_program_loses_nothing_where_a_second_one_is_not_built_in_time(monkeypatch):
    """Of the likeliest strategies; the plan of those with few placements is the answer."""
    asked, built = question_of(mesh=MESHES[1]), []
    free = Milp(gap=1e-6).solve(asked.problem, asked.candidates)

    def build(candidates, prune_placements):
        built.append(prune_placements)
        if built == [False, True, False]:
            raise OutOfTime
        return Formulation(
            asked.problem, candidates, asked.options, prune_placements=prune_placements
        )

    monkeypatch.setattr(exact, "DIRECT_SOLVE_MAX_VARS", 0)
    monkeypatch.setattr(exact, "is_near", lambda *_args: False)
    monkeypatch.setattr(Formulation, "is_decided", lambda *_args: False)
    formulation, solution = exact.solve_by_size(build, asked.candidates, -1.0, math.inf)
    found = formulation.result(solution, asked.options)
    assert built == [False, True, False]
    assert found.objective >= free.objective * (1 - 1e-6)
    assert len(solution.values)


def test_a_deadline_is_half_a_second_away_at_least():
    now = time.perf_counter()
    assert deadline_after(1e-9) >= now + LEAST_LIMIT_S
    assert deadline_after(math.inf) == math.inf
    check(math.inf)
    with pytest.raises(OutOfTime):
        check(now - 1)


def test_no_large_branch_and_bound_is_begun_in_too_little_time(monkeypatch):
    """An analytic centre is computed past the limit; the program of likely strategies is small.

    So the plan is that of the small program, and of a pruned one no larger program is built.
    """
    monkeypatch.setattr(exact, "DIRECT_SOLVE_MAX_VARS", 0)
    monkeypatch.setattr(exact, "is_near", lambda *_args: False)
    monkeypatch.setattr(Formulation, "is_decided", lambda *_args: False)
    asked, sizes, built, solve = question_of(mesh=MESHES[1]), [], [], GrowingProgram.solve

    def counted(self, *, relax=False, **options):
        sizes.extend([] if relax else [self.num_variables])
        return dataclasses.replace(solve(self, relax=relax, **options), bound=0.0)

    def build(candidates, prune_placements):
        built.append(prune_placements)
        return Formulation(
            asked.problem, candidates, asked.options, prune_placements=prune_placements
        )

    def searched(prune_placements):
        until = time.perf_counter() + 100
        args = build, asked.candidates, 0.01, until, prune_placements
        return exact.solve_by_size(*args)[1]

    monkeypatch.setattr(GrowingProgram, "solve", counted)
    assert len(searched(False).values)
    assert len(sizes) == 3
    assert sizes[0] < min(sizes[1:])
    monkeypatch.setattr(exact, "BRANCHED_PER_S", (sizes[0] + 1) / 99)
    smallest = sizes[0]
    sizes.clear()
    assert len(searched(False).values) == smallest
    assert sizes == [smallest]
    built.clear()
    assert len(searched(True).values) == smallest
    assert built == [True, True]
