"""Fits of peaks to few measurements: for machines that equations 1 to 5 do not describe.

Nothing is assumed of the machine but that there is one optimum per subspace. The logarithm of the
seconds is a level plus a rise that is 0 at the optimum. Two forms of the rise, u being the
logarithms of the resources less those of the optimum:

- ``Elliptical``: ``log(1 + q ** power)`` where q is the squared length of u in an ellipsoidal
  metric. Resources may depend on one another, the rise is the same on all sides, and the top may be
  as sharp or as flat as the measurements say.
- ``Separable``: every resource has a curve of its own, which may be steeper on one side:
  ``(scale * u * (1 + skew * sign(u))) ** (2 * power)``, an edge at a power of 1/2 and a parabola at
  1. The sign is smooth, so that fits can cross the optimum.

Subspaces run on the same hardware, so the level and the shape of one are expected to resemble those
of the others (empirical Bayes): ``expect``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from jaxcoll.configurations.fits import Fits, Floats

# The prior: level below the fastest measurement, optimum in shares of the extent of a resource.
_LEVEL = (-0.35, 0.6)
_OPTIMUM = 0.35

_STEPS = (1,) * 14

# Spread of the shape about that of the other subspaces, as a share of the prior's.
_SAME_METRIC = 0.3
_LEAST_SQUARE = 1e-4
# Spread of scales and power about those of the other subspaces, as a share of the prior's.
_SAME_CURVES = 0.5
# Half of the sign's change happens within this distance of the optimum.
_EDGE = 0.1


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


class Peaks(Fits):
    """Fits of one subspace to its measurements.

    Args:
        extents: of the resources, in logarithms; points are measured from their middle.
        seed: of the draws.
        size: how many fits.
        noise: relative standard deviation of a measurement and of the model near the optimum.
        error: of the model, per unit of logarithm above the fastest measurement: a form that fits
            around the optimum need not fit where the seconds are many times as long.
    """

    most_step, lost, resumed, least_gain = 1.0, 2, (1,) * 5, 0.1

    def __init__(
        self,
        extents: Sequence[float],
        seed: Sequence[int],
        *,
        size: int = 32,
        noise: float = 0.03,
        error: float = 0.0,
    ):
        dims = len(extents)
        super().__init__(dims, seed, size, noise)
        self.error, self.extents = error, tuple(extents)
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
        self.fits = self._prior

    @abc.abstractmethod
    def _shape_of(self, dims: int) -> tuple[Block, ...]:
        """The constants beside the level and the optimum."""

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
        self._measured(point, log_seconds)
        self._expect_level()
        self._fit(self.resumed)

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
        self._fit(self.resumed)

    def _expect_level(self) -> None:
        if not self._level_is_known:
            self._mean[0] = self.logs.min() + _LEVEL[0]

    @property
    def _prior(self) -> Floats:  # type: ignore[override]
        return self._clipped(self._mean + self._spread * self._draws)

    def _clipped(self, fits: Floats) -> Floats:
        return np.clip(fits, self._least, self._most)


# ---------------------------------------------------------------------- forms


class Elliptical(Peaks):
    """Fits of elliptical peaks; the shape is the root of the metric, and the power."""

    def _shape_of(self, dims: int) -> tuple[Block, ...]:
        self._rows, self._columns = np.tril_indices(dims, -1)
        return (
            Block(dims, -1.2, 0.8, -6, 3, _SAME_METRIC),  # logarithms of the root's diagonal
            Block(len(self._rows), 0.0, 0.2, resemblance=_SAME_METRIC),  # beside the diagonal
            Block(1, -0.1, 0.35, -3, 2, _SAME_METRIC),  # logarithm of the power
        )

    def predict(self, points: Floats) -> Floats:
        # The metric's quadratic form in the monomials of a point: one product of matrices.
        root, optimum = self._root(self.fits), self.fits[:, self._optimum]
        metric = root @ root.transpose(0, 2, 1)
        linear = np.einsum("sij,sj->si", metric, optimum)
        constant = np.einsum("si,si->s", linear, optimum)
        pairs = (points[:, :, None] * points[:, None, :]).reshape(len(points), -1)
        square = metric.reshape(self.size, -1) @ pairs.T - 2 * linear @ points.T
        square += constant[:, None]
        logs = np.log(np.maximum(square, 0) + _LEAST_SQUARE)
        return self.fits[:, :1] + np.log(1 + np.exp(self._power(self.fits) * logs))

    def _power(self, fits: Floats) -> Floats:
        return np.exp(fits[:, self._slices[2]])

    def _root(self, fits: Floats) -> Floats:
        """Lower triangular, (size, D, D)."""
        dims = len(self.extents)
        root = np.zeros((len(fits), dims, dims))
        root[:, np.arange(dims), np.arange(dims)] = np.exp(fits[:, self._slices[0]])
        root[:, self._rows, self._columns] = fits[:, self._slices[1]]
        return root

    def _linearize(self, fits: Floats, sharp: float) -> tuple[Floats, Floats]:
        root, power = self._root(fits), self._power(fits)
        offsets = self.points - fits[:, None, self._optimum]
        whitened = offsets @ root
        square = np.einsum("spd,spd->sp", whitened, whitened) + _LEAST_SQUARE
        logs = np.log(square)
        raised = np.exp(power * logs)
        share = raised / (1 + raised) * power
        by_whitened = (2 * share / square)[:, :, None] * whitened
        scales = np.einsum("sdd->sd", root)[:, None, :]
        derivatives = np.empty((len(fits), len(self.logs), fits.shape[1]))
        derivatives[:, :, 0] = 1
        derivatives[:, :, self._optimum] = -by_whitened @ root.transpose(0, 2, 1)
        derivatives[:, :, self._slices[0]] = by_whitened * offsets * scales
        derivatives[:, :, self._slices[1]] = (
            by_whitened[:, :, self._columns] * offsets[:, :, self._rows]
        )
        derivatives[:, :, self._slices[2]] = (share * logs)[:, :, None]
        predicted = fits[:, :1] + np.log(1 + raised)
        return self._scaled(predicted, derivatives)


class _Curves(NamedTuple):
    """The curves of all fits at all points, (size, points, D), and their parts."""

    raised: Floats
    offsets: Floats
    distances: Floats
    factors: Floats
    scales: Floats
    square: Floats
    logs: Floats
    power: Floats


class Separable(Peaks):
    """Fits of separable peaks; the shape is the scale and skew of every resource, and the power."""

    def _shape_of(self, dims: int) -> tuple[Block, ...]:
        return (
            Block(dims, -1.0, 0.7, -6, 3, _SAME_CURVES),  # logarithms of the scales
            Block(dims, 0.0, 0.35, -0.8, 0.8),  # skews
            Block(1, -0.35, 0.35, -1.5, 1, _SAME_CURVES),  # logarithm of the power
        )

    def predict(self, points: Floats) -> Floats:
        return self.fits[:, :1] + self._curves(self.fits, points).raised.sum(axis=2)

    def predict_product(self, axes: Sequence[Floats]) -> Floats:
        # The curves of each resource need its own values only.
        longest = max(map(len, axes), default=0)
        padded = np.zeros((longest, len(axes)))
        for d, values in enumerate(axes):
            padded[: len(values), d] = values
        curves = self._curves(self.fits, padded).raised
        total = self.fits[:, :1]
        for d, values in enumerate(axes):
            curve = curves[:, : len(values), d]
            total = (total[:, :, None] + curve[:, None, :]).reshape(self.size, -1)
        return total

    def _curves(self, fits: Floats, points: Floats) -> _Curves:
        offsets = points - fits[:, None, self._optimum]
        distances = np.abs(offsets) + _EDGE
        factors = 1 + fits[:, None, self._slices[1]] * (offsets / distances)
        scales = np.exp(fits[:, None, self._slices[0]])
        square = (offsets * factors * scales) ** 2 + _LEAST_SQUARE
        logs = np.log(square)
        power = np.exp(fits[:, None, self._slices[2]])
        raised = np.exp(power * logs)
        return _Curves(raised, offsets, distances, factors, scales, square, logs, power)

    def _linearize(self, fits: Floats, sharp: float) -> tuple[Floats, Floats]:
        at = self._curves(fits, self.points)
        scaled = at.offsets * at.factors * at.scales
        by_scaled = 2 * at.power * at.raised / at.square * scaled
        by_offset = by_scaled * at.scales * (1 + (at.factors - 1) * (1 + _EDGE / at.distances))
        derivatives = np.empty((len(fits), len(self.logs), fits.shape[1]))
        derivatives[:, :, 0] = 1
        derivatives[:, :, self._optimum] = -by_offset
        derivatives[:, :, self._slices[0]] = by_scaled * scaled
        derivatives[:, :, self._slices[1]] = by_scaled * at.scales * at.offsets**2 / at.distances
        derivatives[:, :, self._slices[2]] = (at.raised * at.power * at.logs).sum(
            axis=2, keepdims=True
        )
        predicted = fits[:, :1] + at.raised.sum(axis=2)
        return self._scaled(predicted, derivatives)
