"""What decisions cost: compute, communication and memory of a training step on one device.

Compute and communication are totals; the step takes their sum when nothing overlaps and their
maximum when everything does (the dissertation's model, section 5.4). Both are reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping

from tensorstate.cost.memory import Memory, memory_of
from tensorstate.cost.reshard_plan import Decisions, Trip, remade_nodes, trips_of
from tensorstate.problem.problem import Problem


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
    remade = remade_nodes(problem, decisions)
    trips = [
        trip
        for number in range(len(problem.flows))
        for trip in trips_of(problem, decisions, remade, number)
    ]
    volume: dict[tuple[str, int], int] = defaultdict(int)
    count: dict[tuple[str, int], int] = defaultdict(int)
    communication = []
    for trip in trips:
        communication.append(trip.multiplicity * trip.seconds)
        for move, turns in trip.counted:
            if move.kind != "slice":
                volume[move.kind, move.axis] += trip.multiplicity * turns * move.nbytes
                count[move.kind, move.axis] += trip.multiplicity * turns
    twice: dict[int, int] = defaultdict(int)
    for node in remade:
        twice[problem.graph.nodes[node].class_id] += 1
    compute = math.fsum(
        (problem.multiplicity(g) + twice[g]) * problem.seconds(g, strategy)
        for g, strategy in enumerate(decisions.strategies)
    )
    memory = memory_of(problem, decisions, trips, remade)
    return Cost(compute, math.fsum(communication), volume, count, memory, tuple(trips), remade)


def times(problem: Problem, cost: Cost) -> Mapping[tuple[str, int], float]:
    """Seconds of the collectives by (kind, mesh axis)."""
    spent: dict[tuple[str, int], list[float]] = defaultdict(list)
    for trip in cost.trips:
        routes = problem.routes(problem.flows[trip.flow])
        for move, turns in trip.counted:
            if move.kind != "slice":
                spent[move.kind, move.axis].append(trip.multiplicity * turns * routes.seconds(move))
    return {key: math.fsum(values) for key, values in spent.items()}
