"""Size ranges: which tuned size answers for a buffer of another size."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping

from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.tables.decision import Decision


@dataclasses.dataclass(frozen=True)
class SizeRange:
    """Buffers of ``min_bytes`` to ``max_bytes``, both included; None: without an upper limit."""

    min_bytes: int
    max_bytes: int | None
    config: Config


def nearest(nbytes: int, sizes: Collection[int]) -> int:
    """The size nearest to ``nbytes`` by ratio; of two equally near the smaller one."""
    ordered = sorted(sizes)
    answer = ordered[0]
    for below, above in itertools.pairwise(ordered):
        if nbytes > last_below(below, above):
            answer = above
    return answer


def last_below(below: int, above: int) -> int:
    """The largest size that is nearer by ratio to the smaller of two sizes: their geometric mean,
    rounded down.
    """
    return math.isqrt(below * above)


def size_ranges(decisions: Mapping[int, Decision]) -> tuple[SizeRange, ...]:
    """The ranges from 0 bytes upwards that ``nearest`` implies, joined where neighbours agree."""
    sizes = sorted(decisions)
    ranges: list[SizeRange] = []
    for i, size in enumerate(sizes):
        low = 0 if i == 0 else last_below(sizes[i - 1], size) + 1
        high = None if i == len(sizes) - 1 else last_below(size, sizes[i + 1])
        config = decisions[size].in_use
        if ranges and ranges[-1].config == config:
            low = ranges.pop().min_bytes
        ranges.append(SizeRange(low, high, config))
    return tuple(ranges)
