"""The variables of the exact search that choose a strategy for every class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tensorstate.ir.placements import Placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup
from tensorstate.solver.linear_program import LinearProgram, Solution

# Groups of at most this many members get an integer count of recomputed or saved members; larger
# ones get a fraction, which is rounded to whole members afterwards.
MAX_INTEGRAL = 4

# Share of a class that a strategy must have in a relaxed solution to be kept as a candidate.
SUPPORT_THRESHOLD = 1e-2


class StrategyVariables:
    """``strategy[g, w]`` and ``x[g, w, a]`` of ``tensorstate.solver.formulation``.

    Args:
        program: the program to which they are added.
        problem: the problem to decide.
        candidates: the candidate strategies of every class.
        recompute: whether classes may be recomputed.

    Attributes:
        x: by class, the variables of its strategies, recomputed or not.
        seconds: seconds of compute, for all of each variable.
    """

    def __init__(
        self,
        program: LinearProgram,
        problem: Problem,
        candidates: Sequence[Sequence[Strategy]],
        recompute: bool,
    ):
        self.program, self.problem, self.recompute = program, problem, recompute
        self.seconds: list[tuple[int, float]] = []
        self.x = [
            self._add_class(class_id, strategies) for class_id, strategies in enumerate(candidates)
        ]

    def _add_class(
        self, class_id: int, candidates: Sequence[Strategy]
    ) -> dict[tuple[Strategy, bool], int]:
        """The strategies of a class, of which exactly one is chosen, and their recomputed shares:

        sum over w of strategy[g, w] = 1
        x[g, w, 0] + x[g, w, 1] = strategy[g, w]
        """
        problem, multiplicity = self.problem, self.problem.multiplicity(class_id)
        recomputed = self.recompute and problem.is_in_forward(class_id)
        choices, strategies = {}, []
        for strategy in candidates:
            strategies.append(self.program.add_variable(high=1.0, integer=True))
            seconds = multiplicity * problem.seconds(class_id, strategy)
            choices[strategy, False] = strategies[-1]
            if recomputed:
                choices[strategy, False] = self.program.add_fraction()
                choices[strategy, True] = self.program.add_fraction()
                self.make_integral(choices[strategy, True], multiplicity)
                parts = [(choices[strategy, a], 1.0) for a in (False, True)]
                self.program.add_constraint([*parts, (strategies[-1], -1.0)], 0.0, 0.0)
                self.seconds.append((choices[strategy, True], 2 * seconds))
            self.seconds.append((choices[strategy, False], seconds))
        self.program.add_constraint([(v, 1.0) for v in strategies], 1.0, 1.0)
        return choices

    def make_integral(self, share: int, multiplicity: int) -> None:
        """A share of a small group stands for whole members: share = count / multiplicity."""
        if multiplicity <= MAX_INTEGRAL:
            count = self.program.add_variable(integer=True, implied_upper=multiplicity)
            self.program.add_constraint([(share, 1.0), (count, -1.0 / multiplicity)], 0.0, 0.0)

    def source_terms(
        self, group: TensorGroup, recomputed: bool | None = None
    ) -> dict[Placements, list[int]]:
        """By placements, the variables whose strategies produce a group's tensors in them."""
        terms: dict[Placements, list[int]] = defaultdict(list)
        for (strategy, a), variable in self.x[group.class_id].items():
            if recomputed is None or a == recomputed:
                terms[self.problem.produced_placements(group, strategy)].append(variable)
        return terms

    def target_terms(
        self, consumer_class: ConsumerClass, recomputed: bool | None = None
    ) -> dict[Placements, list[int]]:
        """By placements, the variables whose strategies require a group's tensors in them."""
        terms: dict[Placements, list[int]] = defaultdict(list)
        for (strategy, a), variable in self.x[consumer_class.class_id or 0].items():
            if recomputed is None or a == recomputed:
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
