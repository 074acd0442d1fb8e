"""The verifier: proves that a schedule carries its collective, or names where it does not.

It knows the core types only, no synthesizer. One pass over the sends replays every step on the
number of contributions each (rank, chunk) holds:

- a copy needs a complete chunk at the sender and nothing at the receiver;
- a send with ``reduce`` moves the sender's partial sum, so contributions are conserved: if in the
  end a rank holds as many as there are, it holds every one exactly once.

Time O(sends), memory one small integer per (rank, chunk). A compact schedule is read from disk as
it is replayed, with one bit per (rank, chunk).
"""

from __future__ import annotations

import numpy as np

from jaxcoll.compact import CompactSchedule, check_compact
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import spans
from jaxcoll.schedule import Schedule
from jaxcoll.trees import TreeFlow

_GIVEN_AWAY = -1

_OK = 0
_INCOMPLETE = 1
_NOTHING = 2
_ALREADY = 3
_AFTER_GIVING = 4
_TOO_MANY = 5
_OVERWRITES = 6
_TWICE = 7
_UNKNOWN = 8
_MISCOUNTED = 9

# Kernels see no signals, such as those of Ctrl-C: so many steps of a compact schedule, and sends of
# another, are replayed in a call.
_STEPS_AT_ONCE = 64
_SENDS_AT_ONCE = 1 << 22


def verify(schedule: Schedule | CompactSchedule | TreeFlow) -> None:
    """Prove that a schedule carries its collective, or trees theirs (``TreeFlow.check_load``).

    Proved of a schedule: every edge is a path of links; every send has its chunk (in full for a
    copy) before its step begins; nothing is delivered twice; every contribution is added exactly
    once; every rank ends with exactly the chunks that the collective asks for.

    Raises:
        ScheduleError: with ``rank``, ``chunk`` and ``step`` of the first thing that is wrong.
    """
    kinds = (Schedule, CompactSchedule, TreeFlow)
    checks.instance(schedule, kinds, "what is verified", ScheduleError)
    if isinstance(schedule, TreeFlow):
        schedule.check_load()
        return
    if isinstance(schedule, CompactSchedule):
        _verify_compact(schedule)
        return
    collective = schedule.collective
    schedule.edges.check(schedule.topology)
    if not collective.is_reducing and schedule.reduce.any():
        send = int(np.flatnonzero(schedule.reduce)[0])
        text = f"adds chunk {schedule.chunk[send]}, but {collective.kind} does not sum"
        _refuse(schedule, send, int(schedule.src[send]), text)
    held = collective.precondition().astype(np.int32 if collective.is_reducing else np.int8)
    edges, step_ptr = schedule.edges, schedule.step_ptr
    for first, last in spans(step_ptr, _SENDS_AT_ONCE):
        code, send = _replay(
            step_ptr[first : last + 1],
            schedule.edge,
            schedule.chunk,
            schedule.reduce,
            edges.src,
            edges.dst,
            collective.contributions,
            held,
        )
        if code != _OK:
            _explain(schedule, code, send, held)
    _check_end(schedule, held)


@kernel(cache=True)
def _replay(step_ptr, edge, chunk, reduce, src, dst, complete, held):
    longest = 1
    for t in range(len(step_ptr) - 1):
        longest = max(longest, step_ptr[t + 1] - step_ptr[t])
    moved = np.zeros(longest, np.int32)
    for t in range(len(step_ptr) - 1):
        first, last = step_ptr[t], step_ptr[t + 1]
        # The senders' chunks before any of the step's arrivals.
        for i in range(first, last):
            u, c = src[edge[i]], chunk[i]
            moved[i - first] = held[u, c]
            if reduce[i]:
                if held[u, c] <= 0:
                    return _NOTHING, i
            elif held[u, c] != complete[c]:
                return _INCOMPLETE, i
        for i in range(first, last):
            if reduce[i]:
                u, c = src[edge[i]], chunk[i]
                if held[u, c] == _GIVEN_AWAY:
                    return _TWICE, i
                held[u, c] = _GIVEN_AWAY
        for i in range(first, last):
            v, c = dst[edge[i]], chunk[i]
            if reduce[i]:
                if held[v, c] == _GIVEN_AWAY:
                    return _AFTER_GIVING, i
                held[v, c] += moved[i - first]
                if held[v, c] > complete[c]:
                    return _TOO_MANY, i
            elif held[v, c] == complete[c]:
                return _ALREADY, i
            elif held[v, c] > 0:
                return _OVERWRITES, i
            else:
                held[v, c] = complete[c]
    return _OK, -1


def _explain(schedule: Schedule, code: int, send: int, held: np.ndarray) -> None:
    u, v, c = int(schedule.src[send]), int(schedule.dst[send]), int(schedule.chunk[send])
    have = max(int(held[u, c]), 0)
    full = int(schedule.collective.contributions[c])
    sender_text = {
        _INCOMPLETE: f"sends chunk {c} to rank {v}, but has "
        + (f"only {have} of its {full} contributions" if have else "not received it")
        + " before this step",
        _NOTHING: f"gives rank {v} a partial sum of chunk {c}, but has none to give",
        _TWICE: f"gives its partial sum of chunk {c} away twice",
    }
    receiver_text = {
        _ALREADY: f"receives chunk {c} from rank {u}, but already has it",
        _AFTER_GIVING: f"receives a contribution to chunk {c} from rank {u} after giving its own "
        "partial sum away",
        _TOO_MANY: f"adds more than the {full} contributions of chunk {c}: some are added twice",
        _OVERWRITES: f"receives chunk {c} from rank {u} over a partial sum it has not given away",
    }
    if code in sender_text:
        _refuse(schedule, send, u, sender_text[code])
    _refuse(schedule, send, v, receiver_text[code])


def _refuse(schedule: Schedule, send: int, rank: int, text: str) -> None:
    step = int(np.searchsorted(schedule.step_ptr, send, side="right")) - 1
    chunk = int(schedule.chunk[send])
    raise ScheduleError(f"step {step}: rank {rank} {text}", rank=rank, chunk=chunk, step=step)


def _check_end(schedule: Schedule, held: np.ndarray) -> None:
    collective = schedule.collective
    missing = collective.postcondition() & (held != collective.contributions)
    if not missing.any():
        return
    rank, chunk = (int(x) for x in np.argwhere(missing)[0])
    have, full = max(int(held[rank, chunk]), 0), int(collective.contributions[chunk])
    got = f"has {have} of {full} contributions to" if collective.is_reducing else "never receives"
    steps = schedule.num_steps
    raise ScheduleError(
        f"after {steps} steps: rank {rank} {got} chunk {chunk} ({int(missing.sum())} such in all)",
        rank=rank,
        chunk=chunk,
        step=steps,
    )


# ---------------------------------------------------------------------- compact schedules


def _verify_compact(schedule: CompactSchedule) -> None:
    """An all_gather without groups: every rank ends with every chunk, received once."""
    topology, collective = schedule.topology, schedule.collective
    check_compact(topology, collective)
    n, chunks, steps = collective.num_ranks, collective.num_chunks, schedule.num_steps
    # Bit ``place & 511`` of row (place >> 9, rank): a block of chunks that are sent at about the
    # same time is a part of the table that fits a cache.
    held = np.zeros((-(-chunks // 512), n, 8), np.uint64)
    count = np.zeros(n, np.int64)
    _hold_own(collective.owner, schedule.order, held, count)
    for first in range(0, steps, _STEPS_AT_ONCE):
        last = min(first + _STEPS_AT_ONCE, steps)
        ptr = schedule.step_ptr[first : last + 1]
        sent = np.asarray(schedule.chunk[ptr[0] : ptr[-1]])
        active = np.asarray(schedule.active[first:last])
        code, step, link, chunk = _replay_compact(
            ptr - ptr[0], active, sent, schedule.order, topology.src, topology.dst, held, count
        )
        if code != _OK:
            _explain_compact(schedule, code, first + step, link, chunk)
    if (count < chunks).any():
        rank = int(np.flatnonzero(count < chunks)[0])
        place = schedule.order.astype(np.int64)
        got = held[place >> 9, rank, (place >> 6) & 7] >> (place & 63).astype(np.uint64) & 1
        chunk = int(np.flatnonzero(got == 0)[0])
        raise ScheduleError(
            f"after {steps} steps: rank {rank} never receives chunk {chunk} "
            f"({int((chunks - count).sum())} such in all)",
            rank=rank,
            chunk=chunk,
            step=steps,
        )


@kernel(cache=True)
def _hold_own(owner, order, held, count):
    for c in range(len(owner)):
        place = order[c]
        held[place >> 9, owner[c], (place >> 6) & 7] |= np.uint64(1) << np.uint64(place & 63)
        count[owner[c]] += 1


@kernel(cache=True, nogil=True)
def _replay_compact(ptr, active, sent, order, src, dst, held, count):
    """Replays some steps; the first thing wrong as (code, step, link, chunk)."""
    links = len(src)
    for t in range(len(ptr) - 1):
        i = ptr[t]
        for link in range(links):
            if active[t, link >> 3] >> (link & 7) & 1:
                if i == ptr[t + 1]:
                    return _MISCOUNTED, t, link, -1
                if sent[i] >= len(order):
                    return _UNKNOWN, t, link, np.int64(sent[i])
                place = np.int64(order[sent[i]])
                bit = np.uint64(1) << np.uint64(place & 63)
                if held[place >> 9, src[link], (place >> 6) & 7] & bit == np.uint64(0):
                    return _INCOMPLETE, t, link, np.int64(sent[i])
                i += 1
        if i != ptr[t + 1]:
            return _MISCOUNTED, t, -1, -1
        i = ptr[t]
        for link in range(links):
            if active[t, link >> 3] >> (link & 7) & 1:
                place, v = np.int64(order[sent[i]]), dst[link]
                bit = np.uint64(1) << np.uint64(place & 63)
                if held[place >> 9, v, (place >> 6) & 7] & bit != np.uint64(0):
                    return _ALREADY, t, link, np.int64(sent[i])
                held[place >> 9, v, (place >> 6) & 7] |= bit
                count[v] += 1
                i += 1
    return _OK, -1, -1, -1


def _explain_compact(
    schedule: CompactSchedule, code: int, step: int, link: int, chunk: int
) -> None:
    if code == _MISCOUNTED:
        raise ScheduleError(
            f"step {step}: the bitmap of active links and step_ptr count different sends", step=step
        )
    u, v = int(schedule.topology.src[link]), int(schedule.topology.dst[link])
    rank, text = {
        _UNKNOWN: (u, f"sends chunk {chunk}, of {schedule.collective.num_chunks}"),
        _INCOMPLETE: (u, f"sends chunk {chunk} to rank {v}, but has not received it before"),
        _ALREADY: (v, f"receives chunk {chunk} from rank {u}, but already has it"),
    }[code]
    raise ScheduleError(f"step {step}: rank {rank} {text}", rank=rank, chunk=chunk, step=step)
