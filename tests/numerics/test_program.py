"""Programs against all vertices and all whole numbers, in fractions, and against other solvers."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.numerics.program import Program, Solution, Status, _Watcher
from jaxcoll.progress import Progress

INF = math.inf
# Beyond all vertices of the programs drawn here: of up to 3 variables, factors of up to 3 and
# bounds of up to 6, whose determinants are at most 3! 3^2 6.
FAR = 1000


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A program of small whole numbers, or infinite bounds."""

    cost: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    rows: tuple[tuple[int, ...], ...]
    row_low: tuple[float, ...]
    row_high: tuple[float, ...]

    def program(self, integer: bool = False, implied_upper: float = INF) -> Program:
        """It, variable by variable and row by row."""
        program = Program()
        for cost, low, high in zip(self.cost, self.low, self.high, strict=True):
            program.add_variable(cost, low, high, integer, implied_upper)
        for row, low, high in zip(self.rows, self.row_low, self.row_high, strict=True):
            program.add_constraint([(v, f) for v, f in enumerate(row) if f], low, high)
        return program

    def vertices(
        self, least: float, most: float, homogeneous: bool = False
    ) -> list[list[Fraction]]:
        """All vertices within a box; if homogeneous, of the directions that never leave it."""
        size = len(self.cost)
        scale = 0 if homogeneous else 1
        unit = np.eye(size, dtype=int).tolist()
        limits = [*zip(self.rows, self.row_low, self.row_high, strict=True)]
        limits += [*zip(unit, self.low, self.high, strict=True)]
        # row @ x <= bound, all of them
        under = [(row, Fraction(high) * scale) for row, _, high in limits if high < INF]
        under += [
            ([-f for f in row], -Fraction(low) * scale) for row, low, _ in limits if low > -INF
        ]
        under += [(row, Fraction(most)) for row in unit]
        under += [([-f for f in row], Fraction(-least)) for row in unit]
        found = []
        for chosen in itertools.combinations(under, size):
            x = solved([row for row, _ in chosen], [bound for _, bound in chosen])
            if x is not None and all(dot(row, x) <= bound for row, bound in under):
                found.append(x)
        return found

    def least(self) -> Fraction | float:
        """The optimum of the relaxation, infinite where nothing is feasible."""
        values = [dot(self.cost, x) for x in self.vertices(-FAR, FAR)]
        if not values:
            return INF
        ways = self.vertices(-1, 1, homogeneous=True)
        return -INF if min(dot(self.cost, way) for way in ways) < 0 else min(values)

    def least_whole(self) -> float:
        """The optimum in whole numbers, for finite bounds."""
        ranges = [range(int(a), int(b) + 1) for a, b in zip(self.low, self.high, strict=True)]
        return min(
            (
                dot(self.cost, x)
                for x in itertools.product(*ranges)
                if all(
                    low <= dot(row, x) <= high
                    for row, low, high in zip(self.rows, self.row_low, self.row_high, strict=True)
                )
            ),
            default=INF,
        )


def dot(row, x):
    return sum(f * v for f, v in zip(row, x, strict=True))


def solved(rows: list, bounds: list[Fraction]) -> list[Fraction] | None:
    """Where some planes meet, by elimination; None unless that is one point."""
    size = len(rows)
    lines = [[Fraction(f) for f in row] + [bound] for row, bound in zip(rows, bounds, strict=True)]
    for column in range(size):
        pivot = next((k for k in range(column, size) if lines[k][column]), None)
        if pivot is None:
            return None
        lines[column], lines[pivot] = lines[pivot], lines[column]
        lines[column] = [f / lines[column][column] for f in lines[column]]
        for k in range(size):
            if k != column and lines[k][column]:
                times = lines[k][column]
                lines[k] = [a - times * b for a, b in zip(lines[k], lines[column], strict=True)]
    return [line[-1] for line in lines]


@st.composite
def programs(draw: st.DrawFn, finite: bool = False) -> Drawn:
    """One to three variables and up to three rows; bounds may be infinite unless ``finite``."""
    size, rows = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    factors = st.tuples(*[st.integers(-3, 3)] * size)

    def bounds(count: int, is_finite: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
        pairs = draw(
            st.lists(
                st.tuples(st.integers(-6, 6), st.integers(0, 6)), min_size=count, max_size=count
            )
        )
        shown = st.just(True) if is_finite else st.booleans()
        low = tuple(a if draw(shown) else -INF for a, _ in pairs)
        return low, tuple(a + b if draw(shown) else INF for a, b in pairs)

    return Drawn(
        draw(factors),
        *bounds(size, finite),
        tuple(draw(st.lists(factors, min_size=rows, max_size=rows))),
        *bounds(rows, False),
    )


def check_feasible(drawn: Drawn, found: Solution) -> None:
    x = found.values
    assert len(x) == len(drawn.cost)
    assert (x >= np.array(drawn.low) - 1e-6).all()
    assert (x <= np.array(drawn.high) + 1e-6).all()
    if drawn.rows:
        reached = np.array(drawn.rows) @ x
        assert (reached >= np.array(drawn.row_low) - 1e-6).all()
        assert (reached <= np.array(drawn.row_high) + 1e-6).all()
    assert found.objective == pytest.approx(float(np.dot(drawn.cost, x)), abs=1e-6)


@settings(max_examples=300)
@given(programs(), st.booleans())
def test_relaxations_end_at_the_best_vertex_or_say_why_there_is_none(drawn, presolve):
    found, least = drawn.program().minimize(presolve=presolve), drawn.least()
    if math.isinf(least):
        wanted = Status.INFEASIBLE if least > 0 else Status.UNBOUNDED
        assert (found.status, found.objective, found.bound) == (wanted, least, least)
        assert not len(found.values)
        with pytest.raises(RuntimeError, match=f"ended {wanted}, not optimal"):
            found.optimal()
        return
    assert found.optimal() is found
    assert found.objective == pytest.approx(float(least), abs=1e-6)
    assert found.bound == pytest.approx(float(least), abs=1e-6)
    check_feasible(drawn, found)


@settings(max_examples=300)
@given(programs(finite=True))
def test_whole_programs_find_the_best_of_all_points(drawn):
    found, least = drawn.program(integer=True).minimize(gap=0.0), drawn.least_whole()
    if least == INF:
        assert (found.status, found.objective, found.bound) == (Status.INFEASIBLE, INF, INF)
        return
    assert found.status == Status.OPTIMAL
    assert found.objective == pytest.approx(least, abs=1e-6)
    assert found.bound == pytest.approx(least, abs=1e-5)
    assert found.values == pytest.approx(np.round(found.values), abs=1e-5)
    check_feasible(drawn, found)
    assert not len(found.duals)


@settings(max_examples=200)
@given(programs(finite=True), st.integers(0, 2**32 - 1))
def test_optimal_duals_prove_the_optimum_and_no_duals_more(drawn, seed):
    program = drawn.program()
    found = program.minimize()
    if found.status == Status.INFEASIBLE:
        return
    assert program.bound_of(found.duals) == pytest.approx(found.objective, abs=1e-6)
    # A row between its bounds costs nothing, one at its lower bound something to raise.
    if drawn.rows:
        reached = np.array(drawn.rows) @ found.values
        assert (found.duals[reached > np.array(drawn.row_low) + 1e-6] <= 1e-9).all()
        assert (found.duals[reached < np.array(drawn.row_high) - 1e-6] >= -1e-9).all()
    drawn_duals = np.random.default_rng(seed).normal(size=(10, len(drawn.rows)))
    assert all(program.bound_of(duals) <= found.objective + 1e-6 for duals in drawn_duals)
    inside = program.minimize_inside(tolerance=1e-7)
    assert inside.bound <= found.objective + 1e-6
    if inside.status == Status.OPTIMAL:
        assert inside.bound == pytest.approx(found.objective, abs=1e-2)
        assert inside.objective == pytest.approx(found.objective, abs=1e-2)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_blocks_are_the_program_that_another_solver_is_given(seed):
    """Demands in sparse blocks, of more variables than vertices can be listed for."""
    rng = np.random.default_rng(seed)
    a = np.where(rng.random((6, 8)) < 0.5, rng.integers(1, 9, (6, 8)), 0)
    b, need = rng.integers(0, 5, (6, 4)), rng.integers(1, 20, 6)
    cost_a, cost_b = rng.integers(1, 9, 8), rng.integers(1, 9, 4)
    x, y = cp.Variable(8, nonneg=True), cp.Variable(4, nonneg=True)
    printed = [a @ x + b @ y >= need, x <= 3, cp.sum(x) <= 10]
    problem = cp.Problem(cp.Minimize(cost_a @ x + cost_b @ y), printed)
    problem.solve(solver=cp.CLARABEL)

    program = Program()
    # Blocks may name variables in any order.
    # Below 100 in some optimum: else a rounding error of duals would prove nothing.
    second = program.add_variables(4, cost=cost_b, high=100)
    first = program.add_variables(8, cost=cost_a, high=3)
    demands = program.add_blocks((a, first), (sp.csr_array(b), second), low=need)
    program.add_row(first.tolist(), [1.0] * 8, -INF, 10)
    found = program.minimize()
    assert demands.tolist() == [0, 1, 2, 3, 4, 5]
    if problem.status != cp.OPTIMAL:
        assert found.status == Status.INFEASIBLE
        return
    assert found.optimal().objective == pytest.approx(float(problem.value), rel=1e-5)  # type: ignore[arg-type]
    # Optimal duals of another solver prove the same, signs and all.
    duals = np.append(printed[0].dual_value, -printed[2].dual_value)
    assert program.bound_of(duals) == pytest.approx(found.objective, rel=1e-3)


def test_rows_by_terms_by_lists_and_by_matrices_are_the_same():
    matrix = np.array([[1.0, 0.0, -2.0], [0.0, 0.0, 0.0], [3.0, 4.0, 5.0]])
    low, high = [-INF, 0.0, 1.0], [4.0, 0.0, 2.0]
    made = [Program() for _ in range(4)]
    for program in made:
        program.add_variables(3)
    for row, least, most in zip(matrix, low, high, strict=True):
        variables = np.flatnonzero(row).tolist()
        made[0].add_constraint([(v, row[v]) for v in variables], least, most)
        made[1].add_row(variables, row[variables].tolist(), least, most)
    numbers = made[2].add_rows(sp.csr_array(matrix), np.array(low), np.array(high))
    made[3].add_blocks(
        (matrix[:, 2:], np.array([2])),
        (matrix[:, :2], np.array([0, 1])),
        low=np.array(low),
        high=np.array(high),
    )
    assert numbers.tolist() == [0, 1, 2]
    for program in made:
        assert program.num_rows == 3
        assert (program.rows.toarray() == matrix).all()
        assert list(program._row_low) == low
        assert list(program._row_high) == high


def test_a_copy_is_a_program_of_its_own():
    program = Program()
    program.add_variable(cost=1.0, low=1.0)
    other = program.copied()
    other.add_constraint([(0, 1.0)], 5.0, INF)
    other.add_cost(0, 1.0)
    assert other.minimize().objective == pytest.approx(10)
    assert program.minimize().objective == pytest.approx(1)
    assert program.num_rows == 0
    program.set_costs(np.array([3.0]))
    program.set_low(0, 2.0)
    assert program.minimize().objective == pytest.approx(6)
    program.set_cost(0, -1.0)
    program.set_high(0, 7.0)
    assert program.minimize().objective == pytest.approx(-7)


def test_without_variables_the_optimum_is_nothing():
    found = Program().minimize()
    assert (found.status, found.objective, found.bound) == (Status.OPTIMAL, 0.0, 0.0)


def test_without_costs_any_point_inside_will_do():
    program = Program()
    program.add_variable(low=1.0, high=2.0)
    program.add_constraint([(0, 1.0)], 1.5, INF)
    found = program.minimize_inside()
    assert found.optimal().objective == 0.0
    assert found.bound == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "high", "wanted"),
    [
        ([], INF, Status.UNBOUNDED),
        ([([1.0, -1.0], -INF, 0.0)], INF, Status.UNBOUNDED),
        ([([2.0, -2.0], 1.0, 1.0)], INF, Status.INFEASIBLE),  # odd, and its relaxation unbounded
        ([([1.0, 1.0], 3.0, 4.0)], 1.0, Status.INFEASIBLE),
    ],
)
def test_whole_numbers_without_end_are_told_from_none(rows, high, wanted):
    program = Program()
    program.add_variables(2, cost=np.array([-1.0, 0.0]), high=high, integer=True)
    for factors, low, most in rows:
        program.add_row([0, 1], factors, low, most)
    assert program.minimize(time_limit=20.0).status == wanted


def test_a_relaxation_without_end_does_not_make_whole_numbers_feasible():
    """No y, z of at least 0 have 2 y + 3 z = 1; with fractions x falls for ever."""
    program = Program()
    program.add_variables(3, cost=1.0, low=np.array([-INF, 0.0, 0.0]), integer=True)
    program.add_rows(np.array([[0, 2, 3], [-2, -1, -1]]), np.array([1, 3]), np.array([1, INF]))
    assert program.minimize(relax=True).status == Status.UNBOUNDED
    assert program.minimize(time_limit=20.0).status == Status.INFEASIBLE


def knapsack(deadline: float = INF) -> Program:
    """Takes a search: 60 things in 20 bags."""
    random, program = np.random.default_rng(0), Program(deadline)
    things = program.add_variables(60, cost=-random.random(60), high=1, integer=True)
    program.add_blocks((random.random((20, 60)), things), high=9.0)
    return program


def test_after_the_deadline_nothing_is_solved():
    program = knapsack(time.perf_counter() - 1)
    for found in (program.minimize(), program.minimize_inside()):
        assert (found.status, len(found.values)) == (Status.LIMIT, 0)
        assert (found.objective, found.bound) == (INF, -INF)
    assert knapsack(time.perf_counter() + 1e3).minimize(relax=True).status == Status.OPTIMAL


def test_where_time_runs_out_the_optimum_is_between_bound_and_objective():
    relaxed, best = knapsack().minimize(relax=True), knapsack().minimize(gap=0.0)
    assert relaxed.objective < best.objective
    for found in (knapsack().minimize(time_limit=0.0), knapsack().minimize(gap=0.5)):
        assert found.bound <= best.objective + 1e-6 <= found.objective + 2e-6


def test_too_few_iterations_end_with_what_their_duals_prove():
    best = knapsack().minimize(relax=True)
    found = knapsack().minimize(relax=True, presolve=False, iterations=1)
    assert found.status == Status.LIMIT
    assert -INF < found.bound <= best.objective + 1e-6


def test_a_gap_is_kept_to():
    seen: list[Progress] = []
    best = knapsack().minimize(gap=0.0)
    near = knapsack().minimize(gap=0.0, absolute_gap=0.5, time_limit=50.0, progress=seen.append)
    assert near.status == Status.OPTIMAL
    assert near.objective - near.bound <= 0.5
    assert near.bound <= best.objective <= near.objective + 1e-9
    assert seen
    for each in seen:
        assert each.total == pytest.approx(50.0)
        assert each.best is None or each.best >= best.objective - 1e-6
        assert each.bound is None or each.bound <= best.objective + 1e-6


def test_an_error_of_progress_ends_the_solve_and_is_raised_as_it_is():
    class Mine(Exception):
        pass

    def progress(_):
        raise Mine

    for start in (None, knapsack().minimize(relax=True).basis):
        with pytest.raises(Mine):
            knapsack().minimize(gap=0.0, start=start, progress=progress)
    assert knapsack().minimize(gap=0.5).status == Status.OPTIMAL


def test_progress_is_told_while_a_solver_calls_nothing_back():
    """As while branch and bound solves its first relaxation; by the thread that asked."""
    told, threads = threading.Event(), []

    class Silent:
        def run(self):
            assert told.wait(60)
            return "ended"

    def progress(event):
        threads.append(threading.current_thread())
        assert event == Progress(event.done, 5.0, "seconds of search")
        told.set()

    assert _Watcher(progress, 5.0).run(Silent()) == "ended"  # pyright: ignore[reportArgumentType]
    assert set(threads) == {threading.current_thread()}


def test_a_basis_of_a_smaller_program_is_where_the_larger_one_begins():
    program = knapsack()
    first = program.minimize(relax=True, presolve=False)
    again = program.minimize(relax=True, presolve=False, start=first.basis, iterations=0)
    assert again.status == Status.OPTIMAL
    assert again.objective == pytest.approx(first.objective)
    # More rows and variables, and the basis serves twice.
    late = program.add_variable(cost=-1.0, high=1.0)
    program.add_row([0, late], [1.0, 1.0], -INF, 1.0)
    wanted = program.minimize(relax=True)
    for _ in range(2):
        found = program.minimize(relax=True, presolve=False, start=first.basis)
        assert found.optimal().objective == pytest.approx(wanted.objective)


def test_easier_costs_prove_a_bound_and_leave_the_optimum_alone():
    program, best = knapsack(), knapsack().minimize(relax=True)
    easier = 1.5 * program.costs
    found = program.minimize(relax=True, presolve=False, easier=easier)
    assert found.objective == pytest.approx(best.objective)
    assert found.bound <= best.objective + 1e-6
    assert (program.costs == knapsack().costs).all()


def test_the_same_program_has_the_same_solution():
    first, second = (knapsack().minimize(relax=True) for _ in range(2))
    assert first.values.tobytes() == second.values.tobytes()
    assert first.duals.tobytes() == second.duals.tobytes()


def test_a_row_that_names_a_variable_twice_or_none_is_refused():
    """Else an empty program would be solved, and its optimum believed."""
    for variables in ([0, 0], [0, 7]):
        program = Program()
        program.add_variable(cost=1.0, low=1.0)
        program.add_row(variables, [1.0, 1.0], 3.0, INF)
        with pytest.raises(RuntimeError, match="refuses the program"):
            program.minimize()
        with pytest.raises(RuntimeError, match="refuses the program"):
            program.minimize_inside()


def test_rows_of_another_width_are_refused():
    program = Program()
    program.add_variables(3)
    with pytest.raises(ValueError, match="rows of 2 columns are added to a program of 3 variables"):
        program.add_rows(np.ones((1, 2)), 0.0, 1.0)
    assert program.num_rows == 0
