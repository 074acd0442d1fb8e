"""Pipeline stages: the layers of a scan placed along a mesh axis, with streamed microbatches.

A scan over stacked layers is in the graph once. Its S stages are the shards of the *stacked*
dimension along a mesh axis: parameters, residuals and gradients of a layer stay on the device that
runs it. The carry is cut into M microbatches along the batch. In each of M + S - 1 *ticks* a device
runs its layers on one microbatch and sends the carry to the next stage (GPipe, Huang et al., 2019).
The backward scan is the same in reverse. Before and after the scans the mesh axis is like any
other: embedding, head, loss and optimizer are sharded along it as the search decides.

On the axis of the stages the placements of a scan are fixed:

- a stack is sharded along its first dimension;
- everything in a body is replicated: each device has its own rows and microbatch;
- the carry enters replicated and leaves as a term of a sum: the last stage has it, and all others
  have zeros. So an all-reduce broadcasts it, and a reduce-scatter shards its batch.

This schedule is "gpipe", which holds the residuals of M microbatches. The schedule "1f1b" runs a
microbatch backward as soon as it has left the last stage, and holds the residuals of 2 S - 1 (see
``tensorstate.problem.interleaved``).

Within a body, tensors along the batch have the size of a microbatch. Sums over the batch, such as
gradients of weights, are accumulated: in their stack, or in a carry that is not sent.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import jax.numpy as jnp

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph, Node, Operator, Tensor
from tensorstate.ir.placements import REPLICATED, SUM, MeshShape
from tensorstate.problem.body_split import BodySplit, without_batch
from tensorstate.problem.interleaved import interleaved
from tensorstate.problem.microbatching import (
    batch_factor,
    batch_names,
    nearest_divisors,
    of_one_microbatch,
)
from tensorstate.tracing.node_classes import group_nodes

Schedule = Literal["gpipe", "1f1b"]
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")


@dataclasses.dataclass(frozen=True, eq=False)
class PipelineStages:
    """The scans over layers of a training step as stages of a pipeline.

    Attributes:
        traced: the step with the whole batch, in the order in which it runs.
        axis: name of the mesh axis of the stages.
        stages: number of stages (S).
        microbatches: number of microbatches (M).
        factor: the batch.
        loops: numbers of the scans over layers, forward and backward.
        batch_placements: for every tensor in a body the position of the batch, ``SUM`` for a sum
            over microbatches, or ``REPLICATED``.
        labels: for every operator in a body or at its boundary, the label of the batch or ``None``.
        between: number of the loop that runs the head and the loss of a microbatch between its
            forward and its backward pass, in 1F1B; ``None`` in GPipe.
    """

    traced: Graph
    axis: str
    stages: int
    microbatches: int
    factor: int
    loops: frozenset[int]
    batch_placements: tuple[int, ...]
    labels: tuple[int | None, ...]
    between: int | None = None

    @property
    def schedule(self) -> Schedule:
        """The order of forward and backward passes."""
        return "gpipe" if self.between is None else "1f1b"

    @property
    def held(self) -> int:
        """Number of microbatches whose residuals are in memory at the same time."""
        if self.between is None:
            return self.microbatches
        return min(self.microbatches, 2 * self.stages - 1)

    @functools.cached_property
    def residuals(self) -> tuple[tuple[int, int], ...]:
        """In 1F1B, the operators that stack a residual forward and read it backward."""
        graph = self.traced
        if self.between is None:
            return ()
        return tuple(
            (operator.index, consumer.operator)
            for operator in graph.operators
            if self.is_boundary(operator, "scan_stack")
            for consumer in graph.tensors[operator.results[0].tensor].consumers
            if self.is_boundary(graph.operators[consumer.operator], "scan_row")
        )

    @functools.cached_property
    def held_tensors(self) -> frozenset[int]:
        """In 1F1B, the stacks of residuals, which exist within the loop over ticks only."""
        operators = self.traced.operators
        return frozenset(operators[stack].results[0].tensor for stack, _ in self.residuals)

    @property
    def in_order(self) -> list[int]:
        """The scans, in the order in which they run."""
        # Loops are numbered as they were traced, which is not the order in which they run.
        firsts = {n: o.index for o in reversed(self.traced.operators) for n in o.loops[:1]}
        return sorted(self.loops, key=lambda loop: firsts[loop])

    def scan_of(self, operator: Operator) -> int | None:
        """The staged scan in whose body an operator runs, or at whose boundary."""
        loops = self.traced.operators[operator.index].loops
        return loops[0] if loops and loops[0] in self.loops else None

    @functools.cached_property
    def together(self) -> frozenset[int]:
        """In 1F1B, the loops that run in turn."""
        return frozenset() if self.between is None else self.loops | {self.between}

    @property
    def batch(self) -> int:
        """Number of examples in the full batch."""
        return self.traced.factors[self.factor]

    @property
    def ticks(self) -> int:
        """Number of microbatches that a stage runs, including the empty ones at both ends."""
        return self.microbatches + self.stages - 1

    @property
    def bubble(self) -> float:
        """The share of the ticks in which a stage has no microbatch."""
        return (self.stages - 1) / self.ticks

    @functools.cached_property
    def graph(self) -> Graph:
        """The step as one device runs it: bodies of one microbatch, scans of its ticks."""
        graph = self.traced
        tensors, operators = of_one_microbatch(
            graph, self.microbatches, self.batch_placements, self.labels
        )
        # All devices run one program: during the bubble, layers run too, on values that are lost.
        # So a scan is as long as its layers times all ticks, and every cost inside it includes the
        # bubble.
        loops = tuple(
            loop._replace(length=self.num_layers(number) * self.ticks)
            if number in self.loops
            else loop._replace(length=self.microbatches)
            if number == self.between
            else loop
            for number, loop in enumerate(graph.loops)
        )
        if self.between is not None:
            tensors, operators = self._of_one_tick(tensors, operators)
        nodes, node_classes, edges = group_nodes(
            tensors,
            operators,
            graph.outputs,
            loops=loops,
            ties=self.residuals,
            untied=graph.untied,
        )
        return dataclasses.replace(
            graph,
            tensors=tensors,
            operators=operators,
            loops=loops,
            nodes=nodes,
            node_classes=node_classes,
            edges=edges,
        )

    def _of_one_tick(
        self, tensors: tuple[Tensor, ...], operators: tuple[Operator, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Operator, ...]]:
        """The residuals of the microbatches that are held; leaving carries have one microbatch."""
        # In GPipe a stack of residuals has the whole batch. Here its rows have ``held``
        # microbatches in turn: a new one is written where an old one has been read.
        sizes = {
            t.index: tuple(
                size // self.microbatches * self.held if dim == self.factor else size
                for dim, size in zip(t.dims, t.sizes, strict=True)
            )
            for t in (tensors[number] for number in self.held_tensors)
            if self.labels[t.producer or 0] is not None
        }
        tensors = tuple(
            dataclasses.replace(t, sizes=sizes[t.index]) if t.index in sizes else t for t in tensors
        )
        operators = tuple(
            dataclasses.replace(o, loops=(self.between, *o.loops))
            if any(use.tensor in self.streamed for use in o.results)
            else o
            for o in operators
        )
        return tensors, operators

    @functools.cached_property
    def streamed(self) -> frozenset[int]:
        """In 1F1B, the carries that leave the forward scan microbatch by microbatch."""
        return frozenset(
            use.tensor
            for operator in self.traced.operators
            if self.between is not None
            and operator.phase == "forward"
            and self.is_boundary(operator, "carry_out")
            for use in operator.results
            if self.batch_placements[operator.operands[0].tensor] != SUM
        )

    def num_layers(self, loop: int) -> int:
        """Number of layers in a stage."""
        return (self.traced.loops[loop].length or 0) // self.stages

    def is_staged(self, operator: Operator) -> bool:
        """Whether an operator runs in a body, or at its boundary."""
        return bool(operator.loops) and operator.loops[0] in self.loops

    def is_boundary(self, operator: Operator, *names: str) -> bool:
        """Whether an operator with one of these names is at the boundary of a staged scan."""
        return operator.primitive in names and operator.loops in {(n,) for n in self.loops}

    def fixed_placement(self, node: Node) -> int | None:
        """The placement of a node on the axis of the stages; ``None`` if the search decides."""
        operator = self.traced.operators[node.members[0].operator] if node.members else None
        if operator is None or not self.is_staged(operator):
            return None
        # A body reads one row at a time, so no strategy shards the rows' label; the stages do.
        if self.is_boundary(operator, "scan_row", "scan_stack"):
            return node.members[0].labels[min(operator.need_replication)]
        return REPLICATED

    def leaves_as_term(self, tensor: int) -> bool:
        """Whether a tensor is a carry after its scan, of which every device has a term."""
        producer = self.traced.tensors[tensor].producer
        return producer is not None and self.is_boundary(
            self.traced.operators[producer], "carry_out"
        )

    def outer_batch(self, tensor: int) -> int | None:
        """The position of the batch of a tensor that exists outside of the bodies, if any."""
        dims = self.traced.tensors[tensor].dims
        if self.traced.loops_around(tensor) or dims.count(self.factor) != 1:
            return None
        return dims.index(self.factor)

    def num_sends(self, tensor: int) -> int:
        """The number of sends of a tensor between stages: for a carry in a body, one per tick.

        The last send is not read. XLA omits it if it is not in a loop: after 1F1B's forward part
        two stages have one tick, which is not a loop.
        """
        producer = self.traced.tensors[tensor].producer
        if producer is None or self.batch_placements[tensor] == SUM:
            return 0
        operator = self.traced.operators[producer]
        if not self.is_boundary(operator, "carry_in"):
            return 0
        is_last = operator.loops[0] == self.in_order[-1]
        return self.ticks - (self.between is not None and self.stages == 2 and is_last)


def pipeline(
    graph: Graph,
    axis: str,
    stages: int,
    microbatches: int,
    factor: int,
    schedule: Schedule = "gpipe",
) -> PipelineStages:
    """The scans over layers of a step as stages along a mesh axis.

    Args:
        graph: the training step, with its loops.
        axis: name of the mesh axis.
        stages: its size, above 1.
        microbatches: number of equal parts of the batch.
        factor: the batch.
        schedule: "gpipe", or "1f1b" which holds fewer residuals.

    Raises:
        PlanError: there is no scan over layers, the stages do not divide the layers, the
            microbatches do not divide the batch, an operator of a layer needs the full batch, or
            1F1B cannot run something between its scans.
    """
    # Mistakes that users can fix are refused first, in terms of layers and of the batch.
    loops = layer_loops(graph, factor)
    for loop in loops:
        _check_layers(graph, loop, axis, stages)
    batch = graph.factors[factor]
    if batch % microbatches:
        raise PlanError(
            f"a batch of {batch} ({', '.join(batch_names(graph, factor)[:3])}) cannot be streamed "
            f"through {stages} stages in {microbatches} equal microbatches: the number must divide "
            f"it, as {nearest_divisors(batch, microbatches)} do"
        )
    # 1F1B changes the order of operators, so the batch is followed again: the head and the loss are
    # then in a loop, too.
    batch_placements, labels = BodySplit(graph, factor, loops).run()
    between = None
    if schedule == "1f1b":
        graph, between = interleaved(graph, factor, loops, batch_placements)
        batch_placements, labels = BodySplit(graph, factor, loops, between).run()
    return PipelineStages(
        graph, axis, stages, microbatches, factor, loops, batch_placements, labels, between
    )


def checked_schedule(given: object, stages: str | None) -> Schedule | None:
    """The requested schedule of stages; ``None`` for "auto".

    Raises:
        PlanError: it is not a schedule, or there are no stages.
    """
    checks.choice(given, ("auto", *SCHEDULES), "pipeline_schedule", PlanError)
    if given != "auto" and stages is None:
        raise PlanError(
            f"pipeline_schedule={checks.shown(given)} is an order of pipeline stages, of which "
            "there are none: give stages="
        )
    return next((schedule for schedule in SCHEDULES if schedule == given), None)


def find_num_stages(mesh: MeshShape, axis: str) -> int:
    """The size of the mesh axis of the stages.

    Raises:
        PlanError: the mesh has no such axis.
    """
    if axis not in mesh.names:
        raise PlanError(
            f"stages={checks.shown(axis)}: expected an axis of the mesh, {', '.join(mesh.names)}, "
            'or "auto" for the best of them'
        )
    return mesh.sizes[mesh.names.index(axis)]


def stream_factor(graph: Graph, name: str | None = None) -> int:
    """The factor of the batch that scans over layers carry.

    If the step itself splits its batch, as in gradient accumulation, it is that of a part.

    Args:
        graph: the training step.
        name: name of an input whose first dimension is the batch (see
            ``microbatching.batch_factor``).

    Raises:
        PlanError: no input has a batch, or no scan over layers carries it.
    """
    factor = batch_factor(graph, name)
    inputs = [graph.tensors[i] for i in graph.inputs]
    firsts = [tuple(t.dims[p] for p in t.array_dims[0]) for t in inputs if t.array_dims]
    # A batch written as [parts x examples] has two factors, one of which the scan carries.
    parts = next((of for of in firsts if of[:1] == (factor,)), (factor,))
    carried: set[int] = set()
    loops = layer_loops(graph, factor)
    for loop in loops:
        for enter, _ in graph.loops[loop].carries:
            carried.update(graph.tensors[graph.operators[enter].operands[0].tensor].dims)
    found = next((part for part in parts if part in carried), None)
    if found is None:
        raise without_batch(graph, factor, loops)
    return found


def stream_counts(batch: int, stages: int) -> tuple[int, ...]:
    """Numbers of microbatches worth a search: divisors of the batch, each about twice the last.

    They begin with the number of stages, with which the bubble is below a half.
    """
    # More microbatches have a smaller bubble, but more sends and smaller products.
    divisors = [n for n in range(1, batch + 1) if batch % n == 0]
    found = [next((n for n in divisors if n >= stages), batch)]
    found += [n for n in divisors if n > found[0]]
    kept = found[:1]
    for number in found[1:]:
        if number >= 2 * kept[-1]:
            kept.append(number)
    return tuple(kept)


# ---------------------------------------------------------------------- scans over layers


def layer_loops(graph: Graph, factor: int) -> frozenset[int]:
    """The scans of a step over stacked parameters, and those of their backward pass.

    Args:
        graph: the training step.
        factor: the batch, which parameters do not have.

    Raises:
        PlanError: there is no such scan.
    """
    # The backward scan may read no parameters, if the forward one has saved them or values computed
    # from them in stacks. So the stacks of a scan that is found lead to the scans that read them.
    # The forward scan comes first in the graph.
    weights = _made_of_parameters(graph, factor)
    found: set[int] = set()
    residuals: set[int] = set()
    for operator in graph.operators:
        if len(operator.loops) != 1 or operator.phase == "optimizer":
            continue
        (loop,) = operator.loops
        if graph.loops[loop].length is None:
            continue
        read = {use.tensor for use in operator.operands}
        if operator.primitive == "scan_row" and read & (weights | residuals):
            found.add(loop)
        if operator.primitive == "scan_stack" and loop in found:
            residuals.update(use.tensor for use in operator.results)
    if not found:
        raise PlanError(
            "stages need identical layers in one scan, and the step has no scan over stacked "
            "parameters: write the layers as x, _ = jax.lax.scan(layer, x, params['layers']), with "
            "layer(x, weights) -> (x, None) (nn.scan and nnx.scan do so), traced with loops='keep'"
        )
    return frozenset(found)


def _made_of_parameters(graph: Graph, factor: int) -> set[int]:
    """Tensors computed from parameters without the batch, such as their casts and stacks.

    A step without an update has no parameters; inputs without the batch are used instead.
    """
    # A result with the batch is not computed from parameters alone, whatever else it reads. Weights
    # are not integers.
    inputs = [t for t in graph.tensors if t.producer is None]
    others = {t.index for t in inputs if factor in t.dims}
    made = {
        t.index
        for t in inputs
        if t.index not in others
        and t.role in ("parameter", "input")
        and jnp.issubdtype(t.dtype, jnp.inexact)
    }
    for operator in graph.operators:
        read = {use.tensor for use in operator.operands}
        into = others if read & others else made if read & made else None
        if into is not None:
            into.update(use.tensor for use in operator.results)
    return made


def _check_layers(graph: Graph, loop: int, axis: str, stages: int) -> None:
    """Refuse stages that do not divide the layers of a scan."""
    rows = [o for o in graph.operators if o.primitive == "scan_row" and o.loops == (loop,)]
    major = [o.sizes[min(o.need_replication)] for o in rows]
    length = graph.loops[loop].length or 0
    if all(size % stages == 0 for size in (length, *major)):
        return
    # Named by the parameters whose rows it reads, through casts and stacks, because users know
    # these.
    names: dict[str, None] = {}
    pending = [use.tensor for o in reversed(rows) for use in o.operands]
    while pending:
        tensor = graph.tensors[pending.pop()]
        if tensor.producer is not None and not graph.operators[tensor.producer].loops:
            pending += [use.tensor for use in graph.operators[tensor.producer].operands]
        elif tensor.role in ("parameter", "input"):
            names[tensor.name] = None
    fitting = [n for n in range(1, length + 1) if all(m % n == 0 for m in (length, *major))]
    what = "fewer than" if length < stages else "not a multiple of"
    raise PlanError(
        f"the scan over {length} layers of {', '.join([*names][:3]) or 'the step'} "
        f"({graph.loops[loop].source}) has {what} the {stages} stages of mesh axis {axis!r}: "
        f"{', '.join(map(str, fitting))} would fit"
    )
