"""Striped trees: every host sends on in one tree only, and as much as it receives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.bounds.throughput import optimum
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import StripedTrees, synthesize
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.trees.striped_trees import interior_disjoint
from jaxcoll.verifier import verify
from tests.synth.leaves import below_one_spine


@given(st.integers(2, 60), st.data())
def test_trees_span_all_hosts_and_no_host_sends_more_than_it_receives(hosts, data):
    degree = data.draw(st.integers(1, min(hosts - 1, 16)))
    children = np.zeros(hosts, np.int64)
    for parent in interior_disjoint(hosts, degree):
        assert (parent[1:] >= 0).all()
        assert parent[0] == -1
        at = np.arange(hosts)
        for _ in range(hosts):
            at = np.where(parent[at] >= 0, parent[at], at)
        assert (at == 0).all()
        children += np.bincount(parent[1:], minlength=hosts)
    assert (children <= degree).all()


@given(st.integers(2, 6), st.integers(1, 4))
def test_where_hosts_divide_evenly_they_are_inside_one_tree(degree, each):
    hosts = 1 + degree * each
    parents = interior_disjoint(hosts, degree)
    inside = np.sum([np.isin(np.arange(hosts), tree) for tree in parents], axis=0)
    assert (inside[1:] <= 1).all()


@pytest.mark.parametrize("root", [0, 13, 31])
@pytest.mark.parametrize(
    "topology",
    [topologies.dgx_h100(4), topologies.dgx_a100(5), topologies.multi_rail(4, 8)],
    ids=str,
)
def test_on_hosts_with_a_port_per_rank_the_trees_are_as_fast_as_any(topology, root):
    weights = [int(rank == root) for rank in range(topology.num_ranks)]
    flow = StripedTrees(degree=3).flow(topology, root)
    assert flow.check_load() == flow.inverse == optimum(topology, weights).inverse


def test_trees_are_as_high_as_a_logarithm():
    """A rank of the root's host, five levels of hosts, and the other ranks of the last."""
    flow = StripedTrees(degree=2).flow(topologies.dgx_h100(32), 0)
    assert flow.height <= 2 + math.ceil(math.log2(32))


def test_without_hosts_every_rank_is_one():
    flow = StripedTrees(degree=2).flow(topologies.dgx1(), 3)
    assert flow.k == 2
    assert flow.check_load() == flow.inverse


def test_chunks_that_all_trees_do_not_divide_take_fewer():
    for chunks, trees in ((1, 1), (12, 4), (16, 16), (32, 16)):
        flow = StripedTrees(degree=2).flow(topologies.dgx_h100(4), 0, chunks)
        assert flow.k == flow.num_trees == trees


def test_little_data_takes_more_children_than_much():
    topology = topologies.dgx_h100(128)
    little, much = (StripedTrees(nbytes=nbytes)._shape(topology)[1] for nbytes in (1e3, 1e10))
    assert little > much


def test_little_data_passes_one_of_many_hosts_in_each_tree():
    """A tree of depth three takes a latency more: 1.3 times the bound, here."""
    topology = topologies.multi_rail(40, 2)
    striped = StripedTrees(nbytes=2**18)
    assert striped.flow(topology, 0).height == 4  # to the rail, two hosts, and within the last
    schedule = synthesize(topology, "broadcast", striped, chunks=2 * 39 * 4)
    least = bound(topology.forwarding_only(), "broadcast", 2**18).time
    assert simulate(schedule, 2**18).time <= 1.15 * least


def test_reduce_is_the_broadcast_backwards():
    topology = topologies.dgx_h100(3)
    schedule = synthesize(topology, "reduce", StripedTrees(degree=2), chunks=16, root=5)
    assert schedule.num_sends == 16 * (topology.num_ranks - 1)


@settings(max_examples=12)
@given(st.integers(33, 50), st.integers(2, 4), st.data())
def test_a_reduce_takes_no_longer_than_its_broadcast(hosts, inner, data):
    topology = topologies.multi_rail(hosts, inner)
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    seconds = {}
    for kind in ("broadcast", "reduce"):
        schedule = synthesize(topology, kind, StripedTrees(nbytes=2**26), chunks=120, root=root)
        verify(schedule)
        seconds[kind] = simulate(schedule, 2**26).time
    assert seconds["reduce"] <= 1.03 * seconds["broadcast"]


@pytest.mark.parametrize(
    ("topology", "most"),
    [(topologies.multi_rail(32, 8), 1.01), (topologies.fat_tree(4, 4), 1.02)],
    ids=["rails", "fat tree"],
)
def test_of_much_data_a_reduce_takes_no_longer_than_its_broadcast(topology, most):
    """On rails it took 1.05 times as long in the order of the broadcast's run."""
    seconds = [
        simulate(
            synthesize(topology, kind, StripedTrees(nbytes=2**26, degree=3), chunks=960), 2**26
        ).time
        for kind in ("broadcast", "reduce")
    ]
    assert seconds[1] <= most * seconds[0]


def test_the_default_tries_them_where_many_ranks_have_switches_between():
    problem = [Problem(t, Collective("broadcast", t.num_ranks)) for t in (
        topologies.dgx_h100(9), topologies.dgx_h100(8), topologies.torus(9, 9)
    )]  # fmt: skip
    assert [StripedTrees().may_win(each) for each in problem] == [True, False, False]


@pytest.fixture(scope="module")
def many():
    """Hosts of 4 ranks that send on by all their ports."""
    topology = topologies.multi_rail(300, 4)
    assert StripedTrees(nbytes=2**26)._shape(topology).across
    return topology


@pytest.mark.parametrize("root", [0, 601])
def test_of_thousands_of_ranks_hosts_send_on_by_all_their_ports(many, root):
    flow = StripedTrees(nbytes=2**26).flow(many, root)
    weights = [int(rank == root) for rank in range(many.num_ranks)]
    assert flow.check_load() == flow.inverse == optimum(many, weights).inverse
    # To a rank of the root's host, and to three hosts by the network and beside the port there.
    assert flow.height <= 1 + 2 * 3


def test_all_ports_of_a_host_are_entered_by_equal_parts(many):
    flow = StripedTrees(nbytes=2**26).flow(many, 0)
    src, dst = flow.edges.src[flow.edge], flow.edges.dst[flow.edge]
    entered = np.bincount(dst[src // 4 != dst // 4], minlength=many.num_ranks)
    assert set(entered[4:].tolist()) == {flow.k // 4}


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_trees_by_all_ports_are_schedules(many, kind):
    maker = StripedTrees(nbytes=2**26)
    verify(synthesize(many, kind, maker, chunks=maker.flow(many, 5).k, root=5))


def test_an_index_with_a_slow_rank_has_no_part_in_trees_by_all_ports():
    topology = topologies.multi_rail(300, 4)
    port = topology.num_ranks + 1  # of the ranks of index 1
    slow = topology.scaled({(9, port): 0.2, (port, 9): 0.2})
    flow = StripedTrees(nbytes=2**26).flow(slow, 0)
    src, dst = flow.edges.src[flow.edge], flow.edges.dst[flow.edge]
    assert set((dst[src // 4 != dst // 4] % 4).tolist()) == {0, 2, 3}


def test_more_pieces_than_the_default_lists_are_not_tried():
    topology = topologies.dgx_h100(512)
    problem = Problem(topology, Collective("broadcast", topology.num_ranks))
    (counts,) = StripedTrees(nbytes=2**26).chunk_counts(problem)
    assert 2**23 * 0.9 <= counts[-1] * (topology.num_ranks - 1) <= 2**23


def test_up_to_1024_ranks_each_index_has_trees_of_its_own():
    assert not StripedTrees(nbytes=2**26)._shape(topologies.multi_rail(256, 4)).across


def test_bad_input_is_refused():
    with pytest.raises(TopologyError, match="hosts of 5 ranks, which does not divide the 16"):
        StripedTrees(inner=5).flow(topologies.dgx_h100(2), 0)
    with pytest.raises(CollectiveError, match="degree must be an integer of at least 1"):
        StripedTrees(degree=0)


_RAILS = topologies.multi_rail(32, 8)
_SLOW = {
    "NIC": _RAILS.scaled({(3, 259): 0.2}),
    "NIC in": _RAILS.scaled({(259, 3): 0.2}),
    "NVLink": _RAILS.scaled({(3, 264): 0.2}),
    "no NIC": _RAILS.without(links=[(3, 259), (259, 3)]),
    "no NIC in": _RAILS.without(links=[(259, 3)]),
}


@pytest.mark.parametrize("slow", _SLOW.values(), ids=_SLOW)
def test_a_rank_with_a_slow_or_lost_link_is_a_leaf_of_all_trees(slow):
    schedule = synthesize(slow, "broadcast", StripedTrees(degree=2), chunks=14 * 128)
    assert 3 not in schedule.src
    # Within trees it would hold them up for more than three times as long.
    least = bound(slow, "broadcast", 2**30).time
    assert simulate(schedule, 2**30).time <= 1.3 * least


@pytest.mark.parametrize("root", [0, 7])
@pytest.mark.parametrize("degree", [3, 6])
def test_by_one_link_out_the_root_sends_all_data_once(degree, root):
    topology = topologies.fat_tree(4, 3)
    flow = StripedTrees(degree=degree).flow(topology, root)
    out = np.flatnonzero(topology.src == root)
    assert np.asarray(flow.load)[out].tolist() == [flow.k]
    # Its index's stripes take turns at the others of its leaf, none of which sends more than all.
    beside = np.flatnonzero(topology.src // 4 == root // 4)
    assert np.asarray(flow.load)[beside].max() <= flow.k


@pytest.mark.parametrize(
    "topology",
    [topologies.fat_tree(4, 4), topologies.leaf_spine(8, 16, 4, oversubscription=3)],
    ids=str,
)
def test_below_leaf_switches_broadcasts_are_near_the_bound(topology):
    """By shortest routes the fat tree took 18 times it; by the stream's order, 1.5 times."""
    schedule = synthesize(topology, "broadcast", StripedTrees(nbytes=2**26, degree=3), chunks=1536)
    assert simulate(schedule, 2**26).time <= 1.13 * bound(topology, "broadcast", 2**26).time


@settings(max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=9).filter(lambda s: max(s) > 1), st.data())
def test_below_leaves_of_any_sizes_no_rank_sends_more_than_all_data(sizes, data):
    """Hosts of one size alone would leave ranks of a leaf that lost one a third more to send."""
    topology = below_one_spine(sizes)
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    degree = data.draw(st.none() | st.integers(1, 4))
    flow = StripedTrees(degree=degree).flow(topology, root)
    flow.check_load()
    of_ranks = topology.src < topology.num_ranks
    load = np.asarray(flow.load)[of_ranks]
    assert load[topology.src[of_ranks] == root] == flow.k
    # Parts are of whole sends of a tree, so one more may be left to a rank.
    assert load.max() <= flow.k + 1


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    "topology",
    [topologies.fat_tree(4, 4).without(ranks=[130]),
     topologies.leaf_spine(8, 16, 4, oversubscription=3).without(ranks=[3, 40])],
    ids=str,
)  # fmt: skip
def test_below_leaves_that_lost_a_rank_broadcasts_are_near_the_bound(topology, kind):
    """With every rank as a host of its own the fat tree took 1.37 times the bound."""
    maker = StripedTrees(nbytes=2**26, degree=3)
    trees = maker.flow(topology, 0).k
    schedule = synthesize(topology, kind, maker, chunks=trees * -(-1536 // trees))
    assert simulate(schedule, 2**26).time <= 1.1 * bound(topology, kind, 2**26).time


def test_a_slow_rank_below_a_leaf_sends_nothing():
    topology = topologies.fat_tree(4, 3).scaled({(9, 66): 0.2})
    assert 9 not in StripedTrees(degree=3).flow(topology, 0).edges.src


def test_more_ranks_below_leaves_are_tried_with_fewer_pieces():
    few, many = (
        StripedTrees().chunk_counts(Problem(each, Collective("broadcast", each.num_ranks)))[0]
        for each in (topologies.fat_tree(4, 4), topologies.fat_tree(4, 6))
    )
    assert max(few) >= 4608 > max(many) >= 1536
    assert max(many) * 4095 <= 2**23


def test_of_little_data_late_pieces_wait_for_early_ones():
    """With a pace of 0.1 times the time of a piece of every tree it took 1.70 times the bound."""
    topology = topologies.fat_tree(4, 4)
    schedule = synthesize(topology, "broadcast", StripedTrees(nbytes=2**20), chunks=4 * 63 * 7)
    least = bound(topology.forwarding_only(), "broadcast", 2**20).time
    assert simulate(schedule, 2**20).time <= 1.35 * least


def test_its_work_counts_the_ways_along_a_side_of_a_grid():
    """A ring stands for one host there: every piece goes a quarter of the way round, on average."""
    for side in (128, 512):
        problem = Problem.stated(topologies.ring(side), "broadcast")
        assert StripedTrees().work(problem) == pytest.approx(side / 8 * problem.sends, rel=0.02)
