"""Reshards as variables: one commodity flow per tensor, pass and consumer.

In every pass of ``tensorstate.cost.reshard_plan``, a tensor moves through the graph of its
placements like a commodity: from the placements in which its producer's strategy leaves it to those
that a consumer's strategy requires. Consumers in one pass share steps, each of which is paid for
once. For example, let one axis have size 2, and let one consumer need a product of partial sums
replicated and another one sharded. This costs either one all-reduce, or a reduce-scatter and an
all-gather, whichever is less; the flow of the second consumer uses the steps that the first pays.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from jaxcoll.numerics.program import Terms
from tensorstate.cost.memory import KeepingsThat, any_keeping
from tensorstate.cost.reshard_plan import Pass, ReshardPasses, reshard_passes
from tensorstate.errors import PlanError
from tensorstate.ir.placements import (
    REPLICATED,
    SUM,
    Placements,
    all_placements,
    divides_evenly,
)
from tensorstate.keeping.base import Keeping
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup
from tensorstate.solver.strategy_variables import StrategyVariables

# With more axes than this, tensors whose strategies are decided pass through few placements only.
# Without this, a repair of a GPT on 2x2x2 devices had no plan in 120 s, and with it one within 10 %
# of the bound; on two axes plans are up to 1 % slower with it, in the same time.
MOST_WHOLE_AXES = 2

UsedSteps = Mapping[ReshardStep, int]
"""For each step, the variable of the share of a tensor group that uses it."""

ByPlacements = Mapping[Placements, Terms]
"""A share of a tensor group per placements."""

Arcs = Sequence[tuple[ReshardStep, float]]
"""Reshard steps and their seconds."""


@dataclasses.dataclass(eq=False)
class GroupVariables:
    """The variables of one tensor group.

    Attributes:
        number: number of the group.
        kept: kept[f, k, s], by keeping and placements of stored copies.
        loop_resident: loop_resident[f, s], by placements.
        used: used[f, p, m], by pass and step.
        for_rerun: flow[f, p, d, m] for every consumer d that reruns.
        restored_for_rerun: restored[f, d, s] for every consumer d that reruns.
    """

    number: int
    kept: dict[Keeping, dict[Placements, int]] = dataclasses.field(default_factory=dict)
    loop_resident: dict[Placements, int] = dataclasses.field(default_factory=dict)
    used: dict[Pass, UsedSteps] = dataclasses.field(default_factory=dict)
    for_rerun: Sequence[UsedSteps] = ()
    restored_for_rerun: Sequence[ByPlacements] = ()

    def stored(self) -> dict[Placements, list[int]]:
        """The stored copies of all keepings, by placements."""
        copies: dict[Placements, list[int]] = defaultdict(list)
        for of_keeping in self.kept.values():
            for placements, variable in of_keeping.items():
                copies[placements].append(variable)
        return copies


class ReshardConstraints:
    """Adds the resharding of tensor groups to a program.

    Args:
        choices: the strategies of all classes.
        limited: whether there is a memory limit; then steps without seconds also need variables,
            and shares stand for whole tensors.
        prune_placements: see ``Formulation``.
        split: whether the program may split the seconds of a shared step; not with a limit.

    Attributes:
        paid: everything that is sent, as (variable, seconds if its value is 1, tensor group, mesh
            axis); the axis is -1 for sends between stages, which are never discounted.
        shared: every route with shared steps, as (seconds of its steps, its flows, tensor group,
            axes of the steps); the largest flow through a step pays for it.
    """

    def __init__(
        self, choices: StrategyVariables, limited: bool, prune_placements: bool, split: bool
    ):
        self.choices, self.problem, self.program = choices, choices.problem, choices.program
        self.limited, self.prune_placements, self.split = limited, prune_placements, split
        self.paid: list[tuple[int, float, int, int]] = []
        self.shared: list[tuple[np.ndarray, np.ndarray, int, np.ndarray]] = []

    def add_group(self, number: int) -> GroupVariables:
        """Add all passes of a tensor group."""
        return _GroupConstraints(self, number).add()

    def communication(self, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        """Variables, and the seconds of communication of each if its value is 1, as discounted."""
        columns = zip(*self.paid, strict=True) if self.paid else [()] * 4
        variables, seconds, groups, axes = map(np.array, columns)
        shares = _shares_by_group(problem)[groups.astype(int), axes.astype(int)]
        return variables.astype(int), seconds * shares

    def shared_communication(self, problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The seconds of shared steps as discounted, and their flows, of which the largest pays."""
        shares = _shares_by_group(problem)
        for seconds, flows, group, axes in self.shared:
            yield seconds * shares[group, axes], flows


def _shares_by_group(problem: Problem) -> np.ndarray:
    """The shares that are paid, of shape (tensor groups, mesh axes + 1); the last ones are 1."""
    every = (1.0,) * len(problem.mesh.sizes)
    return np.array([(*problem.shares.get(group, every), 1.0) for group in problem.tensor_groups])


class _GroupConstraints:
    """The resharding of one tensor group."""

    def __init__(self, owner: ReshardConstraints, number: int):
        self.owner, self.choices, self.program = owner, owner.choices, owner.program
        self.problem, self.limited = owner.problem, owner.limited
        self.group: TensorGroup = self.problem.tensor_groups[number]
        self.passes: ReshardPasses = reshard_passes(self.problem, self.group)
        self.sources = self.choices.source_terms(self.group)
        self.arcs = self._arcs()
        self.variables = GroupVariables(number)

    def add(self) -> GroupVariables:
        """Add the passes: around the microbatch loop first, then inside it."""
        produced = {s: [(v, 1.0) for v in variables] for s, variables in self.sources.items()}
        if self.passes.resident_from is not None:
            for placements in self._reachable():
                self.variables.loop_resident[placements] = self._add_copy()
        resident = _as_terms(self.variables.loop_resident)
        start = produced
        if self.passes.resident_from == "before_loop":
            self._route([produced], [resident])
            start = resident
        sinks = [self._sinks(consumer) for consumer in self.passes.after_loop]
        source = produced if self.group.is_input else resident
        self.variables.used["after_loop"], _ = self._route([source] * len(sinks), sinks)
        self._add_both_passes(start)
        for placements, variables in self.sources.items():
            sent, times = self.problem.sends(self.group, placements)
            seconds = self.group.multiplicity * times * sent.seconds
            number = self.variables.number
            self.owner.paid += [(v, seconds, number, -1) for v in variables if seconds]
        return self.variables

    def _add_both_passes(self, start: ByPlacements) -> None:
        """The passes inside the microbatch loop: forward, and after forward."""
        passes, num_repeats = self.passes, self.passes.num_repeats
        accumulated = [] if self.group.is_input else [_as_terms(self.variables.loop_resident)]
        accumulated = [resident for resident in accumulated if resident]
        after_forward = [self._sinks(consumer) for consumer in passes.after_forward]
        if not self.group.in_forward:
            sinks = [*after_forward, *accumulated]
            used, _ = self._route([start] * len(sinks), sinks, num_repeats)
            self.variables.used["after_forward"] = used
            return
        may_run = any(keeping.reruns for keeping in self.choices.keepings)
        rerun = [c for c in passes.in_forward if may_run and c.class_id is not None]
        later = [*after_forward, *(self._sinks(c, _reruns) for c in rerun)]
        sinks = [self._sinks(consumer) for consumer in passes.in_forward] + accumulated
        starts = [start] * len(sinks)
        if passes.resident_from == "before_loop":
            # The resident copy serves both passes, so nothing else is saved.
            resident = {s: [v] for s, v in self.variables.loop_resident.items()}
            later_starts = [start] * len(after_forward)
            later_starts += [self._available_share(resident) for _ in rerun]
        else:
            if passes.can_save(len(later)):
                for keeping in self._stored():
                    # A share with another keeping has no copy of this one (8).
                    sources = self.choices.source_terms(self.group, keeping.__eq__)
                    starts.append(self._available_share(sources))
                    sinks.append(_as_terms(self._add_copies(keeping)))
            later_starts = [self._restored() for _ in later]
        self.variables.used["in_forward"], _ = self._route(starts, sinks, num_repeats)
        used, flows = self._route(later_starts, later, num_repeats)
        self.variables.used["after_forward"] = used
        self.variables.for_rerun = flows[len(after_forward) :]
        self.variables.restored_for_rerun = later_starts[len(after_forward) :]

    # ------------------------------------------------------------------ the graph of placements

    def _arcs(self) -> Arcs:
        """Steps between reachable placements; partial on an axis only as the producer leaves it."""
        priced = self.problem.undiscounted or self.problem  # see ``communication``
        graph = priced.reshard_graph(self.group)
        is_pruned = self.owner.prune_placements
        near = self._near() if is_pruned else None
        wanted = self._wanted_by_axis() if is_pruned and near is None else None
        reachable = set(self.sources)
        pending = sorted(reachable)
        arcs = []
        while pending:
            for step, seconds in graph.steps_from(pending.pop()):
                if wanted is not None and step.target[step.axis] not in wanted[step.axis]:
                    continue
                if near is not None and step.target not in near:
                    continue
                arcs.append((step, seconds))
                if step.target not in reachable:
                    reachable.add(step.target)
                    pending.append(step.target)
        return arcs

    def _near(self) -> set[Placements] | None:
        """For tensors with one way of production and of each read, the placements worth passing.

        These are the placements on the cheapest trees to all readers, to the most sharded copy that
        could be saved between the passes, and from there. On three axes they are 5 of the 27 to 125
        combinations. The result is ``None`` on fewer axes, and if a strategy is still open.
        """
        if len(self.problem.mesh.long_axes) <= MOST_WHOLE_AXES:
            return None
        consumers = [c for c in self.group.consumer_classes if c.class_id is not None]
        by_consumer = [self.choices.target_terms(c) for c in consumers]
        if any(len(terms) > 1 for terms in (self.sources, *by_consumer)):
            return None
        targets = {placements for terms in by_consumer for placements in terms}
        (source,) = self.sources
        shards = [max(at_axis) for at_axis in zip(source, *targets, strict=True)]
        # Along an axis on which no end is sharded it is replicated: sums are saved reduced.
        smallest = tuple(max(placement, REPLICATED) for placement in shards)
        if not divides_evenly(smallest, self.group.sizes, self.problem.mesh):
            smallest = (REPLICATED,) * len(source)
        graph = self.problem.reshard_graph(self.group)
        near = {source, smallest, *targets}
        again = frozenset(t for t in targets if min(t) >= REPLICATED)  # from a saved copy
        try:
            tree = graph.cheapest_tree(frozenset({source}), frozenset(near))
            both = (*tree.steps, *graph.cheapest_tree(frozenset({smallest}), again).steps)
        except PlanError:  # a reader cannot be reached, and the program will be infeasible
            return None
        return near | {step.target for step in both}

    def _wanted_by_axis(self) -> list[set[int]]:
        """For each mesh axis, the placements that the producer or a consumer may use."""
        wanted: list[set[int]] = [{REPLICATED} for _ in self.problem.mesh.sizes]
        usable = [*self.sources]
        for consumer_class in self.group.consumer_classes:
            if consumer_class.class_id is not None:
                usable += self.choices.target_terms(consumer_class)
        for placements in usable:
            for axis, placement in enumerate(placements):
                wanted[axis].add(placement)
        return wanted

    def _reachable(self) -> list[Placements]:
        return sorted({*self.sources, *(step.target for step, _ in self.arcs)})

    # ------------------------------------------------------------------ flows

    def _route(
        self,
        starts: Sequence[ByPlacements],
        sinks: Sequence[ByPlacements],
        num_repeats: int = 1,
    ) -> tuple[UsedSteps, list[UsedSteps]]:
        """One pass: a flow from each start to its sink; flows that share a step pay for it once.

            used[f, p, m] >= flow[f, p, d, m]

        If seconds may be split, the program adds this itself, and ``used`` is empty. A single flow
        needs no second variable. Steps without seconds need not be shared, unless their copies take
        memory.

        Args:
            num_repeats: executions of the pass per training step.

        Returns:
            used[f, p, m], and flow[f, p, d, m] for every sink d.
        """
        shared, weight = len(starts) > 1, num_repeats * self.group.multiplicity
        is_split = shared and self.owner.split
        used: dict[ReshardStep, int] = {}
        flows: list[UsedSteps] = []
        # In the relaxation, (6) rewards fractions: halves of two flows share a step for half of its
        # price, even if none of the plans in the mixture has both flows on it.
        for step, seconds in () if is_split else self.arcs:
            if starts and (seconds or not shared or self.limited):
                used[step] = self.program.add_fraction()
                if seconds:
                    paid = used[step], weight * seconds, self.variables.number, step.axis
                    self.owner.paid.append(paid)
        for start, sink in zip(starts, sinks, strict=True):
            flow = used
            if shared:
                flow = {step: self.program.add_fraction() for step, _ in self.arcs}
                for step, variable in used.items():
                    self.program.add_constraint([(variable, 1.0), (flow[step], -1.0)], 0.0, np.inf)
            self._conserve_flow(flow, start, sink)
            flows.append(flow)
        sending = [(step, weight * seconds) for step, seconds in self.arcs if seconds]
        if is_split and sending:
            together = np.array([[flow[step] for flow in flows] for step, _ in sending])
            seconds = np.array([seconds for _, seconds in sending])
            axes = np.array([step.axis for step, _ in sending])
            self.owner.shared.append((seconds, together, self.variables.number, axes))
        return used, flows

    def _conserve_flow(self, flow: UsedSteps, start: ByPlacements, sink: ByPlacements) -> None:
        """Add the conservation of flow at every placement s:

        start[s] + sum of flow[m] over m into s = sink[s] + sum of flow[m] over m out of s
        """
        # One unit flows from the producer's placements to the consumer's. Both ends are variables,
        # so the strategies of two classes meet only here, and no table of all pairs is needed.
        terms: dict[Placements, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for step, variable in flow.items():
            terms[step.source][variable] -= 1.0
            terms[step.target][variable] += 1.0
        for placements, parts in start.items():
            for variable, factor in parts:
                terms[placements][variable] += factor
        for placements, parts in sink.items():
            for variable, factor in parts:
                terms[placements][variable] -= factor
        for balance in terms.values():
            self.program.add_constraint([(v, f) for v, f in balance.items() if f], 0.0, 0.0)

    def _sinks(
        self, consumer_class: ConsumerClass, kept: KeepingsThat = any_keeping
    ) -> dict[Placements, Terms]:
        """The share that a consumer requires in each placement.

        The caller of the step takes any placements that are not partial:

            sum over s of returned[f, s] = 1
        """
        if consumer_class.class_id is not None:
            targets = self.choices.target_terms(consumer_class, kept)
            return {s: [(v, 1.0) for v in variables] for s, variables in targets.items()}
        # None of them is best in advance: a reduce-scatter costs half of an all-reduce.
        every = all_placements(self.group.sizes, self.problem.mesh)
        returned = {s: self.program.add_fraction() for s in every}
        self.program.add_constraint([(v, 1.0) for v in returned.values()], 1.0, 1.0)
        return _as_terms(returned)

    # ------------------------------------------------------------------ stored and resident copies

    def _stored(self) -> list[Keeping]:
        """The keepings that may store a copy of the group; for inputs, which exist, the default."""
        class_id = self.group.class_id
        return [
            keeping
            for keeping in self.choices.keepings
            if not keeping.reruns and self.problem.may_keep(class_id, keeping)
        ]

    def _add_copies(self, keeping: Keeping) -> dict[Placements, int]:
        """Add kept[f, k, s] as a sink of the pass: a copy that a reader needs anyway is sent once.

        Partial maxima and minima are not stored.
        """
        copies = self.variables.kept[keeping] = dict[Placements, int]()
        for placements in self._reachable():
            if min(placements) >= SUM:
                copies[placements] = self._add_copy()
                each = self.problem.keeping_seconds(self.group, keeping, placements)
                if each:
                    seconds = self.group.multiplicity * each
                    self.choices.seconds.append((copies[placements], seconds))
        return copies

    def _add_copy(self) -> int:
        """A share of the group in [0, 1]; under a memory limit it stands for whole tensors."""
        share = self.program.add_variable(high=1.0)
        if self.limited:
            self.choices.make_integral(share, self.group.multiplicity)
        return share

    def _available_share(
        self, sources: Mapping[Placements, Iterable[int]]
    ) -> dict[Placements, Terms]:
        """A share per placement, at most that of its sources: available[s] <= sum of sources[s]."""
        available: dict[Placements, int] = {}
        for placements, variables in sources.items():
            available[placements] = variable = self.program.add_fraction()
            terms = [(variable, 1.0), *((v, -1.0) for v in variables)]
            self.program.add_constraint(terms, -np.inf, 0.0)
        return _as_terms(available)

    def _restored(self) -> dict[Placements, Terms]:
        """The placements from which one consumer after the forward pass takes a tensor.

        For each of the placements s::

            restored[f, d, s] <= sum over k of kept[f, k, s]
                                 + the share that is rebuilt in s, or is an input in s
        """
        kept = any_keeping if self.group.is_input else _reruns
        sources = self.choices.source_terms(self.group, kept)
        restored: dict[Placements, int] = {}
        for placements, copies in self.variables.stored().items():
            restored[placements] = variable = self.program.add_fraction()
            others = [(v, -1.0) for v in (*copies, *sources.get(placements, ()))]
            self.program.add_constraint([(variable, 1.0), *others], -np.inf, 0.0)
        return _as_terms(restored)


def _reruns(keeping: Keeping) -> bool:
    return keeping.reruns


def _as_terms(shares: Mapping[Placements, int]) -> dict[Placements, Terms]:
    return {placements: [(v, 1.0)] for placements, v in shares.items()}
