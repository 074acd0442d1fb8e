"""MultiTree: one tree from every rank; all trees grow together over links that are free.

A link serves one tree in a time step, so trees that grow together never contend: the step in which
a rank is added is the step in which its send runs. Trees grow round-robin, one rank at a time,
because a tree that grew as far as it could would leave no links of the step to the others.

For example, on a ring of 4 ranks with links both ways, every tree adds both neighbours of its root
in step 1, which uses all 8 links once, and the opposite rank in step 2, over one of its two links.
That takes 2 steps.

``grow`` is Algorithm 1 of the paper (see ``MultiTree``); the line numbers are the paper's.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.rational import as_fraction, common_denominator
from jaxcoll.paths import hop_distances
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import ONE_CHUNK, Counts, Problem, Synthesizer
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.topology import Topology

PRIORITIES = ("auto", "root", "height")


@dataclasses.dataclass(frozen=True)
class MultiTree(Synthesizer):
    """All-gather over one tree per rank, built top-down, one level per time step.

    Huang, Majumder, Kim, Muzahid, Yum and Kim, "Communication algorithm-architecture co-design for
    distributed deep learning" (ISCA 2021), Algorithm 1. A tree adds a rank by the first of its own
    ranks, in the order in which earlier steps added them, that has a free link to a rank outside.
    When no tree can add any more, the next step starts with all links free. The reversed schedule
    is the reduce-scatter.

    - On grids a rank tries its neighbours dimension by dimension, upwards first, so Y before X
      (Sec. III-C1); elsewhere the next rank in cyclic order first.
    - Through switches, a child is looked for at the rank's own switch first and then at its
      neighbours, over free links only (Sec. III-C3). Ranks of other groups forward like switches.
      The paper leaves open which child at a switch is taken. Here the first choice is a rank of a
      host that the tree has not entered, so that it enters each host over one link as long as there
      are others; the second choice is the next rank.
    - A link of m times the unit of bandwidth is m links (Sec. VII-B), so it serves m trees per
      step, at most all of them.

    The chunks of a shard are sent together: the paper has no pipelining inside a tree.

    Attributes:
        priority: the order in which trees add a rank. "root": by root; "height": first the tree
            farthest from a rank that it lacks (Sec. III-C1, for irregular networks); "auto":
            "height" if ranks differ in their links or distances, else "root".
        unit: bytes per second of one link of the multigraph; None for the greatest common divisor
            of all bandwidths.
        nearest_first: whether a tree looks for children at the switches of all its ranks before it
            looks behind further switches, instead of rank by rank as the paper has it. On a BiGraph
            this gives the n - 1 steps that the paper reports (Sec. VI-A), but higher trees.

    Raises:
        CollectiveError: the priority is unknown, or the unit is not above 0.
    """

    priority: str = "auto"
    unit: float | None = None
    nearest_first: bool = False

    name: ClassVar[str] = "multitree"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.copies)
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK

    def __post_init__(self) -> None:
        checks.choice(self.priority, PRIORITIES, "priority", CollectiveError)
        unit = checks.optional(self.unit, checks.positive, "unit", CollectiveError)
        checks.put(self, unit=unit)
        checks.flag_fields(self, CollectiveError, "nearest_first")

    def work(self, problem: Problem) -> float:
        """For every rank that a tree adds, it examines ranks, or the ports of a switch."""
        topology = problem.topology
        looks = topology.num_ranks / (400 if topology.is_direct else 200)
        added = sum(len(group) ** 2 for group in problem.collective.groups)
        return looks * added + problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        group = np.full(topology.num_vertices, -1, np.int64)
        group[: topology.num_ranks] = collective.group_of_rank
        first = np.arange(0, collective.num_chunks, collective.chunks_per_shard)
        roots = collective.owner[first].astype(np.int64)
        distance = hop_distances(topology)
        ptr, links = _in_order_of_trial(topology)
        serves = capacities(topology, self.unit, len(roots))
        ends = topology.src, topology.dst
        graph = Graph(ptr, links, *ends, serves, group, hosts(topology), distance)
        wanted = np.bincount(group[group >= 0])[group[roots]]
        # Ranks that differ are reached in different numbers of steps, so height decides.
        ports, heights = np.diff(topology.out_links[0])[: len(distance)], distance.max(axis=1)
        by_height = self.priority == "height"
        if self.priority == "auto":
            by_height = len(np.unique(ports)) > 1 or len(np.unique(heights)) > 1
        step, tree, path_ptr, path = grow(graph, roots, wanted, by_height, self.nearest_first)
        edges, edge = distinct_edges(topology, path_ptr, path)
        k = collective.chunks_per_shard
        chunk = (first[tree][:, None] + np.arange(k)).ravel()
        columns = (np.repeat(step, k), np.repeat(edge, k), chunk)
        return Schedule.from_sends(topology, collective, *columns, edges=edges)


def capacities(topology: Topology, unit: float | None, most: int) -> np.ndarray:
    """Number of trees that each link serves in one time step, int64 of shape (links,).

    Args:
        unit: see ``MultiTree``; slower links serve one tree.
        most: number of trees.
    """
    speeds = sorted(set(topology.exact_bandwidth))
    if unit is None:
        scale = common_denominator(speeds)
        one = Fraction(int(np.gcd.reduce([int(b * scale) for b in speeds], dtype=object)), scale)
    else:
        one = as_fraction(unit)
    serves = {bandwidth: min(max(1, bandwidth // one), most) for bandwidth in speeds}
    return np.asarray([serves[bandwidth] for bandwidth in topology.exact_bandwidth], np.int64)


def hosts(topology: Topology) -> np.ndarray:
    """The host of each rank, int64 of shape (ranks,): ranks that share their smallest switch.

    A rank without a switch is a host of its own.
    """
    n = topology.num_ranks
    up = (topology.src < n) & (topology.dst >= n)
    rank, switch = topology.src[up].astype(np.int64), topology.dst[up].astype(np.int64)
    size = np.bincount(switch, minlength=topology.num_vertices)
    host = np.arange(n)
    order = np.lexsort((switch, size[switch], rank))[::-1]  # the smallest of each rank last
    host[rank[order]] = switch[order]
    return np.unique(host, return_inverse=True)[1]


def _in_order_of_trial(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Outgoing links by vertex as (ptr, link), in the order in which trees try them."""
    src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    dimension, ahead = np.zeros(len(src), np.int64), (dst - src) % topology.num_vertices
    if topology.grid is not None and topology.is_direct:
        coordinates = topology.grid.coordinates()
        apart = (coordinates[dst] - coordinates[src]) % topology.grid.shape
        dimension = (apart != 0).argmax(axis=1)
        ahead = apart[np.arange(len(src)), dimension]
    order = np.lexsort((ahead, dimension, src))
    return topology.out_links[0], order


class Graph(NamedTuple):
    """The network, in the form that the search for children reads.

    Attributes:
        ptr, link: outgoing links by vertex, in the order in which they are tried; int64.
        src, dst: vertices at the ends of each link.
        capacity: trees that each link serves in one time step, at least 1.
        group: group of each vertex, -1 for vertices that only forward.
        host: host of each rank, from 0.
        distance: fewest links from rank to rank, of shape (ranks, ranks).
    """

    ptr: np.ndarray
    link: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    capacity: np.ndarray
    group: np.ndarray
    host: np.ndarray
    distance: np.ndarray


class Trees(NamedTuple):
    """All trees while they grow.

    Attributes:
        root: root of each tree.
        wanted, count: number of ranks that each tree will have and has, including its root.
        inside: whether a rank is in the tree, of shape (trees, ranks).
        entered: whether the tree has a rank of a host, of shape (trees, hosts).
        members, listed: the ranks of each tree in the order of their addition, of shape
            (trees, ranks), and their number. Ranks that cannot find a child are struck out.
        near: fewest links from the tree to each rank, of shape (trees, ranks).
        lacking: number of ranks that the tree lacks at each such distance.
        height: the largest of these distances.
    """

    root: np.ndarray
    wanted: np.ndarray
    count: np.ndarray
    inside: np.ndarray
    entered: np.ndarray
    members: np.ndarray
    listed: np.ndarray
    near: np.ndarray
    lacking: np.ndarray
    height: np.ndarray


class Step(NamedTuple):
    """One time step: the links that are free, and how far each tree has searched.

    Attributes:
        free: number of trees that each link can still serve; G' in Algorithm 1.
        idle: number of links out of each vertex that can still serve a tree. Late in a step most
            members have none, and are skipped at once.
        before: number of each tree's members that previous steps added.
        cursor: the first of these members that may still find a child.
        reach: the most forwarders between a member and its child.
        came_by, queue: scratch of the search, one entry per vertex.
        seen: the last search that visited each vertex. A search visits few vertices if ranks do not
            forward; clearing a column of all vertices would cost far more.
        searches: the number of searches so far, one entry.
    """

    free: np.ndarray
    idle: np.ndarray
    before: np.ndarray
    cursor: np.ndarray
    reach: np.ndarray
    came_by: np.ndarray
    queue: np.ndarray
    seen: np.ndarray
    searches: np.ndarray


def grow(graph: Graph, root, wanted, by_height, nearest):
    """Grow all trees; returns their additions in the order in which they are made.

    A kernel does not see signals, so it lets every tree add one rank, and Python handles signals in
    between.

    Args:
        root, wanted: see ``Trees``.
        by_height: whether the trees with the greatest remaining height come first, instead of those
            with the lowest roots.
        nearest: whether a tree tries all its ranks for near children before any for farther ones.

    Returns:
        The time step (from 0) and the tree of each addition, and the links from parent to child as
        (ptr, links).
    """
    trees = _roots_only(graph, root, wanted)  # lines 1-2
    total = int(wanted.sum()) - len(root)
    step_of, tree_of = np.empty(total, np.int64), np.empty(total, np.int64)
    path_ptr, path = np.zeros(total + 1, np.int64), np.empty(2 * total + 16, np.int64)
    # Without forwarders, children are neighbours: the search never looks past one link.
    has_forwarders = (graph.group != graph.group[root[0]]).any()
    farthest = int(graph.distance.max()) - 1 if has_forwarders else 0
    now = _new_step(graph, len(root))
    order = np.arange(len(root))
    added, time = 0, 0  # line 3
    # The paper stops a step when E' has no free edge that adds a rank (line 7). Here a round in
    # which no tree adds any is the end of the step: links are only taken in a step, never freed.
    while added < total:  # line 4
        _begin_step(graph, trees, now, 0 if nearest else farthest)  # line 6
        progress = True
        while progress:  # line 7
            # Trees with the farthest to go choose first, while most links are free. The order is
            # renewed for each round, since a tree that has just grown may no longer be the highest;
            # equal trees stay in the order of roots (a stable sort).
            if by_height:
                order = np.argsort(-trees.height, kind="mergesort")
            room = int(path_ptr[added]) + len(root) * (farthest + 1)
            if room > len(path):
                path = np.concatenate([path, np.empty(room, np.int64)])
            before = added
            added = _add_one_each(
                graph, trees, now, order, farthest, by_height, path_ptr, path, tree_of, added
            )
            step_of[before:added] = time  # line 13
            progress = added > before
        time += 1  # line 5
    return step_of, tree_of, path_ptr, path[: path_ptr[added]]


@kernel(cache=True, nogil=True)
def _add_one_each(
    graph: Graph, trees: Trees, now: Step, order, farthest, by_height, path_ptr, path, tree_of,
    added,
):  # fmt: skip
    """Let every tree add one rank, if it finds one; returns the number of additions so far."""
    # Fields of a tuple that are read in a loop would be reference-counted in every iteration.
    src, free, idle, came_by, queue = graph.src, now.free, now.idle, now.came_by, now.queue
    count, wanted, reach, host = trees.count, trees.wanted, now.reach, graph.host
    inside, entered, members, listed = trees.inside, trees.entered, trees.members, trees.listed
    for t in order:  # line 8
        if count[t] == wanted[t] or reach[t] > farthest:
            continue
        parent, child = _find_child(graph, trees, now, t, farthest)
        if child < 0:
            continue
        inside[t, child] = entered[t, host[child]] = True  # line 11
        members[t, listed[t]] = child
        listed[t] += 1
        count[t] += 1
        # Line 12: the links on the way are no longer free. The search recorded them from the child
        # back to its parent.
        hops, v = 0, child
        while v != parent:
            queue[hops] = came_by[v]
            v = src[came_by[v]]
            hops += 1
        for i in range(hops):
            link = queue[hops - 1 - i]
            free[link] -= 1
            if free[link] == 0:
                idle[src[link]] -= 1
            path[path_ptr[added] + i] = link
        path_ptr[added + 1] = path_ptr[added] + hops
        tree_of[added] = t
        if by_height:
            _lower(graph, trees, t, child)
        added += 1
    return added


def _roots_only(graph: Graph, root, wanted):
    """Trees that consist of their roots (lines 1-2)."""
    trees, ranks, every = len(root), len(graph.host), np.arange(len(root))
    inside = np.zeros((trees, ranks), np.bool_)
    inside[every, root] = True
    entered = np.zeros((trees, int(graph.host.max()) + 1), np.bool_)
    entered[every, graph.host[root]] = True
    members = np.empty((trees, ranks), np.int64)
    members[:, 0] = root
    near = np.ascontiguousarray(graph.distance[root], np.int32)
    lacks = (graph.group[:ranks] == graph.group[root][:, None]) & ~inside
    lacking = np.zeros((trees, int(graph.distance.max()) + 1), np.int64)
    for distance in range(lacking.shape[1]):
        lacking[:, distance] = ((near == distance) & lacks).sum(axis=1)
    height = np.where(lacks, near, 0).max(axis=1).astype(np.int64)
    listed, count = np.ones(trees, np.int64), np.ones(trees, np.int64)
    return Trees(root, wanted, count, inside, entered, members, listed, near, lacking, height)


def _new_step(graph: Graph, trees):
    """Columns for a step that has not begun."""
    vertices = len(graph.ptr) - 1
    idle, came_by, queue = np.empty((3, vertices), np.int64)
    before, cursor, reach = np.empty((3, trees), np.int64)
    seen, searches = np.zeros(vertices, np.int64), np.zeros(1, np.int64)
    free = np.empty_like(graph.capacity)
    return Step(free, idle, before, cursor, reach, came_by, queue, seen, searches)


@kernel(cache=True)
def _begin_step(graph: Graph, trees: Trees, now: Step, reach):
    """Free all links, and let every tree search from its first member (line 6)."""
    now.free[:] = graph.capacity
    now.idle[:] = np.diff(graph.ptr)
    ptr, link, dst, group = graph.ptr, graph.link, graph.dst, graph.group
    # A member without a neighbour to add or to search behind is surrounded for good, since trees
    # only grow. Striking out such ranks once per step spares line 9 from passing over the whole
    # inside of a tree at every addition.
    for t in range(len(trees.root)):
        if trees.count[t] == trees.wanted[t]:
            continue
        members, inside = trees.members[t], trees.inside[t]
        kept = 0
        for i in range(trees.listed[t]):
            v = members[i]
            for j in range(ptr[v], ptr[v + 1]):
                w = dst[link[j]]
                if group[w] != group[v] or not inside[w]:
                    members[kept] = v
                    kept += 1
                    break
        trees.listed[t] = kept
    now.before[:] = trees.listed
    now.cursor[:] = 0
    now.reach[:] = reach


@kernel(inline="always")
def _find_child(graph: Graph, trees: Trees, now: Step, t, farthest):
    """The first member of a tree with a free way to a rank outside it, and this rank; else -1.

    These are lines 9 and 10. A member that finds no child finds none later in the same step, so the
    search continues where it ended.
    """
    members, inside, entered = trees.members[t], trees.inside[t], trees.entered[t]
    reach, cursor, before, idle = now.reach[t], now.cursor[t], now.before[t], now.idle
    parent, child = -1, -1
    while child < 0 and reach <= farthest:
        # Line 9: ranks in the order in which earlier steps added them. Ranks added in this very
        # step are not asked, because their data arrives only at its end.
        while child < 0 and cursor < before:
            parent = members[cursor]
            if idle[parent]:
                child = _search(graph, now, inside, entered, parent, reach)
            if child < 0:
                cursor += 1
        if child < 0:
            reach += 1
            cursor = 0
    now.reach[t], now.cursor[t] = reach, cursor
    return parent, child


@kernel(inline="always")
def _search(graph: Graph, now: Step, inside, entered, parent, reach):
    """A rank of the parent's group outside the tree, by free links through ``reach`` forwarders.

    Returns -1 if there is none. Of the ranks behind the same number of forwarders, the next one
    after the parent in cyclic order is taken. But among ranks at the parent's own switches, those
    of a host in which the tree has no rank yet come first; and among neighbours, the first in the
    order of links is taken. ``came_by`` receives the links on the way.
    """
    ptr, link, dst, group, host = graph.ptr, graph.link, graph.dst, graph.group, graph.host
    free, came_by, queue, seen = now.free, now.came_by, now.queue, now.seen
    ranks, own = len(host), group[parent]
    now.searches[0] += 1
    search = now.searches[0]
    seen[parent] = search
    queue[0] = parent
    first, last, depth = 0, 1, 0
    while first < last and depth <= reach:
        best, best_ahead, end = -1, 2 * ranks, last
        for i in range(first, last):
            v = queue[i]
            for j in range(ptr[v], ptr[v + 1]):
                w = dst[link[j]]
                if free[link[j]] == 0 or seen[w] == search:
                    continue
                if group[w] == own:
                    if inside[w]:
                        continue
                    # At depth 0 these are the parent's neighbours, of which the first in the order
                    # of links is taken (Y before X). Behind a switch the next rank in cyclic order
                    # is taken, so that different parents at one switch take different children.
                    ahead = (w - parent) % ranks if depth > 0 else 0
                    # A host that the tree has not entered comes first: a tree that enters a host
                    # twice uses two links into the host where one would do.
                    if depth == 1 and entered[host[w]]:
                        ahead += ranks
                    if best < 0 or ahead < best_ahead:
                        best, best_ahead = w, ahead
                        came_by[w], seen[w] = link[j], search
                else:
                    came_by[w], seen[w] = link[j], search
                    queue[end] = w
                    end += 1
        if best >= 0:
            return best
        first, last, depth = last, end, depth + 1
    return -1


@kernel(inline="always")
def _lower(graph: Graph, trees: Trees, t, child):
    """Update the height of a tree after a rank has been added."""
    near, lacking, inside = trees.near[t], trees.lacking[t], trees.inside[t]
    distance, group = graph.distance[child], graph.group
    lacking[near[child]] -= 1
    for v in range(len(near)):
        if distance[v] < near[v]:
            if group[v] == group[child] and not inside[v]:
                lacking[near[v]] -= 1
                lacking[distance[v]] += 1
            near[v] = distance[v]
    while trees.height[t] > 0 and lacking[trees.height[t]] == 0:
        trees.height[t] -= 1
