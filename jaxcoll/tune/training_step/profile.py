"""One-step profiles: how long the collectives of each task took in a step.

The time of a step has the noise of all that it runs; that of one task's collectives has less. A
profile is taken of the program that holds all candidates, where every call of a task is one
conditional, and read in this process: no files are written.

A call begins with the first event of its conditional on any device, and ends with the last event
of the operations inside: the asynchronous ones end after the conditional itself has.
"""

from __future__ import annotations

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Iterable

from jaxcoll.execute import jax_internals
from jaxcoll.tune.training_step.regression import TaskSeconds

_SCOPE = "jaxcoll.task"
_INSTRUCTION = re.compile(
    rf'^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = .*op_name="[^"]*{re.escape(_SCOPE)}(?P<task>\d+)\b'
)
_CONDITIONAL = re.compile(r"^[^=]*=.* conditional\(")

# Name, start and end in nanoseconds.
Event = tuple[str, float, float]


def scope(position: int) -> str:
    """The named scope of a task, by which a compiled program tells what belongs to it."""
    return f"{_SCOPE}{position}"


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
