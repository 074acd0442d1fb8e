"""Genomes of the genetic search, and what they cost, priced flow by flow.

What a flow costs depends on few genes: the ways of the classes that make and read it, what of them
is made again, and whether it is kept small. Each such case is priced once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tensorstate.errors import PlanError
from tensorstate.flows import Flow
from tensorstate.memory import input_bytes, memory_at_peak, occupied
from tensorstate.problem import Problem
from tensorstate.states import State, states
from tensorstate.trips import Decisions, remade_entities, trips_of
from tensorstate.ways import Way

# Seconds of a flow that no collectives bring to its readers: more than any plan takes.
NEVER = 1e9

Totals = tuple[float, float, np.ndarray]
"""Seconds of communication; bytes of inputs, and of others at every point (``occupied``)."""


@dataclasses.dataclass(frozen=True)
class Genome:
    """Decisions, as genes.

    Attributes:
        ways: for every class the number of its way among those allowed.
        again: whether its entities are made again after the forward pass.
        small: for every flow whether it is kept where it takes the least memory, rather than where
            it travels the least.
    """

    ways: tuple[int, ...]
    again: tuple[bool, ...]
    small: tuple[bool, ...]


@dataclasses.dataclass
class Priced:
    """A genome on its way to another, and what it costs.

    Attributes:
        genome: as it was last priced.
        flows: totals of every flow.
        score: what is minimized: seconds, with memory above the limit as a penalty.
    """

    genome: Genome
    flows: list[Totals]
    score: float


class Genes:
    """Prices of genomes.

    Args:
        problem: what to decide.
        allowed: for every class the ways to choose from.
        memory_limit: bytes of a device, or ``None``.
        objective: "sum" or "max" of compute and communication.
    """

    def __init__(
        self,
        problem: Problem,
        allowed: Sequence[Sequence[Way]],
        memory_limit: float | None,
        objective: str,
    ):
        self.problem, self.allowed = problem, allowed
        self.memory_limit, self.objective = memory_limit, objective
        self.around = [
            tuple(sorted({flow.group, *(d.group for d in flow.demands if d.group is not None)}))
            for flow in problem.flows
        ]
        self.touching: list[list[int]] = [[] for _ in allowed]
        for number, groups in enumerate(self.around):
            for group in groups:
                self.touching[group].append(number)
        self.order = _order(problem)
        self._flows: dict[tuple, Totals] = {}
        self._remade: dict[tuple[bool, ...], frozenset[int]] = {}

    def decisions(self, genome: Genome) -> Decisions:
        """What a genome decides."""
        ways = self._ways(genome)
        kept: dict[int, State] = {}
        for number, flow in enumerate(self.problem.flows):
            if self._is_small(genome, number):
                state = self._smallest(flow, ways[flow.group])
                kept |= dict.fromkeys(flow.tensors, state)
        return Decisions(ways, self._again(genome), kept)

    def priced(self, genome: Genome) -> Priced:
        """A genome with its price."""
        flows = [self._flow(genome, number) for number in range(len(self.problem.flows))]
        return Priced(genome, flows, self._score(genome, flows))

    def changed(self, before: Priced, group: int, way: int) -> Priced:
        """The price of a genome in which one class runs in another way."""
        ways = before.genome.ways
        genome = dataclasses.replace(before.genome, ways=(*ways[:group], way, *ways[group + 1 :]))
        flows = list(before.flows)
        for number in self.touching[group]:
            flows[number] = self._flow(genome, number)
        return Priced(genome, flows, self._score(genome, flows))

    def peak(self, priced: Priced) -> float:
        """Bytes of a device's memory at the peak."""
        inputs = math.fsum(flow[1] for flow in priced.flows)
        there = np.sum([flow[2] for flow in priced.flows], axis=0)
        return memory_at_peak(inputs, there).peak

    # ------------------------------------------------------------------ prices

    def _ways(self, genome: Genome) -> tuple[Way, ...]:
        return tuple(choices[i] for choices, i in zip(self.allowed, genome.ways, strict=True))

    def _score(self, genome: Genome, flows: list[Totals]) -> float:
        twice = self._run_again(genome)
        compute = math.fsum(
            (self.problem.weight(group) + int(twice[group])) * self.problem.seconds(group, way)
            for group, way in enumerate(self._ways(genome))
        )
        communication = math.fsum(flow[0] for flow in flows)
        both = (compute, communication)
        seconds = sum(both) if self.objective == "sum" else max(both)
        if self.memory_limit is None:
            return seconds
        over = self.peak(Priced(genome, flows, 0.0)) / self.memory_limit - 1
        return seconds if over <= 0 else seconds * (2 + 100 * over)

    def _flow(self, genome: Genome, number: int) -> Totals:
        remade = self._remade_of(genome) & self.problem.flows[number].entities
        small = self._is_small(genome, number)
        ways = tuple(genome.ways[group] for group in self.around[number])
        key = number, ways, remade, small
        if key not in self._flows:
            self._flows[key] = self._price(genome, number, remade, small)
        return self._flows[key]

    def _price(self, genome: Genome, number: int, remade: frozenset[int], small: bool) -> Totals:
        problem, flow, ways = self.problem, self.problem.flows[number], self._ways(genome)
        kept = {}
        if small:
            kept = dict.fromkeys(flow.tensors, self._smallest(flow, ways[flow.group]))
        try:
            trips = [*trips_of(problem, Decisions(ways, frozenset(), kept), remade, number)]
        except PlanError:
            return NEVER, 0.0, np.zeros((4, len(problem.timeline.points)))
        return (
            math.fsum(t.weight * t.seconds for t in trips),
            float(input_bytes(problem, trips)),
            occupied(problem, number, ways, trips, remade),
        )

    # ------------------------------------------------------------------ between the eras

    def _is_small(self, genome: Genome, number: int) -> bool:
        flow = self.problem.flows[number]
        return genome.small[number] and flow.early and not genome.again[flow.group]

    def _smallest(self, flow: Flow, way: Way) -> State:
        """Where a flow takes the least memory between the eras: an input where it is."""
        source = self.problem.source(flow, way)
        if flow.stored:
            return source
        routes, here = self.problem.routes(flow), frozenset({source})

        def size(state: State) -> tuple[float, float, State]:
            seconds = routes.tree(here, frozenset({state})).seconds
            return self.problem.local_bytes(flow, state), seconds, state

        return min(states(flow.sizes, self.problem.mesh), key=size)

    def _again(self, genome: Genome) -> frozenset[int]:
        classes = zip(self.problem.graph.classes, genome.again, strict=True)
        return frozenset(entity for entities, again in classes if again for entity in entities)

    def _remade_of(self, genome: Genome) -> frozenset[int]:
        if genome.again not in self._remade:
            decisions = Decisions((), self._again(genome))
            self._remade[genome.again] = remade_entities(self.problem, decisions)
        return self._remade[genome.again]

    def _run_again(self, genome: Genome) -> np.ndarray:
        """How many entities of every class run again."""
        twice = np.zeros(len(self.allowed), int)
        for entity in self._remade_of(genome):
            twice[self.problem.graph.entities[entity].group] += 1
        return twice


def _order(problem: Problem) -> list[int]:
    """The classes in the order of execution; inputs where they are read first."""
    graph = problem.graph

    def first(group: int) -> tuple[int, int]:
        entity = problem.entity(group)
        if entity.tensor is None:
            return entity.members[0].operator, 1
        readers = [consumer.operator for consumer in graph.tensors[entity.tensor].consumers]
        return min(readers, default=len(graph.operators)), 0

    return sorted(range(len(graph.classes)), key=first)
