"""Programs that grow while they are solved: lazy rows, and costs that are shared late.

Rows may be *lazy*: they are left out until a solution exceeds them. Of the hundreds of program
points at which memory is limited, two to five decide; with all of them in the program, its
relaxation took up to ten times as long. Without some rows the optimum is lower, so bounds hold.

``jaxcoll.numerics.program`` has the rows and variables themselves, and solves them.
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
"""Called during a solve with seconds so far, and the best objective and bound in seconds."""

# Of objectives, as the programs here have them.
MICROSECOND = 1e-6

# Lazy rows that one solution adds: the most exceeded ones, which are not neighbours, since those
# are exceeded together. A row counts as exceeded from the tolerance of the solver on.
ROWS_PER_SOLUTION, NEIGHBOURS = 3, 3
TOLERANCE = 1e-6

# Of an objective: what splits of shared costs lack less than this, they do not lack.
EXACT = 1e-9

# So few rows are never lazy: a second branch and bound takes longer than they do in the first.
FEW_ROWS = 20


class LinearProgram(Program):
    """A program that ``solve`` adds rows and variables to where a solution asks for them.

    Attributes:
        easier: other costs, for which a relaxation is solved first, if any: where these leave few
            good solutions, its basis is near, and found in a fraction of the time.
        accepts: whether a relaxed solution will do though shared costs are still split.
        allowed: what these may lack at the end of a relaxation, relative to the objective.
    """

    def __init__(self, deadline: float = np.inf) -> None:
        super().__init__(deadline)
        self.allowed = 0.0
        self.easier: np.ndarray | None = None
        self.accepts: Callable[[Solution], bool] = lambda _: False
        self._shared: list[SharedCosts] = []
        # Shared costs that were added, one after another; and with the basis as relaxations ended.
        self._chosen: list[set[int]] = []
        self._start: Basis = None
        self._end: tuple[list[set[int]], Basis] = ([], None)
        self._lazy: Any = csr_matrix((0, 0))
        self._is_lazy = np.zeros(0, bool)

    def add_fraction(self) -> int:
        """A new variable for a share, at most 1 in some optimal solution."""
        return self.add_variable(implied_upper=1.0)

    def add_shared_costs(self, costs: np.ndarray, flows: np.ndarray) -> None:
        """Costs per unit of the largest of some variables, which have no other costs.

        In relaxations they are split among the variables at first (see ``shared_costs``).

        Args:
            costs: of shape (steps,).
            flows: the variables, of shape (steps, flows).
        """
        self._shared.append(SharedCosts(costs, flows))
        for cost, variables in zip((costs / flows.shape[1]).tolist(), flows.tolist(), strict=True):
            for variable in variables:
                self.set_cost(variable, cost)

    def _share(self, numbers: Iterable[int]) -> None:
        """Let the largest of some flows cost what was split among them."""
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

    def start_from(self, other: LinearProgram) -> None:
        """Begin where the relaxation of a program that differs in costs alone has ended."""
        added, self._start = other._end
        for chosen in added:  # in this order it has the same variables and rows
            self._share(chosen)

    def clear_objective(self) -> None:
        """Set all costs to 0, shared ones too."""
        self._shared = []
        self.set_costs(np.zeros(self.num_variables))

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
        if is_over(self.deadline):
            return NOTHING_KNOWN
        until = min(time.perf_counter() + time_limit, self.deadline)
        options: dict[str, Any] = {"threads": threads, "gap": gap, "presolve": presolve}
        if not relax:  # while costs are split, plans seem cheaper than they are
            self._share(range(len(self._shared)))
        if self._is_lazy.any():
            relaxed = self._solve_lazily(True, until, iterations_per_row, **options)
            if relax:
                return relaxed
            if relaxed.status != Status.OPTIMAL:
                return Solution(relaxed.status, np.zeros(0), np.inf, relaxed.bound)
        if progress is not None:
            options["progress"] = _in_seconds(progress)
        return self._solve_lazily(relax, until, iterations_per_row, **options)

    def _solve_lazily(
        self, relax: bool, until: float, iterations_per_row: int | None, **options: Any
    ) -> Solution:
        """Solve with ever more lazy rows and shared costs, until all others hold; bounds rise.

        Where time runs out, the values are those of the last program that was solved: they exceed
        some rows, and their shares still say which strategies are likely.
        """
        start, bound, values = self._start if relax else None, -np.inf, np.zeros(0)
        while True:
            iterations = None if iterations_per_row is None else iterations_per_row * self.num_rows
            # These programs branch little: without heuristics repairs of a plan took a third to a
            # sixth of the CPU seconds, and whole programs half.
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
            # New variables stand at their lower bounds and new rows are basic: so it is a basis of
            # the larger program, too, and near its optimum. Branch and bound has none to give.
            values, start = (solution.values, solution.basis) if relax else (values, None)

    def solve_ipm_relaxation(
        self, *, time_limit: float = np.inf, tolerance: float = 1e-4
    ) -> Solution:
        """The LP relaxation with its lazy rows, by ``Program.minimize_inside``.

        Args:
            time_limit: seconds.
            tolerance: relative gap to stop at.
        """
        if is_over(self.deadline):
            return NOTHING_KNOWN
        until = min(time.perf_counter() + time_limit, self.deadline)
        self._share(range(len(self._shared)))  # from no basis several solves take longer than one
        while True:
            limit = remaining_time(until)
            solution = self.minimize_inside(time_limit=limit, tolerance=tolerance)
            is_last = is_over(until) or not len(solution.values)
            if is_last or not self._add_exceeded(solution.values):
                return solution


def _in_seconds(progress: Progress) -> Progress:
    """Of a program whose objective is in microseconds."""

    def report(event: progress_of_calls.Progress) -> None:
        best, bound = (
            None if value is None else value * MICROSECOND for value in (event.best, event.bound)
        )
        progress(dataclasses.replace(event, best=best, bound=bound))

    return report
