"""Between measured rows: laws that lines must find exactly, and nothing outside of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.measured import Curve
from jaxcoll.measured.native import at, at_size, rising


def curve(sizes, law, ranks=8, step=0.0) -> Curve:
    nbytes = np.asarray(sizes, np.int64)
    ns = np.asarray([round(1e9 * law(size)) for size in sizes], np.int64)
    return Curve("h100-host", "all_gather", ranks, nbytes, ns, step=step)


@given(
    st.floats(1e-6, 1e-3), st.floats(1e9, 1e12),
    st.lists(st.integers(1, 2**35), min_size=2, max_size=20, unique=True), st.data(),
)  # fmt: skip
def test_a_start_up_and_a_speed_are_found_exactly(alpha, bandwidth, sizes, data):
    known = curve(sorted(sizes), lambda n: alpha + n / bandwidth)
    nbytes = data.draw(st.integers(min(sizes), max(sizes)))
    found = at_size(known, nbytes)
    assert found is not None
    assert found.seconds == pytest.approx(alpha + nbytes / bandwidth, abs=2e-9)
    # The rows that it lies between, or the one that it is.
    assert found.is_measured == (nbytes in sizes)
    assert found.rows[0].nbytes <= nbytes <= found.rows[-1].nbytes
    between = {n for n in sizes if found.rows[0].nbytes < n < found.rows[-1].nbytes}
    assert between == set()


def test_nothing_is_said_outside_of_the_rows():
    known = curve([2**10, 2**20], lambda n: 1e-5 + n / 1e9)
    for nbytes in (1, 921, 1154000, 2**40):
        assert at_size(known, nbytes) is None
        assert at([known], nbytes, 8, near=True) is None
    assert at([known], 2**15, 7) is None
    assert at([known], 2**15, 16) is None
    assert at([], 2**15, 8) is None


@pytest.mark.parametrize(("nbytes", "row"), [(922, 2**10), (2**10 - 1, 2**10), (2**20 + 9, 2**20)])
def test_a_size_near_the_smallest_or_largest_counts_as_that(nbytes, row):
    known = curve([2**10, 2**20], lambda n: 1e-5 + n / 1e9)
    found, same = at_size(known, nbytes, near=True), at_size(known, row)
    assert at_size(known, nbytes) is None
    assert found is not None
    assert found == same
    assert found.rows[0].nbytes == row


@given(st.floats(0.1, 1.5), st.integers(2, 72))
def test_a_power_of_the_ranks_is_found_exactly(power, ranks):
    curves = [curve([2**10, 2**20], lambda n, k=k: 1e-3 * k**power, k) for k in (2, 8, 72)]
    found = at(curves, 2**12, ranks)
    assert found is not None
    assert found.seconds == pytest.approx(1e-3 * ranks**power, rel=1e-5)
    low = max(each.ranks for each in curves if each.ranks <= ranks)
    assert {row.curve.ranks for row in found.rows} <= {low, 2, 8, 72}


def test_of_several_curves_on_the_same_ranks_the_first_counts():
    first, second = (curve([1, 2**20], lambda n, k=k: k * 1e-3) for k in (1, 2))
    found = at([first, second], 2**10, 8)
    assert found is not None
    assert found.seconds == pytest.approx(1e-3)


def test_rounding_is_stated():
    rough = curve([2**10, 2**20], lambda n: 1e-4, step=1e7)
    found = at_size(rough, 2**10)
    assert found is not None
    assert found.uncertainty == pytest.approx(0.5e7 / (2**10 / 1e-4))


TIMES = st.lists(st.integers(1, 10**6), min_size=1, max_size=12)


@given(TIMES, st.integers(0, 12))
def test_times_below_1_mib_rise_and_rise_by_the_least_change(times, small):
    small = min(small, len(times))
    sizes = np.asarray([*range(1, small + 1), *range(2**20, 2**20 + len(times) - small)])
    seconds = np.asarray(times, float)
    found = rising(sizes, seconds)
    assert (np.diff(found[:small]) >= 0).all()
    assert (found[small:] == seconds[small:]).all()
    if (np.diff(seconds[:small]) >= 0).all():
        assert (found == seconds).all()
    # No rising sequence of measured values is nearer, by brute force over short ones.
    if 0 < small <= 5:
        change = abs(found[:small] - seconds[:small]).sum()
        values = sorted(set(times[:small]))
        ways = itertools.combinations_with_replacement(values, small)
        least = min(abs(np.asarray(way) - seconds[:small]).sum() for way in ways)
        assert change <= least + 1e-6


def test_a_cold_first_row_does_not_reach_the_second():
    cold = Curve(
        "h100-host", "all_gather", 8, np.asarray([2**10, 2**12, 2**14]),
        np.asarray([100_000, 12_000, 13_000]),
    )  # fmt: skip
    between = at_size(cold, 2**13)
    assert between is not None
    assert 12e-6 <= between.seconds <= 13.001e-6
    (first,) = [at_size(cold, 2**10)]
    assert first is not None
    assert first.seconds == pytest.approx(100e-6)  # a row itself is what was measured
