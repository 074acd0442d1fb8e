"""Live ranges of the tensors of a training step, independent of their placements.

Operators run in the order of the graph, except that an optimizer operator runs as soon as its
operands have been computed. With microbatches the operators of the loop come first, then those
after the loop. Memory is evaluated at *program points*: the last operators of the first and of the
last node of every class. Memory is monotonic along identical layers, so its peak is at one of these
points.

The body of a loop of the step runs once in this order. A tensor from outside that it reads is live
until its end, and a stack of rows is live from its beginning. If the loop that mirrors a body reads
one of its tensors, every iteration saves the tensor, from the beginning of the one loop to the end
of the other.

A compiler computes cheap elementwise results inside their consumers instead of storing them; such a
tensor is *fused*. It takes no memory itself, but its operands must be live when it is read.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tensorstate.ir.graph import Graph, Operator
from tensorstate.keeping import table
from tensorstate.keeping.base import Keeping, Reads, Stack
from tensorstate.problem.execution_order import bodies, execution_order

# Primitives that XLA does not duplicate into their consumers (``InstructionFusion::IsExpensive``).
EXPENSIVE = frozenset(
    re.findall(
        r"\w+",
        "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2 "
        "expm1 lgamma log log1p logistic pow rem rsqrt sin sinh sqrt tan tanh",
    )
)


@dataclasses.dataclass(frozen=True, eq=False)
class LiveRanges:
    """Number of tensors of a group that are live at every program point, for each reason.

    Attributes:
        producing: its producer runs.
        awaiting_forward_use: produced, and awaiting a consumer in the forward pass.
        awaiting_backward_use: produced after the forward pass, and awaiting a consumer.
        fused_input: read by a consumer that is fused into a later operator and does not rerun.
        loop_resident: live through the microbatch loop, and until its last consumer after the loop.
        resharded_in_forward, resharded_after_forward, resharded_after_loop: resharded copies are
            live, in the forward pass, after it, and after the loop.
        receive_buffer_in_forward, receive_buffer_after_forward, receive_buffer_after_loop: a
            reshard into it is running.
        resharded_for_rerun, receive_buffer_for_rerun: as ``resharded_after_forward`` and
            ``receive_buffer_after_forward``, but for operators that rerun and read it first.
        last_forward_use, last_backward_use: number of the consumer class that reads it last, in the
            forward pass and after it.
        fused_consumer: number of the consumer class whose fused operators read it last; ``None`` if
            these belong to its producer node.
        copied: by number of a consumer class: a convolution of this class runs that reads the
            tensor in an unusual order of dimensions.
        kept: by keeping and the name of one of its spans, for a tensor with this keeping.
    """

    producing: np.ndarray
    awaiting_forward_use: np.ndarray
    awaiting_backward_use: np.ndarray
    fused_input: np.ndarray
    loop_resident: np.ndarray
    resharded_in_forward: np.ndarray
    resharded_after_forward: np.ndarray
    resharded_after_loop: np.ndarray
    receive_buffer_in_forward: np.ndarray
    receive_buffer_after_forward: np.ndarray
    receive_buffer_after_loop: np.ndarray
    resharded_for_rerun: np.ndarray
    receive_buffer_for_rerun: np.ndarray
    last_forward_use: int | None
    last_backward_use: int | None
    fused_consumer: int | None
    copied: Mapping[int, np.ndarray]
    kept: Mapping[Keeping, Mapping[str, np.ndarray]]


COUNTS = tuple(f.name for f in dataclasses.fields(LiveRanges) if f.type == "np.ndarray")

Reason = str | tuple[Keeping, str]
"""One of ``COUNTS``, or a keeping and the name of one of its spans."""

LiveRange = tuple[Reason, int, int, int]
"""A reason, and the number of tensors that are live after a point, up to another one."""


class Liveness:
    """Liveness analysis: the order of operators, and the live ranges of tensors.

    Args:
        graph: the graph of the step; or of one microbatch and of the operators after the loop.
        after_loop: the operators that run after the microbatch loop.
        staged: loops in pipeline stages, whose carry is read up to the last microbatch.
        together: loops whose bodies run in turn, microbatch by microbatch, as in 1F1B.
    """

    def __init__(
        self,
        graph: Graph,
        after_loop: frozenset[int] = frozenset(),
        staged: frozenset[int] = frozenset(),
        together: frozenset[int] = frozenset(),
    ):
        self.graph, self.after_loop, self.staged = graph, after_loop, staged
        self.at = execution_order(graph, after_loop, together)
        self._consumers = [
            [graph.operators[index] for index in dict.fromkeys(c.operator for c in t.consumers)]
            for t in graph.tensors
        ]
        self._bodies = bodies(graph, self.at, together)
        self.end = len(graph.operators)
        # The first point after the loop; without a loop, past the end of the step.
        self.loop_end = self.end - len(after_loop) if after_loop else self.end + 1
        after_forward = [self.at[o.index] for o in graph.operators if o.phase != "forward"]
        self.forward_end = (
            min(*after_forward, self.loop_end, self.end)
            if after_forward
            else min(self.loop_end, self.end)
        )
        outputs = [o for o in graph.outputs if o.view.tensor is not None]
        # The new value of an argument reuses its memory.
        self.returned = {o.view.tensor for o in outputs if o.updates is None}
        self.replacing = {o.view.tensor for o in outputs} - self.returned
        self.runs, self.rerun_at = self._runs()
        self.rerun_for_readers = {o.index: self._earlier_rerun(o) for o in graph.operators}
        # A row of counts for each reason, for all keepings, since the search decides later.
        spans = (
            (keeping, span.name)
            for keeping in table.KEEPINGS
            for span in (*keeping.spans, *keeping.on_host)
        )
        reasons: list[Reason] = [*COUNTS, *spans]
        self._row = {reason: row for row, reason in enumerate(reasons)}
        points = {self.end}
        for of_class in graph.node_classes:
            for node in (of_class[0], of_class[-1]):
                members = (m.operator for m in graph.nodes[node].members)
                points.add(max((p for o in members for p in self.runs[o]), default=self.end))
        self.program_points = np.array(sorted(points))

    def producer(self, tensor: int) -> Operator | None:
        """The operator that produces a tensor; ``None`` for inputs and constants."""
        index = self.graph.tensors[tensor].producer
        return None if index is None else self.graph.operators[index]

    def consumers(self, tensor: int) -> list[Operator]:
        """The operators that read a tensor, each once, in the order of execution."""
        return self._consumers[tensor]

    # ------------------------------------------------------------------ operators

    def is_fused(self, tensor: int) -> bool:
        """Whether a compiler computes a tensor inside its consumers instead of storing it."""
        producer, consumers = self.producer(tensor), self.consumers(tensor)
        if producer is None or producer.kind != "elementwise" or not consumers:
            return False
        if tensor in self.returned or tensor in self.replacing:
            return False
        # Tensors that cross the boundary of a loop, including that over microbatches, are stored
        # there.
        in_loop = producer.index not in self.after_loop
        if in_loop and any(consumer.index in self.after_loop for consumer in consumers):
            return False
        if any(consumer.loops != producer.loops for consumer in consumers):
            return False
        # A single consumer computes it once, as if it were stored. Several consumers each compute
        # it again, which XLA does only if that is cheaper than writing and reading it.
        if len(consumers) == 1:
            return consumers[0].kind in ("elementwise", "reduction")
        if producer.primitive == "div":
            # XLA multiplies by the reciprocal of a broadcast divisor.
            sizes = [self.graph.tensors[use.tensor].size for use in producer.operands]
            is_cheap = len(sizes) < 2 or sizes[1] < sizes[0]
        else:
            is_cheap = producer.primitive not in EXPENSIVE
        return is_cheap and all(consumer.kind == "elementwise" for consumer in consumers)

    def _runs(self) -> tuple[dict[int, set[int]], dict[int, int]]:
        """The points at which every operator runs, and the point at which it reruns.

        A fused operator runs where its consumers run. An operator reruns at the first read of its
        results after the forward pass; without such a read, where the first consumer reruns.
        """
        # Readers first, because the points of operands depend on theirs.
        runs: dict[int, set[int]] = {}
        rerun_at: dict[int, int] = {}
        again = [keeping for keeping in table.KEEPINGS if keeping.reruns]
        for operator in sorted(self.graph.operators, key=lambda o: -self.at[o.index]):
            runs[operator.index] = points = set()
            first = self.end
            for tensor in {use.tensor for use in operator.results}:
                consumers = [consumer.index for consumer in self.consumers(tensor)]
                if self.is_fused(tensor):
                    points.update(*(runs[consumer] for consumer in consumers))
                else:
                    points.add(self.at[operator.index])
                after_forward = [
                    self._entered(operator, consumer, p)
                    for consumer in consumers
                    for p in runs[consumer]
                    if self.forward_end <= p < self.loop_end
                ]
                by_reruns = (self._entered(operator, c, rerun_at[c]) for c in consumers)
                first = min([first, *(after_forward or by_reruns)])
            may_run = any(keeping.may_keep(self.graph, operator.index) for keeping in again)
            rerun_at[operator.index] = first if may_run else self.end
        return runs, rerun_at

    def _earlier_rerun(self, operator: Operator) -> int:
        """The point at which an operator reruns if an operator that reads its results does so.

        That may be before any read of its own results: the products of a layer rerun where the next
        layer reads the activation that is computed from them. Longer chains are not followed,
        because it is decided later which of their operators rerun, and most plans store a result of
        one of them.
        """
        readers = {c.index for use in operator.results for c in self.consumers(use.tensor)}
        by_readers = (
            self._entered(operator, reader, self.rerun_at[reader])
            for reader in readers
            if self.graph.operators[reader].phase == "forward"
        )
        return min(self.rerun_at[operator.index], *by_readers, self.end)

    def _entered(self, operator: Operator, consumer: int, point: int) -> int:
        """The point from which a consumer reads results that run outside of its loop."""
        loops = self.graph.operators[consumer].loops
        if len(loops) <= len(operator.loops) or point >= self.end:
            return point
        # The first iteration reads it, at any point of the body. So it is live from the beginning
        # of the body, or of its mirror if the consumer reruns.
        body = self._bodies[loops[len(operator.loops)]]
        if body.first <= point <= body.last:
            return body.first
        mirror = self.graph.mirror(loops)
        return point if mirror is None else self._bodies[mirror].first

    @functools.cached_property
    def lasting(self) -> list[int]:
        """Stored tensors that are read after the last operator of their producer node.

        All consumers of such a tensor may belong to that node: if they are fused, they run where
        other nodes read their results. The derivative of tanh, for example, is a cheap function of
        its value.
        """
        lasting = []
        for node in self.graph.nodes:
            last = max((self.at[m.operator] for m in node.members), default=self.end)
            produced = [
                u.tensor for m in node.members for u in self.graph.operators[m.operator].results
            ]
            lasting += [
                t
                for t in produced
                if not self.is_fused(t) and max(self.reads(t), default=-1) > last
            ]
        return lasting

    def reads(self, tensor: int) -> list[int]:
        """The points at which a tensor is read, if it is stored."""
        points = {p for consumer in self.consumers(tensor) for p in self.runs[consumer.index]}
        points |= set(self._until(tensor))  # the next iteration reads it again
        return sorted(points | ({self.end} if tensor in self.returned else set()))

    def _until(self, tensor: int) -> Iterator[int]:
        """The last points of the bodies that read a tensor from outside, or carry it.

        The initial carry is overwritten by the first iteration.
        """
        around = self.graph.loops_around(tensor)
        for consumer in self.consumers(tensor):
            if len(consumer.loops) <= len(around):
                continue
            if consumer.primitive != "carry_in" or consumer.loops[-1] in self.staged:
                yield self._bodies[consumer.loops[len(around)]].last
        producer = self.producer(tensor)
        if producer is not None and producer.primitive == "carry_in":
            yield self._bodies[producer.loops[-1]].carried

    # ------------------------------------------------------------------ tensor groups

    def live_ranges(
        self,
        tensors: Sequence[int],
        in_forward: bool,
        needed_after_forward: bool,
        consumers: Sequence[Iterable[int]],
    ) -> LiveRanges:
        """The live ranges of the tensors of a group.

        Args:
            tensors: the group.
            in_forward: whether they exist in the forward pass.
            needed_after_forward: whether they are read in the backward pass.
            consumers: the nodes of each consumer class that read them.
        """
        of_each = (self._live_ranges(t, in_forward, needed_after_forward) for t in tensors)
        ranges = list(itertools.chain.from_iterable(of_each))
        counts = dict(zip(self._row, self._counted(ranges), strict=True))
        kept: dict[Keeping, dict[str, np.ndarray]] = {keeping: {} for keeping in table.KEEPINGS}
        for reason, at_points in counts.items():
            if not isinstance(reason, str):
                kept[reason[0]][reason[1]] = at_points
        # The class that reads last decides in whose placements a tensor waits; copies for the
        # others are gone by then.
        readers = {consumer.index for tensor in tensors for consumer in self.consumers(tensor)}
        by_class = [
            readers.intersection(m.operator for e in nodes for m in self.graph.nodes[e].members)
            for nodes in consumers
        ]
        points = [[p for o in of_class for p in self.runs[o]] for of_class in by_class]
        before = [[p for p in of_class if p < self.forward_end] for of_class in points]
        after = [[p for p in of_class if p >= self.forward_end] for of_class in points]
        return LiveRanges(
            **{name: counts[name] for name in COUNTS},
            kept=kept,
            last_forward_use=_last_consumer(before),
            last_backward_use=_last_consumer(after),
            fused_consumer=self._fused_consumer(readers, by_class),
            copied=self._copied(frozenset(tensors), consumers),
        )

    def _counted(self, ranges: Sequence[LiveRange]) -> np.ndarray:
        """The number of tensors that are live at every program point, for each reason.

        A count rises at the first point of a range and falls after its last one.
        """
        # Differences between neighbouring points, which are added up, so a range is two numbers.
        steps = np.zeros((len(self._row), len(self.program_points) + 1), int)
        if ranges:
            reasons, starts, ends, tensors = zip(*ranges, strict=True)
            rows = np.array([self._row[reason] for reason in reasons])
            first = np.searchsorted(self.program_points, starts, side="right")
            behind = np.searchsorted(self.program_points, ends, side="right")
            np.add.at(steps, (rows, first), tensors)
            np.subtract.at(steps, (rows, np.maximum(first, behind)), tensors)
        return steps.cumsum(axis=1)[:, :-1]

    def _copied(
        self, tensors: frozenset[int], consumers: Sequence[Iterable[int]]
    ) -> dict[int, np.ndarray]:
        """The operands that convolutions read in another order, by number of consumer class."""
        copied: dict[int, np.ndarray] = {}
        for number, nodes in enumerate(consumers):
            members = (m.operator for e in nodes for m in self.graph.nodes[e].members)
            for operator in map(self.graph.operators.__getitem__, members):
                for k in operator.reordered:
                    if operator.operands[k].tensor in tensors:
                        runs = self.program_points == self.at[operator.index]
                        copied[number] = copied.get(number, 0) + runs
        return copied

    def _fused_consumer(self, readers: set[int], by_class: Sequence[set[int]]) -> int | None:
        """The consumer class whose fused operators of the forward pass read the tensors last.

        Args:
            readers: the operators that read them.
            by_class: the operators of each consumer class.
        """
        ends = {o: max(self.runs[o], default=-1) for o in readers}
        last = {o: end for o, end in ends.items() if self.at[o] < self.forward_end <= end}
        in_producer = readers.difference(*by_class)
        points = [[last[o] for o in of & last.keys()] for of in (*by_class, in_producer)]
        latest = _last_consumer(points)
        return None if latest == len(by_class) else latest

    def _live_ranges(
        self, tensor: int, in_forward: bool, needed_after_forward: bool
    ) -> Iterator[LiveRange]:
        """The live ranges that one tensor adds to those of its group."""
        producer, at = self.producer(tensor), self._produced_at(tensor)
        started_at = at
        if producer is not None and producer.primitive in ("scan_stack", "sum_out"):
            started_at = self._bodies[producer.loops[-1]].first  # it fills up throughout its loop
        reads = self.reads(tensor)
        stored_reads = [] if self.is_fused(tensor) else reads
        is_produced = bool(stored_reads) and tensor not in self.replacing
        produced = at if is_produced else at - 1  # the point of the producer, or none
        yield "producing", started_at - 1, produced, 1
        uses_after_loop = [p for p in stored_reads if at < self.loop_end <= p]
        yield from self._after_loop(uses_after_loop)
        stored_reads = [p for p in stored_reads if p not in uses_after_loop]
        reads = [p for p in reads if p not in uses_after_loop]
        before = [p for p in stored_reads if p < self.forward_end]
        after = [p for p in stored_reads if p >= self.forward_end]
        if not in_forward:
            yield "resharded_after_forward", at - 1, produced, 1
            if stored_reads or uses_after_loop:
                yield "receive_buffer_after_forward", at - 1, at, 1
            yield "awaiting_backward_use", at, max(after, default=at), 1
            return
        # Its keeping is decided later: the ranges of all cases are counted here, and
        # ``cost.memory`` takes shares of them.
        is_fused, again = self.is_fused(tensor), self._rerun_reads(tensor)
        yield from self._resharded_after_forward(after, [] if is_fused else again)
        last_forward = max(before, default=at)
        if at < 0:  # an input; only copies in other placements take additional memory
            ends = before if needed_after_forward else stored_reads
            start = min(before, default=self.forward_end) - 1
            if before:
                yield "receive_buffer_in_forward", start, start + 1, 1
            yield "resharded_in_forward", start, max(ends, default=start), 1
            # Operators that rerun also read the stored copy, or else gather another one.
            of_input = Reads(start, start, after, again, False, needed_after_forward, None)
            for span, begin, end, count in table.DEFAULT.lived(of_input):
                yield (table.DEFAULT, span), begin, end, count
            return
        yield "receive_buffer_in_forward", at - 1, produced, 1
        yield "resharded_in_forward", at - 1, produced, 1
        if before and needed_after_forward:
            yield "resharded_in_forward", min(before) - 1, last_forward, 1
        yield "awaiting_forward_use", at, last_forward, 1
        if not needed_after_forward:
            yield "fused_input", last_forward, max(after, default=last_forward), 1
        later = [p for p in reads if p >= self.forward_end]
        stack = self._stack(tensor)
        found = Reads(at, last_forward, later, again, is_fused, needed_after_forward, stack)
        for keeping in table.KEEPINGS:
            for span, begin, end, count in keeping.lived(found):
                yield (keeping, span), begin, end, count

    def rows(self, tensor: int) -> int:
        """The number of iterations whose copies of a tensor wait together; 1 outside of loops."""
        stack = self._stack(tensor)
        return 1 if stack is None else stack.rows

    def _stack(self, tensor: int) -> Stack | None:
        """The stack in which all iterations of a body store a tensor for their mirror."""
        loops = self.graph.loops_around(tensor)
        mirror = self.graph.mirror(loops)
        if mirror is None:
            return None
        first, last = self._bodies[loops[0]].first, self._bodies[mirror].last
        return Stack(first, last, self.graph.loops[loops[0]].length or 1)

    def _produced_at(self, tensor: int) -> int:
        """The point of a tensor's producer; -1 for inputs and constants."""
        producer = self.producer(tensor)
        if producer is None:
            return -1
        return self.at[producer.index]

    def _after_loop(self, uses_after_loop: Sequence[int]) -> Iterator[LiveRange]:
        """The ranges of a tensor of the loop that is read at these points after it."""
        yield "loop_resident", -1, max([self.loop_end - 1, *uses_after_loop]), 1
        if uses_after_loop:
            first = min(uses_after_loop)
            yield "resharded_after_loop", first - 1, max(uses_after_loop), 1
            yield "receive_buffer_after_loop", first - 1, first, 1

    def _resharded_after_forward(
        self, after: Sequence[int], again: Sequence[int]
    ) -> Iterator[LiveRange]:
        """The ranges of copies resharded after the forward pass.

        Args:
            after: reads by the backward pass.
            again: reads by operators that rerun.
        """
        if after:
            yield "receive_buffer_after_forward", min(after) - 1, min(after), 1
            yield "resharded_after_forward", min(after) - 1, max(after), 1
        if not again:
            return
        # The backward pass may have received a copy earlier, which also serves these readers; their
        # copies are counted where that one is not live.
        first, last = min(again), max(again)
        if min(after, default=self.end) > first:
            yield "receive_buffer_for_rerun", first - 1, first, 1
        if not after:
            yield "resharded_for_rerun", first - 1, last, 1
            return
        yield "resharded_for_rerun", first - 1, min(after) - 1, 1
        yield "resharded_for_rerun", max(after), last, 1

    def _rerun_reads(self, tensor: int) -> list[int]:
        """The points at which the forward consumers of a tensor would rerun."""
        around, points = self.graph.loops_around(tensor), []
        for consumer in self.consumers(tensor):
            point = self.rerun_at[consumer.index]
            if consumer.phase != "forward" or point >= min(self.loop_end, self.end):
                continue
            points += {point, self.rerun_for_readers[consumer.index]}
            if len(consumer.loops) > len(around) and consumer.loops[-1] in self.graph.mirrored:
                points.append(self._bodies[self.graph.mirrored[consumer.loops[-1]]].last)
        return points


def _last_consumer(points: Sequence[Sequence[int]]) -> int | None:
    """The number of the consumer that runs last; ``None`` if none runs."""
    last = {number: max(of_consumer) for number, of_consumer in enumerate(points) if of_consumer}
    return max(last, key=lambda number: last[number], default=None)
