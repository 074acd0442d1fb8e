"""When a search must end: its deadline, which all of its programs know.

A solver's time limit is for the program that it solves. A search of several stages gives each a
part of its own limit, and to build a program may take longer than that part. So beside the parts
there is one deadline: after it no program is built to its end, and none is solved.
"""

from __future__ import annotations

import math
import time

from tensorstate.errors import PlanError

# Seconds of a solver that has no time left of its part, so that it can run at all.
LEAST_SECONDS = 0.1

# Seconds until the deadline of any search: small problems have an answer however little time it is.
LEAST_LIMIT_S = 0.5


# CPU seconds of all stages under a memory limit if no time limit is given, and at least so many
# times the seconds of the search without the limit, which takes longer for larger steps.
LIMITED_S, LIMITED_TIMES = 12.0, 8.0

# Seconds that pass on a clock for each CPU second of a search, at most: others may use the machine,
# and a limit in seconds of a clock refused there what fits.
MOST_BUSY = 8.0


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


class Budget:
    """Seconds that the stages under a memory limit share, from the first of them on.

    Programs of other shares of communication (``solver.overlap``) begin their stages one after
    another; what one has spent, the others lack.
    """

    def __init__(self, part: float = 1.0) -> None:
        """The budget of a search that begins now, whose stages begin later.

        Args:
            part: the largest part of the seconds that the stages of one program may take.
        """
        self._part, self._start, self._seconds = part, math.inf, LIMITED_S
        self._born = time.perf_counter(), time.process_time()

    def until(self, seconds_without_limit: float) -> float:
        """The time of ``time.perf_counter`` at which stages that begin now must end.

        Args:
            seconds_without_limit: those of the search without the memory limit; the first stages
                decide by them how long the budget is.
        """
        now = time.perf_counter()
        if self._start > now:
            self._start = now
            seconds = max(LIMITED_S * self._busy(), LIMITED_TIMES * seconds_without_limit)
            self._seconds = seconds
        return min(self.end, now + self._part * self._seconds)

    def _busy(self) -> float:
        """The seconds that passed for each CPU second since the search began."""
        passed = time.perf_counter() - self._born[0]
        worked = time.process_time() - self._born[1]
        return min(MOST_BUSY, passed / worked) if passed > worked > 0 else 1.0

    @property
    def end(self) -> float:
        """The time at which all stages must end; infinite before the first begins."""
        return self._start + self._seconds

    @property
    def spent(self) -> float:
        """The part that has passed; 0 before the first stage, more than 1 after the end."""
        return max(0.0, (time.perf_counter() - self._start) / self._seconds)
