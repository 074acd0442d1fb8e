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
from tensorstate.solver.variables import Choices

# A memory limit in units of the program, whose solver has absolute tolerances.
LIMIT = 1e3

Paid = Mapping[ReshardStep, int]
"""The parts of a flow that take moves."""


class Room:
    """Bytes of a device, by what is chosen.

    Args:
        choices: the ways of all classes.
        limit: bytes; may be infinite.

    Attributes:
        unit: bytes of one in the program.
    """

    def __init__(self, choices: Choices, limit: float):
        self.choices, self.problem, self.program = choices, choices.problem, choices.program
        self.limit = limit
        self.unit = limit / LIMIT if np.isfinite(limit) else 1e6
        self.inputs: dict[int, float] = defaultdict(float)
        self.there: dict[int, np.ndarray] = {}

    def take(
        self,
        number: int,
        saved: Mapping[Placements, int],
        reads_for_recompute: Sequence[Mapping[Placements, Terms]],
        loop_resident: Mapping[Placements, int],
        in_forward: Paid,
        after_forward: Paid,
        recomputed: Sequence[Paid],
        after: Paid,
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
        for paid, span, packed in (
            (in_forward, live_ranges.resharded_in_forward, live_ranges.receive_buffer_in_forward),
            (
                after_forward,
                live_ranges.resharded_after_forward,
                live_ranges.receive_buffer_after_forward,
            ),
            (after, live_ranges.resharded_after_loop, live_ranges.receive_buffer_after_loop),
            (
                self._most(recomputed),
                live_ranges.resharded_for_recompute,
                live_ranges.receive_buffer_for_recompute,
            ),
        ):
            for step, variable in paid.items():
                self._add(variable, resharded_bytes(self.problem, group, step) * span)
                self._add(variable, receive_buffer_bytes(step) * packed)
        for placements, variables in choices.sources(group).items() if group.is_input else ():
            for variable in variables:
                nbytes = group.multiplicity * self.problem.input_bytes(group, placements)
                self.inputs[variable] += nbytes / self.unit
        self._keep(number, group, saved)
        self._bind(number, group, saved, reads_for_recompute)
        self._hold(number, group, loop_resident)
        self._wait(group, choices.sources(group), live_ranges.producing)
        self._wait(
            group, choices.sources(group, recomputed=True), recomputed_counts(group, live_ranges)
        )
        if not group.in_forward:
            self._wait(
                group,
                self._consumers(group, live_ranges.last_backward_use),
                live_ranges.awaiting_backward_use,
            )
            return
        if not group.is_input and not group.needed_after_forward:
            self._wait(
                group,
                self._consumers(group, live_ranges.last_forward_use),
                live_ranges.awaiting_forward_use,
            )
        self._wait(
            group,
            self._consumers(group, live_ranges.fused_consumer, recomputed=False),
            live_ranges.fused_input,
        )

    def _most(self, taken: Sequence[Paid]) -> Paid:
        """The largest of the parts that take each move."""
        if len(taken) < 2:
            return taken[0] if taken else {}
        most = {step: self.program.part() for step in taken[0]}
        for one in taken:
            for step, variable in one.items():
                self.program.row([(most[step], 1.0), (variable, -1.0)], 0.0, np.inf)
        return most

    def _consumers(
        self, group: TensorGroup, number: int | None, recomputed: bool | None = None
    ) -> Mapping[Placements, list[int]]:
        """The choices by which a flow waits in each state for the readers of a demand.

        With no demand, or one of the caller, those of its maker.
        """
        consumer_class = None if number is None else group.consumer_classes[number]
        if consumer_class is None or consumer_class.class_id is None:
            return self.choices.sources(group, recomputed)
        return self.choices.targets(consumer_class, recomputed)

    def _wait(
        self, group: TensorGroup, choices: Mapping[Placements, list[int]], span: np.ndarray
    ) -> None:
        """A flow is there in the state that choices say."""
        for placements, variables in choices.items():
            for variable in variables:
                self._add(variable, self.problem.local_bytes(group, placements) * span)

    def _keep(self, number: int, group: TensorGroup, saved: Mapping[Placements, int]) -> None:
        """What is kept; of what is fused only copies in other states than it is made in."""
        live_ranges, sources = self.problem.live_ranges(number), self.choices.sources(group)
        for placements, share in saved.items():
            nbytes = self.problem.local_bytes(group, placements)
            self._add(share, nbytes * live_ranges.saved)
            extra = nbytes * (live_ranges.saved_copy - live_ranges.saved)
            if extra.any():
                copied = self.program.part()
                made = [(choice, 1.0) for choice in sources.get(placements, ())]
                self.program.row([(copied, 1.0), (share, -1.0), *made], 0.0, np.inf)
                self._add(copied, extra)

    def _bind(
        self,
        number: int,
        group: TensorGroup,
        saved: Mapping[Placements, int],
        reads_for_recompute: Sequence[Mapping[Placements, Terms]],
    ) -> None:
        """What is fused, but kept for what runs again; and what is made again for it."""
        live_ranges, recomputed_nodes = (
            self.problem.live_ranges(number),
            self.choices.sources(group, recomputed=True),
        )
        for placements, share in saved.items() if not group.is_input else ():
            made = [(choice, 1.0) for choice in recomputed_nodes.get(placements, ())]
            nbytes = self.problem.local_bytes(group, placements)
            # Only where it may be made again it is so sooner.
            sooner = [(live_ranges.recomputed_early, [(share, 1.0)])] if made else []
            for span, others in ((live_ranges.saved_for_recompute, made), *sooner):
                if span.any():
                    self._add(self._rest(placements, reads_for_recompute, others), nbytes * span)

    def _rest(
        self,
        placements: Placements,
        reads_for_recompute: Sequence[Mapping[Placements, Terms]],
        others: Terms,
    ) -> int:
        """The most that what runs again takes in a state beside others."""
        rest = self.program.part()
        for taken in reads_for_recompute:
            parts = [(variable, -factor) for variable, factor in taken.get(placements, ())]
            self.program.row([(rest, 1.0), *parts, *others], 0.0, np.inf)
        return rest

    def _hold(
        self, number: int, group: TensorGroup, loop_resident: Mapping[Placements, int]
    ) -> None:
        """What is held; an input that is held where it is stored is there once."""
        span, sources = self.problem.live_ranges(number).loop_resident, self.choices.sources(group)
        for placements, share in loop_resident.items():
            there = self.problem.local_bytes(group, placements) * span
            self._add(share, there)
            if group.is_input and placements in sources:
                in_place = self.program.part()
                self.program.row([(in_place, 1.0), (share, -1.0)], -np.inf, 0.0)
                produced = [(choice, -1.0) for choice in sources[placements]]
                self.program.row([(in_place, 1.0), *produced], -np.inf, 0.0)
                self._add(in_place, -there)

    def _add(self, variable: int, nbytes: np.ndarray) -> None:
        """Bytes at every point for all of a variable."""
        if nbytes.any():
            self.there[variable] = self.there.get(variable, 0) + nbytes / self.unit

    def keep(self) -> int:
        """The peak, a new variable, which is within the limit.

        What is there at a point is what was there before, and what is new, less what is gone.
        """
        most = self.limit / self.unit
        peak, before = (self.program.variable(high=most) for _ in range(2))
        self.program.row([(before, -1.0), *self.inputs.items()], 0.0, 0.0)
        self.program.row([(before, 1.0), (peak, -1.0)], -np.inf, 0.0)
        variables = list(self.there)
        columns = np.array([self.there[v] for v in variables])
        changes = np.diff(columns[:, peaks(columns)], axis=1, prepend=0.0)
        for change in changes.T:
            there = self.program.variable(high=most)
            new = [(variables[i], float(change[i])) for i in np.flatnonzero(change)]
            self.program.row([(there, -1.0), (before, 1.0), *new], 0.0, 0.0)
            self.program.row([(there, 1.0), (peak, -1.0)], -np.inf, 0.0)
            before = there
        return peak


def peaks(columns: np.ndarray) -> np.ndarray:
    """The points at which not all that may be there is there at the next one that is left too."""
    left: list[int] = []
    for point in range(columns.shape[1]):
        while left and (columns[:, point] >= columns[:, left[-1]]).all():
            left.pop()
        if not left or (columns[:, point] > columns[:, left[-1]]).any():
            left.append(point)
    return np.array(left)
