"""Running HiGHS, whose solvers share their threads."""

from __future__ import annotations

from collections.abc import Mapping

import highspy
import numpy as np
import scipy.sparse as sp


def linear_program(
    cost: np.ndarray, rows: sp.spmatrix | np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Columns of at least 0 that cost least, and the dual price of every row.

    One thread and a fixed seed: equal programs have equal answers.

    Args:
        cost: of each column.
        rows: coefficients, of shape (rows, columns).
        low, high: bounds of each row, infinite where there is none.

    Raises:
        RuntimeError: no optimum, or the solver refuses the program.
    """
    # Columns of at least 0, by the matrix in compressed columns.
    matrix = sp.csc_matrix(rows)
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = len(low), len(cost)
    model.col_cost_ = cost
    model.col_lower_, model.col_upper_ = np.zeros(len(cost)), np.full(len(cost), np.inf)
    model.row_lower_, model.row_upper_ = low, high
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.asarray(matrix.indptr, np.int32)
    model.a_matrix_.index_ = np.asarray(matrix.indices, np.int32)
    model.a_matrix_.value_ = matrix.data
    # Threads would race, and of equal optima the seed decides which is found.
    solver = solver_for(model, {"threads": 1, "random_seed": 0})
    run(solver)
    # Unbounded, infeasible or given up: callers have other ways, and must not take floats of none.
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS ended with {solver.getModelStatus()}")
    solution = solver.getSolution()
    return np.asarray(solution.col_value), np.asarray(solution.row_dual)


class _Silent(highspy.Highs):
    """A solver that prints nothing."""

    def enableCallbacks(self) -> None:
        """As in HiGHS, which calls this while it is constructed and, from 1.16, prints its name."""
        self.silent()
        super().enableCallbacks()


def solver_for(model: highspy.HighsLp, options: Mapping[str, float | str]) -> highspy.Highs:
    """A silent solver with a model and options, to be run by ``run``.

    HiGHS keeps one pool of threads per calling thread and refuses a solver that asks for another
    number of threads. So the pool is reset before every solve; solvers that run in other Python
    threads keep their own pools.
    """
    highspy.Highs.resetGlobalScheduler(True)  # and wait until its threads have ended
    solver = _Silent()
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    return solver


def run(solver: highspy.Highs) -> None:
    """Solve.

    Raises:
        RuntimeError: the solver refuses the model or an option.
    """
    if solver.run() == highspy.HighsStatus.kError:
        raise RuntimeError("HiGHS refuses the program or its options")
