"""Proved bounds of an all-to-all rate."""

from __future__ import annotations

import dataclasses
from fractions import Fraction


class Bounded:
    """A rate between two proved bounds, which the subclass holds."""

    lower: Fraction
    upper: Fraction

    @property
    def is_exact(self) -> bool:
        """Whether the bounds meet."""
        return self.lower == self.upper

    @property
    def gap(self) -> float:
        """How far the upper bound lies above the lower, relative to it."""
        return float(self.upper / self.lower - 1)


@dataclasses.dataclass(frozen=True)
class RateBounds(Bounded):
    """Proved bounds of the all-to-all rate of a digraph, links being of capacity 1.

    Attributes:
        lower: a flow of this rate exists.
        upper: no flow has a larger rate.
    """

    lower: Fraction
    upper: Fraction
