"""The schedule of a call: as the argument says, for the ranks, on the stated network."""

from __future__ import annotations

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import Collective, Schedule, topologies
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.choice import choose, on_network, stated
from jaxcoll.execute.layout import Axes
from jaxcoll.synth import Ring, synthesize

FOUR = Axes(("x",), (4,), ("x",))
PAIRS = ((0, 1), (2, 3))
STAR = topologies.star(4)


def test_functions_and_names_are_given_the_default_topology_and_the_collective():
    seen = []

    def made(topology, collective):
        seen.append((topology, collective))
        return synthesize(topology, collective, "ring")

    schedule = choose(made, "all_gather", FOUR, PAIRS)
    ((topology, collective),) = seen
    assert (topology.num_ranks, collective) == (4, Collective("all_gather", 4, groups=PAIRS))
    assert schedule.collective == collective
    assert choose("ring", "all_gather", FOUR, PAIRS) == schedule
    assert choose(Ring(), "all_gather", FOUR, PAIRS) == schedule


@pytest.mark.parametrize(("groups", "size"), [(None, 4), (PAIRS, 2)])
def test_by_default_shards_from_96_kibibytes_on_go_round_a_ring(groups, size):
    """The bytes of the call are those of all shards of a group; those not given are few."""
    few, many = (choose(None, "all_gather", FOUR, groups, nbytes=size * b) for b in (98303, 98304))
    assert (few.provenance.synthesizer, many.provenance.synthesizer) == ("bucket", "ring")
    assert choose(None, "all_gather", FOUR, groups) == few


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Ring, r"the class Ring; give one of its instances"),
        (lambda topology: None, "cannot be called with"),
        (dict, "the class dict"),
        (lambda topology, collective: 7, "returned int, not a Schedule"),
        (3, "got int"),
    ],
)
def test_other_choices_are_refused(choice, said):
    with pytest.raises(ScheduleError, match=said):
        choose(choice, "all_gather", FOUR)


def test_a_function_that_says_nothing_of_its_arguments_is_called():
    """As some written in C: whatever is wrong with them is their own error."""
    with pytest.raises(TypeError, match="not supported between instances of"):
        choose(max, "all_gather", FOUR)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ((0, 1), "must be lists of indices"),
        (((0, 1), (2,)), "name every index of .* exactly once"),
        (((0, 1), (1, 2, 3)), "name every index of .* exactly once"),
        (((0,), (1, 2, 3)), "must be of equal size"),
    ],
)
def test_groups_cover_the_ranks_in_equal_numbers(groups, said):
    with pytest.raises(CollectiveError, match=said):
        choose(None, "all_gather", FOUR, groups)
    assert choose("ring", "all_gather", FOUR, [np.array([1, 0]), (3, 2)]).num_sends == 4


@pytest.mark.parametrize("ranks", [3, 5])
def test_a_schedule_is_for_as_many_ranks(ranks):
    schedule = synthesize(topologies.ring(ranks), "all_gather", "ring", chunks=1)
    with pytest.raises(ScheduleError, match=f"is for {ranks} ranks, but .* has 4; synth"):
        choose(schedule, "all_gather", FOUR)


def test_a_schedule_is_for_the_groups_and_the_root_of_the_call():
    ring = topologies.ring(4)
    whole = synthesize(ring, "all_gather", "ring", chunks=1)
    parts = synthesize(ring, "all_gather", "ring", chunks=1, groups=PAIRS)
    named = "one group of all ranks in order"
    with pytest.raises(ScheduleError, match=rf"is for groups {named}, but .* asks for \(\(0, 1\)"):
        choose(whole, "all_gather", FOUR, PAIRS)
    with pytest.raises(ScheduleError, match=rf"is for groups \(\(0, 1\).*, but .* for {named};"):
        choose(parts, "all_gather", FOUR)
    rooted = synthesize(ring, Collective("broadcast", 4, root=2), "forestcoll")
    assert choose(rooted, "broadcast", FOUR, root=2) == rooted
    with pytest.raises(ScheduleError, match="has root 2, but the call asks for 1"):
        choose(rooted, "broadcast", FOUR, root=1)


def _place() -> stated.Place:
    return stated.place("all_gather", FOUR, None, None)


def test_synthesizers_run_on_the_stated_network_for_the_bytes_of_the_call():
    assert on_network(None, _place(), 0) is None
    assert on_network("ring", _place(), 0) == Ring()
    auto = on_network("auto", _place(), 0)  # of an empty operand
    assert isinstance(auto, Schedule)
    assert auto.topology == choose("auto", "all_gather", FOUR).topology
    with jc.use_topology(STAR):
        for name in ("ring", "auto"):
            found = on_network(name, _place(), 4)
            assert isinstance(found, Schedule)
            assert found.topology == STAR
            assert found.collective.kind == "all_gather"
        assert on_network("ring", _place(), 4) == synthesize(STAR, "all_gather", "ring", chunks=1)
