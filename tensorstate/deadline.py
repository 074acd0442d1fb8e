"""When a search must end: its deadline, which all of its programs know.

A solver's time limit is for the program that it solves. A search of several stages gives each a
part of its own limit, and to build a program may take longer than that part. So beside the parts
there is one deadline: after it no program is built to its end, and none is solved.
"""

from __future__ import annotations

import time

from tensorstate.errors import PlanError

# Seconds of a solver that has no time left of its part, so that it can run at all.
LEAST_SECONDS = 0.1

# Seconds until the deadline of any search: small problems have an answer however little time it is.
LEAST_LIMIT_S = 0.5


class OutOfTime(PlanError):
    """Nothing was found before the deadline; more time may find a plan."""


def deadline_after(time_limit: float) -> float:
    """The time of ``time.perf_counter`` at which a search that begins now must end."""
    return time.perf_counter() + max(LEAST_LIMIT_S, time_limit)


def remaining_time(until: float) -> float:
    """Seconds until a time of ``time.perf_counter``; at least ``LEAST_SECONDS``."""
    return max(LEAST_SECONDS, until - time.perf_counter())


def is_over(deadline: float) -> bool:
    """Whether a deadline has passed."""
    return time.perf_counter() > deadline


def check(deadline: float) -> None:
    """Nothing, until the deadline.

    Raises:
        OutOfTime: after it.
    """
    if is_over(deadline):
        raise OutOfTime("no plan was found in time; allow more time")
