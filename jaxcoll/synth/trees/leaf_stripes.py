"""Striped trees below leaf switches: who sends on in a leaf, in equal parts.

In every tree a leaf switch is entered once, and the stripe goes on to the other ranks below and to
other leaves. A leaf of m ranks sends each stripe m - 1 times below itself and, over all trees, once
elsewhere, as often as its m ranks receive. With as many ranks as trees of a stripe, each rank is
the head of one and does all that. Otherwise these sends are lined up tree by tree, and cut into
equal parts, one for each rank (McNaughton, "Scheduling with deadlines and loss functions", 1959).
Where a cut falls inside a tree, its head also serves the next rank, which makes the other sends.

For example, a leaf has 3 ranks, and 4 trees of each of 3 stripes. It is inside the 4 trees of one
stripe, with 3 leaves and 2 ranks to send to, and at the bottom of the other 8. That is 36 sends, 12
for each rank, as many as it receives.
"""

from __future__ import annotations

import numpy as np


def trees_below(
    leaves: list[np.ndarray],
    stripes: list[np.ndarray],
    inner: int,
    root: int,
    is_slow: np.ndarray,
) -> list[np.ndarray]:
    """The parent of each rank in every tree, int64 of shape (ranks,); -1 for the root.

    Args:
        leaves: the ranks below each leaf switch.
        stripes: trees of leaves, each as the parent of every leaf (-1 for the first, which stands
            for the root's).
        inner: number of trees with each of these shapes.
        is_slow: the ranks that send nothing where others of their leaf can, bool of shape (ranks,).
    """
    at_root = next(place for place, ranks in enumerate(leaves) if root in ranks)
    leaves = leaves[at_root:] + leaves[:at_root]
    parents = np.empty((len(stripes) * inner, len(is_slow)), np.int64)
    # The rank that sends to each leaf in each tree, and the rank there that receives.
    sender = np.full((len(parents), len(leaves)), root)
    head = np.empty_like(sender)
    children = [_children(above) for above in stripes]
    for number, ranks in enumerate(leaves):
        # The root sends all data once, to the heads of its leaf, and heads no tree itself.
        served = ranks[ranks != root] if number == 0 and len(ranks) > 1 else ranks
        able = served[~is_slow[served]] if not is_slow[served].all() else served
        # Trees in which the leaf sends to others come first, so that few ranks do all of that.
        many = np.repeat([len(each[number]) for each in children], inner)
        trees = np.argsort(-many, kind="stable")
        parts_of = _dealt(many[trees] + len(served) - 1, len(able))
        for tree, parts in zip(trees.tolist(), parts_of, strict=True):
            parent, outside = parents[tree], list(children[tree // inner][number])
            senders = able[[place for place, _ in parts]].tolist()
            beside = [rank for rank in np.roll(served, -parts[0][0]) if rank not in senders]
            head[tree, number] = senders[0]
            # A rank serves the next sender first, then other leaves, and then ranks beside it.
            parent[senders[1:]] = senders[:-1]
            for rank, (_, count) in zip(senders, parts, strict=True):
                left = count - (rank != senders[-1])
                across = min(left, len(outside))
                sender[tree, outside[:across]] = rank
                parent[beside[: left - across]] = rank
                del outside[:across], beside[: left - across]
    for parent, heads, senders in zip(parents, head, sender, strict=True):
        parent[heads] = senders
        parent[root] = -1
    return list(parents)


def _children(above: np.ndarray) -> list[list[int]]:
    """The children of each place of a tree."""
    found: list[list[int]] = [[] for _ in above]
    for place, parent in enumerate(above.tolist()):
        if parent >= 0:
            found[parent].append(place)
    return found


def _dealt(sends: np.ndarray, count: int) -> list[list[tuple[int, int]]]:
    """For each tree the ranks that make its sends, and how many each makes, the head first.

    Args:
        sends: number of sends of each tree.
        count: number of ranks.
    """
    most = max(1, -(-int(sends.sum()) // count))
    end = np.cumsum(sends)
    dealt = []
    for first, last in zip((end - sends).tolist(), end.tolist(), strict=True):
        # A tree without sends has a head all the same.
        head, tail = (min(at // most, count - 1) for at in (first, max(last - 1, first)))
        dealt.append(
            [
                (rank, min(last, (rank + 1) * most) - max(first, rank * most))
                for rank in range(head, tail + 1)
            ]
        )
    return dealt
