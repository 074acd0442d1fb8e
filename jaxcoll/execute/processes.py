"""Processes: all of them must run the same schedule, or they wait for each other for ever.

So before a schedule first runs on a mesh of all devices, every process publishes its schedule
through the service that ``jax.distributed.initialize`` connects them to. If schedules differ, all
raise.
"""

from __future__ import annotations

import functools
import itertools

import jax

from jaxcoll.errors import ScheduleError
from jaxcoll.execute import jax_internals
from jaxcoll.execute.axes import Axes
from jaxcoll.schedule import Schedule

TIMEOUT_SECONDS = 300

# Numbers the schedules of a process: all processes trace the same program, hence the same schedules
# in the same order.
_number = itertools.count()


def agree(schedule: Schedule, axes: Axes, lowering: str) -> None:
    """Make sure that all processes are about to run the same schedule in the same way.

    Does nothing in one process, or on a mesh of some of the devices only (whose other processes
    cannot be known while tracing).

    Raises:
        ScheduleError: on every process, if some differ, or one does not say within
            ``TIMEOUT_SECONDS``.
    """
    if jax.process_count() > 1 and jax_internals.mesh_size() == jax.device_count():
        _agree(schedule, axes, lowering)


@functools.lru_cache(maxsize=4096)
def _agree(schedule: Schedule, axes: Axes, lowering: str) -> None:
    me, number = jax.process_index(), next(_number)
    mine = f"{schedule!r}, digest {schedule.digest[:16]}, over {axes}, lowering {lowering}"
    jax_internals.publish(f"jaxcoll/{number}/{me}", mine)
    for other in range(jax.process_count()):
        theirs = jax_internals.fetch(f"jaxcoll/{number}/{other}", TIMEOUT_SECONDS)
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
