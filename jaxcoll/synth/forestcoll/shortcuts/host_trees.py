"""Trees that enter every host once: hosts and the network between them are packed separately.

Where switches join hosts of ranks, the links into a host are trimmed to the number of trees of all
other hosts, so that each of these trees enters the host by exactly one link. That makes the cut
around each host tight, and the network splits into smaller ones (as at the cuts of
``tree_packing``, but all at once): the network of the hosts, in which each host is a single rank
with the trees of its ranks; and each host alone, in which trees from outside start at the ranks
where they enter. Hosts may differ, so clusters with dead or slow network cards need just one
packing for each kind of host.

Trees found in this way are optimal for the whole network, but not every network has such trees:
some hosts can spread the trees from outside only if trees enter them repeatedly. Those networks are
left to other ways.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.errors import TopologyError
from jaxcoll.links import canonical_order
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.connectivity import components
from jaxcoll.synth.forestcoll.edge_splitting import Capacities
from jaxcoll.synth.forestcoll.routed_trees import MOST_EDGES, RoutedTrees
from jaxcoll.synth.forestcoll.shortcuts.pairings import share_of, transported
from jaxcoll.topology import Topology

_SAFE = 2**61  # bound of all capacities and trees together, so that 64-bit flows are exact

Pack = Callable[[Topology, Scaling], RoutedTrees]
Paths = Sequence[tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Arc:
    """A path between hosts, and its capacity once links into hosts are trimmed.

    Attributes:
        tail, head: the ends of the path, each a rank or a switch between hosts.
        amount: number of trees that it can carry.
        path: its links, in the order in which they are crossed.
    """

    tail: int
    head: int
    amount: int
    path: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Partition:
    """A partition of a network into hosts and the vertices between them.

    Attributes:
        host: the host of each vertex, -1 for switches between hosts, int64 of shape (vertices,).
        ranks: the ranks of each host.
        arcs: paths between hosts, or between a host and a switch between hosts.
        capacity: number of trees that each link can carry inside its host, in addition to those on
            paths.
    """

    host: np.ndarray
    ranks: list[np.ndarray]
    arcs: list[Arc]
    capacity: list[int]


def packed_by_hosts(topology: Topology, scaling: Scaling, pack: Pack) -> Iterator[RoutedTrees]:
    """Trees, not yet checked, for every partition into hosts that trees enter once."""
    if sum(scaling.capacity) + sum(scaling.trees) >= _SAFE:
        return
    for partition in _partitions(topology, scaling):
        try:
            yield _packed(topology, scaling, partition, pack)
        except TopologyError:  # a host cannot spread the trees that enter it
            continue


def _partitions(topology: Topology, scaling: Scaling) -> Iterator[Partition]:
    """Partitions into the hosts that remain without some switches, if trees can enter them once.

    The smaller networks have at most half the ranks; partitions with the smallest come first.
    """
    n, vertices = topology.num_ranks, topology.num_vertices
    seen: dict[bytes, tuple[int, np.ndarray, int]] = {}
    # The switches that may join hosts are the widest or the highest ones.
    degree = np.bincount(np.append(topology.src, topology.dst), minlength=vertices)
    for outer in (
        (np.arange(vertices) >= n) & (number >= least)
        for number in (degree, topology.hops_to_rank)
        for least in sorted(set(number[n:].tolist()))
    ):
        inside = ~(outer[topology.src] | outer[topology.dst])
        part = components(vertices, topology.src[inside], topology.dst[inside])
        names, of_rank = np.unique(part[:n], return_inverse=True)
        largest = max(len(names), int(np.bincount(of_rank).max()))
        # The time of packing grows as the square of the ranks times the vertices: parts of half the
        # ranks take an eighth of the time, larger ones hardly less than the whole.
        if 2 * largest <= n:
            place = np.full(vertices, -1)
            place[names] = np.arange(len(names))
            host = np.where(outer, -1, place[part])
            seen.setdefault(host.tobytes(), (largest, host, len(names)))
    # The smallest parts come first, as they take least time to pack; and if a partition must fail,
    # a flow tells that before anything is packed.
    for _, host, count in sorted(seen.values(), key=lambda way: way[0]):
        found = _trimmed(topology, scaling, host, count)
        if found is not None:
            yield Partition(host, [np.flatnonzero(host[:n] == b) for b in range(count)], *found)


def _trimmed(
    topology: Topology, scaling: Scaling, host: np.ndarray, count: int
) -> tuple[list[Arc], list[int]] | None:
    """Paths that carry as many trees into each host as are rooted outside, and as many out.

    None if hosts have links to anything other than switches between them, or if links are too
    narrow or have no link back.
    """
    capacity = list(scaling.capacity)
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    back: dict[tuple[int, int], int] = {}
    into: list[dict[int, int]] = [{} for _ in range(count)]
    # A link across the boundary of a host must lead to a switch between hosts, without a parallel
    # link; networks with other links do not have this form.
    for link, (u, v) in enumerate(ends):
        if host[u] == host[v]:
            continue
        if (host[u] >= 0) == (host[v] >= 0) or (u, v) in back:
            return None
        back[u, v] = link
        if host[v] >= 0:
            into[host[v]][link] = capacity[link]
    outside = [sum(scaling.trees)] * count
    for b, rooted in zip(host[: topology.num_ranks].tolist(), scaling.trees, strict=True):
        outside[b] -= rooted
    for links, wanted in zip(into, outside, strict=True):
        if not 0 < wanted <= sum(links.values()):
            return None
        # Trees are shared in proportion to the links' capacity, so that no card of a host becomes a
        # bottleneck; a dead card has capacity 0 and gets none.
        for link, amount in share_of(links, wanted).items():
            reverse = back.get(ends[link][::-1])
            # Links out are trimmed like links in, so that the smaller networks stay balanced and
            # their switches can be removed (Theorem 26).
            if reverse is None or capacity[reverse] < amount:
                return None
            capacity[link] = capacity[reverse] = amount
    return _paths(topology, host, capacity)


def _paths(
    topology: Topology, host: np.ndarray, capacity: list[int]
) -> tuple[list[Arc], list[int]] | None:
    """The links between hosts; links of switches inside hosts are extended to ranks.

    Every rank joined to such a switch gets a share of the trees that enter or leave by it. None if
    no ranks are joined to it, or if their links have too little capacity.
    """
    n, left, arcs = topology.num_ranks, list(capacity), []
    ports: dict[tuple[int, bool], tuple[dict[int, int], dict[int, int]]] = {}
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    for link, (u, v) in enumerate(ends):
        crosses = host[u] != host[v] or host[u] < 0
        if crosses and (host[u] < 0 or u < n) and (host[v] < 0 or v < n):
            if capacity[link]:
                arcs.append(Arc(u, v, capacity[link], (link,)))
        elif crosses:
            w, enters = (v, True) if host[v] >= 0 else (u, False)
            ports.setdefault((w, enters), ({}, {}))[0][link] = capacity[link]
    for link, (u, v) in enumerate(ends):
        for port, rank in (((u, True), v), ((v, False), u)):
            if rank < n and port in ports:
                ports[port][1][link] = capacity[link]
    for (_, enters), (links, below) in ports.items():
        wanted = sum(links.values())
        if wanted > sum(below.values()):
            return None
        if not wanted:
            continue
        shared = share_of(below, wanted)
        for outer, inner, amount in transported(links, shared)[0]:
            path = (outer, inner) if enters else (inner, outer)
            arcs.append(Arc(ends[path[0]][0], ends[path[1]][1], amount, path))
            left[inner] -= amount
    return arcs, left


# ---------------------------------------------------------------------- the smaller networks


def _packed(topology: Topology, scaling: Scaling, partition: Partition, pack: Pack) -> RoutedTrees:
    """Trees between the hosts in which trees inside each host take the place of that host.

    Raises:
        TopologyError: one of the smaller networks has no such trees, or the trees are too many to
            hold.
    """
    entering = np.asarray(scaling.trees, np.int64)
    own = tuple(int(entering[ranks].sum()) for ranks in partition.ranks)
    down = [(arc.head, arc.amount) for arc in partition.arcs if partition.host[arc.head] >= 0]
    np.add.at(entering, *np.asarray(down).T)
    hosts = [
        _inside(topology, scaling, partition, b, entering) for b in range(len(partition.ranks))
    ]
    between, arcs = _between(topology, scaling, partition)
    shared = dataclasses.replace(scaling, capacity=tuple(arc.amount for arc in arcs), trees=own)
    # Equal hosts that must spread equal trees are packed once.
    different = dict.fromkeys((inside, needed) for inside, _, needed in hosts)
    for one, needed in [(between, shared), *different]:
        # A flow finds a cut with too little capacity, long before packing would fail on it.
        if Capacities(one, needed).first_short(range(one.num_ranks)) is not None:
            raise TopologyError(f"{one} has too little capacity to spread once what enters it")
    across = pack(between, shared)
    known = {(inside, needed): pack(inside, needed) for inside, needed in different}
    insides: list[tuple[RoutedTrees, Paths]] = [
        (known[inside, needed], [(e,) for e in kept.tolist()]) for inside, kept, needed in hosts
    ]
    return _joined(topology, scaling, partition, (across, [arc.path for arc in arcs]), insides)


def _between(
    topology: Topology, scaling: Scaling, partition: Partition
) -> tuple[Topology, list[Arc]]:
    """The network with each host as one rank, and the arc that each of its links stands for."""
    vertex, count = partition.host.copy(), len(partition.ranks)
    outer = np.flatnonzero(vertex < 0)
    vertex[outer] = count + np.arange(len(outer))
    src = vertex[[arc.tail for arc in partition.arcs]]
    dst = vertex[[arc.head for arc in partition.arcs]]
    amounts = [Fraction(arc.amount) / scaling.U for arc in partition.arcs]
    alpha = np.zeros(len(amounts))
    order = canonical_order(src, dst, alpha, np.asarray(amounts, float), amounts)
    between = Topology(
        count,
        src[order],
        dst[order],
        alpha,
        [amounts[i] for i in order],  # type: ignore[arg-type]
        num_vertices=count + len(outer),
    )
    return between, [partition.arcs[i] for i in order]


def _inside(
    topology: Topology, scaling: Scaling, partition: Partition, b: int, entering: np.ndarray
) -> tuple[Topology, np.ndarray, Scaling]:
    """The network of one host, its links, and the trees that start at each of its ranks."""
    vertices = np.flatnonzero(partition.host == b)
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


# ---------------------------------------------------------------------- the whole trees


def _joined(
    topology: Topology,
    scaling: Scaling,
    partition: Partition,
    between: tuple[RoutedTrees, Paths],
    insides: list[tuple[RoutedTrees, Paths]],
) -> RoutedTrees:
    """Trees of the hosts, with each host replaced by a tree inside it from the rank entered.

    Args:
        between: trees between the hosts, and the path that each link of their network stands for.
        insides: the same for each host.
    """
    across, n = between[0], topology.num_ranks
    paths = [_on_links(*between), *(_on_links(*inside) for inside in insides)]
    first_edge = np.cumsum([0, *(len(hops) for _, hops in paths)])
    link = np.concatenate([links for links, _ in paths])
    hops = np.concatenate([count for _, count in paths])
    ptr = np.concatenate([[0], np.cumsum(hops)]).astype(np.int64)
    # The trees inside all hosts; those of one root must be consecutive.
    root = np.concatenate(
        [ranks[trees.root] for ranks, (trees, _) in zip(partition.ranks, insides, strict=True)]
    )
    weight = np.concatenate([trees.weight for trees, _ in insides])
    size = np.concatenate([np.diff(trees.tree_ptr) for trees, _ in insides])
    start = np.concatenate([[0], np.cumsum(size)])[:-1]
    edge = np.concatenate([trees.edge + first_edge[1 + b] for b, (trees, _) in enumerate(insides)])
    # Batches of a root stay in the order in which they were packed, since the kernel uses them up
    # one after the other.
    order = np.argsort(root, kind="stable")
    first = np.searchsorted(root[order], np.arange(n))
    most = min(len(across.weight) + len(root) + n, sum(scaling.trees))
    if most * (n - 1) > MOST_EDGES:
        raise TopologyError(f"{topology} needs up to {most} different trees, too many to hold")
    root, weight, edge = _rows(
        (across.root, across.weight, across.tree_ptr, across.edge, topology.dst[link[ptr[1:] - 1]]),
        (weight[order], start[order], size[order], edge, first),
        np.cumsum([0, *map(len, partition.ranks)]),
        np.concatenate(partition.ranks),
        np.asarray(scaling.trees, np.int64),
        most,
    )
    return RoutedTrees(root, weight, edge, ptr, link, "hosts entered once", across.switches)


def _on_links(trees: RoutedTrees, paths: Paths) -> tuple[np.ndarray, np.ndarray]:
    """The links of the whole network that edges use, and how many links each edge uses."""
    hops = np.asarray([len(path) for path in paths], np.int64)
    used = [link for e in trees.path_link.tolist() for link in paths[e]]
    edges = len(trees.path_ptr) - 1
    of_edge = np.repeat(np.arange(edges), np.diff(trees.path_ptr))
    count = np.bincount(of_edge, hops[trees.path_link], edges)
    return np.asarray(used, np.int64), count.astype(np.int64)


@kernel(cache=True)
def _rows(across, hosts, ranks_ptr, ranks, trees, most):
    """Roots, weights and edges of whole trees, in batches that last as long as all their parts.

    Args:
        across: root, weight, tree_ptr and edge of the trees between hosts, and the rank that each
            edge enters.
        hosts: trees left, first edge and number of edges of each batch inside a host, the edges,
            and the first batch of each rank.
        ranks_ptr, ranks: the ranks of each host.
        trees: the number of trees with each rank as root.
        most: the largest possible number of batches.
    """
    host_root, host_weight, tree_ptr, cross, enters = across
    weight, start, size, edge, first = hosts
    n = len(trees)
    own, left, at, turn = trees.copy(), weight.copy(), first.copy(), ranks_ptr[:-1].copy()
    out = np.empty((most, n - 1), np.int32)
    root, many = np.empty(most, np.int32), np.empty(most, np.int64)
    row = 0
    for i in range(len(host_root)):
        b, rest = host_root[i], host_weight[i]
        while rest > 0:
            while own[ranks[turn[b]]] == 0:
                turn[b] += 1
            r = ranks[turn[b]]
            # A batch ends when one of its parts is used up: the tree between hosts, the tree inside
            # some host, or the trees of the root.
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
