"""Ticks: an integer unit of time in which the durations of a simulation are exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.exact import common_denominator

_HORIZON = 2**62


@dataclasses.dataclass(frozen=True)
class Clock:
    """A unit of time.

    Attributes:
        tick: seconds a tick.
        is_exact: whether every duration is a whole number of ticks. Otherwise durations are
            rounded up, by less than one tick each, so that a time is never too small.
    """

    tick: Fraction
    is_exact: bool

    @classmethod
    def for_durations(cls, durations: Sequence[Fraction], additions: int) -> Clock:
        """The clock for sums of up to ``additions`` of the durations (in seconds) in int64.

        Exact if the common denominator leaves room for the sum below 2**62, otherwise the finest
        power of two that does.
        """
        longest = max(durations, default=Fraction(0)) * max(additions, 1)
        denominator = common_denominator(durations)
        if longest * denominator < _HORIZON:
            return cls(Fraction(1, denominator), True)
        bits = 0
        while longest * 2 ** (bits + 1) + additions < _HORIZON:
            bits += 1
        return cls(Fraction(1, 2**bits), False)

    def ticks(self, durations: Sequence[Fraction]) -> np.ndarray:
        """Durations in ticks, int64, rounded up where not exact."""
        return np.asarray([-((-duration) // self.tick) for duration in durations], np.int64)

    def seconds(self, ticks: np.ndarray) -> np.ndarray:
        """Ticks as float64 seconds."""
        return np.asarray(ticks) * float(self.tick)
