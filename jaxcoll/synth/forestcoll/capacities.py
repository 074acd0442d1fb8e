"""Step 1: how many trees each rank is the root of, and how many each link can carry (Sec. 4.5.1).

The optimum says how fast any schedule can be, and the fewest trees per rank that are as fast. Where
the chunks of a collective cannot be shared out to so many, as few as divide them are taken, and the
links are scaled to be the fastest that so few trees can use (Sec. 4.5.5). A ring of 3 ranks with
links both ways needs 2 trees per rank: with 1, one of its links would idle. Both ways make the same
frozen ``Rates``, from which the further steps go on.

``Capacities`` is what step 2 (``edge_splitting``) works on: capacities from vertex to vertex while
switches are split off, with the paths that make them up, the paper's ``routing`` (Algorithm 3).
Whether every rank still gets every tree after a split, one flow per rank tells (Theorem 25).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.throughput import Optimum, Scaling, fixed_k, optimum
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics.connectivity import FlowNetwork, Shortfall
from jaxcoll.numerics.rational import Number
from jaxcoll.topology import Topology

Pair = tuple[int, int]
Path = tuple[int, ...]
Split = tuple[int, int, int, int]  # u, w, t and an amount of (u, w) and (w, t)

# Sums of capacities stay exact in 64 bits below this, with two bits to spare for a flow and its
# residual; above it NumPy would wrap around in silence, and Python's integers take over.
_SAFE = 2**61


@dataclasses.dataclass
class PathCapacity:
    """Part of a capacity from vertex to vertex that runs over one path.

    Attributes:
        path: links of the topology in the order they are crossed.
        amount: trees.
    """

    path: Path
    amount: int


class Capacities:
    """The remaining network while its switches are split off.

    Attributes:
        topology: the network at first.
        trees: trees each rank is the root of.
        capacity: trees from vertex to vertex, above 0.
        paths: the paths that make up each capacity.
    """

    def __init__(self, topology: Topology, scaling: Scaling):
        self.topology = topology
        self.trees = scaling.trees
        self.capacity: dict[Pair, int] = {}
        self.paths: dict[Pair, list[PathCapacity]] = {}
        self._ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        for link, (pair, amount) in enumerate(zip(self._ends, scaling.capacity, strict=True)):
            if amount:
                self.capacity[pair] = self.capacity.get(pair, 0) + amount
                self.paths.setdefault(pair, []).append(PathCapacity((link,), amount))

    def ports(self, switches: Iterable[int]) -> dict[int, tuple[dict[int, int], dict[int, int]]]:
        """Per switch the capacity from each vertex into it, and from it to each."""
        found: dict[int, tuple[dict[int, int], dict[int, int]]] = {w: ({}, {}) for w in switches}
        touching = [pair for pair in self.capacity if pair[0] in found or pair[1] in found]
        for u, v in sorted(touching):
            if v in found:
                found[v][0][u] = self.capacity[u, v]
            if u in found:
                found[u][1][v] = self.capacity[u, v]
        return found

    def groups(self) -> dict[int, int]:
        """For each rank the least rank of its component among the ranks; a switch is its own."""
        n, vertices = self.topology.num_ranks, range(self.topology.num_vertices)
        ends = np.asarray([pair for pair in self.capacity if max(pair) < n]).reshape(-1, 2)
        shape = len(vertices), len(vertices)
        direct = sp.coo_matrix((np.ones(len(ends), np.int8), tuple(ends.T)), shape)
        part = sp.csgraph.connected_components(direct, directed=False)[1]
        least: dict[int, int] = {}
        return {v: least.setdefault(int(part[v]), v) for v in vertices}

    # ------------------------------------------------------------------ flows

    def first_short(self, targets: Sequence[int] | range) -> Shortfall | None:
        """The first rank that cannot get every tree from a source linked to all roots (D_k)."""
        return self._with_source(list(self.capacity)).first_short(
            [*self.capacity.values(), *self.trees],
            self.topology.num_vertices,
            targets,
            sum(self.trees),
        )

    def _with_source(self, pairs: Sequence[Pair]) -> FlowNetwork:
        """The pairs, then an arc from one more vertex to each rank."""
        source, n = self.topology.num_vertices, len(self.trees)
        ends = np.asarray(pairs, np.int64).reshape(-1, 2)
        src = np.concatenate([ends[:, 0], np.full(n, source)])
        return FlowNetwork(source + 1, src, np.concatenate([ends[:, 1], np.arange(n)]))

    def holds(self, splits: Sequence[Split]) -> bool:
        """Whether every rank still gets every tree after some splits."""
        before = dict(self.capacity)
        for split in splits:
            self.change(*split)
        short = self.first_short(range(len(self.trees)))
        self.capacity = before
        return short is None

    def most_of(self, splits: Sequence[Split]) -> list[Split]:
        """As much of some splits as leaves every rank every tree, or nearly the most.

        All are made tentatively. A rank that falls short by d names a cut, which only splits whose
        switch lies on the other side than both its ports have narrowed: d of these are taken back
        (Theorem 28 for many pairs at once). One flow per rank, and one per cut that is found.
        """
        n, before = len(self.trees), self.capacity
        after = dict(before)
        self.capacity = after
        for split in splits:
            self.change(*split)
        self.capacity = before
        pairs = list(dict.fromkeys([*before, *after]))
        number = {pair: i for i, pair in enumerate(pairs)}
        columns = np.asarray([split[:3] for split in splits], np.int64).reshape(-1, 3)
        whole = sum(before.values()) + sum(self.trees) < _SAFE
        dtype = np.int64 if whole else object
        amount = np.asarray([split[3] for split in splits], dtype)
        # Room of each pair, of the loops (u = t), which count nowhere, and of the roots.
        room = np.asarray([after.get(p, 0) for p in pairs] + [0, *self.trees], dtype)
        loop = len(pairs)
        arcs = np.asarray(
            [[number[u, w], number[w, t], number.get((u, t), loop)] for u, w, t, _ in splits],
            np.int64,
        ).reshape(-1, 3)
        counted = np.delete(np.arange(len(room)), loop)
        network = self._with_source(pairs)
        need, checked = sum(self.trees), 0
        while True:
            short = network.first_short(
                room[counted], self.topology.num_vertices, range(checked, n), need
            )
            if short is None:
                break
            checked = short.target
            side = short.source_side[columns]
            narrowing = np.flatnonzero((side[:, 0] == side[:, 2]) & (side[:, 0] != side[:, 1]))
            narrowing = narrowing[::-1]  # the last first
            total = np.cumsum(amount[narrowing])
            rest = np.maximum(need - short.flow - (total - amount[narrowing]), 0)
            back = np.minimum(amount[narrowing], rest)
            amount[narrowing] -= back
            np.add.at(room, arcs[narrowing, 0], back)
            np.add.at(room, arcs[narrowing, 1], back)
            np.subtract.at(room, arcs[narrowing, 2], back)
        return [
            (u, w, t, int(a))
            for (u, w, t), a in zip(columns.tolist(), amount.tolist(), strict=True)
            if a
        ]

    # ------------------------------------------------------------------ splits

    def change(self, u: int, w: int, t: int, amount: int) -> None:
        """Split off an amount of (u, w) and (w, t); give it back if negative. Capacities only.

        A way back to where it came from (u = t) carries nothing new, and is dropped.
        """
        for pair, more in (((u, w), -amount), ((w, t), -amount), ((u, t), amount)):
            if pair[0] != pair[1]:
                self.capacity[pair] = self.capacity.get(pair, 0) + more
                if not self.capacity[pair]:
                    del self.capacity[pair]

    def split(self, splits: Sequence[Split]) -> None:
        """Make splits, paths and all."""
        for split in splits:
            self.change(*split)
            self.route(*split)

    def route(self, u: int, w: int, t: int, amount: int) -> None:
        """Join the paths behind two split edges: the routing table, as paths."""
        into, out = self.paths[u, w], self.paths[w, t]
        while amount:
            first, second = into[-1], out[-1]
            both = min(first.amount, second.amount, amount)
            amount -= both
            for paths, part in ((into, first), (out, second)):
                part.amount -= both
                if not part.amount:
                    paths.pop()
            if u != t:
                self._add(u, t, self._without_loops(first.path + second.path), both)
        for pair in ((u, w), (w, t)):
            if not self.paths[pair]:
                del self.paths[pair]

    def _add(self, u: int, t: int, path: Path, amount: int) -> None:
        paths = self.paths.setdefault((u, t), [])
        same = next((part for part in paths if part.path == path), None)
        if same is None:
            paths.append(PathCapacity(path, amount))
        else:
            same.amount += amount

    def _without_loops(self, path: Path) -> Path:
        """The path without the loops it makes through a switch that it crosses twice."""
        kept: list[int] = []
        reached = {self._ends[path[0]][0]: 0}
        for link in path:
            end = self._ends[link][1]
            if end in reached:
                del kept[reached[end] :]
                reached = {v: count for v, count in reached.items() if count <= len(kept)}
            else:
                kept.append(link)
                reached[end] = len(kept)
        return tuple(kept)


# Trees per rank that are tried where the chunks per shard do not fit the optimum's (Sec. 4.5.5).
_SCAN = 16

Weights = tuple[Number, ...] | None


@dataclasses.dataclass(frozen=True)
class Rates:
    """A network and what its links are to carry.

    Attributes:
        topology: the network.
        best: how fast anything could be, and the cut that proves it.
        scaling: trees per rank, and trees that each link can carry.
        is_exact: whether some link carries as many trees as ``scaling.U`` allows, as at the
            optimum; links that were trimmed for a fixed k may turn out to be needed less than that.
    """

    topology: Topology
    best: Optimum
    scaling: Scaling
    is_exact: bool = True


def optimal_rates(topology: Topology, weights: Weights = None) -> Rates:
    """The optimum's own number of trees.

    Args:
        weights: size of each rank's shard relative to the others; equal when None.
    """
    best = known_optimum(topology, weights)
    return Rates(topology, best, best.scaling)


def rates_of_trees(topology: Topology, weights: Weights, k: int) -> Rates:
    """As fast as k trees per rank can be (Theorem 34)."""
    best, scaling = known_optimum(topology, weights), _scaling(topology, weights, k)
    return Rates(topology, best, scaling, is_exact=False)


def rates_for_chunks(
    topology: Topology, weights: Weights, chunks: int, k: int | None = None
) -> Rates:
    """The fastest number of trees that divides the chunks, or k.

    The optimum's own where it divides them, otherwise the fastest of up to 16 (Sec. 4.5.5).

    Args:
        chunks: chunks per shard of weight 1.

    Raises:
        CollectiveError: k does not divide the chunks.
    """
    if k is None and chunks % known_optimum(topology, weights).k == 0:
        return optimal_rates(topology, weights)
    if k is None:
        k = _fastest(topology, weights, [d for d in range(1, _SCAN + 1) if chunks % d == 0])
    elif chunks % k:
        raise CollectiveError(
            f"k={k} trees per rank need a multiple of {k} chunks per shard, got {chunks}"
        )
    return rates_of_trees(topology, weights, k)


def numbers_of_trees(topology: Topology, root: int | None = None) -> tuple[int, ...]:
    """Trees per rank of an all_gather: the fastest number of up to 16, then the optimum's own.

    Args:
        root: of a broadcast, to whose trees the numbers then apply.
    """
    ranks = range(topology.num_ranks)
    weights = None if root is None else tuple(int(rank == root) for rank in ranks)
    best = known_optimum(topology, weights)
    if best.k <= _SCAN:
        return (best.k,)
    return _fastest(topology, weights, range(1, _SCAN + 1)), best.k


def _fastest(topology: Topology, weights: Weights, numbers: Sequence[int]) -> int:
    """The number of trees per rank that takes the least time, the least of equals."""
    return min(numbers, key=lambda k: (_scaling(topology, weights, k).inverse, k))


# The same network is asked for again with every number of chunks.


@functools.lru_cache(maxsize=16)
def known_optimum(topology: Topology, weights: Weights) -> Optimum:
    """``optimum``, found once for all calls that follow each other."""
    return optimum(topology, weights)


@functools.lru_cache(maxsize=128)
def _scaling(topology: Topology, weights: Weights, k: int) -> Scaling:
    return fixed_k(topology, k, weights, best=known_optimum(topology, weights))
