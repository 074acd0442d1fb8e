"""Programs are solved whatever the process solved before."""

from __future__ import annotations

import itertools
import math

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from jaxcoll.numerics import program as numerics_program
from jaxcoll.progress import Progress
from tensorstate.solver.growing_program import FEW_ROWS, GrowingProgram


def small() -> GrowingProgram:
    """A knapsack of three items, two of which weigh too much together."""
    program = GrowingProgram()
    chosen = [
        program.add_variable(cost=-worth, high=1.0, integer=True) for worth in (3.0, 2.0, 2.0)
    ]
    program.add_constraint(
        [(v, w) for v, w in zip(chosen, (2.0, 1.0, 1.0), strict=True)], -math.inf, 2.0
    )
    return program


@pytest.mark.parametrize("threads", [1, 2])
def test_other_solvers_of_the_process_do_not_matter(threads):
    other = highspy.Highs()
    other.silent()
    highspy.Highs.resetGlobalScheduler(True)
    other.setOptionValue("threads", 3 - threads)
    other.addVar(0, 1)
    other.run()
    found = small().solve(threads=threads)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(-4)
    assert found.values.tolist() == pytest.approx([0, 1, 1])


def test_the_relaxation_is_a_bound():
    relaxed = small().solve(relax=True)
    assert relaxed.bound == relaxed.objective == pytest.approx(-4)


def covering(rows: int = 12, columns: int = 20) -> GrowingProgram:
    """Rows that random columns cover, of random costs."""
    rng = np.random.default_rng(0)
    program = GrowingProgram()
    for _ in range(columns):
        program.add_variable(cost=float(rng.integers(1, 9)), implied_upper=100.0)
    for _ in range(rows):
        part = rng.choice(columns, 5, replace=False).tolist()
        program.add_constraint([(v, float(rng.integers(1, 5))) for v in part], 3.0, math.inf)
    return program


def test_a_program_that_ends_early_has_the_bound_of_its_easier_costs():
    """Those of the easier program's duals, whatever is left for the program itself."""
    program, optimum = covering(), covering().solve(relax=True).objective
    program.easier = np.maximum(1.0, 0.9 * program.costs)
    whole = program.solve(relax=True, presolve=False)
    assert whole.bound == whole.objective == pytest.approx(optimum)
    easier = covering()
    easier.set_costs(program.easier)
    proved = easier.solve(relax=True, presolve=False)

    ended = []
    run = numerics_program._run

    def first_only(solver: numerics_program._Solver) -> None:
        if ended:
            solver.setOptionValue("simplex_iteration_limit", 0)
        run(solver)
        ended.append(solver.getModelStatus())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(numerics_program, "_run", first_only)
        early = program.solve(relax=True, presolve=False)
    assert len(ended) == 2
    assert proved.objective - 1e-9 <= early.bound <= optimum + 1e-9


def test_any_duals_prove_a_bound():
    """None is above the optimum, and the optimal dual variables reach it."""
    program = GrowingProgram()
    x, y = (program.add_variable(cost=cost, implied_upper=10.0) for cost in (1.0, 2.0))
    program.add_constraint([(x, 1.0), (y, 1.0)], 3.0, math.inf)
    program.add_constraint([(x, 1.0)], -math.inf, 2.0)
    assert program.solve().objective == pytest.approx(4)
    bounds = [
        program.bound_of(np.array(duals))
        for duals in itertools.product(np.linspace(-2, 3, 21), repeat=2)
    ]
    assert max(bounds) == pytest.approx(4)
    relaxed = program.solve_ipm_relaxation()
    assert relaxed.bound == pytest.approx(4, rel=1e-3)
    assert relaxed.bound <= 4
    assert relaxed.values == pytest.approx([2, 1], abs=1e-2)


def test_too_few_iterations_find_nothing_optimal():
    found = small().solve(relax=True, presolve=False, iterations_per_row=0)
    assert found.status == "limit"
    assert found.bound <= small().solve(relax=True).objective


def test_what_cannot_be_is_said():
    program = small()
    program.add_constraint([(0, 1.0), (1, 1.0)], 3.0, 4.0)
    assert program.solve().status == "infeasible"


def test_costs_can_be_forgotten():
    program = small()
    program.clear_objective()
    program.add_cost(0, -1.0)
    assert program.solve().objective == pytest.approx(-1)


def test_progress_is_in_seconds_and_leaves_out_what_is_not_known_yet():
    """A knapsack that takes a search: it reports bounds of the optimum."""
    random, program = np.random.default_rng(0), GrowingProgram()
    chosen = [program.add_variable(cost=-w, high=1.0, integer=True) for w in random.random(60)]
    for _ in range(20):
        weights = random.random(60)
        program.add_constraint(list(zip(chosen, weights.tolist(), strict=True)), -math.inf, 9.0)
    seen: list[Progress] = []
    program.progress = seen.append
    found = program.solve(time_limit=5.0)
    assert seen
    assert [each.total for each in seen] == pytest.approx([5.0] * len(seen), abs=0.1)
    for each in seen:
        assert each.best is None or each.best >= found.objective * 1e-6 - 1e-12
        assert each.bound is None or each.bound <= found.objective * 1e-6 + 1e-12


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40)
@pytest.mark.slow
def test_lazy_rows_are_as_good_as_rows(seed):
    """Relaxed, whole and inside, whatever the rows; no solution exceeds one."""
    random = np.random.default_rng(seed)
    worth, weights = random.random(12), random.random((30, 12)) * (random.random((30, 12)) < 0.5)
    weights[:, -1] = -3.0  # the last variable is fixed: rows are <= 3 with all others

    def program(lazy: bool) -> GrowingProgram:
        made = GrowingProgram()
        items = [made.add_variable(cost=-w, high=1.0, integer=True) for w in worth[:-1]]
        items.append(made.add_variable(low=1.0, high=1.0))
        if lazy:
            made.set_lazy(csr_matrix(weights))
        else:
            for row in weights:
                made.add_constraint(list(zip(items, row.tolist(), strict=True)), -math.inf, 0.0)
        return made

    for relax in (True, False):
        found = program(lazy=True).solve(relax=relax, gap=1e-9)
        assert found.status == "optimal"
        assert (weights @ found.values).max() <= 1e-5
        wanted = program(lazy=False).solve(relax=relax, gap=1e-9)
        assert found.objective == pytest.approx(wanted.objective, abs=1e-6)
        assert found.bound <= found.objective + 1e-6
    inside = program(lazy=True).solve_ipm_relaxation(tolerance=1e-6)
    assert inside.bound <= program(lazy=False).solve(relax=True).objective + 1e-6


def test_without_time_the_values_are_those_of_the_rows_so_far():
    """They exceed others, and the status says that they may."""
    program = GrowingProgram()
    items = [program.add_variable(cost=-1.0, high=1.0) for _ in range(40)]
    one = program.add_variable(low=1.0, high=1.0)
    rows = np.zeros((40, 41))
    rows[np.arange(40), items] = 1.0
    rows[:, one] = -0.5
    program.set_lazy(csr_matrix(rows))
    found = program.solve(relax=True, time_limit=1e-9)
    assert found.status == "limit"
    assert -40 <= found.bound <= -20
    assert program.solve(relax=True).objective == pytest.approx(-20)


@pytest.mark.parametrize("extra", [0, 1])
def test_few_rows_are_not_lazy(extra):
    program = GrowingProgram()
    program.add_variable(cost=-1.0, high=1.0)
    rows = FEW_ROWS + extra
    program.set_lazy(csr_matrix(np.ones((rows, 1))))
    assert program.num_rows == (0 if extra else rows)
    assert program.solve(relax=True).objective == pytest.approx(0, abs=1e-6)


class Unsure(numerics_program._Solver):
    """Ends without a status from a basis, as HiGHS does for some programs that nothing meets."""

    starts_from_basis = False

    def setBasis(self, *given):
        self.starts_from_basis = True
        return super().setBasis(*given)

    def clearSolver(self):
        self.starts_from_basis = False
        return super().clearSolver()

    def getModelStatus(self):
        unknown = highspy.HighsModelStatus.kUnknown
        return unknown if self.starts_from_basis else super().getModelStatus()


def test_what_no_basis_decides_is_solved_without(monkeypatch):
    monkeypatch.setattr(numerics_program, "_Solver", Unsure)
    program = GrowingProgram()
    program.add_variable(cost=-1.0, low=0.5, high=1.0)
    program.set_lazy(csr_matrix(np.ones((FEW_ROWS + 1, 1))))
    assert program.solve(relax=True).status == "infeasible"


def sharing(seed: int, *, split: bool) -> GrowingProgram:
    """Demands met by steps, each taken by three flows of which the largest is paid for."""
    rng = np.random.default_rng(seed)
    program = GrowingProgram()
    for _ in range(4):
        costs = rng.integers(1, 9, 5).astype(float)
        flows = np.array([[program.add_fraction() for _ in range(3)] for _ in costs])
        own = [program.add_variable(cost=float(rng.integers(1, 6)), high=1.0) for _ in range(3)]
        for each, column in zip(own, flows.T.tolist(), strict=True):
            part = [column[k] for k in rng.choice(len(costs), 2, replace=False)]
            program.add_constraint([(v, 1.0) for v in (*part, each)], 1.0, math.inf)
        if split:
            program.add_shared_costs(costs, flows)
            continue
        for cost, variables in zip(costs.tolist(), flows.tolist(), strict=True):
            largest = program.add_variable(cost=cost, implied_upper=1.0)
            for variable in variables:
                program.add_constraint([(largest, 1.0), (variable, -1.0)], 0.0, math.inf)
    return program


@pytest.mark.parametrize("seed", range(8))
def test_costs_that_are_split_first_are_shared_in_the_end(seed):
    """Whole solutions and relaxations are those of the program with all of its rows."""
    best = sharing(seed, split=False).solve(relax=True).objective
    program = sharing(seed, split=True)
    relaxed = program.solve(relax=True)
    assert relaxed.status == "optimal"
    assert relaxed.objective == pytest.approx(best, rel=1e-9)
    assert relaxed.bound == pytest.approx(best, rel=1e-9)
    assert sharing(seed, split=True).solve().objective == pytest.approx(best, rel=1e-9)
    interior = sharing(seed, split=True).solve_ipm_relaxation(tolerance=1e-6)
    assert interior.bound == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_a_relaxation_begins_where_one_with_other_costs_ended(seed):
    """Its optimum is that from no basis, and to solve the same program again takes no step."""
    before, other = sharing(seed, split=True), sharing(seed, split=True)
    for variable in range(other.num_variables):
        other.add_cost(variable, 0.1 * (variable % 3))
    best = other.copied().solve(relax=True)
    before.solve(relax=True)
    other.start_from(before)
    assert other.num_rows == before.num_rows
    found = other.solve(relax=True, presolve=False)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(best.objective, rel=1e-9)
    again = sharing(seed, split=True)
    again.start_from(before)
    assert again.solve(relax=True, presolve=False, iterations_per_row=0).status == "optimal"


def test_split_costs_are_a_bound_and_lack_no_more_than_is_allowed():
    best = sharing(0, split=False).solve(relax=True).objective
    program = sharing(0, split=True)
    program.accepts = lambda _: True
    split = program.solve(relax=True)
    assert split.bound < 0.99 * best  # else the costs need not be shared
    for allowed in (0.1, 0.01):
        program = sharing(0, split=True)
        program.allowed = allowed
        found = program.solve(relax=True)
        assert split.bound - 1e-9 <= found.bound <= best + 1e-9
        assert found.bound >= best / (1 + allowed)
