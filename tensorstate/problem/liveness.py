"""When the tensors of a training step are in memory, whatever their states.

Operators run in the order of the graph, but what updates a parameter runs as soon as its gradient
is there. In microbatches the operators of a turn of the loop come first, then those after the loop.
Memory is looked at from *points*: where the first and the last entity of every class run, of
several operators the last. Layers that are alike take memory evenly, so the most is there at one of
these.

A compiler makes cheap elementwise results where they are read instead of keeping them: such a
tensor is *fused*. It takes no memory itself, but what it is made of must be there when it is read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tensorstate.ir.graph import Graph, Operator

# What XLA computes once rather than wherever it is read (``InstructionFusion::IsExpensive``).
EXPENSIVE = frozenset(
    re.findall(
        r"\w+",
        "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2 "
        "expm1 lgamma log log1p logistic pow rem rsqrt sin sinh sqrt tan tanh",
    )
)


@dataclasses.dataclass(frozen=True, eq=False)
class LiveRanges:
    """How many of a flow's tensors are there, for what, at every point.

    Attributes:
        producing: being made.
        awaiting_forward_use: waiting for a reader in the forward pass.
        awaiting_backward_use: waiting for a reader, made after the forward pass.
        saved: from the forward pass for the backward pass.
        saved_copy: as ``saved``, were they not fused.
        fused_input: not read there itself, but by what is fused and not made again.
        saved_for_recompute: fused, but kept for what runs again, which reads it from memory.
        recomputed: made again, and waiting for a reader after that.
        recomputed_early: made again before that, for what runs again.
        loop_resident: through the loop over microbatches, and until the last reader after it.
        resharded_in_forward, resharded_after_forward, resharded_after_loop: being made or read so
            that copies made by moves are there, in the eras and after the loop.
        receive_buffer_in_forward, receive_buffer_after_forward, receive_buffer_after_loop: arriving
            by moves.
        resharded_for_recompute, receive_buffer_for_recompute: as ``moved_late`` and
            ``packed_late``, but only for what runs again, which it does before something else reads
            them.
        last_forward_use, last_backward_use: number of the demand that waits longest in either era.
        fused_consumer: of the demand by what is fused and runs longest; ``None`` where that is of
            the entity that makes them.
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


COUNTS = tuple(f.name for f in dataclasses.fields(LiveRanges) if f.type == "np.ndarray")


class Liveness:
    """The operators of a graph in the order in which they run, and who needs which tensor when.

    Args:
        graph: the step, or that of a turn of the loop and of what comes after it.
        after_loop: the operators that run after the loop over microbatches.
    """

    def __init__(self, graph: Graph, after_loop: frozenset[int] = frozenset()):
        self.graph, self.after_loop = graph, after_loop
        self.at = _places(graph, after_loop)
        self.end = len(graph.operators)
        # The first place after the loop; where there is none, after all.
        self.loop_end = self.end - len(after_loop) if after_loop else self.end + 1
        after_forward = [self.at[o.index] for o in graph.operators if o.phase != "forward"]
        self.forward_end = (
            min(*after_forward, self.loop_end, self.end)
            if after_forward
            else min(self.loop_end, self.end)
        )
        outputs = [o for o in graph.outputs if o.view.tensor is not None]
        # What replaces an argument takes its memory.
        self.returned = {o.view.tensor for o in outputs if o.updates is None}
        self.replacing = {o.view.tensor for o in outputs} - self.returned
        self.runs, self.recompute_at = self._runs()
        self.program_points = self._program_points()

    def producer(self, tensor: int) -> Operator | None:
        """The operator that makes a tensor; ``None`` for inputs and constants."""
        index = self.graph.tensors[tensor].producer
        return None if index is None else self.graph.operators[index]

    def consumers(self, tensor: int) -> list[Operator]:
        """The operators that read a tensor, each once, in the order of execution."""
        operators = dict.fromkeys(c.operator for c in self.graph.tensors[tensor].consumers)
        return [self.graph.operators[index] for index in operators]

    # ------------------------------------------------------------------ operators

    def is_fused(self, tensor: int) -> bool:
        """Whether a tensor is made where it is read."""
        producer, consumers = self.producer(tensor), self.consumers(tensor)
        if producer is None or producer.kind != "elementwise" or not consumers:
            return False
        if tensor in self.returned or tensor in self.replacing or self._is_used_after_loop(tensor):
            return False
        if len(consumers) == 1:
            return consumers[0].kind in ("elementwise", "reduction")
        return self._is_cheap(producer) and all(
            consumer.kind == "elementwise" for consumer in consumers
        )

    def _is_cheap(self, operator: Operator) -> bool:
        if operator.primitive == "div":
            # To divide by what is repeated is to multiply by its inverse.
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
        """Where every operator runs; and where first after the forward pass, were it run again.

        What is read there by itself is made there, though what it is made of may come sooner.
        """
        runs: dict[int, set[int]] = {}
        recomputed: dict[int, int] = {}
        for operator in sorted(self.graph.operators, key=lambda o: -self.at[o.index]):
            runs[operator.index] = found = set()
            first = self.end
            for tensor in {use.tensor for use in operator.results}:
                consumers = [consumer.index for consumer in self.consumers(tensor)]
                if self.is_fused(tensor):
                    found.update(*(runs[consumer] for consumer in consumers))
                else:
                    found.add(self.at[operator.index])
                after_forward = [
                    p
                    for consumer in consumers
                    for p in runs[consumer]
                    if self.forward_end <= p < self.loop_end
                ]
                first = min(
                    [first, *(after_forward or (recomputed[consumer] for consumer in consumers))]
                )
            recomputed[operator.index] = first
        return runs, recomputed

    @functools.cached_property
    def lasting(self) -> list[int]:
        """Tensors in memory that are read after the last operator of the entity that makes them.

        Their readers may all belong to that entity: fused, they run where other entities read
        their results. The gradient of tanh, for one, is a cheap function of its value.
        """
        found = []
        for node in self.graph.nodes:
            last = max((self.at[m.operator] for m in node.members), default=self.end)
            made = [
                u.tensor for m in node.members for u in self.graph.operators[m.operator].results
            ]
            found += [
                t for t in made if not self.is_fused(t) and max(self.read(t), default=-1) > last
            ]
        return found

    def read(self, tensor: int) -> list[int]:
        """Where a tensor is read, were it in memory."""
        places = {p for consumer in self.consumers(tensor) for p in self.runs[consumer.index]}
        return sorted(places | ({self.end} if tensor in self.returned else set()))

    def _program_points(self) -> np.ndarray:
        nodes = {e for members in self.graph.node_classes for e in (members[0], members[-1])}
        places = {self.end}
        for node in nodes:
            runs = (self.runs[m.operator] for m in self.graph.nodes[node].members)
            places |= {max(found) for found in [set().union(*runs)] if found}
        return np.array(sorted(places))

    # ------------------------------------------------------------------ flows

    def live_ranges(
        self,
        tensors: Sequence[int],
        in_forward: bool,
        needed_after_forward: bool,
        consumers: Sequence[Iterable[int]],
    ) -> LiveRanges:
        """Of the tensors of a flow.

        Args:
            in_forward: whether they are there in the forward pass.
            stays: whether something reads them in the backward pass.
            consumers: entities that read them, by demand.
        """
        counts = {name: np.zeros(len(self.program_points), int) for name in COUNTS}
        for tensor in tensors:
            for name, there in self._live_ranges(tensor, in_forward, needed_after_forward):
                counts[name] += there
        nodes = self.graph.nodes
        places = [
            [self.at[m.operator] for e in found for m in nodes[e].members[:1]]
            for found in consumers
        ]
        before = [[p for p in found if p < self.forward_end] for found in places]
        after = [[p for p in found if p >= self.forward_end] for found in places]
        return LiveRanges(
            **counts,
            last_forward_use=_last_consumer(before),
            last_backward_use=_last_consumer(after),
            fused_consumer=self._fused_consumer(tensors, consumers),
        )

    def _fused_consumer(
        self, tensors: Sequence[int], consumers: Sequence[Iterable[int]]
    ) -> int | None:
        """The demand by fused operators of the forward pass that read tensors last."""
        readers = {consumer.index for tensor in tensors for consumer in self.consumers(tensor)}
        last = {
            o: max(self.runs[o])
            for o in readers
            if self.at[o] < self.forward_end <= max(self.runs[o], default=-1)
        }
        demanding = [
            {m.operator for e in nodes for m in self.graph.nodes[e].members} for nodes in consumers
        ]
        own = readers.difference(*demanding)
        places = [[last[o] for o in one & last.keys()] for one in (*demanding, own)]
        latest = _last_consumer(places)
        return None if latest == len(demanding) else latest

    def _live_ranges(
        self, tensor: int, in_forward: bool, needed_after_forward: bool
    ) -> Iterator[tuple[str, np.ndarray]]:
        """What a tensor adds to the spans of its flow."""
        producer, program_points = self.producer(tensor), self.program_points
        read = self.read(tensor)
        needed = [] if self.is_fused(tensor) else read
        made = -1 if producer is None else self.at[producer.index]
        is_made = (program_points == made) & (bool(needed) and tensor not in self.replacing)
        yield "producing", is_made
        uses_after_loop = [p for p in needed if made < self.loop_end <= p]
        yield "loop_resident", program_points <= max([self.loop_end - 1, *uses_after_loop])
        yield (
            "resharded_after_loop",
            _points_between(
                program_points, min(uses_after_loop, default=self.end) - 1, uses_after_loop
            ),
        )
        yield "receive_buffer_after_loop", program_points == min(uses_after_loop, default=-1)
        needed, read = (
            [p for p in places if p not in uses_after_loop] for places in (needed, read)
        )
        before = [p for p in needed if p < self.forward_end]
        after = [p for p in needed if p >= self.forward_end]
        if not in_forward:
            yield "resharded_after_forward", is_made
            yield (
                "receive_buffer_after_forward",
                (program_points == made) & bool(needed or uses_after_loop),
            )
            yield "awaiting_backward_use", _points_between(program_points, made, after)
            return
        start = min(before, default=self.forward_end) - 1
        yield (
            "receive_buffer_in_forward",
            is_made if producer is not None else program_points == min(before, default=-1),
        )
        recompute_reads = [] if self.is_fused(tensor) else self._recompute_reads(tensor)
        yield from self._resharded_after_forward(after, recompute_reads)
        if producer is None:
            yield (
                "resharded_in_forward",
                _points_between(program_points, start, before if needed_after_forward else needed),
            )
            yield "saved", _points_between(program_points, start, after)
            yield "saved_copy", _points_between(program_points, start, after)
            return
        yield (
            "resharded_in_forward",
            is_made
            | (_points_between(program_points, start, before) if needed_after_forward else False),
        )
        recomputed = self._reads_if_recomputed(tensor, after)
        if not needed and not uses_after_loop:
            yield (
                "saved_for_recompute",
                _points_between(program_points, made, self._recompute_reads(tensor)),
            )
        yield "awaiting_forward_use", _points_between(program_points, made, before)
        pending = _points_between(program_points, min(recomputed, default=self.end) - 1, recomputed)
        yield "recomputed", pending
        yield (
            "recomputed_early",
            _points_between(program_points, min(recompute_reads, default=self.end) - 1, recomputed)
            & ~pending,
        )
        if needed_after_forward:
            yield "saved", _points_between(program_points, made, after)
            yield (
                "saved_copy",
                _points_between(program_points, made, [p for p in read if p >= self.forward_end]),
            )
        else:
            yield "saved", _points_between(program_points, made, recomputed)
            yield "saved_copy", _points_between(program_points, made, recomputed)
            yield "fused_input", _points_between(program_points, max(before, default=made), after)

    def _resharded_after_forward(
        self, after: Sequence[int], recompute_reads: Sequence[int]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """What moves in the backward pass bring to readers there, and to what runs again before."""
        program_points, first = (
            self.program_points,
            min([*after, *recompute_reads], default=self.end),
        )
        after_forward = _points_between(program_points, min(after, default=self.end) - 1, after)
        yield "receive_buffer_after_forward", program_points == min(after, default=-1)
        yield "resharded_after_forward", after_forward
        yield (
            "receive_buffer_for_recompute",
            (program_points == min(recompute_reads, default=-1)) & (first not in after),
        )
        yield (
            "resharded_for_recompute",
            _points_between(program_points, first - 1, [*after, *recompute_reads]) & ~after_forward,
        )

    def _reads_if_recomputed(self, tensor: int, after: list[int]) -> list[int]:
        """Where a tensor is read after the forward pass, were its readers run again."""
        if self.is_fused(tensor) or after:
            return after
        return self._recompute_reads(tensor)

    def _recompute_reads(self, tensor: int) -> list[int]:
        """Where what reads a tensor in the forward pass would run again."""
        consumers = [u for u in self.consumers(tensor) if u.phase == "forward"]
        return [
            p for u in consumers if (p := self.recompute_at[u.index]) < min(self.loop_end, self.end)
        ]


def _last_consumer(places: Sequence[Sequence[int]]) -> int | None:
    """The number of what runs last; ``None`` where nothing does."""
    last = {number: max(found) for number, found in enumerate(places) if found}
    return max(last, key=lambda number: last[number], default=None)


def _points_between(program_points: np.ndarray, start: int, ends: Sequence[int]) -> np.ndarray:
    """The points after a place up to the last of others."""
    return (program_points > start) & (program_points <= max(ends, default=-math.inf))


def _places(graph: Graph, after_loop: frozenset[int]) -> dict[int, int]:
    """The place of every operator: an update comes as soon as all it needs is there."""
    made = {use.tensor: o.index for o in graph.operators for use in o.results}
    turn = min((o.index for o in graph.operators if o.phase != "forward"), default=0)
    ready: dict[int, int] = {}
    for operator in graph.operators:
        ready[operator.index] = operator.index
        if operator.phase == "optimizer":
            producers = [made[use.tensor] for use in operator.operands if use.tensor in made]
            ready[operator.index] = max([turn, *(ready[producer] for producer in producers)])
    order = sorted(ready, key=lambda index: (index in after_loop, ready[index], index))
    return {index: place for place, index in enumerate(order)}
