"""All-reduce in joint phases: schedules whose links carry exactly what the program says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.bounds.all_reduce import all_reduce_bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.simulation.schedules import steady_seconds
from jaxcoll.synth.forestcoll import ForestColl, granularity, joint_all_reduce
from jaxcoll.topologies import mesh, nvswitch_hosts, star, torus
from jaxcoll.verifier import verify
from tests import strategies

JOINT = ForestColl(phases="joint")
BETTER = [
    star(5, bandwidth=1e9),
    mesh(2, 3),
    mesh(3, 3),
    nvswitch_hosts((3, 2), inside=4e9, network=1e9),
]


@pytest.mark.parametrize("topology", BETTER, ids=lambda t: t.name)
def test_links_carry_what_the_program_says_and_time_comes_close(topology):
    bound = all_reduce_bound(topology)
    assert bound.reached == bound.seconds < bound.two_phases
    chunks = JOINT.joint_granularity(topology) * 64
    schedule = jc.synthesize(topology, "all_reduce", JOINT, chunks=chunks)
    assert steady_seconds(schedule) == bound.seconds
    ratio = simulate(schedule, 1e12).time / 1e12 / float(bound.seconds)
    assert 1 <= ratio < 1.07
    assert simulate(schedule, 1e12).time / 1e12 < float(bound.two_phases)
    assert schedule.provenance.certificate["reached"] == str(bound.seconds)


@pytest.mark.parametrize(
    ("topology", "shares"),
    [
        (nvswitch_hosts((3, 2), inside=4e9, network=1e9), "1/3 1/3 1/3 0 0"),
        (nvswitch_hosts((3, 2), inside=8e9, network=1e9), "1/3 1/3 1/3 0 0"),
        (mesh(3, 3), "0 1/6 0 1/6 1/3 1/6 0 1/6 0"),
        (mesh(2, 4), "0 1/4 1/4 0 0 1/4 1/4 0"),
    ],
)
def test_of_equal_optima_one_with_short_trees_and_many_roots_is_taken(topology, shares):
    # All of these have solutions of equal value with fewer roots, and with longer trees.
    roots = all_reduce_bound(topology).roots
    assert " ".join(map(str, roots)) == shares


@settings(max_examples=25)
@given(strategies.topologies(max_ranks=5, switches=True, exact=True), st.integers(1, 12))
def test_schedules_are_sound_with_any_number_of_chunks(topology, chunks):
    bound = all_reduce_bound(topology)
    if bound.shared is None:
        return
    load = [0] * topology.num_links
    for path, copies, sums in zip(
        bound.shared.paths, bound.shared.copies, bound.shared.sums, strict=True
    ):
        for link in path:
            load[link] += copies + sums
    assert all(x <= b for x, b in zip(load, topology.exact_bandwidth, strict=True))
    collective = Collective("all_reduce", topology.num_ranks, chunks)
    schedule = joint_all_reduce(topology, collective, bound)
    verify(schedule)
    assert steady_seconds(schedule) >= bound.seconds
    whole = granularity(topology, bound)
    if whole <= 200:
        collective = Collective("all_reduce", topology.num_ranks, 2 * whole)
        schedule = joint_all_reduce(topology, collective, bound)
        verify(schedule)
        assert bound.reached is not None
        assert bound.seconds <= steady_seconds(schedule) <= bound.reached


def test_where_two_phases_are_as_fast_they_are_taken():
    topology, collective = torus(3, 3), Collective("all_reduce", 9, 4)
    assert JOINT.joint_granularity(topology) == 1
    assert JOINT.synthesize(topology, collective) == ForestColl().synthesize(topology, collective)
    with pytest.raises(TopologyError, match="the phases share nothing"):
        joint_all_reduce(topology, collective, all_reduce_bound(topology))


def test_pieces_bundle_chunks():
    topology = star(5, bandwidth=1e9)
    collective = Collective("all_reduce", 5, 8)
    many, few = (
        ForestColl(phases="joint", pieces=p).synthesize(topology, collective) for p in (None, 2)
    )
    verify(few)
    assert few.num_steps < many.num_steps
    assert steady_seconds(few) == steady_seconds(many)


def test_other_phases_are_refused():
    with pytest.raises(CollectiveError, match="phases"):
        ForestColl(phases="both")
