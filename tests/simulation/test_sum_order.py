"""Orders of addition: against nested brackets in pure Python, and of the schedules people use."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from jaxcoll import Collective, Schedule, synthesize, topologies
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.kinds import those
from jaxcoll.simulation import sum_orders
from jaxcoll.synth import Halving, Rhd
from tests import strategies

REDUCING = those(lambda kind: kind.adds)


def brackets(schedule) -> int:
    """``sum_orders``, by what each rank holds as a tree: frozensets of two, places at the leaves.

    Unordered pairs of equal parts cannot occur: every contribution is added once.
    """
    collective = schedule.collective
    places = {rank: i for group in collective.groups for i, rank in enumerate(group)}
    held: dict[tuple[int, int], object] = {
        (rank, chunk): places[rank]
        for rank in range(collective.num_ranks)
        for chunk in range(collective.num_chunks)
        if collective.precondition()[rank, chunk]
    }
    for t in range(schedule.num_steps):
        sends = range(schedule.step_ptr[t], schedule.step_ptr[t + 1])
        ends = [(int(schedule.src[i]), int(schedule.dst[i]), int(schedule.chunk[i])) for i in sends]
        moved = [held[u, c] for u, _, c in ends]
        for i, (u, _, c) in zip(sends, ends, strict=True):
            if schedule.reduce[i]:
                held.pop((u, c), None)
        into = [(v, c) for _, v, c in ends]
        for i, place, value in zip(sends, into, moved, strict=True):
            if schedule.reduce[i] and place in held:
                held[place] = frozenset((held[place], value))
            else:
                held[place] = value
        for place in into:
            if into.count(place) > 1:
                held[place] = ("either way", *place)
    wanted = collective.postcondition()
    found = [set() for _ in collective.groups]
    for (rank, chunk), value in held.items():
        if wanted[rank, chunk]:
            found[collective.group_of_chunk[chunk]].add(value)
    return max(map(len, found))


@given(strategies.schedules(kinds=tuple(REDUCING)))
def test_orders_are_those_of_nested_brackets(schedule):
    orders = sum_orders(schedule)
    event(f"one order: {orders == 1}")
    assert orders == brackets(schedule)


@given(
    strategies.topologies(max_ranks=20, switches=True),
    st.integers(1, 3),
    st.sampled_from(["reduce_scatter", "all_reduce"]),
)
def test_halving_has_one_order_on_any_network(network, chunks, kind):
    n = network.num_ranks
    schedule = Halving().synthesize(network, Collective(kind, n, chunks))
    assert sum_orders(schedule) == 1
    assert schedule.num_steps == (n - 1).bit_length() * (2 if kind == "all_reduce" else 1)
    assert schedule.num_sends == n * chunks * (n - 1) * (2 if kind == "all_reduce" else 1)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_halving_of_powers_of_two_is_rhd_with_far_partners_first(n):
    network = topologies.hypercube(n.bit_length() - 1)
    ours, rhd = (synthesize(network, "all_gather", s) for s in (Halving(), Rhd(far_first=True)))
    assert sorted(zip(ours.step, ours.edge, ours.chunk, strict=True)) == sorted(
        zip(rhd.step, rhd.edge, rhd.chunk, strict=True)
    )


# What docs/execution.md says: on 8 ranks, a torus of 2x4, with one chunk per shard and with two.
ONE_ORDER = {"bruck": (1, 1), "halving": (1, 1), "rhd": (1, 1)}
SEVERAL = ("ring", "bucket", "direct", "swing", "double_binary_tree", "multitree", "tacos")


@pytest.mark.parametrize("name", [*ONE_ORDER, *SEVERAL, "forestcoll", "bfb", "blueconnect"])
def test_the_schedules_that_the_docs_name(name):
    network = topologies.torus(2, 4)
    orders = tuple(
        sum_orders(synthesize(network, "all_reduce", name, chunks=chunks, seed=0))
        for chunks in (1, 2)
    )
    assert orders == ONE_ORDER.get(name, orders)
    assert (max(orders) == 1) == (name in ONE_ORDER)


def test_two_arrivals_of_one_step_are_an_order_of_the_chunk_alone():
    """Both ends of a line send to its middle in one step, of both chunks: nobody says which first.

    One after the other they add in one order, the same for both chunks.
    """
    collective = Collective("reduce", 3, 2, ((1, 0, 2),))
    network = topologies.mesh(3)
    link = {pair: i for i, pair in enumerate(zip(network.src, network.dst, strict=True))}
    ends, chunks = [link[0, 1]] * 2 + [link[2, 1]] * 2, [0, 1, 0, 1]
    for steps, orders in (([0] * 4, 2), ([0, 0, 1, 1], 1)):
        schedule = Schedule.from_sends(network, collective, steps, ends, chunks)
        assert sum_orders(schedule) == brackets(schedule) == orders


def test_a_gather_adds_nothing():
    schedule = synthesize(topologies.ring(4), "all_gather", "ring")
    with pytest.raises(CollectiveError, match="adds nothing"):
        sum_orders(schedule)


def test_claims_without_sends_are_refused_at_once():
    what = Collective("all_reduce", 2, 2**29)
    nothing = Schedule.from_sends(topologies.ring(2), what, [], [], [], [])
    with pytest.raises(ScheduleError, match=r"take at least .* sends; the schedule has 0"):
        sum_orders(nothing)
