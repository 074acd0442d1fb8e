"""The search of the least time with overlap: linear programs, corrected towards the schedule.

The part of a collective that computation hides depends on the whole schedule and is not linear. So
programs of "sum" are solved in which collectives cost only a share of their seconds, and each plan
is timed by its schedule (``cost.timeline``). Collectives on its critical path, and no others, make
the step longer by their full time. Collectives that computation waits for need not: a gather over
fast links may come late only because it follows one over slow links. The shares are

1. a small share for collectives of parameters ahead of their readers, and of gradients that the
   optimizer reads; and everything for the activations between operators;
2. the same larger share for these collectives, on all axes;
3. along one axis after the other, the next larger or smaller share than those of the best plan so
   far, beginning where the share on its critical path suggests it: with too small a share a plan
   sends more than can be hidden, and with too large a share less;
4. if the shares of the axes are right, those of single tensors: nothing computes after the last
   gradient, even on fast links;
5. everything, which gives the plan of "sum", unless the bound is near.

The named strategies are also timed, and the plan with the shortest schedule is the answer; or the
first one within two gaps of the bound, which no other plan beats by more. The bound is the least
compute of any plan, or the bound of a program divided by the number of resources that its sum
consists of: no schedule is shorter than the work of its busiest resource.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorstate.cost.cost import SearchOptions, SearchResult, estimate_cost, result_order
from tensorstate.cost.memory import is_gradient
from tensorstate.deadline import (
    Budget,
    OutOfTime,
    check,
    deadline_after,
    is_over,
    remaining_time,
)
from tensorstate.problem.baselines import Baselines, is_parameter
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.solver.base import CandidateStrategies, Question, Solver, telling
from tensorstate.solver.exact import Milp
from tensorstate.solver.formulation import Programs
from tensorstate.solver.growing_program import Progress
from tensorstate.solver.named import best_among
from tensorstate.solver.plain import plainer, simplify, timed

# The share of collectives that hide, so that ties are broken in favour of fewer sends.
LEAST_SHARE = 0.05
# With four iterations of a scan in one body, the gathers of the first and the sums of the last.
LOOP_SHARE = 0.25
# Shares among which the best is sought, then the second; each is at most twice the previous one. In
# 21 searches (decoders of 1 to 8 layers, VGG-19, Llama 3.1 8B and Yi 34B on 2x4 H100s with 5 to 25
# GB/s between hosts) the best plan of six programs took at most 0.8 % longer than the best of all
# pairs. Bisection of the shares of both axes together took up to 15 % longer.
SHARES = (LEAST_SHARE, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
SECOND = 3
# The most programs with shares of axes, and with shares of single tensors; and the difference of
# shares that justifies another program.
MOST_OF_AXES, MOST_ALONE, SAME_SHARE = 6, 2, 0.1
# Gap of these programs, whose shares are not more exact; half of it is for rounding.
COARSE_GAP = 0.1
# Gaps of the program of "sum", whose plan is one of several: to the end it took 13 s of 15 for a
# VGG. It is not solved if the bound is already as near; where it was solved, plans took at most 0.5
# % less.
CLOSE = 10
# Parts of the time limit: that of each program, the time until which a corrected one may begin,
# that at which all must end, and that at which the named strategies after them must end; and
# seconds of one of these.
PROGRAM_SHARE, BEGIN_UNTIL, END_UNTIL, NAMED_UNTIL, NAMED_CAP_S = 0.4, 0.3, 0.8, 0.9, 5.0
FIRST_UNTIL = 0.2
# Named strategies that send at different times; zero2 sends as zero1 does.
NAMED = ("fsdp", "zero1", "ddp", "megatron", "megatron-sp", "fsdp + megatron-sp")


def search_overlapped(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    solver: Solver,
    progress: Progress | None = None,
) -> SearchResult:
    """The plan with the shortest schedule; on devices without overlap, the plan of "sum".

    Raises:
        PlanError: as for ``Solver.solve``.
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
    bound = max(_bound_by_resources(problem, result.bound), least_compute(problem, candidates))
    return dataclasses.replace(result, objective=objective, bound=min(bound, objective))


def _bound_by_resources(problem: Problem, bound_of_sum: float, share: float = 1.0) -> float:
    """A bound for all schedules, from that of a program in which no cost exceeds its real time.

    Args:
        share: the largest share of the seconds of any collective that the program counts.
    """
    groups = problem.network.link_groups()
    return bound_of_sum / (1 + share * len({groups[axis] for axis in problem.mesh.long_axes}))


def least_compute(problem: Problem, candidates: CandidateStrategies) -> float:
    return math.fsum(
        problem.multiplicity(class_id) * min(problem.seconds(class_id, each) for each in choices)
        for class_id, choices in enumerate(candidates)
    )


@dataclasses.dataclass(frozen=True)
class Shares:
    """The assumed share of seconds of collectives that may hide, for each mesh axis.

    Attributes:
        levels: for every axis, its index in ``SHARES``.
        alone: shares of single tensor groups, if they are larger.
    """

    levels: tuple[int, ...]
    alone: Mapping[TensorGroup, tuple[float, ...]] = dataclasses.field(default_factory=dict)

    @property
    def assumed(self) -> tuple[float, ...]:
        """The shares of all tensor groups."""
        return tuple(SHARES[level] for level in self.levels)

    def paid(self, group: TensorGroup) -> tuple[float, ...]:
        """The shares of one tensor group."""
        least = LEAST_SHARE if group.num_repeats == 1 else LOOP_SHARE
        alone = self.alone.get(group, self.assumed)
        return tuple(max(least, *shares) for shares in zip(self.assumed, alone, strict=True))

    def neighbours(self, critical: Sequence[float], axes: Sequence[int]) -> Iterator[Shares]:
        """Shares that are a level away along some axes; those nearer to a plan's share come first.

        Args:
            critical: for each axis, the share on the critical path of everything that the plan of
                these shares sends along it.
            axes: the axes of the mesh along which anything is sent.
        """
        differences = {axis: critical[axis] - self.assumed[axis] for axis in axes}
        steps = {axis: 1 if more > 0 else -1 for axis, more in differences.items()}
        order = sorted(axes, key=lambda axis: -abs(differences[axis]))
        nearer = [{axis: steps[axis]} for axis in order]
        for moved in (*nearer, steps, *({axis: -steps[axis]} for axis in order)):
            levels = [level + moved.get(axis, 0) for axis, level in enumerate(self.levels)]
            if all(0 <= level < len(SHARES) for level in levels):
                yield Shares(tuple(levels), self.alone)

    def raised(self, critical: Mapping[TensorGroup, Sequence[float]]) -> Shares | None:
        """The shares after a plan with more of single groups on its critical path, or ``None``."""
        alone = dict(self.alone)
        for group, seen in critical.items():
            paid = self.paid(group)
            if any(after > share + SAME_SHARE for share, after in zip(paid, seen, strict=True)):
                alone[group] = tuple(map(max, paid, seen))
        return None if alone == self.alone else dataclasses.replace(self, alone=alone)


BySent = Mapping[TensorGroup, Sequence[float]]
"""Seconds for which a tensor group is sent, for each mesh axis."""


class _Hidden(NamedTuple):
    """The plan of a program in which collectives cost shares of their seconds.

    Attributes:
        shares: the assumed shares of collectives that may hide.
        program: the problem with these costs.
        solved: the plan, with these costs.
        found: the plan with all costs, and the time of its schedule.
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
        self.start = time.perf_counter()
        limit, self.overlaps = solver.time_limit, problem.hardware.overlaps
        self.deadline = deadline_after(END_UNTIL * limit if self.overlaps else limit)
        self.last_deadline = deadline_after(NAMED_UNTIL * limit)
        self.budget = Budget(PROGRAM_SHARE if self.overlaps else 1.0)
        self.refused: OutOfTime | None = None  # the first program's, without a plan
        # Bounds of the schedule, and of the sum.
        self.bound = self.least_sum = -math.inf

    def run(self) -> SearchResult:
        """The best of all plans, or the first that is close to the bound."""
        first = self._first_named() if math.isfinite(self.solver.time_limit) else None
        try:
            best = self._best()
        except OutOfTime:
            if first is None:
                raise
            best = first
        best = best if first is None else self._better(best, first)
        bound, seconds = min(self.bound, best.objective), self._seconds()
        return dataclasses.replace(best, bound=bound, seconds=seconds)

    def _first_named(self) -> SearchResult | None:
        """A named strategy found in tenths of a second, so that a short search has some plan."""
        until = self.start + FIRST_UNTIL * self.solver.time_limit
        found = (self._named(name, math.inf, at_once=True) for name in NAMED if not is_over(until))
        first = next((each for each in found if each is not None), None)
        return None if first is None else timed(first, self.options)

    def _best(self) -> SearchResult:
        """The best of all plans, or the first that is close to the bound.

        Raises:
            PlanError: there is none, or none in time.
        """
        if not self.overlaps:
            plain = self._plain(self.problem, self._solved(self.problem, self.solver.gap))
            self.bound = plain.bound
            return plain
        self.bound = least_compute(self.problem, self.candidates)
        best = self._best_of_shares()
        return best if best and self._is_close(best) else self._best_with_others(best)

    def _best_of_shares(self) -> SearchResult | None:
        """The best plan of programs with shares; ``None`` if they have none in time."""
        try:
            best = self._hidden(Shares((0,) * len(self.problem.mesh.sizes)))
        except OutOfTime as error:
            self.refused = error
            return None
        best = self._best_of_axes(best)
        for _ in range(MOST_ALONE):
            shares = None if self._is_last(best) else self._raised(best)
            found = best if shares is None else self._faster(best, shares)
            if found is best:
                break
            best = found
        # With the costs of the program that found it, so that plain moves stay near its optimum.
        plain = self._plain(best.program, best.solved)
        return best.found if self._is_close(best.found) and not self._is_close(plain) else plain

    def _best_of_axes(self, best: _Hidden) -> _Hidden:
        """The best plan for shares of axes, level by level while the schedule becomes shorter."""
        if self._is_last(best):
            return best
        axes = self.problem.mesh.long_axes
        second = Shares(tuple(SECOND * (axis in axes) for axis in range(len(best.shares.levels))))
        tried = {best.shares.levels, second.levels}
        best = self._faster(best, second)
        ahead = best.shares.neighbours(self._critical_by_axis(best), axes)
        while len(tried) < MOST_OF_AXES and not self._is_last(best):
            shares = next((each for each in ahead if each.levels not in tried), None)
            if shares is None:
                break
            tried.add(shares.levels)
            found = self._faster(best, shares)
            if found is not best:
                best, ahead = found, found.shares.neighbours(self._critical_by_axis(found), axes)
        return best

    def _best_with_others(self, best: SearchResult | None) -> SearchResult:
        """The best among a plan, that of "sum" and the named strategies.

        Raises:
            OutOfTime: none of them was found in time, either.
        """
        if best is None or not (self._is_of_sum(best) or self._is_close(best, CLOSE)):
            try:
                sums = self._solved(self.problem, CLOSE * self.solver.gap)
                self._note_bound(sums)
                best = self._better(best, self._plain(self.problem, sums))
            except OutOfTime as error:
                self.refused = self.refused or error
        if best is not None:
            is_of_sum = self._is_of_sum(best)
            if is_of_sum and not self._is_close(best):
                self._note_bound_of_least()
            # No named strategy has a smaller sum.
            if self._is_close(best, 2 * CLOSE if is_of_sum else 2):
                return best
        for name in NAMED:
            most = math.inf if best is None else best.objective
            named = self._named(name, most)
            if named is not None and named.cost.compute < most:
                best = self._better(best, timed(named, self.options))
        if best is None:
            raise self.refused or OutOfTime()
        return best

    def _hidden(self, shares: Shares) -> _Hidden:
        """The plan of a program with the given shares of collectives that may hide.

        Raises:
            PlanError: there is none, or none in time.
        """
        program = self.problem.discounted({g: shares.paid(g) for g in self.hideable})
        solved = self._solved(program, max(self.solver.gap, COARSE_GAP))
        self._note_bound(solved)
        found = timed(self._undiscounted(solved), self.options)
        self._tell(found)
        return _Hidden(shares, program, solved, found, *self._seconds_sent(found))

    def _faster(self, best: _Hidden, shares: Shares) -> _Hidden:
        """The plan with other shares, if it is found in time and its schedule is shorter."""
        try:
            found = self._hidden(shares)
        except OutOfTime:
            return best
        return best if self._better(best.found, found.found) is best.found else found

    def _is_last(self, best: _Hidden) -> bool:
        """Whether no other program may follow: the plan is close to the bound, or time is short."""
        is_late = (
            self._seconds() > BEGIN_UNTIL * self.solver.time_limit
            or self.budget.spent > BEGIN_UNTIL
        )
        return is_late or self._is_close(best.found) or self._is_of_sum(best.found)

    def _is_close(self, found: SearchResult, gaps: float = 2) -> bool:
        """Whether no plan is faster by more gaps: by default a program's and a schedule's."""
        fits = found.cost.memory.fits(self.options.memory_limit)
        return fits and found.objective <= self.bound * (1 + gaps * self.solver.gap)

    def _is_of_sum(self, found: SearchResult) -> bool:
        """Whether a plan is that of "sum", which is so if it sends next to nothing.

        Programs with shares bound the sum, so this is then the plan for any larger shares, too.
        """
        return self.linear.value(found.cost) * (1 - self.solver.gap) <= self.least_sum

    def _seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.start

    def _solved(self, problem: Problem, gap: float) -> SearchResult:
        """The best plan of a linear program, in its part of the time; if it is alone, in all of it.

        Raises:
            PlanError: there is none, or none in time.
        """
        check(min(self.deadline, self.budget.end))
        seconds, told = (limit := self.solver.time_limit), self.progress
        if self.overlaps:  # its seconds are those of no schedule
            told = telling(self.progress)
            seconds = min(remaining_time(self.deadline), PROGRAM_SHARE * limit)
        solver = dataclasses.replace(self.solver, time_limit=seconds, gap=gap)
        limits = self.deadline, self.budget
        asked = problem, self.candidates, self.linear, told, self.programs, *limits
        return solver.answer(Question(*asked))

    def _note_bound(self, solved: SearchResult, share: float = 1.0) -> None:
        """Record the bounds of a program, which counts at most a share of each collective."""
        self.least_sum = max(self.least_sum, solved.bound)
        self.bound = max(self.bound, _bound_by_resources(self.problem, solved.bound, share))

    def _note_bound_of_least(self) -> None:
        """Record the bound of a program in which all that is sent costs the least share.

        Every schedule takes at least the seconds of its compute, and those of the collectives on
        any links. So it takes at least this program divided by one plus a share for every group of
        links. If some collective takes far longer than all compute, no other bound is near.
        """
        if any(strategies.pairing is not None for strategies in self.problem.strategies):
            return  # sends within operators have no share
        least = (LEAST_SHARE,) * len(self.problem.mesh.sizes)
        program = self.problem.discounted(dict.fromkeys(self.problem.tensor_groups, least))
        try:
            solved = self._solved(program, max(self.solver.gap, COARSE_GAP))
        except OutOfTime:
            return
        self._note_bound(solved, LEAST_SHARE)

    def _undiscounted(self, result: SearchResult) -> SearchResult:
        """A result with the real costs of the network."""
        return dataclasses.replace(result, cost=estimate_cost(self.problem, result.decisions))

    def _plain(self, problem: Problem, solved: SearchResult) -> SearchResult:
        """The plain plan of a program, unless its schedule takes longer."""
        gap = self.solver.gap
        plain = simplify(problem, self.candidates, self.linear, solved, gap)
        if problem is not self.problem:
            found = self._undiscounted(solved)
            solved, plain = found, found if plain is solved else self._undiscounted(plain)
        return plainer(solved, plain, self.options, gap)

    def _better(self, best: SearchResult | None, found: SearchResult) -> SearchResult:
        """The plan with the shorter schedule, among those that fit."""
        limit = self.options.memory_limit
        self._tell(found)
        if best is None:
            return found
        return found if result_order(found, limit) < result_order(best, limit) else best

    def _tell(self, found: SearchResult) -> None:
        Question(self.problem, self.candidates, self.options, self.progress).tell(
            found, min(self.bound, found.objective)
        )

    # ------------------------------------------------------------------ shares that are critical

    @functools.cached_property
    def hideable(self) -> list[TensorGroup]:
        """The tensor groups whose collectives may hide."""
        return [group for group in self.problem.tensor_groups if self._may_hide(group)]

    def _may_hide(self, group: TensorGroup) -> bool:
        """Whether its collectives send parameters, or gradients that the optimizer reads."""
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

    def _critical_by_axis(self, hidden: _Hidden) -> list[float]:
        """For every axis, the share on the critical path of everything that is sent along it.

        A tensor whose share was raised separately is not counted.
        """
        others = [group for group in self.hideable if group not in hidden.shares.alone]
        return [self._share(hidden, others, axis) for axis in range(len(self.problem.mesh.sizes))]

    def _raised(self, hidden: _Hidden) -> Shares | None:
        """The shares of single tensors after a plan; ``None`` if those of all were right."""
        axes = range(len(self.problem.mesh.sizes))
        critical = {g: [self._share(hidden, [g], axis) for axis in axes] for g in self.hideable}
        return hidden.shares.raised(critical)

    def _share(self, hidden: _Hidden, groups: Collection[TensorGroup], axis: int) -> float:
        """The share of the seconds of some tensors along an axis that is on the critical path."""
        total = math.fsum(hidden.sent[group][axis] for group in groups)
        critical = math.fsum(hidden.critical[group][axis] for group in groups)
        return min(1.0, critical / total) if total else 0.0

    def _seconds_sent(self, found: SearchResult) -> tuple[BySent, BySent]:
        """For every group whose collectives may hide, the seconds along each mesh axis.

        The results are all seconds, and those on the critical path.
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

    def _named(self, name: str, most: float, at_once: bool = False) -> SearchResult | None:
        """A named strategy, if the candidates allow it, it fits, and may take less than ``most``.

        No schedule is shorter than its compute. For most strategies that is already longer than the
        best plan, so that their programs need not be solved.
        """
        deadline = min(self.last_deadline, self.budget.end)
        both = None if is_over(deadline) else self.baselines.among(name, self.candidates)
        if both is None or least_compute(self.problem, both) >= most:
            return None
        asked = Question(self.problem, both, self.linear, deadline=deadline)
        seconds = min(remaining_time(deadline), NAMED_CAP_S)
        milp = Milp(gap=1.0 if at_once else self.solver.gap, time_limit=seconds)
        found = best_among(asked, milp, at_once)
        # Its bound holds only for the strategy's own plans.
        return None if found is None else dataclasses.replace(found, bound=-math.inf)
