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

A fit is compared on the points of its subspace (``Grid``): a coarse grid covers the subspace and a
fine one the surroundings of the predicted optimum. Fits are of equations 1 to 5 at first; where
these do not hold, the form of peak that explains the measurements of all subspaces at the least
cost takes their place (``fit_form``, ``better_form``). Subspaces run on the same hardware, so the
level and the shape of one are expected to resemble those of the others (empirical Bayes: ``share``,
``expect``).
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from jaxcoll.configurations import Config
from jaxcoll.configurations.fits import Equations, Fits, Floats, product_of
from jaxcoll.configurations.space import Index, Subspace

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
        mean, spread: mean and spread of the prior.
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
        extents: extents of the resources, in logarithms; points are measured from their middle.
        seed: the seed of the draws.
        size: how many fits.
        noise: relative standard deviation of a measurement and of the model near the optimum.
        error: the error of the model, per unit of logarithm above the fastest measurement: a form
            that fits around the optimum need not fit where the seconds are many times as long.
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


# Spacing of the coarse grid in natural logarithms, and its most values per resource.
_SPACING = 0.6
_MOST_VALUES = 10
# The fine grid, in spacings of the coarse one.
_STEP = 0.25
_FINE = _STEP * np.arange(-3, 4)

# The model's own error: near the optimum in measurement noises, and per unit of logarithm above it.
_ERROR, _ERROR_ABOVE = 1.5, 0.2

# Standard deviation of the logarithm of the peaks of subspaces, and the variance that a known
# level has beside its own.
_LEVEL_SPREAD = 0.6
_LEVEL_VARIANCE = 0.3

# Measurements from which a subspace's shape is known, and from which its costs are compared.
_SHAPED, _COMPARED = 7, 4
# Costs are log-likelihoods times -2: by this difference a form is e^15 times as likely.
_DECISIVE = 30.0


class Grid:
    """The candidates of one subspace and the predictions of its ensemble."""

    def __init__(self, subspace: Subspace, ensemble: Equations):
        self.subspace = subspace
        self.ensemble: Equations | Peaks = ensemble
        self.failures = 0
        self.measured: list[Config] = []  # in the order of the ensemble's points
        logs = [np.log(np.maximum(p.values, 0.5)) for p in subspace.resources]
        self.coordinates = [values - (values[0] + values[-1]) / 2 for values in logs]
        self.spacings = []
        coarse = []
        for values in self.coordinates:
            extent = values[-1] - values[0]
            count = min(_MOST_VALUES, len(values), math.ceil(extent / _SPACING) + 1)
            self.spacings.append(extent / max(1, count - 1))
            coarse.append(_nearest(values, np.linspace(values[0], values[-1], count)))
        self._coarse = coarse
        self.coarse = product_of(coarse)
        self.indices = self.coarse
        self.predicted = np.empty((ensemble.size, len(self.coarse)))
        self.optima = np.empty(ensemble.size)

    def point(self, index: Iterable[int]) -> Floats:
        """Centred logarithms of the resources at a position."""
        return np.array([values[i] for values, i in zip(self.coordinates, index, strict=True)])

    def points(self, indices: np.ndarray) -> Floats:
        """Centred logarithms of the resources at positions (count, D)."""
        columns = [values[indices[:, d]] for d, values in enumerate(self.coordinates)]
        return np.stack(columns, axis=1) if columns else np.empty((len(indices), 0))

    def middle(self) -> Index:
        """The position in the geometric middle of every resource."""
        return tuple(int(_nearest(values, np.zeros(1))[0]) for values in self.coordinates)

    def neighbours(self, index: Index) -> Iterator[Index]:
        """Positions a step of the fine grid away, along one resource, then along two at once."""
        beside = []
        for values, i, spacing in zip(self.coordinates, index, self.spacings, strict=True):
            near = _nearest(values, values[i] + spacing * np.array([-_STEP, _STEP]))
            low, high = min(int(near[0]), i - 1), max(int(near[-1]), i + 1)
            beside.append(sorted({max(low, 0), i, min(high, len(values) - 1)}))
        moves = [
            (sum(a != b for a, b in zip(position, index, strict=True)), position)
            for position in itertools.product(*beside)
        ]
        yield from (position for count, position in sorted(moves) if 1 <= count <= 2)

    def predict(self) -> None:
        """Predictions for the coarse grid, and for a fine one around its best point."""
        coarse = self._predicted(self._coarse)
        best = self.coarse[int(coarse.mean(axis=0).argmin())]
        fine = [
            _nearest(values, values[i] + spacing * _FINE)
            for values, i, spacing in zip(self.coordinates, best, self.spacings, strict=True)
        ]
        self.indices = np.vstack([self.coarse, product_of(fine)])
        self.predicted = np.hstack([coarse, self._predicted(fine)])
        self.optima = self.predicted.min(axis=1)

    def _predicted(self, positions: Sequence[np.ndarray]) -> Floats:
        axes = [v[i] for v, i in zip(self.coordinates, positions, strict=True)]
        return self.ensemble.predict_product(axes)


def _nearest(values: Floats, targets: Floats) -> np.ndarray:
    """Positions of the ascending values nearest to some targets, each once."""
    right = np.clip(np.searchsorted(values, targets), 1, max(1, len(values) - 1))
    if len(values) == 1:
        return np.zeros(1, np.int64)
    left = right - 1
    nearer = np.where(targets - values[left] <= values[right] - targets, left, right)
    return np.unique(nearer)


# ---------------------------------------------------------------------- forms


def fit_form(form: type[Peaks], grids: Sequence[Grid], seed: int, noise: float) -> None:
    """Fits peaks of one form to the measurements of every subspace."""
    for number, grid in enumerate(grids):
        grid.ensemble = _fitted(form, grid, [seed, number, 1], noise, _ERROR_ABOVE)


def better_form(
    forms: Sequence[type[Peaks]], grids: Sequence[Grid], seed: int, noise: float
) -> tuple[type[Peaks], bool]:
    """The form with the least cost over all subspaces, and whether that is certain.

    Measurements far from the optimum have full weight here: they tell forms apart best.
    """
    known = [(n, grid) for n, grid in enumerate(grids) if len(grid.measured) >= _COMPARED]
    costs = []
    for form in forms:
        fitted = (_fitted(form, grid, [seed, number, 1], noise) for number, grid in known)
        costs.append(float(sum(np.median(peaks.cost) for peaks in fitted)))
    least, *others = sorted(costs)
    return forms[costs.index(least)], not others or others[0] - least > _DECISIVE


def _fitted(
    form: type[Peaks], grid: Grid, seed: Sequence[int], noise: float, error: float = 0.0
) -> Peaks:
    extents = [values[-1] - values[0] for values in grid.coordinates]
    peaks = form(extents, seed, noise=_ERROR * noise, error=error)
    if grid.ensemble.logs.size:
        peaks.take(grid.ensemble.points, grid.ensemble.logs)
    return peaks


def share(grids: Collection[Grid]) -> None:
    """Subspaces share the hardware: level and shape of one say something about the others."""
    families: dict[tuple[str, ...], list[Peaks]] = {}
    for grid in grids:
        if isinstance(grid.ensemble, Peaks) and grid.measured:
            names = tuple(p.name for p in grid.subspace.resources)
            families.setdefault(names, []).append(grid.ensemble)
    fitted = [peaks for family in families.values() for peaks in family]
    if not fitted:
        return
    means, variances = np.array([peaks.level for peaks in fitted]).T
    level = float(np.average(means, weights=1 / (variances + _LEVEL_VARIANCE)))
    for family in families.values():
        known = [peaks.shape for peaks in family if peaks.logs.size >= _SHAPED]
        shape = np.mean(known, axis=0) if known else None
        for peaks in family:
            peaks.expect((level, _LEVEL_SPREAD), shape)
