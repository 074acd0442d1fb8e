"""Named strategies, such as FSDP: the best plan that a name allows.

Two rules are conventions, which no program minimizes: copies that a strategy gathers again in the
backward pass are not saved between the passes; and among equally good plans the plain one is taken.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from tensorstate.cost.cost import SearchOptions, SearchResult, estimate_cost
from tensorstate.cost.reshard_plan import has_no_partial
from tensorstate.errors import PlanError
from tensorstate.ir.placements import Placements
from tensorstate.problem.baselines import Baselines, baseline_by_axis, is_parameter
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Question
from tensorstate.solver.exact import Milp, solve_within_limit
from tensorstate.solver.plain import plainer, simplify
from tensorstate.solver.repair import repair

Solve = Callable[[CandidateStrategies, SearchOptions], SearchResult]
"""Solves the linear program of some strategies."""


def best_among(question: Question, milp: Milp, at_once: bool = False) -> SearchResult | None:
    """The best plan among a strategy's candidates that fits; ``None`` if none is found in time.

    The plan without the limit comes first: its program has a fraction of the size, and if it fits
    it is the answer. Otherwise keepings are changed so that it fits. A better plan may then be
    found by the program under the limit, which takes seconds on three axes.

    Args:
        question: the problem, with the candidates of the strategy.
        milp: solves each program within its time.
        at_once: whether the last program is omitted.
    """
    limit = question.options.memory_limit
    asked = question.under(question.options.free)
    free = _solved(asked, milp)
    if free is None or free.cost.memory.fits(limit):
        return free
    until = time.perf_counter() + milp.time_limit
    kept = repair(question, free, until=until, may_move=False).fitting
    best = None if at_once else _solved(question, milp)
    found = [each for each in (kept, best) if each is not None]
    return min(found, key=lambda result: result.objective, default=None)


def _solved(question: Question, milp: Milp) -> SearchResult | None:
    try:
        found = solve_within_limit(question, milp, prune_placements=True, fall_back=False)
    except PlanError:
        return None
    return found if isinstance(found, SearchResult) else None


def best_baseline(
    problem: Problem,
    name: str,
    options: SearchOptions,
    solve: Solve,
    *,
    gap: float = 1e-3,
    or_free: bool = False,
) -> tuple[CandidateStrategies, SearchResult]:
    """A baseline's best plan: without the limit if that fits, and within it otherwise.

    Args:
        problem: a training step on a mesh.
        name: in the form of ``baseline_by_axis``.
        options: options of the search.
        solve: solves the linear program of the baseline's strategies with some options.
        gap: relative distance within which plans are equally good.
        or_free: whether the plan without the limit is the answer if no plan is found that fits.

    Returns:
        The strategies that the baseline allows, and the plan.
    """
    by_axis = baseline_by_axis(problem, name)
    strategies, baselines = Baselines(problem).strategies(by_axis), frozenset(by_axis.values())

    def best(options: SearchOptions) -> SearchResult:
        linear = options.linear
        found = solve(strategies, linear)
        plain = simplify(problem, strategies, linear, found, gap)
        # Both versions are tried, as found and made plain: no program knows which is faster when
        # its copies are gathered twice.
        first = _regather(problem, found, linear, baselines)
        second = first if plain is found else _regather(problem, plain, linear, baselines)
        return plainer(first, second, options, gap)

    # A name stands for the strategy without the limit; if that fits it is the answer.
    free = best(options.free)
    if free.cost.memory.fits(options.memory_limit):
        return strategies, free
    try:
        return strategies, best(options)
    except PlanError:
        if not or_free:
            raise
        return strategies, free


def _regather(
    problem: Problem, result: SearchResult, options: SearchOptions, baselines: frozenset[str]
) -> SearchResult:
    """The result without the copies that the baselines do not save between the passes."""
    saved: dict[int, Placements] = {}
    for reshard in result.cost.reshards:
        group, produced = problem.tensor_groups[reshard.group], reshard.produced_placements
        # ZeRO-3 gathers parameters, including cast ones, a second time in the backward pass.
        is_cast = reshard.saved is not None and is_parameter(problem.graph, reshard.tensors[0])
        if "fsdp" in baselines and (group.is_input or is_cast):
            saved |= dict.fromkeys(reshard.tensors, produced)
        # Megatron's sequence parallelism does the same with activations, of which every device
        # saves its part of the sequence (Korthikanti et al., 2022, section 4.2.2).
        if not group.is_input and "megatron-sp" in baselines and reshard.saved is not None:
            larger = problem.local_bytes(group, reshard.saved) > problem.local_bytes(
                group, produced
            )
            if has_no_partial(produced) and larger:
                saved |= dict.fromkeys(reshard.tensors, produced)
    if not saved:
        return result
    decisions = dataclasses.replace(result.decisions, saved={**result.decisions.saved, **saved})
    cost = estimate_cost(problem, decisions)
    return dataclasses.replace(
        result, decisions=decisions, cost=cost, objective=options.value(cost)
    )
