"""The collectives that reshard a tensor from some placements to others.

A reshard step changes the placement on one mesh axis by one collective, or by a local slice from
replicated to sharded. Placements and steps form a graph. If consumers require a tensor with several
placements, it is resharded along the cheapest tree in this graph, so that a shared step is paid
once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxcoll.kinds import KINDS, Kind, those
from tensorstate.errors import PlanError
from tensorstate.ir.placements import MAX, MIN, REPLICATED, MeshShape, Placements, divides_evenly

# Seconds that each byte of a copy adds to those of a step when trees are compared: a gigabyte adds
# a thousandth of a nanosecond, so this only decides among equals.
BYTE_SECONDS = 1e-21
# The part of its seconds that is added to the longest step; a step of half its seconds gets half of
# that part. Among trees that take equally long, this prefers the one whose steps are of similar
# length. Without it, the arbitrary order of gathers along two axes made the FSDP of a small scan on
# 2x4 take 52, 61 or 79 us.
EVENNESS = 1e-9


# Collectives whose result replaces their operand.
IN_PLACE = those(lambda kind: kind.sums_for_all)


class ReshardStep(NamedTuple):
    """One collective between placements that differ on one mesh axis.

    Attributes:
        kind: kind of the collective, one of ``jax.lax``; "slice" if nothing is sent; "permute" for
            a carry that is sent unchanged to the next pipeline stage.
        axis: the mesh axis whose placement changes.
        source, target: the placements before and after.
        nbytes: bytes per device of the larger buffer, before or after.
    """

    kind: str
    axis: int
    source: Placements
    target: Placements
    nbytes: int

    @property
    def collective(self) -> Kind | None:
        """The kind of the collective; ``None`` for a slice or a send."""
        return KINDS.get(self.kind)


CollectiveSeconds = Callable[[str, int, int], float]
"""Seconds of a collective, given its kind, its mesh axis, and bytes per device (larger buffer)."""


# ---------------------------------------------------------------------- steps


def reshard_steps(
    placements: Placements, sizes: Sequence[int], nbytes: int, mesh: MeshShape
) -> Iterator[ReshardStep]:
    """All reshard steps from some placements.

    Args:
        placements: placements of the tensor.
        sizes: elements of every position of the full tensor.
        nbytes: bytes of the full tensor.
        mesh: the device mesh.
    """
    # Axes that shard one position split it in their order. Only the last of them can stop sharding
    # it, and only an axis behind them can start to; otherwise blocks would be permuted.
    local_bytes = nbytes // mesh.num_shards(placements)
    for axis, old in enumerate(placements):
        if mesh.sizes[axis] == 1 or (old >= 0 and old in placements[axis + 1 :]):
            continue
        # No step leads to a partial placement, and none reduces a maximum into shards, because a
        # reduce-scatter adds.
        for new in (REPLICATED, *range(len(sizes))):
            target = (*placements[:axis], new, *placements[axis + 1 :])
            if new == old or (new >= 0 and new in placements[axis + 1 :]):
                continue
            if (old in (MAX, MIN) and new != REPLICATED) or not divides_evenly(target, sizes, mesh):
                continue
            gathers = old >= 0 and new == REPLICATED
            larger = local_bytes * mesh.sizes[axis] if gathers else local_bytes
            yield ReshardStep(_kind(old, new), axis, placements, target, larger)


def _kind(old: int, new: int) -> str:
    if old == REPLICATED:
        return "slice"
    if old >= 0:
        return "all_gather" if new == REPLICATED else "all_to_all"
    return "all_reduce" if new == REPLICATED else "reduce_scatter"


class ReshardTree(NamedTuple):
    """The reshard steps from the sources to several placements.

    Attributes:
        steps: ordered so that each starts at a source or at the target of an earlier step.
        seconds: the sum over all steps.
    """

    steps: tuple[ReshardStep, ...]
    seconds: float


NO_RESHARD = ReshardTree((), 0.0)


class ReshardGraph:
    """The placements of tensors of one shape, with the reshard steps between them as edges.

    Args:
        sizes: elements of every position of the full tensor.
        nbytes: bytes of the full tensor.
        mesh: the device mesh.
        collective_seconds: seconds of a collective.
        send_seconds: seconds of a send to the next device, given its mesh axis and bytes.
        apart: the mesh axes along which no step leads.
        overlaps: whether collectives along different axes run at the same time.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        nbytes: int,
        mesh: MeshShape,
        collective_seconds: CollectiveSeconds,
        send_seconds: Callable[[int, int], float] | None = None,
        apart: frozenset[int | None] = frozenset(),
        overlaps: bool = False,
    ):
        self.sizes, self.nbytes, self.mesh = tuple(sizes), nbytes, mesh
        self.collective_seconds, self.send_seconds = collective_seconds, send_seconds
        self.apart, self.overlaps = apart, overlaps
        self._trees: dict[tuple[frozenset[Placements], frozenset[Placements]], ReshardTree] = {}
        self._steps_from: dict[Placements, tuple[tuple[ReshardStep, float], ...]] = {}
        self._into: dict[Placements, dict[Placements, list[tuple[ReshardStep, float]]]] = {}

    def steps_from(self, placements: Placements) -> tuple[tuple[ReshardStep, float], ...]:
        """The reshard steps from some placements, with their seconds."""
        if placements not in self._steps_from:
            steps = reshard_steps(placements, self.sizes, self.nbytes, self.mesh)
            self._steps_from[placements] = tuple(
                (step, self.seconds(step)) for step in steps if step.axis not in self.apart
            )
        return self._steps_from[placements]

    def reachable(self, sources: Iterable[Placements]) -> list[Placements]:
        """The placements that can be reached, starting with the sources."""
        reached = dict.fromkeys(sources)
        pending = list(reached)
        while pending:
            for step, _ in self.steps_from(pending.pop()):
                if step.target not in reached:
                    reached[step.target] = None
                    pending.append(step.target)
        return list(reached)

    def seconds(self, step: ReshardStep) -> float:
        """Seconds of a reshard step."""
        if step.kind == "permute" and self.send_seconds is not None:
            return self.send_seconds(step.axis, step.nbytes)
        return (
            0.0
            if step.kind == "slice"
            else self.collective_seconds(step.kind, step.axis, step.nbytes)
        )

    def cheapest_tree(
        self, sources: frozenset[Placements], targets: frozenset[Placements]
    ) -> ReshardTree:
        """The cheapest steps from any of the sources to all targets: a Steiner tree.

        If axes send at the same time, the tree is chosen, among those that take equally long, whose
        steps are of similar length: gathers of many tensors follow each other, and wait for the
        axis that sends most. For 8 shards on axes of 2 and of 4 devices, gathering along the longer
        axis first sends 3/8 and 1/2 of a tensor; the other order sends 1/8 and 3/4. Otherwise the
        tree is chosen whose copies take the fewest bytes: slices along two axes cost nothing in
        either order, but the copy in between is smaller after the longer axis.

        The method is dynamic programming over subsets of targets (Dreyfus and Wagner, 1971). With
        several sources the result may be several trees.

        Raises:
            PlanError: a target cannot be reached: no reshard step makes a tensor partial.
        """
        key = (sources, targets - sources)
        if key not in self._trees:
            self._trees[key] = self._steiner(sorted(sources), sorted(key[1]))
        return self._trees[key]

    def _steiner(self, sources: list[Placements], targets: list[Placements]) -> ReshardTree:
        if not targets:
            return ReshardTree((), 0.0)
        # best[subset][placements]: least seconds from the placements to all targets of the subset.
        # first_steps: its first step, or the part of the subset where the tree branches.
        best: list[dict[Placements, float]] = [{} for _ in range(1 << len(targets))]
        first_steps: list[dict[Placements, ReshardStep | int]] = [{} for _ in best]
        into = self._steps_into(sources)
        # The least seconds from all sources together, with the source, or the part that one serves.
        root: list[tuple[float, Placements | int]] = [(math.inf, 0) for _ in best]
        for subset in range(1, len(best)):
            start: dict[Placements, float] = {}
            if subset & (subset - 1) == 0:  # a single target
                start[targets[subset.bit_length() - 1]] = 0.0
            for part in _subset_splits(subset):
                for placements in best[part].keys() & best[subset ^ part].keys():
                    total = best[part][placements] + best[subset ^ part][placements]
                    if total < start.get(placements, math.inf):
                        start[placements], first_steps[subset][placements] = total, part
            best[subset] = _dijkstra(start, first_steps[subset], into)
            choices = [(best[subset].get(s, math.inf), s) for s in sources]
            parts = _subset_splits(subset)
            split = [(root[part][0] + root[subset ^ part][0], part) for part in parts]
            root[subset] = min([*choices, *split], key=lambda choice: choice[0])
        if math.isinf(root[-1][0]):
            raise PlanError(f"no collectives lead from any of {sources} to all of {targets}")
        steps: list[ReshardStep] = []
        pending = [len(best) - 1]
        while pending:
            subset = pending.pop()
            choice = root[subset][1]
            if isinstance(choice, int):
                pending += [choice, subset ^ choice]
            else:
                _backtrack(first_steps, subset, choice, steps)
        ordered = tuple(dict.fromkeys(steps))
        return ReshardTree(ordered, math.fsum(self.seconds(step) for step in ordered))

    def _copied_bytes(self, step: ReshardStep) -> int:
        """Bytes per device of the copy that a step makes; an all-reduce does not make one."""
        return 0 if step.kind in IN_PLACE else self.nbytes // self.mesh.num_shards(step.target)

    def _steps_into(
        self, sources: Sequence[Placements]
    ) -> dict[Placements, list[tuple[ReshardStep, float]]]:
        """The steps into each reachable placement, with seconds that distinguish equal costs."""
        merged: dict[Placements, list[tuple[ReshardStep, float]]] = {}
        # The reachable placements depend only on the partial placements of a source, unless there
        # are axes along which no step leads.
        origins = {self._origin(source) for source in sources}
        for origin in origins:
            if origin not in self._into:
                steps_into = self._into[origin] = {}
                reached = self.reachable([s for s in sources if self._origin(s) == origin])
                edges = [edge for placements in reached for edge in self.steps_from(placements)]
                longest = max((cost for _, cost in edges), default=0.0) if self.overlaps else 0.0
                for step, cost in edges:
                    # An all-reduce counts as even as the two halves that it consists of.
                    halves = 2 if step.kind in IN_PLACE else 1
                    uneven = EVENNESS * cost * cost / (halves * longest) if longest else 0.0
                    held = cost + uneven + BYTE_SECONDS * self._copied_bytes(step)
                    steps_into.setdefault(step.target, []).append((step, held))
            if len(origins) == 1:
                return self._into[origin]
            for placements, into in self._into[origin].items():
                merged[placements] = list(dict.fromkeys((*merged.get(placements, ()), *into)))
        return merged

    def _origin(self, source: Placements) -> Placements:
        """A source with only its partial placements, and all others replicated, if possible."""
        if self.apart:
            return source
        return tuple(min(placement, REPLICATED) for placement in source)


def _dijkstra(
    start: dict[Placements, float],
    first_steps: dict[Placements, ReshardStep | int],
    into: Mapping[Placements, Sequence[tuple[ReshardStep, float]]],
) -> dict[Placements, float]:
    """Dijkstra's algorithm on reversed steps, from placements with known seconds."""
    best, done = dict(start), set()
    heap = [(seconds, placements) for placements, seconds in start.items()]
    heapq.heapify(heap)
    while heap:
        seconds, placements = heapq.heappop(heap)
        if placements in done:
            continue
        done.add(placements)
        for step, cost in into.get(placements, ()):
            if seconds + cost < best.get(step.source, math.inf):
                best[step.source], first_steps[step.source] = seconds + cost, step
                heapq.heappush(heap, (seconds + cost, step.source))
    return best


def _subset_splits(subset: int) -> Iterator[int]:
    """All splits of a set into two non-empty parts, given by the part with its highest member."""
    part = (subset - 1) & subset
    while part:
        if part > subset ^ part:
            yield part
        part = (part - 1) & subset


def _backtrack(first_steps, subset: int, placements: Placements, steps: list[ReshardStep]) -> None:
    choice = first_steps[subset].get(placements)
    if isinstance(choice, int):
        _backtrack(first_steps, choice, placements, steps)
        _backtrack(first_steps, subset ^ choice, placements, steps)
    elif choice is not None:
        steps.append(choice)
        _backtrack(first_steps, subset, choice.target, steps)
