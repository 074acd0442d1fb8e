"""The factor graph of a training step: tensors, operators, and the decisions that search makes.

A *factor* is an axis of the program: dimensions that a reshape, a transpose or an operator shows to
be the same share a factor, and a reshape that splits a dimension splits its factor. A *tensor* is a
set of factors: their order means nothing, so a matrix and its transpose are one tensor (Zhao's
dissertation, section 5.3). Reshapes, transposes and broadcasts are *views*, not operators.

An *operator* names the positions of its tensors by *labels* of its own, as an einsum does. A
*node* gets one strategy from the search: it is a fused chain of elementwise operators, a single
operator of another kind, or an input. Corresponding nodes of identical layers form a *node class*.

A *loop* of the step, a ``lax.scan`` or a ``lax.while_loop``, has its body in the graph once. Its
boundary consists of operators that compute nothing: ``carry_in`` and ``carry_out`` between the
carry and the tensors outside, ``scan_row`` from stacked operands, ``scan_stack`` to stacked
results, and ``while_condition``. A carry has the same placements in every iteration, so its
``carry_in`` and its ``carry_out`` are nodes of one class.

The ``eqn`` of an operator holds the data that only execution needs; the search never reads it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import string
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from tensorstate.ir.padded import Padding
from tensorstate.ir.placements import Pairing, PinnedDim
from tensorstate.ir.trace_context import OUTSIDE, TraceContext

Phase = Literal["forward", "backward", "optimizer"]
Role = Literal[
    "parameter", "optimizer", "input", "constant", "gradient", "activation", "scalar/output"
]
Kind = Literal[
    "einsum", "elementwise", "reduction", "gather", "scatter", "window", "source", "loop", "opaque"
]
Reduce = Literal["sum", "max", "min"]
LoopForm = Literal["keep", "pair", "unroll"]

# Dataclasses here compare by identity (``eq=False``), because their arrays compare elementwise.


class Consumer(NamedTuple):
    """Operand number ``operand`` of operator ``operator``, which runs in ``phase``."""

    operator: int
    operand: int
    phase: Phase


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value, regardless of the order of its dimensions. Dimensions of size 1 are omitted.

    Attributes:
        index: its index in ``Graph.tensors``.
        dims: the factor of every position. A factor may occur twice (attention scores).
        sizes: number of elements along every position, each above 1.
        dtype: type of its elements, a ``numpy.dtype`` or a key type of JAX.
        role: its use in the training step.
        name: the path of an input (``params/layers/0/up/kernel``), otherwise a name such as
            ``t17``.
        producer: the operator that produces it; ``None`` for inputs and constants.
        result: which of its producer's results it is.
        consumers: all operands that read it, in the order of execution.
        array_dims: for every dimension of the array of an input or constant, the positions whose
            product it is, major first. ``None`` for results of operators, which have no array of
            their own.
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
        """Bytes of the full tensor."""
        return self.size * self.dtype.itemsize


class Use(NamedTuple):
    """A tensor as an operator sees it: ``labels[i]`` is the operator's label of position i."""

    tensor: int
    labels: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class View:
    """How an array of the traced program is read from a tensor.

    The array's dimension d is the product of ``sizes[d]``, major first. ``positions[d]`` gives the
    position of the tensor for each of these sizes, or ``None`` where the tensor is repeated. Every
    position of the tensor occurs once.

    Attributes:
        tensor: index in ``Graph.tensors``; ``None`` for a scalar constant, repeated.
        value: that constant, a 0-d array or a Python scalar.
        dtype: type of the array's elements.
    """

    # For example, a tensor has the positions (batch, heads, width). Its array [batch, heads *
    # width] has positions ((0,), (1, 2)); the transpose [heads, batch, width] has ((1,), (0,),
    # (2,)); and the array repeated over 5 queries, [batch, 5, heads, width], has ((0,), (None,),
    # (1,), (2,)).
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
        params: its parameters, as traced for full arrays.
        inputs: the view through which each argument is read, including constants.
        outputs: the view of each of ``Operator.results``.
        input_labels: for every dimension of every argument, the labels whose product it is, major
            first.
        output_labels: the same for every result.
        rule: the ``rules.PrimitiveRule`` that shards and runs it.
        remat_region: number of the ``jax.checkpoint`` region in which it reruns; ``None`` outside
            of such regions. The operators of a region run only after all inputs of the region have
            been computed.
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
    """The name stack and the line of user code that an operator was traced from."""

    stack: str
    line: str

    def __str__(self) -> str:
        return " at ".join(part for part in (self.stack, self.line) if part) or "unknown source"


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Operator:
    """One operation, in labels of its own: 0 to ``len(sizes)`` - 1.

    On each mesh axis an operator has one of these strategies:

    - replicated: all operands and all results are replicated;
    - sharded by a label that is not in ``need_replication``: operands and results that have the
      label are sharded at its position, operands and results without it are replicated. If the
      label is in ``reductions``, results are partial instead, with the reduction named there;
    - partial: the operands of one set of ``linear`` are all partial sums, the other operands are
      replicated, and all results are partial sums;
    - sharded by the label of ``pairing``, which shards by both of its labels at once.

    Attributes:
        index: its index in ``Graph.operators``, which is the order of execution.
        kind: the structure of its labels.
        primitive: name of the JAX primitive.
        sizes: elements of every label.
        operands, results: tensors with the label of every position. Scalar constants are not
            operands; they are in ``eqn``.
        reductions: the labels over which it reduces, with the reduction.
        linear: sets of operands in which it is jointly linear, such as ``({0, 1},)`` for a sum and
            ``({0}, {1})`` for a product.
        need_replication: labels that cannot be sharded.
        flops: floating-point operations of the full operator (an addition and a multiplication
            count as two).
        phase: the part of the step in which it runs.
        source: the line of the model that it was traced from.
        eqn: the equation that runs it.
        pin: the sharding, by dimension, that the step asks for at an operator that changes nothing;
            ``None`` for all other operators.
        loops: numbers (in ``Graph.loops``) of the loops in whose body it runs, outermost first.
        pairing: its strategy that shards two labels together, if it has one.
        reordered: for a convolution, numbers of the operands whose dimensions are in another order
            than (batch, space, features) and (space, features, new features).
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
    # For example, a product "ab,bc->ac" has sizes (A, B, C), reductions {b: "sum"} and linear ({0},
    # {1}). Sharded by a, the left operand and the result are sharded and the right operand is
    # replicated. Sharded by b, both operands are sharded and every device has a partial sum of the
    # result. Since the product is linear in either operand, partial sums on the left may also stay
    # partial, to be completed once, behind the product, where that is cheaper.
    eqn: TracedEqn = dataclasses.field(repr=False)
    pin: tuple[PinnedDim, ...] | None = None
    loops: tuple[int, ...] = ()
    pairing: Pairing | None = None
    reordered: tuple[int, ...] = ()


class Loop(NamedTuple):
    """A loop of the step.

    Attributes:
        length: number of iterations; ``None`` if it depends on data.
        reverse: whether it starts with the last row of its stacked operands.
        carries: the operators ``carry_in`` and ``carry_out`` of every carry.
        source: the line of the model.
        mirrors: for a loop of the backward pass, the number of the forward loop that it runs
            through in reverse, reading tensors of the same iteration of that body; ``None`` for
            other loops.
    """

    length: int | None
    reverse: bool
    carries: tuple[tuple[int, int], ...]
    source: SourceLocation
    mirrors: int | None = None


LOOP_BOUNDARY = frozenset({"carry_in", "carry_out", "scan_row", "scan_stack", "while_condition"})
# The boundary operators whose results are outside of the body. No trace has "sum_out": 1F1B runs
# the operators between both scans once per microbatch, and adds up the tensors that leave them.
LOOP_EXITS = frozenset({"carry_out", "scan_stack", "while_condition", "sum_out"})


class Output(NamedTuple):
    """A leaf of the step's result.

    Attributes:
        name: its path in the result.
        view: the view through which it is read; ``view.tensor`` is ``None`` for a constant.
        updates: number (in ``Graph.inputs``) of the input whose new value it is, or ``None``. It is
            returned with that input's placements, and may reuse its memory.
    """

    name: str
    view: View
    updates: int | None


class Member(NamedTuple):
    """An operator of a node; label l of the operator is label ``labels[l]`` of the node."""

    operator: int
    labels: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A fused chain of operators, one operator, or an input: the search gives it one strategy.

    Attributes:
        index: its index in ``Graph.nodes``.
        kind: the kind of its operator; ``"elementwise"`` for a chain, ``"input"`` for an input or
            constant.
        phase: the part of the step in which it runs; ``None`` for inputs.
        sizes: elements of every label.
        need_replication: labels that cannot be sharded; for an input, the positions at which no
            ``PartitionSpec`` can shard it, since they are not the major part of their dimension.
        members: its operators in the order of execution; empty for an input.
        tensor: the input or constant, whose positions are the labels; else ``None``.
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
    """A tensor between the node that produces it and a node that consumes it.

    ``source_labels`` and ``target_labels`` give, for every position of the tensor, the label of the
    node at either end. ``operands`` lists all (operator, operand) of the target that read the
    tensor with these labels. A tensor that its own producer reads with the labels of the result
    has no edge there.
    """

    tensor: int
    source: int
    source_labels: tuple[int, ...]
    target: int
    target_labels: tuple[int, ...]
    operands: tuple[tuple[int, int], ...]


class Untied(NamedTuple):
    """Inputs of identical layers that pins distinguish.

    Attributes:
        groups: the group number of each input tensor; inputs of different groups have different
            classes.
        tied: the number of classes without this distinction.
    """

    groups: Mapping[int, int]
    tied: int


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A training step.

    Attributes:
        tensors: all tensors; ``tensors[i].index == i``.
        operators: all operators in the order of execution.
        inputs: the tensors of the step's arguments, in the order of their leaves. An unused
            argument has a tensor too.
        constants: tensors that the function closed over, with their values.
        outputs: the leaves of the step's result, in order.
        factors: size of every factor.
        nodes: the nodes, each of which gets one strategy.
        node_classes: the nodes of each class; label l of one node is label l of every other.
        edges: the tensors between nodes.
        in_tree, out_tree: structures (``jax.tree``) of the arguments and of the result.
        changed: names of the arguments that the traced function changes in place, as steps on
            ``flax.nnx`` models do: their new values are the first results.
        loops: the loops of the step, which operators name by their numbers.
        padding: the dimensions that are longer than in the traced function; ``None`` if none are.
        context: the mesh and the types of arguments with which it was traced.
        untied: inputs that pins distinguish; ``None`` if identical layers are decided as one.
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
    changed: tuple[str, ...] = ()
    loops: tuple[Loop, ...] = ()
    padding: Padding | None = None
    context: TraceContext = OUTSIDE
    untied: Untied | None = None

    @property
    def flops(self) -> int:
        """Floating-point operations of one step."""
        return sum(operator.flops * self.num_repeats(operator.loops) for operator in self.operators)

    @property
    def argument_sizes(self) -> frozenset[int]:
        """Sizes of arguments' dimensions that are single factors, except for random keys."""
        tensors = (self.tensors[index] for index in self.inputs)
        return frozenset(
            tensor.sizes[positions[0]]
            for tensor in tensors
            if isinstance(tensor.dtype, np.dtype)
            for positions in tensor.array_dims or ()
            if len(positions) == 1
        )

    def num_repeats(self, loops: tuple[int, ...]) -> int:
        """Number of runs of a nested loop's body; a length that depends on data counts as one."""
        return math.prod(self.loops[loop].length or 1 for loop in loops)

    def loops_around(self, tensor: int) -> tuple[int, ...]:
        """The loops in whose body a tensor exists, outermost first."""
        producer = self.tensors[tensor].producer
        if producer is None:
            return ()
        # An exit is listed with the body, behind the body's last operator, but its result does not
        # exist in any iteration.
        operator = self.operators[producer]
        return operator.loops[:-1] if operator.primitive in LOOP_EXITS else operator.loops

    @property
    def loop_form(self) -> LoopForm:
        """How the loops of the step were traced (see ``trace``); "unroll" if there are none."""
        if any(loop.mirrors is not None for loop in self.loops):
            return "pair"
        return "keep" if self.loops else "unroll"

    @functools.cached_property
    def mirrored(self) -> Mapping[int, int]:
        """The loop of the backward pass for each loop of the forward pass that it mirrors."""
        return {
            loop.mirrors: number
            for number, loop in enumerate(self.loops)
            if loop.mirrors is not None
        }

    def mirror(self, loops: tuple[int, ...]) -> int | None:
        """The loop that mirrors ``loops`` if these are a single mirrored loop, else ``None``."""
        # Only outermost scans are paired: see ``mirrored`` in ``tensorstate.tracing.inline``.
        return self.mirrored.get(loops[0]) if len(loops) == 1 else None

    @property
    def replicated(self) -> dict[str, tuple[Operator, ...]]:
        """Operators without a rule, which every device runs on full arrays, by primitive."""
        operators: dict[str, tuple[Operator, ...]] = {}
        for operator in self.operators:
            if operator.eqn.rule.origin == "replicated":
                operators[operator.primitive] = (*operators.get(operator.primitive, ()), operator)
        return operators

    def __repr__(self) -> str:
        return (
            f"Graph({len(self.operators)} operators, {len(self.tensors)} tensors, "
            f"{len(self.nodes)} nodes in {len(self.node_classes)} classes)"
        )

    def __str__(self) -> str:
        """The graph as the dissertation prints one (Fig. 5.2b).

        Each class is printed as its first node, followed by the number of its nodes.
        """
        # Factors are named a to z, A to Z, then a1 and so on.
        letters = string.ascii_letters
        names = [letters[i % 52] + str(i // 52 or "") for i in range(len(self.factors))]
        lines = [
            f"{len(self.operators)} operators, {len(self.tensors)} tensors, "
            f"{len(self.nodes)} nodes in {len(self.node_classes)} classes",
            "Nodes:",
        ]
        for members in self.node_classes:
            node = self.nodes[members[0]]
            suffix = f"  x{len(members)}" if len(members) > 1 else ""
            if node.tensor is not None:
                tensor = self.tensors[node.tensor]
                shape = _format_factors(tensor, names)
                lines.append(f"  {tensor.name}: PLACEHOLDER {shape} {tensor.role}{suffix}")
            for member in node.members:
                line = _operator_line(self, self.operators[member.operator], names)
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


def _format_factors(tensor: Tensor, names: list[str]) -> str:
    return "[" + "".join(names[factor] for factor in tensor.dims) + "]"


def _operator_line(graph: Graph, operator: Operator, names: list[str]) -> str:
    # A label is named after its factor. If a factor occurs twice, as the sequence does in attention
    # scores (queries and keys), its second label gets a prime.
    labels: dict[int, str] = {}
    for use in (*operator.operands, *operator.results):
        for label, factor in zip(use.labels, graph.tensors[use.tensor].dims, strict=True):
            if label not in labels:
                name = names[factor]
                while name in labels.values():
                    name += "'"
                labels[label] = name

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
        # No tensor has the label of the terms of a zero (see ``rules.loops.fill``).
        body += " over{" + ",".join(labels.get(k, "?") for k in operator.reductions) + "}"
    results = ", ".join(f"[{spelled(use)}]" for use in operator.results)
    return f"{head}{body} -> {results} {operator.phase}"
