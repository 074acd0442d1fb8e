"""The bit operations and random numbers that compiled kernels are built on."""

from __future__ import annotations

import numba as nb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.synth.tacos import bits


@nb.njit
def _measure(word):
    return bits.lowest_bit(word), bits.count_bits(word)


@nb.njit
def _numbers(x, count, draws):
    found = np.empty(draws, np.int64)
    for i in range(draws):
        x = bits.next_random(x)
        found[i] = bits.random_below(x, count)
    return found


@nb.njit
def _bit(i):
    return bits.bit_of(i)


@given(st.integers(1, 2**64 - 1))
def test_bits_of_a_word(word):
    lowest, count = _measure(np.uint64(word))
    assert lowest == (word & -word).bit_length() - 1
    assert count == word.bit_count()


@given(st.integers(0, 10**6))
def test_a_bit_is_counted_from_the_start_of_its_word(i):
    assert _bit(i) == 1 << i % 64


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 512])
def test_numbers_are_in_range_and_about_equally_frequent(count):
    draws = 2000 * count
    frequency = np.bincount(_numbers(np.uint64(88172645463325252), count, draws))
    assert len(frequency) == count
    # Ten standard deviations of a binomial with mean 2000.
    assert (abs(frequency - 2000) < 450).all()


@nb.njit
def _draws(words, seed, draws):
    x, found = seed, np.zeros(64 * len(words), np.int64)
    for _ in range(draws):
        x = bits.next_random(x)
        found[bits.draw_bit(words, 4, x)] += 1
    return found


@given(st.sets(st.integers(0, 255), min_size=1), st.integers(1, 2**64 - 1))
def test_a_bit_drawn_is_one_of_those_set_each_about_as_often(chosen, seed):
    words = np.zeros(4, np.uint64)
    for i in chosen:
        words[i // 64] |= np.uint64(1 << i % 64)
    draws = 400 * len(chosen)
    found = _draws(words, np.uint64(seed), draws)
    assert set(np.flatnonzero(found).tolist()) == chosen
    # Ten standard deviations of a binomial with mean 400.
    assert (abs(found[sorted(chosen)] - 400) < 200).all()
