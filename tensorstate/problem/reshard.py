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


class Move(NamedTuple):
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


Price = Callable[[str, int, int], float]
"""Seconds of a collective: of its kind, mesh axis, and bytes of a device's larger buffer."""


# ---------------------------------------------------------------------- moves


def moves(
    placements: Placements, sizes: Sequence[int], nbytes: int, mesh: MeshShape
) -> Iterator[Move]:
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
            yield Move(_kind(placement, there), axis, placements, target, larger)


def _kind(placement: int, there: int) -> str:
    if placement == REPLICATED:
        return "slice"
    if placement >= 0:
        return "all_gather" if there == REPLICATED else "all_to_all"
    return "all_reduce" if there == REPLICATED else "reduce_scatter"


class Tree(NamedTuple):
    """The moves that bring a tensor from one state to several.

    Attributes:
        moves: in an order in which each starts at the source or where another has ended.
        seconds: of all of them.
    """

    moves: tuple[Move, ...]
    seconds: float


class Routes:
    """The cheapest ways of one kind of tensor between its states.

    Args:
        sizes: elements of every position of the whole tensor.
        nbytes: of the whole tensor.
        mesh: the device mesh.
        price: seconds of a collective.
    """

    def __init__(self, sizes: Sequence[int], nbytes: int, mesh: MeshShape, price: Price):
        self.sizes, self.nbytes, self.mesh, self.price = tuple(sizes), nbytes, mesh, price
        self._trees: dict[tuple[frozenset[Placements], frozenset[Placements]], Tree] = {}
        self._out: dict[Placements, tuple[tuple[Move, float], ...]] = {}
        self._into: dict[Placements, dict[Placements, list[tuple[Move, float]]]] = {}

    def out(self, placements: Placements) -> tuple[tuple[Move, float], ...]:
        """The moves out of a state, with their seconds."""
        if placements not in self._out:
            every = moves(placements, self.sizes, self.nbytes, self.mesh)
            self._out[placements] = tuple((move, self.seconds(move)) for move in every)
        return self._out[placements]

    def reached(self, sources: Iterable[Placements]) -> list[Placements]:
        """The states that can be reached, the sources first."""
        found = dict.fromkeys(sources)
        waiting = list(found)
        while waiting:
            for move, _ in self.out(waiting.pop()):
                if move.target not in found:
                    found[move.target] = None
                    waiting.append(move.target)
        return list(found)

    def seconds(self, move: Move) -> float:
        """Seconds of a move."""
        return 0.0 if move.kind == "slice" else self.price(move.kind, move.axis, move.nbytes)

    def tree(self, sources: frozenset[Placements], targets: frozenset[Placements]) -> Tree:
        """The cheapest moves from states that are there to others (Dreyfus and Wagner, 1971).

        With several sources it is several trees.

        Raises:
            PlanError: a target cannot be reached: nothing becomes partial by moving.
        """
        key = (sources, targets - sources)
        if key not in self._trees:
            self._trees[key] = self._steiner(sorted(sources), sorted(key[1]))
        return self._trees[key]

    def _steiner(self, sources: list[Placements], targets: list[Placements]) -> Tree:
        if not targets:
            return Tree((), 0.0)
        # best[subset][state]: seconds from the state to all of the subset; how: the first choice.
        best: list[dict[Placements, float]] = [{} for _ in range(1 << len(targets))]
        how: list[dict[Placements, Move | int]] = [{} for _ in best]
        into = self._into_from(sources)
        # The same from whichever of the sources, or from several: a state or a part.
        root: list[tuple[float, Placements | int]] = [(math.inf, 0) for _ in best]
        for subset in range(1, len(best)):
            start: dict[Placements, float] = {}
            if subset & (subset - 1) == 0:
                start[targets[subset.bit_length() - 1]] = 0.0
            for part in _proper_parts(subset):
                for placements in best[part].keys() & best[subset ^ part].keys():
                    total = best[part][placements] + best[subset ^ part][placements]
                    if total < start.get(placements, math.inf):
                        start[placements], how[subset][placements] = total, part
            best[subset] = _spread(start, how[subset], into)
            choices = [(best[subset].get(s, math.inf), s) for s in sources]
            parts = _proper_parts(subset)
            split = [(root[part][0] + root[subset ^ part][0], part) for part in parts]
            root[subset] = min([*choices, *split], key=lambda choice: choice[0])
        if math.isinf(root[-1][0]):
            raise PlanError(f"no collectives lead from any of {sources} to all of {targets}")
        found: list[Move] = []
        waiting = [len(best) - 1]
        while waiting:
            subset = waiting.pop()
            choice = root[subset][1]
            if isinstance(choice, int):
                waiting += [choice, subset ^ choice]
            else:
                _collect(how, subset, choice, found)
        ordered = tuple(dict.fromkeys(found))
        return Tree(ordered, math.fsum(self.seconds(move) for move in ordered))

    def _into_from(
        self, sources: Sequence[Placements]
    ) -> dict[Placements, list[tuple[Move, float]]]:
        """The moves into every state that can be reached."""
        found: dict[Placements, list[tuple[Move, float]]] = {}
        # Which states can be reached depends on what is partial only.
        partial = {tuple(min(placement, REPLICATED) for placement in source) for source in sources}
        for kind in partial:
            if kind not in self._into:
                one = self._into[kind] = {}
                for placements in self.reached([s for s in sources if _is_kind(s, kind)]):
                    for move, cost in self.out(placements):
                        one.setdefault(move.target, []).append((move, cost))
            if len(partial) == 1:
                return self._into[kind]
            for placements, into in self._into[kind].items():
                found[placements] = list(dict.fromkeys((*found.get(placements, ()), *into)))
        return found


def _is_kind(placements: Placements, kind: Placements) -> bool:
    return tuple(min(placement, REPLICATED) for placement in placements) == kind


def _spread(
    start: dict[Placements, float],
    how: dict[Placements, Move | int],
    into: Mapping[Placements, Sequence[tuple[Move, float]]],
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
        for move, cost in into.get(placements, ()):
            if seconds + cost < best.get(move.source, math.inf):
                best[move.source], how[move.source] = seconds + cost, move
                heapq.heappush(heap, (seconds + cost, move.source))
    return best


def _proper_parts(subset: int) -> Iterator[int]:
    """Half of the ways to split a set in two: the parts with its highest member."""
    part = (subset - 1) & subset
    while part:
        if part > subset ^ part:
            yield part
        part = (part - 1) & subset


def _collect(how, subset: int, placements: Placements, found: list[Move]) -> None:
    choice = how[subset].get(placements)
    if isinstance(choice, int):
        _collect(how, choice, placements, found)
        _collect(how, subset ^ choice, placements, found)
    elif choice is not None:
        found.append(choice)
        _collect(how, subset, choice.target, found)
