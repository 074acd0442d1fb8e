"""Rules of a match: the chunk that a free link takes, and those that a slow link leaves out.

Algorithm 1 draws at random among all chunks that a link could carry. A rule is a number for
compiled kernels, and narrows that set, the bits of one block, to those it prefers; a random one of
them is taken.

Slow-link avoidance narrows it before. A chunk that some rank near a link's end has, or is about to
get, arrives from there earlier than over a much slower link. A slow link that leaves it out is free
for chunks that only slow links bring. The chunk does arrive: of the ranks that lack it, the one
nearest to a rank that has it is one fast link away, and no other rank keeps that link from bringing
it.
"""

from __future__ import annotations

import enum

import numpy as np

from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.synth.tacos.bits import bit_of, lowest_bit
from jaxcoll.synth.tacos.state import Network

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_NEVER = np.iinfo(np.int64).max


class Rule(enum.IntEnum):
    """The chunk that a link takes, if many ranks want it; and if only one rank wants it.

    Attributes:
        RANDOM: any, as in the paper (Sec. IV-D).
        DOWNSTREAM_NEED: one that most of the ranks next to the receiver still lack, and of those
            (not in lockstep) one that the fewest ranks hold; one that is farthest from its target.
        RAREST_FIRST: one that the fewest ranks hold, and of those one that most ranks next to the
            receiver lack; any.
        SCARCE_LINK: one that the other links into the receiver could bring at the lowest rate, and
            of those as for DOWNSTREAM_NEED; one with the fewest links to leave by.
        PATIENT: as DOWNSTREAM_NEED, but a slow link leaves out chunks that faster links will
            bring earlier from a rank that has them or is about to get them (slow-link avoidance,
            see above). Where not every rank wants everything, the fast way may be closed,
            and the rule is DOWNSTREAM_NEED; any.
    """

    RANDOM = 0
    DOWNSTREAM_NEED = 1
    RAREST_FIRST = 2
    SCARCE_LINK = 3
    PATIENT = 4


RULES = tuple(rule.name.lower().replace("_", "-") for rule in Rule)


def rule_named(name: str) -> Rule:
    """The rule of a name in ``RULES``.

    Raises:
        CollectiveError: no rule has the name.
    """
    return Rule(RULES.index(checks.choice(name, RULES, "rule", CollectiveError)))


@kernel(inline="always")
def keep_highest(candidates, planes, block, count):
    """Keeps the candidates whose binary number, written down a block's planes, is largest."""
    words = len(candidates)
    # From the highest plane down: whoever lacks a digit that another has is out, unless all lack
    # it.
    for p in range(count - 1, -1, -1):
        found = _ZERO
        for q in range(words):
            found |= candidates[q] & planes[block, p, q]
        if found != _ZERO:
            for q in range(words):
                candidates[q] &= planes[block, p, q]


@kernel(cache=True, nogil=True)
def keep_most_needed(candidates, net, lack, v, block, planes, carry):
    """Keeps the candidates that most ranks next to rank v lack.

    Args:
        planes, carry: scratch, of shape (1, planes, words) and (words,).
    """
    words, count = len(candidates), planes.shape[1]
    # Counters of all chunks at once, a plane of bits per binary digit: adding a rank's lacks is a
    # few words of carries instead of a loop over chunks. ``lockstep`` has an adder of its
    # own: one for both, which also read tables without ``lack``, made this search slower.
    near_ptr, near = net.near_ptr, net.near
    for p in range(count):
        for q in range(words):
            planes[0, p, q] = _ZERO
    for i in range(near_ptr[v], near_ptr[v + 1]):
        w = near[i]
        for q in range(words):
            carry[q] = lack[block, w, q]
        for p in range(count):
            for q in range(words):
                digit = planes[0, p, q]
                planes[0, p, q] = digit ^ carry[q]
                carry[q] &= digit
    keep_highest(candidates, planes, 0, count)


@kernel(inline="always")
def _clear(candidates, count):
    """Drops the candidates in the first words."""
    for q in range(count):
        candidates[q] = _ZERO


@kernel(cache=True, nogil=True)
def keep_rarest(candidates, block, copies):
    """Keeps the candidates of which there are the fewest copies."""
    # How many copies there are is a number of its own for each slot, and no plane of bits: so this
    # rule and the next look at the candidates one by one, each word from its lowest bit up.
    best = _NEVER
    for q in range(len(candidates)):
        word, kept = candidates[q], _ZERO
        while word != _ZERO:
            slot = ((block * len(candidates) + q) << 6) + lowest_bit(word)
            if copies[slot] < best:
                best, kept = np.int64(copies[slot]), _ZERO
                _clear(candidates, q)
            if copies[slot] == best:
                kept |= bit_of(slot)
            word &= word - _ONE
        candidates[q] = kept


@kernel(cache=True, nogil=True)
def keep_scarcest(candidates, net, have, link, v, block, rate):
    """Keeps the candidates that the other links into rank v could bring at the lowest rate.

    Args:
        rate: chunks that a link carries in some time, int64 of shape (links,).
    """
    in_ptr, in_link, src = net.in_ptr, net.in_link, net.src
    # The other sources count with the chunks that they hold now: one that none of them holds yet is
    # brought by this link or by nobody in this span.
    best = _NEVER
    for q in range(len(candidates)):
        word, kept = candidates[q], _ZERO
        while word != _ZERO:
            bit = word & (~word + _ONE)
            others = np.int64(0)
            for i in range(in_ptr[v], in_ptr[v + 1]):
                other = in_link[i]
                if other != link and have[block, src[other], q] & bit != _ZERO:
                    others += rate[other]
            if others < best:
                best, kept = others, _ZERO
                _clear(candidates, q)
            if others == best:
                kept |= bit
            word &= word - _ONE
        candidates[q] = kept


@kernel(cache=True, nogil=True)
def keep_farthest(candidates, block, distance, target):
    """Keeps the candidates that are farthest from their target.

    Args:
        distance: from the receiver to every rank, of shape (ranks,).
        target: the rank that wants the chunk of each slot.
    """
    # The chunk with the longest way to go is the last to arrive: a delay of it delays the end.
    best = np.int64(-1)
    for q in range(len(candidates)):
        word, kept = candidates[q], _ZERO
        while word != _ZERO:
            slot = ((block * len(candidates) + q) << 6) + lowest_bit(word)
            far = distance[target[slot]]
            if far > best:
                best, kept = far, _ZERO
                _clear(candidates, q)
            if far == best:
                kept |= bit_of(slot)
            word &= word - _ONE
        candidates[q] = kept


@kernel(cache=True, nogil=True)
def keep_fewest_ways(candidates, net, onward, link, block):
    """Keeps the candidates that can leave the link's source by the fewest links.

    Args:
        onward: what each link brings nearer to where it is wanted, bits of shape
            (blocks, links, words).
    """
    # A chunk with another way may leave by that; one with this way alone would wait for the link.
    out_ptr, u = net.out_ptr, net.src[link]
    best = _NEVER
    for q in range(len(candidates)):
        word, kept = candidates[q], _ZERO
        while word != _ZERO:
            bit = word & (~word + _ONE)
            ways = np.int64(0)
            for other in range(out_ptr[u], out_ptr[u + 1]):
                ways += onward[block, other, q] & bit != _ZERO
            if ways < best:
                best, kept = ways, _ZERO
                _clear(candidates, q)
            if ways == best:
                kept |= bit
            word &= word - _ONE
        candidates[q] = kept


# A link is slow if it takes more than this many times as long as the fastest into its end: the fast
# links must also have room for the chunks that the slow ones leave to them.
_SLOWER = 2
# Ranks that a link compares with at most, the nearest: each is another row of bits to read.
_MOST = 64


@kernel(cache=True, nogil=True)
def faster_ranks(net: Network, cost):
    """The ranks from which a chunk reaches the end of a slow link earlier than over it.

    Args:
        cost: the cost of carrying a chunk over each link, int64 above 0 of shape (links,).

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
        # No slow link ends here: most networks leave at this line for every rank.
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
        distance: the distance of every rank, all without end; receives the least costs.
        near: receives the ranks that have one.

    Returns:
        (known, done): how many ranks are in ``near``, and for how many the cost is the least,
        which come first: the rank itself and up to ``_MOST`` others.
    """
    in_ptr, in_link, src = net.in_ptr, net.in_link, net.src
    distance[target], near[0] = 0, target
    known, done = np.int64(1), np.int64(0)
    while done < known and done <= _MOST:
        # Dijkstra's, with the nearest found by looking through: at most ``_MOST`` ranks are ever
        # done.
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
