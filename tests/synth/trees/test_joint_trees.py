"""Joint trees: near the joint bound with few chunks, weak ranks at the ends, loads as counted."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds import bound, lower_bounds
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import JointTrees, synthesize
from jaxcoll.synth.building.base import Problem
from jaxcoll.topologies import dgx_h100, fat_tree, mesh, multi_rail, nvswitch_hosts, ring, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies

SIZE = 2**28


def half_speed(topology: Topology, u: int, v: int) -> Topology:
    return topology.scaled({(u, v): Fraction(1, 2), (v, u): Fraction(1, 2)})


def all_reduce(topology: Topology, chunks: int, nbytes: float = SIZE, **fields) -> Schedule:
    collective = Collective("all_reduce", topology.num_ranks, chunks)
    schedule = JointTrees(nbytes, **fields).synthesize(topology, collective)
    verify(schedule)
    return schedule


def over_bound(topology: Topology, chunks: int) -> float:
    """Its schedules use switches to forward only."""
    schedule, network = all_reduce(topology, chunks), topology.forwarding_only()
    return simulate(schedule, SIZE).time / bound(network, "all_reduce", nbytes=SIZE).time


@pytest.mark.parametrize(
    ("topology", "chunks", "most"),
    [
        (torus(4, 4).without(links=[(0, 1), (1, 0)]), 16, 1.01),
        (half_speed(torus(4, 4), 0, 1), 16, 1.01),
        (half_speed(ring(8), 0, 1), 16, 1.01),
        (mesh(4, 4), 32, 1.03),
        (half_speed(dgx_h100(2), 3, 18), 64, 1.05),
        (torus(4, 4).without(ranks=[5]), 16, 1.01),
        (nvswitch_hosts((4, 3, 4), inside=450e9, network=50e9), 64, 1.05),
        (multi_rail(2, 8).without(switches=["rail 3"]), 64, 1.05),
    ],
    ids=[
        "torus less a link",
        "torus, half a link",
        "ring, half a link",
        "mesh",
        "hosts, half a NIC",
        "torus less a rank",
        "hosts, one short of a rank",
        "rails less one",
    ],
)
def test_unequal_networks_are_used_near_the_joint_bound(topology, chunks, most):
    assert over_bound(topology, chunks) < most
    if not topology.is_direct:
        return
    # Two phases, each at its own optimum, would take more than that.
    phases = [bound(topology, k, nbytes=SIZE).time for k in ("reduce_scatter", "all_gather")]
    assert sum(phases) > 1.05 * most * bound(topology, "all_reduce", nbytes=SIZE).time


def test_auto_takes_them_where_two_phases_are_slower():
    degraded = torus(4, 4).without(links=[(0, 1), (1, 0)])
    found = synthesize(degraded, "all_reduce", nbytes=SIZE)
    assert found.provenance.certificate["synthesizer"] == "joint_trees"
    whole = synthesize(torus(4, 4), "all_reduce", nbytes=SIZE)
    assert whole.provenance.certificate["synthesizer"] != "joint_trees"


@pytest.mark.slow
def test_bounds_say_where_they_may_win():
    for topology, may in (
        (torus(4, 4), False),
        (dgx_h100(2), False),
        (mesh(4, 4), True),
        (half_speed(dgx_h100(2), 3, 18), True),
        (torus(4, 4).without(ranks=[5]), True),
    ):
        problem = Problem(topology, Collective("all_reduce", topology.num_ranks), SIZE)
        assert JointTrees(SIZE).may_win(problem) == may
    whole = synthesize(dgx_h100(2), "all_reduce", nbytes=SIZE)
    tried = str(whole.provenance.certificate["table"])
    assert "JointTrees" not in tried


def test_few_large_chunks_are_passed_over_and_small_ones_are_not():
    problem = Problem(torus(4, 4), Collective("all_reduce", 16))
    firsts = [JointTrees(nbytes).chunk_counts(problem)[0][0] for nbytes in (1e3, 1e6, SIZE)]
    assert firsts == sorted(firsts)
    assert firsts[0] == 1
    assert firsts[-1] == 16


def test_a_switch_is_entered_by_whoever_is_cheapest():
    """Slow NICs carry their share, neither all that is first offered nor nothing."""
    topology = nvswitch_hosts((4, 4), inside=450e9, network=50e9)
    network = topology.num_vertices - 1
    slow = {pair: Fraction(1, 4) for r in (0, 1) for pair in ((r, network), (network, r))}
    assert over_bound(topology.scaled(slow), 128) < 1.03


def test_a_weak_rank_is_at_the_end_of_all_trees():
    """It sends every chunk once and receives it once."""
    whole = torus(4, 4)
    ends = zip(whole.src.tolist(), whole.dst.tolist(), strict=True)
    weak = whole.scaled({pair: Fraction(1, 8) for pair in ends if 5 in pair})
    schedule = all_reduce(weak, 4)
    chunks = schedule.collective.num_chunks
    assert np.count_nonzero(schedule.src == 5) == chunks
    assert np.count_nonzero(schedule.dst == 5) == chunks


@settings(max_examples=30)
@given(strategies.topologies(max_ranks=10, homogeneous=False), st.integers(1, 3), st.integers(0, 9))
def test_the_certificate_says_what_the_busiest_link_takes(topology, chunks, seed):
    collective = Collective("all_reduce", topology.num_ranks, chunks)
    schedule = JointTrees(SIZE).synthesize(topology, collective, seed)
    if topology.num_ranks == 1:
        return
    times = np.bincount(schedule.edge, minlength=len(schedule.edges))
    load = np.bincount(
        schedule.edges.path_link,
        np.repeat(times, schedule.edges.hops),
        minlength=topology.num_links,
    )
    taken = float((load * SIZE / collective.num_chunks / topology.bandwidth).max())
    said = str(schedule.provenance.certificate["busiest link"]).split()[0]
    assert float(said) == pytest.approx(taken, rel=1e-5)
    assert lower_bounds(topology, collective, SIZE)
    assert schedule == JointTrees(SIZE).synthesize(topology, collective, seed)


def test_small_buffers_have_low_trees():
    low, high = (all_reduce(torus(6, 6), 1, nbytes) for nbytes in (1e3, 1e9))
    times = [float(simulate(schedule, 1e3).time) for schedule in (low, high)]
    assert times[0] < times[1]


def test_an_order_that_is_improved_is_never_slower():
    degraded = torus(4, 4).without(links=[(0, 1), (1, 0)])
    times = [simulate(all_reduce(degraded, 8, rounds=rounds), SIZE).time for rounds in (0, 1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.97 * times[0]


def test_groups_run_beside_one_another():
    groups = ((0, 1, 4, 5), (2, 3, 6, 7), (8, 12), (9, 10, 11, 13, 14, 15))
    collective = Collective("all_reduce", 16, 2, groups)
    schedule = JointTrees(SIZE).synthesize(torus(4, 4), collective)
    verify(schedule)


# Start, end, tenths of a microsecond and GB/s of every link.
OUT_OF_REACH = """
67 5 100, 72 0 30, 23 5 70, 31 5 70, 14 0 70, 40 30 100, 05 0 30, 56 30 12.5, 43 10 30,
43 10 12.5, 43 0 100, 25 30 30, 05 30 70, 23 5 30, 25 5 70, 14 5 12.5, 76 10 12.5, 46 30 12.5,
05 0 100, 16 5 100, 30 5 100, 46 5 12.5, 61 0 30, 05 10 100, 20 5 12.5, 76 10 70, 45 10 100,
25 30 30, 54 10 12.5, 06 30 30, 16 10 70, 35 0 70, 60 30 100
"""


def test_a_rank_that_dear_hops_put_out_of_reach_is_reached():
    """Grown again with the same charges for hops, as it once was, the tree never ended."""
    links = [link.split() for link in OUT_OF_REACH.split(",")]
    topology = Topology(
        8,
        np.array([int(ends[0]) for ends, _, _ in links]),
        np.array([int(ends[1]) for ends, _, _ in links]),
        np.array([1e-7 * float(tenths) for _, tenths, _ in links]),
        np.array([1e9 * float(speed) for _, _, speed in links]),
    )
    collective = Collective("all_reduce", 8, 1, groups=((7, 0, 2),))
    verify(JointTrees(rounds=0).synthesize(topology, collective, 0))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"nbytes": 0}, "nbytes"),
        ({"tries": 0}, "tries must be an integer of at least 1, got 0"),
        ({"rounds": -1}, "rounds must be an integer of at least 0, got -1"),
    ],
)
def test_fields_out_of_range_are_refused(fields, text):
    with pytest.raises(CollectiveError, match=text):
        JointTrees(**fields)


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "all_gather", "all_reduce"])
def test_a_link_that_a_tree_takes_many_times_has_a_price(kind):
    """One slow link joins each host: prices of links that all ways share stay finite."""
    topology = nvswitch_hosts((4,) * 16, inside=300e9, network=25e3)
    collective = Collective(kind, 64, 1)
    verify(JointTrees(1e6, tries=1).synthesize(topology, collective))


def test_work_counts_the_links_of_paths_where_plans_are_longest():
    """On a fat tree of 1,024 ranks it was to take 6 million sends, and took minutes."""
    problem = Problem(fat_tree(4, 5).without(ranks=[512]), Collective("all_gather", 1023))
    assert JointTrees().work(problem) > 2**24


def test_work_counts_the_links_out_of_switches():
    """A thousand ranks behind switches take minutes, 32 do not; in sends of a microsecond."""

    def work(hosts: int, chunks: int) -> float:
        ranks = 8 * hosts
        what = Collective("all_reduce", ranks, chunks)
        return JointTrees().work(Problem(dgx_h100(hosts), what))

    assert work(128, 1) > 1e8
    assert work(4, 64) < 3 * 2**18


def test_a_single_chunk_of_many_ranks_behind_switches_is_not_tried():
    """On 128 hosts its one tree takes half a minute, and the trees of two a tenth of a second."""
    for hosts, first in ((4, 1), (32, 2), (128, 2)):
        problem = Problem.stated(dgx_h100(hosts), "broadcast")
        assert JointTrees(nbytes=1024).chunk_counts(problem)[0][0] == first
    assert JointTrees(nbytes=1024).work(problem) > 2**21 > JointTrees().work(problem.with_chunks(2))
    assert (
        JointTrees(nbytes=1024).chunk_counts(Problem.stated(torus(12, 12), "broadcast"))[0][0] == 1
    )
