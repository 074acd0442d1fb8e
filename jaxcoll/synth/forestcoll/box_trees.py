"""Boxes that every tree enters once: the boxes and the network between them are packed apart.

Where boxes of ranks are joined by switches, links into a box are trimmed to the trees of all other
boxes, so that every one of these trees enters the box by exactly one link. That makes the cut
around each box tight, and the network falls into smaller ones (as at the cuts of ``tight_cuts``,
all at once): the network of the boxes, each a single rank with the trees of its ranks, and each box
alone, where trees from outside start at the ranks that they enter by. Boxes may differ, so that
clusters with dead or slow network cards need no more than one packing for each kind of box.

Trees found this way are optimal trees of the whole network, but not every network has such trees:
a box that only spreads what enters it if trees enter it repeatedly is left to other ways.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction

import numba as nb
import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.errors import TopologyError
from jaxcoll.links import canonical_order
from jaxcoll.paths import Edges
from jaxcoll.synth.forestcoll.capacities import Capacities
from jaxcoll.synth.forestcoll.pairings import share_of
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

# Tree edges that are held at most.
_MOST_EDGES = 2**28
_SAFE = 2**61

Pack = Callable[[Topology, Scaling], TreeFlow]


@dataclasses.dataclass(frozen=True)
class Partition:
    """Boxes of ranks, and the vertices between them.

    Attributes:
        box: the box of each vertex, -1 for switches between boxes, int64 of shape (vertices,).
        count: number of boxes.
        ranks: ranks of each box.
        capacity: trees each link can carry once links into boxes are trimmed.
    """

    box: np.ndarray
    count: int
    ranks: list[np.ndarray]
    capacity: list[int]


def packed_by_boxes(topology: Topology, scaling: Scaling, pack: Pack) -> Iterator[TreeFlow]:
    """Trees by every way to see a network as boxes that trees enter once; not yet checked."""
    if sum(scaling.capacity) + sum(scaling.trees) >= _SAFE:
        return
    for partition in _partitions(topology, scaling):
        try:
            yield _packed(topology, scaling, partition, pack)
        except TopologyError:  # a box alone cannot spread what enters it
            continue


def _partitions(topology: Topology, scaling: Scaling) -> Iterator[Partition]:
    """Boxes that are left without the widest switches, the smallest first, if trees enter once."""
    n, vertices = topology.num_ranks, topology.num_vertices
    degree = np.bincount(np.append(topology.src, topology.dst), minlength=vertices)
    for least in sorted({int(d) for d in degree[n:] if d}):
        outer = (np.arange(vertices) >= n) & (degree >= least)
        inside = ~(outer[topology.src] | outer[topology.dst])
        ends = topology.src[inside], topology.dst[inside]
        graph = sp.coo_matrix((np.ones(len(ends[0]), np.int8), ends), (vertices, vertices))
        part = sp.csgraph.connected_components(graph, directed=False)[1]
        names, box = np.unique(part[:n], return_inverse=True)
        if not 1 < len(names) < n:
            continue
        place = np.full(vertices, -1)
        place[names] = np.arange(len(names))
        found = np.where(outer, -1, place[part])
        capacity = _trimmed(topology, scaling, found)
        if capacity is not None:
            ranks = [np.flatnonzero(box == b) for b in range(len(names))]
            yield Partition(found, len(names), ranks, capacity)


def _trimmed(topology: Topology, scaling: Scaling, box: np.ndarray) -> list[int] | None:
    """Capacities with as many trees into each box as are rooted outside, and back out as many.

    None if links join switches between boxes to anything but ranks, are too narrow for that one
    way, or come without a link back.
    """
    n, capacity = topology.num_ranks, list(scaling.capacity)
    src, dst = topology.src.tolist(), topology.dst.tolist()
    back: dict[tuple[int, int], int] = {}
    into: dict[int, dict[int, int]] = {}
    for link, (u, v) in enumerate(zip(src, dst, strict=True)):
        if box[u] == box[v]:
            continue
        if (box[u] >= 0) == (box[v] >= 0) or min(u, v) >= n or (u, v) in back:
            return None
        back[u, v] = link
        if box[v] >= 0:
            into.setdefault(int(box[v]), {})[link] = capacity[link]
    total = sum(scaling.trees)
    if len(into) <= int(box.max()):
        return None
    outside = dict.fromkeys(into, total)
    for b, rooted in zip(box[:n].tolist(), scaling.trees, strict=True):
        outside[b] -= rooted
    for b, links in into.items():
        if sum(links.values()) < outside[b]:
            return None
        for link, amount in share_of(links, outside[b]).items():
            reverse = back.get((dst[link], src[link]))
            if reverse is None or capacity[reverse] < amount:
                return None
            capacity[link] = capacity[reverse] = amount
    return capacity


# ---------------------------------------------------------------------- the smaller networks


def _packed(topology: Topology, scaling: Scaling, partition: Partition, pack: Pack) -> TreeFlow:
    """Trees between the boxes, and at the place of each box trees of that box.

    Raises:
        TopologyError: one of the smaller networks holds no such trees, or too many different ones.
    """
    trees, links = np.asarray(scaling.trees, np.int64), _crossing(topology, partition)
    between, order = _between(topology, scaling, partition, links)
    own = tuple(int(trees[ranks].sum()) for ranks in partition.ranks)
    amounts = tuple(partition.capacity[link] for link in order)
    shared = dataclasses.replace(scaling, capacity=amounts, trees=own)
    entering = trees.copy()
    down = links[partition.box[topology.dst[links]] >= 0]
    np.add.at(entering, topology.dst[down], np.asarray(partition.capacity)[down])
    boxes = [_inside(topology, scaling, partition, b, entering) for b in range(partition.count)]
    different = {(inside, needed) for inside, _, needed in boxes}
    for one, needed in [(between, shared), *different]:
        if Capacities(one, needed).first_short(range(one.num_ranks)) is not None:
            raise TopologyError(f"{one} cannot spread what enters it once")
    across = pack(between, shared)
    known = {
        (inside, needed): _alone(inside, needed) if inside.num_ranks == 1 else pack(inside, needed)
        for inside, needed in different
    }
    insides = [(known[inside, needed], kept) for inside, kept, needed in boxes]
    return _joined(topology, scaling, partition, (across, order), insides)


def _crossing(topology: Topology, partition: Partition) -> np.ndarray:
    """Links between boxes that can carry any tree."""
    box, capacity = partition.box, partition.capacity
    inside = (box[topology.src] == box[topology.dst]) & (box[topology.src] >= 0)
    return np.flatnonzero(~inside & np.asarray([c > 0 for c in capacity]))


def _between(
    topology: Topology, scaling: Scaling, partition: Partition, links: np.ndarray
) -> tuple[Topology, np.ndarray]:
    """The network of the boxes, each one rank, and the link that each of its links stands for."""
    vertex = partition.box.copy()
    outer = np.flatnonzero(vertex < 0)
    vertex[outer] = partition.count + np.arange(len(outer))
    amounts = [Fraction(partition.capacity[link]) / scaling.U for link in links.tolist()]
    columns = vertex[topology.src[links]], vertex[topology.dst[links]], topology.alpha[links]
    order = canonical_order(*columns, np.asarray(amounts, float), amounts)
    between = Topology(
        partition.count,
        *(column[order] for column in columns),
        [amounts[i] for i in order],  # type: ignore[arg-type]
        num_vertices=partition.count + len(outer),
    )
    return between, links[order]


def _inside(
    topology: Topology, scaling: Scaling, partition: Partition, b: int, entering: np.ndarray
) -> tuple[Topology, np.ndarray, Scaling]:
    """One box alone, its links, and the trees that it must spread from each of its ranks."""
    vertices = np.flatnonzero(partition.box == b)
    place = np.full(topology.num_vertices, -1)
    place[vertices] = np.arange(len(vertices))
    kept = np.flatnonzero((place[topology.src] >= 0) & (place[topology.dst] >= 0))
    ranks = partition.ranks[b]
    inside = Topology(
        len(ranks),
        place[topology.src[kept]],
        place[topology.dst[kept]],
        topology.alpha[kept],
        [topology.exact_bandwidth[e] for e in kept],  # type: ignore[arg-type]
        num_vertices=len(vertices),
    )
    capacity = tuple(partition.capacity[e] for e in kept)
    trees = tuple(entering[ranks].tolist())
    return inside, kept, dataclasses.replace(scaling, capacity=capacity, trees=trees)


def _alone(inside: Topology, needed: Scaling) -> TreeFlow:
    """The trees of a box of a single rank, which have no edges."""
    nothing = np.zeros(0, np.int64)
    edges = Edges(nothing, nothing, np.zeros(1, np.int64), nothing)
    return TreeFlow(
        inside, needed.k, needed.trees, np.zeros(1, int), np.asarray(needed.trees), edges,
        np.zeros(2, int), nothing, needed.inverse,
    )  # fmt: skip


# ---------------------------------------------------------------------- the whole trees


def _joined(
    topology: Topology,
    scaling: Scaling,
    partition: Partition,
    between: tuple[TreeFlow, np.ndarray],
    insides: list[tuple[TreeFlow, np.ndarray]],
) -> TreeFlow:
    """Trees of the boxes, each box replaced by a tree of its own from the rank that is entered.

    Args:
        between: trees between the boxes, and the links that they use.
        insides: the same for each box.
    """
    across, n = between[0], topology.num_ranks
    paths = [_on_links(*between), *(_on_links(*inside) for inside in insides)]
    first_edge = np.cumsum([0, *(len(hops) for _, hops in paths)])
    link = np.concatenate([links for links, _ in paths])
    hops = np.concatenate([count for _, count in paths])
    ptr = np.concatenate([[0], np.cumsum(hops)]).astype(np.int64)
    edges = Edges(topology.src[link[ptr[:-1]]], topology.dst[link[ptr[1:] - 1]], ptr, link)
    # Trees of all boxes, those of each root in succession.
    root = np.concatenate([ranks[flow.root] for ranks, (flow, _) in _zip(partition, insides)])
    weight = np.concatenate([flow.weight for flow, _ in insides])
    size = np.concatenate([np.diff(flow.tree_ptr) for flow, _ in insides])
    start = np.concatenate([[0], np.cumsum(size)])[:-1]
    edge = np.concatenate([flow.edge + first_edge[1 + b] for b, (flow, _) in enumerate(insides)])
    order = np.argsort(root, kind="stable")
    first = np.searchsorted(root[order], np.arange(n))
    most = min(len(across.weight) + len(root) + n, sum(scaling.trees))
    if most * (n - 1) > _MOST_EDGES:
        raise TopologyError(f"{topology} needs up to {most} different trees, too many to hold")
    rows = _rows(
        (across.root, across.weight, across.tree_ptr, across.edge, edges.dst),
        (weight[order], start[order], size[order], edge, first),
        np.cumsum([0, *map(len, partition.ranks)]),
        np.concatenate(partition.ranks),
        np.asarray(scaling.trees, np.int64),
        most,
    )
    count = len(rows[0])
    return TreeFlow(
        topology, scaling.k, scaling.trees, rows[0], rows[1], edges,
        np.arange(count + 1) * (n - 1), rows[2], scaling.inverse,
        {"trees": "boxes entered once", "switches": across.certificate["switches"]},
    )  # fmt: skip


def _zip(partition: Partition, insides: list) -> Iterator[tuple[np.ndarray, tuple]]:
    return zip(partition.ranks, insides, strict=True)


def _on_links(flow: TreeFlow, links: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The links of the whole network that edges use, and how many each uses."""
    return links[flow.edges.path_link], flow.edges.hops


@nb.njit(cache=True)
def _rows(across, boxes, ranks_ptr, ranks, trees, most):
    """Whole trees: batches as long as all their parts last; roots, weights and edges.

    Args:
        across: root, weight, tree_ptr and edge of the trees between boxes; the rank that each
            edge enters.
        boxes: trees left, first edge and number of edges of each batch inside a box, the edges,
            and the first batch of each rank.
        ranks_ptr, ranks: the ranks of each box.
        trees: trees that each rank is the root of.
        most: batches at most.
    """
    box_root, box_weight, tree_ptr, cross, enters = across
    weight, start, size, edge, first = boxes
    n = len(trees)
    own, left, at, turn = trees.copy(), weight.copy(), first.copy(), ranks_ptr[:-1].copy()
    out = np.empty((most, n - 1), np.int32)
    root, many = np.empty(most, np.int32), np.empty(most, np.int64)
    row = 0
    for i in range(len(box_root)):
        b, rest = box_root[i], box_weight[i]
        while rest > 0:
            while own[ranks[turn[b]]] == 0:
                turn[b] += 1
            r = ranks[turn[b]]
            amount, column = min(rest, own[r]), 0
            for j in range(tree_ptr[i] - 1, tree_ptr[i + 1]):
                v = enters[cross[j]] if j >= tree_ptr[i] else r
                while left[at[v]] == 0:
                    at[v] += 1
                amount = min(amount, left[at[v]])
                if j >= tree_ptr[i]:
                    out[row, column] = cross[j]
                    column += 1
                for e in range(start[at[v]], start[at[v]] + size[at[v]]):
                    out[row, column] = edge[e]
                    column += 1
            left[at[r]] -= amount
            for j in range(tree_ptr[i], tree_ptr[i + 1]):
                left[at[enters[cross[j]]]] -= amount
            root[row], many[row] = r, amount
            own[r] -= amount
            rest -= amount
            row += 1
    return root[:row], many[:row], out[:row].ravel()
