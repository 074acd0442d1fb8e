"""The program of a problem: its objective is the cost, and its relaxation a bound."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.memory import bytes_by_group
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE, Hardware
from tensorstate.ir.placements import REPLICATED, MeshShape
from tensorstate.keeping.recomputed import RECOMPUTED
from tensorstate.keeping.saved import SAVED
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import reshard_steps
from tensorstate.solver.formulation import Formulation, _assign_by_share
from tensorstate.solver.growing_program import GrowingProgram
from tensorstate.solver.memory_constraints import VariableShares
from tests.tensorstate.execution.test_sharded_step import problem_of
from tests.tensorstate.exhaustive import Every
from tests.tensorstate.solvers import formulation_of
from tests.tensorstate.tiny import (
    LINES,
    MESHES,
    SPLITTABLE,
    few_strategies,
    graph,
    problems,
    some_strategies,
)


def _price(problem: Problem, decisions: Decisions, objective: str) -> float:
    """Infinite if no reshard steps lead from partial to the required placements."""
    try:
        cost = estimate_cost(problem, decisions)
    except PlanError:
        return math.inf
    return cost.serial_seconds if objective == "sum" else cost.overlapped_seconds


def _check_cost(data: st.DataObject, problem: Problem, objective: str) -> None:
    """With given strategies the program's objective is the cost."""
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
def test_for_given_strategies_the_program_is_the_cost(data, objective):
    """With given strategies, no fractions of reshard steps beat the trees of the cost."""
    problem = data.draw(problems())
    _check_cost(data, problem, objective)


@given(st.data(), st.sampled_from(("sum", "max")))
@settings(max_examples=80)
@pytest.mark.slow
def test_in_microbatches_the_program_is_the_cost(data, objective):
    """Program and cost agree on reshards once or in every microbatch."""
    problem = data.draw(problems(SPLITTABLE, microbatches=(2, 4)))
    _check_cost(data, problem, objective)


@given(st.data(), st.sampled_from(("sum", "max")))
@settings(max_examples=40)
@pytest.mark.slow
def test_a_discounted_program_is_that_of_the_discounted_problem(data, objective):
    """Built with the shares of one discount, and discounted to those of another."""
    problem = data.draw(problems())
    axes = len(problem.mesh.sizes)
    shares = st.tuples(*(st.floats(0.05, 0.95) for _ in range(axes)))
    one, other = (
        problem.discounted({group: data.draw(shares) for group in problem.tensor_groups})
        for _ in range(2)
    )
    drawn = tuple(data.draw(st.sampled_from(strategies.all)) for strategies in problem.strategies)
    built = formulation_of(one, [(strategy,) for strategy in drawn], objective=objective)
    before = built.program.costs
    discounted = built.discounted(other)
    solution = discounted.program.solve(gap=1e-9)
    expected = _price(other, Decisions(drawn), objective)
    assert (solution.status == "infeasible") == math.isinf(expected)
    if solution.status == "optimal":
        assert discounted.seconds(solution.objective) == pytest.approx(expected, rel=1e-6)
    assert (built.program.costs == before).all()


@given(st.data(), st.floats(0.0, 1.0))
@settings(max_examples=25)
@pytest.mark.slow
def test_in_microbatches_a_memory_limit_is_met(data, share):
    """Loop-resident and saved copies under a limit cost as much as the program says."""
    problem = data.draw(problems(SPLITTABLE, LINES, microbatches=(2, 4)))
    candidates = data.draw(some_strategies(problem, 1_000))
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


LIMITED = [
    ("chain", 1, 1, False),
    ("chain", 1, 4, True),
    ("greatest", 1, 2, True),
    ("embedding", 1, 4, False),
    ("linear", 1, 4, True),
    ("tanh", 1, 1, False),
    ("tanh", 1, 4, False),
    ("twice", 1, 4, False),
    ("slope", 1, 4, True),
    ("chain", 2, 4, False),
]


@pytest.mark.parametrize(("name", "mesh", "num_repeats", "recompute"), LIMITED)
def test_a_memory_limit_holds_to_the_byte(name, mesh, num_repeats, recompute):
    """At the peak of each plan that no other beats, and one byte below it, by enumeration.

    Where the program counts a byte too many, the plan is lost at its own peak; where it counts one
    too few, the plan is still found below it.
    """
    axes = len(MESHES[mesh].sizes)
    network = AlphaBetaCosts(MESHES[mesh], (3e-7, 1e-7)[:axes], (1e8, 3e7)[:axes])
    device = Hardware("slow", {4: 1e9}, 1e9, 1e9)
    problem = Problem(graph(name), network, device, num_repeats)
    candidates = few_strategies(problem, 30)
    every = Every(problem, candidates, recompute=recompute, save=True)
    frontier = every.frontier()
    assert len(frontier) > 1
    for limit in (peak - less for peak, _ in frontier for less in (0, 1)):
        least, _ = every.best("sum", limit)
        formulation = formulation_of(problem, candidates, recompute=recompute, memory_limit=limit)
        solution = formulation.program.solve(gap=1e-7)
        assert (solution.status == "infeasible") == math.isinf(least)
        if math.isfinite(least):
            assert formulation.seconds(solution.objective) == pytest.approx(least, rel=1e-6)
            assert estimate_cost(problem, formulation.decisions(solution)).memory.peak <= limit


@given(st.data(), st.booleans())
@settings(max_examples=30)
@pytest.mark.slow
def test_the_relaxation_is_a_bound(data, recompute):
    problem = data.draw(problems())
    candidates = data.draw(some_strategies(problem, 1_000))
    formulation = formulation_of(problem, candidates, recompute=recompute)
    optimal = formulation.program.solve(gap=1e-9)
    relaxed = formulation.program.solve(relax=True)
    assert relaxed.bound <= optimal.objective * (1 + 1e-6)
    assert relaxed.objective == relaxed.bound
    assert optimal.bound <= optimal.objective * (1 + 1e-9)


@pytest.mark.parametrize("name", ["mlp", "gpt"])
@pytest.mark.in_every_run("mlp")
def test_fractions_of_recomputation_gain_no_time_either(name):
    """In the relaxation a recomputed share cannot serve consumers of the saved share."""
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
    candidates = data.draw(some_strategies(problem, 1_000))
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
    candidates = data.draw(some_strategies(problem, 1_000))
    formulation = formulation_of(problem, candidates, memory_limit=math.inf)
    formulation.minimize_memory()
    solution = formulation.program.solve(gap=1e-6)
    least = estimate_cost(problem, formulation.decisions(solution)).memory.peak
    for _ in range(5):
        strategies = tuple(data.draw(st.sampled_from(choices)) for choices in candidates)
        if math.isfinite(_price(problem, Decisions(strategies), "sum")):
            assert estimate_cost(problem, Decisions(strategies)).memory.peak >= least


TO_RECOMPUTE = [
    ("norm", 1, 1),
    ("linear", 1, 2),
    ("twice", 0, 1),
    ("twice", 1, 4),
    ("tanh", 1, 1),
    ("tanh", 1, 4),
    ("slope", 1, 1),
    ("layers", 0, 1),
    ("layers", 1, 2),
    ("embedding", 1, 4),
]


@pytest.mark.parametrize(("name", "mesh", "num_repeats"), TO_RECOMPUTE)
def test_the_memory_of_the_program_is_that_of_its_decisions(name, mesh, num_repeats):
    """At its peak, and nowhere less; over all that may be recomputed, which is too much to list.

    Along one axis a tensor has no two ways of resharding among which a program would split it.
    """
    network = AlphaBetaCosts(MESHES[mesh], (3e-7,), (1e8,))
    device = Hardware("slow", {4: 1e9}, 1e9, 1e9)
    problem = Problem(graph(name), network, device, num_repeats)
    candidates = few_strategies(problem, 3_000)
    formulation = formulation_of(problem, candidates, memory_limit=1e6, recompute=True)
    formulation.minimize_memory()
    solution = formulation.program.solve(gap=1e-7)
    found = formulation.decisions(solution)
    cost = estimate_cost(problem, found)
    assert formulation.nbytes(solution.objective) == pytest.approx(cost.memory.peak, rel=1e-6)
    assert formulation.memory_constraints is not None
    nbytes = formulation.memory_constraints.bytes_at_points(solution.values)
    by_group = bytes_by_group(problem, found, cost.reshards, cost.kept)
    decided = np.sum([inputs + others.sum(0) for _, inputs, others in by_group], axis=0)
    assert (nbytes >= decided - 1e-3).all()


def replicated() -> Formulation:
    """The program of two layers, of which only recomputation is to be decided."""
    problem = Problem(graph("tanh"), AlphaBetaCosts(LINES[0], (1e-6,), (1e9,)), HARDWARE["CPU"])
    whole = [[(REPLICATED,)] for _ in problem.strategies]
    return formulation_of(problem, whole, memory_limit=1e6, recompute=True)


def shares_again(formulation: Formulation, number: int, **variables) -> VariableShares:
    """The shares of a tensor group, some of whose variables are others."""
    changed = dataclasses.replace(formulation.groups[number], **variables)
    return VariableShares(formulation.choices, changed)


def least(program: GrowingProgram, variable: int) -> float:
    program.clear_objective()
    program.add_cost(variable, 1.0)
    return program.solve(relax=True).values[variable]


def test_what_recomputed_consumers_share_counts_once_and_as_the_largest():
    formulation = replicated()
    program, (step, *_) = formulation.program, reshard_steps((0,), (8, 4), 128, LINES[0])
    flows = [{step: program.add_variable(low=part, high=part)} for part in (0.25, 0.75, 0.5)]
    shares = shares_again(formulation, 0, for_rerun=flows)
    assert least(program, shares.resharded("for_rerun")[step]) == pytest.approx(0.75)


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_what_recomputed_consumers_restore_is_saved_unless_it_is_recomputed(is_recomputed):
    formulation = replicated()
    program, choices = formulation.program, formulation.choices.x
    number, group = next(
        (number, group)
        for number, group in enumerate(formulation.problem.tensor_groups)
        if len(choices[group.class_id]) > 1 and group.needed_after_forward
    )
    for (_, keeping), variable in choices[group.class_id].items():
        program.set_high(variable, float((keeping == RECOMPUTED) == is_recomputed))
    restored = [{(REPLICATED,): [(program.add_variable(low=1.0, high=1.0), 1.0)]}]
    shares = shares_again(formulation, number, restored_for_rerun=restored)
    (read,) = shares.copies_for_rerun(SAVED)[REPLICATED,]
    assert least(program, read) == pytest.approx(0.0 if is_recomputed else 1.0)


def test_an_infinite_limit_is_none():
    problem = Problem(graph("linear"), AlphaBetaCosts(LINES[0], (1e-6,), (1e9,)), HARDWARE["CPU"])
    candidates = [each.all for each in problem.strategies]
    free, infinite = (
        formulation_of(problem, candidates, memory_limit=limit).program.solve(gap=1e-9)
        for limit in (None, math.inf)
    )
    assert infinite.status == free.status == "optimal"
    assert infinite.objective == pytest.approx(free.objective, rel=1e-6)


def test_an_elastic_limit_is_exceeded_by_what_does_not_fit():
    """Of one plan, whose tensors are all replicated."""
    problem = Problem(graph("tanh"), AlphaBetaCosts(LINES[0], (1e-6,), (1e9,)), HARDWARE["CPU"])
    whole = [[(REPLICATED,)] for _ in problem.strategies]
    peak = estimate_cost(problem, Decisions(tuple(s for (s,) in whole))).memory.peak
    formulation = formulation_of(problem, whole, memory_limit=0.75 * peak)
    excess = formulation.make_limit_elastic(1.0)
    solution = formulation.program.solve(gap=1e-9)
    assert formulation.nbytes(solution.values[excess]) == pytest.approx(0.25 * peak, rel=1e-6)


@pytest.mark.parametrize("name", ["twice", "tanh", "slope", "layers"])
def test_nothing_is_recomputed_that_is_not_read_again(name):
    """By neither the backward pass nor recomputed operators: no plan of the program does so."""
    problem = Problem(graph(name), AlphaBetaCosts(LINES[0], (1e-6,), (1e9,)), HARDWARE["CPU"])
    whole, useless = [[(REPLICATED,)] for _ in problem.strategies], 0
    may = (g for g in range(len(whole)) if problem.may_keep(g, RECOMPUTED))
    for class_id in may:
        formulation = formulation_of(problem, whole, recompute=True)
        groups = [group for group in problem.tensor_groups if group.class_id == class_id]
        is_read = any(group.needed_after_forward for group in groups)
        for number, choices in enumerate(formulation.choices.x):
            for (_, keeping), variable in choices.items():
                if (keeping == RECOMPUTED) != (number == class_id):
                    formulation.program.set_high(variable, 0.0)
        solution = formulation.program.solve(gap=1e-9)
        assert solution.status == ("optimal" if is_read else "infeasible")
        useless += not is_read
    assert useless


def test_easier_costs_are_those_of_collectives_that_cost_a_fifth():
    mesh = MESHES[-1]
    network = AlphaBetaCosts(mesh, (1e-6,) * 2, (1e9, 3e8))
    problem = Problem(graph("linear"), network, HARDWARE["CPU"])
    shares = dict.fromkeys(problem.tensor_groups, (0.2,) * 2)
    candidates = [each.all for each in problem.strategies]
    formulation = formulation_of(problem, candidates, memory_limit=1e9)
    easier = formulation.easier_costs()
    discounted = formulation.discounted(problem.discounted(shares)).program.costs
    assert easier is not None
    np.testing.assert_allclose(easier, discounted, rtol=1e-9)


def test_tensors_are_shared_out_rounded_down_and_the_largest_share_first():
    """A share of 0.7 of seven tensors is four; the three others have the next placements."""
    variables = {(0,): 0, (1,): 1, (REPLICATED,): 2}
    found = _assign_by_share(range(7), variables, np.array([0.3, 0.0, 0.7]))
    assert [found[tensor] for tensor in range(7)] == [(REPLICATED,)] * 4 + [(0,)] * 3


def test_arguments_of_identical_layers_are_all_counted():
    problem = problem_of("mlp", {"data": 8})
    assert max(group.multiplicity for group in problem.tensor_groups if group.is_input) > 1
    whole = [[(REPLICATED,)] for _ in problem.strategies]
    formulation = formulation_of(problem, whole, memory_limit=1e9)
    formulation.minimize_memory()
    solution = formulation.program.solve(gap=1e-7)
    peak = estimate_cost(problem, formulation.decisions(solution)).memory.peak
    assert formulation.nbytes(solution.objective) == pytest.approx(peak, rel=1e-6)


@given(st.data(), st.booleans())
@settings(max_examples=40)
@pytest.mark.slow
def test_on_three_axes_few_placements_are_enough(data, recompute):
    """Decided strategies have a plan through few placements wherever they have one through all."""
    name = data.draw(st.sampled_from(sorted(SPLITTABLE)))
    mesh = MeshShape.of({"a": 2, "b": 2, "c": 2})
    network = AlphaBetaCosts(mesh, (1e-6,) * 3, (1e9, 3e8, 1e8))
    problem = Problem(graph(name), network, HARDWARE["CPU"])
    strategies = [[data.draw(st.sampled_from(each.all))] for each in problem.strategies]
    limit = {"memory_limit": 1e9, "recompute": recompute}
    every = formulation_of(problem, strategies, **limit)
    few = formulation_of(problem, strategies, prune_placements=True, **limit)
    best, found = every.program.solve(gap=1e-9), few.program.solve(gap=1e-9)
    assert found.status == best.status
    if found.status == "optimal":
        assert best.objective * (1 - 1e-6) - 1e-9 <= found.objective
        assert few.program.num_variables < every.program.num_variables
