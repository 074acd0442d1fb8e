"""The times of steps: which count, which are profiled, and when compilers get time of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from jaxcoll.tune.training_step.profile import Profiler
from jaxcoll.tune.training_step.programs import Background
from jaxcoll.tune.training_step.regression import Choice, TaskSeconds, TimedStep

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
            self.steps.append((choice, seconds, tasks))
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
