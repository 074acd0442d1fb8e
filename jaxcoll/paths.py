"""Edges: rank-to-rank connections with the links they run over; distances and shortest routes.

A shortest route has the fewest links, and of those the least sum of 1/bandwidth. So a breadth-first
search from every source, layer by layer, finds the routes to all its destinations at once. Ties are
broken by the numbers of links, so that the routes are the same on every machine.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import ScheduleError, shown
from jaxcoll.links import group_by
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.connectivity import hops_from
from jaxcoll.numerics.rational import as_fraction, common_denominator
from jaxcoll.topology import Topology, connected

__all__ = ["Edges", "shortest_routes"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Edges:
    """Connections that sends use, each from a rank to a rank over a path of links.

    On a direct network an edge usually is one link. Through switches, or for an algorithm that
    ignores the wires, it is a path, which is stored and forwarded at every vertex on the way.

    Attributes:
        src, dst: ranks at the two ends, int32 of shape (edges,).
        path_ptr: the links of edge e are ``path_link[path_ptr[e]:path_ptr[e + 1]]``, int64.
        path_link: links in the order they are crossed, int32.
    """

    src: np.ndarray
    dst: np.ndarray
    path_ptr: np.ndarray
    path_link: np.ndarray

    def __post_init__(self) -> None:
        dtypes = {"src": np.int32, "dst": np.int32, "path_ptr": np.int64, "path_link": np.int32}
        checks.column_fields(self, "edges", ScheduleError, **dtypes)

    @classmethod
    def from_links(cls, topology: Topology) -> Edges:
        """Edge i is link i; only for networks without switches."""
        checks.instance(topology, Topology, "topology", ScheduleError)
        if not topology.is_direct:
            raise ScheduleError(f"{topology} has switches: give its edges paths through them")
        links = np.arange(topology.num_links)
        return cls(topology.src, topology.dst, np.arange(topology.num_links + 1), links)

    @classmethod
    def from_paths(cls, topology: Topology, paths: Sequence[Sequence[int]]) -> Edges:
        """Edge i crosses the links of path i, one or more, in this order."""
        ptr = np.cumsum([0, *map(len, paths)], dtype=np.int64)
        return cls.along(topology, ptr, np.asarray([link for path in paths for link in path], int))

    @classmethod
    def along(cls, topology: Topology, path_ptr: np.ndarray, path_link: np.ndarray) -> Edges:
        """The edges whose paths are given in columns, from the first links to the last."""
        first, last = path_link[path_ptr[:-1]], path_link[path_ptr[1:] - 1]
        return cls(topology.src[first], topology.dst[last], path_ptr, path_link)

    def __len__(self) -> int:
        return len(self.src)

    def __repr__(self) -> str:
        return f"Edges({len(self)} edges over {len(self.path_link)} links of paths)"

    @functools.cached_property
    def hops(self) -> np.ndarray:
        """Links on each edge's path, int64 of shape (edges,)."""
        return np.diff(self.path_ptr)

    @property
    def first_link(self) -> np.ndarray:
        """The link by which each edge leaves its source, int32 of shape (edges,)."""
        return self.path_link[self.path_ptr[:-1]]

    def path(self, edge: int) -> tuple[int, ...]:
        """The links of one edge."""
        return tuple(int(x) for x in self.path_link[self.path_ptr[edge] : self.path_ptr[edge + 1]])

    def paths_of(self, edge: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The links of some edges, each as often as it is named, one path after another.

        Returns:
            ptr and link: the links of the i-th are ``link[ptr[i]:ptr[i + 1]]``; int64 and int32.
        """
        if (self.hops == 1).all():
            return np.arange(len(edge) + 1), self.path_link[edge]
        hops = self.hops[edge]
        ptr = np.concatenate([[0], np.cumsum(hops)])
        offset = np.arange(ptr[-1]) - np.repeat(ptr[:-1], hops)
        return ptr, self.path_link[np.repeat(self.path_ptr[edge], hops) + offset]

    def check(self, topology: Topology) -> None:
        """Refuse edges that do not run over the topology's links from source to destination.

        Raises:
            ScheduleError: naming the first bad edge.
        """
        count = len(self.src)
        if not (len(self.dst) == count and len(self.path_ptr) == count + 1):
            raise ScheduleError("edges need one src, dst and path each")
        if self.path_ptr[0] != 0 or self.path_ptr[-1] != len(self.path_link):
            raise ScheduleError("path_ptr must run from 0 to the number of path links")
        if count == 0:
            return
        # Compared, not subtracted: differences of hostile numbers wrap around.
        self._refuse(self.path_ptr[1:] <= self.path_ptr[:-1], "has no links")
        ends = np.stack([self.src, self.dst])
        self._refuse(((ends < 0) | (ends >= topology.num_ranks)).any(axis=0), "does not join ranks")
        self._refuse(self.src == self.dst, "joins a rank to itself")
        bad = _first_broken(
            self.src, self.dst, self.path_ptr, self.path_link, topology.src, topology.dst
        )
        if bad < 0:
            return
        path = self.path(bad)
        if min(path) < 0 or max(path) >= topology.num_links:
            raise ScheduleError(f"edge {bad} uses a link that {topology} does not have")
        names = [topology.link_name(link) for link in path[:8]]
        self._refuse(np.arange(count) == bad, f"has a broken path {shown(names)}")

    def _refuse(self, bad, text: str) -> None:
        if bad.any():
            edge = int(np.flatnonzero(bad)[0])
            raise ScheduleError(f"edge {edge} ({self.src[edge]}->{self.dst[edge]}) {text}")

    def reverse(self, link_image: np.ndarray) -> Edges:
        """Every edge reversed, link i having become ``link_image[i]``."""
        # Edges stay in order; the links of each are read from the last to the first.
        edge_of = np.repeat(np.arange(len(self)), self.hops)
        order = np.lexsort((-np.arange(len(self.path_link)), edge_of))
        return Edges(self.dst, self.src, self.path_ptr, link_image[self.path_link][order])

    def relabel(self, permutation: np.ndarray, link_image: np.ndarray) -> Edges:
        """Rank r called ``permutation[r]``, link i called ``link_image[i]``."""
        src, dst = permutation[self.src], permutation[self.dst]
        return Edges(src, dst, self.path_ptr, link_image[self.path_link])

    def same_as(self, other: Edges) -> bool:
        """Whether both list the same edges in the same order."""
        return all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("src", "dst", "path_ptr", "path_link")
        )


@kernel(cache=True)
def _first_broken(src, dst, path_ptr, path_link, link_src, link_dst):
    """The first edge whose links do not lead from its source to its destination, or -1."""
    for e in range(len(src)):
        at = src[e]
        for i in range(path_ptr[e], path_ptr[e + 1]):
            link = path_link[i]
            if link < 0 or link >= len(link_src) or link_src[link] != at:
                return e
            at = link_dst[link]
        if at != dst[e]:
            return e
    return -1


# ---------------------------------------------------------------------- distances


def hop_distances(topology: Topology) -> np.ndarray:
    """Fewest links from rank to rank, int32 of shape (ranks, ranks)."""
    # A network that may have unreachable ranks is refused here, where -1 would pass for a distance.
    n = connected(topology).num_ranks
    out = np.empty((n, n), np.int32)
    ptr, link = topology.out_links
    hops_from(ptr, topology.dst[link], np.arange(n), out)
    return out


def latency_distances(topology: Topology) -> np.ndarray:
    """Least sum of alpha from rank to rank in seconds, float64 of shape (ranks, ranks)."""
    return least_distances(connected(topology), topology.alpha)


def least_distances(topology: Topology, lengths: np.ndarray) -> np.ndarray:
    """Least sum of lengths from rank to rank, float64 of shape (ranks, ranks).

    Args:
        lengths: length of each link, at least 0, float64 of shape (links,).
    """
    n = topology.num_ranks
    if topology.num_links and (lengths == lengths[0]).all():
        return hop_distances(topology) * float(lengths[0])
    return distances_from_ranks(topology, lengths)[:, :n]


def distances_from_ranks(topology: Topology, lengths: np.ndarray) -> np.ndarray:
    """Least sum of lengths from each rank to each vertex, float64 of shape (ranks, vertices).

    Infinite at switches that no rank reaches.

    Args:
        lengths: length of each link, at least 0, float64 of shape (links,).
    """
    return distances_from(topology, lengths, np.arange(topology.num_ranks))


def distances_from(topology: Topology, lengths: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """The same from each of some vertices, float64 of shape (sources, vertices)."""
    # Equal lengths: counting links is exact, and faster than Dijkstra's heap.
    if topology.num_links and (lengths == lengths[0]).all():
        hops = np.empty((len(sources), topology.num_vertices), np.int32)
        ptr, link = topology.out_links
        hops_from(ptr, topology.dst[link], sources, hops)
        return np.where(hops < 0, np.inf, hops * float(lengths[0]))
    return sp.csgraph.dijkstra(_graph_of(topology, lengths), indices=sources)


def exact_latency(topology: Topology, u: int, v: int) -> Fraction:
    """The sum of alpha along a path of least latency from rank u to rank v, in seconds, exact."""
    # Floats choose the path: two that differ by rounding alone are equally good. Its sum is exact.
    graph = latency_graph(topology)
    _, parent = sp.csgraph.dijkstra(graph, indices=u, return_predecessors=True)
    total = Fraction(0)
    while v != u:
        total += as_fraction(float(graph[parent[v], v]))
        v = int(parent[v])
    return total


def latency_graph(topology: Topology) -> sp.csr_matrix:
    """Alpha between vertices, of parallel links the least."""
    return _graph_of(topology, topology.alpha)


def _graph_of(topology: Topology, lengths: np.ndarray) -> sp.csr_matrix:
    """Lengths between vertices, of parallel links the least (a sparse matrix would add them)."""
    order = np.lexsort((lengths, topology.dst, topology.src))
    pair = topology.src[order].astype(np.int64) * topology.num_vertices + topology.dst[order]
    keep = order[np.append(True, pair[1:] != pair[:-1])] if len(order) else order
    ends = (topology.src[keep], topology.dst[keep])
    return sp.csr_matrix((lengths[keep], ends), shape=(topology.num_vertices,) * 2)


def fewest_hops(size: int, tails: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Fewest arcs from vertex to vertex of a digraph, int32 of shape (size, size); -1 if no path.

    Args:
        size: number of vertices.
        tails, heads: ends of each arc; loops and parallel arcs change nothing.
    """
    out = np.empty((size, size), np.int32)
    ptr, arc = group_by(tails, size)
    hops_from(ptr, heads[arc], np.arange(size), out)
    return out


# ---------------------------------------------------------------------- shortest routes


def shortest_routes(topology: Topology, src: np.ndarray, dst: np.ndarray) -> Edges:
    """Edges that join given pairs of ranks over shortest paths.

    A path has the fewest links; among those the least sum of 1/bandwidth; among those, read
    backwards from the destination, the lowest-numbered link at every vertex.

    Args:
        src, dst: ranks, integers of shape (pairs,), src[i] != dst[i].

    Raises:
        ScheduleError: columns of unequal length, a rank out of range, a pair of equal ranks.
        TopologyError: ranks that cannot reach each other.
    """
    connected(topology)
    src = checks.column(src, np.int32, "src", ScheduleError)
    dst = checks.column(dst, np.int32, "dst", ScheduleError)
    if len(src) != len(dst):
        raise ScheduleError(f"pairs need one src and one dst each, got {len(src)} and {len(dst)}")
    n = topology.num_ranks
    for bad, text in (
        ((src < 0) | (src >= n) | (dst < 0) | (dst >= n), f"ranks are 0..{n - 1}"),
        (src == dst, "a route joins two different ranks"),
    ):
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ScheduleError(f"pair {i} ({src[i]}->{dst[i]}): {text}")
    # Pairs by source: one search serves all pairs of a source.
    ptr, link = topology.out_links
    order = np.argsort(src, kind="stable")
    outgoing = _Links(ptr, link, topology.src, topology.dst, _costs(topology))
    lengths, links = _routes(outgoing, src[order], dst[order])
    # Back to the order of the pairs as given.
    start = np.concatenate([[0], np.cumsum(lengths)])
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    path_ptr = np.concatenate([[0], np.cumsum(lengths[position])])
    offset = np.arange(path_ptr[-1]) - np.repeat(path_ptr[:-1], lengths[position])
    path_link = links[np.repeat(start[:-1][position], lengths[position]) + offset]
    return Edges(src, dst, path_ptr, path_link)


@functools.lru_cache(maxsize=16)
def next_hops(topology: Topology) -> list[dict[int, int]]:
    """By vertex, the neighbour that is next on the way to each rank it reaches.

    As IP forwards: along the fewest links, however slow one of them is, and of equals to the
    neighbour with the lowest number, whose own way is the rest.
    """
    into: list[list[int]] = [[] for _ in range(topology.num_vertices)]
    for a, b in sorted(set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))):
        into[b].append(a)
    following: list[dict[int, int]] = [{} for _ in range(topology.num_vertices)]
    for rank in range(topology.num_ranks):
        reached, queue = {rank}, [rank]
        for v in queue:
            for u in into[v]:
                if u not in reached:
                    reached.add(u)
                    queue.append(u)
                    following[u][rank] = v
    return following


def forwarded_routes(topology: Topology, src: np.ndarray, dst: np.ndarray) -> Edges:
    """Edges that join given pairs of ranks along ``next_hops``.

    Args:
        src, dst: ranks, integers of shape (pairs,), src[i] != dst[i], each reached from the other.
    """
    following, link = next_hops(topology), {}
    for k in range(topology.num_links - 1, -1, -1):  # of several the first
        link[int(topology.src[k]), int(topology.dst[k])] = k
    paths = []
    for at, end in zip(src.tolist(), dst.tolist(), strict=True):
        path = []
        while at != end:
            path.append(link[at, following[at][end]])
            at = following[at][end]
        paths.append(path)
    return Edges.from_paths(topology, paths)


def _costs(topology: Topology) -> np.ndarray:
    """1/bandwidth of each link in whole units, int64 of shape (links,)."""
    # Sums of integers do not depend on the order of their terms, so ways of equal cost tie. Exact
    # unless a sum over all vertices would take more than 62 bits; then rounded to as many.
    speeds, which = topology.speeds
    cost = [1 / bandwidth for _, bandwidth in speeds]
    most = 2**62 // topology.num_vertices
    unit = Fraction(common_denominator(cost))
    unit = min(unit, most / max(cost, default=Fraction(1)))
    return np.asarray([max(1, math.floor(unit * parts)) for parts in cost], np.int64)[which]


class _Links(NamedTuple):
    """Outgoing links by vertex (``Topology.out_links``); ends and costs (``_costs``) of all."""

    ptr: np.ndarray
    link: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    cost: np.ndarray


class _Tree(NamedTuple):
    """A tree of best paths from a source: hops, cost and parent link of every vertex."""

    hops: np.ndarray
    total: np.ndarray
    parent: np.ndarray
    queue: np.ndarray


@kernel(cache=True)
def _grow(links, source, wanted, tree):
    """Predecessor link of every vertex on its best path from ``source``, layer by layer.

    Stops after the layer in which the last of ``wanted`` vertices marked -2 in ``hops`` is found.
    """
    hops, total, parent, queue = tree
    ptr, link, cost = links.ptr, links.link, links.cost
    total[source] = 0
    hops[source] = 0
    queue[0] = source
    first, last, layer = 0, 1, 0
    while wanted > 0 and first < last:
        end = last
        for k in range(first, last):
            u = queue[k]
            # A vertex found in this layer may still be reached more cheaply from another vertex of
            # the layer before, so its parent is settled only when the layer ends.
            for i in range(ptr[u], ptr[u + 1]):
                v = links.dst[link[i]]
                through = total[u] + cost[link[i]]
                if hops[v] < 0:
                    wanted -= hops[v] == -2
                    hops[v] = layer + 1
                    queue[end] = v
                    end += 1
                    better = True
                else:
                    tie = through == total[v] and link[i] < parent[v]
                    better = hops[v] > layer and (through < total[v] or tie)
                if better:
                    total[v] = through
                    parent[v] = link[i]
        first, last, layer = last, end, layer + 1


@kernel(cache=True)
def _routes(links, src, dst):
    """Lengths and links of the routes; pairs sorted by source."""
    # One set of arrays for all searches, and routes in one that doubles as they come.
    vertices = len(links.ptr) - 1
    hops = np.empty(vertices, np.int32)
    total = np.empty(vertices, np.int64)
    parent = np.empty(vertices, np.int32)
    tree = _Tree(hops, total, parent, np.empty(vertices, np.int32))
    lengths = np.empty(len(src), np.int64)
    route = np.empty(4 * len(src) + 16, np.int32)
    used = done = 0
    while done < len(src):
        # -1 is a vertex not found yet, -2 one that is wanted: the search ends with the last wanted.
        hops[:] = -1
        wanted, until = 0, done
        while until < len(src) and src[until] == src[done]:
            wanted += hops[dst[until]] == -1
            hops[dst[until]] = -2
            until += 1
        _grow(links, src[done], wanted, tree)
        for i in range(done, until):
            length = hops[dst[i]]
            lengths[i] = length
            if used + length > len(route):
                longer = np.empty(2 * (used + length), np.int32)
                longer[:used] = route[:used]
                route = longer
            v = dst[i]  # from the destination back, by parents
            for j in range(length - 1, -1, -1):
                route[used + j] = parent[v]
                v = links.src[parent[v]]
            used += length
        done = until
    return lengths, route[:used]
