"""Exact numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.numerics.rational import as_fraction, common_denominator, fits_float

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5e-6, Fraction(1, 2_000_000)),
        (0.1, Fraction(1, 10)),
        (-2.5, Fraction(-5, 2)),
        (1e300, Fraction(10**300)),
        (7, Fraction(7)),
        (2**70, Fraction(2**70)),
        (np.int32(7), Fraction(7)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.float32(0.5), Fraction(1, 2)),
        (Fraction(299993, 24989), Fraction(299993, 24989)),
    ],
)
def test_numbers_denote_what_they_print(value, expected):
    assert as_fraction(value) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_numbers_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match=f"finite number, got {value}"):
        as_fraction(value)


@pytest.mark.parametrize("value", ["1", None, 1j, [1]])
def test_what_is_not_a_number_is_refused(value):
    with pytest.raises(ValueError, match=f"of type {type(value).__name__}"):
        as_fraction(value)


@given(FINITE)
def test_floats_go_there_and_back(value):
    assert float(as_fraction(value)) == value
    assert fits_float(as_fraction(value))


@given(st.fractions())
def test_what_fits_a_float_goes_there_and_back(value):
    assert fits_float(value) == (as_fraction(float(value)) == value)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (Fraction(1, 3), False),
        (Fraction(299993, 24989), False),
        (Fraction(1, 10), True),
        (Fraction(2**53 + 1), False),
        (Fraction(10**400), False),
        (Fraction(1, 10**400), False),
        (Fraction(50 * 10**9), True),
    ],
)
def test_which_rationals_fit_a_float(value, fits):
    assert fits_float(value) is fits


@given(st.lists(st.fractions(max_denominator=10**6), max_size=8))
def test_common_denominator_is_the_least(values):
    denominator = common_denominator(values)
    assert all((denominator * value).denominator == 1 for value in values)
    for prime in (2, 3, 5, 7, 11, 13):
        if denominator % prime == 0:
            smaller = denominator // prime
            assert any((smaller * value).denominator != 1 for value in values)
