"""Line graphs of a Cayley digraph of 16 ranks, which is not among the paper's bases.

Of the Cayley digraphs of degree 4 on groups of order 16, only some of the dihedral group reach all
ranks in two steps. Line graphs of one have the T_L of Pi(4, n) at a lower T_B, and exchange faster.
"""

from __future__ import annotations

import itertools

import numpy as np

from jaxcoll.topologies.generative import Digraph, line_graph

_ROTATIONS, _DEGREE = 8, 4
# Pairs (a, x): the rotation by a, followed by the reflection where x is 1.
_CONNECTIONS = ((0, 1), (1, 0), (3, 1), (6, 0))

Element = tuple[int, int]


def _times(left: Element, right: Element) -> Element:
    """The product in the dihedral group: a reflection reverses the rotation after it."""
    a, x = left
    b, y = right
    return (a + (-b if x else b)) % _ROTATIONS, (x + y) % 2


def dihedral_digraph() -> Digraph:
    """Arcs go from every element g to g c for four connections c; T_L 2, T_B 1, f = 3/20."""
    elements = list(itertools.product(range(_ROTATIONS), range(2)))
    number = {element: i for i, element in enumerate(elements)}
    arcs = [(number[g], number[_times(g, c)]) for g in elements for c in _CONNECTIONS]
    tails, heads = np.asarray(arcs, np.int64).T
    translations = tuple(tuple(number[_times(by, g)] for g in elements) for by in ((1, 0), (0, 1)))
    size = len(elements)
    return Digraph(size, _DEGREE, tails, heads, name="Cay(D8)", generators=translations)


def dihedral_line_graph(n: int) -> Digraph | None:
    """L^k of it where n is 16 times 4^k; None for other n."""
    base = dihedral_digraph()
    times, size = 0, base.size
    while size < n:
        times, size = times + 1, size * _DEGREE
    if size != n:
        return None
    return line_graph(base, times) if times else base
