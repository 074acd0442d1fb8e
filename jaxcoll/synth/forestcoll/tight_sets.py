"""Tight sets: where every tree that starts outside must enter exactly once.

A set X of ranks is tight if the arcs into it have no more capacity than trees have roots outside.
Then the arcs within X and those without can be packed apart: with X contracted to one vertex, and
within X alone, every arc into it a root at its head. Any tree of the one continues by any tree of
the other that starts where it enters, so that together they are trees again. This is what makes
boxes behind narrow links easy: what happens at the links is settled first, on a small network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numba as nb
import numpy as np

from jaxcoll.flow import FlowNetwork, dinic
from jaxcoll.synth.forestcoll.spanning import Arcs, arcs_of


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """Batches of identical spanning trees.

    Attributes:
        root: root of each batch, int64 of shape (batches,).
        weight: trees in each batch, int64 of shape (batches,).
        arc: the arc into each rank, -1 at the root, int32 of shape (batches, ranks).
    """

    root: np.ndarray
    weight: np.ndarray
    arc: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Quotient:
    """A network with disjoint tight sets contracted; every rank is in one part.

    Attributes:
        part: part of each rank, int64 of shape (ranks,).
        arcs: arcs between parts, parallel ones as one.
        trees: trees each part is the root of.
    """

    part: np.ndarray
    arcs: Arcs
    trees: tuple[int, ...]

    def members(self) -> list[np.ndarray]:
        """Ranks of each part."""
        return [np.flatnonzero(self.part == p) for p in range(len(self.trees))]


def contracted(arcs: Arcs, trees: Sequence[int]) -> Quotient | None:
    """The quotient by small disjoint tight sets; None if only single ranks and all are tight."""
    n = len(trees)
    sets = _tight_sets(arcs, np.asarray(trees, np.int64))
    part = np.full(n, -1)
    count = 0
    for v in sorted(range(n), key=lambda v: (sets[v].sum(), v)):
        ranks = np.flatnonzero(sets[v])
        if len(ranks) > 1 and (part[ranks] < 0).all():
            part[ranks] = count
            count += 1
    if not count:
        return None
    alone = np.flatnonzero(part < 0)
    part[alone] = count + np.arange(len(alone))
    count += len(alone)
    capacity: dict[tuple[int, int], int] = {}
    ends = zip(part[arcs.tail].tolist(), part[arcs.head].tolist(), strict=True)
    for (p, q), amount in zip(ends, arcs.capacity.tolist(), strict=True):
        if p != q:
            capacity[p, q] = capacity.get((p, q), 0) + amount
    roots = [0] * count
    for p, amount in zip(part.tolist(), trees, strict=True):
        roots[p] += amount
    return Quotient(part, arcs_of(count, capacity), tuple(roots))


def inside(arcs: Arcs, trees: Sequence[int], ranks: np.ndarray) -> tuple[Arcs, tuple[int, ...]]:
    """The arcs within a tight set, ranks numbered by place, and the trees each is the root of."""
    place = np.full(len(trees), -1)
    place[ranks] = np.arange(len(ranks))
    within = (place[arcs.tail] >= 0) & (place[arcs.head] >= 0)
    enter = (place[arcs.tail] < 0) & (place[arcs.head] >= 0)
    roots = np.asarray([trees[r] for r in ranks], np.int64)
    np.add.at(roots, place[arcs.head[enter]], arcs.capacity[enter])
    ends = zip(place[arcs.tail[within]].tolist(), place[arcs.head[within]].tolist(), strict=True)
    capacity = dict(zip(ends, arcs.capacity[within].tolist(), strict=True))
    return arcs_of(len(ranks), capacity), tuple(roots.tolist())


def joined(
    arcs: Arcs, trees: Sequence[int], quotient: Quotient, outer: Packed, inner: Sequence[Packed]
) -> Packed:
    """Trees of the whole from those of the quotient and those inside its parts.

    All trees lie on a line, those of an outer batch side by side. For each part the line is cut
    where the arc or root by which trees enter it changes, or the inner batch.
    """
    total = int(outer.weight.sum())
    start = np.cumsum(outer.weight) - outer.weight
    pieces = []
    for p, ranks in enumerate(quotient.members()):
        tokens = _entries(arcs, trees, quotient, outer, p)
        pieces.append(_with_inner(*tokens, start, arcs, ranks, inner[p]))
    marks = np.unique(np.concatenate([start, *(cut for cut, *_ in pieces)]))
    root = np.empty(len(marks), np.int64)
    table = np.full((len(marks), len(trees)), -1, np.int32)
    for (cut, entry, batch), ranks, trees_in in zip(pieces, quotient.members(), inner, strict=True):
        at = np.searchsorted(cut, marks, side="right") - 1
        local = trees_in.arc[batch[at]]
        rows = np.where(local >= 0, _arc_numbers(arcs, ranks)[local], -1)
        entered = entry[at] >= 0
        heads = np.searchsorted(ranks, arcs.head[entry[at]])
        rows[entered, heads[entered]] = entry[at][entered]
        table[:, ranks] = rows
        root[~entered] = ranks[trees_in.root[batch[at]]][~entered]
    return Packed(root, np.diff(np.append(marks, total)), table)


def _entries(
    arcs: Arcs, trees: Sequence[int], quotient: Quotient, outer: Packed, p: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """How trees enter part p: outer batch, arc (-1: they start there), rank, trees; each a column.

    Trees that enter by one arc of the quotient share the arcs it stands for.
    """
    part = quotient.part
    columns: list[tuple[int, int, int, int]] = []
    for via in np.unique(outer.arc[:, p]).tolist():
        batches = np.flatnonzero(outer.arc[:, p] == via)
        if via < 0:
            ways = [(-1, r, trees[r]) for r in np.flatnonzero(part == p).tolist() if trees[r]]
        else:
            q = int(quotient.arcs.tail[via])
            same = np.flatnonzero((part[arcs.tail] == q) & (part[arcs.head] == p))
            ways = [(a, int(arcs.head[a]), int(arcs.capacity[a])) for a in same.tolist()]
        way, left = 0, ways[0][2]
        for b in batches.tolist():
            asked = int(outer.weight[b])
            while asked:
                if not left:
                    way += 1
                    left = ways[way][2]
                taken = min(asked, left)
                columns.append((b, ways[way][0], ways[way][1], taken))
                asked -= taken
                left -= taken
    b, entry, rank, amount = (np.asarray(c, np.int64) for c in zip(*columns, strict=True))
    return b, entry, rank, amount


def _with_inner(
    b: np.ndarray,
    entry: np.ndarray,
    rank: np.ndarray,
    amount: np.ndarray,
    start: np.ndarray,
    arcs: Arcs,
    ranks: np.ndarray,
    inner: Packed,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the line is cut for one part, and from there on the arc that enters and the batch."""
    used = np.zeros(len(start), np.int64)
    first = np.empty(len(b), np.int64)
    for i in range(len(b)):
        first[i] = start[b[i]] + used[b[i]]
        used[b[i]] += amount[i]
    pieces = []
    for place, r in enumerate(ranks.tolist()):
        mine = np.flatnonzero(inner.root == place)
        ends = np.cumsum(inner.weight[mine])
        here = np.flatnonzero(rank == r)
        if not len(here):
            continue
        # A second line: trees that continue from this rank, in order of entry.
        stop = np.cumsum(amount[here])
        cuts = np.unique(np.concatenate([[0], stop, ends]))[:-1]
        cuts = cuts[cuts < stop[-1]]
        token = np.searchsorted(stop, cuts, side="right")
        batch = mine[np.searchsorted(ends, cuts, side="right")]
        place_on_line = first[here][token] + cuts - (stop - amount[here])[token]
        pieces.append((place_on_line, entry[here][token], batch))
    cut, arc, batch = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.argsort(cut)
    return cut[order], arc[order], batch[order]


def _arc_numbers(arcs: Arcs, ranks: np.ndarray) -> np.ndarray:
    """The arcs within a set of ranks, in the order of ``inside``."""
    member = np.zeros(len(arcs.ptr) - 1, bool)
    member[ranks] = True
    # Both lists are sorted by head, then tail, and places count up with ranks.
    found = np.flatnonzero(member[arcs.tail] & member[arcs.head])
    return np.append(found, -1).astype(np.int64)


def _tight_sets(arcs: Arcs, trees: np.ndarray) -> np.ndarray:
    """For each rank a small tight set with a neighbour in it; bool of shape (ranks, ranks).

    Rows are empty where there is none.
    """
    n = len(trees)
    roots = np.flatnonzero(trees)
    network = FlowNetwork(
        n + 1,
        np.concatenate([arcs.tail, np.full(len(roots), n)]),
        np.concatenate([arcs.head, roots]),
    )
    room = network.room([*arcs.capacity.tolist(), *trees[roots].tolist()])
    return _closed_sets(*network.columns, room, arcs.ptr, arcs.tail, n, int(trees.sum()))


@nb.njit(cache=True)
def _closed_sets(ptr, head, mate, full, in_ptr, tail, n, total):
    """Least sets of two or more ranks, not of all, that no flow to one of them leaves room into.

    After a maximum flow from the source (vertex n) to rank v, tight sets with v are those that no
    arc with room enters: what can reach v or one of its neighbours is the least with both.
    """
    sets = np.zeros((n, n), np.bool_)
    level, at, queue, path = (
        np.empty(n + 2, np.int64), np.empty(n + 2, np.int64), np.empty(n + 2, np.int64),
        np.empty(n + 2, np.int64),
    )  # fmt: skip
    mark = np.full(n + 1, -1, np.int64)
    stamp = 0
    for v in range(n):
        room = full.copy()
        dinic(ptr, head, mate, room, n, v, total, level, at, queue, path)
        least = n
        for i in range(in_ptr[v], in_ptr[v + 1]):
            queue[0], queue[1] = v, tail[i]
            mark[v] = mark[tail[i]] = stamp
            first, last, closed = 0, 2, True
            while first < last and closed:
                x = queue[first]
                first += 1
                for e in range(ptr[x], ptr[x + 1]):
                    u = head[e]
                    if mark[u] != stamp and room[mate[e]] > 0:
                        if u == n or last >= least - 1:
                            closed = False
                            break
                        mark[u] = stamp
                        queue[last] = u
                        last += 1
            stamp += 1
            if closed and last < least:
                least = last
                sets[v] = False
                for j in range(last):
                    sets[v, queue[j]] = True
    return sets
