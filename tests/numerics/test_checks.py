"""The checks of arguments: accepted values, results, and messages of refusals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from jaxcoll import synth
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.asarray(3)])
def test_integers_of_numpy_are_integers(value):
    found = checks.integer(value, "k", CollectiveError, least=1, most=3)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("value", [True, np.True_, 3.0, "3", None, [3], np.asarray([3, 4])])
def test_booleans_floats_and_strings_are_no_integers(value):
    with pytest.raises(CollectiveError, match="k must be an integer, got"):
        checks.integer(value, "k", CollectiveError)


def test_limits_of_integers():
    with pytest.raises(TopologyError, match="k must be an integer of at least 1, got 0"):
        checks.integer(0, "k", TopologyError, least=1)
    with pytest.raises(TopologyError, match="k must be an integer of at most 3, got 4"):
        checks.integer(4, "k", TopologyError, most=3)


@pytest.mark.parametrize(
    ("value", "kind"), [(2, int), (np.int32(2), int), (2.5, float), (np.float32(2.5), float)]
)
def test_numbers_come_back_plain(value, kind):
    found = checks.positive(value, "nbytes", CollectiveError)
    assert (found, type(found)) == (value, kind)


@pytest.mark.parametrize(
    "value",
    [0, -1, math.nan, math.inf, True, "1", None, 10**400, Fraction(1, 10**400), np.zeros(2), 1j],
)
def test_what_is_not_above_0_is_refused(value):
    with pytest.raises(CollectiveError, match="nbytes must be a finite number above 0"):
        checks.positive(value, "nbytes", CollectiveError)


def test_nonnegative_numbers_and_probabilities():
    assert checks.nonnegative(0, "alpha", TopologyError) == 0
    assert checks.probability(Fraction(1, 3), "p", TopologyError) == Fraction(1, 3)
    for value in (-0.5, 1.5, math.nan, False):
        with pytest.raises(TopologyError, match="p must be a number from 0 to 1"):
            checks.probability(value, "p", TopologyError)
    with pytest.raises(TopologyError, match="alpha must be a finite number of at least 0"):
        checks.nonnegative(-1e-9, "alpha", TopologyError)


def test_strings_are_no_sequences_and_long_ranges_are_not_written_out():
    assert checks.integers(range(3), "ranks", TopologyError) == (0, 1, 2)
    for values in ("012", b"01", 3, None, iter((1, 2)), {1, 2}):
        with pytest.raises(TopologyError, match="ranks must be a sequence"):
            checks.integers(values, "ranks", TopologyError)
    with pytest.raises(TopologyError, match="at most 67108864 items"):
        checks.integers(range(10**12), "ranks", TopologyError)
    with pytest.raises(TopologyError, match=r"ranks\[1\] must be an integer, got True"):
        checks.integers((0, True), "ranks", TopologyError)


def test_a_failing_repr_does_not_hide_the_error():
    class Bad:
        def __repr__(self):
            raise RuntimeError

    with pytest.raises(TopologyError, match="a Bad whose repr raises RuntimeError"):
        checks.integer(Bad(), "n", TopologyError)


def test_synthesizers_take_what_numpy_counts_and_keep_it_plain():
    two: Any = np.int64(2)
    assert synth.ForestColl(k=two) == synth.ForestColl(k=2)
    assert type(synth.Tacos(attempts=two).attempts) is int
    for make in (
        lambda: synth.Swing(pieces=True),
        lambda: synth.Swing(pieces="a"),  # type: ignore[arg-type]
        lambda: synth.ForestColl(nbytes=True),
        lambda: synth.ForestColl(nbytes="x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(CollectiveError):
            make()
