"""Kautz and de Bruijn graphs, complete graphs, hypercubes, and pairs of binary trees.

- Kautz, generalized Kautz and de Bruijn graphs have the least diameters, or nearly, at any size:
  DBJ(2,3) has 8 vertices of degree 2, the words of 3 bits; 3 steps put any word in place of any.
- Diamond and modified de Bruijn digraphs, which the dissertation draws or describes, were found by
  a search. Their breadth-first schedules are not bandwidth-optimal; others are, which a search
  found as well (``jaxcoll.synth.direct_connect.searched``).
- Complete, complete bipartite and Hamming graphs, plain and twisted hypercubes.
- Two binary trees over the same vertices, the leaves of one being inner vertices of the other.

Source: Table A.3, Appendix A.6.2.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import check_size, count
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.operations import cartesian_power, line_graph


def kautz(degree: int, n: int) -> Digraph:
    """K(d, n) = L^n(K_{d+1}): d^n (d + 1) vertices, Moore-optimal.

    Args:
        degree: d, at least 1.
        n: line graphs taken; 0 is the complete graph.
    """
    degree, n = count(degree, "degree"), count(n, "n", least=0)
    # A vertex of L^n(K_{d+1}) is a walk of n arcs: a word of n + 1 letters out of d + 1, no two
    # equal ones next to each other. So no ports are lost to self-loops, as in de Bruijn graphs.
    base = complete(degree + 1)
    digraph = line_graph(base, n) if n else base
    return dataclasses.replace(digraph, name=f"K({degree},{n})")


def generalized_kautz(degree: int, m: int) -> Digraph:
    """Pi(d, m): arcs from x to -d x - a (mod m) for a = 1, ..., d (Definition 16).

    Its diameter is at most one above the Moore bound's (Theorem 21). It has self-loops unless
    d + 1 divides m; Pi(d, d^n (d + 1)) is the Kautz graph K(d, n).

    Raises:
        TopologyError: m is d or less: two of the arcs of a vertex would be one; or degree 1 on
            more than two vertices, which would not be connected.
    """
    degree, m = count(degree, "degree"), count(m, "m", least=2)
    name = f"Pi({degree},{m})"
    if m <= degree:
        raise TopologyError(
            f"{name} needs at least {degree + 1} vertices for degree {degree}, got {m}; take "
            f"m = {degree + 1}, or degree {m - 1}"
        )
    if degree == 1 and m > 2:
        raise TopologyError(
            f"{name} joins pairs of vertices only: take 2 vertices, or degree 2 on {m}"
        )
    check_size(name, m, m * degree)
    # Heads are consecutive numbers, and so are the ends of all walks of two arcs, of three, and so
    # on: d^k different ones after k arcs, or all m. So the diameter is small at any size.
    tails = np.arange(m)
    # The reflection of x to -1 - x takes the head -d x - a to that of -1 - x for d + 1 - a; a shift
    # by c takes it to that of x + c for a if m divides (d + 1) c.
    images = [(-1 - tails) % m]
    shared = math.gcd(m, degree + 1)
    if shared > 1:
        images.append((tails + m // shared) % m)
    heads = (-degree * tails[:, None] - np.arange(1, degree + 1)) % m
    return Digraph.from_heads(heads, name, images)


def de_bruijn(degree: int, n: int) -> Digraph:
    """DBJ(d, n): words of n letters out of d; arcs drop the first letter and append any.

    d^n vertices, of which d have a self-loop. Reading words backwards reverses all arcs.
    """
    degree, n = count(degree, "degree", least=2), count(n, "n")
    size = degree ** min(n, 64)
    name = f"DBJ({degree},{n})"
    check_size(name, size, size * degree)
    words = np.arange(size)
    backwards = words.reshape((degree,) * n).T
    # Every letter replaced by the next, cyclically: dropping and appending letters does not look at
    # them, so that renaming them is a symmetry.
    letters = np.stack(np.unravel_index(words, (degree,) * n))
    renamed = degree ** np.arange(n)[::-1] @ ((letters + 1) % degree)
    heads = (words[:, None] * degree + np.arange(degree)) % size
    return Digraph.from_heads(heads, name, [renamed], backwards.ravel())


# The heads of the arcs of each vertex.
_DIAMOND = ((1, 2), (2, 3), (4, 5), (0, 6), (0, 6), (3, 7), (5, 7), (1, 4))

# Orders of the words that lose arcs, by degree and length of words.
_CYCLES = {
    (2, 3): (0, 2, 5, 7),
    (2, 4): (0, 5, 10, 15),
    (3, 2): (0, 3, 1, 2, 4, 6, 5, 7, 8),
    (4, 2): (0, 4, 1, 2, 5, 9, 6, 7, 10, 14, 11, 8, 15, 3, 12, 13),
}


def is_known(degree: int, n: int) -> bool:
    """Whether DBJMod(degree, n) is built."""
    return (degree, n) in _CYCLES


def diamond() -> Digraph:
    """Diamond: 8 vertices of degree 2 and diameter 3, with a schedule of T_L 3 and T_B 7/8.

    The dissertation only draws it (Fig. A.8). There are 256 digraphs of this size, degree and
    diameter without self-loops and parallel arcs; two of them, each other's transpose, have the
    all-to-all rate 3/20 of the table's Diamond^2 (8 times 1.87e-2), and both have such a schedule.
    This is one of the two. It is not reverse-symmetric.
    """
    return Digraph.from_heads(np.asarray(_DIAMOND), "Diamond")


def modified_de_bruijn(degree: int, n: int) -> Digraph:
    """DBJMod(d, n): DBJ(d, n) with self-loops and 2-cycles replaced by one cycle (Fig. A.9).

    The words that lose arcs are joined in a cycle, in an order that the dissertation does not
    give. The orders here give digraphs without parallel arcs that are reverse-symmetric where
    Table A.3 says so, and have bandwidth-optimal schedules of the table's T_L: 4, 5, 3 and 3 for
    DBJMod(2,3), (2,4), (3,2) and (4,2). For DBJMod(2,3) none of the 6 orders has one of 3 steps
    with 2 or 4 chunks per shard.

    Raises:
        TopologyError: other parameters than these four pairs.
    """
    degree, n = count(degree, "degree"), count(n, "n")
    if (degree, n) not in _CYCLES:
        known = ", ".join(f"({d},{k})" for d, k in _CYCLES)
        near = min(_CYCLES, key=lambda pair: (abs(pair[0] - degree), abs(pair[1] - n)))
        raise TopologyError(
            f"DBJMod(d,n) is known for (d,n) of {known}, not ({degree},{n}); the nearest is {near}"
        )
    plain = de_bruijn(degree, n)
    pairs = plain.tails * plain.size + plain.heads
    # A word on a self-loop or 2-cycle loses one arc out and one in, and gets one of each by the
    # cycle: the degree stays.
    goes_back = np.isin(plain.heads * plain.size + plain.tails, pairs)
    cycle = np.asarray(_CYCLES[degree, n])
    after = np.empty(plain.size, np.int64)
    after[cycle] = np.roll(cycle, -1)
    return Digraph(
        plain.size,
        degree,
        np.concatenate([plain.tails[~goes_back], cycle]),
        np.concatenate([plain.heads[~goes_back], after[cycle]]),
        name=f"DBJMod({degree},{n})",
        # Renamings of the letters that the cycle does not break.
        generators=tuple(
            image
            for image in plain.generators
            if np.array_equal(np.asarray(image)[after[cycle]], after[np.asarray(image)[cycle]])
        ),
    )


def complete(m: int) -> Digraph:
    """K_m: every vertex is joined with every other; degree m - 1."""
    m = count(m, "m", least=2)
    check_size(f"K{m}", m, m * (m - 1))
    vertices = np.arange(m)
    # The turn and one exchange of neighbours generate all permutations.
    generators = ((vertices + 1) % m, (1, 0, *range(2, m)))
    return Digraph.from_heads((vertices[:, None] + np.arange(1, m)) % m, f"K{m}", generators)


def complete_bipartite(degree: int) -> Digraph:
    """K_{d,d}: two sides of d vertices, each joined with all of the other side; 2d vertices."""
    degree = count(degree, "degree")
    name = f"K{degree},{degree}"
    check_size(name, 2 * degree, 2 * degree * degree)
    side = np.arange(degree)
    left, right = (end.ravel() for end in np.meshgrid(side, degree + side, indexing="ij"))
    # One side is rotated while the other stays, and the sides may be exchanged.
    turned = np.concatenate([(side + 1) % degree, degree + side])
    exchanged = (np.arange(2 * degree) + degree) % (2 * degree)
    return Digraph(
        2 * degree,
        degree,
        np.concatenate([left, right]),
        np.concatenate([right, left]),
        name=name,
        generators=tuple(tuple(image.tolist()) for image in (turned, exchanged)),
    )


def hamming(n: int, q: int) -> Digraph:
    """H(n, q): words of n letters out of q, joined where one letter differs; degree n (q - 1)."""
    n, q = count(n, "n"), count(q, "q", least=2)
    return _named(cartesian_power(complete(q), n), f"H({n},{q})")


def hypercube(dimensions: int) -> Digraph:
    """H(d, 2): words of d bits, joined where one bit differs; 2^d vertices of degree d."""
    dimensions = count(dimensions, "dimensions")
    return _named(cartesian_power(complete(2), dimensions), f"hypercube({dimensions})")


def twisted_hypercube(dimensions: int) -> Digraph:
    """The hypercube with two edges of one 4-cycle exchanged: diameter d - 1.

    On the cycle 0, 1, 3, 2 the edges 0-1 and 3-2 become 0-3 and 1-2. Source: Esfahanian, Ni and
    Sagan, "The twisted n-cube with application to multiprocessing" (1991), the reference of
    Appendix A.1.1.

    Args:
        dimensions: d, at least 3.
    """
    cube = hypercube(count(dimensions, "dimensions", least=3))
    # No symmetry is stated: most of those of the hypercube move the exchanged edges.
    heads = cube.heads.copy()
    for tail, old, new in ((0, 1, 3), (3, 2, 0), (1, 0, 2), (2, 3, 1)):
        heads[(cube.tails == tail) & (cube.heads == old)] = new
    return Digraph(cube.size, cube.degree, cube.tails, heads, name=f"twisted {cube.name}")


def _named(digraph: Digraph, name: str) -> Digraph:
    return dataclasses.replace(digraph, name=name)


_DEGREE = 4  # a parent and two children in one tree, a parent in the other


def double_binary_tree(n: int) -> Digraph:
    """The edges of both trees of ``tree_parents``; degree 4, the baseline of Section 3.8.2.

    Ports that neither tree uses, as those of roots, are self-loops. An edge of both trees is two
    arcs each way.

    Args:
        n: vertices, at least 2.
    """
    n = count(n, "n", least=2)
    tails, heads = [], []
    for parents in tree_parents(n):
        children = np.flatnonzero(parents >= 0)
        tails += [children, parents[children]]
        heads += [parents[children], children]
    # A digraph is regular: ports that no tree uses lead back.
    used = np.bincount(np.concatenate(tails), minlength=n)
    loops = np.repeat(np.arange(n), _DEGREE - used)
    return Digraph(
        n,
        _DEGREE,
        np.concatenate([*tails, loops]),
        np.concatenate([*heads, loops]),
        name=f"DBT({n})",
    )


def tree_parents(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The parent of each vertex in the first tree and in the second, -1 for the root; int64.

    Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
    (2009), with the trees of NCCL: in the first, vertices with more trailing zero bits are higher
    up, and odd vertices are leaves; the second is the first mirrored (even n) or shifted by one
    (odd n).
    """
    first = np.full(n, -1, np.int64)
    for vertex in range(1, n):
        # A parent has its lowest set bit one place higher, and differs in no bit above that one.
        # Where that is beyond n, the bit is left out instead, as in NCCL's ``ncclGetBtree``.
        low = vertex & -vertex
        above = (vertex ^ low) | (low << 1)
        first[vertex] = above if above < n else vertex ^ low
    vertices = np.arange(n)
    moved = n - 1 - vertices if n % 2 == 0 else (vertices + 1) % n
    second = np.empty(n, np.int64)
    second[moved] = np.where(first >= 0, moved[first], -1)
    return first, second
