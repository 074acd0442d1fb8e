"""Separable peaks: every resource has a curve of its own, which may be steeper on one side.

With u the logarithm of a resource less that of its optimum, its curve is
``(scale * u * (1 + skew * sign(u))) ** (2 * power)``, and the rise is the sum of the curves: from
an edge at a power of 1/2 to a parabola at 1. The sign is smooth, so that fits can cross the
optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcoll.tune.models.least_squares import Floats
from jaxcoll.tune.models.peaks import Block, Peaks

# Spread of scales and power about those of the other subspaces, as a share of the prior's.
_RESEMBLANCE = 0.5
# Half of the sign's change happens within this distance of the optimum.
_EDGE = 0.1
_LEAST_SQUARE = 1e-4


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
            Block(dims, -1.0, 0.7, -6, 3, _RESEMBLANCE),  # logarithms of the scales
            Block(dims, 0.0, 0.35, -0.8, 0.8),  # skews
            Block(1, -0.35, 0.35, -1.5, 1, _RESEMBLANCE),  # logarithm of the power
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

    def _linearize(self, fits: Floats) -> tuple[Floats, Floats]:
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
