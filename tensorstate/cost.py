"""What decisions cost: compute, communication and memory of a training step on one device.

Compute and communication are totals; the step takes their sum when nothing overlaps and their
maximum when everything does (the dissertation's model, section 5.4). Both are reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tensorstate.problem import Demand, Flow, Problem
from tensorstate.trips import Decisions, Trip, remade_entities, trips_of
from tensorstate.ways import Way


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a device's memory.

    Attributes:
        inputs: parameters, optimizer state, batch and constants: there all the time.
        kept: activations and gathered copies, kept from the forward to the backward pass.
        gradients: from the backward pass to the optimizer.
        forward_work: the most that an entity of the forward or backward pass reads and writes.
        backward_work: the same of the backward pass or the optimizer.
        held: gathered copies and sums, held through the loop over microbatches.
    """

    inputs: int
    kept: int
    gradients: int
    forward_work: int
    backward_work: int
    held: int = 0

    @property
    def peak(self) -> int:
        """The most that is there at once: as the backward pass starts, or as it ends."""
        start = self.held + self.kept + self.forward_work
        return self.inputs + max(start, self.gradients + self.backward_work)


@dataclasses.dataclass(frozen=True, eq=False)
class Cost:
    """The cost of a training step.

    Attributes:
        compute: seconds of all operators.
        communication: seconds of all collectives.
        volume: bytes (of the larger buffer of a device) by (kind, mesh axis) of the collectives.
        count: how many there are, likewise.
        memory: bytes.
        trips: how tensors travel.
        remade: entities that run again after the forward pass.
    """

    compute: float
    communication: float
    volume: Mapping[tuple[str, int], int]
    count: Mapping[tuple[str, int], int]
    memory: Memory
    trips: tuple[Trip, ...]
    remade: frozenset[int]

    @property
    def seconds(self) -> float:
        """Seconds without overlap: compute and communication one after the other."""
        return self.compute + self.communication

    @property
    def overlapped(self) -> float:
        """Seconds with perfect overlap: the larger of the two."""
        return max(self.compute, self.communication)


def price(problem: Problem, decisions: Decisions) -> Cost:
    """The cost of a training step under decisions.

    Raises:
        PlanError: a tensor cannot reach a state in which it is kept or demanded.
    """
    remade = remade_entities(problem, decisions)
    trips = [
        trip
        for number in range(len(problem.flows))
        for trip in trips_of(problem, decisions, remade, number)
    ]
    volume: dict[tuple[str, int], int] = defaultdict(int)
    count: dict[tuple[str, int], int] = defaultdict(int)
    communication = []
    for trip in trips:
        communication.append(trip.weight * trip.seconds)
        for move, turns in trip.counted:
            if move.kind != "slice":
                volume[move.kind, move.axis] += trip.weight * turns * move.nbytes
                count[move.kind, move.axis] += trip.weight * turns
    twice: dict[int, int] = defaultdict(int)
    for entity in remade:
        twice[problem.graph.entities[entity].group] += 1
    compute = math.fsum(
        (problem.weight(g) + twice[g]) * problem.seconds(g, way)
        for g, way in enumerate(decisions.ways)
    )
    memory = _memory(problem, decisions, trips)
    return Cost(compute, math.fsum(communication), volume, count, memory, tuple(trips), remade)


def times(problem: Problem, cost: Cost) -> Mapping[tuple[str, int], float]:
    """Seconds of the collectives by (kind, mesh axis)."""
    spent: dict[tuple[str, int], list[float]] = defaultdict(list)
    for trip in cost.trips:
        routes = problem.routes(problem.flows[trip.flow])
        for move, turns in trip.counted:
            if move.kind != "slice":
                spent[move.kind, move.axis].append(trip.weight * turns * routes.seconds(move))
    return {key: math.fsum(values) for key, values in spent.items()}


# ---------------------------------------------------------------------- memory


def _memory(problem: Problem, decisions: Decisions, trips: Sequence[Trip]) -> Memory:
    inputs = kept = gradients = held = 0
    for trip in trips:
        flow = problem.flows[trip.flow]
        if flow.stored:
            inputs += trip.weight * problem.stored_bytes(flow, trip.source)
        if trip.kept is not None:
            kept += trip.weight * problem.local_bytes(flow, trip.kept)
        if trip.held is not None:
            held += trip.weight * problem.local_bytes(flow, trip.held)
        gradients += trip.weight * gradient_bytes(problem, flow, decisions.ways)
    return Memory(inputs, kept, gradients, *most_work(problem, decisions.ways), held)


def most_work(problem: Problem, ways: Sequence[Way]) -> tuple[int, int]:
    """``Memory.forward_work`` and ``Memory.backward_work``."""
    works: dict[str, int] = {"forward": 0, "backward": 0, "optimizer": 0}
    for group, way in enumerate(ways):
        phase = problem.entity(group).phase
        if phase is not None:
            works[phase] = max(works[phase], problem.traffic(group, way))
    backward = works["backward"]
    return max(works["forward"], backward), max(backward, works["optimizer"])


def optimizer_demand(problem: Problem, flow: Flow) -> Demand | None:
    """The first demand of the optimizer for what the backward pass makes: such is a gradient."""
    if problem.entity(flow.group).phase != "backward":
        return None
    for demand in flow.demands:
        if demand.group is not None and problem.entity(demand.group).phase == "optimizer":
            return demand
    return None


def gradient_bytes(problem: Problem, flow: Flow, ways: Sequence[Way]) -> int:
    """Bytes of a gradient on a device: it is brought at once to where the optimizer wants it."""
    demand = optimizer_demand(problem, flow)
    if demand is None or demand.group is None:
        return 0
    return problem.local_bytes(flow, problem.target(demand, ways[demand.group]))
