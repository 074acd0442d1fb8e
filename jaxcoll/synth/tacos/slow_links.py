"""Slow-link avoidance: the chunks that a slow link leaves to faster links.

A chunk that some rank near a link's end has, or is about to get, arrives from there earlier than
over a much slower link. A slow link that leaves it out is free for chunks that only slow links
bring. The chunk does arrive: of the ranks that lack it, the one nearest to a rank that has it is
one fast link away, and no other rank keeps that link from bringing it.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.tacos.state import Network

# A link is slow if it takes more than this many times as long as the fastest into its end: the fast
# links must also have room for the chunks that the slow ones leave to them.
_SLOWER = 2
# Ranks that a link compares with at most, the nearest: each is another row of bits to read.
_MOST = 64

_NEVER = np.iinfo(np.int64).max


@kernel(cache=True, nogil=True)
def faster_ranks(net: Network, cost):
    """The ranks from which a chunk reaches the end of a slow link earlier than over it.

    Args:
        cost: of carrying a chunk over each link, int64 above 0 of shape (links,).

    Returns:
        (first, last, rank): those of link i are ``rank[first[i]:last[i]]``, int64.
    """
    in_ptr, in_link = net.in_ptr, net.in_link
    ranks, links = len(in_ptr) - 1, len(net.src)
    first, last = np.zeros(links, np.int64), np.zeros(links, np.int64)
    found, count = np.empty(1024, np.int64), np.int64(0)
    distance, near = np.full(ranks, _NEVER), np.empty(ranks, np.int64)
    for v in range(ranks):
        fastest, slowest = _NEVER, np.int64(0)
        for i in range(in_ptr[v], in_ptr[v + 1]):
            fastest = min(fastest, cost[in_link[i]])
            slowest = max(slowest, cost[in_link[i]])
        if slowest <= _SLOWER * fastest:
            continue
        known, done = _measure_back(net, cost, v, slowest, distance, near)
        for i in range(in_ptr[v], in_ptr[v + 1]):
            link = in_link[i]
            if cost[link] <= _SLOWER * fastest:
                continue
            if count + done > len(found):
                found = np.concatenate((found, np.empty(len(found) + done, np.int64)))
            first[link] = count
            for j in range(1, done):
                if distance[near[j]] < cost[link]:
                    found[count] = near[j]
                    count += 1
            last[link] = count
        for j in range(known):
            distance[near[j]] = _NEVER
    return first, last, found[:count]


@kernel(cache=True, nogil=True)
def _measure_back(net, cost, target, limit, distance, near):
    """Least cost to a rank from the ranks nearest to it, below a limit.

    Args:
        distance: of every rank, all without end; receives the least costs.
        near: receives the ranks that have one.

    Returns:
        (known, done): how many ranks are in ``near``, and for how many the cost is the least,
        which come first: the rank itself and up to ``_MOST`` others.
    """
    in_ptr, in_link, src = net.in_ptr, net.in_link, net.src
    distance[target], near[0] = 0, target
    known, done = np.int64(1), np.int64(0)
    while done < known and done <= _MOST:
        nearest = done
        for j in range(done + 1, known):
            if distance[near[j]] < distance[near[nearest]]:
                nearest = j
        near[done], near[nearest] = near[nearest], near[done]
        w = near[done]
        done += 1
        for i in range(in_ptr[w], in_ptr[w + 1]):
            u = src[in_link[i]]
            through = distance[w] + cost[in_link[i]]
            if through < limit and through < distance[u]:
                if distance[u] == _NEVER:
                    near[known] = u
                    known += 1
                distance[u] = through
    return known, done
