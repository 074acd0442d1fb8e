"""The collectives that lead a tensor from one state to another.

A move changes the state on one axis and is one collective, or none at all: a replicated tensor is
sharded by forgetting. Moves make a graph of states; a tensor that several operators read in several
states travels along the cheapest tree in that graph, and pays for a branch once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorstate.errors import PlanError
from tensorstate.ir.placements import MAX, MIN, REPLICATED, MeshShape, Placements, divides_evenly


class ReshardStep(NamedTuple):
    """One step from a state to another.

    Attributes:
        kind: "all_gather", "reduce_scatter", "all_reduce" or "all_to_all"; "slice" when nothing is
            sent.
        axis: the mesh axis that changes.
        source, target: the states before and after.
        nbytes: of the larger of a device's buffers before and after.
    """

    kind: str
    axis: int
    source: Placements
    target: Placements
    nbytes: int


CollectiveSeconds = Callable[[str, int, int], float]
"""Seconds of a collective: of its kind, mesh axis, and bytes of a device's larger buffer."""


# ---------------------------------------------------------------------- moves


def reshard_steps(
    placements: Placements, sizes: Sequence[int], nbytes: int, mesh: MeshShape
) -> Iterator[ReshardStep]:
    """All moves out of a state.

    Args:
        placements: where the tensor is.
        sizes: elements of every position of the whole tensor.
        nbytes: of the whole tensor.
        mesh: the device mesh.
    """
    here = nbytes // mesh.num_shards(placements)
    for axis, placement in enumerate(placements):
        if mesh.sizes[axis] == 1 or (placement >= 0 and placement in placements[axis + 1 :]):
            continue
        for there in (REPLICATED, *range(len(sizes))):
            target = (*placements[:axis], there, *placements[axis + 1 :])
            if there == placement or (there >= 0 and there in placements[axis + 1 :]):
                continue
            if (placement in (MAX, MIN) and there != REPLICATED) or not divides_evenly(
                target, sizes, mesh
            ):
                continue
            larger = here * mesh.sizes[axis] if placement >= 0 and there == REPLICATED else here
            yield ReshardStep(_kind(placement, there), axis, placements, target, larger)


def _kind(placement: int, there: int) -> str:
    if placement == REPLICATED:
        return "slice"
    if placement >= 0:
        return "all_gather" if there == REPLICATED else "all_to_all"
    return "all_reduce" if there == REPLICATED else "reduce_scatter"


class ReshardTree(NamedTuple):
    """The moves that bring a tensor from one state to several.

    Attributes:
        steps: in an order in which each starts at the source or where another has ended.
        seconds: of all of them.
    """

    steps: tuple[ReshardStep, ...]
    seconds: float


class ReshardGraph:
    """The cheapest ways of one kind of tensor between its states.

    Args:
        sizes: elements of every position of the whole tensor.
        nbytes: of the whole tensor.
        mesh: the device mesh.
        collective_seconds: seconds of a collective.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        nbytes: int,
        mesh: MeshShape,
        collective_seconds: CollectiveSeconds,
    ):
        self.sizes, self.nbytes, self.mesh, self.collective_seconds = (
            tuple(sizes),
            nbytes,
            mesh,
            collective_seconds,
        )
        self._trees: dict[tuple[frozenset[Placements], frozenset[Placements]], ReshardTree] = {}
        self._steps_from: dict[Placements, tuple[tuple[ReshardStep, float], ...]] = {}
        self._into: dict[Placements, dict[Placements, list[tuple[ReshardStep, float]]]] = {}

    def steps_from(self, placements: Placements) -> tuple[tuple[ReshardStep, float], ...]:
        """The moves out of a state, with their seconds."""
        if placements not in self._steps_from:
            every = reshard_steps(placements, self.sizes, self.nbytes, self.mesh)
            self._steps_from[placements] = tuple((step, self.seconds(step)) for step in every)
        return self._steps_from[placements]

    def reachable(self, sources: Iterable[Placements]) -> list[Placements]:
        """The states that can be reached, the sources first."""
        found = dict.fromkeys(sources)
        pending = list(found)
        while pending:
            for step, _ in self.steps_from(pending.pop()):
                if step.target not in found:
                    found[step.target] = None
                    pending.append(step.target)
        return list(found)

    def seconds(self, step: ReshardStep) -> float:
        """Seconds of a move."""
        return (
            0.0
            if step.kind == "slice"
            else self.collective_seconds(step.kind, step.axis, step.nbytes)
        )

    def cheapest_tree(
        self, sources: frozenset[Placements], targets: frozenset[Placements]
    ) -> ReshardTree:
        """The cheapest moves from states that are there to others (Dreyfus and Wagner, 1971).

        With several sources it is several trees.

        Raises:
            PlanError: a target cannot be reached: nothing becomes partial by moving.
        """
        key = (sources, targets - sources)
        if key not in self._trees:
            self._trees[key] = self._steiner(sorted(sources), sorted(key[1]))
        return self._trees[key]

    def _steiner(self, sources: list[Placements], targets: list[Placements]) -> ReshardTree:
        if not targets:
            return ReshardTree((), 0.0)
        # best[subset][state]: seconds from the state to all of the subset; first_steps: the first
        # choice.
        best: list[dict[Placements, float]] = [{} for _ in range(1 << len(targets))]
        first_steps: list[dict[Placements, ReshardStep | int]] = [{} for _ in best]
        into = self._steps_into(sources)
        # The same from whichever of the sources, or from several: a state or a part.
        root: list[tuple[float, Placements | int]] = [(math.inf, 0) for _ in best]
        for subset in range(1, len(best)):
            start: dict[Placements, float] = {}
            if subset & (subset - 1) == 0:
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
        found: list[ReshardStep] = []
        pending = [len(best) - 1]
        while pending:
            subset = pending.pop()
            choice = root[subset][1]
            if isinstance(choice, int):
                pending += [choice, subset ^ choice]
            else:
                _backtrack(first_steps, subset, choice, found)
        ordered = tuple(dict.fromkeys(found))
        return ReshardTree(ordered, math.fsum(self.seconds(step) for step in ordered))

    def _steps_into(
        self, sources: Sequence[Placements]
    ) -> dict[Placements, list[tuple[ReshardStep, float]]]:
        """The moves into every state that can be reached."""
        found: dict[Placements, list[tuple[ReshardStep, float]]] = {}
        # Which states can be reached depends on what is partial only.
        partial = {tuple(min(placement, REPLICATED) for placement in source) for source in sources}
        for kind in partial:
            if kind not in self._into:
                one = self._into[kind] = {}
                for placements in self.reachable([s for s in sources if _same_partials(s, kind)]):
                    for step, cost in self.steps_from(placements):
                        one.setdefault(step.target, []).append((step, cost))
            if len(partial) == 1:
                return self._into[kind]
            for placements, into in self._into[kind].items():
                found[placements] = list(dict.fromkeys((*found.get(placements, ()), *into)))
        return found


def _same_partials(placements: Placements, kind: Placements) -> bool:
    return tuple(min(placement, REPLICATED) for placement in placements) == kind


def _dijkstra(
    start: dict[Placements, float],
    first_steps: dict[Placements, ReshardStep | int],
    into: Mapping[Placements, Sequence[tuple[ReshardStep, float]]],
) -> dict[Placements, float]:
    """Dijkstra against the moves, from states whose seconds are known already."""
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
    """Half of the ways to split a set in two: the parts with its highest member."""
    part = (subset - 1) & subset
    while part:
        if part > subset ^ part:
            yield part
        part = (part - 1) & subset


def _backtrack(first_steps, subset: int, placements: Placements, found: list[ReshardStep]) -> None:
    choice = first_steps[subset].get(placements)
    if isinstance(choice, int):
        _backtrack(first_steps, choice, placements, found)
        _backtrack(first_steps, subset ^ choice, placements, found)
    elif choice is not None:
        found.append(choice)
        _backtrack(first_steps, subset, choice.target, found)
