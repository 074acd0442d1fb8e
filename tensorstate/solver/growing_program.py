"""Programs that grow while they are solved, by lazy rows and by costs that are shared late.

Rows may be *lazy*: they are left out until a solution exceeds them. Memory is limited at hundreds
of program points, of which two to five decide; with all of them in the program, its relaxation took
up to ten times as long. Leaving out rows lowers the optimum, so bounds remain valid.

``jaxcoll.numerics.program`` holds the rows and variables themselves, and solves them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from jaxcoll import progress as progress_of_calls
from jaxcoll.numerics.program import NOTHING_KNOWN, Basis, Program, Solution, Status
from jaxcoll.progress import Report
from tensorstate.deadline import is_over, remaining_time
from tensorstate.solver.shared_costs import SharedCosts, most_lacking

Progress = Report
"""Called during a solve with the elapsed seconds, and the best objective and bound in seconds."""

# The unit of objectives, in seconds.
MICROSECOND = 1e-6

# Each solution adds up to ROWS_PER_SOLUTION lazy rows: the most exceeded ones that are more than
# NEIGHBOURS rows apart, since neighbours are exceeded together. A row counts as exceeded beyond the
# tolerance of the solver.
ROWS_PER_SOLUTION, NEIGHBOURS = 3, 3
TOLERANCE = 1e-6

# Shortfalls of shared costs below this fraction of the objective count as zero.
EXACT = 1e-9

# Up to this number, rows are never lazy: a second branch and bound takes longer than including them
# in the first.
FEW_ROWS = 20


class GrowingProgram(Program):
    """A program to which ``solve`` adds rows and variables as solutions require them.

    Attributes:
        easier: other costs, for which a relaxation is solved first, if any. If they leave few good
            solutions, its basis is near the optimum and found in a fraction of the time.
        accepts: whether a relaxed solution is good enough although shared costs are still split.
        allowed: the shortfall of shared costs allowed at the end of a relaxation, relative to the
            objective.
        progress: called during solves, if somebody listens.
    """

    def __init__(self, deadline: float = np.inf) -> None:
        super().__init__(deadline)
        self.allowed = 0.0
        self.progress: Progress | None = None
        self.easier: np.ndarray | None = None
        self.accepts: Callable[[Solution], bool] = lambda _: False
        self._shared: list[SharedCosts] = []
        # The shared costs that were added, in order; and a copy of them, with the basis, from the
        # end of the last relaxation.
        self._chosen: list[set[int]] = []
        self._start: Basis = None
        self._end: tuple[list[set[int]], Basis] = ([], None)
        self._lazy: Any = csr_matrix((0, 0))
        self._is_lazy = np.zeros(0, bool)

    def add_fraction(self) -> int:
        """Add a variable for a share, which is at most 1 in some optimal solution."""
        return self.add_variable(implied_upper=1.0)

    def add_shared_costs(self, costs: np.ndarray, flows: np.ndarray) -> None:
        """Add costs per unit of the largest of some variables, which have no other costs.

        In relaxations they are at first split among the variables (see ``shared_costs``).

        Args:
            costs: costs per unit, of shape (steps,).
            flows: the variables, of shape (steps, flows).
        """
        self._shared.append(SharedCosts(costs, flows))
        for cost, variables in zip((costs / flows.shape[1]).tolist(), flows.tolist(), strict=True):
            for variable in variables:
                self.set_cost(variable, cost)

    def _share(self, numbers: Iterable[int]) -> None:
        """Replace split costs by costs of the largest of the flows."""
        chosen = set(numbers)
        self._chosen.append(chosen)
        for number in chosen:
            costs, flows = self._shared[number]
            for cost, variables in zip(costs.tolist(), flows.tolist(), strict=True):
                largest = self.add_variable(cost, implied_upper=1.0)
                for variable in variables:
                    self.set_cost(variable, 0.0)
                    self.add_constraint([(largest, 1.0), (variable, -1.0)], 0.0, np.inf)
        self._shared = [each for k, each in enumerate(self._shared) if k not in chosen]

    def start_from(self, other: GrowingProgram) -> None:
        """Start at the end of the relaxation of a program that differs only in costs."""
        added, self._start = other._end
        for chosen in added:  # in the same order, for the same variables and rows
            self._share(chosen)

    def clear_objective(self) -> None:
        """Set all costs to 0, including shared ones."""
        self._shared = []
        self.set_costs(np.zeros(self.num_variables))

    def set_lazy(self, rows: csr_matrix) -> None:
        """Set the lazy rows ``row @ variables <= 0``; if they are few, they are added at once.

        Args:
            rows: the rows, with a column for every variable so far.
        """
        # All rows stay in ``_lazy``, and ``_is_lazy`` tells which of them the program still lacks.
        self._lazy, self._is_lazy = rows, np.ones(len(rows.indptr) - 1, bool)
        if len(self._is_lazy) <= FEW_ROWS:
            self._add_rows(range(len(self._is_lazy)))

    def _add_exceeded(self, values: np.ndarray) -> int:
        """Add the lazy rows that values exceed most, and return their number."""
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
        """Share the costs with the largest shortfalls, and return their number."""
        scale = abs(solution.objective)
        chosen = most_lacking(self._shared, solution.values, self.allowed * scale, EXACT * scale)
        self._share(chosen)
        return len(chosen)

    def add_largest_lazy(self, count: int) -> None:
        """Add ``count`` lazy rows, spread over all rows in the order of their sums."""
        # Rows with large sums are points at which much memory is live. They are spread out, since
        # neighbouring rows are nearly the same.
        sums = np.asarray(self._lazy.sum(axis=1)).ravel()
        order = np.argsort(-sums, kind="stable")[:: max(1, len(sums) // count)][:count]
        self._add_rows([int(row) for row in order if self._is_lazy[row]])

    def _add_rows(self, rows: Iterable[int]) -> None:
        for row in rows:
            part = slice(self._lazy.indptr[row], self._lazy.indptr[row + 1])
            columns, factors = self._lazy.indices[part].tolist(), self._lazy.data[part].tolist()
            self.add_row(columns, factors, -np.inf, 0.0)
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
    ) -> Solution:
        """Solve the program; equal programs have equal solutions unless time runs out.

        Relaxations find the lazy rows that matter, each from the basis of the last one. If time
        runs out before no row is exceeded, the solution may exceed some, and its status is "limit".

        Args:
            time_limit: the limit in seconds.
            gap: relative gap between objective and bound at which to stop.
            threads: number of threads of the solver.
            relax: solve the LP relaxation.
            presolve: whether to presolve, which may cost a relaxation more time than it saves.
            iterations_per_row: limit of simplex iterations, which grows with the program.
        """
        if is_over(self.deadline):
            return NOTHING_KNOWN
        until = min(time.perf_counter() + time_limit, self.deadline)
        options: dict[str, Any] = {"threads": threads, "gap": gap, "presolve": presolve}
        if self.progress is not None:
            options["progress"] = _in_seconds(self.progress)
        if not relax:  # with split costs, plans seem cheaper than they are
            self._share(range(len(self._shared)))
        if self._is_lazy.any():
            relaxed = self._solve_lazily(True, until, iterations_per_row, **options)
            if relax:
                return relaxed
            if relaxed.status != Status.OPTIMAL:
                return Solution(relaxed.status, np.zeros(0), np.inf, relaxed.bound)
        return self._solve_lazily(relax, until, iterations_per_row, **options)

    def _solve_lazily(
        self, relax: bool, until: float, iterations_per_row: int | None, **options: Any
    ) -> Solution:
        """Solve with more and more lazy rows and shared costs until all others hold; bounds rise.

        If time runs out, the values are those of the last program that was solved: they exceed some
        rows, but their shares still tell which strategies are likely.
        """
        start, bound, values = self._start if relax else None, -np.inf, np.zeros(0)
        while True:
            iterations = None if iterations_per_row is None else iterations_per_row * self.num_rows
            # These programs branch little: without heuristics, repairs of a plan took a third to a
            # sixth of the CPU seconds, and whole programs took half.
            solution = self.minimize(
                relax=relax,
                time_limit=remaining_time(until),
                heuristics=False,
                iterations=iterations,
                start=start,
                easier=self.easier if relax else None,
                **options,
            )
            if relax and solution.status == Status.OPTIMAL:
                self._end = [*self._chosen], solution.basis
            bound = max(bound, solution.bound)
            solution = dataclasses.replace(solution, bound=bound)
            if not len(solution.values):
                is_late = solution.status == Status.LIMIT
                return dataclasses.replace(solution, values=values) if is_late else solution
            if not self._add_exceeded(solution.values) and (
                not relax or self.accepts(solution) or not self._add_lacking(solution)
            ):
                return solution
            if is_over(until):
                return dataclasses.replace(solution, status=Status.LIMIT)
            # With new variables at their lower bounds and new rows basic, the basis is one of the
            # larger program too, near its optimum. Branch and bound does not return a basis.
            values, start = (solution.values, solution.basis) if relax else (values, None)

    def solve_ipm_relaxation(
        self, *, time_limit: float = np.inf, tolerance: float = 1e-4
    ) -> Solution:
        """Solve the LP relaxation with its lazy rows, by ``Program.minimize_inside``.

        Args:
            time_limit: the limit in seconds.
            tolerance: relative gap at which to stop.
        """
        if is_over(self.deadline):
            return NOTHING_KNOWN
        until = min(time.perf_counter() + time_limit, self.deadline)
        self._share(range(len(self._shared)))  # without a basis, several take longer
        while True:
            limit = remaining_time(until)
            solution = self.minimize_inside(time_limit=limit, tolerance=tolerance)
            is_last = is_over(until) or not len(solution.values)
            if is_last or not self._add_exceeded(solution.values):
                return solution


def _in_seconds(progress: Progress) -> Progress:
    """The report of a program whose objective is in microseconds, converted to seconds."""

    def report(event: progress_of_calls.Progress) -> None:
        best, bound = (
            None if value is None else value * MICROSECOND for value in (event.best, event.bound)
        )
        progress(dataclasses.replace(event, best=best, bound=bound))

    return report
