"""The collectives that follow from others, by one law: a schedule run backwards is of the dual.

Reversed, with every link the other way, an all_gather is a reduce_scatter, a broadcast a reduce,
and a scatter a gather (TACOS, Sec. IV-E). A reduce_scatter and then an all_gather are an
all_reduce. On three ranks in a line, where the broadcast of rank 0 sends 0->1 and then 1->2, the
reduce sends 2->1 and then 1->0.

Where only some ranks need the sums, an all_reduce without the copies that serve nobody else will
do (``for_some``).

Played backwards, the run of an all_gather is a run of the reduce_scatter that takes as long: every
message leaves at the end of the run less its arrival. On a direct network the reversed order of the
steps is that order. Behind switches it is not: steps order the links that messages leave a rank by,
and in the reversed run those are the links that they arrived by, where switches chose the order. So
there the reversed schedule is put in the order of the simulated run (``reverse_in_time``).
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
    """The schedule of another kind that follows from a schedule; of its own kind, itself.

    Args:
        nbytes: bytes of a rank's buffer for which a reversed schedule is put in order; when None
            the order of the steps is reversed.
        scatter: of an all_reduce, the reduce_scatter before ``schedule``. When omitted that is
            derived too, which takes a network that is its own transpose.

    Returns:
        A schedule on the transposed network, where only the dual is asked for. Its provenance is
        that of ``schedule``, whose certificate stands under that one's kind.

    Raises:
        ScheduleError: it does not follow.
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
    # Where a chunk was copied to a rank, that rank's partial sum goes back the same way.
    if scatter is not None:
        found = concatenate(scatter, schedule)
    else:
        found = schedule.reverse() if nbytes is None else reverse_in_time(schedule, nbytes)
        if wanted.has_phases:
            is_last = given == wanted.phase_names[-1]
            found = concatenate(*((found, schedule) if is_last else (schedule, found)))
            if found.topology != schedule.topology:  # switches that add copy on the transposed one
                found = dataclasses.replace(found, topology=schedule.topology)
    claims = schedule.provenance.certificate
    certificate = {given: claims} if claims else {}
    return found.with_provenance(dataclasses.replace(schedule.provenance, certificate=certificate))


def for_some(schedule: Schedule, collective: Collective) -> Schedule:
    """The schedule of a kind for some ranks, by one for all that deals the same data to shards.

    Sums meet where they met, and copies go where a root needs them or passes them on.

    Args:
        schedule: of the kind for all (``Kind.for_all``), in ``chunks_for_all`` chunks per shard.
        collective: for some.
    """
    renamed = dealt(collective, schedule.collective.chunks_per_shard)
    chunk = renamed[schedule.chunk]
    src, dst, goes = schedule.src, schedule.dst, chunk >= 0
    # From the last step to the first: a copy is of use to a rank that wants it or has sent it on.
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
    """Chunks per shard of a kind for all, so that there is one for each chunk of its own."""
    sizes = [len(group) for group in collective.groups if len(group) > 1]
    return -(-collective.chunks_per_shard // min(sizes, default=1))


def dealt(collective: Collective, each: int) -> np.ndarray:
    """The chunk of a buffer in one shard that each chunk is where every rank has a shard.

    Args:
        collective: of one shard, whose chunks are dealt to the ranks of each group in turn.
        each: chunks of a rank's shard; those beyond the chunks of a group are -1.
    """
    # In turn, so that shares differ by one chunk at most.
    renamed = []
    for first, group in zip(collective.chunk_ptr, collective.groups, strict=False):
        place = np.arange(each) * len(group) + np.arange(len(group))[:, None]
        renamed.append(np.where(place < collective.chunks_per_shard, first + place, -1).ravel())
    return np.concatenate(renamed)


def reverse_in_time(schedule: Schedule, nbytes: Number) -> Schedule:
    """The schedule run backwards, each link in the order of the simulated run played backwards.

    Args:
        schedule: as for ``Schedule.reverse``.
        nbytes: bytes of a rank's buffer to simulate (link model "astra"); of no account on a
            network without switches.
    """
    backward = schedule.reverse()
    # Through switches, messages that queued at one on their way would queue at its other side, in
    # the order of the reversed steps: the reversed run would be slower than the run.
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
        # As early as the data allows, but on a link never before a message that is served earlier:
        # steps may be shared, the order on the link may not change.
        t = max(on_link[first_link[e]], on_edge[e])
        for i in range(ptr[m], ptr[m + 1]):
            t = max(t, ready[src[e], chunk[i]])
        step[m] = on_link[first_link[e]] = t
        on_edge[e] = t + 1
        for i in range(ptr[m], ptr[m + 1]):
            ready[dst[e], chunk[i]] = max(ready[dst[e], chunk[i]], t + 1)
    return step
