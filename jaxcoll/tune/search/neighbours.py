"""Points ahead of a point along an axis, ranked, without listing a subspace of millions."""

from __future__ import annotations

import numpy as np

from jaxcoll.tune.spaces.space import Index, Subspace


class Unvisited:
    """The points of a subspace that were not measured yet (``restCandidates``)."""

    def __init__(self, subspace: Subspace):
        self.subspace = subspace
        self.values = [np.array(p.values, float) for p in subspace.resources]
        self.visited: set[Index] = set()

    @property
    def count(self) -> int:
        """How many points remain."""
        return self.subspace.size - len(self.visited)

    def visit(self, index: Index) -> None:
        """Marks a point as measured."""
        self.visited.add(index)

    def draw(self, rng: np.random.Generator) -> Index:
        """One of the remaining points, marked as measured.

        The drawn position is moved on past measured ones; there must be one that remains.
        """
        position = int(rng.integers(self.subspace.size))
        while (index := self._unravel(position)) in self.visited:
            position = (position + 1) % self.subspace.size
        self.visit(index)
        return index

    def ahead(
        self, current: Index, axis: int, upwards: bool, rate: float, count: int
    ) -> list[Index]:
        """Up to ``count`` points: the last ones of the nearest ``max(count, rate * all ahead)``.

        Nearness is the distance along the axis, then the angle to it: in a plane across the axis,
        the distance from the axis.
        """
        if not self.subspace.shape:
            return []
        step = 1 if upwards else -1
        end = self.subspace.shape[axis] if upwards else -1
        planes = range(current[axis] + step, end, step)
        area = self.subspace.size // self.subspace.shape[axis]
        gone = [0] * self.subspace.shape[axis]
        for index in self.visited:
            gone[index[axis]] += 1
        remaining = sum(area - gone[plane] for plane in planes)
        last = min(remaining, max(count, int(rate * remaining)))
        wanted, found = range(max(0, last - count), last), []
        passed = 0
        for plane in planes:
            here = area - gone[plane]
            ranks = [rank - passed for rank in wanted if passed <= rank < passed + here]
            if ranks:
                ranked = self._ranked(current, axis, plane, max(ranks) + 1)
                found += [ranked[rank] for rank in ranks]
            passed += here
        return found[::-1]

    def _ranked(self, current: Index, axis: int, plane: int, count: int) -> list[Index]:
        """The ``count`` remaining points of a plane that are nearest to the axis, in order."""
        shape = tuple(1 if d == axis else n for d, n in enumerate(self.subspace.shape))
        squares = np.zeros(shape)
        for d, values in enumerate(self.values):
            if d != axis:
                along = [1] * len(shape)
                along[d] = -1
                squares = squares + ((values - values[current[d]]) ** 2).reshape(along)
        for index in self.visited:
            if index[axis] == plane:
                squares[tuple(0 if d == axis else i for d, i in enumerate(index))] = np.inf
        flat = squares.ravel()
        nearest = np.arange(flat.size)
        if count < flat.size:
            nearest = np.sort(np.argpartition(flat, count - 1)[:count])
        nearest = nearest[np.argsort(flat[nearest], kind="stable")][:count]
        indices = (np.unravel_index(int(i), shape) for i in nearest)
        return [
            tuple(plane if d == axis else int(i) for d, i in enumerate(index)) for index in indices
        ]

    def _unravel(self, position: int) -> Index:
        return tuple(int(i) for i in np.unravel_index(position, self.subspace.shape))
