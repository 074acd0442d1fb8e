"""Leaf gather: each shard goes to one rank below every leaf switch, which passes it on there.

With equally many ranks below all leaves that is the rank of the same index (``rail_gather``). Here
leaves may differ: shards come to a leaf in the order of the leaves behind it, and its ranks take
turns with them, so that all carry equally many.

For example, ranks 0, 1 and 2 are below one leaf, and 3 and 4 below another. The shards of 0 and 2
go to 3, that of 1 to 4; that of 3 goes to 0, and that of 4 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class LeafGather(NamedTuple):
    """Connections and sends of an all_gather; columns int64.

    Attributes:
        src, dst: ends of each connection; first those between leaves, which carry a shard each.
        shards: number of shards that a connection carries.
        step, edge, owner: step, connection and shard of each send.
    """

    src: np.ndarray
    dst: np.ndarray
    shards: np.ndarray
    step: np.ndarray
    edge: np.ndarray
    owner: np.ndarray


def gather_below(leaves: Sequence[np.ndarray], parts: int) -> LeafGather:
    """The sends by which all ranks get all shards.

    Args:
        leaves: the ranks below each leaf switch, of all ranks.
        parts: number of messages in which a rank passes on the shards from other leaves.
    """
    sizes = np.array([len(ranks) for ranks in leaves])
    n, count = int(sizes.sum()), len(leaves)
    leaf = np.empty(n, np.int64)
    for number, ranks in enumerate(leaves):
        leaf[ranks] = number
    # From a leaf on, these are the ranks of the leaves behind it, the next one behind first.
    behind = np.concatenate([*leaves[::-1], *leaves[::-1]])
    start = np.cumsum(sizes[::-1])[::-1] - sizes
    owners = [behind[at + m : at + n] for at, m in zip(start, sizes, strict=True)]
    turns = [np.arange(n - m) for m in sizes]
    carriers = [ranks[turn % len(ranks)] for ranks, turn in zip(leaves, turns, strict=True)]
    owner, carrier, turn = map(np.concatenate, (owners, carriers, turns))
    here = leaf[carrier]
    nearest = np.argsort((here - leaf[owner]) % count, kind="stable")
    owner, carrier, turn, here = (each[nearest] for each in (owner, carrier, turn, here))
    # Connections below leaves, by the rank that passes on and then by the distance to the other.
    beside = sizes[leaf] - 1
    ptr = len(owner) + np.append(0, np.cumsum(beside))
    place = np.empty(n, np.int64)
    for ranks in leaves:
        place[ranks] = np.arange(len(ranks))
    passing = np.repeat(np.arange(n), beside)
    ahead = np.arange(len(passing)) - np.repeat(ptr[:-1] - len(owner), beside) + 1
    first = np.append(0, np.cumsum(sizes))[leaf]
    listed = np.concatenate([*leaves])
    to = listed[first[passing] + (place[passing] + ahead) % sizes[leaf[passing]]]
    # A rank passes on its own shard at once, and then those that it carries, in parts.
    held, shard = np.append(np.arange(n), carrier), np.append(np.arange(n), owner)
    longest = -(-(n - sizes) // sizes)[here]
    part = np.append(np.zeros(n, np.int64), 1 + turn // sizes[here] * parts // longest)
    many = beside[held]
    within = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
    carried = 1 + np.bincount(carrier, minlength=n)
    return LeafGather(
        src=np.append(owner, passing),
        dst=np.append(carrier, to),
        shards=np.append(np.ones(len(owner), np.int64), carried[passing]),
        step=np.append(np.zeros(len(owner), np.int64), np.repeat(part, many)),
        edge=np.append(np.arange(len(owner)), np.repeat(ptr[held], many) + within),
        owner=np.append(owner, np.repeat(shard, many)),
    )
