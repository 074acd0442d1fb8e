"""MultiTree's tree construction, compiled: trees take turns to add ranks over free links."""

from __future__ import annotations

import numba as nb
import numpy as np

_NOT_SEEN = -1


@nb.njit(cache=True)
def grow(
    ptr, link, link_src, link_dst, capacity, group, roots, wanted, distance, by_height, nearest,
    num_ranks, host,
):  # fmt: skip
    """All trees, as additions in the order in which they are made (Algorithm 1, lines 1-14).

    Args:
        ptr, link: outgoing links by vertex, in the order in which they are tried; int64.
        link_src, link_dst: vertices at the ends of each link.
        capacity: trees that each link serves in one time step, at least 1.
        group: group of each vertex, -1 for those that only forward.
        roots: root of each tree.
        wanted: vertices that each tree will have, its root included.
        distance: fewest links from rank to rank, of shape (ranks, ranks).
        by_height: whether trees with the most remaining height come first, not the lowest roots.
        nearest: whether a tree tries all its ranks for near children before any for farther ones.
        num_ranks: number of ranks.
        host: host of each rank, from 0.

    Returns:
        For each addition its time step (from 0), tree, child and parent, and the links from parent
        to child as (ptr, links).
    """
    trees = len(roots)
    total = 0
    for t in range(trees):
        total += wanted[t] - 1
    step_of, tree_of = np.empty(total, np.int64), np.empty(total, np.int64)
    child_of, parent_of = np.empty(total, np.int64), np.empty(total, np.int64)
    path_ptr = np.zeros(total + 1, np.int64)
    path = np.empty(2 * total + 16, np.int64)

    # Without forwarders on the way, children are neighbours.
    farthest = distance.max() - 1 if (group != group[roots[0]]).any() else 0
    inside = np.zeros((trees, num_ranks), np.bool_)
    entered = np.zeros((trees, host.max() + 1), np.bool_)
    members = np.empty((trees, num_ranks), np.int64)  # in the order of their addition
    listed, count = np.ones(trees, np.int64), np.ones(trees, np.int64)
    # Links from the tree to each rank it lacks, how many are so far, and the most.
    near = np.empty((trees, num_ranks), np.int32)
    lacking = np.zeros((trees, distance.max() + 1), np.int64)
    height = np.zeros(trees, np.int64)
    for t in range(trees):
        inside[t, roots[t]] = True
        entered[t, host[roots[t]]] = True
        members[t, 0] = roots[t]
        near[t] = distance[roots[t]]
        for v in range(num_ranks):
            if group[v] == group[roots[t]] and v != roots[t]:
                lacking[t, near[t, v]] += 1
                height[t] = max(height[t], near[t, v])

    free = np.empty_like(capacity)
    came_by = np.full(len(ptr) - 1, _NOT_SEEN, np.int64)
    queue = np.empty(len(ptr) - 1, np.int64)
    before, cursor = np.empty(trees, np.int64), np.zeros(trees, np.int64)
    reach_of = np.zeros(trees, np.int64)
    turn = np.arange(trees)
    added, step = 0, 0
    while added < total:
        free[:] = capacity
        for t in range(trees):
            if count[t] < wanted[t]:
                listed[t] = _drop_surrounded(
                    members[t], listed[t], ptr, link, link_dst, group, inside[t]
                )
        before[:] = listed
        cursor[:] = 0
        reach_of[:] = 0 if nearest else farthest
        progress = True
        while progress:
            progress = False
            if by_height:
                turn = np.argsort(-height, kind="mergesort")
            for t in turn:
                if count[t] == wanted[t]:
                    continue
                reach, parent, child = reach_of[t], -1, -1
                while child < 0 and reach <= farthest:
                    # A member that finds no child so near will find none later in this step.
                    while child < 0 and cursor[t] < before[t]:
                        parent = members[t, cursor[t]]
                        child = _search(
                            parent, ptr, link, link_dst, free, group, group[roots[t]], inside[t],
                            num_ranks, host, entered[t], reach, came_by, queue,
                        )  # fmt: skip
                        if child < 0:
                            cursor[t] += 1
                    if child < 0:
                        reach += 1
                        cursor[t] = 0
                reach_of[t] = reach
                if child < 0:
                    continue
                hops = _way_back(child, parent, link_src, came_by, queue)
                if path_ptr[added] + hops > len(path):
                    longer = np.empty(2 * (len(path) + hops), np.int64)
                    longer[: path_ptr[added]] = path[: path_ptr[added]]
                    path = longer
                for i in range(hops):
                    used = queue[hops - 1 - i]
                    free[used] -= 1
                    path[path_ptr[added] + i] = used
                path_ptr[added + 1] = path_ptr[added] + hops
                step_of[added], tree_of[added] = step, t
                child_of[added], parent_of[added] = child, parent
                inside[t, child] = True
                entered[t, host[child]] = True
                members[t, listed[t]] = child
                listed[t] += 1
                count[t] += 1
                if by_height:
                    lacking[t, near[t, child]] -= 1
                    _come_nearer(
                        near[t], lacking[t], distance[child], group, group[child], inside[t]
                    )
                    while height[t] > 0 and lacking[t, height[t]] == 0:
                        height[t] -= 1
                added += 1
                progress = True
        step += 1
    return step_of, tree_of, child_of, parent_of, path_ptr, path[: path_ptr[added]]


@nb.njit(cache=True)
def _drop_surrounded(members, listed, ptr, link, link_dst, group, inside):
    """Strike out members that have no neighbour to add nor to search behind; those kept, in order.

    Returns how many are kept.
    """
    kept = 0
    for i in range(listed):
        v = members[i]
        for j in range(ptr[v], ptr[v + 1]):
            w = link_dst[link[j]]
            if group[w] != group[v] or not inside[w]:
                members[kept] = v
                kept += 1
                break
    return kept


@nb.njit(cache=True)
def _come_nearer(near, lacking, distance, group, own, inside):
    """Take account of a tree's new member, ``distance`` links from every rank."""
    for v in range(len(near)):
        if distance[v] < near[v]:
            if group[v] == own and not inside[v]:
                lacking[near[v]] -= 1
                lacking[distance[v]] += 1
            near[v] = distance[v]


@nb.njit(cache=True)
def _search(
    parent, ptr, link, link_dst, free, group, own, inside, num_ranks, host, entered, reach, came_by,
    queue,
):  # fmt: skip
    """A rank of group ``own`` outside the tree, by free links through ``reach`` forwarders; or -1.

    Among those behind the same number of forwarders the next after the parent, counted round; but
    of those at its own switches, first one of a host in which the tree has no rank yet; and of its
    neighbours, the first in the order of links. ``came_by`` tells the links on the way.
    """
    came_by[:] = _NOT_SEEN
    queue[0] = parent
    first, last, depth = 0, 1, 0
    while first < last and depth <= reach:
        best, best_ahead, end = -1, 2 * num_ranks, last
        for i in range(first, last):
            v = queue[i]
            for j in range(ptr[v], ptr[v + 1]):
                w = link_dst[link[j]]
                if free[link[j]] == 0 or came_by[w] != _NOT_SEEN or w == parent:
                    continue
                if group[w] == own:
                    if inside[w]:
                        continue
                    ahead = (w - parent) % num_ranks if depth > 0 else 0
                    if depth == 1 and entered[host[w]]:
                        ahead += num_ranks
                    if best < 0 or ahead < best_ahead:
                        best, best_ahead = w, ahead
                        came_by[w] = link[j]
                else:
                    came_by[w] = link[j]
                    queue[end] = w
                    end += 1
        if best >= 0:
            return best
        first, last, depth = last, end, depth + 1
    return -1


@nb.njit(cache=True)
def _way_back(child, parent, link_src, came_by, links):
    """Number of links from parent to child, and in ``links`` those links, the last first."""
    hops, v = 0, child
    while v != parent:
        links[hops] = came_by[v]
        v = link_src[came_by[v]]
        hops += 1
    return hops
