"""Grids: the points of one subspace that a search considers, and the predictions of its fits.

A coarse grid covers the subspace and a fine one the surroundings of the predicted optimum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxcoll.tune.models.ensemble import Ensemble
from jaxcoll.tune.models.least_squares import Floats, product_of
from jaxcoll.tune.models.peaks import Peaks
from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.spaces.space import Index, Subspace

# Spacing of the coarse grid in natural logarithms, and its most values per resource.
_SPACING = 0.6
_MOST_VALUES = 10
# The fine grid, in spacings of the coarse one.
_STEP = 0.25
_FINE = _STEP * np.arange(-3, 4)


class Grid:
    """The candidates of one subspace and the predictions of its ensemble."""

    def __init__(self, subspace: Subspace, ensemble: Ensemble):
        self.subspace = subspace
        self.ensemble: Ensemble | Peaks = ensemble
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
