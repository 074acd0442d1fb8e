"""Step 4: spanning trees, and exchanges that make them lower (Sec. 4.5.4).

A rank of one tree may take another parent where there is capacity to spare, or trade parents with
the same rank of another tree, so that no pair of ranks carries more. Trees stay trees if no rank is
attached below itself. The height asked for falls by one as long as all depths beyond it can be
traded away.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxcoll.numerics.compiled import kernel


@dataclasses.dataclass(frozen=True, eq=False)
class Trees:
    """Batches of like spanning trees.

    Attributes:
        root: root of each batch, int64 of shape (batches,).
        weight: trees in each batch, int64 of shape (batches,).
        vertex: its ranks in the order they joined, the root first, int64 of shape (batches, n).
        parent: the parent of each of them, -1 for the root, int64 of shape (batches, n).
    """

    root: np.ndarray
    weight: np.ndarray
    vertex: np.ndarray
    parent: np.ndarray

    @classmethod
    def by_depth(cls, root: np.ndarray, weight: np.ndarray, over: np.ndarray, depth) -> Trees:
        """Trees by the parent and the depth of each rank, both of shape (batches, n)."""
        order = np.argsort(depth, axis=1, kind="stable")
        return cls(root, weight, order, np.take_along_axis(over, order, axis=1))

    def over(self) -> np.ndarray:
        """The parent of each rank, -1 at the root, of shape (batches, n)."""
        found = np.empty_like(self.parent)
        np.put_along_axis(found, self.vertex, self.parent, axis=1)
        return found


def reparent(spare: np.ndarray, trees: Trees) -> tuple[Trees, np.ndarray]:
    """Trees from the same roots, no higher, in the same capacity; and the height of each batch.

    Args:
        spare: capacity that no tree uses, by pair of ranks, int64 of shape (n, n).
    """
    over, weight, root = trees.over(), trees.weight, trees.root
    depth = depths(over)
    # Height 2 ends the search: height 1 would be links from every root to every rank.
    while depth.max() > 2:
        lower, *found = _below(spare, weight, over, root, int(depth.max()) - 1)
        if not lower:
            break
        spare, weight, over, root = found
        depth = depths(over)
    return Trees.by_depth(root, weight, over, depth), depth.max(axis=1)


@kernel(cache=True)
def depths(over):
    """Edges from the root to each rank, by tree."""
    count, n = over.shape
    depth = np.zeros((count, n), np.int64)
    for i in range(count):
        for v in range(n):
            u = v
            while over[i, u] >= 0:
                u = over[i, u]
                depth[i, v] += 1
    return depth


@kernel(cache=True, superlinear=True)
def _below(spare, mass, over, source, height):
    """Whether all trees can be made no higher than ``height``, and what becomes of them.

    What all trees together have beyond the height falls with every trade.
    """
    spare, mass, over, source = spare.copy(), mass.copy(), over.copy(), source.copy()
    n, depth = len(spare), depths(over)
    moved = True
    while moved:
        moved = False
        for i in range(len(mass)):
            for v in range(n):
                j, q, m = _better(spare, mass, over, depth, i, v, height)
                if m == 0:
                    continue
                if m < mass[i]:
                    mass, over, depth, source = _parted(mass, over, depth, source, i, m)
                if j >= 0 and m < mass[j]:
                    mass, over, depth, source = _parted(mass, over, depth, source, j, m)
                p = over[i, v]
                if j >= 0:
                    _hang(over, depth, j, v, p)
                else:
                    spare[q, v] -= m
                    spare[p, v] += m
                _hang(over, depth, i, v, q)
                moved = True
    return depth.max() <= height, spare, mass, over, source


@kernel(cache=True)
def _better(spare, mass, over, depth, i, v, height):
    """A trade that leaves least beyond the height: (tree, parent, trees), tree -1 for spare."""
    p = over[i, v]
    tree, parent, amount = -1, -1, 0
    if p < 0 or depth[i].max() <= height:
        return tree, parent, amount
    least = _excess(over, depth, i, v, p, height)
    if least == 0:
        return tree, parent, amount
    for q in range(len(spare)):
        if spare[q, v] > 0 and depth[i, q] < depth[i, p] and not _is_below(over, i, q, v):
            after = _excess(over, depth, i, v, q, height)
            if after < least:
                tree, parent, amount, least = -1, q, min(mass[i], spare[q, v]), after
    for j in range(len(mass)):
        q = over[j, v]
        if j == i or q < 0 or depth[i, q] >= depth[i, p]:
            continue
        if _is_below(over, i, q, v) or _is_below(over, j, p, v):
            continue
        after = _excess(over, depth, i, v, q, height)
        if after < least:
            after += _excess(over, depth, j, v, p, height) - _excess(over, depth, j, v, q, height)
            if after < least:
                tree, parent, amount, least = j, q, min(mass[i], mass[j]), after
    return tree, parent, amount


@kernel(cache=True)
def _is_below(over, i, u, v):
    """Whether rank u is below v, or is v, in tree i."""
    while u >= 0:
        if u == v:
            return True
        u = over[i, u]
    return False


@kernel(cache=True)
def _excess(over, depth, i, v, q, height):
    """How far v and the ranks below it would reach beyond the height, if q became its parent."""
    if q < 0:
        return 0
    fall = depth[i, q] + 1 - depth[i, v]
    excess = 0
    for u in range(over.shape[1]):
        if depth[i, u] >= depth[i, v] and _is_below(over, i, u, v):
            excess += max(0, depth[i, u] + fall - height)
    return excess


@kernel(cache=True)
def _hang(over, depth, i, v, q):
    fall = depth[i, q] + 1 - depth[i, v]
    for u in range(over.shape[1]):
        if _is_below(over, i, u, v):
            depth[i, u] += fall
    over[i, v] = q


@kernel(cache=True)
def _parted(mass, over, depth, source, i, m):
    """Batch i of m trees, and the rest of it as a batch of its own at the end."""
    mass = np.append(mass, mass[i] - m)
    mass[i] = m
    over = np.concatenate((over, over[i : i + 1]))
    depth = np.concatenate((depth, depth[i : i + 1]))
    return mass, over, depth, np.append(source, source[i])
