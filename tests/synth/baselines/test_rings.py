"""Rings in given orders, hierarchical rings and rings on two dimensions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxcoll import Collective, topologies, verify
from jaxcoll.bounds import ideal
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import rounds_of_steps, shipped_costs
from jaxcoll.synth import (
    Bucket,
    HierarchicalRing,
    Ring,
    Ring2D,
    synthesize,
)
from jaxcoll.synth.baselines.ring import ORDERS
from jaxcoll.synth.building.base import Problem
from tests.synth.loads import link_loads, sent


def test_three_circles_use_all_links_of_a_dgx1():
    """The Ring baseline of the TACOS paper's Fig. 17b: 99.61 % of Ideal."""
    topology = topologies.dgx1(alpha=0.7e-6, bandwidth=25e9)
    rings = Ring(circles=topologies.DGX1_CIRCLES)
    schedule = synthesize(topology, "all_reduce", rings, chunks=6)
    assert (schedule.edges.hops == 1).all()
    assert len(set(link_loads(schedule))) == 1
    ratio = float(ideal(topology, "all_reduce", 10**9)) / simulate(schedule, 10**9).time
    assert ratio > 0.995
    one = synthesize(topology, "all_reduce", Ring(order="ranks"), chunks=6)
    assert simulate(one, 10**9).time > 2.9 * simulate(schedule, 10**9).time


def test_circles_are_orders_of_indices():
    groups = [(0, 1, 2, 3), (7, 5, 6, 4)]
    with pytest.raises(CollectiveError, match="order must be one of links, ranks, got 'wires'"):
        Ring(order="wires")
    ring = Ring(bidirectional=False, circles=[(0, 2, 1, 3)])  # type: ignore[arg-type]
    schedule = synthesize(topologies.fully_connected(8), "all_gather", ring, groups=groups)
    pairs = set(zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True))
    assert pairs == {(0, 2), (2, 1), (1, 3), (3, 0), (7, 6), (6, 5), (5, 4), (4, 7)}
    for bad in (
        (),
        ((0, 1), (0, 2)),
        ((0, 1), (0, 1, 2)),
    ):
        with pytest.raises(CollectiveError, match="circles must be one or more orders"):
            Ring(circles=bad)  # type: ignore[arg-type]
    for bad in (((0.5, 1),), 3):
        with pytest.raises(CollectiveError, match=r"circles.* must be"):
            Ring(circles=bad)  # type: ignore[arg-type]
    with pytest.raises(CollectiveError, match="circles have 4 ranks, but a group has 8"):
        synthesize(topologies.fully_connected(8), "all_gather", ring)


@pytest.mark.parametrize(("sides", "circles"), [((2, 4), 1), ((4, 4), 2), ((4, 4, 4), 3)], ids=str)
def test_circles_load_the_links_of_a_torus_equally(sides, circles):
    """The times are n - 1 shards, both ways round every circle, at the speed of a link."""
    topology = topologies.torus(*sides, alpha=0, bandwidth=50e9)
    n, nbytes = topology.num_ranks, 2**30
    schedule = synthesize(topology, "all_reduce", "ring", nbytes=nbytes)
    assert (schedule.edges.hops == 1).all()
    assert set(link_loads(schedule)) - {0} == {max(link_loads(schedule))}
    assert (np.asarray(link_loads(schedule)) > 0).sum() == 2 * n * circles
    least = 2 * (n - 1) / n * nbytes / (2 * circles * 50e9)
    assert simulate(schedule, nbytes).time == pytest.approx(least)
    blind = synthesize(topology, "all_reduce", Ring(order="ranks"), nbytes=nbytes)
    assert simulate(blind, nbytes).time > 1.9 * least


def test_a_network_without_circles_keeps_the_order_of_ranks():
    topology = topologies.mesh(3, 3)
    one, other = (synthesize(topology, "all_gather", Ring(order=o), chunks=2) for o in ORDERS)
    assert one == other


def test_hierarchical_ring_takes_the_hosts_that_links_show():
    """Across hosts over 50 GB/s of each rank, where a ring by ranks takes two of eight ports."""
    topology = topologies.dgx_h100(2)
    own = synthesize(topology, "all_reduce", HierarchicalRing(), chunks=2)
    assert own == synthesize(topology, "all_reduce", HierarchicalRing(8), chunks=2)
    ring = synthesize(topology, "all_reduce", Ring(order="ranks"), chunks=2)
    assert simulate(own, 2**30).time < simulate(ring, 2**30).time / 2


def test_a_hierarchy_of_one_level_is_a_ring():
    topology = topologies.mesh(3, 4)
    for inner in (1, 12):
        one = synthesize(topology, "all_reduce", HierarchicalRing(inner), chunks=2)
        assert one == synthesize(topology, "all_reduce", Ring(order="ranks"), chunks=2)


def test_hierarchical_ring_goes_across_then_inside():
    schedule = synthesize(
        topologies.fully_connected(12), "all_gather", HierarchicalRing(4), chunks=1
    )
    inside = schedule.src // 4 == schedule.dst // 4
    across = schedule.src % 4 == schedule.dst % 4
    assert (inside ^ across).all()
    assert schedule.num_steps == 1 + 2
    assert (across == (schedule.step < 1)).all()
    assert set(sent(schedule)) == {11}


@pytest.mark.parametrize("inner", [2, 3, 5])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_hosts_that_alternate_never_exchange(inner, kind):
    hosts = topologies.nvswitch_hosts((inner, inner), inside=9e9, network=2e9)
    costs = shipped_costs("cpu", 2 * inner)
    collective = Collective(kind, 2 * inner, 2)
    problem = Problem(hosts, collective, 1e6, execution=costs)
    plain = HierarchicalRing().made(problem)
    schedule = HierarchicalRing(alternating=True).made(problem)
    verify(schedule)
    assert schedule.num_steps == plain.num_steps
    assert (rounds_of_steps(schedule) == rounds_of_steps(plain)).all()
    assert sorted(sent(schedule)) == sorted(sent(plain))

    def crossing(of):
        step = np.repeat(np.arange(of.num_steps), np.diff(of.step_ptr))
        far = of.src // inner != of.dst // inner
        return set(zip(step[far], of.src[far], of.dst[far], strict=True))

    assert any((s, v, u) in crossing(plain) for s, u, v in crossing(plain))
    assert not any((s, v, u) in crossing(schedule) for s, u, v in crossing(schedule))


def test_alternating_is_of_two_blocks_and_half_duplex():
    ring = HierarchicalRing(alternating=True)
    for sizes, blocks in (((2, 2, 2), "3 of 2"), ((1, 1), "2 of 1")):
        hosts = topologies.nvswitch_hosts(sizes, inside=9e9, network=2e9)
        with pytest.raises(CollectiveError, match=f"alternates between two blocks.*{blocks}"):
            synthesize(hosts, "all_gather", dataclasses.replace(ring, inner=sizes[0]))
    with pytest.raises(CollectiveError, match="alternating"):
        HierarchicalRing(alternating=2)  # type: ignore[arg-type]
    assert HierarchicalRing().in_order(None) == (HierarchicalRing(),)
    assert HierarchicalRing().in_order(shipped_costs("gpu", 8)) == (HierarchicalRing(),)
    assert HierarchicalRing().in_order(shipped_costs("cpu", 8)) == (HierarchicalRing(), ring)


def test_hierarchical_ring_takes_the_innermost_dimension():
    topology = topologies.switch_2d(4, 3)
    own = synthesize(topology, "all_reduce", HierarchicalRing())
    assert own == synthesize(topology, "all_reduce", HierarchicalRing(4))


def test_hierarchical_ring_refuses():
    with pytest.raises(CollectiveError, match="inner must be an integer of at least 1, got 0"):
        HierarchicalRing(0)
    with pytest.raises(CollectiveError, match="blocks of 4 ranks, which does not divide 6"):
        synthesize(topologies.ring(6), "all_gather", HierarchicalRing(4), chunks=1)
    even = topologies.dragonfly(4, 5, bandwidth=(1e9, 1e9))
    with pytest.raises(TopologyError, match=r"hierarchical_ring needs .* symmetric dimensions"):
        synthesize(even, "all_gather", HierarchicalRing())


def test_ring_2d_on_a_torus_is_bucket():
    for chunks in (1, 2, 4):
        topology = topologies.torus(4, 4)
        own = synthesize(topology, "all_reduce", Ring2D(), chunks=chunks)
        assert own == synthesize(topology, "all_reduce", Bucket(), chunks=chunks)


def test_ring_2d_on_a_mesh_comes_back_along_the_line():
    schedule = synthesize(topologies.mesh(4, 5), "all_gather", Ring2D(), chunks=2)
    assert set(schedule.edges.hops) == {1, 3, 4}
    assert schedule.num_steps == 4


@pytest.mark.parametrize("topology", [topologies.ring(8), topologies.torus(2, 2, 2)], ids=repr)
def test_ring_2d_refuses_other_dimensions(topology):
    with pytest.raises(TopologyError, match="ring_2d needs two dimensions"):
        synthesize(topology, "all_reduce", Ring2D())
