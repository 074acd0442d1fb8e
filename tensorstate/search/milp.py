"""The exact search: a mixed-integer linear program over the ways of all classes.

Variables, all at least 0:

- ``way[g, w]``, integer: class g runs in way w. Exactly one for every g.
- ``x[g, w, a]``: the share of the class that does so and (a = 1) is made again after the forward
  pass. In a solution it stands for whole layers; few layers are counted by integers.
- ``move[f, era, d, m]``: the part of flow f that takes move m on its way to demand d in an era. A
  flow's tensor travels through the graph of its states like a commodity: it starts where the way
  of its maker puts it and ends where the way of its reader wants it.
- ``paid[f, era, m]``: at least every ``move[f, era, d, m]``: what goes to several demands by the
  same move is paid for once.
- ``kept[f, s]``: the share of flow f that is kept in state s between the eras. Keeping is a demand
  of the forward pass that ends in any state. Under a memory limit it stands for whole tensors, as
  ``x`` does for layers.
- ``taken[f, d, s]``: the part of late demand d of flow f that starts from state s: at most what is
  kept there, what is made there again, and, of an input, what is stored there.

Minimize compute + communication:

    sum of weight[g] seconds[g, w] (1 + a) x[g, w, a] + sum of weight[f] seconds[m] paid[f, era, m]

or, with ``objective="max"``, the larger of the two. Under a memory limit what is there at any point
(see ``tensorstate.timeline``) must find room: it is linear in the ways, in what is kept, and in the
moves that are paid for, whose copies are there.

The rows are made by one method each. Solutions of the relaxation are often integer: the moves form
shortest-path problems once the ways are chosen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tensorstate.cost import Decisions, moved_bytes, packed_bytes
from tensorstate.problem import Demand, Flow, Problem
from tensorstate.search.program import Program, Solution, Terms
from tensorstate.states import REPLICATED, SUM, Move, State, states
from tensorstate.ways import Way

# Program units: microseconds, and megabytes.
MICRO, MEGA = 1e6, 1e-6

# Layers of a class, and tensors of a flow, up to which those made again or kept are counted by an
# integer.
FEW = 4


class Formulation:
    """The program of a problem.

    Args:
        problem: what to decide.
        allowed: for every class the ways to choose from.
        recompute: whether classes may be made again.
        memory_limit: bytes of a device, or ``None``.
        objective: "sum" or "max" of compute and communication.
        narrow: whether tensors move only to entries that their makers or readers may ask for on an
            axis; a smaller program, and seldom a worse one.
    """

    def __init__(
        self,
        problem: Problem,
        allowed: Sequence[Sequence[Way]],
        *,
        recompute: bool = False,
        memory_limit: float | None = None,
        objective: str = "sum",
        narrow: bool = False,
    ):
        self.problem, self.allowed, self.narrow = problem, allowed, narrow
        self.recompute, self.memory_limit = recompute, memory_limit
        self.program = Program()
        self.compute: list[tuple[int, float]] = []
        self.communication: list[tuple[int, float]] = []
        self.x = [self._choices(g) for g in range(len(allowed))]
        self.kept: dict[int, dict[State, int]] = {}
        self.persistent: list[tuple[int, float]] = []
        self.there: dict[int, np.ndarray] = {}
        for number, flow in enumerate(problem.flows):
            self._flow(number, flow)
        if memory_limit is not None:
            self._memory(memory_limit)
        self._objective(objective)

    # ------------------------------------------------------------------ choices

    def _choices(self, group: int) -> dict[tuple[Way, bool], int]:
        """x[g, w, a] and way[g, w], of which exactly one is chosen."""
        problem, weight = self.problem, self.problem.weight(group)
        again = self.recompute and problem.is_early(group)
        choices, ways = {}, []
        for way in self.allowed[group]:
            ways.append(self.program.variable(high=1.0, integer=True))
            seconds = weight * problem.seconds(group, way)
            choices[way, False] = ways[-1]
            if again:
                choices[way, False] = self.program.variable()
                choices[way, True] = self.program.variable()
                self._count(choices[way, True], weight)
                parts = [(choices[way, a], 1.0) for a in (False, True)]
                self.program.row([*parts, (ways[-1], -1.0)], 0.0, 0.0)
                self.compute.append((choices[way, True], 2 * seconds))
            self.compute.append((choices[way, False], seconds))
        self.program.row([(v, 1.0) for v in ways], 1.0, 1.0)
        return choices

    def _count(self, share: int, weight: int) -> None:
        """A share stands for whole layers or tensors; few are counted, many are rounded."""
        if weight <= FEW:
            number = self.program.variable(integer=True)
            self.program.row([(share, 1.0), (number, -1.0 / weight)], 0.0, 0.0)

    def _sources(self, flow: Flow, again: bool | None = None) -> dict[State, list[int]]:
        """The choices that put a flow's tensor in each state."""
        found: dict[State, list[int]] = defaultdict(list)
        for (way, a), variable in self.x[flow.group].items():
            if again is None or a == again:
                found[self.problem.source(flow, way)].append(variable)
        return found

    def _targets(self, demand: Demand, again: bool | None = None) -> dict[State, list[int]]:
        """The choices that demand a flow's tensor in each state."""
        found: dict[State, list[int]] = defaultdict(list)
        for (way, a), variable in self.x[demand.group or 0].items():
            if again is None or a == again:
                found[self.problem.target(demand, way)].append(variable)
        return found

    # ------------------------------------------------------------------ flows

    def _flow(self, number: int, flow: Flow) -> None:
        sources = self._sources(flow)
        arcs = self._arcs(flow, sources)
        early = [d for d in flow.demands if not d.late]
        late = [d for d in flow.demands if d.late]
        repeats = [d for d in early if self.recompute and d.group is not None]
        if flow.stored:
            for state, variables in sources.items():
                nbytes = flow.weight * self.problem.local_bytes(flow, state)
                self.persistent += [(v, nbytes) for v in variables]
        if not flow.early:
            starts = [{s: [(v, 1.0) for v in vs] for s, vs in sources.items()}] * len(late)
            paid = self._era(flow, arcs, starts, [self._ends(flow, d) for d in late])
            self._occupied(number, flow, {}, paid)
            return
        start = {s: [(v, 1.0) for v in vs] for s, vs in sources.items()}
        starts: list[Mapping[State, Terms]] = [start] * len(early)
        ends: list[Mapping[State, Terms]] = [self._ends(flow, d) for d in early]
        if late or repeats:
            starts.append(self._share(sources))
            ends.append(self._keep(number, flow, arcs))
        first, second = self._era(flow, arcs, starts, ends), {}
        if late or repeats:
            ends = [self._ends(flow, d) for d in late]
            ends += [self._ends(flow, d, again=True) for d in repeats]
            second = self._era(flow, arcs, [self._taken(number, flow) for _ in ends], ends)
        self._occupied(number, flow, first, second)

    def _arcs(self, flow: Flow, sources: Mapping[State, object]) -> list[tuple[Move, float]]:
        """Moves between states that can come up: partial on an axis only as the maker leaves it."""
        routes = self.problem.routes(flow)
        wanted = self._entries(flow, sources) if self.narrow else None
        reached = set(sources)
        waiting = sorted(reached)
        found = []
        while waiting:
            for move, seconds in routes.out(waiting.pop()):
                if wanted is not None and move.target[move.axis] not in wanted[move.axis]:
                    continue
                found.append((move, seconds))
                if move.target not in reached:
                    reached.add(move.target)
                    waiting.append(move.target)
        return found

    def _entries(self, flow: Flow, sources: Iterable[State]) -> list[set[int]]:
        """The entries that makers and readers may ask for, by axis."""
        found: list[set[int]] = [{REPLICATED} for _ in self.problem.mesh.sizes]
        every = [*sources]
        for demand in flow.demands:
            if demand.group is not None:
                every += self._targets(demand)
        for state in every:
            for axis, entry in enumerate(state):
                found[axis].add(entry)
        return found

    def _ends(self, flow: Flow, demand: Demand, again: bool | None = None) -> dict[State, Terms]:
        """What of a demand ends in each state."""
        if demand.group is not None:
            targets = self._targets(demand, again)
            return {s: [(v, 1.0) for v in variables] for s, variables in targets.items()}
        ends = {s: self.program.variable() for s in states(flow.sizes, self.problem.mesh)}
        self.program.row([(v, 1.0) for v in ends.values()], 1.0, 1.0)
        return {s: [(v, 1.0)] for s, v in ends.items()}

    def _era(
        self,
        flow: Flow,
        arcs: Sequence[tuple[Move, float]],
        starts: Sequence[Mapping[State, Terms]],
        ends: Sequence[Mapping[State, Terms]],
    ) -> dict[Move, int]:
        """The travels of a flow in an era, from each start to its end: what is paid for."""
        shared = len(starts) > 1
        paid: dict[Move, int] = {}
        for move, seconds in arcs:
            # What costs nothing need not be shared, unless it takes memory.
            if starts and (seconds or not shared or self.memory_limit is not None):
                paid[move] = self.program.variable()
                if seconds:
                    self.communication.append((paid[move], flow.weight * seconds))
        for start, end in zip(starts, ends, strict=True):
            taken = paid
            if shared:
                taken = {move: self.program.variable() for move, _ in arcs}
                for move, variable in paid.items():
                    self.program.row([(variable, 1.0), (taken[move], -1.0)], 0.0, np.inf)
            self._conserve(taken, start, end)
        return paid

    def _conserve(
        self, taken: Mapping[Move, int], start: Mapping[State, Terms], end: Mapping[State, Terms]
    ) -> None:
        """What comes to a state leaves it."""
        terms: dict[State, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for move, variable in taken.items():
            terms[move.source][variable] -= 1.0
            terms[move.target][variable] += 1.0
        for state, here in start.items():
            for variable, factor in here:
                terms[state][variable] += factor
        for state, here in end.items():
            for variable, factor in here:
                terms[state][variable] -= factor
        for balance in terms.values():
            self.program.row([(v, f) for v, f in balance.items() if f], 0.0, 0.0)

    # ------------------------------------------------------------------ between the eras

    def _keep(
        self, number: int, flow: Flow, arcs: Sequence[tuple[Move, float]]
    ) -> Mapping[State, Terms]:
        """kept[f, s]: keeping is a demand of the forward pass, which ends in any state."""
        every = {*self._sources(flow), *(move.target for move, _ in arcs)}
        ends = {state: self._kept(number, flow, state) for state in sorted(every)}
        return {state: [(v, 1.0)] for state, v in ends.items() if v is not None}

    def _kept(self, number: int, flow: Flow, state: State) -> int | None:
        """A new kept[f, s]; maxima that are still to be combined are not kept."""
        if any(entry < SUM for entry in state):
            return None
        kept = self.program.variable(high=1.0)
        if self.memory_limit is not None:
            self._count(kept, flow.weight)
        self.kept.setdefault(number, {})[state] = kept
        return kept

    def _share(self, sources: Mapping[State, list[int]]) -> dict[State, Terms]:
        """What is kept starts where the maker puts it; not all need be kept."""
        found: dict[State, Terms] = {}
        for state, choices in sources.items():
            variable = self.program.variable()
            terms = [(variable, 1.0), *((choice, -1.0) for choice in choices)]
            self.program.row(terms, -np.inf, 0.0)
            found[state] = [(variable, 1.0)]
        return found

    def _taken(self, number: int, flow: Flow) -> dict[State, Terms]:
        """taken[f, d, s] of a new demand d."""
        stays = self._sources(flow, again=None if flow.stored else True)
        found = {}
        for state, kept in self.kept[number].items():
            taken = self.program.variable()
            there = [(v, -1.0) for v in stays.get(state, ())]
            self.program.row([(taken, 1.0), (kept, -1.0), *there], -np.inf, 0.0)
            found[state] = [(taken, 1.0)]
        return found

    # ------------------------------------------------------------------ memory

    def _occupied(
        self, number: int, flow: Flow, early: Mapping[Move, int], late: Mapping[Move, int]
    ) -> None:
        """What a flow takes at every point, as ``cost.occupied`` says of given decisions."""
        if self.memory_limit is None:
            return
        spans = self.problem.spans(number)
        for paid, span, packed in (
            (early, spans.moved_early, spans.packed_early),
            (late, spans.moved_late, spans.packed_late),
        ):
            for move, variable in paid.items():
                self._take(variable, moved_bytes(self.problem, flow, move) * span)
                self._take(variable, packed_bytes(move) * packed)
        self._hold(number, flow)
        stays = any(demand.late for demand in flow.demands)
        again = spans.again + spans.early if stays else spans.again
        self._wait(flow, self._sources(flow), spans.made)
        self._wait(flow, self._sources(flow, again=True), again)
        if flow.early and not flow.stored and not stays:
            self._wait(flow, self._waiting(flow, spans.last_early), spans.early)
        self._wait(flow, self._waiting(flow, spans.last_early, again=False), spans.lent)
        if not flow.early:
            self._wait(flow, self._waiting(flow, spans.last_late), spans.late)

    def _waiting(
        self, flow: Flow, number: int | None, again: bool | None = None
    ) -> Mapping[State, list[int]]:
        """The choices by which a flow waits in each state for the readers of a demand."""
        demand = None if number is None else flow.demands[number]
        if demand is None or demand.group is None:
            return self._sources(flow)
        return self._targets(demand, again)

    def _wait(self, flow: Flow, choices: Mapping[State, list[int]], span: np.ndarray) -> None:
        """A flow is there in the state that choices say."""
        for state, variables in choices.items():
            for variable in variables:
                self._take(variable, self.problem.local_bytes(flow, state) * span)

    def _take(self, variable: int, nbytes: np.ndarray) -> None:
        """Bytes at every point for each unit of a variable."""
        if nbytes.any():
            self.there[variable] = self.there.get(variable, 0) + MEGA * nbytes

    def _hold(self, number: int, flow: Flow) -> None:
        """What is kept; of what is fused only copies in other states than it is made in."""
        spans, sources = self.problem.spans(number), self._sources(flow)
        for state, kept in self.kept.get(number, {}).items():
            nbytes = self.problem.local_bytes(flow, state)
            self._take(kept, nbytes * spans.kept)
            extra = nbytes * (spans.moved - spans.kept)
            if extra.any() and state in sources:
                moved = self.program.variable()
                made = [(choice, 1.0) for choice in sources[state]]
                self.program.row([(moved, 1.0), (kept, -1.0), *made], 0.0, np.inf)
                self._take(moved, extra)
            else:
                self._take(kept, extra)

    def _memory(self, limit: float) -> None:
        """What is there at a point is what was there before, and what is new, less what is gone."""
        self.peak = self.program.variable(high=MEGA * limit)
        inputs = self.program.variable()
        sums: dict[int, float] = defaultdict(float)
        for variable, nbytes in self.persistent:
            sums[variable] += MEGA * nbytes
        self.program.row([(inputs, -1.0), *sums.items()], 0.0, 0.0)
        variables = list(self.there)
        columns = np.array([self.there[v] for v in variables])
        changes = np.diff(columns[:, most(columns)], axis=1, prepend=0.0)
        before = inputs
        for change in changes.T:
            there = self.program.variable()
            new = [(variables[i], float(change[i])) for i in np.flatnonzero(change)]
            self.program.row([(there, -1.0), (before, 1.0), *new], 0.0, 0.0)
            self.program.row([(there, 1.0), (self.peak, -1.0)], -np.inf, 0.0)
            before = there

    # ------------------------------------------------------------------ objective

    def _objective(self, objective: str) -> None:
        """The sum of compute and communication, or the larger of the two."""
        if objective == "sum":
            for variable, seconds in (*self.compute, *self.communication):
                self.program.cost(variable, MICRO * seconds)
            return
        larger = self.program.variable(cost=1.0)
        for terms in (self.compute, self.communication):
            sums: dict[int, float] = defaultdict(float)
            for variable, seconds in terms:
                sums[variable] -= MICRO * seconds
            self.program.row([(larger, 1.0), *sums.items()], 0.0, np.inf)

    def minimize_memory(self) -> None:
        """Minimize the peak of a device's memory instead; there must be a limit."""
        self.program.forget_costs()
        self.program.cost(self.peak, 1.0)

    # ------------------------------------------------------------------ solutions

    def decisions(self, solution: Solution) -> Decisions:
        """The decisions of a solution: shares become whole layers, the first ones made again."""
        values, graph = solution.values, self.problem.graph
        ways, again = [], set()
        for group, choices in enumerate(self.x):
            shares: dict[Way, float] = defaultdict(float)
            for (way, _), variable in choices.items():
                shares[way] += values[variable]
            ways.append(max(shares, key=lambda way: shares[way]))
            share = values[choices[ways[-1], True]] if (ways[-1], True) in choices else 0.0
            members = graph.classes[group]
            again |= set(members[: math.ceil(share * len(members) - 1e-6)])
        kept: dict[int, State] = {}
        if self.memory_limit is not None:
            for number, variables in self.kept.items():
                flow = self.problem.flows[number]
                shares = {state: values[v] for state, v in variables.items() if values[v] > 1e-6}
                if flow.stored:  # of the rest only the input itself stays
                    source = self.problem.source(flow, ways[flow.group])
                    kept |= dict.fromkeys(flow.tensors, source)
                kept |= _dealt(flow.tensors[::-1], shares)
        return Decisions(tuple(ways), frozenset(again), kept)

    def seconds(self, objective: float) -> float:
        """An objective of the program in seconds."""
        return objective / MICRO if math.isfinite(objective) else objective


def most(columns: np.ndarray) -> np.ndarray:
    """The points at which not all that may be there is there at the next one that is left too."""
    left: list[int] = []
    for point in range(columns.shape[1]):
        while left and (columns[:, point] >= columns[:, left[-1]]).all():
            left.pop()
        if not left or (columns[:, point] > columns[:, left[-1]]).any():
            left.append(point)
    return np.array(left)


def _dealt(tensors: Sequence[int], shares: Mapping[State, float]) -> dict[int, State]:
    """States for tensors, by shares; the first tensors go first."""
    found: dict[int, State] = {}
    start, total = 0, 0.0
    for state, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        total += share
        end = min(len(tensors), math.ceil(total * len(tensors) - 1e-6))
        found |= dict.fromkeys(tensors[start:end], state)
        start = max(start, end)
    return found
