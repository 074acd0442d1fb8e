"""A broadcast of little data below leaf switches, by a deadline: helpers first, then the farthest.

A send of 1 KiB leaves a port after 20 ns, but takes 5 us to the other end of a fat tree of 1,024
ranks. From one rank, a thousand sends take 20 us. So the root first serves some ranks near it,
which help. Then all that have the data send to the leaves that are farthest away. A leaf that is
entered early enough is entered once, and the first rank passes the data on below it; the ranks of
the others are each sent to directly.

How early is early enough depends on when all is to be over. The least such deadline is searched by
halving, for nearer and farther helpers.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from jaxcoll.numerics.ragged import equal_runs
from jaxcoll.paths import distances_from
from jaxcoll.topology import Topology

# Halvings of the time between that of the farthest rank and that of the first plan; and how many of
# the distances from the root, from the nearest on, are tried as that of the helpers.
_HALVINGS, _HELPERS = 10, 4


class _Leaves(NamedTuple):
    """The network, as seen by messages of one size.

    Attributes:
        leaf: the leaf of each rank.
        members: the ranks of each leaf.
        seconds: from a rank of each leaf to a rank of each leaf, another one of its own leaf; of
            shape (leaves, leaves).
        port: seconds for which a send occupies its rank's port.
    """

    leaf: list[int]
    members: list[list[int]]
    seconds: np.ndarray
    port: float

    @classmethod
    def of(cls, topology: Topology, leaf: np.ndarray, nbytes: float) -> _Leaves:
        order = np.argsort(leaf, kind="stable")
        members = [part.tolist() for part in np.split(order, equal_runs(leaf[order])[1:-1])]
        first = np.array([ranks[0] for ranks in members])
        each = topology.alpha + nbytes / topology.bandwidth
        seconds = distances_from(topology, each, first)[:, first]
        of_rank = np.minimum(topology.src, topology.dst) < topology.num_ranks
        np.fill_diagonal(seconds, 2 * np.median(each[of_rank]))
        port = nbytes / float(np.median(topology.bandwidth[of_rank]))
        return cls(leaf.tolist(), members, seconds, port)


class _Plan(NamedTuple):
    """Sender and receiver of every send, in the order of sending, and when the last one arrives."""

    sends: list[tuple[int, int]]
    end: float


def leaf_tree(
    topology: Topology, leaf: np.ndarray, root: int, nbytes: float
) -> tuple[np.ndarray, np.ndarray]:
    """Sender and receiver of every send of a broadcast; those of a rank in the order of sending.

    Args:
        leaf: the leaf of each rank, as ``circles.leaf_of_rank`` returns it.
        nbytes: bytes of the data, which are sent as a whole.
    """
    leaves = _Leaves.of(topology, leaf, nbytes)
    away = np.append(0.0, np.unique(leaves.seconds[leaf[root]])[:_HELPERS])  # 0: nobody helps
    plans = [_soonest(leaves, root, float(farthest)) for farthest in away]
    src, dst = np.asarray(min(plans, key=lambda plan: plan.end).sends, np.int64).T
    return src, dst


def _soonest(leaves: _Leaves, root: int, helping: float) -> _Plan:
    """The plan of the least deadline, by halving."""
    best = _planned(leaves, root, helping, np.inf)
    early = float(leaves.seconds[leaves.leaf[root]].max())
    for _ in range(_HALVINGS):
        deadline = (early + best.end) / 2
        found = _planned(leaves, root, helping, deadline)
        if found.end > deadline:
            early = deadline
        if found.end < best.end:
            best = found
    return best


def _planned(leaves: _Leaves, root: int, helping: float, deadline: float) -> _Plan:
    """The sends of a broadcast that is to end by a deadline; it may be later.

    Args:
        helping: seconds from the root's leaf up to which leaves are served first.
    """
    leaf, seconds, port = leaves.leaf, leaves.seconds, leaves.port
    helps = seconds[leaf[root]] <= helping
    # For each leaf: those of the helpers from the nearest on, then others from the farthest on.
    key = np.where(helps, seconds - seconds.max() - 1, -seconds)
    order, at = np.argsort(key, axis=1, kind="stable").tolist(), [0] * len(seconds)
    waiting = [ranks[::-1] for ranks in leaves.members]
    waiting[leaf[root]].remove(root)
    entry: list[int | None] = [None] * len(seconds)  # the rank that serves the rest of its leaf
    free = [(0.0, root)]  # when ranks with the data can send next
    sends: list[tuple[int, int]] = []
    end = 0.0
    while free and len(sends) < len(leaf) - 1:
        now, u = heapq.heappop(free)
        here = leaf[u]
        to = here
        if entry[here] != u or not waiting[here]:
            # Leaves that are served or entered stay so: nobody of this leaf looks at them again.
            while at[here] < len(order) and _is_closed(order[here][at[here]], waiting, entry):
                at[here] += 1
            if at[here] == len(order):
                continue
            to = order[here][at[here]]
        v, arrival = waiting[to].pop(), now + seconds[here, to]
        rest = len(waiting[to])
        served = arrival + seconds[to, to] + (rest - 1) * port
        if to != here and not helps[to] and rest and served <= deadline:
            entry[to] = v
        sends.append((u, v))
        end = max(end, arrival)
        heapq.heappush(free, (now + port, u))
        heapq.heappush(free, (arrival, v))
    return _Plan(sends, end)


def _is_closed(to: int, waiting: list[list[int]], entry: list[int | None]) -> bool:
    """Whether a leaf needs no further send from elsewhere."""
    return not waiting[to] or entry[to] is not None
