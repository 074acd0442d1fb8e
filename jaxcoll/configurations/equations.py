"""Fits of AutoCCL's equations 1 to 5, of machines whose collectives have two phases.

With x the logarithms of the resources, seconds are ``exp(level)`` times the maximum over phases of
``exp(offset) * (exp(startup - phase . x) + 1 + exp(exponents . x + congestion))``. This is the
reciprocal of equations 4 and 5 with 1/gamma written out. A phase that never was the slower one
keeps the spread of its prior.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from jaxcoll.configurations.fits import Fits, Floats

# Which resources make up the batch of each phase: NC and C, NC and NT (equations 4 and 5).
NCCL_PHASES = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])

# The prior, in natural logarithms; resources are measured from the middle of their range.
_OFFSET = (0.0, 0.5)
_STARTUP = (-0.8, 1.8)
_EXPONENT = (0.85, 0.3)
_CONGESTION = (-1.8, 1.8)
_LEVEL = (-0.9, 2.0)  # from the first measurement
_LEAST_EXPONENT, _MOST_EXPONENT = 0.05, 2.5

# Of the smoothed maximum, step by step: both coordinates and Newton steps stall on the kink of a
# sharp one. Whole descents follow the first few measurements, short ones the others.
_SHARPNESS = (1, 2, 4, 8, 12, 20, 40, 60, 60, 60)
_FEW = 4
_LARGEST = 30.0


class Equations(Fits):
    """Fits of the equations.

    Args:
        phases: (K, D) zeros and ones, the resources of each phase.
        seed, size, noise: as for ``Fits``.
    """

    most_step, lost, resumed = 1.5, 3, (8, 20, 60, 60)

    def __init__(self, phases: Floats, seed: Sequence[int], *, size: int = 32, noise: float = 0.02):
        super().__init__(phases.shape[1], seed, size, noise)
        self.phases = phases
        count, resources = phases.shape
        blocks = (
            (count, _OFFSET),
            (count, _STARTUP),
            (resources, _EXPONENT),
            (1, _CONGESTION),
            (1, _LEVEL),
        )
        ends = np.cumsum([0, *(count for count, _ in blocks)])
        self._offset, self._startup, self._exponents, self._congestion, self._level = (
            slice(int(start), int(end)) for start, end in itertools.pairwise(ends)
        )
        mean = np.concatenate([np.full(count, mean) for count, (mean, _) in blocks])
        self._spread = np.concatenate([np.full(count, spread) for count, (_, spread) in blocks])
        draws = self._rng.standard_normal((self.size, mean.size))
        self._prior = mean + self._spread * draws
        self._prior = self._clipped(self._prior)
        self._level_mean = _LEVEL[0]
        self.fits = self._prior.copy()

    def _clipped(self, fits: Floats) -> Floats:
        exponents = fits[:, self._exponents]
        np.clip(exponents, _LEAST_EXPONENT, _MOST_EXPONENT, out=exponents)
        return fits

    # ------------------------------------------------------------------ the model

    def predict(self, points: Floats) -> Floats:
        """Logarithms of the seconds that each fit predicts: (size, points)."""
        startup, congestion = self._terms_of(self.fits, points)
        scale = np.exp(self.fits[:, self._offset])[:, :, None]
        slowest = (scale * (startup + 1 + congestion[:, None])).max(axis=1)
        return np.log(slowest) + self.fits[:, self._level]

    def _terms_of(self, fits: Floats, points: Floats) -> tuple[Floats, Floats]:
        """The terms beside 1: start-up (size, phases, points) and congestion (size, points)."""
        startup = np.exp(np.minimum(fits[:, self._startup], _LARGEST))[:, :, None]
        per_batch = np.exp(-self.phases @ points.T)
        exponent = fits[:, self._exponents] @ points.T + fits[:, self._congestion]
        return startup * per_batch, np.exp(np.clip(exponent, -_LARGEST, _LARGEST))

    def _linearize(self, fits: Floats, sharp: float) -> tuple[Floats, Floats]:
        startup, congestion = self._terms_of(fits, self.points)
        total = startup + 1 + congestion[:, None]
        logs = np.log(total) + fits[:, self._offset][:, :, None]
        highest = logs.max(axis=1, keepdims=True)
        weights = np.exp(sharp * (logs - highest))
        sums = weights.sum(axis=1, keepdims=True)
        weights /= sums
        predicted = (highest + np.log(sums) / sharp)[:, 0] + fits[:, self._level]
        crowded = (weights * congestion[:, None] / total).sum(axis=1)[:, :, None]
        derivatives = np.empty((self.size, self.logs.size, fits.shape[1]))
        derivatives[:, :, self._offset] = weights.transpose(0, 2, 1)
        derivatives[:, :, self._startup] = (weights * startup / total).transpose(0, 2, 1)
        derivatives[:, :, self._exponents] = crowded * self.points
        derivatives[:, :, self._congestion] = crowded
        derivatives[:, :, self._level] = 1
        derivatives /= self.noise
        return (predicted - self.logs) / self.noise - self._noises, derivatives

    # ------------------------------------------------------------------ measurements

    def add(self, point: Floats, log_seconds: float) -> None:
        """Takes one measurement more and fits again."""
        if not self.logs.size:
            self._level_mean += log_seconds
            self._prior[:, self._level] += log_seconds
            self.fits[:, self._level] += log_seconds
        self._measured(point, log_seconds)
        self._fit(_SHARPNESS if self.logs.size <= _FEW else self.resumed)

    @property
    def level(self) -> float:
        """Mean logarithm of the seconds at the peak of the fits."""
        return float(np.median(self.fits[:, self._level]))

    def expect_level(self, mean: float, spread: float) -> None:
        """Replaces the prior of the level by one from other subspaces, and fits again."""
        draws = (self._prior[:, self._level] - self._level_mean) / self._spread[self._level]
        self._level_mean = mean
        self._spread[self._level] = spread
        self._prior[:, self._level] = mean + spread * draws
        self._fit(_SHARPNESS)

    def misfit(self) -> Floats:
        """Squared residuals of the measurements over the noise, by the better half of the fits."""
        better = np.argsort(self.cost, kind="stable")[: max(1, self.size // 2)]
        return ((self.predict(self.points)[better].mean(axis=0) - self.logs) / self.noise) ** 2
