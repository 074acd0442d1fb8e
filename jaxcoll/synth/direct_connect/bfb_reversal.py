"""A reduce_scatter from an all_gather of the same network, by an isomorphism to its transpose."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule, concatenate


def reversed_on(schedule: Schedule, reversal: Sequence[int] | np.ndarray) -> Schedule:
    """The schedule run backwards, moved back to its own network (Thm. 2).

    Of an all_gather this is a reduce_scatter of equal T_L and T_B, and the other way round. On a
    network whose links all have one that goes back, the identity will do, and the result is
    ``schedule.reverse()``.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        reversal: an isomorphism f from the transposed network to the network: for every link
            (u, v) there is a link (f(v), f(u)) of the same speed.

    Raises:
        CollectiveError: another collective, or groups.
        TopologyError: ``reversal`` is not such an isomorphism.

    Source: dissertation, App. A.2, Defs. 5 to 7.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    collective = schedule.collective
    if collective.kind not in ("all_gather", "reduce_scatter") or collective.is_grouped:
        raise CollectiveError(
            f"an all_gather or reduce_scatter of all ranks in order is reversed, not {collective}"
        )
    count = collective.num_ranks
    image = checks.rank_permutation(reversal, count, "reversal", TopologyError)
    moved = rename_ranks(schedule.reverse(), image)
    if moved.topology != schedule.topology:
        raise TopologyError(
            f"reversal must take every link (u, v) of {schedule.topology} to a link (f(v), f(u)) "
            f"of the same speed"
        )
    return moved


def rename_ranks(schedule: Schedule, image: np.ndarray) -> Schedule:
    """The schedule in which rank r is called ``image[r]``, its shard being shard ``image[r]``.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        image: a permutation of the ranks, int64 of shape (ranks,).
    """
    moved, parts = schedule.relabel(image), schedule.collective.chunks_per_shard
    if schedule.collective.is_grouped:
        raise TopologyError(f"ranks of groups keep their names: {schedule.collective}")
    chunk = image[moved.chunk // parts] * parts + moved.chunk % parts
    collective = Collective(moved.collective.kind, len(image), parts)
    return dataclasses.replace(moved, collective=collective, chunk=chunk.astype(np.int32))


def split_chunks(schedule: Schedule, pieces: int) -> Schedule:
    """The schedule with every chunk split into equal pieces, which are sent together.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        pieces: of each chunk, at least 1.
    """
    pieces = checks.integer(pieces, "pieces", ScheduleError, least=1)
    collective = schedule.collective
    if pieces == 1:
        return schedule
    chunk = schedule.chunk.astype(np.int64)[:, None] * pieces + np.arange(pieces)
    return dataclasses.replace(
        schedule,
        collective=Collective(
            collective.kind, collective.num_ranks, collective.chunks_per_shard * pieces
        ),
        step_ptr=schedule.step_ptr * pieces,
        edge=np.repeat(schedule.edge, pieces),
        chunk=chunk.ravel().astype(np.int32),
        reduce=np.repeat(schedule.reduce, pieces),
    )


def all_reduce_of(scatter: Schedule, gather: Schedule) -> Schedule:
    """The all_reduce of a reduce_scatter and an all_gather, whatever chunks each takes.

    Args:
        scatter, gather: of all ranks in order, on the same network.

    Raises:
        ScheduleError: see ``concatenate``.
    """
    parts = [schedule.collective.chunks_per_shard for schedule in (scatter, gather)]
    shared = math.lcm(*parts)
    return concatenate(
        split_chunks(scatter, shared // parts[0]), split_chunks(gather, shared // parts[1])
    )
