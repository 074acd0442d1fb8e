"""Edges, distances and shortest routes, against networkx and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import JaxcollError, Topology
from jaxcoll.errors import ScheduleError
from jaxcoll.paths import Edges, hop_distances, latency_distances, shortest_routes
from jaxcoll.topologies import fully_connected, mesh, ring, switch, torus
from tests import strategies

NETWORKS = strategies.topologies(switches=True) | strategies.grids() | strategies.families()


def all_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    src, dst = np.divmod(np.arange(n * n), n)
    return src[src != dst], dst[src != dst]


# ---------------------------------------------------------------------- distances


@given(NETWORKS)
def test_hops_are_as_in_networkx(topology):
    n = topology.num_ranks
    lengths = dict(nx.all_pairs_shortest_path_length(topology.to_networkx()))
    expected = [[lengths[u][v] for v in range(n)] for u in range(n)]
    np.testing.assert_array_equal(hop_distances(topology), expected)


@given(NETWORKS)
def test_latencies_are_as_in_networkx(topology):
    n = topology.num_ranks
    lengths = dict(nx.all_pairs_dijkstra_path_length(topology.to_networkx(), weight="alpha"))
    expected = [[lengths[u][v] for v in range(n)] for u in range(n)]
    np.testing.assert_allclose(latency_distances(topology), expected, rtol=1e-14, atol=0)


def test_links_without_latency_are_links():
    """In a sparse matrix a zero could pass for a missing link, and parallel links for their sum."""
    rows = [(0, 1, 0.0), (1, 2, 0.0), (2, 0, 1e-6), (0, 2, 3e-6), (0, 2, 2e-6), (1, 0, 0.5)]
    src, dst, alpha = zip(*rows, strict=True)
    topology = Topology(3, src, dst, alpha, np.ones(len(rows)))  # type: ignore[arg-type]
    expected = [[0, 0, 0], [1e-6, 0, 0], [1e-6, 1e-6, 0]]
    np.testing.assert_array_equal(latency_distances(topology), expected)
    still = Topology(2, [0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1])  # type: ignore[arg-type]
    np.testing.assert_array_equal(latency_distances(still), np.zeros((2, 2)))


def test_the_quickest_of_parallel_links_counts():
    topology = Topology(2, [0, 0, 0, 1], [1, 1, 1, 0], [3e-6, 1e-6, 0, 7e-6], [1, 1, 9, 1])  # type: ignore[arg-type]
    np.testing.assert_array_equal(latency_distances(topology), [[0, 0], [7e-6, 0]])


@pytest.mark.parametrize("distances", [hop_distances, latency_distances])
def test_one_rank_is_at_no_distance(distances):
    alone = Topology(1, [], [], [], [])  # type: ignore[arg-type]
    np.testing.assert_array_equal(distances(alone), [[0]])


def test_distances_on_thousands_of_links():
    rng = np.random.default_rng(5)
    n, extra = 400, 4000
    order = rng.permutation(n)
    src = np.concatenate([order, rng.integers(0, n, extra)])
    dst = np.concatenate([np.roll(order, -1), rng.integers(0, n, extra)])
    apart = src != dst
    src, dst = src[apart], dst[apart]
    alpha = rng.choice([0, 1e-6, 2e-6, 5e-6], len(src))
    topology = Topology(n, src, dst, alpha, np.full(len(src), 1e9))
    graph = topology.to_networkx()
    sources = [0, 17, 399]
    hops, latency = hop_distances(topology), latency_distances(topology)
    for u in sources:
        lengths = nx.single_source_shortest_path_length(graph, u)
        assert hops[u].tolist() == [lengths[v] for v in range(n)]
        seconds = nx.single_source_dijkstra_path_length(graph, u, weight="alpha")
        np.testing.assert_allclose(latency[u], [seconds[v] for v in range(n)], rtol=1e-14)


# ---------------------------------------------------------------------- shortest routes


def expected_routes(topology: Topology, source: int) -> dict[int, tuple[int, ...]]:
    """The rule as stated: fewest links, least sum of 1/bandwidth, lowest links from the end."""
    cost = [1 / b for b in topology.exact_bandwidth]
    best: dict[int, tuple[int, Fraction]] = {source: (0, Fraction(0))}
    last: dict[int, int] = {}
    layer = [source]
    while layer:
        reached: dict[int, tuple[Fraction, int]] = {}
        for link in range(topology.num_links):
            u, v = int(topology.src[link]), int(topology.dst[link])
            if u in layer and v not in best:
                found = (best[u][1] + cost[link], link)
                reached[v] = min(reached.get(v, found), found)
        for v, (total, link) in reached.items():
            best[v], last[v] = (best[layer[0]][0] + 1, total), link
        layer = list(reached)
    routes = {}
    for v in last:
        path: list[int] = []
        at = v
        while at != source:
            path.append(last[at])
            at = int(topology.src[last[at]])
        routes[v] = tuple(path[::-1])
    return routes


@given(
    strategies.topologies(switches=True, max_ranks=12, exact=True)
    | strategies.grids(max_ranks=24)
    | strategies.families(8)
)
def test_routes_are_as_stated(topology):
    src, dst = all_pairs(topology.num_ranks)
    routes = shortest_routes(topology, src, dst)
    routes.check(topology)
    np.testing.assert_array_equal(routes.hops, hop_distances(topology)[src, dst])
    expected = [expected_routes(topology, u) for u in range(topology.num_ranks)]
    for edge, (u, v) in enumerate(zip(src, dst, strict=True)):
        assert routes.path(edge) == expected[u][v]


@given(strategies.topologies(max_ranks=12), st.data())
def test_routes_come_in_the_order_asked_for(topology, data):
    src, dst = all_pairs(topology.num_ranks)
    whole = shortest_routes(topology, src, dst)
    of = {(u, v): whole.path(i) for i, (u, v) in enumerate(zip(src, dst, strict=True))}
    some = data.draw(st.lists(st.sampled_from(sorted(of)), max_size=20))
    routes = shortest_routes(topology, [u for u, _ in some], [v for _, v in some])  # type: ignore[arg-type]
    assert [routes.path(i) for i in range(len(routes))] == [of[pair] for pair in some]
    assert list(zip(routes.src, routes.dst, strict=True)) == some


@pytest.mark.parametrize("parts", [(30, 70, 90, 110), (7, 13, 17, 19), (17, 23, 90, 11)])
def test_sums_that_are_equal_are_equal_whatever_the_order_of_their_terms(parts):
    """1/a + 1/b + 1/c in another order may differ in floating point; the rule says they tie."""
    a, b, c, last = (part * 10**9 for part in parts)
    rows = []
    for middle, speeds in (((1, 2, 3), (c, a, b)), ((4, 5, 6), (a, b, c)), ((7, 8, 9), (b, c, a))):
        ends = [0, *middle, 10]
        rows += [(ends[i], ends[i + 1], (*speeds, last)[i]) for i in range(4)]
    rows.append((10, 0, a))
    src, dst, bandwidth = zip(*rows, strict=True)
    topology = Topology(11, src, dst, np.zeros(len(rows)), bandwidth)  # type: ignore[arg-type]
    routes = shortest_routes(topology, [0], [10])  # type: ignore[arg-type]
    assert [int(topology.dst[link]) for link in routes.path(0)] == [1, 2, 3, 10]


def test_measured_bandwidths_without_a_small_common_measure():
    rng = np.random.default_rng(3)
    box = torus(4, 4)
    topology = Topology(16, box.src, box.dst, box.alpha, rng.uniform(1e9, 90e9, box.num_links))
    cost = 1 / topology.bandwidth
    graph = nx.DiGraph()
    for u, v, c in zip(topology.src, topology.dst, cost, strict=True):
        graph.add_edge(int(u), int(v), cost=1 + 1e-3 * c * 1e9)  # links first, then 1/bandwidth
    routes = shortest_routes(topology, *all_pairs(16))
    for edge, (u, v) in enumerate(zip(*all_pairs(16), strict=True)):
        best = nx.dijkstra_path(graph, int(u), int(v), weight="cost")
        assert [*topology.src[list(routes.path(edge))], v] == best


def test_the_faster_of_equally_short_ways_is_taken():
    square = mesh(2, 2, bandwidth=[10, 20])
    assert square.exact_bandwidth[0] == 20
    routes = shortest_routes(square, [0, 3], [3, 0])  # type: ignore[arg-type]
    # Both ways cost the same: backwards from 3, the link from 1 is lower than that from 2.
    assert [int(square.src[link]) for link in routes.path(0)] == [0, 1]
    assert [int(square.src[link]) for link in routes.path(1)] == [3, 1]
    fast = Topology(3, [0, 0, 1, 2], [1, 1, 2, 0], np.zeros(4), [10, 30, 5, 5])  # type: ignore[arg-type]
    assert shortest_routes(fast, [0], [2]).path(0) == (1, 2)  # type: ignore[arg-type]


def test_routes_through_a_switch():
    topology = switch(3)
    routes = shortest_routes(topology, [2], [0])  # type: ignore[arg-type]
    assert [topology.link_name(link) for link in routes.path(0)] == ["2->3", "3->0"]


def test_no_pairs_no_routes():
    assert len(shortest_routes(ring(3), np.zeros(0, int), np.zeros(0, int))) == 0


@pytest.mark.parametrize(
    ("src", "dst", "match"),
    [
        ([0], [4], "4"),
        ([4], [0], "4"),
        ([-1], [0], "-1"),
        ([0, 2], [1, 2], "2"),
        ([0], [1, 2], "1 and 2"),
        ([0.5], [1], "0.5"),
    ],
)
def test_pairs_that_are_no_pairs_of_ranks_are_refused(src, dst, match):
    with pytest.raises(JaxcollError, match=match):
        shortest_routes(switch(4), src, dst)


# ---------------------------------------------------------------------- edges


@given(NETWORKS)
def test_edges_of_a_direct_network_are_its_links(topology):
    if not topology.is_direct:
        with pytest.raises(ScheduleError, match="has switches: give its edges paths"):
            Edges.from_links(topology)
        return
    edges = Edges.from_links(topology)
    edges.check(topology)
    assert len(edges) == topology.num_links
    assert [edges.path(i) for i in range(len(edges))] == [(i,) for i in range(len(edges))]
    np.testing.assert_array_equal(edges.first_link, np.arange(topology.num_links))


@given(strategies.topologies(switches=True, max_ranks=10), st.data())
def test_edges_there_and_back(topology, data):
    src, dst = all_pairs(topology.num_ranks)
    edges = shortest_routes(topology, src, dst)
    turned = edges.reverse(topology.transpose_links())
    turned.check(topology.transpose())
    assert turned.reverse(topology.transpose().transpose_links()).same_as(edges)
    p = np.asarray(data.draw(st.permutations(range(topology.num_ranks))))
    moved = edges.relabel(p, topology.relabel_links(p))
    moved.check(topology.relabel(p))
    q = np.argsort(p)
    assert moved.relabel(q, topology.relabel(p).relabel_links(q)).same_as(edges)
    if len(edges) > 1:
        assert not turned.same_as(edges)


LINE = Topology(3, [0, 1, 1, 2], [1, 0, 2, 1], np.zeros(4), np.ones(4))  # type: ignore[arg-type]

BAD_EDGES = [
    (([0], [1], [0, 0], []), r"edge 0 \(0->1\) has no links"),
    (([0, 0], [1, 1], [0, 1, 0], [0]), "path_ptr must run from 0 to the number of path links"),
    (([0, 0], [1, 1], [0, 2, 1], [0]), r"edge 1 \(0->1\) has no links"),
    (([0, 0], [1, 2], [0, 2, 1, 1], [0]), "one src, dst and path each"),
    (([0], [1], [1, 2], [0, 0]), "path_ptr must run"),
    (([0, 1], [1], [0, 1, 2], [0, 1]), "one src, dst and path each"),
    (([0], [1], [], []), "one src, dst and path each"),
    (([3], [1], [0, 1], [0]), r"edge 0 \(3->1\) does not join ranks"),
    (([0], [-1], [0, 1], [0]), r"edge 0 \(0->-1\) does not join ranks"),
    (([0, 1], [1, 0], [0, 1, 2], [0, 4]), "edge 1 uses a link that .* does not have"),
    (([0], [1], [0, 1], [-1]), "edge 0 uses a link that"),
    (([0, 0], [1, 2], [0, 1, 2], [0, 2]), r"edge 1 \(0->2\) has a broken path \['1->2'\]"),
    (([0], [2], [0, 1], [0]), r"edge 0 \(0->2\) has a broken path \['0->1'\]"),
    (([0], [2], [0, 2], [0, 3]), r"edge 0 \(0->2\) has a broken path \['0->1', '2->1'\]"),
    (([0], [2], [0, 2], [2, 0]), r"has a broken path \['1->2', '0->1'\]"),
]


@pytest.mark.parametrize(("columns", "match"), BAD_EDGES)
def test_edges_that_are_no_paths_are_refused(columns, match):
    with pytest.raises(ScheduleError, match=match):
        Edges(*columns).check(LINE)


def test_good_edges_pass():
    Edges([0, 2], [2, 1], [0, 2, 3], [0, 2, 3]).check(LINE)  # type: ignore[arg-type]
    Edges([], [], [0], []).check(LINE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        (([2**32], [1], [0, 1], [0]), "src"),
        (([0], [2**31], [0, 1], [0]), "dst"),
        (([0], [1], [0, 1], [2**32]), "path_link"),
        (([0.5], [1], [0, 1], [0]), "src"),
        (([0], [1], [0, 1.5], [0]), "path_ptr"),
        (([float("nan")], [1], [0, 1], [0]), "src"),
        (([[0]], [1], [0, 1], [0]), "src"),
        (([[0], [1, 2]], [1], [0, 1], [0]), "src"),
        ((["x"], [1], [0, 1], [0]), "src"),
        (([None], [1], [0, 1], [0]), "src"),
    ],
)
def test_numbers_that_would_wrap_or_be_rounded_are_refused(columns, match):
    columns = [np.asarray(c, object) if c == [[0], [1, 2]] else c for c in columns]
    with pytest.raises(ScheduleError, match=match):
        Edges(*columns)


def test_a_path_to_a_switch_joins_no_ranks():
    topology = switch(2)
    with pytest.raises(ScheduleError, match="does not join ranks"):
        Edges([0], [2], [0, 1], [0]).check(topology)  # type: ignore[arg-type]


def test_edge_columns_are_immutable():
    edges = Edges.from_links(fully_connected(3))
    for column in (edges.src, edges.dst, edges.path_ptr, edges.path_link):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_routes_on_a_torus_are_shortest_in_every_dimension():
    topology = torus(4, 5)
    src, dst = all_pairs(20)
    box = topology.grid.coordinates()  # type: ignore[union-attr]
    apart = np.abs(box[src] - box[dst])
    expected = np.minimum(apart, np.asarray([4, 5]) - apart).sum(axis=1)
    np.testing.assert_array_equal(shortest_routes(topology, src, dst).hops, expected)
