"""Networks as networkx graphs: there and back, and refusals."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given

from jaxcoll import Topology
from jaxcoll.errors import TopologyError
from tests import strategies
from tests.core.links import links

NETWORKS = strategies.topologies(switches=True, exact=True)


@given(NETWORKS | strategies.grids() | strategies.families())
def test_networkx_there_and_back(topology):
    graph = topology.to_networkx()
    assert isinstance(graph, nx.MultiDiGraph) == topology.has_parallel_links
    assert graph.number_of_edges() == topology.num_links
    kinds = [graph.nodes[v]["kind"] for v in range(topology.num_vertices)]
    assert kinds.count("rank") == topology.num_ranks
    back = Topology.from_networkx(graph)
    assert back == topology
    assert (back.name, back.vertex_names) == (topology.name, topology.vertex_names)


def test_networkx_keeps_names():
    topology = Topology(
        2,
        [0, 2, 1, 2],  # type: ignore[arg-type]
        [2, 1, 2, 0],  # type: ignore[arg-type]
        [0] * 4,  # type: ignore[arg-type]
        [1] * 4,  # type: ignore[arg-type]
        num_vertices=3,
        vertex_names=("a", "b", "hub"),
    )
    back = Topology.from_networkx(topology.to_networkx())
    assert back == topology
    assert back.vertex_names == topology.vertex_names


def test_networkx_graphs_of_any_sort():
    graph = nx.Graph(name="small")
    graph.add_node("hub", kind="switch")
    graph.add_edge("x", "hub", bandwidth=Fraction(1, 3))
    graph.add_edge("hub", "y", alpha=2)
    topology = Topology.from_networkx(graph, alpha=1, bandwidth=5)
    assert (topology.num_ranks, topology.num_vertices, topology.name) == (2, 3, "small")
    assert topology.vertex_names == ("x", "y", "hub")
    third = Fraction(1, 3)
    assert links(topology) == [(0, 2, 1, third), (1, 2, 2, 5), (2, 0, 1, third), (2, 1, 2, 5)]
    circle = nx.cycle_graph([30, 10, 20], create_using=nx.DiGraph)
    numbered = Topology.from_networkx(circle, alpha=0, bandwidth=1)
    assert numbered.vertex_names == ("10", "20", "30")
    assert links(numbered) == [(0, 1, 0, 1), (1, 2, 0, 1), (2, 0, 0, 1)]


@pytest.mark.parametrize("missing", ["alpha", "bandwidth"])
def test_networkx_edges_without_numbers_are_refused(missing):
    given_one = {"alpha", "bandwidth"} - {missing}
    graph = nx.path_graph(["x", "y"])
    with pytest.raises(TopologyError, match=rf"'x'->'y' has no {missing}.*pass {missing}="):
        Topology.from_networkx(graph, **dict.fromkeys(given_one, 1))


def test_networkx_graphs_that_are_no_networks_are_refused():
    with pytest.raises(TopologyError, match="num_ranks must be an integer of at least 1, got 0"):
        Topology.from_networkx(nx.DiGraph())
    with pytest.raises(TopologyError, match="no path from rank 1 to rank 0"):
        Topology.from_networkx(nx.path_graph(2, nx.DiGraph), alpha=0, bandwidth=1)
    loop = nx.Graph([(0, 1), (1, 1)])
    with pytest.raises(TopologyError, match=r"\(1->1, .*two different vertices"):
        Topology.from_networkx(loop, alpha=0, bandwidth=1)


@pytest.mark.parametrize("kind", ["switch", "Switch", "SWITCH"])
def test_a_kind_is_read_in_any_case(kind):
    star = nx.star_graph(3)
    nx.set_node_attributes(star, {0: kind, 1: "Rank"}, "kind")
    topology = Topology.from_networkx(star, alpha=0, bandwidth=1)
    assert (topology.num_ranks, topology.num_vertices) == (3, 4)


@pytest.mark.parametrize("kind", ["gpu", "", None, 5, ["switch"]])
def test_an_unknown_kind_is_refused(kind):
    star = nx.star_graph(3)
    star.nodes[2]["kind"] = kind
    with pytest.raises(TopologyError, match=r"node 2 has kind=.*'rank' or 'switch'"):
        Topology.from_networkx(star, alpha=0, bandwidth=1)
