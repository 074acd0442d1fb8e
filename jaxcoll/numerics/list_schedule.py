"""List scheduling of a step's tasks: one computes at a time, and one sends on each set of links.

Tasks are taken as soon as they are ready and their resource is free, the lowest in order first
(Graham, "Bounds on Multiprocessing Timing Anomalies", 1969): no task is interrupted, and no
resource idles while one of its tasks is ready. The makespan is therefore at most the sum of all
tasks, and at least the largest of the sums per resource and the longest path.

Two rules bound the memory that this takes in addition to that of the plan. A copy that is sent
*ahead* of its first reader, such as a gathered parameter, starts early only while there is room for
it up to that reader. A copy that is sent *behind*, such as a gradient whose reader may wait, holds
its operand until it has arrived; computation waits if these operands would take too much.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxcoll.numerics import heap
from jaxcoll.numerics.compiled import kernel

COMPUTE = 0
WHOLE = -1
"""The resource of a loop, a task during which nothing else runs."""

_NONE = -1


class Tasks(NamedTuple):
    """Tasks that occupy a resource without interruption, in columns.

    Attributes:
        seconds: duration of each task, float64.
        resource: ``COMPUTE``, the number of some links (from 1), or ``WHOLE``; int64.
        order: place in the traced order; for a collective, that of its first reader; float64.
        ahead: bytes that it holds from its start to its first reader, if it must not start before
            there is room for them; 0 without such a limit; int64.
        behind: bytes held from the end of the last task before it to its own end; int64.
        is_patient: whether tasks of a higher order need not wait for it, as for the optimizer.
        waiting, awaited: the task of ``waiting[i]`` waits for that of ``awaited[i]``; int64.
    """

    seconds: np.ndarray
    resource: np.ndarray
    order: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray
    is_patient: np.ndarray
    waiting: np.ndarray
    awaited: np.ndarray


class FreeMemory(NamedTuple):
    """Bytes that are free between places of the traced order.

    Attributes:
        points: places, ascending, float64.
        least: ``least[k, i]`` is the least from point i on over 2 ** k points; the last point is
            behind all places.
    """

    points: np.ndarray
    least: np.ndarray

    @classmethod
    def of(cls, points: ArrayLike, left: ArrayLike, most: float = math.inf) -> FreeMemory:
        """The free memory with ``left`` bytes at the points, and ``most`` everywhere else."""
        # A sparse table: with the least of every run of 1, 2, 4, ... points, the least between any
        # two places takes one step. It is needed for each copy that might be sent ahead.
        level = np.append(np.minimum(left, most), most)
        levels = [level]
        while (reach := 1 << (len(levels) - 1)) * 2 <= len(level):
            last = levels[-1]
            levels.append(np.append(np.minimum(last[:-reach], last[reach:]), last[-reach:]))
        return cls(np.asarray(points, float), np.stack(levels))

    def at(self, places: np.ndarray | float) -> np.ndarray:
        """The first points that are not before some places."""
        return np.searchsorted(self.points, places)

    def between(self, first: float, last: float) -> float:
        """The bytes that are free everywhere between two places."""
        return float(self.least[0, self.at(first) : self.at(last) + 1].min())


class _Columns(NamedTuple):
    """The columns of ``Tasks`` and ``FreeMemory`` for the kernels, and what follows from them.

    ``point`` is the point of every place. The tasks that wait for task n are
    ``after[after_ptr[n]:after_ptr[n + 1]]``. ``line`` has the tasks that compute, in order; the
    first of them that has not started is the front.
    """

    seconds: np.ndarray
    resource: np.ndarray
    order: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray
    is_patient: np.ndarray
    point: np.ndarray
    after_ptr: np.ndarray
    after: np.ndarray
    line: np.ndarray
    least: np.ndarray


class _State(NamedTuple):
    """A schedule that is being made.

    Attributes:
        start: start of every task; -1 until it has one.
        waits: number of others that each task still waits for.
        busy: whether each resource is busy.
        clock: the time.
        front: the place of the front in the line, and the task that computes, or ``_NONE``.
        held: bytes ahead, bytes behind, and the most of their sum.
        key, item, size: heaps, each as long as there are tasks. Of each resource r the tasks that
            are ready (r) and those that may be sent ahead (resources + r), by order; then those
            that run, by their end, and those sent ahead, by the place of their first reader.
    """

    start: np.ndarray
    waits: np.ndarray
    busy: np.ndarray
    clock: np.ndarray
    front: np.ndarray
    held: np.ndarray
    key: np.ndarray
    item: np.ndarray
    size: np.ndarray


_AHEAD, _BEHIND, _MOST = 0, 1, 2


def list_schedule(
    tasks: Tasks, num_resources: int, room: FreeMemory | None = None
) -> tuple[np.ndarray, float]:
    """The start of every task in seconds, and the most bytes held ahead and behind.

    Args:
        tasks: without cycles.
        num_resources: computation and all sets of links.
        room: free bytes; without a limit by default.

    Raises:
        ValueError: tasks wait for each other in a circle.
    """
    room = FreeMemory.of((), ()) if room is None else room
    count = len(tasks.seconds)
    by_awaited = np.argsort(tasks.awaited, kind="stable")
    sizes = np.bincount(tasks.awaited, minlength=count)
    # Patient tasks, such as the optimizer's, are not in the line: others need not wait for them, so
    # they do not show how far the step has come.
    computing = np.flatnonzero((tasks.resource <= COMPUTE) & ~tasks.is_patient)
    columns = _Columns(
        *tasks[:6],
        room.at(tasks.order),
        np.concatenate([[0], np.cumsum(sizes)]),
        tasks.waiting[by_awaited],
        computing[np.argsort(tasks.order[computing], kind="stable")],
        room.least,
    )
    heaps = 2 * num_resources + 2
    state = _State(
        np.full(count, -1.0),
        np.bincount(tasks.waiting, minlength=count),
        np.zeros(num_resources, bool),
        np.zeros(1),
        np.array([0, _NONE]),
        np.zeros(3, np.int64),
        np.zeros(heaps * count),
        np.zeros(heaps * count, np.int64),
        np.zeros(heaps, np.int64),
    )
    if not _run(columns, state):
        raise ValueError("tasks wait for each other in a circle")
    return state.start, float(state.held[_MOST])


@kernel(cache=True, nogil=True)
def _run(tasks, state):
    """Schedule all tasks; returns whether that ended."""
    running = 2 * len(state.busy)
    for number in range(len(state.waits)):
        if state.waits[number] == 0:
            _make_ready(tasks, state, number)
    done = 0
    while done < len(state.start):
        # Everything that may start at this time starts before the clock moves: no resource idles
        # while one of its tasks is ready.
        while _start_some(tasks, state):
            pass
        # Nothing runs, so no event will make room any more. The first copy that only the lack of
        # room holds back is sent over the limit, which the most bytes held then show. If there is
        # none, tasks wait in a circle.
        if state.size[running] == 0 and not _force(tasks, state):
            return False
        state.clock[0] = state.key[running * len(state.start)]
        # All ends at this moment are handled before any start, so that starts see every free
        # resource and every ready task.
        while state.size[running] and state.key[running * len(state.start)] <= state.clock[0]:
            _finish(tasks, state, _take(state, running))
            done += 1
    return True


@kernel(cache=True, nogil=True)
def _put(state, queue, key, number):
    """Add a task to a heap."""
    first = queue * len(state.start)
    state.size[queue] = heap.push(state.key, state.item, first, state.size[queue], key, number)


@kernel(cache=True, nogil=True)
def _take(state, queue):
    """The first task of a heap, taken from it."""
    first = queue * len(state.start)
    number = state.item[first]
    state.size[queue] = heap.pop(state.key, state.item, first, state.size[queue])
    return number


@kernel(cache=True, nogil=True)
def _least(least, first, last):
    """The least of some points: of two overlapping runs that are powers of two long."""
    level = 0
    while (2 << level) <= last - first + 1:
        level += 1
    return min(least[level, first], least[level, last - (1 << level) + 1])


@kernel(cache=True, nogil=True)
def _front(tasks, state):
    """The task that computes now, or the first that has yet to; ``_NONE`` after all."""
    line, front = tasks.line, _NONE
    while state.front[0] < len(line) and state.start[line[state.front[0]]] >= 0:
        state.front[0] += 1
    if state.front[0] < len(line):
        front = line[state.front[0]]
    now = state.front[1]
    is_computing = state.busy[COMPUTE] and now != _NONE
    if is_computing and (front == _NONE or tasks.order[now] < tasks.order[front]):
        front = now
    # The order of the plan has come as far as the front: copies that are read up to there are
    # counted in the plan's own memory, and must not be counted a second time as sent ahead.
    _release(state, np.inf if front == _NONE else tasks.order[front], tasks.ahead)
    return front


@kernel(cache=True, nogil=True)
def _release(state, place, ahead):
    """Release copies that are read at a place of the order, which the plan counts from there on."""
    holding = 2 * len(state.busy) + 1
    while state.size[holding] and state.key[holding * len(state.start)] <= place:
        state.held[_AHEAD] -= ahead[_take(state, holding)]


@kernel(cache=True, nogil=True)
def _hold_behind(state, nbytes):
    state.held[_BEHIND] += nbytes
    state.held[_MOST] = max(state.held[_MOST], state.held[_AHEAD] + state.held[_BEHIND])


@kernel(cache=True, nogil=True)
def _make_ready(tasks, state, number):
    queue = max(tasks.resource[number], COMPUTE)
    if tasks.ahead[number]:
        # Copies that may be sent ahead wait separately, so that their need of room does not delay
        # others.
        queue += len(state.busy)
    _put(state, queue, tasks.order[number], number)
    _hold_behind(state, tasks.behind[number])


@kernel(cache=True, nogil=True)
def _occupy(tasks, state, number, is_busy):
    """Let a task have its resource, or give it back; a loop has all of them."""
    for resource in range(len(state.busy)):
        if tasks.resource[number] == resource or tasks.resource[number] == WHOLE:
            state.busy[resource] = is_busy


@kernel(cache=True, nogil=True)
def _finish(tasks, state, number):
    _occupy(tasks, state, number, False)
    _hold_behind(state, -tasks.behind[number])
    for i in range(tasks.after_ptr[number], tasks.after_ptr[number + 1]):
        other = tasks.after[i]
        state.waits[other] -= 1
        if state.waits[other] == 0:
            _make_ready(tasks, state, other)


@kernel(cache=True, nogil=True)
def _begin(tasks, state, number):
    resources = len(state.busy)
    state.start[number] = state.clock[0]
    _occupy(tasks, state, number, True)
    _put(state, 2 * resources, state.clock[0] + tasks.seconds[number], number)
    if tasks.resource[number] <= COMPUTE:
        state.front[1] = _NONE if tasks.is_patient[number] else number
    if tasks.ahead[number]:
        front = _front(tasks, state)
        # Only a copy that really starts before its turn takes room in addition to the plan's.
        if front != _NONE and tasks.order[number] > tasks.order[front]:
            _put(state, 2 * resources + 1, tasks.order[number], number)
            state.held[_AHEAD] += tasks.ahead[number]
            _hold_behind(state, 0)


@kernel(cache=True, nogil=True)
def _next_on(tasks, state, resource):
    """Take the task that some links take next; ``_NONE`` if none may start."""
    early, count = resource + len(state.busy), len(state.start)
    if state.size[early]:
        need, number = state.key[early * count], state.item[early * count]
        key, other = state.key[resource * count], state.item[resource * count]
        is_first = state.size[resource] == 0
        if is_first or need < key or (need == key and number < other):
            front = _front(tasks, state)
            if front == _NONE or need <= tasks.order[front]:
                return _take(state, early)
            held = state.held[_AHEAD] + state.held[_BEHIND] + tasks.ahead[number]
            # The copy is in memory from now, the front, up to its reader, so it must fit everywhere
            # between.
            if held <= _least(tasks.least, tasks.point[front], tasks.point[number]):
                return _take(state, early)
    return _take(state, resource) if state.size[resource] else _NONE


@kernel(cache=True, nogil=True)
def _start_some(tasks, state):
    """Start the tasks that may start now; returns whether any did."""
    count, busy = len(state.start), state.busy
    is_free = state.size[COMPUTE] > 0 and not busy[COMPUTE]
    # A loop runs alone, on all resources: once it is next no sends start any more, or it might wait
    # for ever for one moment in which all links are idle.
    is_loop_next = is_free and tasks.resource[state.item[COMPUTE * count]] == WHOLE
    started = sends = False
    for resource in range(1, len(busy)):
        if not busy[resource] and not is_loop_next:
            number = _next_on(tasks, state, resource)
            if number != _NONE:
                _begin(tasks, state, number)
                started = True
        sends = sends or busy[resource]
    if not is_free or (is_loop_next and sends):
        return started
    # Operands of sends behind are released when these arrive. If they leave too little room for the
    # next operator, computation waits for an arrival, but only while something is being sent.
    if state.held[_BEHIND] and sends:
        place = state.item[COMPUTE * count]
        _release(state, tasks.order[place], tasks.ahead)
        point = tasks.point[place]
        if state.held[_AHEAD] + state.held[_BEHIND] > tasks.least[0, point]:
            return started
    _begin(tasks, state, _take(state, COMPUTE))
    return True


@kernel(cache=True, nogil=True)
def _force(tasks, state):
    """Start the first task that only a lack of room holds back; returns whether there was one."""
    best, count = _NONE, len(state.start)
    for queue in range(len(state.busy), 2 * len(state.busy)):
        if state.size[queue]:
            first, least = queue * count, best * count
            pair = (state.key[first], state.item[first])
            if best == _NONE or pair < (state.key[least], state.item[least]):
                best = queue
    if best == _NONE:
        return False
    _begin(tasks, state, _take(state, best))
    return True
