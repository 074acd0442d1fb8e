"""The parts that all solvers share: the question, when to stop, and one method."""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Sequence

from jaxcoll.numerics import checks
from jaxcoll.progress import Progress as Event
from tensorstate.cost.cost import SearchOptions, SearchResult
from tensorstate.cost.memory import most_bytes
from tensorstate.deadline import Budget, deadline_after
from tensorstate.errors import PlanError
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.solver.formulation import Programs
from tensorstate.solver.growing_program import Progress

CandidateStrategies = Sequence[Sequence[Strategy]]
"""The strategies to choose from, by node class."""


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """A problem to decide, the strategies to choose from, and the objective.

    Attributes:
        problem: the problem to decide.
        candidates: the candidate strategies of every class.
        options: objective and constraints.
        progress: called with elapsed seconds, best objective and bound.
        programs: the rows that questions share if they differ only in the costs of collectives.
        deadline: see ``tensorstate.deadline``.
        budget: that of ``Auto``, if the search asks several programs.
    """

    problem: Problem
    candidates: CandidateStrategies
    options: SearchOptions
    progress: Progress | None = None
    programs: Programs | None = None
    deadline: float = math.inf
    budget: Budget | None = None

    def under(self, options: SearchOptions) -> Question:
        """The same question under other options; it reports what is true of this one, too."""
        if options == self.options:
            return self
        limit, other = self.options.memory_limit, options.memory_limit
        fits = limit is None or (other is not None and other <= limit) or self.fits_anyway
        # Without a limit nothing has to be recomputed, so that no keeping makes a plan faster.
        is_looser = other is None or (limit is not None and other >= limit)
        mine, theirs = {*self.options.keepings}, {*options.keepings}
        told = telling(
            self.progress,
            best=fits and theirs <= mine,
            bound=is_looser and (other is None or mine <= theirs),
        )
        return dataclasses.replace(self, options=options, progress=told)

    def among(self, candidates: CandidateStrategies) -> Question:
        """The same question with fewer candidates, whose bound is none of this one."""
        told = telling(self.progress, best=True)
        return dataclasses.replace(self, candidates=candidates, progress=told)

    @property
    def fits_anyway(self) -> bool:
        """Whether no plan exceeds the memory limit."""
        limit = self.options.memory_limit
        return limit is None or most_bytes(self.problem) <= limit

    def tell(self, found: SearchResult, bound: float = -math.inf) -> None:
        """Report a plan, if it fits, and a bound."""
        if self.progress is not None:
            best = found.objective if found.cost.memory.fits(self.options.memory_limit) else None
            known = bound if math.isfinite(bound) else None
            self.progress(Event(0, None, "", best=best, bound=known))


def telling(
    progress: Progress | None, *, best: bool = False, bound: bool = False
) -> Progress | None:
    """Report of a program of another problem only what is true of this one.

    Args:
        progress: the listener of this problem, if any.
        best, bound: whether plans and bounds of the other problem are also those of this one.
    """
    if progress is None:
        return None

    def report(event: Event) -> None:
        known = event.best if best else None, event.bound if bound else None
        progress(dataclasses.replace(event, best=known[0], bound=known[1]))

    return report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solver(abc.ABC):
    """A search algorithm. Its subclasses are ``Milp``, ``CoordinateDescent`` and ``Auto``.

    Attributes:
        gap: relative gap between objective and lower bound at which to stop.
        time_limit: seconds after which the best decisions so far are returned.

    Raises:
        PlanError: the gap is below 0, or the time limit is not above 0.
    """

    gap: float = 1e-2
    time_limit: float = math.inf

    def __post_init__(self) -> None:
        for name, least in (("gap", "at least 0"), ("time_limit", "above 0")):
            value = getattr(self, name)
            # True is an int, and would be a gap of 1.
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not (value > 0 or (value == 0 and name == "gap")):
                raise PlanError(f"{name} must be a number {least}, got {checks.shown(value)}")

    def solve(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        options: SearchOptions | None = None,
        progress: Progress | None = None,
    ) -> SearchResult:
        """The best decisions found.

        Args:
            problem, candidates, progress: see ``Question``.
            options: likewise; by default the sum without a memory limit.

        Raises:
            PlanError: nothing fits into the memory limit, or nothing was found in time.
        """
        return self.answer_in_time(
            Question(problem, candidates, options or SearchOptions(), progress)
        )

    def answer_in_time(self, question: Question) -> SearchResult:
        """The result of ``solve``, by the deadline of the question or of this solver."""
        # Subclasses define ``answer``, so that all seconds are counted in one way.
        start = time.perf_counter()
        deadline = min(question.deadline, deadline_after(self.time_limit))
        result = self.answer(dataclasses.replace(question, deadline=deadline))
        return dataclasses.replace(result, seconds=time.perf_counter() - start)

    @abc.abstractmethod
    def answer(self, question: Question) -> SearchResult:
        """The result of ``solve`` without its seconds; a solver of your own defines this method."""
