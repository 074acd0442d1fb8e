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

or, with ``objective="max"``, the larger of the two. Under a memory limit every entity must find
room for what it reads and writes beside what is there when it runs.

In microbatches both eras are in a loop, and their moves are paid for in every turn. Beside them is

- ``held[f, s]``: the share of flow f that is held in state s through the loop. An input comes to it
  once, before the loop, in an era of its own, and starts there in every turn; it takes no memory
  where it is stored. What is read after the loop comes to it in the era in which it is made, is
  added up there, and starts there after the loop.

The rows are made by one method each. Solutions of the relaxation are often integer: the moves form
shortest-path problems once the ways are chosen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tensorstate.cost import optimizer_demand
from tensorstate.problem import Demand, Flow, Problem
from tensorstate.search.program import Program, Solution, Terms
from tensorstate.states import REPLICATED, SUM, Move, State, states
from tensorstate.trips import Decisions, is_held
from tensorstate.ways import Way

# Program units: microseconds, and megabytes.
MICRO, MEGA = 1e6, 1e-6

# Layers of a class, and tensors of a flow, up to which those made again or kept are counted by an
# integer.
FEW = 4

# The part of a class that runs in a way in a relaxed solution, from which the way is a likely one.
LIKELY = 1e-2


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
        self.held: dict[int, dict[State, int]] = {}
        self.persistent: list[tuple[int, float]] = []
        self.between: list[tuple[int, float]] = []
        self.gradients: list[tuple[int, float]] = []
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
                choices[way, False] = self._part()
                choices[way, True] = self._part()
                self._count(choices[way, True], weight)
                parts = [(choices[way, a], 1.0) for a in (False, True)]
                self.program.row([*parts, (ways[-1], -1.0)], 0.0, 0.0)
                self.compute.append((choices[way, True], 2 * seconds))
            self.compute.append((choices[way, False], seconds))
        self.program.row([(v, 1.0) for v in ways], 1.0, 1.0)
        return choices

    def _part(self) -> int:
        """A variable that is a part of something; no best solution has more than all of it."""
        return self.program.variable(within=1.0)

    def _count(self, share: int, weight: int) -> None:
        """A share stands for whole layers or tensors; few are counted, many are rounded."""
        if weight <= FEW:
            number = self.program.variable(integer=True, within=weight)
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
        late = [d for d in flow.demands if d.late and not d.crosses]
        repeats = [d for d in early if self.recompute and d.group is not None]
        turns = self.problem.microbatches if flow.looped else 1
        if flow.stored:
            for state, variables in sources.items():
                nbytes = flow.weight * self.problem.stored_bytes(flow, state)
                self.persistent += [(v, nbytes) for v in variables]
        start = _whole(sources)
        held = self._hold(number, flow, arcs) if is_held(self.problem, flow) else {}
        self._after(flow, arcs, start if flow.stored else held)
        sums = [held] if held and not flow.stored else []
        if not flow.early:
            ends = [self._ends(flow, d) for d in late] + sums
            self._era(flow, arcs, [start] * len(ends), ends, turns)
            self._gradient(flow)
            return
        ends = [self._ends(flow, d) for d in early] + sums
        again = [self._ends(flow, d) for d in late]
        again += [self._ends(flow, d, again=True) for d in repeats]
        if held and flow.stored:
            self._era(flow, arcs, [start], [held])
            self._stay(number, flow, sources)
            self._era(flow, arcs, [held] * len(ends), ends, turns)
            there = {state: [v] for state, v in self.held[number].items()}
            starts = [held] * len(late) + [self._share(there) for _ in repeats]
            self._era(flow, arcs, starts, again, turns)
            return
        starts = [start] * len(ends)
        if again:
            starts.append(self._share(sources))
            ends.append(self._keep(number, flow, arcs))
        self._era(flow, arcs, starts, ends, turns)
        self._era(flow, arcs, [self._taken(number, flow) for _ in again], again, turns)

    def _after(
        self, flow: Flow, arcs: Sequence[tuple[Move, float]], start: Mapping[State, Terms]
    ) -> None:
        """What is read after the loop starts from where it is held, or stored."""
        ends = [self._ends(flow, d) for d in flow.demands if d.crosses]
        self._era(flow, arcs, [start] * len(ends), ends)

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
        ends = {s: self._part() for s in states(flow.sizes, self.problem.mesh)}
        self.program.row([(v, 1.0) for v in ends.values()], 1.0, 1.0)
        return {s: [(v, 1.0)] for s, v in ends.items()}

    def _era(
        self,
        flow: Flow,
        arcs: Sequence[tuple[Move, float]],
        starts: Sequence[Mapping[State, Terms]],
        ends: Sequence[Mapping[State, Terms]],
        turns: int = 1,
    ) -> None:
        """The travels of a flow in an era, from each start to its end; made in every turn."""
        shared = len(starts) > 1
        paid: dict[Move, int] = {}
        for move, seconds in arcs:
            # What costs nothing need not be shared.
            if starts and (seconds or not shared):
                paid[move] = self._part()
                if seconds:
                    self.communication.append((paid[move], turns * flow.weight * seconds))
        for start, end in zip(starts, ends, strict=True):
            taken = paid
            if shared:
                taken = {move: self._part() for move, _ in arcs}
                for move, variable in paid.items():
                    self.program.row([(variable, 1.0), (taken[move], -1.0)], 0.0, np.inf)
            self._conserve(taken, start, end)

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
    ) -> dict[State, Terms]:
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
        self.between.append((kept, flow.weight * self.problem.local_bytes(flow, state)))
        return kept

    def _hold(
        self, number: int, flow: Flow, arcs: Sequence[tuple[Move, float]]
    ) -> dict[State, Terms]:
        """held[f, s]: the way to it ends in any state."""
        every = {*self._sources(flow), *(move.target for move, _ in arcs)}
        for state in sorted(every):
            held = self.program.variable(high=1.0)
            if self.memory_limit is not None:
                self._count(held, flow.weight)
            self.held.setdefault(number, {})[state] = held
            self.between.append((held, flow.weight * self.problem.local_bytes(flow, state)))
        return {state: [(v, 1.0)] for state, v in self.held[number].items()}

    def _stay(self, number: int, flow: Flow, sources: Mapping[State, list[int]]) -> None:
        """An input that is held where it is stored is there once."""
        for state, choices in sources.items() if self.memory_limit is not None else ():
            stays, held = self._part(), self.held[number][state]
            self.program.row([(stays, 1.0), (held, -1.0)], -np.inf, 0.0)
            self.program.row([(stays, 1.0), *((v, -1.0) for v in choices)], -np.inf, 0.0)
            nbytes = flow.weight * self.problem.local_bytes(flow, state)
            self.between.append((stays, -nbytes))

    def _share(self, sources: Mapping[State, list[int]]) -> dict[State, Terms]:
        """What is kept starts where the maker puts it; not all need be kept."""
        found: dict[State, Terms] = {}
        for state, choices in sources.items():
            variable = self._part()
            terms = [(variable, 1.0), *((choice, -1.0) for choice in choices)]
            self.program.row(terms, -np.inf, 0.0)
            found[state] = [(variable, 1.0)]
        return found

    def _taken(self, number: int, flow: Flow) -> dict[State, Terms]:
        """taken[f, d, s] of a new demand d."""
        stays = self._sources(flow, again=None if flow.stored else True)
        found = {}
        for state, kept in self.kept[number].items():
            taken = self._part()
            there = [(v, -1.0) for v in stays.get(state, ())]
            self.program.row([(taken, 1.0), (kept, -1.0), *there], -np.inf, 0.0)
            found[state] = [(taken, 1.0)]
        return found

    # ------------------------------------------------------------------ memory

    def _gradient(self, flow: Flow) -> None:
        """What the backward pass makes for the optimizer is there until then."""
        demand = optimizer_demand(self.problem, flow)
        if demand is not None:
            for state, variables in self._targets(demand).items():
                nbytes = flow.weight * self.problem.local_bytes(flow, state)
                self.gradients += [(v, nbytes) for v in variables]

    def _memory(self, limit: float) -> None:
        """Beside what is there, every entity finds room for what it reads and writes."""
        start, end, self.peak = (self.program.variable(high=MEGA * limit) for _ in range(3))
        self._sum([*self.persistent, *self.between], start)
        self._sum([*self.persistent, *self.gradients], end)
        for group, choices in enumerate(self.x):
            phase = self.problem.entity(group).phase
            work = [(v, MEGA * self.problem.traffic(group, way)) for (way, _), v in choices.items()]
            for total, when in ((start, ("forward", "backward")), (end, ("backward", "optimizer"))):
                if phase in when:
                    terms = [(total, 1.0), (self.peak, -1.0), *work]
                    self.program.row(terms, -np.inf, 0.0)

    def _sum(self, terms: Terms, total: int) -> None:
        """A variable that is a sum of bytes, in megabytes."""
        sums: dict[int, float] = defaultdict(float)
        for variable, nbytes in terms:
            sums[variable] += MEGA * nbytes
        self.program.row([(total, -1.0), *sums.items()], 0.0, 0.0)

    # ------------------------------------------------------------------ objective

    def _objective(self, objective: str) -> None:
        """The sum of compute and communication, or the larger of the two."""
        if objective == "sum":
            for variable, seconds in (*self.compute, *self.communication):
                self.program.cost(variable, MICRO * seconds)
            return
        most = math.fsum(MICRO * s for _, s in (*self.compute, *self.communication))
        larger = self.program.variable(cost=1.0, within=most)
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

    def likely(self, relaxed: Solution) -> list[list[Way]]:
        """For every class the ways of which a relaxed solution has some part."""
        found = []
        for choices in self.x:
            parts: dict[Way, float] = defaultdict(float)
            for (way, _), variable in choices.items():
                parts[way] += relaxed.values[variable]
            least = min(LIKELY, max(parts.values()))
            found.append([way for way, part in parts.items() if part >= least])
        return found

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
        return Decisions(tuple(ways), frozenset(again), kept, self._held_in(values))

    def _held_in(self, values: np.ndarray) -> dict[int, State]:
        """The states that are held under a memory limit."""
        held: dict[int, State] = {}
        for number, variables in self.held.items() if self.memory_limit is not None else ():
            flow = self.problem.flows[number]
            shares = {state: values[v] for state, v in variables.items() if values[v] > 1e-6}
            held |= _dealt(flow.tensors, shares)
        return held

    def seconds(self, objective: float) -> float:
        """An objective of the program in seconds."""
        return objective / MICRO if math.isfinite(objective) else objective


def _whole(sources: Mapping[State, Sequence[int]]) -> dict[State, Terms]:
    """All of a flow, where the way of its maker puts it."""
    return {state: [(v, 1.0) for v in variables] for state, variables in sources.items()}


def _dealt(tensors: Sequence[int], shares: Mapping[State, float]) -> dict[int, State]:
    """States for tensors, by shares, rounded down; the first tensors go first."""
    found: dict[int, State] = {}
    start, total = 0, 0.0
    for state, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        total += share
        end = min(len(tensors), math.floor(total * len(tensors) + 1e-6))
        found |= dict.fromkeys(tensors[start:end], state)
        start = max(start, end)
    return found
