"""The decisions of a training step, layers that are alike counted once.

The search decides for every class of entities in which way it runs, and whether what it makes in
the forward pass is kept for the backward pass or made again. All that costs anything follows from
*flows*: a tensor, the state in which it leaves the class that makes it, and the states in which
classes demand it. Flows that are alike are one with a weight.

There are two *eras*: the forward pass, and what comes after (backward pass and optimizer). Within
an era a tensor is brought to a state once, however many read it there. Between the eras one state
of it is kept in memory, unless it is made again or is an input, whose own state stays.

In microbatches both eras are in a loop (see ``tensorstate.pipelining``), whose turns are alike: its
tensors and operators are those of one microbatch, the others those of the step. What is read after
the loop *crosses* its end: one state of it is held there, and added up if it is a sum.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Mapping

from tensorstate.graph import Edge, Entity, Graph, Output
from tensorstate.hardware import Hardware, Network
from tensorstate.pipelining import Pipeline, batch_of, pipelined
from tensorstate.states import REPLICATED, Mesh, Routes, State
from tensorstate.timeline import Spans, Timeline
from tensorstate.ways import Place, Way, Ways

SLICES = frozenset({"slice", "dynamic_slice"})


@dataclasses.dataclass(frozen=True)
class Demand:
    """A class reads a flow's tensor.

    Attributes:
        group: the class; ``None`` for the caller of the step, who takes any state but partial ones.
        labels: label of the class for every position of the tensor.
        places: the operands that read it; of a stack, whose rows are alike, the first.
        late: whether it is read after the forward pass.
        crosses: whether it is read after the loop over microbatches, though it is there before.
    """

    group: int | None
    labels: tuple[int, ...]
    places: frozenset[Place]
    late: bool
    crosses: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """Tensors that are alike: made by one class, demanded alike.

    Attributes:
        tensors: all of them, in the order of execution.
        makers: the entity that makes each of them, or the input's.
        readers: for every tensor and demand the entities that read it so; none for the caller.
        group: the class that makes them, or the input's.
        labels: label of the class for every position.
        place: which result of which member; (0, 0) for an input.
        stored: whether it is an input, which stays in memory.
        early: whether it is there in the forward pass.
        demands: who reads it.
        sizes: of the whole tensor, or of a microbatch's piece of it.
        nbytes: likewise.
        entry: what it is over microbatches (see ``Pipeline.entries``).
        looped: whether it is there in the loop over microbatches.
    """

    tensors: tuple[int, ...]
    makers: tuple[int, ...]
    readers: tuple[tuple[tuple[int, ...], ...], ...]
    group: int
    labels: tuple[int, ...]
    place: Place
    stored: bool
    early: bool
    demands: tuple[Demand, ...]
    sizes: tuple[int, ...]
    nbytes: int
    entry: int
    looped: bool

    @property
    def weight(self) -> int:
        """How many tensors it stands for."""
        return len(self.tensors)

    @property
    def stays(self) -> bool:
        """Whether something reads them after the forward pass, in the loop where there is one."""
        return any(demand.late and not demand.crosses for demand in self.demands)

    @functools.cached_property
    def entities(self) -> frozenset[int]:
        """All that make or read them."""
        readers = (
            one for of_tensor in self.readers for of_demand in of_tensor for one in of_demand
        )
        return frozenset((*self.makers, *readers))


class Problem:
    """A training step on a mesh of devices, ready to be searched.

    Args:
        graph: the training step.
        network: the mesh and the prices of collectives.
        hardware: a device.
        microbatches: turns of the loop over parts of the batch; 1 for none.
        batch: name of an input whose first dimension is the batch (see ``pipelining.batch_of``).

    Attributes:
        traced: the training step.
        pipeline: the step as a loop; ``None`` for none.
        graph: that of one turn, and of what comes after the loop; the step where there is none.

    Raises:
        PlanError: the step cannot be cut into so many microbatches.
    """

    def __init__(
        self,
        graph: Graph,
        network: Network,
        hardware: Hardware,
        microbatches: int = 1,
        batch: str | None = None,
    ):
        self.traced, self.network, self.hardware = graph, network, hardware
        self.microbatches, self.batch = microbatches, batch
        looped = microbatches != 1
        self.pipeline = pipelined(graph, batch_of(graph, batch)) if looped else None
        self.graph = graph = self.pipeline.piece(microbatches) if self.pipeline else graph
        self.ways = tuple(Ways(graph, self.entity(g), self.mesh) for g in range(len(graph.classes)))
        self.flows = flows_of(graph, self.pipeline)
        self._routes: dict[tuple[tuple[int, ...], int], Routes] = {}
        self._spans: dict[int, Spans] = {}

    def on(self, network: Network, hardware: Hardware | None = None) -> Problem:
        """The same step on another network, or on other devices."""
        return Problem(
            self.traced, network, hardware or self.hardware, self.microbatches, self.batch
        )

    @property
    def mesh(self) -> Mesh:
        """The device mesh."""
        return self.network.mesh

    def entity(self, group: int) -> Entity:
        """An entity of a class, which stands for all."""
        return self.graph.entities[self.graph.classes[group][0]]

    def weight(self, group: int) -> int:
        """How many entities a class has."""
        return len(self.graph.classes[group])

    def is_early(self, group: int) -> bool:
        """Whether a class runs in the forward pass, and in the loop where there is one."""
        entity = self.entity(group)
        return entity.phase == "forward" and _is_looped(entity, self.pipeline)

    def turns(self, group: int) -> int:
        """How often a class runs."""
        return self.microbatches if _is_looped(self.entity(group), self.pipeline) else 1

    def routes(self, flow: Flow) -> Routes:
        """The ways of a flow's tensor between its states."""
        key = flow.sizes, flow.nbytes
        if key not in self._routes:
            self._routes[key] = Routes(*key, self.mesh, self.network.price)
        return self._routes[key]

    @functools.cached_property
    def timeline(self) -> Timeline:
        """When operators run and need their tensors."""
        stages = self.pipeline.stages if self.pipeline else ()
        return Timeline(self.graph, frozenset(i for i, s in enumerate(stages) if s == "after"))

    def spans(self, number: int) -> Spans:
        """When the tensors of a flow are there."""
        if number not in self._spans:
            flow = self.flows[number]
            readers = [
                () if demand.crosses else [e for entities in of_tensor for e in entities]
                for demand, of_tensor in zip(
                    flow.demands, zip(*flow.readers, strict=True), strict=True
                )
            ]
            self._spans[number] = self.timeline.spans(flow.tensors, flow.early, flow.stays, readers)
        return self._spans[number]

    def source(self, flow: Flow, way: Way) -> State:
        """The state in which a flow's tensor is made."""
        return self.ways[flow.group].made(way, flow.labels, flow.place)

    def target(self, demand: Demand, way: Way) -> State:
        """The state in which a class demands a tensor."""
        if demand.group is None:
            raise ValueError("the caller of the step demands no state in particular")
        return self.ways[demand.group].read(way, demand.labels, demand.places)

    def local_bytes(self, flow: Flow, state: State) -> int:
        """Bytes of a flow's tensor, or of a microbatch's piece of it, on a device."""
        return flow.nbytes // self.mesh.shards(state)

    def stored_bytes(self, flow: Flow, state: State) -> int:
        """Bytes of an input on a device, the pieces of all microbatches together."""
        return self.local_bytes(flow, state) * (self.microbatches if flow.entry >= 0 else 1)

    @functools.cache  # noqa: B019 - a problem lives as long as its search
    def seconds(self, group: int, way: Way) -> float:
        """Seconds that an entity of a class computes in all turns.

        In each it takes the longer of arithmetic and memory.
        """
        entity, tensors = self.entity(group), self.graph.tensors
        operators = [self.graph.operators[member.operator] for member in entity.members]
        if not operators:
            return 0.0
        parts = self.mesh.shards(way)
        arithmetic = math.fsum(
            operator.flops
            / self.hardware.flops_of(tensors[operator.operands[0].tensor].dtype.itemsize)
            for operator in operators
            if operator.kind in ("einsum", "window") and operator.operands
        )
        moved = self.traffic(group, way)
        if all(operator.primitive in SLICES for operator in operators):
            # Of what a slice is taken from nothing else is read: a layer's part of all layers'.
            made = {use.tensor for operator in operators for use in operator.results}
            moved = min(moved, 2 * sum(tensors[tensor].nbytes for tensor in made) / parts)
        turn = max(arithmetic / parts, moved / self.hardware.memory_bandwidth)
        return self.turns(group) * turn

    @functools.cache  # noqa: B019
    def traffic(self, group: int, way: Way) -> int:
        """Bytes that an entity of a class reads and writes on a device, each tensor once.

        What a chain of operators makes for itself alone stays in registers.
        """
        entity, tensors = self.entity(group), self.graph.tensors
        read, made = {}, {}
        for member in entity.members:
            operator = self.graph.operators[member.operator]
            for uses, into in ((operator.operands, read), (operator.results, made)):
                for use in uses:
                    into[use.tensor] = tuple(member.labels[label] for label in use.labels)
        own = {operator.operator for operator in entity.members}
        total = 0
        for tensor, labels in {**read, **made}.items():
            readers = {consumer.operator for consumer in tensors[tensor].consumers}
            if tensor in made and readers and readers <= own:
                continue
            cuts = {entry for entry in way if entry >= 0} & set(labels)
            axes = zip(self.mesh.sizes, way, strict=True)
            total += tensors[tensor].nbytes // math.prod(s for s, e in axes if e in cuts)
        return total


# ---------------------------------------------------------------------- flows


@dataclasses.dataclass
class _Way:
    """A tensor on its way: who makes it, with which labels, and who reads it."""

    maker: int
    labels: tuple[int, ...]
    readers: dict[Demand, tuple[int, ...]]

    def read(self, demand: Demand, *readers: int) -> None:
        """More readers."""
        self.readers[demand] = self.readers.get(demand, ()) + readers


def _is_looped(entity: Entity, pipeline: Pipeline | None) -> bool:
    """Whether an entity runs in the loop, as all do where there is none."""
    stages = {pipeline.stages[m.operator] for m in entity.members} if pipeline else set()
    return "after" not in stages


def flows_of(graph: Graph, pipeline: Pipeline | None = None) -> tuple[Flow, ...]:
    """The flows of a training step.

    Args:
        graph: the step, or that of a microbatch.
        pipeline: the loop over microbatches, if there is one.
    """
    found: dict[int, _Way] = {}
    members = {m.operator: (e, m) for e in graph.entities for m in e.members}
    inputs = {e.tensor: e for e in graph.entities if e.tensor is not None}

    def way(tensor: int) -> _Way:
        if tensor not in found:
            maker, labels = _maker(graph, tensor, members, inputs)
            found[tensor] = _Way(maker, labels, {})
        return found[tensor]

    def when(demand: Demand, tensor: int, *, looped: bool) -> Demand:
        """A demand for a tensor, read in the loop or after it."""
        if not _is_looped(graph.entities[way(tensor).maker], pipeline):
            return dataclasses.replace(demand, late=True)
        return demand if looped else dataclasses.replace(demand, late=True, crosses=True)

    for edge in graph.edges:
        looped = _is_looped(graph.entities[edge.target], pipeline)
        demand = when(_demand(graph, edge), edge.tensor, looped=looped)
        way(edge.tensor).read(demand, edge.target)
    for output in graph.outputs:
        if (tensor := output.view.tensor) is not None:
            demand, *readers = _returned(graph, output, inputs)
            # Pieces are returned one by one.
            looped = pipeline is None or pipeline.entries[tensor] >= 0
            way(tensor).read(when(demand, tensor, looped=looped), *readers)
    for tensor in inputs:
        way(tensor)
    alike: dict[object, list[int]] = defaultdict(list)
    for tensor in sorted(found):
        entry = REPLICATED if pipeline is None else pipeline.entries[tensor]
        alike[entry, _signature(graph, tensor, found[tensor])].append(tensor)
    return tuple(_flow(graph, tensors, found, pipeline) for tensors in alike.values())


def _maker(graph: Graph, tensor: int, members, inputs) -> tuple[int, tuple[int, ...]]:
    """The entity that has a tensor, and the entity's label of every position."""
    t = graph.tensors[tensor]
    if t.producer is None:
        return inputs[tensor].index, tuple(range(len(t.sizes)))
    entity, member = members[t.producer]
    use = graph.operators[t.producer].results[t.result]
    return entity.index, tuple(member.labels[label] for label in use.labels)


def _flow(
    graph: Graph, tensors: list[int], found: Mapping[int, _Way], pipeline: Pipeline | None
) -> Flow:
    first = found[tensors[0]]
    tensor, entity = graph.tensors[tensors[0]], graph.entities[first.maker]
    demands, looped = tuple(first.readers), _is_looped(entity, pipeline)
    return Flow(
        tuple(tensors),
        tuple(found[t].maker for t in tensors),
        tuple(tuple(found[t].readers[d] for d in demands) for t in tensors),
        entity.group,
        first.labels,
        _made_at(graph, tensors[0], entity),
        entity.tensor is not None,
        looped and entity.phase in (None, "forward"),
        demands,
        tensor.sizes,
        tensor.nbytes,
        REPLICATED if pipeline is None else pipeline.entries[tensors[0]],
        looped,
    )


def _made_at(graph: Graph, tensor: int, entity: Entity) -> Place:
    producer = graph.tensors[tensor].producer
    if producer is None:
        return 0, 0
    place = next(i for i, m in enumerate(entity.members) if m.operator == producer)
    return place, graph.tensors[tensor].result


def _demand(graph: Graph, edge: Edge) -> Demand:
    entity = graph.entities[edge.target]
    place = {member.operator: i for i, member in enumerate(entity.members)}
    places = frozenset(
        (place[operator], 0 if graph.operators[operator].primitive == "concatenate" else operand)
        for operator, operand in edge.operands
    )
    return Demand(entity.group, edge.target_labels, places, entity.phase != "forward")


def _returned(graph: Graph, output: Output, inputs) -> tuple[Demand] | tuple[Demand, int]:
    """An output is demanded in the state of the input that it is the new value of."""
    free = (Demand(None, (), frozenset(), late=True),)
    if output.updates is None or graph.inputs[output.updates] not in inputs:
        return free
    entity = inputs[graph.inputs[output.updates]]
    there = [p for dimension in graph.tensors[entity.tensor].layout or () for p in dimension]
    here = [p for dimension in output.view.positions for p in dimension]
    made = graph.tensors[output.view.tensor or 0].sizes
    labels = dict(zip(here, there, strict=False))
    if len(here) != len(there) or any(
        h is None or made[h] != entity.sizes[t] for h, t in labels.items()
    ):
        return free
    read = tuple(labels[p] for p in range(len(made)))
    return Demand(entity.group, read, frozenset(), late=True), entity.index


def _signature(graph: Graph, tensor: int, way: _Way) -> object:
    entity, t = graph.entities[way.maker], graph.tensors[tensor]
    made = _made_at(graph, tensor, entity)
    return entity.group, made, way.labels, t.sizes, t.nbytes, frozenset(way.readers)
