"""Plans that can be described in a sentence: among nearly equal ones, one with few collectives.

A search takes the fastest plan, but a plan that is one per cent faster with a hundred kinds of
collectives is harder to read, to write down and to modify. So it is compared with the named
strategies (ZeRO, FSDP, Megatron) and with the plan after plain moves of inputs (``plain``). One of
these is the answer if it takes at most two gaps of the solver longer, which is 2 % by default, with
far fewer kinds of collectives and hardly more memory.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from tensorstate.cost.cost import Cost, SearchOptions, SearchResult, result_order
from tensorstate.errors import PlanError
from tensorstate.problem.baselines import Baselines
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Question, Solver
from tensorstate.solver.exact import Milp
from tensorstate.solver.named import best_among
from tensorstate.solver.overlap import NAMED, least_compute
from tensorstate.solver.plain import simplify, timed

# A plan with so few kinds is not replaced. Nor is a plan replaced by one that has more than this
# part of its kinds, or takes more than this part of its memory in addition.
FEW, PART_OF_KINDS, MORE_MEMORY = 4, 0.6, 0.1
# The number of solver gaps by which a plain plan may take longer.
GAPS = 2
# The part of the search's own seconds, and the least and most seconds, for named strategies.
PART_OF_TIME, LEAST_S, MOST_S = 0.5, 0.5, 5.0


def kinds_of_collectives(problem: Problem, cost: Cost) -> int:
    """The number of collectives that differ in kind, mesh axis, or factors before and after."""
    kinds: set[object] = {(send.kind, send.axis) for send in cost.inner_sends}
    for reshard in cost.reshards:
        group = problem.tensor_groups[reshard.group]
        dims = problem.graph.tensors[group.tensors[0]].dims
        for step in reshard.steps:
            if step.kind != "slice":  # a slice is local
                ends = (
                    tuple(dims[p] if p >= 0 else p - len(problem.graph.factors) for p in placements)
                    for placements in (step.source, step.target)
                )
                kinds.add((step.kind, step.axis, *ends))
    return len(kinds)


def sayable(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    solver: Solver,
    found: SearchResult,
) -> SearchResult:
    """The plan that was found, or a nearly as fast one with far fewer kinds of collectives.

    Args:
        problem, candidates, options, solver: those of the search.
        found: its plan; the bound stays that of all plans.
    """
    kinds = kinds_of_collectives(problem, found.cost)
    if kinds <= FEW or not solver.gap:
        return found
    most = found.objective * (1 + GAPS * solver.gap)
    most_bytes = found.cost.memory.peak * (1 + MORE_MEMORY)
    best = found
    for other in _others(problem, candidates, options, solver, found, most):
        own, memory = kinds_of_collectives(problem, other.cost), other.cost.memory
        is_near = other.objective <= most and memory.peak <= most_bytes
        # A plan that does not take longer is preferred for its name alone.
        is_no_slower = own <= kinds and other.objective <= found.objective
        is_simple = own <= PART_OF_KINDS * kinds or is_no_slower
        # Among several the fastest: ZeRO-2 is as easily described as DDP.
        is_first = best is found or other.objective < best.objective
        if is_near and is_simple and is_first and memory.fits(options.memory_limit):
            best = other
    if best is found:
        return found
    return dataclasses.replace(best, bound=min(found.bound, best.objective), seconds=found.seconds)


def fastest(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    solver: Solver,
    found: SearchResult,
) -> SearchResult:
    """The plan that was found, or a plain one that is faster: a search ends within its gap.

    Args:
        problem, candidates, options, solver, found: as of ``sayable``.
    """
    if not solver.gap:
        return found
    others = _others(problem, candidates, options, solver, found, found.objective)
    best = min([found, *others], key=lambda result: result_order(result, options.memory_limit))
    return dataclasses.replace(best, bound=min(found.bound, best.objective), seconds=found.seconds)


def _others(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    solver: Solver,
    found: SearchResult,
    most: float,
) -> Iterator[SearchResult]:
    """Plans that may be simpler and take at most some seconds."""
    linear = options.linear
    of_sum = dataclasses.replace(found, objective=linear.value(found.cost))
    gap = GAPS * solver.gap
    at_bound = dataclasses.replace(of_sum, bound=of_sum.objective)
    moved = simplify(problem, candidates, linear, at_bound, gap)
    if moved is not at_bound:
        yield timed(moved, options)
    left = solver.time_limit - found.seconds
    until = time.perf_counter() + min(max(PART_OF_TIME * found.seconds, LEAST_S), MOST_S, left)
    baselines = Baselines(problem)
    for name in NAMED:
        left = until - time.perf_counter()
        both = baselines.among(name, candidates) if left > 0 else None
        # No plan takes less than its compute, which is already too much for most strategies.
        if both is None or least_compute(problem, both) > most:
            continue
        try:
            named = best_among(
                Question(problem, both, linear), Milp(gap=solver.gap, time_limit=left)
            )
        except PlanError:
            continue
        if named is not None:
            yield timed(named, options)
