"""The exact search: a mixed-integer linear program over the ways of all classes.

Variables, all at least 0:

- ``strategy[g, w]``, integer: class g runs in way w. Exactly one for every g.
- ``x[g, w, a]``: the share of the class that does so and (a = 1) is made again after the forward
  pass. In a solution it stands for whole layers; few layers are counted by integers.
- ``step[f, era, d, m]``: the part of flow f that takes move m on its way to demand d in an era. A
  flow's tensor travels through the graph of its states like a commodity: it starts where the way
  of its maker puts it and ends where the way of its reader wants it.
- ``used[f, era, m]``: at least every ``step[f, era, d, m]``: what goes to several demands by the
  same move is paid for once.
- ``saved[f, s]``: the share of flow f that is kept in state s between the eras, of what is not made
  again. Keeping is a demand of the forward pass that ends in any state. Under a memory limit it
  stands for whole tensors, as ``x`` does for layers.
- ``restored[f, d, s]``: the part of late demand d of flow f that starts from state s: at most what
  is kept there, what is made there again, and, of an input, what is stored there.

Minimize compute + communication:

    sum of weight[g] seconds[g, w] (1 + a) x[g, w, a] + sum of weight[f] seconds[m] paid[f, era, m]

or, with ``objective="max"``, the larger of the two. Under a memory limit what is there at any point
of the step (see ``tensorstate.problem.liveness``) must find room: rows in
``tensorstate.solver.memory_constraints``.

In microbatches both eras are in a loop, and their moves are paid for in every turn. Beside them is

- ``loop_resident[f, s]``: the share of flow f that is held in state s through the loop. An input
  comes to it once, before the loop, in an era of its own, and starts there in every turn; it takes
  no memory where it is stored. What is read after the loop comes to it in the era in which it is
  made, is added up there, and starts there after the loop.

The other rows are made by one method each. Solutions of the relaxation are often integer: the moves
form shortest-path problems once the ways are chosen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tensorstate.cost.reshard_plan import Decisions, is_loop_resident
from tensorstate.ir.placements import REPLICATED, SUM, Placements, all_placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup
from tensorstate.solver.linear_program import LinearProgram, Solution, Terms
from tensorstate.solver.memory_constraints import MemoryConstraints, UsedSteps
from tensorstate.solver.variables import StrategyVariables

# Program units: microseconds.
MICROSECONDS = 1e6


class Formulation:
    """The program of a problem.

    Args:
        problem: what to decide.
        candidates: for every class the ways to choose from.
        recompute: whether classes may be made again.
        memory_limit: bytes of a device, or ``None``.
        objective: "sum" or "max" of compute and communication.
        prune_placements: whether tensors move only to entries that their makers or readers may ask
            for on an axis; a smaller program, and seldom a worse one.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: Sequence[Sequence[Strategy]],
        *,
        recompute: bool = False,
        memory_limit: float | None = None,
        objective: str = "sum",
        prune_placements: bool = False,
    ):
        self.problem, self.recompute, self.prune_placements = problem, recompute, prune_placements
        self.program = LinearProgram()
        self.choices = StrategyVariables(self.program, problem, candidates, recompute)
        self.memory_constraints = (
            None if memory_limit is None else MemoryConstraints(self.choices, memory_limit)
        )
        self.communication: list[tuple[int, float]] = []
        self.saved: dict[int, dict[Placements, int]] = defaultdict(dict)
        self.loop_resident: dict[int, dict[Placements, int]] = defaultdict(dict)
        for number, group in enumerate(problem.tensor_groups):
            self._flow(number, group)
        if recompute:
            self._forbid_useless_recompute()
        if self.memory_constraints is not None:
            self.peak = self.memory_constraints.add_peak()
        self._objective(objective)

    # ------------------------------------------------------------------ flows

    def _flow(self, number: int, group: TensorGroup) -> None:
        sources = self.choices.source_terms(group)
        arcs, source = self._arcs(group, sources), _unit_terms(sources)
        if is_loop_resident(self.problem, group):
            self._add_loop_resident(number, group, arcs)
        loop_resident = _as_terms(self.loop_resident.get(number, {}))
        source_terms = source
        if group.is_input and loop_resident:
            self._route_in_pass(group, arcs, [source], [loop_resident])
            source_terms = loop_resident
        uses_after_loop = [self._sinks(group, d) for d in group.consumer_classes if d.after_loop]
        out = source if group.is_input else loop_resident
        after, _ = self._route_in_pass(group, arcs, [out] * len(uses_after_loop), uses_after_loop)
        in_forward, after_forward, recomputed, reads_for_recompute = self._both_passes(
            number, group, arcs, source_terms
        )
        if self.memory_constraints is not None:
            saved, loop_resident = self.saved.get(number, {}), self.loop_resident.get(number, {})
            self.memory_constraints.add_group(
                number,
                saved,
                reads_for_recompute,
                loop_resident,
                in_forward,
                after_forward,
                recomputed,
                after,
            )

    def _both_passes(
        self,
        number: int,
        group: TensorGroup,
        arcs: Sequence[tuple[ReshardStep, float]],
        source_terms: Mapping[Placements, Terms],
    ) -> tuple[UsedSteps, UsedSteps, Sequence[UsedSteps], Sequence[Mapping[Placements, Terms]]]:
        """The travels of a flow in the forward pass, and after it.

        Returns:
            What is paid for in each, how it comes to what runs again, and from where.
        """
        num_repeats = self.problem.microbatches if group.in_loop else 1
        loop_resident = self.loop_resident.get(number, {})
        sums = [_as_terms(loop_resident)] if loop_resident and not group.is_input else []
        after_forward = [
            self._sinks(group, d)
            for d in group.consumer_classes
            if d.after_forward and not d.after_loop
        ]
        if not group.in_forward:
            sinks = [*after_forward, *sums]
            return (
                {},
                self._route_in_pass(group, arcs, [source_terms] * len(sinks), sinks, num_repeats)[
                    0
                ],
                [],
                [],
            )
        in_forward = [d for d in group.consumer_classes if not d.after_forward]
        recompute_consumers = [d for d in in_forward if self.recompute and d.class_id is not None]
        recomputed = [self._sinks(group, d, recomputed=True) for d in recompute_consumers]
        sinks = [self._sinks(group, d) for d in in_forward] + sums
        sources_per_flow = [source_terms] * len(sinks)
        if loop_resident and group.is_input:
            there = {placements: [v] for placements, v in loop_resident.items()}
            after = [source_terms] * len(after_forward) + [
                self._available_share(there) for _ in recompute_consumers
            ]
        else:
            if after_forward or recomputed:
                sources_per_flow.append(self._available_share(self._saveable(group)))
                sinks.append(self._add_saved(number, group, arcs))
            after = [self._restored(number, group) for _ in (*after_forward, *recomputed)]
        first, _ = self._route_in_pass(group, arcs, sources_per_flow, sinks, num_repeats)
        second, restored = self._route_in_pass(
            group, arcs, after, [*after_forward, *recomputed], num_repeats
        )
        return first, second, restored[len(after_forward) :], after[len(after_forward) :]

    def _arcs(
        self, group: TensorGroup, sources: Mapping[Placements, object]
    ) -> list[tuple[ReshardStep, float]]:
        """Moves between states that can come up: partial on an axis only as the maker leaves it."""
        reshard_graph = self.problem.reshard_graph(group)
        wanted = self._entries(group, sources) if self.prune_placements else None
        reachable = set(sources)
        pending = sorted(reachable)
        found = []
        while pending:
            for step, seconds in reshard_graph.steps_from(pending.pop()):
                if wanted is not None and step.target[step.axis] not in wanted[step.axis]:
                    continue
                found.append((step, seconds))
                if step.target not in reachable:
                    reachable.add(step.target)
                    pending.append(step.target)
        return found

    def _entries(self, group: TensorGroup, sources: Iterable[Placements]) -> list[set[int]]:
        """The entries that makers and readers may ask for, by axis."""
        found: list[set[int]] = [{REPLICATED} for _ in self.problem.mesh.sizes]
        every = [*sources]
        for consumer_class in group.consumer_classes:
            if consumer_class.class_id is not None:
                every += self.choices.target_terms(consumer_class)
        for placements in every:
            for axis, placement in enumerate(placements):
                found[axis].add(placement)
        return found

    def _sinks(
        self, group: TensorGroup, consumer_class: ConsumerClass, recomputed: bool | None = None
    ) -> dict[Placements, Terms]:
        """What of a demand ends in each state."""
        if consumer_class.class_id is not None:
            targets = self.choices.target_terms(consumer_class, recomputed)
            return {s: [(v, 1.0) for v in variables] for s, variables in targets.items()}
        sinks = {
            s: self.program.add_fraction() for s in all_placements(group.sizes, self.problem.mesh)
        }
        self.program.add_constraint([(v, 1.0) for v in sinks.values()], 1.0, 1.0)
        return {s: [(v, 1.0)] for s, v in sinks.items()}

    def _route_in_pass(
        self,
        group: TensorGroup,
        arcs: Sequence[tuple[ReshardStep, float]],
        sources_per_flow: Sequence[Mapping[Placements, Terms]],
        sinks: Sequence[Mapping[Placements, Terms]],
        num_repeats: int = 1,
    ) -> tuple[UsedSteps, list[UsedSteps]]:
        """The travels of a flow in an era, from each start to its end.

        Args:
            num_repeats: how often they are made.

        Returns:
            What is paid for, and what is taken to each end.
        """
        shared = len(sources_per_flow) > 1
        used: dict[ReshardStep, int] = {}
        flows: list[UsedSteps] = []
        for step, seconds in arcs:
            # What costs nothing need not be shared, unless it takes memory.
            if sources_per_flow and (seconds or not shared or self.memory_constraints is not None):
                used[step] = self.program.add_fraction()
                if seconds:
                    self.communication.append(
                        (used[step], num_repeats * group.multiplicity * seconds)
                    )
        for source_terms, sink_terms in zip(sources_per_flow, sinks, strict=True):
            restored = used
            if shared:
                restored = {step: self.program.add_fraction() for step, _ in arcs}
                for step, variable in used.items():
                    self.program.add_constraint(
                        [(variable, 1.0), (restored[step], -1.0)], 0.0, np.inf
                    )
            self._flow_conservation(restored, source_terms, sink_terms)
            flows.append(restored)
        return used, flows

    def _flow_conservation(
        self,
        restored: Mapping[ReshardStep, int],
        source_terms: Mapping[Placements, Terms],
        sink_terms: Mapping[Placements, Terms],
    ) -> None:
        """What comes to a state leaves it."""
        terms: dict[Placements, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for step, variable in restored.items():
            terms[step.source][variable] -= 1.0
            terms[step.target][variable] += 1.0
        for placements, here in source_terms.items():
            for variable, factor in here:
                terms[placements][variable] += factor
        for placements, here in sink_terms.items():
            for variable, factor in here:
                terms[placements][variable] -= factor
        for balance in terms.values():
            self.program.add_constraint([(v, f) for v, f in balance.items() if f], 0.0, 0.0)

    # ------------------------------------------------------------------ between the eras

    def _add_saved(
        self, number: int, group: TensorGroup, arcs: Sequence[tuple[ReshardStep, float]]
    ) -> dict[Placements, Terms]:
        """kept[f, s]: keeping is a demand of the forward pass, which ends in any state."""
        every = {*self.choices.source_terms(group), *(step.target for step, _ in arcs)}
        sinks = {placements: self._kept(number, group, placements) for placements in sorted(every)}
        return {placements: [(v, 1.0)] for placements, v in sinks.items() if v is not None}

    def _kept(self, number: int, group: TensorGroup, placements: Placements) -> int | None:
        """A new kept[f, s]; maxima that are still to be combined are not kept."""
        if any(placement < SUM for placement in placements):
            return None
        self.saved[number][placements] = saved = self.program.add_variable(high=1.0)
        if self.memory_constraints is not None:
            self.choices.make_integral(saved, group.multiplicity)
        return saved

    def _add_loop_resident(
        self, number: int, group: TensorGroup, arcs: Sequence[tuple[ReshardStep, float]]
    ) -> None:
        """held[f, s]: the way to it ends in any state."""
        every = {*self.choices.source_terms(group), *(step.target for step, _ in arcs)}
        for placements in sorted(every):
            self.loop_resident[number][placements] = loop_resident = self.program.add_variable(
                high=1.0
            )
            if self.memory_constraints is not None:
                self.choices.make_integral(loop_resident, group.multiplicity)

    def _saveable(self, group: TensorGroup) -> dict[Placements, list[int]]:
        """The choices by which a flow is there to be kept: what is made again is not."""
        return self.choices.source_terms(group, recomputed=None if group.is_input else False)

    def _forbid_useless_recompute(self) -> None:
        """Nothing is made again that neither the backward pass nor what is made again reads."""
        tensor_groups: dict[int, list[TensorGroup]] = defaultdict(list)
        for group in self.problem.tensor_groups:
            tensor_groups[group.class_id].append(group)
        for class_id, choices in enumerate(self.choices.x):
            terms: dict[int, float] = defaultdict(float)
            for (_, recomputed), variable in choices.items():
                terms[variable] += recomputed * self.problem.multiplicity(class_id)
            if not any(terms.values()) or any(
                group.needed_after_forward for group in tensor_groups[class_id]
            ):
                continue
            for group in tensor_groups[class_id]:
                for number, consumer_class in enumerate(group.consumer_classes):
                    if consumer_class.class_id is not None:
                        reads = sum(len(consumers[number]) for consumers in group.consumers)
                        for (_, recomputed), variable in self.choices.x[
                            consumer_class.class_id
                        ].items():
                            terms[variable] -= recomputed * reads
            self.program.add_constraint([(v, f) for v, f in terms.items() if f], -np.inf, 0.0)

    def _available_share(self, sources: Mapping[Placements, list[int]]) -> dict[Placements, Terms]:
        """What is kept starts where the maker puts it; not all need be kept."""
        found: dict[Placements, Terms] = {}
        for placements, choices in sources.items():
            variable = self.program.add_fraction()
            terms = [(variable, 1.0), *((choice, -1.0) for choice in choices)]
            self.program.add_constraint(terms, -np.inf, 0.0)
            found[placements] = [(variable, 1.0)]
        return found

    def _restored(self, number: int, group: TensorGroup) -> dict[Placements, Terms]:
        """taken[f, d, s] of a new demand d."""
        needed_after_forward = self.choices.source_terms(
            group, recomputed=None if group.is_input else True
        )
        found = {}
        for placements, saved in self.saved[number].items():
            restored = self.program.add_fraction()
            there = [(v, -1.0) for v in needed_after_forward.get(placements, ())]
            self.program.add_constraint([(restored, 1.0), (saved, -1.0), *there], -np.inf, 0.0)
            found[placements] = [(restored, 1.0)]
        return found

    # ------------------------------------------------------------------ objective

    def _objective(self, objective: str) -> None:
        """The sum of compute and communication, or the larger of the two."""
        if objective == "sum":
            for variable, seconds in (*self.choices.seconds, *self.communication):
                self.program.add_cost(variable, MICROSECONDS * seconds)
            return
        most = math.fsum(MICROSECONDS * s for _, s in (*self.choices.seconds, *self.communication))
        larger = self.program.add_variable(cost=1.0, implied_upper=most)
        for terms in (self.choices.seconds, self.communication):
            sums: dict[int, float] = defaultdict(float)
            for variable, seconds in terms:
                sums[variable] -= MICROSECONDS * seconds
            self.program.add_constraint([(larger, 1.0), *sums.items()], 0.0, np.inf)

    def minimize_memory(self) -> None:
        """Minimize the peak of a device's memory instead; there must be a limit."""
        self.program.clear_objective()
        self.program.add_cost(self.peak, 1.0)

    # ------------------------------------------------------------------ solutions

    def decisions(self, solution: Solution) -> Decisions:
        """The decisions of a solution: shares become whole layers, the first ones made again."""
        values, graph = solution.values, self.problem.graph
        strategies, recomputed = [], set()
        for class_id, choices in enumerate(self.choices.x):
            shares: dict[Strategy, float] = defaultdict(float)
            for (strategy, _), variable in choices.items():
                shares[strategy] += values[variable]
            strategies.append(max(shares, key=lambda strategy: shares[strategy]))
            share = (
                values[choices[strategies[-1], True]] if (strategies[-1], True) in choices else 0.0
            )
            members = graph.node_classes[class_id]
            recomputed |= set(members[: math.ceil(share * len(members) - 1e-6)])
        saved: dict[int, Placements] = {}
        if self.memory_constraints is not None:
            for number, variables in self.saved.items():
                group = self.problem.tensor_groups[number]
                shares = {
                    placements: values[v] for placements, v in variables.items() if values[v] > 1e-6
                }
                if group.is_input:  # of the rest only the input itself stays
                    source = self.problem.produced_placements(group, strategies[group.class_id])
                    saved |= dict.fromkeys(group.tensors, source)
                saved |= _assign_by_share(group.tensors[::-1], shares)
        return Decisions(tuple(strategies), frozenset(recomputed), saved, self._held_in(values))

    def _held_in(self, values: np.ndarray) -> dict[int, Placements]:
        """The states that are held under a memory limit."""
        loop_resident: dict[int, Placements] = {}
        for number, variables in (
            self.loop_resident.items() if self.memory_constraints is not None else ()
        ):
            group = self.problem.tensor_groups[number]
            shares = {
                placements: values[v] for placements, v in variables.items() if values[v] > 1e-6
            }
            loop_resident |= _assign_by_share(group.tensors, shares)
        return loop_resident

    def seconds(self, objective: float) -> float:
        """An objective of the program in seconds."""
        return objective / MICROSECONDS if math.isfinite(objective) else objective

    def nbytes(self, peak: float) -> float:
        """The memory that is minimized, in bytes."""
        return peak if self.memory_constraints is None else peak * self.memory_constraints.unit


def _unit_terms(sources: Mapping[Placements, Sequence[int]]) -> dict[Placements, Terms]:
    """All of a flow, where the way of its maker puts it."""
    return {placements: [(v, 1.0) for v in variables] for placements, variables in sources.items()}


def _as_terms(shares: Mapping[Placements, int]) -> dict[Placements, Terms]:
    """Parts of a flow in states."""
    return {placements: [(v, 1.0)] for placements, v in shares.items()}


def _assign_by_share(
    tensors: Sequence[int], shares: Mapping[Placements, float]
) -> dict[int, Placements]:
    """States for tensors, by shares, rounded down; the first tensors go first."""
    found: dict[int, Placements] = {}
    source_terms, total = 0, 0.0
    for placements, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        total += share
        sink_terms = min(len(tensors), math.floor(total * len(tensors) + 1e-6))
        found |= dict.fromkeys(tensors[source_terms:sink_terms], placements)
        source_terms = max(source_terms, sink_terms)
    return found
