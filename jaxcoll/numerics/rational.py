"""Exact rational numbers: the rational that a float denotes, and common denominators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from numbers import Rational

import numpy as np

from jaxcoll.errors import JaxcollError, shown

Number = int | float | Fraction


def as_fraction(value: Number) -> Fraction:
    """The rational a number denotes.

    A float means the shortest decimal that prints it, so ``0.5e-6`` is 1/2000000 and not the
    nearest dyadic number with a 73-bit denominator: link speeds and latencies are typed as
    decimals, and exact times stay readable and small that way.

    Raises:
        JaxcollError: the value is NaN, infinite, a boolean or not a number.
    """
    if isinstance(value, Fraction):
        return value
    # Booleans are checked before integers, since Python's booleans are integers.
    if isinstance(value, (bool, np.bool_)):
        raise JaxcollError(f"expected a number, got {shown(value)} of type {type(value).__name__}")
    if isinstance(value, (int, np.integer)):
        return Fraction(int(value))
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value):
            raise JaxcollError(f"expected a finite number, got {value}")
        return Fraction(repr(float(value)))  # the shortest decimal that reads back as this float
    if isinstance(value, Rational):
        return Fraction(value.numerator, value.denominator)
    raise JaxcollError(f"expected a number, got {shown(value)} of type {type(value).__name__}")


def fits_float(value: Fraction) -> bool:
    """Whether a float holds the rational exactly: ``as_fraction(float(value)) == value``."""
    try:
        return as_fraction(float(value)) == value
    except (OverflowError, ValueError):
        return False


def coprime(values: Sequence[Fraction]) -> tuple[list[int], Fraction]:
    """The values as coprime integers, and their common unit. Not all values may be 0."""
    # Only distinct values are converted: fractions are slow, and many links have few speeds.
    different = set(values)
    denominator = common_denominator(different)
    unit = Fraction(math.gcd(*(int(v * denominator) for v in different)), denominator)
    known = {v: int(v / unit) for v in different}
    return [known[v] for v in values], unit


def common_denominator(values: Iterable[Fraction]) -> int:
    """The least integer D for which D * value is an integer for every value."""
    return math.lcm(1, *(value.denominator for value in values))
