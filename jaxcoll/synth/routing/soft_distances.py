"""Maximum concurrent flow where no symmetry helps: the dual, climbed at soft distances.

A rate of all-to-all is proved from both sides. The lower bound is a flow in integers, whose least
delivery and fullest arc are counted on the whole graph (``delivered``), whatever found it. The
upper bound is sum(capacity x length) / sum of distances (``total_distance``), which holds for any
lengths of arcs. Both are tight at the best lengths, so only finding these is approximate.

Lengths are found by softening the minima in the distances: the dual becomes smooth, and its
gradient is the load of a flow that splits over near-shortest paths (``soft_flows``). L-BFGS climbs
it while softness falls in stages; from time to time a linear program mixes the flows found on the
way, until the bounds meet. Exact distances would not do, because they have no gradient where two
paths tie.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy

from jaxcoll.links import group_by
from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.program import Program
from jaxcoll.paths import fewest_hops
from jaxcoll.synth.routing.flow_classes import FlowClasses, flow_colour

# Stages of softness, in units of the mean length.
_SOFTNESS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
_STEPS = 60
# The relative gain of a step below which a softness, except the last, is finished.
_LITTLE = 1e-5
# Flows are mixed whenever _MIXED_EVERY more have been tried; the last _MIXED are mixed.
_MIXED_EVERY, _MIXED = 10, 600
# Shares below these are left out of a mixture: below the first if the bounds are then near enough,
# since every flow of a mixture is computed once more for all sources.
_LEAST_SHARES = (1e-2, 1e-6)
# The least length of an arc, relative to the mean.
_SHORTEST = 1e-5


class _Found(Exception):
    """Raised when the bounds are within the tolerance."""


def climb(
    classes: FlowClasses,
    tails: np.ndarray,
    heads: np.ndarray,
    capacity: np.ndarray,
    tolerance: float,
) -> tuple[np.ndarray, np.ndarray]:
    """A flow of one unit from every vertex to every other, and lengths, whose bounds nearly meet.

    Args:
        classes: arcs of a class have equal lengths, and equal sources stand for one another.
        capacity: capacity of each arc.
        tolerance: the relative gap at which to stop; if it is not reached, the best is returned.

    Returns:
        Flows, float64 of shape (vertices, arcs), and lengths, float64 of shape (arcs,).
    """
    search = _Search(classes, tails, heads, capacity, tolerance)
    point = np.zeros(len(classes.arc_size))
    options: dict[str, float] = {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "maxcor": 30}
    # SciPy imports the submodule here, which takes longer than importing all of this package.
    minimize = scipy.optimize.minimize
    try:
        for softness in _SOFTNESS:
            search.softness = softness
            options["ftol"] = _LITTLE if softness > _SOFTNESS[-1] else 1e-13
            point = minimize(search, point, jac=True, method="L-BFGS-B", options=options).x
            search.mix()
    except _Found:
        pass
    return search.flow(), search.best_lengths


@dataclasses.dataclass(frozen=True, eq=False)
class _Tried:
    """Lengths that were tried, by class of arcs, and the loads of the flow along them."""

    length: np.ndarray
    softness: float
    load: np.ndarray


class _Search:
    """The smoothed dual as a function of the logarithms of the lengths; keeps the best bounds."""

    def __init__(self, classes, tails, heads, capacity, tolerance):
        size = len(classes.pair_colour)
        hops = fewest_hops(size, tails, heads)
        self.classes, self.tails = classes, tails
        self.room = np.bincount(classes.arc_class, weights=capacity)
        self.scale = 1.0 / hops.sum()
        self.tolerance, self.softness = tolerance, _SOFTNESS[0]
        self.in_ptr, self.in_arc = group_by(heads, size)
        self.order = np.argsort(hops, axis=1, kind="stable")
        self.order_of_sources = self.order[classes.sources]
        self.lower, self.upper = 0.0, np.inf
        self.best_lengths = np.ones(len(tails))
        self.tried: list[_Tried] = []
        self.shares: list[tuple[_Tried, float]] = []  # whose mixture proves ``lower``

    def __call__(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the smoothed dual, and its gradient."""
        room, total_room = self.room, self.room.sum()
        raw = np.exp(point - point.max())
        # Scaling all lengths does not change the bound, so they are scaled to a fixed sum. As
        # logarithms they stay positive without constraints.
        length = np.maximum(raw * (total_room / (room @ raw)), _SHORTEST)
        arc_load, soft, exact = soft_flows(
            self.in_ptr, self.in_arc, self.tails, length[self.classes.arc_class], self.softness,
            self.classes.sources, self.order_of_sources, self.classes.weight.astype(float),
            1.0, np.zeros((0, 0)),
        )  # fmt: skip
        load = np.bincount(self.classes.arc_class, weights=arc_load)
        self._note(_Tried(length, self.softness, load), exact)
        # The gradient of the sum of distances is the load of the flow along them, so one pass gives
        # an upper bound and a flow that proves a lower one.
        gradient = length * (load - room * (length @ load) / total_room)
        return -soft * self.scale, -gradient * self.scale

    def _note(self, tried: _Tried, distances: float) -> None:
        """Keep the best bounds; stop when they meet."""
        self.tried.append(tried)
        upper = float(self.room @ tried.length) / distances
        if upper < self.upper:
            self.upper, self.best_lengths = upper, tried.length[self.classes.arc_class]
        self._offer(1 / float((tried.load / self.room).max()), [(tried, 1.0)])
        if len(self.tried) % _MIXED_EVERY == 0:
            self.mix()

    def _offer(self, lower: float, shares: list[tuple[_Tried, float]]) -> None:
        if lower > self.lower:
            self.lower, self.shares = lower, shares
        if self.upper <= self.lower * (1 + self.tolerance):
            raise _Found

    def mix(self) -> None:
        """Find, by a linear program, the mixture of tried flows that loads the arcs most evenly."""
        # No single flow along soft distances loads all arcs evenly, but mixtures of them do
        # (columns of the primal program, weighted by a small linear program).
        tried = self.tried[-_MIXED:]
        loads = np.array([each.load / self.room for each in tried])
        unit = loads.mean()
        arcs, flows = len(self.room), len(tried)
        # Minimize the fullest class of arcs, in units of the mean load; the shares add up to 1.
        program = Program()
        shares, fullest = program.add_variables(flows), program.add_variable(cost=1.0)
        rows = np.zeros((arcs + 1, flows + 1))
        rows[:arcs, shares], rows[:arcs, fullest], rows[arcs, shares] = loads.T / unit, -1.0, 1.0
        program.add_rows(
            rows, np.append(np.full(arcs, -np.inf), 1.0), np.append(np.zeros(arcs), 1.0)
        )
        found = program.minimize().optimal().values[shares]
        for least in _LEAST_SHARES:
            share = np.where(found > least, found, 0.0)
            share /= share.sum()
            chosen = [(tried[i], float(share[i])) for i in np.flatnonzero(share)]
            self._offer(1 / float((share @ loads).max()), chosen)

    def flow(self) -> np.ndarray:
        """The flow of all sources that proves the best lower bound."""
        size = len(self.order)
        flow = np.zeros((size, len(self.tails)))
        for tried, share in self.shares:
            soft_flows(
                self.in_ptr, self.in_arc, self.tails, tried.length[self.classes.arc_class],
                tried.softness, np.arange(size), self.order, np.ones(size), share, flow,
            )  # fmt: skip
        return flow


_FAR = np.int64(2**62)
# Shares of a flow below exp(-_NEGLIGIBLE) of the largest are left out.
_NEGLIGIBLE = 40.0


@kernel(cache=True, nogil=True, superlinear=True)
def lifted(value, key, pair_colour, arc_colour, tails, heads):
    """The flow of every source over every arc, from one value per class; int64 (sources, arcs)."""
    size = pair_colour.shape[0]
    out = np.empty((size, len(tails)), np.int64)
    for s in range(size):
        row = pair_colour[s]
        for e in range(len(tails)):
            colour = flow_colour(row[tails[e]], row[heads[e]], arc_colour[e])
            out[s, e] = value[np.searchsorted(key, colour)]
    return out


@kernel(cache=True, nogil=True)
def delivered(flow, tails, heads):
    """The least amount that a flow brings to any vertex, and the load of each arc.

    Args:
        flow: flow of every source over every arc, int64 of shape (sources, arcs), at least 0.

    Returns:
        The least, over sources s and vertices u other than s, of the flow into u less the flow out
        of it; and the sum over sources, int64 of shape (arcs,).
    """
    size = flow.shape[0]
    load = np.zeros(flow.shape[1], np.int64)
    net = np.empty(size, np.int64)
    least = _FAR
    for s in range(size):
        net[:] = 0
        for e in range(flow.shape[1]):
            load[e] += flow[s, e]
            net[heads[e]] += flow[s, e]
            net[tails[e]] -= flow[s, e]
        for u in range(size):
            if u != s:
                least = min(least, net[u])
    return least, load


@kernel(cache=True, nogil=True)
def total_distance(ptr, arc, heads, length, sources, weight):
    """The sum of least distances from sources, weighted; lengths are integers."""
    size = len(ptr) - 1
    distance = np.empty(size, np.int64)
    key, item = np.empty(len(arc) + 1, np.int64), np.empty(len(arc) + 1, np.int64)
    total = np.int64(0)
    for i in range(len(sources)):
        source = sources[i]
        distance[:] = _FAR
        distance[source] = 0
        waiting = heap.push(key, item, 0, 0, 0, source)
        while waiting:
            reached, u = key[0], item[0]
            waiting = heap.pop(key, item, 0, waiting)
            if reached > distance[u]:  # an entry from before the vertex was found nearer
                continue
            total += weight[i] * reached
            for j in range(ptr[u], ptr[u + 1]):
                through = reached + length[arc[j]]
                v = heads[arc[j]]
                if through < distance[v]:
                    distance[v] = through
                    waiting = heap.push(key, item, 0, waiting, through, v)
    return total


@kernel(cache=True, nogil=True)
def soft_flows(in_ptr, in_arc, tails, length, softness, sources, order, weight, share, flows):
    """Flows of one unit from each source to every vertex, split by soft distances.

    A vertex draws from every arc into it whose tail is nearer the source, in proportion to
    exp(-(soft distance of the tail + length) / softness). Soft distances are the soft minima of
    those sums, so the flow is the gradient of their sum by the lengths.

    Args:
        in_ptr, in_arc: arcs into each vertex.
        length: length of each arc, above 0.
        order: vertices from near to far for each source, as of the last call, integers of shape
            (sources, vertices) with the source first; sorted again in place.
        weight: number of vertices that each source represents.
        flows: float64 of shape (sources, arcs), to which ``share`` of the flows is added; or of
            shape (0, 0).

    Returns:
        The load of each arc, and the sums of soft and of exact distances, all weighted by
        ``weight``.
    """
    size, arcs = len(in_ptr) - 1, len(tails)
    load = np.zeros(arcs)
    total = exact = 0.0
    distance, soft = np.empty(size), np.empty(size)
    part, flow = np.empty(arcs), np.empty(size)
    for i in range(len(sources)):
        _sort_by_distance(in_ptr, in_arc, tails, length, sources[i], order[i], distance)
        soft[sources[i]] = 0.0
        for j in range(1, size):
            u = order[i, j]
            soft[u] = _split(in_ptr, in_arc, tails, length, softness, u, distance, soft, part)
            total += weight[i] * soft[u]
            exact += weight[i] * distance[u]
        # A nearer vertex passes on the flow that all vertices behind it draw, as in Brandes'
        # accumulation of betweenness (2001). From far to near, all flow through a vertex has been
        # added when its turn comes.
        flow[:] = 1.0
        for j in range(size - 1, 0, -1):
            u = order[i, j]
            for k in range(in_ptr[u], in_ptr[u + 1]):
                e = in_arc[k]
                drawn = flow[u] * part[e]
                load[e] += weight[i] * drawn
                flow[tails[e]] += drawn
                if len(flows):
                    flows[i, e] += share * drawn
    return load, total, exact


@kernel(cache=True, nogil=True)
def _sort_by_distance(in_ptr, in_arc, tails, length, source, order, distance):
    """Compute exact distances from a source in the old order, and repair that order."""
    distance[:] = np.inf
    distance[source] = 0.0
    changed = True
    while changed:
        changed = False
        for j in range(1, len(order)):
            u = order[j]
            for k in range(in_ptr[u], in_ptr[u + 1]):
                through = distance[tails[in_arc[k]]] + length[in_arc[k]]
                if through < distance[u] * (1 - 1e-12):
                    distance[u] = through
                    changed = True
    for j in range(2, len(order)):
        u, at = order[j], j
        while at > 1 and distance[order[at - 1]] > distance[u]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = u


@kernel(cache=True, nogil=True)
def _split(in_ptr, in_arc, tails, length, softness, u, distance, soft, part):
    """The shares of the arcs into u, written to ``part``, and the soft distance of u."""
    nearest = np.inf
    for k in range(in_ptr[u], in_ptr[u + 1]):
        e = in_arc[k]
        part[e] = np.inf
        if distance[tails[e]] < distance[u]:
            part[e] = soft[tails[e]] + length[e]
            nearest = min(nearest, part[e])
    total = 0.0
    for k in range(in_ptr[u], in_ptr[u + 1]):
        e = in_arc[k]
        behind = (part[e] - nearest) / softness
        part[e] = np.exp(-behind) if behind < _NEGLIGIBLE else 0.0
        total += part[e]
    for k in range(in_ptr[u], in_ptr[u + 1]):
        part[in_arc[k]] /= total
    return nearest - softness * np.log(total)
