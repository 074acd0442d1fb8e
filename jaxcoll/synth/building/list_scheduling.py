"""List scheduling: sends start as early as links serve them, the most urgent first.

A send waits for the sends that bring its data. A free link serves the most urgent of the sends that
wait to leave its rank: by default the one with the longest remaining way, and among equals the
first in order. Inside the network links serve first come, first served, as they do when the
schedule is run.

``improved`` alternates: it plans the same sends backwards in time from the end, and forwards in the
order of that plan, which is the forward-backward improvement of project scheduling (Li and Willis,
"An iterative scheduling technique for resource-constrained project scheduling", 1992). Sends that
were needlessly early then make room for those that the end waits for.

For example, on a chain 0, 1, 2, rank 0 sends two chunks to rank 1, of which only the second goes on
to rank 2. In the order of numbers the run takes the time of 3 chunks; if the second chunk, whose
way is longer, goes first, it takes the time of 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxcoll.collective import Collective, common_parts
from jaxcoll.links import group_by
from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import followers
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology
from jaxcoll.trees.stream import queue_starts, steps_in_order, take_step

# Ticks: the longest time has 40 bits, and a run of all sends one after another fits 64 bits.
_FINE, _HORIZON = 2**40, 2**62
# Improvement ends after two consecutive rounds that each shorten the plan by less than this
# fraction. For plans of twelve networks, with up to sixteen rounds each, later rounds gained at
# most 0.3 %; after a single such round, another gained up to 0.5 %. On tori the first round gains
# everything.
_LEAST_GAIN = 0.0005
# Urgency of pieces by their number, in fractions of the time that each adds to a run.
_PACES = (0.0, 0.2, 0.5, 1.0)


@dataclasses.dataclass(frozen=True)
class LinkedSends:
    """Sends, listed after all sends that they wait for, and these dependencies.

    Attributes:
        edges: the connections that the sends use.
        edge, chunk: the edge and the chunk of each send, int64 of shape (sends,).
        reduce: whether its receiver adds it, bool of shape (sends,).
        next_ptr, following: ``following[next_ptr[i]:next_ptr[i + 1]]`` wait for send i; int64.
    """

    edges: Edges
    edge: np.ndarray
    chunk: np.ndarray
    reduce: np.ndarray
    next_ptr: np.ndarray
    following: np.ndarray

    def steps(self, order: np.ndarray, links: int, by_time: bool = False) -> np.ndarray:
        """The fewest steps in which sends start in an order; the step of each send, int64.

        Args:
            order: the sends, each after those that it waits for.
            links: number of links.
            by_time: whether steps follow the order everywhere, not only on each link.
        """
        waits, first_link = (self.next_ptr, self.following), self.edges.first_link
        if by_time:
            first_link = np.zeros_like(first_link)  # the order of a link, as if all shared one
        return steps_in_order(_steps_of, order, self.edge, first_link, links, *waits)

    def at(
        self,
        begin: np.ndarray,
        topology: Topology,
        collective: Collective,
        by_time: bool = False,
    ) -> Schedule:
        """The schedule, with the fewest steps, in which sends start in the order of ``begin``.

        Args:
            by_time: see ``steps``. Messages that reach a link inside the network at the same time
                go on in the order of their steps. So with steps by time a run is much as planned.
        """
        order = np.argsort(begin, kind="stable")
        step = self.steps(order, topology.num_links, by_time)
        return Schedule.from_sends(
            topology,
            collective,
            step[order],
            self.edge[order],
            self.chunk[order],
            self.reduce[order],
            edges=self.edges,
        )


def by_urgency(
    topology: Topology,
    collective: Collective,
    sends: LinkedSends,
    urgency: np.ndarray,
    busy: np.ndarray,
    delay: np.ndarray,
    by_time: bool = False,
) -> Schedule:
    """The schedule in which a free link serves the waiting send of the least urgency number.

    Args:
        urgency: ticks, int64 of shape (sends,).
        busy, delay: ticks of each link, as returned by ``link_ticks``.
        by_time: see ``LinkedSends.steps``.
    """
    begin, _ = _run(sends, urgency, busy, delay)
    return sends.at(begin, topology, collective, by_time)


def as_they_arrive(
    topology: Topology,
    collective: Collective,
    edges: Edges,
    edge: np.ndarray,
    chunk: np.ndarray,
    before: np.ndarray,
    nbytes: Fraction,
    rounds: int = 0,
) -> Schedule:
    """The schedule of sends that start as early as links serve them, longest remaining path first.

    That order fills the links at the ends of short paths last. Where few ranks exchange data over
    paths of different lengths, the end then waits for these links, which ``rounds`` improve.

    Args:
        edges: the connections that the sends use.
        edge, chunk: the edge and the chunk of each send, int64 of shape (sends,).
        before: the send, with a smaller number, that brings the data of each send; -1 if the source
            holds it at the start.
        nbytes: bytes of a rank's buffer.
        rounds: the most rounds of improvement of the best of several plans, including plans in
            which the pieces of a shard follow one another.
    """
    busy, delay = link_ticks(topology, collective, nbytes, int(edges.hops[edge].sum()))
    sends = LinkedSends(edges, edge, chunk, np.zeros(len(edge), bool), *followers(before))
    urgency = -remaining(sends, delay)
    if not rounds:
        return by_urgency(topology, collective, sends, urgency, busy, delay)
    crossings = np.repeat(np.bincount(edge, minlength=len(edges)), edges.hops)
    load = np.bincount(edges.path_link, crossings, topology.num_links)
    pace = float((load * busy).max()) / collective.chunks_per_shard
    piece = chunk % collective.chunks_per_shard
    urgencies = [urgency + piece * round(part * pace) for part in _PACES]
    return sends.at(improved(sends, urgencies, busy, delay, rounds)[-1], topology, collective)


def remaining(sends: LinkedSends, delay: np.ndarray) -> np.ndarray:
    """Ticks from each send until its data reaches its last receiver, on idle links."""
    links = (sends.edges.path_ptr, sends.edges.path_link)
    return time_left(sends.next_ptr, sends.following, sends.edge, *links, delay)


def improved(
    sends: LinkedSends,
    urgencies: Sequence[np.ndarray],
    busy: np.ndarray,
    delay: np.ndarray,
    rounds: int,
) -> list[np.ndarray]:
    """The starts of all sends, in ticks, for successively better plans.

    Args:
        urgencies: orders to start from, of which the best is improved; ticks, int64 (sends,).
        busy, delay: ticks of each link, as returned by ``link_ticks``.
        rounds: the most times to plan backwards and forwards; rounds of little gain end it.

    Returns:
        The best plan last.
    """
    edges = sends.edges
    # Backwards, every send waits for the sends that wait for it, and crosses its path from the end.
    size = np.diff(sends.next_ptr)
    ptr, order = group_by(sends.following, len(sends.edge))
    before = np.repeat(np.arange(len(sends.edge)), size)[order]
    hop = np.arange(len(edges.path_link)) - np.repeat(edges.path_ptr[:-1], edges.hops)
    path = edges.path_link[np.repeat(edges.path_ptr[1:], edges.hops) - 1 - hop]
    mirrored = dataclasses.replace(
        sends,
        edges=Edges(edges.dst, edges.src, edges.path_ptr, path),
        next_ptr=ptr,
        following=before,
    )
    # Backwards in time, a send begins when it ends forwards.
    took = np.add.reduceat(delay[edges.path_link], edges.path_ptr[:-1])[sends.edge]

    plans = [_run(sends, urgency, busy, delay) for urgency in urgencies]
    least = min(end for _, end in plans)
    begin = next(begin for begin, end in plans if end == least)
    # Planned backwards, in the order in which they end, all sends move as late as they can. Planned
    # forwards, in the resulting order, they move as early as they can. So sends that no other waits
    # for make room for the rest.
    found, idle = [begin], 0
    for _ in range(rounds):
        # The send that ends last starts first in the plan from the end.
        late, span = _run(mirrored, -(begin + took), busy, delay)
        begin, end = _run(sends, span - late - took, busy, delay)
        gain, least = least - end, min(least, end)
        if gain > 0:
            found.append(begin)
        idle = idle + 1 if gain < _LEAST_GAIN * least else 0
        if idle == 2:
            break
    return found


def _run(
    sends: LinkedSends, urgency: np.ndarray, busy: np.ndarray, delay: np.ndarray
) -> tuple[np.ndarray, int]:
    edges = sends.edges
    return served(
        urgency,
        sends.next_ptr,
        sends.following,
        sends.edge,
        edges.path_ptr,
        edges.path_link,
        busy,
        delay,
    )


def link_ticks(
    topology: Topology, collective: Collective, nbytes: Fraction, hops: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rounded ticks that the largest chunk occupies each link, and takes to reach its end.

    Args:
        hops: the most links that a run can cross one after another; sums of so many times fit 64
            bits.

    Returns:
        Two columns, int64 of shape (links,): bytes / bandwidth, and the same plus alpha.
    """
    weight, total = common_parts(collective)
    return message_ticks(topology, nbytes * int(weight.max()) / total, hops)


def message_ticks(topology: Topology, size: Fraction, hops: int) -> tuple[np.ndarray, np.ndarray]:
    """``link_ticks`` for a message of ``size`` bytes."""
    speeds, which = topology.speeds
    longest = max(alpha + size / bandwidth for alpha, bandwidth in speeds)
    # Rounding is harmless: ticks only decide the order of sends, and the times of the schedule are
    # computed from the exact speeds.
    scale = min(_FINE, _HORIZON // max(hops, 1)) / longest
    busy = [max(1, round(size / bandwidth * scale)) for _, bandwidth in speeds]
    alpha = [round(alpha * scale) for alpha, _ in speeds]
    return np.asarray(busy, np.int64)[which], np.asarray(np.add(busy, alpha), np.int64)[which]


# Events or sends per call: kernels do not see signals, which Python handles between calls.
_EVENTS_AT_ONCE = 1 << 18


class _Queues(NamedTuple):
    """Sends that wait for links, and events.

    Attributes:
        urgency: urgency of each send where it leaves a rank, the least first; inside the network,
            its time of arrival.
        waits: number of arrivals that each send still waits for.
        next_ptr, following: the sends that wait for each send.
        heap_ptr, key, item, size: a heap per link, in its part of two arrays, with the sends that
            wait for the link.
        awake: whether each link has a future event.
        times, events: heap of events. Event i is that send i reaches the end of a link; event sends
            + l is that link l can take a send. Sends come first at any time, so that a link sees
            every chunk that has arrived.
        begin: the time when each send starts on its first link.
        hop: the index, in ``path_link``, of the link that each send takes next.
    """

    urgency: np.ndarray
    waits: np.ndarray
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


def served(urgency, next_ptr, following, edge, path_ptr, path_link, busy, delay):
    """The ticks at which each send starts on its first link, and the last arrival.

    Args:
        urgency: urgency of each send, in ticks; the least goes first.
        next_ptr, following: ``following[next_ptr[i]:next_ptr[i + 1]]`` wait for send i.
        edge: edge of each send.
        path_ptr, path_link: links of each edge.
        busy: ticks for which a send occupies each link, at least 1.
        delay: ticks that a send takes to the end of each link, at least ``busy``.
    """
    # At any time each send and each link has at most one future event.
    sends, links = len(edge), len(busy)
    heap_ptr = queue_starts(edge, path_ptr, path_link, links)
    now = _Queues(
        urgency,
        np.bincount(following, minlength=sends),
        next_ptr,
        following,
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
    pending = _wait_at_sources(path_link, now)
    end = 0
    while pending:
        pending, end = _serve(edge, path_ptr, path_link, busy, delay, now, pending)
    return now.begin, end


@kernel(cache=True, nogil=True)
def _wait_at_sources(path_link, now):
    """Queue the sends that wait for no other at their first links; return the number of events."""
    sends, pending = len(now.waits), 0
    for i in range(sends):
        if now.waits[i] == 0:
            link = path_link[now.hop[i]]
            first, rank = now.heap_ptr[link], now.urgency[i]
            now.size[link] = heap.push(now.key, now.item, first, now.size[link], rank, i)
            if not now.awake[link]:
                now.awake[link] = True
                pending = heap.push(now.times, now.events, 0, pending, 0, sends + link)
    return pending


@kernel(cache=True, nogil=True)
def _serve(edge, path_ptr, path_link, busy, delay, now, pending):
    """Handle some events; return the number of those left, and the time of the last handled."""
    next_ptr, following, heap_ptr = now.next_ptr, now.following, now.heap_ptr
    key, item, size, awake = now.key, now.item, now.size, now.awake
    times, events, begin, hop = now.times, now.events, now.begin, now.hop
    sends, taken, time = len(edge), 0, 0
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
        # The send waits for the next link of its path; or its followers wait for their first links.
        moves_on = hop[event] < path_ptr[edge[event] + 1]
        arrivals = 1 if moves_on else next_ptr[event + 1] - next_ptr[event]
        for a in range(arrivals):
            i, rank = event, time
            if not moves_on:
                i = following[next_ptr[event] + a]
                now.waits[i] -= 1
                if now.waits[i] > 0:
                    continue
                rank = now.urgency[i]
            link = path_link[hop[i]]
            size[link] = heap.push(key, item, heap_ptr[link], size[link], rank, i)
            if not awake[link]:
                awake[link] = True
                pending = heap.push(times, events, 0, pending, time, sends + link)
    return pending, time


@kernel(cache=True, nogil=True)
def time_left(next_ptr, following, edge, path_ptr, path_link, delay):
    """Ticks from each send until its data reaches its last receiver, on idle links.

    Only sends with larger numbers may wait for a send.
    """
    left = np.zeros(len(edge), np.int64)
    for i in range(len(edge) - 1, -1, -1):
        for k in range(next_ptr[i], next_ptr[i + 1]):
            left[i] = max(left[i], left[following[k]])
        for h in range(path_ptr[edge[i]], path_ptr[edge[i] + 1]):
            left[i] += delay[path_link[h]]
    return left


@kernel(cache=True, nogil=True)
def _steps_of(order, edge, first_link, on_link, on_edge, step, next_ptr, following):
    """The least step of each send, after those that it waits for, in order on its first link."""
    for i in order:
        t = step[i] = take_step(step[i], edge[i], first_link, on_link, on_edge)
        for k in range(next_ptr[i], next_ptr[i + 1]):
            step[following[k]] = max(step[following[k]], t + 1)
