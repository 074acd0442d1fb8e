"""Schedules run backwards in time: as long as their forward runs, and sound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Collective, simulate, topologies, verify
from jaxcoll.errors import CollectiveError
from jaxcoll.synth import ForestColl, MultiTree, synthesize
from jaxcoll.synth.building.derive import derive, in_order, reverse_in_time
from tests import strategies

ONE_WAY = ("all_gather", "broadcast")


@given(
    strategies.schedules(
        kinds=ONE_WAY, networks=strategies.grids(max_ranks=9) | strategies.topologies(max_ranks=8)
    ),
    st.sampled_from((1e3, 1e6, 1e9)),
)
def test_without_switches_the_reverse_takes_the_same_time(schedule, nbytes):
    backward = reverse_in_time(schedule, nbytes)
    verify(backward)
    assert simulate(backward, nbytes).exact_time == simulate(schedule, nbytes).exact_time


@given(
    strategies.schedules(
        kinds=ONE_WAY, networks=strategies.topologies(max_ranks=10, switches=True)
    ),
    st.sampled_from((1e3, 1e6, 1e9)),
)
def test_through_switches_the_reverse_takes_about_the_same_time(schedule, nbytes):
    backward = reverse_in_time(schedule, nbytes)
    verify(backward)
    assert backward.num_messages == schedule.num_messages
    # Switches serve first come, first served: what arrives early may delay what is urgent.
    assert simulate(backward, nbytes).time <= 1.5 * simulate(schedule, nbytes).time


@given(
    strategies.schedules(
        kinds=ONE_WAY, networks=strategies.topologies(max_ranks=10, switches=True)
    ),
    st.sampled_from((1e3, 1e9)),
)
def test_links_serve_last_what_arrived_first(schedule, nbytes):
    """Backwards a link serves its messages in the reverse order of their arrivals."""
    run, forward = simulate(schedule, nbytes), {}
    for m, (first, end) in enumerate(itertools.pairwise(run.hop_ptr.tolist())):
        edge, chunk = message(schedule, m)
        arrival = run.hop_start[end - 1] + run.hop_delay[end - 1]
        forward[edge, chunk] = (arrival, run.hop_start[first])
    backward, served = reverse_in_time(schedule, nbytes), {}
    step = np.repeat(np.arange(backward.num_steps), np.diff(backward.step_ptr))
    for m in range(backward.num_messages):
        (u, v), chunk = message(backward, m)
        link = backward.edges.first_link[backward.edge[backward.message_ptr[m]]]
        served.setdefault(link, []).append((step[backward.message_ptr[m]], forward[(v, u), chunk]))
    switched = (schedule.edges.hops > 1).any()
    for messages in served.values():
        for (before, early), (after, late) in itertools.combinations(messages, 2):
            assert not switched or before == after or early >= late


@given(
    strategies.schedules(
        kinds=("all_gather", "reduce_scatter"), networks=strategies.grids(max_ranks=9)
    )
)
def test_an_all_reduce_is_the_reduce_scatter_and_then_the_all_gather(schedule):
    """Whichever is given, where links go both ways."""
    both = derive(schedule, "all_reduce")
    verify(both)
    assert both.collective.kind == "all_reduce"
    assert both.num_sends == 2 * schedule.num_sends


def message(schedule, m):
    """The ranks that a message joins, and its chunks."""
    first, end = schedule.message_ptr[m : m + 2]
    edge = schedule.edge[first]
    ranks = int(schedule.edges.src[edge]), int(schedule.edges.dst[edge])
    return ranks, tuple(sorted(schedule.chunk[first:end].tolist()))


@pytest.mark.parametrize(
    "synthesizer", [ForestColl(), MultiTree()], ids=["forestcoll", "multitree"]
)
@pytest.mark.parametrize("nbytes", [1e6, 64e6])
@pytest.mark.parametrize(
    "topology",
    [topologies.dgx_h100(2), topologies.dgx_a100(2), topologies.fat_tree(2, 3)],
    ids=["h100", "a100", "fat tree"],
)
def test_a_reduce_scatter_through_switches_takes_the_time_of_the_all_gather(
    topology, nbytes, synthesizer
):
    chunks = 16 if isinstance(synthesizer, ForestColl) else 1
    times = {}
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        collective = Collective(kind, topology.num_ranks, chunks)
        schedule = synthesizer.synthesize(topology, collective, nbytes=nbytes)
        verify(schedule)
        times[kind] = simulate(schedule, nbytes).time
    assert times["reduce_scatter"] <= 1.02 * times["all_gather"]
    assert times["all_reduce"] <= 1.02 * (times["all_gather"] + times["reduce_scatter"])


def test_of_messages_that_arrive_together_the_last_to_leave_is_the_first_to_go_back():
    """In any other order they meet at switches, which cost twice what they cost here."""
    network = topologies.fat_tree(2, 3)
    forward = ForestColl().synthesize(network, Collective("all_gather", network.num_ranks, 4))
    backward = reverse_in_time(forward, 1e9)
    assert simulate(backward, 1e9).time < 1.03 * simulate(forward, 1e9).time


@given(strategies.schedules(kinds=ONE_WAY))
def test_in_its_own_order_a_schedule_keeps_its_messages(schedule):
    same = in_order(schedule, np.arange(schedule.num_messages))
    verify(same)
    assert same.num_steps <= schedule.num_steps
    assert sorted(zip(same.edge, same.chunk, strict=True)) == sorted(
        zip(schedule.edge, schedule.chunk, strict=True)
    )


@pytest.mark.parametrize("nbytes", [0, -1.0, "x", float("nan")])
def test_bytes_to_be_ordered_for_are_checked(nbytes):
    topology = topologies.ring(3)
    with pytest.raises(CollectiveError, match="nbytes"):
        MultiTree().synthesize(topology, Collective("reduce_scatter", 3), nbytes=nbytes)
    with pytest.raises(CollectiveError, match="nbytes"):
        synthesize(topology, "all_gather", "ring", nbytes=nbytes, chunks=1)
