"""Spread routes: short routes between pairs of ranks that share the load among equal ways.

Of equally short routes ``shortest_routes`` takes the one with the lowest links. In a fat tree all
top switches are equally near, so all routes then cross the same few, and patterns that fill each
rank's own link take ten times as long as they must. Here each rank's messages take the routes that
are cheapest at the loads of the others, as chunks do in ``min_congestion``.

For example, in a fat tree of two levels with 2 ranks below each leaf switch, the two ranks of a
leaf go up to different top switches.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.numerics.ragged import equal_runs
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.synth.building.list_scheduling import message_ticks
from jaxcoll.synth.routing.min_congestion import route
from jaxcoll.topology import Topology

# Times that all routes are chosen, and how strongly full links are avoided, as in MinCongestion.
_PASSES, _POWER = 2, 5
# Trees of routes from every rank: more are tried where a link between switches takes longer than
# this many times the busiest link of a rank. A tree does not see its own load, so that beside a
# slow link one rank's whole data would take it, or leave it empty.
_PARTS, _ENOUGH = (1, 4, 16), 1.02
# Trees times links up to which more than one tree from every rank are tried: some seconds.
_MOST_SEARCHED = 2**26


def spread_routes(
    topology: Topology, src: np.ndarray, dst: np.ndarray, weight: np.ndarray, nbytes: Fraction
) -> Edges:
    """Edges that join given pairs of ranks; the shortest routes where they load no switch too much.

    That is where no link between switches takes longer for its load than the busiest link of a rank
    does. Otherwise the routes from a rank form one tree or several, which avoid the load of the
    others.

    Args:
        src, dst: ranks, integers of shape (pairs,), src[i] != dst[i].
        weight: messages between each pair, integers of at least 1, of shape (pairs,).
        nbytes: bytes of a message.

    Raises:
        ScheduleError, TopologyError: as for ``shortest_routes``.
    """
    best = shortest_routes(topology, src, dst)
    if topology.is_direct:
        return best
    busiest, of_ranks = _busiest(topology, best, weight)
    for parts in _PARTS:
        searched = parts * len(np.unique(src)) * topology.num_links
        if busiest <= _ENOUGH * of_ranks or (parts > 1 and searched > _MOST_SEARCHED):
            break
        found = _routed(topology, src, dst, weight, nbytes, parts)
        taken, _ = _busiest(topology, found, weight)
        if taken < busiest:
            best, busiest = found, taken
    return best


def _busiest(topology: Topology, edges: Edges, weight: np.ndarray) -> tuple[float, float]:
    """Seconds of the busiest link between switches, and of a rank, for messages of one byte."""
    load = np.bincount(edges.path_link, np.repeat(weight, edges.hops), topology.num_links)
    seconds = load / topology.bandwidth
    inside = np.minimum(topology.src, topology.dst) >= topology.num_ranks
    return float(seconds[inside].max(initial=0.0)), float(seconds[~inside].max(initial=0.0))


def _routed(
    topology: Topology,
    src: np.ndarray,
    dst: np.ndarray,
    weight: np.ndarray,
    nbytes: Fraction,
    parts: int,
) -> Edges:
    """Edges along trees of cheap routes, ``parts`` trees from every source."""
    order = np.argsort(src, kind="stable")
    source, target = (np.asarray(end, np.int64)[order] for end in (src, dst))
    first = equal_runs(source)
    number = np.arange(len(order)) - np.repeat(first[:-1], np.diff(first))
    # The targets of a rank are dealt to its trees in turn, so that each tree leads everywhere.
    key = source * parts + number % parts
    place = np.argsort(key, kind="stable")
    order, source, target, ptr = order[place], source[place], target[place], equal_runs(key[place])
    busy, delay = message_ticks(topology, nbytes, 4 * int(weight.sum()) * topology.num_vertices)
    out_ptr, link = topology.out_links
    into = route(
        out_ptr, link, topology.src.astype(np.int64), topology.dst.astype(np.int64), busy, delay,
        source[ptr[:-1]], target, weight.astype(np.int64)[order], ptr, _PASSES, _POWER,
        np.zeros(topology.num_links, np.int64),
    )  # fmt: skip
    tree = np.empty(len(order), np.int64)
    tree[order] = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    return _walked(topology, into, tree, src, dst)


def _walked(
    topology: Topology, into: np.ndarray, tree: np.ndarray, src: np.ndarray, dst: np.ndarray
) -> Edges:
    """The edges along trees of routes, walked from their ends back.

    Args:
        into: the link into each vertex by tree, of shape (trees, vertices).
        tree: the tree of each pair.
    """
    at, rows = np.asarray(dst, np.int64), []
    while (at != src).any():
        link = np.where(at != src, into[tree, at], -1)
        rows.append(link)
        at = np.where(at != src, topology.src[link], src)
    links = np.stack(rows[::-1], axis=1)
    goes = links >= 0
    return Edges.along(topology, np.append(0, np.cumsum(goes.sum(axis=1))), links[goes])
