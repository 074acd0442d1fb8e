"""Digraph: a regular directed graph as columns of arcs, with self-loops and parallel arcs.

The dissertation's cost model (Sec. 3.3.2) gives every rank d ports of equal bandwidth, so a direct
network is a digraph of d arcs out of every vertex and into it: ports that are not needed are
self-loops, and ports that lead to the same rank are parallel arcs. Arcs are numbered by their tail,
d at each, because expansions turn them into vertices and schedules: arc a of G is vertex a of L(G).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import TopologyError
from jaxcoll.links import check_size, count, latency, speed
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import orbits
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH, uniform
from jaxcoll.topology import Topology

if TYPE_CHECKING:  # imported where it is used: only those who have such a graph need the package
    import networkx as nx


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Digraph:
    """A strongly connected digraph in which every vertex has ``degree`` arcs out and in.

    Every vertex is a rank, every arc a link of bandwidth B/d. A self-loop uses a port at each end
    and carries nothing: it counts in the degree, and so in the bandwidth B of a rank, and it is a
    vertex of the line graph. ``Topology`` has no self-loops, hence this type.

    Arcs are kept in canonical order, by tail, then head; parallel arcs keep the order given. The
    arcs that are not self-loops are, in this order, the links of ``topology()``.

    Attributes:
        size: number of vertices N, at least 2.
        degree: arcs out of each vertex, and into it; d, at least 1.
        tails, heads: the two ends of each arc, int64 of shape (size * degree,).
        name: a label in the notation of Table A.3.
        generators: known automorphisms as vertex permutations (``generators[g][v]`` is v's image).
        reversal: a known isomorphism f to the transpose: for every arc (u, v) there is an arc
            (f(v), f(u)) (Definition 6). The identity is found where the digraph is undirected;
            None where an isomorphism is not known; one may exist.

    Raises:
        TopologyError: columns have unequal lengths, a vertex is out of range or has another degree,
            vertices cannot reach each other, a generator does not map the arcs onto themselves, a
            reversal does not map them onto their reverses, or the digraph is too large.

    Source: Section 3.3.1 and Appendix A.2 of "Accelerating Collective Communication for Distributed
    Machine Learning" (dissertation), as are all theorems, definitions and tables named here.
    """

    size: int
    degree: int
    tails: np.ndarray
    heads: np.ndarray
    name: str = ""
    generators: tuple[tuple[int, ...], ...] = ()
    reversal: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        size, degree = count(self.size, "size", least=2), count(self.degree, "degree")
        name = checks.text(self.name, "name", TopologyError)
        check_size(name or "the digraph", size, size * degree)
        tails, heads = (_vertices(getattr(self, end), end, size) for end in ("tails", "heads"))
        _check_regular(size, degree, tails, heads)
        # A stable sort keeps the given order of parallel arcs, since schedules name arcs by number.
        order = np.lexsort((heads, tails))
        tails, heads = tails[order], heads[order]
        for column in (tails, heads):
            column.setflags(write=False)
        checks.put(self, size=size, degree=degree, tails=tails, heads=heads, name=name)
        _check_connected(self)
        generators = []
        for given in checks.members(self.generators, "generators", TopologyError):
            image = checks.rank_permutation(given, size, "a generator", TopologyError)
            if not same_arcs(self, image[tails], image[heads]):
                raise TopologyError(f"a generator must map the arcs of {self} onto themselves")
            generators.append(tuple(image.tolist()))
        reversal = self.reversal
        if reversal is not None:
            image = checks.rank_permutation(reversal, size, "reversal", TopologyError)
            if not same_arcs(self, image[heads], image[tails]):
                raise TopologyError(
                    f"reversal must map every arc (u, v) of {self} to an arc (f(v), f(u))"
                )
            reversal = tuple(image.tolist())
        elif self.is_undirected:  # its own transpose
            reversal = tuple(range(size))
        checks.put(self, generators=tuple(generators), reversal=reversal)

    @classmethod
    def from_heads(
        cls,
        heads: np.ndarray,
        name: str = "",
        generators: Iterable[Sequence[int] | np.ndarray] = (),
        reversal: np.ndarray | None = None,
    ) -> Digraph:
        """The digraph whose arcs out of vertex v lead to the vertices ``heads[v]``.

        Args:
            heads: int64 of shape (vertices, degree).
            name, generators, reversal: as of the class, permutations as columns.
        """
        size, degree = heads.shape
        return cls(
            size,
            degree,
            np.repeat(np.arange(size), degree),
            heads.ravel(),
            name=name,
            generators=tuple(tuple(np.asarray(image).tolist()) for image in generators),
            reversal=None if reversal is None else tuple(reversal.tolist()),
        )

    # ------------------------------------------------------------------ facts

    @property
    def num_arcs(self) -> int:
        """Number of arcs, self-loops included: size * degree."""
        return len(self.tails)

    @functools.cached_property
    def self_loops(self) -> int:
        """Number of arcs from a vertex to itself."""
        return int((self.tails == self.heads).sum())

    @functools.cached_property
    def has_parallel_arcs(self) -> bool:
        """Whether more than one arc joins some two vertices (or one to itself) in one direction."""
        pairs = self.tails * self.size + self.heads
        return bool((pairs[1:] == pairs[:-1]).any())

    @property
    def is_simple(self) -> bool:
        """Whether there are neither self-loops nor parallel arcs."""
        return not self.self_loops and not self.has_parallel_arcs

    @functools.cached_property
    def is_undirected(self) -> bool:
        """Whether there are as many arcs from v to u as from u to v, for all u and v."""
        return same_arcs(self, self.heads, self.tails)

    @functools.cached_property
    def num_orbits(self) -> int:
        """Number of orbits of the vertices under the generators; N if none are known."""
        if not self.generators:
            return self.size
        return 1 + int(orbits(np.asarray(self.generators)).max())

    @property
    def vertex_transitive(self) -> bool | None:
        """True if the generators map vertex 0 to every vertex; None if that is unknown."""
        return True if self.num_orbits == 1 else None

    @functools.cached_property
    def links(self) -> np.ndarray:
        """The arc of each link of ``topology()``, int64 of shape (links,)."""
        return np.flatnonzero(self.tails != self.heads)

    def distances(self, sources: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Arcs on the shortest path from each source to each vertex.

        Args:
            sources: vertices; all when omitted.

        Returns:
            int32 of shape (sources, size).
        """
        given = range(self.size) if sources is None else sources
        chosen = np.asarray(
            checks.integers(given, "sources", TopologyError, least=0, most=self.size - 1)
        )
        ones = np.ones(self.num_arcs, np.int32)
        arcs = sp.csr_matrix((ones, (self.tails, self.heads)), shape=(self.size, self.size))
        rows = np.arange(len(chosen))
        found = np.full((len(chosen), self.size), -1, np.int32)
        # All sources at once: a row per source, a product with the arcs per step.
        frontier = np.zeros(found.shape, np.int32)
        frontier[rows, chosen] = 1
        level = 0
        while frontier.any():
            # Vertices first reached now are at this distance. The number of walks does not matter,
            # and would eventually overflow.
            found[frontier > 0] = level
            frontier = ((frontier @ arcs) > 0) & (found < 0)
            frontier = frontier.astype(np.int32)
            level += 1
        return found

    @functools.cached_property
    def diameter(self) -> int:
        """The largest distance between two vertices, D(G)."""
        # If symmetries map vertex 0 to every vertex, all vertices have its distances.
        sources = (0,) if self.vertex_transitive else None
        return int(self.distances(sources).max())

    def __repr__(self) -> str:
        label = f"{self.name}: " if self.name else ""
        return f"Digraph({label}{self.size} vertices of degree {self.degree})"

    # ------------------------------------------------------------------ others from this one

    def topology(self, alpha=ALPHA, link_bandwidth=BANDWIDTH) -> Topology:
        """The network whose ranks are the vertices: one link per arc that is not a self-loop.

        Args:
            alpha, link_bandwidth: seconds, and bytes per second (B/d), of each link.
        """
        # Self-loops occupy a port and carry nothing, so they are not links.
        alpha, bandwidth = latency(alpha), speed(link_bandwidth, "link_bandwidth")
        ends = np.stack([self.tails, self.heads], axis=1)[self.links]
        columns = uniform(ends, alpha, bandwidth)
        return Topology(self.size, *columns, name=self.name, generators=self.generators)

    @functools.cached_property
    def in_arcs(self) -> np.ndarray:
        """The arcs into each vertex, int64 of shape (size, degree)."""
        # A stable sort lists the lower tails first among the arcs into a vertex, so that these
        # columns, too, are in canonical order.
        return np.argsort(self.heads, kind="stable").reshape(self.size, self.degree)

    def transpose(self) -> Digraph:
        """The digraph with every arc reversed, G^T."""
        return Digraph(
            self.size,
            self.degree,
            self.heads,
            self.tails,
            name=f"{self.name}^T" if self.name else "",
            generators=self.generators,
            reversal=self.reversal,
        )

    def to_networkx(self) -> nx.MultiDiGraph:
        """The same digraph as a ``MultiDiGraph``, self-loops and parallel arcs included."""
        import networkx as nx

        graph = nx.MultiDiGraph(name=self.name)
        graph.add_nodes_from(range(self.size))
        graph.add_edges_from(zip(self.tails.tolist(), self.heads.tolist(), strict=True))
        return graph


def arc_numbers(tails: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """The place of each arc among all in canonical order; parallel arcs keep theirs."""
    number = np.empty(len(tails), np.int64)
    number[np.lexsort((heads, tails))] = np.arange(len(tails))
    return number


def _vertices(values, what: str, size: int) -> np.ndarray:
    given = np.asarray(checks.bounded(values, what, TopologyError))
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise TopologyError(
            f"{what} must be one column of vertex numbers, got {checks.shown(values)}"
        )
    if given.size and (given.min() < 0 or given.max() >= size):
        raise TopologyError(
            f"{what} must hold vertices 0..{size - 1}, got {given.min()}..{given.max()}"
        )
    return given.astype(np.int64)


def _check_regular(size: int, degree: int, tails: np.ndarray, heads: np.ndarray) -> None:
    if len(tails) != len(heads):
        raise TopologyError(
            f"tails and heads need one value per arc, got {len(tails)} and {len(heads)}"
        )
    for way, ends in (("out of", tails), ("into", heads)):
        arcs = np.bincount(ends, minlength=size)
        if (arcs != degree).any():
            vertex = int(np.flatnonzero(arcs != degree)[0])
            raise TopologyError(
                f"every vertex needs {degree} arcs {way} it, vertex {vertex} has {arcs[vertex]}; "
                f"add arcs or self-loops, or give the degree that all vertices have"
            )


def _check_connected(digraph: Digraph) -> None:
    ones = np.ones(digraph.num_arcs, np.int8)
    shape = (digraph.size, digraph.size)
    arcs = sp.csr_matrix((ones, (digraph.tails, digraph.heads)), shape=shape)
    parts, label = sp.csgraph.connected_components(arcs, directed=True, connection="strong")
    if parts > 1:
        other = int(np.flatnonzero(label != label[0])[0])
        raise TopologyError(
            f"every vertex must reach every other: {digraph} has {parts} strongly connected "
            f"parts, with vertices 0 and {other} in different ones"
        )


def same_arcs(digraph: Digraph, tails: np.ndarray, heads: np.ndarray) -> bool:
    """Whether arcs, in any order, are those of the digraph."""
    # Sorted as numbers of pairs, like the digraph's own columns in canonical order.
    pairs = np.sort(tails * digraph.size + heads)
    return np.array_equal(pairs, digraph.tails * digraph.size + digraph.heads)
