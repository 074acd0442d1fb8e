"""Step 3: spanning trees are packed into the capacities between ranks (Sec. 4.5.4, App. B.5.3).

Batches of like trees grow edge by edge (Algorithm 4, after Berczi and Frank). An edge is added to
as many trees of a batch as leaves all other trees possible (mu of Theorem 32), which one flow
tells; the rest of the batch goes on without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.max_flow import dinic, with_reverses
from jaxcoll.synth.forestcoll.edge_splitting import Pair
from jaxcoll.synth.forestcoll.spanning import Trees, reparent
from jaxcoll.topology import Topology

SEVERAL = 64  # ranks up to which trees are packed in several orders
_ORDERED = 2**17  # ranks times pairs up to which they are
_SAFE = 2**61  # capacities and trees together, so that flows of 64 bits stay exact
# Packing takes about a microsecond times the ranks, the vertices and the trees, of which at most as
# many batches as ranks are grown: 1.7 s of 128 trees from one root on eight hosts of 16 MI250, and
# 0.03 s of 8 trees on 16 DGX H100.
_FAST = 128**3


def pack_trees(num_ranks: int, capacity: dict[Pair, int], trees: Sequence[int]) -> Trees:
    """Spanning trees from every root, no pair of ranks carrying more than its capacity.

    All batches grow together, one layer at a time, so that early ones do not use up what keeps
    later ones low. A pair of ranks is tried once for a batch: what once stopped it still would (a
    full set of ranks stays full). Then deep ranks are reparented (step 4). Small networks are
    packed in several orders, and the lowest trees are kept.

    Args:
        capacity: trees that can use each pair of ranks.
        trees: trees each rank is the root of.

    Raises:
        TopologyError: the capacities hold no such trees, or their sum is 2**61 or more.
    """
    check_exact(capacity, trees)
    left = np.zeros((num_ranks, num_ranks), np.int64)
    for (u, v), amount in capacity.items():
        left[u, v] = amount
    roots = np.flatnonzero(np.asarray(trees)).astype(np.int64)
    asked = np.asarray(trees, np.int64)[roots]
    best, least = None, (num_ranks, float(num_ranks))
    several = num_ranks <= SEVERAL and num_ranks * len(capacity) <= _ORDERED
    # The algorithm finds trees wherever they exist (Theorem 29), taking edges in any order, and the
    # order decides how high trees become. No order is best on all networks (rings want one
    # direction, hosts want cheap links first), so on small networks all are tried.
    for neighbour in itertools.islice(_neighbours(left), None if several else 1):
        spare = left.copy()
        root, weight, vertex, parent = _pack(spare, roots, asked, neighbour)
        if (vertex < 0).any():
            raise TopologyError("the capacities between ranks hold fewer trees than asked for")
        found, heights = reparent(spare, Trees(root, weight, vertex, parent))
        height = (int(heights.max()), float(np.average(heights, weights=found.weight)))
        if best is None or height < least:
            best, least = found, height
        if least[0] <= 2:
            break
    return best  # type: ignore[return-value]


def check_exact(capacity: dict[Pair, int], trees: Sequence[int]) -> None:
    """Refuse numbers of trees with which flows of 64 bits would not be exact.

    Raises:
        TopologyError: capacities and trees of 2**61 or more.
    """
    if sum(capacity.values()) + sum(trees) >= _SAFE:
        raise TopologyError(
            f"the bandwidths have so small a common divisor that {sum(trees)} trees are needed, "
            "more than can be packed; round the bandwidths, say to whole MB/s, or fix k, the trees "
            "per rank"
        )


def check_fast(topology: Topology, trees: Sequence[int]) -> None:
    """Refuse networks whose trees take more than some seconds to be packed.

    Raises:
        TopologyError: more than 128 ranks, or fewer with switches, unless few trees have one root.
    """
    n, vertices = topology.num_ranks, topology.num_vertices
    batches = min(sum(trees), n)
    if batches * n * vertices > _FAST:
        raise TopologyError(
            "forestcoll packs trees in seconds on up to 128 ranks, or fewer with switches, and a "
            f"few trees of one root on more; {topology} has {n} ranks and {vertices - n} switches, "
            f"for {batches} trees or more; fast=False takes the time"
        )


def _neighbours(left: np.ndarray) -> Iterator[np.ndarray]:
    """The ranks that each rank has capacity to, then -1; int64 of shape (n, n), in several orders.

    Least capacity first: wide links have room for the trees that narrow ones turn away, and trees
    that cross into another host at the root stay low. Equal ones by distance upwards round the
    circle of ranks, or downwards, by number, by either distance, or poorly joined ranks first.
    """
    n = len(left)
    degree = (left > 0).sum(axis=1)
    for order in (
        lambda u, v: (v - u) % n,
        lambda u, v: (u - v) % n,
        lambda u, v: v,
        lambda u, v: np.minimum((v - u) % n, (u - v) % n),
        lambda u, v: degree[v],
    ):
        listed = np.full((n, n), -1, np.int64)
        for u in range(n):
            there = np.flatnonzero(left[u])
            listed[u, : len(there)] = there[np.lexsort((order(u, there), left[u, there]))]
        yield listed


@kernel(cache=True, superlinear=True)
def _pack(left, roots, weights, neighbour):
    """Algorithm 4. ``left`` is the capacity of each pair, and becomes what is left of it.

    Every turn adds one edge to each batch that can still grow in the layer.
    """
    n, count = len(left), len(roots)
    room = 4 * count + 16
    root, weight = np.zeros(room, np.int64), np.zeros(room, np.int64)
    vertex, parent = np.full((room, n), -1, np.int64), np.full((room, n), -1, np.int64)
    depth = np.full((room, n), -1, np.int64)  # by rank; -1 outside the tree
    joined = np.zeros(room, np.int64)
    at = np.zeros((room, 2), np.int64)  # the next pair to try: place of its ends in the lists
    for i in range(count):  # "R_u,1 = {u}, m(R_u,1) = k"
        root[i] = vertex[i, 0] = roots[i]
        weight[i] = weights[i]
        depth[i, roots[i]] = 0
        joined[i] = 1
    layer, unfinished = 0, True
    while unfinished:  # "while there exists R_u,i != V_c"
        added, unfinished = True, False
        while added:
            added = False
            for i in range(count):  # batches that are split off now wait for the next turn
                x, y, most = _next_edge(
                    left, neighbour, weight, depth, joined, vertex, at, count, i, layer
                )
                unfinished |= joined[i] < n
                if y < 0:
                    continue
                # "if mu < m(R_u,i)": the batch parts into trees with the edge and trees without it.
                # "a new copy of R_u,i" for the trees that the edge has no room for.
                if most < weight[i]:
                    if count == room:
                        room *= 2
                        root, weight, joined = _doubled(root), _doubled(weight), _doubled(joined)
                        vertex, parent = _doubled(vertex), _doubled(parent)
                        depth, at = _doubled(depth), _doubled(at)
                    root[count], weight[count], joined[count] = root[i], weight[i] - most, joined[i]
                    vertex[count], parent[count], depth[count] = vertex[i], parent[i], depth[i]
                    at[count] = at[i]
                    count += 1
                    weight[i] = most
                vertex[i, joined[i]] = y
                parent[i, joined[i]] = x
                depth[i, y] = layer + 1
                joined[i] += 1
                left[x, y] -= most  # "g(x, y) - mu"
                added = True
        layer += 1
        unfinished &= layer < n
    return root[:count], weight[:count], vertex[:count], parent[:count]


@kernel(cache=True)
def _next_edge(left, neighbour, weight, depth, joined, vertex, at, count, i, layer):
    """The next edge that batch i can take from a rank of the layer, and for how many trees.

    (-1, -1, 0) if there is none. Pairs that were tried are passed for good.
    """
    n = len(left)
    while joined[i] < n and at[i, 0] < joined[i]:
        x, k = vertex[i, at[i, 0]], at[i, 1]
        if depth[i, x] > layer:
            break
        if k == n or neighbour[x, k] < 0:
            at[i, 0], at[i, 1] = at[i, 0] + 1, 0
            continue
        # "if mu = 0 then continue": a pair that was refused stays refused, because sets of ranks
        # that are full for it never empty again. So each batch walks its list of pairs once.
        at[i, 1] += 1
        y = neighbour[x, k]
        if depth[i, y] < 0 and left[x, y] > 0:  # "x in R_u,i, y not in R_u,i"
            most = _most(left, neighbour, weight, depth, joined, vertex, count, i, x, y)
            if most > 0:
                return x, y, most
    return -1, -1, 0


@kernel(cache=True)
def _doubled(column):
    return np.concatenate((column, column))  # what a new row holds is written before it is read


@kernel(cache=True)
def _most(left, neighbour, weight, depth, joined, vertex, count, i, x, y):
    """How many trees of batch i can take the edge (x, y): mu of (B.4).

    The flow from x to y in the network of all other batches j, each a vertex with an arc of
    capacity m_j from x and unlimited arcs to its ranks, less the sum of all m_j. Batches that
    hold y already add as much to both, and those of one rank need no vertex of their own.
    """
    n = len(left)
    # Room for all arcs there may be: counting them first would take as long as writing them.
    room = n * n + count * (n + 1)
    src, dst, capacity = (
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
    )
    a, hub, others = 0, n, 0
    for u in range(n):
        for k in range(n):
            v = neighbour[u, k]
            if v < 0:
                break
            if left[u, v] > 0:
                src[a], dst[a], capacity[a] = u, v, left[u, v]
                a += 1
    for j in range(count):
        if j == i or joined[j] == n or depth[j, y] >= 0:
            continue
        others += weight[j]
        if joined[j] == 1:
            if vertex[j, 0] != x:
                src[a], dst[a], capacity[a] = x, vertex[j, 0], weight[j]
                a += 1
            continue
        src[a], dst[a], capacity[a] = x, hub, weight[j]
        a += 1
        for k in range(joined[j]):
            src[a], dst[a], capacity[a] = hub, vertex[j, k], weight[j]
            a += 1
        hub += 1
    ptr, head, mate, residual, _ = with_reverses(hub, src[:a], dst[:a], capacity[:a])
    level, at = np.empty(hub + 1, np.int64), np.empty(hub + 1, np.int64)
    queue, path = np.empty(hub + 1, np.int64), np.empty(hub + 1, np.int64)
    # Only min(g, m) of mu matters, so the flow may stop there.
    limit = others + min(left[x, y], weight[i])
    flow = dinic(ptr, head, mate, residual, x, y, limit, level, at, queue, path)
    return max(0, flow - others)
