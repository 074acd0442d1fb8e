"""The cost of other strategies, which shows why a node class has the strategy that it has."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tensorstate.cost.cost import SearchResult
from tensorstate.cost.reshard_plan import reshard_plans
from tensorstate.errors import PlanError
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem

MOST_PRICED = 3000  # strategies of a plan; pricing them takes a second or two


class Alternative(NamedTuple):
    """Another strategy of a node class.

    Attributes:
        strategy: the strategy.
        seconds: the time of the step with it, minus that of the plan.
    """

    strategy: Strategy
    seconds: float


def alternatives(
    problem: Problem, result: SearchResult, classes: Sequence[int], most: int = MOST_PRICED
) -> Mapping[int, tuple[Alternative, ...]]:
    """The other strategies of node classes, by class, the fastest first.

    Only the class itself changes, together with the reshards of the tensors it reads and produces.
    Memory is not counted. Strategies that no reshard reaches are left out.

    Args:
        classes: numbers of node classes; the first are priced first.
        most: number of strategies to price; classes beyond it are left out.
    """
    # By class, the tensor groups at its ends: besides its own operators, another strategy changes
    # only their reshards.
    touching: dict[int, set[int]] = defaultdict(set)
    for number, group in enumerate(problem.tensor_groups):
        touching[group.class_id].add(number)
        for consumer in group.consumer_classes:
            if consumer.class_id is not None:
                touching[consumer.class_id].add(number)
    again = result.cost.kept.rerun
    reshard_seconds: dict[int, float] = defaultdict(float)
    for reshard in result.cost.reshards:
        reshard_seconds[reshard.group] += reshard.multiplicity * reshard.seconds
    found: dict[int, tuple[Alternative, ...]] = {}
    for class_id in classes:
        strategies = problem.strategies[class_id].all
        most -= len(strategies) - 1
        if most < 0:
            break
        own = result.decisions.strategies[class_id]
        runs = problem.multiplicity(class_id) + sum(
            node in again for node in problem.graph.node_classes[class_id]
        )
        before = runs * _own_seconds(problem, class_id, own) + math.fsum(
            reshard_seconds[number] for number in touching[class_id]
        )
        priced = [
            Alternative(strategy, after - before)
            for strategy in strategies
            if strategy != own
            and (after := _seconds(problem, result, class_id, strategy, touching[class_id])
                 + runs * _own_seconds(problem, class_id, strategy)) < math.inf
        ]  # fmt: skip
        found[class_id] = tuple(sorted(priced, key=lambda each: (each.seconds, each.strategy)))
    return found


def _own_seconds(problem: Problem, class_id: int, strategy: Strategy) -> float:
    """Seconds of a node of a class, with the sends within it."""
    return problem.seconds(class_id, strategy) + problem.inner_seconds(class_id, strategy)


def _seconds(
    problem: Problem, result: SearchResult, class_id: int, strategy: Strategy, groups: set[int]
) -> float:
    """Seconds of the reshards of some tensor groups if one class had another strategy."""
    strategies = list(result.decisions.strategies)
    strategies[class_id] = strategy
    decisions = dataclasses.replace(result.decisions, strategies=tuple(strategies))
    try:
        return math.fsum(
            reshard.multiplicity * reshard.seconds
            for number in sorted(groups)
            for reshard in reshard_plans(problem, decisions, result.cost.kept, number)
        )
    except PlanError:
        return math.inf
