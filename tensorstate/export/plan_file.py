"""The content of a plan's file: its decisions, without devices and without the step.

A file describes every argument, result and operator of the step, so that only the same step accepts
the decisions. For another step the first difference is named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxcoll.errors import named, shown
from tensorstate.collective_costs import CollectiveCostModel
from tensorstate.cost.cost import SearchOptions, SearchResult, estimate_cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import PlacementTable
from tensorstate.execution.sharded_step import partition_specs
from tensorstate.hardware import Hardware
from tensorstate.ir.graph import LOOP_BOUNDARY, Graph, LoopForm, Phase
from tensorstate.ir.placements import MIN, MeshShape, divides_evenly
from tensorstate.ir.trace_context import OUTSIDE, TraceContext
from tensorstate.problem.pipeline import Schedule
from tensorstate.problem.problem import Problem


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An argument or a result of the step: its path, type, and sharding."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    spec: PartitionSpec | None

    @property
    def type(self) -> str:
        """Dtype and shape."""
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class OperatorKey:
    """An operator: primitive, phase, sizes of its labels, and the class of its node."""

    primitive: str
    phase: Phase
    sizes: tuple[int, ...]
    node_class: int


@dataclasses.dataclass(frozen=True, eq=False)
class PlanFile:
    """The content of a plan's file.

    Attributes:
        mesh: the device mesh.
        inputs, outputs: leaves of the arguments and of the result.
        input_classes: node class of every argument and of every constant.
        operators: in the order of execution.
        decisions, options: the decisions and the search options of the plan.
        found: objective, bound, method and seconds of the search.
        microbatches, batch, stages, schedule: as for ``search``, where ``schedule`` is that of the
            stages.
        hardware, network: those that priced the plan; ``None`` in a file that cannot hold them.
        predicted: seconds and bytes of a step, for people to read.
        pad_to: sizes of dimensions of arguments that the plan pads, with the padded sizes.
        has_pairs: whether scans of the backward pass read the bodies of the scans that they mirror.
        context: where the step was traced; outside of any mesh by default.
        untied: the group of an argument by the number of its leaf, if pins tell identical layers
            apart.
    """

    mesh: MeshShape
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    input_classes: tuple[int, ...]
    operators: tuple[OperatorKey, ...]
    decisions: Decisions
    options: SearchOptions
    found: Mapping[str, Any]
    microbatches: int
    batch: str | None
    hardware: Hardware | None
    network: CollectiveCostModel | None
    predicted: Mapping[str, float]
    stages: str | None = None
    schedule: Schedule = "gpipe"
    pad_to: Mapping[int, int] = dataclasses.field(default_factory=dict)
    has_pairs: bool = False
    context: TraceContext = OUTSIDE
    untied: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def leaf_difference(self, graph: Graph) -> str | None:
        """The first argument or result in which another step differs, or ``None``."""
        leaves = _leaves(graph, [None] * len(graph.inputs), [None] * len(graph.outputs))
        pairs = zip(("argument", "result"), (self.inputs, self.outputs), leaves, strict=True)
        for kind, planned, given in pairs:
            if (text := _leaf_difference(kind, planned, given)) is not None:
                return text
        return None

    @property
    def loop_form(self) -> LoopForm:
        """How the loops of the planned step were traced (see ``trace``)."""
        if self.has_pairs:
            return "pair"
        has_loops = any(operator.primitive in LOOP_BOUNDARY for operator in self.operators)
        return "keep" if has_loops else "unroll"

    def operator_difference(self, graph: Graph) -> str | None:
        """The first operator in which another step differs, in one microbatch, or ``None``."""
        operators = _operators(graph)
        for number, (planned, given) in enumerate(zip(self.operators, operators, strict=False)):
            # Not compared by class: another version may group the same operators differently.
            if dataclasses.replace(planned, node_class=given.node_class) != given:
                source = graph.operators[number].source
                return (
                    f"operator {number} is {_operator_text(given)} ({source}), the plan has "
                    f"{_operator_text(planned)} there"
                )
        common = min(len(operators), len(self.operators))
        if len(operators) > common:
            source = graph.operators[common].source
            text = _operator_text(operators[common])
            text += f" ({source})"
            return f"operator {common} is {text}, with which the plan's step has ended"
        if len(self.operators) > common:
            return f"it ends before operator {common}, {_operator_text(self.operators[common])}"
        return None

    def check_decisions(self, problem: Problem) -> None:
        """Refuse decisions that the problem does not have.

        Raises:
            PlanError: a decision is unknown; the error names the first one.
        """
        # Decisions are numbers of classes, nodes and tensors. They mean the same only if tracing
        # and grouping give the same numbers, which another version of JAX may not do.
        graph, strategies = problem.graph, self.decisions.strategies
        classes = [operator.node_class for operator in _operators(graph)]
        if (
            classes != [operator.node_class for operator in self.operators]
            or self.input_classes != _input_classes(graph)
            or len(strategies) != len(graph.node_classes)
        ):
            raise PlanError(
                "the plan groups the step's operators in other classes: it was made by another "
                f"version of jax ({jax.__version__} here) or of tensorstate; search again"
            )
        for class_id, strategy in enumerate(strategies):
            if strategy not in problem.strategies[class_id].all:
                raise PlanError(f"class {class_id} of the step has no strategy {shown(strategy)}")
        for node, keeping in self.decisions.kept.items():
            if node >= len(graph.nodes):
                raise PlanError(f"the plan {keeping.option}s nodes that the step does not have")
        copies = (*self.decisions.saved.items(), *self.decisions.loop_resident.items())
        for tensor, placements in copies:
            # Sums may be open; shards are of equal size.
            sizes = graph.tensors[tensor].sizes if 0 <= tensor < len(graph.tensors) else None
            if sizes is None or not (
                all(MIN <= p < len(sizes) for p in placements)
                and divides_evenly(placements, sizes, problem.mesh)
            ):
                raise PlanError(f"tensor {tensor} of the step has no copy in {shown(placements)}")

    def result(self, problem: Problem) -> SearchResult:
        """The decisions on their problem, priced as the problem prices them.

        The bound is kept only if the price is the one that the search found. A different price
        comes from another network, a later version, or edited decisions.

        Raises:
            PlanError: the file shards an argument or a result differently from its decisions.
        """
        # The shardings in a file are for its readers; decisions determine them, so they must agree.
        cost = estimate_cost(problem, self.decisions)
        specs = partition_specs(PlacementTable(problem, self.decisions, cost))
        pairs = zip((self.inputs, self.outputs), _leaves(problem.traced, *specs), strict=True)
        for written, decided in pairs:
            for leaf, again in zip(written, decided, strict=True):
                if leaf.spec != again.spec:
                    raise PlanError(
                        f"the file states {shown(leaf.spec)} for {named(leaf.name)}, but its "
                        f"decisions make it {shown(again.spec)}: it was edited or cut short; "
                        "save the plan again"
                    )
        # 1e-6, since sums of the same decisions in another order differ in the last bits.
        found = {**self.found, "objective": self.options.value(cost)}
        if not math.isclose(found["objective"], self.found["objective"], rel_tol=1e-6):
            found["bound"] = -math.inf
        return SearchResult(self.decisions, cost, **found)


def _leaf_difference(kind: str, planned: Sequence[Leaf], given: Sequence[Leaf]) -> str | None:
    # By name first: if one argument is gone, all arguments behind it would otherwise seem changed.
    types = {leaf.name: leaf.type for leaf in planned}
    for leaf in given:
        if leaf.name not in types:
            return f"its {kind} {named(leaf.name)} of {named(leaf.type)} is not in the plan"
        if types[leaf.name] != leaf.type:
            of, given_type = named(types[leaf.name]), named(leaf.type)
            return f"its {kind} {named(leaf.name)} is {given_type}, the plan is for {of}"
    missing = types.keys() - {leaf.name for leaf in given}
    if missing:
        return f"it has no {kind} {named(min(missing))}, for which the plan is"
    if [leaf.name for leaf in planned] != [leaf.name for leaf in given]:
        return f"its {kind}s come in another order"
    return None


def _operator_text(operator: OperatorKey) -> str:
    return f"{named(operator.primitive)} of {shown(list(operator.sizes))} in {operator.phase}"


# ---------------------------------------------------------------------- from a plan


def plan_file(problem: Problem, result: SearchResult, options: SearchOptions) -> PlanFile:
    """The content of a plan's file."""
    table, staged = PlacementTable(problem, result.decisions, result.cost), problem.pipeline
    inputs, outputs = _leaves(problem.traced, *partition_specs(table))
    padding = problem.traced.padding
    return PlanFile(
        problem.mesh,
        inputs,
        outputs,
        _input_classes(problem.graph),
        _operators(problem.graph),
        result.decisions,
        options,
        {name: getattr(result, name) for name in ("objective", "bound", "method", "seconds")},
        problem.num_parts,
        problem.batch,
        problem.hardware,
        problem.network,
        {
            "compute": result.cost.compute,
            "communication": result.cost.communication,
            "memory": result.cost.memory.peak,
        },
        None if staged is None else staged.axis,
        problem.schedule,
        {} if padding is None else padding.sizes,
        problem.graph.loop_form == "pair",
        problem.traced.context,
        {} if problem.traced.untied is None else dict(problem.traced.untied.groups),
    )


def _leaves(graph: Graph, in_specs, out_specs) -> tuple[tuple[Leaf, ...], tuple[Leaf, ...]]:
    tensors = [graph.tensors[index] for index in graph.inputs]
    shapes = [
        tuple(math.prod(tensor.sizes[p] for p in dim) for dim in tensor.array_dims or ())
        for tensor in tensors
    ]
    inputs = tuple(
        Leaf(tensor.name, str(tensor.dtype), shape, spec)
        for tensor, shape, spec in zip(tensors, shapes, in_specs, strict=True)
    )
    outputs = tuple(
        Leaf(out.name, str(out.view.dtype), out.view.shape, spec)
        for out, spec in zip(graph.outputs, out_specs, strict=True)
    )
    return inputs, outputs


def _operators(graph: Graph) -> tuple[OperatorKey, ...]:
    # Operands and labels are left out: they would make a file as long as the step, and sizes,
    # phases and order already tell other steps apart.
    classes = {m.operator: node.class_id for node in graph.nodes for m in node.members}
    return tuple(
        OperatorKey(operator.primitive, operator.phase, operator.sizes, classes[operator.index])
        for operator in graph.operators
    )


def _input_classes(graph: Graph) -> tuple[int, ...]:
    of = {node.tensor: node.class_id for node in graph.nodes if node.tensor is not None}
    return tuple(of[tensor] for tensor in (*graph.inputs, *(t for t, _ in graph.constants)))
