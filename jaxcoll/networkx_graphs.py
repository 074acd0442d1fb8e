"""Networks as networkx graphs, to and fro."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from jaxcoll.errors import TopologyError, shown
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.numerics import checks

if TYPE_CHECKING:  # imported where it is used: only those who have such a graph need the package
    import networkx as nx


def make_graph(
    name: str,
    kinds: Sequence[str],
    vertex_names: Sequence[str],
    links: Iterable[tuple],
    parallel: bool,
) -> nx.DiGraph:
    """The graph of a network; see ``Topology.to_networkx``.

    Args:
        kinds: "rank" or "switch" for each vertex.
        vertex_names: one per vertex, or empty.
        links: (src, dst, alpha, bandwidth) of each link.
        parallel: whether several links join the same two vertices in the same direction.
    """
    import networkx as nx

    graph = nx.MultiDiGraph() if parallel else nx.DiGraph()
    for vertex, kind in enumerate(kinds):
        graph.add_node(vertex, kind=kind)
        if vertex_names:
            graph.nodes[vertex]["name"] = vertex_names[vertex]
    for src, dst, alpha, bandwidth in links:
        graph.add_edge(src, dst, alpha=alpha, bandwidth=bandwidth)
    graph.graph["name"] = name
    return graph


def describe_graph(
    graph: nx.Graph, alpha: float | None, bandwidth: float | Fraction | None
) -> dict:
    """The arguments of ``Topology`` for a graph; see ``Topology.from_networkx``."""
    import networkx as nx

    checks.instance(graph, nx.Graph, "graph", TopologyError)
    nodes = list(graph.nodes)
    if all(isinstance(node, (int, np.integer)) for node in nodes):
        nodes.sort()
    is_switch = {}
    for node in nodes:
        kind = graph.nodes[node].get("kind", "rank")
        if str(kind).lower() not in ("rank", "switch"):
            raise TopologyError(
                f"node {shown(node)} has kind={shown(kind)}; a kind is 'rank' or 'switch', and a "
                "node without one is a rank"
            )
        is_switch[node] = str(kind).lower() == "switch"
    nodes.sort(key=is_switch.__getitem__)  # ranks first, otherwise as they were
    index = {node: i for i, node in enumerate(nodes)}
    copying, adding = (
        [index[node] for node in nodes
         if checks.flag(graph.nodes[node].get(what, False), f"{what} of a node", TopologyError)]
        for what in ("copies", "adds")
    )  # fmt: skip
    rows: list[tuple] = []
    for u, v, data in graph.edges(data=True):
        values = (data.get("alpha", alpha), data.get("bandwidth", bandwidth))
        if None in values:
            missing = "alpha" if values[0] is None else "bandwidth"
            raise TopologyError(
                f"edge {shown(u)}->{shown(v)} has no {missing}; set it or pass {missing}="
            )
        rows.append((index[u], index[v], *values))
        if not graph.is_directed():
            rows.append((index[v], index[u], *values))
    src, dst, alphas, bandwidths = zip(*rows, strict=True) if rows else ((), (), (), ())
    plain = nodes == list(range(len(nodes)))
    names = [graph.nodes[v].get("name", "" if plain else v) for v in nodes]
    return {
        "num_ranks": len(nodes) - sum(is_switch.values()),
        "src": np.asarray(src),
        "dst": np.asarray(dst),
        "alpha": np.asarray(alphas),
        "bandwidth": bandwidths,
        "num_vertices": len(nodes),
        "name": str(graph.graph.get("name", "")),
        "vertex_names": tuple(str(name) for name in names) if any(names) else (),
        "in_network": InNetwork(copying, adding),  # type: ignore[arg-type]
    }
