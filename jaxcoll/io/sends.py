"""What several formats say of sends: runs of neighbouring chunks, and paths of links.

Runtimes move neighbouring chunks of a buffer in one operation, so the chunks 4, 5, 6 that a message
carries are one run, and 4, 6 are two. Files that say their paths, as ours do by keys that runtimes
pass over, give back the edges of a schedule; others mean the link between two ranks, or any path.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology


def continues(schedule: Schedule, way: np.ndarray) -> np.ndarray:
    """Whether a send continues the run of the one before it, bool of shape (sends,).

    Args:
        way: of each send, a number that is equal where sends may share an operation: of its edge,
            or of its path where several edges have the same.
    """
    chunk = np.asarray(schedule.chunk, np.int64)
    same = [np.asarray(column) for column in (schedule.step, way, schedule.reduce)]
    found = np.zeros(len(chunk), bool)
    found[1:] = np.logical_and.reduce([column[1:] == column[:-1] for column in same])
    # Sends of a message are in the order of their chunks, so a neighbour stands next to it.
    found[1:] &= chunk[1:] == chunk[:-1] + 1
    return found


def links_by_ends(network: Topology) -> dict[tuple[int, int], int]:
    """The link from one vertex to another; of parallel ones the last."""
    ends = zip(network.src.tolist(), network.dst.tolist(), strict=True)
    return {pair: link for link, pair in enumerate(ends)}


def leads(network: Topology, path: Sequence[int], src: int, dst: int) -> bool:
    """Whether links that a file names exist and lead in a row from one rank to another."""
    if not path or max(path) >= network.num_links:
        return False
    if (network.src[path[0]], network.dst[path[-1]]) != (src, dst):
        return False
    return all(network.dst[a] == network.src[b] for a, b in itertools.pairwise(path))


def edges_of(network: Topology, paths: Iterable[tuple[int, ...]]) -> tuple[Edges, list[int]]:
    """An edge for every different path of links, as they come, and the edge of each path."""
    number: dict[tuple[int, ...], int] = {}
    edge = [number.setdefault(path, len(number)) for path in paths]
    return Edges.from_paths(network, [*number]), edge
