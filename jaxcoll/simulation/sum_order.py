"""The order in which a schedule adds: whether an element's sum depends on the chunk it lies in.

Floating-point addition commutes but does not associate, so the bits of a sum are those of its
bracketing: ((a + b) + c) is (c + (b + a)), and not (a + (b + c)). A schedule that brackets the
contributions of a group in one way for all chunks gives an element the same bits wherever in a
buffer it lies, whatever the buffer's size and the number of chunks.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule


def sum_orders(schedule: Schedule) -> int:
    """In how many orders a schedule adds: the most of any group, over its chunks and ranks.

    1 is what ``order="fixed"`` asks for. Contributions are told apart by their places in the group.
    A chunk to which a rank adds two arrivals of one step counts as an order of its own, since
    executions may add them either way round.

    Args:
        schedule: of reduce_scatter, all_reduce or reduce; verified.

    Raises:
        CollectiveError: a schedule that adds nothing.
        ScheduleError: one of a collective of millions of chunks with fewer sends than it takes
            (``Schedule.check_claims``).
    """
    checks.instance(schedule, Schedule, "schedule", CollectiveError)
    collective = schedule.collective
    if not collective.is_reducing:
        raise CollectiveError(f"{schedule} adds nothing; give one of a sum")
    schedule.check_claims()
    orders = _replayed(schedule)
    wanted = collective.postcondition()
    group = np.broadcast_to(collective.group_of_chunk, wanted.shape)
    found = np.unique(np.stack([group[wanted], orders[wanted]]), axis=1)
    return int(np.bincount(found[0]).max(initial=1))


def _replayed(schedule: Schedule) -> np.ndarray:
    """The bracketing of what each rank has of each chunk in the end, numbered; (ranks, chunks)."""
    collective = schedule.collective
    chunks = np.arange(collective.num_chunks)
    place = np.full(collective.num_ranks, -1, np.int64)
    for members in collective.groups:
        place[list(members)] = np.arange(len(members))
    # A contribution is numbered by its place, nothing is -1, a sum is numbered when first met.
    held = np.where(collective.precondition(), place[:, None], -1)
    known: dict[tuple[int, int], int] = {}
    fresh = collective.num_ranks

    src, dst = schedule.src, schedule.dst
    for first, last in zip(schedule.step_ptr[:-1], schedule.step_ptr[1:], strict=True):
        here = slice(first, last)
        u, v, c, adds = src[here], dst[here], schedule.chunk[here], schedule.reduce[here]
        moved = held[u, c]
        held[u[adds], c[adds]] = -1
        cell = v.astype(np.int64) * len(chunks) + c
        _, which, times = np.unique(cell, return_inverse=True, return_counts=True)
        pairs = np.stack([moved, np.where(adds, held[v, c], -1)])
        pairs.sort(axis=0)
        pairs, number = np.unique(pairs, axis=1, return_inverse=True)
        names = np.empty(pairs.shape[1], np.int64)
        for i, (a, b) in enumerate(pairs.T.tolist()):
            if a < 0:
                names[i] = b
                continue
            if (a, b) not in known:
                known[a, b], fresh = fresh, fresh + 1
            names[i] = known[a, b]
        result = names[number.ravel()]
        unordered = times[which.ravel()] > 1
        # Numbers from the top down are never met again.
        result[unordered] = np.iinfo(np.int64).max - cell[unordered]
        held[v, c] = result
    return held
