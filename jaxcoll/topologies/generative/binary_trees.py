"""Two binary trees over the same vertices, the leaves of one being inner vertices of the other."""

from __future__ import annotations

import numpy as np

from jaxcoll.topologies.arguments import count
from jaxcoll.topologies.generative.digraph import Digraph

_DEGREE = 4


def double_binary_tree(n: int) -> Digraph:
    """The edges of both trees of ``tree_parents``; degree 4, the baseline of Section 3.8.2.

    A vertex has a parent and at most two children in one tree, and a parent in the other. Ports
    that neither tree uses, as those of roots, are self-loops. An edge of both trees is two arcs
    each way.

    Args:
        n: vertices, at least 2.
    """
    n = count(n, "n", least=2)
    tails, heads = [], []
    for parents in tree_parents(n):
        children = np.flatnonzero(parents >= 0)
        tails += [children, parents[children]]
        heads += [parents[children], children]
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
        low = vertex & -vertex
        above = (vertex ^ low) | (low << 1)
        first[vertex] = above if above < n else vertex ^ low
    vertices = np.arange(n)
    moved = n - 1 - vertices if n % 2 == 0 else (vertices + 1) % n
    second = np.empty(n, np.int64)
    second[moved] = np.where(first >= 0, moved[first], -1)
    return first, second
