"""Trivance: a third of the steps of a ring's logarithm, and the least bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.errors import CollectiveError
from jaxcoll.synth import Trivance, synthesize
from tests.synth.loads import link_loads, sent


def logarithm(n: int) -> int:
    """The least k with 3**k of at least n, counted in integers."""
    return next(k for k in range(64) if 3**k >= n)


@given(st.integers(2, 90), st.booleans())
def test_steps_are_the_logarithm_to_the_base_of_three(n, near_first):
    schedule = synthesize(topologies.ring(n), "all_gather", Trivance(near_first), chunks=2)
    assert schedule.num_steps == logarithm(n)
    assert set(sent(schedule)) == {2 * (n - 1)}


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3))
def test_steps_of_a_torus_are_those_of_its_rings(sides):
    topology = topologies.torus(*sides)
    for kind, phases in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        schedule = synthesize(topology, kind, Trivance(), chunks=len(sides))
        assert schedule.num_steps == phases * sum(map(logarithm, sides))


def test_from_far_to_near_messages_cross_fewer_links():
    """On 3**k ranks: 3**(k-1) chunks k times over against 1 + 9 + ... + 9**(k-1) each way."""
    topology = topologies.ring(27)
    far, near = (
        set(link_loads(synthesize(topology, "all_gather", Trivance(first), chunks=1)))
        for first in (False, True)
    )
    assert far == {3 * 9}
    assert near == {1 + 9 + 81}


def test_a_rank_exchanges_with_two_partners_in_each_step():
    schedule = synthesize(topologies.fully_connected(9), "all_gather", Trivance(), chunks=1)
    for step, distance in enumerate((3, 1)):
        now = schedule.step == step
        ahead = (schedule.dst[now] - schedule.src[now]) % 9
        assert set(ahead.tolist()) == {distance, 9 - distance}


def test_pieces_are_checked():
    with pytest.raises(CollectiveError, match="pieces must be an integer of at least 1"):
        Trivance(pieces=0)
