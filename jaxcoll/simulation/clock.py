"""Ticks: an integer unit of time in which the durations of a simulation are exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.numerics.rational import common_denominator

_HORIZON = 2**62


@dataclasses.dataclass(frozen=True)
class Clock:
    """A unit of time.

    Attributes:
        tick: seconds per tick.
        is_exact: whether every duration is a whole number of ticks. Otherwise durations are
            rounded up, by less than one tick each, so that a time is never too small.
    """

    tick: Fraction
    is_exact: bool

    @classmethod
    def for_durations(cls, durations: Iterable[Fraction], total: Fraction) -> Clock:
        """The clock for times made of the given durations, none above ``total`` seconds.

        Exact if the common denominator leaves room for the total below 2**62 ticks, otherwise the
        finest power of two that does, with a bit to spare for rounding up.
        """
        denominator = common_denominator(durations)
        if total * denominator < _HORIZON:
            return cls(Fraction(1, denominator), True)
        ticks = _HORIZON // 2 / total
        bits = ticks.numerator.bit_length() - ticks.denominator.bit_length() - 1
        return cls(Fraction(2) ** -bits, False)

    def ticks(self, durations: Sequence[Fraction]) -> np.ndarray:
        """Durations in ticks, int64, rounded up where not exact."""
        return np.asarray([-((-duration) // self.tick) for duration in durations], np.int64)

    def seconds(self, ticks: np.ndarray) -> np.ndarray:
        """Ticks as float64 seconds."""
        return np.asarray(ticks) * float(self.tick)
