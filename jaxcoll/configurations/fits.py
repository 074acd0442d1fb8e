"""Fits to few measurements, many at a time: the knowledge of one subspace, and its uncertainty.

An ensemble holds several fits of one form. Each is the most probable one for its own draw of the
prior and its own draw of the noise (randomize-then-optimize; Bardsley, Solonen, Haario and Laine,
SIAM J. Sci. Comput. 36(4), 2014), so that their spread says how much the measurements leave open.
A fit minimizes the squares of its residuals and of its distance from the prior in units of the
prior's spread; all are solved together by Levenberg-Marquardt steps (Nocedal and Wright, Numerical
Optimization, 2nd ed., section 10.3). Arrays carry the fits in their first dimension.

The forms are those of ``peaks``, and here AutoCCL's equations 1 to 5, of machines whose collectives
have two phases. With x the logarithms of the resources, seconds are ``exp(level)`` times the
maximum over phases of ``exp(offset) * (exp(startup - phase . x) + 1 + exp(exponents . x +
congestion))``. This is the reciprocal of equations 4 and 5 with 1/gamma written out. A phase that
never was the slower one keeps the spread of its prior.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A step that was refused takes back more than one that helped had eased: 0.2 times 8 is above 1.
_INITIAL_DAMPING = 1e-2
_LEAST_DAMPING, _MOST_DAMPING = 1e-6, 1e4
_EASED, _TIGHTENED = 0.2, 8

# A cost of this much more than the multiple of the median says that a fit is lost.
_MARGIN = 15


class Fits(abc.ABC):
    """Fits of one subspace to its measurements.

    Args:
        dims: resources of a point.
        seed: the seed of the draws.
        size: how many fits.
        noise: relative standard deviation of a measurement.

    Attributes:
        points: (points, dims), measured so far.
        logs: (points,), logarithms of their seconds.
        fits: (size, constants).
        cost: (size,), what each fit minimizes.
    """

    # Longest step of a constant; the multiple of the median cost above which a fit is lost.
    most_step: ClassVar[float]
    lost: ClassVar[float]
    # Steps after a measurement more, of a form's own kind.
    resumed: ClassVar[Sequence[float]]
    # A descent ends with a step that helps half of the fits, but few of them by this much.
    least_gain: ClassVar[float] = 0.0

    fits: Floats
    _prior: Floats
    _spread: Floats  # (constants,), standard deviations of the prior

    def __init__(self, dims: int, seed: Sequence[int], size: int, noise: float):
        self.size, self.noise = size, noise
        self.points, self.logs = np.empty((0, dims)), np.empty(0)
        self._rng = np.random.default_rng(seed)
        self._noises = np.empty((size, 0))
        self.cost = np.zeros(size)

    @abc.abstractmethod
    def predict(self, points: Floats) -> Floats:
        """Logarithms of the seconds that each fit predicts: (size, points)."""

    def predict_product(self, axes: Sequence[Floats]) -> Floats:
        """Predictions for all combinations of the values of each resource: (size, points)."""
        return self.predict(product_of(axes))

    @abc.abstractmethod
    def _linearize(self, fits: Floats, sharp: float) -> tuple[Floats, Floats]:
        """Residuals (size, points) and their derivatives (size, points, constants)."""

    @abc.abstractmethod
    def _clipped(self, fits: Floats) -> Floats:
        """The fits within the bounds of their constants."""

    def _measured(self, point: Floats, log_seconds: float) -> None:
        """Takes one measurement more, with a draw of its noise for every fit."""
        self.points = np.vstack([self.points, point])
        self.logs = np.append(self.logs, log_seconds)
        self._noises = np.hstack([self._noises, self._rng.standard_normal((self.size, 1))])

    def _fit(self, steps: Sequence[float]) -> None:
        """Improves every fit; those that ended far above the others start again beside them."""
        self._descend(steps)
        # A fit that ended in another valley far above the others would say that everything is
        # possible there.
        lost, places = restarts(self.cost, self.lost)
        if lost.any():
            self.fits[lost] = self.fits[places]
            self._descend(self.resumed)

    def _descend(self, steps: Sequence[float]) -> None:
        """A Levenberg-Marquardt step of all fits for each of ``steps``, its sharpness."""
        prior, damping, last = self._prior, np.full(self.size, _INITIAL_DAMPING), None
        residuals = derivatives = np.empty(0)
        for sharp in steps:
            if sharp != last:
                residuals, derivatives = self._linearize(self.fits, sharp)
                self.cost, last = self._cost(self.fits, residuals, prior), sharp
            # Each fit is pulled to a draw of the prior of its own, and sees measurements with noise
            # of its own: so the spread of the fits is what the measurements leave open (randomized
            # maximum a posteriori, a parametric bootstrap).
            pull = (self.fits - prior) / self._spread / self._spread
            step = damped_step(derivatives, residuals, pull, self._spread, damping)
            tried = self._clipped(self.fits - np.clip(step, -self.most_step, self.most_step))
            found = self._linearize(tried, sharp)
            cost = self._cost(tried, found[0], prior)
            better, gained = cost < self.cost, self.cost - cost
            self.fits[better], self.cost[better] = tried[better], cost[better]
            residuals[better], derivatives[better] = found[0][better], found[1][better]
            moving = np.count_nonzero(gained > self.least_gain)
            if self.least_gain and better.sum() >= self.size / 2 and moving < self.size / 4:
                break
            damping = next_damping(damping, better)

    def _cost(self, fits: Floats, residuals: Floats, prior: Floats) -> Floats:
        from_prior = (fits - prior) / self._spread
        return (residuals**2).sum(axis=1) + (from_prior**2).sum(axis=1)


# ---------------------------------------------------------------------- steps


def damped_step(
    derivatives: Floats, residuals: Floats, prior_pull: Floats, spread: Floats, damping: Floats
) -> Floats:
    """Solutions of the damped normal equations, to be subtracted from the fits: (size, constants).

    Args:
        derivatives: (size, points, constants), of the residuals.
        residuals: (size, points).
        prior_pull: (size, constants), fits less prior over the square of ``spread``.
        spread: (constants,), standard deviations of the prior.
        damping: (size,), by how much the diagonal grows.
    """
    transposed = derivatives.transpose(0, 2, 1)
    normal = transposed @ derivatives
    diagonal = np.einsum("sii->si", normal)  # a view
    diagonal += spread**-2
    diagonal *= 1 + damping[:, None]
    gradient = transposed @ residuals[:, :, None]
    gradient[:, :, 0] += prior_pull
    return np.linalg.solve(normal, gradient)[:, :, 0]


def next_damping(damping: Floats, better: NDArray[np.bool_]) -> Floats:
    """The damping after a step: less where it lowered the cost, more where it did not."""
    scaled = np.where(better, damping * _EASED, damping * _TIGHTENED)
    return np.clip(scaled, _LEAST_DAMPING, _MOST_DAMPING)


def restarts(cost: Floats, factor: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which fits are lost in another valley, and per lost fit the one whose place it takes.

    Args:
        cost: (size,).
        factor: the multiple of the median cost above which (and a margin) a fit is lost.

    Returns:
        (size,) booleans, and one index per lost fit into the better half of the others.
    """
    lost = cost > factor * np.median(cost) + _MARGIN
    kept = np.flatnonzero(~lost)
    half = kept[np.argsort(cost[kept], kind="stable")][: max(1, kept.size // 2)]
    return lost, np.resize(half, int(lost.sum()))


def product_of(axes: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All combinations of one value per axis, the last axis fastest: (count, axes)."""
    mesh = np.meshgrid(*axes, indexing="ij")
    return np.stack([values.ravel() for values in mesh], axis=1) if axes else np.zeros((1, 0), int)


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
        # The slower phase decides (equation 1). A maximum has a kink on which Newton steps stall,
        # so that it is smoothed, and sharpened step by step.
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
