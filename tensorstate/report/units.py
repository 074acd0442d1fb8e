"""Quantities in units that people read."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """A number of bytes in a suitable unit, such as "1.5 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} B"


def seconds(value: float) -> str:
    """A time in a suitable unit, such as "12.3 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"  # also for 0
