"""Tori and hypercubes: one set of trees, moved to every root, as high as the network is wide.

On a host of ranks all of whose dimensions close, moving along the host takes links to links. If the
trees of all roots are those of rank 0 moved, a link carries what the trees of rank 0 have in all
links of its direction together: what must fit is one number a direction. So rank 0's trees may
reach every rank by a shortest way, and one flow chooses the last link of each way.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.grid import Grid
from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.paths import Edges
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

_MOST_EDGES = 2**28


def moved_trees(topology: Topology, scaling: Scaling) -> TreeFlow | None:
    """Trees of shortest paths for all roots.

    None where the network is not a closed grid, its links are too uneven for shortest paths, or
    shards are unequal.

    The result is for the caller to check.
    """
    grid, n = topology.grid, topology.num_ranks
    if grid is None or not topology.is_direct or set(scaling.trees) != {scaling.k}:
        return None
    found = _directions(topology, grid, scaling)
    if found is None:
        return None
    moves, link, quota = found
    share = _last_links(grid, moves, quota, scaling.k)
    if share is None:
        return None
    # Where the k trees part: tree i reaches v by the direction whose part of 0..k-1 holds i.
    ends = np.cumsum(share, axis=0)
    starts = np.unique(np.concatenate([[0], ends.ravel()]))[:-1]
    if len(starts) * n * n > _MOST_EDGES:
        return None
    at, shape = grid.coordinates(), np.asarray(grid.shape)
    order = np.argsort(_distances(grid), kind="stable")[1:]
    edge = np.empty((n, len(starts), n - 1), np.int32)
    for i, start in enumerate(starts):
        direction = (ends[:, order] <= start).sum(axis=0)
        parent = at[order] - moves[direction]
        moved = (at[:, None] + parent) % shape
        source = np.ravel_multi_index(tuple(np.moveaxis(moved, -1, 0)), grid.shape)
        edge[:, i] = link[source, direction]
    return TreeFlow(
        topology,
        scaling.k,
        scaling.trees,
        np.repeat(np.arange(n), len(starts)),
        np.tile(np.diff([*starts, scaling.k]), n),
        Edges.from_links(topology),
        np.arange(n * len(starts) + 1) * (n - 1),
        edge.ravel(),
        scaling.inverse,
        {"trees": "moved from rank 0", "switches": "none"},
    )


def _directions(
    topology: Topology, grid: Grid, scaling: Scaling
) -> tuple[np.ndarray, np.ndarray, list[int]] | None:
    """Steps along each dimension up and down, the link of each from each rank, trees per link."""
    n, moves, links, quota = grid.size, [], [], []
    of_pair = {
        (int(u), int(v)): e for e, (u, v) in enumerate(zip(topology.src, topology.dst, strict=True))
    }
    for dimension, side in enumerate(grid.shape):
        for by in (1, -1) if side > 2 else (1,) if side == 2 else ():
            there = grid.translation(dimension, by)
            column = [of_pair.get((r, int(there[r])), -1) for r in range(n)]
            room = {scaling.capacity[e] if e >= 0 else -1 for e in column}
            if len(room) > 1 or -1 in room:
                return None  # an open dimension, or links that differ along it
            moves.append(np.eye(len(grid.shape), dtype=np.int64)[dimension] * by)
            links.append(column)
            quota.append(room.pop())
    if not moves or topology.num_links != n * len(moves):
        return None
    return np.asarray(moves), np.asarray(links).T, quota


def _distances(grid: Grid) -> np.ndarray:
    """Steps from rank 0 to each rank, int64 of shape (ranks,)."""
    at, shape = grid.coordinates(), np.asarray(grid.shape)
    return np.minimum(at, shape - at).sum(axis=1)


def _last_links(grid: Grid, moves: np.ndarray, quota: list[int], k: int) -> np.ndarray | None:
    """Of the k trees to each rank, how many arrive by each direction; (directions, ranks).

    A flow: k to each rank, shared among the directions that end a shortest way to it, of which
    each takes its quota in all.
    """
    n, count = grid.size, len(moves)
    at, shape, distance = grid.coordinates(), np.asarray(grid.shape), _distances(grid)
    arcs = []
    for direction, move in enumerate(moves):
        before = np.ravel_multi_index(tuple(((at - move) % shape).T), grid.shape)
        arcs += [(r, direction) for r in np.flatnonzero(distance[before] < distance).tolist()]
    source, sink = n + count, n + count + 1
    src = [*(r for r, _ in arcs), *[source] * (n - 1), *range(n, n + count)]
    dst = [*(n + direction for _, direction in arcs), *range(1, n), *[sink] * count]
    network = FlowNetwork(n + count + 2, np.asarray(src), np.asarray(dst))
    carried = network.carried([*[k] * len(arcs), *[k] * (n - 1), *quota], source, sink)
    if sum(carried[len(arcs) : len(arcs) + n - 1]) < k * (n - 1):
        return None
    share = np.zeros((count, n), np.int64)
    for (r, direction), amount in zip(arcs, carried, strict=False):
        share[direction, r] = amount
    return share
