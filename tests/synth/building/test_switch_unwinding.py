"""Switches unwound into links, and what TACOS makes of them on the real network."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.collective import Collective
from jaxcoll.simulation import simulate
from jaxcoll.synth import Direct, Tacos
from jaxcoll.synth.building.switch_unwinding import degrees, hops_unwound, unwind, unwound
from jaxcoll.topologies import dgx_h100, fat_tree, leaf_spine, multi_rail, switch
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies


def switched(ranks: int, links, vertices: int) -> Topology:
    """A network of two-way links (u, v, bandwidth), alpha 1 us."""
    both = [*links, *((v, u, bandwidth) for u, v, bandwidth in links)]
    src, dst, bandwidth = zip(*both, strict=True)
    alpha = np.full(len(both), 1e-6)
    columns = map(np.asarray, (src, dst, alpha, bandwidth))
    return Topology(ranks, *columns, num_vertices=vertices)


def two_levels(boxes: int, size: int, inside: float, between: float) -> Topology:
    """Boxes of ranks on a switch each, and a switch between the boxes."""
    n = boxes * size
    links = [(rank, n + rank // size, inside) for rank in range(n)]
    links += [(n + box, n + boxes, between) for box in range(boxes)]
    return switched(n, links, n + boxes + 1)


@given(st.integers(2, 9), st.integers(1, 9))
def test_one_switch_is_unwound_as_in_the_paper(n, degree):
    """Fig. 13: i to i+1, ..., i+d, each with 1/d of the bandwidth; and twice alpha."""
    degree = min(degree, n - 1)
    topology = unwind(switch(n), degree).topology
    paper = switch(n, degree=degree, alpha=1e-6)
    assert topology == paper


@given(strategies.topologies(max_ranks=10, switches=True, exact=True), st.integers(1, 12))
def test_links_stand_for_paths_that_have_room_for_all(topology, degree):
    straight = unwind(topology, degree)
    straight.edges.check(topology)
    assert straight.topology.is_direct
    assert len(straight.edges) == straight.topology.num_links
    assert (straight.edges.src == straight.topology.src).all()
    assert (straight.edges.dst == straight.topology.dst).all()
    load = [Fraction(0)] * topology.num_links
    for edge, share in enumerate(straight.topology.exact_bandwidth):
        for link in straight.edges.path(edge):
            load[link] += share
    for link, bandwidth in enumerate(topology.exact_bandwidth):
        assert load[link] <= bandwidth


@given(strategies.topologies(max_ranks=10, switches=True))
def test_shares_are_fair(topology):
    """Every path has a link that is full, and on which no other path has more than it."""
    straight = unwind(topology, 2)
    shares = straight.topology.exact_bandwidth
    users: dict[int, list[int]] = {}
    for edge in range(len(shares)):
        for link in straight.edges.path(edge):
            users.setdefault(link, []).append(edge)
    for edge, share in enumerate(shares):
        assert any(
            sum(shares[e] for e in users[link]) == topology.exact_bandwidth[link]
            and share == max(shares[e] for e in users[link])
            for link in straight.edges.path(edge)
        )


def test_several_levels():
    """Two boxes of four: a circle in each, and each rank joined with its like in the other."""
    topology = unwind(two_levels(2, 4, 100e9, 40e9), 1).topology
    ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    pairs = dict(zip(ends, topology.bandwidth, strict=True))
    inside = {(u, u - u % 4 + (u + 1) % 4) for u in range(8)}
    between = {(u, (u + 4) % 8) for u in range(8)}
    assert set(pairs) == inside | between
    # The rest of a rank's 100 GB/s, after the path between boxes, goes to the path inside.
    assert all(pairs[pair] == 10e9 for pair in between)
    assert all(pairs[pair] == 90e9 for pair in inside)


def test_degrees_worth_trying():
    assert degrees(switch(2)) == (1,)
    assert degrees(switch(6)) == (1, 2, 3, 4, 5)
    assert degrees(switch(40)) == (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 39)


def test_parallel_links_to_a_switch_are_all_used():
    links = [(rank, 4, 50e9) for rank in range(4)] * 2
    straight = unwind(switched(4, links, 5), 2)
    assert len(np.unique(straight.edges.path_link)) == 16
    assert (straight.topology.bandwidth == 50e9).all()


def test_ranks_behind_switches_of_one_level_are_still_joined():
    """Two switches side by side, each with a rank: neither is attached to the other."""
    topology = switched(2, [(0, 2, 1e9), (2, 3, 1e9), (1, 3, 1e9)], 4)
    schedule = Tacos().synthesize(topology, Collective("all_gather", 2))
    verify(schedule)
    assert (schedule.edges.hops == 3).all()


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("nbytes", [1e3, 1e9])
def test_around_one_switch_ports_are_never_idle(n, nbytes):
    """A rank sends its n - 1 chunks in a row, and the last then crosses the switch."""
    topology, collective = switch(n), Collective("all_gather", n)
    schedule = Tacos(nbytes=nbytes).synthesize(topology, collective)
    one = topology.exact_alpha[0] + Fraction(nbytes) / n / topology.exact_bandwidth[0]
    assert simulate(schedule, nbytes, "tacos").exact_time == n * one


@pytest.mark.parametrize("nbytes", [1e3, 1e6, 1e9])
def test_the_best_degree_is_the_best(nbytes):
    topology, collective = two_levels(2, 4, 100e9, 50e9), Collective("all_gather", 8, 2)

    def time(degree):
        schedule = Tacos(nbytes=nbytes, degree=degree).synthesize(topology, collective)
        verify(schedule)
        return simulate(schedule, nbytes, "tacos").exact_time

    assert time("best") == min(map(time, degrees(topology)))


def test_no_slower_than_direct_between_boxes():
    topology, collective = two_levels(4, 4, 300e9, 100e9), Collective("all_gather", 16)
    ours, direct = (
        simulate(s.synthesize(topology, collective), 1e9, "tacos").time
        for s in (Tacos(nbytes=1e9), Direct())
    )
    assert ours <= direct


@pytest.mark.parametrize(
    "topology", [fat_tree(4, 2), fat_tree(2, 4), leaf_spine(4, 4, 2), dgx_h100(2), multi_rail(4, 4)]
)
def test_the_links_of_all_ways_are_known_before_they_are_listed(topology):
    listed = sum(len(each.edges.path_link) for _, each in unwound(topology, "best"))
    assert hops_unwound(topology) == listed
