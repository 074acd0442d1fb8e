"""Distance-regular graphs, and the finite geometries that many of them are made of.

A graph is distance-regular if the number of vertices at distance i from x and j from y depends only
on i, j and the distance of x and y (Definition 17). Every one has a bandwidth-optimal BFB
all_gather in as many steps as its diameter (A.6.3): of the shards that are i steps away, each link
into a rank can bring equally many, and each shard can come by equally many links (Theorem 18). In
the octahedron, J(4,2), each of the 4 links into a rank brings one shard in the first step and a
quarter of the fifth shard in the second, so all links are equally busy in every step.

The vertices of an incidence graph are the points and the lines of a geometry, points first; a point
is joined with the lines through it. Those of planes, generalized quadrangles and hexagons of order
(q, q) have degree q + 1 and diameters 3, 4 and 6; no bipartite graph of the same degree and
diameter has more vertices.

Source: Table A.2 names those of degree 4. All of its rows are built, by the classical constructions
that are given at each; most take other parameters as well.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import check_size, count
from jaxcoll.numerics import checks
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.kautz_graphs import hamming, hypercube
from jaxcoll.topologies.generative.operations import checked

# Tables of a field have q^2 entries; PG(2,64) has 8,322 vertices.
_LARGEST_FIELD = 64

# Prime powers, and the prime and exponent of each.
_FIELD_ORDERS = {
    prime**exponent: (prime, exponent)
    for prime in range(2, _LARGEST_FIELD + 1)
    if all(prime % i for i in range(2, prime))
    for exponent in range(1, 7)
    if prime**exponent <= _LARGEST_FIELD
}


def is_field_order(q: int) -> bool:
    """Whether a field of this many elements is built: a prime power of at most 64."""
    return q in _FIELD_ORDERS


def projective_plane(q: int) -> Digraph:
    """Incidence graph of PG(2, q): 2 (q^2 + q + 1) vertices of degree q + 1, diameter 3.

    Args:
        q: order, a prime power of at most 64.

    Raises:
        TopologyError: no field of that order; the message names the nearest.
    """
    field = Field.of_order(q)
    points = field.projective_points(3)
    check_size(f"PG(2,{q})", 2 * len(points), 2 * len(points) * (q + 1))
    incident = field.form(points, points) == 0
    return incidence_graph(incident, f"incidence PG(2,{q})")


def affine_plane_minus_class(q: int) -> Digraph:
    """Incidence graph of AG(2, q) without the vertical lines: 2 q^2 vertices of degree q.

    Point (x, y) is on line (m, b) if y = m x + b. Diameter 4.
    """
    field = Field.of_order(q)
    check_size(f"AG(2,{q})", 2 * q * q, 2 * q**3)
    first, second = (end.ravel() for end in np.meshgrid(range(q), range(q), indexing="ij"))
    # m x + b, which is y on the line, for every point (row) and line (column).
    reached = field.add[field.multiply[first[None, :], first[:, None]], second[None, :]]
    return incidence_graph(reached == second[:, None], f"incidence AG(2,{q}) minus a class")


def generalized_quadrangle(q: int) -> Digraph:
    """Incidence graph of the symplectic quadrangle W(q), a GQ(q, q); diameter 4.

    Points of PG(3, q), and the lines on which the form x0 y1 - x1 y0 + x2 y3 - x3 y2 vanishes:
    2 (q + 1)(q^2 + 1) vertices of degree q + 1. That of W(2) is Tutte's 8-cage.
    """
    field = Field.of_order(q)
    size = 2 * (q + 1) * (q * q + 1)
    check_size(f"GQ({q},{q})", size, size * (q + 1))
    points = field.projective_points(4)
    negated = field.negative[points]
    # The symplectic form of x and y is the plain one of x and this image of y.
    turned = np.stack([points[:, 1], negated[:, 0], points[:, 3], negated[:, 2]], axis=1)
    # Every pair of different points once.
    first, second = np.nonzero(np.triu(field.form(points, turned) == 0, 1))
    return _point_line_graph(field, points, first, second, f"incidence GQ({q},{q})")


def generalized_hexagon(q: int) -> Digraph:
    """Incidence graph of the split Cayley hexagon H(q), a GH(q, q); diameter 6.

    Points of the quadric x0 x4 + x1 x5 + x2 x6 = x3^2 of PG(6, q), and its lines whose Grassmann
    coordinates satisfy p01 = p36, p12 = p34, p20 = p35, p03 = p56, p13 = p64, p23 = p45 (Tits):
    2 (q^6 - 1)/(q - 1) vertices of degree q + 1. That of H(2) is Tutte's 12-cage.
    """
    field = Field.of_order(q)
    size = 2 * (q**6 - 1) // (q - 1)
    check_size(f"GH({q},{q})", size, size * (q + 1))
    if q > 3:
        raise TopologyError(
            f"GH({q},{q}) has {size} vertices, more than are built here; the largest is GH(3,3)"
        )
    points = field.projective_points(7)
    square = field.multiply[points[:, 3], points[:, 3]]
    # The quadric: x0 x4 + x1 x5 + x2 x6 - x3^2 = 0.
    value = field.negative[square]
    for i in range(3):
        value = field.add[value, field.multiply[points[:, i], points[:, i + 4]]]
    points = points[value == 0]
    # A line lies on the quadric where the polar form of two of its points vanishes.
    polar = points[:, [4, 5, 6, 3, 0, 1, 2]]
    polar[:, 3] = field.negative[field.add[points[:, 3], points[:, 3]]]
    on_line = np.triu(field.form(points, polar) == 0, 1)
    for (a, b), (c, d) in _HEXAGON_LINES:
        on_line &= _grassmann(field, points, a, b) == _grassmann(field, points, c, d)
    first, second = np.nonzero(on_line)
    return _point_line_graph(field, points, first, second, f"incidence GH({q},{q})")


# Pairs of Grassmann coordinates that are equal on the lines of H(q).
_HEXAGON_LINES = (
    ((0, 1), (3, 6)),
    ((1, 2), (3, 4)),
    ((2, 0), (3, 5)),
    ((0, 3), (5, 6)),
    ((1, 3), (6, 4)),
    ((2, 3), (4, 5)),
)


def incidence_graph(incident: np.ndarray, name: str) -> Digraph:
    """The graph of an incidence matrix of points by lines with equally many ones per row."""
    points, lines = incident.shape
    point, line = np.nonzero(incident)
    line = line + points
    degree = int(incident[0].sum())
    return Digraph(
        points + lines,
        degree,
        np.concatenate([point, line]),
        np.concatenate([line, point]),
        name=name,
    )


def _point_line_graph(field: Field, points, first, second, name: str) -> Digraph:
    """The incidence graph of the lines through given pairs of points."""
    # The line through x and x' has the points x' and x + c x' for all c, brought to the form in
    # which points are listed. It is found once for every pair of its points.
    code = np.full(field.order ** points.shape[1], -1, np.int64)
    weights = field.order ** np.arange(points.shape[1])
    code[points @ weights] = np.arange(len(points))
    on_line = [second]
    for scale in range(field.order):
        sums = field.add[points[first], field.multiply[scale, points[second]]]
        on_line.append(code[field.normalized(sums) @ weights])
    lines = np.unique(np.sort(np.stack(on_line, axis=1), axis=1), axis=0)
    incident = np.zeros((len(points), len(lines)), bool)
    incident[lines, np.arange(len(lines))[:, None]] = True
    return incidence_graph(incident, name)


def _grassmann(field: Field, points: np.ndarray, i: int, j: int) -> np.ndarray:
    """x_i y_j - x_j y_i of all pairs of points."""
    x, y = points[:, i], points[:, j]
    return field.add[
        field.multiply[x[:, None], y[None, :]],
        field.negative[field.multiply[y[:, None], x[None, :]]],
    ]


class Field:
    """GF(q) by tables: elements are 0..q-1, the digits of which in base p are coefficients.

    Attributes:
        order: q.
        add, multiply: tables, int64 of shape (q, q).
        negative: -x of every x, int64 of shape (q,).
    """

    def __init__(self, prime: int, exponent: int):
        self.order = q = prime**exponent
        digits = np.stack([np.arange(q) // prime**i % prime for i in range(exponent)], axis=1)
        weights = prime ** np.arange(exponent)
        self.add = ((digits[:, None] + digits[None]) % prime) @ weights
        self.negative = (-digits % prime) @ weights
        products = np.zeros((q, q, 2 * exponent - 1), np.int64)
        for i, j in itertools.product(range(exponent), repeat=2):
            products[:, :, i + j] += digits[:, None, i] * digits[None, :, j]
        # A reducible polynomial leaves divisors of zero; an irreducible one makes a field, where
        # multiplying by any element but 0 permutes the others. The first such is taken.
        for modulus in itertools.product(range(prime), repeat=exponent):
            self.multiply = _reduced(products % prime, modulus, prime) @ weights
            if (np.sort(self.multiply[1:, 1:], axis=1) == np.arange(1, q)).all():
                return
        raise TopologyError(f"no irreducible polynomial of degree {exponent} over GF({prime})")

    @staticmethod
    @functools.cache
    def of_order(q: int) -> Field:
        """The field of a prime power order of at most 64.

        Raises:
            TopologyError: no such field; the message names the nearest orders.
        """
        q = count(q, "q", least=2)
        if not is_field_order(q):
            near = sorted(_FIELD_ORDERS, key=lambda order: (abs(order - q), order))[:2]
            raise TopologyError(
                f"no field has {q} elements, or it is larger than {_LARGEST_FIELD}; the nearest "
                f"orders are {' and '.join(map(str, sorted(near)))}"
            )
        return Field(*_FIELD_ORDERS[q])

    def projective_points(self, dimension: int) -> np.ndarray:
        """The points of PG(dimension - 1, q): vectors whose first nonzero coordinate is 1."""
        grids = np.meshgrid(*[range(self.order)] * dimension, indexing="ij")
        vectors = np.stack([axis.ravel() for axis in grids], axis=1)
        leading = np.take_along_axis(vectors, (vectors != 0).argmax(axis=1)[:, None], 1)[:, 0]
        return vectors[leading == 1]

    def normalized(self, vectors: np.ndarray) -> np.ndarray:
        """Multiples whose first nonzero coordinate is 1."""
        leading = np.take_along_axis(vectors, (vectors != 0).argmax(axis=1)[:, None], 1)
        inverse = np.argmax(self.multiply == 1, axis=1)
        return self.multiply[inverse[leading], vectors]

    def form(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Sums of products of coordinates of all pairs of vectors."""
        total = np.zeros((len(left), len(right)), np.int64)
        for x, y in zip(left.T, right.T, strict=True):
            total = self.add[total, self.multiply[x[:, None], y[None, :]]]
        return total


def _reduced(products: np.ndarray, modulus: tuple[int, ...], prime: int) -> np.ndarray:
    """Polynomials modulo x^e - (modulus_0 + modulus_1 x + ...), coefficients modulo a prime."""
    exponent = len(modulus)
    products = products.copy()
    for power in range(products.shape[-1] - 1, exponent - 1, -1):
        leading = products[..., power].copy()
        for i, coefficient in enumerate(modulus):
            products[..., power - exponent + i] += coefficient * leading
        products %= prime
    return products[..., :exponent]


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
    # Complements exchange the two sides, and turn inclusion round.
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
    # A vertex is not joined with its own partner opposite: both sides turn together.
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
            "the digraph must be undirected, so that distances are equal both ways, and "
            f"{digraph} is not; take bidirectional of it"
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
            "an undirected line graph joins edges of an undirected simple graph of degree "
            f"2 or more, and {digraph} is none; take line_graph, whose vertices are arcs"
        )
    each = digraph.tails < digraph.heads
    ends = np.stack([digraph.tails[each], digraph.heads[each]], axis=1)
    check_size(name, len(ends), len(ends) * 2 * (digraph.degree - 1))
    # Edges by vertices: the product with its transpose counts common ends, 2 of an edge and itself.
    at = np.zeros((len(ends), digraph.size), np.int64)
    at[np.arange(len(ends))[:, None], ends] = 1
    generators = []
    for image in map(np.asarray, digraph.generators):
        moved = np.sort(image[ends], axis=1)
        place = np.searchsorted(ends @ (digraph.size, 1), moved @ (digraph.size, 1))
        generators.append(place)
    return _from_matrix(at @ at.T == 1, name, generators)


# The Petersen graph is O_3, the Heawood graph the incidence graph of PG(2, 2); Tutte's 8-cage and
# 12-cage are those of W(2) and of H(2).
TABLE_A2: Mapping[str, Callable[[], Digraph]] = {
    "Octahedron J(4,2)": lambda: johnson(4, 2),
    "Paley graph P9 = H(2,3)": lambda: hamming(2, 3),
    "K5,5-I": lambda: crown(4),
    "Distance-3 graph of Heawood graph": lambda: distance_graph(
        projective_plane(2), 3, "distance-3 graph of Heawood graph"
    ),
    "Line graph of Petersen graph": lambda: undirected_line_graph(
        odd_graph(3), "line graph of Petersen graph"
    ),
    "4-cube Q4 = H(4,2)": lambda: hypercube(4),
    "Line graph of Heawood graph": lambda: undirected_line_graph(
        projective_plane(2), "line graph of Heawood graph"
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
    # A turn and an exchange of two neighbours generate all permutations of the letters.
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
