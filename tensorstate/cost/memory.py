"""A device's memory under decisions: what is there at every point of a training step."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from tensorstate.cost.reshard_plan import Decisions, Trip
from tensorstate.ir.placements import Placements
from tensorstate.problem.liveness import Spans
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import Move
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import Demand, Flow

# Rounding of sums of shares, in bytes.
EXACT = 1e-6


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a device's memory when most is there.

    Attributes:
        inputs: parameters, optimizer state, batch and constants: there all the time.
        kept: activations and gathered copies, kept from the forward to the backward pass.
        held: gathered copies and sums, held through the loop over microbatches.
        gradients: that wait for the optimizer.
        work: what else the operators have there.
    """

    inputs: int
    kept: int
    held: int
    gradients: int
    work: int

    @property
    def peak(self) -> int:
        """The most that is there at once."""
        return self.inputs + self.kept + self.held + self.gradients + self.work

    def fits(self, limit: float | None) -> bool:
        """Whether it stays within a limit in bytes, should there be one."""
        return limit is None or self.peak <= limit


def memory_of(
    problem: Problem, decisions: Decisions, trips: Sequence[Trip], remade: frozenset[int]
) -> Memory:
    """The memory that decisions take.

    Args:
        trips: how all tensors travel.
        remade: entities that run again.
    """
    by_flow: dict[int, list[Trip]] = defaultdict(list)
    for trip in trips:
        by_flow[trip.flow].append(trip)
    inputs, there = 0, np.zeros((4, len(problem.timeline.points)))
    for number, found in by_flow.items():
        inputs += input_bytes(problem, found)
        there += occupied(problem, number, decisions.strategies, found, remade)
    return memory_at_peak(inputs, there)


def memory_at_peak(inputs: float, there: np.ndarray) -> Memory:
    """When most is there, of what is there beside the inputs at all points (``occupied``)."""
    total = there.sum(0)
    kept, held, gradients, _ = there[:, int(total.argmax())]
    parts = round(kept), round(held), round(gradients)
    return Memory(round(inputs), *parts, math.ceil(total.max() - EXACT) - sum(parts))


def input_bytes(problem: Problem, trips: Iterable[Trip]) -> int:
    """Bytes of inputs on a device, where they are stored."""
    flows = problem.flows
    return sum(
        trip.multiplicity * problem.stored_bytes(flows[trip.flow], trip.source)
        for trip in trips
        if flows[trip.flow].stored
    )


def occupied(
    problem: Problem,
    number: int,
    strategies: Sequence[Strategy],
    trips: Iterable[Trip],
    remade: frozenset[int],
) -> np.ndarray:
    """Bytes of a flow on a device at every point: kept, held, gradients, and others.

    Tensors of layers that are alike are taken to travel in each way in turn, so that of those that
    are there at a point the share travels so that does on the whole.

    Args:
        number: of the flow.
        trips: all of the flow.
        remade: entities that run again.
    """
    flow, spans = problem.flows[number], problem.spans(number)
    kept, held, gradients, others = there = np.zeros((4, len(spans.made)))

    def size(placements: Placements) -> int:
        return problem.local_bytes(flow, placements)

    for trip in trips:
        share = trip.multiplicity / flow.multiplicity
        source = trip.source
        others += share * size(source) * spans.made
        for tree, span, packed in (
            (trip.early, spans.moved_early, spans.packed_early),
            (trip.late, spans.moved_late, spans.packed_late),
            (trip.after, spans.moved_after, spans.packed_after),
            (trip.again, spans.moved_again, spans.packed_again),
        ):
            others += share * sum(moved_bytes(problem, flow, move) for move in tree.moves) * span
            others += share * sum(map(packed_bytes, tree.moves)) * packed
        if trip.kept is not None:
            span = spans.kept if trip.kept == source else spans.copied
            kept += share * size(trip.kept) * (span + _is_reread(flow, trip, remade) * spans.bound)
        if trip.held is not None:
            held += share * size(trip.held) * spans.held
        if trip.remade:
            span = made_again(flow, spans) + _is_reread(flow, trip, remade) * spans.sooner
            others += share * size(source) * span
        if flow.early:
            waiting = size(_waiting(problem, flow, spans.last_early, strategies, source))
            if not flow.stored and not flow.stays:
                others += share * waiting * spans.early
            lent = size(_waiting(problem, flow, spans.lender, strategies, source))
            again = trip.remade
            if spans.lender is not None:
                again = _remade_share(flow, spans.lender, remade)
            kept += share * (1 - again) * lent * spans.lent
        else:
            waiting = size(_waiting(problem, flow, spans.last_late, strategies, source))
            late = others if optimizer_demand(problem, flow) is None else gradients
            late += share * waiting * spans.late
    return there


def made_again(flow: Flow, spans: Spans) -> np.ndarray:
    """Where tensors of a flow are there that are made again."""
    return spans.again + spans.early if flow.stays else spans.again


def moved_bytes(problem: Problem, flow: Flow, move: Move) -> int:
    """Bytes of what a move makes; a sum takes the place of its parts."""
    return 0 if move.kind == "all_reduce" else problem.local_bytes(flow, move.target)


def packed_bytes(move: Move) -> int:
    """Bytes in which a move finds what it receives, before it is brought in order."""
    return move.nbytes if move.kind in ("all_gather", "all_to_all") else 0


def _is_reread(flow: Flow, trip: Trip, remade: frozenset[int]) -> bool:
    """Whether something that runs again reads tensors that travel alike."""
    readers = flow.readers[flow.tensors.index(trip.tensors[0])]
    return any(not remade.isdisjoint(nodes) for nodes in readers)


def _waiting(
    problem: Problem,
    flow: Flow,
    number: int | None,
    strategies: Sequence[Strategy],
    source: Placements,
) -> Placements:
    """The state in which a tensor waits for its last reader."""
    demand = None if number is None else flow.demands[number]
    if demand is None or demand.class_id is None:
        return source
    return problem.target(demand, strategies[demand.class_id])


def _remade_share(flow: Flow, number: int, remade: frozenset[int]) -> float:
    """Of the readers of a flow by a demand the share that run again."""
    readers = [node for nodes in flow.readers for node in nodes[number]]
    return sum(node in remade for node in readers) / max(1, len(readers))


def optimizer_demand(problem: Problem, flow: Flow) -> Demand | None:
    """The first demand of the optimizer for what the backward pass makes: such is a gradient."""
    if problem.node(flow.class_id).phase != "backward":
        return None
    for demand in flow.demands:
        if demand.class_id is not None and problem.node(demand.class_id).phase == "optimizer":
            return demand
    return None
