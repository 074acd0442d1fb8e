"""The default solver: the plan without a memory limit if it fits, else the best plan that fits.

1. The step is searched without the limit: exactly on up to two mesh axes, and by coordinate descent
   on more, or if the exact search finds nothing in time. If time ends it with a plan that is not
   within the gap, the named strategies and the descent are tried, too. If the plan fits, it is the
   answer, and its bound is the bound: no plan under a limit is faster than the best without one.
2. Otherwise the plan is repaired (``repair``), unless that leads no further and the exact search
   proves within seconds that nothing fits; and the exact search runs under the limit if the
   result is not within the gap. A plan within the gap is the answer.
3. Otherwise the named strategies are solved under the limit, and coordinate descent starts from the
   best plan so far. The best plan that fits is the answer, with the highest bound. On more than two
   axes the named strategies come first, after a variant of plan 1 in which only saved copies and
   keepings change; the best of these plans is repaired.
4. If the best plan that fits is not within the gap and several keepings are allowed, 2 and 3 are
   repeated with fewer keepings: to allow another one makes no plan slower.
5. If no plan fits, plans of the least memory are searched, for an answer or for the refusal.

Without a time limit the stages from 2 on share a budget of seconds (``deadline.Budget``). At its
end the best plan so far is the answer, with its gap.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

from tensorstate.cost.cost import Infeasible, SearchOptions, SearchResult, result_order
from tensorstate.deadline import LEAST_SECONDS, Budget, OutOfTime, remaining_time
from tensorstate.errors import PlanError
from tensorstate.problem.baselines import Baselines
from tensorstate.solver.base import Question, Solver
from tensorstate.solver.coordinate_descent import MIN_VISIT_S, CoordinateDescent
from tensorstate.solver.exact import Milp, minimize_memory, refusal, solve_within_limit
from tensorstate.solver.named import best_among
from tensorstate.solver.repair import Repaired, repair

# Meshes with at most this many axes longer than 1 are searched exactly.
MAX_EXACT_AXES = 2

# Parts of the time limit after which a stage yields to the next: the search without a limit, the
# repair, the exact search under the limit, the named strategies, coordinate descent. The search for
# the least memory has the rest. In the search without a limit the exact search has most of the
# time: a descent that starts without its plan finds worse plans, and no bound.
FREE_UNTIL, REPAIR_UNTIL, EXACT_UNTIL, NAMED_UNTIL, DESCENT_UNTIL = 0.7, 0.88, 0.92, 0.95, 0.97
EXACT_SHARE = 0.85

# Gap of the search without a limit until its plan is known to fit: from a plan that does not fit
# only the bound remains, and programs that close the last percents took most of the time.
COARSE_GAP = 0.05

# Seconds of the exact search under a limit, of a proof that nothing fits while a plan is repaired,
# and of a named strategy, for any time limit.
EXACT_CAP_S, REFUTED_CAP_S, NAMED_CAP_S = 300.0, 12.0, 10.0

# Part of the repair's remaining time for such a proof, which is not tried in less than these
# seconds.
REFUTED_SHARE, REFUTED_LEAST_S = 0.6, 3.0

# The named strategies that take little memory, or whose plans differ from the others.
STARTS = ("fsdp", "fsdp + megatron-sp", "zero1", "ddp + megatron")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Auto(Solver):
    """``Milp`` on meshes of up to two axes, and ``CoordinateDescent`` on larger ones.

    The module's docstring has the order of its searches. The plan without a limit, the named
    strategies and the descent are compared: no plan among them that fits is faster than the result
    by more than the gap.
    """

    def answer(self, question: Question) -> SearchResult:
        """See ``Solver``."""
        now, budget = time.perf_counter(), question.budget or Budget()
        asked = dataclasses.replace(question, budget=budget)
        return _Search(asked, self, begun=now, start=now).result()


@dataclasses.dataclass(frozen=True, eq=False)
class _Within:
    """The plans within the limit that all stages found.

    Attributes:
        found: the plans.
        bound: a lower bound of all plans within the limit.
        least_memory: the plan with the least memory on the way.
        is_refused: whether it is proved that nothing fits.
    """

    found: list[SearchResult]
    bound: float
    least_memory: SearchResult
    is_refused: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class _Search:
    """One search; see the module.

    Attributes:
        begun: when it began, as ``time.perf_counter``.
        start: when its time limit began, of which every stage has a part.
    """

    question: Question
    solver: Solver
    begun: float
    start: float

    def result(self) -> SearchResult:
        limit = self.question.options.memory_limit
        free = self._without_limit()
        if limit is None or free.cost.memory.fits(limit):
            return free
        return self._in_budget(free.seconds)._under_limit(free)

    def _in_budget(self, free_seconds: float) -> _Search:
        """The same search; if it has no time limit, one whose stages under the limit have one.

        Args:
            free_seconds: those of the search without the memory limit.
        """
        budget = self.question.budget
        if math.isfinite(self.solver.time_limit) or budget is None:
            return self
        end = budget.until(free_seconds)
        # The first part of the time limit is that of the search without the limit, which is over.
        left = remaining_time(end)
        solver = dataclasses.replace(self.solver, time_limit=left / (1 - FREE_UNTIL))
        deadline = min(self.question.deadline, time.perf_counter() + left)
        question = dataclasses.replace(self.question, deadline=deadline)
        return _Search(question, solver, self.begun, start=end - solver.time_limit)

    def _under_limit(self, free: SearchResult) -> SearchResult:
        """The best plan of all stages under the limit.

        Args:
            free: the plan without the limit, which does not fit.
        """
        limit = self.question.options.memory_limit
        within = self._within_limit(free)
        found, bound = [*within.found], within.bound
        # A plan that keeps tensors in fewer ways is a plan of this question: to allow another way
        # never makes a plan slower by more than the gap.
        for fewer in self._of_fewer_keepings():
            has_time = self._seconds(DESCENT_UNTIL) >= MIN_VISIT_S
            if not found or not has_time or self._is_close(found, bound):
                break
            found += fewer._within_limit(free).found
        if not found and within.is_refused:
            raise self._refusal(Infeasible(True, within.least_memory), free)
        if not found:
            found = [self._least_memory(within.least_memory)]
        best = min(found, key=lambda result: result_order(result, limit))
        # Bounds are proved within the solver's tolerances, so one may exceed its plan by rounding.
        return dataclasses.replace(best, bound=min(bound, best.objective))

    def _within_limit(self, free: SearchResult) -> _Within:
        """The plans of all stages under the limit, until one is within the gap.

        Args:
            free: the plan without the limit.
        """
        asked = self.question
        # The bound without a limit also holds under a limit, which only removes plans.
        bound = free.bound
        found = list[SearchResult]()
        if not self._is_exact:
            # Programs of many axes take seconds, including those of named strategies, which are
            # better starts; a program in which only saved copies change takes a tenth.
            kept = self._repaired(free, bound, may_move=False).fitting
            found += [] if kept is None else [kept]
            found += [] if self._is_close(found, bound) else self._named(asked.options)
        start = min(found, key=lambda result: result.objective, default=free)
        repaired = self._repaired(start, bound)
        if repaired.is_refuted and not found:
            return _Within([], bound, repaired.least_memory, True)
        found += [] if repaired.fitting is None else [repaired.fitting]
        exact = None if self._is_close(found, bound) else self._exactly(free.seconds, found)
        if isinstance(exact, SearchResult):
            bound, found = max(bound, exact.bound), [*found, exact]
        elif exact is not None and exact.proven and not found:
            return _Within([], bound, exact.least_memory or repaired.least_memory, True)
        if self._is_exact and not self._is_close(found, bound):
            found += self._named(asked.options)
        # If a plan is known, a descent without time for its first visit is not begun.
        has_time = not found or self._seconds(DESCENT_UNTIL) >= MIN_VISIT_S
        if has_time and not self._is_close(found, bound):
            descended = self._descent([free, *found], asked.options, DESCENT_UNTIL)
            if descended is not None:
                bound, found = max(bound, descended.bound), [*found, descended]
        for each in found:
            asked.tell(each, bound)
        return _Within(found, bound, repaired.least_memory)

    def _of_fewer_keepings(self) -> Iterator[_Search]:
        """The search without some of the optional keepings, without the fewest first."""
        options = self.question.options
        default, *optional = options.keepings
        for count in reversed(range(len(optional))):
            for chosen in itertools.combinations(optional, count):
                fewer = dataclasses.replace(options, keepings=(default, *chosen))
                yield dataclasses.replace(self, question=self.question.under(fewer))

    def _repaired(self, start: SearchResult, bound: float, may_move: bool = True) -> Repaired:
        until = time.perf_counter() + self._seconds(REPAIR_UNTIL)
        limits: dict[str, Any] = {"bound": bound, "gap": self.solver.gap, "until": until}
        return repair(self.question, start, may_move=may_move, refute=self._is_refuted, **limits)

    def _is_refuted(self) -> bool:
        """Whether it is proved in seconds that nothing fits.

        A repair that nothing can end well tries ever larger neighbourhoods: of a network's second
        derivatives with 1.1 MB for 65 s, before the exact search refused the limit in 4 s. A short
        time is left to the repair.
        """
        seconds = min(REFUTED_SHARE * self._seconds(REPAIR_UNTIL), REFUTED_CAP_S)
        if not self._is_exact or seconds < REFUTED_LEAST_S:
            return False
        milp = Milp(gap=self.solver.gap, time_limit=seconds)
        try:
            found = solve_within_limit(self.question, milp, fall_back=False)
        except OutOfTime:
            return False
        return isinstance(found, Infeasible) and found.proven

    def _is_close(self, found: list[SearchResult], bound: float) -> bool:
        return any(bound >= result.objective * (1 - self.solver.gap) for result in found)

    @property
    def _is_exact(self) -> bool:
        return len(self.question.problem.mesh.long_axes) <= MAX_EXACT_AXES

    def _seconds(self, share: float, cap: float = math.inf) -> float:
        """Seconds from now to a part of the time limit, at most ``cap``."""
        left = self.start + share * self.solver.time_limit - time.perf_counter()
        return max(LEAST_SECONDS, min(left, cap))

    def _without_limit(self) -> SearchResult:
        """The best plan without a limit.

        If there is a limit, everything is kept by default: until a plan has to fit, copies cost
        nothing.
        """
        limited = self.question.options.memory_limit is not None
        options = self.question.options.free if limited else self.question.options
        asked = self.question.under(options)
        share = FREE_UNTIL if limited else 1.0
        if self._is_exact:
            result = self._exactly_without_limit(asked, share * EXACT_SHARE)
            if isinstance(result, SearchResult):
                return self._improved(result, options, share)
            if result.proven:
                raise refusal(asked, result)
        descent = CoordinateDescent(gap=self.solver.gap, time_limit=self._seconds(share))
        try:
            return descent.answer_in_time(asked)
        except PlanError:  # nothing was found in time
            named = [*self._named(options)]
            if not named:
                raise
            return min(named, key=lambda result: result.objective)

    def _improved(self, exact: SearchResult, options: SearchOptions, share: float) -> SearchResult:
        """The plan of the exact search, or a better one if time ended that search early.

        Its relaxation may take all of the time, and the first plan that is found then may be that
        of replicated tensors: for a ViT on 2x4 devices it took 7.5 times as long as FSDP.
        """
        fits = exact.cost.memory.fits(self.question.options.memory_limit)
        enough = self.solver.gap if fits else max(self.solver.gap, COARSE_GAP)
        if exact.gap <= enough:
            return exact
        found = [exact, *self._named(options)]
        best = min(found, key=lambda result: result.objective)
        if exact.bound < best.objective * (1 - enough):
            descended = self._descent(found, options, share)
            if descended is not None and descended.objective < best.objective:
                best = descended
        return dataclasses.replace(best, bound=min(exact.bound, best.objective))

    def _exactly_without_limit(self, asked: Question, share: float) -> SearchResult | Infeasible:
        """The exact search for a part of the time; coarse if its plan may exceed the limit."""
        limit, gap = self.question.options.memory_limit, self.solver.gap
        found: SearchResult | Infeasible = Infeasible(proven=False)
        # Branch and bound takes equally long for each gap; if any plan fits, it runs only once.
        for coarse in (gap,) if self.question.fits_anyway else (max(gap, COARSE_GAP), gap):
            try:
                found = solve_within_limit(asked, Milp(gap=coarse, time_limit=self._seconds(share)))
            except PlanError:  # nothing was found in time
                return found
            if isinstance(found, Infeasible) or found.gap <= gap:
                return found
            if not found.cost.memory.fits(limit):
                return found
        return found

    def _exactly(
        self, free_seconds: float, found: list[SearchResult]
    ) -> SearchResult | Infeasible | None:
        """The exact search within the limit; ``None`` on meshes of more axes, or out of time.

        It is also ``None`` if a plan is known and there is less time than the search without a
        limit took, whose program was smaller.
        """
        seconds = self._seconds(EXACT_UNTIL, EXACT_CAP_S)
        if not self._is_exact or (found and seconds < free_seconds):
            return None
        milp = Milp(gap=self.solver.gap, time_limit=seconds)
        try:
            return solve_within_limit(self.question, milp, fall_back=False)
        except OutOfTime:  # the program was not built in time; the repaired plan may be the answer
            return None

    def _named(self, options: SearchOptions) -> Iterator[SearchResult]:
        """The named strategies that fit, among those that the candidates allow."""
        problem = self.question.problem
        baselines = Baselines(problem)
        for name in STARTS:
            if self.start + NAMED_UNTIL * self.solver.time_limit < time.perf_counter():
                return
            both = baselines.among(name, self.question.candidates)
            if both is None:
                continue
            seconds = self._seconds(NAMED_UNTIL, NAMED_CAP_S)
            asked = self.question.among(both).under(options)
            found = best_among(asked, Milp(gap=self.solver.gap, time_limit=seconds))
            if found is not None:
                # Its bound holds only for the strategy's own plans.
                yield dataclasses.replace(found, bound=-math.inf)

    def _descent(
        self, starts: list[SearchResult], options: SearchOptions, share: float
    ) -> SearchResult | None:
        """Coordinate descent from the best plan so far, until a part of the time limit.

        ``None`` if nothing fits in time.
        """
        solver = CoordinateDescent(gap=self.solver.gap, time_limit=self._seconds(share))
        try:
            # With two axes the relaxation is that of the exact search, which was already tried.
            asked = self.question.under(options)
            return solver.descend(asked, starts, bounded=not self._is_exact)
        except PlanError:
            return None

    def _least_memory(self, known: SearchResult) -> SearchResult:
        """A plan of the least memory, if it fits.

        Args:
            known: the plan with the least memory so far.
        """
        asked = self.question
        least, nbytes = minimize_memory(
            asked,
            prune_placements=not self._is_exact,
            until=self.start + self.solver.time_limit,
        )
        limit = asked.options.memory_limit or math.inf
        if least is None or least.cost.memory.peak > known.cost.memory.peak:
            least = known
        if not least.cost.memory.fits(limit):
            # With pruned placements the bound does not hold for all plans, and proves nothing.
            bound = nbytes if self._is_exact else -math.inf
            raise self._refusal(Infeasible(limit < bound < math.inf, least, bound))
        return least

    def _refusal(self, infeasible: Infeasible, free: SearchResult | None = None) -> PlanError:
        until = self.start + self.solver.time_limit
        late = dataclasses.replace(infeasible, seconds=time.perf_counter() - self.begun)
        return refusal(self.question, late, until, free)
