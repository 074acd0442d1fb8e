"""Slow links that a search leaves unused: which ones, and that its schedule fits the network."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import bound, simulate, synthesize, verify
from jaxcoll.errors import TopologyError
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.building.slow_links import WithoutSlowLinks
from jaxcoll.topologies import dgx_h100, leaf_spine, ring, torus
from jaxcoll.topology import Topology


@st.composite
def networks(draw) -> Topology:
    """A circle one way or both ways, with more links of many speeds, some parallel to others."""
    n = draw(st.integers(3, 12))
    ends = [(r, (r + 1) % n) for r in range(n)]
    ends += draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
    ends = [(u, v) for u, v in ends if u != v] * draw(st.integers(1, 2))
    speeds = st.sampled_from([1e9, 3e9, 5e9, 10e9])
    src, dst = zip(*ends, strict=True)
    return Topology(n, src, dst, [1e-6] * len(src), [draw(speeds) for _ in ends])  # type: ignore[arg-type]


def slow_ones(topology: Topology) -> list[int]:
    """By the definition: below half the higher median of links beside it, at both ends."""
    found = []
    columns = (topology.src.tolist(), topology.dst.tolist())
    for link, speed in enumerate(topology.bandwidth.tolist()):
        beside = (
            [topology.bandwidth[i] for i, end in enumerate(ends) if end == ends[link]]
            for ends in columns
        )
        if all(speed < statistics.median_high(speeds) / 2 for speeds in beside):
            found.append(link)
    return found


@given(networks())
def test_slow_are_few_links_much_slower_than_those_beside_them(topology):
    slow, without = slow_ones(topology), WithoutSlowLinks.of(topology)
    try:
        rest = topology.without(links=slow)
    except TopologyError:
        assert without is None
        return
    if not 0 < 32 * len(slow) <= topology.num_links:
        assert without is None
        return
    assert without is not None
    assert without.rest == rest
    for column in ("src", "dst", "bandwidth", "alpha"):
        of_whole = getattr(topology, column)[without.links]
        assert np.array_equal(of_whole, getattr(rest, column))
    assert set(without.links.tolist()).isdisjoint(slow)


@st.composite
def damaged(draw) -> Topology:
    """Ranks with links to those one, two and three ahead, and behind or not; one link is slow."""
    n, ways = draw(st.integers(12, 16)), draw(st.sampled_from([(1, 2, 3), (1, 2, -1, -2, -3)]))
    ends = [(r, (r + far) % n) for r in range(n) for far in ways] * draw(st.integers(1, 2))
    src, dst = zip(*ends, strict=True)
    speeds = [10e9] * len(ends)
    speeds[draw(st.integers(0, len(ends) - 1))] = draw(st.sampled_from([1.0, 1e9, 4.9e9]))
    return Topology(n, src, dst, [1e-6] * len(ends), speeds)  # type: ignore[arg-type]


@given(damaged(), st.sampled_from(["all_gather", "all_reduce", "all_to_all", "broadcast"]))
def test_a_schedule_of_the_rest_is_one_of_the_whole_and_takes_as_long(topology, kind):
    without = WithoutSlowLinks.of(topology)
    assert without is not None
    assert without.rest.num_links == topology.num_links - 1
    made = synthesize(without.rest, kind, "tacos" if kind != "all_to_all" else "direct")
    moved = without.on_whole(made)
    assert moved.topology is topology
    assert moved.collective == made.collective
    assert moved.provenance == made.provenance
    verify(moved)
    assert simulate(moved, 2**20).exact_time == simulate(made, 2**20).exact_time


def slowed(topology: Topology, u: int, v: int) -> Topology:
    return topology.scaled({(u, v): 0.2, (v, u): 0.2})


def test_hosts_behind_switches_and_single_cables_keep_theirs():
    hosts = dgx_h100(4)
    assert WithoutSlowLinks.of(slowed(hosts, 9, int(hosts.dst[hosts.src == 9].max()))) is None
    # Without it ranks of a one-way circle would not reach each other; and the links of
    # a slow side of a grid are many.
    assert WithoutSlowLinks.of(ring(40, bidirectional=False).scaled({(3, 4): 0.1})) is None
    assert WithoutSlowLinks.of(torus(4, 8, bandwidth=(10e9, 100e9))) is None
    assert WithoutSlowLinks.of(torus(8, 8)) is None


@pytest.mark.parametrize(
    ("network", "u", "v", "kind", "most"),
    [
        # 1.11 with the slow wire among the links of its trees.
        (torus(12, 12), 70, 71, "all_reduce", 1.04),
        (leaf_spine(9, 16, 8), 144 + 4, 144 + 9, "all_reduce", 1.1),
    ],
)
def test_the_default_leaves_a_slow_wire_unused_and_states_the_bound_of_the_whole(
    network, u, v, kind, most
):
    topology = slowed(network, u, v)
    schedule = synthesize(topology, kind, nbytes=2**26)
    assert schedule.topology is topology
    assert chosen_by_auto(schedule)
    least = bound(topology, kind, 2**26).time
    assert schedule.provenance.certificate["bound"] == least
    assert simulate(schedule, 2**26).time <= most * least
    used = np.unique(schedule.edges.path_link)
    slow = {(u, v), (v, u)}
    ends = zip(topology.src[used].tolist(), topology.dst[used].tolist(), strict=True)
    assert slow.isdisjoint(ends)


def test_a_wire_that_the_bound_needs_is_used():
    """A broadcast from the rank of the slow wire leaves through all of its links."""
    topology = slowed(torus(12, 12), 70, 71)
    schedule = synthesize(topology, "broadcast", nbytes=2**28, root=70)
    used = np.unique(schedule.edges.path_link)
    assert (70, 71) in zip(topology.src[used].tolist(), topology.dst[used].tolist(), strict=True)
