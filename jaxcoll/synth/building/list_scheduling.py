"""List scheduling: links serve what has longest to go, and every chunk moves on as it arrives.

Of the chunks that wait to leave a rank, a link takes the one whose last destination is farthest in
time, of equals the first in order. Inside the network links serve first come, first served, as they
do when the schedule is run.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxcoll.collective import Collective, common_parts
from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import followers
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology
from jaxcoll.trees.stream import queue_starts, stream_steps

# A run of all sends one after another fits 64 bits, with times of 40 bits for the longest.
_FINE, _HORIZON = 2**40, 2**62
# Events of a call: kernels see no signals, and Python handles them between two calls.
_EVENTS_AT_ONCE = 1 << 18


def as_they_arrive(
    topology: Topology,
    collective: Collective,
    edges: Edges,
    edge: np.ndarray,
    chunk: np.ndarray,
    before: np.ndarray,
    nbytes: Fraction,
) -> Schedule:
    """The schedule of sends that start as early as links serve them, longest remaining path first.

    Args:
        edges: the connections that the sends use.
        edge, chunk: of each send, int64 of shape (sends,).
        before: the send, of a smaller number, that brings what each send carries on; -1 where the
            source holds it at the start.
        nbytes: bytes of a rank's buffer.
    """
    busy, delay = link_ticks(topology, collective, nbytes, int(edges.hops[edge].sum()))
    begin = served(before, edge, edges.path_ptr, edges.path_link, busy, delay)
    order = np.argsort(begin, kind="stable")
    step = stream_steps(order, before, edge, edges.first_link, topology.num_links, 1)
    return Schedule.from_sends(
        topology, collective, step[order], edge[order], chunk[order], edges=edges
    )


def link_ticks(
    topology: Topology, collective: Collective, nbytes: Fraction, hops: int
) -> tuple[np.ndarray, np.ndarray]:
    """How long the largest chunk occupies each link, and takes to its end, in rounded ticks.

    Args:
        hops: the most links that a run can cross one after another; sums of as many ticks fit
            64 bits.

    Returns:
        Two columns, int64 of shape (links,): bytes / bandwidth, and that with alpha.
    """
    weight, total = common_parts(collective)
    size = nbytes * int(weight.max()) / total
    speeds, which = topology.speeds
    longest = max(alpha + size / bandwidth for alpha, bandwidth in speeds)
    scale = min(_FINE, _HORIZON // max(hops, 1)) / longest
    busy = [max(1, round(size / bandwidth * scale)) for _, bandwidth in speeds]
    alpha = [round(alpha * scale) for alpha, _ in speeds]
    return np.asarray(busy, np.int64)[which], np.asarray(np.add(busy, alpha), np.int64)[which]


class _Queues(NamedTuple):
    """Sends that wait for links, and events.

    Attributes:
        left: see ``_time_left``; next_ptr, following: the sends that carry on what each brings.
        heap_ptr, key, item, size: every link keeps the sends that wait for it in a heap of its own
            part of two arrays.
        awake: whether each link has an event ahead of it.
        times, events: heap of events. Send i reaches the end of a link, i; link l can take a send,
            sends + l. At any moment sends come first, so that a link sees every chunk that has
            arrived.
        begin: when each send starts on its first link.
        hop: where in ``path_link`` the link is that each send takes next.
    """

    left: np.ndarray
    next_ptr: np.ndarray
    following: np.ndarray
    heap_ptr: np.ndarray
    key: np.ndarray
    item: np.ndarray
    size: np.ndarray
    awake: np.ndarray
    times: np.ndarray
    events: np.ndarray
    begin: np.ndarray
    hop: np.ndarray


def served(before, edge, path_ptr, path_link, busy, delay):
    """When each send starts on its first link, in ticks.

    Args:
        before: the send that brings what each send carries on, a smaller number; -1 if the
            rank has it at the start.
        edge: edge of each send.
        path_ptr, path_link: links of each edge.
        busy: how long a send occupies each link, in ticks, at least 1.
        delay: how long it takes to the end of each link, in ticks, at least as long.
    """
    sends, links = len(edge), len(busy)
    heap_ptr = queue_starts(edge, path_ptr, path_link, links)
    now = _Queues(
        _time_left(before, edge, path_ptr, path_link, delay),
        *followers(before),
        heap_ptr=heap_ptr,
        key=np.empty(heap_ptr[-1], np.int64),
        item=np.empty(heap_ptr[-1], np.int64),
        size=np.zeros(links, np.int64),
        awake=np.zeros(links, np.bool_),
        times=np.empty(sends + links, np.int64),
        events=np.empty(sends + links, np.int64),
        begin=np.zeros(sends, np.int64),
        hop=path_ptr[edge],
    )
    pending = _wait_at_sources(before, path_link, now)
    while pending:
        pending = _serve(edge, path_ptr, path_link, busy, delay, now, pending)
    return now.begin


@kernel(cache=True, nogil=True)
def _wait_at_sources(before, path_link, now):
    """Let the sends that wait for none wait for their first links; how many events are to come."""
    sends, pending = len(before), 0
    for i in range(sends):
        if before[i] < 0:
            link = path_link[now.hop[i]]
            first, rank = now.heap_ptr[link], -now.left[i]
            now.size[link] = heap.push(now.key, now.item, first, now.size[link], rank, i)
            if not now.awake[link]:
                now.awake[link] = True
                pending = heap.push(now.times, now.events, 0, pending, 0, sends + link)
    return pending


@kernel(cache=True, nogil=True)
def _serve(edge, path_ptr, path_link, busy, delay, now, pending):
    """Take some events; how many are to come."""
    left, next_ptr, following, heap_ptr = now.left, now.next_ptr, now.following, now.heap_ptr
    key, item, size, awake = now.key, now.item, now.size, now.awake
    times, events, begin, hop = now.times, now.events, now.begin, now.hop
    sends, taken = len(edge), 0
    while pending and taken < _EVENTS_AT_ONCE:
        taken += 1
        time, event = times[0], events[0]
        pending = heap.pop(times, events, 0, pending)
        if event >= sends:
            link = event - sends
            awake[link] = size[link] > 0
            if awake[link]:
                i = item[heap_ptr[link]]
                size[link] = heap.pop(key, item, heap_ptr[link], size[link])
                if hop[i] == path_ptr[edge[i]]:
                    begin[i] = time
                hop[i] += 1
                pending = heap.push(times, events, 0, pending, time + delay[link], i)
                pending = heap.push(times, events, 0, pending, time + busy[link], event)
            continue
        # The send waits for the next link of its path, or those that follow it for their first.
        moves_on = hop[event] < path_ptr[edge[event] + 1]
        arrivals = 1 if moves_on else next_ptr[event + 1] - next_ptr[event]
        for a in range(arrivals):
            i = event if moves_on else following[next_ptr[event] + a]
            link, rank = path_link[hop[i]], time if moves_on else -left[i]
            size[link] = heap.push(key, item, heap_ptr[link], size[link], rank, i)
            if not awake[link]:
                awake[link] = True
                pending = heap.push(times, events, 0, pending, time, sends + link)
    return pending


@kernel(cache=True, nogil=True)
def _time_left(before, edge, path_ptr, path_link, delay):
    """How long what each send carries takes to where it ends last, if nothing is in its way."""
    left = np.zeros(len(before), np.int64)
    for i in range(len(before) - 1, -1, -1):
        for h in range(path_ptr[edge[i]], path_ptr[edge[i] + 1]):
            left[i] += delay[path_link[h]]
        if before[i] >= 0:
            left[before[i]] = max(left[before[i]], left[i])
    return left
