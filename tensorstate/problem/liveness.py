"""Live ranges of the tensors of a training step, independent of their placements.

Operators run in the order of the graph, except that an optimizer operator runs as soon as its
operands have been computed. With microbatches the operators of the loop come first, then those
after the loop. Memory is evaluated at *program points*: the last operator of the first and of the
last node of every class. Memory is monotonic along identical layers, so its peak is at one of
these points.

The body of a loop of the step runs once in this order. A tensor from outside that it reads is live
to its end, and a stack of rows from its beginning on. A tensor of a body that is read in the loop
which mirrors the body's is saved by every iteration, from the beginning of the one loop to the end
of the other.

A compiler computes cheap elementwise results inside their consumers instead of storing them: such a
tensor is *fused*. It takes no memory itself, but its operands must be live when it is read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tensorstate.ir.graph import Graph, Operator
from tensorstate.problem.execution_order import bodies, can_recompute, execution_order

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
    """Number of tensors of a group that are live at every program point, by the reason.

    Attributes:
        producing: its producer runs.
        awaiting_forward_use: produced, and awaiting a consumer in the forward pass.
        awaiting_backward_use: produced after the forward pass, and awaiting a consumer.
        saved: from the forward pass for the backward pass.
        saved_copy: as ``saved``, if it were not fused.
        fused_input: read by a consumer that is fused into a later operator and not recomputed.
        saved_for_recompute: fused, but saved because a recomputed operator reads it from memory.
        recomputed: recomputed, and awaiting a consumer of the backward pass.
        recomputed_early: recomputed for another recomputed operator, before ``recomputed`` starts.
        loop_resident: through the microbatch loop, and until its last consumer after the loop.
        resharded_in_forward, resharded_after_forward, resharded_after_loop: resharded copies are
            live, in the forward pass, after it, and after the loop.
        receive_buffer_in_forward, receive_buffer_after_forward, receive_buffer_after_loop: a
            reshard into it is running.
        resharded_for_recompute, receive_buffer_for_recompute: as ``resharded_after_forward`` and
            ``receive_buffer_after_forward``, but for recomputed operators that read it first.
        last_forward_use, last_backward_use: number of the consumer class that reads it last, in the
            forward pass and after it.
        fused_consumer: number of the consumer class whose fused operators read it last; ``None`` if
            these belong to its producer node.
        copied: by number of a consumer class, a convolution of it runs that reads the tensor in
            another order of dimensions than the usual.
    """

    producing: np.ndarray
    awaiting_forward_use: np.ndarray
    awaiting_backward_use: np.ndarray
    saved: np.ndarray
    saved_copy: np.ndarray
    fused_input: np.ndarray
    saved_for_recompute: np.ndarray
    recomputed: np.ndarray
    recomputed_early: np.ndarray
    loop_resident: np.ndarray
    resharded_in_forward: np.ndarray
    resharded_after_forward: np.ndarray
    resharded_after_loop: np.ndarray
    receive_buffer_in_forward: np.ndarray
    receive_buffer_after_forward: np.ndarray
    receive_buffer_after_loop: np.ndarray
    resharded_for_recompute: np.ndarray
    receive_buffer_for_recompute: np.ndarray
    last_forward_use: int | None
    last_backward_use: int | None
    fused_consumer: int | None
    copied: Mapping[int, np.ndarray]


COUNTS = tuple(f.name for f in dataclasses.fields(LiveRanges) if f.type == "np.ndarray")


class Liveness:
    """Liveness analysis: the order of operators, and the live ranges of tensors.

    Args:
        graph: of the step; or of one microbatch and of the operators after the loop.
        after_loop: the operators that run after the microbatch loop.
        staged: loops in pipeline stages, whose carry is read to the last microbatch.
        together: loops whose bodies run in turn, microbatch by microbatch, as those of 1F1B.
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
        self.runs, self.recompute_at = self._runs()
        self.program_points = self._program_points()

    def producer(self, tensor: int) -> Operator | None:
        """The operator that produces a tensor; ``None`` for inputs and constants."""
        index = self.graph.tensors[tensor].producer
        return None if index is None else self.graph.operators[index]

    def consumers(self, tensor: int) -> list[Operator]:
        """The operators that read a tensor, each once, in the order of execution."""
        operators = dict.fromkeys(c.operator for c in self.graph.tensors[tensor].consumers)
        return [self.graph.operators[index] for index in operators]

    # ------------------------------------------------------------------ operators

    def is_fused(self, tensor: int) -> bool:
        """Whether a compiler computes a tensor inside its consumers instead of storing it."""
        producer, consumers = self.producer(tensor), self.consumers(tensor)
        if producer is None or producer.kind != "elementwise" or not consumers:
            return False
        if tensor in self.returned or tensor in self.replacing or self._is_used_after_loop(tensor):
            return False
        if any(consumer.loops != producer.loops for consumer in consumers):
            return False
        if len(consumers) == 1:
            return consumers[0].kind in ("elementwise", "reduction")
        return self._is_cheap(producer) and all(
            consumer.kind == "elementwise" for consumer in consumers
        )

    def _is_cheap(self, operator: Operator) -> bool:
        if operator.primitive == "div":
            # XLA multiplies by the reciprocal of a broadcast divisor.
            sizes = [self.graph.tensors[use.tensor].size for use in operator.operands]
            return len(sizes) < 2 or sizes[1] < sizes[0]
        return operator.primitive not in EXPENSIVE

    def _is_used_after_loop(self, tensor: int) -> bool:
        """Whether a tensor of the loop is read after it."""
        producer = self.producer(tensor)
        if producer is not None and producer.index in self.after_loop:
            return False
        return any(consumer.index in self.after_loop for consumer in self.consumers(tensor))

    def _runs(self) -> tuple[dict[int, set[int]], dict[int, int]]:
        """The points at which every operator runs, and the point of its recomputation.

        A fused operator runs where its consumers run. A recomputation runs at the first read of its
        results after the forward pass; without one, at the first recomputation of a consumer.
        """
        runs: dict[int, set[int]] = {}
        recomputed: dict[int, int] = {}
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
                again = (self._entered(operator, c, recomputed[c]) for c in consumers)
                first = min([first, *(after_forward or again)])
            recomputed[operator.index] = (
                first if can_recompute(self.graph, operator.index) else self.end
            )
        return runs, recomputed

    def _entered(self, operator: Operator, consumer: int, point: int) -> int:
        """The point from which on a consumer reads results that run outside of its loop."""
        loops = self.graph.operators[consumer].loops
        if len(loops) <= len(operator.loops) or point >= self.end:
            return point
        body = self._bodies[loops[len(operator.loops)]]
        if body.first <= point <= body.last:
            return body.first
        mirror = self.graph.mirror(loops)
        return point if mirror is None else self._bodies[mirror].first

    @functools.cached_property
    def lasting(self) -> list[int]:
        """Stored tensors that are read after the last operator of their producer node.

        All consumers of such a tensor may belong to that node: fused, they run where other nodes
        read their results. The derivative of tanh, for example, is a cheap function of its value.
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
        points |= set(self._until(tensor))
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

    def _program_points(self) -> np.ndarray:
        nodes = {e for members in self.graph.node_classes for e in (members[0], members[-1])}
        points = {self.end}
        for node in nodes:
            runs = set[int]().union(
                *(self.runs[m.operator] for m in self.graph.nodes[node].members)
            )
            if runs:
                points.add(max(runs))
        return np.array(sorted(points))

    # ------------------------------------------------------------------ tensor groups

    def live_ranges(
        self,
        tensors: Sequence[int],
        in_forward: bool,
        needed_after_forward: bool,
        consumers: Sequence[Iterable[int]],
    ) -> LiveRanges:
        """Of the tensors of a group.

        Args:
            tensors: the group.
            in_forward: whether they exist in the forward pass.
            needed_after_forward: whether they are read in the backward pass.
            consumers: the nodes of each consumer class that read them.
        """
        counts = {name: np.zeros(len(self.program_points), int) for name in COUNTS}
        for tensor in tensors:
            for name, is_live in self._live_ranges(tensor, in_forward, needed_after_forward):
                counts[name] += is_live
        nodes = self.graph.nodes
        points = [
            [self.at[m.operator] for e in of_class for m in nodes[e].members[:1]]
            for of_class in consumers
        ]
        before = [[p for p in of_class if p < self.forward_end] for of_class in points]
        after = [[p for p in of_class if p >= self.forward_end] for of_class in points]
        return LiveRanges(
            **counts,
            last_forward_use=_last_consumer(before),
            last_backward_use=_last_consumer(after),
            fused_consumer=self._fused_consumer(tensors, consumers),
            copied=self._copied(frozenset(tensors), consumers),
        )

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

    def _fused_consumer(
        self, tensors: Sequence[int], consumers: Sequence[Iterable[int]]
    ) -> int | None:
        """The consumer class whose fused operators of the forward pass read the tensors last."""
        operators = {consumer.index for tensor in tensors for consumer in self.consumers(tensor)}
        ends = {o: max(self.runs[o], default=-1) for o in operators}
        last = {o: end for o, end in ends.items() if self.at[o] < self.forward_end <= end}
        by_class = [
            {m.operator for e in nodes for m in self.graph.nodes[e].members} for nodes in consumers
        ]
        in_producer = operators.difference(*by_class)
        points = [[last[o] for o in of & last.keys()] for of in (*by_class, in_producer)]
        latest = _last_consumer(points)
        return None if latest == len(by_class) else latest

    def _live_ranges(
        self, tensor: int, in_forward: bool, needed_after_forward: bool
    ) -> Iterator[tuple[str, np.ndarray]]:
        """The live ranges that one tensor adds to those of its group."""
        points = self.program_points
        produced_at = self._produced_at(tensor)
        reads = self.reads(tensor)
        stored_reads = [] if self.is_fused(tensor) else reads
        saved = functools.partial(self._saved, tensor)
        is_produced = (points == produced_at) & (
            bool(stored_reads) and tensor not in self.replacing
        )
        started_at = self._started_at(tensor)
        yield "producing", is_produced | ((points >= started_at) & (points < produced_at))
        uses_after_loop = [p for p in stored_reads if produced_at < self.loop_end <= p]
        yield from self._after_loop(uses_after_loop)
        stored_reads = [p for p in stored_reads if p not in uses_after_loop]
        reads = [p for p in reads if p not in uses_after_loop]
        before = [p for p in stored_reads if p < self.forward_end]
        after = [p for p in stored_reads if p >= self.forward_end]
        if not in_forward:
            is_read = bool(stored_reads or uses_after_loop)
            yield "resharded_after_forward", is_produced
            yield "receive_buffer_after_forward", (points == produced_at) & is_read
            yield "awaiting_backward_use", _points_between(points, produced_at, after)
            return
        recompute_reads = [] if self.is_fused(tensor) else self._recompute_reads(tensor)
        yield from self._resharded_after_forward(after, recompute_reads)
        start = min(before, default=self.forward_end) - 1
        if produced_at < 0:
            ends = before if needed_after_forward else stored_reads
            yield "receive_buffer_in_forward", points == min(before, default=-1)
            yield "resharded_in_forward", _points_between(points, start, ends)
            yield "saved", _points_between(points, start, after)
            yield "saved_copy", _points_between(points, start, after)
            return
        awaited = _points_between(points, start, before) if needed_after_forward else False
        yield "receive_buffer_in_forward", is_produced
        yield "resharded_in_forward", is_produced | awaited
        if not stored_reads and not uses_after_loop:
            ends = self._recompute_reads(tensor)
            yield "saved_for_recompute", saved(produced_at, ends)
        yield "awaiting_forward_use", _points_between(points, produced_at, before)
        reads_after = self._reads_if_recomputed(tensor, after)
        yield from self._recomputed(recompute_reads, reads_after)
        if needed_after_forward:
            copy_reads = [p for p in reads if p >= self.forward_end]
            yield "saved", saved(produced_at, after)
            yield "saved_copy", saved(produced_at, copy_reads)
        else:
            last_forward = max(before, default=produced_at)
            yield "saved", saved(produced_at, reads_after)
            yield "saved_copy", saved(produced_at, reads_after)
            yield "fused_input", _points_between(points, last_forward, after)

    def _saved(self, tensor: int, start: int, ends: Sequence[int]) -> np.ndarray:
        """How many saved copies of a tensor are live, which is read after the forward pass.

        Of a body all iterations save theirs in one stack, of which the loop that mirrors it reads
        one row at a time.
        """
        loops = self.graph.loops_around(tensor)
        mirror = self.graph.mirror(loops)
        once = _points_between(self.program_points, start, ends)
        if mirror is None or not ends:
            return once
        (loop,) = loops
        first, last = self._bodies[loop].first, self._bodies[mirror].last
        stack = _points_between(self.program_points, first - 1, [last])
        row = _points_between(self.program_points, min(ends) - 1, ends)
        return (self.graph.loops[loop].length or 1) * stack + row

    def _produced_at(self, tensor: int) -> int:
        """The point of a tensor's producer; -1 for inputs and constants."""
        producer = self.producer(tensor)
        if producer is None:
            return -1
        return self.at[producer.index]

    def _started_at(self, tensor: int) -> int:
        """The point from which on a tensor is being produced: a stack, throughout its loop."""
        producer = self.producer(tensor)
        if producer is not None and producer.primitive in ("scan_stack", "sum_out"):
            return self._bodies[producer.loops[-1]].first
        return self._produced_at(tensor)

    def _after_loop(self, uses_after_loop: Sequence[int]) -> Iterator[tuple[str, np.ndarray]]:
        """The ranges of a tensor of the loop that is read at these points after it."""
        points, first = self.program_points, min(uses_after_loop, default=self.end)
        yield "loop_resident", points <= max([self.loop_end - 1, *uses_after_loop])
        yield "resharded_after_loop", _points_between(points, first - 1, uses_after_loop)
        yield "receive_buffer_after_loop", points == min(uses_after_loop, default=-1)

    def _resharded_after_forward(
        self, after: Sequence[int], recompute_reads: Sequence[int]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """The ranges of copies resharded after the forward pass.

        Args:
            after: reads by the backward pass.
            recompute_reads: reads by recomputed operators.
        """
        points, first = self.program_points, min([*after, *recompute_reads], default=self.end)
        after_forward = _points_between(points, min(after, default=self.end) - 1, after)
        earlier = _points_between(points, first - 1, [*after, *recompute_reads]) & ~after_forward
        is_received = points == min(recompute_reads, default=-1)
        yield "receive_buffer_after_forward", points == min(after, default=-1)
        yield "resharded_after_forward", after_forward
        yield "receive_buffer_for_recompute", is_received & (first not in after)
        yield "resharded_for_recompute", earlier

    def _recomputed(
        self, recompute_reads: Sequence[int], reads_after: Sequence[int]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """The ranges of a recomputed tensor, from its first read on."""
        points, end = self.program_points, self.end
        awaiting = _points_between(points, min(reads_after, default=end) - 1, reads_after)
        from_first = _points_between(points, min(recompute_reads, default=end) - 1, reads_after)
        yield "recomputed", awaiting
        yield "recomputed_early", from_first & ~awaiting

    def _reads_if_recomputed(self, tensor: int, after: list[int]) -> list[int]:
        """The reads after the forward pass, if the consumers are recomputed."""
        if self.is_fused(tensor) or after:
            return after
        return self._recompute_reads(tensor)

    def _recompute_reads(self, tensor: int) -> list[int]:
        """The points at which the forward consumers of a tensor would be recomputed."""
        around, points = self.graph.loops_around(tensor), []
        for consumer in self.consumers(tensor):
            point = self.recompute_at[consumer.index]
            if consumer.phase != "forward" or point >= min(self.loop_end, self.end):
                continue
            points.append(point)
            if len(consumer.loops) > len(around) and consumer.loops[-1] in self.graph.mirrored:
                points.append(self._bodies[self.graph.mirrored[consumer.loops[-1]]].last)
        return points


def _last_consumer(points: Sequence[Sequence[int]]) -> int | None:
    """The number of the consumer that runs last; ``None`` if none runs."""
    last = {number: max(of_consumer) for number, of_consumer in enumerate(points) if of_consumer}
    return max(last, key=lambda number: last[number], default=None)


def _points_between(program_points: np.ndarray, start: int, ends: Sequence[int]) -> np.ndarray:
    """A mask of the points after ``start``, up to the last of ``ends``."""
    return (program_points > start) & (program_points <= max(ends, default=-math.inf))
