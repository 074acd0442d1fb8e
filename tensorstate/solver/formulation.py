"""The exact search as a mixed-integer linear program, after Alpa and AutoParallel.

Indices: node class g, its strategies w and keepings k (``tensorstate.keeping``); tensor group f;
pass p (``cost.reshard_passes``) and its consumers d; placements s; reshard steps m between
placements; program points t. ``N[g]`` and ``N[f]`` are numbers of members.

Variables, all at least 0:

- ``strategy[g, w]`` in {0, 1}: class g uses strategy w.
- ``x[g, w, k]``: the share of class g that uses strategy w and whose results are kept by k.
- ``flow[f, p, d, m]``: the share of group f that takes step m in pass p on its way to consumer d.
- ``used[f, p, m]``: the share of group f that takes step m in pass p; it is paid for once.
- ``kept[f, k, s]``: the share with a copy in placements s that k stores for the backward pass.
- ``restored[f, d, s]``: the share that consumer d, after the forward pass, takes from placements s.
- ``loop_resident[f, s]``: the share with a copy in placements s that stays resident through the
  microbatch loop.

Objective: compute + communication, where ``R[f, p]`` is the number of microbatches for a pass
inside the microbatch loop, and 1 otherwise, and ``runs[k]`` is 2 if k reruns the producer, else 1:

    compute       = sum over g, w, k of N[g] seconds[g, w] runs[k] x[g, w, k]
                    + sum over f, k, s of N[f] seconds[f, k, s] kept[f, k, s]
    communication = sum over f, p, m of N[f] R[f, p] seconds[m] used[f, p, m]

or, with ``objective="max"``, the larger of the two. Constraints:

    one strategy per class      sum over w of strategy[g, w] = 1                       (1)
    shares by keeping           sum over k of x[g, w, k] = strategy[g, w]              (2)
    whole layers                N[g] x[g, w, k] is an integer if N[g] is small         (3)
    useful second runs          N[g] sum over w, k of x[g, w, k]
                                <= sum over readers h, w, k of reads[h, g] x[h, w, k]  (4)
    flow conservation           start[s] + flow into s = sink[s] + flow out of s       (5)
    shared steps                used[f, p, m] >= flow[f, p, d, m]                      (6)
    returned tensors            sum over s of returned[f, s] = 1                       (7)
    stored copies               available[f, k, s] <= share that is produced in s
                                and kept by k                                          (8)
    restored copies             restored[f, d, s] <= sum over k of kept[f, k, s]
                                + share rebuilt in s, or an input in s              (9)
    larger of the two           T >= compute, T >= communication                       (10)
    memory                      live[t] = inputs + sum over terms of bytes[t] share
                                <= peak <= limit                                       (11)

They are written by ``StrategyVariables._add_class`` (1, 2) and ``make_integral`` (3, of all k but
the default, and likewise for ``kept`` and ``loop_resident`` under a memory limit),
``Formulation._forbid_useless_runs`` (4, of all k that rerun the producer, only for classes
whose results are not read after the forward pass), in
``reshard_constraints`` by ``_conserve_flow`` (5), ``_route`` (6), ``_sinks`` (7),
``_available_share`` (8) and ``_restored`` (9), ``Formulation._add_objective`` (10), and
``MemoryConstraints.add_peak`` (11). The terms of (11) are those of ``cost.memory``;
``memory_constraints.VariableShares`` gives their shares. (5) has one flow for every row of the
table in ``cost.reshard_passes``: ``start`` and ``sink`` are x, kept, restored, available, returned
and loop_resident.

Solutions of the relaxation are often integral: once the strategies are chosen, the flows are
shortest-path problems. Fractions come from rows that weigh many classes against each other, (10)
and (11), and from shared steps (6): halves of two flows share a step for half of its price, even if
no plan has both flows on it.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jaxcoll.numerics.program import Solution, Status
from tensorstate.cost.cost import SearchOptions, SearchResult, estimate_cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.deadline import check
from tensorstate.errors import PlanError
from tensorstate.ir.placements import Placements
from tensorstate.keeping import table
from tensorstate.keeping.base import Keeping
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.solver.growing_program import GrowingProgram
from tensorstate.solver.memory_constraints import MEMORY_UNITS, MemoryConstraints
from tensorstate.solver.reshard_constraints import GroupVariables, ReshardConstraints
from tensorstate.solver.strategy_variables import StrategyVariables

# The number of program points whose memory a proof that nothing fits starts with.
PROOF_POINTS = 4

# The objective of the program is in microseconds.
MICROSECONDS = 1e6

# The share of their seconds that collectives cost in the program that gives the first basis: with
# 0.05, 0.2 and 0.5 both programs took 3.2, 2.4 and 3.1 CPU s for 32 layers; without a basis, 3.7.
EASIER_SHARE = 0.2
# Tolerance of the solver's values.
TOLERANCE = 1e-6


class Formulation:
    """The program of a problem.

    Args:
        problem: the problem to decide.
        candidates: the candidate strategies of every class.
        options: objective, memory limit, and the ways in which results may be kept.
        prune_placements: reshard only to placements that, on each mesh axis, a producer or consumer
            may use; the program is smaller and its optimum seldom worse.
        reserved: see ``MemoryConstraints.add_peak``.
        deadline: time of ``time.perf_counter`` after which it is neither solved nor built to its
            end; with three axes, building may take half a minute.

    Raises:
        OutOfTime: it was not built in time.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: Sequence[Sequence[Strategy]],
        options: SearchOptions | None = None,
        *,
        prune_placements: bool = False,
        reserved: np.ndarray | None = None,
        deadline: float = np.inf,
    ):
        options = options or SearchOptions()
        self.problem = problem
        self.objective, self.is_of_memory = options.objective, False
        self.program = GrowingProgram(deadline)
        self.choices = StrategyVariables(self.program, problem, candidates, options.keepings)
        limited = options.memory_limit is not None
        # With "max", seconds are in rows instead of the objective, and only in the objective can
        # they be split; with a limit the steps' own variables are needed for the bytes of their
        # copies.
        split = options.objective == "sum" and not limited
        self.resharding = ReshardConstraints(self.choices, limited, prune_placements, split)
        self.memory_constraints = (
            None
            if options.memory_limit is None
            else MemoryConstraints(self.choices, options.memory_limit)
        )
        self.groups: list[GroupVariables] = []
        for number in range(len(problem.tensor_groups)):
            check(deadline)
            self.groups.append(self.resharding.add_group(number))
            if self.memory_constraints is not None:
                self.memory_constraints.add_group(self.groups[-1])
        if any(keeping.reruns for keeping in options.keepings):
            self._forbid_useless_runs()
        if self.memory_constraints is not None:
            self.peak = self.memory_constraints.add_peak(reserved)
        self.num_shares = self.program.num_variables
        self._add_objective(options.objective)

    def discounted(self, problem: Problem) -> Formulation:
        """The program of the same step whose collectives cost other shares of their seconds.

        It has the variables and rows of this one, which take longer to build than to solve.

        Args:
            problem: the result of ``Problem.discounted``.
        """
        other = copy.copy(self)
        other.problem, other.program = problem, self.program.copied()
        other.choices = copy.copy(self.choices)
        other.choices.problem, other.choices.program = problem, other.program
        other.program.clear_objective()
        other._add_objective(self.objective)
        return other

    def _forbid_useless_runs(self) -> None:
        """A class reruns only for consumers that run later or rerun (4)."""
        # Other reruns are dropped from a plan (``find_kept``); if the program subtracted memory for
        # them, it would find plans that do not fit.
        groups_of: dict[int, list[TensorGroup]] = defaultdict(list)
        for group in self.problem.tensor_groups:
            groups_of[group.class_id].append(group)
        for class_id, choices in enumerate(self.choices.x):
            terms: dict[int, float] = defaultdict(float)
            for (_, keeping), variable in choices.items():
                terms[variable] += keeping.reruns * self.problem.multiplicity(class_id)
            groups = groups_of[class_id]
            if not any(terms.values()) or any(group.needed_after_forward for group in groups):
                continue
            for group in groups:
                for number, consumer_class in enumerate(group.consumer_classes):
                    if consumer_class.class_id is None:
                        continue
                    reads = sum(len(consumers[number]) for consumers in group.consumers)
                    of_reader = self.choices.x[consumer_class.class_id]
                    for (_, keeping), variable in of_reader.items():
                        terms[variable] -= keeping.reruns * reads
            self.program.add_constraint([(v, f) for v, f in terms.items() if f], -np.inf, 0.0)

    def easier_costs(self) -> np.ndarray | None:
        """Costs with which the relaxation takes less time; ``None`` unless the sum is minimized.

        If collectives cost little, most is decided at once, and the real costs change little of it.
        """
        if self.is_of_memory or self.objective != "sum" or self.resharding.split:
            return None
        variables, seconds = self.resharding.communication(self.problem)
        less = (1 - EASIER_SHARE) * MICROSECONDS * seconds
        return self.program.costs - np.bincount(variables, less, self.num_shares)

    def _add_objective(self, objective: str) -> None:
        """The sum of compute and communication, or the larger of the two (10).

        Raises:
            PlanError: for "overlap", because a schedule cannot be written as a linear program.
        """
        if objective == "overlap":
            raise PlanError(
                'a solver minimizes the "sum" or the "max"; objective="overlap" is for '
                "tensorstate.search, which times the plans of several programs"
            )
        resharded = self.resharding.communication(self.problem)
        compute = self.choices.seconds
        communication = [
            *zip(*(column.tolist() for column in resharded), strict=True),
            *self.choices.sent(self.problem),
        ]
        if objective == "sum":
            for variable, seconds in (*compute, *communication):
                self.program.add_cost(variable, MICROSECONDS * seconds)
            for seconds, flows in self.resharding.shared_communication(self.problem):
                self.program.add_shared_costs(MICROSECONDS * seconds, flows)
            return
        # Both rows contain all classes, and at the optimum both are mostly tight: in the
        # relaxation, classes mix strategies until the two are equal, which is left to branch and
        # bound.
        upper = math.fsum(MICROSECONDS * s for _, s in (*compute, *communication))
        larger = self.program.add_variable(cost=1.0, implied_upper=upper)
        for terms in (compute, communication):
            sums: dict[int, float] = defaultdict(float)
            for variable, seconds in terms:
                sums[variable] -= MICROSECONDS * seconds
            self.program.add_constraint([(larger, 1.0), *sums.items()], 0.0, np.inf)

    def minimize_memory(self) -> None:
        """Minimize the peak memory instead; there must be a memory limit."""
        self.is_of_memory = True
        self.program.clear_objective()
        self.program.add_cost(self.peak, 1.0)
        self.program.set_low(self.peak, 0.0)

    def make_limit_elastic(self, seconds: float) -> int:
        """Let memory exceed its limit at a price of seconds per thousandth; return the excess.

        The price is on the excess and not on the peak, which would add a constant to the objective,
        relative to which the solver's gap is measured.
        """
        limit = MEMORY_UNITS
        self.program.set_high(self.peak, np.inf)
        excess = self.program.add_variable(cost=MICROSECONDS * seconds)
        self.program.add_constraint([(excess, 1.0), (self.peak, -1.0)], -limit, np.inf)
        return excess

    def is_infeasible(self, seconds: float) -> bool:
        """Whether it is proved within some seconds that nothing fits into the memory limit."""
        if self.memory_constraints is None or not math.isfinite(self.memory_constraints.limit):
            return False
        if self.is_of_memory:
            return False
        # On a copy, because rows of memory are dense, and rows that are not tight would slow the
        # search.
        program = self.program.copied()
        program.clear_objective()
        program.add_largest_lazy(PROOF_POINTS)
        found = program.solve(relax=True, time_limit=seconds)
        return found.status == Status.INFEASIBLE

    def covers(self, candidates: Sequence[Sequence[Strategy]]) -> bool:
        """Whether every class may use all of these strategies."""
        allowed = ({strategy for strategy, _ in choices} for choices in self.choices.x)
        return all(set(c) <= those for those, c in zip(allowed, candidates, strict=True))

    def is_decided(self, solution: Solution) -> bool:
        """Whether a relaxed solution is a plan: no share of a strategy or of a step is a fraction.

        Steps shared by several consumers may have fractions even if no strategy does. Under a
        memory limit shares represent whole tensors.
        """
        if self.memory_constraints is not None or solution.status != Status.OPTIMAL:
            return False
        shares = solution.values[: self.num_shares]
        return bool((np.abs(shares - np.round(shares)) <= TOLERANCE).all())

    def exclude(self, solution: Solution, groups: Collection[int]) -> bool:
        """Exclude the decisions of a solution about some tensor groups, by number.

        If shares are fractions, other decisions are excluded, too.

        Returns:
            Whether no other decisions are excluded.
        """
        decided = [self.problem.tensor_groups[number] for number in groups]
        consumers = (c.class_id for group in decided for c in group.consumer_classes)
        classes = {group.class_id for group in decided} | {c for c in consumers if c is not None}
        variables = [
            *(v for class_id in classes for v in self.choices.x[class_id].values()),
            *(v for n in groups for of_k in self.groups[n].kept.values() for v in of_k.values()),
            *(v for n in groups for v in self.groups[n].loop_resident.values()),
        ]
        shares = {v: solution.values[v] for v in variables}
        # At least one of the {0, 1} variables that the solution sets to 1 must become 0, or one
        # that it sets to 0 must become 1.
        terms = [(v, 1.0 if share > 0.5 else -1.0) for v, share in shares.items()]
        ones = sum(factor > 0 for _, factor in terms)
        self.program.add_constraint(terms, -np.inf, ones - 1.0)
        return all(min(share, 1 - share) <= TOLERANCE for share in shares.values())

    # ------------------------------------------------------------------ solutions

    def result(self, solution: Solution, options: SearchOptions) -> SearchResult:
        """The decisions of a solution with their cost, without a proved bound or measured time."""
        decisions = self.decisions(solution)
        cost = estimate_cost(self.problem, decisions)
        return SearchResult(decisions, cost, options.value(cost), -np.inf, "milp", 0.0)

    def decisions(self, solution: Solution) -> Decisions:
        """The decisions of a solution, with shares rounded to whole members.

        The last members of a class are those that are kept by default, rounded down; the last
        members of a group are those with copies, rounded down.
        """
        values, graph = solution.values, self.problem.graph
        strategies, kept = list[Strategy](), dict[int, Keeping]()
        for class_id, choices in enumerate(self.choices.x):
            shares: dict[Strategy, float] = defaultdict(float)
            for (strategy, _), variable in choices.items():
                shares[strategy] += values[variable]
            # In a relaxed solution it is the largest share, which need not be near 1.
            chosen = max(shares, key=lambda strategy: shares[strategy])
            strategies.append(chosen)
            members, share, start = graph.node_classes[class_id], 0.0, 0
            for (strategy, keeping), variable in choices.items():
                if strategy == chosen and keeping != table.DEFAULT:
                    share += values[variable]
                    end = math.ceil(share * len(members) - TOLERANCE)
                    kept |= dict.fromkeys(members[start:end], keeping)
                    start = max(start, end)
        saved: dict[int, Placements] = {}
        resident: dict[int, Placements] = {}
        # Without a limit no copy is too large, and the evaluation takes the cheapest ones.
        for variables in self.groups if self.memory_constraints is not None else ():
            group = self.problem.tensor_groups[variables.number]
            if group.is_input and variables.kept:  # without a stored copy, the input itself is read
                source = self.problem.produced_placements(group, strategies[group.class_id])
                saved |= dict.fromkeys(group.tensors, source)
            for keeping, copies in variables.kept.items():
                # Shares of members, as rounded; members that another keeping stores do not count.
                stored = [
                    tensor
                    for tensor, node in zip(group.tensors, group.producers, strict=True)
                    if (how := kept.get(node, table.DEFAULT)) == keeping
                    or (how.reruns and keeping == table.DEFAULT)
                ]
                of_all = len(group.tensors)
                saved |= _assign_by_share(stored[::-1], copies, values, of_all)
            resident |= _assign_by_share(group.tensors, variables.loop_resident, values)
        return Decisions(tuple(strategies), kept, saved, resident)

    def seconds(self, objective: float) -> float:
        """An objective of the program in seconds."""
        return objective / MICROSECONDS if math.isfinite(objective) else objective

    def nbytes(self, peak: float) -> float:
        """The minimized memory in bytes."""
        return peak if self.memory_constraints is None else peak * self.memory_constraints.unit


class Programs:
    """The programs of a search whose problems differ only in ``Problem.shares``.

    They have the same rows, which take longer to build than to solve. So the rows of the first
    program, which has all candidates, are stored as they were before anything was added for a
    solve. Each relaxation begins where the last one ended, and takes half of the time or less.
    """

    def __init__(self) -> None:
        self._first: tuple[object, SearchOptions, Formulation] | None = None
        self._last: GrowingProgram | None = None

    def of(
        self,
        problem: Problem,
        candidates: Sequence[Sequence[Strategy]],
        options: SearchOptions,
        deadline: float,
    ) -> Formulation:
        """The program of a problem, on the rows of the first one if it needs the same rows."""
        asked_for = problem, candidates, options
        if self._first is None:
            self._first = candidates, options, Formulation(*asked_for, deadline=deadline)
        of_first, asked, first = self._first
        # Candidates are compared by identity; comparing all strategies of all classes would be
        # slow.
        if of_first is not candidates or asked != options:
            return Formulation(*asked_for, deadline=deadline)
        found = first.discounted(problem)
        if self._last is not None:
            found.program.start_from(self._last)
        self._last = found.program
        return found


def _assign_by_share(
    tensors: Sequence[int],
    variables: Mapping[Placements, int],
    values: np.ndarray,
    of_all: int | None = None,
) -> dict[int, Placements]:
    """Placements for tensors in proportion to shares, rounded down, the largest share first.

    Args:
        of_all: the number of tensors that shares refer to, if it is not the number of these.
    """
    number = len(tensors) if of_all is None else of_all
    shares = {s: values[v] for s, v in variables.items() if values[v] > TOLERANCE}
    assigned: dict[int, Placements] = {}
    start, total = 0, 0.0
    for placements, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        total += share
        end = min(len(tensors), math.floor(total * number + TOLERANCE))
        assigned |= dict.fromkeys(tensors[start:end], placements)
        start = max(start, end)
    return assigned
