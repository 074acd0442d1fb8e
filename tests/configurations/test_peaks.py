"""Peaks of the elliptical and the separable form: fits, derivatives, what subspaces lend."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll.configurations.fits import product_of
from jaxcoll.configurations.peaks import Elliptical, Peaks, Separable
from jaxcoll.tune import Fitted
from tests.configurations.searching import SPACE, finish

EXTENTS = (3.0, 2.0, 4.0)
OPTIMUM = np.array([0.6, -0.4, 0.9])
METRIC = np.array([[0.5, 0.1, 0.0], [0.1, 0.4, -0.1], [0.0, -0.1, 0.3]])
SCALES, SKEWS = np.array([0.5, 0.3, 0.4]), np.array([0.4, -0.3, 0.0])
FORMS: tuple[type[Peaks], ...] = (Elliptical, Separable)


def _logs(form: type[Peaks], points, optimum=OPTIMUM, power=0.8):
    """Logarithms of the seconds of a known peak of a form; 0 at the optimum."""
    away = points - optimum
    if form is Elliptical:
        return np.log1p(np.einsum("pi,ij,pj->p", away, METRIC, away) ** power)
    return (np.abs(SCALES * away * (1 + SKEWS * np.sign(away))) ** (2 * power)).sum(axis=1)


def _points(count: int, seed: int):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (count, 3)) * EXTENTS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("power", [0.6, 1.0, 1.3])
def test_a_peak_is_found_from_few_measurements(form, power):
    points, grid = _points(30, 1), _points(4000, 2)
    peaks = form(EXTENTS, [0]).take(points, _logs(form, points, power=power))
    predicted = peaks.predict(grid).mean(axis=0)
    reached = _logs(form, grid[[predicted.argmin()]], power=power)[0]
    assert reached < 0.05 + _logs(form, grid, power=power).min()


@pytest.mark.parametrize("form", FORMS)
def test_fits_agree_where_much_was_measured_and_differ_elsewhere(form):
    points = _points(12, 3) * (0.2, 1, 1)
    peaks = form(EXTENTS, [0]).take(points, _logs(form, points, np.zeros(3), 1.0))
    near, far = (
        peaks.predict(at).std(axis=0).mean() for at in (points, points + np.array([1.5, 0, 0]))
    )
    assert near < 0.05 < 0.2 < far


@pytest.mark.parametrize("form", FORMS)
def test_measurements_taken_one_by_one_improve_the_fits(form):
    points = _points(25, 4)
    logs = _logs(form, points)
    one = form(EXTENTS, [0])
    for point, log in zip(points, logs, strict=True):
        one.add(point, float(log))
    all_at_once = form(EXTENTS, [0]).take(points, logs)
    for peaks in (one, all_at_once):
        assert np.abs(peaks.predict(points).mean(axis=0) - logs).max() < 0.05
    np.testing.assert_allclose(one.shape, all_at_once.shape, atol=0.3)


def test_points_far_above_the_fastest_count_less():
    """Another form of the slower half hardly changes the predictions of the faster half."""
    points = _points(40, 3)
    logs = _logs(Elliptical, points)
    far = logs > np.median(logs)
    bent = np.where(far, logs + np.abs(points[:, 0]), logs)
    places = []
    for error in (0.0, 0.2):
        true, other = (
            Elliptical(EXTENTS, [0], error=error).take(points, each) for each in (logs, bent)
        )
        means = [peaks.predict(points[~far]).mean(axis=0) for peaks in (true, other)]
        places.append(np.abs(means[1] - means[0]).mean())
    assert places[1] < places[0] / 2, places


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_are_those_of_the_residuals(form):
    points = _points(6, 5)
    peaks = form(EXTENTS, [0], size=4).take(points, _logs(form, points))
    fits = peaks.fits + 0.1
    _, derivatives = peaks._linearize(fits, 1)
    for constant in range(fits.shape[1]):
        change = np.zeros(fits.shape[1])
        change[constant] = 1e-6
        above, below = (peaks._linearize(fits + sign * change, 1)[0] for sign in (1, -1))
        np.testing.assert_allclose(
            derivatives[:, :, constant], (above - below) / 2e-6, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("form", FORMS)
def test_predictions_are_those_of_the_residuals_and_of_a_grid(form):
    """Predictions take shorter ways than residuals: a quadratic form, curves per resource."""
    points = _points(9, 6)
    peaks = form(EXTENTS, [0], size=5).take(points, _logs(form, points))
    residuals = peaks._linearize(peaks.fits, 1)[0]
    expected = (residuals + peaks._noises) * peaks.noise + peaks.logs
    np.testing.assert_allclose(peaks.predict(points), expected, rtol=1e-9, atol=1e-9)
    axes = [np.linspace(-1, 1, count) for count in (2, 4, 3)]
    found = peaks.predict_product(axes)
    np.testing.assert_allclose(found, peaks.predict(product_of(axes)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_subspaces_lend_their_shape(form):
    """Three measurements beside one another say nothing of a width that is known."""
    points = np.array([[0.0, 0, 0], [0.4, 0, 0], [-0.4, 0, 0]])
    many = _points(40, 7)
    known = form(EXTENTS, [0]).take(many, _logs(form, many, np.zeros(3), 1.0))
    peaks = form(EXTENTS, [1]).take(points, _logs(form, points, np.zeros(3), 1.0))
    before = peaks.fits[:, -1].std()
    peaks.expect((0.0, 0.6), known.shape)
    # Scales and power of separable peaks may differ more.
    assert peaks.fits[:, -1].std() < (0.5 if form is Elliptical else 0.75) * before
    assert abs(peaks.shape[-1] - known.shape[-1]) < 0.25


@pytest.mark.parametrize("form", FORMS)
def test_a_subspace_of_one_measurement_keeps_the_level_of_the_others_in_mind(form):
    """A slow first measurement does not rule out a peak as high as elsewhere."""
    peaks = form(EXTENTS, [0])
    peaks.add(np.zeros(3), 2.0)
    alone = peaks.level[0]
    peaks.expect((0.0, 0.6), None)
    assert peaks.level[0] < alone - 0.3
    peaks.add(np.array([0.3, 0.0, 0.0]), 1.9)
    assert peaks.level[0] < alone


@pytest.mark.parametrize("form", FORMS)
def test_no_resources_leave_the_level_alone(form):
    peaks = form((), [0])
    peaks.add(np.empty(0), 1.5)
    np.testing.assert_allclose(peaks.predict(np.empty((1, 0))).mean(), 1.5, atol=0.1)
    assert peaks.predict_product([]).shape == (peaks.size, 1)


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
