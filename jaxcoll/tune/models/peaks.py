"""Fits of elliptical peaks to few measurements: for machines that equations 1 to 5 do not describe.

With x the logarithms of the resources, seconds are ``exp(level) * (1 + q ** power)`` where q is the
squared distance from an optimum in an ellipsoidal metric. Resources may depend on one another, and
the top may be as sharp or as flat as the measurements say. Nothing is assumed of the machine but
that there is one optimum per subspace.

As in ``ensemble``, each of many fits is the most probable one for its own draws of prior and noise.
Subspaces run on the same hardware, so the metric and the power of one are expected to resemble
those of the others (empirical Bayes): ``expect_shape``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcoll.tune.models.least_squares import (
    INITIAL_DAMPING,
    Floats,
    damped_step,
    next_damping,
    restarts,
)

# The prior: level below the fastest measurement, optimum in shares of the extent of a resource,
# logarithms of the metric's diagonal and of the power, the rest of the metric.
_LEVEL = (-0.35, 0.5)
_OPTIMUM = 0.35
_DIAGONAL = (-1.2, 0.8)
_BESIDE = 0.2
_POWER = (-0.1, 0.35)
# Spread of the shape about that of the other subspaces, as a share of the prior's.
_RESEMBLANCE = 0.3

_STEPS, _RESUMED = 14, 5
_MOST_STEP = 1.0
_LOST = 2
_LEAST_SQUARE = 1e-4


class Peaks:
    """Fits of one subspace to its measurements.

    Args:
        extents: of the resources, in logarithms; points are measured from their middle.
        seed: of the draws.
        size: how many fits.
        noise: relative standard deviation of a measurement and of the model itself.
    """

    def __init__(
        self, extents: Sequence[float], seed: Sequence[int], *, size: int = 32, noise: float = 0.03
    ):
        self.size, self.noise = size, noise
        dims = len(extents)
        self.points, self.logs = np.empty((0, dims)), np.empty(0)
        self._rng = np.random.default_rng(seed)
        self._rows, self._columns = np.tril_indices(dims, -1)
        beside = len(self._rows)
        self._optimum = slice(1, 1 + dims)
        self._diagonal = slice(1 + dims, 1 + 2 * dims)
        self._beside = slice(1 + 2 * dims, 1 + 2 * dims + beside)
        self._power = 1 + 2 * dims + beside
        self._shape = slice(1 + dims, self._power + 1)
        self._mean = np.zeros(self._power + 1)
        self._spread = np.ones(self._power + 1)
        self._mean[0], self._spread[0] = _LEVEL
        self._spread[self._optimum] = _OPTIMUM * np.maximum(extents, 1e-3)
        self._mean[self._diagonal], self._spread[self._diagonal] = _DIAGONAL
        self._spread[self._beside] = _BESIDE
        self._mean[self._power], self._spread[self._power] = _POWER
        self._draws = self._rng.standard_normal((size, self._power + 1))
        self._noises = np.empty((size, 0))
        self.fits = self._mean + self._spread * self._draws
        self.cost = np.zeros(size)

    # ------------------------------------------------------------------ the model

    def predict(self, points: Floats) -> Floats:
        """Logarithms of the seconds that each fit predicts: (size, points)."""
        square = self._squares(self.fits, points)[0]
        power = np.exp(self.fits[:, self._power])[:, None]
        return self.fits[:, :1] + np.log1p(square**power)

    def _squares(self, fits: Floats, points: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Squared distances (size, points), offsets, whitened offsets, and the metric's root."""
        offsets = points - fits[:, None, self._optimum]
        dims = points.shape[1]
        root = np.zeros((len(fits), dims, dims))
        root[:, np.arange(dims), np.arange(dims)] = np.exp(np.clip(fits[:, self._diagonal], -6, 3))
        root[:, self._rows, self._columns] = fits[:, self._beside]
        whitened = offsets @ root
        return (whitened**2).sum(axis=2) + _LEAST_SQUARE, offsets, whitened, root

    # ------------------------------------------------------------------ fitting

    def take(self, points: Floats, logs: Floats) -> None:
        """Takes many measurements and fits from the prior."""
        self.points, self.logs = points.copy(), logs.copy()
        self._noises = self._rng.standard_normal((self.size, logs.size))
        self._expect_level()
        self.fits = self._prior
        self._fit(_STEPS)

    def add(self, point: Floats, log_seconds: float) -> None:
        """Takes one measurement more and fits again."""
        self.points = np.vstack([self.points, point])
        self.logs = np.append(self.logs, log_seconds)
        self._noises = np.hstack([self._noises, self._rng.standard_normal((self.size, 1))])
        self._expect_level()
        self._fit(_RESUMED)

    @property
    def shape(self) -> Floats:
        """Mean of the fits' metrics and powers."""
        return self.fits[:, self._shape].mean(axis=0)

    def expect_shape(self, mean: Floats) -> None:
        """Replaces the prior of the shape by that of other subspaces, and fits again."""
        wide = np.full(self._power + 1, 1.0)
        wide[self._diagonal], wide[self._beside], wide[self._power] = (
            _DIAGONAL[1],
            _BESIDE,
            _POWER[1],
        )
        self._mean[self._shape] = mean
        self._spread[self._shape] = _RESEMBLANCE * wide[self._shape]
        self._fit(_RESUMED)

    @property
    def _prior(self) -> Floats:
        return self._mean + self._spread * self._draws

    def _expect_level(self) -> None:
        self._mean[0] = self.logs.min() + _LEVEL[0]

    def _fit(self, steps: int) -> None:
        """Improves every fit; those that ended far above the others start again beside them."""
        self._descend(steps)
        lost, places = restarts(self.cost, _LOST)
        if lost.any():
            self.fits[lost] = self.fits[places]
            self._descend(_RESUMED)

    def _descend(self, steps: int) -> None:
        """Levenberg-Marquardt steps of all fits."""
        prior, damping = self._prior, np.full(self.size, INITIAL_DAMPING)
        residuals, derivatives = self._linearize(self.fits)
        self.cost = self._cost(self.fits, residuals, prior)
        for _ in range(steps):
            prior_pull = (self.fits - prior) / self._spread**2
            step = damped_step(derivatives, residuals, prior_pull, self._spread, damping)
            tried = self.fits - np.clip(step, -_MOST_STEP, _MOST_STEP)
            found = self._linearize(tried)
            cost = self._cost(tried, found[0], prior)
            better = cost < self.cost
            self.fits[better], self.cost[better] = tried[better], cost[better]
            residuals[better], derivatives[better] = found[0][better], found[1][better]
            damping = next_damping(damping, better)

    def _cost(self, fits: Floats, residuals: Floats, prior: Floats) -> Floats:
        from_prior = (fits - prior) / self._spread
        return (residuals**2).sum(axis=1) + (from_prior**2).sum(axis=1)

    def _linearize(self, fits: Floats) -> tuple[Floats, Floats]:
        """Residuals (size, points) and their derivatives (size, points, constants)."""
        square, offsets, whitened, root = self._squares(fits, self.points)
        power = np.exp(np.clip(fits[:, self._power], -3, 2))[:, None]
        raised = square**power
        share = raised / (1 + raised) * power
        by_square = 2 * (share / square)[:, :, None]
        derivatives = np.empty((len(fits), len(self.logs), self._power + 1))
        derivatives[:, :, 0] = 1
        derivatives[:, :, self._optimum] = -by_square * (whitened @ root.transpose(0, 2, 1))
        scales = np.einsum("sdd->sd", root)[:, None, :]
        derivatives[:, :, self._diagonal] = by_square * whitened * offsets * scales
        derivatives[:, :, self._beside] = (
            by_square * whitened[:, :, self._columns] * offsets[:, :, self._rows]
        )
        derivatives[:, :, self._power] = share * np.log(square)
        predicted = fits[:, :1] + np.log1p(raised)
        return (predicted - self.logs) / self.noise - self._noises, derivatives / self.noise
