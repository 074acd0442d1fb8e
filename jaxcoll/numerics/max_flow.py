"""Maximum flows between vertices, and the cuts that bound them.

Integer capacities are exact at any magnitude: Dinic's algorithm runs compiled on int64 columns if
no sum can reach 2**62, and otherwise as Python on Python integers, which is slower but never wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.sparse as sp

from jaxcoll.numerics.compiled import kernel

_SAFE = 2**62

Capacities = Sequence[int] | np.ndarray


@dataclasses.dataclass(frozen=True)
class Shortfall:
    """A target that a source cannot send enough to.

    Attributes:
        target: the vertex.
        flow: the most that it gets.
        source_side: whether each vertex is on the source's side of a least cut, bool of shape
            (vertices,); these are all vertices that cannot reach the target any more.
    """

    target: int
    flow: int
    source_side: np.ndarray


class FlowNetwork:
    """Arcs prepared for many flows: each with its reverse, listed by the vertex it leaves.

    Attributes:
        num_vertices: vertices are 0..num_vertices-1.
        num_arcs: arcs, in the order given; capacities come in the same order with every call.
    """

    def __init__(self, num_vertices: int, src: np.ndarray, dst: np.ndarray):
        src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
        count = len(src)
        # Arcs and their reverses are in one column, by the vertex they leave: a search reads the
        # arcs of a vertex one after another, and ``mate`` is the index of the opposite direction.
        leaves = np.concatenate([src, dst])
        order = np.argsort(leaves, kind="stable")
        position = np.empty(2 * count, np.int64)
        position[order] = np.arange(2 * count)
        self.num_vertices = num_vertices
        self.num_arcs = count
        self._ptr = np.searchsorted(leaves[order], np.arange(num_vertices + 1)).astype(np.int64)
        self._head = np.concatenate([dst, src])[order]
        reverse = np.concatenate([np.arange(count, 2 * count), np.arange(count)])
        self._mate = position[reverse[order]]
        self._position = position[:count]

    def flow(self, capacity: Capacities, source: int, sink: int, limit: int | None = None) -> int:
        """The maximum flow from source to sink, or ``limit`` once that much is found."""
        residual = self._residuals(capacity)
        most = _total(capacity) if limit is None else limit
        return self._run(residual, source, sink, most, self._scratch())

    def carried(self, capacity: Capacities, source: int, sink: int) -> list[int]:
        """The flow on each arc in one maximum flow."""
        before = self._residuals(capacity)
        after = before.copy()
        self._run(after, source, sink, _total(capacity), self._scratch())
        return [int(x) for x in (before - after)[self._position]]

    def least_cuts(
        self, capacity: Capacities, source: int, sink: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Two least cuts by the vertices beyond them, bool of shape (vertices,) each.

        They are the least cuts nearest to the sink and nearest to the source.
        """
        left = self._residuals(capacity)
        self._run(left, source, sink, _total(capacity), self._scratch())
        # A least cut has no residual left across it. So the vertices that still reach the sink in
        # the residual network, and those that the source no longer reaches, are the two extremes.
        leaves = np.repeat(np.arange(self.num_vertices), np.diff(self._ptr))
        ends = leaves[left > 0], self._head[left > 0]
        shape = (self.num_vertices, self.num_vertices)
        graph = sp.csr_matrix((np.ones(len(ends[0])), ends), shape)
        reach, beyond = np.zeros((2, self.num_vertices), np.bool_)
        reach[sp.csgraph.breadth_first_order(graph.T.tocsr(), sink, return_predecessors=False)] = 1
        beyond[sp.csgraph.breadth_first_order(graph, source, return_predecessors=False)] = 1
        return reach, ~beyond

    def first_short(
        self, capacity: Capacities, source: int, targets: Iterable[int], need: int
    ) -> Shortfall | None:
        """The first target to which the source can send less than ``need``, if any."""
        full, scratch = self._residuals(capacity), self._scratch()
        for target in targets:
            # Every target starts from the same residuals, which are filled once.
            # A flow ends as soon as the need is met. That is so for most targets, and any excess is
            # irrelevant.
            flow = self._run(full.copy(), source, int(target), need, scratch)
            if flow < need:
                # The last search went backwards from the target and did not reach the source.
                side = scratch[0][: self.num_vertices] == -1
                return Shortfall(int(target), flow, side)
        return None

    def _scratch(self) -> tuple[np.ndarray, ...]:
        # Each call has its own, because a network serves several threads at once.
        return tuple(np.empty(self.num_vertices + 1, np.int64) for _ in range(4))

    def _run(self, residual: np.ndarray, source: int, sink: int, limit: int, scratch) -> int:
        arcs = (self._ptr, self._head, self._mate)
        if residual.dtype != object and limit < _SAFE:
            return int(dinic(*arcs, residual, source, sink, limit, *scratch))
        exact = residual.astype(object, copy=False)
        return int(dinic.py_func(*arcs, exact, source, sink, limit, *scratch))

    def _residuals(self, capacity: Capacities) -> np.ndarray:
        """Residual capacity of each arc and each reverse arc: int64, or Python integers."""
        # Sums of capacities beyond 62 bits would wrap around silently, so the same kernel then runs
        # as Python, on Python's integers.
        exact = _total(capacity) >= _SAFE
        residual = np.zeros(len(self._head), object if exact else np.int64)
        residual[self._position] = [int(c) for c in capacity] if exact else capacity
        return residual


def _total(capacity: Capacities) -> int:
    # No rounding of a float sum hides a factor of four.
    if (
        isinstance(capacity, np.ndarray)
        and capacity.dtype != object
        and capacity.sum(dtype=np.float64) < _SAFE / 4
    ):
        return int(capacity.sum(dtype=np.int64))
    return sum(int(c) for c in capacity)


@kernel(cache=True)
def with_reverses(vertices, src, dst, capacity):
    """Arcs and their reverses, listed by the vertex they leave, as ``dinic`` reads them.

    Returns:
        (ptr, head, mate, residual, place): arguments of ``dinic``, and the index of each arc in
        their columns.
    """
    arcs = len(src)
    ptr = np.zeros(vertices + 1, np.int64)
    for a in range(arcs):
        ptr[src[a] + 1] += 1
        ptr[dst[a] + 1] += 1
    for v in range(vertices):
        ptr[v + 1] += ptr[v]
    at, place = ptr[:-1].copy(), np.empty(arcs, np.int64)
    head, mate = np.empty(2 * arcs, np.int64), np.empty(2 * arcs, np.int64)
    residual = np.zeros(2 * arcs, np.int64)
    for a in range(arcs):
        e, r = at[src[a]], at[dst[a]]
        at[src[a]] += 1
        at[dst[a]] += 1
        head[e], head[r], mate[e], mate[r] = dst[a], src[a], r, e
        residual[e], place[a] = capacity[a], e
    return ptr, head, mate, residual, place


@kernel(cache=True)
def dinic(ptr, head, mate, residual, source, sink, limit, level, at, queue, path):
    """Flow from source to sink, at most ``limit``; ``residual`` is updated in place.

    Afterwards, if the limit was not reached, ``level`` is -1 on the source's side of a least cut.
    """
    flow = 0
    # Dinic's phases (1970): levels by hops to the sink, then a blocking flow along ever lower
    # levels. The search starts from the sink, because callers have one source and many sinks: if
    # the flow falls short, all vertices that the last search has not reached are on the source's
    # side of a least cut.
    while flow < limit:
        level[:] = -1
        level[sink] = 0
        queue[0] = sink
        first, last = 0, 1
        while first < last and level[source] < 0:
            v = queue[first]
            first += 1
            for e in range(ptr[v], ptr[v + 1]):
                u = head[e]
                if level[u] < 0 and residual[mate[e]] > 0:
                    level[u] = level[v] + 1
                    queue[last] = u
                    last += 1
        if level[source] < 0:
            break
        for u in range(len(at)):
            at[u] = ptr[u]
        depth, u = 0, source
        while True:
            if u == sink:
                push = limit - flow
                for i in range(depth):
                    push = min(push, residual[path[i]])
                # Go back only to the first arc that is now full: the path up to it is still open,
                # and continuing from there saves the walk from the source.
                full = -1
                for i in range(depth):
                    residual[path[i]] -= push
                    residual[mate[path[i]]] += push
                    if full < 0 and residual[path[i]] == 0:
                        full = i
                flow += push
                if flow >= limit or full < 0:
                    break
                depth = full
                u = head[mate[path[depth]]]
                continue
            found = False
            while at[u] < ptr[u + 1]:
                e = at[u]
                if residual[e] > 0 and level[head[e]] >= 0 and level[head[e]] == level[u] - 1:
                    path[depth] = e
                    depth += 1
                    u = head[e]
                    found = True
                    break
                at[u] += 1
            if not found:
                if depth == 0:
                    break
                # A dead end remains one for the rest of the phase, so no later path tries it.
                level[u] = -2
                depth -= 1
                u = head[mate[path[depth]]]
                at[u] += 1
    return flow
