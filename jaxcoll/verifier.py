"""The verifier: proves that a schedule carries its collective, or names where it does not.

It knows the core types only, no synthesizer. One pass over the sends replays every step on the
number of contributions each (rank, chunk) holds:

- a copy needs a complete chunk at the sender and nothing at the receiver;
- a send with ``reduce`` moves the sender's partial sum, so contributions are conserved: if in the
  end a rank holds as many as there are, it holds every one exactly once.

Time O(sends), memory one small integer per (rank, chunk), for so many chunks at a time that it is
bounded: chunks are proved one without the other. A compact schedule is read from disk as it is
replayed, with one bit per (rank, chunk).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.compact import CompactSchedule, check_compact
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import spans
from jaxcoll.orbits import OrbitSchedule
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
# (rank, chunk) pairs of which a number is kept at a time.
_PAIRS_AT_ONCE = 1 << 25


def verify(schedule: Schedule | CompactSchedule | TreeFlow) -> None:
    """Prove that a schedule carries out its collective.

    This is proved: every edge is a path of links; every send has its chunk (in full for a
    copy) before its step begins; nothing is delivered twice; every contribution is added exactly
    once; every rank ends with exactly the chunks that the collective asks for; if the collective
    allows no helpers, no rank outside a group takes part in it. Trees (``TreeFlow``) are proved by
    ``TreeFlow.check_load``. Schedules by orbits are proved for the shard of one rank, and with it
    for all (``OrbitSchedule``).

    Raises:
        ScheduleError: with ``rank``, ``chunk`` and ``step`` of the first fault.
    """
    kinds = (Schedule, CompactSchedule, TreeFlow)
    checks.instance(schedule, kinds, "what is verified", ScheduleError)
    if isinstance(schedule, TreeFlow):
        schedule.check_load()
        return
    if isinstance(schedule, CompactSchedule):
        _verify_compact(schedule)
        return
    if isinstance(schedule, OrbitSchedule):
        schedule.translations.check()
        schedule = schedule.orbit
    collective = schedule.collective
    schedule.edges.check(schedule.topology)
    if not collective.is_reducing and schedule.reduce.any():
        send = int(np.flatnonzero(schedule.reduce)[0])
        text = f"adds chunk {schedule.chunk[send]}, but {collective.kind} does not sum"
        raise _error(schedule, send, int(schedule.src[send]), text)
    if not collective.helpers and schedule.helped.any():
        send = int(np.flatnonzero(schedule.helped)[0])
        text = f"gets chunk {schedule.chunk[send]} by way of a rank outside its group, where "
        raise _error(schedule, send, int(schedule.dst[send]), f"{text}nobody helps (helpers=False)")
    schedule.check_claims()
    if not collective.num_deliveries and not schedule.num_sends:
        return  # groups of one rank: every chunk is where it must be
    # Chunks never meet, so they are proved in parts; the fault of the lowest step is the one
    # reported, as if all had been replayed together.
    most = max(_PAIRS_AT_ONCE, collective.num_ranks)
    table = np.zeros(min(most, collective.num_ranks * collective.num_chunks), np.int8)
    found = [_first_fault(schedule, *part, table) for part in _in_parts(schedule)]
    during = [fault for fault in found if isinstance(fault, _Fault)]
    if during:
        raise min(during, key=lambda fault: fault.at).error
    lacking = [missing for missing in found if isinstance(missing, _Missing)]
    if lacking:
        rank, chunk, have, _ = min(lacking)
        missing, full = sum(one.count for one in lacking), int(collective.contributions[chunk])
        sums = collective.is_reducing
        got = f"has {have} of {full} contributions to" if sums else "never receives"
        steps = schedule.num_steps
        raise ScheduleError(
            f"after {steps} steps: rank {rank} {got} chunk {chunk} ({missing} such in all)",
            rank=rank,
            chunk=chunk,
            step=steps,
        )


class _Fault(NamedTuple):
    """The first thing wrong with the sends of some chunks, and the error to raise for it."""

    at: tuple[int, int, int]  # step, and within it the pass of the replay and the send
    error: ScheduleError


class _Missing(NamedTuple):
    """What some chunks lack in the end: how many, and of the first the contributions held."""

    rank: int
    chunk: int
    have: int
    count: int


def _in_parts(schedule: Schedule) -> Iterator[tuple[int, int, np.ndarray | slice]]:
    """Parts of the chunks: the first chunk, the one after the last, and their sends, rising."""
    chunks = schedule.collective.num_chunks
    at_once = max(1, _PAIRS_AT_ONCE // schedule.collective.num_ranks)
    if chunks <= at_once:
        yield 0, chunks, slice(None)
        return
    # A thousand parts that look at all sends each take minutes where one takes a second.
    parts = -(-chunks // at_once)
    part = (schedule.chunk // at_once).astype(np.uint16 if parts <= 2**16 else np.int64)
    order, ptr = np.argsort(part, kind="stable"), np.cumsum(np.bincount(part, minlength=parts))
    for number, (first, last) in enumerate(itertools.pairwise([0, *ptr.tolist()])):
        yield number * at_once, min((number + 1) * at_once, chunks), order[first:last]


def _first_fault(
    schedule: Schedule, begin: int, end: int, sends: np.ndarray | slice, table: np.ndarray
) -> _Fault | _Missing | None:
    """Replay the sends of chunks ``begin..end - 1``.

    Args:
        sends: the numbers of these sends, rising; or all.
        table: zeros, int8, for as many (rank, chunk) pairs at least; zeros again afterwards.
    """
    collective, edges, step_ptr = schedule.collective, schedule.edges, schedule.step_ptr
    if not isinstance(sends, slice):
        step_ptr = np.searchsorted(sends, step_ptr)
    columns = schedule.edge[sends], schedule.chunk[sends], schedule.reduce[sends]
    held = _held_before(collective, begin, end, table)
    found = _replayed(schedule, begin, sends, step_ptr, columns, held)
    if found is None:
        rank, place = _lacking(collective, begin, end, held)
        if len(rank):
            have = max(int(held[rank[0], place[0]]), 0)
            found = _Missing(int(rank[0]), begin + int(place[0]), have, len(rank))
    if collective.traits.moves:
        edge, chunk, _ = columns
        held[edges.dst[edge], chunk - begin] = 0
        held[collective.ends(collective.traits.before)[begin:end], np.arange(end - begin)] = 0
    return found


def _replayed(
    schedule: Schedule,
    begin: int,
    sends: np.ndarray | slice,
    step_ptr: np.ndarray,
    columns: tuple[np.ndarray, ...],
    held: np.ndarray,
) -> _Fault | None:
    """Replay some sends on what ranks hold; the first fault of them."""
    edges = schedule.edges
    complete = schedule.collective.contributions[begin : begin + held.shape[1]]
    for first, last in spans(step_ptr, _SENDS_AT_ONCE):
        code, send = _replay(
            step_ptr[first : last + 1], *columns, (edges.src, edges.dst), begin, complete, held
        )
        if code != _OK:
            number = send if isinstance(sends, slice) else int(sends[send])
            return _explained(schedule, code, number, begin, held)
    return None


def _held_before(collective: Collective, begin: int, end: int, table: np.ndarray) -> np.ndarray:
    """Contributions that each rank holds of chunks ``begin..end - 1``, of shape (ranks, chunks)."""
    shape = (collective.num_ranks, end - begin)
    if collective.traits.moves:
        # One rank has a chunk, and few get it: of 1,024 ranks the others are nearly all, and
        # writing their zeros for every part would take most of the time.
        held = table[: shape[0] * shape[1]].reshape(shape)
        held[collective.ends(collective.traits.before)[begin:end], np.arange(end - begin)] = 1
        return held
    held = collective.holds(np.arange(shape[0])[:, None], np.arange(begin, end))
    return held.astype(np.int32 if collective.is_reducing else np.int8)


def _lacking(
    collective: Collective, begin: int, end: int, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks, rising, and places from ``begin`` on of chunks that they want and have not in full."""
    complete = collective.contributions[begin:end]
    if collective.traits.moves:
        rank, place = collective.ends(collective.traits.after)[begin:end], np.arange(end - begin)
        lacks = np.flatnonzero(held[rank, place] != complete)
        lacks = lacks[np.argsort(rank[lacks], kind="stable")]
        return rank[lacks], place[lacks]
    wanted = collective.wants(np.arange(len(held))[:, None], np.arange(begin, end))
    rank, place = np.nonzero(wanted & (held != complete))
    return rank, place


@kernel(cache=True)
def _replay(step_ptr, edge, chunk, reduce, ends, begin, complete, held):
    """Replays the sends of the chunks from ``begin`` on; the first thing wrong as (code, send)."""
    (src, dst), count = ends, len(complete)
    longest = 1
    for t in range(len(step_ptr) - 1):
        longest = max(longest, step_ptr[t + 1] - step_ptr[t])
    # Three passes per step, since its sends start together: senders are read, then partial sums are
    # given away, then all is added where it arrives. In one pass a chunk could cross two links in a
    # step, and a partial sum would take along contributions that arrive in the same step.
    moved = np.zeros(longest, np.int32)
    for t in range(len(step_ptr) - 1):
        first, last = step_ptr[t], step_ptr[t + 1]
        # The senders' chunks before any of the step's arrivals.
        for i in range(first, last):
            u, c = src[edge[i]], chunk[i] - begin
            if c < 0 or c >= count:
                continue
            moved[i - first] = held[u, c]
            if reduce[i]:
                if held[u, c] <= 0:
                    return _NOTHING, i
            elif held[u, c] != complete[c]:
                return _INCOMPLETE, i
        for i in range(first, last):
            u, c = src[edge[i]], chunk[i] - begin
            if reduce[i] and 0 <= c < count:
                if held[u, c] == _GIVEN_AWAY:
                    return _TWICE, i
                held[u, c] = _GIVEN_AWAY
        for i in range(first, last):
            v, c = dst[edge[i]], chunk[i] - begin
            if c < 0 or c >= count:
                continue
            if reduce[i]:
                if held[v, c] == _GIVEN_AWAY:
                    return _AFTER_GIVING, i
                # The amount is that of the first pass: the sender may have received more in this
                # step.
                held[v, c] += moved[i - first]
                # Numbers are enough, and no sets of contributors: partial sums move and are never
                # copied, so every contribution is in one place, and as many as there are is each of
                # them once.
                if held[v, c] > complete[c]:
                    return _TOO_MANY, i
            elif held[v, c] == complete[c]:
                return _ALREADY, i
            elif held[v, c] > 0:
                return _OVERWRITES, i
            else:
                held[v, c] = complete[c]
    return _OK, -1


def _explained(schedule: Schedule, code: int, send: int, begin: int, held: np.ndarray) -> _Fault:
    u, v, c = int(schedule.src[send]), int(schedule.dst[send]), int(schedule.chunk[send])
    have = max(int(held[u, c - begin]), 0)
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
    which = 0 if code in (_INCOMPLETE, _NOTHING) else 1 if code == _TWICE else 2
    is_sender = code in sender_text
    error = _error(
        schedule, send, u if is_sender else v, (sender_text if is_sender else receiver_text)[code]
    )
    return _Fault((error.step or 0, which, send), error)


def _error(schedule: Schedule, send: int, rank: int, text: str) -> ScheduleError:
    step = int(np.searchsorted(schedule.step_ptr, send, side="right")) - 1
    chunk = int(schedule.chunk[send])
    return ScheduleError(f"step {step}: rank {rank} {text}", rank=rank, chunk=chunk, step=step)


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
