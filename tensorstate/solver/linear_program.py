"""Linear programs with integer variables, built row by row and solved by HiGHS."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable
from typing import Any

import highspy
import numpy as np
from scipy.sparse import csr_matrix

from jaxcoll import progress as progress_of_calls
from jaxcoll.numerics import highs
from jaxcoll.progress import Report

# Largest cost after scaling for the interior-point method.
LARGEST_COST = 1e5

Terms = Iterable[tuple[int, float]]
"""A linear expression: (variable, factor)."""

Progress = Report
"""Called during a solve with seconds so far, and the best objective and bound in seconds."""

# Of objectives, as the programs here have them.
MICROSECOND = 1e-6


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


class LinearProgram:
    """A program built step by step: minimize costs subject to ``low <= terms <= high``."""

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

    def clear_objective(self) -> None:
        """Set all costs to 0."""
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
            relax: solve the LP relaxation.
            presolve: whether to presolve; for a relaxation that may take longer than it saves.
            iterations: limit of simplex iterations.
            progress: see ``Progress``.
        """
        options: dict[str, float | str] = {"threads": threads, "mip_rel_gap": gap, "random_seed": 0}
        options["presolve"] = "choose" if presolve else "off"
        if iterations is not None:
            options["simplex_iteration_limit"] = iterations
        if np.isfinite(time_limit):
            options["time_limit"] = float(time_limit)
        solver = highs.solver_for(self._model(relax), options)
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
        self, *, time_limit: float = np.inf, tolerance: float = 1e-4, threads: int = 2
    ) -> Solution:
        """The LP relaxation, solved within a tolerance of the optimum by an interior-point method.

        Unlike the simplex method, it is not slowed down by large programs with many equally good
        solutions. Its solution is not a vertex; its bound is valid whatever its accuracy. The
        status is never "infeasible", since the method may call a hard program infeasible; it is
        "limit" then.

        Args:
            time_limit: seconds.
            tolerance: relative gap to stop at.
            threads: of the solver.
        """
        options: dict[str, float | str] = {
            "threads": threads,
            "solver": "ipm",
            "run_crossover": "off",
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
        return Solution("optimal" if optimal else "limit", values, objective, bound)


def _least(factors: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The minimum of a linear function over a box."""
    ends = np.where(factors > 0, low, high)
    used = factors != 0
    return float(np.sum(factors[used] * ends[used]))
