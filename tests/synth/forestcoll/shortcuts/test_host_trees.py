"""Hosts that every tree enters once: clusters with faults, counted independently."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds.throughput import Scaling, optimum
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.routed_trees import RoutedTrees, as_flow, assemble
from jaxcoll.synth.forestcoll.shortcuts.host_trees import packed_by_hosts
from jaxcoll.synth.forestcoll.stages import forest
from jaxcoll.synth.forestcoll.tree_packing import pack_trees
from jaxcoll.topologies import dgx_a100, fat_tree, leaf_spine, mi250, multi_rail, nvswitch_hosts
from jaxcoll.topology import Topology
from tests.synth.forestcoll.test_forest import count

BOXES = "hosts entered once"


def pack(topology: Topology, scaling: Scaling) -> RoutedTrees:
    logical = remove_switches(topology, scaling)
    trees = pack_trees(topology.num_ranks, logical.capacity(), scaling.trees)
    return assemble(logical, trees)


def unplugged(topology: Topology, *ranks: int) -> Topology:
    """Without the wires of some ranks to the last switch."""
    last = topology.num_vertices - 1
    return topology.without([(r, last) for r in ranks] + [(last, r) for r in ranks])


@pytest.mark.parametrize(
    "topology",
    [
        unplugged(dgx_a100(3), 5),
        unplugged(dgx_a100(4), 0, 1, 9),
        unplugged(mi250(4), 5),
        multi_rail(6, 4).without([(3, 27), (27, 3)]),
        fat_tree(4, 2),
        fat_tree(3, 3),
        leaf_spine(4, 4, 2, oversubscription=2),
        leaf_spine(4, 4, 4).without([(16, 20), (20, 16)]),
    ],
    ids=lambda t: t.name,
)
def test_clusters_with_faults(topology):
    scaling = optimum(topology).scaling
    flow = as_flow(topology, scaling, next(packed_by_hosts(topology, scaling, pack)))
    assert flow.certificate["trees"] == BOXES
    assert count(flow) == flow.check_load() == optimum(topology).inverse


@st.composite
def clusters(draw) -> Topology:
    """Hosts of some ranks round a switch each, a wire of any width from each rank to one switch."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    n, hosts = sum(sizes), len(sizes)
    hub = n + np.repeat(np.arange(hosts), sizes)
    network = np.full(n, n + hosts)
    wires = st.lists(st.integers(0, 6), min_size=n, max_size=n)
    inside, outside = 1 + np.asarray(draw(wires)), np.asarray(draw(wires))
    outside[np.cumsum([0, *sizes[:-1]])] += 1  # every host has a wire
    rank, top = np.tile(np.arange(n), 2), np.concatenate([hub, network])
    speed = np.concatenate([4 * inside, outside])
    kept = speed > 0
    src, dst = rank[kept], top[kept]
    ends = np.concatenate([src, dst]), np.concatenate([dst, src])
    speeds = np.tile(speed[kept], 2)
    return Topology(n, *ends, np.zeros(len(speeds)), speeds, num_vertices=n + hosts + 1)


@settings(max_examples=60)
@given(clusters())
def test_what_is_found_is_optimal(topology):
    best = optimum(topology)
    for trees in packed_by_hosts(topology, best.scaling, pack):
        assert count(as_flow(topology, best.scaling, trees)) == best.inverse


def test_equal_boxes_are_packed_once():
    packed = []

    def noted(topology: Topology, scaling: Scaling) -> RoutedTrees:
        packed.append(topology.num_ranks)
        return pack(topology, scaling)

    topology = unplugged(dgx_a100(8), 5)
    next(packed_by_hosts(topology, optimum(topology).scaling, noted))
    # The eight hosts as ranks, the host with the fault, and the seven others as one.
    assert packed == [8, 8, 8]


def test_unequal_shards_enter_once_too():
    topology = unplugged(dgx_a100(2), 5)
    shares = (3, 0, 1, 2) * 4
    best = optimum(topology, shares)
    trees = next(packed_by_hosts(topology, best.scaling, pack))
    flow = as_flow(topology, best.scaling, trees)
    assert flow.shard == tuple(best.k * share for share in shares)
    assert count(flow) == best.inverse


def test_boxes_that_need_the_network_are_left_alone():
    topology = nvswitch_hosts((2, 2), inside=1e9, network=9e9)
    assert not list(packed_by_hosts(topology, optimum(topology).scaling, pack))


def test_more_than_64_ranks_are_seen_as_hosts():
    topology = unplugged(dgx_a100(9), 5)
    flow = forest(topology)
    assert flow.certificate["trees"] == BOXES
    assert flow.height <= 3
    assert flow.inverse == Fraction(64, 175 * 10**9)
