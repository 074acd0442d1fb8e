"""Complete, complete bipartite and Hamming graphs, plain and twisted hypercubes (Table A.3)."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxcoll.topologies.arguments import check_size, count
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.operations import cartesian_power


def complete(m: int) -> Digraph:
    """K_m: every vertex is joined with every other; degree m - 1."""
    m = count(m, "m", least=2)
    check_size(f"K{m}", m, m * (m - 1))
    vertices = np.arange(m)
    return Digraph(
        m,
        m - 1,
        np.repeat(vertices, m - 1),
        ((vertices[:, None] + np.arange(1, m)) % m).ravel(),
        name=f"K{m}",
        generators=(tuple(((vertices + 1) % m).tolist()), (1, 0, *range(2, m))),
    )


def complete_bipartite(degree: int) -> Digraph:
    """K_{d,d}: two sides of d vertices, each joined with all of the other side; 2d vertices."""
    degree = count(degree, "degree")
    name = f"K{degree},{degree}"
    check_size(name, 2 * degree, 2 * degree * degree)
    side = np.arange(degree)
    left, right = (end.ravel() for end in np.meshgrid(side, degree + side, indexing="ij"))
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
    heads = cube.heads.copy()
    for tail, old, new in ((0, 1, 3), (3, 2, 0), (1, 0, 2), (2, 3, 1)):
        heads[(cube.tails == tail) & (cube.heads == old)] = new
    return Digraph(cube.size, cube.degree, cube.tails, heads, name=f"twisted {cube.name}")


def _named(digraph: Digraph, name: str) -> Digraph:
    return dataclasses.replace(digraph, name=name)
