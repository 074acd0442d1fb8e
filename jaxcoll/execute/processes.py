"""Processes: all of them must run the same schedule, or they wait for each other for ever.

So before a schedule first runs on a mesh of all devices, every process publishes its schedule
through the service that ``jax.distributed.initialize`` connects them to. If schedules differ, all
raise.
"""

from __future__ import annotations

import functools
import hashlib
import threading

import jax

from jaxcoll.errors import ScheduleError
from jaxcoll.execute import jax_internals
from jaxcoll.execute.axes import Axes
from jaxcoll.schedule import Schedule

TIMEOUT_SECONDS = 300

# The different schedules that a process has run at each kind of call, in the order in which it met
# them. All processes trace the same programs, so these orders are the same. Between calls of
# different kinds the order may differ, since programs are also traced in the background.
_numbers: dict[str, dict[str, int]] = {}
_lock = threading.Lock()


def agree(schedule: Schedule, axes: Axes, lowering: str, call: str) -> None:
    """Make sure that all processes are about to run the same schedule in the same way.

    Does nothing in one process, or on a mesh of some of the devices only (whose other processes
    cannot be known while tracing).

    Args:
        call: all but the schedule: kind, size, groups, and the configuration.

    Raises:
        ScheduleError: on every process, if some differ, or one does not say within
            ``TIMEOUT_SECONDS``.
    """
    if jax.process_count() > 1 and jax_internals.mesh_size() == jax.device_count():
        _agree(schedule, axes, lowering, call)


@functools.lru_cache(maxsize=4096)
def _agree(schedule: Schedule, axes: Axes, lowering: str, call: str) -> None:
    me = jax.process_index()
    mine = f"{schedule!r}, digest {schedule.digest[:16]}, over {axes}, lowering {lowering}"
    key = agreement_key(call, axes, mine)
    jax_internals.publish(f"{key}/{me}", mine)
    for other in range(jax.process_count()):
        theirs = jax_internals.fetch(f"{key}/{other}", TIMEOUT_SECONDS)
        if theirs is None:
            raise ScheduleError(
                f"process {other} did not say within {TIMEOUT_SECONDS} s which schedule it runs; "
                f"process {me} is about to run {mine}"
            )
        if theirs != mine:
            raise ScheduleError(
                f"processes are about to run different schedules: process {me} {mine}; process "
                f"{other} {theirs}"
            )


def agreement_key(call: str, axes: Axes, mine: str) -> str:
    """The key under which all processes publish the schedule that each is about to run."""
    kind = hashlib.sha256(f"{call} over {axes}".encode()).hexdigest()[:32]
    with _lock:
        met = _numbers.setdefault(kind, {})
        number = met.setdefault(mine, len(met))
    return f"jaxcoll/{kind}/{number}"
