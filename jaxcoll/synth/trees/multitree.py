"""MultiTree: one tree from every rank; all trees grow together over links that are free.

A link serves one tree in a time step, so trees that grow together never contend: the step in which
a rank is added is the step in which its send runs. Trees take turns, one rank at a time, because a
tree that grew as far as it could would leave its step's links to no other.

On a ring of 4 ranks with links both ways, every tree adds both neighbours of its root in step 1,
which uses all 8 links once, and the rank opposite in step 2 over one of its two links: 2 steps.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction, common_denominator
from jaxcoll.paths import hop_distances
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import Counts, Problem, Synthesizer
from jaxcoll.synth.building.routed import distinct_edges
from jaxcoll.synth.trees import multitree_kernel as kernel
from jaxcoll.topology import Topology

PRIORITIES = ("auto", "root", "height")


@dataclasses.dataclass(frozen=True)
class MultiTree(Synthesizer):
    """All-gather over one tree per rank, built top-down, one level per time step.

    Huang, Majumder, Kim, Muzahid, Yum and Kim, "Communication algorithm-architecture co-design for
    distributed deep learning" (ISCA 2021), Algorithm 1. In each time step every link serves one
    tree. Trees add one rank each, in rotation: the first of their ranks, in the order in which
    earlier steps added them, that has a free link to a rank outside the tree. When no tree can add
    any more, the next step starts with all links free. The reversed schedule is the reduce-scatter.

    - On grids a rank tries its neighbours dimension by dimension, upwards first, so Y before X
      (Sec. III-C1); elsewhere the next rank in cyclic order first.
    - Through switches, a child is looked for at the rank's own switch first and then at its
      neighbours, over free links only (Sec. III-C3). Ranks of other groups forward like switches.
      The paper leaves open which child at a switch is taken: first one of a host that the tree has
      not entered, so that it enters each over one link as long as there are others, then the next.
    - A link of m times the unit of bandwidth is m links (Sec. VII-B), so it serves m trees per
      step, at most all of them.

    The chunks of a shard are sent together: the paper has no pipelining inside a tree.

    Attributes:
        priority: the order in which trees add a rank. "root": by root; "height": the tree farthest
            from a rank that it lacks first (Sec. III-C1, for irregular networks); "auto": "height"
            where ranks differ in their links or distances, else "root".
        unit: bytes per second of one link of the multigraph; None for the greatest that divides
            all bandwidths.
        nearest_first: whether a tree looks for children at the switches of all its ranks before it
            looks behind further switches, instead of rank by rank as the paper has it. On a BiGraph
            this gives the n - 1 steps that the paper reports (Sec. VI-A), but higher trees.

    Raises:
        CollectiveError: an unknown priority, or a unit that is not above 0.
    """

    priority: str = "auto"
    unit: float | None = None
    nearest_first: bool = False

    name: ClassVar[str] = "multitree"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather", "broadcast"})

    def __post_init__(self) -> None:
        checks.choice(self.priority, PRIORITIES, "priority", CollectiveError)
        unit = checks.optional(self.unit, checks.positive, "unit", CollectiveError)
        checks.put(self, unit=unit)
        checks.flag_fields(self, CollectiveError, "nearest_first")

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk: more gain nothing."""
        return ((1,),)

    def work(self, problem: Problem) -> float:
        """For every rank that it adds, it looks at ranks, or at the ports of a switch."""
        topology = problem.topology
        looks = topology.num_ranks / (400 if topology.is_direct else 200)
        added = sum(len(group) ** 2 for group in problem.collective.groups)
        return looks * added + problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``."""
        group = np.full(topology.num_vertices, -1, np.int64)
        group[: topology.num_ranks] = collective.group_of_rank
        first = np.arange(0, collective.num_chunks, collective.chunks_per_shard)
        roots = collective.owner[first].astype(np.int64)
        distance = hop_distances(topology)
        ptr, links = _in_order_of_trial(topology)
        graph = kernel.Graph(
            ptr,
            links,
            topology.src,
            topology.dst,
            capacities(topology, self.unit, len(roots)),
            group,
            hosts(topology),
            distance,
        )
        wanted = np.bincount(group[group >= 0])[group[roots]]
        by_height = self._by_height(topology, distance)
        step, tree, path_ptr, path = kernel.grow(
            graph, roots, wanted, by_height, self.nearest_first
        )
        edges, edge = distinct_edges(topology, path_ptr, path)
        k = collective.chunks_per_shard
        chunk = (first[tree][:, None] + np.arange(k)).ravel()
        columns = (np.repeat(step, k), np.repeat(edge, k), chunk)
        return Schedule.from_sends(topology, collective, *columns, edges=edges)

    def _by_height(self, topology: Topology, distance: np.ndarray) -> bool:
        if self.priority != "auto":
            return self.priority == "height"
        ports = np.diff(topology.out_links[0])[: topology.num_ranks]
        heights = distance.max(axis=1)
        return len(np.unique(ports)) > 1 or len(np.unique(heights)) > 1


def capacities(topology: Topology, unit: float | None, most: int) -> np.ndarray:
    """Trees that each link serves in one time step, int64 of shape (links,).

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
