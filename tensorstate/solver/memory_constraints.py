"""The rows of the exact search that keep a memory limit.

What flows take at a point is linear in the choices, in what is kept and held, and in the moves that
are paid for, whose copies are there: it is what ``tensorstate.cost.memory`` says of decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tensorstate.cost.memory import made_again, moved_bytes, packed_bytes
from tensorstate.ir.placements import Placements
from tensorstate.problem.reshard import Move
from tensorstate.problem.tensor_groups import Flow
from tensorstate.solver.linear_program import Terms
from tensorstate.solver.variables import Choices

# A memory limit in units of the program, whose solver has absolute tolerances.
LIMIT = 1e3

Paid = Mapping[Move, int]
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
        kept: Mapping[Placements, int],
        reread: Sequence[Mapping[Placements, Terms]],
        held: Mapping[Placements, int],
        early: Paid,
        late: Paid,
        again: Sequence[Paid],
        after: Paid,
    ) -> None:
        """What a flow takes at every point.

        Args:
            number: of the flow.
            kept, held: the shares that are, by state.
            reread: from where what runs again takes its parts.
            early, late, after: what is paid for in either era, and after the loop.
            again: what is taken to each reader that runs again.
        """
        flow, spans, choices = self.problem.flows[number], self.problem.spans(number), self.choices
        for paid, span, packed in (
            (early, spans.moved_early, spans.packed_early),
            (late, spans.moved_late, spans.packed_late),
            (after, spans.moved_after, spans.packed_after),
            (self._most(again), spans.moved_again, spans.packed_again),
        ):
            for move, variable in paid.items():
                self._add(variable, moved_bytes(self.problem, flow, move) * span)
                self._add(variable, packed_bytes(move) * packed)
        for placements, variables in choices.sources(flow).items() if flow.stored else ():
            for variable in variables:
                nbytes = flow.multiplicity * self.problem.stored_bytes(flow, placements)
                self.inputs[variable] += nbytes / self.unit
        self._keep(number, flow, kept)
        self._bind(number, flow, kept, reread)
        self._hold(number, flow, held)
        self._wait(flow, choices.sources(flow), spans.made)
        self._wait(flow, choices.sources(flow, again=True), made_again(flow, spans))
        if not flow.early:
            self._wait(flow, self._readers(flow, spans.last_late), spans.late)
            return
        if not flow.stored and not flow.stays:
            self._wait(flow, self._readers(flow, spans.last_early), spans.early)
        self._wait(flow, self._readers(flow, spans.lender, again=False), spans.lent)

    def _most(self, taken: Sequence[Paid]) -> Paid:
        """The largest of the parts that take each move."""
        if len(taken) < 2:
            return taken[0] if taken else {}
        most = {move: self.program.part() for move in taken[0]}
        for one in taken:
            for move, variable in one.items():
                self.program.row([(most[move], 1.0), (variable, -1.0)], 0.0, np.inf)
        return most

    def _readers(
        self, flow: Flow, number: int | None, again: bool | None = None
    ) -> Mapping[Placements, list[int]]:
        """The choices by which a flow waits in each state for the readers of a demand.

        With no demand, or one of the caller, those of its maker.
        """
        demand = None if number is None else flow.demands[number]
        if demand is None or demand.class_id is None:
            return self.choices.sources(flow, again)
        return self.choices.targets(demand, again)

    def _wait(self, flow: Flow, choices: Mapping[Placements, list[int]], span: np.ndarray) -> None:
        """A flow is there in the state that choices say."""
        for placements, variables in choices.items():
            for variable in variables:
                self._add(variable, self.problem.local_bytes(flow, placements) * span)

    def _keep(self, number: int, flow: Flow, kept: Mapping[Placements, int]) -> None:
        """What is kept; of what is fused only copies in other states than it is made in."""
        spans, sources = self.problem.spans(number), self.choices.sources(flow)
        for placements, share in kept.items():
            nbytes = self.problem.local_bytes(flow, placements)
            self._add(share, nbytes * spans.kept)
            extra = nbytes * (spans.copied - spans.kept)
            if extra.any():
                copied = self.program.part()
                made = [(choice, 1.0) for choice in sources.get(placements, ())]
                self.program.row([(copied, 1.0), (share, -1.0), *made], 0.0, np.inf)
                self._add(copied, extra)

    def _bind(
        self,
        number: int,
        flow: Flow,
        kept: Mapping[Placements, int],
        reread: Sequence[Mapping[Placements, Terms]],
    ) -> None:
        """What is fused, but kept for what runs again; and what is made again for it."""
        spans, remade = self.problem.spans(number), self.choices.sources(flow, again=True)
        for placements, share in kept.items() if not flow.stored else ():
            made = [(choice, 1.0) for choice in remade.get(placements, ())]
            nbytes = self.problem.local_bytes(flow, placements)
            # Only where it may be made again it is so sooner.
            sooner = [(spans.sooner, [(share, 1.0)])] if made else []
            for span, others in ((spans.bound, made), *sooner):
                if span.any():
                    self._add(self._rest(placements, reread, others), nbytes * span)

    def _rest(
        self, placements: Placements, reread: Sequence[Mapping[Placements, Terms]], others: Terms
    ) -> int:
        """The most that what runs again takes in a state beside others."""
        rest = self.program.part()
        for taken in reread:
            parts = [(variable, -factor) for variable, factor in taken.get(placements, ())]
            self.program.row([(rest, 1.0), *parts, *others], 0.0, np.inf)
        return rest

    def _hold(self, number: int, flow: Flow, held: Mapping[Placements, int]) -> None:
        """What is held; an input that is held where it is stored is there once."""
        span, sources = self.problem.spans(number).held, self.choices.sources(flow)
        for placements, share in held.items():
            there = self.problem.local_bytes(flow, placements) * span
            self._add(share, there)
            if flow.stored and placements in sources:
                stays = self.program.part()
                self.program.row([(stays, 1.0), (share, -1.0)], -np.inf, 0.0)
                stored = [(choice, -1.0) for choice in sources[placements]]
                self.program.row([(stays, 1.0), *stored], -np.inf, 0.0)
                self._add(stays, -there)

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
