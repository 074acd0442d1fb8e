"""How tensors travel: the moves of every flow that decisions lead to, each the cheapest there are.

A tensor is brought to a state once in an era; between the eras one state of it is kept, and through
the loop over microbatches one is held. Where decisions leave open which, it is that with which the
tensor travels the least.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tensorstate.errors import PlanError
from tensorstate.ir.placements import REPLICATED, SUM, Placements, all_placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep, ReshardTree
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup


@dataclasses.dataclass(frozen=True, eq=False)
class Decisions:
    """What the search decides.

    Attributes:
        strategies: the way of every class.
        recomputed: entities of the forward pass that are run again in the backward pass, from what
            is kept, where something there needs what they make and it is not in ``saved``. Layers
            that are tied run in the same way, but some may be run again and others not.
        saved: for tensors the state in which they are kept between the eras, unless they are made
            again. Of others the state is kept with which they travel the least, the smallest among
            equals.
        loop_resident: in microbatches, for tensors that are not cut, the state in which they are
            held all through the loop. An input is brought to it once, before the loop, and read
            there in every turn; nothing of it is kept within a turn. What is read after the loop is
            brought to it in every turn, and added up there. Of others it is again the state with
            which they travel the least.
    """

    strategies: tuple[Strategy, ...]
    recomputed: frozenset[int] = frozenset()
    saved: Mapping[int, Placements] = dataclasses.field(default_factory=dict)
    loop_resident: Mapping[int, Placements] = dataclasses.field(default_factory=dict)


NO_RESHARD = ReshardTree((), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardPlan:
    """How tensors of a flow travel.

    Attributes:
        group: its number.
        tensors: those that travel so.
        produced_placements: the placements in which they are made.
        in_forward, after_forward: the moves in the forward pass, and after it.
        saved: the state kept between the eras; ``None`` where nothing is, or only an input's own.
        is_recomputed: whether the maker makes them again after the forward pass.
        num_repeats: how often the moves of both eras are made: in every microbatch.
        before_loop, after_loop: the moves before and after the loop over microbatches, made once.
        loop_resident: the state held through the loop; ``None`` where nothing is, or only an
            input's own.
        for_recompute: of the late moves those by which they come to what runs again.
    """

    group: int
    tensors: tuple[int, ...]
    produced_placements: Placements
    in_forward: ReshardTree
    after_forward: ReshardTree
    saved: Placements | None
    is_recomputed: bool
    num_repeats: int = 1
    before_loop: ReshardTree = NO_RESHARD
    after_loop: ReshardTree = NO_RESHARD
    loop_resident: Placements | None = None
    for_recompute: ReshardTree = NO_RESHARD

    @property
    def steps(self) -> tuple[ReshardStep, ...]:
        """All moves."""
        return tuple(step for step, _ in self.counted_steps)

    @property
    def counted_steps(self) -> tuple[tuple[ReshardStep, int], ...]:
        """All moves, and how often a tensor makes each."""
        trees = (
            (self.before_loop, 1),
            (self.in_forward, self.num_repeats),
            (self.after_forward, self.num_repeats),
        )
        return tuple((m, n) for tree, n in (*trees, (self.after_loop, 1)) for m in tree.steps)

    @property
    def seconds(self) -> float:
        """Seconds of all moves of a tensor."""
        per_repeat = self.in_forward.seconds + self.after_forward.seconds
        return self.before_loop.seconds + self.num_repeats * per_repeat + self.after_loop.seconds

    @property
    def multiplicity(self) -> int:
        """How many tensors travel so."""
        return len(self.tensors)


def find_recomputed_nodes(problem: Problem, decisions: Decisions) -> frozenset[int]:
    """Of the entities that may be run again those that something after the forward pass needs."""
    recomputed_nodes: set[int] = set()
    nodes = problem.graph.nodes
    pending = {one for one in decisions.recomputed if problem.is_in_forward(nodes[one].class_id)}
    needs: dict[int, list[tuple[bool, tuple[int, ...]]]] = defaultdict(list)
    for group in problem.tensor_groups:
        for tensor, producer, consumers in zip(
            group.tensors, group.producers, group.consumers, strict=True
        ):
            if producer in pending and tensor not in decisions.saved:
                after_forward = (
                    consumer_class.after_forward and not consumer_class.after_loop
                    for consumer_class in group.consumer_classes
                )
                needs[producer] += zip(after_forward, consumers, strict=True)
    # Readers come after makers, so one pass against the order of execution finds all.
    for node in sorted(pending, reverse=True):
        if any(
            after_forward or not recomputed_nodes.isdisjoint(consumers)
            for after_forward, consumers in needs[node]
        ):
            recomputed_nodes.add(node)
    return frozenset(recomputed_nodes)


def reshard_plans(
    problem: Problem, decisions: Decisions, recomputed_nodes: frozenset[int], number: int
) -> Iterable[ReshardPlan]:
    """Tensors of a flow by what becomes of their makers and readers and where they are kept.

    Of ``decisions.strategies`` only those of the classes that make and read the flow matter.

    Args:
        recomputed_nodes: what ``find_recomputed_nodes`` finds.
        number: of the flow.

    Raises:
        PlanError: a tensor cannot reach a state in which it is kept or demanded.
    """
    group = problem.tensor_groups[number]
    alike: dict[tuple, list[int]] = defaultdict(list)
    for tensor, producer, consumers in zip(
        group.tensors, group.producers, group.consumers, strict=True
    ):
        recomputed = tuple(not recomputed_nodes.isdisjoint(nodes) for nodes in consumers)
        saved = None if producer in recomputed_nodes else decisions.saved.get(tensor)
        needed_after_forward = saved, decisions.loop_resident.get(tensor)
        alike[producer in recomputed_nodes, recomputed, needed_after_forward].append(tensor)
    for (recomputed_counts, recomputed, needed_after_forward), tensors in alike.items():
        after_forward = [
            d
            for d, twice in zip(group.consumer_classes, recomputed, strict=True)
            if d.after_forward or twice
        ]
        reshard = _reshard_plan(
            problem,
            decisions.strategies,
            number,
            recomputed_counts,
            after_forward,
            *needed_after_forward,
        )
        yield dataclasses.replace(reshard, tensors=tuple(tensors))


def _reshard_plan(
    problem: Problem,
    strategies: Sequence[Strategy],
    number: int,
    recomputed_nodes: bool,
    after: Sequence[ConsumerClass],
    saved: Placements | None,
    loop_resident: Placements | None,
) -> ReshardPlan:
    """A trip; where it is left open, with the state held that makes it the shortest."""
    group = problem.tensor_groups[number]
    source = problem.produced_placements(group, strategies[group.class_id])
    after_forward = [d for d in after if not d.after_loop]
    uses_after_loop = [d for d in group.consumer_classes if d.after_loop]

    def reshard(loop_resident: Placements | None) -> ReshardPlan:
        return _loop_resident_plan(
            problem,
            strategies,
            number,
            source,
            recomputed_nodes,
            after_forward,
            uses_after_loop,
            saved,
            loop_resident,
        )

    if not is_loop_resident(problem, group):
        return reshard(None)
    if loop_resident is not None:
        return reshard(loop_resident)
    best = reshard(source)
    if not best.seconds:
        return best

    def size(reshard: ReshardPlan) -> tuple[float, int, Placements]:
        loop_resident = reshard.loop_resident or source
        return reshard.seconds, problem.local_bytes(group, loop_resident), loop_resident

    others = []
    for placements in problem.reshard_graph(group).reachable([source]):
        with contextlib.suppress(PlanError):  # what is whole does not become partial again
            others.append(reshard(placements))
    return min([best, *others], key=size)


def is_loop_resident(problem: Problem, group: TensorGroup) -> bool:
    """Whether a state of a flow is there through the loop: besides an input, or for after it."""
    if problem.microbatches == 1 or group.batch_placement >= 0:
        return False
    if group.is_input:
        return not all(consumer_class.after_loop for consumer_class in group.consumer_classes)
    return any(consumer_class.after_loop for consumer_class in group.consumer_classes)


def _loop_resident_plan(
    problem: Problem,
    strategies: Sequence[Strategy],
    number: int,
    produced: Placements,
    recomputed_nodes: bool,
    after_forward: Sequence[ConsumerClass],
    uses_after_loop: Sequence[ConsumerClass],
    saved: Placements | None,
    loop_resident: Placements | None,
) -> ReshardPlan:
    """A trip before, in and after the loop over microbatches, by way of the state that is held."""
    group = problem.tensor_groups[number]
    reshard_graph, here = problem.reshard_graph(group), frozenset({produced})
    # What is read after the loop is brought to where it is added up as soon as it is made.
    extra = (
        frozenset[Placements]()
        if loop_resident is None or group.is_input
        else frozenset({loop_resident})
    )
    there = here if loop_resident is None or not group.is_input else frozenset({loop_resident})
    in_forward, saved_in, second = _both_passes(
        problem, strategies, number, there, extra, recomputed_nodes, after_forward, saved
    )
    recompute_consumers = _targets(
        problem, strategies, [d for d in after_forward if not d.after_forward]
    )
    num_repeats = problem.microbatches if group.in_loop else 1
    before = reshard_graph.cheapest_tree(here, there)
    after = _reshards_after_loop(problem, strategies, group, extra or here, uses_after_loop)
    own = group.is_input and loop_resident == produced
    return ReshardPlan(
        number,
        (),
        produced,
        in_forward,
        second,
        saved_in,
        recomputed_nodes,
        num_repeats,
        before,
        after,
        None if own else loop_resident,
        ReshardTree(tuple(_steps_leading_to(second.steps, recompute_consumers)), 0.0),
    )


def _steps_leading_to(
    steps: Sequence[ReshardStep], targets: frozenset[Placements]
) -> Iterable[ReshardStep]:
    """The moves of a tree that lead to states."""
    wanted = set(targets)
    for step in reversed(steps):  # one comes after that to whose target it goes on from
        if step.target in wanted:
            wanted.add(step.source)
            yield step


def _both_passes(
    problem: Problem,
    strategies: Sequence[Strategy],
    number: int,
    here: frozenset[Placements],
    extra: frozenset[Placements],
    recomputed_nodes: bool,
    after: Sequence[ConsumerClass],
    saved: Placements | None,
) -> tuple[ReshardTree, Placements | None, ReshardTree]:
    """The moves of both eras, and what is kept between them, from what is there at first.

    Args:
        extra: states that are wanted once the tensor is made, besides those that are demanded.
    """
    group = problem.tensor_groups[number]
    in_forward = (
        [d for d in group.consumer_classes if not d.after_forward] if group.in_forward else []
    )
    wanted = _targets(problem, strategies, in_forward)
    after_forward = _targets(problem, strategies, after)
    if group.in_forward:
        wanted |= extra
    else:
        after_forward |= extra
    there = {*here, *after_forward} if saved is None else {*here, *after_forward, saved}
    ends = [after_forward]
    if any(d.class_id is None for d in after) and not any(map(has_no_partial, there)):
        # The caller takes any state but partial ones: the cheapest beside the others.
        ends = [
            after_forward | {placements} for placements in all_placements(group.sizes, problem.mesh)
        ]
    found = [
        _reshards_both_passes(problem, number, here, wanted, end, recomputed_nodes, saved, after)
        for end in ends
    ]
    return min(found, key=lambda eras: eras[0].seconds + eras[2].seconds)


def _reshards_after_loop(
    problem: Problem,
    strategies: Sequence[Strategy],
    group: TensorGroup,
    here: frozenset[Placements],
    consumer_classes: Sequence[ConsumerClass],
) -> ReshardTree:
    """The moves from what is there at the end of the loop to where it is wanted."""
    reshard_graph, wanted = (
        problem.reshard_graph(group),
        _targets(problem, strategies, consumer_classes),
    )
    ends = [wanted]
    if any(d.class_id is None for d in consumer_classes) and not any(
        map(has_no_partial, {*here, *wanted})
    ):
        ends = [wanted | {placements} for placements in all_placements(group.sizes, problem.mesh)]
    return min(
        (reshard_graph.cheapest_tree(here, end) for end in ends), key=lambda tree: tree.seconds
    )


def _targets(
    problem: Problem, strategies: Sequence[Strategy], consumer_classes: Iterable[ConsumerClass]
) -> frozenset[Placements]:
    """The states that classes demand."""
    return frozenset(
        problem.required_placements(d, strategies[d.class_id])
        for d in consumer_classes
        if d.class_id is not None
    )


def _reshards_both_passes(
    problem: Problem,
    number: int,
    here: frozenset[Placements],
    in_forward: frozenset[Placements],
    after_forward: frozenset[Placements],
    recomputed_nodes: bool,
    saved: Placements | None,
    after: Sequence[ConsumerClass],
) -> tuple[ReshardTree, Placements | None, ReshardTree]:
    """Moves to states in both eras, by way of the state that is kept."""
    group = problem.tensor_groups[number]
    reshard_graph = problem.reshard_graph(group)
    if not group.in_forward:
        return NO_RESHARD, None, reshard_graph.cheapest_tree(here, after_forward)
    if not after or recomputed_nodes or (group.is_input and is_loop_resident(problem, group)):
        return (
            reshard_graph.cheapest_tree(here, in_forward),
            None,
            reshard_graph.cheapest_tree(here, after_forward),
        )
    if saved is None:
        saved = _best_saved_placements(problem, group, here, in_forward, after_forward)
    base = here if group.is_input else frozenset()
    first = reshard_graph.cheapest_tree(here, in_forward | {saved})
    tree = reshard_graph.cheapest_tree(base | {saved}, after_forward)
    own = group.is_input and saved in here
    return first, None if own else saved, tree


def _best_saved_placements(
    problem: Problem,
    group: TensorGroup,
    here: frozenset[Placements],
    in_forward: frozenset[Placements],
    after_forward: frozenset[Placements],
) -> Placements:
    """The state to keep a flow in with which it travels the least; the smallest among equals."""
    reshard_graph = problem.reshard_graph(group)

    def cost(placements: Placements) -> tuple[float, int, Placements]:
        after = reshard_graph.cheapest_tree(
            here | {placements} if group.is_input else frozenset({placements}), after_forward
        ).seconds
        nbytes = (
            0 if group.is_input and placements in here else problem.local_bytes(group, placements)
        )
        return (
            reshard_graph.cheapest_tree(here, in_forward | {placements}).seconds + after,
            nbytes,
            placements,
        )

    near = {
        *here,
        *in_forward,
        *(step.target for step in reshard_graph.cheapest_tree(here, in_forward).steps),
    }
    # Maxima and minima that are still to be combined are not kept, so nothing may be near.
    first = (math.inf, 0, min(here))
    best = min((cost(placements) for placements in near if min(placements) >= SUM), default=first)
    if best[0] > reshard_graph.cheapest_tree(here, in_forward).seconds:
        partial = [
            placements
            for placements in near
            if not has_no_partial(placements) and min(placements) >= SUM
        ]
        best = min(best, *map(cost, all_placements(group.sizes, problem.mesh)), *map(cost, partial))
    return best[2]


def has_no_partial(placements: Placements) -> bool:
    """Whether a state has no partial entry."""
    return all(placement >= REPLICATED for placement in placements)
