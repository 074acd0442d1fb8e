"""Boxes on rails: trees that go to the like rank of every other box, and spread inside each box.

Where equal boxes are joined by switches outside, as in clusters of DGX or MI250 boxes, the trees
of a root can enter each other box by the rank with the root's own place (its rail). If every rank
can send its trees once to each other box, and one box alone can spread the trees that enter at
each rank, such trees are as fast as any. Only one box is split and packed, however many there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import networkx as nx
import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.errors import TopologyError
from jaxcoll.paths import Edges
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

_MOST_EDGES = 2**28


@dataclasses.dataclass(frozen=True)
class Boxes:
    """Equal boxes and the switches between them.

    Attributes:
        ranks: ranks of each box, like places in one column, int64 of shape (boxes, places).
        inside: topology of one box.
        links: links inside each box, in the order of ``inside``, int64 of shape (boxes, links).
        up: the link of each rank to its outer switch, int64 of shape (boxes, places).
        down: the link back.
    """

    ranks: np.ndarray
    inside: Topology
    links: np.ndarray
    up: np.ndarray
    down: np.ndarray


def find_boxes(topology: Topology, scaling: Scaling) -> Iterator[Boxes]:
    """Ways to see a network as equal boxes joined by outer switches, switches of one degree."""
    n = topology.num_ranks
    ends = np.stack([topology.src, topology.dst])
    degree = np.bincount(ends.ravel(), minlength=topology.num_vertices)
    for most in sorted({int(d) for d in degree[n:] if d}, reverse=True):
        outer = np.arange(topology.num_vertices) >= n
        outer &= degree == most
        found = _boxes(topology, scaling, outer)
        if found is not None:
            yield found


def _boxes(topology: Topology, scaling: Scaling, outer: np.ndarray) -> Boxes | None:
    """The boxes that are left without the outer switches, if they are equal."""
    n, src, dst = topology.num_ranks, topology.src, topology.dst
    crosses = outer[src] | outer[dst]
    graph = nx.Graph()
    graph.add_nodes_from(np.flatnonzero(~outer).tolist())
    graph.add_edges_from(zip(src[~crosses].tolist(), dst[~crosses].tolist(), strict=True))
    parts = sorted(sorted(part) for part in nx.connected_components(graph))
    parts = [np.asarray(part, np.int64) for part in parts if part[0] < n]
    ranks = [part[part < n] for part in parts]
    if len(parts) < 2 or len({len(r) for r in ranks}) > 1 or len({len(p) for p in parts}) > 1:
        return None
    place = np.full(topology.num_vertices, -1)
    box = np.full(topology.num_vertices, -1)
    for b, part in enumerate(parts):
        place[part], box[part] = np.arange(len(part)), b
    within = np.flatnonzero(~crosses & (box[src] >= 0))
    capacity = np.asarray(scaling.capacity, object)
    # Links are listed by their ends, and indices count up within a box: corresponding links have
    # the same index in every box.
    links = [within[box[src[within]] == b] for b in range(len(parts))]
    first = links[0]
    for one in links:
        if len(one) != len(first) or not (
            np.array_equal(place[src[one]], place[src[first]])
            and np.array_equal(place[dst[one]], place[dst[first]])
            and np.array_equal(capacity[one], capacity[first])
        ):
            return None
    up, down = (
        _only_link(ends, others, topology, outer) for ends, others in ((src, dst), (dst, src))
    )
    if up is None or down is None:
        return None
    try:
        inside = Topology(
            len(ranks[0]),
            place[src[first]],
            place[dst[first]],
            topology.alpha[first],
            [topology.exact_bandwidth[e] for e in first],  # type: ignore[arg-type]
            num_vertices=len(parts[0]),
        )
    except TopologyError:  # ranks of a box that only reach each other outside
        return None
    table = np.stack(ranks)
    return Boxes(table, inside, np.stack(links), up[table], down[table])


def _only_link(
    ends: np.ndarray, others: np.ndarray, topology: Topology, outer: np.ndarray
) -> np.ndarray | None:
    """The link between each rank and the outer switches, if each has exactly one."""
    n = topology.num_ranks
    to_outer = np.flatnonzero(outer[others] & (ends < n))
    if not np.array_equal(np.sort(ends[to_outer]), np.arange(n)):
        return None
    link = np.empty(n, np.int64)
    link[ends[to_outer]] = to_outer
    return link


def inner_scaling(boxes: Boxes, scaling: Scaling) -> Scaling | None:
    """What one box must spread: the trees of all boxes' ranks that enter it at each place.

    None if the links outside cannot take every tree to every other box once.
    """
    count, places = boxes.ranks.shape
    load = scaling.k * (count - 1)
    room = min(scaling.capacity[e] for e in [*boxes.up.ravel(), *boxes.down.ravel()])
    if room < load:
        return None
    capacity = tuple(scaling.capacity[e] for e in boxes.links[0])
    entering = scaling.k * count
    return Scaling(entering, scaling.U, capacity, (entering,) * places)


def joined_trees(
    topology: Topology, scaling: Scaling, boxes: Boxes, inner: TreeFlow
) -> TreeFlow | None:
    """The trees of all roots, from the trees of one box; None if switches do not join the rails.

    Of the k x boxes trees that spread inside a box from one place, the first k are for the root
    in the box itself, the next k for the root one box before it, and so on round.
    """
    count, places = boxes.ranks.shape
    n, k = topology.num_ranks, scaling.k
    if not _on_rails(topology, boxes):
        return None
    per_box = len(inner.edges)
    root, weight, edge = [], [], []
    for place in range(places):
        mine = np.flatnonzero(inner.root == place)
        ends = np.cumsum(inner.weight[mine])
        # Trees of a root are identical between these marks in 0..k-1, in every box.
        marks = np.unique(np.concatenate([[0], ends % k]))
        size = len(marks) * n * places * count
        if size * places > _MOST_EDGES:
            return None
        for mark, length in zip(marks, np.diff([*marks, k]), strict=True):
            shape = mine[np.searchsorted(ends, mark + k * np.arange(count), side="right")]
            root.append(boxes.ranks[:, place])
            weight.append(np.full(count, length))
            edge.append(_tree_edges(inner, shape, count, places, place, per_box))
    return TreeFlow(
        topology,
        k,
        scaling.trees,
        np.concatenate(root),
        np.concatenate(weight),
        _edges(topology, boxes, inner),
        np.arange(sum(map(len, root)) + 1) * (n - 1),
        np.concatenate(edge, axis=None),
        scaling.inverse,
        {"trees": "boxes on rails", "switches": inner.certificate.get("switches", "none")},
    )


def _tree_edges(
    inner: TreeFlow, shape: np.ndarray, count: int, places: int, place: int, per_box: int
) -> np.ndarray:
    """Edges of one tree for the root in each box: its own box, then every other, round."""
    here = np.arange(count)[:, None]
    parts = []
    for ahead in range(count):
        box = (here + ahead) % count
        if ahead:
            parts.append(count * per_box + (here * (count - 1) + ahead - 1) * places + place)
        if places > 1:
            tree = slice(inner.tree_ptr[shape[ahead]], inner.tree_ptr[shape[ahead] + 1])
            parts.append(box * per_box + inner.edge[tree][None, :])
    return np.concatenate(parts, axis=1).astype(np.int32)


def _on_rails(topology: Topology, boxes: Boxes) -> bool:
    """Whether ranks of one index are joined by one outer switch."""
    switch = topology.dst[boxes.up]
    return bool((switch == switch[0]).all() and (topology.src[boxes.down] == switch).all())


def _edges(topology: Topology, boxes: Boxes, inner: TreeFlow) -> Edges:
    """The edges inside every box, then those from each rank to its like in the boxes ahead."""
    count, places = boxes.ranks.shape
    hops = np.tile(inner.edges.hops, count)
    links = boxes.links[:, inner.edges.path_link].ravel()
    box, ahead, place = np.indices((count, count - 1, places)).reshape(3, -1)
    across = np.stack([boxes.up[box, place], boxes.down[(box + ahead + 1) % count, place]], axis=1)
    path = np.concatenate([links, across.ravel()])
    ptr = np.concatenate([[0], np.cumsum(np.concatenate([hops, np.full(len(across), 2)]))])
    return Edges(topology.src[path[ptr[:-1]]], topology.dst[path[ptr[1:] - 1]], ptr, path)
