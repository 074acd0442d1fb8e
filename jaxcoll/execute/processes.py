"""Processes: several of them must run the same schedule, or wait for each other for ever.

So before a schedule first runs on a mesh of all devices, the processes tell each other what they
are about to run, through the service that ``jax.distributed.initialize`` connects them by, and
refuse with an error if they differ.
"""

from __future__ import annotations

import functools
import itertools

import jax

from jaxcoll.errors import ScheduleError
from jaxcoll.execute import jax_internals
from jaxcoll.execute.axes import Axes
from jaxcoll.schedule import Schedule

PATIENCE_SECONDS = 300

# Says which of a process's schedules is the one talked about: all trace the same program, hence the
# same schedules in the same order.
_turn = itertools.count()


def agree(schedule: Schedule, axes: Axes, lowering: str) -> None:
    """Make sure that all processes are about to run the same schedule in the same way.

    Does nothing in one process, or on a mesh of some of the devices only (whose other processes
    cannot be known while tracing).

    Raises:
        ScheduleError: on every process, if some differ, or one does not say within
            ``PATIENCE_SECONDS``.
    """
    if jax.process_count() > 1 and jax_internals.mesh_size() == jax.device_count():
        _agree(schedule, axes, lowering)


@functools.lru_cache(maxsize=4096)
def _agree(schedule: Schedule, axes: Axes, lowering: str) -> None:
    me, turn = jax.process_index(), next(_turn)
    mine = f"{schedule!r}, digest {schedule.digest[:16]}, over {axes}, lowering {lowering}"
    jax_internals.tell(f"jaxcoll/{turn}/{me}", mine)
    for other in range(jax.process_count()):
        theirs = jax_internals.ask(f"jaxcoll/{turn}/{other}", PATIENCE_SECONDS)
        if theirs is None:
            raise ScheduleError(
                f"process {other} did not say within {PATIENCE_SECONDS} s which schedule it runs; "
                f"process {me} is about to run {mine}"
            )
        if theirs != mine:
            raise ScheduleError(
                f"processes are about to run different schedules: process {me} {mine}; process "
                f"{other} {theirs}"
            )
