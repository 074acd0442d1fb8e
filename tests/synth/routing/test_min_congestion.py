"""Minimum congestion: paths that share the load, and times near what the links allow."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.paths import hop_distances
from jaxcoll.simulation import simulate
from jaxcoll.synth import Direct, MinCongestion, synthesize
from jaxcoll.topologies import dgx_a100, fully_connected, hypercube, mesh, multi_rail, ring, torus
from tests import strategies


def most_of_a_link(topology, chunks):
    """Least seconds of an all_to_all of one byte per rank: all hops over all links."""
    n = topology.num_ranks
    return float(hop_distances(topology).sum() / n / topology.bandwidth.sum())


@pytest.mark.parametrize(
    "topology", [torus(4, 4), torus(4, 4, 4), hypercube(4), ring(9)], ids=lambda t: t.name
)
def test_large_data_takes_what_hops_over_capacity_do(topology):
    """On these every shortest path counts equally, and links can be loaded equally."""
    schedule = synthesize(topology, "all_to_all", MinCongestion(nbytes=1e12), chunks=16)
    time = simulate(schedule, 1e12).time
    least = 1e12 * most_of_a_link(topology, 16)
    assert least <= time <= 1.06 * least


@pytest.mark.parametrize("topology", [torus(4, 4), mesh(3, 4), dgx_a100(2)], ids=lambda t: t.name)
def test_it_beats_routes_that_ignore_the_load(topology):
    for nbytes in (1e6, 1e9):
        ours = synthesize(topology, "all_to_all", MinCongestion(nbytes=nbytes), chunks=16)
        direct = synthesize(topology, "all_to_all", Direct())
        assert simulate(ours, nbytes).time < simulate(direct, nbytes).time


def test_the_data_of_a_rank_go_round_a_slow_link_in_parts():
    hosts = multi_rail(16, 8)
    (rail,) = (
        int(v) for u, v, b in zip(hosts.src, hosts.dst, hosts.bandwidth, strict=True)
        if u == 3 and b == hosts.bandwidth.min()
    )  # fmt: skip
    slow = hosts.scaled({(3, rail): 0.2})
    schedule = synthesize(slow, "all_to_all", MinCongestion(), chunks=1)
    # All at once, data of one rank would take that link for more than four times the bound.
    assert simulate(schedule, 2**26).time <= 1.3 * bound(slow, "all_to_all", 2**26).time


@given(strategies.topologies(max_ranks=8, switches=True), st.sampled_from(["gather", "scatter"]))
def test_little_data_takes_paths_of_least_latency(topology, kind):
    """With almost no bytes, a chunk takes the path of least latency, by networkx."""
    schedule = synthesize(topology, kind, MinCongestion(nbytes=1e-9), chunks=1)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_vertices))
    for u, v, alpha in zip(topology.src, topology.dst, topology.alpha, strict=True):
        if not graph.has_edge(u, v) or graph[u][v]["weight"] > alpha:
            graph.add_edge(u, v, weight=float(alpha))
    ends = [(c, 0) if kind == "gather" else (0, c) for c in range(topology.num_ranks)]
    spent = np.zeros(topology.num_ranks)
    for edge, chunk in zip(schedule.edge, schedule.chunk, strict=True):
        spent[chunk] += topology.alpha[list(schedule.edges.path(int(edge)))].sum()
    for chunk, (source, target) in enumerate(ends):
        least = nx.dijkstra_path_length(graph, source, target) if source != target else 0.0
        assert spent[chunk] == pytest.approx(least, rel=1e-6, abs=1e-15)


def test_messages_end_at_ranks_and_pass_switches():
    topology = dgx_a100(2)
    schedule = synthesize(topology, "all_to_all", MinCongestion(), chunks=2)
    inner = [
        topology.dst[link]
        for edge in range(len(schedule.edges))
        for link in schedule.edges.path(edge)[:-1]
    ]
    assert inner
    assert min(inner) >= topology.num_ranks


def test_further_passes_part_the_load_better():
    one, two = (
        simulate(
            synthesize(torus(4, 4), "all_to_all", MinCongestion(1e9, passes), chunks=2), 1e9
        ).time
        for passes in (1, 3)
    )
    assert two < one


def test_groups_run_at_once():
    groups = ((0, 5, 10), (3, 4))
    schedule = synthesize(torus(3, 4), "all_to_all", MinCongestion(), chunks=3, groups=groups)
    assert schedule.collective.groups == groups


def test_one_link_each_is_one_step():
    schedule = synthesize(fully_connected(5), "all_to_all", MinCongestion(), chunks=1)
    assert schedule.num_steps == 1
    assert schedule.num_sends == 20


@pytest.mark.parametrize(
    "fields", [{"nbytes": 0}, {"passes": 0}, {"passes": True}, {"passes": "a"}]
)
def test_bad_fields_are_refused(fields):
    with pytest.raises(CollectiveError):
        MinCongestion(**fields)


def test_only_what_one_rank_wants():
    with pytest.raises(CollectiveError, match="not defined for all_gather"):
        MinCongestion().synthesize(ring(4), Collective("all_gather", 4))
