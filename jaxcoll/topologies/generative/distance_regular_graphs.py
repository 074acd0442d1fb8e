"""Distance-regular graphs, every one of which has a bandwidth-optimal BFB schedule (A.6.3).

All rows of Table A.2 are built by construction; most constructions take other parameters as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.topologies.arguments import check_size, count
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.finite_geometry import (
    affine_plane_minus_class,
    generalized_hexagon,
    generalized_quadrangle,
    projective_plane,
)
from jaxcoll.topologies.generative.kautz_graphs import hamming, hypercube
from jaxcoll.topologies.generative.operations import checked


def johnson(n: int, k: int) -> Digraph:
    """J(n, k): the k-subsets of n letters, joined where they share k - 1; degree k (n - k)."""
    n, k = count(n, "n", least=2), count(k, "k")
    if k >= n:
        raise TopologyError(f"J({n},k) needs k from 1 to {n - 1}, got {k}; take {n - 1}")
    subsets = _subsets(n, k)
    shared = subsets @ subsets.T
    return _from_matrix(shared == k - 1, f"J({n},{k})", _renamings(subsets))


def odd_graph(k: int) -> Digraph:
    """O_k: the (k - 1)-subsets of 2k - 1 letters, joined where they are disjoint; degree k."""
    k = count(k, "k", least=2)
    subsets = _subsets(2 * k - 1, k - 1)
    return _from_matrix(subsets @ subsets.T == 0, f"O{k}", _renamings(subsets))


def doubled_odd_graph(k: int) -> Digraph:
    """D(O_k): the (k - 1)- and k-subsets of 2k - 1 letters, joined by inclusion; degree k."""
    k = count(k, "k", least=2)
    small, large = _subsets(2 * k - 1, k - 1), _subsets(2 * k - 1, k)
    subsets = np.concatenate([small, large])
    below = small @ large.T == k - 1
    half = len(small)
    joined = np.zeros((2 * half, 2 * half), bool)
    joined[:half, half:], joined[half:, :half] = below, below.T
    complement = _places(subsets)[_codes(1 - subsets)]
    return _from_matrix(joined, f"D(O{k})", [*_renamings(subsets), complement])


def crown(degree: int) -> Digraph:
    """K_{d+1,d+1} - I: two sides of d + 1 vertices, each joined with all opposite ones but one."""
    degree = count(degree, "degree", least=2)
    side = degree + 1
    joined = np.zeros((2 * side, 2 * side), bool)
    joined[:side, side:] = joined[side:, :side] = ~np.eye(side, dtype=bool)
    vertices = np.arange(2 * side)
    step = np.where(vertices < side, (vertices + 1) % side, side + (vertices + 1) % side)
    generators = [step, (vertices + side) % (2 * side)]
    return _from_matrix(joined, f"K{side},{side}-I", generators)


def distance_graph(digraph: Digraph, distance: int, name: str) -> Digraph:
    """The vertices of an undirected digraph, joined where their distance is the given one.

    Raises:
        TopologyError: a digraph with one-way arcs, or one whose vertices do not have equally many
            others at this distance.
    """
    distance = count(distance, "distance")
    if not checked(digraph).is_undirected:
        raise TopologyError(
            f"distances both ways are equal in an undirected digraph, not always in {digraph}; "
            f"take bidirectional of it"
        )
    joined = digraph.distances() == distance
    return _from_matrix(joined, name, map(np.asarray, digraph.generators))


def undirected_line_graph(digraph: Digraph, name: str) -> Digraph:
    """One vertex per edge of an undirected graph, joined where edges meet; degree 2 (d - 1).

    Raises:
        TopologyError: a digraph with a one-way arc, a self-loop or a parallel arc, or of degree 1.
    """
    if not (checked(digraph).is_undirected and digraph.is_simple and digraph.degree > 1):
        raise TopologyError(
            f"the edges of an undirected simple graph of degree 2 or more are joined, not those "
            f"of {digraph}; take line_graph, whose vertices are arcs"
        )
    each = digraph.tails < digraph.heads
    ends = np.stack([digraph.tails[each], digraph.heads[each]], axis=1)
    check_size(name, len(ends), len(ends) * 2 * (digraph.degree - 1))
    at = np.zeros((len(ends), digraph.size), np.int64)
    at[np.arange(len(ends))[:, None], ends] = 1
    generators = []
    for image in map(np.asarray, digraph.generators):
        moved = np.sort(image[ends], axis=1)
        place = np.searchsorted(ends @ (digraph.size, 1), moved @ (digraph.size, 1))
        generators.append(place)
    return _from_matrix(at @ at.T == 1, name, generators)


def petersen() -> Digraph:
    """The Petersen graph, O_3."""
    return odd_graph(3)


def heawood() -> Digraph:
    """The Heawood graph, the incidence graph of PG(2, 2)."""
    return projective_plane(2)


TABLE_A2: Mapping[str, Callable[[], Digraph]] = {
    "Octahedron J(4,2)": lambda: johnson(4, 2),
    "Paley graph P9 = H(2,3)": lambda: hamming(2, 3),
    "K5,5-I": lambda: crown(4),
    "Distance-3 graph of Heawood graph": lambda: distance_graph(
        heawood(), 3, "distance-3 graph of Heawood graph"
    ),
    "Line graph of Petersen graph": lambda: undirected_line_graph(
        petersen(), "line graph of Petersen graph"
    ),
    "4-cube Q4 = H(4,2)": lambda: hypercube(4),
    "Line graph of Heawood graph": lambda: undirected_line_graph(
        heawood(), "line graph of Heawood graph"
    ),
    "Incidence graph of PG(2,3)": lambda: projective_plane(3),
    "Incidence graph of AG(2,4) minus a parallel class": lambda: affine_plane_minus_class(4),
    "Odd graph O4": lambda: odd_graph(4),
    "Line graph of Tutte's 8-cage": lambda: undirected_line_graph(
        generalized_quadrangle(2), "line graph of Tutte's 8-cage"
    ),
    "Doubled Odd Graph D(O4)": lambda: doubled_odd_graph(4),
    "Incidence graph of GQ(3,3)": lambda: generalized_quadrangle(3),
    "Line graph of Tutte's 12-cage": lambda: undirected_line_graph(
        generalized_hexagon(2), "line graph of Tutte's 12-cage"
    ),
    "Incidence graph of GH(3,3)": lambda: generalized_hexagon(3),
}
"""The distance-regular graphs of degree 4 in Table A.2, by the table's names."""

TABLE_A2_SIZES: Mapping[int, str] = dict(
    zip((6, 9, 10, 14, 15, 16, 21, 26, 32, 35, 45, 70, 80, 189, 728), TABLE_A2, strict=True)
)
"""The name in ``TABLE_A2`` of the graph of each size."""


def distance_regular(degree: int, m: int) -> Digraph:
    """DistReg(d, m): the graph of Table A.2 with m vertices; d is 4.

    Raises:
        TopologyError: another degree, or a size that is not in the table; the message names the
            nearest.
    """
    degree, m = count(degree, "degree"), count(m, "m")
    if degree != 4 or m not in TABLE_A2_SIZES:
        near = min(TABLE_A2_SIZES, key=lambda size: (abs(size - m), size))
        raise TopologyError(
            f"Table A.2 has no distance-regular graph of degree {degree} on {m} vertices; the "
            f"nearest is DistReg(4,{near}), {TABLE_A2_SIZES[near]}"
        )
    return TABLE_A2[TABLE_A2_SIZES[m]]()


def _subsets(n: int, k: int) -> np.ndarray:
    """The k-subsets of n letters as rows of zeros and ones, in lexicographic order."""
    checks.integer(n, "the number of letters", TopologyError, most=20)
    chosen = np.asarray(list(itertools.combinations(range(n), k)))
    rows = np.zeros((len(chosen), n), np.int64)
    rows[np.arange(len(rows))[:, None], chosen] = 1
    return rows


def _codes(subsets: np.ndarray) -> np.ndarray:
    return subsets @ (1 << np.arange(subsets.shape[1]))


def _places(subsets: np.ndarray) -> np.ndarray:
    """The row of each subset, by its code."""
    place = np.full(1 << subsets.shape[1], -1, np.int64)
    place[_codes(subsets)] = np.arange(len(subsets))
    return place


def _renamings(subsets: np.ndarray) -> list[np.ndarray]:
    """Two renamings of the letters that generate all, as permutations of the subsets."""
    place, letters = _places(subsets), np.arange(subsets.shape[1])
    exchanged = np.concatenate([letters[1::-1], letters[2:]])
    return [place[_codes(subsets[:, image])] for image in (np.roll(letters, 1), exchanged)]


def _from_matrix(joined: np.ndarray, name: str, generators) -> Digraph:
    tails, heads = np.nonzero(joined)
    return Digraph(
        len(joined),
        int(joined[0].sum()),
        tails,
        heads,
        name=name,
        generators=tuple(tuple(np.asarray(image).tolist()) for image in generators),
    )
