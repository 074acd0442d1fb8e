"""Edge colouring: messages in rounds in which every rank sends and receives at most one.

The messages of a step are the edges of a bipartite multigraph, senders on one side and receivers on
the other. In a round every rank sends at most once and receives at most once, so rounds are colour
classes of a proper edge colouring, and Koenig's theorem (1916) says that as many colours as the
largest degree suffice. For example, three ranks that send to both others have six messages of
degree two, so two rounds suffice: 0->1, 1->2, 2->0 and 0->2, 1->0, 2->1.

Where a process can send to another or receive from it, but not both at once (gloo's pair of
sockets), a round in which two ranks exchange takes twice the time of one in which all send around a
circle. So colours are exchanged if that separates the two directions of a pair.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics.compiled import kernel


def max_degree(src: np.ndarray, dst: np.ndarray) -> int:
    """The most messages that one rank sends or receives; no colouring has fewer colours."""
    if len(src) == 0:
        return 0
    return int(max(np.bincount(src).max(), np.bincount(dst).max()))


def colour_messages(src: np.ndarray, dst: np.ndarray, size: np.ndarray | None = None) -> np.ndarray:
    """Colour messages with ``max_degree(src, dst)`` colours, each a partial permutation.

    Larger messages are coloured first and take the lowest colour that is free at both ends, so that
    messages of similar size tend to share a round and little is padded. It is deterministic, and
    takes O(messages x (colours + ranks)) time.

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
    # Ties are broken by rank, so that the colours do not depend on the order of the messages.
    order = np.lexsort((dst, src, -size))
    ranks = int(max(src.max(), dst.max())) + 1
    src, dst, size = src[order], dst[order], size[order]
    pair, back = src * ranks + dst, dst * ranks + src
    # One of several messages of a pair represents all, since they are in different rounds anyway.
    by_pair = np.argsort(pair, kind="stable")
    at = np.minimum(np.searchsorted(pair[by_pair], back), len(src) - 1)
    reverse = np.where(pair[by_pair[at]] == back, by_pair[at], -1)
    found = _koenig(src, dst, ranks, max_degree(src, dst))
    if (reverse >= 0).any():
        _part_exchanges(src, dst, size, reverse, found, ranks)
    colour = np.empty(len(src), np.int32)
    colour[order] = found
    return colour


@kernel(cache=True)
def _koenig(src, dst, ranks, colours):
    # Koenig's proof is the algorithm. Each message takes a colour that is free at both ends, if
    # there is one. If not, u has a free colour a and v a free colour b, since neither has more
    # messages than there are colours; along the path of a and b that starts at v the two are
    # exchanged, and a is free at both.
    sends = np.full((ranks, colours), -1, np.int64)  # the message of each (sender, colour)
    receives = np.full((ranks, colours), -1, np.int64)
    colour = np.full(len(src), -1, np.int32)
    for i in range(len(src)):
        u, v = src[i], dst[i]
        at_u, at_v, both = -1, -1, -1
        # The lowest free colour is taken. Messages come largest first, so those of similar size
        # meet in a round, which is as long as its longest message.
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
    """Exchange colours a and b along the path that leaves ``receiver`` by a: frees a there."""
    # The path alternates a, b, a, ... and cannot reach the sender at which a is free, since it
    # would enter a sender by a.
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


@kernel(cache=True)
def _part_exchanges(src, dst, size, reverse, colour, ranks):
    """Exchange two colours in a part of the messages where fewer pairs then meet both ways.

    The messages of two colours are paths and circles, and in each the two may be exchanged.
    """
    colours = colour.max() + 1
    sends = np.full((ranks, colours), -1, np.int64)
    receives = np.full((ranks, colours), -1, np.int64)
    for i in range(len(src)):
        sends[src[i], colour[i]] = i
        receives[dst[i], colour[i]] = i
    seen = np.zeros(len(src), np.int64)  # the last part that each message was in, by number
    part = np.empty(len(src), np.int64)
    turn = 0
    for a in range(colours):
        for b in range(a + 1, colours):
            before = turn
            for first in range(len(src)):
                if seen[first] > before or (colour[first] != a and colour[first] != b):
                    continue
                turn += 1
                seen[first], part[0], length, done = turn, first, 1, 0
                while done < length:
                    i = part[done]
                    done += 1
                    other = b if colour[i] == a else a
                    for j in (sends[src[i], other], receives[dst[i], other]):
                        if j >= 0 and seen[j] != turn:
                            seen[j], part[length] = turn, j
                            length += 1
                gain, most_a, most_b = 0, 0, 0
                for p in range(length):
                    i = part[p]
                    if colour[i] == a:
                        most_a = max(most_a, size[i])
                    else:
                        most_b = max(most_b, size[i])
                    back = reverse[i]
                    if back >= 0 and seen[back] != turn:
                        gain += int(colour[back] == colour[i])
                        gain -= int(colour[back] == (b if colour[i] == a else a))
                # A round is as long as its longest message, so similar sizes stay together.
                if gain > 0 and most_a == most_b:
                    for p in range(length):
                        i = part[p]
                        colour[i] = b if colour[i] == a else a
                    for p in range(length):
                        i = part[p]
                        for c in (a, b):
                            if sends[src[i], c] == i and colour[i] != c:
                                sends[src[i], c] = -1
                            if receives[dst[i], c] == i and colour[i] != c:
                                receives[dst[i], c] = -1
                    for p in range(length):
                        i = part[p]
                        sends[src[i], colour[i]] = i
                        receives[dst[i], colour[i]] = i


def colour_pairs(
    src: np.ndarray, dst: np.ndarray, size: np.ndarray, sides: tuple[int, ...]
) -> np.ndarray:
    """Rounds for messages between distinct pairs of ranks: as many as the largest degree.

    Messages of one translation of the grid never share a sender or a receiver, so each translation
    is a round, in which all ranks of a symmetric network do the same. If that gives more rounds
    than the largest degree, the messages are edge-coloured instead.

    Args:
        src, dst, size: ranks and chunks of each message, integers of shape (messages,).
        sides: shape of the grid, the last dimension fastest.

    Returns:
        The round of each message, integers of shape (messages,), from 0.
    """
    here, there = (np.stack(np.unravel_index(ranks, sides)) for ranks in (src, dst))
    moved = (there - here) % np.asarray(sides)[:, None]
    translation = np.ravel_multi_index(tuple(moved), sides)
    colour = np.unique(translation, return_inverse=True)[1].ravel()
    if len(colour) and colour.max() + 1 > max_degree(src, dst):
        return colour_messages(src, dst, size)
    return colour
