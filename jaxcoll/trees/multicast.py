"""In-network multicast and aggregation: what capable switches spare the links of a forest.

A tree of ranks crosses a switch once per child: a root that sends to seven ranks behind one switch
sends the same data into it seven times. A switch that can copy needs it once. So every later edge
of a tree that crosses such a switch begins there, and the links before it are spared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.trees.flow import TreeFlow


@dataclasses.dataclass(frozen=True)
class Multicast:
    """Trees of a forest that branch inside switches.

    The optimum stays what it is, since every rank must still receive every shard; links into
    switches are relieved. Reversed, the same holds of aggregation: data that a switch sends on
    once it then sums once.

    Attributes:
        switches: the capable switches.
        load: trees on each link, as ``TreeFlow.load``, without what became redundant.
        saved: what each link is spared.
    """

    switches: tuple[int, ...]
    load: tuple[int, ...]
    saved: tuple[int, ...]


def multicast(flow: TreeFlow, switches: Iterable[int]) -> Multicast:
    """Remove traffic that switches make redundant (dissertation, Sec. 4.5.6, Fig. 4.8).

    Trees are followed from the root. Data that has passed a capable switch once need not be sent to
    it again: a later edge of the tree that crosses the switch begins there.

    Args:
        switches: vertices of the switches that can send one message on over several links.

    Raises:
        TopologyError: a vertex that is not a switch.
    """
    checks.instance(flow, TreeFlow, "flow", TopologyError)
    topology = flow.topology
    given = checks.members(switches, "switches", TopologyError)
    chosen = sorted(set(checks.integers(given, "switches", TopologyError)))
    for w in chosen:
        if not topology.num_ranks <= w < topology.num_vertices:
            raise TopologyError(
                f"vertex {w} is not a switch; those of {topology} are {topology.num_ranks}.."
                f"{topology.num_vertices - 1}"
            )
    capable = np.zeros(topology.num_vertices, bool)
    capable[chosen] = True
    # One row per tree and link: loads may be beyond what a machine integer holds.
    start = np.empty(len(flow.edge), np.int64)
    _starts(
        flow.tree_ptr, flow.edge, flow.edges.path_ptr, flow.edges.path_link, topology.src, capable,
        np.full(topology.num_vertices, -1), start,
    )  # fmt: skip
    end = flow.edges.path_ptr[flow.edge + 1]
    hops = end - start
    offset = np.arange(hops.sum()) - np.repeat(np.cumsum(hops) - hops, hops)
    link = flow.edges.path_link[np.repeat(start, hops) + offset]
    tree_edges = np.diff(flow.tree_ptr)
    weight = np.repeat(np.repeat(flow.weight.astype(object), tree_edges), hops)
    load = np.zeros(topology.num_links, object)
    np.add.at(load, link, weight)
    kept = tuple(int(x) for x in load)
    saved = tuple(before - after for before, after in zip(flow.load, kept, strict=True))
    return Multicast(tuple(chosen), kept, saved)


@kernel(cache=True)
def _starts(tree_ptr, edge, path_ptr, path_link, link_src, capable, seen, start):
    """Where on its path each tree edge begins: at the last switch that has the data already."""
    for i in range(len(tree_ptr) - 1):
        for j in range(tree_ptr[i], tree_ptr[i + 1]):
            first, last = path_ptr[edge[j]], path_ptr[edge[j] + 1]
            start[j] = first
            for h in range(first, last):
                v = link_src[path_link[h]]
                if capable[v] and seen[v] == i:
                    start[j] = h
            for h in range(start[j], last):
                v = link_src[path_link[h]]
                if capable[v]:
                    seen[v] = i
