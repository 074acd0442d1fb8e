"""Which synthesizers are the fastest, counted over recorded cases.

A case is a network, a collective, an order of execution and a size; its row has, by the name of
each synthesizer that is defined there, the time of its schedule over that of the fastest
(``experiments/benchmarks/default/which_synthesizer.py``).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]

# Times within 1 % of the least count as the fastest: the rest is rounding to whole chunks.
WITHIN = 1.01
# A name stands for another where it takes at most 5 % more.
NEAR = 1.05


def case(network: str, collective: str, order: str, size: str) -> str:
    """The key of a case in the record."""
    return f"{network} {collective} {order} {size}"


def fastest(row: Row, within: float = WITHIN) -> list[str]:
    """The names that take at most that many times the least, the fastest first."""
    over = row["over"]
    return [name for name in sorted(over, key=over.__getitem__) if over[name] <= within]


class Count(NamedTuple):
    """A synthesizer over all cases.

    Attributes:
        name: the name of the synthesizer.
        defined: cases where it has a schedule.
        fastest: those of them where it is within 1 % of the least time.
        alone: those of them where no other is.
        median: the median of its time over the least, where it is defined.
    """

    name: str
    defined: int
    fastest: int
    alone: int
    median: float


def counts(rows: Iterable[Row]) -> list[Count]:
    """A count per synthesizer that is defined anywhere, the most often fastest first."""
    over: dict[str, list[float]] = {}
    wins: dict[str, list[int]] = {}
    for row in rows:
        for name, ratio in row["over"].items():
            over.setdefault(name, []).append(ratio)
        first = fastest(row)
        for name in first:
            wins.setdefault(name, []).append(len(first))
    found = [
        Count(
            name,
            len(ratios),
            len(wins.get(name, [])),
            wins.get(name, []).count(1),
            statistics.median(ratios),
        )
        for name, ratios in over.items()
    ]
    return sorted(found, key=lambda count: (-count.fastest, -count.alone, count.median))


class Few(NamedTuple):
    """The names of a number that together are near the fastest most often.

    Attributes:
        names: names of the synthesizers.
        near: cases in which one of them takes at most 5 % more than the fastest of all.
        worst: the most that the best of them takes over the fastest, where one is defined.
    """

    names: tuple[str, ...]
    near: int
    worst: float


def few(rows: Sequence[Row], count: int) -> Few:
    """The best of all sets of some names; of equally many near cases that of the least worst one.

    All sets are tried, each in a few operations on integers that have a bit per case: there are
    170,000 sets of five of thirty names.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["over"]))
    bits = {
        name: sum(1 << i for i, row in enumerate(rows) if row["over"].get(name, math.inf) <= NEAR)
        for name in names
    }
    most, found = -1, []
    for chosen in itertools.combinations(names, min(count, len(names))):
        together = 0
        for name in chosen:
            together |= bits[name]
        near = together.bit_count()
        if near > most:
            most, found = near, []
        if near == most:
            found.append(chosen)
    best = min(found, key=lambda chosen: _worst(rows, chosen))
    return Few(best, most, _worst(rows, best))


def _worst(rows: Sequence[Row], names: Sequence[str]) -> float:
    best = (min(row["over"].get(name, math.inf) for name in names) for row in rows)
    return max((over for over in best if over < math.inf), default=math.inf)
