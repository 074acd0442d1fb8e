"""The bandwidth of a collective as a function of its resources: equations 1 to 5 of AutoCCL.

A collective runs in two phases, transport and protocol, and is as fast as the slower one
(equation 1). Each phase pays a start-up time per step and moves a batch of bytes in it: NC chunks
of C bytes (equation 4), or the bytes that NC x NT threads hold (equation 5). Congestion lowers the
peak bandwidth of both.

How gaps of the paper are read:

- M cancels between equations 2 and 3: bandwidth does not depend on the message.
- The beta on the right-hand side of equations 2, 4 and 5 is the peak bandwidth (beta with a bar in
  Table 7); else the equations would be circular.
- gamma multiplies the bandwidth, so that it must fall as NC, NT and C grow, though section 4.2 says
  that it rises. Its form is not printed; here 1/gamma = 1 + congestion * NC^a * NT^b * C^c.
- NC x NT is a number of threads, not of bytes. ``THREAD_BYTES`` makes it one.

So 1/beta is a maximum of two posynomials: convex in the logarithms of NC, NT and C.
``fit_bandwidth`` finds the constants of measured times: an ensemble of fits says where they are
about, least squares on the sharp maximum of equation 1 end there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from scipy.optimize import least_squares

from jaxcoll.configurations.fits import NCCL_PHASES, Equations, Floats
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune import Config

# Bytes that a thread moves at once: two 8-byte words. A factor of alpha_1 that decides nothing.
THREAD_BYTES = 16

_RESOURCES = ("channels", "threads", "chunk_bytes")
# Least squares with fewer points than constants would say nothing.
_CONSTANTS = 8
_TWO = 2
_THREE = 3


@dataclasses.dataclass(frozen=True)
class Bandwidth:
    """The model of one subspace (AutoCCL, section 4.2 and Table 7).

    Raises:
        TuneError: constants that are not finite, peaks that are not above 0, negative others.
    """

    # alpha_0 and alpha_1, seconds per step of the transport and of the protocol
    startup: tuple[float, float]
    peak: tuple[float, float]  # peak bandwidth of the transport and of the protocol, B/s
    congestion: float  # factor of 1/gamma - 1 where NC = NT = C = 1
    exponents: tuple[float, float, float]  # of NC, NT and C in 1/gamma - 1

    def __post_init__(self):
        checks.put(
            self,
            startup=_numbers(self.startup, _TWO, "startup", checks.nonnegative),
            peak=_numbers(self.peak, _TWO, "peak", checks.positive),
            congestion=float(checks.nonnegative(self.congestion, "congestion", TuneError)),
            exponents=_numbers(self.exponents, _THREE, "exponents", checks.nonnegative),
        )

    def gamma(self, channels, threads, chunk_bytes):
        """Share of the peak that congestion leaves, in (0, 1]; arrays broadcast."""
        a, b, c = self.exponents
        return 1 / (1 + self.congestion * channels**a * threads**b * chunk_bytes**c)

    def phases(self, channels, threads, chunk_bytes):
        """Bandwidth of the transport and of the protocol in B/s: equations 4 and 5."""
        channels, threads, chunk_bytes = (
            np.asarray(values, float) for values in (channels, threads, chunk_bytes)
        )
        gamma = self.gamma(channels, threads, chunk_bytes)
        batches = channels * chunk_bytes, channels * threads * THREAD_BYTES
        return tuple(
            batch / (startup + batch / (peak * gamma))
            for batch, startup, peak in zip(batches, self.startup, self.peak, strict=True)
        )

    def __call__(self, channels, threads, chunk_bytes):
        """Bandwidth in B/s: equation 1; arrays broadcast."""
        return np.minimum(*self.phases(channels, threads, chunk_bytes))

    def seconds(self, config: Config, nbytes: float) -> float:
        """Time of a message of ``nbytes`` bytes with a configuration of NCCL's resources."""
        values = (cast(float, config[name]) for name in ("channels", "threads", "chunk_bytes"))
        return nbytes / float(self(*values))

    def limits(self, config: Config) -> str:
        """Which phase limits a configuration: ``"transport"`` or ``"protocol"``."""
        values = (cast(float, config[name]) for name in ("channels", "threads", "chunk_bytes"))
        transport, protocol = self.phases(*values)
        return "transport" if transport <= protocol else "protocol"


def _numbers(values, count: int, what: str, check) -> tuple[float, ...]:
    given = checks.members(values, what, TuneError)
    if len(given) != count:
        raise TuneError(f"{what} must be {count} numbers, got {checks.shown(values)}")
    numbers = tuple(float(check(value, what, TuneError)) for value in given)
    if not all(map(math.isfinite, numbers)):
        raise TuneError(f"{what} must be finite, got {checks.shown(values)}")
    return numbers


# ---------------------------------------------------------------------- fitted to measurements


@dataclasses.dataclass(frozen=True)
class Fit:
    """A model and its distance from the measurements that it was fitted to."""

    model: Bandwidth
    residuals: Mapping[Config, float]  # measured over predicted seconds, less 1, per configuration

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
        nbytes: bytes of the message.
        seed: the seed of the starting points.

    Raises:
        TuneError: fewer different configurations than the model has constants (8); times that are
            not positive; configurations without channels, threads and chunk bytes.
    """
    # The message cancels in the model, as M does between equations 2 and 3; it is needed only to
    # turn seconds into bandwidths.
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
    # Logarithms about their middle: constants of the fit are then of order one, while NC^a * NT^b *
    # C^c of raw bytes would tie the congestion to its exponents.
    middle = (logs.min(axis=0) + logs.max(axis=0)) / 2
    constants = _fitted(logs - middle, np.log(times), seed)
    model = _model(constants, middle, size)
    predicted = size / model(*resources.T)
    residuals = times / predicted - 1
    return Fit(model, dict(zip(configs, residuals.tolist(), strict=True)))


def _fitted(points: Floats, logs: Floats, seed: int) -> Floats:
    """Two offsets, two start-ups, three exponents, congestion: logarithms but for the exponents."""
    ensemble = Equations(NCCL_PHASES, [checks.seed(seed, TuneError)])
    for point, log in zip(points, logs, strict=True):
        ensemble.add(point, float(log))
    best: tuple[float, Floats] | None = None
    # The ensemble smooths the maximum of equation 1, so its fits are near and not at an optimum;
    # the eight cheapest are polished, since from one start least squares may end in a local
    # optimum.
    for fit in ensemble.fits[np.argsort(ensemble.cost, kind="stable")[:8]]:
        start = np.concatenate([fit[:2] + fit[8], fit[2:8]])
        bounds = (
            # Exponents are from 0, or the model would let resources speed congestion up, to 4; all
            # else is a logarithm and free.
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
    # Clipped at 300: exp of more overflows where least squares tries a far point.
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
