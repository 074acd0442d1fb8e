"""Fits to few measurements, many at a time: the knowledge of one subspace, and its uncertainty.

An ensemble holds several fits of one form. Each is the most probable one for its own draw of the
prior and its own draw of the noise (randomize-then-optimize; Bardsley, Solonen, Haario and Laine,
SIAM J. Sci. Comput. 36(4), 2014), so that their spread says how much the measurements leave open.
A fit minimizes the squares of its residuals and of its distance from the prior in units of the
prior's spread; all are solved together by Levenberg-Marquardt steps (Nocedal and Wright, Numerical
Optimization, 2nd ed., section 10.3). Arrays carry the fits in their first dimension.

``equations`` and ``peaks`` are the forms.
"""

from __future__ import annotations

import abc
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
        seed: of the draws.
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
        factor: of the median cost, above which (and a margin) a fit is lost.

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
