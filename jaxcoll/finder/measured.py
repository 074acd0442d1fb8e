"""Costs of bases that no formula gives: measured once by BFB and kept in ``measured.json``.

Made by ``python -m jaxcoll.finder.measured``, which takes about ten minutes on one core.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from fractions import Fraction
from importlib import resources
from typing import NamedTuple

import numpy as np

from jaxcoll.bounds.moore import Cost, bandwidth_optimum
from jaxcoll.errors import FormatError
from jaxcoll.synth.direct_connect.bfb import bfb_cost
from jaxcoll.topologies.generative import circulant, generalized_kautz

VERSION = 1
_FILE = "measured.json"
_KAUTZ_DEGREES, _CIRCULANT_DEGREES, _LARGEST = (2, 4, 8, 16), (6, 8, 16), 2000
# Sets of offsets drawn per circulant, and how many of the least diameters are scheduled.
_DRAWN, _SCHEDULED = 40, 4


class Measured(NamedTuple):
    """The best BFB all_gather of a base.

    Attributes:
        arguments: of its constructor.
        cost: its T_L and T_B.
    """

    arguments: tuple
    cost: Cost


@functools.cache
def measured_bases() -> dict[tuple[str, int, int], Measured]:
    """By constructor, degree and size.

    Raises:
        FormatError: a file of another version.
    """
    text = resources.files("jaxcoll.finder").joinpath(_FILE).read_text(encoding="utf-8")
    said = json.loads(text)
    if said.get("version") != VERSION:
        raise FormatError(f"{_FILE} has version {said.get('version')}, expected {VERSION}")
    found = {}
    for degree, size, steps, above, below in said["generalized_kautz"]:
        cost = Cost(steps, Fraction(above, below))
        found["generalized_kautz", degree, size] = Measured((degree, size), cost)
    for degree, size, steps, above, below, offsets in said["circulant"]:
        cost = Cost(steps, Fraction(above, below))
        found["circulant", degree, size] = Measured((size, tuple(offsets)), cost)
    return found


def kautz_rows(degree: int, largest: int) -> Iterator[list]:
    """[degree, size, T_L, T_B above, T_B below] of every generalized Kautz digraph."""
    for size in range(degree + 1, largest + 1):
        cost = bfb_cost(generalized_kautz(degree, size))
        yield [degree, size, cost.steps, *cost.inverse_bandwidth.as_integer_ratio()]


def circulant_rows(degree: int, largest: int) -> Iterator[list]:
    """[degree, size, T_L, T_B above, T_B below, offsets] of circulants of small diameter.

    Offsets are powers 1, s, s^2, ... or drawn, with a fixed seed; of those of least diameter, the
    first whose BFB all_gather is bandwidth-optimal is taken, else the one of least T_B.
    """
    for size in range(degree + 2, largest + 1):
        best = None
        for offsets in _small_diameters(size, degree // 2)[:_SCHEDULED]:
            cost = bfb_cost(circulant(size, offsets))
            if best is None or cost.inverse_bandwidth < best[0].inverse_bandwidth:
                best = cost, offsets
            if cost.inverse_bandwidth == bandwidth_optimum(size):
                break
        if best is not None:
            cost, offsets = best
            ratio = cost.inverse_bandwidth.as_integer_ratio()
            yield [degree, size, cost.steps, *ratio, list(offsets)]


def _small_diameters(size: int, count: int) -> list[tuple[int, ...]]:
    """Sets of offsets below size / 2, the least diameter first."""
    random = np.random.default_rng(size * 64 + count)
    most = (size - 1) // 2
    sets = set()
    for base in range(2, min(size, 2 + _DRAWN)):
        power = {min(x, size - x) for x in (pow(base, i, size) for i in range(count))}
        sets.add(tuple(sorted(power)))
    for _ in range(_DRAWN):
        sets.add(tuple(sorted(int(x) + 1 for x in random.choice(most, count, replace=False))))
    proper = [s for s in sets if len(s) == count and s[0] > 0 and 2 * s[-1] < size]
    ranked = sorted((_diameter(size, chosen), chosen) for chosen in proper)
    return [chosen for diameter, chosen in ranked if diameter > 0]


def _diameter(size: int, offsets: tuple[int, ...]) -> int:
    """Steps after which every number modulo ``size`` is a sum of offsets, -1 if never."""
    reached = np.zeros(size, bool)
    reached[0] = True
    frontier: np.ndarray = np.zeros(1, np.int64)
    steps = 0
    moves = np.asarray([*offsets, *(-x for x in offsets)])
    while len(frontier):
        ahead = np.zeros(size, bool)
        ahead[np.ravel((frontier[:, None] + moves) % size).astype(np.int64)] = True
        frontier = np.flatnonzero(ahead & ~reached)
        reached[frontier] = True
        steps += len(frontier) > 0
    return steps if reached.all() else -1


def main() -> None:
    """Measure everything and print the JSON."""
    kautz = [row for d in _KAUTZ_DEGREES for row in kautz_rows(d, _LARGEST)]
    rings = [row for d in _CIRCULANT_DEGREES for row in circulant_rows(d, _LARGEST)]
    lines = [f'{{"version": {VERSION},', '"generalized_kautz": [']
    lines += [",\n".join(json.dumps(row) for row in kautz) + "],", '"circulant": [']
    lines += [",\n".join(json.dumps(row) for row in rings) + "]}"]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
