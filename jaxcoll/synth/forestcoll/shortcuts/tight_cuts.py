"""Spanning trees across a tight cut, packed on both sides of it and joined.

A cut is tight if the arcs out of a set S of ranks carry exactly as many trees as are rooted in S.
Then every tree from S enters the other ranks T by a single arc, and no tree from T returns to T
after leaving it, so the part of each tree in T is a spanning tree of T. This leaves two smaller
problems, which have trees if the whole has (Edmonds): T alone, where a tree from S counts as a tree
of the rank by which it enters, and S together with T as a single rank, the hub. Two of their trees
fit together if they enter T by the same arc. Balancing does not find such trees easily, because all
arcs across the cut are full.

For example, let three ranks in a line, 0 - 1 - 2, carry one tree of rank 0 and none of the others.
S = {0} lets out that tree, T = {1, 2} is packed with it as a tree of rank 1, and S with the hub has
one arc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.synth.forestcoll.edge_splitting import Pair
from jaxcoll.synth.forestcoll.spanning import Trees, depths

Capacity = dict[Pair, int]
Pack = Callable[[int, Capacity, tuple[int, ...]], Trees]


def tight_cut(num_ranks: int, capacity: Capacity, trees: Sequence[int]) -> np.ndarray | None:
    """Ranks outside a tight cut (T above), two or more; None if there is no such cut.

    A cut with a single rank inside shrinks the network by just that rank, and is the last choice.

    Returns:
        bool of shape (ranks,).
    """
    n = num_ranks
    src = np.asarray([u for u, _ in capacity] + [n] * n, np.int64)
    dst = np.asarray([v for _, v in capacity] + list(range(n)), np.int64)
    room = [*capacity.values(), *trees]
    # Vertex n is a source with an arc to each rank for its own trees. A cut is tight if a maximum
    # flow from there to a rank beyond the cut fills it. Such a flow shows two minimum cuts, the one
    # nearest to the target and the one nearest to the source, and both are tried.
    network, last = FlowNetwork(n + 1, src, dst), None
    for target in range(n):
        for side in network.least_cuts(room, n, target):
            size = int(side.sum())
            if side[n] or not 2 <= size < n:
                continue
            if size < n - 1:
                return side[:n]
            last = side[:n]
    return last


def pack_across(
    num_ranks: int, capacity: Capacity, trees: Sequence[int], pack: Pack
) -> Trees | None:
    """Spanning trees, packed on both sides of a tight cut and joined; None if there is no such cut.

    Args:
        pack: packs the smaller networks.
    """
    beyond = tight_cut(num_ranks, capacity, trees)
    if beyond is None:
        return None
    ranks = np.flatnonzero(beyond), np.flatnonzero(~beyond)
    place = np.empty(num_ranks, np.int64)
    for side in ranks:
        place[side] = np.arange(len(side))
    inside, outside = len(ranks[0]), len(ranks[1])  # ranks of T and of S; the hub is ``outside``
    inner: Capacity = {}
    outer: Capacity = {}
    enters: dict[int, list[list[int]]] = {}
    leaves: dict[int, list[list[int]]] = {}
    roots = [trees[v] for v in ranks[0].tolist()]
    for (u, v), amount in capacity.items():
        if beyond[u] and beyond[v]:
            inner[int(place[u]), int(place[v])] = amount
            continue
        a, b = (outside if beyond[x] else int(place[x]) for x in (u, v))
        outer[a, b] = outer.get((a, b), 0) + amount
        if beyond[v]:
            enters.setdefault(a, []).append([v, amount])
            roots[place[v]] += amount
        elif beyond[u]:
            leaves.setdefault(b, []).append([u, amount])
    own = [[v, trees[v]] for v in ranks[0].tolist() if trees[v]]
    rooted = [trees[v] for v in ranks[1].tolist()]
    first = pack(inside, inner, tuple(roots))
    second = pack(outside + 1, outer, (*rooted, sum(a for _, a in own)))
    return _joined(first, second, ranks, place, own, enters, leaves)


def _joined(
    first: Trees,
    second: Trees,
    ranks: tuple[np.ndarray, np.ndarray],
    place: np.ndarray,
    own: list[list[int]],
    enters: dict[int, list[list[int]]],
    leaves: dict[int, list[list[int]]],
) -> Trees:
    """The trees of S and the hub, with the hub replaced by trees of T that start where these enter.

    Args:
        own: trees of T that are rooted there: [rank, amount].
        enters, leaves: arcs into T by the rank in S they leave, and out of T by the rank they
            enter: [rank in T, amount].
    """
    within, across = first.over(), second.over()
    waiting: dict[int, list[list[int]]] = {}  # batches of T by root: [batch, trees left]
    for i, (root, weight) in enumerate(
        zip(first.root.tolist(), first.weight.tolist(), strict=True)
    ):
        waiting.setdefault(root, []).append([i, weight])
    hub = len(ranks[1])
    names = np.append(ranks[1], -1)
    root, weight, rows = [], [], []
    for i in range(len(second.root)):
        start, rest = int(second.root[i]), int(second.weight[i])
        # A tree across the cut fits every tree of T that starts where it enters, so both lists are
        # dealt out in step, as many trees at a time as are left in all of the parts involved.
        above = own if start == hub else enters[int(across[i, hub])]
        children = np.flatnonzero(across[i] == hub).tolist()
        while rest:
            entry = above[-1]
            batch = waiting[int(place[entry[0]])]
            parts = [entry, batch[-1], *(leaves[y][-1] for y in children)]
            amount = min(rest, *(part[1] for part in parts))
            row = np.full(len(place), -1, np.int64)
            row[ranks[1]] = names[across[i, :hub]]
            for y in children:
                row[ranks[1][y]] = leaves[y][-1][0]
            held = within[batch[-1][0]]
            row[ranks[0]] = np.where(held >= 0, ranks[0][held], -1)
            if start != hub:
                row[entry[0]] = ranks[1][across[i, hub]]
            root.append(entry[0] if start == hub else int(ranks[1][start]))
            weight.append(amount)
            rows.append(row)
            rest -= amount
            for part, source in zip(
                parts, (above, batch, *(leaves[y] for y in children)), strict=True
            ):
                part[1] -= amount
                if not part[1]:
                    source.pop()
    over = np.stack(rows)
    return Trees.by_depth(np.asarray(root), np.asarray(weight), over, depths(over))
