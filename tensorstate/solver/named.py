"""Named strategies, such as FSDP: the best plan of those that one allows.

Two conventions are a person's, and no program minimizes them: copies that a strategy gathers again
in the backward pass are not saved between the passes; and of plans that are as good the plain one
is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tensorstate.cost.cost import SearchOptions, SearchResult, estimate_cost
from tensorstate.cost.reshard_plan import ReshardPlan, has_no_partial
from tensorstate.errors import PlanError
from tensorstate.ir.placements import Placements
from tensorstate.problem.baselines import Baselines, baseline_by_axis, is_parameter
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies
from tensorstate.solver.exact import Milp, solve_within_limit
from tensorstate.solver.plain import plainer, simplify

Solve = Callable[[CandidateStrategies, SearchOptions], SearchResult]
"""Solves the linear program of some strategies."""


def best_among(
    problem: Problem, candidates: CandidateStrategies, options: SearchOptions, milp: Milp
) -> SearchResult | None:
    """The best plan of a strategy's candidates that fits; ``None`` if none is found in time."""
    try:
        found = solve_within_limit(
            problem, candidates, options, milp, prune_placements=True, fall_back=False
        )
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
        name: as ``baseline_by_axis`` takes it.
        options: of the search.
        solve: solves the linear program of the baseline's strategies under some options.
        gap: relative distance within which plans are as good.
        or_free: whether the plan without the limit is the answer where none is found that fits.

    Returns:
        The strategies that the baseline allows, and the plan.
    """
    by_axis = baseline_by_axis(problem, name)
    strategies, baselines = Baselines(problem).strategies(by_axis), frozenset(by_axis.values())

    def best(options: SearchOptions) -> SearchResult:
        linear = options.linear
        found = solve(strategies, linear)
        plain = simplify(problem, strategies, linear, found, gap)
        first = _regather(problem, found, linear, baselines)
        second = first if plain is found else _regather(problem, plain, linear, baselines)
        return plainer(first, second, options, gap)

    free = best(dataclasses.replace(options, memory_limit=None, recompute=False))
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
    """The result with the copies that the baselines do not save between the passes."""
    saved = _regathered_in_backward(problem, result, baselines)
    if not saved:
        return result
    decisions = dataclasses.replace(result.decisions, saved={**result.decisions.saved, **saved})
    cost = estimate_cost(problem, decisions)
    return dataclasses.replace(
        result, decisions=decisions, cost=cost, objective=options.value(cost)
    )


def _regathered_in_backward(
    problem: Problem, result: SearchResult, baselines: frozenset[str]
) -> dict[int, Placements]:
    """The saved placements of tensors that a baseline gathers a second time in the backward pass.

    ZeRO-3 does so with parameters. Megatron's sequence parallelism does so with activations, of
    which every device saves its part of the sequence (Korthikanti et al., 2022, section 4.2.2).
    """
    saved: dict[int, Placements] = {}
    for reshard in result.cost.reshards:
        group, produced = problem.tensor_groups[reshard.group], reshard.produced_placements
        if "fsdp" in baselines and (group.is_input or _is_saved_cast(problem, reshard)):
            saved |= dict.fromkeys(reshard.tensors, produced)
        if not group.is_input and "megatron-sp" in baselines and reshard.saved is not None:
            larger = problem.local_bytes(group, reshard.saved) > problem.local_bytes(
                group, produced
            )
            if has_no_partial(produced) and larger:
                saved |= dict.fromkeys(reshard.tensors, produced)
    return saved


def _is_saved_cast(problem: Problem, reshard: ReshardPlan) -> bool:
    """Whether a copy is saved of a parameter that was cast to another dtype."""
    return reshard.saved is not None and is_parameter(problem.graph, reshard.tensors[0])
