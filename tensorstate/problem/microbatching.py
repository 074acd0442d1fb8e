"""The split of a step into microbatches, with gradient accumulation.

A loop over microbatches is like a mesh axis whose devices are points in time. Along it a tensor is
sharded at a position (only one microbatch of it is in memory at a time; section 5.2.2 of Zhao's
dissertation calls it pipelined), replicated (parameters), or partial (gradients and the loss, which
are accumulated over microbatches). The rules of ``Operator`` hold as along a mesh axis, but time
has no collectives: inside the loop no tensor can be gathered or reduced. So nothing is searched:
the batch is sharded, and the other placements follow in the order of execution.

An operator runs in the *loop* if it produces microbatches or partial sums, or an operand of such an
operator; it runs *after* the loop if it reads the sums. A step cannot be split if an operator in
the loop needs a tensor that is known only after the loop, such as the mean of a batch norm.

A whole loop of the step is in one stage, and remains a loop. A carry has the same placement at both
ends of an iteration. If sums over the batch are added to a carry that starts from zero, the carry
is such a sum.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Literal

import numpy as np

from tensorstate.errors import PlanError
from tensorstate.ir.graph import LOOP_EXITS, Graph, Operator, Tensor
from tensorstate.ir.placements import PARTIAL, REPLICATED, SUM
from tensorstate.tracing.node_classes import group_nodes

Stage = Literal["loop", "after"]


@dataclasses.dataclass(frozen=True, eq=False)
class MicrobatchSplit:
    """A training step as a loop over microbatches.

    Attributes:
        traced: the step.
        factor: the factor of the batch.
        batch_placements: the placement of every tensor along the loop: the position of the batch,
            ``REPLICATED``, or the reduction that accumulates it.
        stages: the stage of every operator: in the loop or after it.
        labels: the label of the batch of every operator; ``None`` for those that are not split.
    """

    traced: Graph
    factor: int
    batch_placements: tuple[int, ...]
    stages: tuple[Stage, ...]
    labels: tuple[int | None, ...]

    @property
    def batch(self) -> int:
        """Number of examples in the full batch."""
        return self.traced.factors[self.factor]

    def microbatch(self, microbatches: int) -> Graph:
        """The step of one microbatch: the same tensors and operators, smaller along the batch.

        Raises:
            PlanError: the batch is not a multiple of the number of microbatches.
        """
        graph = self.traced
        if self.batch % microbatches:
            names = batch_names(graph, self.factor)
            some = ", ".join(names[:3]) + (", ..." if names[3:] else "")
            raise PlanError(
                f"a batch of {self.batch} ({some}) cannot be split into "
                f"{microbatches} equal microbatches: the number must divide it, as "
                f"{nearest_divisors(self.batch, microbatches)} do"
            )
        tensors, operators = of_one_microbatch(
            graph, microbatches, self.batch_placements, self.labels
        )
        nodes, node_classes, edges = group_nodes(
            tensors, operators, graph.outputs, self.stages, graph.loops, untied=graph.untied
        )
        return dataclasses.replace(
            graph,
            tensors=tensors,
            operators=operators,
            factors=_divided(graph.factors, self.factor, microbatches),
            nodes=nodes,
            node_classes=node_classes,
            edges=edges,
        )


def of_one_microbatch(
    graph: Graph,
    microbatches: int,
    batch_placements: Sequence[int],
    labels: Sequence[int | None],
) -> tuple[tuple[Tensor, ...], tuple[Operator, ...]]:
    """The tensors and operators of a step, smaller along the batch.

    Args:
        microbatches: their number, by which the batch is divided.
        batch_placements: for every tensor the position of the batch, or a number below 0.
        labels: for every operator the label of the batch, or ``None``.
    """
    tensors = tuple(
        dataclasses.replace(tensor, sizes=_divided(tensor.sizes, placement, microbatches))
        if placement >= 0
        else tensor
        for tensor, placement in zip(graph.tensors, batch_placements, strict=True)
    )
    operators = tuple(
        operator
        if label is None
        else dataclasses.replace(
            operator,
            sizes=_divided(operator.sizes, label, microbatches),
            flops=operator.flops // microbatches,
        )
        for operator, label in zip(graph.operators, labels, strict=True)
    )
    return tensors, operators


def _divided(sizes: tuple[int, ...], at: int, count: int) -> tuple[int, ...]:
    return tuple(size // count if i == at else size for i, size in enumerate(sizes))


def nearest_divisors(batch: int, number: int) -> str:
    """The possible numbers of equal microbatches that are nearest to a number, as text."""
    # Up to four times as many, because the three nearest useful numbers are among these.
    divisors = [n for n in range(1, min(batch, 4 * number) + 1) if batch % n == 0]
    nearest = sorted(sorted(divisors, key=lambda n: abs(n - number))[:3])
    return ", ".join(map(str, nearest))


def leaves_scan(operator: Operator) -> bool:
    """Whether an operator passes a carry or a stack out of an outermost loop."""
    return len(operator.loops) == 1 and operator.primitive in LOOP_EXITS


def batch_names(graph: Graph, factor: int) -> list[str]:
    """The names of the arguments with the batch."""
    tensors = [graph.tensors[i] for i in graph.inputs]
    return [tensor.name for tensor in tensors if factor in tensor.dims]


def batch_factor(graph: Graph, name: str | None = None) -> int:
    """The factor of the batch: the first dimension of an input.

    Args:
        name: name of the input; by default all inputs other than parameters and optimizer state are
            considered, and the most frequent first factor is the batch.

    Raises:
        PlanError: no such input has a dimension.
    """
    inputs = [graph.tensors[i] for i in graph.inputs]
    candidates = [t for t in inputs if (t.role == "input" if name is None else t.name == name)]
    firsts = [t.dims[t.array_dims[0][0]] for t in candidates if t.array_dims and t.array_dims[0]]
    if not firsts and name is None:
        raise PlanError(
            "no argument of the step is a batch that could be split into microbatches: all are "
            "parameters, optimizer state or scalars. Name the input with batch="
        )
    if not firsts:
        names = ", ".join(t.name for t in inputs if t.sizes)
        raise PlanError(
            f"batch={name!r}: expected the name of an input whose first dimension is the batch, "
            f"one of {names}"
        )
    return Counter(firsts).most_common(1)[0][0]


def split_microbatches(graph: Graph, factor: int | None = None) -> MicrobatchSplit:
    """The step as a loop over microbatches.

    Args:
        graph: the training step.
        factor: the factor of the batch; that of ``batch_factor`` if omitted.

    Raises:
        PlanError: the step has no batch, or an operator needs the full batch at once.
    """
    factor = batch_factor(graph) if factor is None else factor

    def tracked(sums: Container[int]) -> BatchTracker:
        tracker = BatchTracker(graph, factor)
        for operator in graph.operators:
            if operator.index in sums:
                tracker.record(operator, "loop", [SUM], None)
            else:
                tracker.propagate(operator)
        return tracker

    tracker, sums = with_sums(tracked, [pair for loop in graph.loops for pair in loop.carries])
    _check_carries(graph, tracker, sums)
    stages = _stages(graph, tracker)
    return MicrobatchSplit(
        graph, factor, tuple(tracker.batch_placements), stages, tuple(tracker.labels)
    )


def with_sums(
    tracked: Callable[[set[int]], BatchTracker], carries: Collection[tuple[int, int]]
) -> tuple[BatchTracker, set[int]]:
    """The batch in a step in which sums over the batch make some carries sums.

    Args:
        tracked: propagates the batch, given the operators at which carries that are sums enter.
        carries: the operators at which each carry enters an iteration, and leaves it.

    Returns:
        The last propagation, and the operators at which the sums enter.
    """
    # A carry is assumed to be the same for all microbatches until it leaves an iteration as a sum.
    # It may then make others sums, so sums are added until no more are found.
    sums = set[int]()
    while True:
        tracker = tracked(sums)
        found = {
            enter
            for enter, leave in carries
            if enter not in sums and tracker.becomes_sum(enter, leave)
        }
        if not found:
            return tracker, sums
        sums |= found


class BatchTracker:
    """Propagates the batch through a step, operator by operator."""

    def __init__(self, graph: Graph, factor: int):
        self.graph, self.factor = graph, factor
        self.batch_placements = [REPLICATED] * len(graph.tensors)
        # ``None`` for operators on replicated tensors only, whose stage is set later.
        self.stages: list[Stage | None] = [None] * len(graph.operators)
        self.labels: list[int | None] = [None] * len(graph.operators)
        # For a tensor that is known only after the loop, the operator that reduced the batch: if an
        # error occurs far behind it, that is the line to change.
        self.origin: dict[int, Operator] = {}
        for tensor in graph.tensors:
            if tensor.producer is None and tensor.dims.count(factor) == 1:
                self.batch_placements[tensor.index] = tensor.dims.index(factor)

    def propagate(self, operator: Operator) -> None:
        """Record the stage of an operator, and the placements of its results along the batch."""
        reads = [self.batch_placements[use.tensor] for use in operator.operands]
        reads_batch = any(placement >= 0 for placement in reads)
        known_later = [use.tensor for use in operator.operands if self.is_after_loop(use.tensor)]
        partial = frozenset(i for i, placement in enumerate(reads) if placement < REPLICATED)
        # For sums over microbatches, f(a) + f(b) is f(a + b) only if f is linear; any other
        # operator waits for the whole sum, after the loop. The optimizer always waits, even if its
        # first operator is linear, because it runs once per step.
        is_linear = all(reads[i] == SUM for i in partial) and partial in operator.linear
        if known_later or (partial and (operator.phase == "optimizer" or not is_linear)):
            unsplit = [*known_later, *(operator.operands[i].tensor for i in partial)]
            if reads_batch:
                name, origin = self.graph.tensors[unsplit[0]].name, self.origin[unsplit[0]]
                by = f"{origin.primitive} ({origin.source})"
                self.refuse(
                    operator, f"it reads {name}, which depends on all examples through {by}"
                )
            self.record(operator, "after", [REPLICATED] * len(operator.results), unsplit[0])
            return
        if partial:
            first = operator.operands[min(partial)].tensor
            self.record(operator, "loop", [SUM] * len(operator.results), first)
            return
        label = self._label(operator) if reads_batch else self._generated_along_batch(operator)
        if label is not None:
            self.labels[operator.index] = label
            batch_placements = [
                self._result(operator, label, use.labels) for use in operator.results
            ]
            self.record(operator, "loop", batch_placements, None)

    def ends(self, enter: int, leave: int) -> tuple[int, int]:
        """The placements of a carry as it enters and leaves an iteration."""
        entered = self.graph.operators[enter].results[0].tensor
        left = self.graph.operators[leave].operands[0].tensor
        return self.batch_placements[entered], self.batch_placements[left]

    def becomes_sum(self, enter: int, leave: int) -> bool:
        """Whether a carry enters as the same for all microbatches, and leaves as a sum."""
        before, after = self.ends(enter, leave)
        left = self.graph.operators[leave].operands[0].tensor
        return before == REPLICATED and (after < REPLICATED or self.is_after_loop(left))

    def is_after_loop(self, tensor: int) -> bool:
        """Whether a tensor is known only once all microbatches have run."""
        producer = self.graph.tensors[tensor].producer
        return producer is not None and self.stages[producer] == "after"

    def _generated_along_batch(self, operator: Operator) -> int | None:
        """The batch label of results that are generated without a batch, such as random bits."""
        labels = {
            label
            for use in operator.results
            for label, dim in zip(use.labels, self.graph.tensors[use.tensor].dims, strict=True)
            if dim == self.factor
        }
        read = {label for use in operator.operands for label in use.labels}
        return (
            labels.pop()
            if len(labels) == 1 and not labels & (read | operator.need_replication)
            else None
        )

    def _label(self, operator: Operator) -> int:
        """The batch label of an operator that reads tensors split along the batch.

        Raises:
            PlanError: it has no such label.
        """
        uses = [(use, self.batch_placements[use.tensor]) for use in operator.operands]
        # There is one label, once in every operand; then each part of the batch depends only on
        # itself.
        labels = {use.labels[placement] for use, placement in uses if placement >= 0}
        label = min(labels)
        if len(labels) > 1:
            self.refuse(operator, "it reads different examples of the batch together")
        if label in operator.need_replication:
            self.refuse(operator, "it reads or writes all examples at once")
        for use, placement in uses:
            if label in use.labels and (placement < 0 or use.labels.count(label) > 1):
                name = self.graph.tensors[use.tensor].name
                self.refuse(operator, f"it reads {name}, which is not split along the batch")
        return label

    def _result(self, operator: Operator, label: int, labels: tuple[int, ...]) -> int:
        """The placement along the batch of a result whose dimensions have these labels.

        Raises:
            PlanError: the result is neither one per example nor a sum over examples.
        """
        if label in labels:
            return labels.index(label)
        if label not in operator.reductions:
            self.refuse(operator, "its result is neither one per example nor a sum over examples")
        return PARTIAL[operator.reductions[label]]

    def record(
        self, operator: Operator, stage: Stage, batch_placements: Iterable[int], origin: int | None
    ) -> None:
        """Set the stage of an operator and the placements of its results.

        Args:
            origin: the tensor that made them sums; ``None`` for the operator itself.
        """
        self.stages[operator.index] = stage
        reduced_by = operator if origin is None else self.origin[origin]
        for use, placement in zip(operator.results, batch_placements, strict=True):
            self.batch_placements[use.tensor] = placement
            if stage == "after" or placement < REPLICATED:
                self.origin[use.tensor] = reduced_by

    def refuse(self, operator: Operator, why: str) -> None:
        """Raise the ``PlanError`` for an operator that needs the full batch."""
        raise PlanError(
            "the step cannot be split into microbatches, since the full batch is needed at once by "
            f"{operator.primitive} ({operator.source}): {why}"
        )


def _check_carries(graph: Graph, tracker: BatchTracker, sums: Container[int]) -> None:
    """Refuse carries whose placements along the batch differ at the two ends of an iteration.

    Args:
        sums: the operators at which carries that are sums enter.

    Raises:
        PlanError: a carry differs; the error names the operator.
    """
    # An iteration passes the carry to the next one, of the same microbatch: if it is split when it
    # leaves, it must be split when it enters.
    for loop in graph.loops:
        for enter, leave in loop.carries:
            before, after = tracker.ends(enter, leave)
            if before != after:
                why = "its carry is split along the batch at one end of an iteration only"
                tracker.refuse(graph.operators[leave], why)
            # Every microbatch starts its loop from the same value, which the sum over microbatches
            # would count once per microbatch.
            first = graph.operators[enter].operands[0].tensor
            if enter in sums and tracker.batch_placements[first] != SUM:
                producer = graph.tensors[first].producer
                made = None if producer is None else graph.operators[producer]
                if made is None or made.primitive != "fill" or np.any(made.eqn.inputs[0].value):
                    why = "its carry adds the examples to a value that is not zero"
                    tracker.refuse(graph.operators[leave], why)


def _stages(graph: Graph, tracker: BatchTracker) -> tuple[Stage, ...]:
    """The stage of every operator: in the loop if it or a consumer depends on the loop.

    A loop of the step is in one stage, together with the loop that mirrors it.

    Raises:
        PlanError: an operator of a loop's body needs the full batch, and others a microbatch.
    """
    in_loop = [stage == "loop" for stage in tracker.stages]
    bodies: dict[int, list[int]] = {}
    for operator in graph.operators:
        for loop in operator.loops[:1]:
            mirrors = graph.loops[loop].mirrors
            bodies.setdefault(loop if mirrors is None else mirrors, []).append(operator.index)
    # Operators that depend on the batch are in the loop, and those that depend on sums are after
    # it. All others could be in either; they are in the loop only if something there reads them,
    # since they would run once per microbatch. Backwards from the results: producers of everything
    # that the loop reads are in it, and bodies belong to it as a whole.
    pending = [index for index, is_in_loop in enumerate(in_loop) if is_in_loop]
    while pending:
        operator = graph.operators[pending.pop()]
        needed = [graph.tensors[use.tensor].producer for use in operator.operands]
        for loop in operator.loops[:1]:
            mirrors = graph.loops[loop].mirrors
            needed += bodies.pop(loop if mirrors is None else mirrors, ())
        for index in needed:
            if index is not None and not in_loop[index]:
                in_loop[index] = True
                pending.append(index)
    for operator in graph.operators:
        if in_loop[operator.index] and tracker.stages[operator.index] == "after":
            tracker.refuse(operator, "it combines a sum over all examples with other values")
    return tuple("loop" if is_in_loop else "after" for is_in_loop in in_loop)
