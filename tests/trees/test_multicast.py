"""Multicast in switches against trees followed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.errors import TopologyError
from jaxcoll.simulation.messages import multicast
from jaxcoll.synth.forestcoll import forest
from jaxcoll.topologies import dgx_a100, dgx_h100, fat_tree, mi250, nvswitch_hosts, switch

FORESTS = [
    forest(topology)
    for topology in (
        switch(5),
        dgx_a100(2),
        dgx_h100(3),
        fat_tree(2, 3),
        mi250(2, ranks=8),
        nvswitch_hosts((3, 2, 4), inside=9e9, network=1e9),
    )
]


def by_hand(flow, capable: set[int]) -> list[int]:
    topology, load = flow.topology, [0] * flow.topology.num_links
    for i, weight in enumerate(flow.weight.tolist()):
        has = set()
        for e in flow.edge[flow.tree_ptr[i] : flow.tree_ptr[i + 1]].tolist():
            path = list(flow.edges.path(e))
            while any(int(topology.src[link]) in has for link in path[1:]):
                path = path[1:]
            for link in path:
                load[link] += weight
                if int(topology.dst[link]) in capable:
                    has.add(int(topology.dst[link]))
    return load


@given(st.sampled_from(FORESTS), st.data())
def test_links_into_capable_switches_are_relieved(flow, data):
    topology = flow.topology
    switches = range(topology.num_ranks, topology.num_vertices)
    capable = data.draw(st.sets(st.sampled_from(list(switches))))
    found = multicast(flow, capable)
    assert list(found.load) == by_hand(flow, capable)
    assert found.switches == tuple(sorted(capable))
    for link, (before, after, saved) in enumerate(
        zip(flow.load, found.load, found.saved, strict=True)
    ):
        assert before - after == saved >= 0
        # Every rank still receives every shard.
        if topology.dst[link] < topology.num_ranks:
            assert saved == 0


def test_one_switch_that_branches_takes_each_shard_once():
    flow = FORESTS[0]
    found = multicast(flow, [5])
    into = [x for x, v in zip(found.load, flow.topology.dst, strict=True) if v == 5]
    assert into == [1] * 5
    assert sum(found.saved) == 5 * 3
    assert multicast(flow, []).load == flow.load


def test_boxes_enter_the_network_as_often_as_before():
    flow = FORESTS[1]
    boxes = multicast(flow, [16, 17])
    up = [i for i, v in enumerate(flow.topology.dst) if v == 18]
    assert all(boxes.saved[i] == 0 for i in up)
    assert sum(boxes.saved) > 0


@pytest.mark.parametrize("vertex", [0, 4, 6, -1])
def test_only_switches_branch(vertex):
    with pytest.raises(TopologyError, match="not a switch"):
        multicast(FORESTS[0], [vertex])
