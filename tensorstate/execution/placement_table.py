"""How every tensor of a plan is placed when produced, read and returned, and how it gets there.

A reshard step is executed inside ``jax.shard_map``: with jaxcoll schedules or with ``jax.lax``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

import jaxcoll as jc
from jaxcoll.kinds import kind_of
from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions, ReshardPlan
from tensorstate.cost.step_tasks import Sent
from tensorstate.ir.graph import Output, View
from tensorstate.ir.placements import (
    MAX,
    MIN,
    REPLICATED,
    Exchange,
    MeshShape,
    Placements,
    num_shards,
)
from tensorstate.keeping import table
from tensorstate.keeping.base import Keeping
from tensorstate.problem.node_strategies import NodeStrategies, Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.rules.sharding_rule import Along, LocalShard, MicrobatchSlice

ScheduleFor = Callable[[str, int, int], Any]
"""A schedule by kind of collective, number of the mesh axis and bytes of the larger buffer."""


class Collectives(Protocol):
    """An implementation of the collectives."""

    def __call__(self, step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
        """A device's shard after a step that communicates, from its shard ``x`` before it."""
        ...


def scheduled_collectives(
    schedule_for: ScheduleFor = lambda kind, axis, nbytes: None,
) -> Collectives:
    """Collectives of ``jaxcoll``.

    Args:
        schedule_for: the ``schedule=`` of the ``jaxcoll`` functions; ``None`` for their default.
            ``CollectiveCostModel.schedule`` is such a function.
    """

    def run(step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
        axis, before, after = _step_args(step, mesh)
        if before in (MAX, MIN):
            take = jc.pmax if before == MAX else jc.pmin
            return take(x, axis, schedule=schedule_for("all_reduce", step.axis, step.nbytes))
        schedule = schedule_for(step.kind, step.axis, step.nbytes)
        kind = kind_of(step.kind)
        if kind.copies:
            return jc.all_gather(x, axis, axis=before, tiled=True, schedule=schedule)
        if kind.sums_for_all:
            return jc.psum(x, axis, schedule=schedule)
        if kind.adds:
            return jc.psum_scatter(x, axis, scatter_dimension=after, tiled=True, schedule=schedule)
        return jc.all_to_all(x, axis, after, before, tiled=True, schedule=schedule)

    return run


def lax_collectives(step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
    """Collectives of ``jax.lax``, which keep their names in the HLO."""
    axis, before, after = _step_args(step, mesh)
    # For Booleans, the collectives "or" and "and" are done on integers.
    if before in (MAX, MIN):
        take = lax.pmax if before == MAX else lax.pmin
        return take(x.astype(jnp.int8), axis).astype(bool) if x.dtype == bool else take(x, axis)
    kind = kind_of(step.kind)
    if kind.copies:
        return lax.all_gather(x, axis, axis=before, tiled=True)
    if kind.sums_for_all:
        return lax.psum(x, axis)
    if kind.adds:
        return lax.psum_scatter(x, axis, scatter_dimension=after, tiled=True)
    return lax.all_to_all(x, axis, after, before, tiled=True)


def _step_args(step: ReshardStep, mesh: MeshShape) -> tuple[str, int, int]:
    return mesh.names[step.axis], step.source[step.axis], step.target[step.axis]


def apply_reshard_step(
    step: ReshardStep, x: jax.Array, mesh: MeshShape, collectives: Collectives
) -> jax.Array:
    """A device's shard after a reshard step, from its shard before it.

    Args:
        x: the shard before the step, with one dimension per position of the tensor.
    """
    if step.collective is not None and step.collective.is_pairwise:
        # XLA for CPU moves the concatenation and the transposes that make the array into its parts,
        # and then refuses parts of different layouts.
        x = lax.optimization_barrier(x)
    if step.kind != "slice":
        return collectives(step, x, mesh)
    # From replicated to sharded: every device keeps its part and sends nothing.
    position = step.target[step.axis]
    size = x.shape[position] // mesh.sizes[step.axis]
    start = lax.axis_index(mesh.names[step.axis]) * size
    return lax.dynamic_slice_in_dim(x, start, size, position)


def shard_index(placements: Placements, wanted: int, mesh: MeshShape) -> Any:
    """The device's shard of a position (or label); the first mesh axis is the major one."""
    # Axes of 2 and 4 devices that shard one position: device (1, 3) has shard 1 * 4 + 3 of 8.
    index: Any = 0
    for name, size, placement in zip(mesh.names, mesh.sizes, placements, strict=True):
        if placement == wanted:
            index = index * size + lax.axis_index(name)
    return index


def local_shard(x: jax.Array, placements: Placements, mesh: MeshShape) -> jax.Array:
    """A device's shard of a global array, in placements without partial values."""
    for position in sorted({placement for placement in placements if placement != REPLICATED}):
        size = x.shape[position] // num_shards(placements, position, mesh)
        x = lax.dynamic_slice_in_dim(
            x, shard_index(placements, position, mesh) * size, size, position
        )
    return x


def all_gathers(placements: Placements, nbytes: int, mesh: MeshShape) -> list[ReshardStep]:
    """The all-gathers that replicate a tensor, along the minor mesh axis first."""
    # Shards 0 to 7 of axes (2, 4) on one position: along the minor axis the devices with shards 0
    # to 3 join theirs to one block, and those with 4 to 7 do the same. Along the major axis first,
    # 0 and 4 would be joined.
    steps = []
    for axis in reversed(range(len(placements))):
        if placements[axis] != REPLICATED:
            target = (*placements[:axis], REPLICATED, *placements[axis + 1 :])
            steps.append(
                ReshardStep(
                    "all_gather", axis, placements, target, nbytes // mesh.num_shards(target)
                )
            )
            placements = target
    return steps


# ------------------------------------------------------------------- the placements of every tensor


@dataclasses.dataclass(frozen=True, slots=True)
class NodePosition:
    """The position of an operator: its node, the node's class, and its number among members."""

    node: int
    class_id: int
    member: int
    labels: tuple[int, ...]


class PlacementTable:
    """The placements of all tensors: produced, read, and returned; buckets, and unrolled scans.

    Args:
        buckets: collectives that are joined, where collectives overlap with compute.
        unrolled: by number of a loop, the iterations of its scan in one body, where they overlap.
    """

    def __init__(
        self,
        problem: Problem,
        decisions: Decisions,
        cost: Cost,
        buckets: Sequence[tuple[Sent, ...]] = (),
        unrolled: Mapping[int, int] | None = None,
    ):
        self.unrolled = dict(unrolled or {})
        self.buckets = {(sent.tensor, sent.when): bucket for bucket in buckets for sent in bucket}
        self.problem, self.graph, self.mesh = problem, problem.graph, problem.mesh
        self.traced = problem.whole
        self.strategies: Sequence[Strategy] = decisions.strategies
        self.kept = cost.kept
        self.reshards: dict[int, ReshardPlan] = {
            t: reshard for reshard in cost.reshards for t in reshard.tensors
        }
        self.positions = {
            member.operator: NodePosition(node.index, node.class_id, k, member.labels)
            for node in self.graph.nodes
            for k, member in enumerate(node.members)
        }
        self._edges = {operand: edge for edge in self.graph.edges for operand in edge.operands}
        self._input_nodes = {e.tensor: e for e in self.graph.nodes if e.tensor is not None}

    def strategy(self, operator: int) -> Strategy:
        """An operator's strategy, in the labels of its node."""
        return self.strategies[self.positions[operator].class_id]

    def keeping(self, tensor: int) -> Keeping:
        """How a tensor is kept for the backward pass."""
        producer = self.graph.tensors[tensor].producer
        return table.DEFAULT if producer is None else self.kept[self.positions[producer].node]

    def reruns(self, operator: int | None) -> bool:
        """Whether an operator reruns after the forward pass."""
        return operator is not None and self.positions[operator].node in self.kept.rerun

    def shard(self, number: int, microbatch: MicrobatchSlice | None) -> LocalShard:
        """The shard of an operator's labels on this device, in a microbatch."""
        strategy, labels = self.strategy(number), self.positions[number].labels
        strategies = self.problem.strategies[self.positions[number].class_id]
        shards = [(strategies.sharding_of(label, strategy), label) for label in labels]
        counts = tuple(num_shards(*shard, self.mesh) for shard in shards)
        indices = {
            k: shard_index(*shard, self.mesh) for k, shard in enumerate(shards) if counts[k] > 1
        }
        pairing = strategies.pairing
        paired = () if pairing is None else (pairing.label,)
        along = tuple(n for n, p in zip(self.mesh.names, strategy, strict=True) if p in paired)
        ring, exchange = (along, None) if not isinstance(pairing, Exchange) else ((), None)
        if along and isinstance(pairing, Exchange):
            exchange = self._along(along[0], pairing, strategies, labels, strategy)
        # Sizes are those of the whole step: with microbatches, operators of the graph have one's.
        split = self.problem.microbatch_split or self.problem.pipeline
        batch = None if split is None else split.labels[number]
        sizes = self.traced.operators[number].sizes
        if microbatch is None or batch is None:
            return LocalShard(sizes, counts, indices, ring=ring, exchange=exchange)
        # A microbatch is a part of each device's part of the batch.
        counts = tuple(
            n * (microbatch.count if label == batch else 1) for label, n in enumerate(counts)
        )
        return LocalShard(sizes, counts, indices, microbatch, batch, ring, exchange)

    def _along(
        self,
        name: str,
        exchange: Exchange,
        strategies: NodeStrategies,
        labels: Sequence[int],
        strategy: Strategy,
    ) -> Along:
        """The axis along which an operator's rows are exchanged, in labels of the operator."""
        axis = self.mesh.names.index(name)
        strides = {}
        for label in exchange.pair:
            sharding = strategies.sharding_of(label, strategy)
            inner = zip(self.mesh.sizes[axis + 1 :], sharding[axis + 1 :], strict=True)
            strides[labels.index(label)] = math.prod(size for size, of in inner if of == label)
        return Along(name, self.mesh.sizes[axis], strides)

    def produced_placements(self, tensor: int) -> Placements:
        """The placements in which a tensor is produced, or given as an input."""
        producer = self.graph.tensors[tensor].producer
        if producer is None:
            inputs = self._input_nodes[tensor]
            labels, class_id, slot = tuple(range(len(inputs.sizes))), inputs.class_id, (0, 0)
        else:
            at, result = self.positions[producer], self.graph.tensors[tensor].result
            use = self.graph.operators[producer].results[result]
            labels = tuple(at.labels[label] for label in use.labels)
            class_id, slot = at.class_id, (at.member, result)
        placements = self.problem.strategies[class_id].output_placements(
            self.strategies[class_id], labels, slot
        )
        return self.problem.as_left(tensor, placements)

    def local_sizes(self, tensor: int, placements: Placements) -> list[int]:
        """The local elements of every position, over all microbatches."""
        sizes = enumerate(self.traced.tensors[tensor].sizes)
        return [size // num_shards(placements, position, self.mesh) for position, size in sizes]

    def saved_placements(self, tensor: int) -> Placements:
        """The placements of the copy of a tensor that is saved for the backward pass."""
        reshard = self.reshards.get(tensor)
        saved = None if reshard is None else reshard.saved
        return self.produced_placements(tensor) if saved is None else saved

    def is_sent(self, tensor: int) -> bool:
        """Whether a tensor is resharded by collectives within a pass."""
        reshard = self.reshards[tensor]
        steps = (*reshard.in_forward.steps, *reshard.after_forward.steps)
        return any(step.kind != "slice" for step in steps)

    def operand_placements(self, operator: int, operand: int) -> Placements | None:
        """The placements in which an operand is read; ``None`` for a result of its own node."""
        edge = self._edges.get((operator, operand))
        if edge is None:
            return None
        class_id = self.positions[operator].class_id
        positions = frozenset((self.positions[o].member, k) for o, k in edge.operands)
        return self.problem.strategies[class_id].input_placements(
            self.strategies[class_id], edge.target_labels, positions
        )

    def read_placements(self, operator: int, operand: int) -> Placements:
        """The placements in which an operand is read, also of a result of its own node."""
        required = self.operand_placements(operator, operand)
        if required is not None:
            return required
        return self.produced_placements(self.graph.operators[operator].operands[operand].tensor)

    def input_view(self, tensor: int) -> View:
        """How an argument is read from its tensor."""
        t = self.traced.tensors[tensor]
        dims = t.array_dims or ()
        sizes = tuple(tuple(t.sizes[p] for p in dimension) for dimension in dims)
        return View(tensor, dims, sizes, t.dtype)

    def returned_placements(self, out: Output) -> Placements:
        """The placements of a returned result: those of the argument it replaces, or its own."""
        replicated = (REPLICATED,) * len(self.mesh.sizes)
        tensor = out.view.tensor
        if tensor is None:
            return replicated
        # The placements of its argument, so that the result of the step is the argument of the next
        # step, in the same memory.
        if out.updates is not None:
            before = self.input_view(self.graph.inputs[out.updates])
            moved = placements_through_view(
                before, self.produced_placements(self.graph.inputs[out.updates]), out.view
            )
            if moved is not None:
                return moved
        fitting = (
            s
            for s in self.final_placements(tensor)
            if to_partition_spec(out.view, s, self.mesh) is not None
        )
        return next(fitting, replicated)

    def final_placements(self, tensor: int) -> list[Placements]:
        """The placements of a tensor's copies at the end of the step."""
        reshard = self.reshards[tensor]
        group = self.problem.tensor_groups[reshard.group]
        if any(consumer_class.after_loop for consumer_class in group.consumer_classes):
            resident = None if group.is_input else reshard.loop_resident
            left = reshard.produced_placements if resident is None else resident
            return [left, *(step.target for step in reshard.after_loop.steps)]
        inputs = [reshard.produced_placements] if group.is_input or reshard.saved is None else []
        saved = [] if reshard.saved is None else [reshard.saved]
        return [*saved, *inputs, *(step.target for step in reshard.after_forward.steps)]


def sizes_through_view(view: View, sizes: Sequence[int]) -> list[list[int]]:
    """The elements of a view's dimensions by position, for a tensor of the given sizes."""
    return [
        [size if p is None else sizes[p] for p, size in zip(*pair, strict=True)]
        for pair in zip(view.positions, view.sizes, strict=True)
    ]


def placements_through_view(
    source: View, placements: Placements, target: View
) -> Placements | None:
    """The placements of a second view that shard its array as those of the first shard its own."""
    from_positions = [p for dimension in source.positions for p in dimension]
    to_positions = [p for dimension in target.positions for p in dimension]
    if source.sizes != target.sizes or None in to_positions:
        return None
    # A weight and its new value are two tensors of one array, whose positions may be in different
    # orders: the transposed gradient gives a transposed view.
    other = dict(zip(from_positions, to_positions, strict=True))
    moved = [placement if placement == REPLICATED else other[placement] for placement in placements]
    return tuple(placement for placement in moved if placement is not None)


def to_partition_spec(view: View, placements: Placements, mesh: MeshShape) -> PartitionSpec | None:
    """The ``PartitionSpec`` of placements; ``None`` if they are partial or shard a minor factor."""
    if min(placements, default=0) < REPLICATED:
        return None
    dimensions = []
    for positions, sizes in zip(view.positions, view.sizes, strict=True):
        # A device has one block of consecutive elements of a dimension. Sharding a minor factor
        # gives such a block only if no device has several elements of the major ones.
        names: list[str] = []
        replicated = True  # whether each device has one element of all major factors
        for position, size in zip(positions, sizes, strict=True):
            axes = [n for n, e in zip(mesh.names, placements, strict=True) if e == position]
            if axes and not replicated:
                return None
            names += axes
            replicated = (
                replicated
                and position is not None
                and num_shards(placements, position, mesh) == size
            )
        dimensions.append(tuple(names) if len(names) > 1 else (names[0] if names else None))
    return PartitionSpec(*dimensions)
