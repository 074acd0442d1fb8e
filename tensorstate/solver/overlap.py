"""The search of the least time with overlap: linear programs, corrected towards the schedule.

How much of a collective computation hides follows from the whole schedule and is not linear.
So programs of "sum" are solved in which collectives cost only a share of their seconds, and each
plan is timed by its schedule (``cost.timeline``). Collectives on its critical path, and no others,
make the step as much longer as they take. Those that computation waits for may not: a gather over
fast links may only come late after one over slow links. The shares are

1. of collectives of parameters ahead of their readers, and of gradients that the optimizer reads, a
   small share; and all of the activations between operators;
2. along every mesh axis the share that is on the critical path of the last plan, where it is
   larger, but no more than half of the way to all of it. The plan of a share that is too small
   sends more than hides, and that of one too large less than could hide: the next is between two
   such shares;
3. where the shares of the axes are right, or have led to a better plan and lead to no other one,
   those of single tensors: nothing computes behind the last gradient, however fast the links;
4. all of it, which is the plan of "sum".

The named strategies are timed beside them, and the plan of the least schedule is the answer; or the
first that is within two gaps of the bound, which no other plan beats by more. The bound is the
least compute of any plan, or the bound of a program over the number of resources that its sum
consists of: no schedule takes less than the busiest of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tensorstate.cost.cost import SearchOptions, SearchResult, estimate_cost, result_order
from tensorstate.cost.memory import is_gradient
from tensorstate.errors import PlanError
from tensorstate.problem.baselines import Baselines, is_parameter
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.solver.base import CandidateStrategies, Question, Solver
from tensorstate.solver.exact import Milp
from tensorstate.solver.formulation import Programs
from tensorstate.solver.linear_program import LEAST_SECONDS, Progress
from tensorstate.solver.named import best_among
from tensorstate.solver.plain import plainer, simplify, timed

# The share of collectives that hide: ties are then for the plan that sends less.
LEAST_SHARE = 0.05
# Of four iterations of a scan in one body, the gathers of the first and the sums of the last.
LOOP_SHARE = 0.25
# Programs of corrected shares, and the difference of shares that justifies another. Steps of Llama
# 3.1 8B on 2x4 and on 8 H100s with 12 to 100 GB/s between hosts take up to 12 % less than with the
# better of "sum" and one assumed share; those of 4 and 8 layers of a 7.5 B decoder, where one
# gradient is exposed, 7 and 3 % less than with shares of axes alone. By what computation waits for,
# those of 8 layers took 3 % more with 5 or 12 GB/s between hosts, and those of Llama 24 % with 5.
MOST_CORRECTIONS, SAME_SHARE = 5, 0.1
# Corrections in a row without a better plan, after which only those of single tensors may lead to
# one: two tell a share too small from one too large, on either side of the best.
MOST_IDLE = 2
# Gap of these programs, whose shares are no more exact; half of it is for rounding.
COARSE_GAP = 0.1
# Parts of the time limit: of each program, until when a corrected one may begin, and until when all
# must end; the rest is for named strategies. And seconds of one of these.
PROGRAM_SHARE, BEGIN_UNTIL, END_UNTIL, NAMED_CAP_S = 0.4, 0.3, 0.8, 5.0
# Of the named strategies those that send at different times; zero2 sends as zero1 does.
NAMED = ("fsdp", "zero1", "ddp", "megatron", "megatron-sp", "fsdp + megatron-sp")


def search_overlapped(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    solver: Solver,
    progress: Progress | None = None,
) -> SearchResult:
    """The plan of the least schedule; of devices that overlap nothing, the plan of "sum".

    Raises:
        PlanError: as ``Solver.solve``.
    """
    return _Overlap(problem, candidates, options, solver, progress).run()


def retimed(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    result: SearchResult,
) -> SearchResult:
    """A result of the linear objective, with its schedule's time and a bound for that."""
    objective = options.value(result.cost)
    if not problem.hardware.overlaps or options.objective != "overlap":
        return dataclasses.replace(result, objective=objective)
    bound = max(_bound_by_resources(problem, result.bound), _least_compute(problem, candidates))
    return dataclasses.replace(result, objective=objective, bound=min(bound, objective))


def _bound_by_resources(problem: Problem, bound_of_sum: float) -> float:
    """A bound of all schedules, by that of a program in which nothing costs more than it takes."""
    groups = problem.network.link_groups()
    return bound_of_sum / (1 + len({groups[axis] for axis in problem.mesh.long_axes}))


def _least_compute(problem: Problem, candidates: CandidateStrategies) -> float:
    return math.fsum(
        problem.multiplicity(class_id) * min(problem.seconds(class_id, each) for each in choices)
        for class_id, choices in enumerate(candidates)
    )


@dataclasses.dataclass(frozen=True)
class Shares:
    """The share of seconds that collectives which may hide are assumed to cost, by mesh axis.

    Attributes:
        assumed: of the next program.
        low, high: the largest that was too small, and the smallest that was too large.
        alone: of single tensor groups, where they are larger.
    """

    assumed: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    alone: Mapping[TensorGroup, tuple[float, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, axes: int) -> Shares:
        return cls((LEAST_SHARE,) * axes, (LEAST_SHARE,) * axes, (math.inf,) * axes)

    def paid(self, group: TensorGroup) -> tuple[float, ...]:
        """Of one tensor group."""
        least = LEAST_SHARE if group.num_repeats == 1 else LOOP_SHARE
        alone = self.alone.get(group, self.assumed)
        return tuple(max(least, *shares) for shares in zip(self.assumed, alone, strict=True))

    def corrected(self, critical: Sequence[float]) -> Shares | None:
        """The shares after a plan in which others are critical; ``None`` where these were right."""
        columns = []
        for share, low, high, seen in zip(self.assumed, self.low, self.high, critical, strict=True):
            # Bisection: a share that was too small is a lower end, and one too large an upper end.
            # What is on the critical path now leaves it as less is sent: so at most half of the way
            # to all. Downwards by factors, since shares of links that nearly hide are small.
            after = share
            if seen > share:
                low, after = share, min(seen, (share + min(high, 1.0)) / 2)
            elif share - max(seen, LEAST_SHARE) > SAME_SHARE:
                high, after = share, math.sqrt(low * share)
            columns.append((after, low, high))
        corrected = Shares(*zip(*columns, strict=True), alone=self.alone)
        changed = zip(self.assumed, corrected.assumed, strict=True)
        return corrected if any(abs(a - b) > SAME_SHARE / 2 for a, b in changed) else None

    def raised(self, critical: Mapping[TensorGroup, Sequence[float]]) -> Shares | None:
        """The shares after a plan in which more of single groups is; ``None`` if of none."""
        alone = dict(self.alone)
        for group, seen in critical.items():
            paid = self.paid(group)
            if any(after > share + SAME_SHARE for share, after in zip(paid, seen, strict=True)):
                alone[group] = tuple(map(max, paid, seen))
        return None if alone == self.alone else dataclasses.replace(self, alone=alone)


BySent = Mapping[TensorGroup, Sequence[float]]
"""Seconds that a tensor group is sent, by mesh axis."""


class _Hidden(NamedTuple):
    """The plan of a program in which collectives cost shares of their seconds.

    Attributes:
        shares: assumed of what may hide.
        program: the problem with these costs.
        solved: the plan, with these costs.
        found: with all costs, and the time of its schedule.
        sent, critical: seconds of collectives that may hide: all, and those on the critical path.
    """

    shares: Shares
    program: Problem
    solved: SearchResult
    found: SearchResult
    sent: BySent
    critical: BySent


class _Overlap:
    """One search; see the module."""

    def __init__(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        options: SearchOptions,
        solver: Solver,
        progress: Progress | None,
    ):
        self.problem, self.candidates, self.options = problem, candidates, options
        self.solver, self.progress, self.programs = solver, progress, Programs()
        self.linear, self.baselines = options.linear, Baselines(problem)
        self.start, self.bound = time.perf_counter(), -math.inf

    def run(self) -> SearchResult:
        """The best of all plans, or the first that is close to the bound."""
        if not self.problem.hardware.overlaps:
            plain = self._plain(self.problem, self._solved(self.problem, self.solver.gap))
            return dataclasses.replace(plain, seconds=self._seconds())
        self.bound = _least_compute(self.problem, self.candidates)
        best = self._corrected_until_stable()
        if best is None or not self._is_close(best):
            best = self._best_with_others(best)
        bound, seconds = min(self.bound, best.objective), self._seconds()
        return dataclasses.replace(best, bound=bound, seconds=seconds)

    def _corrected_until_stable(self) -> SearchResult | None:
        """The best plan of programs whose shares are corrected; none in time."""
        first = best = last = self._hidden(Shares.of(len(self.problem.mesh.sizes)))
        idle = 0  # corrections since the best plan
        for _ in range(MOST_CORRECTIONS):
            is_late = self._seconds() > BEGIN_UNTIL * self.solver.time_limit
            if best is None or last is None or is_late or self._is_close(best.found):
                break
            are_axes_right = best is not first and idle == MOST_IDLE
            shares = None if are_axes_right else self._corrected(last)
            shares = shares or self._raised(best if are_axes_right else last)
            if shares is None or idle > MOST_IDLE:
                break
            last, idle = self._hidden(shares), idle + 1
            if last is not None and self._better(best.found, last.found) is last.found:
                best, idle = last, 0
        if best is None:
            return None
        # With the costs of the program that found it, so that plain moves stay near its optimum.
        plain = self._plain(best.program, best.solved)
        return best.found if self._is_close(best.found) and not self._is_close(plain) else plain

    def _best_with_others(self, best: SearchResult | None) -> SearchResult:
        """The best of a plan, that of "sum" and the named strategies."""
        try:
            sums = self._solved(self.problem, self.solver.gap)
            self._note_bound(sums)
            plain = self._plain(self.problem, sums)
            best = plain if best is None else self._better(plain, best)
        except PlanError:  # nothing in time
            if best is None:
                raise
        for name in NAMED if not self._is_close(best) else ():
            named = self._named(name, best.objective)
            if named is not None and named.cost.compute < best.objective:
                best = self._better(best, timed(named, self.options))
        return best

    def _hidden(self, shares: Shares) -> _Hidden | None:
        """The plan of a program in which the shares of what may hide are assumed; none in time."""
        program = self.problem.discounted({g: shares.paid(g) for g in self.hideable})
        try:
            solved = self._solved(program, max(self.solver.gap, COARSE_GAP))
        except PlanError:
            return None
        self._note_bound(solved)
        found = timed(self._undiscounted(solved), self.options)
        return _Hidden(shares, program, solved, found, *self._seconds_sent(found))

    def _is_close(self, found: SearchResult) -> bool:
        """Whether no plan takes less by more than two gaps: of a program, and of its schedule."""
        fits = found.cost.memory.fits(self.options.memory_limit)
        return fits and found.objective <= self.bound * (1 + 2 * self.solver.gap)

    def _seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.start

    def _solved(self, problem: Problem, gap: float) -> SearchResult:
        """The best plan of a linear program, in its part of the time; alone, in all of it."""
        seconds = limit = self.solver.time_limit
        if self.problem.hardware.overlaps:
            seconds = max(
                LEAST_SECONDS, min(END_UNTIL * limit - self._seconds(), PROGRAM_SHARE * limit)
            )
        solver = dataclasses.replace(self.solver, time_limit=seconds, gap=gap)
        asked = problem, self.candidates, self.linear, self.progress, self.programs
        return solver.answer(Question(*asked))

    def _note_bound(self, solved: SearchResult) -> None:
        self.bound = max(self.bound, _bound_by_resources(self.problem, solved.bound))

    def _undiscounted(self, result: SearchResult) -> SearchResult:
        """A result with the costs of the network as it is."""
        return dataclasses.replace(result, cost=estimate_cost(self.problem, result.decisions))

    def _plain(self, problem: Problem, solved: SearchResult) -> SearchResult:
        """The plain plan of a program, unless its schedule takes longer."""
        gap = self.solver.gap
        plain = simplify(problem, self.candidates, self.linear, solved, gap)
        if problem is not self.problem:
            found = self._undiscounted(solved)
            solved, plain = found, found if plain is solved else self._undiscounted(plain)
        return plainer(solved, plain, self.options, gap)

    def _better(self, best: SearchResult, found: SearchResult) -> SearchResult:
        """The plan of the shorter schedule, of those that fit."""
        limit = self.options.memory_limit
        return found if result_order(found, limit) < result_order(best, limit) else best

    # ------------------------------------------------------------------ shares that are critical

    @functools.cached_property
    def hideable(self) -> list[TensorGroup]:
        """The tensor groups whose collectives may hide."""
        return [group for group in self.problem.tensor_groups if self._may_hide(group)]

    def _may_hide(self, group: TensorGroup) -> bool:
        """Whether its collectives are of parameters, or of gradients that the optimizer reads."""
        if is_parameter(self.problem.graph, group.tensors[0]):
            return True
        if group.in_forward:
            return False
        if is_gradient(self.problem, group):
            return True
        # Or casts of them: under mixed precision a gradient is reduced before it is cast back.
        readers = [c.class_id for c in group.consumer_classes]
        if not readers or self.problem.node(group.class_id).phase != "backward":
            return False
        for class_id in readers:
            node = None if class_id is None else self.problem.node(class_id)
            if node is None or node.kind != "elementwise":
                return False
            made = [g for g in self.problem.tensor_groups if g.class_id == class_id]
            if not all(is_gradient(self.problem, g) for g in made):
                return False
        return True

    def _corrected(self, hidden: _Hidden) -> Shares | None:
        """The shares of axes after a plan; ``None`` if all were right.

        A tensor whose share was raised alone is not counted for its axes.
        """
        axes = range(len(self.problem.mesh.sizes))
        others = [group for group in self.hideable if group not in hidden.shares.alone]
        return hidden.shares.corrected([self._share(hidden, others, axis) for axis in axes])

    def _raised(self, hidden: _Hidden) -> Shares | None:
        """The shares of single tensors after a plan; ``None`` if those of all were right."""
        axes = range(len(self.problem.mesh.sizes))
        critical = {g: [self._share(hidden, [g], axis) for axis in axes] for g in self.hideable}
        return hidden.shares.raised(critical)

    def _share(self, hidden: _Hidden, groups: Collection[TensorGroup], axis: int) -> float:
        """Of the seconds that some tensors are sent along an axis, those on the critical path."""
        total = math.fsum(hidden.sent[group][axis] for group in groups)
        critical = math.fsum(hidden.critical[group][axis] for group in groups)
        return min(1.0, critical / total) if total else 0.0

    def _seconds_sent(self, found: SearchResult) -> tuple[BySent, BySent]:
        """Of every group whose collectives may hide the seconds along each mesh axis.

        All of them, and those on the critical path.
        """
        timeline = found.cost.timeline(self.options.memory_limit)
        sent, critical = (
            {group: [0.0] * len(self.problem.mesh.sizes) for group in self.hideable}
            for _ in range(2)
        )
        for reshard in found.cost.reshards:
            group = self.problem.tensor_groups[reshard.group]
            if group in sent:
                graph = self.problem.reshard_graph(group)
                for step, count in reshard.counted_steps:
                    sent[group][step.axis] += reshard.multiplicity * count * graph.seconds(step)
        of_tensor = {tensor: group for group in self.hideable for tensor in group.tensors}
        for (tensor, axis), seconds in timeline.critical_of.items():
            if tensor in of_tensor:
                critical[of_tensor[tensor]][axis] += seconds
        return sent, critical

    # ------------------------------------------------------------------ named strategies

    def _named(self, name: str, most: float) -> SearchResult | None:
        """A named strategy, if the candidates allow it, it fits, and may take less than ``most``.

        No schedule takes less than what computes; of most strategies that is more than the best
        plan takes, so that their programs need not be solved.
        """
        left = self.solver.time_limit - self._seconds()
        both = self.baselines.among(name, self.candidates) if left > 0 else None
        if both is None or _least_compute(self.problem, both) >= most:
            return None
        limit = self.options.memory_limit
        milp = Milp(gap=1e-3, time_limit=max(LEAST_SECONDS, min(left, NAMED_CAP_S)))
        # As of the search itself the plan without the limit comes first, whose program is smaller.
        free = dataclasses.replace(self.linear, memory_limit=None, recompute=False)
        for options in (free,) if limit is None else (free, self.linear):
            found = best_among(self.problem, both, options, milp)
            if found is None or found.cost.memory.fits(limit):
                return found
        return None
