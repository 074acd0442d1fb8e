"""Bounds of the all-to-all rate of a generalized Kautz digraph, without following single links.

In Pi(d, m) arcs lead from x to -d x - a for a = 1 .. d. So the ends of all walks of k arcs from x
are the consecutive numbers (-d)^k x + o for the offsets o of an interval of d^k, and an offset o is
reached from the offset (-o - 1) // d. Walks to consecutive offsets thus use consecutive arcs at
each of their places, and a flow over them is a few intervals of loads.

Of the flows that are tried, each takes walks of s arcs to all ranks where those end, then walks of
s + 1 arcs to ranks that are left, and so on. With s = 1 these are shortest paths; with a large s
the walks are longer, but load the arcs more evenly. The best of them gives the lower bound; the
links over the sum of distances give the upper.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.routing.concurrent_flow import RateBounds
from jaxcoll.topologies.arguments import count

# Ranks times arcs of a longest walk, up to which sums of loads fit 64 bits by far.
_MOST = 2**20
# Arcs fewer than the most, down to which first walks are tried, beside shortest paths.
_FEWER = 1


def kautz_flow_bounds(degree: int, m: int) -> RateBounds:
    """Bounds of the rate of LP (A.1) on ``generalized_kautz(degree, m)``, with links of capacity 1.

    Args:
        degree: d, at least 2.
        m: vertices, above d.

    Raises:
        TopologyError: sizes out of range.
    """
    degree, m = count(degree, "degree", least=2), count(m, "m", least=3)
    if m <= degree or m > _MOST:
        raise TopologyError(
            f"bounds are computed for {degree + 1} to {_MOST} vertices of degree {degree}, got {m}"
        )
    longest = 1
    while degree**longest < m:
        longest += 1
    units = degree**longest // m
    arcs = np.arange(m * degree)
    is_link = arcs // degree != (-1 - arcs) % m
    tried = {
        first: _loads(degree, m, first, longest, units)
        for first in {1, *range(max(1, longest - _FEWER), longest + 1)}
    }
    busiest = min(int(load[is_link].max()) for load, _ in tried.values())
    return RateBounds(Fraction(units, busiest), Fraction(int(is_link.sum()), tried[1][1]))


def _loads(d: int, m: int, first: int, longest: int, units: int) -> tuple[np.ndarray, int]:
    """The load of each arc and the sum of lengths, from half of the sources.

    The reflection of x to -1 - x takes arc e to arc -1 - e, and the flow of a source to that of
    its image.
    """
    change = np.zeros(m * d + 1, np.int64)
    total = _route(d, m, 0, m // 2, first, longest, units, change)
    load = np.cumsum(change[:-1])
    load, total = load + load[::-1], 2 * total
    if m % 2:
        change[:] = 0
        total += _route(d, m, m // 2, m // 2 + 1, first, longest, units, change)
        load += np.cumsum(change[:-1])
    return load, int(total)


@kernel(cache=True, nogil=True)
def _route(d, m, begin, end, first, longest, units, change):
    """Flows of ``units`` from some sources to all others; the sum of the lengths of their walks.

    Args:
        begin, end: the first source, and the first that is left out.
        first: arcs of the shortest walks that are taken.
        change: becomes the load of each arc less that of the one before it, arc d x + a - 1 being
            that from x to -d x - a.
    """
    start = np.empty(longest + 1, np.int64)  # (-d)^k x modulo m, plus the least offset
    at = np.empty(longest + 1, np.int64)  # (-d)^k x modulo m
    low, width = np.zeros(longest + 1, np.int64), np.ones(longest + 1, np.int64)
    high = 0
    for k in range(1, longest + 1):
        low[k], high = -d * high - d, -d * low[k - 1] - 1
        width[k] = min(high - low[k] + 1, m)
    gaps = np.empty((2 * longest + 3, 2), np.int64)
    covered = np.empty((2 * longest + 3, 2), np.int64)
    total = 0
    for x in range(begin, end):
        at[0] = start[0] = x
        for k in range(1, longest + 1):
            at[k] = -d * at[k - 1] % m
            start[k] = (at[k] + low[k]) % m
        for k in range(first, longest + 1):
            copies = units if k == longest else 1
            for i in range(_gaps(k, first, start, width, m, covered, gaps)):
                a, b = gaps[i]
                total += k * (b - a)
                for copy in range(copies):
                    offset = low[k] + copy * m
                    _load(d, m, k, offset + a, offset + b - 1, units // copies, at, change)
    return total


@kernel(cache=True)
def _gaps(k, first, start, width, m, covered, gaps):
    """Parts of the interval of walks of k arcs that shorter walks do not reach; their number.

    Shorter walks are x itself and those of ``first`` to k - 1 arcs. Writes for every part its first
    place and the place after its last, from the start of the interval.
    """
    count = 0
    for j in range(k):
        if j == 0 or j >= first:
            shift = (start[j] - start[k]) % m
            for a in (shift - m, shift):
                b = min(a + width[j], width[k])
                if max(a, 0) < b:
                    i = count  # in the order of their starts
                    while i > 0 and covered[i - 1, 0] > a:
                        covered[i] = covered[i - 1]
                        i -= 1
                    covered[i, 0], covered[i, 1] = a, b
                    count += 1
    found, reached = 0, 0
    for i in range(count):
        if covered[i, 0] > reached:
            gaps[found, 0], gaps[found, 1] = reached, covered[i, 0]
            found += 1
        reached = max(reached, covered[i, 1])
    if reached < width[k]:
        gaps[found, 0], gaps[found, 1] = reached, width[k]
        found += 1
    return found


@kernel(cache=True)
def _load(d, m, k, a, b, units, at, change):
    """Load the arcs of the walks of k arcs from x to the offsets a .. b, each with some units.

    Of the arcs at one place of the walks all carry the same but the first and the last, by offset.
    """
    arcs = d * m
    inner, at_a, at_b = units, units, units
    for j in range(k, 0, -1):
        base = d * at[j - 1] - 1
        _add(change, arcs, base - b, b - a + 1, inner)
        if a < b:
            _add(change, arcs, base - a, 1, at_a - inner)
            _add(change, arcs, base - b, 1, at_b - inner)
        above, below = (-b - 1) // d, (-a - 1) // d  # where b and a come from: above <= below
        if above == below:
            whole = (b - a + 1) * inner
            inner = at_a = at_b = whole + (at_a + at_b - 2 * inner if a < b else 0)
        else:
            at_a, at_b = (
                (-d * below - 1 - a) * inner + at_a,  # the offsets a .. -d below - 1
                (b + d * above + d) * inner + at_b,  # the offsets -d above - d .. b
            )
            at_a, at_b, inner = at_b, at_a, d * inner
        a, b = above, below


@kernel(cache=True)
def _add(change, arcs, first, count, amount):
    """Add an amount to some arcs that follow each other, around the end."""
    first %= arcs
    change[first] += amount
    if first + count <= arcs:
        change[first + count] -= amount
    else:
        change[0] += amount
        change[first + count - arcs] -= amount
