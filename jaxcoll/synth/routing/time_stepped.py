"""All-to-all at nearly the rate of the maximum concurrent flow, in steps of equal length.

A linear program tells the rate at which all ranks can send to one another at once, and the part of
every source's data that then crosses each link (``concurrent_flow``). A flow may split a byte; a
schedule can only split a shard into chunks. So there are three parts: every chunk follows the flow
along one path, from its destination back, where the flow is furthest ahead of the chunks so far
(``round_to_paths``); excess chunks that rounding put on single links are rerouted (``even_out``);
and links send a fixed number of chunks in each step (``steps_of``).

Rounding lowers the rate, and so do the first and last steps, in which not all links have work. Both
losses shrink as shards are cut into more chunks, but every step costs alpha.

Paths are ragged rows: chunk c crosses the links ``path[ptr[c]:ptr[c + 1]]``, in this order.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks, heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import Edges, hop_distances
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.building.base import DOUBLINGS, Counts, Synthesizer
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.synth.routing.concurrent_flow import FlowRate, concurrent_flow
from jaxcoll.topology import Topology

# The most chunks that are rerouted one by one, and the number of passes.
_MOST_REROUTED, _PASSES = 2**17, 12
# The longest path, relative to the distance of the farthest ranks.
_DETOUR = 2


@dataclasses.dataclass(frozen=True)
class TimeStepped(Synthesizer):
    """The maximum concurrent flow, rounded to a path per chunk and run in time steps.

    The time-stepped schedule of Basu et al., "Efficient all-to-all collective communication
    schedules for direct-connect topologies" (HPDC 2024), by rounding LP (A.1). A message consists
    of all chunks that a link sends in one step, which are those with the longest remaining way.
    More chunks per shard come nearer to the rate.

    Attributes:
        width: number of chunks per step on the slowest links, and proportionally more on faster
            ones; when omitted, the power of two that is fastest for ``nbytes``.
        nbytes: bytes of a rank's buffer for which the width is chosen.
        tolerance: the relative distance from the best rate that is accepted.

    Raises:
        CollectiveError: a field is out of range.
    """

    width: int | None = None
    nbytes: float = 2**26
    tolerance: float = 0.005

    name: ClassVar[str] = "time_stepped"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.is_pairwise)
    has_nbytes: ClassVar[bool] = True
    tried_by_auto: ClassVar[bool] = False
    series: ClassVar[tuple[Counts, ...]] = (DOUBLINGS,)  # more chunks come nearer to the rate
    hop_work: ClassVar[float | None] = 2.0  # every link of a path is searched and simulated

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "width", or_none=True)
        checks.put(
            self,
            nbytes=checks.nbytes(self.nbytes, CollectiveError),
            tolerance=checks.positive(self.tolerance, "tolerance", CollectiveError),
        )

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        check_everyone(collective, self.name)
        if not topology.is_direct:
            raise TopologyError(
                f"{self.name} is defined for direct networks, whose ranks forward; {topology} has "
                f"switches: take min_congestion"
            )
        rate = concurrent_flow(topology, float(self.tolerance))
        ptr, path = _paths(topology, rate, collective.chunks_per_shard)
        step = self._steps(topology, collective, ptr, path)
        chunk = np.repeat(np.arange(collective.num_chunks), np.diff(ptr))
        order = np.lexsort((chunk, path, step))
        schedule = Schedule.from_sends(
            topology, collective, step[order], path[order], chunk[order],
            edges=Edges.from_links(topology),
        )  # fmt: skip
        # Rates are in shards per pair of ranks, per time in which the slowest link carries one
        # shard.
        certificate = {"rate": rate.lower, "rate_bound": rate.upper}
        return schedule.with_provenance(Provenance(certificate=certificate))

    def _steps(self, topology, collective, ptr, path) -> np.ndarray:
        """The step of each send, for the given width or for the fastest one."""
        speed = _relative_speed(topology)
        if self.width is not None:
            return steps_of(ptr, path, speed * self.width)
        chunk = as_fraction(self.nbytes) / int(collective.chunks_per_buffer.max())
        seconds = float(chunk) / topology.bandwidth
        widest = int(np.bincount(path, minlength=topology.num_links).max())
        best, least, width = np.zeros(0, np.int64), math.inf, 1
        while width < 2 * widest:
            step = steps_of(ptr, path, speed * width)
            taken = _time(step, path, topology.alpha, seconds)
            if taken < least:
                best, least = step, taken
            width *= 2
        return best


def _paths(topology: Topology, rate: FlowRate, chunks: int) -> tuple[np.ndarray, np.ndarray]:
    """The links that each chunk crosses, as ragged rows."""
    ptr, link = topology.in_links
    tails, heads = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    hops = hop_distances(topology)
    most = _DETOUR * int(hops.max())
    rows, path = round_to_paths(rate.flow, rate.unit, chunks, hops, ptr, link, tails, most)
    if len(rows) - 1 > _MOST_REROUTED:
        return rows, path
    target = np.ceil(rate.flow.sum(axis=0) * chunks / rate.unit - 1e-6).astype(np.int64)
    fullest = math.ceil(chunks / rate.lower)
    # A link may be as full, relative to its speed, as the slowest one must be, since the run lasts
    # that long.
    target = np.maximum(target, fullest * _relative_speed(topology))
    return even_out(rows, path, target, tails, heads, *topology.out_links, most, _PASSES)


def _relative_speed(topology: Topology) -> np.ndarray:
    """Bandwidths relative to the least, rounded down, at most 2**31; int64 of shape (links,)."""
    speeds, which = topology.speeds
    least = min(bandwidth for _, bandwidth in speeds)
    return np.asarray([min(bandwidth // least, 2**31) for _, bandwidth in speeds], np.int64)[which]


def _time(step: np.ndarray, path: np.ndarray, alpha: np.ndarray, seconds: np.ndarray) -> float:
    """Seconds if every step lasts as long as its slowest link: (3.2) plus alpha per step."""
    key = step * len(alpha) + path
    used, count = np.unique(key, return_counts=True)
    link = used % len(alpha)
    longest = np.zeros(int(step.max()) + 1)
    np.maximum.at(longest, used // len(alpha), alpha[link] + count * seconds[link])
    return float(longest.sum())


_FAR = np.int64(2**62)
_CHUNKS_AT_ONCE = 1 << 13  # rerouted per call, as kernels do not see signals


@kernel(cache=True, nogil=True)
def round_to_paths(flow, unit, chunks, hops, in_ptr, in_link, tails, room):
    """A path per chunk, so that every link carries about as much as the flow sends over it.

    From its destination backwards, a chunk takes the link on which the flow of its source is
    furthest ahead of the chunks rounded so far. A walk that meets itself, or that is longer than
    ``room``, is replaced by a shortest path.

    Args:
        flow: the flow of every source over every link, int64 of shape (ranks, links).
        unit: the flow that delivers one shard.
        chunks: chunks in a shard.
        hops: fewest links from rank to rank.
        room: the most links on a path.

    Returns:
        ptr and path by chunk, for every ordered pair of ranks, destination fastest; paths from a
        rank to itself are empty.
    """
    size, links = flow.shape
    ptr = np.zeros(size * size * chunks + 1, np.int64)
    path = np.empty(size * size * chunks * min(room, 4) + room, np.int64)
    walk = np.empty(room, np.int64)
    # Rounding by largest remainder, like the apportionment of seats: ``left`` is the flow of a
    # source over a link less the chunks sent over it so far.
    left = np.empty(links)
    used = 0
    for s in range(size):
        for e in range(links):
            left[e] = flow[s, e] * chunks / unit
        for t in range(size):
            for c in range(chunks):
                length = 0
                if t != s:
                    length = _walk_back(s, t, hops, in_ptr, in_link, tails, flow, left, walk)
                if used + length > len(path):
                    longer = np.empty(2 * len(path), np.int64)
                    longer[:used] = path[:used]
                    path = longer
                for i in range(length):
                    path[used + i] = walk[length - 1 - i]
                    left[walk[i]] -= 1.0
                used += length
                ptr[(s * size + t) * chunks + c + 1] = used
    return ptr, path[:used]


@kernel(cache=True, nogil=True)
def _walk_back(s, t, hops, in_ptr, in_link, tails, flow, left, walk):
    """Write the links from t back to s to ``walk``, and return their number."""
    u, length = t, 0
    while u != s and length < len(walk):
        best, most = -1, -np.inf
        for i in range(in_ptr[u], in_ptr[u + 1]):
            e = in_link[i]
            if flow[s, e] > 0 and left[e] > most:
                best, most = e, left[e]
        if best < 0:
            break
        walk[length] = best
        length += 1
        u = tails[best]
    # Flows of a linear program may go in circles without lowering the rate; a chunk must not.
    if u == s and not _meets_itself(t, tails, walk, length):
        return length
    # If the flow gave no path that a chunk can take, it takes a shortest one, by the links with the
    # most left.
    u, length = t, 0
    while u != s:
        best, most = -1, -np.inf
        for i in range(in_ptr[u], in_ptr[u + 1]):
            e = in_link[i]
            if hops[s, tails[e]] < hops[s, u] and left[e] > most:
                best, most = e, left[e]
        walk[length] = best
        length += 1
        u = tails[best]
    return length


@kernel(cache=True, nogil=True)
def _meets_itself(t, tails, walk, length):
    for i in range(length):
        at = tails[walk[i]]
        if at == t:
            return True
        for j in range(i):
            if tails[walk[j]] == at:
                return True
    return False


def even_out(ptr, path, target, tails, heads, out_ptr, out_link, most, passes):
    """Reroute chunks on overloaded links, until no link carries more than its target.

    A link costs 1, plus the square of its load beyond its target times a number larger than the
    length of any path. A chunk moves if that is cheaper.

    Args:
        target: number of chunks per link.
        most: the most links on a path.
        passes: the most passes over all chunks.

    Returns:
        ptr and path.
    """
    size, chunks, length = len(out_ptr) - 1, len(ptr) - 1, np.diff(ptr)
    rows = np.empty((chunks, most), np.int32)
    is_used = np.arange(most) < length[:, None]
    rows[is_used] = path
    load = np.bincount(path, minlength=len(tails)).astype(np.int64)
    cost, into, hop = np.empty((3, size), np.int64)
    key, item = np.empty((2, len(tails) + 1), np.int64)
    moved = True
    while moved and passes:
        moved, passes = False, passes - 1
        for first in range(0, chunks, _CHUNKS_AT_ONCE):
            some = slice(first, first + _CHUNKS_AT_ONCE)
            moved |= _reroute(
                rows[some], length[some], load, target, tails, heads, out_ptr, out_link, most,
                cost, into, hop, key, item,
            )  # fmt: skip
    is_used = np.arange(most) < length[:, None]
    return np.concatenate([[0], np.cumsum(length)]), rows[is_used].astype(np.int64)


@kernel(cache=True, nogil=True)
def _reroute(
    rows, length, load, target, tails, heads, out_ptr, out_link, most, cost, into, hop, key, item
):
    """Reroute some chunks; returns whether any moved.

    Args:
        rows, length: the links of each chunk.
        cost, into, hop, key, item: scratch.
    """
    moved = False
    for c in range(len(length)):
        # Only chunks on overloaded links are rerouted; the others cost just a pass over their
        # links.
        over = False
        for i in range(length[c]):
            over |= load[rows[c, i]] > target[rows[c, i]]
        if not over:
            continue
        # The chunk is taken out before its path is priced, so that it does not compete with itself.
        before = np.int64(0)
        for i in range(length[c]):
            load[rows[c, i]] -= 1
        for i in range(length[c]):
            before += _price(rows[c, i], load, target, len(cost))
        s, t = tails[rows[c, 0]], heads[rows[c, length[c] - 1]]
        _cheapest(s, t, load, target, heads, out_ptr, out_link, cost, into, hop, key, item)
        if cost[t] < before and hop[t] <= most:
            moved = True
            length[c] = hop[t]
            v = t
            for i in range(hop[t] - 1, -1, -1):
                rows[c, i] = into[v]
                v = tails[into[v]]
        for i in range(length[c]):
            load[rows[c, i]] += 1
    return moved


@kernel(cache=True, inline="always")
def _price(e, load, target, size):
    beyond = max(load[e] + 1 - target[e], 0)
    # One excess chunk costs more than the length of any path, so that hops decide only among paths
    # that overload no more links. The square prefers two links with one excess chunk to one link
    # with two.
    return 1 + 4 * size * beyond * beyond


@kernel(cache=True, nogil=True)
def _cheapest(s, t, load, target, heads, out_ptr, out_link, cost, into, hop, key, item):
    """Dijkstra's algorithm until t is reached."""
    cost[:] = _FAR
    cost[s], hop[s] = 0, 0
    waiting = heap.push(key, item, 0, 0, 0, s)
    while waiting:
        reached, u = key[0], item[0]
        if u == t:
            return
        waiting = heap.pop(key, item, 0, waiting)
        if reached > cost[u]:
            continue
        for i in range(out_ptr[u], out_ptr[u + 1]):
            e = out_link[i]
            through = reached + _price(e, load, target, len(cost))
            v = heads[e]
            if through < cost[v]:
                cost[v], into[v], hop[v] = through, e, hop[u] + 1
                waiting = heap.push(key, item, 0, waiting, through, v)


@kernel(cache=True, nogil=True)
def steps_of(ptr, path, width):
    """The step of every send: in each step, a link takes the chunks with the longest remaining way.

    Args:
        width: chunks that each link takes per step, at least 1.

    Returns:
        int64 of shape (sends,), in the order of ``path``.
    """
    links = len(width)
    # All queues, one per link, are in one column, each with room for every send that crosses its
    # link.
    first = np.zeros(links + 1, np.int64)
    for e in path:
        first[e + 1] += 1
    for e in range(links):
        first[e + 1] += first[e]
    key, item = np.empty(len(path), np.int64), np.empty(len(path), np.int64)
    waiting = np.zeros(links, np.int64)
    step = np.empty(len(path), np.int64)
    last = np.zeros(len(path), np.bool_)
    end = np.empty(len(path), np.int64)
    for c in range(len(ptr) - 1):
        if ptr[c] < ptr[c + 1]:
            last[ptr[c + 1] - 1] = True
            end[ptr[c] : ptr[c + 1]] = ptr[c + 1]
            e = path[ptr[c]]
            waiting[e] = heap.push(key, item, first[e], waiting[e], ptr[c] - ptr[c + 1], ptr[c])
    sent, now = 0, 0
    taken = np.empty(len(path), np.int64)
    while sent < len(path):
        count = 0
        for e in range(links):
            for _ in range(min(width[e], waiting[e])):
                taken[count] = item[first[e]]
                waiting[e] = heap.pop(key, item, first[e], waiting[e])
                count += 1
        # A chunk that is sent in a step joins its next queue after all links have taken theirs,
        # because it crosses one link per step.
        for i in range(count):
            send = taken[i]
            step[send] = now
            if not last[send]:
                e = path[send + 1]
                togo = send + 1 - end[send]
                waiting[e] = heap.push(key, item, first[e], waiting[e], togo, send + 1)
        sent += count
        now += 1
    return step
