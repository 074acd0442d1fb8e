"""Schedules derived from others: a schedule run backwards is a schedule of the dual collective.

Reversed, with every link the other way, an all_gather is a reduce_scatter, a broadcast is a reduce,
and a scatter is a gather (TACOS, Sec. IV-E). A reduce_scatter followed by an all_gather is an
all_reduce. For example, on three ranks in a line the broadcast of rank 0 sends 0->1 and then 1->2,
so the reduce sends 2->1 and then 1->0.

If only some ranks need the sums, the schedule is an all_reduce without the copies that none of
these ranks need (``for_some``).

The run of an all_gather, played backwards, is a run of the reduce_scatter that takes as long: every
message leaves at the end of the run less its arrival. On a direct network, reversing the order of
the steps gives that run. Behind switches it does not: steps order the messages on the link by which
they leave a rank; in the reversed run that is the link by which they arrived, where switches chose
the order. So there the reversed schedule is put in the order of the simulated run
(``reverse_in_time``).
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import ScheduleError
from jaxcoll.kinds import kind_of
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule, concatenate
from jaxcoll.simulation import simulate


def derive(
    schedule: Schedule, kind: str, nbytes: Number | None = None, scatter: Schedule | None = None
) -> Schedule:
    """The schedule of another kind that follows from a schedule; for its own kind, itself.

    Args:
        nbytes: bytes of a rank's buffer for which a reversed schedule is put in order; when None
            the order of the steps is reversed.
        scatter: for an all_reduce, the reduce_scatter that runs before ``schedule``. When omitted
            it is derived too, for which the network must be its own transpose.

    Returns:
        The derived schedule; if only the dual is asked for, it is on the transposed network. Its
        provenance is that of ``schedule``, whose certificate is kept under the kind of
        ``schedule``.

    Raises:
        ScheduleError: no schedule of ``kind`` follows from ``schedule``.
    """
    given = schedule.collective.kind
    if given == kind:
        return schedule
    wanted = kind_of(kind)
    takes = {name for name in (kind, wanted.dual_name, *wanted.phase_names) if name is not None}
    if given not in takes:
        raise ScheduleError(
            f"{kind} cannot run {schedule}: it takes a schedule of {' or '.join(sorted(takes))}"
        )
    # A chunk that was copied to a rank becomes that rank's partial sum, sent back the same way.
    if scatter is not None:
        found = concatenate(scatter, schedule)
    else:
        found = schedule.reverse() if nbytes is None else reverse_in_time(schedule, nbytes)
        if wanted.has_phases:
            is_last = given == wanted.phase_names[-1]
            found = concatenate(*((found, schedule) if is_last else (schedule, found)))
            if found.topology != schedule.topology:  # on the transpose, adding switches copy
                found = dataclasses.replace(found, topology=schedule.topology)
    claims = schedule.provenance.certificate
    certificate = {given: claims} if claims else {}
    return found.with_provenance(dataclasses.replace(schedule.provenance, certificate=certificate))


def for_some(schedule: Schedule, collective: Collective) -> Schedule:
    """The schedule of a kind for some ranks, from a schedule of the kind for all ranks.

    Sums meet where they met, and copies go where a root needs them or passes them on.

    Args:
        schedule: a schedule of the kind for all ranks (``Kind.for_all``), with ``chunks_for_all``
            chunks per shard; its shards hold the same data.
        collective: the collective for some ranks.
    """
    renamed = dealt(collective, schedule.collective.chunks_per_shard)
    chunk = renamed[schedule.chunk]
    src, dst, goes = schedule.src, schedule.dst, chunk >= 0
    # From the last step to the first, a copy is useful if its receiver wants it or has sent it on.
    used = collective.postcondition()
    for first, last in itertools.pairwise(schedule.step_ptr[::-1].tolist()):
        now = np.arange(last, first)
        goes[now] &= schedule.reduce[now] | used[dst[now], chunk[now]]
        now = now[goes[now]]
        used[src[now], chunk[now]] = True
    claims = schedule.provenance.certificate
    return Schedule.from_sends(
        schedule.topology, collective, schedule.step[goes], schedule.edge[goes], chunk[goes],
        schedule.reduce[goes], edges=schedule.edges,
        provenance=dataclasses.replace(
            schedule.provenance,
            certificate={schedule.collective.kind: claims} if claims else {},
        ),
    )  # fmt: skip


def chunks_for_all(collective: Collective) -> int:
    """Chunks per shard for the kind for all ranks, so that every chunk here has one there."""
    sizes = [len(group) for group in collective.groups if len(group) > 1]
    return -(-collective.chunks_per_shard // min(sizes, default=1))


def dealt(collective: Collective, each: int) -> np.ndarray:
    """Numbers in a buffer of one shard, for the chunks of a buffer with a shard per rank.

    Args:
        collective: has one shard, whose chunks are dealt to the ranks of each group in turn.
        each: chunks of a rank's shard; chunks beyond those of a group get the number -1.
    """
    # Chunks are dealt in turn, so that shares differ by at most one chunk.
    renamed = []
    for first, group in zip(collective.chunk_ptr, collective.groups, strict=False):
        place = np.arange(each) * len(group) + np.arange(len(group))[:, None]
        renamed.append(np.where(place < collective.chunks_per_shard, first + place, -1).ravel())
    return np.concatenate(renamed)


def reverse_in_time(schedule: Schedule, nbytes: Number) -> Schedule:
    """The reversed schedule, with messages in the order of the simulated run played backwards.

    Args:
        schedule: as for ``Schedule.reverse``.
        nbytes: bytes of a rank's buffer in the simulation (link model "astra"); irrelevant on a
            network without switches.
    """
    backward = schedule.reverse()
    # Messages that queued on one side of a switch would queue on its other side, in the order of
    # the reversed steps, and the reversed run would be slower than the run.
    if (schedule.edges.hops <= 1).all():
        return backward
    run = simulate(schedule, nbytes)
    last = run.hop_ptr[1:] - 1
    arrival = run.hop_start[last] + run.hop_delay[last]
    # The messages of the reversed schedule are listed in reverse. Of those that arrived together,
    # the one that left last was served at once, so played backwards it leaves first.
    order = np.lexsort((-run.hop_start[run.hop_ptr[:-1]][::-1], -arrival[::-1]))
    return in_order(backward, order)


def in_order(schedule: Schedule, order: np.ndarray) -> Schedule:
    """The same messages, on each link in the given order, with as few steps as that takes.

    Args:
        order: the messages, int64, each after those that bring its chunks to its source.
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

    Messages of one edge get different steps, so that they stay separate.

    Args:
        ready: zeros of shape (ranks, chunks); filled with the first step after all arrivals of a
            chunk at a rank.
    """
    step = np.zeros(len(order), np.int64)
    on_link = np.zeros(links, np.int64)
    on_edge = np.zeros(len(first_link), np.int64)  # the first step without a message of the edge
    for m in order:
        e = edge[m]
        # As early as the data allows, but never before a message that the link serves earlier:
        # messages may share a step, but their order on the link must not change.
        t = max(on_link[first_link[e]], on_edge[e])
        for i in range(ptr[m], ptr[m + 1]):
            t = max(t, ready[src[e], chunk[i]])
        step[m] = on_link[first_link[e]] = t
        on_edge[e] = t + 1
        for i in range(ptr[m], ptr[m + 1]):
            ready[dst[e], chunk[i]] = max(ready[dst[e], chunk[i]], t + 1)
    return step
