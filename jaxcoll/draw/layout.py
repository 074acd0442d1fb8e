"""Where vertices stand and how links bend, so that nothing hides anything else."""

from __future__ import annotations

import networkx as nx
import numpy as np

from jaxcoll.topology import Topology

RADIUS = 0.17  # of a vertex, when neighbours on a grid are 1 apart


def layout(topology: Topology) -> np.ndarray:
    """Places of the vertices, float64 of shape (vertices, 2), neighbours about 1 apart."""
    placement = topology.placement
    grid = None if placement is None else placement.grid
    sides = [] if grid is None else [d for d, side in enumerate(grid.shape) if side > 1]
    if placement is not None and grid is not None and topology.is_direct and 1 <= len(sides) <= 3:
        at = np.empty((grid.size, len(sides)))
        at[list(placement.ranks)] = grid.coordinates()[:, sides]
        if len(sides) == 2:
            return np.stack([at[:, 1], -at[:, 0]], axis=1)
        if len(sides) == 3:
            depth, row, column = at.T
            return np.stack([1.3 * column + 0.45 * depth, 0.6 * depth - 1.9 * row], axis=1)
        if not grid.wrap[sides[0]]:
            return np.stack([at[:, 0], np.zeros(len(at))], axis=1)
    if topology.is_direct:
        return _circle(topology.num_ranks)
    # Switches find their place among the ranks they join; deterministic.
    layout = nx.kamada_kawai_layout(nx.Graph(topology.to_networkx()), weight=None)
    place = np.array([layout[v] for v in range(topology.num_vertices)])
    src, dst = place[topology.src], place[topology.dst]
    return place / max(np.linalg.norm(src - dst, axis=1).min(), 0.2)


def _circle(count: int) -> np.ndarray:
    if count == 1:
        return np.zeros((1, 2))
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) * 0.5 / np.sin(np.pi / count)


def bows(topology: Topology, place: np.ndarray) -> np.ndarray:
    """How far each link bends to the right of its way, float64 of shape (links,).

    A little everywhere, so that the links of both directions and parallel ones stay apart; far on
    a link that would otherwise run over the vertices between its ends.
    """
    bow = np.full(topology.num_links, 0.045)
    pair = topology.src.astype(np.int64) * topology.num_vertices + topology.dst
    nth = np.arange(topology.num_links) - np.searchsorted(pair, pair)  # of parallel links
    bow += 0.07 * nth
    middle = (place.min(axis=0) + place.max(axis=0)) / 2
    for link in range(topology.num_links):
        a, b = place[topology.src[link]], place[topology.dst[link]]
        if not _runs_over(place, a, b):
            continue
        way = (b - a) / np.linalg.norm(b - a)
        right = np.array([way[1], -way[0]])
        outward = float(np.dot((a + b) / 2 - middle, right))
        # On the axis of symmetry either side will do, but the same one for both directions.
        side = np.sign(outward) if abs(outward) > 1e-9 else np.sign(right[0] + 1e-3 * right[1])
        bow[link] = side * (0.36 + 0.04 * side) + 0.07 * nth[link]
    return bow


def _runs_over(place: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    way = b - a
    along = (place - a) @ way / (way @ way)
    beside = np.linalg.norm(place - a - along[:, None] * way, axis=1)
    return bool(((along > 1e-6) & (along < 1 - 1e-6) & (beside < RADIUS)).any())


def middle_of(topology: Topology, place: np.ndarray, bow: np.ndarray, link: int) -> np.ndarray:
    a, b = place[topology.src[link]], place[topology.dst[link]]
    way = (b - a) / np.linalg.norm(b - a)
    return (a + b) / 2 + bow[link] * np.array([way[1], -way[0]])
