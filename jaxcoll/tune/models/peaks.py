"""Fits of peaks to few measurements: for machines that equations 1 to 5 do not describe.

Nothing is assumed of the machine but that there is one optimum per subspace. The logarithm of the
seconds is a level plus a rise that is 0 at the optimum; ``elliptical`` and ``separable`` are two
forms of the rise.

As in ``ensemble``, each of many fits is the most probable one for its own draws of prior and noise.
Subspaces run on the same hardware, so the level and the shape of one are expected to resemble those
of the others (empirical Bayes): ``expect``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from jaxcoll.tune.models.least_squares import (
    INITIAL_DAMPING,
    Floats,
    damped_step,
    next_damping,
    product_of,
    restarts,
)

# The prior: level below the fastest measurement, optimum in shares of the extent of a resource.
_LEVEL = (-0.35, 0.6)
_OPTIMUM = 0.35

_STEPS, _RESUMED = 14, 5
_MOST_STEP = 1.0
_LOST = 2
# A descent ends with a step that helps half of the fits, but few of them by this much.
_LEAST_GAIN = 0.1


class Block(NamedTuple):
    """Constants of a shape that have one prior.

    Attributes:
        count: how many.
        mean, spread: of the prior.
        least, most: between which fits stay.
        resemblance: spread about the mean of other subspaces, as a share of ``spread``; None where
            subspaces do not resemble one another.
    """

    count: int
    mean: float
    spread: float
    least: float = -np.inf
    most: float = np.inf
    resemblance: float | None = None


class Peaks(abc.ABC):
    """Fits of one subspace to its measurements.

    Args:
        extents: of the resources, in logarithms; points are measured from their middle.
        seed: of the draws.
        size: how many fits.
        noise: relative standard deviation of a measurement and of the model near the optimum.
        error: of the model, per unit of logarithm above the fastest measurement: a form that fits
            around the optimum need not fit where the seconds are many times as long.
    """

    def __init__(
        self,
        extents: Sequence[float],
        seed: Sequence[int],
        *,
        size: int = 32,
        noise: float = 0.03,
        error: float = 0.0,
    ):
        self.size, self.noise, self.error, self.extents = size, noise, error, tuple(extents)
        dims = len(extents)
        self.points, self.logs = np.empty((0, dims)), np.empty(0)
        self._rng = np.random.default_rng(seed)
        blocks = self._shape_of(dims)
        ends = np.cumsum([1 + dims, *(block.count for block in blocks)]).tolist()
        self._optimum, self._shape = slice(1, 1 + dims), slice(1 + dims, ends[-1])
        self._slices = [slice(ends[i], ends[i + 1]) for i in range(len(blocks))]
        self._mean, self._spread = np.zeros(ends[-1]), np.ones(ends[-1])
        self._least, self._most = np.full(ends[-1], -np.inf), np.full(ends[-1], np.inf)
        self._resemblance = np.full(ends[-1], np.nan)
        self._mean[0], self._spread[0] = _LEVEL
        self._spread[self._optimum] = _OPTIMUM * np.maximum(extents, 1e-3)
        for where, block in zip(self._slices, blocks, strict=True):
            self._mean[where], self._spread[where] = block.mean, block.spread
            self._least[where], self._most[where] = block.least, block.most
            if block.resemblance is not None:
                self._resemblance[where] = block.resemblance * block.spread
        self._level_is_known = False
        self._draws = self._rng.standard_normal((size, ends[-1]))
        self._noises = np.empty((size, 0))
        self.fits = self._prior
        self.cost = np.zeros(size)

    # ------------------------------------------------------------------ the form

    @abc.abstractmethod
    def _shape_of(self, dims: int) -> tuple[Block, ...]:
        """The constants beside the level and the optimum."""

    @abc.abstractmethod
    def predict(self, points: Floats) -> Floats:
        """Logarithms of the seconds that each fit predicts: (size, points)."""

    def predict_product(self, axes: Sequence[Floats]) -> Floats:
        """Predictions for all combinations of the values of each resource: (size, points)."""
        return self.predict(product_of(axes))

    @abc.abstractmethod
    def _linearize(self, fits: Floats) -> tuple[Floats, Floats]:
        """Residuals (size, points) and their derivatives (size, points, constants)."""

    def _scaled(self, predicted: Floats, derivatives: Floats) -> tuple[Floats, Floats]:
        """Residuals and their derivatives in standard deviations of measurements and model."""
        above = self.logs - self.logs.min(initial=np.inf)
        spread = np.hypot(self.noise, self.error * above)
        derivatives /= spread[:, None]
        return (predicted - self.logs) / spread - self._noises, derivatives

    # ------------------------------------------------------------------ measurements

    def take(self, points: Floats, logs: Floats) -> Self:
        """Takes many measurements and fits from the prior."""
        self.points, self.logs = points.copy(), logs.copy()
        self._noises = self._rng.standard_normal((self.size, logs.size))
        self._expect_level()
        self.fits = self._prior
        self._fit(_STEPS)
        return self

    def add(self, point: Floats, log_seconds: float) -> None:
        """Takes one measurement more and fits again."""
        self.points = np.vstack([self.points, point])
        self.logs = np.append(self.logs, log_seconds)
        self._noises = np.hstack([self._noises, self._rng.standard_normal((self.size, 1))])
        self._expect_level()
        self._fit(_RESUMED)

    # ------------------------------------------------------------------ other subspaces

    @property
    def level(self) -> tuple[float, float]:
        """Mean and variance of the logarithm of the seconds at the optimum."""
        return float(self.fits[:, 0].mean()), float(self.fits[:, 0].var())

    @property
    def shape(self) -> Floats:
        """Mean of the fits' shapes."""
        return self.fits[:, self._shape].mean(axis=0)

    def expect(self, level: tuple[float, float], shape: Floats | None) -> None:
        """Replaces the prior by one from other subspaces, and fits again.

        Args:
            level: mean and spread.
            shape: mean; None where no other subspace knows it.
        """
        self._level_is_known = True
        self._mean[0], self._spread[0] = level
        if shape is not None:
            shared = ~np.isnan(self._resemblance)
            self._mean[shared] = shape[shared[self._shape]]
            self._spread[shared] = self._resemblance[shared]
        self._fit(_RESUMED)

    def _expect_level(self) -> None:
        if not self._level_is_known:
            self._mean[0] = self.logs.min() + _LEVEL[0]

    # ------------------------------------------------------------------ fitting

    @property
    def _prior(self) -> Floats:
        return self._clipped(self._mean + self._spread * self._draws)

    def _clipped(self, fits: Floats) -> Floats:
        return np.clip(fits, self._least, self._most)

    def _fit(self, steps: int) -> None:
        """Improves every fit; those that ended far above the others start again beside them."""
        self._descend(steps)
        lost, places = restarts(self.cost, _LOST)
        if lost.any():
            self.fits[lost] = self.fits[places]
            self._descend(_RESUMED)

    def _descend(self, steps: int) -> None:
        """At most so many Levenberg-Marquardt steps of all fits."""
        prior, damping = self._prior, np.full(self.size, INITIAL_DAMPING)
        residuals, derivatives = self._linearize(self.fits)
        self.cost = self._cost(self.fits, residuals, prior)
        for _ in range(steps):
            prior_pull = (self.fits - prior) / self._spread**2
            step = damped_step(derivatives, residuals, prior_pull, self._spread, damping)
            tried = self._clipped(self.fits - np.clip(step, -_MOST_STEP, _MOST_STEP))
            found = self._linearize(tried)
            cost = self._cost(tried, found[0], prior)
            better = cost < self.cost
            gained = self.cost - cost
            self.fits[better], self.cost[better] = tried[better], cost[better]
            residuals[better], derivatives[better] = found[0][better], found[1][better]
            helped, moving = np.count_nonzero(better), np.count_nonzero(gained > _LEAST_GAIN)
            if helped >= self.size / 2 and moving < self.size / 4:
                break
            damping = next_damping(damping, better)

    def _cost(self, fits: Floats, residuals: Floats, prior: Floats) -> Floats:
        from_prior = (fits - prior) / self._spread
        return (residuals**2).sum(axis=1) + (from_prior**2).sum(axis=1)
