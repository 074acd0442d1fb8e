"""The variables of the exact search that say in which way every class runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tensorstate.ir.placements import Placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup
from tensorstate.solver.linear_program import LinearProgram, Solution

# Layers of a class, and tensors of a flow, up to which those made again or kept are counted by an
# integer.
MAX_INTEGRAL = 4

# The part of a class that runs in a way in a relaxed solution, from which the way is a likely one.
SUPPORT_THRESHOLD = 1e-2


class StrategyVariables:
    """``strategy[g, w]`` and ``x[g, w, a]`` of ``tensorstate.solver.formulation``.

    Args:
        program: to which they are added.
        problem: what to decide.
        candidates: for every class the ways to choose from.
        recompute: whether classes may be made again.

    Attributes:
        x: by class the variables of its ways, made again or not.
        seconds: of compute, for all of each variable.
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
        self.x = [self._of(class_id, strategies) for class_id, strategies in enumerate(candidates)]

    def _of(
        self, class_id: int, candidates: Sequence[Strategy]
    ) -> dict[tuple[Strategy, bool], int]:
        """The choices of a class, of which exactly one is taken."""
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
        """A share stands for whole layers or tensors; few are counted, many are rounded."""
        if multiplicity <= MAX_INTEGRAL:
            number = self.program.add_variable(integer=True, implied_upper=multiplicity)
            self.program.add_constraint([(share, 1.0), (number, -1.0 / multiplicity)], 0.0, 0.0)

    def source_terms(
        self, group: TensorGroup, recomputed: bool | None = None
    ) -> dict[Placements, list[int]]:
        """The choices that put a flow's tensor in each state."""
        found: dict[Placements, list[int]] = defaultdict(list)
        for (strategy, a), variable in self.x[group.class_id].items():
            if recomputed is None or a == recomputed:
                found[self.problem.produced_placements(group, strategy)].append(variable)
        return found

    def target_terms(
        self, consumer_class: ConsumerClass, recomputed: bool | None = None
    ) -> dict[Placements, list[int]]:
        """The choices that demand a flow's tensor in each state."""
        found: dict[Placements, list[int]] = defaultdict(list)
        for (strategy, a), variable in self.x[consumer_class.class_id or 0].items():
            if recomputed is None or a == recomputed:
                found[self.problem.required_placements(consumer_class, strategy)].append(variable)
        return found

    def fractional_support(self, relaxed: Solution) -> list[list[Strategy]]:
        """For every class the ways of which a relaxed solution has some part."""
        found = []
        for choices in self.x:
            parts: dict[Strategy, float] = defaultdict(float)
            for (strategy, _), variable in choices.items():
                parts[strategy] += relaxed.values[variable]
            least = min(SUPPORT_THRESHOLD, max(parts.values()))
            found.append([strategy for strategy, part in parts.items() if part >= least])
        return found
