"""Coordinate descent over mesh axes, and a lower bound from the two busiest axes.

A single axis is a program with few strategies per class, which the exact search solves; the other
axes keep their strategies. The bound and the starting points come from cost models of networks with
fewer mesh axes: some are omitted, or several are merged into one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxcoll.kinds import kind_of
from tensorstate.collective_costs import CollectiveCostModel
from tensorstate.cost.cost import (
    Infeasible,
    SearchOptions,
    SearchResult,
    estimate_cost,
    result_order,
    seconds_by_collective,
)
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.deadline import LEAST_SECONDS, OutOfTime, is_over, remaining_time
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware
from tensorstate.ir.placements import REPLICATED, MeshShape
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Question, Solver, telling
from tensorstate.solver.exact import (
    Milp,
    minimize_memory,
    refusal,
    solve_relaxation,
    solve_within_limit,
)
from tensorstate.solver.formulation import Formulation

# Bytes of the all-gather by which axes are compared.
PROBE_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True, eq=False)
class SubmeshCosts(CollectiveCostModel):
    """Some axes of a network, where the other axes already shard every tensor.

    Attributes:
        network: the full network.
        axes: the remaining axes.
    """

    network: CollectiveCostModel
    axes: tuple[int, ...]

    @property
    def mesh(self) -> MeshShape:  # type: ignore[override]
        """The remaining axes."""
        full_mesh = self.network.mesh
        return MeshShape(
            tuple(full_mesh.names[a] for a in self.axes),
            tuple(full_mesh.sizes[a] for a in self.axes),
        )

    @property
    def num_other_devices(self) -> int:
        """Devices along all other axes."""
        return self.network.mesh.num_devices // self.mesh.num_devices

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        return self.network.collective_seconds(
            kind, self.axes[axis], nbytes // self.num_other_devices
        )


@dataclasses.dataclass(frozen=True, eq=False)
class MergedAxesCosts(CollectiveCostModel):
    """A network whose merged axes run collectives along one of their axes after another.

    An all_reduce runs as reduce_scatters, an all_reduce along the last axis, and all_gathers.

    Attributes:
        network: the full network.
        parts: for each merged axis, the axes of the network, in order.
    """

    network: CollectiveCostModel
    parts: tuple[tuple[int, ...], ...]

    @property
    def mesh(self) -> MeshShape:  # type: ignore[override]
        """The merged axes."""
        full_mesh = self.network.mesh
        return MeshShape(
            tuple("+".join(full_mesh.names[a] for a in part) for part in self.parts),
            tuple(math.prod(full_mesh.sizes[a] for a in part) for part in self.parts),
        )

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        *first, last = self.parts[axis]
        sizes, collective_seconds = self.network.mesh.sizes, self.network.collective_seconds
        if kind_of(kind).is_pairwise:
            return math.fsum(collective_seconds(kind, a, nbytes) for a in (*first, last))
        spent = []
        for a in first:
            phases = kind_of(kind).phases
            spent += [collective_seconds(phase.name, a, nbytes) for phase in phases]
            nbytes //= sizes[a]
        return math.fsum([*spent, collective_seconds(kind, last, nbytes)])


def merge_similar_axes(network: CollectiveCostModel, apart: int | None = None) -> MergedAxesCosts:
    """At most two axes, and fewer than the network has: axes of similar bandwidth are merged.

    Args:
        apart: an axis that is not merged, such as that of pipeline stages.
    """
    sizes = network.mesh.sizes
    alone = () if apart is None else ((apart,),)
    speeds = {
        a: network.collective_seconds("all_gather", a, PROBE_BYTES)
        for a in range(len(sizes))
        if sizes[a] > 1 and a != apart
    }
    order = sorted(speeds, key=lambda a: (speeds[a], a))
    if len(order) < 3:
        rest = (tuple(sorted(order)),) if order else ()
        return MergedAxesCosts(network, tuple(sorted((*rest, *alone))) or ((0,),))
    # They are split where the ratio between neighbours is largest: hosts from the devices of a
    # host.
    cut = max(range(1, len(order)), key=lambda i: speeds[order[i]] / speeds[order[i - 1]])
    parts = sorted((*(tuple(sorted(part)) for part in (order[:cut], order[cut:])), *alone))
    return MergedAxesCosts(network, tuple(parts))


# ---------------------------------------------------------------------- one axis after another


# Relative gap to which a relaxation under a memory limit is solved.
BOUND_GAP = 1e-2

# Largest number of visits per axis, the relative improvement that justifies another visit, and the
# least seconds per visit.
MAX_SWEEPS = 4
MIN_IMPROVEMENT = 1e-3
MIN_VISIT_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinateDescent(Solver):
    """Decides one mesh axis at a time while the others keep their strategies.

    It starts from the best plan, without the memory limit, on a mesh in which axes of similar
    bandwidth are merged, and ends when no axis improves the plan by a thousandth. If the first plan
    exceeds the memory limit, a plan that fits is found first, again one axis at a time.

    The bound is the higher one of ``lower_bound_on_axes`` for the two busiest axes of the first
    plan, and of the last one. The former is computed in a thread beside the descent.
    """

    def answer(self, question: Question) -> SearchResult:
        """See ``Solver``."""
        until = time.perf_counter() + self.time_limit
        return self._descend(question, _merged_axes_start(question, self), until)

    def descend(
        self, question: Question, starts: Sequence[SearchResult], *, bounded: bool = True
    ) -> SearchResult:
        """The result of ``solve`` from the best of known plans; no bound if none is requested."""
        begun, limit = time.perf_counter(), question.options.memory_limit
        best = min(starts, key=lambda start: result_order(start, limit))
        found = self._descend(question, best, begun + self.time_limit, bounded)
        return dataclasses.replace(found, seconds=time.perf_counter() - begun)

    def _descend(
        self, question: Question, merged: SearchResult | None, until: float, bounded: bool = True
    ) -> SearchResult:
        """The descent, and the bounds beside it."""
        problem, limit, fitting = question.problem, question.options.memory_limit, None
        if limit is not None and (merged is None or not merged.cost.memory.fits(limit)):
            fitting = _least_memory(question, merged, until)
            if fitting is None or not fitting.cost.memory.fits(limit):
                raise refusal(question, Infeasible(proven=False, least_memory=fitting), until)
        bound = functools.partial(lower_bound_on_axes, question, until=until)
        with ThreadPoolExecutor(1) as beside:
            first = busiest_axes(problem, merged) if bounded and merged is not None else None
            bounds = [] if first is None else [beside.submit(bound, first)]
            best = _Descent(question, self.gap, until).run(merged, fitting)
            last = busiest_axes(problem, best)
            if bounded and last != first:
                bounds.append(beside.submit(bound, last))
            highest = max((future.result() for future in bounds), default=-math.inf)
        return dataclasses.replace(best, bound=highest, method="descent")


@dataclasses.dataclass(frozen=True, eq=False)
class _Descent:
    """The descent itself.

    Attributes:
        question: the problem, with its candidates and options.
        gap: relative gap of the search of one axis.
        until: time of ``time.perf_counter`` at which to stop.
    """

    question: Question
    gap: float
    until: float

    def run(self, start: SearchResult | None, fitting: SearchResult | None) -> SearchResult:
        """The best plan found.

        Args:
            start: a plan that may exceed the memory limit, or ``None``.
            fitting: given if the start exceeds the limit: a plan that fits, used if the search of
                an axis finds none in time.
        """
        asked = self.question
        axes, limit = asked.problem.mesh.long_axes or (0,), asked.options.memory_limit
        strategies = None if start is None else start.decisions.strategies
        best = start if fitting is None else None
        unimproved = 0  # axes visited in a row without improvement
        contradictory = limit is None  # every visit proved that its strategies contradict
        for visit in range(MAX_SWEEPS * len(axes)):
            left = self.until - time.perf_counter()
            if unimproved >= len(axes) or (left <= 0 and (visit or (best or fitting) is not None)):
                break
            # Half of the remaining time: the first visits improve most, and later ones start from
            # them.
            seconds = max(LEAST_SECONDS, min(left, max(MIN_VISIT_S, left / 2)))
            result = self._visit(axes[visit % len(axes)], strategies, seconds)
            unimproved += 1
            if not isinstance(result, Infeasible):
                if _is_better(result, best, limit):
                    best, strategies, unimproved = result, result.decisions.strategies, 1
                continue
            contradictory &= result.proven
            # Along this axis nothing fits; the descent continues from the plan that does.
            if best is None and fitting is not None:
                best, strategies, unimproved = fitting, fitting.decisions.strategies, 0
        result = best or fitting
        if result is None:
            raise refusal(asked, Infeasible(proven=contradictory))
        return result

    def _visit(
        self, axis: int, strategies: Sequence[Strategy] | None, time_limit: float
    ) -> SearchResult | Infeasible:
        """The best plan that differs along one axis only."""
        asked = self.question
        try:
            return solve_within_limit(
                asked.among(_vary_one_axis(asked.candidates, axis, strategies)),
                Milp(gap=self.gap, time_limit=time_limit),
                prune_placements=True,
                fall_back=False,
            )
        except PlanError:  # nothing was found in time; plans of other visits remain
            return Infeasible(proven=False)


def _least_memory(
    question: Question, start: SearchResult | None, until: float
) -> SearchResult | None:
    """A plan within the memory limit, or that with the least memory, one axis at a time."""
    axes, limit = question.problem.mesh.long_axes or (0,), question.options.memory_limit
    strategies = None if start is None else start.decisions.strategies
    least, unimproved = None, 0
    for visit in range(MAX_SWEEPS * len(axes)):
        if least is not None and least.cost.memory.fits(limit):
            break
        if unimproved >= len(axes) or (least is not None and is_over(until)):
            break
        free = _vary_one_axis(question.candidates, axes[visit % len(axes)], strategies)
        result, _ = minimize_memory(question.among(free), prune_placements=True, until=until)
        unimproved += 1
        most = math.inf if least is None else least.cost.memory.peak * (1 - MIN_IMPROVEMENT)
        if result is not None and result.cost.memory.peak < most:
            least, strategies, unimproved = result, result.decisions.strategies, 1
    return least


def _is_better(result: SearchResult, best: SearchResult | None, memory_limit: float | None) -> bool:
    is_faster = best is None or result.objective < best.objective * (1 - MIN_IMPROVEMENT)
    return is_faster and result.cost.memory.fits(memory_limit)


def _vary_one_axis(
    candidates: CandidateStrategies, axis: int, strategies: Sequence[Strategy] | None
) -> list[list[Strategy]]:
    """For every class, the candidates that differ from its present strategy along one axis only.

    It is all candidates if there is none, as for a strategy that pins do not allow.
    """

    def along(choices: Sequence[Strategy], now: Strategy) -> list[Strategy]:
        others = now[:axis] + now[axis + 1 :]
        return [w for w in choices if w[:axis] + w[axis + 1 :] == others] or list(choices)

    if strategies is None:
        strategies = [(REPLICATED,) * len(choices[0]) for choices in candidates]
    return [along(choices, now) for choices, now in zip(candidates, strategies, strict=True)]


# ---------------------------------------------------------------------- start: merged axes


def _merged_axes_start(question: Question, solver: Solver) -> SearchResult | None:
    """The best plan without memory limit in which axes of similar bandwidth do the same.

    It is ``None`` if the candidates do not allow such a plan, or none is found in half of the time.
    """
    solver = dataclasses.replace(solver, time_limit=solver.time_limit / 2)
    problem, options = question.problem, question.options
    network = merge_similar_axes(problem.network, problem.stage_axis)
    merged = problem.on(network)
    expanded = [
        _expand_merged(choices, known.all, network.parts)
        for choices, known in zip(question.candidates, merged.strategies, strict=True)
    ]
    candidates = [list(strategies) for strategies in expanded]
    # Everything is kept by default and no limit holds: these are only initial strategies.
    free = SearchOptions(objective=options.objective)
    told = telling(question.progress)  # their seconds are those of other axes
    try:
        asked = Question(merged, candidates, free, told, deadline=question.deadline)
        result = solve_within_limit(asked, solver)
    except PlanError:
        return None
    if isinstance(result, Infeasible):
        return None
    pairs = zip(expanded, result.decisions.strategies, strict=True)
    decisions = Decisions(tuple(strategies[merged] for strategies, merged in pairs))
    try:
        cost = estimate_cost(problem, decisions)
    except PlanError:  # incompatible nearest strategies: replicated before partial
        return None
    return dataclasses.replace(
        result, decisions=decisions, cost=cost, objective=options.value(cost)
    )


def _expand_merged(
    choices: Sequence[Strategy], fewer: Sequence[Strategy], parts: Sequence[Sequence[int]]
) -> dict[Strategy, Strategy]:
    """For each strategy on merged axes, the candidate that agrees with it on the most axes."""
    same: dict[Strategy, Strategy] = {}
    for strategy in fewer:  # every axis of a part does the same
        placements = [REPLICATED] * len(choices[0])
        for part, placement in zip(parts, strategy, strict=True):
            for axis in part:
                placements[axis] = placement
        same[strategy] = tuple(placements)
    known = frozenset(choices)
    exact = {strategy: choice for strategy, choice in same.items() if choice in known}
    if exact:
        return exact
    # Sizes may be divisible by one axis and not by all of a part.

    def agrees(strategy: Strategy, choice: Strategy) -> int:
        return sum(a == b for a, b in zip(same[strategy], choice, strict=True))

    nearest = {
        strategy: max(choices, key=lambda choice: agrees(strategy, choice)) for strategy in fewer
    }
    best_agreement = max(agrees(strategy, choice) for strategy, choice in nearest.items())
    return {
        strategy: choice
        for strategy, choice in nearest.items()
        if agrees(strategy, choice) == best_agreement
    }


# ---------------------------------------------------------------------- bound


def lower_bound_on_axes(
    question: Question, axes: tuple[int, ...], *, until: float = np.inf
) -> float:
    """A lower bound in seconds over all plans; ``-inf`` if there is none in time.

    It is the relaxation on some mesh axes, in which the other axes shard every tensor and all
    compute at no cost. It is valid if a collective of more bytes never takes less time.
    """
    # Any plan on the whole mesh is also a plan on these axes. There it sends at least the bytes of
    # fully sharded tensors, and computes at least a device's share, so its cost is not higher.
    problem, options = question.problem, question.options
    network = SubmeshCosts(problem.network, axes)
    faster = network.num_other_devices
    hardware = Hardware(
        problem.hardware.name,
        {size: rate * faster for size, rate in problem.hardware.flops.items()},
        problem.hardware.memory_bandwidth * faster,
        problem.hardware.memory * faster,
    )
    rest = problem.on(network, hardware)
    strategies = []
    for known, choices in zip(rest.strategies, question.candidates, strict=True):
        kept = {tuple(choice[a] for a in axes) for choice in choices}
        strategies.append(tuple(strategy for strategy in known.all if strategy in kept))
    limit = options.memory_limit
    scaled = None if limit is None else limit * faster
    options = dataclasses.replace(options, memory_limit=scaled)
    try:
        formulation = Formulation(rest, strategies, options, deadline=question.deadline)
    except OutOfTime:
        return -math.inf
    left = functools.partial(remaining_time, until)
    if limit is None:
        relaxed = formulation.program.solve(relax=True, presolve=False, time_limit=left())
    else:
        relaxed = solve_relaxation(formulation, BOUND_GAP, left)
    return formulation.seconds(relaxed.bound)


def busiest_axes(problem: Problem, result: SearchResult) -> tuple[int, ...]:
    """The two axes along which a plan spends the most seconds on collectives."""
    spent = [0.0] * len(problem.mesh.sizes)
    for (_, axis), seconds in seconds_by_collective(problem, result.cost).items():
        spent[axis] += seconds
    return tuple(sorted(sorted(range(len(spent)), key=lambda axis: -spent[axis])[:2]))
