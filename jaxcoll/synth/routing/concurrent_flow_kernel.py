"""Loops of the all-to-all rate: certificates on the whole graph, and flows at soft distances.

A rate is proved from both sides. Below: a flow in integers, whose least delivery and fullest arc
are counted on the whole graph (``delivered``), whatever found it. Above: any lengths of arcs, since
all arcs' capacity by length, over the sum of distances, bounds the rate (``total_distance``)
wherever the lengths come from. Good lengths and flows come from distances whose minimum is
softened: unlike the exact ones these have a gradient, which is a flow that splits among near-
shortest paths.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.routing.flow_classes import flow_colour

_FAR = np.int64(2**62)
# Shares of a flow below exp(-this) of the largest are left out.
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
    """The amount that a flow brings to the vertex served worst, and the load of each arc.

    Args:
        flow: of every source over every arc, int64 of shape (sources, arcs), at least 0.

    Returns:
        The least, over sources s and vertices u other than s, of what enters u less what leaves
        it; and the sum over sources, int64 of shape (arcs,).
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
    """The sum of least distances from sources, each counted by its weight; whole lengths."""
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
        length: of each arc, above 0.
        order: vertices of each source from near to far as of the last call, int of shape
            (sources, vertices), the source first; sorted again in place.
        weight: how many vertices each source stands for.
        flows: float64 of shape (sources, arcs), to which ``share`` of the flows is added; or of
            shape (0, 0).

    Returns:
        The load of each arc, weighted by ``weight``; the sum of soft and that of exact distances,
        likewise.
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
        # From far to near: all that flows through a vertex has been added when its turn comes.
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
    """Exact distances from a source, relaxed in the old order, which is then repaired."""
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
