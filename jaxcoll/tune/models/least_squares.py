"""Levenberg-Marquardt for many nonlinear least-squares fits at a time, each with its own prior.

A fit minimizes the squares of its residuals and of its distance from the prior in units of the
prior's spread. Arrays carry the fits in their first dimension (Nocedal and Wright, Numerical
Optimization, 2nd ed., section 10.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

INITIAL_DAMPING = 1e-2
_LEAST_DAMPING, _MOST_DAMPING = 1e-6, 1e4
_EASED, _TIGHTENED = 0.2, 8

# A cost of this much more than the multiple of the median says that a fit is lost.
_MARGIN = 15


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
