"""Elliptical peaks: resources may depend on one another, the rise is the same on all sides.

With x the logarithms of the resources, the rise is ``log(1 + q ** power)`` where q is the squared
distance from the optimum in an ellipsoidal metric. The top may be as sharp or as flat as the
measurements say.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.tune.models.least_squares import Floats
from jaxcoll.tune.models.peaks import Block, Peaks

# Spread of the shape about that of the other subspaces, as a share of the prior's.
_RESEMBLANCE = 0.3
_LEAST_SQUARE = 1e-4


class Elliptical(Peaks):
    """Fits of elliptical peaks; the shape is the root of the metric, and the power."""

    def _shape_of(self, dims: int) -> tuple[Block, ...]:
        self._rows, self._columns = np.tril_indices(dims, -1)
        return (
            Block(dims, -1.2, 0.8, -6, 3, _RESEMBLANCE),  # logarithms of the root's diagonal
            Block(len(self._rows), 0.0, 0.2, resemblance=_RESEMBLANCE),  # beside the diagonal
            Block(1, -0.1, 0.35, -3, 2, _RESEMBLANCE),  # logarithm of the power
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

    def _linearize(self, fits: Floats) -> tuple[Floats, Floats]:
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
