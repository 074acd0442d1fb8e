"""Linear and integer programs: columns, rows, and their solution by HiGHS.

    minimize    sum over variables v of cost[v] x[v]
    subject to  low[v] <= x[v] <= high[v], whole where v is an integer
                row_low[r] <= sum over v of row[r, v] x[v] <= row_high[r]

This is the only file that knows the solver. Variables and rows are numbered in the order in which
they are added, and are given to the solver in this order, which decides between equally good
solutions. Equal programs have equal solutions unless time runs out.

A solver works in floats, so a status holds within its tolerances. A lower bound does not depend on
them: ``bound_of`` takes any duals and proves the bound that follows.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import time
from array import array
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Self

import highspy
import numpy as np
import scipy.sparse as sp

from jaxcoll.progress import Progress, Report

Terms = Iterable[tuple[int, float]]
"""A linear expression: (variable, factor)."""

Matrix = Any
"""A sparse matrix or array of SciPy, or an array of NumPy."""

Basis = Any
"""A vertex: the bounds at which variables and rows are, in the solver's own type."""

# The least time limit in seconds, so that a program that begins just before its deadline can run.
LEAST_SECONDS = 0.1

# Seconds between two reports of a solve, and the unit of their counts.
_EVERY_S, _SEARCHING = 0.25, "seconds of search"

# Largest cost after scaling for the interior-point method.
LARGEST_COST = 1e5

# Options against the searches around a relaxation, which are separate branch and bounds, and
# against restarts before branching.
_NO_HEURISTICS: dict[str, float | str | bool] = {
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_rins": False,
    "mip_allow_restart": False,
}


class Status(enum.StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    LIMIT = "limit"
    """The solver ran out of time or iterations, or gave up; values, if any, are feasible."""


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The outcome of a solve.

    Attributes:
        status: how it ended.
        values: values of the variables; empty without a feasible point.
        objective: the objective of these values.
        bound: lower bound of the objective; infinite if nothing is feasible.
        duals: the rise of the optimum per unit of each row's bound: at least 0 at the lower bound,
            at most 0 at the upper bound. Empty if there are none, as after branch and bound.
        basis: the basis at which a continuous solve ended, for ``Program.minimize(start=)``.
    """

    status: Status
    values: np.ndarray
    objective: float
    bound: float
    duals: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    basis: Basis = None

    def optimal(self) -> Solution:
        """This solution, if it is optimal.

        Raises:
            RuntimeError: the solution is not optimal.
        """
        if self.status != Status.OPTIMAL:
            raise RuntimeError(f"the linear program ended {self.status}, not optimal")
        return self


class RefusedError(RuntimeError):
    """The solver refuses a program, an option or a basis."""


NOTHING_KNOWN = Solution(Status.LIMIT, np.zeros(0), np.inf, -np.inf)
INFEASIBLE = Solution(Status.INFEASIBLE, np.zeros(0), np.inf, np.inf)
UNBOUNDED = Solution(Status.UNBOUNDED, np.zeros(0), -np.inf, -np.inf)


class Program:
    """A program, built step by step.

    Args:
        deadline: time of ``time.perf_counter`` after which it is not solved.
    """

    def __init__(self, deadline: float = np.inf) -> None:
        self.deadline = deadline
        # Growing columns that NumPy and the solver read directly. Programs of a training step take
        # longer to build, row by row, than to solve: a list of numbers would be copied once more,
        # and a NumPy array grows by a copy.
        self._costs, self._low, self._high = array("d"), array("d"), array("d")
        self._implied_upper = array("d")
        self._integer = array("b")
        self._starts, self._indices, self._factors = array("i", [0]), array("i"), array("d")
        self._row_low, self._row_high = array("d"), array("d")

    def copied(self) -> Self:
        """A separate program with the same variables and rows."""
        other = type(self)()
        other.__dict__.update({name: copy.copy(value) for name, value in self.__dict__.items()})
        return other

    # ------------------------------------------------------------------ variables

    @property
    def num_variables(self) -> int:
        """Number of variables so far."""
        return len(self._costs)

    @property
    def costs(self) -> np.ndarray:
        """The costs of all variables so far."""
        return np.array(self._costs)

    @property
    def is_integer(self) -> bool:
        """Whether some variable is integral."""
        return any(self._integer)

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

    def add_variables(
        self,
        count: int,
        cost: float | np.ndarray = 0.0,
        low: float | np.ndarray = 0.0,
        high: float | np.ndarray = np.inf,
        integer: bool = False,
    ) -> np.ndarray:
        """Numbers of new variables, int64 of shape (count,); arguments may differ by variable."""
        for column, value in (
            (self._costs, cost),
            (self._low, low),
            (self._high, high),
            (self._implied_upper, high),
        ):
            column.frombytes(np.broadcast_to(np.asarray(value, float), (count,)).tobytes())
        self._integer.frombytes(bytes([integer]) * count)
        return np.arange(self.num_variables - count, self.num_variables)

    def add_cost(self, variable: int, cost: float) -> None:
        """Add to a variable's cost."""
        self._costs[variable] += cost

    def set_cost(self, variable: int, cost: float) -> None:
        """Replace the cost of a variable."""
        self._costs[variable] = cost

    def set_costs(self, costs: np.ndarray) -> None:
        """Replace the costs of all variables so far."""
        self._costs = array("d", np.asarray(costs, float).tobytes())

    def set_low(self, variable: int, low: float) -> None:
        """Replace the lower bound of a variable."""
        self._low[variable] = low

    def set_high(self, variable: int, high: float) -> None:
        """Replace the upper bound of a variable."""
        self._high[variable] = self._implied_upper[variable] = high

    # ------------------------------------------------------------------ rows

    @property
    def num_rows(self) -> int:
        """Number of rows so far."""
        return len(self._row_low)

    @property
    def rows(self) -> sp.csr_matrix:
        """The factors, of shape (rows, variables)."""
        parts = (np.array(self._factors), np.array(self._indices), np.array(self._starts))
        return sp.csr_matrix(parts, (self.num_rows, self.num_variables))

    def add_constraint(self, terms: Terms, low: float, high: float) -> None:
        """Add a row, in which a variable may occur only once."""
        for variable, factor in terms:
            self._indices.append(variable)
            self._factors.append(factor)
        self._starts.append(len(self._indices))
        self._row_low.append(low)
        self._row_high.append(high)

    def add_row(self, variables: list[int], factors: list[float], low: float, high: float) -> None:
        """The same as ``add_constraint``, in a third of the time for long rows."""
        self._indices.fromlist(variables)
        self._factors.fromlist(factors)
        self._starts.append(len(self._indices))
        self._row_low.append(low)
        self._row_high.append(high)

    def add_rows(
        self,
        matrix: Matrix,
        low: float | np.ndarray,
        high: float | np.ndarray,
    ) -> np.ndarray:
        """New rows, by number; factors of shape (rows, variables so far).

        Raises:
            ValueError: the number of columns is another one.
        """
        rows: Any = sp.csr_matrix(matrix)
        count, columns = rows.shape
        if columns != self.num_variables:
            raise ValueError(
                f"rows of {columns} columns are added to a program of {self.num_variables} "
                f"variables; give a column for each"
            )
        rows.sum_duplicates()
        starts = len(self._indices) + rows.indptr[1:]
        self._starts.frombytes(starts.astype(np.int32).tobytes())
        self._indices.frombytes(rows.indices.astype(np.int32).tobytes())
        self._factors.frombytes(rows.data.astype(float).tobytes())
        for column, value in ((self._row_low, low), (self._row_high, high)):
            column.frombytes(np.broadcast_to(np.asarray(value, float), (count,)).tobytes())
        return np.arange(self.num_rows - count, self.num_rows)

    def add_blocks(
        self,
        *blocks: tuple[Matrix, np.ndarray],
        low: float | np.ndarray = -np.inf,
        high: float | np.ndarray = np.inf,
    ) -> np.ndarray:
        """New rows, by number: low <= sum over blocks of matrix @ x[variables] <= high.

        Args:
            blocks: each a matrix of shape (rows, variables) and its variables.
        """
        parts: list[Any] = [(sp.coo_array(matrix), variables) for matrix, variables in blocks]
        count = parts[0][0].shape[0]
        row, column, factor = (
            np.concatenate(each)
            for each in zip(
                *((part.row, variables[part.col], part.data) for part, variables in parts),
                strict=True,
            )
        )
        shape = count, self.num_variables
        return self.add_rows(sp.coo_array((factor, (row, column)), shape), low, high)

    # ------------------------------------------------------------------ solutions

    def minimize(
        self,
        *,
        relax: bool = False,
        time_limit: float = np.inf,
        gap: float = 1e-4,
        absolute_gap: float = 1e-6,
        tolerance: float = 1e-7,
        threads: int = 1,
        presolve: bool = True,
        heuristics: bool = True,
        iterations: int | None = None,
        start: Basis = None,
        easier: np.ndarray | None = None,
        progress: Report | None = None,
    ) -> Solution:
        """Solve it by the simplex method, and by branch and bound if some variables are integers.

        Args:
            relax: whether to ignore that variables are integers.
            time_limit: the limit in seconds.
            gap, absolute_gap: gap between objective and bound at which branch and bound stops.
            tolerance: the amount by which a row, a bound or a reduced cost may be missed.
            threads: number of threads of the solver.
            presolve: whether to presolve, which may cost a relaxation more time than it saves.
            heuristics: whether branch and bound also searches around relaxations, and restarts.
            iterations: limit of the simplex method.
            start: a basis at which to begin, of this program with fewer variables and rows.
            easier: other costs, which are minimized first, in half of the time, if there is no
                ``start``. The simplex method begins at their basis, and their duals prove a bound,
                too.
            progress: called with seconds so far; during branch and bound with the best objective
                and the bound, too. An error of this function ends the solve, and is raised here.

        Raises:
            RuntimeError: the solver refuses the program.
        """
        left = self.deadline - time.perf_counter()
        if left < 0:
            return NOTHING_KNOWN
        time_limit = min(time_limit, max(left, LEAST_SECONDS))
        options: dict[str, float | str | bool] = {
            "threads": threads,
            "random_seed": 0,
            "time_limit": time_limit,
            "mip_rel_gap": gap,
            "mip_abs_gap": absolute_gap,
            "primal_feasibility_tolerance": tolerance,
            "dual_feasibility_tolerance": tolerance,
            "presolve": "choose" if presolve else "off",
        }
        if not heuristics:
            options |= _NO_HEURISTICS
        if iterations is not None:
            options["simplex_iteration_limit"] = iterations
        solver = _solver_for(self._model(relax), options)
        if progress is not None:
            solver.watch(_Watcher(progress, time_limit))
        bound = -np.inf
        if start is not None:
            solver.setBasis(self._grown(start))
        elif easier is not None:
            bound = self._start_from_easier(solver, easier, time_limit)
        try:
            _run(solver)
            is_ended = solver.getModelStatus() != highspy.HighsModelStatus.kUnknown
        except RefusedError:  # a basis that the solver cannot factor
            if start is None:
                raise
            is_ended = False
        if not is_ended:
            solver.clearSolver()  # with a basis, infeasible programs may end so
            _run(solver)
        found = self._solution(solver, relax or not self.is_integer)
        return dataclasses.replace(found, bound=max(bound, found.bound))

    def _start_from_easier(self, solver: _Solver, easier: np.ndarray, time_limit: float) -> float:
        """Solve with the easier costs first, in half of the time; returns the proved bound.

        If it takes all its time, as for a ViT on 2x4 devices, its duals bound the program within
        one percent, while those of its basis with the true costs do not.
        """
        columns = np.arange(self.num_variables, dtype=np.int32)
        solver.changeColsCost(len(columns), columns, easier)
        solver.setOptionValue("time_limit", time_limit / 2)
        _run(solver)
        found = solver.getSolution()
        bound = self.bound_of(np.asarray(found.row_dual)) if found.dual_valid else -np.inf
        solver.changeColsCost(len(columns), columns, np.frombuffer(self._costs))
        solver.setOptionValue("time_limit", time_limit)  # of both runs
        return bound

    def minimize_inside(
        self, *, time_limit: float = np.inf, tolerance: float = 1e-4, threads: int = 2
    ) -> Solution:
        """The relaxation, solved within a tolerance of the optimum by an interior-point method.

        Unlike the simplex method, it is not slowed down by large programs with many equally good
        solutions. Its solution is not a vertex; its bound is valid whatever its accuracy, and shows
        how good the values are. The status is "optimal" if there are values and duals; it is never
        "infeasible", since the method may call a hard program infeasible, but "limit" then.

        Args:
            time_limit: seconds.
            tolerance: relative gap to stop at.
            threads: number of threads of the solver.

        Raises:
            RuntimeError: the solver refuses the program.
        """
        left = self.deadline - time.perf_counter()
        if left < 0:
            return NOTHING_KNOWN
        time_limit = min(time_limit, max(left, LEAST_SECONDS))
        options: dict[str, float | str | bool] = {
            "threads": threads,
            "random_seed": 0,
            "solver": "ipm",
            "run_crossover": "off",  # a bound needs no vertex
            "presolve": "off",  # duals of removed rows are poor
            "ipm_optimality_tolerance": tolerance,
            "time_limit": time_limit,
        }
        model, costs = self._model(relax=True), self.costs
        # The tolerances of the solver are absolute.
        largest = float(np.abs(costs).max(initial=0.0))
        scale = LARGEST_COST / largest if largest else 1.0
        model.col_cost_ = costs * scale
        solver = _solver_for(model, options)
        try:
            _run(solver)
        except RefusedError:  # it gives up, as where no row binds
            return NOTHING_KNOWN
        found = solver.getSolution()
        if not (found.value_valid and found.dual_valid):
            return NOTHING_KNOWN
        values, duals = np.asarray(found.col_value), np.asarray(found.row_dual) / scale
        bound = self.bound_of(duals)
        return Solution(Status.OPTIMAL, values, float(costs @ values), bound, duals)

    def bound_of(self, duals: np.ndarray) -> float:
        """The lower bound proved by any duals (Neumaier and Shcherbina, 2004, section 2).

        Costs are duals times rows plus reduced costs times variables; each is minimized alone.
        """
        row_low, row_high = np.frombuffer(self._row_low), np.frombuffer(self._row_high)
        # If a row is open on one side, a dual of the wrong sign would make the bound infinite. Such
        # a sign is a rounding error, and any other duals prove a bound, too.
        duals = np.where(np.isinf(row_low), np.minimum(duals, 0.0), duals)
        duals = np.where(np.isinf(row_high), np.maximum(duals, 0.0), duals)
        left = np.frombuffer(self._costs) - self.rows.T @ duals
        low, implied_upper = np.frombuffer(self._low), np.frombuffer(self._implied_upper)
        return _least(duals, row_low, row_high) + _least(left, low, implied_upper)

    # ------------------------------------------------------------------ the solver

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
        if not relax and self.is_integer:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[integer] for integer in self._integer]
        return model

    def _grown(self, basis: highspy.HighsBasis) -> highspy.HighsBasis:
        """A basis of fewer variables and rows, extended to all, and as near the optimum.

        New variables are at their lower bounds and new rows are basic.
        """
        status, grown = highspy.HighsBasisStatus, highspy.HighsBasis()
        columns, rows = list(basis.col_status), list(basis.row_status)
        grown.valid, grown.alien, grown.was_alien = basis.valid, basis.alien, basis.was_alien
        grown.col_status = columns + [status.kLower] * (self.num_variables - len(columns))
        grown.row_status = rows + [status.kBasic] * (self.num_rows - len(rows))
        return grown

    def _solution(self, solver: _Solver, continuous: bool) -> Solution:
        status, info = solver.getModelStatus(), solver.getInfo()
        known = highspy.HighsModelStatus
        if status == known.kInfeasible:
            return INFEASIBLE
        if status == known.kUnbounded and continuous:
            return UNBOUNDED
        if status in (known.kUnbounded, known.kUnboundedOrInfeasible):
            return self._unbounded_or_infeasible(solver)
        if status == known.kModelEmpty:
            return Solution(Status.OPTIMAL, np.zeros(0), 0.0, 0.0)
        found, is_optimal = solver.getSolution(), status == known.kOptimal
        is_feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.asarray(found.col_value) if is_feasible else np.zeros(0)
        objective = info.objective_function_value if is_feasible else np.inf
        ended = Status.OPTIMAL if is_optimal else Status.LIMIT
        if not continuous:
            return Solution(ended, values, objective, info.mip_dual_bound)
        duals = np.asarray(found.row_dual) if found.dual_valid else np.zeros(0)
        bound = objective if is_optimal else -np.inf
        if not is_optimal and found.dual_valid:
            bound = self.bound_of(duals)
        return Solution(ended, values, objective, bound, duals, solver.getBasis())

    def _unbounded_or_infeasible(self, solver: _Solver) -> Solution:
        """Decide which of both it is, since presolve and branch and bound may not know."""
        costs = self.costs
        ends = np.where(costs > 0, np.frombuffer(self._low), np.frombuffer(self._high))
        if np.isfinite(ends[costs != 0]).all():
            return INFEASIBLE  # no variable can fall without limit
        # Without costs nothing is unbounded; and a feasible integer program with an unbounded
        # relaxation is itself unbounded (its factors are rational).
        columns = np.arange(self.num_variables, dtype=np.int32)
        solver.changeColsCost(len(columns), columns, np.zeros(len(columns)))
        _run(solver)
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal:
            return UNBOUNDED
        return INFEASIBLE if status == highspy.HighsModelStatus.kInfeasible else NOTHING_KNOWN


class _Solver(highspy.Highs):
    """A solver that prints nothing, and that somebody may watch."""

    watcher: _Watcher | None = None

    def enableCallbacks(self) -> None:
        """As in HiGHS, which calls this while it is constructed and, from 1.16, prints its name."""
        self.silent()
        super().enableCallbacks()

    def watch(self, watcher: _Watcher) -> None:
        """Tell somebody how far the solver has come, while it runs."""
        self.watcher = watcher
        self.cbMipInterrupt += watcher.of_branching
        self.cbSimplexInterrupt += watcher.of_relaxation


class _Watcher:
    """Reports what a solver does, from the thread that waits for it.

    HiGHS calls back in branch and bound, but not while that solves its first relaxation, which may
    take most of the time; and it takes an exception of a callback for a failure of its own. So the
    solver runs in another thread, callbacks leave what they know, and the caller's own thread
    reports it a few times a second.

    Args:
        progress: the function that is called.
        time_limit: seconds that the solver may take.
    """

    def __init__(self, progress: Report, time_limit: float) -> None:
        self.progress = progress
        self.limit = float(time_limit) if np.isfinite(time_limit) else None
        self.best: float | None = None
        self.bound: float | None = None
        self.is_untold = self.is_stopped = False

    def of_branching(self, event: Any) -> None:
        """Called by branch and bound, some times a second."""
        best, bound = event.data_out.mip_primal_bound, event.data_out.mip_dual_bound
        self.best = float(best) if np.isfinite(best) else None
        self.bound = float(bound) if np.isfinite(bound) else None
        self.is_untold = True
        event.interrupt(self.is_stopped)

    def of_relaxation(self, event: Any) -> None:
        """Called by the simplex method, in every iteration."""
        event.interrupt(self.is_stopped)

    def run(self, solver: _Solver) -> Any:
        """Run a solver; an error of the report ends it, and is raised here."""
        start = time.perf_counter()

        def tell() -> None:
            self.is_untold = False
            seconds = time.perf_counter() - start
            self.progress(Progress(seconds, self.limit, _SEARCHING, self.best, self.bound))

        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(solver.run)
            try:
                while wait([ended], _EVERY_S).not_done:
                    tell()
                if self.is_untold:
                    tell()
            finally:
                self.is_stopped = True
        return ended.result()


def _solver_for(model: highspy.HighsLp, options: dict[str, float | str | bool]) -> _Solver:
    """A silent solver with a model and options, to be run by ``_run``.

    HiGHS has one pool of threads per calling thread and refuses a solver that asks for another
    number of threads. So the pool is reset before every solve; solvers in other Python threads have
    their own pools.
    """
    highspy.Highs.resetGlobalScheduler(True)  # and wait until its threads have ended
    solver = _Solver()
    for name, value in options.items():
        solver.setOptionValue(name, value)
    # Otherwise it would solve an empty program, and call it optimal.
    if solver.passModel(model) == highspy.HighsStatus.kError:
        raise RefusedError("HiGHS refuses the program")
    return solver


def _run(solver: _Solver) -> None:
    """Solve.

    Raises:
        RuntimeError: the solver refuses the model or an option.
    """
    watcher = solver.watcher
    status = solver.run() if watcher is None else watcher.run(solver)
    if status == highspy.HighsStatus.kError:
        raise RefusedError("HiGHS refuses the program or its options")


def _least(factors: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The minimum of a linear function over a box."""
    ends = np.where(factors > 0, low, high)
    used = factors != 0
    return float(np.sum(factors[used] * ends[used]))
