"""BFB's steps: the jobs and links of each vertex and step, and the least time of every step.

The jobs of a vertex u in step t are the shards of the vertices at distance t from u. A link (w, u)
can deliver the shards of those vertices that are nearer to w by one, which reached w in the step
before, and no others. So jobs and links follow from distances alone, which are columns over all
vertices here. The only problem left is how to divide the jobs among the links (``bfb_balance``).
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import group_by
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.connectivity import hops_from
from jaxcoll.synth.direct_connect.bfb_balance import deal, least_share, least_time

WORD = 62  # number of links in one word of a set of links


class Jobs(NamedTuple):
    """The jobs of one vertex and distance, in groups.

    Attributes:
        source: sources of the jobs, group by group.
        first: group g has the sources ``source[first[g]:first[g + 1]]``.
        ptr: group g has the links ``link[ptr[g]:ptr[g + 1]]``.
        link: indices of links among those into the vertex.
    """

    source: np.ndarray
    first: np.ndarray
    ptr: np.ndarray
    link: np.ndarray


@kernel(cache=True)
def usable_links(near, far, own, sets):
    """Find, for each source, the links into a vertex that end a shortest path from it.

    Args:
        near: rows of distances from every source.
        far: the row of ``near`` for the tail of each link.
        own: distances from every source to the vertex.
        sets: filled with one bit per link, int64 of shape (words, sources).
    """
    sets[:] = 0
    for j in range(len(far)):
        word, bit = j // WORD, np.int64(1) << np.int64(j % WORD)
        row = near[far[j]]
        for v in range(len(own)):
            # Breadth first: the shard of v reaches u in step d(v, u), from a neighbour w that has
            # had it since step d(v, u) - 1. The only freedom is which of these neighbours sends it.
            if row[v] + 1 == own[v]:
                sets[word, v] |= bit


@kernel(cache=True)
def by_distance(own, order):
    """Sort sources by distance; those at distance t are ``order[ptr[t]:ptr[t + 1]]``."""
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
    """Group jobs with equal sets of links; sets ascend, and sources keep their order."""
    # Sources with the same usable links are interchangeable, so a flow problem needs one vertex per
    # set of links instead of one per source: at most 2^links - 1, and few on symmetric graphs.
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
    """Number the distinct sets by first use; returns each job's set and one job of each set."""
    # Thousands of jobs have few distinct sets, and consecutive jobs mostly have the same one. So
    # the set before is compared first, and then a table of sets with open addressing is searched.
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
            # Fibonacci hashing: 2**64 over the golden ratio spreads sets that differ in few bits.
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
    """The rank of each set of links in ascending order; the last word counts most."""
    order = np.arange(len(member))
    for word in range(len(sets)):
        order = order[np.argsort(sets[word][member[order]], kind="mergesort")]
    rank = np.empty_like(order)
    for place in range(len(order)):
        rank[order[place]] = place
    return rank


@dataclasses.dataclass(frozen=True)
class InLinks:
    """The links into each vertex of a network, without self-loops.

    Attributes:
        size: number of vertices.
        ptr: the links into u are rows ``ptr[u]..ptr[u + 1] - 1`` of the other columns, int64.
        tail: the vertex that each link comes from, int64 of shape (links,).
        link: the number of each link in the columns given, int64.
    """

    size: int
    ptr: np.ndarray
    tail: np.ndarray
    link: np.ndarray

    @classmethod
    def of(cls, size: int, tails: np.ndarray, heads: np.ndarray) -> InLinks:
        """The network whose links have these ends."""
        proper = np.flatnonzero(tails != heads)
        ptr, order = group_by(heads[proper], size)
        link = proper[order]
        return cls(size, np.asarray(ptr), tails[link].astype(np.int64), link)

    @property
    def words(self) -> int:
        """Number of words of a set of links into one vertex."""
        return -(-int(np.diff(self.ptr).max(initial=1)) // WORD)

    def distances_to(self, vertices: np.ndarray) -> np.ndarray:
        """Hops to some vertices from all, of shape (vertices, size); int16 or int32.

        Raises:
            TopologyError: some vertex cannot reach another.
        """
        dtype = np.int16 if self.size < 2**15 else np.int32
        hops = np.empty((len(vertices), self.size), dtype)
        if not hops_from(self.ptr, self.tail, np.asarray(vertices, np.int64), hops):
            raise TopologyError("every vertex must reach every other")
        return hops


@dataclasses.dataclass(frozen=True)
class Bottleneck:
    """The shards that a step of a BFB all_gather waits for, with a proof (Thm. 19).

    Attributes:
        step: the distance t.
        vertex: the vertex u whose links are busiest.
        sources: the set J of ranks at distance t from u.
        links: f(J), the numbers of the links into u on which shards of J can arrive by shortest
            paths.
        shards: U, the number of sources per link: in every BFB schedule the busiest link carries at
            least this many shards in this step.
    """

    step: int
    vertex: int
    sources: tuple[int, ...]
    links: tuple[int, ...]
    shards: Fraction


def bottlenecks(links: InLinks, vertices: np.ndarray) -> tuple[Bottleneck, ...]:
    """The largest U of (3.1) in each step, over some vertices, with its proof."""
    # The jobs depend only on distances to the given vertices and to the tails of their links.
    needed = np.unique(
        np.concatenate([vertices, *(links.tail[links.ptr[u] : links.ptr[u + 1]] for u in vertices)])
    )
    hops = links.distances_to(needed)
    row = np.full(links.size, -1)
    row[needed] = np.arange(len(needed))
    steps = int(hops[row[vertices]].max())
    top, bottom = np.zeros(steps + 1, np.int64), np.ones(steps + 1, np.int64)
    worst = np.full(steps + 1, -1)
    _largest_shares(links.ptr, links.tail, hops, row, vertices, links.words, top, bottom, worst)
    found = []
    for step in range(1, steps + 1):
        sources, used = _proof(links.ptr, links.tail, hops, row, worst[step], links.words, step)
        here = links.link[links.ptr[worst[step]] :][: len(used)][used]
        share = Fraction(int(top[step]), int(bottom[step]))
        jobs, ways = (tuple(np.sort(column).tolist()) for column in (sources, here))
        found.append(Bottleneck(step, int(worst[step]), jobs, ways, share))
    return tuple(found)


@kernel(cache=True)
def _largest_shares(ptr, tail, hops, row, vertices, words, top, bottom, worst):
    """Find the largest U of each step; most vertices need a single flow."""
    size = len(row)
    order = np.empty(size, np.int64)
    sets = np.empty((words, size), np.int64)
    for u in vertices:
        own, links = hops[row[u]], ptr[u + 1] - ptr[u]
        start = by_distance(own, order)
        usable_links(hops, row[tail[ptr[u] : ptr[u + 1]]], own, sets)
        tight, used = np.zeros(size, np.bool_), np.zeros(links, np.bool_)
        for t in range(1, len(start) - 1):
            jobs = group_jobs(order[start[t] : start[t + 1]], sets, links)
            most, width = top[t], bottom[t]
            # A vertex for which the largest share so far suffices cannot raise it. One flow tells
            # that, and most vertices end there. Starting below that share would solve each of them
            # to the end.
            if most * links < len(jobs.source) * width:  # all jobs over all links
                most, width = len(jobs.source), links
            most, width, _ = least_share(jobs, links, most, width, tight, used)
            if most * bottom[t] > top[t] * width:
                top[t], bottom[t], worst[t] = most, width, u


@kernel(cache=True)
def _proof(ptr, tail, hops, row, u, words, t):
    """The sets J and f(J) of one vertex and step; all jobs and links if these need the most."""
    size = len(row)
    order = np.empty(size, np.int64)
    sets = np.empty((words, size), np.int64)
    own, links = hops[row[u]], ptr[u + 1] - ptr[u]
    start = by_distance(own, order)
    usable_links(hops, row[tail[ptr[u] : ptr[u + 1]]], own, sets)
    jobs = group_jobs(order[start[t] : start[t + 1]], sets, links)
    tight, used = np.zeros(size, np.bool_), np.zeros(links, np.bool_)
    _, _, count = least_share(jobs, links, len(jobs.source), links, tight, used)
    if count == 0:
        return jobs.source, np.ones(links, np.bool_)
    sources = np.empty(count, np.int64)
    at = 0
    for g in range(len(jobs.ptr) - 1):
        if tight[g]:
            for s in range(jobs.first[g], jobs.first[g + 1]):
                sources[at] = jobs.source[s]
                at += 1
    return sources, used


def gather_columns(
    links: InLinks, chunks: int, delay: np.ndarray, pace: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The sends of a BFB all_gather that minimizes the busiest link of each step (A.11, A.12).

    Args:
        chunks: P, the number of chunks per shard; vertex v has the chunks ``v * P + k``.
        delay, pace: int64 for each row of ``links``: in some time a link carries (time - delay) /
            pace chunks, rounded down.

    Returns:
        The columns step_ptr (int64), link (int32) and chunk (int32) of the sends, in the order of a
        ``Schedule``; and the time of each step, int64 of shape (steps,).
    """
    hops = links.distances_to(np.arange(links.size))
    steps = int(hops.max())
    counts = np.zeros((steps, links.size), np.int64)
    _count_by_distance(hops, counts)
    base = np.concatenate([[0], np.cumsum(chunks * counts.ravel())])
    sends = int(base[-1])
    link, chunk = np.empty(sends, np.int32), np.empty(sends, np.int32)
    times = np.zeros(steps, np.int64)
    _gather(
        (links.ptr, links.tail, links.link.astype(np.int32)),
        (hops, links.words, chunks, delay, pace),
        base[:-1].reshape(counts.shape),
        link,
        chunk,
        times,
    )
    return base[:: links.size].copy(), link, chunk, times


@kernel(cache=True)
def _count_by_distance(hops, counts):
    for u in range(len(hops)):
        for t in hops[u]:
            if t > 0:
                counts[t - 1, u] += 1


@kernel(cache=True)
def _gather(columns, problem, base, out_link, out_chunk, times):
    ptr, tail, link = columns
    hops, words, chunks, delay, pace = problem
    size = len(hops)
    order = np.empty(size, np.int64)
    sets = np.empty((words, size), np.int64)
    via = np.empty(size * chunks, np.int32)
    for u in range(size):
        a, b = ptr[u], ptr[u + 1]
        start = by_distance(hops[u], order)
        usable_links(hops, tail[a:b], hops[u], sets)
        for t in range(1, len(start) - 1):
            # Every vertex and step is a separate problem: links into different vertices are
            # different, and a chunk that arrives in a step leaves in the next step at the earliest.
            # So optimal solutions of all of them are an optimal solution of the whole (Thm. 16).
            jobs = group_jobs(order[start[t] : start[t + 1]], sets, b - a)
            flow = np.empty(len(jobs.link), np.int64)
            time = least_time(jobs, chunks, delay[a:b], pace[a:b], flow)
            times[t - 1] = max(times[t - 1], time)
            deal(jobs, chunks, flow, via)
            at = np.zeros(b - a + 1, np.int64)
            for i in range(len(flow)):
                at[jobs.link[i] + 1] += flow[i]
            at = base[t - 1, u] + np.cumsum(at)
            # A ``Schedule`` lists the sends of a step link by link. So links are counted first, and
            # then every chunk takes the next place of its link.
            for s in jobs.source:
                for c in range(s * chunks, (s + 1) * chunks):
                    i = at[via[c]]
                    at[via[c]] += 1
                    out_link[i] = link[a + via[c]]
                    out_chunk[i] = c
