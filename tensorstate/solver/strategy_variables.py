"""Strategies as variables: x[c, s] for class c and candidate strategy s, which add up to 1."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxcoll.numerics.program import Solution
from tensorstate.cost.memory import KeepingsThat, any_keeping
from tensorstate.ir.placements import Placements
from tensorstate.keeping.base import Keeping
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup
from tensorstate.solver.growing_program import GrowingProgram

# Groups of at most this many members get an integer count of those that are kept in some way;
# larger ones get a fraction, which is rounded to whole members afterwards.
MAX_INTEGRAL = 4

# Share of a class that a strategy must have in a relaxed solution to be kept as a candidate.
SUPPORT_THRESHOLD = 1e-2


class StrategyVariables:
    """``strategy[g, w]`` and ``x[g, w, k]`` of ``tensorstate.solver.formulation``.

    Args:
        program: the program to which they are added.
        problem: the problem to decide.
        candidates: the candidate strategies of every class.
        keepings: the ways in which results may be kept, the default first.

    Attributes:
        x: for each class, the variables of its strategies and keepings.
        seconds: each variable, with its seconds of compute if its value is 1.
    """

    def __init__(
        self,
        program: GrowingProgram,
        problem: Problem,
        candidates: Sequence[Sequence[Strategy]],
        keepings: Sequence[Keeping],
    ):
        self.program, self.problem, self.keepings = program, problem, keepings
        self.seconds: list[tuple[int, float]] = []
        self.x = [
            self._add_class(class_id, strategies) for class_id, strategies in enumerate(candidates)
        ]

    def _add_class(
        self, class_id: int, candidates: Sequence[Strategy]
    ) -> dict[tuple[Strategy, Keeping], int]:
        """The strategies of a class, of which exactly one is chosen, and shares by keeping:

        sum over w of strategy[g, w] = 1
        sum over k of x[g, w, k] = strategy[g, w]
        """
        problem, multiplicity = self.problem, self.problem.multiplicity(class_id)
        default, *others = (k for k in self.keepings if problem.may_keep(class_id, k))
        choices, strategies = dict[tuple[Strategy, Keeping], int](), list[int]()
        for strategy in candidates:
            strategies.append(self.program.add_variable(high=1.0, integer=True))
            seconds = multiplicity * problem.seconds(class_id, strategy)
            choices[strategy, default] = strategies[-1]
            if others:
                # Layers of a class share the strategy, but some of them may be kept in another way.
                # So shares are separate variables, and only the strategy is in {0, 1}.
                choices[strategy, default] = self.program.add_fraction()
                for keeping in others:
                    choices[strategy, keeping] = self.program.add_fraction()
                    self.make_integral(choices[strategy, keeping], multiplicity)
                parts = [(choices[strategy, keeping], 1.0) for keeping in (default, *others)]
                self.program.add_constraint([*parts, (strategies[-1], -1.0)], 0.0, 0.0)
            for keeping in (*others, default):
                self.seconds.append((choices[strategy, keeping], keeping.runs * seconds))
        self.program.add_constraint([(v, 1.0) for v in strategies], 1.0, 1.0)
        return choices

    def sent(self, problem: Problem) -> Iterator[tuple[int, float]]:
        """Each variable whose operator sends, and the seconds of its sends if its value is 1."""
        for class_id, choices in enumerate(self.x):
            for (strategy, keeping), variable in choices.items():
                each = problem.inner_paid(class_id, strategy)
                if each:
                    yield variable, problem.multiplicity(class_id) * each * keeping.runs

    def make_integral(self, share: int, multiplicity: int) -> None:
        """Restrict a share of a small group to whole members: share = count / multiplicity."""
        if multiplicity <= MAX_INTEGRAL:
            count = self.program.add_variable(integer=True, implied_upper=multiplicity)
            self.program.add_constraint([(share, 1.0), (count, -1.0 / multiplicity)], 0.0, 0.0)

    def by_strategy(self, class_id: int) -> dict[Strategy, list[int]]:
        """The variables of each strategy of a class."""
        terms: dict[Strategy, list[int]] = defaultdict(list)
        for (strategy, _), variable in self.x[class_id].items():
            terms[strategy].append(variable)
        return terms

    def source_terms(
        self, group: TensorGroup, kept: KeepingsThat = any_keeping
    ) -> dict[Placements, list[int]]:
        """For each placement, the variables whose strategies produce a group's tensors in it."""
        terms: dict[Placements, list[int]] = defaultdict(list)
        for (strategy, keeping), variable in self.x[group.class_id].items():
            if kept(keeping):
                terms[self.problem.produced_placements(group, strategy)].append(variable)
        return terms

    def target_terms(
        self, consumer_class: ConsumerClass, kept: KeepingsThat = any_keeping
    ) -> dict[Placements, list[int]]:
        """For each placement, the variables whose strategies require a group's tensors in it."""
        terms: dict[Placements, list[int]] = defaultdict(list)
        for (strategy, keeping), variable in self.x[consumer_class.class_id or 0].items():
            if kept(keeping):
                terms[self.problem.required_placements(consumer_class, strategy)].append(variable)
        return terms

    def fractional_support(self, relaxed: Solution) -> list[list[Strategy]]:
        """For every class, the strategies with a positive share in a relaxed solution."""
        support = []
        for choices in self.x:
            shares: dict[Strategy, float] = defaultdict(float)
            for (strategy, _), variable in choices.items():
                shares[strategy] += relaxed.values[variable]
            least = min(SUPPORT_THRESHOLD, max(shares.values()))
            support.append([strategy for strategy, share in shares.items() if share >= least])
        return support
