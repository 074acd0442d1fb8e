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
from tensorstate.ir.placements import MAX, MIN, REPLICATED, MeshShape, State, fits


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
    source: State
    target: State
    nbytes: int


Price = Callable[[str, int, int], float]
"""Seconds of a collective: of its kind, mesh axis, and bytes of a device's larger buffer."""


# ---------------------------------------------------------------------- moves


def moves(state: State, sizes: Sequence[int], nbytes: int, mesh: MeshShape) -> Iterator[Move]:
    """All moves out of a state.

    Args:
        state: where the tensor is.
        sizes: elements of every position of the whole tensor.
        nbytes: of the whole tensor.
        mesh: the device mesh.
    """
    here = nbytes // mesh.shards(state)
    for axis, entry in enumerate(state):
        if mesh.sizes[axis] == 1 or (entry >= 0 and entry in state[axis + 1 :]):
            continue
        for there in (REPLICATED, *range(len(sizes))):
            target = (*state[:axis], there, *state[axis + 1 :])
            if there == entry or (there >= 0 and there in state[axis + 1 :]):
                continue
            if (entry in (MAX, MIN) and there != REPLICATED) or not fits(target, sizes, mesh):
                continue
            larger = here * mesh.sizes[axis] if entry >= 0 and there == REPLICATED else here
            yield Move(_kind(entry, there), axis, state, target, larger)


def _kind(entry: int, there: int) -> str:
    if entry == REPLICATED:
        return "slice"
    if entry >= 0:
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
        self._trees: dict[tuple[frozenset[State], frozenset[State]], Tree] = {}
        self._out: dict[State, tuple[tuple[Move, float], ...]] = {}
        self._into: dict[State, dict[State, list[tuple[Move, float]]]] = {}

    def out(self, state: State) -> tuple[tuple[Move, float], ...]:
        """The moves out of a state, with their seconds."""
        if state not in self._out:
            every = moves(state, self.sizes, self.nbytes, self.mesh)
            self._out[state] = tuple((move, self.seconds(move)) for move in every)
        return self._out[state]

    def reached(self, sources: Iterable[State]) -> list[State]:
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

    def tree(self, sources: frozenset[State], targets: frozenset[State]) -> Tree:
        """The cheapest moves from states that are there to others (Dreyfus and Wagner, 1971).

        With several sources it is several trees.

        Raises:
            PlanError: a target cannot be reached: nothing becomes partial by moving.
        """
        key = (sources, targets - sources)
        if key not in self._trees:
            self._trees[key] = self._steiner(sorted(sources), sorted(key[1]))
        return self._trees[key]

    def _steiner(self, sources: list[State], targets: list[State]) -> Tree:
        if not targets:
            return Tree((), 0.0)
        # best[subset][state]: seconds from the state to all of the subset; how: the first choice.
        best: list[dict[State, float]] = [{} for _ in range(1 << len(targets))]
        how: list[dict[State, Move | int]] = [{} for _ in best]
        into = self._into_from(sources)
        # The same from whichever of the sources, or from several: a state or a part.
        root: list[tuple[float, State | int]] = [(math.inf, 0) for _ in best]
        for subset in range(1, len(best)):
            start: dict[State, float] = {}
            if subset & (subset - 1) == 0:
                start[targets[subset.bit_length() - 1]] = 0.0
            for part in _proper_parts(subset):
                for state in best[part].keys() & best[subset ^ part].keys():
                    total = best[part][state] + best[subset ^ part][state]
                    if total < start.get(state, math.inf):
                        start[state], how[subset][state] = total, part
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

    def _into_from(self, sources: Sequence[State]) -> dict[State, list[tuple[Move, float]]]:
        """The moves into every state that can be reached."""
        found: dict[State, list[tuple[Move, float]]] = {}
        # Which states can be reached depends on what is partial only.
        partial = {tuple(min(entry, REPLICATED) for entry in source) for source in sources}
        for kind in partial:
            if kind not in self._into:
                one = self._into[kind] = {}
                for state in self.reached([s for s in sources if _is_kind(s, kind)]):
                    for move, cost in self.out(state):
                        one.setdefault(move.target, []).append((move, cost))
            if len(partial) == 1:
                return self._into[kind]
            for state, into in self._into[kind].items():
                found[state] = list(dict.fromkeys((*found.get(state, ()), *into)))
        return found


def _is_kind(state: State, kind: State) -> bool:
    return tuple(min(entry, REPLICATED) for entry in state) == kind


def _spread(
    start: dict[State, float],
    how: dict[State, Move | int],
    into: Mapping[State, Sequence[tuple[Move, float]]],
) -> dict[State, float]:
    """Dijkstra against the moves, from states whose seconds are known already."""
    best, done = dict(start), set()
    heap = [(seconds, state) for state, seconds in start.items()]
    heapq.heapify(heap)
    while heap:
        seconds, state = heapq.heappop(heap)
        if state in done:
            continue
        done.add(state)
        for move, cost in into.get(state, ()):
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


def _collect(how, subset: int, state: State, found: list[Move]) -> None:
    choice = how[subset].get(state)
    if isinstance(choice, int):
        _collect(how, choice, state, found)
        _collect(how, subset ^ choice, state, found)
    elif choice is not None:
        found.append(choice)
        _collect(how, subset, choice.target, found)
