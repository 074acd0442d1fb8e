"""Trees grown over links whose prices rise with their load, compiled; see ``joint_trees``.

A tree adds the member that is cheapest to reach from any of its ranks. The cost is the prices of
the links on the way, and a ``hop_price`` for every link between root and rank, as in Prim's
algorithm with a charge for depth. Through switches, the way is a shortest one (Dijkstra), since
data is copied only at ranks. So a link may be on several ways of one tree, and costs more each
time. A rank outside the group becomes part of the tree if a way passes it, and copies or adds from
then on. Trees of some of the vertices are grown in this way for the Steiner problem (Takahashi and
Matsuyama, "An approximate solution for the Steiner problem in graphs", 1980).

Prices are powers of two computed by a table and ``ldexp``, not by a math library, so that kernels
give the same bits when interpreted and when compiled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel

# Exponents of prices are multiples of 1 / _FINE.
_FINE = 256
# The fraction of an exponent comes from this table, the integer part from ``ldexp``. ``exp2`` is
# not used because Numba and NumPy may round it differently.
POWERS = 2.0 ** (np.arange(_FINE) / _FINE)
# The role of a vertex for the trees of a group: no data may pass it; it forwards, like a switch; it
# copies and adds where a way passes it; or it must be reached.
STAYS_OUT, FORWARDS, HELPS, MEMBER = -1, 0, 1, 2
# The highest price: a link that a tree takes often, as the only one out of a host, would otherwise
# cost infinity.
_DEAREST = 2.0**800


class Graph(NamedTuple):
    """The links in the direction of growth: as they are for out-trees, reversed for in-trees.

    Attributes:
        ptr, link: the links that leave each vertex, in the direction of growth; int64.
        tail, head: vertices at the ends of each link, in that direction.
    """

    ptr: np.ndarray
    link: np.ndarray
    tail: np.ndarray
    head: np.ndarray


class Search(NamedTuple):
    """The state of a growing tree.

    Attributes:
        cost: cost of the cheapest way known to each vertex, including depth.
        by: the last link of that way.
        depth: price of the hops from the root to each rank in the tree.
        inside: whether each vertex is a rank in the tree.
        price: price of each link, which rises where the tree uses it.
        keys, items: heap of vertices by cost.
    """

    cost: np.ndarray
    by: np.ndarray
    depth: np.ndarray
    inside: np.ndarray
    price: np.ndarray
    keys: np.ndarray
    items: np.ndarray


class Trees(NamedTuple):
    """Trees of all chunks, one per chunk and side (in-trees first where there are two).

    Attributes:
        root: root of each chunk's trees.
        link: links of the ways by which ranks were added, each from the tree to the rank, one after
            another; of shape (chunks, sides, most links). A way ends at the first rank.
        used: number of these links, of shape (chunks, sides).
    """

    root: np.ndarray
    link: np.ndarray
    used: np.ndarray


@kernel(cache=True, nogil=True)
def replace(
    first, last, grown, back, forth, role, group, trees, roots, load, seconds, fine, rise, level,
    hop_price, most_links, search, spare,
):  # fmt: skip
    """Grow the trees of chunks ``first..last - 1`` again, beside all others as they are.

    Args:
        grown: chunks below this one have trees, whose load is first removed.
        back, forth: the graphs of in-trees and out-trees; ``back`` is empty if there are none.
        role: the role of each vertex for the trees of each group, int8 of shape (groups, vertices).
        group: group of each chunk.
        roots: roots to try for each chunk, of shape (chunks, tries).
        load: chunks on each link; updated.
        seconds: time of a chunk on each link, in units of the usual link.
        fine: the rise of a price per unit of time, in ``_FINE``-ths of a doubling.
        rise: factor by which the price of each link rises with a chunk; level: ones.
        hop_price: price of each link between root and rank, in addition to that of its load.
        most_links: the most links of a way from rank to rank.
        spare: trees of one chunk, scratch.
    """
    sides = trees.link.shape[1]
    for c in range(first, last):
        size = 0
        for v in range(role.shape[1]):
            size += role[group[c], v] == MEMBER
        if c < grown:
            _add_load(trees, c, load, -1)
        longest = 0.0
        for e in range(len(load)):
            longest = max(longest, load[e] * seconds[e])
        best = np.inf
        for t in range(roots.shape[1]):
            for e in range(len(load)):
                # The exponent, in 1 / _FINE, relative to that of the longest load.
                power = math.floor(fine * (load[e] * seconds[e] - longest))
                whole = power // _FINE
                search.price[e] = math.ldexp(POWERS[power - whole * _FINE], whole) * (rise[e] - 1)
            cost = 0.0
            for s in range(sides):
                # Sides alternate in choosing first, so that neither always gets the cheap links.
                side = (s + c + t) % sides
                graph, against = (forth, back) if side == sides - 1 else (back, forth)
                paid, used = _grow(
                    graph, against, role[group[c]], size, roots[c, t], rise, hop_price,
                    most_links, best - cost, search, spare.link[0, side],
                )  # fmt: skip
                # With equal and constant prices of hops and links, no way is longer than the
                # shortest from the root. With the prices of slow links' hops alone, the same rank
                # could be out of reach again.
                if paid < 0:
                    search.price[:] = 1.0
                    paid, used = _grow(
                        graph, against, role[group[c]], size, roots[c, t], level, level,
                        most_links, best - cost, search, spare.link[0, side],
                    )  # fmt: skip
                spare.used[0, side] = used
                cost += paid
                if cost >= best:
                    break
            if cost < best:
                best = cost
                trees.root[c] = roots[c, t]
                _copy(spare, trees, c)
        _add_load(trees, c, load, 1)


@kernel(cache=True, nogil=True)
def _copy(spare, trees, c):
    """Copy the trees of one chunk element by element, which compiles three seconds faster."""
    for side in range(trees.link.shape[1]):
        trees.used[c, side] = spare.used[0, side]
        for i in range(trees.used[c, side]):
            trees.link[c, side, i] = spare.link[0, side, i]


@kernel(cache=True, nogil=True)
def _add_load(trees, c, load, sign):
    for side in range(trees.link.shape[1]):
        for i in range(trees.used[c, side]):
            load[trees.link[c, side, i]] += sign


@kernel(cache=True, nogil=True)
def _grow(
    graph, against, role, size, root, rise, hop_price, most_links, most, search, link,
):  # fmt: skip
    """Grow one tree from its root; returns the prices paid, and the number of links used.

    The prices are -1 if a member was out of reach, because a way became longer than ``most_links``
    when a part of it was replaced. They are infinite for a tree given up because its prices reach
    ``most``.
    """
    cost, by, depth, inside = search.cost, search.by, search.depth, search.inside
    price, keys, items = search.price, search.keys, search.items
    cost[:] = np.inf
    inside[:] = False
    inside[root], depth[root] = True, 0.0
    paid, used, waiting = 0.0, 0, 0
    left = size - (role[root] == MEMBER)
    # The vertex whose neighbours are offered ways, the rank where its own way starts, and the
    # prices (including hops) and links of that way.
    u, start, prices, links = root, root, 0.0, 0
    while left > 0:
        waiting = _offer(u, start, depth[start] + prices, graph, role, hop_price, search, waiting)
        # Find the cheapest vertex. Links that the tree took meanwhile cost more now, so a way whose
        # cost rose waits again.
        u = -1
        while u < 0:
            if waiting == 0:
                return -1.0, 0
            known, v = keys[0], items[0]
            waiting = heap.pop(keys, items, 0, waiting)
            if inside[v] or known > cost[v]:
                continue
            prices, links, start = 0.0, 0, v
            while not inside[start] and links <= most_links:
                prices += price[by[start]] + hop_price[by[start]]
                start = graph.tail[by[start]]
                links += 1
            now = depth[start] + prices
            if links > most_links:
                cost[v] = np.inf
            elif now > known * (1 + 2.0**-30):
                cost[v] = now
                waiting = heap.push(keys, items, 0, waiting, now, v)
            else:
                u = v
        if role[u] != MEMBER:
            continue
        used += links
        at = u
        for i in range(links):
            e = by[at]
            link[used - 1 - i] = e
            paid += price[e]
            price[e] = min(price[e] * rise[e], _DEAREST)
            at = graph.tail[e]
        if paid >= most:
            return np.inf, used
        _enter(graph, role, hop_price, depth[start], search, link[used - links : used])
        for i in range(used - links, used - 1):
            v = graph.head[link[i]]
            if inside[v]:
                waiting = _offer(v, v, depth[v], graph, role, hop_price, search, waiting)
            else:
                waiting = _offer_again(v, against, hop_price, search, waiting)
        left -= 1
        start, prices, links = u, 0.0, 0
    return paid, used


@kernel(cache=True, nogil=True)
def _enter(graph, role, hop_price, below, search, way):
    """Make the ranks of a way part of the tree; ``below`` is the depth at its start."""
    first = 0
    for i in range(len(way)):
        v = graph.head[way[i]]
        if role[v] != FORWARDS:
            search.inside[v], search.depth[v] = True, below
            for j in range(i, first - 1, -1):
                search.depth[v] += hop_price[way[j]]
            below, first = search.depth[v], i + 1


@kernel(cache=True, nogil=True)
def _offer(u, start, before, graph, role, hop_price, search, waiting):
    """Offer the neighbours of a vertex ways through it; returns how many vertices wait.

    Args:
        start: the rank of the tree at which the way to the vertex begins.
        before: the price of that way, depth included.
    """
    cost, by, inside = search.cost, search.by, search.inside
    for i in range(graph.ptr[u], graph.ptr[u + 1]):
        e = graph.link[i]
        v = graph.head[e]
        offered = before + search.price[e] + hop_price[e]
        if inside[v] or offered >= cost[v] or role[v] == STAYS_OUT:
            continue
        # A vertex with an outdated cost must not become part of the way to itself.
        is_on_way, at = False, u
        while role[v] != MEMBER and at != start and not is_on_way:
            is_on_way = at == v
            at = graph.tail[by[at]]
        # Compiled code would write past the end of a full heap. An omitted offer costs at most this
        # tree, which is then grown by shortest ways.
        if not is_on_way and waiting < len(search.keys):
            cost[v], by[v] = offered, e
            waiting = heap.push(search.keys, search.items, 0, waiting, offered, v)
    return waiting


@kernel(cache=True, nogil=True)
def _offer_again(v, against, hop_price, search, waiting):
    """Find the cheapest way to a forwarding vertex again, because its current one became dearer.

    Otherwise it would offer its first way for its old price, no other way would be cheaper, and one
    rank would send to all others through the switch. Vertices beyond it follow, since the price of
    a way is added up when they are taken. Returns the number of waiting vertices.
    """
    cost, by, depth, inside = search.cost, search.by, search.depth, search.inside
    best = np.inf
    for i in range(against.ptr[v], against.ptr[v + 1]):
        e = against.link[i]
        u = against.head[e]
        if inside[u]:
            offered = depth[u] + search.price[e] + hop_price[e]
            if offered < best:
                best, by[v] = offered, e
    # The way may come from another switch, which has no price of its own to compare with.
    if best < np.inf and waiting < len(search.keys):
        cost[v] = best
        waiting = heap.push(search.keys, search.items, 0, waiting, best, v)
    return waiting


@kernel(cache=True, nogil=True)
def count_sends(trees, src, dst, ranks, counts):
    """Count the sends (the ways of the tree) of each chunk and side; ``counts`` begins as zeros."""
    sides = trees.link.shape[1]
    for c in range(len(counts)):
        for side in range(sides):
            ends = dst if side == sides - 1 else src
            for i in range(trees.used[c, side]):
                counts[c, side] += ends[trees.link[c, side, i]] < ranks


@kernel(cache=True, nogil=True)
def write_sends(trees, counts, src, dst, ranks, path_ptr, path):
    """Write the paths of all sends; returns the number of pairs in which one waits for another.

    Args:
        counts: sends of each chunk and side.
    """
    sides, used, pairs, i = trees.link.shape[1], 0, 0, 0
    for c in range(len(counts)):
        root, from_root, into_root = trees.root[c], 0, 0
        if sides == 2:
            # Ranks were added from the root outwards, so the last one is a leaf.
            for j in range(trees.used[c, 0] - 1, -1, -1):
                path[used] = trees.link[c, 0, j]
                used += 1
                if dst[trees.link[c, 0, j]] < ranks:
                    i += 1
                    path_ptr[i] = used
                    into_root += dst[trees.link[c, 0, j]] == root
        for j in range(trees.used[c, sides - 1]):
            from_root += src[trees.link[c, sides - 1, j]] == root
            path[used] = trees.link[c, sides - 1, j]
            used += 1
            if dst[path[used - 1]] < ranks:
                i += 1
                path_ptr[i] = used
        pairs += counts[c, sides - 1] - from_root
        if sides == 2:
            pairs += counts[c, 0] - into_root + into_root * from_root
    return pairs


@kernel(cache=True, nogil=True)
def write_waits(trees, counts, ends, path_ptr, path, ranks, before, after):
    """Write the pairs of sends of which one waits for the other.

    A rank sends its sum after those of its children have arrived. The root's copies leave after all
    sums have entered it; other copies leave after the rank has received its own.

    Args:
        ends: the vertices where links start, and those where they end.
        path_ptr, path: as ``write_sends`` wrote them.
    """
    (src, dst), sides, n, first = ends, trees.link.shape[1], 0, 0
    sum_of, copy_of = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for c in range(len(counts)):
        root, middle = trees.root[c], first
        if sides == 2:
            middle += counts[c, 0]
            for i in range(first, middle):
                sum_of[src[path[path_ptr[i]]]] = i
            for i in range(first, middle):
                parent = dst[path[path_ptr[i + 1] - 1]]
                if parent != root:
                    before[n], after[n] = i, sum_of[parent]
                    n += 1
        last = middle + counts[c, sides - 1]
        for i in range(middle, last):
            copy_of[dst[path[path_ptr[i + 1] - 1]]] = i
            parent = src[path[path_ptr[i]]]
            if parent != root:
                before[n], after[n] = copy_of[parent], i
                n += 1
            elif sides == 2:
                for j in range(middle - 1, first - 1, -1):
                    if dst[path[path_ptr[j + 1] - 1]] == root:
                        before[n], after[n] = j, i
                        n += 1
        first = last
