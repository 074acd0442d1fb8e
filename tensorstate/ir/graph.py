"""The factor graph of a training step: tensors, operators, and the decisions that search makes.

A *factor* is an axis of the program: dimensions that a reshape, a transpose or an operator shows to
be the same share it, and a reshape that splits a dimension splits its factor. A *tensor* is a set
of factors: its order means nothing, so a matrix and its transpose are one tensor (Zhao's
dissertation, section 5.3). Reshapes, transposes and broadcasts are no operators: they are *views*.

An *operator* names the positions of its tensors by *labels* of its own, as an einsum does. An
*entity* is what the search decides at once: a chain of elementwise operators, any other operator,
or an input. Entities at the same place of identical layers form a *class*.

What is needed only to run an operator is its ``eqn``; the search never reads it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

Phase = Literal["forward", "backward", "optimizer"]
Role = Literal[
    "parameter", "optimizer", "input", "constant", "gradient", "activation", "scalar/output"
]
Kind = Literal[
    "einsum", "elementwise", "reduction", "gather", "scatter", "window", "source", "opaque"
]
Reduce = Literal["sum", "max", "min"]


class Consumer(NamedTuple):
    """Operand number ``operand`` of operator ``operator``, which runs in ``phase``."""

    operator: int
    operand: int
    phase: Phase


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value, whatever the order of its dimensions. Dimensions of size 1 are left out.

    Attributes:
        index: its place in ``Graph.tensors``.
        dims: the factor of every position. A factor may occur twice (attention scores).
        sizes: elements of every position, each above 1.
        dtype: of its elements, a ``numpy.dtype`` or a key type of JAX.
        role: what it is for.
        name: the path of an input (``params/layers/0/up/kernel``), otherwise ``t17``.
        producer: the operator that makes it, ``None`` for inputs and constants.
        result: which of its producer's results it is.
        consumers: all operands that read it, in the order of execution.
        array_dims: of an input or constant: for every dimension of the array the positions that
            make it up, major first. ``None`` for what operators make, which have no array of their
            own.
    """

    index: int
    dims: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: Any
    role: Role
    name: str
    producer: int | None
    result: int
    consumers: tuple[Consumer, ...]
    array_dims: tuple[tuple[int, ...], ...] | None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.size * self.dtype.itemsize


class Use(NamedTuple):
    """A tensor as an operator sees it: ``labels[i]`` is the operator's label of position i."""

    tensor: int
    labels: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class View:
    """How an array of the traced program is read from a tensor.

    The array's dimension d is the product of ``sizes[d]``, major first; ``positions[d]`` says for
    each of them which position of the tensor it is, ``None`` where the tensor is repeated. Every
    position of the tensor occurs once.

    Attributes:
        tensor: index in ``Graph.tensors``; ``None`` for a scalar constant, repeated.
        value: that constant, a 0-d array or a Python scalar.
        dtype: of the array.
    """

    tensor: int | None
    positions: tuple[tuple[int | None, ...], ...]
    sizes: tuple[tuple[int, ...], ...]
    dtype: Any
    value: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return tuple(math.prod(sizes) for sizes in self.sizes)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TracedEqn:
    """The traced equation of an operator.

    Attributes:
        primitive: the JAX primitive to bind.
        params: its parameters, for whole arrays.
        inputs: how its arguments are read, constants included.
        outputs: how its results are laid out, one for each of ``Operator.results``.
        input_labels: for every argument and dimension the labels that make it up, major first.
        output_labels: the same of every result.
        rule: the ``rules.PrimitiveRule`` by which it is read and run.
        remat_region: number of the ``jax.checkpoint`` region that recomputes here, ``None``
            outside. A region's operators may not run before all that enters the region is there.
    """

    primitive: Any
    params: Mapping[str, Any]
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    input_labels: tuple[tuple[tuple[int, ...], ...], ...]
    output_labels: tuple[tuple[tuple[int, ...], ...], ...]
    rule: Any
    remat_region: int | None = None


class SourceLocation(NamedTuple):
    """Where in the model an operator came from: the name stack and the line of the user's code."""

    stack: str
    line: str

    def __str__(self) -> str:
        return " at ".join(part for part in (self.stack, self.line) if part) or "unknown place"


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Operator:
    """One operation, in labels of its own: 0 to ``len(sizes)`` - 1.

    On each mesh axis an operator runs in one of these ways:

    - replicated: all operands whole, all results whole;
    - sharded by a label that is not frozen: operands and results that have the label are sharded at
      its position, operands without it are whole, and so are results without it, unless the label
      is in ``reductions``: then all results are partial, to be combined by what is named there;
    - partial: the operands of one set of ``linear`` are all partial sums, the others are whole, and
      all results are partial sums.

    Attributes:
        index: its place in ``Graph.operators``, which is the order of execution.
        kind: what it does to its labels.
        primitive: name of the JAX primitive.
        sizes: elements of every label.
        operands, results: tensors with the label of every position. Scalar constants are no
            operands; ``eqn`` has them.
        reductions: the labels over which it reduces, and how.
        linear: sets of operands in which it is linear together: ``({0, 1},)`` for a sum,
            ``({0}, {1})`` for a product.
        need_replication: labels that cannot be sharded.
        flops: floating-point operations of the whole operator (an addition and a multiplication
            are two).
        phase: when it runs.
        source: where in the model it came from.
        eqn: what runs it.
    """

    index: int
    kind: Kind
    primitive: str
    sizes: tuple[int, ...]
    operands: tuple[Use, ...]
    results: tuple[Use, ...]
    reductions: Mapping[int, Reduce]
    linear: tuple[frozenset[int], ...]
    need_replication: frozenset[int]
    flops: int
    phase: Phase
    source: SourceLocation
    eqn: TracedEqn = dataclasses.field(repr=False)


class Output(NamedTuple):
    """A leaf of what the step returns.

    Attributes:
        name: its path in what is returned.
        view: how it is read; ``view.tensor`` is ``None`` for a constant.
        updates: number (in ``Graph.inputs``) of the input whose new value it is, or ``None``. It
            is returned in that input's state, and may take its memory.
    """

    name: str
    view: View
    updates: int | None


class Member(NamedTuple):
    """An operator of an entity; label l of the operator is label ``labels[l]`` of the entity."""

    operator: int
    labels: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Node:
    """What takes one decision: for every mesh axis one of the ways of ``Operator``.

    Attributes:
        index: its place in ``Graph.nodes``.
        kind: of its operator; ``"elementwise"`` for a chain; ``"input"`` for an input or constant.
        phase: when it runs; ``None`` for inputs.
        sizes: elements of every label.
        need_replication: labels that cannot be sharded. Of an input: positions at which no
            ``PartitionSpec`` can shard it, since they are not the major part of their dimension.
        members: its operators in the order of execution; empty for an input.
        tensor: the input or constant, else ``None``. Its labels are its positions.
        class_id: number of its class in ``Graph.node_classes``.
    """

    index: int
    kind: Kind | Literal["input"]
    phase: Phase | None
    sizes: tuple[int, ...]
    need_replication: frozenset[int]
    members: tuple[Member, ...]
    tensor: int | None
    class_id: int


class Edge(NamedTuple):
    """A tensor on its way from the entity that has it to one that reads it.

    ``source_labels`` and ``target_labels`` give, for every position of the tensor, the label of the
    entity at either end. ``operands`` lists all (operator, operand) of the target that read the
    tensor with these labels. An entity's own tensors have no edge, where it reads them as it
    makes them.
    """

    tensor: int
    source: int
    source_labels: tuple[int, ...]
    target: int
    target_labels: tuple[int, ...]
    operands: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A training step.

    Attributes:
        tensors: all tensors; ``tensors[i].index == i``.
        operators: all operators in the order of execution.
        inputs: the tensors of the step's arguments, in the order of their leaves. An argument that
            nothing reads has a tensor all the same.
        constants: tensors that the function closed over, with their values.
        outputs: the leaves of what the step returns, in order.
        factors: size of every factor.
        nodes: what the search decides.
        node_classes: the entities of each class. Label l of one is label l of every other.
        edges: the tensors between entities.
        in_tree, out_tree: structures (``jax.tree``) of the arguments and of what is returned.
    """

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    constants: tuple[tuple[int, np.ndarray], ...]
    outputs: tuple[Output, ...]
    factors: tuple[int, ...]
    nodes: tuple[Node, ...]
    node_classes: tuple[tuple[int, ...], ...]
    edges: tuple[Edge, ...]
    in_tree: Any = dataclasses.field(repr=False)
    out_tree: Any = dataclasses.field(repr=False)

    @property
    def flops(self) -> int:
        """Floating-point operations of one step."""
        return sum(operator.flops for operator in self.operators)

    @property
    def replicated(self) -> dict[str, tuple[Operator, ...]]:
        """Operators that every device runs on whole arrays for want of a rule, by primitive."""
        found: dict[str, tuple[Operator, ...]] = {}
        for operator in self.operators:
            if operator.eqn.rule.origin == "replicated":
                found[operator.primitive] = (*found.get(operator.primitive, ()), operator)
        return found

    def __str__(self) -> str:
        """The graph as the dissertation prints one (Fig. 5.2b).

        Of a class of entities the first is printed, followed by how many there are.
        """
        first = [one[0] for one in self.node_classes]
        names = _factor_names(len(self.factors))
        lines = [
            f"{len(self.operators)} operators, {len(self.tensors)} tensors, "
            f"{len(self.nodes)} nodes in {len(self.node_classes)} classes",
            "Nodes:",
        ]
        for index in first:
            node = self.nodes[index]
            times = len(self.node_classes[node.class_id])
            suffix = f"  x{times}" if times > 1 else ""
            for line in _node_lines(self, node, names):
                lines.append(f"  {line}{suffix}")
        returned = [
            self.tensors[out.view.tensor]
            for out in self.outputs
            if out.view.tensor is not None and out.updates is None
        ]
        outputs = ", ".join(f"{tensor.name}{_format_factors(tensor, names)}" for tensor in returned)
        lines.append(f"  output: OUTPUT[{outputs}]")
        return "\n".join(lines)


# ---------------------------------------------------------------------- printing


def _factor_names(count: int) -> list[str]:
    """a to z, A to Z, then a1 and so on."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return [
        letters[i % len(letters)] + (str(i // len(letters)) if i >= len(letters) else "")
        for i in range(count)
    ]


def _format_factors(tensor: Tensor, names: list[str]) -> str:
    return "[" + "".join(names[factor] for factor in tensor.dims) + "]"


def _node_lines(graph: Graph, node: Node, names: list[str]):
    if node.tensor is not None:
        tensor = graph.tensors[node.tensor]
        yield f"{tensor.name}: PLACEHOLDER {_format_factors(tensor, names)} {tensor.role}"
    for member in node.members:
        yield _operator_line(graph, graph.operators[member.operator], names)


def _operator_line(graph: Graph, operator: Operator, names: list[str]) -> str:
    labels = _label_names(graph, operator, names)

    def spelled(use: Use) -> str:
        return "".join(labels[label] for label in use.labels)

    tensors = [graph.tensors[use.tensor] for use in operator.operands]
    outs = [f"{graph.tensors[use.tensor].name}" for use in operator.results]
    head = f"{', '.join(outs)}: {operator.kind.upper()}"
    if operator.kind == "einsum":
        equation = ",".join(map(spelled, operator.operands))
        equation += "->" + ",".join(map(spelled, operator.results))
        body = f' "{equation}"({", ".join(tensor.name for tensor in tensors)})'
    else:
        pairs = zip(tensors, operator.operands, strict=True)
        body = f" {operator.primitive}"
        body += "(" + ", ".join(f"{tensor.name}[{spelled(use)}]" for tensor, use in pairs) + ")"
    if operator.reductions and operator.kind != "einsum":
        body += " over{" + ",".join(labels[label] for label in operator.reductions) + "}"
    results = ", ".join(f"[{spelled(use)}]" for use in operator.results)
    return f"{head}{body} -> {results} {operator.phase}"


def _label_names(graph: Graph, operator: Operator, names: list[str]) -> list[str]:
    """A label is named after its factor; a second label on the same factor gets a prime."""
    found: dict[int, str] = {}
    for use in (*operator.operands, *operator.results):
        for label, factor in zip(use.labels, graph.tensors[use.tensor].dims, strict=True):
            if label not in found:
                name = names[factor]
                while name in found.values():
                    name += "'"
                found[label] = name
    return [found.get(label, "?") for label in range(len(operator.sizes))]
