"""The rows of the exact search that keep a memory limit.

What flows take at a point is linear in the choices, in what is kept and held, and in the moves that
are paid for, whose copies are there: it is what ``tensorstate.cost.memory`` says of decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tensorstate.cost.memory import receive_buffer_bytes, recomputed_counts, resharded_bytes
from tensorstate.ir.placements import Placements
from tensorstate.problem.reshard import ReshardStep
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.solver.linear_program import Terms
from tensorstate.solver.variables import StrategyVariables

# A memory limit in units of the program, whose solver has absolute tolerances.
MEMORY_UNITS = 1e3

UsedSteps = Mapping[ReshardStep, int]
"""The parts of a flow that take moves."""


class MemoryConstraints:
    """Bytes of a device, by what is chosen.

    Args:
        choices: the ways of all classes.
        limit: bytes; may be infinite.

    Attributes:
        unit: bytes of one in the program.
    """

    def __init__(self, choices: StrategyVariables, limit: float):
        self.choices, self.problem, self.program = choices, choices.problem, choices.program
        self.limit = limit
        self.unit = limit / MEMORY_UNITS if np.isfinite(limit) else 1e6
        self.inputs: dict[int, float] = defaultdict(float)
        self.there: dict[int, np.ndarray] = {}

    def add_group(
        self,
        number: int,
        saved: Mapping[Placements, int],
        reads_for_recompute: Sequence[Mapping[Placements, Terms]],
        loop_resident: Mapping[Placements, int],
        in_forward: UsedSteps,
        after_forward: UsedSteps,
        recomputed: Sequence[UsedSteps],
        after: UsedSteps,
    ) -> None:
        """What a flow takes at every point.

        Args:
            number: of the flow.
            saved, loop_resident: the shares that are, by state.
            reads_for_recompute: from where what runs again takes its parts.
            in_forward, after_forward, after: what is paid for in either era, and after the loop.
            recomputed: what is taken to each reader that runs again.
        """
        group, live_ranges, choices = (
            self.problem.tensor_groups[number],
            self.problem.live_ranges(number),
            self.choices,
        )
        for used, span, packed in (
            (in_forward, live_ranges.resharded_in_forward, live_ranges.receive_buffer_in_forward),
            (
                after_forward,
                live_ranges.resharded_after_forward,
                live_ranges.receive_buffer_after_forward,
            ),
            (after, live_ranges.resharded_after_loop, live_ranges.receive_buffer_after_loop),
            (
                self._max_of(recomputed),
                live_ranges.resharded_for_recompute,
                live_ranges.receive_buffer_for_recompute,
            ),
        ):
            for step, variable in used.items():
                self._add_bytes(variable, resharded_bytes(self.problem, group, step) * span)
                self._add_bytes(variable, receive_buffer_bytes(step) * packed)
        for placements, variables in choices.source_terms(group).items() if group.is_input else ():
            for variable in variables:
                nbytes = group.multiplicity * self.problem.input_bytes(group, placements)
                self.inputs[variable] += nbytes / self.unit
        self._keep(number, group, saved)
        self._saved_for_recompute(number, group, saved, reads_for_recompute)
        self._hold(number, group, loop_resident)
        self._live(group, choices.source_terms(group), live_ranges.producing)
        self._live(
            group,
            choices.source_terms(group, recomputed=True),
            recomputed_counts(group, live_ranges),
        )
        if not group.in_forward:
            self._live(
                group,
                self._consumers(group, live_ranges.last_backward_use),
                live_ranges.awaiting_backward_use,
            )
            return
        if not group.is_input and not group.needed_after_forward:
            self._live(
                group,
                self._consumers(group, live_ranges.last_forward_use),
                live_ranges.awaiting_forward_use,
            )
        self._live(
            group,
            self._consumers(group, live_ranges.fused_consumer, recomputed=False),
            live_ranges.fused_input,
        )

    def _max_of(self, restored: Sequence[UsedSteps]) -> UsedSteps:
        """The largest of the parts that take each move."""
        if len(restored) < 2:
            return restored[0] if restored else {}
        most = {step: self.program.add_fraction() for step in restored[0]}
        for one in restored:
            for step, variable in one.items():
                self.program.add_constraint([(most[step], 1.0), (variable, -1.0)], 0.0, np.inf)
        return most

    def _consumers(
        self, group: TensorGroup, number: int | None, recomputed: bool | None = None
    ) -> Mapping[Placements, list[int]]:
        """The choices by which a flow waits in each state for the readers of a demand.

        With no demand, or one of the caller, those of its maker.
        """
        consumer_class = None if number is None else group.consumer_classes[number]
        if consumer_class is None or consumer_class.class_id is None:
            return self.choices.source_terms(group, recomputed)
        return self.choices.target_terms(consumer_class, recomputed)

    def _live(
        self, group: TensorGroup, choices: Mapping[Placements, list[int]], span: np.ndarray
    ) -> None:
        """A flow is there in the state that choices say."""
        for placements, variables in choices.items():
            for variable in variables:
                self._add_bytes(variable, self.problem.local_bytes(group, placements) * span)

    def _keep(self, number: int, group: TensorGroup, saved: Mapping[Placements, int]) -> None:
        """What is kept; of what is fused only copies in other states than it is made in."""
        live_ranges, sources = self.problem.live_ranges(number), self.choices.source_terms(group)
        for placements, share in saved.items():
            nbytes = self.problem.local_bytes(group, placements)
            self._add_bytes(share, nbytes * live_ranges.saved)
            extra = nbytes * (live_ranges.saved_copy - live_ranges.saved)
            if extra.any():
                copied = self.program.add_fraction()
                made = [(choice, 1.0) for choice in sources.get(placements, ())]
                self.program.add_constraint([(copied, 1.0), (share, -1.0), *made], 0.0, np.inf)
                self._add_bytes(copied, extra)

    def _saved_for_recompute(
        self,
        number: int,
        group: TensorGroup,
        saved: Mapping[Placements, int],
        reads_for_recompute: Sequence[Mapping[Placements, Terms]],
    ) -> None:
        """What is fused, but kept for what runs again; and what is made again for it."""
        live_ranges, recomputed_nodes = (
            self.problem.live_ranges(number),
            self.choices.source_terms(group, recomputed=True),
        )
        for placements, share in saved.items() if not group.is_input else ():
            made = [(choice, 1.0) for choice in recomputed_nodes.get(placements, ())]
            nbytes = self.problem.local_bytes(group, placements)
            # Only where it may be made again it is so sooner.
            sooner = [(live_ranges.recomputed_early, [(share, 1.0)])] if made else []
            for span, others in ((live_ranges.saved_for_recompute, made), *sooner):
                if span.any():
                    self._add_bytes(
                        self._excess(placements, reads_for_recompute, others), nbytes * span
                    )

    def _excess(
        self,
        placements: Placements,
        reads_for_recompute: Sequence[Mapping[Placements, Terms]],
        others: Terms,
    ) -> int:
        """The most that what runs again takes in a state beside others."""
        rest = self.program.add_fraction()
        for restored in reads_for_recompute:
            parts = [(variable, -factor) for variable, factor in restored.get(placements, ())]
            self.program.add_constraint([(rest, 1.0), *parts, *others], 0.0, np.inf)
        return rest

    def _hold(
        self, number: int, group: TensorGroup, loop_resident: Mapping[Placements, int]
    ) -> None:
        """What is held; an input that is held where it is stored is there once."""
        span, sources = (
            self.problem.live_ranges(number).loop_resident,
            self.choices.source_terms(group),
        )
        for placements, share in loop_resident.items():
            there = self.problem.local_bytes(group, placements) * span
            self._add_bytes(share, there)
            if group.is_input and placements in sources:
                in_place = self.program.add_fraction()
                self.program.add_constraint([(in_place, 1.0), (share, -1.0)], -np.inf, 0.0)
                produced = [(choice, -1.0) for choice in sources[placements]]
                self.program.add_constraint([(in_place, 1.0), *produced], -np.inf, 0.0)
                self._add_bytes(in_place, -there)

    def _add_bytes(self, variable: int, nbytes: np.ndarray) -> None:
        """Bytes at every point for all of a variable."""
        if nbytes.any():
            self.there[variable] = self.there.get(variable, 0) + nbytes / self.unit

    def add_peak(self) -> int:
        """The peak, a new variable, which is within the limit.

        What is there at a point is what was there before, and what is new, less what is gone.
        """
        most = self.limit / self.unit
        peak, before = (self.program.add_variable(high=most) for _ in range(2))
        self.program.add_constraint([(before, -1.0), *self.inputs.items()], 0.0, 0.0)
        self.program.add_constraint([(before, 1.0), (peak, -1.0)], -np.inf, 0.0)
        variables = list(self.there)
        columns = np.array([self.there[v] for v in variables])
        changes = np.diff(columns[:, nondominated_points(columns)], axis=1, prepend=0.0)
        for change in changes.T:
            there = self.program.add_variable(high=most)
            new = [(variables[i], float(change[i])) for i in np.flatnonzero(change)]
            self.program.add_constraint([(there, -1.0), (before, 1.0), *new], 0.0, 0.0)
            self.program.add_constraint([(there, 1.0), (peak, -1.0)], -np.inf, 0.0)
            before = there
        return peak


def nondominated_points(columns: np.ndarray) -> np.ndarray:
    """The points at which not all that may be there is there at the next one that is left too."""
    left: list[int] = []
    for point in range(columns.shape[1]):
        while left and (columns[:, point] >= columns[:, left[-1]]).all():
            left.pop()
        if not left or (columns[:, point] > columns[:, left[-1]]).any():
            left.append(point)
    return np.array(left)
