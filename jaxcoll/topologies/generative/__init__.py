"""Direct-connect families: regular digraphs that exist at many sizes and degrees.

- ``digraph``: the type that all of them return, with self-loops and parallel arcs;
- ``operations``: digraphs made from digraphs, and isomorphisms to the transpose;
- ``tori`` (with circulants), ``kautz_graphs`` (with complete graphs and binary trees): by formula;
- ``cayley_digraphs``: digraphs of dihedral and other groups, and good connections;
- ``distance_regular_graphs``: the graphs of Table A.2, and finite geometries.

This file lists all families by name, with the sizes and degrees at which they exist, for a finder.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from jaxcoll.errors import TopologyError
from jaxcoll.links import count
from jaxcoll.numerics import checks
from jaxcoll.topologies.generative import (
    cayley_digraphs,
    distance_regular_graphs,
    kautz_graphs,
)
from jaxcoll.topologies.generative.cayley_digraphs import cayley, dihedral
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.distance_regular_graphs import distance_regular
from jaxcoll.topologies.generative.kautz_graphs import (
    complete,
    complete_bipartite,
    de_bruijn,
    diamond,
    double_binary_tree,
    generalized_kautz,
    hamming,
    hypercube,
    kautz,
    modified_de_bruijn,
    twisted_hypercube,
)
from jaxcoll.topologies.generative.operations import (
    bidirectional,
    cartesian_power,
    cartesian_product,
    degree_expansion,
    find_reversal,
    is_reverse_symmetric,
    line_graph,
    multiply_arcs,
)
from jaxcoll.topologies.generative.tori import (
    bidirectional_ring,
    circulant,
    dense_circulant,
    directed_circulant,
    least_diameter_circulant,
    optical_cubes,
    shifted_ring,
    torus,
    twisted_torus,
    unidirectional_ring,
)

__all__ = [
    "FAMILIES",
    "Digraph",
    "Family",
    "Member",
    "bidirectional",
    "bidirectional_ring",
    "cartesian_power",
    "cartesian_product",
    "cayley",
    "circulant",
    "complete",
    "complete_bipartite",
    "de_bruijn",
    "degree_expansion",
    "dense_circulant",
    "diamond",
    "dihedral",
    "directed_circulant",
    "distance_regular",
    "double_binary_tree",
    "family",
    "find_reversal",
    "generalized_kautz",
    "hamming",
    "hypercube",
    "is_reverse_symmetric",
    "kautz",
    "least_diameter_circulant",
    "line_graph",
    "members",
    "modified_de_bruijn",
    "multiply_arcs",
    "optical_cubes",
    "shifted_ring",
    "torus",
    "twisted_hypercube",
    "twisted_torus",
    "unidirectional_ring",
]

Arguments = tuple[int | tuple[int, ...], ...]

_NEAR = 4096  # sizes examined in each direction for the nearest that exists


@dataclasses.dataclass(frozen=True)
class Family:
    """Digraphs of one construction.

    Attributes:
        name: the name, as in Table A.3 if that lists the family.
        build: makes the member for given arguments.
        find: yields the arguments of the members of a size and degree, none or several.
    """

    name: str
    build: Callable[..., Digraph]
    find: Callable[[int, int], Iterator[Arguments]]

    def members(self, size: int, degree: int) -> tuple[Member, ...]:
        """The members of a size and degree, not built."""
        size, degree = count(size, "size", least=2), count(degree, "degree")
        return tuple(Member(self, arguments) for arguments in self.find(size, degree))

    def member(self, size: int, degree: int) -> Digraph:
        """The first member of a size and degree.

        Raises:
            TopologyError: there is none; the message names the nearest size for that degree, else
                the nearest degree for that size.
        """
        found = self.members(size, degree)
        if found:
            return found[0].build()
        sizes = self.nearest_size(size, degree)
        degrees = None if sizes else self.nearest_degree(size, degree)
        advice = f"it has none within {_NEAR} vertices of that, and no other degree of that size"
        if sizes or degrees:
            what, near = ("size", sizes) if sizes else ("degree", degrees)
            advice = f"the nearest {what} is {near}"
        raise TopologyError(
            f"{self.name} has no digraph of {size} vertices and degree {degree}; {advice}"
        )

    def nearest_size(self, size: int, degree: int) -> int | None:
        """The size nearest to a given one, if not far away, that has members of a degree."""
        return _nearest(size, 2, lambda n: any(True for _ in self.find(n, degree)))

    def nearest_degree(self, size: int, degree: int) -> int | None:
        """The degree nearest to a given one, if not far away, that has members of a size."""
        return _nearest(degree, 1, lambda d: any(True for _ in self.find(size, d)))


@dataclasses.dataclass(frozen=True)
class Member:
    """One digraph of a family, which is built on demand."""

    family: Family
    arguments: Arguments

    def build(self) -> Digraph:
        """The digraph."""
        return self.family.build(*self.arguments)


def members(size: int, degree: int) -> tuple[Member, ...]:
    """The digraphs of all families of a size and degree, not built."""
    size, degree = count(size, "size", least=2), count(degree, "degree")
    return tuple(member for family in FAMILIES.values() for member in family.members(size, degree))


def family(name: str) -> Family:
    """The family with a name.

    Raises:
        TopologyError: the name is unknown; the message lists the known ones.
    """
    return FAMILIES[checks.choice(name, FAMILIES, "a family", TopologyError)]


def _nearest(value: int, least: int, fits: Callable[[int], bool]) -> int | None:
    """The nearest number that fits, the smaller of two; None if it is far away."""
    near = (value + sign * away for away in range(_NEAR) for sign in (-1, 1))
    return next((n for n in near if n >= least and fits(n)), None)


def _only(possible: bool, *arguments: int) -> Iterator[Arguments]:
    return iter([arguments] if possible else [])


def _twisted_tori(n: int, d: int) -> Iterator[Arguments]:
    # Roots in floats may be slightly off, so they are rounded, and the result is checked against
    # the size.
    ratios = {4: ((1, 2),), 6: ((1, 1, 2), (1, 2, 2))}.get(d, ())
    for ratio in ratios:
        k = round((n / math.prod(ratio)) ** (1 / len(ratio)))
        if k >= 2 and k ** len(ratio) * math.prod(ratio) == n:
            yield tuple(k * side for side in ratio)


def _johnson(n: int, d: int) -> Iterator[Arguments]:
    # The degree of J(letters, k) is k (letters - k); with 2 k above the letters it is J(letters,
    # letters - k) again. Subsets of more than 20 letters are not built.
    for k in range(2, d // 2 + 1):
        letters = d // k + k
        if d % k == 0 and 2 * k <= letters <= 20 and math.comb(letters, k) == n:
            yield letters, k


def _of_order(size_of: Callable[[int], int], degree_over_order: int, largest: int = 64):
    """Geometries over GF(q) whose degree is q plus a constant."""

    def find(n: int, d: int) -> Iterator[Arguments]:
        q = d - degree_over_order
        fits = 2 <= q <= largest and size_of(q) == n and distance_regular_graphs.is_field_order(q)
        return _only(fits, q)

    return find


# Families that may have several members of a size and degree are generators, others use ``_only``.
# The cost must not grow as a power of the size, so exponents go up to the bits of n, at most 64.
_ALL = (
    Family("complete", complete, lambda n, d: _only(n == d + 1, n)),
    Family("complete bipartite", complete_bipartite, lambda n, d: _only(n == 2 * d, d)),
    Family(
        "Hamming",
        hamming,
        # H(k, q) has degree k (q - 1).
        lambda n, d: (
            (k, d // k + 1) for k in range(2, d + 1) if d % k == 0 and (d // k + 1) ** k == n
        ),
    ),
    Family(
        "Kautz",
        kautz,
        lambda n, d: ((d, k) for k in range(1, n.bit_length()) if d > 1 and d**k * (d + 1) == n),
    ),
    Family("generalized Kautz", generalized_kautz, lambda n, d: _only(d > 1 and n > d, d, n)),
    Family(
        "circulant",
        least_diameter_circulant,
        lambda n, d: _only(d >= 4 and d % 2 == 0 and n > 6, n, d),
    ),
    Family("directed circulant", dense_circulant, lambda n, d: _only(n == d + 2, d)),
    Family(
        "bidirectional ring",
        bidirectional_ring,
        lambda n, d: _only(d % 2 == 0 and n >= 3, d, n),
    ),
    Family("unidirectional ring", unidirectional_ring, lambda n, d: _only(True, d, n)),
    Family("Diamond", diamond, lambda n, d: _only((n, d) == (8, 2))),
    Family(
        "de Bruijn",
        de_bruijn,
        lambda n, d: ((d, k) for k in range(1, n.bit_length()) if d > 1 and d**k == n),
    ),
    Family(
        "modified de Bruijn",
        modified_de_bruijn,
        lambda n, d: (
            (d, k) for k in range(2, n.bit_length()) if d**k == n and kautz_graphs.is_known(d, k)
        ),
    ),
    Family(
        "distance-regular",
        distance_regular,
        lambda n, d: _only(d == 4 and n in distance_regular_graphs.TABLE_A2_SIZES, d, n),
    ),
    Family(
        "Cayley",
        cayley,
        lambda n, d: (found.arguments for found in cayley_digraphs.cayley_sets().get((n, d), ())),
    ),
    Family(
        "shifted ring",
        shifted_ring,
        # Shifts above n / 2 are rings in the other direction.
        lambda n, d: ((n, p) for p in range(2, (n + 1) // 2) if d == 4 and math.gcd(n, p) == 1),
    ),
    Family("twisted torus", twisted_torus, _twisted_tori),
    Family(
        "twisted hypercube",
        twisted_hypercube,
        lambda n, d: _only(d >= 3 and n == 2 ** min(d, 64), d),
    ),
    Family("Johnson", distance_regular_graphs.johnson, _johnson),
    # Subsets of 2 d - 1 letters, at most 19.
    Family(
        "odd",
        distance_regular_graphs.odd_graph,
        lambda n, d: _only(3 <= d <= 10 and n == math.comb(2 * d - 1, d - 1), d),
    ),
    Family(
        "doubled odd",
        distance_regular_graphs.doubled_odd_graph,
        lambda n, d: _only(3 <= d <= 10 and n == 2 * math.comb(2 * d - 1, d - 1), d),
    ),
    Family(
        "crown",
        distance_regular_graphs.crown,
        lambda n, d: _only(d >= 2 and n == 2 * (d + 1), d),
    ),
    # Points and lines of geometries over GF(q), joined where they meet.
    Family(
        "projective plane",
        distance_regular_graphs.projective_plane,
        _of_order(lambda q: 2 * (q * q + q + 1), 1),
    ),
    Family(
        "affine plane minus a class",
        distance_regular_graphs.affine_plane_minus_class,
        _of_order(lambda q: 2 * q * q, 0),
    ),
    Family(
        "generalized quadrangle",
        distance_regular_graphs.generalized_quadrangle,
        _of_order(lambda q: 2 * (q + 1) * (q * q + 1), 1),
    ),
    Family(
        "generalized hexagon",
        distance_regular_graphs.generalized_hexagon,
        _of_order(lambda q: 2 * (q**6 - 1) // (q - 1), 1, largest=3),
    ),
)
FAMILIES: Mapping[str, Family] = {entry.name: entry for entry in _ALL}
"""Every family by name. Tori and similar networks are products of these: see ``operations``."""
