"""Seconds that calls take: medians over several, of candidates in alternation."""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Mapping
from time import perf_counter


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds that one call took, over several calls."""

    median: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        return (
            f"{format_seconds(self.median)} "
            f"({format_seconds(self.minimum)} .. {format_seconds(self.maximum)})"
        )


def time_it(call: Callable[[], object], repeat: int = 7) -> Timing:
    """Times ``call`` over ``repeat`` calls, after one that is not timed (it may compile)."""
    return compare({"": call}, repeat)[""]


def compare(candidates: Mapping[str, Callable[[], object]], repeat: int = 7) -> dict[str, Timing]:
    """Times each candidate ``repeat`` times, in turn.

    A machine that slows down for a while then slows all of them down, and each round starts with
    another candidate, so that none always runs in the wake of the same one. Every candidate is
    called once untimed before, since a first call may compile. A call that returns JAX arrays ends
    when they are computed.

    Raises:
        ValueError: ``repeat`` is less than 1, or there are no candidates.
    """
    if repeat < 1:
        raise ValueError(f"repeat must be at least 1, got {repeat}")
    if not candidates:
        raise ValueError("nothing to time: candidates is empty")
    for call in candidates.values():
        _finish(call())
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeat):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            call = candidates[name]
            start = perf_counter()
            _finish(call())
            seconds[name].append(perf_counter() - start)
    return {
        name: Timing(statistics.median(taken), min(taken), max(taken))
        for name, taken in seconds.items()
    }


def format_seconds(seconds: float) -> str:
    """Three digits and a unit that fits: ``0.0123`` is ``12.3 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _finish(result: object) -> None:
    # JAX returns before it has computed. A benchmark that does not import it must not pay for it.
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.block_until_ready(result)
