"""Schedules kept as one rank's tree: against the expanded ones, closed forms and refuted claims."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxcoll.bounds.moore import cost
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.synth import Bfb
from jaxcoll.synth.direct_connect import (
    GroupNetwork,
    GroupSchedule,
    bfb_cost,
    group_bfb,
    group_cost,
)
from jaxcoll.topologies import hypercube, torus
from jaxcoll.verifier import verify


@st.composite
def networks(draw: st.DrawFn) -> GroupNetwork:
    """Small abelian groups and up to four offsets that connect them."""
    moduli = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    assume(np.prod(moduli) > 1)
    row = st.tuples(*(st.integers(-5, 5) for _ in moduli))
    try:
        return GroupNetwork(moduli, tuple(draw(st.lists(row, min_size=1, max_size=4))))
    except TopologyError:
        assume(False)
        raise


@settings(max_examples=60)
@given(networks(), st.sampled_from([None, 1, 3]))
def test_the_tree_of_one_rank_says_what_the_expanded_schedule_does(network, chunks):
    schedule = group_bfb(network, chunks)
    schedule.verify()
    expanded = schedule.expand()
    verify(expanded)
    assert schedule.cost() == cost(expanded)
    assert schedule.num_steps == int(hop_distances(expanded.topology).max())
    if chunks is None:
        assert schedule.cost() == bfb_cost(expanded.topology) == group_cost(network)
        assert schedule.chunks_per_shard == Bfb.chunks(expanded.topology)
    else:
        alone = Bfb().synthesize(expanded.topology, expanded.collective)
        assert cost(alone) == schedule.cost()


def test_networks_are_those_of_the_families():
    assert GroupNetwork.torus(3, 4, 2).topology() == torus(3, 4, 2)
    assert GroupNetwork.torus(*(2,) * 4).topology() == hypercube(4)
    assert GroupNetwork.torus(3, 1, 5).topology() == torus(3, 1, 5)
    lattice = GroupNetwork.lattice([[4, 0], [0, 6]])
    assert (lattice.num_ranks, lattice.degree) == (24, 4)
    assert group_bfb(lattice).cost() == group_bfb(GroupNetwork.torus(4, 6)).cost()


def walked(network: GroupNetwork, lengths: list[int]) -> int:
    """The rank at the end of a walk from rank 0 of some links along each axis."""
    rank = 0
    for axis, length in enumerate(lengths):
        for _ in range(abs(length)):
            rank = int(network.ahead[2 * axis + (length < 0), rank])
    return rank


@pytest.mark.parametrize("sides", [(3, 6), (5, 10), (3, 3, 6), (3, 6, 6)])
def test_short_sides_of_twisted_tori_close_with_a_twist(sides):
    network = GroupNetwork.twisted_torus(*sides)
    k = sides[0]
    assert network.num_ranks == np.prod(sides)
    assert network.degree == 2 * len(sides)
    ends = {walked(network, list(point)) for point in np.ndindex(*sides)}
    assert ends == set(range(network.num_ranks))
    for axis, side in enumerate(sides):
        length = [side if a == axis else 0 for a in range(len(sides))]
        if side == k:
            length = [x - k * (s > k) for x, s in zip(length, sides, strict=True)]
        assert walked(network, length) == 0


@pytest.mark.parametrize("sides", [(2, 4), (4, 8), (7, 14), (4, 4, 8), (3, 6, 6), (5, 5, 10)])
def test_twisted_tori_are_bandwidth_optimal(sides):
    network = GroupNetwork.twisted_torus(*sides)
    found = group_bfb(network).cost()
    assert found.inverse_bandwidth == Fraction(network.num_ranks - 1, network.num_ranks)
    if sides[0] > 2:
        assert found.steps < group_bfb(GroupNetwork.torus(*sides)).cost().steps


@pytest.mark.parametrize("side", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_a_torus_of_up_to_a_quarter_million_ranks(side):
    schedule = group_bfb(GroupNetwork.torus(side, side, side))
    schedule.verify()
    assert schedule.cost().steps == 3 * side // 2
    assert schedule.cost().inverse_bandwidth == Fraction(side**3 - 1, side**3)


@pytest.mark.slow
def test_conjecture_1_is_false():
    # The dissertation (App. A.6.4) conjectures (N - 1)/N for every circulant graph.
    counterexample = group_bfb(GroupNetwork.circulant(15, (1, 4, 5))).cost()
    assert counterexample.inverse_bandwidth == 1
    for n in range(5, 30):
        for a in range(1, (n + 1) // 2):
            for b in range(a + 1, (n + 1) // 2):
                if np.gcd.reduce((n, a, b)) == 1:  # degree 4, which it proves
                    found = group_cost(GroupNetwork.circulant(n, (a, b)))
                    assert found.inverse_bandwidth == Fraction(n - 1, n)


# ---------------------------------------------------------------------- what is refused


def test_a_chunk_sent_too_early_is_found():
    schedule = group_bfb(GroupNetwork.torus(3, 4))
    late = schedule.step.copy()
    late[1] = 2
    broken = dataclasses.replace(schedule, step=late)
    with pytest.raises(ScheduleError, match="has not received it before") as caught:
        broken.verify()
    with pytest.raises(ScheduleError):
        verify(broken.expand())
    assert caught.value.rank == 1
    for step in (np.zeros(12, np.int64), np.where(schedule.step == 2, -1, schedule.step)):
        with pytest.raises(ScheduleError, match="-1 for rank 0"):
            dataclasses.replace(schedule, step=step).verify()


@settings(max_examples=60)
@given(networks(), st.data())
def test_any_change_is_judged_as_the_expanded_schedule_is(network, data):
    schedule = group_bfb(network, 2)
    rank = data.draw(st.integers(1, network.num_ranks - 1))
    step, via = schedule.step.copy(), schedule.via.copy()
    if data.draw(st.booleans()):
        step[rank] = data.draw(st.integers(0, schedule.num_steps))
    else:
        via[rank, 0] = data.draw(st.integers(0, network.degree - 1))
    changed = GroupSchedule(network, step, via)

    def is_sound(check) -> bool:
        try:
            check()
        except ScheduleError:
            return False
        return True

    assert is_sound(changed.verify) == is_sound(lambda: verify(changed.expand()))


TORUS = GroupNetwork.torus(3, 3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: GroupNetwork((), ()), TopologyError, "moduli"),
        (lambda: GroupNetwork((10**4, 10**4), ((1, 0),)), TopologyError, "4194304"),
        (lambda: GroupNetwork((6,), ((2,),)), TopologyError, "one rank in 2"),
        (lambda: GroupNetwork((6,), ((6,),)), TopologyError, "itself"),
        (lambda: GroupNetwork((6, 2), ((1,),)), TopologyError, "2 integers"),
        (lambda: GroupNetwork((6,), ()), TopologyError, "one rank in 6"),
        (lambda: GroupNetwork.circulant(12, (3, 6)), TopologyError, "take 5 for 6"),
        (lambda: GroupNetwork.circulant(9, (3,)), TopologyError, "take 2 for 3"),
        (lambda: GroupNetwork.circulant(10, (1, 5)), TopologyError, "n/2.*take 4 for 5"),
        (lambda: GroupNetwork.circulant(10, ()), TopologyError, "offsets"),
        (lambda: GroupNetwork.twisted_torus(4, 4), TopologyError, r"\(4, 8\)"),
        (lambda: GroupNetwork.twisted_torus(), TopologyError, r"\(2, 4\)"),
        (lambda: GroupNetwork.lattice([[1, 2], [2, 4]]), TopologyError, "full rank"),
        (lambda: GroupNetwork.lattice([[1, 2]]), TopologyError, "k rows"),
        (lambda: group_bfb(TORUS, 0), CollectiveError, "at least 1"),
        (lambda: group_bfb(GroupNetwork((1,), ())), TopologyError, "2 ranks"),
        (lambda: group_bfb(GroupNetwork.torus(300, 300), 1).expand(), CollectiveError, "sends"),
        (lambda: group_bfb(torus(3, 3)), TopologyError, "GroupNetwork"),  # type: ignore[arg-type]
        (
            lambda: GroupSchedule(TORUS, np.zeros(8, int), np.zeros((9, 1), np.uint8)),
            ScheduleError,
            "9 integers",
        ),
        (
            lambda: GroupSchedule(TORUS, np.full(9, 10**12), np.zeros((9, 1), np.uint8)),
            ScheduleError,
            "steps are -1..9",
        ),
        (
            lambda: GroupSchedule(TORUS, np.zeros(9, int), np.full((9, 1), 4, np.uint8)),
            ScheduleError,
            "0..3",
        ),
        (
            lambda: GroupSchedule(TORUS, np.zeros(9, int), np.zeros(9, np.uint8)),
            ScheduleError,
            "uint8 of shape",
        ),
    ],
)
def test_bad_input_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
