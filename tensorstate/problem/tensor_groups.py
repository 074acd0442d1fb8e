"""Flows: tensors that are alike, made by one class of entities and read by others.

All that costs anything follows from flows: a tensor, the state in which it leaves the class that
makes it, and the states in which classes demand it. Flows that are alike are one with a weight.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tensorstate.ir.graph import Edge, Graph, Node, Output
from tensorstate.ir.placements import REPLICATED
from tensorstate.problem.microbatching import MicrobatchSplit
from tensorstate.problem.strategies import Port


@dataclasses.dataclass(frozen=True)
class ConsumerClass:
    """A class reads a flow's tensor.

    Attributes:
        class_id: the class; ``None`` for the caller of the step, who takes any state but partial
            ones.
        labels: label of the class for every position of the tensor.
        ports: the operands that read it; of a stack, whose rows are alike, the first.
        after_forward: whether it is read after the forward pass.
        after_loop: whether it is read after the loop over microbatches, though it is there before.
    """

    class_id: int | None
    labels: tuple[int, ...]
    ports: frozenset[Port]
    after_forward: bool
    after_loop: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class TensorGroup:
    """Tensors that are alike: made by one class, demanded alike.

    Attributes:
        tensors: all of them, in the order of execution.
        producers: the entity that makes each of them, or the input's.
        consumers: for every tensor and demand the entities that read it so; none for the caller.
        class_id: the class that makes them, or the input's.
        labels: label of the class for every position.
        port: which result of which member; (0, 0) for an input.
        is_input: whether it is an input, which stays in memory.
        in_forward: whether it is there in the forward pass.
        consumer_classes: who reads it.
        sizes: of the whole tensor, or of a microbatch's piece of it.
        nbytes: likewise.
        batch_placement: what it is over microbatches (see ``MicrobatchSplit.batch_placements``).
        in_loop: whether it is there in the loop over microbatches.
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

    @property
    def multiplicity(self) -> int:
        """How many tensors it stands for."""
        return len(self.tensors)

    @property
    def needed_after_forward(self) -> bool:
        """Whether something reads them after the forward pass, in the loop where there is one."""
        return any(
            consumer_class.after_forward and not consumer_class.after_loop
            for consumer_class in self.consumer_classes
        )

    @functools.cached_property
    def nodes(self) -> frozenset[int]:
        """All that make or read them."""
        consumers = (
            one for of_tensor in self.consumers for of_demand in of_tensor for one in of_demand
        )
        return frozenset((*self.producers, *consumers))


@dataclasses.dataclass
class _TensorUses:
    """A tensor on its way: who makes it, with which labels, and who reads it."""

    producer: int
    labels: tuple[int, ...]
    consumers: dict[ConsumerClass, tuple[int, ...]]

    def read(self, consumer_class: ConsumerClass, *consumers: int) -> None:
        """More readers."""
        self.consumers[consumer_class] = self.consumers.get(consumer_class, ()) + consumers


def is_in_loop(node: Node, microbatch_split: MicrobatchSplit | None) -> bool:
    """Whether an entity runs in the loop, as all do where there is none."""
    stages = (
        {microbatch_split.stages[m.operator] for m in node.members} if microbatch_split else set()
    )
    return "after" not in stages


def find_tensor_groups(
    graph: Graph, microbatch_split: MicrobatchSplit | None = None, lasting: Iterable[int] = ()
) -> tuple[TensorGroup, ...]:
    """The flows of a training step.

    Args:
        graph: the step, or that of a microbatch.
        microbatch_split: the loop over microbatches, if there is one.
        lasting: tensors that have a flow even if only the entity that makes them reads them,
            because they stay in memory after it has run (see ``Liveness.lasting``).
    """
    found: dict[int, _TensorUses] = {}
    members = {m.operator: (e, m) for e in graph.nodes for m in e.members}
    inputs = {e.tensor: e for e in graph.nodes if e.tensor is not None}

    def uses(tensor: int) -> _TensorUses:
        if tensor not in found:
            producer, labels = _producer(graph, tensor, members, inputs)
            found[tensor] = _TensorUses(producer, labels, {})
        return found[tensor]

    def when(consumer_class: ConsumerClass, tensor: int, *, in_loop: bool) -> ConsumerClass:
        """A demand for a tensor, read in the loop or after it."""
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
            # Pieces are returned one by one.
            in_loop = microbatch_split is None or microbatch_split.batch_placements[tensor] >= 0
            uses(tensor).read(when(consumer_class, tensor, in_loop=in_loop), *consumers)
    for tensor in (*inputs, *lasting):
        uses(tensor)
    alike: dict[object, list[int]] = defaultdict(list)
    for tensor in sorted(found):
        batch_placement = (
            REPLICATED if microbatch_split is None else microbatch_split.batch_placements[tensor]
        )
        alike[batch_placement, _signature(graph, tensor, found[tensor])].append(tensor)
    return tuple(_flow(graph, tensors, found, microbatch_split) for tensors in alike.values())


def _producer(graph: Graph, tensor: int, members, inputs) -> tuple[int, tuple[int, ...]]:
    """The entity that has a tensor, and the entity's label of every position."""
    t = graph.tensors[tensor]
    if t.producer is None:
        return inputs[tensor].index, tuple(range(len(t.sizes)))
    node, member = members[t.producer]
    use = graph.operators[t.producer].results[t.result]
    return node.index, tuple(member.labels[label] for label in use.labels)


def _flow(
    graph: Graph,
    tensors: list[int],
    found: Mapping[int, _TensorUses],
    microbatch_split: MicrobatchSplit | None,
) -> TensorGroup:
    first = found[tensors[0]]
    tensor, node = graph.tensors[tensors[0]], graph.nodes[first.producer]
    consumer_classes, in_loop = tuple(first.consumers), is_in_loop(node, microbatch_split)
    return TensorGroup(
        tuple(tensors),
        tuple(found[t].producer for t in tensors),
        tuple(tuple(found[t].consumers[d] for d in consumer_classes) for t in tensors),
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
    """An output is demanded in the state of the input that it is the new value of."""
    free = (ConsumerClass(None, (), frozenset(), after_forward=True),)
    if output.updates is None or graph.inputs[output.updates] not in inputs:
        return free
    node = inputs[graph.inputs[output.updates]]
    there = [p for dimension in graph.tensors[node.tensor].array_dims or () for p in dimension]
    here = [p for dimension in output.view.positions for p in dimension]
    made = graph.tensors[output.view.tensor or 0].sizes
    labels = dict(zip(here, there, strict=False))
    if len(here) != len(there) or any(
        h is None or made[h] != node.sizes[t] for h, t in labels.items()
    ):
        return free
    read = tuple(labels[p] for p in range(len(made)))
    return ConsumerClass(node.class_id, read, frozenset(), after_forward=True), node.index


def _signature(graph: Graph, tensor: int, uses: _TensorUses) -> object:
    node, t = graph.nodes[uses.producer], graph.tensors[tensor]
    made = _port_of(graph, tensor, node)
    return node.class_id, made, uses.labels, t.sizes, t.nbytes, frozenset(uses.consumers)
