"""Low trees of one root: layer by layer every link brings a tree that its end lacks.

Algorithm 4 asks a flow on the whole network for each edge of each tree: a minute for 31 trees of
1,024 ranks. Where links are plenty inside groups and few between them, as on a DragonFly, trees of
the same rate are found in a second: in each layer every link brings one tree to its end, narrow
links choose first, and trees that few ranks have come first. So trees enter a group in turn, each
by another of the few links, and wide links copy them inside. For example, from one rank of a fully
connected network each neighbour first gets another tree, and then gives it to all others.

A tight cut may be filled with a tree twice, and then some rank is left without one: None.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.forestcoll.edge_splitting import Pair
from jaxcoll.synth.forestcoll.spanning import Trees


def spread_trees(num_ranks: int, capacity: dict[Pair, int], root: int, count: int) -> Trees | None:
    """Trees of one root that use no pair of ranks more often than its capacity; None if not found.

    Args:
        capacity: trees that can use each pair of ranks.
        root: the root of all trees.
        count: number of trees.
    """
    narrow_first = sorted(capacity, key=lambda pair: (capacity[pair], pair))
    pairs = np.asarray(narrow_first, np.int64)
    room = np.asarray([capacity[pair] for pair in narrow_first], np.int64)
    vertex = np.full((count, num_ranks), -1, np.int64)
    parent = np.full((count, num_ranks), -1, np.int64)
    if not _spread(pairs, room, root, vertex, parent):
        return None
    return Trees(np.full(count, root), np.ones(count, np.int64), vertex, parent)


@kernel(cache=True)
def _spread(pairs, room, root, vertex, parent):
    """Fill in the ranks of each tree in order, and their parents; whether all trees span all ranks.

    Args:
        pairs: the ends of each link, the narrowest first.
        room: trees that each link can still bring; changed.
    """
    count, n = vertex.shape
    # The layer of each rank in each tree, n while it lacks the tree.
    depth = np.full((n, count), n, np.int64)
    depth[root, :] = 0
    vertex[:, 0] = root
    joined = np.ones(count, np.int64)
    layer, left, moved = 0, count * (n - 1), True
    while left > 0 and moved:
        moved = False
        for e in range(len(pairs)):
            u, v = pairs[e, 0], pairs[e, 1]
            rarest = -1
            for t in range(count):
                is_wanted = room[e] > 0 and depth[u, t] <= layer and depth[v, t] == n
                if is_wanted and (rarest < 0 or joined[t] < joined[rarest]):
                    rarest = t
            if rarest >= 0:
                depth[v, rarest] = layer + 1
                vertex[rarest, joined[rarest]] = v
                parent[rarest, joined[rarest]] = u
                joined[rarest] += 1
                room[e] -= 1
                left -= 1
                moved = True
        layer += 1
    return left == 0
