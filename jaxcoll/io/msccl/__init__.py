"""MSCCL XML: schedules as the programs that MSCCL, its executor for NCCL and RCCL run.

- ``program``: a program as data, its XML, and the limits of the runtimes that read it;
- ``lowering``: the program of a schedule;
- ``replay``: a program run message by message, and the schedule that it carries out.
"""

from __future__ import annotations

import os

from jaxcoll.io.files import MAX_BYTES, read_text, write_text
from jaxcoll.io.msccl.lowering import lower
from jaxcoll.io.msccl.program import Block, Instruction, Program, loads, written
from jaxcoll.io.msccl.replay import lift
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

__all__ = ["Block", "Instruction", "Program", "dumps", "lift", "load", "loads", "lower", "save"]


def dumps(program: Program | Schedule, *, dialect: str = "msccl", max_bytes: int = 2**30) -> str:
    """The XML of a program, or of that of a schedule; see ``program.written`` and ``lower``.

    Raises:
        FormatError: another dialect, a bound below 1, a schedule that no program carries out, or
            one over the limits of the runtime.
    """
    given = lower(program, dialect=dialect) if isinstance(program, Schedule) else program
    return written(given, dialect=dialect, max_bytes=max_bytes)


def save(
    path: str | os.PathLike,
    schedule: Schedule,
    *,
    name: str = "jaxcoll",
    protocol: str = "Simple",
    dialect: str = "msccl",
    max_bytes: int = 2**30,
) -> None:
    """Write the program of a schedule, all or nothing; see ``lower`` and ``program.written``.

    Raises:
        FormatError: a schedule that no program of this format carries out, or one over the limits
            of the dialect's runtime, with the number that is too large.
        OSError: the file cannot be written.
    """
    program = lower(schedule, name=name, protocol=protocol, dialect=dialect)
    write_text(path, written(program, dialect=dialect, max_bytes=max_bytes))


def load(path: str | os.PathLike, topology: Topology, max_bytes: int = MAX_BYTES) -> Schedule:
    """The schedule that a file carries out on a network; see ``lift``.

    Raises:
        FormatError: not a program, or one that stops before its end.
        ScheduleError: it ends, and is not the collective it is said to be.
        OSError: the file cannot be read.
    """
    return lift(loads(read_text(path, max_bytes)), topology)
