"""The exact search: the mixed-integer program of all mesh axes at once.

1. The program of all candidate strategies is built (``formulation``) and solved; a large one by way
   of its LP relaxation, which preselects strategies (``solve_by_size``).
2. Shares of saved tensors are rounded to whole tensors. If the result exceeds the memory limit, the
   decisions of the few tensor groups that cause it are excluded, and the program is solved again.
3. If nothing fits in time, the decisions with the least memory are searched. If even these exceed
   the limit, the error says by how much and which tensors take most.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from jaxcoll.numerics.program import INFEASIBLE, NOTHING_KNOWN, Solution, Status
from tensorstate.cost.cost import Infeasible, SearchOptions, SearchResult
from tensorstate.cost.memory import bytes_by_group
from tensorstate.cost.reshard_plan import find_kept
from tensorstate.deadline import LEAST_SECONDS, OutOfTime, is_over, remaining_time
from tensorstate.errors import PlanError
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Question, Solver
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.refusal import infeasible_message

# Above DIRECT_SOLVE_MAX_VARS variables, strategies are preselected with the LP relaxation. Above
# RELAX_ONLY_MIN_VARS, the relaxation is solved by the interior-point method and the preselection is
# final.
DIRECT_SOLVE_MAX_VARS, RELAX_ONLY_MIN_VARS = 20_000, 200_000

# Variables per second of branch and bound, which no option stops while it computes an analytic
# centre: with 97,000 variables it ended 2.1 s after a limit of 3.3 s, with 380,000 3.8 s after 2 s.
BRANCHED_PER_S = 15_000

# Above this, shared costs stay split if that changes little: the exact bound of a ViT on 2x4
# devices, with 85,000 variables, took 21 CPU s, and one within a twentieth of the gap took 7.
SPLIT_MIN_VARS = 80_000

# The relative distance from a bound within which a plan counts as optimal: that of rounding.
OPTIMAL = 1e-6

# Part of the gap that rounding a relaxed solution may not use, so that ``plain`` can: rounded
# within 1 %, the plan of a GPT kept 153 collectives, and the exact one 136.
NOT_ROUNDED = 0.05

# Seconds for a proof without costs that nothing fits; the relaxation with costs takes far longer.
FEASIBILITY_TIME_S = 3.0

# Part of the time that is reserved for plans among the strategies that the relaxation preselects.
LEFT_FOR_PLANS = 0.25


class Build(Protocol):
    """Makes the program of some candidate strategies."""

    def __call__(self, candidates: CandidateStrategies, prune_placements: bool) -> Formulation:
        """See ``Formulation``."""
        ...


def solve_by_size(
    build: Build,
    candidates: CandidateStrategies,
    gap: float,
    until: float,
    prune_placements: bool = False,
) -> tuple[Formulation, Solution]:
    """A program and its solution, whose bound is valid for all candidate strategies.

    A small program is solved as it is. Of a larger one, each step is taken only if the steps before
    it found no plan within ``gap`` of the bound:

    1. the relaxation of the program, which gives the bound, and often a plan;
    2. the program of the strategies that the relaxation preselects, whose reshards pass through few
       placements: a fiftieth of the size;
    3. the same strategies, whose reshards pass through all placements;
    4. the program of all strategies, unless it is very large and there is a plan already.
    """
    full = build(candidates, prune_placements)
    if full.program.num_variables <= DIRECT_SOLVE_MAX_VARS:
        return full, _solve_small(full, candidates, gap, until)
    seconds = remaining_time(until)
    if full.is_infeasible(min(FEASIBILITY_TIME_S, LEFT_FOR_PLANS * seconds)):
        return full, INFEASIBLE
    # The relaxation ends while there is time to find a plan, since a bound alone is not an answer.
    early = until - LEFT_FOR_PLANS * remaining_time(until) if np.isfinite(until) else until
    relaxed = solve_relaxation(full, gap, functools.partial(remaining_time, early))
    if relaxed.status == Status.INFEASIBLE:
        return full, relaxed
    is_close = relaxed.bound >= relaxed.objective * (1 - gap)
    if is_close and (full.is_decided(relaxed) or is_near(full, gap, relaxed)):
        return full, relaxed
    best, is_final = _solve_preselected(build, full, relaxed, gap, until, prune_placements)
    has_plan = len(best[1].values) > 0
    if is_final or (has_plan and full.program.num_variables > RELAX_ONLY_MIN_VARS):
        return best
    solution = _branched(full, gap, remaining_time(until))
    bound = max(relaxed.bound, solution.bound)
    chosen = (full, solution) if solution.objective < best[1].objective else best
    return chosen[0], dataclasses.replace(chosen[1], bound=bound)


def _solve_small(
    full: Formulation, candidates: CandidateStrategies, gap: float, until: float
) -> Solution:
    """The solution of a program that needs no preselection."""
    # A baseline leaves most classes one strategy. Then the likeliest strategies of the relaxation
    # are usually a plan within the gap, and branch and bound need not begin.
    is_baseline = 2 * sum(len(strategies) > 1 for strategies in candidates) < len(candidates)
    if is_baseline and full.memory_constraints is None:
        full.program.accepts = functools.partial(is_near, full, gap)
        seconds = remaining_time(until)
        relaxed = full.program.solve(relax=True, presolve=False, time_limit=seconds)
        if full.is_decided(relaxed) or is_near(full, gap, relaxed):
            return relaxed
    return full.program.solve(gap=gap, time_limit=remaining_time(until))


def _solve_preselected(
    build: Build,
    full: Formulation,
    relaxed: Solution,
    gap: float,
    until: float,
    prune_placements: bool,
) -> tuple[tuple[Formulation, Solution], bool]:
    """The best plan among the strategies that a relaxation uses, and whether to stop there.

    If none is found, the solution has no values.
    """
    best = full, Solution(Status.LIMIT, np.zeros(0), np.inf, relaxed.bound)
    # A negative bound tells nothing about a time, and its values select poorly.
    if len(relaxed.values) and relaxed.bound >= 0:
        likely = full.choices.fractional_support(relaxed)
        for prune in (True,) if prune_placements else (True, False):
            try:
                support = build(likely, prune)
            except OutOfTime:
                return best, True
            solution = _branched(support, gap / 2, remaining_time(until))
            if solution.objective < best[1].objective:
                best = support, dataclasses.replace(solution, bound=relaxed.bound)
            is_close = relaxed.bound >= best[1].objective * (1 - gap)
            # Where even the relaxation ran out of time, a program of more placements would too.
            is_last = relaxed.status == Status.LIMIT and len(best[1].values)
            if is_close or is_last:
                return best, True
            if is_over(until):
                break
    return best, is_over(until)


def _branched(formulation: Formulation, gap: float, seconds: float) -> Solution:
    """Branch and bound, where there is time for a program of this size."""
    size = formulation.program.num_variables
    if size > max(DIRECT_SOLVE_MAX_VARS, BRANCHED_PER_S * seconds):
        return NOTHING_KNOWN
    return formulation.program.solve(gap=gap, time_limit=seconds)


def is_near(full: Formulation, gap: float, relaxed: Solution) -> bool:
    """Whether the likeliest strategies of a relaxed solution cost its bound, or almost.

    Then they are a plan, for any flows, even if shared costs are split.
    """
    if relaxed.status != Status.OPTIMAL or full.memory_constraints is not None:
        return False
    try:
        found = full.result(relaxed, SearchOptions(objective=full.objective))
    except PlanError:  # no collectives lead between the individually likeliest strategies
        return False
    within = max(gap - NOT_ROUNDED, OPTIMAL)
    return found.objective * (1 - within) <= full.seconds(relaxed.bound)


def solve_relaxation(full: Formulation, gap: float, left: Callable[[], float]) -> Solution:
    """The LP relaxation: by the simplex method, unless that takes too many iterations.

    Simplex finds a vertex, where few strategies have positive shares, and is mostly faster than the
    interior-point method, but it may stall if many solutions are equally good. Presolve takes
    longer than it saves, and its program needs more iterations.
    """
    program = full.program
    if program.num_variables <= RELAX_ONLY_MIN_VARS:
        program.easier = full.easier_costs()
        program.accepts = functools.partial(is_near, full, gap)
        program.allowed = gap / 20 if program.num_variables > SPLIT_MIN_VARS else 0.0
        solution = program.solve(
            relax=True,
            presolve=False,
            iterations_per_row=1,
            time_limit=left(),
        )
        if solution.status != Status.LIMIT or len(solution.values) or left() <= LEAST_SECONDS:
            return solution
    return program.solve_ipm_relaxation(tolerance=gap / 100, time_limit=left())


# ---------------------------------------------------------------- groups that crowd a program point


def crowded_groups(problem: Problem, found: SearchResult, limit: float) -> list[int]:
    """Tensor groups that together exceed a limit at the program point with the most live bytes.

    For any decisions about all other groups, the memory exceeds the limit as long as these groups
    have the same strategies, saved and loop-resident copies.

    Args:
        found: decisions with a peak above the limit.
        limit: bytes per device.
    """
    decisions = found.decisions
    kept = find_kept(problem, decisions)
    by_group = {
        number: inputs + others.sum(0)
        for number, inputs, others in bytes_by_group(problem, decisions, found.cost.reshards, kept)
    }
    numbers = sorted(by_group)
    nbytes = np.array([by_group[number] for number in numbers])
    at_peak = nbytes[:, int(nbytes.sum(0).argmax())]
    largest = np.argsort(-at_peak, kind="stable")
    needed = int(np.searchsorted(np.cumsum(at_peak[largest]), limit, side="right")) + 1
    return [numbers[i] for i in largest[:needed]]


# ---------------------------------------------------------------------- the least memory


# Seconds and relative gap of the search for the least memory.
TIME_LIMIT_S = 60
GAP = 1e-2
# If nothing fits: seconds of the search for the least memory.
REFUSAL_TIME_S = 5.0
# The most decisions that take more memory than the program predicts, and are excluded in turn.
MAX_LEAST_EXCLUDED = 20


def minimize_memory(
    question: Question, prune_placements: bool = False, until: float = np.inf
) -> tuple[SearchResult | None, float]:
    """Decisions with approximately the least memory, if any are found in a minute.

    Args:
        question: its memory limit is ignored.
        until: time of ``time.perf_counter`` at which to stop, if that is earlier.

    Returns:
        The decisions, and a lower bound in bytes of the memory of all decisions.
    """
    start, problem, options = time.perf_counter(), question.problem, question.options
    all_tensors = float(sum(tensor.nbytes for tensor in problem.graph.tensors))
    # The program minimizes memory instead of its objective, so "sum" serves as well as "max". It
    # has rows of memory only under a limit, so it gets one that the least memory is certainly
    # below.
    loose = SearchOptions(options.keepings, memory_limit=2 * all_tensors)

    def build(candidates: CandidateStrategies, prune_placements: bool) -> Formulation:
        formulation = Formulation(
            problem,
            candidates,
            loose,
            prune_placements=prune_placements,
            deadline=question.deadline,
        )
        formulation.minimize_memory()
        return formulation

    until = min(start + TIME_LIMIT_S, until)
    try:
        asked = build, question.candidates, GAP, until, prune_placements
        formulation, solution = solve_by_size(*asked)
    except OutOfTime:
        return None, -np.inf
    bound, least = formulation.nbytes(solution.bound), None
    for _ in range(MAX_LEAST_EXCLUDED):
        if not len(solution.values):
            break
        found = formulation.result(solution, options)
        if least is None or found.cost.memory.peak < least.cost.memory.peak:
            least = found
        # Decisions may take more memory than the program predicts: see ``_find_fitting``.
        if bound >= (1 - GAP) * least.cost.memory.peak or is_over(until):
            break
        crowded = crowded_groups(problem, found, least.cost.memory.peak - 1)
        if not formulation.exclude(solution, crowded):
            break
        solution = formulation.program.solve(gap=GAP, time_limit=remaining_time(until))
        if formulation.covers(question.candidates):
            bound = min(formulation.nbytes(solution.bound), least.cost.memory.peak)
    if least is None:
        return None, bound
    return dataclasses.replace(least, seconds=time.perf_counter() - start), bound


def refusal(
    question: Question,
    infeasible: Infeasible,
    until: float = np.inf,
    free: SearchResult | None = None,
) -> PlanError:
    """The error that explains why no plan fits; ``OutOfTime`` unless that is proved.

    Args:
        infeasible: the result of a search. If it searched the least memory, that is not repeated.
        until: time of ``time.perf_counter`` at which to stop searching the least memory.
        free: the best plan without a limit, mentioned if the least memory is not found in time.
    """
    is_unknown = infeasible.least_memory is None and infeasible.least_bytes is None
    now, until = time.perf_counter(), min(until, question.deadline)
    if question.options.memory_limit is not None and is_unknown and now < until:
        least = minimize_memory(question, until=min(until, now + REFUSAL_TIME_S))
        infeasible = Infeasible(infeasible.proven, *least, infeasible.seconds)
    error = PlanError if infeasible.proven else OutOfTime
    asked = question.problem, question.candidates, question.options
    return error(infeasible_message(*asked, infeasible, free))


# ---------------------------------------------------------------------- the search


# Attempts to find decisions that still fit after shares are rounded up, and seconds per attempt.
MAX_REPAIRS = 6
REPAIR_TIME_S = 30.0

# The most decisions that turn out not to fit, and are excluded in turn.
MAX_EXCLUDED = 100

# Seconds to confirm that no decisions fit.
RECHECK_TIME_S = 5.0

# Part of the time after which decisions of the least memory are searched, if none fitted so far.
SHARE_BEFORE_LEAST = 0.8

# The least seconds of this search: a tiny program takes tenths, and more on a busy machine.
LEAST_MEMORY_TIME_S = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Milp(Solver):
    """Decides all mesh axes at once by a mixed-integer linear program, with a proved gap.

    If no decisions within the memory limit are found in four fifths of the time, those with
    approximately the least memory are searched, and returned if they fit.
    """

    def answer(self, question: Question) -> SearchResult:
        """See ``Solver``."""
        until = time.perf_counter() + self.time_limit
        result = solve_within_limit(question, self)
        if isinstance(result, Infeasible):
            raise refusal(question, result, until)
        return result


def solve_within_limit(
    question: Question,
    solver: Solver,
    *,
    prune_placements: bool = False,
    fall_back: bool = True,
) -> SearchResult | Infeasible:
    """As ``Milp.solve``, but returns ``Infeasible`` if the memory limit may be the reason.

    Args:
        solver: its gap and time limit.
        prune_placements: as for ``Formulation``.
        fall_back: whether to search the least memory if nothing was found in time.

    Raises:
        PlanError: nothing was found in time, without a memory limit.
    """
    candidates, limit = question.candidates, question.options.memory_limit
    start, build = time.perf_counter(), functools.partial(_built, question)
    end = start + solver.time_limit
    share = SHARE_BEFORE_LEAST if fall_back and limit is not None else 1.0
    until = start + share * solver.time_limit
    asked = build, candidates, solver.gap, until, prune_placements
    formulation, solution = solve_by_size(*asked)
    is_proof = refused = solution.status == Status.INFEASIBLE
    if refused and limit is not None:
        # If costs differ by many orders of magnitude, a program may be reported as infeasible
        # although it is only hard to solve. Without costs this does not happen.
        formulation.program.clear_objective()
        seconds = min(RECHECK_TIME_S, remaining_time(until))
        is_proof = formulation.program.solve(time_limit=seconds).status == Status.INFEASIBLE
    if is_proof:
        return Infeasible(proven=True)
    bound = -np.inf if refused else formulation.seconds(solution.bound)
    if len(solution.values):
        found = _find_fitting(question, formulation, solution, solver.gap, until)
        covers = formulation.covers(candidates)
        if not isinstance(found, Infeasible):
            bound = max(bound, found.bound) if covers else bound
            return dataclasses.replace(found, bound=bound, seconds=time.perf_counter() - start)
        if found.proven and covers:
            return found
    if limit is None:
        raise OutOfTime(f"no plan was found within {solver.time_limit:g} s; allow more time")
    if not fall_back:
        return Infeasible(proven=False)
    end = max(end, time.perf_counter() + LEAST_MEMORY_TIME_S)
    least, nbytes = minimize_memory(question, prune_placements, end)
    if least is None or not least.cost.memory.fits(limit):
        return Infeasible(least is not None and nbytes > limit, least, nbytes)
    return dataclasses.replace(least, bound=bound, seconds=time.perf_counter() - start)


def _built(
    question: Question, candidates: CandidateStrategies, prune_placements: bool
) -> Formulation:
    """The program of a question for some candidates, which reports its progress."""
    problem, options, deadline = question.problem, question.options, question.deadline
    # Programs are not shared under a limit, since its constraints refer to the first program.
    if question.programs is None or prune_placements or options.memory_limit is not None:
        asked = problem, candidates, options
        built = Formulation(*asked, prune_placements=prune_placements, deadline=deadline)
    else:
        built = question.programs.of(problem, candidates, options, deadline)
    built.program.progress = question.progress
    return built


def _find_fitting(
    question: Question, formulation: Formulation, solution: Solution, gap: float, until: float
) -> SearchResult | Infeasible:
    """The best decisions that fit, beginning with those of a solution.

    Reshards use the fastest steps, whereas the program may split a tensor among several ways, which
    takes less memory. So a solution of the program may exceed the limit; its decisions are then
    excluded, and the program is solved again.
    """
    best, bound, is_proof, options = None, -np.inf, True, question.options
    for _ in range(MAX_EXCLUDED):
        bound = formulation.seconds(solution.bound) if is_proof else bound
        found = exceeding = formulation.result(solution, options)
        # A solution that fits unchanged ends the search, since it is the optimum of the program. A
        # repaired one may be slower than the next best decisions.
        is_next_best = _fits(found, options)
        if not is_next_best:
            found = _repair_rounding(question, found, gap, until)
        if _fits(found, options) and (best is None or found.objective < best.objective):
            best = found
        is_close = best is not None and bound >= best.objective * (1 - gap)
        if is_next_best or is_close or is_over(until):
            break
        crowded = crowded_groups(formulation.problem, exceeding, options.memory_limit or 0.0)
        # After excluding decisions that might fit, bounds no longer hold for all decisions.
        is_proof &= formulation.exclude(solution, crowded)
        if best is not None and not is_proof:
            break
        solution = formulation.program.solve(gap=gap, time_limit=remaining_time(until))
        if solution.status == Status.INFEASIBLE:
            if best is None:
                return Infeasible(is_proof)
            bound = best.objective
        if not len(solution.values):
            break
    if best is None:
        return Infeasible(proven=False)
    return dataclasses.replace(best, bound=min(bound, best.objective))


def _fits(found: SearchResult, options: SearchOptions) -> bool:
    return found.cost.memory.fits(options.memory_limit)


def _repair_rounding(
    question: Question, found: SearchResult, gap: float, until: float
) -> SearchResult:
    """Decisions that fit when shares of layers are rounded up: the same strategies, a lower limit.

    If no lower limit helps, it returns the decisions themselves, which exceed the limit.
    """
    options, margin, attempt = question.options, 0.0, found
    limit = options.memory_limit or 0.0
    for _ in range(MAX_REPAIRS):
        # The limit is lowered by the bytes by which the last attempt exceeded the real one.
        margin += attempt.cost.memory.peak - limit
        if margin >= limit or is_over(until):
            break
        try:
            formulation = Formulation(
                question.problem,
                [[strategy] for strategy in found.decisions.strategies],
                dataclasses.replace(options, memory_limit=limit - margin),
                prune_placements=True,
                deadline=question.deadline,
            )
        except OutOfTime:
            break
        seconds = min(REPAIR_TIME_S, remaining_time(until))
        solution = formulation.program.solve(gap=gap, time_limit=seconds)
        if not len(solution.values):
            break
        attempt = formulation.result(solution, options)
        if _fits(attempt, options):
            return attempt
    return found
