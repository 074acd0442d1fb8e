"""Cayley digraphs of dihedral groups, and of other semidirect products of two cyclic groups.

The group of m k elements has pairs (a, x), a modulo m and x modulo k, with the product
(a, x)(b, y) = (a + r^x b, x + y), for a multiplier r with r^k = 1 modulo m. With k = 2 and r = -1
it is the dihedral group of the m rotations (a, 0) and the m reflections (a, 1); with r = 1 it is
abelian. Element (a, x) is vertex ``a * k + x``.

The idea that Cayley digraphs of these groups have many vertices for their diameter is from
Dinneen and Hafner, "New results for the degree/diameter problem", Networks 24 (1994).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from importlib import resources
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import FormatError, TopologyError
from jaxcoll.links import check_size, count
from jaxcoll.numerics import checks
from jaxcoll.topologies.generative.digraph import Digraph

# Connections with good BFB all_gathers; ``jaxcoll.finder.candidates`` prints the file.
_FILE, VERSION = "cayley.json", 1


@dataclasses.dataclass(frozen=True)
class SemidirectProduct:
    """The group Z_m : Z_k with multiplier r.

    Attributes:
        m: order of the normal cyclic group, at least 1.
        k: order of the cyclic group that acts on it, at least 1.
        r: multiplier, 0 to m - 1, with r^k = 1 modulo m.

    Raises:
        TopologyError: an order is below 1, there are fewer than two elements or too many, or the
            multiplier has another order; the message names the nearest that fits.
    """

    m: int
    k: int
    r: int

    def __post_init__(self) -> None:
        m, k = count(self.m, "m"), count(self.k, "k")
        r = checks.integer(self.r, "r", TopologyError, least=0, most=max(m - 1, 0))
        check_size(f"a Cayley digraph of Z_{m} : Z_{k}", m * k, m * k)
        if m * k < 2:
            raise TopologyError(
                f"a Cayley digraph needs a group of two elements or more, got m = {m}, k = {k}"
            )
        # r^0 and r^k act as x = 0 and x = k, which are the same element of Z_k, so they must be
        # equal.
        if pow(r, k, m) != 1 % m:
            near = (r + sign * away for away in range(m) for sign in (-1, 1))
            fits = next(other for other in near if 0 < other < m and pow(other, k, m) == 1)
            raise TopologyError(
                f"multiplier {r} must have r^{k} = 1 modulo {m}; the nearest that does is {fits}"
            )

    @property
    def size(self) -> int:
        """Number of elements, m k."""
        return self.m * self.k

    @functools.cached_property
    def powers(self) -> np.ndarray:
        """r^x modulo m for x = 0 .. k - 1, int64."""
        return np.asarray([pow(self.r, x, self.m) for x in range(self.k)], np.int64)

    def times(self, left, right) -> np.ndarray:
        """The products of elements, which are broadcast."""
        a, x = np.divmod(left, self.k)
        b, y = np.divmod(right, self.k)
        return (a + self.powers[x] * b) % self.m * self.k + (x + y) % self.k

    def inverse(self, elements) -> np.ndarray:
        """The inverses of elements: (a, x)^-1 = (-r^-x a, -x)."""
        a, x = np.divmod(elements, self.k)
        back = -x % self.k
        return -self.powers[back] * a % self.m * self.k + back

    def automorphisms(self, elements: np.ndarray) -> Iterator[np.ndarray]:
        """Images of some elements under automorphisms, int64 of shape (automorphisms, elements).

        They map (a, x) to (u a + w S(x), v x), where u and v are 1 or -1, w is any number for which
        these are automorphisms, and S(x) = 1 + r + ... + r^(x - 1). Every array is for one u and v,
        by ascending w; the very first automorphism is the identity.
        """
        a, x = np.divmod(elements, self.k)
        sums = np.concatenate([[0], np.cumsum(self.powers)]) % self.m
        # The image of (0, 1), which has order k, must have it too: w S(k) = 0 modulo m. Everything
        # else follows from the images of the two generators.
        shifts = np.flatnonzero(np.arange(self.m) * sums[-1] % self.m == 0)[:, None]
        for u, v in itertools.product((1, -1), repeat=2):
            # x must act on a as before: r^v = r.
            if pow(self.r, v, self.m) == self.r % self.m:
                yield (u * a + shifts * sums[x]) % self.m * self.k + v * x % self.k


def multipliers(m: int, k: int) -> list[int]:
    """The r of 0 .. m - 1 with r^k = 1 modulo m."""
    return [r for r in range(m) if pow(r, k, m) == 1 % m]


def cayley(m: int, k: int, r: int, connections: Iterable[int]) -> Digraph:
    """Arcs from every element g of Z_m : Z_k to g c for each connection c; vertex-transitive.

    The degree is the number of connections. An isomorphism to the transpose is known if an
    automorphism of ``SemidirectProduct.automorphisms`` maps the connections to their inverses.

    Args:
        m, k, r: the group, see ``SemidirectProduct``.
        connections: elements ``a * k + x``, which may repeat; their arcs are then parallel.

    Raises:
        TopologyError: there is no such group, there are no connections, the identity is among them,
            or they do not generate the group.
    """
    group = SemidirectProduct(m, k, r)
    given = checks.members(connections, "connections", TopologyError)
    # Numbers start from 1, since the identity, 0, would be a self-loop at every vertex.
    chosen = np.asarray(
        checks.integers(given, "connections", TopologyError, least=1, most=group.size - 1),
        np.int64,
    )
    if not len(chosen):
        raise TopologyError(
            "a Cayley digraph needs one connection or more, got none; give numbers of elements of "
            f"the group, 1 to {group.size - 1}"
        )
    degree, elements = len(chosen), np.arange(group.size)
    notation = f"Cay({m},{k},{r};{','.join(map(str, chosen.tolist()))})"
    check_size(notation, group.size, group.size * degree)
    # Connections multiply from the right, so multiplying by any element from the left is an
    # automorphism: all vertices are equivalent.
    heads = group.times(elements[:, None], chosen)
    # The elements that products of connections reach from the identity are the subgroup that they
    # generate.
    ptr = np.arange(group.size + 1) * degree
    arcs = sp.csr_matrix((np.ones(heads.size, np.int8), heads.ravel(), ptr))
    order = sp.csgraph.breadth_first_order(arcs, 0, return_predecessors=False)
    if len(order) < group.size:
        raise TopologyError(
            f"the connections of {notation} generate {len(order)} of {group.size} elements; "
            "add a connection outside of those"
        )
    # By (0, 1) and (1, 0), which generate the group.
    translations = sorted({1 % group.size, k % group.size} - {0})
    moved = [group.times(by, elements) for by in translations]
    return Digraph.from_heads(heads, notation, moved, _reversal(group, chosen))


def dihedral(rotations: int, connections: Iterable[tuple[int, int]]) -> Digraph:
    """The Cayley digraph of the dihedral group of 2 m elements: m rotations and m reflections.

    Args:
        rotations: m, at least 2.
        connections: pairs (a, x): the rotation by a, followed by the reflection where x is 1.

    Raises:
        TopologyError: as for ``cayley``, or a connection is not such a pair.
    """
    m = count(rotations, "rotations", least=2)
    numbers = []
    for pair in checks.members(connections, "connections", TopologyError):
        given = checks.members(pair, "a connection", TopologyError)
        if len(given) != 2:
            raise TopologyError(
                f"a connection is a pair (rotation, reflection), got {checks.shown(pair)}"
            )
        a = checks.integer(given[0], "a rotation", TopologyError, least=0, most=m - 1)
        x = checks.integer(given[1], "a reflection", TopologyError, least=0, most=1)
        numbers.append(2 * a + x)
    # A reflection reverses rotations: r is -1.
    return cayley(m, 2, m - 1, numbers)


def _reversal(group: SemidirectProduct, chosen: np.ndarray) -> np.ndarray | None:
    """An automorphism that maps connections to their inverses, and so reverses every arc.

    The arc from g to g c becomes the arc from f(g c) = f(g) f(c) to f(g), by the connection
    f(c)^-1.
    """
    inverses = np.sort(group.inverse(chosen))
    every = group.automorphisms(np.arange(group.size))
    for images, all_images in zip(group.automorphisms(chosen), every, strict=True):
        proper = np.flatnonzero((np.sort(images, axis=1) == inverses).all(axis=1))
        if len(proper):
            return all_images[proper[0]]
    return None


def groups(size: int) -> list[SemidirectProduct]:
    """The groups of an order, one for each m, k and set of powers that r generates.

    Groups that are isomorphic may be listed several times.
    """
    size = count(size, "size", least=2)
    found = []
    for k in range(1, size + 1):
        if size % k:
            continue
        m, seen = size // k, set()
        for r in multipliers(m, k):
            # Multipliers that are such powers of each other give the same group with another
            # generator of Z_k.
            powers = frozenset(pow(r, j, m) for j in range(1, k + 1) if math.gcd(j, k) == 1)
            if powers not in seen:
                seen.add(powers)
                found.append(SemidirectProduct(m, k, r))
    return found


# ---------------------------------------------------------------------- packaged connections


class CayleySet(NamedTuple):
    """The connections of a Cayley digraph, and its best BFB all_gather.

    Attributes:
        arguments: m, k, r and the connections, of ``cayley``.
        steps: T_L in alpha, its diameter.
        bandwidth: T_B in M/B.
        both_ways: whether every link has one back.
    """

    arguments: tuple
    steps: int
    bandwidth: Fraction
    both_ways: bool


@functools.cache
def cayley_sets() -> dict[tuple[int, int], tuple[CayleySet, ...]]:
    """The Pareto frontier in T_L and T_B that the search found, for each size and degree.

    Digraphs with links both ways were searched separately as well. All are isomorphic to their
    transpose, without self-loops and parallel arcs.

    Raises:
        FormatError: the file has another version.
    """
    package = resources.files("jaxcoll.topologies.generative")
    said = json.loads(package.joinpath(_FILE).read_text(encoding="utf-8"))
    if said.get("version") != VERSION:
        raise FormatError(f"{_FILE} has version {said.get('version')}, expected {VERSION}")
    found: dict[tuple[int, int], list[CayleySet]] = {}
    for degree, m, k, r, steps, above, below, both_ways, connections in said["sets"]:
        arguments = m, k, r, tuple(connections)
        one = CayleySet(arguments, steps, Fraction(above, below), bool(both_ways))
        found.setdefault((m * k, degree), []).append(one)
    return {cell: tuple(sets) for cell, sets in found.items()}
