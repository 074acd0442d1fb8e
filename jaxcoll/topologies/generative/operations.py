"""Digraphs made from digraphs: line graphs, degree expansions, products, powers and others.

Known symmetries of the factors carry over: automorphisms, and an isomorphism to the transpose,
since all of these operations preserve reverse-symmetry (Appendix A.2).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import check_size, count
from jaxcoll.numerics import checks
from jaxcoll.topologies.generative.digraph import Digraph, arc_numbers, same_arcs


def line_graph(digraph: Digraph, times: int = 1) -> Digraph:
    """L^k(G): one vertex per arc, an arc from uv to vw (Definition 12); d^k N vertices of degree d.

    Vertex a is arc a of G. Its arcs lead to the arcs that leave the head of a, so that arcs of
    L(G) are ``a * degree + i`` for the i-th of them. Parallel arcs and self-loops of G are vertices
    like any others; a self-loop of G is a vertex with a self-loop.

    Args:
        digraph: G.
        times: k, at least 1.
    """
    given, times = checked(digraph), count(times, "times")
    largest = given.size * given.degree ** min(times, 64)
    check_size(f"L^{times}({given.name})", largest, largest * given.degree)
    for _ in range(times):
        digraph = _line_graph(digraph)
    # L(L^j(G)) is called L^(j+1)(G). The name L(G) x L(H) begins and ends like that of a line
    # graph, but the text in between closes a parenthesis that was opened outside.
    name = given.name or "G"
    taken = re.fullmatch(r"L(?:\^(\d+))?\((.*)\)", name)
    depth = itertools.accumulate((c == "(") - (c == ")") for c in (taken[2] if taken else ""))
    if taken and min(depth, default=0) >= 0:
        name, times = taken[2], times + int(taken[1] or 1)
    return dataclasses.replace(digraph, name=f"L{f'^{times}' if times > 1 else ''}({name})")


def _line_graph(digraph: Digraph) -> Digraph:
    after = digraph.heads[:, None] * digraph.degree + np.arange(digraph.degree)
    reversal = None
    # A symmetry of G moves its arcs, which are the vertices here; one that reverses all arcs of G
    # reverses all paths of two of them as well.
    if digraph.reversal is not None:
        image = np.asarray(digraph.reversal)
        reversal = arc_numbers(image[digraph.heads], image[digraph.tails])
    images = map(np.asarray, digraph.generators)
    moved = [arc_numbers(image[digraph.tails], image[digraph.heads]) for image in images]
    return Digraph.from_heads(after, "", moved, reversal)


def degree_expansion(digraph: Digraph, copies: int) -> Digraph:
    """G * n: n copies of each vertex, all joined where those of G are (Definition 13).

    Vertex v of copy i is ``v * n + i``. nN vertices of degree nd.

    Raises:
        TopologyError: G has self-loops.
    """
    copies = count(copies, "copies")
    if checked(digraph).self_loops:
        raise TopologyError(
            f"degree expansion needs a digraph without self-loops, {digraph} has "
            f"{digraph.self_loops}; take another base, or a product"
        )
    size, copy = digraph.size * copies, np.arange(copies)
    check_size(f"{digraph.name} * {copies}", size, size * digraph.degree * copies)
    tails, heads = degree_expansion_arcs(digraph, copies)

    def lifted(image) -> tuple[int, ...]:
        return tuple((np.asarray(image)[:, None] * copies + copy).ravel().tolist())

    # Copies may be exchanged at all vertices at once, since an arc joins all copies of its ends.
    vertices = np.arange(digraph.size)[:, None] * copies
    next_copy = tuple((vertices + (copy + 1) % copies).ravel().tolist())
    return Digraph(
        size,
        digraph.degree * copies,
        tails,
        heads,
        name=f"{_operand(digraph)}*{copies}",
        generators=(*map(lifted, digraph.generators), *([next_copy] if copies > 1 else [])),
        reversal=None if digraph.reversal is None else lifted(digraph.reversal),
    )


def degree_expansion_arcs(digraph: Digraph, copies: int) -> tuple[np.ndarray, np.ndarray]:
    """Tails and heads of G * n: arc a of G from copy i to copy j is ``(a * n + i) * n + j``."""
    copy = np.arange(copies)
    shape = (digraph.num_arcs, copies, copies)
    tails = digraph.tails[:, None, None] * copies + copy[:, None]
    heads = digraph.heads[:, None, None] * copies + copy
    return np.broadcast_to(tails, shape).ravel(), np.broadcast_to(heads, shape).ravel()


def cartesian_product(*factors: Digraph) -> Digraph:
    """G_1 x ... x G_n: arcs of a factor along each coordinate (Definition 3).

    The last coordinate varies fastest. Sizes multiply, degrees add.

    Raises:
        TopologyError: there are no factors.
    """
    if not factors:
        raise TopologyError("a Cartesian product needs one factor or more, got none; give digraphs")
    sides = tuple(checked(factor).size for factor in factors)
    size, degree = math.prod(sides), sum(factor.degree for factor in factors)
    check_size("a Cartesian product", size, size * degree)
    vertices = np.arange(size).reshape(sides)
    tails, heads = product_arcs(factors)
    generators = []
    # Symmetries of a factor move only its coordinate; equal adjacent factors may change places,
    # which generates all their orders.
    for dimension, factor in enumerate(factors):
        for image in factor.generators:
            moved = np.take(vertices, np.asarray(image), axis=dimension)
            generators.append(tuple(moved.ravel().tolist()))
    for dimension, (factor, after) in enumerate(itertools.pairwise(factors)):
        if factor is after:
            swapped = np.swapaxes(vertices, dimension, dimension + 1)
            generators.append(tuple(swapped.ravel().tolist()))
    reversal = None
    # An arc of the product is an arc of a factor, so it is reversed if every coordinate moves by
    # the isomorphism of its factor.
    if all(factor.reversal is not None for factor in factors):
        image = vertices
        for dimension, factor in enumerate(factors):
            image = np.take(image, np.asarray(factor.reversal), axis=dimension)
        reversal = tuple(image.ravel().tolist())
    runs = [(_operand(factor), len(list(run))) for factor, run in itertools.groupby(factors)]
    return Digraph(
        size,
        degree,
        tails,
        heads,
        name=" x ".join(name + (f"^{times}" if times > 1 else "") for name, times in runs),
        generators=tuple(generators),
        reversal=reversal,
    )


def product_arcs(factors: Sequence[Digraph]) -> tuple[np.ndarray, np.ndarray]:
    """Tails and heads of a product: dimension by dimension, line by line, arc of the factor by arc.

    A line is the vertices that differ in one coordinate only; the lines of a dimension are in
    order of the other coordinates.
    """
    sides = tuple(factor.size for factor in factors)
    vertices = np.arange(math.prod(sides)).reshape(sides)
    tails, heads = [], []
    for dimension, factor in enumerate(factors):
        lines = np.moveaxis(vertices, dimension, -1).reshape(-1, factor.size)
        tails.append(lines[:, factor.tails].ravel())
        heads.append(lines[:, factor.heads].ravel())
    return np.concatenate(tails), np.concatenate(heads)


def cartesian_power(digraph: Digraph, exponent: int) -> Digraph:
    """G^n: the product of n copies of G; N^n vertices of degree nd."""
    exponent = count(exponent, "exponent")
    size = checked(digraph).size ** min(exponent, 64)
    check_size(f"{digraph.name}^{exponent}", size, size * digraph.degree * exponent)
    return cartesian_product(*(digraph,) * exponent)


def bidirectional(digraph: Digraph) -> Digraph:
    """G and its transpose on the same vertices: degree 2d, undirected (Appendix A.1.6)."""
    tails, heads = both_ways_arcs(checked(digraph))
    return Digraph(
        digraph.size,
        2 * digraph.degree,
        tails,
        heads,
        name=f"bidirectional {_operand(digraph)}",
        generators=digraph.generators,
    )


def both_ways_arcs(digraph: Digraph) -> tuple[np.ndarray, np.ndarray]:
    """Tails and heads of G and its transpose: the arcs of G, then the same arcs reversed."""
    ends = digraph.tails, digraph.heads
    return np.concatenate(ends), np.concatenate(ends[::-1])


def multiply_arcs(digraph: Digraph, times: int) -> Digraph:
    """Every arc ``times`` times: the same size and distances at ``times`` the degree."""
    times = count(times, "times")
    if times == 1:
        return checked(digraph)
    return Digraph(
        checked(digraph).size,
        digraph.degree * times,
        np.repeat(digraph.tails, times),
        np.repeat(digraph.heads, times),
        name=f"{times} {_operand(digraph)}",
        generators=digraph.generators,
        reversal=digraph.reversal,
    )


def checked(digraph) -> Digraph:
    """The digraph; refuses anything else."""
    return checks.instance(digraph, Digraph, "digraph", TopologyError)


def _operand(digraph: Digraph) -> str:
    """The name as an operand, in parentheses if it has several parts."""
    name = digraph.name or "G"
    return f"({name})" if " " in name else name


# The number of choices after which the search gives up: very regular digraphs may need all of their
# orders.
_MOST_REFINEMENTS = 20_000


def is_reverse_symmetric(digraph: Digraph) -> bool:
    """Whether a digraph is isomorphic to its transpose (Definition 6).

    Raises:
        TopologyError: the search gave up, which happens only for large and very regular digraphs.
    """
    return digraph.reversal is not None or _search(digraph) is not None


def find_reversal(digraph: Digraph) -> np.ndarray:
    """An isomorphism f to the transpose: for every arc (u, v) there is an arc (f(v), f(u)).

    Returns:
        int64 of shape (size,); the one that the construction declares, if any.

    Raises:
        TopologyError: the digraph is not isomorphic to its transpose, or the search gave up.
    """
    if digraph.reversal is not None:
        return np.asarray(digraph.reversal, np.int64)
    image = _search(digraph)
    if image is None:
        raise TopologyError(
            f"{digraph} is not isomorphic to its transpose; give an all_gather and a "
            f"reduce_scatter, or take a reverse-symmetric digraph, as the Kautz graph of nearest "
            f"size: {_nearest_kautz(digraph)}"
        )
    return image


def _nearest_kautz(digraph: Digraph) -> str:
    # K(d, n) has d^n (d + 1) vertices: the last size that is not above, and the one after it.
    degree, n = digraph.degree, 0
    while degree > 1 and degree ** (n + 1) * (degree + 1) <= digraph.size:
        n += 1
    sizes = {degree**k * (degree + 1): k for k in (n, n + 1)}
    size = min(sizes, key=lambda size: abs(size - digraph.size))
    return f"K({degree},{sizes[size]}) of {size} vertices"


def _search(digraph: Digraph) -> np.ndarray | None:
    """Pair off vertices of G and G^T, refining colours after each choice; None if all fail.

    Both digraphs are refined together, as one of 2N vertices: a colour class with different numbers
    of vertices in the two refutes the choices made.
    """
    size = digraph.size
    neighbours = _neighbours(digraph)
    # A refinement after each choice, as in programs for canonical labels (McKay, "Practical graph
    # isomorphism", 1981). Equal colours of a regular digraph would never be refined, so the first
    # ones are numbers of vertices by distance.
    stack = [_refine(_profiles(digraph), neighbours)]
    refinements = 0
    while stack:
        colour = stack.pop()
        left, right = colour[:size], colour[size:]
        counts = np.bincount(left, minlength=colour.max() + 1)
        if not np.array_equal(counts, np.bincount(right, minlength=len(counts))):
            continue
        if counts.max() == 1:
            image = np.empty(size, np.int64)
            image[np.argsort(left)] = np.argsort(right)
            # If each colour has one vertex on either side, with the same colours around it, that is
            # the isomorphism. It is checked before it is used.
            if same_arcs(digraph, image[digraph.heads], image[digraph.tails]):
                return image
            continue
        # The smallest class with several vertices has few choices, and each separates the most.
        chosen = int(np.argmin(np.where(counts > 1, counts, size + 1)))
        first = int(np.flatnonzero(left == chosen)[0])
        for other in np.flatnonzero(right == chosen)[::-1]:
            refinements += 1
            if refinements > _MOST_REFINEMENTS:
                raise TopologyError(
                    f"no isomorphism of {digraph} to its transpose was found after "
                    f"{_MOST_REFINEMENTS} choices; give one as reversal"
                )
            branch = colour.copy()
            branch[[first, size + other]] = colour.max() + 1
            stack.append(_refine(branch, neighbours))
    return None


def _neighbours(digraph: Digraph) -> tuple[np.ndarray, np.ndarray]:
    """Out- and in-neighbours of each vertex of G, then of G^T, numbered from N; (2N, d) each."""
    out = digraph.heads.reshape(digraph.size, digraph.degree)
    into = digraph.tails[digraph.in_arcs]
    return np.concatenate([out, into + digraph.size]), np.concatenate([into, out + digraph.size])


def _profiles(digraph: Digraph) -> np.ndarray:
    """The first colours: the numbers of vertices at each distance from a vertex, and to it."""
    distances = digraph.distances()
    levels = range(digraph.diameter + 1)
    away = np.stack([(distances == level).sum(axis=1) for level in levels], axis=1)
    towards = np.stack([(distances == level).sum(axis=0) for level in levels], axis=1)
    rows = np.concatenate([np.hstack([away, towards]), np.hstack([towards, away])])
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()


def _refine(colour: np.ndarray, neighbours: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Colours split by those of out- and in-neighbours until no class splits."""
    classes = len(np.unique(colour))
    # Classes only split, so if there are as many as before, they are the same.
    while True:
        around = [np.sort(colour[ends], axis=1) for ends in neighbours]
        rows = np.hstack([colour[:, None], *around])
        colour = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        found = int(colour.max()) + 1
        if found == classes:
            return colour
        classes = found
