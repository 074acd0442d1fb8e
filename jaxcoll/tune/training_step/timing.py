"""The times of steps, and signals that arrive meanwhile.

The time of a step has the noise of all that it runs; the time of one task's collectives has less. A
profile is taken of the program that holds all candidates, in which every call of a task is one
conditional, and is read in this process, without files. A call begins with the first event of its
conditional on any device, and ends with the last event of the operations inside, because
asynchronous ones end after the conditional itself.

A step that donates its arguments leaves its caller only its results. A signal handler that raises
inside the step, as Ctrl-C does, would lose both, and leave a half-written note of the step. So
signals that arrive while a step runs and is noted are held, and handled just after it: when the
next step begins, or a moment later if none does. A second signal of the same kind is handled at
once, for users who do not want to wait.
"""

from __future__ import annotations

import bisect
import math
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from types import CodeType, FrameType, TracebackType
from typing import Any

from jaxcoll import jax_internals
from jaxcoll.tune.training_step.background import Background
from jaxcoll.tune.training_step.regression import Choice, TaskSeconds, TimedStep
from jaxcoll.tune.training_step.switch_program import SCOPE

_INSTRUCTION = re.compile(
    rf'^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = .*op_name="[^"]*{re.escape(SCOPE)}(?P<task>\d+)\b'
)
_CONDITIONAL = re.compile(r"^[^=]*=.* conditional\(")

# Steps in which compilers use only the processor time that the steps leave. That is enough for
# steps of 8 ms; in short steps the devices are always busy.
_PATIENT_STEPS = 1000
# Seconds of steps between two time slices of the compilers; the length of a slice relative to that;
# and the longest slice, for programs that did other work (such as a checkpoint) between two steps.
_STEPS_SECONDS, _LONGER, _MOST_SECONDS = 0.05, 2.0, 0.5


class TimeSlices:
    """Time slices for compilers between steps, for the case that they would not finish otherwise.

    Args:
        work: work of the compilers.

    Attributes:
        seconds: time for which steps waited in time slices of the compilers.
    """

    def __init__(self, work: Background):
        self.seconds = 0.0
        self._work, self._steps = work, 0
        self._since = time.perf_counter()

    def after_step(self, wait: Callable[[], object]) -> None:
        """Called after a step: perhaps run a time slice of the compilers.

        Args:
            wait: blocks until the devices are idle.
        """
        # Compilers of lowest priority get no time if steps keep all processors busy, and tuning
        # would never end, so now and then the next step waits for them.
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

    First calls of a program, and calls that wait for steps before them, do not count.

    Args:
        clock: returns seconds.

    Attributes:
        steps: the steps that count, since they were last taken.
        profile_seconds: time spent on profiles, for which steps waited.
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
        """Run a step and return its results.

        Args:
            call: runs the step.
            program: the program that runs; its first call does not count.
            choice: the choice that the program runs.
            waits: whether ``call`` returns only when the step has ended, so that it can be timed.
            is_usual: whether the step has the arguments of most steps; other steps do not count.
            profiler: the program's profiler, if the step is to be profiled when it counts.
        """
        # A step after one that was not waited for would be timed with the rest of that one, and the
        # first call of a program with its compilation.
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
        """The steps that count since this was last called."""
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
        compiled: the program's text, as ``jax.stages.Compiled.as_text`` returns it.
        tasks: the number of its tasks.
        devices: the number of this process's devices on which it runs.
    """

    def __init__(self, compiled: str, tasks: int, devices: int):
        self._tasks, self._devices = tasks, devices
        # Tasks by the names of their conditionals, and by the names of all their operations.
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
        """Begin the profile of a step, unless another profile is running."""
        try:
            self._session = jax_internals.ProfileSession()
        except RuntimeError:  # a profile of the user or of another tool is running
            self._session = None

    def stop(self) -> TaskSeconds:
        """Seconds of each task since the start; empty if there is no profile of all tasks."""
        session, self._session = self._session, None
        if session is None:
            return ()
        wanted = self._calls.keys() | self._operations.keys()
        try:
            data = session.stop()  # which must outlive its planes, lines and events
        except RuntimeError:  # JAX before 0.12 reports only here that another profile was running
            return ()
        return self.seconds(
            (event.name, event.start_ns, event.end_ns)
            for plane in data.planes
            for line in plane.lines
            for event in line.events
            if event.name in wanted
        )

    def seconds(self, events: Iterable[Event]) -> TaskSeconds:
        """Seconds of each task, from the events of a step in any order."""
        started: dict[str, list[float]] = defaultdict(list)
        operations: list[list[tuple[float, float]]] = [[] for _ in range(self._tasks)]
        for name, start, end in events:
            if name in self._calls:
                started[name].append(start)
            else:
                operations[self._operations[name]].append((start, end))
        calls: list[list[float]] = [[] for _ in range(self._tasks)]
        for name, starts in started.items():
            # All devices start a call before any of them, having met the others, starts the next
            # one.
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
    # The last devices may end a call while the first begin the next one; no time counts twice.
    until = [*begun[1:], math.inf]
    spans = zip(begun, ends, until, strict=True)
    return 1e-9 * sum(min(end, next_begun) - start for start, end, next_begun in spans)


# Signals whose handlers may raise: those of a terminal, alarms, and schedulers that end a job.
# Reading the handlers of all signals would take 60 us per step, those of these take 10.
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1")
    if hasattr(signal, name)
)
# Delay until signals are sent again if no step begins; the caller stores the results meanwhile.
_DELAY_SECONDS = 0.05


class Held:
    """A context in which signals with handlers in Python wait; it works only in the main thread.

    Python runs handlers only in the main thread. They wait until the function that uses the context
    has returned its results.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []
        self._user: CodeType | None = None
        self._timer: threading.Timer | None = None

    def deliver(self) -> None:
        """Handle the signals that were held; errors of their handlers are raised here."""
        if self._came and threading.current_thread() is threading.main_thread():
            self._send()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._user = sys._getframe(1).f_code
        try:
            for number in _SIGNALS:
                # Others are unchanged: they have no handler, or one outside of Python.
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = handler
                    signal.signal(number, self._hold)
        except BaseException:  # from the handler of a signal that is not held yet
            self._restore()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Starting a thread waits for the thread, on a busy machine longer than the delay. Signals
        # are still held meanwhile, and are checked again after the last moment at which they are
        # held.
        self._send_later()
        self._restore()
        self._send_later()

    def _restore(self) -> None:
        try:
            while self._handlers:
                number = next(iter(self._handlers))
                signal.signal(number, self._handlers[number])
                del self._handlers[number]
        except BaseException:  # from a handler that was just restored
            self._restore()
            raise

    def _hold(self, number: int, frame: FrameType | None) -> None:
        # The second signal of its kind is handled at once: somebody presses Ctrl-C again.
        if number in self._came:
            self._handlers[number](number, frame)
        else:
            self._came.append(number)

    def _send_later(self) -> None:
        if self._came and self._timer is None:
            self._timer = threading.Timer(_DELAY_SECONDS, self._send_if_returned)
            self._timer.daemon = True
            self._timer.start()

    def _send_if_returned(self) -> None:
        # If all processors are busy, the main thread may not have left the step yet.
        self._timer = None
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_code is not self._user:
            frame = frame.f_back
        if frame is None:
            self._send()
        else:
            self._send_later()

    def _send(self) -> None:
        """Send the signals to the main thread again, which also ends a sleep there."""
        if (timer := self._timer) is not None:
            timer.cancel()
            self._timer = None
        if self._came:
            try:
                signal.pthread_kill(threading.main_thread().ident or 0, self._came.pop(0))
            finally:  # of the main thread, if the handler raises here
                self._send()
