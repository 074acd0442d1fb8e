"""Heaps in columns, against Python's ``heapq``."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.numerics import heap

PAIRS = st.tuples(st.integers(0, 5), st.integers(0, 20))
ACTIONS = st.lists(st.tuples(st.sampled_from(["push", "pop", "replace"]), PAIRS), max_size=60)


@given(ACTIONS, st.integers(0, 3))
def test_the_least_pair_stands_first(actions, first):
    """After any pushes, pops and replacements, whatever the part of the columns."""
    key, item = (np.full(first + len(actions) + 1, -1, np.int64) for _ in range(2))
    expected: list[tuple[int, int]] = []
    size = 0
    for action, (value, number) in actions:
        if action == "push":
            size = heap.push(key, item, first, size, value, number)
            heapq.heappush(expected, (value, number))
        elif expected and action == "pop":
            size = heap.pop(key, item, first, size)
            heapq.heappop(expected)
        elif expected:
            heap.replace(key, item, first, size, value, number)
            heapq.heapreplace(expected, (value, number))
        assert size == len(expected)
        if expected:
            assert (key[first], item[first]) == expected[0]
    assert (key[:first] == -1).all()
    assert (item[:first] == -1).all()
