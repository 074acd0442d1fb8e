"""Groups of tensors whose placements follow from the same decisions.

A tensor group consists of identical tensors with the same producer class and the same consumer
classes. Communication and memory are computed per group and counted with the group's multiplicity.
They depend only on the placements in which the producer class leaves the tensors, and on those that
the consumer classes require.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tensorstate.ir.graph import Edge, Graph, Node, Output
from tensorstate.ir.placements import REPLICATED
from tensorstate.problem.microbatching import MicrobatchSplit
from tensorstate.problem.node_strategies import Port


@dataclasses.dataclass(frozen=True)
class ConsumerClass:
    """A node class that reads the tensors of a group.

    Attributes:
        class_id: the class; ``None`` for the caller of the step, which accepts all placements that
            are not partial.
        labels: label of the class for every position of the tensor.
        ports: the operands that read it. The operands of a concatenation are interchangeable, so
            they all count as its first operand.
        after_forward: whether it is read after the forward pass.
        after_loop: whether it is produced in the microbatch loop and read after the loop.
    """

    class_id: int | None
    labels: tuple[int, ...]
    ports: frozenset[Port]
    after_forward: bool
    after_loop: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class TensorGroup:
    """Identical tensors with one producer class and the same consumer classes.

    Attributes:
        tensors: all of them, in the order of execution.
        producers: the producing node of each of them, or the input's node.
        consumers: for every tensor and consumer class, the nodes that read it; none for the caller.
        class_id: the class of the producers.
        labels: label of the class for every position.
        port: the port of the result that is the tensor; (0, 0) for an input.
        is_input: whether it is an input, which stays in memory.
        in_forward: whether it exists in the forward pass.
        consumer_classes: the classes that read it.
        sizes: sizes of the full tensor, or of one microbatch of it.
        nbytes: bytes of the full tensor, or of one microbatch of it.
        batch_placement: its placement along the batch (see ``MicrobatchSplit.batch_placements``).
        in_loop: whether it exists in the microbatch loop.
        num_repeats: executions of the loops of the step in whose body it exists.
    """

    tensors: tuple[int, ...]
    producers: tuple[int, ...]
    consumers: tuple[tuple[tuple[int, ...], ...], ...]
    class_id: int
    labels: tuple[int, ...]
    port: Port
    is_input: bool
    in_forward: bool
    consumer_classes: tuple[ConsumerClass, ...]
    sizes: tuple[int, ...]
    nbytes: int
    batch_placement: int
    in_loop: bool
    num_repeats: int = 1

    @property
    def multiplicity(self) -> int:
        """Number of tensors."""
        return len(self.tensors)

    @property
    def needed_after_forward(self) -> bool:
        """Whether they are read after the forward pass, and not only after the microbatch loop."""
        return any(
            consumer_class.after_forward and not consumer_class.after_loop
            for consumer_class in self.consumer_classes
        )


@dataclasses.dataclass
class _TensorUses:
    """The producer of a tensor, the producer's labels for it, and its consumers."""

    producer: int
    labels: tuple[int, ...]
    consumers: dict[ConsumerClass, tuple[int, ...]]

    def read(self, consumer_class: ConsumerClass, *consumers: int) -> None:
        """Add nodes of a consumer class."""
        self.consumers[consumer_class] = self.consumers.get(consumer_class, ()) + consumers


def is_in_loop(node: Node, microbatch_split: MicrobatchSplit | None) -> bool:
    """Whether a node runs in the microbatch loop; true if the step has no loop."""
    stages = (
        {microbatch_split.stages[m.operator] for m in node.members} if microbatch_split else set()
    )
    return "after" not in stages


def find_tensor_groups(
    graph: Graph,
    microbatch_split: MicrobatchSplit | None = None,
    lasting: Iterable[int] = (),
    streamed: Sequence[int] = (),
) -> tuple[TensorGroup, ...]:
    """The tensor groups of a training step.

    Args:
        graph: the graph of the step, or of one microbatch.
        microbatch_split: the loop over microbatches, if there is one.
        lasting: tensors that only their producing node reads, but that stay in memory after it has
            run; they belong to a group too (see ``Liveness.lasting``).
        streamed: placements of all tensors along the microbatches of a pipeline, if any
            (see ``PipelineStages.batch_placements``).
    """
    split_as = streamed if microbatch_split is None else microbatch_split.batch_placements
    uses_of: dict[int, _TensorUses] = {}
    members = {m.operator: (e, m) for e in graph.nodes for m in e.members}
    inputs = {e.tensor: e for e in graph.nodes if e.tensor is not None}

    def uses(tensor: int) -> _TensorUses:
        if tensor not in uses_of:
            producer, labels = _producer(graph, tensor, members, inputs)
            uses_of[tensor] = _TensorUses(producer, labels, {})
        return uses_of[tensor]

    def when(consumer_class: ConsumerClass, tensor: int, *, in_loop: bool) -> ConsumerClass:
        """The consumer class of a tensor, marked as reading it in the loop or after it."""
        if not is_in_loop(graph.nodes[uses(tensor).producer], microbatch_split):
            return dataclasses.replace(consumer_class, after_forward=True)
        return (
            consumer_class
            if in_loop
            else dataclasses.replace(consumer_class, after_forward=True, after_loop=True)
        )

    for edge in graph.edges:
        in_loop = is_in_loop(graph.nodes[edge.target], microbatch_split)
        consumer_class = when(_consumer_class(graph, edge), edge.tensor, in_loop=in_loop)
        uses(edge.tensor).read(consumer_class, edge.target)
    for output in graph.outputs:
        if (tensor := output.view.tensor) is not None:
            consumer_class, *consumers = _returned(graph, output, inputs)
            # A tensor that is split into microbatches is returned in the loop.
            in_loop = microbatch_split is None or microbatch_split.batch_placements[tensor] >= 0
            uses(tensor).read(when(consumer_class, tensor, in_loop=in_loop), *consumers)
    for tensor in (*inputs, *lasting):  # without a reader in another node, but in memory
        uses(tensor)
    # Tensors with equal signatures have equal costs in every plan. So a model of 80 equal layers
    # has the groups of one or two layers, and its program is as small as theirs.
    groups: dict[object, list[int]] = defaultdict(list)
    for tensor in sorted(uses_of):
        batch_placement = split_as[tensor] if split_as else REPLICATED
        groups[batch_placement, _signature(graph, tensor, uses_of[tensor])].append(tensor)
    return tuple(_group(graph, tensors, uses_of, microbatch_split) for tensors in groups.values())


def _producer(graph: Graph, tensor: int, members, inputs) -> tuple[int, tuple[int, ...]]:
    """The node that produces a tensor, and the node's label for every position."""
    t = graph.tensors[tensor]
    if t.producer is None:
        return inputs[tensor].index, tuple(range(len(t.sizes)))
    node, member = members[t.producer]
    use = graph.operators[t.producer].results[t.result]
    return node.index, tuple(member.labels[label] for label in use.labels)


def _group(
    graph: Graph,
    tensors: list[int],
    uses_of: Mapping[int, _TensorUses],
    microbatch_split: MicrobatchSplit | None,
) -> TensorGroup:
    first = uses_of[tensors[0]]
    tensor, node = graph.tensors[tensors[0]], graph.nodes[first.producer]
    consumer_classes, in_loop = tuple(first.consumers), is_in_loop(node, microbatch_split)
    return TensorGroup(
        tuple(tensors),
        tuple(uses_of[t].producer for t in tensors),
        tuple(tuple(uses_of[t].consumers[d] for d in consumer_classes) for t in tensors),
        node.class_id,
        first.labels,
        _port_of(graph, tensors[0], node),
        node.tensor is not None,
        in_loop and node.phase in (None, "forward"),
        consumer_classes,
        tensor.sizes,
        tensor.nbytes,
        REPLICATED if microbatch_split is None else microbatch_split.batch_placements[tensors[0]],
        in_loop,
        graph.num_repeats(graph.loops_around(tensors[0])),
    )


def _port_of(graph: Graph, tensor: int, node: Node) -> Port:
    producer = graph.tensors[tensor].producer
    if producer is None:
        return 0, 0
    port = next(i for i, m in enumerate(node.members) if m.operator == producer)
    return port, graph.tensors[tensor].result


def _consumer_class(graph: Graph, edge: Edge) -> ConsumerClass:
    node = graph.nodes[edge.target]
    port = {member.operator: i for i, member in enumerate(node.members)}
    ports = frozenset(
        (port[operator], 0 if graph.operators[operator].primitive == "concatenate" else operand)
        for operator, operand in edge.operands
    )
    return ConsumerClass(node.class_id, edge.target_labels, ports, node.phase != "forward")


def _returned(
    graph: Graph, output: Output, inputs
) -> tuple[ConsumerClass] | tuple[ConsumerClass, int]:
    """The caller as a consumer; a new value must have the placements of the input it replaces."""
    unconstrained = (ConsumerClass(None, (), frozenset(), after_forward=True),)
    if output.updates is None or graph.inputs[output.updates] not in inputs:
        return unconstrained
    # The new value replaces the old one in the next step, so it must have the same placements. Its
    # positions are numbered differently, and are matched through the dimensions of the array.
    node = inputs[graph.inputs[output.updates]]
    input_dims = graph.tensors[node.tensor].array_dims or ()
    input_positions = [position for dimension in input_dims for position in dimension]
    positions = [position for dimension in output.view.positions for position in dimension]
    sizes = graph.tensors[output.view.tensor or 0].sizes
    # If they do not match one to one, as after a reshape, the caller accepts any placements.
    labels = dict(zip(positions, input_positions, strict=False))
    if len(positions) != len(input_positions) or any(
        position is None or sizes[position] != node.sizes[label]
        for position, label in labels.items()
    ):
        return unconstrained
    read = tuple(labels[position] for position in range(len(sizes)))
    return ConsumerClass(node.class_id, read, frozenset(), after_forward=True), node.index


def _signature(graph: Graph, tensor: int, uses: _TensorUses) -> object:
    node, t = graph.nodes[uses.producer], graph.tensors[tensor]
    port = _port_of(graph, tensor, node)
    return node.class_id, port, uses.labels, t.sizes, t.nbytes, frozenset(uses.consumers)
