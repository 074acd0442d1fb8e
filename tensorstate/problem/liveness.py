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
from collections import defaultdict
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
class Spans:
    """How many of a flow's tensors are there, for what, at every point.

    Attributes:
        made: being made.
        early: waiting for a reader in the forward pass.
        late: waiting for a reader, made after the forward pass.
        kept: from the forward pass for the backward pass.
        copied: as ``kept``, were they not fused.
        lent: not read there itself, but by what is fused and not made again.
        bound: fused, but kept for what runs again, which reads it from memory.
        again: made again, and waiting for a reader after that.
        sooner: made again before that, for what runs again.
        held: through the loop over microbatches, and until the last reader after it.
        moved_early, moved_late, moved_after: being made or read so that copies made by moves are
            there, in the eras and after the loop.
        packed_early, packed_late, packed_after: arriving by moves.
        moved_again, packed_again: as ``moved_late`` and ``packed_late``, but only for what runs
            again, which it does before something else reads them.
        last_early, last_late: number of the demand that waits longest in either era.
        lender: of the demand by what is fused and runs longest; ``None`` where that is of the
            entity that makes them.
    """

    made: np.ndarray
    early: np.ndarray
    late: np.ndarray
    kept: np.ndarray
    copied: np.ndarray
    lent: np.ndarray
    bound: np.ndarray
    again: np.ndarray
    sooner: np.ndarray
    held: np.ndarray
    moved_early: np.ndarray
    moved_late: np.ndarray
    moved_after: np.ndarray
    packed_early: np.ndarray
    packed_late: np.ndarray
    packed_after: np.ndarray
    moved_again: np.ndarray
    packed_again: np.ndarray
    last_early: int | None
    last_late: int | None
    lender: int | None


COUNTS = tuple(f.name for f in dataclasses.fields(Spans) if f.type == "np.ndarray")


class Timeline:
    """The operators of a graph in the order in which they run, and who needs which tensor when.

    Args:
        graph: the step, or that of a turn of the loop and of what comes after it.
        afterwards: the operators that run after the loop over microbatches.
    """

    def __init__(self, graph: Graph, afterwards: frozenset[int] = frozenset()):
        self.graph, self.afterwards = graph, afterwards
        self.at = _places(graph, afterwards)
        self.end = len(graph.operators)
        # The first place after the loop; where there is none, after all.
        self.exit = self.end - len(afterwards) if afterwards else self.end + 1
        late = [self.at[o.index] for o in graph.operators if o.phase != "forward"]
        self.turn = min(*late, self.exit, self.end) if late else min(self.exit, self.end)
        self.users: dict[int, list[Operator]] = defaultdict(list)
        for operator in graph.operators:
            for tensor in {use.tensor for use in operator.operands}:
                self.users[tensor].append(operator)
        outputs = [o for o in graph.outputs if o.view.tensor is not None]
        # What replaces an argument takes its memory.
        self.returned = {o.view.tensor for o in outputs if o.updates is None}
        self.replacing = {o.view.tensor for o in outputs} - self.returned
        self.runs, self.again_at = self._runs()
        self.points = self._points()

    @functools.cached_property
    def makers(self) -> dict[int, Operator]:
        """The operator that makes each tensor."""
        return {use.tensor: o for o in self.graph.operators for use in o.results}

    # ------------------------------------------------------------------ operators

    def is_fused(self, tensor: int) -> bool:
        """Whether a tensor is made where it is read."""
        maker, users = self.makers.get(tensor), self.users[tensor]
        if maker is None or maker.kind != "elementwise" or not users:
            return False
        if tensor in self.returned or tensor in self.replacing or self._crosses(tensor):
            return False
        if len(users) == 1:
            return users[0].kind in ("elementwise", "reduction")
        return self._is_cheap(maker) and all(user.kind == "elementwise" for user in users)

    def _is_cheap(self, operator: Operator) -> bool:
        if operator.primitive == "div":
            # To divide by what is repeated is to multiply by its inverse.
            sizes = [self.graph.tensors[use.tensor].size for use in operator.operands]
            return len(sizes) < 2 or sizes[1] < sizes[0]
        return operator.primitive not in EXPENSIVE

    def _crosses(self, tensor: int) -> bool:
        """Whether a tensor of the loop is read after it."""
        maker = self.makers.get(tensor)
        if maker is not None and maker.index in self.afterwards:
            return False
        return any(user.index in self.afterwards for user in self.users[tensor])

    def _runs(self) -> tuple[dict[int, set[int]], dict[int, int]]:
        """Where every operator runs; and where first after the forward pass, were it run again.

        What is read there by itself is made there, though what it is made of may come sooner.
        """
        runs: dict[int, set[int]] = {}
        again: dict[int, int] = {}
        for operator in sorted(self.graph.operators, key=lambda o: -self.at[o.index]):
            runs[operator.index] = found = set()
            first = self.end
            for tensor in {use.tensor for use in operator.results}:
                users = [user.index for user in self.users[tensor]]
                if self.is_fused(tensor):
                    found.update(*(runs[user] for user in users))
                else:
                    found.add(self.at[operator.index])
                late = [p for user in users for p in runs[user] if self.turn <= p < self.exit]
                first = min([first, *(late or (again[user] for user in users))])
            again[operator.index] = first
        return runs, again

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
        places = {p for user in self.users[tensor] for p in self.runs[user.index]}
        return sorted(places | ({self.end} if tensor in self.returned else set()))

    def _points(self) -> np.ndarray:
        nodes = {e for members in self.graph.node_classes for e in (members[0], members[-1])}
        places = {self.end}
        for node in nodes:
            runs = (self.runs[m.operator] for m in self.graph.nodes[node].members)
            places |= {max(found) for found in [set().union(*runs)] if found}
        return np.array(sorted(places))

    # ------------------------------------------------------------------ flows

    def spans(
        self, tensors: Sequence[int], early: bool, stays: bool, readers: Sequence[Iterable[int]]
    ) -> Spans:
        """Of the tensors of a flow.

        Args:
            early: whether they are there in the forward pass.
            stays: whether something reads them in the backward pass.
            readers: entities that read them, by demand.
        """
        counts = {name: np.zeros(len(self.points), int) for name in COUNTS}
        for tensor in tensors:
            for name, there in self._spans(tensor, early, stays):
                counts[name] += there
        nodes = self.graph.nodes
        places = [
            [self.at[m.operator] for e in found for m in nodes[e].members[:1]] for found in readers
        ]
        before = [[p for p in found if p < self.turn] for found in places]
        after = [[p for p in found if p >= self.turn] for found in places]
        return Spans(
            **counts,
            last_early=_last(before),
            last_late=_last(after),
            lender=self._lender(tensors, readers),
        )

    def _lender(self, tensors: Sequence[int], readers: Sequence[Iterable[int]]) -> int | None:
        """The demand by fused operators of the forward pass that read tensors last."""
        users = {user.index for tensor in tensors for user in self.users[tensor]}
        last = {
            o: max(self.runs[o])
            for o in users
            if self.at[o] < self.turn <= max(self.runs[o], default=-1)
        }
        demanding = [
            {m.operator for e in nodes for m in self.graph.nodes[e].members} for nodes in readers
        ]
        own = users.difference(*demanding)
        places = [[last[o] for o in one & last.keys()] for one in (*demanding, own)]
        lender = _last(places)
        return None if lender == len(demanding) else lender

    def _spans(self, tensor: int, early: bool, stays: bool) -> Iterator[tuple[str, np.ndarray]]:
        """What a tensor adds to the spans of its flow."""
        maker, points = self.makers.get(tensor), self.points
        read = self.read(tensor)
        needed = [] if self.is_fused(tensor) else read
        made = -1 if maker is None else self.at[maker.index]
        is_made = (points == made) & (bool(needed) and tensor not in self.replacing)
        yield "made", is_made
        crossing = [p for p in needed if made < self.exit <= p]
        yield "held", points <= max([self.exit - 1, *crossing])
        yield "moved_after", _between(points, min(crossing, default=self.end) - 1, crossing)
        yield "packed_after", points == min(crossing, default=-1)
        needed, read = ([p for p in places if p not in crossing] for places in (needed, read))
        before = [p for p in needed if p < self.turn]
        after = [p for p in needed if p >= self.turn]
        if not early:
            yield "moved_late", is_made
            yield "packed_late", (points == made) & bool(needed or crossing)
            yield "late", _between(points, made, after)
            return
        start = min(before, default=self.turn) - 1
        yield "packed_early", is_made if maker is not None else points == min(before, default=-1)
        reruns = [] if self.is_fused(tensor) else self._reruns(tensor)
        yield from self._moved_late(after, reruns)
        if maker is None:
            yield "moved_early", _between(points, start, before if stays else needed)
            yield "kept", _between(points, start, after)
            yield "copied", _between(points, start, after)
            return
        yield "moved_early", is_made | (_between(points, start, before) if stays else False)
        again = self._again(tensor, after)
        if not needed and not crossing:
            yield "bound", _between(points, made, self._reruns(tensor))
        yield "early", _between(points, made, before)
        waiting = _between(points, min(again, default=self.end) - 1, again)
        yield "again", waiting
        yield "sooner", _between(points, min(reruns, default=self.end) - 1, again) & ~waiting
        if stays:
            yield "kept", _between(points, made, after)
            yield "copied", _between(points, made, [p for p in read if p >= self.turn])
        else:
            yield "kept", _between(points, made, again)
            yield "copied", _between(points, made, again)
            yield "lent", _between(points, max(before, default=made), after)

    def _moved_late(
        self, after: Sequence[int], reruns: Sequence[int]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """What moves in the backward pass bring to readers there, and to what runs again before."""
        points, first = self.points, min([*after, *reruns], default=self.end)
        late = _between(points, min(after, default=self.end) - 1, after)
        yield "packed_late", points == min(after, default=-1)
        yield "moved_late", late
        yield "packed_again", (points == min(reruns, default=-1)) & (first not in after)
        yield "moved_again", _between(points, first - 1, [*after, *reruns]) & ~late

    def _again(self, tensor: int, after: list[int]) -> list[int]:
        """Where a tensor is read after the forward pass, were its readers run again."""
        if self.is_fused(tensor) or after:
            return after
        return self._reruns(tensor)

    def _reruns(self, tensor: int) -> list[int]:
        """Where what reads a tensor in the forward pass would run again."""
        users = [u for u in self.users[tensor] if u.phase == "forward"]
        return [p for u in users if (p := self.again_at[u.index]) < min(self.exit, self.end)]


def _last(places: Sequence[Sequence[int]]) -> int | None:
    """The number of what runs last; ``None`` where nothing does."""
    last = {number: max(found) for number, found in enumerate(places) if found}
    return max(last, key=lambda number: last[number], default=None)


def _between(points: np.ndarray, start: int, ends: Sequence[int]) -> np.ndarray:
    """The points after a place up to the last of others."""
    return (points > start) & (points <= max(ends, default=-math.inf))


def _places(graph: Graph, afterwards: frozenset[int]) -> dict[int, int]:
    """The place of every operator: an update comes as soon as all it needs is there."""
    made = {use.tensor: o.index for o in graph.operators for use in o.results}
    turn = min((o.index for o in graph.operators if o.phase != "forward"), default=0)
    ready: dict[int, int] = {}
    for operator in graph.operators:
        ready[operator.index] = operator.index
        if operator.phase == "optimizer":
            makers = [made[use.tensor] for use in operator.operands if use.tensor in made]
            ready[operator.index] = max([turn, *(ready[maker] for maker in makers)])
    order = sorted(ready, key=lambda index: (index in afterwards, ready[index], index))
    return {index: place for place, index in enumerate(order)}
