"""Colouring: proper, with exactly the largest degree many colours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics.edge_colouring import colour_messages, max_degree

MESSAGES = st.integers(1, 9).flatmap(
    lambda n: st.lists(
        st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(1, 5)), max_size=60
    )
)


def columns(messages):
    return np.asarray(messages, np.int64).reshape(-1, 3).T


@given(MESSAGES)
def test_a_colour_is_a_partial_permutation_and_colours_are_the_fewest(messages):
    src, dst, size = columns(messages)
    colour = colour_messages(src, dst, size)
    assert len(np.unique(colour)) == max_degree(src, dst)
    for c in np.unique(colour):
        chosen = colour == c
        assert len(np.unique(src[chosen])) == len(np.unique(dst[chosen])) == chosen.sum()


@given(MESSAGES, st.randoms(use_true_random=False))
def test_order_of_distinct_messages_does_not_matter(messages, random):
    messages = list({m[:2]: m for m in messages}.values())
    src, dst, size = columns(messages)
    order = list(range(len(messages)))
    random.shuffle(order)
    again = colour_messages(src[order], dst[order], size[order])
    assert np.array_equal(colour_messages(src, dst, size)[order], again)


def test_like_sizes_share_a_round():
    # Each rank sends a long message to the right and a short one to the left.
    n = 6
    src = np.tile(np.arange(n), 2)
    dst = np.concatenate([(np.arange(n) + 1) % n, (np.arange(n) - 1) % n])
    size = np.repeat([4, 1], n)
    assert np.array_equal(colour_messages(src, dst, size), np.repeat([0, 1], n))


@given(st.integers(3, 12).flatmap(lambda n: st.permutations(range(n))))
def test_both_ways_around_a_circle_are_two_rounds_of_one_way_each(circle):
    src = np.concatenate([circle, np.roll(circle, -1)])
    dst = np.concatenate([np.roll(circle, -1), circle])
    colour = colour_messages(src, dst)
    assert len(set(colour[: len(circle)])) == len(set(colour[len(circle) :])) == 1


def test_swapping_is_needed_here():
    # First fit needs three colours; the path through (1, 1) and (0, 1) must be exchanged.
    src, dst = np.asarray([0, 1, 1, 0]), np.asarray([0, 1, 0, 1])
    assert set(colour_messages(src, dst)) == {0, 1}


def test_refusals():
    with pytest.raises(ScheduleError, match="one value per message"):
        colour_messages(np.zeros(2), np.zeros(3))
    with pytest.raises(ScheduleError, match="from 0"):
        colour_messages(np.asarray([-1]), np.asarray([0]))
    assert (
        len(colour_messages(np.zeros(0), np.zeros(0))) == max_degree(np.zeros(0), np.zeros(0)) == 0
    )
