"""Steps in microbatches: which tensors are pieces, which are whole, which add up.

A loop over microbatches is a mesh axis whose devices are points in time. Along it a tensor is
sharded at a position (only one piece of it is there at once: it is *pipelined*, section 5.2.2 of
Zhao's dissertation), replicated (parameters), or partial (gradients and the loss, which add up
from turn to turn). The rules of ``Operator`` hold as along any other axis, but there are no
collectives: inside the loop nothing becomes whole. So nothing is searched: the batch is cut, and
the rest follows in the order of execution.

An operator runs in every turn of the *loop*, if it makes pieces or parts of sums, or what is needed
for them; or *after* the loop, as what reads the sums does. A step cannot be pipelined if something
in the loop needs what is known only after it, as the mean of a batch norm.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph, Operator
from tensorstate.ir.placements import PARTIAL, REPLICATED, SUM
from tensorstate.tracing.node_classes import group_nodes

Stage = Literal["loop", "after"]


@dataclasses.dataclass(frozen=True, eq=False)
class MicrobatchSplit:
    """A training step as a loop over microbatches.

    Attributes:
        traced: the step.
        factor: the batch, a factor of the step.
        batch_placements: what every tensor is over time: the position that is cut, ``REPLICATED``,
            or how the microbatches' parts are combined.
        stages: when every operator runs.
        labels: the label along which every operator is cut; ``None`` for those that are not.
    """

    traced: Graph
    factor: int
    batch_placements: tuple[int, ...]
    stages: tuple[Stage, ...]
    labels: tuple[int | None, ...]

    @property
    def batch(self) -> int:
        """Elements of the whole batch."""
        return self.traced.factors[self.factor]

    def microbatch(self, microbatches: int) -> Graph:
        """The step of one microbatch: the same tensors and operators, smaller along the batch.

        Raises:
            PlanError: the batch is no multiple of the number of microbatches.
        """
        if microbatches < 1 or self.batch % microbatches:
            raise PlanError(
                f"a batch of {self.batch} cannot be cut into {microbatches} equal microbatches"
            )
        if microbatches == 1:
            return self.traced

        def cut(sizes: tuple[int, ...], at: int | None) -> tuple[int, ...]:
            return tuple(n // microbatches if i == at else n for i, n in enumerate(sizes))

        graph = self.traced
        tensors = tuple(
            dataclasses.replace(tensor, sizes=cut(tensor.sizes, placement))
            for tensor, placement in zip(graph.tensors, self.batch_placements, strict=True)
        )
        operators = tuple(
            operator
            if label is None
            else dataclasses.replace(
                operator,
                sizes=cut(operator.sizes, label),
                flops=operator.flops // microbatches,
            )
            for operator, label in zip(graph.operators, self.labels, strict=True)
        )
        nodes, node_classes, edges = group_nodes(tensors, operators, graph.outputs, self.stages)
        return dataclasses.replace(
            graph,
            tensors=tensors,
            operators=operators,
            factors=cut(graph.factors, self.factor),
            nodes=nodes,
            node_classes=node_classes,
            edges=edges,
        )


def batch_factor(graph: Graph, name: str | None = None) -> int:
    """The factor of the batch: the first dimension of an input.

    Args:
        name: of the input; by default the factor is that with which most inputs begin that are no
            parameters or state.

    Raises:
        PlanError: there is no such input.
    """
    inputs = [graph.tensors[i] for i in graph.inputs]
    wanted = [t for t in inputs if (t.role == "input" if name is None else t.name == name)]
    firsts = [t.dims[t.array_dims[0][0]] for t in wanted if t.array_dims and t.array_dims[0]]
    if not firsts and name is None:
        raise PlanError(
            "no argument of the step is a batch that microbatches could be cut from: all are "
            "parameters, optimizer state or scalars. Name the input with batch="
        )
    if not firsts:
        some = ", ".join(t.name for t in inputs if t.sizes)
        raise PlanError(f"no batch begins the input {name!r}; inputs with dimensions are {some}")
    return Counter(firsts).most_common(1)[0][0]


def split_microbatches(graph: Graph, factor: int | None = None) -> MicrobatchSplit:
    """The step as a loop over microbatches.

    Args:
        graph: the training step.
        factor: the batch; by default ``batch_factor`` the graph.

    Raises:
        PlanError: there is no batch, or some operator needs all of it: it is named, and why.
    """
    factor = batch_factor(graph) if factor is None else factor
    tracker = _BatchTracker(graph, factor)
    for operator in graph.operators:
        tracker.propagate(operator)
    stages = _stages(graph, tracker)
    return MicrobatchSplit(
        graph, factor, tuple(tracker.batch_placements), stages, tuple(tracker.labels)
    )


class _BatchTracker:
    """Follows the pieces of a batch through a step, operator by operator."""

    def __init__(self, graph: Graph, factor: int):
        self.graph, self.factor = graph, factor
        self.batch_placements = [REPLICATED] * len(graph.tensors)
        # Of what is whole all the time it is not known yet when it runs.
        self.stages: list[Stage | None] = [None] * len(graph.operators)
        self.labels: list[int | None] = [None] * len(graph.operators)
        # For what is known only after the loop the operator that makes it out of all microbatches.
        self.origin: dict[int, Operator] = {}
        for tensor in graph.tensors:
            if tensor.producer is None and tensor.dims.count(factor) == 1:
                self.batch_placements[tensor.index] = tensor.dims.index(factor)

    def propagate(self, operator: Operator) -> None:
        """Note when an operator runs, and what it makes."""
        reads = [self.batch_placements[use.tensor] for use in operator.operands]
        cut = [e >= 0 for e in reads]
        after_forward = [use.tensor for use in operator.operands if self._is_after_loop(use.tensor)]
        partial = frozenset(i for i, placement in enumerate(reads) if placement < REPLICATED)
        if after_forward or (partial and not self._passes_sums(operator, partial, reads)):
            unsplit = [*after_forward, *(operator.operands[i].tensor for i in partial)]
            if any(cut):
                self._refuse(operator, self._depends_on_all(unsplit[0]))
            self._record(operator, "after", [REPLICATED] * len(operator.results), unsplit[0])
            return
        if partial:
            first = operator.operands[min(partial)].tensor
            self._record(operator, "loop", [SUM] * len(operator.results), first)
            return
        label = self._label(operator) if any(cut) else self._generated_along_batch(operator)
        if label is not None:
            self.labels[operator.index] = label
            batch_placements = [
                self._result(operator, label, use.labels) for use in operator.results
            ]
            self._record(operator, "loop", batch_placements, None)

    def _passes_sums(self, operator: Operator, partial: frozenset[int], reads: list[int]) -> bool:
        """Whether sums of microbatches' parts come out of what is done to the parts.

        The optimizer reads sums that are whole, though it may scale them first.
        """
        sums = all(reads[i] == SUM for i in partial)
        return sums and operator.phase != "optimizer" and partial in operator.linear

    def _is_after_loop(self, tensor: int) -> bool:
        producer = self.graph.tensors[tensor].producer
        return producer is not None and self.stages[producer] == "after"

    def _generated_along_batch(self, operator: Operator) -> int | None:
        """The label of the batch in what is made out of nothing, such as places or random bits."""
        found = {
            label
            for use in operator.results
            for label, dim in zip(use.labels, self._dims(use.tensor), strict=True)
            if dim == self.factor
        }
        read = {label for use in operator.operands for label in use.labels}
        return (
            found.pop()
            if len(found) == 1 and not found & (read | operator.need_replication)
            else None
        )

    def _dims(self, tensor: int) -> tuple[int, ...]:
        return self.graph.tensors[tensor].dims

    def _label(self, operator: Operator) -> int:
        """The one label along which an operator that reads pieces can be cut.

        Raises:
            PlanError: there is none.
        """
        uses = [(use, self.batch_placements[use.tensor]) for use in operator.operands]
        found = {use.labels[placement] for use, placement in uses if placement >= 0}
        label = min(found)
        if len(found) > 1:
            self._refuse(operator, "it reads different examples of the batch together")
        if label in operator.need_replication:
            self._refuse(operator, "it reads or writes all examples at once")
        for use, placement in uses:
            if label in use.labels and (placement < 0 or use.labels.count(label) > 1):
                name = self.graph.tensors[use.tensor].name
                self._refuse(operator, f"it reads {name}, which is not cut along the batch")
        return label

    def _result(self, operator: Operator, label: int, labels: tuple[int, ...]) -> int:
        if label in labels:
            return labels.index(label)
        if label not in operator.reductions:
            self._refuse(operator, "what it makes does not depend on examples one by one")
        return PARTIAL[operator.reductions[label]]

    def _record(
        self, operator: Operator, stage: Stage, batch_placements: Iterable[int], origin: int | None
    ) -> None:
        self.stages[operator.index] = stage
        made_of = operator if origin is None else self.origin[origin]
        for use, placement in zip(operator.results, batch_placements, strict=True):
            self.batch_placements[use.tensor] = placement
            if stage == "after" or placement < REPLICATED:
                self.origin[use.tensor] = made_of

    def _depends_on_all(self, tensor: int) -> str:
        origin = self.origin[tensor]
        return (
            f"it reads {self.graph.tensors[tensor].name}, which depends on what "
            f"{origin.primitive} ({origin.source}) makes of all examples"
        )

    def _refuse(self, operator: Operator, why: str) -> None:
        raise PlanError(
            "the step cannot run in microbatches, since the whole batch is needed at once by "
            f"{operator.primitive} ({operator.source}): {why}"
        )


def _stages(graph: Graph, tracker: _BatchTracker) -> tuple[Stage, ...]:
    """What is whole all the time runs in the loop if the loop needs it, otherwise after it."""
    in_loop = [stage == "loop" for stage in tracker.stages]
    for operator in reversed(graph.operators):
        if in_loop[operator.index]:
            for use in operator.operands:
                producer = graph.tensors[use.tensor].producer
                if producer is not None:
                    in_loop[producer] = True
    return tuple("loop" if one else "after" for one in in_loop)
