"""Repaired plans against the exact search of the same small step."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.memory import bytes_by_group
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE
from tensorstate.problem.problem import Problem
from tensorstate.solver import coordinate_descent, exact
from tensorstate.solver import repair as repairs
from tensorstate.solver.base import Question
from tensorstate.solver.exact import Milp, minimize_memory
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.repair import MAX_AGAIN, repair
from tests.tensorstate.solvers import options_of, solve_milp
from tests.tensorstate.tiny import MESHES, graph


@pytest.fixture(scope="module", params=[False, True], ids=["saved", "recomputed"])
def searched(request):
    """A problem with its strategies, the fastest plan without a limit, and the least memory."""
    network = AlphaBetaCosts(MESHES[-1], (1e-6,) * 2, (1e9,) * 2)
    problem = Problem(graph("slope"), network, HARDWARE["CPU"])
    candidates = [strategies.all for strategies in problem.strategies]
    options = options_of(recompute=request.param)
    free = solve_milp(problem, candidates, gap=1e-7)
    least, nbytes = minimize_memory(Question(problem, candidates, options))
    assert least is not None
    assert least.cost.memory.peak < free.cost.memory.peak
    return problem, candidates, options, free, nbytes


@pytest.mark.parametrize("share", [0.9, 0.5])
@pytest.mark.in_every_run("recomputed-0.9", "saved-0.5")
def test_repaired_plans_fit_and_are_nearly_the_best(searched, share):
    problem, candidates, options, free, least = searched
    limit = least + share * (free.cost.memory.peak - least)
    options = dataclasses.replace(options, memory_limit=limit)
    found = repair(Question(problem, candidates, options), free).fitting
    best = Milp(gap=1e-7).solve(problem, candidates, options)
    assert found is not None
    assert found.cost.memory.peak <= limit
    assert best.objective * (1 - 1e-6) <= found.objective <= 1.1 * best.objective


def test_what_a_plan_takes_beyond_its_program_is_reserved():
    """The program takes slower steps of fewer bytes, which a plan of these strategies does not.

    Steps at another point may do the same in the next program, so that several attempts add up.
    """
    network = AlphaBetaCosts(MESHES[-1], (1e-6,) * 2, (1e9, 3e8))
    problem = Problem(graph("slope"), network, HARDWARE["CPU"])
    draw = random.Random(15)
    strategies = tuple(draw.choice(each.all) for each in problem.strategies)
    limit = 0.9 * estimate_cost(problem, Decisions(strategies)).memory.peak
    options, reserved = options_of(recompute=True, memory_limit=limit), np.zeros(1)
    excesses = []
    for attempt in range(MAX_AGAIN):
        program = Formulation(
            problem,
            [[strategy] for strategy in strategies],
            options,
            prune_placements=True,
            reserved=reserved if attempt else None,
        )
        excess = program.make_limit_elastic(1.0)
        solution = program.program.solve()
        memory, plan = program.memory_constraints, program.result(solution, options)
        assert memory is not None
        parts = bytes_by_group(problem, plan.decisions, plan.cost.reshards, plan.cost.kept)
        nbytes = sum((inputs + others.sum(0) for _, inputs, others in parts), start=np.zeros(()))
        assert nbytes.max() == plan.cost.memory.peak > limit
        beyond = (nbytes - memory.bytes_at_points(solution.values)) / limit
        reserved = np.maximum(reserved, beyond)
        excesses.append(program.nbytes(solution.values[excess]))
    assert excesses[0] < 1e-3 * limit < excesses[-1]


def test_below_the_least_memory_nothing_fits_and_the_least_is_found(searched):
    problem, candidates, options, free, least = searched
    options = dataclasses.replace(options, memory_limit=0.9 * least)
    found = repair(Question(problem, candidates, options), free)
    assert found.fitting is None
    assert least * (1 - 1e-6) <= found.least_memory.cost.memory.peak < free.cost.memory.peak


def test_a_repair_ends_within_the_gap_of_the_bound(searched):
    """And without time it returns the plan that it was given."""
    problem, candidates, options, free, least = searched
    limit = (free.cost.memory.peak + least) / 2
    options = dataclasses.replace(options, memory_limit=limit)
    first = repair(Question(problem, candidates, options), free, bound=0.0, gap=1.0)
    assert first.fitting is not None
    last = repair(Question(problem, candidates, options), free)
    assert last.fitting is not None
    assert last.fitting.objective <= first.fitting.objective
    late = repair(Question(problem, candidates, options), free, until=0.0)
    assert (late.fitting, late.least_memory) == (None, free)


def test_plans_of_merged_axes_that_do_not_fit_each_other_are_no_start(monkeypatch, searched):
    """Nearest strategies may ask a replicated tensor to be partial: the descent starts without."""
    problem, candidates, options, free, _ = searched
    calls: list[int] = []

    def refused(*_args):
        calls.append(1)
        raise PlanError("no collectives lead from there")

    monkeypatch.setattr(coordinate_descent, "estimate_cost", refused)
    found = coordinate_descent.CoordinateDescent().solve(problem, candidates, options)
    assert calls
    assert found.objective >= free.objective * (1 - 1e-6)


@pytest.mark.parametrize("missed", [range(1, 99), range(99)], ids=["later", "all"])
def test_a_search_of_an_axis_without_a_plan_in_time_loses_no_plan(monkeypatch, searched, missed):
    """What other axes found is kept; where none found any, time is the reason, not the pins."""
    problem, candidates, options, free, _ = searched
    visits: list[int] = []

    def visited(*arguments, prune_placements=False, **given):
        if not prune_placements:
            raise PlanError("no start on merged axes in time")
        visits.append(len(visits))
        if visits[-1] in missed:
            raise PlanError("nothing in time")
        return exact.solve_within_limit(*arguments, prune_placements=True, **given)

    monkeypatch.setattr(coordinate_descent, "solve_within_limit", visited)
    solver = coordinate_descent.CoordinateDescent()
    if 0 in missed:
        with pytest.raises(PlanError, match="no plan was found in time; allow more time"):
            solver.solve(problem, candidates, options)
    else:
        found = solver.solve(problem, candidates, options)
        assert found.objective >= free.objective * (1 - 1e-6)
    assert len(visits) > 1


def test_a_repair_that_leads_no_further_asks_for_a_proof_once(searched, monkeypatch):
    problem, candidates, options, free, least = searched
    options = dataclasses.replace(options, memory_limit=0.9 * least)
    question, asked, sizes = Question(problem, candidates, options), list[int](), list[int]()
    neighbourhood = repairs._neighbourhood

    def counted(*args):
        sizes.append(args[-1])
        return neighbourhood(*args)

    monkeypatch.setattr(repairs, "_neighbourhood", counted)
    refuted = repair(question, free, refute=lambda: asked.append(1) or True)
    few = len(sizes)
    assert (refuted.is_refuted, refuted.fitting, asked) == (True, None, [1])
    unknown = repair(question, free, refute=lambda: asked.append(1) or False)
    assert (unknown.is_refuted, asked) == (False, [1, 1])
    assert few < len(sizes) - few


def test_a_plan_that_fits_needs_no_proof(searched):
    problem, candidates, options, free, least = searched
    limit = (least + free.cost.memory.peak) / 2
    question = Question(problem, candidates, dataclasses.replace(options, memory_limit=limit))
    assert not repair(question, free, refute=lambda: True).is_refuted
