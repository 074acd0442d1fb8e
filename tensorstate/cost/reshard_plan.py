"""Decisions of a search, and the collectives by which they reshard tensor groups.

Among the nodes that decisions let rerun, those whose results are needed do so. A group is resharded
in up to four passes. The microbatch loop surrounds the second and the third:

    pass            starts from                               delivers
    before the loop produced                                  the loop-resident copy of an input
    in forward      produced; the loop-resident copy          consumers of the forward pass,
                    of an input                               the stored copy
    after forward   the stored copy and an input itself, or   consumers after the forward pass and
                    as in the forward pass if none is stored  those that rerun
    after the loop  an input itself; else the resident copy   consumers after the loop

A copy that accumulates over microbatches, such as a gradient, is delivered by the pass in which the
tensor is produced. Under given decisions, each pass reshards a tensor once to all placements that
its consumers require: a cheapest tree in the graph of placements. Where the decisions leave open
which copy is stored, or is resident in the microbatch loop, the copy with the least resharding time
is taken. ``solver.reshard_constraints`` writes the same passes as flow constraints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from tensorstate.errors import PlanError
from tensorstate.ir.placements import REPLICATED, SUM, Placements, all_placements
from tensorstate.keeping.base import Keeping
from tensorstate.keeping.table import Kept, counted
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import NO_RESHARD, ReshardStep, ReshardTree
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """A strategy per node class, how nodes are kept, and the placements of copies.

    If ``saved`` or ``loop_resident`` does not name a tensor, the placements with the least
    resharding time are taken; among equals, the smallest copy.

    Attributes:
        strategies: the strategy of every node class.
        kept: by node of the forward pass, how its results are kept for the backward pass; nodes
            that are not named are kept by default. It matters only if a later consumer needs one of
            the results, which for a node that would rerun is not in ``saved``. Layers of one class
            share a strategy, but each may be kept in its own way.
        saved: by tensor, the placements of the copy that is stored from the forward to the backward
            pass. A tensor whose producer reruns has no copy.
        loop_resident: by tensor, with microbatches, the placements of the copy that stays resident
            through the microbatch loop. An input is resharded to it once before the loop, and no
            copy of it is saved within a microbatch. A tensor that is read after the loop is
            resharded to it in every microbatch and accumulated there.
    """

    strategies: tuple[Strategy, ...]
    kept: Mapping[int, Keeping] = dataclasses.field(default_factory=dict)
    saved: Mapping[int, Placements] = dataclasses.field(default_factory=dict)
    loop_resident: Mapping[int, Placements] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Decisions({len(self.strategies)} strategies, {counted(Kept(self.kept))}, "
            f"{len(self.saved)} saved)"
        )


def find_kept(problem: Problem, decisions: Decisions) -> Kept:
    """The keepings of nodes whose results are needed after the forward pass."""
    nodes = problem.graph.nodes
    found, again = dict[int, Keeping](), set[int]()
    pending = {
        node: keeping
        for node, keeping in decisions.kept.items()
        if problem.may_keep(nodes[node].class_id, keeping)
    }
    needs: dict[int, list[tuple[bool, tuple[int, ...]]]] = defaultdict(list)
    for group in problem.tensor_groups:
        for tensor, producer, consumers in zip(
            group.tensors, group.producers, group.consumers, strict=True
        ):
            keeping = pending.get(producer)
            # A producer does not rerun for a result that is stored.
            if keeping is not None and not (keeping.reruns and tensor in decisions.saved):
                after_forward = (
                    consumer_class.after_forward and not consumer_class.after_loop
                    for consumer_class in group.consumer_classes
                )
                needs[producer] += zip(after_forward, consumers, strict=True)
    # Consumers follow producers in execution order, so one reversed pass finds all nodes: for each
    # reader it is known whether it reruns before its operands are visited.
    for node in sorted(pending, reverse=True):
        if any(
            after_forward or not again.isdisjoint(consumers)
            for after_forward, consumers in needs[node]
        ):
            found[node] = pending[node]
            if found[node].reruns:
                again.add(node)
    return Kept(found)


Pass = Literal["before_loop", "in_forward", "after_forward", "after_loop"]


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardPasses:
    """The passes in which one tensor group is resharded.

    Attributes:
        in_forward, after_forward, after_loop: the consumers that each pass delivers to, without
            those that rerun.
        num_repeats: executions of the passes per step, in the microbatch loop and in a body.
        resident_from: the pass that delivers the loop-resident copy; ``None`` without such a copy.
    """

    in_forward: tuple[ConsumerClass, ...]
    after_forward: tuple[ConsumerClass, ...]
    after_loop: tuple[ConsumerClass, ...]
    num_repeats: int
    resident_from: Pass | None

    def can_save(self, num_later_consumers: int) -> bool:
        """Whether a copy is stored between the passes, unless the producer reruns.

        Args:
            num_later_consumers: consumers after the forward pass and those that rerun.
        """
        return num_later_consumers > 0 and self.resident_from != "before_loop"


def reshard_passes(problem: Problem, group: TensorGroup) -> ReshardPasses:
    """The passes of a tensor group."""
    classes = group.consumer_classes
    # Inputs are resident if the loop reads them; other tensors if they are read after the loop.
    # A tensor that is split along the batch exists one microbatch at a time.
    resident_from: Pass | None = None
    if problem.microbatches > 1 and group.batch_placement < 0:
        after_loop = [c.after_loop for c in classes]
        if group.is_input:
            resident_from = None if all(after_loop) else "before_loop"
        elif any(after_loop):
            resident_from = "in_forward" if group.in_forward else "after_forward"
    return ReshardPasses(
        tuple(c for c in classes if not c.after_forward) if group.in_forward else (),
        tuple(c for c in classes if c.after_forward and not c.after_loop),
        tuple(c for c in classes if c.after_loop),
        group.num_repeats * (problem.microbatches if group.in_loop else 1),
        resident_from,
    )


# ------------------------------------------------------------------ the reshards of given decisions


BothPasses = tuple[ReshardTree, Placements | None, ReshardTree]
"""The steps of the forward pass, the placements of the stored copy, and the steps after it."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ReshardPlan:
    """The way in which tensors of one group are resharded.

    Attributes:
        group: number of the tensor group.
        tensors: the members of the group that are resharded in this way.
        produced_placements: placements in which the producer leaves them.
        in_forward, after_forward: steps in the forward pass, and after it.
        saved: placements of the copy stored for the backward pass; ``None`` if none is, or only the
            input itself.
        keeping: their keeping for the backward pass.
        num_repeats: executions of ``in_forward`` and ``after_forward`` per training step: one per
            microbatch, and per iteration of the loops in whose body the tensors exist.
        before_loop, after_loop: steps before and after the microbatch loop, executed once.
        loop_resident: placements of the copy that stays resident through the loop; ``None`` if
            there is no such copy, or only the input itself.
        for_rerun: the part of ``after_forward`` that feeds consumers that rerun.
        sent: the send of a carry to the next pipeline stage.
        num_sends: the number of these sends per training step.
        keeping_seconds: seconds of compute per tensor and training step to store the copy and to
            bring it back.
    """

    group: int
    tensors: tuple[int, ...]
    produced_placements: Placements
    in_forward: ReshardTree
    after_forward: ReshardTree
    saved: Placements | None
    keeping: Keeping
    num_repeats: int = 1
    before_loop: ReshardTree = NO_RESHARD
    after_loop: ReshardTree = NO_RESHARD
    loop_resident: Placements | None = None
    for_rerun: ReshardTree = NO_RESHARD
    sent: ReshardTree = NO_RESHARD
    num_sends: int = 0
    keeping_seconds: float = 0.0

    def __repr__(self) -> str:
        return (
            f"ReshardPlan({len(self.tensors)} tensors of group {self.group}, {len(self.steps)} "
            f"steps, {self.seconds:.4g} s)"
        )

    @property
    def steps(self) -> tuple[ReshardStep, ...]:
        """All steps, each once."""
        return tuple(step for step, _ in self.counted_steps)

    @property
    def counted_steps(self) -> tuple[tuple[ReshardStep, int], ...]:
        """All steps, each with its executions per tensor and training step."""
        trees = (
            (self.before_loop, 1),
            (self.in_forward, self.num_repeats),
            (self.after_forward, self.num_repeats),
            (self.after_loop, 1),
            (self.sent, self.num_sends),
        )
        # Nothing is sent of an array without elements.
        return tuple(
            (step, count)
            for tree, count in trees
            for step in tree.steps
            if step.nbytes or step.kind == "slice"
        )

    @property
    def seconds(self) -> float:
        """Seconds of all steps per tensor."""
        per_repeat = self.in_forward.seconds + self.after_forward.seconds
        once = self.before_loop.seconds + self.after_loop.seconds
        return once + self.num_repeats * per_repeat + self.num_sends * self.sent.seconds

    @property
    def multiplicity(self) -> int:
        """Number of tensors that are resharded in this way."""
        return len(self.tensors)


def reshard_plans(
    problem: Problem, decisions: Decisions, kept: Kept, number: int
) -> Iterable[ReshardPlan]:
    """The reshard plans of a tensor group: one per combination of decisions about its members.

    Of ``decisions.strategies``, only those of the classes that produce and read the group matter.

    Args:
        kept: the result of ``find_kept``.
        number: number of the tensor group.

    Raises:
        PlanError: a tensor cannot be resharded to the placements that are saved or required.
    """
    group = problem.tensor_groups[number]
    members: dict[tuple, list[int]] = defaultdict(list)
    for tensor, producer, consumers in zip(
        group.tensors, group.producers, group.consumers, strict=True
    ):
        keeping = kept[producer]
        rerun = tuple(not kept.rerun.isdisjoint(nodes) for nodes in consumers)
        saved = None if keeping.reruns else decisions.saved.get(tensor)
        resident = decisions.loop_resident.get(tensor)
        # Layers of a class differ at most in these, so there are few plans, for any number of
        # layers.
        members[keeping, rerun, saved, resident].append(tensor)
    for (keeping, rerun, saved, resident), tensors in members.items():
        planner = _Planner(
            problem,
            decisions.strategies,
            number,
            keeping,
            [*itertools.compress(group.consumer_classes, rerun)],
            saved,
        )
        yield dataclasses.replace(planner.plan(resident), tensors=tuple(tensors))


class _Planner:
    """Finds the reshard plan of group members that have the same decisions.

    Args:
        number: number of the tensor group.
        keeping: the keeping of the tensors for the backward pass.
        rerun: the consumers some of whose nodes rerun.
        saved: placements of the stored copy; ``None`` to choose the cheapest.
    """

    def __init__(
        self,
        problem: Problem,
        strategies: Sequence[Strategy],
        number: int,
        keeping: Keeping,
        rerun: Sequence[ConsumerClass],
        saved: Placements | None,
    ):
        self.problem, self.strategies, self.number = problem, strategies, number
        self.keeping, self.saved = keeping, saved
        self.group = problem.tensor_groups[number]
        self.graph = problem.reshard_graph(self.group)
        self.passes = reshard_passes(problem, self.group)
        self.produced = problem.produced_placements(self.group, strategies[self.group.class_id])
        self.rerun = [c for c in rerun if not (c.after_forward or c.after_loop)]
        self.later_consumers = [*self.passes.after_forward, *self.rerun]

    def plan(self, loop_resident: Placements | None) -> ReshardPlan:
        """The plan with a given loop-resident copy; with the cheapest one if it is ``None``."""
        if self.passes.resident_from is None:
            return self._plan_with(None)
        if loop_resident is not None:
            return self._plan_with(loop_resident)
        # Nothing is faster than sending nothing; an input is then resident as it is stored.
        best = self._plan_with(self.produced)
        if not best.seconds:
            return best

        def order(plan: ReshardPlan) -> tuple[float, int, Placements]:
            resident = plan.loop_resident or self.produced
            return plan.seconds, self.problem.local_bytes(self.group, resident), resident

        others = []
        for placements in self.graph.reachable([self.produced]):
            # A replicated tensor cannot be resharded to partial placements: skip those.
            with contextlib.suppress(PlanError):
                others.append(self._plan_with(placements))
        return min([best, *others], key=order)

    def _plan_with(self, loop_resident: Placements | None) -> ReshardPlan:
        """The steps before, in and after the microbatch loop."""
        produced, is_input = frozenset({self.produced}), self.group.is_input
        resident = frozenset[Placements]() if loop_resident is None else frozenset({loop_resident})
        start = resident if resident and is_input else produced
        accumulated = frozenset[Placements]() if is_input else resident
        in_forward, saved, after_forward = self._both_passes(start, accumulated)
        targets = self._targets(self.rerun)
        in_place = is_input and loop_resident == self.produced
        return ReshardPlan(
            self.number,
            (),
            self.produced,
            in_forward,
            after_forward,
            saved,
            self.keeping,
            self.passes.num_repeats,
            self.graph.cheapest_tree(produced, start),
            self._after_loop(accumulated or produced),
            None if in_place else loop_resident,
            ReshardTree(tuple(_steps_leading_to(after_forward.steps, targets)), 0.0),
            *self.problem.sends(self.group, self.produced),
            keeping_seconds=0.0
            if saved is None
            else self.problem.keeping_seconds(self.group, self.keeping, saved),
        )

    def _both_passes(
        self, start: frozenset[Placements], accumulated: frozenset[Placements]
    ) -> BothPasses:
        """The steps inside the loop, and the copy stored between its two passes.

        Args:
            accumulated: placements of the copy that accumulates over microbatches, if any.
        """
        in_forward = self._targets(self.passes.in_forward)
        after_forward = self._targets(self.later_consumers)
        if self.group.in_forward:
            in_forward |= accumulated
        else:
            after_forward |= accumulated
        # The caller takes a copy that exists anyway, if one is fully reduced.
        known = {*start, *after_forward, *([] if self.saved is None else [self.saved])}
        candidates = [
            self._both_passes_to(start, in_forward, targets)
            for targets in self._with_returned(self.later_consumers, after_forward, known)
        ]
        return min(candidates, key=lambda both: both[0].seconds + both[2].seconds)

    def _both_passes_to(
        self,
        start: frozenset[Placements],
        in_forward: frozenset[Placements],
        after_forward: frozenset[Placements],
    ) -> BothPasses:
        """The steps to given placements in both passes, through the stored copy."""
        cheapest_tree = self.graph.cheapest_tree
        if not self.group.in_forward:
            return NO_RESHARD, None, cheapest_tree(start, after_forward)
        # Without a stored copy the later pass begins as the forward pass did: from the tensor that
        # is rebuilt, or from the resident copy.
        if self.keeping.reruns or not self.passes.can_save(len(self.later_consumers)):
            in_forward_tree = cheapest_tree(start, in_forward)
            return in_forward_tree, None, cheapest_tree(start, after_forward)
        saved = self.saved
        if saved is None:
            saved = self._cheapest_saved(start, in_forward, after_forward)
        # An input stays in memory itself, and may be resharded again from there.
        inputs = start if self.group.is_input else frozenset()
        in_forward_tree = cheapest_tree(start, in_forward | {saved})
        after_forward_tree = cheapest_tree(inputs | {saved}, after_forward)
        return in_forward_tree, None if saved in inputs else saved, after_forward_tree

    def _after_loop(self, start: frozenset[Placements]) -> ReshardTree:
        """The steps after the microbatch loop."""
        consumers = self.passes.after_loop
        targets = self._targets(consumers)
        trees = (
            self.graph.cheapest_tree(start, end)
            for end in self._with_returned(consumers, targets, {*start, *targets})
        )
        return min(trees, key=lambda tree: tree.seconds)

    def _targets(self, consumers: Iterable[ConsumerClass]) -> frozenset[Placements]:
        """The placements that consumers require."""
        return frozenset(
            self.problem.required_placements(c, self.strategies[c.class_id])
            for c in consumers
            if c.class_id is not None
        )

    def _with_returned(
        self,
        consumers: Sequence[ConsumerClass],
        targets: frozenset[Placements],
        known: set[Placements],
    ) -> list[frozenset[Placements]]:
        """The targets, and the copy that the step returns, in any placements that are not partial.

        Args:
            known: placements in which a copy exists in any case.
        """
        # None of them is best in advance: a reduce-scatter costs half of an all-reduce.
        is_returned = any(c.class_id is None for c in consumers)
        if not is_returned or any(map(has_no_partial, known)):
            return [targets]
        every = all_placements(self.group.sizes, self.problem.mesh)
        return [targets | {placements} for placements in every]

    def _cheapest_saved(
        self,
        start: frozenset[Placements],
        in_forward: frozenset[Placements],
        after_forward: frozenset[Placements],
    ) -> Placements:
        """Placements of the saved copy with the least resharding time, then the fewest bytes."""
        # First the placements that the tensor passes through anyway.
        tree = self.graph.cheapest_tree(start, in_forward)
        near = {*start, *in_forward, *(step.target for step in tree.steps)}
        near = {placements for placements in near if min(placements) >= SUM}
        inputs = start if self.group.is_input else frozenset[Placements]()

        def order(saved: Placements) -> tuple[float, int, Placements]:
            nbytes = 0 if saved in inputs else self.problem.local_bytes(self.group, saved)
            try:
                before = self.graph.cheapest_tree(start, in_forward | {saved})
                after = self.graph.cheapest_tree(inputs | {saved}, after_forward)
                return before.seconds + after.seconds, nbytes, saved
            except PlanError:  # from no replicated copy to a consumer that takes partial sums
                return math.inf, nbytes, saved

        # Partial maxima and minima are not saved, so ``near`` may be empty.
        best = min(map(order, near), default=(math.inf, 0, min(start)))
        # The forward pass alone is a bound: if a copy that it makes anyway adds no seconds to it,
        # no other copy is faster. All placements are tried only above the bound.
        if best[0] > tree.seconds:
            every = all_placements(self.group.sizes, self.problem.mesh)
            partial = [placements for placements in near if not has_no_partial(placements)]
            return min(best, *map(order, every), *map(order, partial))[2]
        # A slice costs nothing, so saving a consumer's shard may cost no more.
        usable = (placements for placements in after_forward if min(placements) >= SUM)
        shards = [p for p in usable if self.problem.local_bytes(self.group, p) < best[1]]
        return min([best, *map(order, shards)])[2]


def _steps_leading_to(
    steps: Sequence[ReshardStep], targets: frozenset[Placements]
) -> Iterable[ReshardStep]:
    """The steps of a tree on the paths to some of its targets, last step first."""
    # Backwards, because the step that makes the source of a wanted step is wanted, too.
    wanted = set(targets)
    for step in reversed(steps):  # a step follows the step that makes its source
        if step.target in wanted:
            wanted.add(step.source)
            yield step


def has_no_partial(placements: Placements) -> bool:
    """Whether a tensor with these placements is fully reduced."""
    return all(placement >= REPLICATED for placement in placements)
