"""The times of steps: which of them count, and the profiles of those that are searched."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from jaxcoll.tune.training_step.profile import Profiler
from jaxcoll.tune.training_step.regression import Choice, TaskSeconds, TimedStep


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
