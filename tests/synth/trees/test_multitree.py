"""MultiTree against its paper: free links only, turns, steps, the walk through its example."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import step_bound
from jaxcoll.bounds.throughput import optimum
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate, steady_seconds
from jaxcoll.synth import MultiTree, Ring, Ring2D, synthesize
from jaxcoll.synth.trees.multitree import capacities, hosts
from tests import strategies


def served(schedule: Schedule) -> np.ndarray:
    """Trees that each link serves in each step, of shape (steps, links)."""
    edges = schedule.edges
    hops = edges.hops[schedule.edge]
    loads = np.zeros((schedule.num_steps, schedule.topology.num_links), np.int64)
    links = np.concatenate([edges.path(int(e)) for e in schedule.edge])
    np.add.at(loads, (np.repeat(schedule.step, hops), links), 1)
    return loads


@given(
    strategies.topologies(max_ranks=12, switches=True) | strategies.families(12),
    st.sampled_from([None, 12.5e9, 60e9]),
    st.booleans(),
)
def test_a_link_serves_no_more_trees_a_step_than_it_has_units(topology, unit, nearest):
    schedule = synthesize(topology, "all_gather", MultiTree(unit=unit, nearest_first=nearest))
    assert (served(schedule) <= capacities(topology, unit, topology.num_ranks)).all()


@given(strategies.grids(max_ranks=24, homogeneous=True).filter(lambda t: t.num_ranks > 1))
def test_trees_span_and_grow_by_levels(topology):
    schedule = synthesize(topology, "all_gather", MultiTree())
    for root in range(topology.num_ranks):
        mine = schedule.chunk == root
        tree = nx.DiGraph(list(zip(schedule.src[mine], schedule.dst[mine], strict=True)))
        assert nx.is_arborescence(tree)
        assert set(tree) == set(range(topology.num_ranks))
        added = {root: -1, **dict(zip(schedule.dst[mine], schedule.step[mine], strict=True))}
        assert all(added[u] < added[v] for u, v in tree.edges)
    # A step ends when no tree can add any more: some link is as busy as it can be.
    assert (served(schedule).max(axis=1) == 1).all()


def test_the_example_of_the_paper():
    """Sec. III-B and Fig. 3: trees in turn, neighbours in Y first, eight links and then four."""
    schedule = synthesize(topologies.mesh(2, 2), "all_gather", MultiTree())
    sends = list(zip(schedule.chunk, schedule.src, schedule.dst, schedule.step, strict=True))
    allocated = [
        *((0, 0, 2, 0), (1, 1, 3, 0), (2, 2, 0, 0), (3, 3, 1, 0)),
        *((0, 0, 1, 0), (1, 1, 0, 0), (2, 2, 3, 0), (3, 3, 2, 0)),
        *((0, 2, 3, 1), (1, 3, 2, 1), (2, 0, 1, 1), (3, 1, 0, 1)),
    ]
    assert [tuple(map(int, send)) for send in sends] == allocated


def test_rings_are_unary_trees():
    topology = topologies.ring(6, bidirectional=False)
    sends = [
        set(zip(s.step, s.src, s.dst, s.chunk, s.reduce, strict=True))
        for synthesizer in (MultiTree(), Ring(bidirectional=False))
        for s in [synthesize(topology, "all_reduce", synthesizer)]
    ]
    assert sends[0] == sends[1]


@pytest.mark.parametrize(
    ("topology", "more"),
    [
        (topologies.fully_connected(8), 0),
        (topologies.ring(9), 0),
        (topologies.torus(4, 4), 1),
        (topologies.torus(8, 8), 1),
        (topologies.torus(4, 4, 4), 1),
        (topologies.mesh(4, 4), 1),
        (topologies.mesh(8, 8), 0),
        (topologies.hypercube(6), 2),
        (topologies.dgx1(), 0),
    ],
    ids=repr,
)
def test_steps_are_near_the_bound(topology, more):
    schedule = synthesize(topology, "all_gather", MultiTree())
    assert schedule.num_steps == step_bound(topology, "all_gather") + more


@pytest.mark.parametrize("topology", [topologies.fat_tree(8, 2), topologies.dgx2(planes=1)])
def test_switched_networks_take_as_many_steps_as_ring(topology):
    """Sec. VI-A: "both MULTITREE and RING derive the same number of steps", n - 1."""
    schedule = synthesize(topology, "all_gather", MultiTree())
    assert schedule.num_steps == topology.num_ranks - 1
    # Ranks at the same switch come first.
    first = schedule.edges.hops[schedule.edge[schedule.step == 0]]
    assert set(first) == {2}


@pytest.mark.parametrize("switches", [8, 16])
def test_nearest_first_takes_the_steps_of_the_paper_on_a_bigraph(switches):
    topology = topologies.bigraph(4, switches)
    nearest, literal = (
        synthesize(topology, "all_gather", MultiTree(nearest_first=flag)) for flag in (True, False)
    )
    assert nearest.num_steps == topology.num_ranks - 1
    assert literal.num_steps > nearest.num_steps


def test_the_tree_with_the_longest_way_to_go_comes_first_on_meshes():
    topology = topologies.mesh(4, 4)
    by_root, by_height, auto = (
        synthesize(topology, "all_gather", MultiTree(p)) for p in ("root", "height", "auto")
    )
    assert by_height.num_steps < by_root.num_steps
    assert auto == by_height
    symmetric = topologies.torus(4, 4)
    same = [synthesize(symmetric, "all_gather", MultiTree(p)) for p in ("auto", "root")]
    assert same[0] == same[1]


def test_wide_links_serve_as_many_trees_as_they_have_units():
    rfs = topologies.ring_fc_switch(2, 4, 8)
    assert set(capacities(rfs, None, 64)) == {4, 2, 1}
    switches = topologies.switch_2d(8, 4)
    assert set(capacities(switches, None, 32)) == {12, 1}
    assert set(capacities(switches, None, 10)) == {10, 1}
    assert set(capacities(switches, 50e9, 32)) == {6, 1}
    assert set(capacities(topologies.mesh(2, 2, bandwidth=(50e9, 75e9)), None, 4)) == {2, 3}
    merged = synthesize(topologies.dgx1(merged=True), "all_gather", MultiTree())
    assert merged.num_steps == synthesize(topologies.dgx1(), "all_gather", MultiTree()).num_steps


def test_ranks_of_other_groups_forward():
    topology = topologies.ring(6)
    groups = [(0, 3), (1, 4), (2, 5)]
    schedule = synthesize(topology, "all_gather", MultiTree(), groups=groups)
    assert set(schedule.edges.hops) == {3}
    assert (served(schedule) <= 1).all()


def test_broadcast_is_one_tree():
    schedule = synthesize(topologies.mesh(3, 3), "broadcast", MultiTree(), root=4, chunks=2)
    assert schedule.num_steps == 2
    assert schedule.num_sends == 2 * 8


def test_multitree_beats_the_rings_on_the_torus_of_the_paper():
    """8x8 Torus, 150 ns, 16 GB/s (Table III): 3x over one-way RING for large data (Sec. VI-B)."""
    topology = topologies.torus(8, 8, alpha=150e-9, bandwidth=16e9)
    times = {
        type(s).__name__: simulate(synthesize(topology, "all_reduce", s, chunks=1), 64 * 2**20).time
        for s in (MultiTree(), Ring(bidirectional=False), Ring2D())
    }
    assert times["Ring"] / times["MultiTree"] > 3
    assert times["Ring2D"] > times["MultiTree"]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: MultiTree("depth"), "one of auto, root, height, got 'depth'"),
        (lambda: MultiTree(unit=0), "unit must be a finite number above 0, got 0"),
        (lambda: MultiTree(unit="fast"), "unit must be a finite number above 0"),  # type: ignore[arg-type]
        (lambda: MultiTree(unit=float("nan")), "unit must be a finite number above 0"),
        (
            lambda: synthesize(topologies.ring(4), "all_to_all", MultiTree()),
            "multitree is not defined for all_to_all",
        ),
    ],
)
def test_bad_parameters_are_refused(make, match):
    with pytest.raises(CollectiveError, match=match):
        make()


def test_one_chunk_a_shard_or_many_are_the_same_trees():
    topology = topologies.torus(3, 4)
    one, three = (synthesize(topology, "all_gather", MultiTree(), chunks=k) for k in (1, 3))
    assert np.array_equal(np.repeat(one.edge, 3), three.edge)
    assert np.array_equal(three.chunk // 3, np.repeat(one.chunk, 3))
    assert Collective("all_gather", 12, 3) == three.collective


@pytest.mark.parametrize(("boxes", "share"), [(2, 0.5769), (4, 0.75), (8, 0.875)])
def test_trees_enter_hosts_that_they_have_not_entered_first(boxes, share):
    """Of the optimum on DGX A100, latency aside; entering hosts anywhere, half at any size."""
    topology = topologies.dgx_a100(boxes)
    schedule = synthesize(topology, "all_gather", MultiTree())
    least = optimum(topology).inverse / topology.num_ranks
    assert float(least / steady_seconds(schedule)) == pytest.approx(share, abs=1e-3)


def test_a_host_is_the_smallest_switch_that_ranks_share():
    assert hosts(topologies.dgx_a100(2)).tolist() == [0] * 8 + [1] * 8
    assert hosts(topologies.torus(2, 2)).tolist() == [0, 1, 2, 3]
    assert hosts(topologies.switch(3)).tolist() == [0, 0, 0]
    assert hosts(topologies.fat_tree(2, 2)).tolist() == [0, 0, 1, 1]
