"""Isomorphisms between a digraph and its transpose, by colour refinement and backtracking."""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.topologies.generative.digraph import Digraph

_MOST_REFINEMENTS = 20_000


def is_reverse_symmetric(digraph: Digraph) -> bool:
    """Whether a digraph is isomorphic to its transpose (Definition 6).

    Raises:
        TopologyError: the search is given up, which takes a large and very regular digraph.
    """
    return digraph.reversal is not None or _search(digraph) is not None


def find_reversal(digraph: Digraph) -> np.ndarray:
    """An isomorphism f to the transpose: for every arc (u, v) there is an arc (f(v), f(u)).

    Returns:
        int64 of shape (size,); the one that the construction knows, where there is one.

    Raises:
        TopologyError: the digraph is not isomorphic to its transpose, or the search is given up.
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
    degree, n = digraph.degree, 0
    while degree > 1 and degree ** (n + 1) * (degree + 1) <= digraph.size:
        n += 1
    sizes = {degree**k * (degree + 1): k for k in (n, n + 1)}
    size = min(sizes, key=lambda size: abs(size - digraph.size))
    return f"K({degree},{sizes[size]}) of {size} vertices"


def _search(digraph: Digraph) -> np.ndarray | None:
    """Pair off vertices of G and G^T, refining colours after each choice; None if all fail.

    Both digraphs are refined together, as one of 2N vertices: a colour class that has not as many
    vertices in either refutes the choices made.
    """
    size = digraph.size
    neighbours = _neighbours(digraph)
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
            if _reverses(digraph, image):
                return image
            continue
        # The smallest class of several vertices: few choices, and each separates the most.
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
    """A first colour: how many vertices are at each distance from a vertex, and to it."""
    distances = digraph.distances()
    levels = range(digraph.diameter + 1)
    away = np.stack([(distances == level).sum(axis=1) for level in levels], axis=1)
    towards = np.stack([(distances == level).sum(axis=0) for level in levels], axis=1)
    rows = np.concatenate([np.hstack([away, towards]), np.hstack([towards, away])])
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()


def _refine(colour: np.ndarray, neighbours: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Colours split by those of out- and in-neighbours until no class splits."""
    classes = len(np.unique(colour))
    while True:
        around = [np.sort(colour[ends], axis=1) for ends in neighbours]
        rows = np.hstack([colour[:, None], *around])
        colour = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        found = int(colour.max()) + 1
        if found == classes:
            return colour
        classes = found


def _reverses(digraph: Digraph, image: np.ndarray) -> bool:
    pairs = np.sort(image[digraph.heads] * digraph.size + image[digraph.tails])
    return np.array_equal(pairs, digraph.tails * digraph.size + digraph.heads)
