"""Prices under other speeds: those that are not simulated are equal to simulated ones."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.calibration import calibrate
from jaxcoll.io.timings import Timing, Timings
from jaxcoll.progress import Progress

# ``jaxcoll.calibration.fit`` is the function of that name.
fitting = sys.modules["jaxcoll.calibration.fit"]

NETWORK = jc.topologies.nvswitch_hosts((2, 2), inside=300e9, network=25e9)
NAMES = (("ring", 1), ("ring", 4), ("halving", 1), ("hierarchical_ring", 2))
MADE = [jc.synthesize(NETWORK, "all_reduce", name, chunks=chunks) for name, chunks in NAMES]
POINTS = [Timing("all_reduce", 4, size, 1e-3) for size in (2**10, 2**17, 2**20, 2**28)]


def prices():
    kind = NETWORK.speeds[1]
    return fitting._Prices(NETWORK, kind, POINTS, [MADE] * len(POINTS))


def near(speeds: list[float]) -> np.ndarray:
    """Logarithms of latencies and inverse bandwidths, some factors from those of the network."""
    assumed = np.asarray([(float(a), 1 / float(b)) for a, b in NETWORK.speeds[0]])
    return np.log(assumed).ravel() + speeds


SPEEDS = st.lists(st.floats(-2, 2), min_size=4, max_size=4)


@settings(max_examples=15)
@given(st.lists(SPEEDS, min_size=2, max_size=5))
def test_prices_that_are_left_out_are_not_the_least(series):
    known = prices()
    for speeds in map(near, series):
        found, fastest = known.at(speeds)
        fresh, chosen = prices().at(speeds)
        assert found.tolist() == fresh.tolist()
        every = [[known.at(speeds, [k] * 4)[0][i] for k in range(4)] for i in range(4)]
        assert [each[k] for each, k in zip(every, fastest, strict=True)] == [
            each[k] for each, k in zip(every, chosen, strict=True)
        ]


@settings(max_examples=15)
@given(st.lists(SPEEDS, min_size=1, max_size=3))
def test_slopes_by_paths_are_those_of_prices(series):
    known = prices()
    for speeds in map(near, series):
        _, chosen = known.at(speeds)
        found = known.slopes(speeds, np.eye(4), chosen)
        step = 1e-6
        for k, way in enumerate(np.eye(4)):
            now = prices().at(speeds, chosen)[0]
            below, above = (
                (prices().at(speeds + sign * step * way, chosen)[0] - now) / (sign * step)
                for sign in (-1, 1)
            )
            # Where two paths take equally long, the slope is that of either.
            assert (found[:, k] >= np.minimum(below, above) - 1e-3).all()
            assert (found[:, k] <= np.maximum(below, above) + 1e-3).all()
        # A price is a sum of its charges: all of them larger by 1 % make it larger by 1 %.
        assert found.sum(axis=1) == pytest.approx(np.ones(4))


def test_a_second_look_simulates_nothing(monkeypatch):
    known, speeds = prices(), near([0.1, 0.2, -0.1, 0.3])
    _, chosen = known.at(speeds)
    slopes = known.slopes(speeds, np.eye(4), chosen)

    def refused(*_):
        raise AssertionError("simulated again")

    monkeypatch.setattr(fitting, "simulate", refused)
    assert known.at(speeds)[1] == chosen
    assert known.slopes(speeds, np.eye(4), chosen).tolist() == slopes.tolist()


def test_a_fit_tells_how_far_it_is():
    rows = [
        Timing("all_gather", 4, size, 5e-6 + size / 30e9, "ring", 1)
        for size in (2**16, 2**20, 2**24, 2**26)
    ]
    told: list[Progress] = []
    calibrate(Timings(tuple(rows)), jc.topologies.switch(4), progress=told.append)
    assert [each.done for each in told] == list(range(1, len(told) + 1))
    said = " ".join(each.what for each in told)
    assert "chose a schedule of 65536 bytes" in said
    assert "fitted the links by another step" in said
    assert "priced 16777216 bytes, which were held out" in said
