"""Finite fields, and incidence graphs of projective and affine planes and generalized polygons.

The vertices of an incidence graph are the points and the lines of a geometry, points first; a point
is joined with the lines through it. Those of planes, generalized quadrangles and hexagons of order
(q, q) have degree q + 1 and diameters 3, 4 and 6, with which no bipartite graph has more vertices.

Source: Table A.2 names those of degree 4; constructions are the classical ones, given at each.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.topologies.arguments import check_size, count
from jaxcoll.topologies.generative.digraph import Digraph

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
    turned = np.stack([points[:, 1], negated[:, 0], points[:, 3], negated[:, 2]], axis=1)
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
        raise TopologyError(f"GH({q},{q}) of {size} vertices is not built; the largest is GH(3,3)")
    points = field.projective_points(7)
    square = field.multiply[points[:, 3], points[:, 3]]
    value = field.negative[square]
    for i in range(3):
        value = field.add[value, field.multiply[points[:, i], points[:, i + 4]]]
    points = points[value == 0]
    polar = points[:, [4, 5, 6, 3, 0, 1, 2]]
    polar[:, 3] = field.negative[field.add[points[:, 3], points[:, 3]]]
    on_line = np.triu(field.form(points, polar) == 0, 1)
    for (a, b), (c, d) in _HEXAGON_LINES:
        on_line &= _grassmann(field, points, a, b) == _grassmann(field, points, c, d)
    first, second = np.nonzero(on_line)
    return _point_line_graph(field, points, first, second, f"incidence GH({q},{q})")


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
