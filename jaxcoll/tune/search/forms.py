"""Which form of peak a machine has, and how its subspaces inform one another.

Where equations 1 to 5 do not hold, the form that explains the measurements of all subspaces at the
least cost takes their place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from jaxcoll.tune.models.elliptical import Elliptical
from jaxcoll.tune.models.peaks import Peaks
from jaxcoll.tune.models.separable import Separable
from jaxcoll.tune.search.grid import Grid

FORMS: tuple[type[Peaks], ...] = (Elliptical, Separable)

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


def fit_form(form: type[Peaks], grids: Sequence[Grid], seed: int, noise: float) -> None:
    """Fits peaks of one form to the measurements of every subspace."""
    for number, grid in enumerate(grids):
        grid.ensemble = _fitted(form, grid, [seed, number, 1], noise, _ERROR_ABOVE)


def better_form(grids: Sequence[Grid], seed: int, noise: float) -> tuple[type[Peaks], bool]:
    """The form with the least cost over all subspaces, and whether that is certain.

    Measurements far from the optimum have full weight here: they tell forms apart best.
    """
    known = [(n, grid) for n, grid in enumerate(grids) if len(grid.measured) >= _COMPARED]
    costs = []
    for form in FORMS:
        fitted = (_fitted(form, grid, [seed, number, 1], noise) for number, grid in known)
        costs.append(float(sum(np.median(peaks.cost) for peaks in fitted)))
    least, next_least = sorted(costs)[:2]
    return FORMS[costs.index(least)], next_least - least > _DECISIVE


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
