"""Bounds of the all-to-all rate at once: every pair of ranks sends over its shortest paths.

The links over the sum of all distances are an upper bound; the busiest link of any flow gives a
lower one. A flow over shortest paths meets it where the links are equally loaded. Sources that
known symmetries take to one another have flows that these take to one another, so one is computed
of each orbit, and the load of a link is the mean over its orbit. Where orbits of links differ in
load, paths over the busiest are given less, a few times over, and the upper bound is computed once
more with lengths of the links: long where the load is high. All numbers are whole: the bounds are
proved.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import TopologyError
from jaxcoll.links import group_by
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.routing.concurrent_flow import RateBounds
from jaxcoll.synth.routing.concurrent_flow_kernel import total_distance
from jaxcoll.topologies.generative.digraph import Digraph

# Whole units of a flow of 1, which many numbers divide; the largest whose sums fit 64 bits is used.
_UNITS = (2**8 * 720_720, 720_720, 27_720, 2_520, 60, 1)
# Times that orbits of links are reweighted, and how strongly.
_ROUNDS, _STRENGTH = 6, 1.0
# Loads over the mean and shares under the largest that count no further.
_MOST_LOAD, _LEAST_SHARE = 3.0, 1e-3
# Ratio of the bounds that is near enough.
_ENOUGH = Fraction(1005, 1000)
# Ratio of the bounds above which lengths are tried, and the longest.
_NEAR, _LONGEST = Fraction(11, 10), 16


def shortest_flow_bounds(digraph: Digraph) -> RateBounds:
    """Bounds of the rate of LP (A.1), by flows over shortest paths from one rank of each orbit.

    Args:
        digraph: its ``generators`` are the symmetries that are used.

    Raises:
        TopologyError: not a digraph.
    """
    digraph = checks.instance(digraph, Digraph, "digraph", TopologyError)
    links, size = digraph.links, digraph.size
    tails, heads = digraph.tails[links], digraph.heads[links]
    images = np.asarray(digraph.generators, np.int64).reshape(-1, size)
    vertex_orbit = _orbits(images)
    _, sources, weights = np.unique(vertex_orbit, return_index=True, return_counts=True)
    link_class = _link_orbits(images, tails, heads, size)
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


def _orbits(images: np.ndarray) -> np.ndarray:
    """The orbit of each point under permutations, int32."""
    generators, size = images.shape
    ends = np.tile(np.arange(size), generators), images.ravel()
    moves = sp.csr_matrix((np.ones(images.size, np.int8), ends), shape=(size, size))
    return sp.csgraph.connected_components(moves, directed=False)[1]


def _link_orbits(images: np.ndarray, tails: np.ndarray, heads: np.ndarray, size: int) -> np.ndarray:
    """The orbit of each link; parallel links are of one orbit."""
    pairs, pair = np.unique(tails * size + heads, return_inverse=True)
    moved = images[:, pairs // size] * size + images[:, pairs % size]
    return _orbits(np.searchsorted(pairs, moved))[pair]


@kernel(cache=True, nogil=True)
def _route(columns, link_class, share, sources, weights, unit, load):
    """Add ``unit`` from each source to every vertex over shortest paths to the loads of classes.

    A path is given an amount in proportion to the product of the shares of its links; where all
    products are below the least float, one path is. Returns the sum of all distances; both count
    each source ``weights`` times.
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
