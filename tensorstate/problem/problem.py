"""The search problem of a training step, with identical layers counted once.

The search chooses a strategy for every node class, and the keeping of its results of the forward
pass for the backward pass (see ``tensorstate.keeping``). Costs are those of nodes
(``node_strategies``) and of ``tensor_groups``.

The step has two *passes*: the forward pass, and the backward pass with the optimizer. Within a pass
a tensor is resharded to given placements at most once, for all of its consumers. From the forward
to the backward pass one copy of it is stored, unless its producer reruns. An input stays in memory
with its own placements.

With microbatches both passes are in a loop (see ``tensorstate.problem.microbatching``). Tensors and
operators in the loop have the sizes of one microbatch, the others those of the step. A tensor that
is read after the loop is *loop-resident*: one copy of it stays in memory through the loop, and is
accumulated if it is a sum.

With pipeline stages the scans over layers run on one microbatch at a time (see
``tensorstate.problem.pipeline``).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxcoll.numerics import checks
from tensorstate.collective_costs import CollectiveCostModel
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware
from tensorstate.ir.graph import Graph, Node
from tensorstate.ir.placements import (
    MOST_DEVICES,
    REPLICATED,
    SUM,
    Exchange,
    MeshShape,
    Placements,
    RingStrategy,
    num_shards,
)
from tensorstate.keeping import table
from tensorstate.keeping.base import Keeping
from tensorstate.problem.liveness import Liveness, LiveRanges
from tensorstate.problem.microbatching import batch_factor, split_microbatches
from tensorstate.problem.node_strategies import NodeStrategies, Strategy
from tensorstate.problem.pipeline import (
    PipelineStages,
    Schedule,
    find_num_stages,
    pipeline,
    stream_factor,
)
from tensorstate.problem.reshard import (
    NO_RESHARD,
    CollectiveSeconds,
    ReshardGraph,
    ReshardStep,
    ReshardTree,
)
from tensorstate.problem.tensor_groups import (
    ConsumerClass,
    TensorGroup,
    find_tensor_groups,
    is_in_loop,
)

# The counted share of hidden sends, so that ties are broken in favour of fewer sends.
HIDDEN_SHARE = 0.05
# Of the rows of experts one in so many is expected to be on another device: rows are sorted, so
# that with experts about equally chosen nearly all are where they belong.
AWAY = 2
# The least bytes of an element of sums that go round a ring.
SUMS_ITEMSIZE = 4
SLICES = frozenset({"slice", "dynamic_slice", "scan_row", "scan_stack"})
# Operators that only pass a value on: a loop's carry stays in place.
FREE = frozenset({"carry_in", "carry_out", "while_condition"})
# The number of reads and writes of a row of a stack between its production and its use.
STACK_TRAFFIC = 4


class InnerSend(NamedTuple):
    """A collective within an operator, along a mesh axis.

    Attributes:
        axis: number of the mesh axis.
        nbytes: bytes of the larger of a device's buffers.
        times: runs per training step.
        dtype: the dtype of its elements.
        kind: "permute", every device's block to the next; "all_to_all", of rows to their owners;
            or "all_gather", of indices.
        padding: bytes that an all_to_all sends beside these if XLA has none for slices of unequal
            sizes, so that all slices are as long as the longest may be.
    """

    axis: int
    nbytes: int
    times: int
    dtype: str
    kind: str = "permute"
    padding: int = 0

    @property
    def is_around(self) -> bool:
        """Whether blocks go round, beside the products of those that are here."""
        return self.kind == "permute"


class Problem:
    """A training step on a mesh of devices, ready to be searched.

    Args:
        graph: the training step.
        network: the mesh and the costs of collectives.
        hardware: a device.
        microbatches: number of microbatches; 1 for no loop.
        batch: name of an input whose first dimension is the batch (see
            ``microbatching.batch_factor``).
        stages: the mesh axis of pipeline stages, through which the microbatches are streamed; an
            axis that the network does not have counts as one of ``num_stages`` devices.
        num_stages: the number of stages, if the network is a part of the mesh; by default the size
            of the axis.
        schedule: the order of the stages, "gpipe" or "1f1b".

    Attributes:
        microbatches: iterations of the loop over microbatches; 1 with stages.
        pipeline: the scans over layers as stages; ``None`` for no stages.
        traced: the training step.
        microbatch_split: the step as a loop; ``None`` for no loop.
        graph: the graph of one microbatch and of the operators after the loop; without a loop, of
            the step.
        group_costs: for each tensor group the last decisions that ``cost.cost`` priced, with their
            cost, since most plans that are priced differ from the previous one in few groups.
        shares, undiscounted: those of ``discounted``; no shares, and ``None``, if everything is
            paid.

    Raises:
        PlanError: the step cannot be split into this number of microbatches.
    """

    def __init__(
        self,
        graph: Graph,
        network: CollectiveCostModel,
        hardware: Hardware,
        microbatches: int = 1,
        batch: str | None = None,
        stages: str | None = None,
        num_stages: int | None = None,
        schedule: Schedule = "gpipe",
    ):
        checks.instance(graph, Graph, "graph", PlanError)
        checks.instance(network, CollectiveCostModel, "network", PlanError)
        checks.instance(hardware, Hardware, "hardware", PlanError)
        checks.integer(microbatches, "microbatches", PlanError, least=1, most=MOST_DEVICES)
        checks.optional(batch, checks.text, "batch", PlanError)
        self.traced, self.network, self.hardware, self.batch = graph, network, hardware, batch
        self.pipeline = self._pipeline(stages, num_stages, microbatches, schedule)
        # A stream of one stage is not cut.
        self.microbatches = microbatches = 1 if stages is not None else microbatches
        self.microbatch_split = None
        if microbatches != 1:
            self.microbatch_split = split_microbatches(graph, batch_factor(graph, batch))
            graph = self.microbatch_split.microbatch(microbatches)
        if self.pipeline is not None:  # the pipeline streams the microbatches itself
            graph = self.pipeline.graph
        self.graph = graph
        self.strategies = tuple(
            NodeStrategies(graph, self.node(g), self.mesh, self._fixed(self.node(g)))
            for g in range(len(graph.node_classes))
        )
        self.tensor_groups = find_tensor_groups(
            graph,
            self.microbatch_split,
            self.liveness.lasting,
            self.pipeline.batch_placements if self.pipeline else (),
        )
        self.shares: Mapping[TensorGroup, tuple[float, ...]] = {}
        self._reshard_graphs: dict[object, ReshardGraph] = {}
        self._live_ranges: dict[int, LiveRanges] = {}
        self.group_costs: dict[int, object] = {}
        self.undiscounted: Problem | None = None
        # Owned by this problem and those discounted from it; a cached method would keep it alive.
        self.seconds = functools.cache(self._seconds)
        self.inner_sends = functools.cache(self._inner_sends)
        self.memory_traffic = functools.cache(self._memory_traffic)

    def on(self, network: CollectiveCostModel, hardware: Hardware | None = None) -> Problem:
        """The problem of the same step on another network, or on other devices."""
        staged = self.pipeline
        return Problem(
            self.traced,
            network,
            hardware or self.hardware,
            self.num_parts,
            self.batch,
            staged.axis if staged else None,
            staged.stages if staged else None,
            self.schedule,
        )

    @property
    def schedule(self) -> Schedule:
        """The schedule of the pipeline; "gpipe" without one."""
        return "gpipe" if self.pipeline is None else self.pipeline.schedule

    @property
    def whole(self) -> Graph:
        """The operators of ``graph`` on the whole batch."""
        return self.traced if self.pipeline is None else self.pipeline.traced

    @property
    def num_parts(self) -> int:
        """Number of microbatches, of the loop over them or of the pipeline's stream."""
        return self.microbatches if self.pipeline is None else self.pipeline.microbatches

    def without_stages(self) -> Problem:
        """The problem of the same step without pipeline stages."""
        if self.pipeline is None:
            return self
        return Problem(self.traced, self.network, self.hardware, 1, self.batch)

    def _pipeline(
        self, axis: str | None, num_stages: int | None, microbatches: int, schedule: Schedule
    ) -> PipelineStages | None:
        """The stages along a mesh axis; none along an axis of one device."""
        # A part of the mesh may lack the axis, as in the bounds of ``coordinate_descent``. The step
        # is streamed nevertheless, so that its costs are those of the full number of stages.
        checks.optional(axis, checks.text, "stages", PlanError)
        checks.optional(num_stages, checks.integer, "num_stages", PlanError, least=1)
        if axis is None:
            return None
        count = find_num_stages(self.mesh, axis) if num_stages is None else num_stages
        if count == 1:
            return None
        factor = stream_factor(self.traced, self.batch)
        return pipeline(self.traced, axis, count, microbatches, factor, schedule)

    @property
    def stage_axis(self) -> int | None:
        """The number of the mesh axis of the stages; ``None`` if the mesh has none."""
        if self.pipeline is None or self.pipeline.axis not in self.mesh.names:
            return None
        return self.mesh.names.index(self.pipeline.axis)

    def _fixed(self, node: Node) -> tuple[int, int] | None:
        """The axis of the stages, and the placement on it of a node of a scan over layers."""
        axis = self.stage_axis
        placement = self.pipeline.fixed_placement(node) if self.pipeline else None
        return None if axis is None or placement is None else (axis, placement)

    def __repr__(self) -> str:
        count = math.prod(self.mesh.sizes)
        return f"Problem({len(self.graph.operators)} operators on {count} x {self.hardware.name})"

    @property
    def mesh(self) -> MeshShape:
        """The device mesh."""
        return self.network.mesh

    def node(self, class_id: int) -> Node:
        """The first node of a class, which represents all of them."""
        return self.graph.nodes[self.graph.node_classes[class_id][0]]

    def multiplicity(self, class_id: int) -> int:
        """Number of nodes of a class."""
        return len(self.graph.node_classes[class_id])

    def may_keep(self, class_id: int, keeping: Keeping) -> bool:
        """Whether a class may have this keeping; outside the forward pass only the default one."""
        if keeping == table.DEFAULT:
            return True
        node = self.node(class_id)
        if node.phase != "forward" or not is_in_loop(node, self.microbatch_split):
            return False
        if keeping.lacks(self.hardware):
            return False
        operators = [member.operator for member in node.members]
        if keeping.on_host and not self.hardware.holds_host_copies:
            results = (use for index in operators for use in self.graph.operators[index].results)
            if not all(self.graph.loops_around(use.tensor) for use in results):
                return False
        return all(keeping.may_keep(self.graph, index) for index in operators)

    def keeping_seconds(
        self, group: TensorGroup, keeping: Keeping, placements: Placements
    ) -> float:
        """Seconds per training step to store a copy of one of the tensors and to fetch it."""
        nbytes = self.local_bytes(group, placements)
        seconds = keeping.seconds(self.hardware, nbytes)
        if self._is_stacked(group):
            # A row is read and written when it is put into the stack, and again when it is taken
            # out, as by ``scan_stack`` and ``scan_row`` of a loop that is traced without its
            # mirror.
            seconds += STACK_TRAFFIC * nbytes / self.hardware.memory_bandwidth
        return seconds * group.num_repeats * (self.microbatches if group.in_loop else 1)

    def _is_stacked(self, group: TensorGroup) -> bool:
        """Whether all iterations of a loop store their copies in one stack, for its mirror."""
        number = group.tensors[0]
        is_mirrored = self.graph.mirror(self.graph.loops_around(number)) is not None
        return is_mirrored and group.in_forward and not self.liveness.is_fused(number)

    def num_repeats(self, class_id: int) -> int:
        """Number of times that a class runs per step."""
        node = self.node(class_id)
        loops = self.graph.operators[node.members[0].operator].loops if node.members else ()
        repeats = self.graph.num_repeats(loops)
        return repeats * (self.microbatches if is_in_loop(node, self.microbatch_split) else 1)

    def reshard_graph(self, group: TensorGroup) -> ReshardGraph:
        """The reshard steps between the placements of a group's tensors.

        Within a scan in stages the devices along the axis of the stages have other layers and other
        microbatches, so no step leads along it: a slice of a tensor that counts as replicated
        there, and a gather after a cheaper reduction, would mix them. A residual of 1F1B is not
        resharded either, since no device ever has all microbatches of it.
        """
        shares, staged = self.shares.get(group), self.pipeline
        loops = self.graph.loops_around(group.tensors[0]) if staged is not None else ()
        apart = {self.stage_axis} if staged and loops and loops[0] in staged.loops else set()
        if staged is not None and group.tensors[0] in staged.held_tensors:
            apart = set(range(len(self.mesh.sizes)))
        key = group.sizes, group.nbytes, shares, frozenset(apart)
        if key not in self._reshard_graphs:
            seconds = self.network.collective_seconds
            if shares is not None:
                seconds = functools.partial(_shared_seconds, seconds, shares)
            sends, overlaps = self.network.send_seconds, self.hardware.overlaps
            self._reshard_graphs[key] = ReshardGraph(
                group.sizes, group.nbytes, self.mesh, seconds, sends, key[-1], overlaps
            )
        return self._reshard_graphs[key]

    def discounted(self, shares: Mapping[TensorGroup, tuple[float, ...]]) -> Problem:
        """The problem in which collectives of some tensors cost only a part of their seconds.

        Args:
            shares: for each tensor group the part along every mesh axis; other groups pay
                everything.
        """
        # Everything is shared except the costs and their caches.
        other = copy.copy(self)
        other.shares, other._reshard_graphs, other.group_costs = shares, {}, {}
        other.undiscounted = self.undiscounted or self
        return other

    def sends(self, group: TensorGroup, placements: Placements) -> tuple[ReshardTree, int]:
        """The send of a carry between stages, and the number of sends; none for other tensors."""
        axis, staged = self.stage_axis, self.pipeline
        count = 0 if staged is None else staged.num_sends(group.tensors[0])
        if staged is None or axis is None or not count:
            return NO_RESHARD, 0
        nbytes = self.local_bytes(group, placements)
        step = ReshardStep("permute", axis, placements, placements, nbytes)
        return ReshardTree((step,), self.reshard_graph(group).seconds(step)), count

    @functools.cached_property
    def liveness(self) -> Liveness:
        """The order of operators, and the live ranges that follow from it."""
        stages = self.microbatch_split.stages if self.microbatch_split else ()
        return Liveness(
            self.graph,
            frozenset(i for i, s in enumerate(stages) if s == "after"),
            self.pipeline.loops if self.pipeline else frozenset(),
            self.pipeline.together if self.pipeline else frozenset(),
        )

    def live_ranges(self, number: int) -> LiveRanges:
        """The live ranges of a group's tensors."""
        if number not in self._live_ranges:
            group = self.tensor_groups[number]
            consumers = [
                () if consumer_class.after_loop else [e for nodes in of_tensor for e in nodes]
                for consumer_class, of_tensor in zip(
                    group.consumer_classes, zip(*group.consumers, strict=True), strict=True
                )
            ]
            self._live_ranges[number] = self.liveness.live_ranges(
                group.tensors, group.in_forward, group.needed_after_forward, consumers
            )
        return self._live_ranges[number]

    def produced_placements(self, group: TensorGroup, strategy: Strategy) -> Placements:
        """The placements with which a group's tensors are produced."""
        placements = self.strategies[group.class_id].output_placements(
            strategy, group.labels, group.port
        )
        return self.as_left(group.tensors[0], placements)

    def as_left(self, tensor: int, placements: Placements) -> Placements:
        """The placements of a result; after a scan in stages it is a term of a sum."""
        axis, staged = self.stage_axis, self.pipeline
        if staged is None or axis is None or not staged.leaves_as_term(tensor):
            return placements
        return (*placements[:axis], SUM, *placements[axis + 1 :])

    def required_placements(self, consumer_class: ConsumerClass, strategy: Strategy) -> Placements:
        """The placements that a consumer requires of a tensor."""
        if consumer_class.class_id is None:  # a mistake in the calling code
            raise ValueError("the caller of the step requires no placements in particular")
        return self.strategies[consumer_class.class_id].input_placements(
            strategy, consumer_class.labels, consumer_class.ports
        )

    def local_bytes(self, group: TensorGroup, placements: Placements) -> int:
        """Bytes per device of a group's tensor, or of one microbatch of it."""
        return group.nbytes // self.mesh.num_shards(placements)

    def input_bytes(self, group: TensorGroup, placements: Placements) -> int:
        """Bytes per device of an input, all microbatches together."""
        return self.local_bytes(group, placements) * (
            self.microbatches if group.batch_placement >= 0 else 1
        )

    def _seconds(self, class_id: int, strategy: Strategy) -> float:
        """Compute seconds of a node of a class, in all microbatches together.

        A microbatch takes the maximum of its arithmetic time and its memory time (roofline model).
        """
        node, tensors = self.node(class_id), self.graph.tensors
        operators = [self.graph.operators[member.operator] for member in node.members]
        if not operators or operators[0].pin is not None or operators[0].primitive in FREE:
            return 0.0
        axis, staged = self.stage_axis, self.pipeline
        if staged is not None and axis is not None and staged.is_staged(operators[0]):
            # A stage has its own layers, and each of them in full.
            strategy = (*strategy[:axis], REPLICATED, *strategy[axis + 1 :])
        # For products the arithmetic counts; for all other operators it is far below the memory
        # time.
        shards = self.mesh.num_shards(strategy)
        arithmetic = math.fsum(
            operator.flops
            / self.hardware.flops_of(tensors[operator.operands[0].tensor].dtype.itemsize)
            for operator in operators
            if operator.kind in ("einsum", "window") and operator.operands
        )
        traffic = self.memory_traffic(class_id, strategy)
        if all(operator.primitive in SLICES for operator in operators):
            # A slice reads only its own bytes of the operand: one of the stacked layers. A stack is
            # written row by row.
            is_stack = operators[0].primitive == "scan_stack"
            rows = {u.tensor for o in operators for u in (o.operands if is_stack else o.results)}
            traffic = min(traffic, 2 * sum(tensors[tensor].nbytes for tensor in rows) / shards)
        per_repeat = max(arithmetic / shards, traffic / self.hardware.memory_bandwidth)
        return self.num_repeats(class_id) * per_repeat

    def _inner_sends(self, class_id: int, strategy: Strategy) -> tuple[InnerSend, ...]:
        """The sends within a node of a class, none unless its strategy is that of a pairing."""
        pairing = self.strategies[class_id].pairing
        axes = [a for a, p in enumerate(strategy) if pairing is not None and p == pairing.label]
        if pairing is None or not axes:
            return ()
        if isinstance(pairing, Exchange):
            return self._exchanged(class_id, strategy, pairing, axes[0])
        return self._sent_around(class_id, strategy, pairing, axes)

    def _exchanged(
        self, class_id: int, strategy: Strategy, exchange: Exchange, axis: int
    ) -> tuple[InnerSend, ...]:
        """Rows that go to their owners, or to who looks them up, and results that come back.

        Expected are as many rows as a device has, and of those of experts, which are sorted and so
        mostly near them, a part. Padded, as many go to each other device.
        """
        node, runs, size = self.node(class_id), self.num_repeats(class_id), self.mesh.sizes[axis]
        operator, sends = self.graph.operators[node.members[0].operator], []
        is_index = exchange.is_lookup
        unequal = size if is_index else AWAY * size
        for use in (*operator.operands, *operator.results):
            of_node = tuple(node.members[0].labels[label] for label in use.labels)
            if exchange.rows not in of_node:
                continue
            tensor = self.graph.tensors[use.tensor]
            most = size * tensor.nbytes // self.shards_of(class_id, strategy, of_node)
            dtype = str(tensor.dtype)
            if is_index:  # all devices get it
                sends.append(InnerSend(axis, most, runs, dtype, "all_gather"))
            elif self.hardware.has_ragged:
                part = most // unequal
                sends.append(InnerSend(axis, part, runs, dtype, "all_to_all", most - part))
            else:
                sends.append(InnerSend(axis, most, runs, dtype, "all_to_all"))
            is_index = False
        return tuple(sends)

    def shards_of(self, class_id: int, strategy: Strategy, labels: tuple[int, ...]) -> int:
        """The shards of a tensor with these labels of a node."""
        strategies = self.strategies[class_id]
        return math.prod(
            num_shards(strategies.sharding_of(label, strategy), label, self.mesh)
            for label in labels
        )

    def _sent_around(
        self, class_id: int, strategy: Strategy, ring: RingStrategy, axes: Sequence[int]
    ) -> tuple[InnerSend, ...]:
        """The sends of a ring.

        Blocks go round every axis completely before they move along the previous axis. The last
        send along every axis brings results to their place; operands do not need it.
        """
        node = self.node(class_id)
        labels = node.members[0].labels
        operator = self.graph.operators[node.members[0].operator]
        uses = [(use, ring.passes, True) for use in operator.operands]
        uses += [(use, 1, False) for use in operator.results]
        sends, runs = [], self.num_repeats(class_id)
        for use, passes, is_operand in uses:
            of_node = tuple(labels[label] for label in use.labels)
            if ring.keys not in of_node:
                continue
            tensor, around = self.graph.tensors[use.tensor], 1
            shards, dtype = self.shards_of(class_id, strategy, of_node), tensor.dtype
            if not is_operand and dtype.itemsize < SUMS_ITEMSIZE:
                dtype = np.dtype(np.float32)
            # On axes of 2 and 4 a block moves once along the first and seven times along the
            # second.
            for axis in axes:
                around *= self.mesh.sizes[axis]
                times = runs * passes * (around - is_operand)
                nbytes = tensor.size * dtype.itemsize // shards
                sends.append(InnerSend(axis, nbytes, times, str(dtype)))
        return tuple(sends)

    def inner_seconds(self, class_id: int, strategy: Strategy) -> float:
        """Seconds of the sends within a node of a class."""
        sends = self.inner_sends(class_id, strategy)
        return math.fsum(self.inner_send_seconds(send) for send in sends)

    def inner_send_seconds(self, send: InnerSend) -> float:
        """Seconds of a send in all its repetitions."""
        if send.is_around:
            return send.times * self.network.send_seconds(send.axis, send.nbytes, around=True)
        return send.times * self.network.collective_seconds(send.kind, send.axis, send.nbytes)

    def inner_paid(self, class_id: int, strategy: Strategy) -> float:
        """The part of ``inner_seconds`` that a linear program counts.

        Sends hide behind the products of all blocks but the last. If shares of collectives are
        discounted, only the rest is counted; otherwise everything is, as for all collectives.
        """
        seconds = self.inner_seconds(class_id, strategy)
        if not seconds or not self.shares:  # everything is paid
            return seconds
        hides = self.seconds(class_id, strategy) * (1 - 1 / self.blocks_around(class_id, strategy))
        return max(0.0, seconds - hides) + HIDDEN_SHARE * min(seconds, hides)

    def blocks_around(self, class_id: int, strategy: Strategy) -> int:
        """The number of blocks that visit a device; 1 without a ring."""
        ring = self.strategies[class_id].pairing
        return math.prod(
            size
            for size, placement in zip(self.mesh.sizes, strategy, strict=True)
            if isinstance(ring, RingStrategy) and placement == ring.label
        )

    def _memory_traffic(self, class_id: int, strategy: Strategy) -> int:
        """Bytes per device that a node of a class reads and writes, each tensor once.

        Tensors that only the node itself reads stay in registers.
        """
        # Tensors that are fused into other nodes count as written, although ``Liveness`` does not
        # store them. Without them the bytes are closer to those of XLA's programs, but not the
        # seconds: on an H200 a ViT took 1.6 times the prediction and an MoE 1.2 times, and with
        # them 1.1 and 1.0. To count instead what a fused tensor is computed from gives 1.6 and 1.3,
        # and the same order of plans on virtual CPU devices.
        node, tensors = self.node(class_id), self.graph.tensors
        read, produced = {}, {}
        for member in node.members:
            operator = self.graph.operators[member.operator]
            for uses, labels_of in ((operator.operands, read), (operator.results, produced)):
                for use in uses:
                    labels_of[use.tensor] = tuple(member.labels[label] for label in use.labels)
        # Fused into one kernel, members pass results to each other without writing them.
        members = {member.operator for member in node.members}
        total = 0
        for tensor, labels in {**read, **produced}.items():
            consumers = {consumer.operator for consumer in tensors[tensor].consumers}
            if tensor in produced and consumers and consumers <= members:
                continue
            sharded = {placement for placement in strategy if placement >= 0} & set(labels)
            axes = zip(self.mesh.sizes, strategy, strict=True)
            total += tensors[tensor].nbytes // math.prod(s for s, e in axes if e in sharded)
        return total


def _shared_seconds(
    seconds: CollectiveSeconds, shares: tuple[float, ...], kind: str, axis: int, nbytes: int
) -> float:
    """Seconds of a collective of which only a share is paid."""
    return shares[axis] * seconds(kind, axis, nbytes)
