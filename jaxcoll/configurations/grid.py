"""Grids: the points of one subspace that a search considers, and the predictions of its fits.

A coarse grid covers the subspace and a fine one the surroundings of the predicted optimum. Fits are
of equations 1 to 5 at first; where these do not hold, the form of peak that explains the
measurements of all subspaces at the least cost takes their place (``fit_form``, ``better_form``),
and subspaces inform one another (``share``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from jaxcoll.configurations.config import Config
from jaxcoll.configurations.fits import Equations, Floats, product_of
from jaxcoll.configurations.peaks import Peaks
from jaxcoll.configurations.space import Index, Subspace

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
