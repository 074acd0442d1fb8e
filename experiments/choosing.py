"""Which synthesizers are the fastest, counted over recorded cases.

A case is a network, a collective, an order of execution and a size; its row has, by the name of
each synthesizer that is defined there, the time of its schedule over that of the fastest
(``experiments/benchmarks/default/which_synthesizer.py``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        name: of the synthesizer.
        defined: cases where it has a schedule.
        fastest: those of them where it is within 1 % of the least time.
        alone: those of them where no other is.
        median: of its time over the least, where it is defined.
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


class Taken(NamedTuple):
    """How far the names up to this one reach together.

    Attributes:
        name: the one that was added.
        near: cases in which one of them takes at most 5 % more than the fastest of all.
        defined: cases in which one of them has a schedule.
        worst: the most that the best of them takes over the fastest, where one is defined.
    """

    name: str
    near: int
    defined: int
    worst: float


def few(rows: Sequence[Row], most: int) -> Iterator[Taken]:
    """Names that together are near the fastest in as many cases as possible, one after another.

    Greedy: each name is the one that is near in most cases of those that are left. That is within
    1 - 1/e of the best set of that size (Nemhauser, Wolsey and Fisher, Math. Programming 14, 1978),
    and unlike the best set it says in which order to learn them.
    """
    best = [math.inf] * len(rows)
    names = list(dict.fromkeys(name for row in rows for name in row["over"]))
    for _ in range(min(most, len(names))):

        def reached(name: str) -> list[float]:
            return [
                min(old, row["over"].get(name, math.inf))
                for old, row in zip(best, rows, strict=True)  # noqa: B023
            ]

        name = max(names, key=lambda each: sum(over <= NEAR for over in reached(each)))
        best = reached(name)
        names.remove(name)
        defined = [over for over in best if over < math.inf]
        yield Taken(name, sum(over <= NEAR for over in best), len(defined), max(defined))
