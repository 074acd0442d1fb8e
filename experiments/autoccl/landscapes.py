"""Landscapes: machines that are known, to compare searches on.

A landscape gives every configuration of a space of NCCL's parameters a bandwidth, and measurements
of it with noise. Its subspaces are drawn from broad distributions, so that optima lie in corners as
well as inside, start-up or congestion limits, and subspaces are up to ten times apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.autoccl.bandwidth import THREAD_BYTES, Bandwidth
from jaxcoll.configurations import ALGORITHM, PROTOCOL, THREADS, TRANSPORT, nccl_config
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune import Config, Parameter, Space

_GB = 1e9
# Between which NC, NT and C lie where they begin to cost more than they gain.
_KNEES = ((4, 64), (96, 512), (1e4, 1e6))


def landscape_space() -> Space:
    """Table 2 with 20 channel counts and 27 chunk sizes in geometric steps: 129,600 points."""
    channels = tuple(np.unique(np.round(np.geomspace(1, 128, 24)).astype(int)).tolist())
    chunks = np.unique(np.round(np.geomspace(1, 8192, 28)).astype(int))
    default = nccl_config("ring", "simple", "p2p", 8, 512, 256 * int(chunks[-1]))
    parameters = (
        ALGORITHM,
        PROTOCOL,
        TRANSPORT,
        Parameter("channels", channels, "resource"),
        THREADS,
        Parameter("chunk_bytes", tuple((256 * chunks).tolist()), "resource"),
    )
    return Space.product(parameters, default)


@dataclasses.dataclass(frozen=True)
class Hill:
    """A unimodal bandwidth that equations 1 to 5 do not describe: a ridge with a sharp top.

    The peak over ``1 + q ** 0.8`` where q is a quadratic form of the logarithms of the resources
    with mixed terms, 0 at the optimum.
    """

    peak: float  # B/s
    optimum: tuple[float, float, float]  # NC, NT and C of the peak

    def __call__(self, channels, threads, chunk_bytes):
        """Bandwidth in B/s; arrays broadcast."""
        resources = (channels, threads, chunk_bytes)
        u, v, w = (np.log(r / o) for r, o in zip(resources, self.optimum, strict=True))
        form = 0.08 * u * u + 0.10 * v * v + 0.03 * w * w + 0.06 * u * w + 0.04 * u * v
        return self.peak / (1 + np.maximum(form, 0) ** 0.8)


@dataclasses.dataclass(frozen=True)
class Ramp:
    """A unimodal bandwidth with an edge at the optimum, which is steeper on one side."""

    peak: float  # B/s
    optimum: tuple[float, float, float]  # NC, NT and C of the peak
    # above, below: by which powers of a resource, over and under its optimum, bandwidth falls
    above: tuple[float, float, float]
    below: tuple[float, float, float]

    def __call__(self, channels, threads, chunk_bytes):
        """Bandwidth in B/s; arrays broadcast."""
        resources = (channels, threads, chunk_bytes)
        fall = sum(
            np.maximum(a * np.log(r / o), -b * np.log(r / o))
            for r, o, a, b in zip(resources, self.optimum, self.above, self.below, strict=True)
        )
        return self.peak * np.exp(-fall)


@dataclasses.dataclass(frozen=True)
class Coupled:
    """A smooth unimodal bandwidth whose resources are coupled and have curves of three forms.

    With u, v and w the logarithms of NC, NT and C over those of the optimum, chunks are judged by
    ``w + coupling * u``: the best C falls as NC grows. One curve rises and falls by different
    powers, one is a bell, one falls by a power of the distance; which resource has which is drawn.
    No model of the searches has this form. Two constants of the fitted search were chosen on
    such landscapes: how far it trusts a form of peak far from the optimum, and from how many
    points of the fastest subspace on every other measurement goes to another.
    """

    peak: float  # B/s
    optimum: tuple[float, float, float]  # NC, NT and C of the peak
    order: tuple[int, int, int]  # which curve NC, NT and C have: 0, 1 and 2 in any order
    powers: tuple[float, float]  # by which the first curve rises and falls
    width: float  # of the bell, in logarithms
    # scale, exponent: of the third curve
    scale: float
    exponent: float
    coupling: float  # powers by which the best C falls as NC grows

    def __call__(self, channels, threads, chunk_bytes):
        """Bandwidth in B/s; arrays broadcast."""
        resources = (channels, threads, chunk_bytes)
        u, v, w = (np.log(r / o) for r, o in zip(resources, self.optimum, strict=True))
        rise, fall = self.powers
        curves = (
            lambda x: np.log((fall * np.exp(-rise * x) + rise * np.exp(fall * x)) / (rise + fall)),
            lambda x: (x / self.width) ** 2 / 2,
            lambda x: np.log1p(np.abs(x / self.scale) ** self.exponent),
        )
        offsets = (u, v, w + self.coupling * u)
        loss = sum(curves[k](x) for k, x in zip(self.order, offsets, strict=True))
        return self.peak * np.exp(-loss)


class Landscape:
    """Bandwidths of all configurations of a space, and noisy measurements of them.

    Args:
        space: the space of NCCL's parameters.
        bandwidths: one function of channels, threads and chunk bytes per subspace.
        noise: relative standard deviation of a measurement.
        is_lognormal: whether noise is that of the logarithm, with a tail on both sides.
        seed: the seed of the noise.
        nbytes: bytes of the message that is timed.

    Raises:
        TuneError: not one function per subspace; a negative noise.
    """

    def __init__(
        self,
        space: Space,
        bandwidths: tuple[Callable[[Any, Any, Any], Any], ...],
        *,
        noise: float = 0.02,
        is_lognormal: bool = False,
        seed: int = 0,
        nbytes: float = 80e6,
    ):
        if len(bandwidths) != len(space.subspaces):
            raise TuneError(
                f"bandwidths must be one per subspace, {len(space.subspaces)}, "
                f"got {len(bandwidths)}"
            )
        self.space = space
        self.bandwidths = dict(zip(space.subspaces, bandwidths, strict=True))
        self.noise = float(checks.nonnegative(noise, "noise", TuneError))
        self.nbytes = float(checks.positive(nbytes, "nbytes", TuneError))
        self.is_lognormal = is_lognormal
        self.measurements = 0
        self._rng = np.random.default_rng(checks.seed(seed, TuneError))

    def bandwidth(self, config: Config) -> float:
        """Of a configuration, B/s, without noise."""
        function = self.bandwidths[self.space.subspace_of(config)]
        return float(function(config["channels"], config["threads"], config["chunk_bytes"]))

    def measure(self, config: Config) -> float:
        """Seconds of one message, with noise."""
        self.measurements += 1
        drawn = self.noise * self._rng.standard_normal()
        # Normal noise has no lower end: a factor below a tenth would make a bandwidth of nearly
        # nothing, or less than nothing.
        factor = math.exp(drawn) if self.is_lognormal else max(1 + drawn, 0.1)
        return self.nbytes / (self.bandwidth(config) * factor)

    def best(self) -> tuple[Config, float]:
        """The fastest configuration and its bandwidth in B/s, by looking at all of them."""
        found: tuple[Config, float] | None = None
        for subspace, function in self.bandwidths.items():
            axes = (np.array(parameter.values, float) for parameter in subspace.resources)
            values = function(*np.meshgrid(*axes, indexing="ij", sparse=True))
            position = np.unravel_index(int(values.argmax()), values.shape)
            if found is None or values[position] > found[1]:
                found = subspace.config([int(i) for i in position]), float(values[position])
        if found is None:
            raise TuneError("the space has no subspaces")
        return found


# From a space and a seed, and the noise by keyword.
Maker = Callable[..., Landscape]


def _family(number: int) -> Callable[[Callable[[np.random.Generator], Any]], Maker]:
    """A family of landscapes, from what draws the bandwidth of one subspace.

    Its number is part of the seed, so that families draw independently of one another.
    """

    def of(drawn: Callable[[np.random.Generator], Any]) -> Maker:
        def made(space: Space, seed: int, *, noise: float = 0.02) -> Landscape:
            rng = np.random.default_rng([seed, number])
            bandwidths = tuple(drawn(rng) for _ in space.subspaces)
            return Landscape(space, bandwidths, noise=noise, seed=seed)

        return made

    return of


@_family(1)
def equations(rng: np.random.Generator) -> Bandwidth:
    """Equations 1 to 5 with constants drawn for every subspace."""
    return _drawn(rng)[0]


@_family(2)
def hills(rng: np.random.Generator) -> Hill:
    """Unimodal bandwidths of another form, peaks and optima drawn likewise."""
    return _drawn(rng)[1]


@_family(3)
def ramps(rng: np.random.Generator) -> Ramp:
    """Unimodal bandwidths that fall by other powers on either side of an optimum."""
    peak = _GB * rng.uniform(4, 40)
    channels, threads, chunk_bytes = (_log_uniform(rng, *ends) for ends in _KNEES)
    above, below = (tuple(rng.uniform(0.1, 0.6, 3).tolist()) for _ in range(2))
    return Ramp(peak, (channels, threads, chunk_bytes), above, below)


@_family(4)
def coupled(rng: np.random.Generator) -> Coupled:
    """Smooth bandwidths of yet another form, of which searches have no model."""
    channels, threads, chunk_bytes = (_log_uniform(rng, *ends) for ends in _KNEES)
    first, second, third = rng.permutation(3).tolist()
    return Coupled(
        peak=_GB * rng.uniform(4, 40),
        optimum=(channels, threads, chunk_bytes),
        order=(first, second, third),
        powers=(rng.uniform(0.2, 1.0), rng.uniform(0.2, 1.0)),
        width=rng.uniform(1.0, 3.0),
        scale=rng.uniform(0.8, 2.5),
        exponent=rng.uniform(1.2, 3.0),
        coupling=rng.uniform(0.0, 0.6),
    )


# ---------------------------------------------------------------------- forms that no search models


@dataclasses.dataclass(frozen=True)
class Cliff:
    """A hill that falls to a share of its height where the bytes in flight outgrow a buffer."""

    hill: Hill  # without the cliff
    capacity: float  # bytes, NC x C, above which bandwidth is ``left`` times that of the hill
    left: float  # in (0, 1)

    def __call__(self, channels, threads, chunk_bytes):
        """Bandwidth in B/s; arrays broadcast."""
        fits = channels * chunk_bytes <= self.capacity
        return self.hill(channels, threads, chunk_bytes) * np.where(fits, 1.0, self.left)


@dataclasses.dataclass(frozen=True)
class Highest:
    """The highest of several bandwidths at every point, such as two peaks far apart."""

    parts: tuple[Hill, ...]

    def __call__(self, channels, threads, chunk_bytes):
        """Bandwidth in B/s; arrays broadcast."""
        heights = [part(channels, threads, chunk_bytes) for part in self.parts]
        return np.maximum.reduce(np.broadcast_arrays(*heights))


@dataclasses.dataclass(frozen=True)
class Needle:
    """A plateau, and a box of resources where bandwidth is a multiple of the plateau's."""

    level: float  # of the plateau, B/s
    # least, most: NC, NT and C of the box
    least: tuple[float, float, float]
    most: tuple[float, float, float]
    gain: float  # of the box; 1 where there is no needle

    def __call__(self, channels, threads, chunk_bytes):
        """Bandwidth in B/s; arrays broadcast."""
        resources = (channels, threads, chunk_bytes)
        inside = True
        for values, least, most in zip(resources, self.least, self.most, strict=True):
            inside = inside & (least <= values) & (values <= most)
        return self.level * np.where(inside, self.gain, 1.0)


@_family(5)
def cliff(rng: np.random.Generator) -> Cliff:
    """Hills that are cut off: the best point is at the edge, or on the slope before it."""
    hill = _drawn(rng)[1]
    optimum = hill.optimum[0] * hill.optimum[2]
    return Cliff(hill, optimum * _log_uniform(rng, 0.05, 1.0), rng.uniform(0.2, 0.6))


@_family(6)
def two_peaks(rng: np.random.Generator) -> Highest:
    """Two hills per subspace; the lower one has 60 to 95 % of the height of the other."""
    first, second = _drawn(rng)[1], _drawn(rng)[1]
    return Highest((first, Hill(first.peak * rng.uniform(0.6, 0.95), second.optimum)))


def noisy(space: Space, seed: int, *, noise: float = 0.15) -> Landscape:
    """The bandwidths of ``coupled`` with lognormal noise, several times what a search is told."""
    quiet = coupled(space, seed)
    functions = tuple(quiet.bandwidths.values())
    return Landscape(space, functions, noise=noise, is_lognormal=True, seed=seed)


def needle(space: Space, seed: int, *, noise: float = 0.02) -> Landscape:
    """Plateaus of nearly the same height; a third of the range of each resource of one is fast."""
    rng = np.random.default_rng([seed, 7])
    chosen = int(rng.integers(len(space.subspaces)))

    def drawn(number: int) -> Needle:
        middles = [_log_uniform(rng, *ends) for ends in _KNEES]
        # A sixth of the range on either side, in logarithms, is a third of it in all.
        spans = [(ends[1] / ends[0]) ** (1 / 6) for ends in _KNEES]
        least, most = (
            tuple(m * s**sign for m, s in zip(middles, spans, strict=True)) for sign in (-1, 1)
        )
        level = _GB * rng.uniform(19, 21)
        return Needle(level, least, most, 2.0 if number == chosen else 1.0)  # type: ignore[arg-type]

    functions = tuple(drawn(number) for number in range(len(space.subspaces)))
    return Landscape(space, functions, noise=noise, seed=seed)


def _drawn(rng: np.random.Generator) -> tuple[Bandwidth, Hill]:
    """The constants of one subspace, by the equations and as a hill."""
    peaks = _GB * rng.uniform(4, 40), _GB * rng.uniform(4, 60)
    # Bytes of a step at which a phase has half of its peak: start-up times follow from them.
    halves = _log_uniform(rng, 8e3, 4e6), THREAD_BYTES * _log_uniform(rng, 64, 4e3)
    exponents = tuple(rng.uniform(0.5, 1.2, 3))
    knees = [_log_uniform(rng, least, most) for least, most in _KNEES]
    model = Bandwidth(
        startup=(halves[0] / peaks[0], halves[1] / peaks[1]),
        peak=peaks,
        # So that congestion is 1, half of the peak, where all three resources are at their knees.
        congestion=math.prod(knee**-a for knee, a in zip(knees, exponents, strict=True)),
        exponents=exponents,
    )
    return model, Hill(peaks[0], (knees[0], 1.5 * knees[1], knees[2]))


def _log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))
