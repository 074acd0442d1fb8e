"""Detours: chunks go around slow and missing links and ranks, and all others stay."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.simulation.schedules import steady_seconds
from jaxcoll.synth import Exchange, synthesize
from jaxcoll.synth.routing.detours import links_left

TORUS = topologies.torus(8, 8)
FAULTS = {
    "a wire at a fifth": TORUS.scaled({(27, 28): 0.2, (28, 27): 0.2}),
    "a link at a fifth": TORUS.scaled({(27, 28): 0.2}),
    "no wire": TORUS.without(links=[(27, 28), (28, 27)]),
    "no rank": TORUS.without(ranks=[27]),
    "two faults": TORUS.without(ranks=[27], links=[(3, 4)]).scaled({(50, 51): 0.5}),
}


def exchange(topology, **more):
    return synthesize(topology, "all_to_all", Exchange(), chunks=1, **more)


@pytest.mark.parametrize("fault", FAULTS)
def test_no_link_is_much_fuller_than_those_of_the_whole_torus(fault):
    """Chunks that stayed on the wire at a fifth would make its load 5.

    A link of so small a torus carries 64 chunks, of which 12 may stay on the slow one.
    """
    schedule, whole = exchange(FAULTS[fault]), exchange(TORUS)
    assert steady_seconds(schedule) <= 1.21 * steady_seconds(whole)
    assert simulate(schedule, 2**26).time <= 1.3 * simulate(whole, 2**26).time


@pytest.mark.parametrize("fault", ["a wire at a fifth", "no wire"])
def test_chunks_that_cross_no_fault_go_as_before(fault):
    changed = _ways(exchange(FAULTS[fault])) ^ _ways(exchange(TORUS))
    chunks = {chunk for chunk, _ in changed}
    # 64 chunks cross a link of a row one way, on a ring of 8: 8 times 1 + 2 + 3 + 4 / 2.
    assert 0 < len(chunks) <= 2 * 64


def _ways(schedule):
    links = (schedule.topology.src, schedule.topology.dst)
    paths = [schedule.edges.path(edge) for edge in range(len(schedule.edges))]
    named = [tuple((int(u[i]), int(v[i])) for i in path) for path in paths for u, v in [links]]
    return {(int(c), named[e]) for c, e in zip(schedule.chunk, schedule.edge, strict=True)}


def test_a_network_without_faults_has_no_detours():
    hops = exchange(topologies.torus(4, 8)).edges.hops
    assert hops.max() == 4


def test_a_rank_with_a_slow_port_sends_through_the_others_of_its_host():
    rails = topologies.multi_rail(16, 4)
    slow = rails.scaled({("host 1 rank 0", "rail 0"): 0.2, ("rail 0", "host 1 rank 0"): 0.2})
    schedule = exchange(slow)
    least = bound(slow, "all_to_all", nbytes=2**26).time
    assert simulate(schedule, 2**26).time <= 1.15 * least


def test_links_that_are_left_keep_their_ends():
    left = TORUS.without(ranks=[5], links=[(20, 21)])
    number, vertices = links_left(left), left.whole_vertices
    there = np.flatnonzero(number >= 0)
    assert (number < 0).sum() == 8 + 1
    assert np.array_equal(vertices[left.src[number[there]]], TORUS.src[there])
    assert np.array_equal(vertices[left.dst[number[there]]], TORUS.dst[there])


def test_too_many_faults_are_refused():
    rest = TORUS.without(links=[(8 * r + c, 8 * r + c + 1) for r in range(8) for c in (1, 4)])
    with pytest.raises(TopologyError, match="too many for detours"):
        exchange(rest)


def test_groups_of_what_is_left_of_a_grid_are_refused():
    with pytest.raises(CollectiveError, match="exchange on a grid without some ranks"):
        exchange(FAULTS["no rank"], groups=[range(31), range(31, 63)])
