"""Processes: all of them must run the same schedules, or they wait for each other for ever.

So before a program first runs, the processes whose devices it runs on compare the schedules in it
through the service that ``jax.distributed.initialize`` connects them to. Tracing, lowering and
compiling, which one process may do alone, wait for nobody.

The first of these processes leads: it reads what each of them is about to run, and publishes a
verdict, so that all go on or all raise. Comparisons on the same devices are numbered. Processes
that share devices run the same programs in the same order, so these numbers are the same.

What this does not see: programs that have run before, of which some processes call one and others
another; and programs that ``jax.export`` brings from elsewhere.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax

from jaxcoll.errors import ScheduleError
from jaxcoll.execute import jax_internals
from jaxcoll.execute.axes import Axes
from jaxcoll.execute.native import Native
from jaxcoll.schedule import Schedule

TIMEOUT_SECONDS = 300
# How much longer than the leader the others wait: for its verdict on a process that did not come.
MARGIN_SECONDS = 10

_AGREED = "agreed"

# How many programs each set of devices has been asked to run, by their ids.
_counts: collections.Counter[tuple[int, ...]] = collections.Counter()
# Two threads that run programs on the same devices compare one after the other.
_lock = threading.Lock()


@dataclasses.dataclass
class Call:
    """A collective in a lowered program, which the program carries to where it runs."""

    text: str
    is_agreed: bool = False


def call_of(x: str, axes: Axes, schedule: Schedule | Native, how: str) -> Call | None:
    """A collective as its program carries it; ``None`` if there is one process only.

    Args:
        x: the operand's type.
        how: all else that processes must have in common.
    """
    if jax.process_count() == 1:
        return None
    jax_internals.check_before_running(Call, agree)
    runs = f"jax.lax for {schedule.collective}"
    if isinstance(schedule, Schedule):
        runs = f"{schedule!r}, digest {schedule.digest[:16]}"
    return Call(f"{runs}, of {x} over {axes}, {how}")


def agree(program: str, calls: Sequence[Call], devices: Sequence[Any]) -> None:
    """Make sure that all processes with some of the devices are about to run the same schedules.

    Raises:
        ScheduleError: on all of them, if some differ, or one does not say within
            ``TIMEOUT_SECONDS``.
    """
    members = sorted({device.process_index for device in devices})
    if len(members) == 1 or all(call.is_agreed for call in calls):
        return
    mine = json.dumps([f"{program}:", *dict.fromkeys(call.text for call in calls)])
    ids = tuple(sorted(device.id for device in devices))
    with _lock:
        key = f"jaxcoll/{hashlib.sha256(repr(ids).encode()).hexdigest()[:32]}/{_counts[ids]}"
        verdict = _verdict(key, members, mine)
        # Whoever leaves without a verdict takes part again under the same number.
        _counts[ids] += verdict is not None
    if verdict is None:
        raise ScheduleError(_absent(members[0], jax.process_index(), mine))
    if verdict != _AGREED:
        raise ScheduleError(verdict)
    for call in calls:
        call.is_agreed = True


def _verdict(key: str, members: Sequence[int], mine: str) -> str | None:
    """The verdict of the leader, ``_AGREED`` or an error; ``None`` if the leader did not come."""
    me = jax.process_index()
    if me == members[0]:
        verdict = _compared(key, members, mine)
        jax_internals.publish(f"{key}/verdict", verdict)
        return verdict
    jax_internals.publish(f"{key}/{me}", mine)
    verdict = jax_internals.fetch(f"{key}/verdict", TIMEOUT_SECONDS + MARGIN_SECONDS)
    if verdict is None:
        # A leader that comes later must not take this process for one that is still there.
        jax_internals.discard(f"{key}/{me}")
    return verdict


def _compared(key: str, members: Sequence[int], mine: str) -> str:
    """The leader's verdict on what all members are about to run."""
    leader, *others = members
    deadline = time.monotonic() + TIMEOUT_SECONDS
    said = {}
    for other in others:
        theirs = jax_internals.fetch(f"{key}/{other}", max(deadline - time.monotonic(), 0.1))
        if theirs is None:
            return _absent(other, leader, mine)
        said[other] = theirs
    for other, theirs in said.items():
        both = itertools.zip_longest(json.loads(mine), json.loads(theirs), fillvalue="no more")
        for ours, its in both:
            if ours != its:
                return (
                    f"processes are about to run different schedules: process {leader} {ours}; "
                    f"process {other} {its}"
                )
    return _AGREED


def _absent(other: int, me: int, mine: str) -> str:
    return (
        f"process {other} did not say within {TIMEOUT_SECONDS} s which schedules it runs; process "
        f"{me} is about to run {' '.join(json.loads(mine))}"
    )
