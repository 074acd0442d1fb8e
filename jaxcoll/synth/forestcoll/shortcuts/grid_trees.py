"""Forests of tori and hypercubes: the trees of rank 0, moved to every other rank.

On a grid of ranks all of whose dimensions close, moving along the grid takes links to links. If the
trees of all roots are those of rank 0 moved, a link carries what the trees of rank 0 have in all
links of its direction together: what must fit is one number a direction. So rank 0's trees may
reach every rank by a shortest way, as high as the network is wide and no higher, and one flow
chooses the last link of each way.

On a ring of four ranks every rank has two trees, and a link carries three. Both trees of rank 0
reach ranks 1 and 3 straight, and rank 2 one by way of 1 and one by way of 3: three edges in each
direction.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.synth.forestcoll.routed_trees import MOST_EDGES, RoutedTrees
from jaxcoll.topology import Topology


def moved_trees(topology: Topology, scaling: Scaling) -> RoutedTrees | None:
    """Trees of shortest paths for all roots.

    None where the network is not a closed grid, its links are too uneven for shortest paths, or
    shards are unequal.

    The result is for the caller to check.
    """
    grid, n = topology.grid, topology.num_ranks
    if grid is None or not topology.is_direct or set(scaling.trees) != {scaling.k}:
        return None
    at, shape = grid.coordinates(), grid.shape
    found = _directions(topology, scaling, at, shape)
    if found is None:
        return None
    moves, link, quota = found
    # All trees are rank 0's, moved, so that only rank 0's are planned: n - 1 edges instead of n (n
    # - 1).
    distance = np.minimum(at, shape - at).sum(axis=1)  # steps from rank 0
    before = [np.ravel_multi_index((at - move).T, shape, mode="wrap") for move in moves]
    is_last = np.asarray([distance[ranks] < distance for ranks in before])
    share = _last_links(is_last, quota, scaling.k)
    if share is None:
        return None
    # Where the k trees part: tree i reaches v by the direction whose part of 0..k-1 holds i.
    ends = np.cumsum(share, axis=0)
    starts = np.unique(np.concatenate([[0], ends.ravel()]))[:-1]
    if len(starts) * n * n > MOST_EDGES:
        return None
    order = np.argsort(distance, kind="stable")[1:]
    edge = np.empty((n, len(starts), n - 1), np.int32)
    for i, start in enumerate(starts):
        direction = (ends[:, order] <= start).sum(axis=0)
        parent = np.moveaxis(at[:, None] + at[order] - moves[direction], -1, 0)
        before_last = np.ravel_multi_index(parent, shape, mode="wrap")
        edge[:, i] = link[before_last, direction]
    return RoutedTrees(
        root=np.repeat(np.arange(n), len(starts)),
        weight=np.tile(np.diff([*starts, scaling.k]), n),
        edge=edge.ravel(),
        path_ptr=np.arange(topology.num_links + 1),
        path_link=np.arange(topology.num_links),
        how="moved from rank 0",
    )


def _directions(
    topology: Topology, scaling: Scaling, at: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, list[int]] | None:
    """Steps along each dimension up and down, the link of each from each rank, trees per link."""
    n, moves, links, quota = len(at), [], [], []
    of_pair = {
        (int(u), int(v)): e for e, (u, v) in enumerate(zip(topology.src, topology.dst, strict=True))
    }
    for dimension, side in enumerate(shape):
        for by in (1, -1) if side > 2 else (1,) if side == 2 else ():
            move = np.eye(len(shape), dtype=np.int64)[dimension] * by
            after = np.ravel_multi_index((at + move).T, shape, mode="wrap")
            column = [of_pair.get((r, int(after[r])), -1) for r in range(n)]
            capacities = {scaling.capacity[e] if e >= 0 else -1 for e in column}
            if len(capacities) > 1 or -1 in capacities:
                return None  # an open dimension, or links that differ along it
            moves.append(move)
            links.append(column)
            quota.append(capacities.pop())
    if not moves or topology.num_links != n * len(moves):
        return None
    return np.asarray(moves), np.asarray(links).T, quota


def _last_links(is_last: np.ndarray, quota: list[int], k: int) -> np.ndarray | None:
    """How many of the k trees to each rank arrive by each direction.

    ``is_last`` says which directions end a shortest way to a rank; both (directions, ranks).
    """
    # Trees of shortest paths are free to choose the last link of each way, and only that: whichever
    # is chosen, the rank before it has been reached one step earlier by all trees. So loads are a
    # transport problem, which one flow solves: k to each rank, and each direction's quota in all.
    count, n = is_last.shape
    arcs = [(r, direction) for direction, r in np.argwhere(is_last).tolist()]
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
