"""The times of steps: which count, which are profiled, and when compilers get time of their own.

The time of a step has the noise of all that it runs; that of one task's collectives has less. A
profile is taken of the program that holds all candidates, where every call of a task is one
conditional, and read in this process: no files are written. A call begins with the first event of
its conditional on any device, and ends with the last event of the operations inside: the
asynchronous ones end after the conditional itself has.
"""

from __future__ import annotations

import bisect
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from jaxcoll.execute import jax_internals
from jaxcoll.tune.training_step.programs import SCOPE, Background
from jaxcoll.tune.training_step.regression import Choice, TaskSeconds, TimedStep

_INSTRUCTION = re.compile(
    rf'^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = .*op_name="[^"]*{re.escape(SCOPE)}(?P<task>\d+)\b'
)
_CONDITIONAL = re.compile(r"^[^=]*=.* conditional\(")

# Steps in which compilers use what the steps leave of the processors. That is enough for steps of
# 8 ms; in short ones the devices are always at work.
_PATIENT_STEPS = 1000
# Seconds of steps between two turns of the compilers, how much longer than these a turn is, and the
# most that it takes where what is between two steps was not steps.
_STEPS_SECONDS, _LONGER, _MOST_SECONDS = 0.05, 2.0, 0.5


class Turns:
    """Turns that steps and compilers take, where the compilers get no further otherwise.

    Args:
        work: of the compilers.

    Attributes:
        seconds: that steps waited in turns of the compilers.
    """

    def __init__(self, work: Background):
        self.seconds = 0.0
        self._work, self._steps = work, 0
        self._since = time.perf_counter()

    def after_step(self, wait: Callable[[], object]) -> None:
        """A step was called; then perhaps a turn of the compilers.

        Args:
            wait: blocks until the devices are idle.
        """
        self._steps += 1
        started = time.perf_counter()
        if self._steps == _PATIENT_STEPS:
            self._since = started
        if self._steps <= _PATIENT_STEPS or started - self._since < _STEPS_SECONDS:
            return
        if not self._work.done:
            wait()
            started = time.perf_counter()
            self._work.join(min(_LONGER * (started - self._since), _MOST_SECONDS))
        self._since = time.perf_counter()
        self.seconds += self._since - started


class Timing:
    """Times steps.

    First calls of a program, and those that wait for steps before them, do not count.

    Args:
        clock: seconds.

    Attributes:
        steps: that count, since they were taken.
        profile_seconds: spent on profiles, which steps waited for.
    """

    def __init__(self, clock: Callable[[], float]):
        self.steps: list[TimedStep] = []
        self.profile_seconds = 0.0
        self._clock = clock
        self._has_waited = False
        self._has_run: set[Hashable] = set()

    def run(
        self,
        call: Callable[[], Any],
        program: Hashable,
        choice: Choice,
        *,
        waits: bool,
        is_usual: bool,
        profiler: Profiler | None,
    ) -> Any:
        """The results of a step.

        Args:
            call: runs the step.
            program: that runs; its first call does not count.
            choice: that the program runs.
            waits: whether ``call`` returns when the step has ended, so that it can be timed.
            is_usual: whether the step runs on the arguments of most steps; others do not count.
            profiler: of the program, where the step is to be profiled if it counts.
        """
        counts = waits and is_usual and self._has_waited and program in self._has_run
        profiler = profiler if counts else None
        self._begin(profiler)
        started = self._clock()
        try:
            outputs = call()
            seconds = self._clock() - started
        finally:
            tasks = self._end(profiler)
        if counts:
            self.steps.append(TimedStep(choice, seconds, tasks))
        self._has_waited = waits
        self._has_run |= {program} if is_usual else set()
        return outputs

    def taken(self) -> list[TimedStep]:
        """The steps that count since they were taken last."""
        steps, self.steps = self.steps, []
        return steps

    def _begin(self, profiler: Profiler | None) -> None:
        if profiler is not None:
            started = time.perf_counter()
            profiler.start()
            self.profile_seconds += time.perf_counter() - started

    def _end(self, profiler: Profiler | None) -> TaskSeconds:
        if profiler is None:
            return ()
        started = time.perf_counter()
        tasks = profiler.stop()
        self.profile_seconds += time.perf_counter() - started
        return tasks


# ---------------------------------------------------------------------- profiles


# Name, start and end in nanoseconds.
Event = tuple[str, float, float]


class Profiler:
    """Profiles single steps of a program that holds all candidates of some tasks.

    Args:
        compiled: text of the program, as ``jax.stages.Compiled.as_text`` returns it.
        tasks: how many tasks it has.
        devices: of this process, on which it runs.
    """

    def __init__(self, compiled: str, tasks: int, devices: int):
        self._tasks, self._devices = tasks, devices
        # Tasks by the names of their conditionals, and by those of all their operations.
        self._calls: dict[str, int] = {}
        self._operations: dict[str, int] = {}
        for line in compiled.splitlines():
            if found := _INSTRUCTION.match(line):
                kind = self._calls if _CONDITIONAL.match(line) else self._operations
                kind[found["name"]] = int(found["task"])
        self._session: jax_internals.ProfileSession | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the program names a call of every task."""
        return set(self._calls.values()) == set(range(self._tasks))

    def start(self) -> None:
        """Begin the profile of a step, unless another profile is under way."""
        try:
            self._session = jax_internals.ProfileSession()
        except RuntimeError:  # the user's own, or that of another tool
            self._session = None

    def stop(self) -> TaskSeconds:
        """Seconds of each task since the start; empty where there is no profile of all tasks."""
        session, self._session = self._session, None
        if session is None:
            return ()
        wanted = self._calls.keys() | self._operations.keys()
        try:
            data = session.stop()  # which must outlive its planes, lines and events
        except RuntimeError:  # JAX before 0.12 says only now that another was under way
            return ()
        return self.seconds(
            (event.name, event.start_ns, event.end_ns)
            for plane in data.planes
            for line in plane.lines
            for event in line.events
            if event.name in wanted
        )

    def seconds(self, events: Iterable[Event]) -> TaskSeconds:
        """Seconds of each task, by the events of a step in any order."""
        started: dict[str, list[float]] = defaultdict(list)
        operations: list[list[tuple[float, float]]] = [[] for _ in range(self._tasks)]
        for name, start, end in events:
            if name in self._calls:
                started[name].append(start)
            else:
                operations[self._operations[name]].append((start, end))
        calls: list[list[float]] = [[] for _ in range(self._tasks)]
        for name, starts in started.items():
            # All devices start a call before any of them, having met the others, starts the next.
            calls[self._calls[name]] += sorted(starts)[:: self._devices]
        if not all(calls) or not all(operations):
            return ()
        return tuple(map(_seconds_of_calls, calls, operations))


def _seconds_of_calls(begun: list[float], operations: list[tuple[float, float]]) -> float:
    """From the start of each call to the end of the last operation that began before the next."""
    begun = sorted(begun)
    ends = list(begun)
    for start, end in operations:
        call = bisect.bisect_right(begun, start) - 1
        if call >= 0:
            ends[call] = max(ends[call], end)
    # The last devices may end a call while the first begin the next: no time counts twice.
    until = [*begun[1:], math.inf]
    spans = zip(begun, ends, until, strict=True)
    return 1e-9 * sum(min(end, next_begun) - start for start, end, next_begun in spans)
