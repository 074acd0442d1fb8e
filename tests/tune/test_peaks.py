"""Elliptical peaks fitted to few measurements."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll.tune.models.peaks import Peaks
from jaxcoll.tune.search import Fitted
from tests.tune.searching import SPACE, finish

EXTENTS = (3.0, 2.0, 4.0)
METRIC = np.array([[0.5, 0.1, 0.0], [0.1, 0.4, -0.1], [0.0, -0.1, 0.3]])


def _seconds(points, optimum, power):
    """The fastest time is 1, its logarithm 0."""
    away = points - optimum
    return 1 + np.einsum("pi,ij,pj->p", away, METRIC, away) ** power


def _drawn(count: int, seed: int):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (count, 3)) * EXTENTS


@pytest.mark.parametrize("power", [0.6, 1.0, 1.3])
def test_a_peak_is_found_from_few_measurements(power):
    optimum, points = np.array([0.6, -0.4, 0.9]), _drawn(30, 1)
    peaks = Peaks(EXTENTS, [0])
    peaks.take(points, np.log(_seconds(points, optimum, power)))
    grid = _drawn(4000, 2)
    predicted = peaks.predict(grid).mean(axis=0)
    reached = _seconds(grid[[predicted.argmin()]], optimum, power)[0]
    assert reached < 1.05 * _seconds(grid, optimum, power).min()


def test_fits_agree_where_much_was_measured_and_differ_elsewhere():
    points = _drawn(12, 3) * (0.2, 1, 1)
    peaks = Peaks(EXTENTS, [0])
    peaks.take(points, np.log(_seconds(points, np.zeros(3), 1.0)))
    near, far = (
        peaks.predict(at).std(axis=0).mean() for at in (points, points + np.array([1.5, 0, 0]))
    )
    assert near < 0.05 < 0.2 < far


def test_measurements_taken_one_by_one_improve_the_fits():
    points = _drawn(25, 4)
    logs = np.log(_seconds(points, np.array([0.5, 0.5, -0.5]), 0.8))
    one, all_at_once = Peaks(EXTENTS, [0]), Peaks(EXTENTS, [0])
    for point, log in zip(points, logs, strict=True):
        one.add(point, float(log))
    all_at_once.take(points, logs)
    for peaks in (one, all_at_once):
        assert np.abs(peaks.predict(points).mean(axis=0) - logs).max() < 0.05
    np.testing.assert_allclose(one.shape, all_at_once.shape, atol=0.3)


def test_derivatives_are_those_of_the_residuals():
    points = _drawn(6, 5)
    peaks = Peaks(EXTENTS, [0], size=4)
    peaks.take(points, np.log(_seconds(points, np.zeros(3), 1.0)))
    fits = peaks.fits + 0.1
    _, derivatives = peaks._linearize(fits)
    for constant in range(fits.shape[1]):
        change = np.zeros(fits.shape[1])
        change[constant] = 1e-6
        above, below = (peaks._linearize(fits + sign * change)[0] for sign in (1, -1))
        np.testing.assert_allclose(
            derivatives[:, :, constant], (above - below) / 2e-6, rtol=1e-4, atol=1e-4
        )


def test_subspaces_lend_their_shape():
    """Three measurements beside one another say nothing of a width that is known."""
    points = np.array([[0.0, 0, 0], [0.4, 0, 0], [-0.4, 0, 0]])
    logs = np.log(_seconds(points, np.zeros(3), 1.0))
    known = Peaks(EXTENTS, [0])
    many = _drawn(40, 6)
    known.take(many, np.log(_seconds(many, np.zeros(3), 1.0)))
    peaks = Peaks(EXTENTS, [1])
    peaks.take(points, logs)
    before = peaks.fits[:, -1].std()
    peaks.expect_shape(known.shape)
    assert peaks.fits[:, -1].std() < 0.5 * before
    np.testing.assert_allclose(peaks.shape, known.shape, atol=0.25)


def test_no_resources_leave_the_level_alone():
    peaks = Peaks((), [0])
    peaks.add(np.empty(0), 1.5)
    np.testing.assert_allclose(peaks.predict(np.empty((1, 0))).mean(), 1.5, atol=0.1)


def test_a_search_of_another_form_takes_longer_and_finds_it():
    """A narrow valley in a space without NCCL's resources, where the equations have no say."""
    search = Fitted(SPACE, small=0, budget=26, extended=60)

    def seconds(config):
        lanes, chunks = config["lanes"], config["chunks"]
        slow = 1.4 if config["code"] == "a" else 1.0
        return 1e-3 * slow * (1 + abs(lanes - 2) ** 2 + abs(np.log2(chunks) - 1) ** 2)

    finish(search, seconds)
    assert search.best is not None
    assert (search.best[0]["code"], search.best[0]["lanes"], search.best[0]["chunks"]) == (
        "b",
        2,
        2,
    )
