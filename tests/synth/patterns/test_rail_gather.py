"""Rail gather: a shard enters a host once, along its rail, and is passed on within the host."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import RailGather, synthesize
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.building.circles import joined_ranks


@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 3), st.integers(1, 9))
def test_shards_enter_hosts_once_and_stay_on_their_rails(hosts, inner, chunks, parts):
    topology = topologies.multi_rail(hosts, inner)
    schedule = synthesize(topology, "all_gather", RailGather(parts), chunks=chunks)
    between = schedule.src // inner != schedule.dst // inner
    assert (schedule.src[between] % inner == schedule.dst[between] % inner).all()
    assert between.sum() == topology.num_ranks * (hosts - 1) * chunks
    assert schedule.num_sends == topology.num_ranks * (topology.num_ranks - 1) * chunks
    assert schedule.num_steps <= 1 + parts


def test_a_rank_sends_no_two_messages_to_a_host_at_a_time_and_none_meets_another():
    schedule = synthesize(topologies.multi_rail(5, 3), "all_gather", RailGather(), chunks=1)
    first = schedule.step == 0
    ahead = (schedule.dst[first] - schedule.src[first]) % 15
    for rank in range(15):
        along = [int(a) for a in ahead[schedule.src[first] == rank] if a % 3 == 0]
        assert along == sorted(along) == [3, 6, 9, 12]


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("topology", [topologies.dgx_h100(32), topologies.multi_rail(32, 8)])
def test_on_many_hosts_it_is_near_the_bound(topology, kind):
    schedule = synthesize(topology, kind, RailGather(), chunks=1)
    least = bound(topology.forwarding_only(), kind, 2**26).time
    assert simulate(schedule, 2**26).time <= 1.08 * least


SLOWED = {
    "NIC": lambda hosts: hosts.scaled({(3, hosts.num_vertices - 1): 0.2}),
    "NIC, backwards": lambda hosts: hosts.scaled({(hosts.num_vertices - 1, 3): 0.2}),
    "NVLink": lambda hosts: hosts.scaled({(3, hosts.num_ranks): 0.2}),
}


@pytest.mark.parametrize("slowed", SLOWED)
def test_other_ranks_carry_the_shards_of_a_slow_one(slowed):
    hosts = SLOWED[slowed](topologies.dgx_h100(32))
    schedule = synthesize(hosts, "all_gather", RailGather(), chunks=1)
    least = bound(hosts.forwarding_only(), "all_gather", 2**26).time
    # On its own rail, the slow rank would take more than four times the bound.
    assert simulate(schedule, 2**26).time <= 1.25 * least


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 2), st.data())
def test_slow_links_anywhere_leave_a_schedule(hosts, inner, chunks, data):
    whole = topologies.multi_rail(hosts, inner)
    links = st.sampled_from([*zip(whole.src.tolist(), whole.dst.tolist(), strict=True)])
    slow = data.draw(st.dictionaries(links, st.sampled_from([0.05, 0.3, 0.9]), max_size=6))
    maker = RailGather(data.draw(st.integers(1, 9)), inner=inner)
    # Proved by ``synthesize``, with each shard to each rank once.
    schedule = synthesize(whole.scaled(slow), "all_gather", maker, chunks=chunks)
    assert schedule.num_sends == whole.num_ranks * (whole.num_ranks - 1) * chunks
    if not slow:
        assert schedule == synthesize(whole, "all_gather", maker, chunks=chunks)


def test_a_slow_cable_does_not_hide_the_hosts():
    for hosts in (topologies.dgx_h100(8), topologies.multi_rail(8, 4)):
        cable = min(range(hosts.num_links), key=lambda link: hosts.bandwidth[link])
        ends = (int(hosts.src[cable]), int(hosts.dst[cable]))
        broken = hosts.scaled({ends: 0.2})
        assert joined_ranks(broken) == joined_ranks(hosts) > 1


def test_parts_are_of_shards_that_come_one_after_another():
    schedule = synthesize(topologies.multi_rail(9, 2), "all_gather", RailGather(parts=4), chunks=1)
    owner = schedule.collective.owner[schedule.chunk]
    within = schedule.src // 2 == schedule.dst // 2
    for step in range(1, 5):
        behind = np.unique((schedule.src - owner)[within & (schedule.step == step)] // 2 % 9)
        assert behind.tolist() == [2 * step - 1, 2 * step]


def test_the_default_tries_it_on_many_ranks():
    few, many = (
        Problem(topologies.dgx_h100(hosts), Collective("all_gather", 8 * hosts)) for hosts in (8, 9)
    )
    assert not RailGather().may_win(few)
    assert RailGather().may_win(many)


def test_bad_input_is_refused():
    with pytest.raises(TopologyError, match="hosts of 5 ranks, which does not divide the 16"):
        synthesize(topologies.dgx_h100(2), "all_gather", RailGather(inner=5))
    with pytest.raises(CollectiveError, match="parts must be an integer of at least 1"):
        RailGather(parts=0)
    groups = [range(8), range(8, 16)]
    with pytest.raises(CollectiveError, match="rail_gather is defined for all ranks at once"):
        synthesize(topologies.dgx_h100(2), "all_gather", RailGather(), groups=groups)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize(
    ("topology", "most"),
    [(topologies.fat_tree(4, 4), 1.05), (topologies.leaf_spine(8, 16, 4, oversubscription=3), 1.2)],
    ids=["fat tree", "leaf-spine"],
)
def test_below_leaf_switches_no_way_up_is_crowded(topology, most, kind):
    """By the shortest routes, all of which cross the same switches, fat trees took 12 times it."""
    schedule = synthesize(topology, kind, RailGather(), nbytes=2**26)
    least = bound(topology, kind, 2**26).time
    assert simulate(schedule, 2**26).time <= most * least


@pytest.mark.parametrize("hosts", [topologies.dgx_h100(32), topologies.multi_rail(32, 8)])
@pytest.mark.parametrize("speed", [0, 0.2])
def test_a_weak_host_sums_more_so_that_an_all_reduce_is_as_fast_as_of_equal_hosts(hosts, speed):
    links = np.flatnonzero(hosts.src == 67)
    nic = links[hosts.bandwidth[links].argmin()]
    cable = [(67, int(hosts.dst[nic])), (int(hosts.dst[nic]), 67)]
    weak = hosts.scaled(dict.fromkeys(cable, speed)) if speed else hosts.without(links=cable)
    ((count,),) = RailGather().chunk_counts(Problem.stated(weak, "all_reduce"))
    schedule = synthesize(weak, "all_reduce", RailGather(), chunks=count)
    messages = np.bincount(schedule.edge, minlength=len(schedule.edges))
    load = np.bincount(schedule.edges.path_link, np.repeat(messages, schedule.edges.hops))
    busiest = (load / schedule.collective.num_chunks / weak.bandwidth).max()
    # Two phases of equal shards would keep the weak host busy for 8 / 7 or 8 / 7.2 of this time.
    assert busiest <= 1.06 * 2 * 31 / 32 / 8 / hosts.bandwidth[nic]


@given(st.integers(3, 9), st.sampled_from([4, 8]), st.integers(1, 9), st.data())
def test_what_a_weak_host_adopts_is_summed_at_every_rank(hosts, inner, chunks, data):
    hosts += 64 // inner
    whole = topologies.multi_rail(hosts, inner)
    rank = data.draw(st.integers(0, whole.num_ranks - 1))
    rail = int(whole.dst[whole.src == rank].max())
    links = [(rank, rail), (rail, rank)][:: data.draw(st.sampled_from([1, -1]))]
    slow = dict.fromkeys(links[: data.draw(st.integers(1, 2))], data.draw(st.floats(0.1, 0.9)))
    maker = RailGather(data.draw(st.integers(1, 9)))
    # Proved by ``synthesize``; every rank sends each sum or copy on once.
    schedule = synthesize(whole.scaled(slow), "all_reduce", maker, chunks=chunks)
    assert schedule.num_sends == 2 * whole.num_ranks * (whole.num_ranks - 1) * chunks
