"""Equations 1 to 5 of AutoCCL fitted to the measurements of one subspace.

An ensemble finds where the fit belongs (``ensemble``), least squares on the sharp maximum of
equation 1 end it there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune.models.ensemble import NCCL_PHASES, Ensemble
from jaxcoll.tune.models.least_squares import Floats
from jaxcoll.tune.models.model import THREAD_BYTES, Bandwidth
from jaxcoll.tune.spaces.config import Config

_RESOURCES = ("channels", "threads", "chunk_bytes")
# Least squares with fewer points than constants would say nothing.
_CONSTANTS = 8


@dataclasses.dataclass(frozen=True)
class Fit:
    """A model and its distance from the measurements that it was fitted to.

    Attributes:
        model: the fitted model.
        residuals: measured over predicted seconds, less 1, per configuration.
    """

    model: Bandwidth
    residuals: Mapping[Config, float]

    @property
    def largest(self) -> float:
        """The largest residual, without its sign."""
        return max(map(abs, self.residuals.values()))

    @property
    def root_mean_square(self) -> float:
        """Root of the mean squared residual."""
        values = self.residuals.values()
        return math.sqrt(sum(value**2 for value in values) / len(values))

    def __str__(self) -> str:
        model = self.model
        names = ("transport", "protocol")
        phases = [
            f"{name}: start-up {startup * 1e6:.3g} us, peak {peak / 1e9:.3g} GB/s"
            for name, startup, peak in zip(names, model.startup, model.peak, strict=True)
        ]
        a, b, c = model.exponents
        lines = [
            *phases,
            f"1/gamma = 1 + {model.congestion:.3g} NC^{a:.3g} NT^{b:.3g} C^{c:.3g}",
            *(f"{residual:+7.2%}  {config}" for config, residual in self.residuals.items()),
            f"root mean square {self.root_mean_square:.2%}, largest {self.largest:.2%}",
        ]
        return "\n".join(lines)


def fit_bandwidth(measured: Sequence[tuple[Config, float]], nbytes: float, *, seed: int = 0) -> Fit:
    """The model of equations 1 to 5 nearest to measured times, by squared logarithms.

    Args:
        measured: configurations of one subspace of NCCL's parameters, with their seconds.
        nbytes: of the message.
        seed: of the starting points.

    Raises:
        TuneError: fewer different configurations than the model has constants (8); times that are
            not positive; configurations without channels, threads and chunk bytes.
    """
    size = float(checks.positive(nbytes, "nbytes", TuneError))
    times = np.array([float(checks.positive(t, "seconds", TuneError)) for _, t in measured])
    configs = [config for config, _ in measured]
    if len(set(configs)) < _CONSTANTS:
        raise TuneError(
            f"the model has {_CONSTANTS} constants, so that at least {_CONSTANTS} configurations "
            f"must be measured, got {len(set(configs))}"
        )
    resources = np.array([[_resource(c, name) for name in _RESOURCES] for c in configs], float)
    logs = np.log(resources)
    middle = (logs.min(axis=0) + logs.max(axis=0)) / 2
    constants = _fitted(logs - middle, np.log(times), seed)
    model = _model(constants, middle, size)
    predicted = size / model(*resources.T)
    residuals = times / predicted - 1
    return Fit(model, dict(zip(configs, residuals.tolist(), strict=True)))


def _fitted(points: Floats, logs: Floats, seed: int) -> Floats:
    """Two offsets, two start-ups, three exponents, congestion: logarithms but for the exponents."""
    ensemble = Ensemble(NCCL_PHASES, [checks.seed(seed, TuneError)])
    for point, log in zip(points, logs, strict=True):
        ensemble.add(point, float(log))
    best: tuple[float, Floats] | None = None
    for fit in ensemble.fits[np.argsort(ensemble.cost, kind="stable")[:8]]:
        start = np.concatenate([fit[:2] + fit[8], fit[2:8]])
        bounds = (
            [*[-np.inf] * 4, *[0.0] * 3, -np.inf],
            [*[np.inf] * 4, *[4.0] * 3, np.inf],
        )
        found = least_squares(
            lambda c: _log_seconds(c, points) - logs, start, bounds=bounds, xtol=1e-14, ftol=1e-14
        )
        if best is None or found.cost < best[0]:
            best = found.cost, found.x
    if best is None:
        raise TuneError("nothing was measured")
    return best[1]


def _log_seconds(constants: Floats, points: Floats) -> Floats:
    levels, startups, exponents, congestion = np.split(constants, (2, 4, 7))
    batches = np.minimum(startups[:, None] - NCCL_PHASES @ points.T, 300)
    crowded = np.minimum(points @ exponents + congestion[0], 300)
    return (levels[:, None] + np.log(np.exp(batches) + 1 + np.exp(crowded))).max(axis=0)


def _model(constants: Floats, middle: Floats, nbytes: float) -> Bandwidth:
    levels, startups, exponents, congestion = np.split(constants, (2, 4, 7))
    peaks = nbytes * np.exp(-levels)
    batches = np.exp(startups + NCCL_PHASES @ middle) * (1, THREAD_BYTES)
    return Bandwidth(
        startup=tuple((batches / peaks).tolist()),
        peak=tuple(peaks.tolist()),
        congestion=float(np.exp(congestion[0] - exponents @ middle)),
        exponents=tuple(exponents.tolist()),
    )


def _resource(config: Config, name: str) -> float:
    if name not in config:
        raise TuneError(f"the configuration ({config}) has no {name!r}; the model needs NCCL's")
    return float(checks.positive(config[name], name, TuneError))
