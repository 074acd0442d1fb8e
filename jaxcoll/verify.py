"""The verifier: proves that a schedule carries its collective, or names where it does not.

It knows the core types only, no synthesizer. One pass over the sends replays every step on the
number of contributions each (rank, chunk) holds:

- a copy needs a complete chunk at the sender and nothing at the receiver;
- a send with ``reduce`` moves the sender's partial sum, so contributions are conserved: if in the
  end a rank holds as many as there are, it holds every one exactly once.

Time O(sends), memory one small integer a (rank, chunk).
"""

from __future__ import annotations

import numba as nb
import numpy as np

from jaxcoll.errors import ScheduleError
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


def verify(schedule: Schedule | TreeFlow) -> None:
    """Prove that a schedule carries its collective, or trees theirs (``TreeFlow.check_load``).

    Proved of a schedule: every edge is a path of links; every send has its chunk (in full for a
    copy) before its step begins; nothing is delivered twice; every contribution is added exactly
    once; every rank ends with exactly what the collective asks for.

    Raises:
        ScheduleError: with ``rank``, ``chunk`` and ``step`` of the first thing that is wrong.
    """
    if isinstance(schedule, TreeFlow):
        schedule.check_load()
        return
    collective = schedule.collective
    schedule.edges.check(schedule.topology)
    if not collective.is_reducing and schedule.reduce.any():
        send = int(np.flatnonzero(schedule.reduce)[0])
        text = f"adds chunk {schedule.chunk[send]}, but {collective.kind} does not sum"
        _refuse(schedule, send, int(schedule.src[send]), text)
    held = collective.precondition().astype(np.int32 if collective.is_reducing else np.int8)
    code, send = _replay(
        schedule.step_ptr,
        schedule.edge,
        schedule.chunk,
        schedule.reduce,
        schedule.edges.src,
        schedule.edges.dst,
        collective.contributions,
        held,
        np.zeros(max(1, int(np.diff(schedule.step_ptr).max(initial=0))), np.int32),
    )
    if code != _OK:
        _explain(schedule, code, send, held)
    _check_end(schedule, held)


@nb.njit(cache=True)
def _replay(step_ptr, edge, chunk, reduce, src, dst, complete, held, moved):
    for t in range(len(step_ptr) - 1):
        first, last = step_ptr[t], step_ptr[t + 1]
        # What the step's senders have before any of the step's arrivals.
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
