"""The decisions of a training step, layers that are alike counted once.

The search decides for every class of entities in which way it runs, and whether what it makes in
the forward pass is kept for the backward pass or made again. All that costs anything follows from
*flows* (see ``tensorstate.problem.tensor_groups``).

There are two *eras*: the forward pass, and what comes after (backward pass and optimizer). Within
an era a tensor is brought to a state once, however many read it there. Between the eras one state
of it is kept in memory, unless it is made again or is an input, whose own state stays.

In microbatches both eras are in a loop (see ``tensorstate.problem.microbatching``), whose turns are
alike: its tensors and operators are those of one microbatch, the others those of the step. What is
read after
the loop *crosses* its end: one state of it is held there, and added up if it is a sum.
"""

from __future__ import annotations

import functools
import math

from tensorstate.hardware import CollectiveCostModel, Hardware
from tensorstate.ir.graph import Graph, Node
from tensorstate.ir.placements import MeshShape, Placements
from tensorstate.problem.liveness import Liveness, LiveRanges
from tensorstate.problem.microbatching import batch_factor, split_microbatches
from tensorstate.problem.reshard import ReshardGraph
from tensorstate.problem.strategies import NodeStrategies, Strategy
from tensorstate.problem.tensor_groups import (
    ConsumerClass,
    TensorGroup,
    find_tensor_groups,
    is_in_loop,
)

SLICES = frozenset({"slice", "dynamic_slice"})


class Problem:
    """A training step on a mesh of devices, ready to be searched.

    Args:
        graph: the training step.
        network: the mesh and the prices of collectives.
        hardware: a device.
        microbatches: turns of the loop over parts of the batch; 1 for none.
        batch: name of an input whose first dimension is the batch (see
            ``pipelining.batch_factor``).

    Attributes:
        traced: the training step.
        microbatch_split: the step as a loop; ``None`` for none.
        graph: that of one turn, and of what comes after the loop; the step where there is none.

    Raises:
        PlanError: the step cannot be cut into so many microbatches.
    """

    def __init__(
        self,
        graph: Graph,
        network: CollectiveCostModel,
        hardware: Hardware,
        microbatches: int = 1,
        batch: str | None = None,
    ):
        self.traced, self.network, self.hardware = graph, network, hardware
        self.microbatches, self.batch = microbatches, batch
        in_loop = microbatches != 1
        self.microbatch_split = (
            split_microbatches(graph, batch_factor(graph, batch)) if in_loop else None
        )
        self.graph = graph = (
            self.microbatch_split.microbatch(microbatches) if self.microbatch_split else graph
        )
        self.strategies = tuple(
            NodeStrategies(graph, self.node(g), self.mesh) for g in range(len(graph.node_classes))
        )
        self.tensor_groups = find_tensor_groups(graph, self.microbatch_split, self.liveness.lasting)
        self._reshard_graphs: dict[tuple[tuple[int, ...], int], ReshardGraph] = {}
        self._live_ranges: dict[int, LiveRanges] = {}

    def on(self, network: CollectiveCostModel, hardware: Hardware | None = None) -> Problem:
        """The same step on another network, or on other devices."""
        return Problem(
            self.traced, network, hardware or self.hardware, self.microbatches, self.batch
        )

    @property
    def mesh(self) -> MeshShape:
        """The device mesh."""
        return self.network.mesh

    def node(self, class_id: int) -> Node:
        """An entity of a class, which stands for all."""
        return self.graph.nodes[self.graph.node_classes[class_id][0]]

    def multiplicity(self, class_id: int) -> int:
        """How many entities a class has."""
        return len(self.graph.node_classes[class_id])

    def is_in_forward(self, class_id: int) -> bool:
        """Whether a class runs in the forward pass, and in the loop where there is one."""
        node = self.node(class_id)
        return node.phase == "forward" and is_in_loop(node, self.microbatch_split)

    def num_repeats(self, class_id: int) -> int:
        """How often a class runs."""
        return self.microbatches if is_in_loop(self.node(class_id), self.microbatch_split) else 1

    def reshard_graph(self, group: TensorGroup) -> ReshardGraph:
        """The ways of a flow's tensor between its states."""
        key = group.sizes, group.nbytes
        if key not in self._reshard_graphs:
            self._reshard_graphs[key] = ReshardGraph(
                *key, self.mesh, self.network.collective_seconds
            )
        return self._reshard_graphs[key]

    @functools.cached_property
    def liveness(self) -> Liveness:
        """When operators run and need their tensors."""
        stages = self.microbatch_split.stages if self.microbatch_split else ()
        return Liveness(self.graph, frozenset(i for i, s in enumerate(stages) if s == "after"))

    def live_ranges(self, number: int) -> LiveRanges:
        """When the tensors of a flow are there."""
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
        """The state in which a flow's tensor is made."""
        return self.strategies[group.class_id].output_placements(strategy, group.labels, group.port)

    def required_placements(self, consumer_class: ConsumerClass, strategy: Strategy) -> Placements:
        """The state in which a class demands a tensor."""
        if consumer_class.class_id is None:
            raise ValueError("the caller of the step demands no state in particular")
        return self.strategies[consumer_class.class_id].input_placements(
            strategy, consumer_class.labels, consumer_class.ports
        )

    def local_bytes(self, group: TensorGroup, placements: Placements) -> int:
        """Bytes of a flow's tensor, or of a microbatch's piece of it, on a device."""
        return group.nbytes // self.mesh.num_shards(placements)

    def input_bytes(self, group: TensorGroup, placements: Placements) -> int:
        """Bytes of an input on a device, the pieces of all microbatches together."""
        return self.local_bytes(group, placements) * (
            self.microbatches if group.batch_placement >= 0 else 1
        )

    @functools.cache  # noqa: B019 - a problem lives as long as its search
    def seconds(self, class_id: int, strategy: Strategy) -> float:
        """Seconds that an entity of a class computes in all turns.

        In each it takes the longer of arithmetic and memory.
        """
        node, tensors = self.node(class_id), self.graph.tensors
        operators = [self.graph.operators[member.operator] for member in node.members]
        if not operators:
            return 0.0
        parts = self.mesh.num_shards(strategy)
        arithmetic = math.fsum(
            operator.flops
            / self.hardware.flops_of(tensors[operator.operands[0].tensor].dtype.itemsize)
            for operator in operators
            if operator.kind in ("einsum", "window") and operator.operands
        )
        moved = self.memory_traffic(class_id, strategy)
        if all(operator.primitive in SLICES for operator in operators):
            # Of what a slice is taken from nothing else is read: a layer's part of all layers'.
            made = {use.tensor for operator in operators for use in operator.results}
            moved = min(moved, 2 * sum(tensors[tensor].nbytes for tensor in made) / parts)
        per_repeat = max(arithmetic / parts, moved / self.hardware.memory_bandwidth)
        return self.num_repeats(class_id) * per_repeat

    @functools.cache  # noqa: B019
    def memory_traffic(self, class_id: int, strategy: Strategy) -> int:
        """Bytes that an entity of a class reads and writes on a device, each tensor once.

        What a chain of operators makes for itself alone stays in registers.
        """
        node, tensors = self.node(class_id), self.graph.tensors
        read, made = {}, {}
        for member in node.members:
            operator = self.graph.operators[member.operator]
            for uses, into in ((operator.operands, read), (operator.results, made)):
                for use in uses:
                    into[use.tensor] = tuple(member.labels[label] for label in use.labels)
        own = {operator.operator for operator in node.members}
        total = 0
        for tensor, labels in {**read, **made}.items():
            consumers = {consumer.operator for consumer in tensors[tensor].consumers}
            if tensor in made and consumers and consumers <= own:
                continue
            cuts = {placement for placement in strategy if placement >= 0} & set(labels)
            axes = zip(self.mesh.sizes, strategy, strict=True)
            total += tensors[tensor].nbytes // math.prod(s for s, e in axes if e in cuts)
        return total
