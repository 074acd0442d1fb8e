"""Forests over the rails of hosts: one host is packed, and its trees are joined to all others.

Where equal hosts are joined by switches outside, as in clusters of DGX or MI250 hosts, the trees of
a root can enter each other host by the rank with the root's index (its rail), and spread there. If
every rank can send its trees once to each other host, and one host alone can spread the trees that
enter at each rank, such trees are as fast as any. Only one host is split and packed, however many
there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.connectivity import components
from jaxcoll.synth.forestcoll.routed_trees import MOST_EDGES, RoutedTrees
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Equal hosts and the switches between them.

    Attributes:
        ranks: ranks of each host, those of one index in one column, int64 of shape (hosts, ranks).
        inside: topology of one host.
        links: links inside each host, in the order of ``inside``, int64 of shape (hosts, links).
        up: the link of each rank to its outer switch, int64 of shape (hosts, ranks).
        down: the link back.
    """

    ranks: np.ndarray
    inside: Topology
    links: np.ndarray
    up: np.ndarray
    down: np.ndarray


def packed_on_rails(
    topology: Topology, scaling: Scaling, pack: Callable[[Topology, Scaling], RoutedTrees]
) -> Iterator[RoutedTrees]:
    """Trees of equal hosts on rails, where the network can be seen as such; not yet checked.

    Args:
        pack: packs one host.
    """
    if set(scaling.trees) != {scaling.k}:
        return
    for hosts in find_hosts(topology, scaling):
        needed = inner_scaling(hosts, scaling)
        if needed is None:
            continue
        try:
            inner = pack(hosts.inside, needed)
        except TopologyError:  # one host alone cannot spread the data that enters it, or not fast
            continue
        joined = joined_trees(topology, scaling, hosts, inner)
        if joined is not None:
            yield joined


def find_hosts(topology: Topology, scaling: Scaling) -> Iterator[Hosts]:
    """Ways to see a network as equal hosts joined by outer switches, switches of one degree."""
    n = topology.num_ranks
    ends = np.stack([topology.src, topology.dst])
    # Rails join all hosts, a switch inside a host joins the ranks of one: outer switches mostly
    # have the most ports, so degrees are tried from the largest.
    degree = np.bincount(ends.ravel(), minlength=topology.num_vertices)
    for most in sorted({int(d) for d in degree[n:] if d}, reverse=True):
        outer = np.arange(topology.num_vertices) >= n
        outer &= degree == most
        found = _hosts(topology, scaling, outer)
        if found is not None:
            yield found


def _hosts(topology: Topology, scaling: Scaling, outer: np.ndarray) -> Hosts | None:
    """The hosts that are left without the outer switches, if they are equal."""
    n, src, dst = topology.num_ranks, topology.src, topology.dst
    crosses = outer[src] | outer[dst]
    label = components(topology.num_vertices, src[~crosses], dst[~crosses])
    kept = np.flatnonzero(~outer)
    together = kept[np.argsort(label[kept], kind="stable")]
    first = np.flatnonzero(np.diff(label[together])) + 1
    parts = [part for part in np.split(together, first) if part[0] < n]
    ranks = [part[part < n] for part in parts]
    if len(parts) < 2 or len({len(r) for r in ranks}) > 1 or len({len(p) for p in parts}) > 1:
        return None
    index = np.full(topology.num_vertices, -1)
    host = np.full(topology.num_vertices, -1)
    for b, part in enumerate(parts):
        index[part], host[part] = np.arange(len(part)), b
    within = np.flatnonzero(~crosses & (host[src] >= 0))
    capacity = np.asarray(scaling.capacity, object)
    # Links are listed by their ends, and indices count up within a host: corresponding links have
    # the same index in every host.
    links = [within[host[src[within]] == b] for b in range(len(parts))]
    first = links[0]
    for other in links:
        if len(other) != len(first) or not (
            np.array_equal(index[src[other]], index[src[first]])
            and np.array_equal(index[dst[other]], index[dst[first]])
            and np.array_equal(capacity[other], capacity[first])
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
            index[src[first]],
            index[dst[first]],
            topology.alpha[first],
            [topology.exact_bandwidth[e] for e in first],  # type: ignore[arg-type]
            num_vertices=len(parts[0]),
        )
    except TopologyError:  # ranks of a host that only reach each other outside
        return None
    table = np.stack(ranks)
    return Hosts(table, inside, np.stack(links), up[table], down[table])


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


def inner_scaling(hosts: Hosts, scaling: Scaling) -> Scaling | None:
    """What one host must spread: the trees of all hosts' ranks that enter it at each index.

    None if the links outside cannot take every tree to every other host once.
    """
    count, size = hosts.ranks.shape
    load = scaling.k * (count - 1)
    room = min(scaling.capacity[e] for e in [*hosts.up.ravel(), *hosts.down.ravel()])
    if room < load:
        return None
    capacity = tuple(scaling.capacity[e] for e in hosts.links[0])
    entering = scaling.k * count
    return Scaling(entering, scaling.U, capacity, (entering,) * size)


def joined_trees(
    topology: Topology, scaling: Scaling, hosts: Hosts, inner: RoutedTrees
) -> RoutedTrees | None:
    """The trees of all roots, from the trees of one host; None if switches do not join the rails.

    Of the k x hosts trees that spread inside a host from one rank, the first k are for the root
    in the host itself, the next k for the root one host before it, and so on round.
    """
    count, size = hosts.ranks.shape
    n, k = topology.num_ranks, scaling.k
    # Only where ranks of one index are joined by one outer switch.
    switch = topology.dst[hosts.up]
    if (switch != switch[0]).any() or (topology.src[hosts.down] != switch).any():
        return None
    per_host = len(inner.path_ptr) - 1
    root, weight, edge = [], [], []
    for index in range(size):
        rooted = np.flatnonzero(inner.root == index)
        ends = np.cumsum(inner.weight[rooted])
        # Trees of a root are identical between these marks in 0..k-1, in every host.
        # Tree number i of a root spreads in the host that is a hosts ahead as tree a k + i of the
        # inner packing. Two trees are the same where no batch of the inner packing ends between
        # them in any host, so it is enough to part 0..k-1 at the ends of batches modulo k.
        marks = np.unique(np.concatenate([[0], ends % k]))
        edges = len(marks) * n * size * count
        if edges * size > MOST_EDGES:
            return None
        for mark, length in zip(marks, np.diff([*marks, k]), strict=True):
            shape = rooted[np.searchsorted(ends, mark + k * np.arange(count), side="right")]
            root.append(hosts.ranks[:, index])
            weight.append(np.full(count, length))
            edge.append(_tree_edges(inner, shape, count, size, index, per_host))
    # The links of the edges inside every host, then of each rank's to its index in every other.
    hops = np.append(np.tile(np.diff(inner.path_ptr), count), np.full(n * (count - 1), 2))
    host, ahead, index = np.indices((count, count - 1, size)).reshape(3, -1)
    across = np.stack(
        [hosts.up[host, index], hosts.down[(host + ahead + 1) % count, index]], axis=1
    )
    return RoutedTrees(
        root=np.concatenate(root),
        weight=np.concatenate(weight),
        edge=np.concatenate(edge, axis=None),
        path_ptr=np.append(0, np.cumsum(hops)),
        path_link=np.append(hosts.links[:, inner.path_link], across),
        how="hosts on rails",
        switches=inner.switches,
    )


def _tree_edges(
    inner: RoutedTrees, shape: np.ndarray, count: int, size: int, index: int, per_host: int
) -> np.ndarray:
    """Edges of one tree for the root in each host: its own host, then every other, round."""
    own = np.arange(count)[:, None]
    parts = []
    for ahead in range(count):
        host = (own + ahead) % count
        if ahead:
            parts.append(count * per_host + (own * (count - 1) + ahead - 1) * size + index)
        if size > 1:
            tree = slice(inner.tree_ptr[shape[ahead]], inner.tree_ptr[shape[ahead] + 1])
            parts.append(host * per_host + inner.edge[tree][None, :])
    return np.concatenate(parts, axis=1).astype(np.int32)
