"""Networks of several levels against closed forms and networkx's constructions."""

from __future__ import annotations

import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from jaxcoll import Topology
from jaxcoll.bounds import ideal
from jaxcoll.errors import TopologyError
from jaxcoll.grid import Grid
from jaxcoll.paths import hop_distances
from jaxcoll.topologies import (
    behind_routers,
    bigraph,
    dgx1,
    dgx2,
    dragonfly,
    fat_tree,
    flattened_butterfly,
    multi_rail,
    product,
    ring,
    ring_fc_switch,
    switch_2d,
)
from tests.topologies.measures import diameter, orbit


def degrees(topology: Topology) -> set[int]:
    ranks = range(topology.num_ranks)
    out = np.bincount(topology.src, minlength=topology.num_vertices)
    into = np.bincount(topology.dst, minlength=topology.num_vertices)
    assert np.array_equal(out, into)
    return {int(out[r]) for r in ranks}


def test_switch_2d_as_in_tacos():
    topology = switch_2d(8, 4)
    assert topology.num_ranks == 32
    assert topology.num_vertices == 32 + 4 + 8
    assert set(topology.out_bandwidth()[:32]) == {325e9}
    # Ranks of a host are consecutive and two links apart, as are equal places of two hosts.
    hops = hop_distances(topology)
    assert hops[0, 7] == hops[0, 8] == 2
    assert hops[0, 9] == 4
    by_speed = {int(b) for b in topology.bandwidth[topology.src == 0]}
    assert by_speed == {300 * 10**9, 25 * 10**9}
    inner = topology.dst[(topology.src < 8) & (topology.bandwidth == 300e9)]
    assert len(set(inner)) == 1
    assert orbit(topology) == set(range(32))


def test_unwound_switch_2d():
    topology = switch_2d(8, 4, degree=(2, 3))
    assert topology.is_direct
    assert topology.num_links == 32 * (2 + 3)
    assert set(topology.exact_bandwidth) == {
        Fraction(150 * 10**9),
        Fraction(25 * 10**9, 3),
    }
    assert topology.name == "2D switch 8x4 unwound by 2/3"


def test_ring_fc_switch_as_in_tacos():
    topology = ring_fc_switch(2, 4, 8)
    assert topology.num_ranks == 64
    assert topology.num_vertices == 64 + 8
    assert set(topology.out_bandwidth()[:64]) == {200e9 + 3 * 100e9 + 50e9}
    assert diameter(topology) == 1 + 1 + 2
    speed = {
        (int(u), int(v)): b
        for u, v, b in zip(topology.src, topology.dst, topology.bandwidth, strict=True)
    }
    assert speed[0, 1] == 200e9
    assert {speed[0, 2 * i] for i in (1, 2, 3)} == {100e9}
    switches = [v for v in range(64, 72) if (0, v) in speed]
    assert len(switches) == 1
    assert {u for u in range(64) if (u, switches[0]) in speed} == set(range(0, 64, 8))
    assert speed[0, switches[0]] == 50e9
    assert orbit(topology) == set(range(64))


def test_shared_bandwidth_is_that_of_a_rank():
    for sides, links in (((2, 4, 8), (1, 3)), ((3, 5, 2), (2, 4)), ((1, 1, 4), (1, 1))):
        topology = ring_fc_switch(*sides, shared=True)
        present = [b for b, side in zip((200, 100, 50), sides, strict=True) if side > 1]
        assert set(topology.out_bandwidth()[: topology.num_ranks]) == {sum(present) * 1e9}
        if sides[1] > 1:
            assert Fraction(100 * 10**9, links[1]) in topology.exact_bandwidth


def test_unwound_ring_fc_switch():
    topology = ring_fc_switch(2, 4, 8, degree=7)
    assert topology.is_direct
    assert degrees(topology) == {1 + 3 + 7}
    assert Fraction(50 * 10**9, 7) in topology.exact_bandwidth
    assert topology.grid == Grid((8, 4, 2), (True, True, False))


def test_multi_rail_is_a_2d_switch():
    topology = multi_rail(4, 8)
    same = switch_2d(8, 4, alpha=(1e-6, 5e-6), bandwidth=(300e9, 25e9))
    assert topology == same
    assert topology.name == "4 hosts of 8 on rails"


@pytest.mark.parametrize(("groups", "routers"), [(1, 1), (1, 4), (2, 1), (4, 5), (5, 4), (9, 4)])
def test_dragonfly(groups, routers):
    topology = dragonfly(groups, routers)
    assert topology.num_ranks == groups * routers
    assert topology.num_links == groups * routers * (routers - 1) + groups * (groups - 1)
    assert not topology.has_parallel_links
    assert diameter(topology) <= 3
    group = np.arange(groups * routers) // routers
    between = group[topology.src] != group[topology.dst]
    assert (topology.bandwidth == np.where(between, 200e9, 400e9)).all()
    pairs = {*zip(group[topology.src[between]], group[topology.dst[between]], strict=True)}
    assert len(pairs) == between.sum() == groups * (groups - 1)
    reverse = set(zip(topology.dst, topology.src, strict=True))
    assert set(zip(topology.src, topology.dst, strict=True)) == reverse


def test_the_canonical_dragonfly_is_regular_and_the_papers_is_not():
    assert degrees(dragonfly(5, 4)) == {4}
    assert degrees(dragonfly(4, 5)) == {4, 5}
    assert degrees(dragonfly(9, 4)) == {5}  # two global links a router


def test_only_five_groups_of_four_allow_what_the_tacos_paper_reports():
    """A group sends as much as its sum out of it, and the paper reaches 90 % of Ideal."""
    for topology, routers, links in ((dragonfly(5, 4), 4, 4), (dragonfly(4, 5), 5, 3)):
        group = np.arange(20) // routers
        out = (group[topology.src] == 0) & (group[topology.dst] != 0)
        assert topology.bandwidth[out].sum() == links * 200e9
        cut = 1e9 / topology.bandwidth[out].sum()
        assert (float(ideal(topology, "all_reduce", 1e9)) / cut > 0.9) == (routers == 4)


def test_dgx1():
    topology = dgx1()
    assert topology.is_direct
    assert topology.is_homogeneous
    assert topology.num_links == 48
    assert degrees(topology) == {6}
    assert diameter(topology) == 2
    halves = nx.Graph(topology.to_networkx())
    assert {d for _, d in halves.degree} == {4}
    for half in (range(4), range(4, 8)):
        assert halves.subgraph(half).number_of_edges() == 6
    assert sorted((u, v) for u, v in halves.edges if v - u >= 4) == [(u, u + 4) for u in range(4)]
    lanes = nx.MultiDiGraph(topology.to_networkx())
    doubled = {(u, v) for u, v in halves.edges if lanes.number_of_edges(u, v) == 2}
    # The doubled pairs are a circle through all ranks, as NVIDIA's rings use them.
    assert nx.is_isomorphic(nx.Graph(list(doubled)), nx.cycle_graph(8))


def test_merged_lanes_are_the_same_bandwidth():
    apart, merged = dgx1(bandwidth=10), dgx1(bandwidth=10, merged=True)
    assert not merged.has_parallel_links
    assert merged.num_links == 32
    assert set(merged.bandwidth) == {10, 20}
    assert np.array_equal(apart.out_bandwidth(), merged.out_bandwidth())
    assert orbit(merged) == orbit(apart) == {0, 2, 4, 6}


@pytest.mark.parametrize("planes", [1, 6])
def test_dgx2(planes):
    topology = dgx2(planes=planes)
    assert topology.num_ranks == 16
    assert topology.num_vertices == 16 + 2 * planes
    assert degrees(topology) == {planes}
    assert set(topology.out_bandwidth()[:16]) == {planes * 25e9}
    # A switch has 8 ranks' bandwidth down and as much across.
    assert set(topology.out_bandwidth()[16:]) == {16 * 25e9}
    hops = hop_distances(topology)
    assert hops[0, 7] == 2
    assert hops[0, 8] == 3
    assert orbit(topology) == set(range(16))


@pytest.mark.parametrize(("arity", "levels"), [(2, 1), (5, 1), (2, 3), (3, 3), (8, 2), (4, 2)])
def test_fat_tree(arity, levels):
    topology = fat_tree(arity, levels)
    n, switches = arity**levels, levels * arity ** (levels - 1)
    assert topology.num_ranks == n
    assert topology.num_vertices == n + switches
    assert topology.num_links == 2 * n * levels
    assert degrees(topology) == {1}
    assert orbit(topology) == set(range(n))
    # The way up and down is as long as the digits that differ, from the last, make it.
    hops = hop_distances(topology)
    for u in range(min(n, 3)):
        for v in range(n):
            level = next(t for t in range(levels + 1) if u // arity**t == v // arity**t)
            assert hops[u, v] == 2 * level
    # Full bisection: the two halves can receive as much as all their ranks can send.
    if arity % 2 == 0 and levels > 1:
        flow = nx.DiGraph()
        for u, v in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
            flow.add_edge(u, v, capacity=1)
        for rank in range(n):
            ends = ("s", rank) if rank < n // 2 else (rank, "t")
            flow.add_edge(*ends, capacity=1)
        assert nx.maximum_flow_value(flow, "s", "t") == n // 2


@pytest.mark.parametrize(("ranks", "switches"), [(1, 2), (4, 8), (4, 16), (3, 4)])
def test_bigraph(ranks, switches):
    topology = bigraph(ranks, switches)
    n, half = ranks * switches, switches // 2
    assert topology.num_ranks == n
    assert topology.num_vertices == n + switches
    assert topology.num_links == 2 * n + 2 * half * half
    stages = nx.Graph(topology.to_networkx()).subgraph(range(n, n + switches))
    assert nx.is_isomorphic(stages, nx.complete_bipartite_graph(half, half))
    hops = hop_distances(topology)
    if ranks > 1:
        assert hops[0, ranks - 1] == 2
    assert hops[0, n - 1] == 3
    if switches > 2:
        assert hops[0, ranks] == 4
    assert orbit(topology) == set(range(n))


@pytest.mark.parametrize("sides", [(4,), (4, 4), (2, 3, 4)])
def test_flattened_butterfly(sides):
    direct = flattened_butterfly(*sides)
    reference = nx.complete_graph(1)
    for side in sides:
        step = nx.cartesian_product(reference, nx.complete_graph(side))
        reference = nx.Graph(nx.convert_node_labels_to_integers(step))  # type: ignore[arg-type]
    assert set(direct.to_networkx().edges) == set(reference.to_directed().edges)
    assert diameter(direct) == len(sides)
    topology = flattened_butterfly(*sides, terminals=3)
    n = 3 * math.prod(sides)
    assert topology.num_ranks == n
    assert topology.num_vertices == n + n // 3
    assert diameter(topology) == len(sides) + 2
    assert orbit(topology) == set(range(n))


def test_behind_routers_keeps_the_routers_network():
    inner = ring_fc_switch(2, 2, 2)
    topology = behind_routers(inner, 2, alpha=1e-9, bandwidth=7e9)
    n = topology.num_ranks
    assert n == 16
    among = (topology.src >= n) & (topology.dst >= n)
    assert np.array_equal(topology.src[among] - n, inner.src)
    assert np.array_equal(topology.dst[among] - n, inner.dst)
    assert np.array_equal(topology.bandwidth[among], inner.bandwidth)
    assert set(topology.bandwidth[~among]) == {7e9}
    assert hop_distances(topology)[0, 1] == 2
    assert orbit(topology) == set(range(n))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: product(), "at least one network"),
        (lambda: switch_2d(0, 4), "n must be an integer of at least 1, got 0"),
        (lambda: switch_2d(4, 4, bandwidth=(1e9, 2e9, 3e9)), "bandwidth needs one value .* got 3"),
        (lambda: switch_2d(4, 4, degree=4), "degree, .* of at most 3, got 4"),
        (lambda: ring_fc_switch(2, 4, 8, alpha=(1e-6,)), "alpha needs one value .* got 1"),
        (
            lambda: ring_fc_switch(2, 4, 8, bandwidth=math.inf, shared=True),
            "bandwidth must be .*, got inf",
        ),
        (lambda: ring_fc_switch(2, 0, 8), "fc_side must be .* at least 1, got 0"),
        (lambda: dragonfly(0, 4), "groups must be .* at least 1, got 0"),
        (lambda: dragonfly(4, 2.5), "routers must be an integer, got 2.5"),  # type: ignore[arg-type]
        (lambda: dragonfly(4, 5, bandwidth=0), "bandwidth must be a finite number above 0, got 0"),
        (lambda: dgx1(bandwidth=-1), "bandwidth must be a finite number above 0, got -1"),
        (lambda: dgx2(planes=0), "planes must be .* at least 1, got 0"),
        (lambda: fat_tree(1, 2), "arity must be an integer of at least 2, got 1"),
        (lambda: fat_tree(4, 0), "levels must be an integer of at least 1, got 0"),
        (lambda: bigraph(4, 3), "even number of switches"),
        (lambda: bigraph(0, 4), "ranks must be an integer of at least 1, got 0"),
        (lambda: flattened_butterfly(), "one or more sides"),
        (
            lambda: flattened_butterfly(4, terminals=-1),
            "terminals must be an integer of at least 0, got -1",
        ),
        (lambda: behind_routers(ring(4), 1.5), "must be an integer, got 1.5"),  # type: ignore[arg-type]
    ],
)
def test_bad_clusters_are_refused(make, match):
    with pytest.raises(TopologyError, match=match):
        make()
