"""Fast and proved bounds of the all-to-all rate, by flows that need no solver.

**Shortest paths** (``shortest_flow_bounds``): every pair of ranks sends over its shortest paths.
The number of links over the sum of all distances is an upper bound; the busiest link of any flow
gives a lower one. A flow over shortest paths attains the bound if the links are equally loaded.
Known symmetries map flows of sources to flows of their images, so only one flow per orbit is
computed, and the load of a link is the mean over its orbit. If orbits of links differ in load,
paths over the busiest get less flow, a few times over, and the upper bound is computed once more
with lengths of the links, which are long where the load is high. All numbers are integers, so the
bounds are proved.

**Generalized Kautz digraphs** (``kautz_flow_bounds``): bounds without following single links. In
Pi(d, m) arcs lead from x to -d x - a for a = 1 .. d. So the ends of all walks of k arcs from x are
the consecutive numbers (-d)^k x + o for the offsets o of an interval of d^k, and an offset o is
reached from the offset (-o - 1) // d. Walks to consecutive offsets thus use consecutive arcs at
each of their places, and a flow over them is a few intervals of loads. Each flow that is tried
takes walks of s arcs to all ranks where those end, then walks of s + 1 arcs to the remaining ranks,
and so on. With s = 1 these are shortest paths; with a large s the walks are longer, but load the
arcs more evenly. The best of them gives the lower bound; the links over the sum of distances give
the upper.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import count, group_by
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.connectivity import orbits
from jaxcoll.synth.routing.concurrent_flow import RateBounds
from jaxcoll.synth.routing.soft_distances import total_distance
from jaxcoll.topologies.generative.digraph import Digraph

# Integers that may stand for a flow of 1, with many divisors; the largest whose sums fit 64 bits is
# used.
_UNITS = (2**8 * 720_720, 720_720, 27_720, 2_520, 60, 1)
# The number of times that orbits of links are reweighted, and the strength.
_ROUNDS, _STRENGTH = 6, 1.0
# Limits: loads relative to the mean, and shares relative to the largest.
_MOST_LOAD, _LEAST_SHARE = 3.0, 1e-3
# The ratio of the bounds that is good enough.
_ENOUGH = Fraction(1005, 1000)
# The ratio of the bounds above which lengths are tried, and the longest length.
_NEAR, _LONGEST = Fraction(11, 10), 16


def shortest_flow_bounds(digraph: Digraph) -> RateBounds:
    """Bounds of the rate of LP (A.1), by flows over shortest paths from one rank of each orbit.

    Args:
        digraph: the digraph, whose ``generators`` are the symmetries used.

    Raises:
        TopologyError: the argument is not a digraph.
    """
    digraph = checks.instance(digraph, Digraph, "digraph", TopologyError)
    links, size = digraph.links, digraph.size
    tails, heads = digraph.tails[links], digraph.heads[links]
    images = np.asarray(digraph.generators, np.int64).reshape(-1, size)
    _, sources, weights = np.unique(orbits(images), return_index=True, return_counts=True)
    # Parallel links are in one orbit, since symmetries move pairs of vertices with their links.
    pairs, pair = np.unique(tails * size + heads, return_inverse=True)
    moved = images[:, pairs // size] * size + images[:, pairs % size]
    link_class = orbits(np.searchsorted(pairs, moved))[pair]
    members = np.bincount(link_class)
    unit = next(unit for unit in _UNITS if unit * size**3 < 2**62 or unit == 1)
    columns = (*group_by(tails, size), heads, *group_by(heads, size), tails)
    share, loads = np.ones(len(members)), []
    best, upper = Fraction(0), Fraction(0)
    for _ in range(_ROUNDS if len(members) > 1 else 1):
        load = np.zeros(len(members), np.int64)
        total = _route(columns, link_class, share, sources, weights, unit, load)
        worst = max(map(Fraction, load.tolist(), members.tolist()))
        best, upper = max(best, unit / worst), Fraction(len(links), int(total))
        if upper <= best * _ENOUGH:
            break
        loads.append(load / members / float(worst))
        # Multiplicative weights: links that carry more than the mean get a smaller share of the
        # paths in the next round.
        share *= np.exp(-_STRENGTH * np.minimum(loads[-1] / loads[-1].mean(), _MOST_LOAD))
        share = np.maximum(share / share.max(), _LEAST_SHARE)
    if upper > best * _NEAR:
        mean = np.mean(loads, axis=0)
        for lengths in (mean > 0.5, np.rint(_LONGEST * mean)):
            each = lengths.astype(np.int64)[link_class]
            away = total_distance(*columns[:3], each, sources, weights)
            if away > 0:
                upper = min(upper, Fraction(int(each.sum()), int(away)))
    return RateBounds(best, upper)


@kernel(cache=True, nogil=True)
def _route(columns, link_class, share, sources, weights, unit, load):
    """Add the loads of ``unit`` from each source to every vertex over shortest paths.

    A path gets an amount in proportion to the product of the shares of its links; if all products
    are below the least float, one path gets everything. Returns the sum of all distances. Loads and
    distances count each source ``weights`` times.
    """
    out_ptr, out_link, heads, in_ptr, in_link, tails = columns
    size, total = len(out_ptr) - 1, 0
    distance, queue = np.empty(size, np.int64), np.empty(size, np.int64)
    paths, amount = np.empty(size), np.empty(size, np.int64)
    for i in range(len(sources)):
        source, weight = sources[i], weights[i]
        distance[:] = -1
        distance[source], queue[0], paths[source] = 0, source, 1.0
        count, at = 1, 0
        while at < count:
            u = queue[at]
            for k in range(out_ptr[u], out_ptr[u + 1]):
                v = heads[out_link[k]]
                if distance[v] < 0:
                    distance[v], paths[v] = distance[u] + 1, 0.0
                    queue[count] = v
                    count += 1
                if distance[v] == distance[u] + 1:
                    paths[v] += paths[u] * share[link_class[out_link[k]]]
            at += 1
        # Amounts are integers, from far to near. The rest from rounding goes over the last link, so
        # that every vertex gets exactly its unit and the lower bound is exact.
        amount[:] = unit
        for at in range(size - 1, 0, -1):
            v = queue[at]
            total += distance[v] * weight
            left, last, sum_of_parts = amount[v], -1, 0.0
            for k in range(in_ptr[v], in_ptr[v + 1]):
                e = in_link[k]
                if distance[tails[e]] == distance[v] - 1:
                    last = e
                    sum_of_parts += paths[tails[e]] * share[link_class[e]]
            for k in range(in_ptr[v], in_ptr[v + 1]):
                e = in_link[k]
                u = tails[e]
                if distance[u] == distance[v] - 1 and e != last and sum_of_parts > 0:
                    part = paths[u] * share[link_class[e]]
                    given = min(np.int64(np.rint(amount[v] * (part / sum_of_parts))), left)
                    amount[u] += given
                    load[link_class[e]] += given * weight
                    left -= given
            amount[tails[last]] += left
            load[link_class[last]] += left * weight
    return total


# The most ranks times arcs of a longest walk; sums of loads then easily fit 64 bits.
_MOST = 2**20
# First walks are tried down to this many arcs fewer than the most, besides shortest paths.
_FEWER = 1


def kautz_flow_bounds(degree: int, m: int) -> RateBounds:
    """Bounds of the rate of LP (A.1) on ``generalized_kautz(degree, m)``, with links of capacity 1.

    Args:
        degree: the degree d, at least 2.
        m: the number of vertices, above d.

    Raises:
        TopologyError: a size is out of range.
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

    The reflection of x to -1 - x maps arc e to arc -1 - e, and the flow of a source to that of its
    image.
    """
    change = np.zeros(m * d + 1, np.int64)
    total = _kautz_route(d, m, 0, m // 2, first, longest, units, change)
    load = np.cumsum(change[:-1])
    load, total = load + load[::-1], 2 * total
    if m % 2:
        change[:] = 0
        total += _kautz_route(d, m, m // 2, m // 2 + 1, first, longest, units, change)
        load += np.cumsum(change[:-1])
    return load, int(total)


@kernel(cache=True, nogil=True)
def _kautz_route(d, m, begin, end, first, longest, units, change):
    """Flows of ``units`` from some sources to all others; returns the sum of lengths of walks.

    Args:
        begin, end: the first source, and the first that is left out.
        first: number of arcs of the shortest walks that are taken.
        change: filled with the load of each arc less that of the arc before it, where arc d x + a -
            1 leads from x to -d x - a.
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
    """Find the parts of the interval of walks of k arcs that shorter walks do not reach.

    Shorter walks are x itself and those of ``first`` to k - 1 arcs. Returns the number of parts.
    For every part, writes its first place and the place after its last, counted from the start of
    the interval.
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
    """Load the arcs of the walks of k arcs from x to the offsets a .. b with some units each.

    The arcs at one place of the walks all carry the same, except the first and last by offset.
    """
    arcs = d * m
    inner, at_a, at_b = units, units, units
    for j in range(k, 0, -1):
        base = d * at[j - 1] - 1
        _add(change, arcs, base - b, b - a + 1, inner)
        if a < b:
            _add(change, arcs, base - a, 1, at_a - inner)
            _add(change, arcs, base - b, 1, at_b - inner)
        above, below = (-b - 1) // d, (-a - 1) // d  # predecessors of b and a: above <= below
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
    """Add an amount to consecutive arcs, which may wrap around the end."""
    first %= arcs
    change[first] += amount
    if first + count <= arcs:
        change[first + count] -= amount
    else:
        change[0] += amount
        change[first + count - arcs] -= amount
