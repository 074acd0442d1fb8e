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
from tensorstate.problem.microbatching import Pipeline
from tensorstate.problem.strategies import Port


@dataclasses.dataclass(frozen=True)
class Demand:
    """A class reads a flow's tensor.

    Attributes:
        class_id: the class; ``None`` for the caller of the step, who takes any state but partial
            ones.
        labels: label of the class for every position of the tensor.
        ports: the operands that read it; of a stack, whose rows are alike, the first.
        late: whether it is read after the forward pass.
        crosses: whether it is read after the loop over microbatches, though it is there before.
    """

    class_id: int | None
    labels: tuple[int, ...]
    ports: frozenset[Port]
    late: bool
    crosses: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """Tensors that are alike: made by one class, demanded alike.

    Attributes:
        tensors: all of them, in the order of execution.
        makers: the entity that makes each of them, or the input's.
        readers: for every tensor and demand the entities that read it so; none for the caller.
        class_id: the class that makes them, or the input's.
        labels: label of the class for every position.
        port: which result of which member; (0, 0) for an input.
        stored: whether it is an input, which stays in memory.
        early: whether it is there in the forward pass.
        demands: who reads it.
        sizes: of the whole tensor, or of a microbatch's piece of it.
        nbytes: likewise.
        placement: what it is over microbatches (see ``Pipeline.entries``).
        looped: whether it is there in the loop over microbatches.
    """

    tensors: tuple[int, ...]
    makers: tuple[int, ...]
    readers: tuple[tuple[tuple[int, ...], ...], ...]
    class_id: int
    labels: tuple[int, ...]
    port: Port
    stored: bool
    early: bool
    demands: tuple[Demand, ...]
    sizes: tuple[int, ...]
    nbytes: int
    placement: int
    looped: bool

    @property
    def multiplicity(self) -> int:
        """How many tensors it stands for."""
        return len(self.tensors)

    @property
    def stays(self) -> bool:
        """Whether something reads them after the forward pass, in the loop where there is one."""
        return any(demand.late and not demand.crosses for demand in self.demands)

    @functools.cached_property
    def nodes(self) -> frozenset[int]:
        """All that make or read them."""
        readers = (
            one for of_tensor in self.readers for of_demand in of_tensor for one in of_demand
        )
        return frozenset((*self.makers, *readers))


@dataclasses.dataclass
class _TensorUses:
    """A tensor on its way: who makes it, with which labels, and who reads it."""

    maker: int
    labels: tuple[int, ...]
    readers: dict[Demand, tuple[int, ...]]

    def read(self, demand: Demand, *readers: int) -> None:
        """More readers."""
        self.readers[demand] = self.readers.get(demand, ()) + readers


def is_looped(node: Node, pipeline: Pipeline | None) -> bool:
    """Whether an entity runs in the loop, as all do where there is none."""
    stages = {pipeline.stages[m.operator] for m in node.members} if pipeline else set()
    return "after" not in stages


def flows_of(
    graph: Graph, pipeline: Pipeline | None = None, lasting: Iterable[int] = ()
) -> tuple[Flow, ...]:
    """The flows of a training step.

    Args:
        graph: the step, or that of a microbatch.
        pipeline: the loop over microbatches, if there is one.
        lasting: tensors that have a flow even if only the entity that makes them reads them,
            because they stay in memory after it has run (see ``Timeline.lasting``).
    """
    found: dict[int, _TensorUses] = {}
    members = {m.operator: (e, m) for e in graph.nodes for m in e.members}
    inputs = {e.tensor: e for e in graph.nodes if e.tensor is not None}

    def uses(tensor: int) -> _TensorUses:
        if tensor not in found:
            maker, labels = _maker(graph, tensor, members, inputs)
            found[tensor] = _TensorUses(maker, labels, {})
        return found[tensor]

    def when(demand: Demand, tensor: int, *, looped: bool) -> Demand:
        """A demand for a tensor, read in the loop or after it."""
        if not is_looped(graph.nodes[uses(tensor).maker], pipeline):
            return dataclasses.replace(demand, late=True)
        return demand if looped else dataclasses.replace(demand, late=True, crosses=True)

    for edge in graph.edges:
        looped = is_looped(graph.nodes[edge.target], pipeline)
        demand = when(_demand(graph, edge), edge.tensor, looped=looped)
        uses(edge.tensor).read(demand, edge.target)
    for output in graph.outputs:
        if (tensor := output.view.tensor) is not None:
            demand, *readers = _returned(graph, output, inputs)
            # Pieces are returned one by one.
            looped = pipeline is None or pipeline.entries[tensor] >= 0
            uses(tensor).read(when(demand, tensor, looped=looped), *readers)
    for tensor in (*inputs, *lasting):
        uses(tensor)
    alike: dict[object, list[int]] = defaultdict(list)
    for tensor in sorted(found):
        placement = REPLICATED if pipeline is None else pipeline.entries[tensor]
        alike[placement, _signature(graph, tensor, found[tensor])].append(tensor)
    return tuple(_flow(graph, tensors, found, pipeline) for tensors in alike.values())


def _maker(graph: Graph, tensor: int, members, inputs) -> tuple[int, tuple[int, ...]]:
    """The entity that has a tensor, and the entity's label of every position."""
    t = graph.tensors[tensor]
    if t.producer is None:
        return inputs[tensor].index, tuple(range(len(t.sizes)))
    node, member = members[t.producer]
    use = graph.operators[t.producer].results[t.result]
    return node.index, tuple(member.labels[label] for label in use.labels)


def _flow(
    graph: Graph, tensors: list[int], found: Mapping[int, _TensorUses], pipeline: Pipeline | None
) -> Flow:
    first = found[tensors[0]]
    tensor, node = graph.tensors[tensors[0]], graph.nodes[first.maker]
    demands, looped = tuple(first.readers), is_looped(node, pipeline)
    return Flow(
        tuple(tensors),
        tuple(found[t].maker for t in tensors),
        tuple(tuple(found[t].readers[d] for d in demands) for t in tensors),
        node.class_id,
        first.labels,
        _made_at(graph, tensors[0], node),
        node.tensor is not None,
        looped and node.phase in (None, "forward"),
        demands,
        tensor.sizes,
        tensor.nbytes,
        REPLICATED if pipeline is None else pipeline.entries[tensors[0]],
        looped,
    )


def _made_at(graph: Graph, tensor: int, node: Node) -> Port:
    producer = graph.tensors[tensor].producer
    if producer is None:
        return 0, 0
    port = next(i for i, m in enumerate(node.members) if m.operator == producer)
    return port, graph.tensors[tensor].result


def _demand(graph: Graph, edge: Edge) -> Demand:
    node = graph.nodes[edge.target]
    port = {member.operator: i for i, member in enumerate(node.members)}
    ports = frozenset(
        (port[operator], 0 if graph.operators[operator].primitive == "concatenate" else operand)
        for operator, operand in edge.operands
    )
    return Demand(node.class_id, edge.target_labels, ports, node.phase != "forward")


def _returned(graph: Graph, output: Output, inputs) -> tuple[Demand] | tuple[Demand, int]:
    """An output is demanded in the state of the input that it is the new value of."""
    free = (Demand(None, (), frozenset(), late=True),)
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
    return Demand(node.class_id, read, frozenset(), late=True), node.index


def _signature(graph: Graph, tensor: int, uses: _TensorUses) -> object:
    node, t = graph.nodes[uses.maker], graph.tensors[tensor]
    made = _made_at(graph, tensor, node)
    return node.class_id, made, uses.labels, t.sizes, t.nbytes, frozenset(uses.readers)
