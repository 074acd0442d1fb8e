"""Circles over links: Hamiltonian, sharing no link, as many as networks are known to have."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.synth.building.circles import (
    circles_of,
    host_chains,
    host_circles,
    link_circles,
    rail_slowness,
)
from jaxcoll.topology import Topology
from tests import strategies


def everyone(topology: Topology) -> tuple[int, ...]:
    return tuple(range(topology.num_ranks))


def check(topology: Topology, circles, both_ways: bool = True) -> int:
    """Refuse circles that miss a rank, or share a link; how many there are."""
    speed: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for u, v, bandwidth in zip(topology.src, topology.dst, topology.exact_bandwidth, strict=True):
        speed[int(u), int(v)] += bandwidth
    used: Counter[tuple[int, int]] = Counter()
    for circle in circles:
        assert sorted(circle) == list(range(topology.num_ranks))
        for u, v in itertools.pairwise((*circle, circle[0])):
            used[u, v] += 1
            if both_ways:
                used[v, u] += 1
    if circles:
        slowest = min(speed[pair] / count for pair, count in used.items())
        # At the speed of the slowest link nowhere more circles than links hold.
        assert all(speed[pair] >= count * slowest > 0 for pair, count in used.items())
    return len(circles)


@pytest.mark.parametrize("sides", [*itertools.combinations_with_replacement(range(2, 8), 2)])
def test_all_links_of_a_torus_are_in_two_circles(sides):
    """Kotzig, 1973. A side of 2 has one link, so that one is left over at every rank."""
    topology = topologies.torus(*sides)
    assert check(topology, link_circles(topology, everyone(topology), True)) == (
        1 if 2 in sides else 2
    )


@pytest.mark.parametrize(
    ("topology", "count"),
    [
        (topologies.torus(3, 4, 5), 3),
        (topologies.torus(4, 4, 4), 3),
        (topologies.torus(2, 3, 4), 2),
        (topologies.torus(*[2] * 5), 2),
        (topologies.torus(*[2] * 6), 3),
        (topologies.mesh(4, 5), 1),
        (topologies.mesh(3, 4, 5), 1),
        (topologies.mesh(5, 5), 0),  # a chessboard with an odd number of squares
        (topologies.mesh(4), 0),
        (topologies.ring(9), 1),
        (topologies.fully_connected(8), 3),  # Walecki: all but a matching
        (topologies.fully_connected(9), 4),
        (topologies.dgx1(), 3),
        (topologies.dgx1(merged=True), 3),
        (topologies.product(topologies.ring(5), topologies.mesh(3)), 1),
        (topologies.star(5), 0),
    ],
    ids=str,
)
def test_known_networks_have_as_many_circles_as_their_links_hold(topology, count):
    assert check(topology, link_circles(topology, everyone(topology), True)) == count


def test_random_regular_graphs_have_circles():
    """Almost all are Hamiltonian (Robinson and Wormald, 1994)."""
    for seed in range(5):
        graph = nx.random_regular_graph(4, 32, seed=seed)
        topology = jc.Topology.from_networkx(graph, alpha=1e-6, bandwidth=1e9)
        assert check(topology, link_circles(topology, everyone(topology), True)) >= 1


@given(strategies.topologies(max_ranks=9))
def test_circles_are_circles_on_any_network(topology):
    if topology.num_ranks > 2:
        for both_ways in (True, False):
            check(topology, link_circles(topology, everyone(topology), both_ways), both_ways)


def test_a_torus_keeps_its_circles_under_other_names():
    names = np.random.default_rng(0).permutation(20)
    topology = topologies.torus(4, 5).relabel(names)
    assert topology.grid is None
    assert check(topology, link_circles(topology, everyone(topology), True)) == 2


def test_one_way_links_have_one_way_circles():
    topology = topologies.ring(7, bidirectional=False).transpose()
    assert link_circles(topology, everyone(topology), True) == ()
    (circle,) = link_circles(topology, everyone(topology), False)
    assert check(topology, [circle], both_ways=False) == 1


def test_circles_leave_slow_links_out_if_others_do():
    """Around the fast ring once, though the chords hold circles too."""
    pairs = [(u, (u + 1) % 8, 9e9) for u in range(8)] + [(u, (u + 3) % 8, 1e9) for u in range(8)]
    src, dst, speed = (list(x) for x in zip(*pairs, strict=True))
    ends = np.array([src + dst, dst + src])
    topology = Topology(8, ends[0], ends[1], np.full(32, 1e-6), np.array(speed * 2))
    assert link_circles(topology, everyone(topology), True) == (everyone(topology),)


def test_groups_have_circles_of_their_own():
    topology = topologies.torus(4, 4)
    assert circles_of(topology, np.array([1, 5, 9, 13]), True) == ((0, 1, 2, 3),)
    assert circles_of(topology, np.array([0, 1, 2, 4]), True) == ()


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("make", [topologies.dgx_h100, topologies.mi250], ids=["H100", "MI250"])
def test_every_rank_of_a_host_is_entered_once_and_left_once(make, hosts):
    topology = make(hosts)
    circles = circles_of(topology, np.arange(topology.num_ranks), True)
    inner = topology.num_ranks // hosts
    assert len(circles) == inner
    across = [
        (u, v)
        for circle in circles
        for u, v in itertools.pairwise((*circle, circle[0]))
        if u // inner != v // inner
    ]
    assert (
        sorted(u for u, _ in across) == sorted(v for _, v in across) == list(range(hosts * inner))
    )


def test_circles_keep_to_rails():
    """Between an odd number of hosts they change once: entered and left ranks alternate."""
    for hosts, changes in ((4, 0), (3, 1)):
        for circle in host_circles(topologies.multi_rail(hosts, 8), 8):
            ends = itertools.pairwise((*circle, circle[0]))
            across = [(u % 8, v % 8) for u, v in ends if u // 8 != v // 8]
            assert len(across) == hosts
            assert sum(u != v for u, v in across) == changes


def test_chains_follow_links_inside_a_host():
    topology = topologies.mi250(2)
    joined = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    chains = host_chains(topology, 16)
    assert [chain[0] for chain in chains] == list(range(16))
    assert all(pair in joined for chain in chains for pair in itertools.pairwise(chain))
    assert host_chains(topologies.dgx_a100(2), 8)[3] == (3, 4, 5, 6, 7, 0, 1, 2)


def _of_eight(hosts: int) -> Topology:
    return topologies.multi_rail(hosts, 8)


@given(
    make=st.sampled_from([topologies.dgx_h100, topologies.dgx_a100, _of_eight]),
    hosts=st.integers(3, 6),
    data=st.data(),
)
def test_a_rank_that_lost_its_link_to_or_from_the_rail_has_none_there(make, hosts, data):
    whole = make(hosts)
    at = data.draw(st.integers(0, whole.num_ranks - 1))
    ways = data.draw(st.sampled_from([(0,), (1,), (0, 1)]))  # out, in
    links = np.flatnonzero(whole.src == at)
    switch = int(whole.dst[links[whole.bandwidth[links].argmin()]])
    lost = whole.without(links=[[(at, switch), (switch, at)][way] for way in ways])
    expected = np.zeros((2, whole.num_ranks), bool)
    expected[list(ways), at] = True
    assert np.array_equal(np.isinf(rail_slowness(lost, 8)), expected)
    assert not np.isinf(rail_slowness(whole, 8)).any()
