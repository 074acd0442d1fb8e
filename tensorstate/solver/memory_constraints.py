"""The memory limit of the exact search: the bytes of tensor groups at program points, linearly.

The bytes are the terms of ``tensorstate.cost.memory``, with a variable as the share of each term.
``formulation`` defines the letters; this file adds its constraint (11).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix

from jaxcoll.numerics.program import Terms
from tensorstate.cost.memory import KeepingsThat, ReshardPhase, Shares, any_keeping, memory_terms
from tensorstate.ir.placements import Placements
from tensorstate.keeping.base import Keeping
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.reshard import ReshardStep
from tensorstate.solver.reshard_constraints import GroupVariables, UsedSteps
from tensorstate.solver.strategy_variables import StrategyVariables

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
        self.live: dict[int, np.ndarray] = {}  # variable -> bytes at every program point

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

    def bytes_at_points(self, values: np.ndarray) -> np.ndarray:
        """Bytes at every program point, for given values of the variables."""
        inputs = sum(values[variable] * nbytes for variable, nbytes in self.inputs.items())
        live = (values[variable] * nbytes for variable, nbytes in self.live.items())
        return self.unit * sum(live, start=np.full(1, inputs))

    def add_peak(self, reserved: np.ndarray | None) -> int:
        """Add the limit as a new variable: live bytes <= peak = limit, at every program point.

        Program points other than the first are lazy rows of the program.

        Args:
            reserved: parts of the limit at every program point that are used otherwise, if any.
        """
        limit = self.limit / self.unit
        peak = self.program.add_variable(low=limit if np.isfinite(limit) else 0.0, high=limit)
        self.program.add_constraint([*self.inputs.items(), (peak, -1.0)], -np.inf, 0.0)
        variables = np.array([*self.live], dtype=np.int32)
        columns = np.array([*self.live.values()])
        if not len(variables):
            return peak
        # If no variable takes more at a point than at a neighbour, the point cannot be the only
        # peak. Few points of a layer remain.
        if reserved is None:  # with parts reserved, a point of fewer bytes may be the tighter one
            columns = columns[:, nondominated_rows(columns.T)]
        live = coo_matrix(columns.T)
        points = columns.shape[1]
        shape = points, self.program.num_variables
        # Every row: live[t] + inputs - peak <= 0. All rows contain the inputs and the peak.
        everywhere = np.array([*self.inputs, peak], dtype=np.int32)
        nbytes = np.array([*self.inputs.values(), -1.0])
        numbers = np.repeat(np.arange(points), len(everywhere))
        parts = (
            (live.data, (live.row, variables[live.col])),
            (np.tile(nbytes, points), (numbers, np.tile(everywhere, points))),
        )
        if reserved is not None:  # a part of the limit that this program may not use
            parts += ((reserved, (np.arange(points), np.full(points, peak))),)
        self.program.set_lazy(
            sum((csr_matrix(part, shape) for part in parts), start=csr_matrix(shape))
        )
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
        if phase == "for_rerun":
            return self._largest(self.variables.for_rerun)
        return self.variables.used.get(phase, {})

    def _largest(self, flows: Sequence[UsedSteps]) -> UsedSteps:
        """For each step m: largest[m] >= flow[d, m] for every consumer d that reruns."""
        if len(flows) < 2:
            return flows[0] if flows else {}
        # One copy serves all of them; the sum of their flows would count it once for each.
        largest: Mapping[ReshardStep, int] = {
            step: self.program.add_fraction() for step in flows[0]
        }
        for flow in flows:
            for step, variable in flow.items():
                self.program.add_constraint([(largest[step], 1.0), (variable, -1.0)], 0.0, np.inf)
        return largest

    def produced(self, kept: KeepingsThat = any_keeping) -> Mapping[Placements, list[int]]:
        """See ``Shares``."""
        return self.choices.source_terms(self.group, kept)

    def awaiting(
        self, consumer: int | None, kept: KeepingsThat = any_keeping
    ) -> Mapping[Placements, Iterable[int]]:
        """See ``Shares``."""
        consumer_class = None if consumer is None else self.group.consumer_classes[consumer]
        # The caller of the step accepts any placements; for it a tensor waits as it is produced.
        if consumer_class is None or consumer_class.class_id is None:
            return self.choices.source_terms(self.group, kept)
        return self.choices.target_terms(consumer_class, kept)

    def produced_by(self) -> Mapping[Strategy, list[int]]:
        """See ``Shares``."""
        return self.choices.by_strategy(self.group.class_id)

    def read_by(self, consumer: int) -> Mapping[Strategy, list[int]]:
        """See ``Shares``."""
        class_id = self.group.consumer_classes[consumer].class_id
        return {} if class_id is None else self.choices.by_strategy(class_id)

    def copies(self, keeping: Keeping) -> Mapping[Placements, list[int]]:
        """See ``Shares``."""
        return {s: [copy] for s, copy in self.variables.kept.get(keeping, {}).items()}

    def copies_apart(self, keeping: Keeping) -> Mapping[Placements, list[int]]:
        """Variables with apart[s] >= kept[k, s] - produced[s]."""
        # Its bytes are minimized or limited, so it becomes the difference or 0.
        produced, apart = self.produced(), dict[Placements, list[int]]()
        for placements, copy in self.variables.kept.get(keeping, {}).items():
            share = self.program.add_fraction()
            others = [(v, 1.0) for v in produced.get(placements, ())]
            self.program.add_constraint([(share, 1.0), (copy, -1.0), *others], 0.0, np.inf)
            apart[placements] = [share]
        return apart

    def copies_for_rerun(self, keeping: Keeping) -> Mapping[Placements, list[int]]:
        """Variables with read[s] >= restored[d, s] - others[s] for every consumer d that reruns.

        The others are rebuilt in s, or have another copy in s.
        """
        copies = self.variables.kept.get(keeping, {})
        return {s: [self._restored_beside(s, keeping)] for s in copies}

    def made_for_rerun(self, keeping: Keeping) -> Mapping[Placements, list[int]]:
        """Variables with read[s] >= restored[d, s] - others[s] for every consumer d that reruns.

        The others have a copy in s.
        """
        places = sorted(self.made(keeping).keys() & self.variables.stored().keys())
        return {s: [self._restored_beside(s, keeping)] for s in places}

    def _restored_beside(self, placements: Placements, keeping: Keeping) -> int:
        """The largest share that a consumer which reruns takes from the copies of a keeping."""
        made = self.produced(lambda other: other.reruns and other != keeping)
        copies = (
            each[placements]
            for other, each in self.variables.kept.items()
            if other != keeping and placements in each
        )
        others: Terms = [(v, 1.0) for v in (*made.get(placements, ()), *copies)]
        read = self.program.add_fraction()
        for restored in self.variables.restored_for_rerun:
            parts = [(variable, -factor) for variable, factor in restored.get(placements, ())]
            self.program.add_constraint([(read, 1.0), *parts, *others], 0.0, np.inf)
        return read

    def loop_resident(self) -> Mapping[Placements, int]:
        """See ``Shares``."""
        return self.variables.loop_resident

    def resident_in_place(self, placements: Placements) -> int | None:
        """A variable with in_place[s] <= loop_resident[s] and in_place[s] <= produced[s]."""
        sources = self.produced()
        if not self.group.is_input or placements not in sources:
            return None
        # It reduces bytes, so it becomes the smaller of the two.
        in_place, resident = self.program.add_fraction(), self.variables.loop_resident[placements]
        self.program.add_constraint([(in_place, 1.0), (resident, -1.0)], -np.inf, 0.0)
        produced = [(v, -1.0) for v in sources[placements]]
        self.program.add_constraint([(in_place, 1.0), *produced], -np.inf, 0.0)
        return in_place


def nondominated_rows(rows: np.ndarray) -> np.ndarray:
    """The lazy rows that a neighbouring row among those kept does not imply.

    A row is dominated by another one if no variable has a larger factor in it.
    """
    # Only neighbours are compared, between which few tensors begin or end; this removes most rows.
    kept: list[int] = []
    for row in range(len(rows)):
        while kept and (rows[row] >= rows[kept[-1]]).all():
            kept.pop()
        if not kept or (rows[row] > rows[kept[-1]]).any():
            kept.append(row)
    return np.array(kept)
