"""Properties of topologies, in closed form or measured.

Diameters and bounds of all-to-all rates of constructions follow from those of their parts.

- Diameters of a product add up, and a line graph has one more than its base, unless that is a ring.
- The rate of a product of N ranks is the least of f_i N_i / N over its factors: a flow that
  corrects one coordinate after the other has it, and lengths that count one coordinate only prove
  that none has more. With every arc several times the rate is as many times that of the digraph.
- The rate of a line graph of degree d is at most 1/d of that of its base G: of d^2 pairs of arcs,
  what goes over an arc of G enters it, as a vertex of L(G), by its d arcs.
- ``kautz_flow`` bounds the rate of generalized Kautz digraphs, ``shortest_flow`` that of others.
  For few ranks the linear program is solved.

Costs of bases that no formula gives are measured once by BFB and kept in ``measured.json``, made by
``python -m jaxcoll.finder.properties`` in about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from importlib import resources
from typing import NamedTuple

import numpy as np

from jaxcoll.bounds.moore import Cost, bandwidth_optimum
from jaxcoll.errors import FormatError, TopologyError
from jaxcoll.finder.construction import Construction
from jaxcoll.progress import Progress, reporting
from jaxcoll.synth.direct_connect.bfb import bfb_cost
from jaxcoll.synth.routing.concurrent_flow import RateBounds, digraph_flow
from jaxcoll.synth.routing.shortest_flow import kautz_flow_bounds, shortest_flow_bounds
from jaxcoll.topologies.generative import Digraph, circulant, generalized_kautz

# Ranks up to which the linear program of the rate is solved, and up to which the flows of
# generalized Kautz digraphs are followed link by link.
SOLVED, FOLLOWED = 32, 128


def diameter(construction: Construction) -> int:
    """D(G), from the diameters of the parts where they determine it."""
    operation, parts = construction.operation, construction.parts
    if operation == "product":
        return sum(map(diameter, parts))
    if operation == "power":
        return construction.arguments[0] * diameter(parts[0])
    if operation == "parallel":
        return diameter(parts[0])
    if operation == "line_graph" and _degree(parts[0]) > 1:
        return construction.arguments[0] + diameter(parts[0])
    return _built(construction).diameter


@functools.lru_cache(maxsize=2**16)
def rate_bounds(construction: Construction) -> RateBounds:
    """Proved bounds of the all-to-all rate, links being of capacity 1; equal where it is exact."""
    operation, parts = construction.operation, construction.parts
    if operation == "product":
        return _of_product(parts)
    if operation == "power":
        return _of_product(parts * construction.arguments[0])
    if operation == "parallel":
        times, found = construction.arguments[0], rate_bounds(parts[0])
        return RateBounds(times * found.lower, times * found.upper)
    if operation == "generalized_kautz" and construction.arguments[1] > FOLLOWED:
        return kautz_flow_bounds(*construction.arguments)
    digraph = construction.digraph()
    if digraph.size <= SOLVED:
        found = digraph_flow(digraph.size, digraph.tails, digraph.heads)
        return RateBounds(found.lower, found.upper)
    found = shortest_flow_bounds(digraph)
    if operation == "line_graph":
        base, times = rate_bounds(parts[0]), construction.arguments[0]
        return dataclasses.replace(
            found, upper=min(found.upper, base.upper / digraph.degree**times)
        )
    if operation == "generalized_kautz":
        other = kautz_flow_bounds(*construction.arguments)
        return dataclasses.replace(found, lower=max(found.lower, other.lower))
    return found


def _of_product(parts: Sequence[Construction]) -> RateBounds:
    sizes, found = [_built(part).size for part in parts], list(map(rate_bounds, parts))
    lines = [math.prod(sizes) // size for size in sizes]
    return RateBounds(
        min(each.lower / many for each, many in zip(found, lines, strict=True)),
        min(each.upper / many for each, many in zip(found, lines, strict=True)),
    )


def _degree(construction: Construction) -> int:
    return _built(construction).degree


@functools.lru_cache(maxsize=2**13)
def _built(construction: Construction) -> Digraph:
    return construction.digraph()


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


def main(argv: Sequence[str] | None = None) -> None:
    """Measure everything and print the JSON."""
    argparse.ArgumentParser(
        prog="python -m jaxcoll.finder.properties",
        description="Measure costs of bases that no formula gives, ten minutes, and print them as "
        "JSON.",
    ).parse_args(argv)
    parts = [(kautz_rows, d) for d in _KAUTZ_DEGREES] + [
        (circulant_rows, d) for d in _CIRCULANT_DEGREES
    ]
    kautz: list[list[int]] = []
    rings: list[list[int]] = []
    with reporting(True, "measuring", TopologyError) as report:
        for done, (rows, degree) in enumerate(parts, 1):
            (kautz if rows is kautz_rows else rings).extend(rows(degree, _LARGEST))
            if report is not None:
                report(Progress(done, len(parts), f"{rows.__name__} of degree {degree}"))
    lines = [f'{{"version": {VERSION},', '"generalized_kautz": [']
    lines += [",\n".join(json.dumps(row) for row in kautz) + "],", '"circulant": [']
    lines += [",\n".join(json.dumps(row) for row in rings) + "]}"]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
