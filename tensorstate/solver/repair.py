"""Repair: from a plan that exceeds the memory limit to plans that fit, a neighbourhood at a time.

This is a large neighbourhood search (Shaw, 1998). First all strategies stay the same, and only
keepings are decided again. Then the classes around the tensors that are live at the peak, the
largest first, may also change their strategy along one mesh axis, in sweeps over the axes. A
neighbourhood is a program with a tenth of the variables of the whole one, solved in seconds where
the whole has no solution in minutes.

The limit is elastic: bytes above it have a price that is higher than anything they may save, so
every neighbourhood has a solution and leads towards the limit. Once a plan fits, further
neighbourhoods make it faster, until none in a sweep does.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tensorstate.cost.cost import SearchResult
from tensorstate.cost.memory import bytes_by_group
from tensorstate.deadline import OutOfTime, remaining_time
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Question
from tensorstate.solver.formulation import Formulation

# Additional strategies in a neighbourhood: 80 classes of a model with mixture-of-experts layers,
# whose program takes 4 to 5 CPU s. If no neighbourhood of a sweep helps, their number is doubled.
MOST_STRATEGIES, LARGEST_NEIGHBOURHOOD = 300, 1200

# Relative gaps of a neighbourhood, until a plan fits and afterwards; its least and most seconds,
# and its part of the remaining time. Several short programs lead further than one that closes its
# gap.
FIRST_GAP, GAP = 0.06, 0.03
LEAST_TIME_S, MOST_TIME_S, TIME_SHARE = 3.0, 15.0, 0.25

# The price of a thousandth of the limit, in units of the first plan's step.
PRICE = 0.1

# The program may use slower steps with less memory to reshard a tensor, or several ways at once,
# while a plan uses the fastest. So if the program fits and its plan does not, the difference at
# every program point is reserved in the next programs, and a little everywhere, because the next
# plan will differ, too. These are the most and the least that is then reserved, as parts of the
# limit.
MOST_RESERVED, LEAST_RESERVED = 0.2, 0.003

# Attempts to fit with more reserved before strategies change.
MAX_AGAIN = 6

# A plan counts as better from this relative difference on.
MIN_IMPROVEMENT = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Repaired:
    """The plans of a repair.

    Attributes:
        fitting: the fastest plan within the limit; ``None`` if none was found.
        least_memory: the plan with the least memory among those on the way.
        is_refuted: whether it was proved that nothing fits.
    """

    fitting: SearchResult | None
    least_memory: SearchResult
    is_refuted: bool = False


def repair(
    question: Question,
    start: SearchResult,
    *,
    bound: float = -np.inf,
    gap: float = 0.0,
    until: float = np.inf,
    may_move: bool = True,
    refute: Callable[[], bool] = lambda: False,
) -> Repaired:
    """Plans within the memory limit near a plan that exceeds it.

    Args:
        question: a question with a memory limit.
        start: the plan.
        bound: lower bound of the objective. The search ends at a plan within ``gap`` of it.
        until: time of ``time.perf_counter`` at which to stop.
        may_move: whether strategies may change, and not only keepings.
        refute: proves that nothing fits, if it can; called once, where changes lead no further.
    """
    problem, until = question.problem, min(until, question.deadline)
    limit, axes = question.options.memory_limit or np.inf, problem.mesh.long_axes or (0,)
    now, most, largest = start, MOST_STRATEGIES, LARGEST_NEIGHBOURHOOD
    reserved: np.ndarray | None = None
    found = Repaired(None, start)
    visit = again = unimproved = 0
    is_whole, refute = False, functools.cache(refute)
    while 0 < most <= largest and (may_move or not visit) and time.perf_counter() < until:
        choices: Sequence[Sequence[Strategy]] = [[w] for w in now.decisions.strategies]
        if visit:
            axis = axes[visit % len(axes)]
            choices, is_whole = _neighbourhood(problem, question.candidates, now, axis, most)
        near = FIRST_GAP if found.fitting is None else GAP
        solved = _solve(question.among(choices), reserved, PRICE * start.objective, near, until)
        is_better = is_missed = False
        if solved is None:  # too large for its time: none of this size is tried again
            most, largest = most // 2, most - 1
        else:
            result, excess, beyond = solved
            is_better = _is_better(result, found, limit)
            if is_better:
                now, found = result, _with(result, found, limit)
            if beyond is not None and excess < MIN_IMPROVEMENT * limit:
                is_missed = True
                reserved = _more_reserved(reserved, beyond / limit)
        if found.fitting is not None and bound >= found.fitting.objective * (1 - gap):
            break
        if visit == 0 and is_missed and again < MAX_AGAIN:
            again += 1
            continue
        visit += 1
        unimproved = 0 if is_better else unimproved + 1
        if unimproved and visit > 1 and found.fitting is None and refute():
            return dataclasses.replace(found, is_refuted=True)
        if unimproved > len(axes):
            if found.fitting is not None or is_whole:
                break
            most, unimproved = 2 * most, 0
    return found


def _with(result: SearchResult, found: Repaired, limit: float) -> Repaired:
    """The plans found so far, with a better one."""
    fitting = result if result.cost.memory.fits(limit) else found.fitting
    least = min(found.least_memory, result, key=lambda plan: plan.cost.memory.peak)
    return Repaired(fitting, least)


def _more_reserved(reserved: np.ndarray | None, beyond: np.ndarray) -> np.ndarray:
    """The bytes reserved at every program point, as parts of the limit."""
    beyond = np.clip(beyond + LEAST_RESERVED, LEAST_RESERVED, MOST_RESERVED)
    return beyond if reserved is None else np.maximum(reserved, beyond)


def _is_better(result: SearchResult, found: Repaired, limit: float) -> bool:
    if result.cost.memory.fits(limit):
        best = found.fitting
        return best is None or result.objective < best.objective * (1 - MIN_IMPROVEMENT)
    least = found.least_memory.cost.memory.peak
    return found.fitting is None and result.cost.memory.peak < least * (1 - MIN_IMPROVEMENT)


def _neighbourhood(
    problem: Problem, candidates: CandidateStrategies, now: SearchResult, axis: int, most: int
) -> tuple[list[list[Strategy]], bool]:
    """The present strategies and, along an axis, others of the classes around the live tensors.

    Args:
        most: the number of other strategies.

    Returns:
        The choices of every class, and whether all of these classes have other strategies.
    """
    parts = _parts(problem, now)
    by_group = {number: inputs + others.sum(0) for number, inputs, others in parts}
    peak = int(sum(by_group.values(), start=np.zeros(())).argmax())
    choices = [[strategy] for strategy in now.decisions.strategies]
    left, is_whole = most, True
    for number in sorted(by_group, key=lambda n: (-by_group[n][peak], n)):
        if by_group[number][peak] <= 0:
            break
        group = problem.tensor_groups[number]
        readers = (consumer.class_id for consumer in group.consumer_classes)
        around = {group.class_id, *(c for c in readers if c is not None)}
        # Each class once: another group near the peak may already have added its other strategies.
        along = {
            c: [
                w
                for w in candidates[c]
                if [a for a, now in enumerate(choices[c][0]) if w[a] != now] == [axis]
            ]
            for c in around
            if len(choices[c]) == 1
        }
        more = sum(map(len, along.values()))
        if more > left:
            is_whole = False
            continue
        left -= more
        for class_id, others in along.items():
            choices[class_id] += others
    return choices, is_whole


def _solve(
    question: Question,
    reserved: np.ndarray | None,
    price: float,
    gap: float,
    until: float,
) -> tuple[SearchResult, float, np.ndarray | None] | None:
    """The best plan of a neighbourhood, and the bytes by which its program exceeds the limit.

    For a plan that does not fit, also the bytes at every program point beyond its program.
    """
    problem, options = question.problem, question.options
    try:
        formulation = Formulation(
            problem,
            question.candidates,
            options,
            prune_placements=True,
            reserved=reserved,
            deadline=question.deadline,
        )
    except OutOfTime:
        return None
    excess = formulation.make_limit_elastic(price)
    left = remaining_time(until)
    seconds = min(left, max(LEAST_TIME_S, min(MOST_TIME_S, TIME_SHARE * left)))
    solution = formulation.program.solve(gap=gap, time_limit=seconds)
    if not len(solution.values) or formulation.memory_constraints is None:
        return None
    found, over = formulation.result(solution, options), formulation.nbytes(solution.values[excess])
    if found.cost.memory.fits(options.memory_limit):
        return found, over, None
    planned = sum(
        (inputs + others.sum(0) for _, inputs, others in _parts(problem, found)),
        start=np.zeros(()),
    )
    return found, over, planned - formulation.memory_constraints.bytes_at_points(solution.values)


def _parts(problem: Problem, plan: SearchResult) -> Iterator[tuple[int, float, np.ndarray]]:
    """The bytes of a plan, by tensor group; see ``bytes_by_group``."""
    cost = plan.cost
    return bytes_by_group(problem, plan.decisions, cost.reshards, cost.kept)
