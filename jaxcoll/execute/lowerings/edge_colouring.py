"""Colouring: the messages of one step as the fewest rounds, each a partial permutation of ranks.

The messages of a step are the edges of a bipartite multigraph, senders on one side and receivers on
the other. In a round every rank sends at most once and receives at most once, so rounds are colour
classes of a proper edge colouring, and Koenig's theorem (1916) says that as many colours as the
largest degree suffice.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics.compiled import kernel


def max_degree(src: np.ndarray, dst: np.ndarray) -> int:
    """The most messages that one rank sends or receives: no colouring has fewer colours."""
    if len(src) == 0:
        return 0
    return int(max(np.bincount(src).max(), np.bincount(dst).max()))


def colour_messages(src: np.ndarray, dst: np.ndarray, size: np.ndarray | None = None) -> np.ndarray:
    """Colour messages with ``max_degree(src, dst)`` colours, each a partial permutation.

    Larger messages are coloured first and take the lowest colour that is free at both ends, so that
    messages of like size tend to share a round and little is padded. Deterministic; time
    O(messages x (colours + ranks)).

    Args:
        src, dst: sending and receiving rank of each message, integers of shape (messages,).
        size: chunks of each message, integers of shape (messages,); all equal when omitted.

    Returns:
        The colour of each message, int32 of shape (messages,), from 0.

    Raises:
        ScheduleError: columns of unequal length or negative ranks.
    """
    src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    size = np.ones(len(src), np.int64) if size is None else np.asarray(size, np.int64)
    if not len(src) == len(dst) == len(size):
        raise ScheduleError("src, dst and size need one value per message")
    if len(src) == 0:
        return np.zeros(0, np.int32)
    if min(src.min(), dst.min()) < 0:
        raise ScheduleError("ranks are numbered from 0")
    # Ties by rank, so that the colours do not depend on the order in which messages are listed.
    order = np.lexsort((dst, src, -size))
    ranks = int(max(src.max(), dst.max())) + 1
    colour = np.empty(len(src), np.int32)
    colour[order] = _koenig(src[order], dst[order], ranks, max_degree(src, dst))
    return colour


@kernel(cache=True)
def _koenig(src, dst, ranks, colours):
    sends = np.full((ranks, colours), -1, np.int64)  # the message of each (sender, colour)
    receives = np.full((ranks, colours), -1, np.int64)
    colour = np.full(len(src), -1, np.int32)
    for i in range(len(src)):
        u, v = src[i], dst[i]
        at_u, at_v, both = -1, -1, -1
        for c in range(colours):
            free_u, free_v = sends[u, c] < 0, receives[v, c] < 0
            if free_u and at_u < 0:
                at_u = c
            if free_v and at_v < 0:
                at_v = c
            if free_u and free_v:
                both = c
                break
        if both < 0:
            _swap(src, dst, sends, receives, colour, v, at_u, at_v)
            both = at_u
        colour[i] = both
        sends[u, both] = i
        receives[v, both] = i
    return colour


@kernel(cache=True)
def _swap(src, dst, sends, receives, colour, receiver, a, b):
    """Exchange colours a and b along the path that leaves ``receiver`` by a: a becomes free there.

    The path alternates a, b, a, ... and cannot reach the sender at which a is free, since it would
    enter a sender by a.
    """
    v, length = receiver, 0
    path = np.empty(len(colour), np.int64)
    while True:
        i = receives[v, a]
        if i < 0:
            break
        path[length] = i
        length += 1
        j = sends[src[i], b]
        if j < 0:
            break
        path[length] = j
        length += 1
        v = dst[j]
    for p in range(length):
        i = path[p]
        old = a if colour[i] == a else b
        sends[src[i], old] = -1
        receives[dst[i], old] = -1
    for p in range(length):
        i = path[p]
        new = b if colour[i] == a else a
        colour[i] = new
        sends[src[i], new] = i
        receives[dst[i], new] = i
