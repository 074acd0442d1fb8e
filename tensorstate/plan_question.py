"""The question of a search, once its arguments are checked; and its answer.

Several numbers of microbatches, and several axes for stages, are several problems. They share the
time of the solver, and the best of their plans is the answer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping

from jaxcoll.progress import Progress as Event
from tensorstate.collective_costs import CollectiveCostModel
from tensorstate.cost.cost import SearchOptions, SearchResult, result_order
from tensorstate.deadline import LEAST_LIMIT_S, LEAST_SECONDS
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware
from tensorstate.ir.graph import Graph
from tensorstate.plan import Plan
from tensorstate.problem.constraints import Spec, apply_constraints
from tensorstate.problem.pipeline import Schedule, find_num_stages, stream_counts, stream_factor
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Question, Solver, telling
from tensorstate.solver.growing_program import Progress
from tensorstate.solver.overlap import retimed, search_overlapped
from tensorstate.solver.plain import simplify
from tensorstate.solver.refusal import refuse_below_least
from tensorstate.solver.sayable import fastest, sayable

Narrow = Callable[[Problem, CandidateStrategies], CandidateStrategies]
"""A choice among the strategies of a problem's classes; at least one of each class stays."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PlanQuestion:
    """The arguments of a search. They were checked where they entered, and are not checked again.

    A plan is found in one order: problem, candidate strategies, solution, plan.

    Attributes:
        counts: numbers of microbatches; ``None`` for powers of 2 while they improve the plan.
        stages: a mesh axis, "auto", or ``None``.
        schedule: the schedule of the stages; ``None`` for the better one.
        solver: its time limit is for all numbers together.
        narrow: takes strategies away that pins leave, as those that a saved plan did not choose.
        plain: whether a plan with fewer kinds of collectives is taken if it is nearly as fast, or
            only if it is faster; ``None`` for the plan that the solver finds.
    """

    options: SearchOptions
    counts: int | tuple[int, ...] | None
    pin: Mapping[str, Spec]
    forbid: Mapping[str, tuple[str, ...]]
    network: CollectiveCostModel
    hardware: Hardware
    batch: str | None
    stages: str | None
    schedule: Schedule | None
    solver: Solver
    progress: Progress | None
    graph: Graph
    narrow: Narrow | None = None
    plain: bool | None = None

    def plan(self) -> Plan:
        """The best plan."""
        # Of several problems, the bound of one is none of the others.
        several = dataclasses.replace(self, progress=telling(self.progress, best=True))
        if self.stages is not None:
            return several._plan_in_stages()
        if not isinstance(self.counts, int):
            return several._best_of(self.counts)
        # One number and no stages, as mostly: one problem, one solution.
        problem, candidates = self.problem(self.counts)
        self._tell()
        return Plan(problem, self._solve(problem, candidates, self.solver), self.options)

    def _tell(self) -> None:
        """Report that the search goes on, where no program does."""
        if self.progress is not None:
            self.progress(Event(0, None, ""))

    def problem(
        self, count: int, schedule: Schedule | None = None
    ) -> tuple[Problem, CandidateStrategies]:
        """The step in a number of microbatches, and the strategies that pins leave."""
        parts = self.graph, self.network, self.hardware, count, self.batch, self.stages
        problem = Problem(*parts, schedule=schedule or self.schedule or "gpipe")
        every = [strategies.all for strategies in problem.strategies]
        candidates = apply_constraints(problem, every, self.pin, self.forbid)
        return problem, self.narrow(problem, candidates) if self.narrow else candidates

    def _plan_in_stages(self) -> Plan:
        """The best plan with stages along an axis; or along any axis, or without stages.

        Raises:
            PlanError: no plan fits, or the step has no stages along the axis that was named.
        """
        if self.stages != "auto":
            stages = find_num_stages(self.network.mesh, self.stages or "")
            if stages == 1:
                return self._best_of((1,))
            # One microbatch through several stages is all bubble: 1 is taken for "not given".
            if self.counts in (1, None):
                batch = self.graph.factors[stream_factor(self.graph, self.batch)]
                return self._best_of(stream_counts(batch, stages), while_better=True)
            return self._best_of((self.counts,) if isinstance(self.counts, int) else self.counts)
        # Without stages first. Every axis has its share of the time that the ones before it leave.
        mesh, start = self.network.mesh, time.perf_counter()
        axes = [mesh.names[axis] for axis in mesh.long_axes]
        plans, refused = list[Plan](), list[PlanError]()
        for tried, axis in enumerate((None, *axes)):
            left = self.solver.time_limit - (time.perf_counter() - start)
            solver = self.within(left / (1 + len(axes) - tried))
            counts = 1 if axis is None else self.counts
            question = dataclasses.replace(self, stages=axis, counts=counts, solver=solver)
            try:
                plans.append(question.plan())
            except PlanError as error:
                refused.append(error)
        if not plans:
            raise refused[0]
        best = min(plans, key=lambda plan: result_order(plan.result, self.options.memory_limit))
        bound, seconds = min(p.result.bound for p in plans), time.perf_counter() - start
        result = dataclasses.replace(best.result, bound=bound, seconds=seconds)
        return Plan(best.problem, result, self.options)

    def within(self, seconds: float) -> Solver:
        """The solver with a part of its time."""
        return dataclasses.replace(self.solver, time_limit=max(LEAST_SECONDS, seconds))

    def _solve(
        self, problem: Problem, candidates: CandidateStrategies, solver: Solver
    ) -> SearchResult:
        # In milliseconds, where a solver may look for a plan until its time is over.
        refuse_below_least(problem, candidates, self.options)
        found = self._found(problem, candidates, solver)
        if self.plain is not None:
            choose = sayable if self.plain else fastest
            found = choose(problem, candidates, self.options, solver, found)
        Question(problem, candidates, self.options, self.progress).tell(found)
        return found

    def _found(
        self, problem: Problem, candidates: CandidateStrategies, solver: Solver
    ) -> SearchResult:
        if self.options.objective == "overlap":
            return search_overlapped(problem, candidates, self.options, solver, self.progress)
        found = solver.solve(problem, candidates, self.options, self.progress)
        return simplify(problem, candidates, self.options, found, solver.gap)

    def _solve_in_order(
        self, count: int, problem: Problem, candidates: CandidateStrategies, until: float
    ) -> tuple[Problem, SearchResult]:
        """The best plan of a problem; of stages that of GPipe or of 1F1B.

        1F1B is never faster without a limit: it runs head and loss one microbatch after another.
        So it is searched only where the limit may have slowed GPipe. A plan that leaves half of
        the memory free was not slowed by it.
        """
        limit, seconds = self.options.memory_limit, until - time.perf_counter()
        if problem.pipeline is None or self.schedule is not None or limit is None:
            return problem, self._solve(problem, candidates, self.within(seconds))
        found, refused = list[tuple[Problem, SearchResult]](), PlanError()
        try:
            first = self._solve(problem, candidates, self.within(seconds / 2))
            least = first.objective * (1 - self.solver.gap)
            solver = self.within((until - time.perf_counter()) / 2)
            has_room = first.cost.memory.fits(limit / 2)
            if has_room or self._bound_without_limit(problem, candidates, solver) >= least:
                return problem, first
            found.append((problem, first))
        except PlanError as error:
            refused = error
        try:
            interleaved, candidates = self.problem(count, "1f1b")
            solver = self.within(until - time.perf_counter())
            found.append((interleaved, self._solve(interleaved, candidates, solver)))
        except PlanError:  # GPipe's reason says more
            if not found:
                raise refused from None
        # No plan of either order is faster than the lower of their bounds.
        bound = min(result.bound for _, result in found)
        problem, best = min(found, key=lambda pair: result_order(pair[1], limit))
        return problem, dataclasses.replace(best, bound=bound)

    def _bound_without_limit(
        self, problem: Problem, candidates: CandidateStrategies, solver: Solver
    ) -> float:
        """What no plan is faster than, with whatever memory; 0 where none was found in time."""
        options = self.options.free
        try:
            found = solver.solve(problem, candidates, options.linear)
        except PlanError:
            return 0.0
        is_linear = options == options.linear
        return (found if is_linear else retimed(problem, candidates, options, found)).bound

    def _best_of(self, counts: tuple[int, ...] | None, while_better: bool = False) -> Plan:
        """The best plan; its bound is for all numbers that were searched.

        Given numbers share the time equally; each power of 2 takes half of the remaining time.
        Under a limit the most microbatches, which take the least memory, come first: searches of
        plans that hardly fit take longest, and none is begun for a number whose plans are no
        faster than the best so far even without the limit.

        Args:
            counts: numbers of microbatches; ``None`` for the powers of 2.
            while_better: whether to end with the first that improves nothing, as powers of 2 do.

        Raises:
            PlanError: no plan fits, whatever the number; with the reason of the last.
        """
        start, limit = time.perf_counter(), self.options.memory_limit
        best: tuple[Problem, SearchResult] | None = None
        bound, refused = math.inf, None
        numbers: Iterable[int] = (2**i for i in itertools.count()) if counts is None else counts
        if counts is not None and limit is not None and not while_better:
            numbers = sorted(counts, reverse=True)
        for tried, count in enumerate(numbers):
            left = self.solver.time_limit - (time.perf_counter() - start)
            if (best or refused) and left < LEAST_LIMIT_S:
                break
            try:  # powers of 2 end where the batch does not divide; a given number is refused
                problem, candidates = self.problem(count)
            except PlanError:
                if counts is not None or count == 1:
                    raise
                break
            share = left / (2 if counts is None else len(counts) - tried)
            until = time.perf_counter() + share
            # The bound is of a program of its own, but one without memory, which is solved fast.
            has_bound = counts is not None and not while_better and share > 4 * LEAST_LIMIT_S
            if best is not None and limit is not None and has_bound:
                least = self._bound_without_limit(problem, candidates, self.within(share / 2))
                if least >= best[1].objective * (1 - self.solver.gap):
                    bound = min(bound, least)
                    continue
            try:
                problem, candidate = self._solve_in_order(count, problem, candidates, until)
            except PlanError as error:
                if limit is None:
                    raise
                refused = type(error)(f"in {count} microbatches {error}") if count > 1 else error
                continue
            # Of all numbers that were searched; of the others nothing is claimed.
            bound = min(bound, candidate.bound)
            if best is None or result_order(candidate, limit) < result_order(best[1], limit):
                best = problem, candidate
            elif while_better or counts is None:
                break
        if best is None:
            raise refused or PlanError("no number of microbatches was given")
        seconds = time.perf_counter() - start
        result = dataclasses.replace(best[1], bound=bound, seconds=seconds)
        return Plan(best[0], result, self.options)
