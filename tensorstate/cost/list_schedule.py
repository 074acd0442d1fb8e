"""List scheduling of a step's tasks: one computes at a time, and one sends on each set of links.

Tasks are taken as soon as they are ready and their resource is free, the lowest in order first
(Graham, "Bounds on Multiprocessing Timing Anomalies", 1969): no task is interrupted, and no
resource idles while one of its tasks is ready. The makespan is therefore at most the sum of all
tasks, and at least the largest of the sums per resource and the longest path.

Two rules bound the memory that this takes beside that of the plan. A copy that is sent *ahead* of
its first reader, such as a gathered parameter, starts early only while there is room for it up to
that reader. A copy that is sent *behind*, such as a gradient whose reader may wait, holds its
operand until it has arrived; computation waits where these operands would take too much.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

COMPUTE = 0
WHOLE = -1
"""The resource of a task that nothing else runs beside: a loop."""


class Task(NamedTuple):
    """Something that occupies a resource without interruption.

    Attributes:
        seconds: for which it does.
        resource: ``COMPUTE``, the number of some links (from 1), or ``WHOLE``.
        order: its place in the traced order; of a collective, that of its first reader.
        before: numbers of the tasks that it waits for.
        ahead: bytes that it holds from its start to its first reader, if it may start before there
            is room for them; 0 for no such limit.
        behind: bytes that are held from the end of the last task before it to its own end.
        is_patient: whether others of a higher order need not wait for it, as for the optimizer.
    """

    seconds: float
    resource: int
    order: float
    before: tuple[int, ...] = ()
    ahead: int = 0
    behind: int = 0
    is_patient: bool = False


Room = Callable[[float, float], float]
"""Bytes that are free everywhere between two places of the traced order."""


def unlimited(_first: float, _last: float) -> float:
    """A room for everything."""
    return math.inf


def list_schedule(
    tasks: Sequence[Task], num_resources: int, room: Room = unlimited
) -> tuple[list[float], float]:
    """The start of every task in seconds, and the most bytes held ahead and behind.

    Args:
        tasks: without cycles.
        num_resources: computation and all sets of links.
        room: free bytes.

    Raises:
        ValueError: tasks wait for each other in a circle.
    """
    return _Run(tasks, num_resources, room).run()


class _Run:
    """The state of one schedule: tasks that are ready, tasks that run, and bytes that are held."""

    def __init__(self, tasks: Sequence[Task], num_resources: int, room: Room):
        self.tasks, self.room = tasks, room
        self.after: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for other in task.before:
                self.after[other].append(number)
        self.waits = [len(task.before) for task in tasks]
        self.start = [-1.0] * len(tasks)
        self.ready: list[list[tuple[float, int]]] = [[] for _ in range(num_resources)]
        self.early: list[list[tuple[float, int]]] = [[] for _ in range(num_resources)]
        self.busy = [False] * num_resources
        self.running: list[tuple[float, int]] = []
        self.now = 0.0
        self.holding: list[tuple[float, int]] = []  # started ahead: first reader and bytes
        self.held, self.held_behind, self.most_held = 0, 0, 0
        # Tasks that compute, in order: the first of them that has not started is the front.
        self.line = sorted(
            (task.order, n)
            for n, task in enumerate(tasks)
            if task.resource <= COMPUTE and not task.is_patient
        )
        self.passed = 0
        self.computing = math.inf

    def run(self) -> tuple[list[float], float]:
        for number, count in enumerate(self.waits):
            if count == 0:
                self._make_ready(number)
        done = 0
        while done < len(self.tasks):
            while self._start_some():
                pass
            if not self.running and not self._force():
                raise ValueError("tasks wait for each other in a circle")
            self.now = self.running[0][0]
            while self.running and self.running[0][0] <= self.now:
                self._finish(heapq.heappop(self.running)[1])
                done += 1
        return self.start, float(self.most_held)

    @property
    def front(self) -> float:
        """The place of the task that computes now, or of the first that has yet to."""
        while self.passed < len(self.line) and self.start[self.line[self.passed][1]] >= 0:
            self.passed += 1
        place = self.line[self.passed][0] if self.passed < len(self.line) else math.inf
        if self.busy[COMPUTE]:
            place = min(place, self.computing)
        self._release(place)
        return place

    def _release(self, place: float) -> None:
        """Copies that are read at a place of the order are the plan's own from there on."""
        while self.holding and self.holding[0][0] <= place:
            self.held -= heapq.heappop(self.holding)[1]

    def _make_ready(self, number: int) -> None:
        task = self.tasks[number]
        heaps = self.early if task.ahead else self.ready
        heapq.heappush(heaps[max(task.resource, COMPUTE)], (task.order, number))
        self._hold_behind(task.behind)

    def _hold_behind(self, nbytes: int) -> None:
        self.held_behind += nbytes
        self.most_held = max(self.most_held, self.held + self.held_behind)

    def _finish(self, number: int) -> None:
        task = self.tasks[number]
        for resource in range(len(self.busy)) if task.resource == WHOLE else (task.resource,):
            self.busy[resource] = False
        self._hold_behind(-task.behind)
        for other in self.after[number]:
            self.waits[other] -= 1
            if self.waits[other] == 0:
                self._make_ready(other)

    def _start_some(self) -> bool:
        """Start what may start now; whether anything did."""
        waiting = self.ready[COMPUTE]
        is_loop_next = bool(waiting) and self.tasks[waiting[0][1]].resource == WHOLE
        is_loop_next = is_loop_next and not self.busy[COMPUTE]
        started = False
        for resource in range(1, len(self.busy)):
            if not self.busy[resource] and not is_loop_next:
                number = self._next_on(resource)
                if number is not None:
                    self._begin(number)
                    started = True
        if not waiting or self.busy[COMPUTE]:
            return started
        if is_loop_next and any(self.busy):
            return started
        order, number = waiting[0]
        if self.held_behind and any(self.busy[1:]):
            self._release(order)
            if self._held_now(0) > self.room(order, order):
                return started
        heapq.heappop(waiting)
        self._begin(number)
        return True

    def _next_on(self, resource: int) -> int | None:
        """The task that some links take next; ``None`` if none may start."""
        ready, early = self.ready[resource], self.early[resource]
        if early and (not ready or early[0] < ready[0]):
            need, number = early[0]
            front, nbytes = self.front, self.tasks[number].ahead
            if need <= front or self._held_now(nbytes) <= self.room(front, need):
                return heapq.heappop(early)[1]
        return heapq.heappop(ready)[1] if ready else None

    def _held_now(self, more: int) -> int:
        return self.held + self.held_behind + more

    def _begin(self, number: int) -> None:
        task = self.tasks[number]
        self.start[number] = self.now
        for resource in range(len(self.busy)) if task.resource == WHOLE else (task.resource,):
            self.busy[resource] = True
        heapq.heappush(self.running, (self.now + task.seconds, number))
        if task.resource <= COMPUTE:
            self.computing = math.inf if task.is_patient else task.order
        if task.ahead and task.order > self.front:
            heapq.heappush(self.holding, (task.order, task.ahead))
            self.held += task.ahead
            self._hold_behind(0)

    def _force(self) -> bool:
        """Start the first task that only a lack of room holds back."""
        found = min((heap[0] for heap in self.early if heap), default=None)
        if found is None:
            return False
        number = found[1]
        heapq.heappop(self.early[self.tasks[number].resource])
        self._begin(number)
        return True
