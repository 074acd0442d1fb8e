"""Digraphs made of digraphs: line graph, degree expansion, product, power, both ways, multi-edges.

The known symmetry of the factors carries over: automorphisms, and an isomorphism to the
transpose, for all of these preserve reverse-symmetry (Appendix A.2).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.topologies.arguments import check_size, count
from jaxcoll.topologies.generative.digraph import Digraph, arc_numbers


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
    return dataclasses.replace(digraph, name=_line_graph_name(given.name or "G", times))


def _line_graph_name(name: str, times: int) -> str:
    """L^k(name), or L^(j+k)(inner) for the name L^j(inner)."""
    taken = re.fullmatch(r"L(?:\^(\d+))?\((.*)\)", name)
    if taken and _is_balanced(taken[2]):
        name, times = taken[2], times + int(taken[1] or 1)
    return f"L{f'^{times}' if times > 1 else ''}({name})"


def _is_balanced(text: str) -> bool:
    """Whether every parenthesis that closes has been opened within the text."""
    depth = itertools.accumulate((char == "(") - (char == ")") for char in text)
    return min(depth, default=0) >= 0


def _line_graph(digraph: Digraph) -> Digraph:
    arcs, degree = digraph.num_arcs, digraph.degree
    after = digraph.heads[:, None] * degree + np.arange(degree)
    reversal = None
    if digraph.reversal is not None:
        image = np.asarray(digraph.reversal)
        reversal = _arc_image(image[digraph.heads], image[digraph.tails])
    return Digraph(
        arcs,
        degree,
        np.repeat(np.arange(arcs), degree),
        after.ravel(),
        generators=tuple(
            _arc_image(image[digraph.tails], image[digraph.heads])
            for image in map(np.asarray, digraph.generators)
        ),
        reversal=reversal,
    )


def _arc_image(tails: np.ndarray, heads: np.ndarray) -> tuple[int, ...]:
    return tuple(arc_numbers(tails, heads).tolist())


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

    The last coordinate runs fastest. Sizes multiply, degrees add.

    Raises:
        TopologyError: no factors.
    """
    if not factors:
        raise TopologyError("a Cartesian product needs one factor or more")
    sides = tuple(checked(factor).size for factor in factors)
    size, degree = math.prod(sides), sum(factor.degree for factor in factors)
    check_size("a Cartesian product", size, size * degree)
    vertices = np.arange(size).reshape(sides)
    tails, heads = product_arcs(factors)
    generators = []
    for dimension, factor in enumerate(factors):
        for image in factor.generators:
            moved = np.take(vertices, np.asarray(image), axis=dimension)
            generators.append(tuple(moved.ravel().tolist()))
    generators += _swaps(factors, vertices)
    reversal = None
    if all(factor.reversal is not None for factor in factors):
        image = vertices
        for dimension, factor in enumerate(factors):
            image = np.take(image, np.asarray(factor.reversal), axis=dimension)
        reversal = tuple(image.ravel().tolist())
    return Digraph(
        size,
        degree,
        tails,
        heads,
        name=_product_name(factors),
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


def _swaps(factors: tuple[Digraph, ...], vertices: np.ndarray):
    """Exchanges of coordinates that follow each other and have the same factor."""
    for dimension, (factor, after) in enumerate(itertools.pairwise(factors)):
        if factor is after:
            yield tuple(np.swapaxes(vertices, dimension, dimension + 1).ravel().tolist())


def _product_name(factors: tuple[Digraph, ...]) -> str:
    runs = [(_operand(factor), len(list(run))) for factor, run in itertools.groupby(factors)]
    return " x ".join(name + (f"^{times}" if times > 1 else "") for name, times in runs)


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
    """A digraph, itself; refuses anything else."""
    return checks.instance(digraph, Digraph, "digraph", TopologyError)


def _operand(digraph: Digraph) -> str:
    """The name as an operand: in parentheses where it is made of several."""
    name = digraph.name or "G"
    return f"({name})" if " " in name else name
