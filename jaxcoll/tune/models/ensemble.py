"""Fits of equations 1 to 5 to few measurements, many at a time: the knowledge of one subspace.

With x the logarithms of the resources, seconds are ``exp(level)`` times the maximum over phases of
``exp(offset) * (exp(startup - phase . x) + 1 + exp(exponents . x + congestion))``. This is the
reciprocal of equations 4 and 5 with 1/gamma written out.

An ensemble holds several fits. Each is the most probable one for its own draw of the prior and its
own draw of the noise (randomize-then-optimize; Bardsley, Solonen, Haario and Laine, SIAM J. Sci.
Comput. 36(4), 2014), so that their spread says how much the measurements leave open: a phase that
never was the slower one keeps the spread of its prior. All are solved together by
Levenberg-Marquardt steps on a smoothed maximum that becomes sharper from step to step, since
both coordinates and Newton steps stall on the kink of a sharp one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxcoll.tune.models.least_squares import (
    INITIAL_DAMPING,
    Floats,
    damped_step,
    next_damping,
    product_of,
    restarts,
)

# Which resources make up the batch of each phase: NC and C, NC and NT (equations 4 and 5).
NCCL_PHASES = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])

# The prior, in natural logarithms; resources are measured from the middle of their range.
_OFFSET = (0.0, 0.5)
_STARTUP = (-0.8, 1.8)
_EXPONENT = (0.85, 0.3)
_CONGESTION = (-1.8, 1.8)
_LEVEL = (-0.9, 2.0)  # from the first measurement
_LEAST_EXPONENT, _MOST_EXPONENT = 0.05, 2.5

_SHARPNESS = (1, 2, 4, 8, 12, 20, 40, 60, 60, 60)
_RESUMED = (8, 20, 60, 60)
_FEW = 4
_MOST_STEP = 1.5
_LOST = 3
_LARGEST = 30.0


@dataclasses.dataclass
class _Linearized:
    """Cost of every fit, with residuals and what their derivatives are made of."""

    cost: Floats
    residuals: Floats
    from_prior: Floats
    startup: Floats
    congestion: Floats
    phase: Floats

    def replace(self, accepted: NDArray[np.bool_], other: _Linearized) -> None:
        """Takes over the accepted fits of another."""
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            mine[accepted] = theirs[accepted]


class Ensemble:
    """Fits of one subspace to its measurements.

    Args:
        phases: (K, D) zeros and ones, the resources of each phase.
        seed: of the draws.
        size: how many fits.
        noise: relative standard deviation of a measurement.
    """

    def __init__(
        self,
        phases: Floats,
        seed: Sequence[int],
        *,
        size: int = 32,
        noise: float = 0.02,
    ):
        self.phases = phases
        self.size = size
        self.noise = noise
        self.points = np.empty((0, phases.shape[1]))
        self.logs = np.empty(0)
        self._rng = np.random.default_rng(seed)
        self._draw_prior()
        self._noises = np.empty((size, 0))
        self.cost = np.zeros(size)

    def _draw_prior(self) -> None:
        phases, resources = self.phases.shape
        blocks = (
            (phases, _OFFSET),
            (phases, _STARTUP),
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
        self._clip(self._prior)
        self._level_mean = _LEVEL[0]
        self.fits = self._prior.copy()

    def _clip(self, fits: Floats) -> None:
        exponents = fits[:, self._exponents]
        np.clip(exponents, _LEAST_EXPONENT, _MOST_EXPONENT, out=exponents)

    # ------------------------------------------------------------------ the model

    def predict(self, points: Floats) -> Floats:
        """Logarithms of the seconds that each fit predicts: (size, points)."""
        startup, congestion = self._terms_of(self.fits, points)
        scale = np.exp(self.fits[:, self._offset])[:, :, None]
        slowest = (scale * (startup + 1 + congestion[:, None])).max(axis=1)
        return np.log(slowest) + self.fits[:, self._level]

    def predict_product(self, axes: Sequence[Floats]) -> Floats:
        """Predictions for all combinations of the values of each resource: (size, points)."""
        return self.predict(product_of(axes))

    def _terms_of(self, fits: Floats, points: Floats) -> tuple[Floats, Floats]:
        """The terms beside 1: start-up (size, phases, points) and congestion (size, points)."""
        startup = np.exp(np.minimum(fits[:, self._startup], _LARGEST))[:, :, None]
        per_batch = np.exp(-self.phases @ points.T)
        exponent = fits[:, self._exponents] @ points.T + fits[:, self._congestion]
        return startup * per_batch, np.exp(np.clip(exponent, -_LARGEST, _LARGEST))

    # ------------------------------------------------------------------ fitting

    def add(self, point: Floats, log_seconds: float) -> None:
        """Takes one measurement more and fits again."""
        if not self.logs.size:
            self._level_mean += log_seconds
            self._prior[:, self._level] += log_seconds
            self.fits[:, self._level] += log_seconds
        self.points = np.vstack([self.points, point])
        self.logs = np.append(self.logs, log_seconds)
        self._noises = np.hstack([self._noises, self._rng.standard_normal((self.size, 1))])
        self.fit(_SHARPNESS if self.logs.size <= _FEW else _RESUMED)

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
        self.fit()

    def fit(self, sharpness: Sequence[float] = _SHARPNESS) -> None:
        """Improves every fit; those that ended far above the others start again beside them."""
        self._descend(sharpness)
        lost, places = restarts(self.cost, _LOST)
        if lost.any():
            self.fits[lost] = self.fits[places]
            self._descend(_RESUMED)

    def misfit(self) -> Floats:
        """Squared residuals of the measurements over the noise, by the better half of the fits."""
        better = np.argsort(self.cost, kind="stable")[: max(1, self.size // 2)]
        return ((self.predict(self.points)[better].mean(axis=0) - self.logs) / self.noise) ** 2

    def _descend(self, sharpness: Sequence[float]) -> None:
        """One Levenberg-Marquardt step of all fits per sharpness."""
        damping = np.full(self.size, INITIAL_DAMPING)
        at, previous = None, None
        for sharp in sharpness:
            if at is None or sharp != previous:
                at, previous = self._linearize(self.fits, sharp), sharp
            step = self._step(at, damping)
            tried = self.fits - np.clip(step, -_MOST_STEP, _MOST_STEP)
            self._clip(tried)
            new = self._linearize(tried, sharp)
            better = new.cost < at.cost
            self.fits[better] = tried[better]
            at.replace(better, new)
            damping = next_damping(damping, better)
        if at is not None:
            self.cost = at.cost

    def _linearize(self, fits: Floats, sharp: float) -> _Linearized:
        startup, congestion = self._terms_of(fits, self.points)
        total = startup + 1 + congestion[:, None]
        logs = np.log(total) + fits[:, self._offset][:, :, None]
        highest = logs.max(axis=1, keepdims=True)
        weights = np.exp(sharp * (logs - highest))
        sums = weights.sum(axis=1, keepdims=True)
        weights /= sums
        predicted = (highest + np.log(sums) / sharp)[:, 0] + fits[:, self._level]
        residuals = (predicted - self.logs) / self.noise - self._noises
        from_prior = (fits - self._prior) / self._spread
        return _Linearized(
            cost=(residuals**2).sum(axis=1) + (from_prior**2).sum(axis=1),
            residuals=residuals,
            from_prior=from_prior,
            startup=weights * startup / total,
            congestion=(weights * congestion[:, None] / total).sum(axis=1),
            phase=weights,
        )

    def _step(self, at: _Linearized, damping: Floats) -> Floats:
        derivatives = np.empty((self.size, self.logs.size, self.fits.shape[1]))
        derivatives[:, :, self._offset] = at.phase.transpose(0, 2, 1)
        derivatives[:, :, self._startup] = at.startup.transpose(0, 2, 1)
        derivatives[:, :, self._exponents] = at.congestion[:, :, None] * self.points
        derivatives[:, :, self._congestion] = at.congestion[:, :, None]
        derivatives[:, :, self._level] = 1
        derivatives /= self.noise
        prior_pull = at.from_prior / self._spread
        return damped_step(derivatives, at.residuals, prior_pull, self._spread, damping)
