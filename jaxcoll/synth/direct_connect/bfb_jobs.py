"""The jobs of BFB: which shards a vertex gets in a step, and the links that can deliver them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxcoll.numerics.compiled import kernel

WORD = 62  # links per word of a set of links


class Jobs(NamedTuple):
    """The jobs of one vertex and distance, in groups.

    Attributes:
        source: the jobs' sources, group by group.
        first: sources of group g are ``source[first[g]:first[g + 1]]``.
        ptr: links of group g are ``link[ptr[g]:ptr[g + 1]]``.
        link: places of links among those into the vertex.
    """

    source: np.ndarray
    first: np.ndarray
    ptr: np.ndarray
    link: np.ndarray


@kernel(cache=True)
def usable_links(near, far, own, sets):
    """Which links into a vertex are the last of a shortest path from each source.

    Args:
        near: distances from every source to the tail of each link, (links, sources); or, with
            ``far``, which row of it each link takes.
        own: distances from every source to the vertex.
        sets: filled with one bit per link, int64 of shape (words, sources).
    """
    sets[:] = 0
    for j in range(len(far)):
        word, bit = j // WORD, np.int64(1) << np.int64(j % WORD)
        row = near[far[j]]
        for v in range(len(own)):
            if row[v] + 1 == own[v]:
                sets[word, v] |= bit


@kernel(cache=True)
def by_distance(own, order):
    """Sources in order of distance; those at distance t are ``order[ptr[t]:ptr[t + 1]]``."""
    ptr = np.zeros(own.max() + 2, np.int64)
    for v in range(len(own)):
        ptr[own[v] + 1] += 1
    ptr = np.cumsum(ptr)
    at = ptr.copy()
    for v in range(len(own)):
        order[at[own[v]]] = v
        at[own[v]] += 1
    return ptr


@kernel(cache=True)
def group_jobs(source, sets, links):
    """Jobs of equal sets of links, together; groups by rising set, sources in the order given."""
    group, member = _numbered(source, sets)
    rank = _ranked(member, sets)
    groups, count = len(member), len(source)
    first = np.zeros(groups + 1, np.int64)
    for i in range(count):
        first[rank[group[i]] + 1] += 1
    first = np.cumsum(first)
    at, grouped = first.copy(), np.empty_like(source)
    for i in range(count):
        g = rank[group[i]]
        grouped[at[g]] = source[i]
        at[g] += 1
    entries = 0
    for g in range(groups):
        for word in range(len(sets)):
            bits = sets[word, member[g]]
            while bits:
                bits &= bits - 1
                entries += 1
    ptr, link = np.zeros(groups + 1, np.int64), np.empty(entries, np.int64)
    entries = 0
    for g in range(groups):
        v = grouped[first[g]]
        for j in range(links):
            if sets[j // WORD, v] >> np.int64(j % WORD) & 1:
                link[entries] = j
                entries += 1
        ptr[g + 1] = entries
    return Jobs(grouped, first, ptr, link)


@kernel(cache=True)
def _numbered(source, sets):
    """A number for each distinct set, by first use: that of every job, and one job of each."""
    words, count = len(sets), len(source)
    slots = 4
    while slots < 2 * count:
        slots *= 2
    table, mask = np.full(slots, -1, np.int64), np.uint64(slots - 1)
    group, member = np.empty(count, np.int64), np.empty(count, np.int64)
    known = 0
    for i in range(count):
        v = source[i]
        if i > 0 and _equal_sets(sets, source[i - 1], v):
            group[i] = group[i - 1]
            continue
        key = np.uint64(0)
        for word in range(words):
            key = (key ^ np.uint64(sets[word, v])) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(32)
        at = key & mask
        while table[at] >= 0 and not _equal_sets(sets, member[table[at]], v):
            at = (at + np.uint64(1)) & mask
        if table[at] < 0:
            table[at] = known
            member[known] = v
            known += 1
        group[i] = table[at]
    return group, member[:known]


@kernel(cache=True)
def _equal_sets(sets, v, w):
    equal = True
    for word in range(len(sets)):
        equal &= sets[word, v] == sets[word, w]
    return equal


@kernel(cache=True)
def _ranked(member, sets):
    """The rank of each set of links among all, the last word counting most."""
    order = np.arange(len(member))
    for word in range(len(sets)):
        order = order[np.argsort(sets[word][member[order]], kind="mergesort")]
    rank = np.empty_like(order)
    for place in range(len(order)):
        rank[order[place]] = place
    return rank
