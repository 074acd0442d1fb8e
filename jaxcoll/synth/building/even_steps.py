"""Steps that hold equal times on all links, of a schedule for links that work by themselves.

Where each link works by itself, the steps of a schedule only put messages in order. Where a rank's
steps follow one another, a step lasts as long as its longest message, and in the steps of a search
or a stream of trees that is often one slow link, while all others wait. So sends get other steps:
in the order in which they start on links that work by themselves, each takes the earliest step
after all arrivals of its chunk in which every link of its path has room for it, and a step has
room for ``span`` seconds on each link. Sends of a connection in one step are one message.

For example, rank 0 has four chunks for rank 1, which a fast link brings in 1 s each, and one chunk
for rank 2, which takes a slow link 4 s. In steps of a chunk per link they take 4 + 1 + 1 + 1 s, and
4 s in one step of that time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.simulation.timeline import Timeline

# Spans of steps, in the time that a chunk of the median send takes, and that the longest takes: on
# seven networks of unequal links, with one to sixteen chunks per shard, one of these was within
# some per cent of the best of all.
_OF_MEDIAN, _OF_LONGEST = (1.0, 2.0, 4.0), (1.0, 4 / 3, 2.0)
# The most sends of a schedule that gets other steps: all spans together take some 10 us per send.
MOST_SENDS = 1 << 15
_WIDTH = 64  # steps that links have room for at first


def with_even_steps(
    schedule: Schedule, nbytes: Number, costs: ExecutionCosts, enough: float = np.inf
) -> Schedule:
    """The schedule, or the same sends in steps of equal time where a machine runs these faster.

    Args:
        nbytes: bytes of a rank's buffer.
        costs: costs of a machine whose ranks go through steps one after the other.
        enough: seconds to be faster than; where links that work by themselves take as long, no
            steps are tried.
    """
    if not 0 < schedule.num_sends <= MOST_SENDS:
        return schedule
    by_links = simulate(schedule, nbytes)
    if by_links.time >= enough:
        return schedule
    seconds = _seconds(schedule, nbytes)
    spans = {float(np.median(seconds)) * part for part in _OF_MEDIAN}
    spans |= {float(seconds.max()) * part for part in _OF_LONGEST}
    found = [schedule, *(in_even_steps(by_links, span) for span in sorted(spans))]
    # The first of equals: the synthesizer's own.
    return min(found, key=lambda each: simulate(each, nbytes, execution=costs).exact_time)


def in_even_steps(by_links: Timeline, span: float) -> Schedule:
    """The sends of a schedule in steps that take each link no more than so many seconds.

    A chunk that takes longer on some link has a step of its own there.

    Args:
        by_links: a run of the schedule on links that work by themselves.
        span: seconds, above 0.
    """
    schedule = by_links.schedule
    edges, topology, sends = schedule.edges, schedule.topology, schedule.num_sends
    # Contributions arrive before the sum of them leaves, in this order as in that of steps.
    order = np.lexsort((schedule.step, by_links.start))
    ptr, link = edges.paths_of(schedule.edge)
    room = np.full((topology.num_links, _WIDTH), float(span))
    ready = np.zeros((topology.num_ranks, schedule.collective.num_chunks), np.int64)
    step, done = np.zeros(sends, np.int64), 0
    ends = schedule.src.astype(np.int64), schedule.dst.astype(np.int64)
    chunk, seconds = schedule.chunk.astype(np.int64), _seconds(schedule, by_links.nbytes)
    columns = _Columns(*ends, chunk, ptr, link, seconds)
    while True:
        done = _put(order, done, columns, span, room, ready, step)
        if done == sends:
            break
        room = np.concatenate([room, np.full_like(room, span)], axis=1)
    return Schedule.from_sends(
        topology,
        schedule.collective,
        step,
        schedule.edge,
        schedule.chunk,
        schedule.reduce,
        edges=edges,
        provenance=schedule.provenance,
    )


class _Columns(NamedTuple):
    """Sends: their ends and chunks, ``link[ptr[i]:ptr[i + 1]]`` of send i, and seconds on each."""

    src: np.ndarray
    dst: np.ndarray
    chunk: np.ndarray
    ptr: np.ndarray
    link: np.ndarray
    seconds: np.ndarray


def _seconds(schedule: Schedule, nbytes: Number) -> np.ndarray:
    """Seconds without latency for which each send takes each link of its path; float64."""
    size = np.asarray([float(b) for b in schedule.collective.chunk_bytes(nbytes)])
    ptr, link = schedule.edges.paths_of(schedule.edge)
    bandwidth = np.asarray(schedule.topology.bandwidth, np.float64)
    return np.repeat(size[schedule.chunk], np.diff(ptr)) / bandwidth[link]


@kernel(cache=True, nogil=True)
def _put(order, done, sends, span, room, ready, step):
    """Put sends into steps, from the ``done``-th on; how many are, once ``room`` has no more."""
    src, dst, chunk, ptr, link, seconds = sends
    width = room.shape[1]
    while done < len(order):
        i = order[done]
        at = ready[src[i], chunk[i]]
        fits = False
        while at < width and not fits:
            fits = True
            for h in range(ptr[i], ptr[i + 1]):
                left = room[link[h], at]
                # An empty step takes any chunk. Times that fill a step are sums of rounded ones.
                if left < seconds[h] * (1 - 1e-9) and left < span:
                    fits = False
            if not fits:
                at += 1
        if not fits:
            return done
        for h in range(ptr[i], ptr[i + 1]):
            room[link[h], at] -= seconds[h]
        step[i] = at
        ready[dst[i], chunk[i]] = max(ready[dst[i], chunk[i]], at + 1)
        done += 1
    return done
