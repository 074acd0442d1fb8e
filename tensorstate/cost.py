"""What decisions cost: compute, communication and memory of a training step on one device.

Compute and communication are totals; the step takes their sum when nothing overlaps and their
maximum when everything does (the dissertation's model, section 5.4). Both are reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tensorstate.problem import Demand, Flow, Problem
from tensorstate.states import REPLICATED, SUM, Move, State, Tree, states
from tensorstate.ways import Way


@dataclasses.dataclass(frozen=True, eq=False)
class Decisions:
    """What the search decides.

    Attributes:
        ways: the way of every class.
        again: entities of the forward pass that are run again in the backward pass, from what is
            kept, where something there needs what they make and it is not in ``kept``. Layers that
            are tied run in the same way, but some may be run again and others not.
        kept: for tensors the state in which they are kept between the eras. Of others, unless they
            are made again, the state is kept with which they travel the least, the smallest among
            equals.
    """

    ways: tuple[Way, ...]
    again: frozenset[int] = frozenset()
    kept: Mapping[int, State] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Trip:
    """How tensors of a flow travel.

    Attributes:
        flow: its number.
        tensors: those that travel so.
        source: the state in which they are made.
        early, late: the moves in the forward pass, and after it.
        kept: the state kept between the eras; ``None`` where nothing is, or only an input's own.
        remade: whether the maker makes them again after the forward pass.
    """

    flow: int
    tensors: tuple[int, ...]
    source: State
    early: Tree
    late: Tree
    kept: State | None
    remade: bool

    @property
    def moves(self) -> tuple[Move, ...]:
        """All moves."""
        return self.early.moves + self.late.moves

    @property
    def weight(self) -> int:
        """How many tensors travel so."""
        return len(self.tensors)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a device's memory when most is there.

    Attributes:
        inputs: parameters, optimizer state, batch and constants: there all the time.
        kept: activations and gathered copies, kept from the forward to the backward pass.
        gradients: that wait for the optimizer.
        work: what else the operators have there.
    """

    inputs: int
    kept: int
    gradients: int
    work: int

    @property
    def peak(self) -> int:
        """The most that is there at once."""
        return self.inputs + self.kept + self.gradients + self.work


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
        communication.append(trip.weight * (trip.early.seconds + trip.late.seconds))
        for move in trip.moves:
            if move.kind != "slice":
                volume[move.kind, move.axis] += trip.weight * move.nbytes
                count[move.kind, move.axis] += trip.weight
    twice: dict[int, int] = defaultdict(int)
    for entity in remade:
        twice[problem.graph.entities[entity].group] += 1
    compute = math.fsum(
        (problem.weight(g) + twice[g]) * problem.seconds(g, way)
        for g, way in enumerate(decisions.ways)
    )
    memory = _memory(problem, decisions, trips, remade)
    return Cost(compute, math.fsum(communication), volume, count, memory, tuple(trips), remade)


def times(problem: Problem, cost: Cost) -> Mapping[tuple[str, int], float]:
    """Seconds of the collectives by (kind, mesh axis)."""
    spent: dict[tuple[str, int], list[float]] = defaultdict(list)
    for trip in cost.trips:
        routes = problem.routes(problem.flows[trip.flow])
        for move in trip.moves:
            if move.kind != "slice":
                spent[move.kind, move.axis].append(trip.weight * routes.seconds(move))
    return {key: math.fsum(values) for key, values in spent.items()}


def remade_entities(problem: Problem, decisions: Decisions) -> frozenset[int]:
    """Of the entities that may be run again those that something after the forward pass needs."""
    remade: set[int] = set()
    waiting = decisions.again
    needs: dict[int, list[tuple[bool, tuple[int, ...]]]] = defaultdict(list)
    for flow in problem.flows:
        for tensor, maker, readers in zip(flow.tensors, flow.makers, flow.readers, strict=True):
            if maker in waiting and tensor not in decisions.kept:
                late = (demand.late for demand in flow.demands)
                needs[maker] += zip(late, readers, strict=True)
    # Readers come after makers, so one pass against the order of execution finds all.
    for entity in sorted(waiting, reverse=True):
        if any(late or not remade.isdisjoint(readers) for late, readers in needs[entity]):
            remade.add(entity)
    return frozenset(remade)


def trips_of(
    problem: Problem, decisions: Decisions, remade: frozenset[int], number: int
) -> Iterable[Trip]:
    """Tensors of a flow by what becomes of their makers and readers and where they are kept.

    Of ``decisions.ways`` only those of the classes that make and read the flow matter.

    Args:
        remade: what ``remade_entities`` finds.
        number: of the flow.

    Raises:
        PlanError: a tensor cannot reach a state in which it is kept or demanded.
    """
    flow = problem.flows[number]
    alike: dict[tuple, list[int]] = defaultdict(list)
    for tensor, maker, readers in zip(flow.tensors, flow.makers, flow.readers, strict=True):
        again = tuple(not remade.isdisjoint(entities) for entities in readers)
        alike[maker in remade, again, decisions.kept.get(tensor)].append(tensor)
    for (made_again, again, kept), tensors in alike.items():
        late = [d for d, twice in zip(flow.demands, again, strict=True) if d.late or twice]
        trip = _trip(problem, decisions.ways, number, made_again, late, kept)
        yield dataclasses.replace(trip, tensors=tuple(tensors))


def _trip(
    problem: Problem,
    ways: Sequence[Way],
    number: int,
    remade: bool,
    after: Sequence[Demand],
    kept: State | None,
) -> Trip:
    flow = problem.flows[number]
    source = problem.source(flow, ways[flow.group])
    early = [d for d in flow.demands if not d.late] if flow.early else []
    wanted = _targets(problem, ways, early)
    late = _targets(problem, ways, after)
    there = {source, *late} if kept is None else {source, *late, kept}
    ends = [late]
    if any(d.group is None for d in after) and not any(map(is_whole, there)):
        # The caller takes any state but partial ones: the cheapest beside the others.
        ends = [late | {state} for state in states(flow.sizes, problem.mesh)]
    trips = (_between(problem, number, source, wanted, end, remade, kept, after) for end in ends)
    return min(trips, key=lambda trip: trip.early.seconds + trip.late.seconds)


def _targets(problem: Problem, ways: Sequence[Way], demands: Iterable[Demand]) -> frozenset[State]:
    """The states that classes demand."""
    return frozenset(problem.target(d, ways[d.group]) for d in demands if d.group is not None)


def _between(
    problem: Problem,
    number: int,
    source: State,
    early: frozenset[State],
    late: frozenset[State],
    remade: bool,
    kept: State | None,
    after: Sequence[Demand],
) -> Trip:
    """A trip from its source to states in both eras, by way of the state that is kept."""
    flow = problem.flows[number]
    routes, here = problem.routes(flow), frozenset({source})
    nothing = Tree((), 0.0)
    if not flow.early:
        return Trip(number, (), source, nothing, routes.tree(here, late), None, remade)
    if not after or (remade and kept is None):
        tree = routes.tree(here, late)
        return Trip(number, (), source, routes.tree(here, early), tree, None, remade)
    if kept is None:
        kept = _best_kept(problem, flow, source, early, late)
    base = here if flow.stored or remade else frozenset()
    first = routes.tree(here, early | {kept})
    tree = routes.tree(base | {kept}, late)
    own = flow.stored and kept == source
    return Trip(number, (), source, first, tree, None if own else kept, remade)


def _best_kept(
    problem: Problem, flow: Flow, source: State, early: frozenset[State], late: frozenset[State]
) -> State:
    """The state to keep a flow in with which it travels the least; the smallest among equals."""
    routes = problem.routes(flow)
    here = frozenset({source})

    def cost(state: State) -> tuple[float, int, State]:
        after = routes.tree(here | {state} if flow.stored else frozenset({state}), late).seconds
        nbytes = 0 if flow.stored and state == source else problem.local_bytes(flow, state)
        return routes.tree(here, early | {state}).seconds + after, nbytes, state

    near = {source, *early, *(move.target for move in routes.tree(here, early).moves)}
    # Maxima and minima that are still to be combined are not kept, so nothing may be near.
    best = min((cost(state) for state in near if min(state) >= SUM), default=(math.inf, 0, source))
    if best[0] > routes.tree(here, early).seconds:
        partial = [state for state in near if not is_whole(state) and min(state) >= SUM]
        best = min(best, *map(cost, states(flow.sizes, problem.mesh)), *map(cost, partial))
    return best[2]


def is_whole(state: State) -> bool:
    """Whether a state has no partial entry."""
    return all(entry >= REPLICATED for entry in state)


# ---------------------------------------------------------------------- memory


def _memory(
    problem: Problem, decisions: Decisions, trips: Sequence[Trip], remade: frozenset[int]
) -> Memory:
    by_flow: dict[int, list[Trip]] = defaultdict(list)
    for trip in trips:
        by_flow[trip.flow].append(trip)
    there = np.zeros((3, len(problem.timeline.points)))
    inputs = 0
    for number, found in by_flow.items():
        flow = problem.flows[number]
        if flow.stored:
            inputs += sum(t.weight * problem.local_bytes(flow, t.source) for t in found)
        there += occupied(problem, number, decisions.ways, found, remade)
    return memory_at_peak(inputs, there)


def memory_at_peak(inputs: float, there: np.ndarray) -> Memory:
    """When most is there, of what is there beside the inputs at all points."""
    total = there.sum(0)
    kept, gradients, _ = there[:, int(total.argmax())]
    parts = round(kept), round(gradients)
    return Memory(round(inputs), *parts, math.ceil(total.max() - 1e-6) - sum(parts))


def occupied(
    problem: Problem,
    number: int,
    ways: Sequence[Way],
    trips: Iterable[Trip],
    remade: frozenset[int],
) -> np.ndarray:
    """Bytes of a flow on a device at every point: kept, gradients, and others.

    Tensors of layers that are alike are taken to travel in each way in turn, so that of those that
    are there at a point the share travels so that does on the whole.

    Args:
        number: of the flow.
        trips: all of the flow.
        remade: entities that run again.
    """
    flow, spans = problem.flows[number], problem.spans(number)
    kept, gradients, others = np.zeros((3, len(spans.made)))

    def size(state: State) -> int:
        return problem.local_bytes(flow, state)

    for trip in trips:
        share = trip.weight / flow.weight
        others += share * size(trip.source) * spans.made
        for moves, span, packed in (
            (trip.early.moves, spans.moved_early, spans.packed_early),
            (trip.late.moves, spans.moved_late, spans.packed_late),
        ):
            others += share * sum(moved_bytes(problem, flow, move) for move in moves) * span
            others += share * sum(map(packed_bytes, moves)) * packed
        if trip.kept is not None:
            span = spans.kept if trip.kept == trip.source else spans.moved
            kept += share * size(trip.kept) * span
        waiting = size(_waiting(problem, flow, spans.last_early, ways, trip.source))
        stays = any(demand.late for demand in flow.demands)
        if flow.early and not flow.stored and not stays:
            others += share * waiting * spans.early
        if trip.remade:
            again = spans.again + spans.early if stays else spans.again
            others += share * size(trip.source) * again
        if spans.lent.any():
            again = remade_share(flow, spans.last_early, remade)
            kept += share * (1 - again) * waiting * spans.lent
        if not flow.early:
            waiting = size(_waiting(problem, flow, spans.last_late, ways, trip.source))
            (others if optimizer_demand(problem, flow) is None else gradients)[:] += (
                share * waiting * spans.late
            )
    return np.stack([kept, gradients, others])


def moved_bytes(problem: Problem, flow: Flow, move: Move) -> int:
    """Bytes of what a move makes; a sum takes the place of its parts."""
    return 0 if move.kind == "all_reduce" else problem.local_bytes(flow, move.target)


def packed_bytes(move: Move) -> int:
    """Bytes in which a move finds what it receives, before it is brought in order."""
    return move.nbytes if move.kind in ("all_gather", "all_to_all") else 0


def _waiting(
    problem: Problem, flow: Flow, number: int | None, ways: Sequence[Way], source: State
) -> State:
    """The state in which a tensor waits for its last reader."""
    demand = None if number is None else flow.demands[number]
    if demand is None or demand.group is None:
        return source
    return problem.target(demand, ways[demand.group])


def remade_share(flow: Flow, number: int | None, remade: frozenset[int]) -> float:
    """Of the readers of a flow by a demand the share that run again."""
    if number is None:
        return 0.0
    readers = [entity for entities in flow.readers for entity in entities[number]]
    return sum(entity in remade for entity in readers) / max(1, len(readers))


def optimizer_demand(problem: Problem, flow: Flow) -> Demand | None:
    """The first demand of the optimizer for what the backward pass makes: such is a gradient."""
    if problem.entity(flow.group).phase != "backward":
        return None
    for demand in flow.demands:
        if demand.group is not None and problem.entity(demand.group).phase == "optimizer":
            return demand
    return None
