"""The memory constraints of the exact search.

The bytes of a tensor group at a program point are linear in the variables: they are the terms of
``tensorstate.cost.memory``, with a variable as the share of each term.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tensorstate.cost.memory import ReshardPhase, Shares, memory_terms
from tensorstate.ir.placements import Placements
from tensorstate.problem.reshard import ReshardStep
from tensorstate.solver.linear_program import Terms
from tensorstate.solver.reshard_constraints import GroupVariables, StrategyVariables, UsedSteps

# The memory limit in units of the program: the solver's tolerances are absolute.
MEMORY_UNITS = 1e3


class MemoryConstraints:
    """Bounds the live bytes per device by the memory limit.

    Args:
        choices: the strategies of all classes.
        limit: bytes; may be infinite.

    Attributes:
        unit: bytes per unit of the program.
    """

    def __init__(self, choices: StrategyVariables, limit: float):
        self.choices, self.problem, self.program = choices, choices.problem, choices.program
        self.limit = limit
        self.unit = limit / MEMORY_UNITS if np.isfinite(limit) else 1e6
        self.inputs: dict[int, float] = defaultdict(float)
        self.live: dict[int, np.ndarray] = {}  # by variable, bytes at every program point

    def add_group(self, variables: GroupVariables) -> None:
        """Add the bytes of a tensor group at every program point."""
        group = self.problem.tensor_groups[variables.number]
        shares = VariableShares(self.choices, variables)
        for _, variable, nbytes in memory_terms(self.problem, variables.number, shares):
            if nbytes.any():
                self.live[variable] = self.live.get(variable, 0) + nbytes / self.unit
        if group.is_input:
            for placements, sources in shares.produced().items():
                nbytes = group.multiplicity * self.problem.input_bytes(group, placements)
                for variable in sources:
                    self.inputs[variable] += nbytes / self.unit

    def add_peak(self) -> int:
        """The peak, a new variable: live bytes <= peak <= limit.

        The live bytes at a program point are written as those at the preceding point plus the
        difference, which has few terms:

            inputs = sum over v of inputs[v] v <= peak <= limit
            live[t] = live[t - 1] + sum over v of (bytes[v, t] - bytes[v, t - 1]) v <= peak
        """
        limit = self.limit / self.unit
        peak, before = (self.program.add_variable(high=limit) for _ in range(2))
        self.program.add_constraint([(before, -1.0), *self.inputs.items()], 0.0, 0.0)
        self.program.add_constraint([(before, 1.0), (peak, -1.0)], -np.inf, 0.0)
        variables = list(self.live)
        columns = np.array([self.live[v] for v in variables])
        changes = np.diff(columns[:, nondominated_points(columns)], axis=1, prepend=0.0)
        for change in changes.T:
            live = self.program.add_variable(high=limit)
            new = [(variables[i], float(change[i])) for i in np.flatnonzero(change)]
            self.program.add_constraint([(live, -1.0), (before, 1.0), *new], 0.0, 0.0)
            self.program.add_constraint([(live, 1.0), (peak, -1.0)], -np.inf, 0.0)
            before = live
        return peak


class VariableShares(Shares[int]):
    """The shares of a tensor group as variables of the program.

    A share that is the positive part of a difference, or the largest of several shares, is a new
    variable that is at least (or, where it reduces memory, at most) each of them.
    """

    def __init__(self, choices: StrategyVariables, variables: GroupVariables):
        self.choices, self.program, self.variables = choices, choices.program, variables
        self.group = choices.problem.tensor_groups[variables.number]

    def resharded(self, phase: ReshardPhase) -> UsedSteps:
        """See ``Shares``."""
        if phase == "for_recompute":
            return self._largest(self.variables.for_recompute)
        return self.variables.used.get(phase, {})

    def _largest(self, flows: Sequence[UsedSteps]) -> UsedSteps:
        """By step m: largest[m] >= flow[d, m] for every recomputed consumer d."""
        if len(flows) < 2:
            return flows[0] if flows else {}
        largest: Mapping[ReshardStep, int] = {
            step: self.program.add_fraction() for step in flows[0]
        }
        for flow in flows:
            for step, variable in flow.items():
                self.program.add_constraint([(largest[step], 1.0), (variable, -1.0)], 0.0, np.inf)
        return largest

    def produced(self, recomputed: bool | None = None) -> Mapping[Placements, list[int]]:
        """See ``Shares``."""
        return self.choices.source_terms(self.group, recomputed)

    def awaiting(
        self, consumer: int | None, recomputed: bool | None = None
    ) -> Mapping[Placements, Iterable[int]]:
        """See ``Shares``."""
        consumer_class = None if consumer is None else self.group.consumer_classes[consumer]
        if consumer_class is None or consumer_class.class_id is None:
            return self.choices.source_terms(self.group, recomputed)
        return self.choices.target_terms(consumer_class, recomputed)

    def saved(self) -> Mapping[Placements, int]:
        """See ``Shares``."""
        return self.variables.saved

    def saved_beside_produced(self, placements: Placements) -> int:
        """copied[s] >= saved[s] - produced[s]."""
        copied, share = self.program.add_fraction(), self.variables.saved[placements]
        produced = [(v, 1.0) for v in self.produced().get(placements, ())]
        self.program.add_constraint([(copied, 1.0), (share, -1.0), *produced], 0.0, np.inf)
        return copied

    def saved_for_recompute(self, placements: Placements) -> int:
        """read[s] >= restored[d, s] - recomputed[s] for every recomputed consumer d."""
        recomputed = self.produced(recomputed=True).get(placements, ())
        return self._restored_beside(placements, [(v, 1.0) for v in recomputed])

    def recomputed_for_recompute(self, placements: Placements) -> int | None:
        """read[s] >= restored[d, s] - saved[s] for every recomputed consumer d."""
        if placements not in self.produced(recomputed=True):
            return None
        return self._restored_beside(placements, [(self.variables.saved[placements], 1.0)])

    def _restored_beside(self, placements: Placements, others: Terms) -> int:
        """The largest share that a recomputed consumer takes in a placement, minus others."""
        read = self.program.add_fraction()
        for restored in self.variables.restored_for_recompute:
            parts = [(variable, -factor) for variable, factor in restored.get(placements, ())]
            self.program.add_constraint([(read, 1.0), *parts, *others], 0.0, np.inf)
        return read

    def loop_resident(self) -> Mapping[Placements, int]:
        """See ``Shares``."""
        return self.variables.loop_resident

    def resident_in_place(self, placements: Placements) -> int | None:
        """in_place[s] <= loop_resident[s], in_place[s] <= produced[s]."""
        sources = self.produced()
        if not self.group.is_input or placements not in sources:
            return None
        in_place, resident = self.program.add_fraction(), self.variables.loop_resident[placements]
        self.program.add_constraint([(in_place, 1.0), (resident, -1.0)], -np.inf, 0.0)
        produced = [(v, -1.0) for v in sources[placements]]
        self.program.add_constraint([(in_place, 1.0), *produced], -np.inf, 0.0)
        return in_place


def nondominated_points(columns: np.ndarray) -> np.ndarray:
    """Program points not dominated by a neighbouring kept point.

    A point is dominated if every variable has at least as many bytes live at the other.

    Args:
        columns: bytes per variable (rows) and program point (columns).
    """
    kept: list[int] = []
    for point in range(columns.shape[1]):
        while kept and (columns[:, point] >= columns[:, kept[-1]]).all():
            kept.pop()
        if not kept or (columns[:, point] > columns[:, kept[-1]]).any():
            kept.append(point)
    return np.array(kept)
