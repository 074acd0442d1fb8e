"""Linear programs with integer variables, built row by row and solved by HiGHS."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Iterable

import highspy
import numpy as np
from scipy.sparse import csr_matrix

from jaxcoll.numerics import highs

# To which costs are scaled for the interior-point method.
LARGEST_COST = 1e5

Terms = Iterable[tuple[int, float]]
"""A linear expression: (variable, factor)."""

Progress = Callable[[float, float, float], None]
"""Called with seconds so far, the best objective and the best bound."""


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found.

    Attributes:
        status: "optimal", "infeasible", or "limit" when time ran out.
        values: of the variables; empty without a feasible point.
        objective: of these values.
        bound: no feasible point has a smaller objective.
    """

    status: str
    values: np.ndarray
    objective: float
    bound: float


class LinearProgram:
    """A program in the making: minimize costs under rows ``low <= terms <= high``."""

    def __init__(self) -> None:
        self._costs, self._low, self._high = array("d"), array("d"), array("d")
        self._implied_upper = array("d")
        self._integer = array("b")
        self._starts, self._indices, self._factors = array("i", [0]), array("i"), array("d")
        self._row_low, self._row_high = array("d"), array("d")

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
            cost: of one of it.
            low, high: what it may be.
            integer: whether it has to be one.
            implied_upper: what it is at most in some best solution, whatever is allowed: with it
                ``relax`` proves a bound.
        """
        self._costs.append(cost)
        self._low.append(low)
        self._high.append(high)
        self._integer.append(integer)
        self._implied_upper.append(min(high, implied_upper))
        return len(self._costs) - 1

    def add_fraction(self) -> int:
        """A new variable for a part of something: in some best solution at most all of it."""
        return self.add_variable(implied_upper=1.0)

    def add_cost(self, variable: int, cost: float) -> None:
        """Add to a variable's cost."""
        self._costs[variable] += cost

    def clear_objective(self) -> None:
        """Make all variables cost nothing."""
        self._costs = array("d", bytes(8 * len(self._costs)))

    def add_constraint(self, terms: Terms, low: float, high: float) -> None:
        """A new row; a variable may occur in it once."""
        for variable, factor in terms:
            self._indices.append(variable)
            self._factors.append(factor)
        self._starts.append(len(self._indices))
        self._row_low.append(low)
        self._row_high.append(high)

    def solve(
        self,
        *,
        time_limit: float = np.inf,
        gap: float = 1e-4,
        threads: int = 2,
        relax: bool = False,
        presolve: bool = True,
        iterations: int | None = None,
        progress: Progress | None = None,
    ) -> Solution:
        """Solve it; the same program gives the same solution unless time runs out.

        Args:
            time_limit: seconds.
            gap: relative gap between objective and bound to stop at.
            threads: of the solver.
            relax: leave out that variables are integer.
            presolve: whether to make it smaller first; to relax it that may take longer than it
                saves.
            iterations: of the simplex method at most.
            progress: called now and then.
        """
        options: dict[str, float | str] = {"threads": threads, "mip_rel_gap": gap, "random_seed": 0}
        options["presolve"] = "choose" if presolve else "off"
        if iterations is not None:
            options["simplex_iteration_limit"] = iterations
        if np.isfinite(time_limit):
            options["time_limit"] = float(time_limit)
        solver = highs.solver_for(self._model(relax), options)
        if progress is not None:
            solver.cbMipInterrupt += lambda event: progress(
                event.data_out.running_time,
                event.data_out.mip_primal_bound,
                event.data_out.mip_dual_bound,
            )
        highs.run(solver)
        return self._solution(solver, relax or not any(self._integer))

    def solve_ipm_relaxation(
        self, *, time_limit: float = np.inf, tolerance: float = 1e-4, threads: int = 2
    ) -> Solution:
        """Leave out that variables are integer, and stop within a tolerance of the optimum.

        An interior-point method, which large programs with many equal solutions do not slow down as
        they do the simplex method. Its solution is no corner; its bound holds however exact it is.
        It never says "infeasible", which it may think of what is only hard: then it finds nothing.

        Args:
            time_limit: seconds.
            tolerance: relative gap to stop at.
            threads: of the solver.
        """
        options: dict[str, float | str] = {
            "threads": threads,
            "solver": "ipm",
            "run_crossover": "off",
            "presolve": "off",  # duals of what it takes out are poor ones
            "ipm_optimality_tolerance": tolerance,
        }
        if np.isfinite(time_limit):
            options["time_limit"] = float(time_limit)
        model, costs = self._model(relax=True), np.frombuffer(self._costs)
        # Its tolerances are absolute ones.
        scale = LARGEST_COST / max(np.abs(costs).max(initial=0.0), np.finfo(float).tiny)
        model.col_cost_ = costs * scale
        solver = highs.solver_for(model, options)
        highs.run(solver)
        found = solver.getSolution()
        if not (found.value_valid and found.dual_valid):
            return Solution("limit", np.zeros(0), np.inf, -np.inf)
        values = np.asarray(found.col_value)
        bound = self._bound_of(np.asarray(found.row_dual) / scale)
        return Solution("optimal", values, float(costs @ values), bound)

    def _bound_of(self, duals: np.ndarray) -> float:
        """What any duals of the rows prove (Neumaier and Shcherbina, 2004, section 2).

        Costs are duals times rows, plus what is left times variables; each takes its least.
        """
        shape = self.num_rows, self.num_variables
        factors, indices = np.frombuffer(self._factors), np.frombuffer(self._indices, np.int32)
        rows = csr_matrix((factors, indices, np.frombuffer(self._starts, np.int32)), shape)
        row_low, row_high = np.frombuffer(self._row_low), np.frombuffer(self._row_high)
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
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.asarray(solver.getSolution().col_value) if found else np.zeros(0)
        objective = info.objective_function_value if found else np.inf
        optimal = status == highspy.HighsModelStatus.kOptimal
        exact = objective if optimal else -np.inf
        bound = exact if continuous else info.mip_dual_bound
        return Solution("optimal" if optimal else "limit", values, objective, bound)


def _least(factors: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The least sum of factors times what is between two bounds."""
    ends = np.where(factors > 0, low, high)
    used = factors != 0
    return float(np.sum(factors[used] * ends[used]))
