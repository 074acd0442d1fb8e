"""Levenberg-Marquardt of many fits: against closed forms."""

from __future__ import annotations

import numpy as np

from jaxcoll.configurations.fits import damped_step, next_damping, restarts


def test_an_undamped_step_ends_in_the_minimum_of_a_linear_problem():
    """Residuals A x - b with a prior: stacked into one ordinary least-squares problem per fit."""
    rng = np.random.default_rng(0)
    derivatives, targets = rng.normal(size=(5, 7, 3)), rng.normal(size=(5, 7))
    fits, prior, spread = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), np.array([0.5, 1, 3])
    residuals = np.einsum("spc,sc->sp", derivatives, fits) - targets
    pull = (fits - prior) / spread**2
    found = fits - damped_step(derivatives, residuals, pull, spread, np.zeros(5))
    for k in range(5):
        rows = np.vstack([derivatives[k], np.diag(1 / spread)])
        values = np.concatenate([targets[k], prior[k] / spread])
        np.testing.assert_allclose(found[k], np.linalg.lstsq(rows, values)[0])


def test_damping_shortens_steps_of_the_same_sign():
    rng = np.random.default_rng(1)
    derivatives, residuals = rng.normal(size=(1, 6, 2)), rng.normal(size=(1, 6))
    steps = [
        damped_step(derivatives, residuals, np.zeros((1, 2)), np.ones(2), np.array([damping]))[0]
        for damping in (0.0, 1.0, 1e4)
    ]
    lengths = [float(np.linalg.norm(step)) for step in steps]
    assert lengths[0] > lengths[1] > lengths[2]
    gradient = derivatives[0].T @ residuals[0]
    assert steps[2] @ gradient > 0


def test_damping_falls_after_success_and_stays_in_bounds():
    damping = np.array([1.0, 1.0, 1e-6, 1e4])
    found = next_damping(damping, np.array([True, False, True, False]))
    assert found.tolist() == [0.2, 8.0, 1e-6, 1e4]


def test_lost_fits_start_again_at_the_better_half_of_the_others():
    cost = np.array([4.0, 1.0, 500.0, 3.0, 2.0, 400.0, 5.0])
    lost, places = restarts(cost, 3)
    assert np.flatnonzero(lost).tolist() == [2, 5]
    assert places.tolist() == [1, 4]
    lost, places = restarts(np.ones(4), 3)
    assert not lost.any()
    assert not places.size
