"""A device's memory under decisions: what is there at every point of a training step."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from tensorstate.cost.reshard_plan import Decisions, ReshardPlan
from tensorstate.ir.placements import Placements
from tensorstate.problem.liveness import LiveRanges
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup

# Rounding of sums of shares, in bytes.
EXACT = 1e-6


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a device's memory when most is there.

    Attributes:
        inputs: parameters, optimizer state, batch and constants: there all the time.
        saved: activations and gathered copies, kept from the forward to the backward pass.
        loop_resident: gathered copies and sums, held through the loop over microbatches.
        gradients: that wait for the optimizer.
        temporaries: what else the operators have there.
    """

    inputs: int
    saved: int
    loop_resident: int
    gradients: int
    temporaries: int

    @property
    def peak(self) -> int:
        """The most that is there at once."""
        return self.inputs + self.saved + self.loop_resident + self.gradients + self.temporaries

    def fits(self, limit: float | None) -> bool:
        """Whether it stays within a limit in bytes, should there be one."""
        return limit is None or self.peak <= limit


def estimate_memory(
    problem: Problem,
    decisions: Decisions,
    reshards: Sequence[ReshardPlan],
    recomputed_nodes: frozenset[int],
) -> Memory:
    """The memory that decisions take.

    Args:
        reshards: how all tensors travel.
        recomputed_nodes: entities that run again.
    """
    by_flow: dict[int, list[ReshardPlan]] = defaultdict(list)
    for reshard in reshards:
        by_flow[reshard.group].append(reshard)
    inputs, nbytes = 0, np.zeros((4, len(problem.liveness.program_points)))
    for number, found in by_flow.items():
        inputs += input_bytes(problem, found)
        nbytes += bytes_by_point(problem, number, decisions.strategies, found, recomputed_nodes)
    return peak_memory(inputs, nbytes)


def peak_memory(inputs: float, nbytes: np.ndarray) -> Memory:
    """When most is there, of what is there beside the inputs at all points (``bytes_by_point``)."""
    total = nbytes.sum(0)
    saved, loop_resident, gradients, _ = nbytes[:, int(total.argmax())]
    parts = round(saved), round(loop_resident), round(gradients)
    return Memory(round(inputs), *parts, math.ceil(total.max() - EXACT) - sum(parts))


def input_bytes(problem: Problem, reshards: Iterable[ReshardPlan]) -> int:
    """Bytes of inputs on a device, where they are stored."""
    tensor_groups = problem.tensor_groups
    return sum(
        reshard.multiplicity
        * problem.input_bytes(tensor_groups[reshard.group], reshard.produced_placements)
        for reshard in reshards
        if tensor_groups[reshard.group].is_input
    )


def bytes_by_point(
    problem: Problem,
    number: int,
    strategies: Sequence[Strategy],
    reshards: Iterable[ReshardPlan],
    recomputed_nodes: frozenset[int],
) -> np.ndarray:
    """Bytes of a flow on a device at every point: kept, held, gradients, and others.

    Tensors of layers that are alike are taken to travel in each way in turn, so that of those that
    are there at a point the share travels so that does on the whole.

    Args:
        number: of the flow.
        reshards: all of the flow.
        recomputed_nodes: entities that run again.
    """
    group, live_ranges = problem.tensor_groups[number], problem.live_ranges(number)
    saved, loop_resident, gradients, others = nbytes = np.zeros((4, len(live_ranges.producing)))

    def size(placements: Placements) -> int:
        return problem.local_bytes(group, placements)

    for reshard in reshards:
        share = reshard.multiplicity / group.multiplicity
        source = reshard.produced_placements
        others += share * size(source) * live_ranges.producing
        for tree, span, packed in (
            (
                reshard.in_forward,
                live_ranges.resharded_in_forward,
                live_ranges.receive_buffer_in_forward,
            ),
            (
                reshard.after_forward,
                live_ranges.resharded_after_forward,
                live_ranges.receive_buffer_after_forward,
            ),
            (
                reshard.after_loop,
                live_ranges.resharded_after_loop,
                live_ranges.receive_buffer_after_loop,
            ),
            (
                reshard.for_recompute,
                live_ranges.resharded_for_recompute,
                live_ranges.receive_buffer_for_recompute,
            ),
        ):
            others += (
                share * sum(resharded_bytes(problem, group, step) for step in tree.steps) * span
            )
            others += share * sum(map(receive_buffer_bytes, tree.steps)) * packed
        if reshard.saved is not None:
            span = live_ranges.saved if reshard.saved == source else live_ranges.saved_copy
            saved += (
                share
                * size(reshard.saved)
                * (
                    span
                    + _is_read_for_recompute(group, reshard, recomputed_nodes)
                    * live_ranges.saved_for_recompute
                )
            )
        if reshard.loop_resident is not None:
            loop_resident += share * size(reshard.loop_resident) * live_ranges.loop_resident
        if reshard.is_recomputed:
            span = (
                recomputed_counts(group, live_ranges)
                + _is_read_for_recompute(group, reshard, recomputed_nodes)
                * live_ranges.recomputed_early
            )
            others += share * size(source) * span
        if group.in_forward:
            pending = size(
                _placements_awaiting(
                    problem, group, live_ranges.last_forward_use, strategies, source
                )
            )
            if not group.is_input and not group.needed_after_forward:
                others += share * pending * live_ranges.awaiting_forward_use
            lent = size(
                _placements_awaiting(problem, group, live_ranges.fused_consumer, strategies, source)
            )
            recomputed = reshard.is_recomputed
            if live_ranges.fused_consumer is not None:
                recomputed = _recomputed_share(group, live_ranges.fused_consumer, recomputed_nodes)
            saved += share * (1 - recomputed) * lent * live_ranges.fused_input
        else:
            pending = size(
                _placements_awaiting(
                    problem, group, live_ranges.last_backward_use, strategies, source
                )
            )
            after_forward = others if gradient_consumer(problem, group) is None else gradients
            after_forward += share * pending * live_ranges.awaiting_backward_use
    return nbytes


def recomputed_counts(group: TensorGroup, live_ranges: LiveRanges) -> np.ndarray:
    """Where tensors of a flow are there that are made again."""
    return (
        live_ranges.recomputed + live_ranges.awaiting_forward_use
        if group.needed_after_forward
        else live_ranges.recomputed
    )


def resharded_bytes(problem: Problem, group: TensorGroup, step: ReshardStep) -> int:
    """Bytes of what a move makes; a sum takes the place of its parts."""
    return 0 if step.kind == "all_reduce" else problem.local_bytes(group, step.target)


def receive_buffer_bytes(step: ReshardStep) -> int:
    """Bytes in which a move finds what it receives, before it is brought in order."""
    return step.nbytes if step.kind in ("all_gather", "all_to_all") else 0


def _is_read_for_recompute(
    group: TensorGroup, reshard: ReshardPlan, recomputed_nodes: frozenset[int]
) -> bool:
    """Whether something that runs again reads tensors that travel alike."""
    consumers = group.consumers[group.tensors.index(reshard.tensors[0])]
    return any(not recomputed_nodes.isdisjoint(nodes) for nodes in consumers)


def _placements_awaiting(
    problem: Problem,
    group: TensorGroup,
    number: int | None,
    strategies: Sequence[Strategy],
    source: Placements,
) -> Placements:
    """The state in which a tensor waits for its last reader."""
    consumer_class = None if number is None else group.consumer_classes[number]
    if consumer_class is None or consumer_class.class_id is None:
        return source
    return problem.required_placements(consumer_class, strategies[consumer_class.class_id])


def _recomputed_share(group: TensorGroup, number: int, recomputed_nodes: frozenset[int]) -> float:
    """Of the readers of a flow by a demand the share that run again."""
    consumers = [node for nodes in group.consumers for node in nodes[number]]
    return sum(node in recomputed_nodes for node in consumers) / max(1, len(consumers))


def gradient_consumer(problem: Problem, group: TensorGroup) -> ConsumerClass | None:
    """The first demand of the optimizer for what the backward pass makes: such is a gradient."""
    if problem.node(group.class_id).phase != "backward":
        return None
    for consumer_class in group.consumer_classes:
        if (
            consumer_class.class_id is not None
            and problem.node(consumer_class.class_id).phase == "optimizer"
        ):
            return consumer_class
    return None
