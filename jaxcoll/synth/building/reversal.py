"""Schedules run backwards in the order in which their simulated run would be played backwards.

Played backwards, the run of an all_gather is a run of the reduce_scatter that takes as long: every
message leaves at the end of the run less its arrival. On a direct network the reversed order of the
steps is that order. Behind switches it is not: steps order the links that messages leave a rank by,
and in the reversed run those are the links that they arrived by, where switches chose the order.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate


def reverse_in_time(schedule: Schedule, nbytes: float) -> Schedule:
    """The schedule run backwards, each link in the order of the simulated run played backwards.

    Args:
        schedule: as for ``Schedule.reverse``.
        nbytes: bytes of a rank's buffer to simulate (link model "astra"); of no account on a
            network without switches.
    """
    backward = schedule.reverse()
    if (schedule.edges.hops <= 1).all():
        return backward
    run = simulate(schedule, nbytes)
    last = run.hop_ptr[1:] - 1
    arrival = run.hop_start[last] + run.hop_delay[last]
    # Messages of the reversed schedule stand in reverse. Of those that arrived together, the one
    # that left last was served at once: played backwards, it leaves first.
    order = np.lexsort((-run.hop_start[run.hop_ptr[:-1]][::-1], -arrival[::-1]))
    return in_order(backward, order)


def in_order(schedule: Schedule, order: np.ndarray) -> Schedule:
    """The same messages, each link in the order given, with as few steps as that takes.

    Args:
        order: the messages, each after those that bring its source what it carries; int64.
    """
    ptr, edges = schedule.message_ptr, schedule.edges
    edge = schedule.edge[ptr[:-1]]
    shape = (schedule.topology.num_ranks, schedule.collective.num_chunks)
    step = _steps(
        order, ptr, schedule.chunk, edge, edges.src, edges.dst, edges.first_link,
        schedule.topology.num_links, np.zeros(shape, np.int32),
    )  # fmt: skip
    sizes = np.diff(ptr)[order]
    within = np.arange(schedule.num_sends) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    send = np.repeat(ptr[:-1][order], sizes) + within
    return Schedule.from_sends(
        schedule.topology,
        schedule.collective,
        np.repeat(step[order], sizes),
        schedule.edge[send],
        schedule.chunk[send],
        schedule.reduce[send],
        edges=edges,
        provenance=schedule.provenance,
    )


@kernel(cache=True, nogil=True)
def _steps(order, ptr, chunk, edge, src, dst, first_link, links, ready):
    """The step of each message: after the arrivals of its chunks, in order on its first link.

    Messages of one edge get steps of their own, so that they stay apart.

    Args:
        ready: zeros, (ranks, chunks): the first step after all arrivals of a chunk at a rank.
    """
    step = np.zeros(len(order), np.int64)
    on_link = np.zeros(links, np.int64)
    on_edge = np.zeros(len(first_link), np.int64)  # the first step without a message of the edge
    for m in order:
        e = edge[m]
        t = max(on_link[first_link[e]], on_edge[e])
        for i in range(ptr[m], ptr[m + 1]):
            t = max(t, ready[src[e], chunk[i]])
        step[m] = on_link[first_link[e]] = t
        on_edge[e] = t + 1
        for i in range(ptr[m], ptr[m + 1]):
            ready[dst[e], chunk[i]] = max(ready[dst[e], chunk[i]], t + 1)
    return step
