"""Linear programs with integer variables, built row by row and solved by HiGHS.

Rows may be *lazy*: they are left out until a solution exceeds them. Of the hundreds of program
points at which memory is limited, two to five decide; with all of them in the program, its
relaxation took up to ten times as long. Without some rows the optimum is lower, so bounds hold.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import highspy
import numpy as np
from scipy.sparse import csr_matrix

from jaxcoll import progress as progress_of_calls
from jaxcoll.numerics import highs
from jaxcoll.progress import Report
from tensorstate.deadline import is_over, remaining_time
from tensorstate.solver.shared_costs import SharedCosts, most_lacking

# Largest cost after scaling for the interior-point method.
LARGEST_COST = 1e5

Terms = Iterable[tuple[int, float]]
"""A linear expression: (variable, factor)."""

Progress = Report
"""Called during a solve with seconds so far, and the best objective and bound in seconds."""

# Of objectives, as the programs here have them.
MICROSECOND = 1e-6

# Lazy rows that one solution adds: the most exceeded ones, which are not neighbours, since those
# are exceeded together. A row counts as exceeded from the tolerance of HiGHS on.
ROWS_PER_SOLUTION, NEIGHBOURS = 3, 3
TOLERANCE = 1e-6

# Of an objective: what splits of shared costs lack less than this, they do not lack.
EXACT = 1e-9

# So few rows are never lazy: a second branch and bound takes longer than they do in the first.
FEW_ROWS = 20

# Of branch and bound: without the searches around a relaxation, each a branch and bound of its own,
# and without restarts, that HiGHS does before it branches. These programs branch little: repairs of
# a plan took a third to a sixth of the CPU seconds, and whole programs half.
BRANCHING: dict[str, float | str | bool] = {
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_rins": False,
    "mip_allow_restart": False,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The outcome of a solve.

    Attributes:
        status: "optimal", "infeasible", or "limit" when time ran out.
        values: values of the variables; empty without a feasible point.
        objective: objective of these values.
        bound: lower bound of the objective.
    """

    status: str
    values: np.ndarray
    objective: float
    bound: float


NOT_BEGUN = Solution("limit", np.zeros(0), np.inf, -np.inf)


class LinearProgram:
    """A program built step by step: minimize costs subject to ``low <= terms <= high``.

    Attributes:
        easier: other costs, for which a relaxation is solved first, if any: where these leave few
            good solutions, its basis is near, and found in a fraction of the time.
        accepts: whether a relaxed solution will do though shared costs are still split.
        allowed: what these may lack at the end of a relaxation, relative to the objective.
        deadline: time of ``time.perf_counter`` after which it is not solved.
    """

    def __init__(self, deadline: float = np.inf) -> None:
        self.deadline, self.allowed = deadline, 0.0
        self.easier: np.ndarray | None = None
        self.accepts: Callable[[Solution], bool] = lambda _: False
        self._costs, self._low, self._high = array("d"), array("d"), array("d")
        self._implied_upper = array("d")
        self._integer = array("b")
        self._starts, self._indices, self._factors = array("i", [0]), array("i"), array("d")
        self._row_low, self._row_high = array("d"), array("d")
        self._shared: list[SharedCosts] = []
        # Shared costs that were added, one after another; and with the basis as relaxations ended.
        self._chosen: list[set[int]] = []
        self._start, self._end = None, ([], None)
        self._lazy: Any = csr_matrix((0, 0))
        self._is_lazy = np.zeros(0, bool)

    @property
    def num_variables(self) -> int:
        """Number of variables so far."""
        return len(self._costs)

    @property
    def num_rows(self) -> int:
        """Number of rows so far."""
        return len(self._row_low)

    def add_variable(
        self,
        cost: float = 0.0,
        low: float = 0.0,
        high: float = np.inf,
        integer: bool = False,
        implied_upper: float = np.inf,
    ) -> int:
        """A new variable, by number.

        Args:
            cost: cost per unit.
            low, high: bounds.
            integer: whether it is integral.
            implied_upper: an upper bound that some optimal solution satisfies; it makes the dual
                bound of the relaxation finite.
        """
        self._costs.append(cost)
        self._low.append(low)
        self._high.append(high)
        self._integer.append(integer)
        self._implied_upper.append(min(high, implied_upper))
        return len(self._costs) - 1

    def add_fraction(self) -> int:
        """A new variable for a share, at most 1 in some optimal solution."""
        return self.add_variable(implied_upper=1.0)

    def add_cost(self, variable: int, cost: float) -> None:
        """Add to a variable's cost."""
        self._costs[variable] += cost

    def add_shared_costs(self, costs: np.ndarray, flows: np.ndarray) -> None:
        """Costs per unit of the largest of some variables, which have no other costs.

        In relaxations they are split among the variables at first (see ``shared_costs``).

        Args:
            costs: of shape (steps,).
            flows: the variables, of shape (steps, flows).
        """
        self._shared.append(SharedCosts(costs, flows))
        # By lists: the columns are of ``array``, which takes no arrays of numbers at once.
        for cost, variables in zip((costs / flows.shape[1]).tolist(), flows.tolist(), strict=True):
            for variable in variables:
                self._costs[variable] = cost

    def _share(self, numbers: Iterable[int]) -> None:
        """Let the largest of some flows cost what was split among them."""
        chosen = set(numbers)
        self._chosen.append(chosen)
        for number in chosen:
            costs, flows = self._shared[number]
            for cost, variables in zip(costs.tolist(), flows.tolist(), strict=True):
                largest = self.add_variable(cost, implied_upper=1.0)
                for variable in variables:
                    self._costs[variable] = 0.0
                    self.add_constraint([(largest, 1.0), (variable, -1.0)], 0.0, np.inf)
        self._shared = [each for k, each in enumerate(self._shared) if k not in chosen]

    def start_from(self, other: LinearProgram) -> None:
        """Begin where the relaxation of a program that differs in costs alone has ended."""
        added, self._start = other._end
        for chosen in added:  # in this order it has the same variables and rows
            self._share(chosen)

    @property
    def costs(self) -> np.ndarray:
        """The costs of all variables so far."""
        return np.array(self._costs)

    def copied(self) -> LinearProgram:
        """A program of its own with the same variables and rows."""
        other = LinearProgram()
        other.__dict__.update({name: copy.copy(value) for name, value in self.__dict__.items()})
        return other

    def clear_objective(self) -> None:
        """Set all costs to 0."""
        self._shared = []
        self._costs = array("d", bytes(8 * len(self._costs)))

    def add_constraint(self, terms: Terms, low: float, high: float) -> None:
        """A new row; a variable may occur in it once."""
        for variable, factor in terms:
            self._indices.append(variable)
            self._factors.append(factor)
        self._starts.append(len(self._indices))
        self._row_low.append(low)
        self._row_high.append(high)

    def set_low(self, variable: int, low: float) -> None:
        """Another lower bound of a variable."""
        self._low[variable] = low

    def set_high(self, variable: int, high: float) -> None:
        """Another upper bound of a variable."""
        self._high[variable] = self._implied_upper[variable] = high

    def set_lazy(self, rows: csr_matrix) -> None:
        """Rows ``row @ variables <= 0`` that are added when a solution exceeds them, or at once.

        Args:
            rows: a column for every variable so far.
        """
        # They stay in ``_lazy``, and ``_is_lazy`` says which of them the program lacks still.
        self._lazy, self._is_lazy = rows, np.ones(len(rows.indptr) - 1, bool)
        if len(self._is_lazy) <= FEW_ROWS:
            self._add_rows(range(len(self._is_lazy)))

    def _add_exceeded(self, values: np.ndarray) -> int:
        """Add the lazy rows that values exceed most, and return how many."""
        if not self._is_lazy.any():
            return 0
        excess = np.where(self._is_lazy, self._lazy @ values[: self._lazy.shape[1]], -np.inf)
        chosen: list[int] = []
        for row in np.argsort(-excess, kind="stable"):
            if excess[row] <= TOLERANCE or len(chosen) == ROWS_PER_SOLUTION:
                break
            if all(abs(int(row) - other) > NEIGHBOURS for other in chosen):
                chosen.append(int(row))
        self._add_rows(chosen)
        return len(chosen)

    def _add_lacking(self, solution: Solution) -> int:
        """Share the costs that lack most, and return how many."""
        scale = abs(solution.objective)
        chosen = most_lacking(self._shared, solution.values, self.allowed * scale, EXACT * scale)
        self._share(chosen)
        return len(chosen)

    def add_largest_lazy(self, count: int) -> None:
        """Add lazy rows of large factors, spread over those in the order of their sums."""
        # Large sums are points at which much is live; spread, since neighbours say the same.
        sums = np.asarray(self._lazy.sum(axis=1)).ravel()
        order = np.argsort(-sums, kind="stable")[:: max(1, len(sums) // count)][:count]
        self._add_rows([int(row) for row in order if self._is_lazy[row]])

    def _add_rows(self, rows: Iterable[int]) -> None:
        for row in rows:
            part = slice(self._lazy.indptr[row], self._lazy.indptr[row + 1])
            columns, factors = self._lazy.indices[part].tolist(), self._lazy.data[part].tolist()
            self.add_constraint(list(zip(columns, factors, strict=True)), -np.inf, 0.0)
            self._is_lazy[row] = False

    def solve(
        self,
        *,
        time_limit: float = np.inf,
        gap: float = 1e-4,
        threads: int = 2,
        relax: bool = False,
        presolve: bool = True,
        iterations_per_row: int | None = None,
        progress: Progress | None = None,
    ) -> Solution:
        """Solve it; the same program gives the same solution unless time runs out.

        Lazy rows are sought by relaxations, each from the basis of the last; where time runs out
        before none is exceeded, the solution may exceed some, and its status is "limit".

        Args:
            time_limit: seconds.
            gap: relative gap between objective and bound to stop at.
            threads: of the solver.
            relax: solve the LP relaxation.
            presolve: whether to presolve; for a relaxation that may take longer than it saves.
            iterations_per_row: limit of simplex iterations, of which larger programs take more.
            progress: see ``Progress``.
        """
        options = {"threads": threads, "mip_rel_gap": gap, "random_seed": 0, **BRANCHING}
        options["presolve"] = "choose" if presolve else "off"
        if is_over(self.deadline):
            return NOT_BEGUN
        until = min(time.perf_counter() + time_limit, self.deadline)
        if not relax:  # while costs are split, plans seem cheaper than they are
            self._share(range(len(self._shared)))
        if self._is_lazy.any():
            relaxed = self._solve_lazily(True, options, until, iterations_per_row)
            if relax:
                return relaxed
            if relaxed.status != "optimal":
                return Solution(relaxed.status, np.zeros(0), np.inf, relaxed.bound)
        return self._solve_lazily(relax, options, until, iterations_per_row, progress)

    def _solve_lazily(
        self,
        relax: bool,
        options: dict[str, float | str | bool],
        until: float,
        iterations_per_row: int | None,
        progress: Progress | None = None,
    ) -> Solution:
        """Solve with ever more lazy rows and shared costs, until all others hold; bounds rise.

        Where time runs out, the values are those of the last program that was solved: they exceed
        some rows, and their shares still say which strategies are likely.
        """
        basis, bound, values = self._start if relax else None, -np.inf, np.zeros(0)
        while True:
            left = remaining_time(until)
            options["time_limit"] = left
            if iterations_per_row is not None:
                options["simplex_iteration_limit"] = iterations_per_row * self.num_rows
            solver = highs.solver_for(self._model(relax), options)
            if basis is not None:
                # New variables stand at their lower bounds and new rows are basic: so it is a basis
                # of the larger program, too, and near its optimum.
                status = highspy.HighsBasisStatus
                columns, rows = list(basis.col_status), list(basis.row_status)
                basis.col_status = columns + [status.kLower] * (self.num_variables - len(columns))
                basis.row_status = rows + [status.kBasic] * (self.num_rows - len(rows))
                solver.setBasis(basis)
            elif relax and self.easier is not None:
                bound = max(bound, self._start_from_easier(solver, self.easier, left))
            try:
                solution = self._run(solver, relax, left, progress)
            except RuntimeError:  # a basis that HiGHS cannot factor
                if basis is None:
                    raise
                solution = None
            if solution is None or solver.getModelStatus() == highspy.HighsModelStatus.kUnknown:
                solver.clearSolver()  # from a basis an infeasible program may end so
                solution = self._run(solver, relax, left, progress)
            if relax and solution.status == "optimal":
                self._end = [*self._chosen], solver.getBasis()
            bound = max(bound, solution.bound)
            solution = dataclasses.replace(solution, bound=bound)
            if not len(solution.values):
                is_late = solution.status == "limit"
                return dataclasses.replace(solution, values=values) if is_late else solution
            if not self._add_exceeded(solution.values) and (
                not relax or self.accepts(solution) or not self._add_lacking(solution)
            ):
                return solution
            if is_over(until):
                return dataclasses.replace(solution, status="limit")
            values = solution.values if relax else values
            basis = solver.getBasis() if relax else None  # branch and bound has none to give

    def _start_from_easier(self, solver: highspy.Highs, easier: np.ndarray, left: float) -> float:
        """Solve with the easier costs first, in half of the time; the bound that this proves.

        Where it takes all its time, as of a ViT on 2x4 devices, its duals bound the program within
        one percent, and those of its basis with the true costs do not.
        """
        columns = np.arange(self.num_variables, dtype=np.int32)
        solver.changeColsCost(len(columns), columns, easier)
        solver.setOptionValue("time_limit", left / 2)
        highs.run(solver)
        found = solver.getSolution()
        bound = self._bound_of(np.asarray(found.row_dual)) if found.dual_valid else -np.inf
        solver.changeColsCost(len(columns), columns, np.frombuffer(self._costs))
        solver.setOptionValue("time_limit", left)  # of both runs
        return bound

    def _run(
        self, solver: highspy.Highs, relax: bool, time_limit: float, progress: Progress | None
    ) -> Solution:
        """One solve with the present rows."""
        if progress is not None:
            limit = float(time_limit) if np.isfinite(time_limit) else None

            def report(event: Any) -> None:
                found, bound = event.data_out.mip_primal_bound, event.data_out.mip_dual_bound
                progress(
                    progress_of_calls.Progress(
                        event.data_out.running_time,
                        limit,
                        "seconds of search",
                        best=float(found) * MICROSECOND if np.isfinite(found) else None,
                        bound=float(bound) * MICROSECOND if np.isfinite(bound) else None,
                    )
                )

            solver.cbMipInterrupt += report
        highs.run(solver)
        return self._solution(solver, relax or not any(self._integer))

    def solve_ipm_relaxation(
        self, *, time_limit: float = np.inf, tolerance: float = 1e-4
    ) -> Solution:
        """The LP relaxation, solved within a tolerance of the optimum by an interior-point method.

        Unlike the simplex method, it is not slowed down by large programs with many equally good
        solutions. Its solution is not a vertex; its bound is valid whatever its accuracy. The
        status is never "infeasible", since the method may call a hard program infeasible; it is
        "limit" then.

        Args:
            time_limit: seconds.
            tolerance: relative gap to stop at.
        """
        if is_over(self.deadline):
            return NOT_BEGUN
        until = min(time.perf_counter() + time_limit, self.deadline)
        self._share(range(len(self._shared)))  # from no basis several solves take longer than one
        while True:
            solution = self._solve_ipm(remaining_time(until), tolerance)
            is_last = is_over(until) or not len(solution.values)
            if is_last or not self._add_exceeded(solution.values):
                return solution

    def _solve_ipm(self, time_limit: float, tolerance: float) -> Solution:
        options: dict[str, float | str] = {
            "threads": 2,
            "solver": "ipm",
            "run_crossover": "off",  # a bound needs no vertex
            "presolve": "off",  # duals of removed rows are poor
            "ipm_optimality_tolerance": tolerance,
        }
        if np.isfinite(time_limit):
            options["time_limit"] = float(time_limit)
        model, costs = self._model(relax=True), np.frombuffer(self._costs)
        # The tolerances of HiGHS are absolute.
        scale = LARGEST_COST / max(np.abs(costs).max(initial=0.0), np.finfo(float).tiny)
        model.col_cost_ = costs * scale
        solver = highs.solver_for(model, options)
        highs.run(solver)
        solution = solver.getSolution()
        if not (solution.value_valid and solution.dual_valid):
            return Solution("limit", np.zeros(0), np.inf, -np.inf)
        values = np.asarray(solution.col_value)
        bound = self._bound_of(np.asarray(solution.row_dual) / scale)
        return Solution("optimal", values, float(costs @ values), bound)

    def _bound_of(self, duals: np.ndarray) -> float:
        """The lower bound proved by any duals (Neumaier and Shcherbina, 2004, section 2).

        Costs are duals times rows plus reduced costs times variables; each is minimized alone.
        """
        shape = self.num_rows, self.num_variables
        factors, indices = np.frombuffer(self._factors), np.frombuffer(self._indices, np.int32)
        rows = csr_matrix((factors, indices, np.frombuffer(self._starts, np.int32)), shape)
        row_low, row_high = np.frombuffer(self._row_low), np.frombuffer(self._row_high)
        # Where a row is open to one side, a dual of the wrong sign would make the bound infinite.
        # It is a rounding error, and any other duals prove a bound, too.
        duals = np.where(np.isinf(row_low), np.minimum(duals, 0.0), duals)
        duals = np.where(np.isinf(row_high), np.maximum(duals, 0.0), duals)
        left = np.frombuffer(self._costs) - rows.T @ duals
        low, implied_upper = np.frombuffer(self._low), np.frombuffer(self._implied_upper)
        return _least(duals, row_low, row_high) + _least(left, low, implied_upper)

    def _model(self, relax: bool) -> highspy.HighsLp:
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.num_variables, self.num_rows
        model.col_cost_ = np.frombuffer(self._costs)
        model.col_lower_, model.col_upper_ = np.frombuffer(self._low), np.frombuffer(self._high)
        model.row_lower_ = np.frombuffer(self._row_low)
        model.row_upper_ = np.frombuffer(self._row_high)
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = np.frombuffer(self._starts, np.int32)
        matrix.index_ = np.frombuffer(self._indices, np.int32)
        matrix.value_ = np.frombuffer(self._factors)
        if not relax:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[bool(integer)] for integer in self._integer]
        return model

    def _solution(self, solver: highspy.Highs, continuous: bool) -> Solution:
        status, info = solver.getModelStatus(), solver.getInfo()
        infeasible = {
            highspy.HighsModelStatus.kInfeasible,
            highspy.HighsModelStatus.kUnboundedOrInfeasible,
        }
        if status in infeasible:
            return Solution("infeasible", np.zeros(0), np.inf, np.inf)
        is_feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.asarray(solver.getSolution().col_value) if is_feasible else np.zeros(0)
        objective = info.objective_function_value if is_feasible else np.inf
        optimal = status == highspy.HighsModelStatus.kOptimal
        exact = objective if optimal else -np.inf
        bound = exact if continuous else info.mip_dual_bound
        if continuous and not optimal and solver.getSolution().dual_valid:
            bound = self._bound_of(np.asarray(solver.getSolution().row_dual))
        return Solution("optimal" if optimal else "limit", values, objective, bound)


def _least(factors: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The minimum of a linear function over a box."""
    ends = np.where(factors > 0, low, high)
    used = factors != 0
    return float(np.sum(factors[used] * ends[used]))
