"""Ways of one rank's chunks that load equivalent links equally: for scatters and broadcasts.

If all ranks send along translated ways, all links of a class carry the same, namely what the ways
of rank 0 load the whole class with. So a way is cheap if it crosses few links of full classes,
wherever these links are. For example, on a torus of equal sides, ways of rank 0 that go as often
right as left, up and down fill all links, even if all start with the same link.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from jaxcoll.orbits import Translations
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.synth.building.circles import joined_ranks

# Parts into which the targets of a scatter are dealt; a part is routed at once, and parts see the
# loads of one another. And rounds in which each part is routed again.
_PARTS, _ROUNDS = 61, 4
# A class costs its load times its share of the fullest class's load to this power, as in
# ``routing.min_congestion``.
_POWER = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Ways:
    """Sends of rank 0's chunks, each listed after the one that brings its chunk.

    Attributes:
        edges: one edge per send, of one or more links.
        chunk: chunk of each send, int64.
        before: the send that brings its chunk to its source, -1 if that is rank 0.
    """

    edges: Edges
    chunk: np.ndarray
    before: np.ndarray

    def repeated(self, chunks: int) -> Ways:
        """The same ways for ``chunks`` chunks in place of each chunk."""
        if chunks == 1:
            return self
        many = len(self.chunk)
        send = np.repeat(np.arange(many), chunks)
        piece = np.tile(np.arange(chunks), many)
        before = self.before[send]
        ptr, path = self.edges.paths_of(send)
        edges = Edges(self.edges.src[send], self.edges.dst[send], ptr, path)
        after = np.where(before < 0, -1, before * chunks + piece)
        return Ways(edges, self.chunk[send] * chunks + piece, after)


def scattered(where: Translations, busy: np.ndarray, delay: np.ndarray) -> Ways:
    """Ways from rank 0 to every other rank, one chunk for each.

    Args:
        busy, delay: seconds for which a chunk occupies each link, and until it is at its end.
    """
    topology = where.topology
    n, classes = topology.num_ranks, int(where.class_of_link.max()) + 1
    parts = [np.arange(1 + first, n, _PARTS) for first in range(min(_PARTS, n - 1))]
    loads, into = np.zeros((len(parts), classes)), [np.zeros(0, np.int64)] * len(parts)
    price = np.zeros(classes)
    price[where.class_of_link] = busy
    for _ in range(_ROUNDS):
        for part, targets in enumerate(parts):
            loads[part] = 0
            load = loads.sum(axis=0) * price
            most = max(load.max(initial=0.0), busy.max())
            cost = delay + (load * (load / most) ** _POWER)[where.class_of_link]
            into[part] = _tree(where, cost)
            loads[part] = _crossings(where, into[part], targets)
    return _listed(where, parts, into)


def _tree(where: Translations, cost: np.ndarray) -> np.ndarray:
    """The link into every vertex on cheapest paths from rank 0, int64; -1 for rank 0."""
    topology = where.topology
    size = topology.num_vertices
    key = topology.src.astype(np.int64) * size + topology.dst
    # The cheapest of parallel links, since a sparse matrix would add their costs.
    order = np.lexsort((cost, key))
    pair, first = np.unique(key[order], return_index=True)
    link = order[first]
    matrix = sp.csr_array((cost[link], (topology.src[link], topology.dst[link])), (size, size))
    _, above = sp.csgraph.dijkstra(matrix, indices=0, return_predecessors=True)
    into = np.full(size, -1)
    below = np.flatnonzero(above >= 0)
    into[below] = link[np.searchsorted(pair, above[below].astype(np.int64) * size + below)]
    return into


def _crossings(where: Translations, into: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """How often the paths to some targets cross links of each class."""
    found, at = np.zeros(int(where.class_of_link.max()) + 1), targets
    while len(at):
        link = into[at]
        found += np.bincount(where.class_of_link[link], minlength=len(found))
        at = where.topology.src[link]
        at = at[at != 0]
    return found


def _listed(where: Translations, parts: list[np.ndarray], into: list[np.ndarray]) -> Ways:
    """The paths to all targets, split at the ranks that they pass."""
    topology = where.topology
    targets = np.concatenate(parts)
    tree = np.stack(into)
    part = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
    # Hop by hop from the targets back to rank 0: rows of links, the last hop first.
    at, rows = targets.astype(np.int64), []
    while (at != 0).any():
        link = np.where(at != 0, tree[part, at], -1)
        rows.append(link)
        at = np.where(at != 0, topology.src[link], 0)
    order = np.argsort(targets)
    links = np.stack(rows[::-1], axis=1)[order]
    goes = links >= 0
    chunk = np.repeat(targets[order], goes.sum(axis=1))
    link = links[goes]
    # A send begins where a link leaves a rank.
    begins = topology.src[link] < topology.num_ranks
    first = np.flatnonzero(begins)
    edges = Edges.along(topology, np.append(first, len(link)), link)
    before = np.where(topology.src[link[first]] == 0, -1, np.arange(len(first)) - 1)
    return Ways(edges, chunk[first], before)


# ---------------------------------------------------------------------- broadcasts


def broadcast(where: Translations, pace: np.ndarray, chunks: int) -> list[Ways]:
    """Ways to broadcast rank 0's chunks, several to choose from.

    Args:
        pace: seconds for which a chunk occupies each link.
        chunks: number of chunks.
    """
    topology = where.topology
    n = topology.num_ranks
    if topology.is_direct:
        return [_level_by_level(where, pace, chunks)]
    # Straight to all ranks, which is best where the network between ranks is as wide as any part of
    # it; and to one rank of every host, which passes the chunk on inside.
    straight = np.zeros(n, np.int64)
    found = [_below(where, straight).repeated(chunks)]
    inner = joined_ranks(topology)
    if inner and inner < n and n % inner == 0:
        above = np.arange(n) // inner * inner
        above[::inner] = 0
        found.append(_below(where, above).repeated(chunks))
    return found


def _below(where: Translations, above: np.ndarray) -> Ways:
    """The ways of one chunk down a tree of two levels at most, given the parent of each rank."""
    rank = np.arange(1, len(above))
    rank = np.concatenate([rank[above[1:] == 0], rank[above[1:] != 0]])
    place = np.full(len(above), -1)
    place[rank] = np.arange(len(rank))
    edges = shortest_routes(where.topology, above[rank], rank)
    return Ways(edges, np.zeros(len(rank), np.int64), place[above[rank]])


def _level_by_level(where: Translations, pace: np.ndarray, chunks: int) -> Ways:
    """Trees of fewest hops, in which each rank is reached over the class that is loaded least."""
    topology = where.topology
    n = topology.num_ranks
    ones = np.ones(topology.num_links)
    network = sp.csr_array((ones, (topology.src, topology.dst)), (n, n))
    hops = sp.csgraph.dijkstra(network, indices=0, unweighted=True).astype(np.int64)
    ptr, link = topology.in_links
    kind = where.class_of_link
    load = [0.0] * (int(kind.max()) + 1)
    # In a level, ranks with a single way in come first: the others make up for their load.
    ways = np.bincount(topology.dst, hops[topology.src] < hops[topology.dst], n)
    order = np.lexsort((ways, hops))[1:]
    columns: list[tuple[int, int, int]] = []
    place = np.full((chunks, n), -1)
    for v in order.tolist():
        near = link[ptr[v] : ptr[v + 1]]
        near = near[hops[topology.src[near]] < hops[v]].tolist()
        for c in range(chunks):
            best = min(near, key=lambda e: load[kind[e]] + pace[e])
            load[kind[best]] += float(pace[best])
            u = int(topology.src[best])
            columns.append((best, c, int(place[c, u])))
            place[c, v] = len(columns) - 1
    path, chunk, before = np.asarray(columns, np.int64).T
    return Ways(Edges.along(topology, np.arange(len(path) + 1), path), chunk, before)
