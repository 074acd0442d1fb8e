"""Schedules of loops: bodies from the innermost outwards, each as one task of the body around it.

A body is scheduled once (``list_schedule``), with the seconds of its tasks in all iterations, so
that its makespan is the loop's. The body of an unrolled scan is a few consecutive iterations, which
wait for each other only through the carries.

Tasks are columns. A step has thousands of them and one schedule per size of buckets; these
schedules differ in the tasks that are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxcoll.numerics.list_schedule import COMPUTE, WHOLE, FreeMemory, Tasks, list_schedule
from tensorstate.cost.step_tasks import StepTask, Where


class Runs(NamedTuple):
    """Tasks in time; a task of an unrolled scan runs several times.

    Attributes:
        number: number of the task, int64.
        start, end: seconds.
        start, end: seconds.
    """

    number: np.ndarray
    start: np.ndarray
    end: np.ndarray


class Bodies:
    """The bodies of a step's loops, by number: first the step itself, then every loop's body.

    Attributes:
        wheres: for every body, the loops around it and its own loop.
    """

    def __init__(self, wheres: Sequence[Where]):
        # The step itself, too, which may have no tasks.
        held = {where[:depth] for where in wheres for depth in range(len(where) + 1)}
        self.wheres: list[Where] = sorted({(), *held})
        self.number = {where: k for k, where in enumerate(self.wheres)}
        self._common: dict[tuple[int, int], tuple[int, int, int]] = {}

    def inside(self, body: int) -> list[int]:
        """The bodies of the loops directly inside a body."""
        where = self.wheres[body]
        return [
            k
            for k, each in enumerate(self.wheres)
            if len(each) == len(where) + 1 and each[:-1] == where
        ]

    def common(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """For pairs of bodies the innermost one around both, and the loops in it that lead to each.

        A loop is -1 if the body itself is the innermost one; the result has shape (3, pairs).
        """
        pairs, place = np.unique(first * len(self.wheres) + second, return_inverse=True)
        found = [self._meeting(*divmod(int(pair), len(self.wheres))) for pair in pairs]
        return np.asarray(found, np.int64).reshape(-1, 3).T[:, place]

    def _meeting(self, first: int, second: int) -> tuple[int, int, int]:
        if (first, second) not in self._common:
            a, b = self.wheres[first], self.wheres[second]
            shared = 0
            while shared < min(len(a), len(b)) and a[shared] == b[shared]:
                shared += 1
            leads = [
                -1 if len(each) == shared else self.number[each[: shared + 1]] for each in (a, b)
            ]
            self._common[first, second] = (self.number[a[:shared]], leads[0], leads[1])
        return self._common[first, second]


class TaskColumns(NamedTuple):
    """The tasks of a step in columns, with the attributes of ``StepTask``.

    Attributes:
        seconds, order, first, axis, ahead, behind, across: as for ``StepTask``.
        is_patient, is_alone: as for ``StepTask``.
        body: the number of the body that contains a task.
        waiting, awaited: the task ``waiting[i]`` waits for ``awaited[i]``.
    """

    seconds: np.ndarray
    order: np.ndarray
    first: np.ndarray
    axis: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray
    across: np.ndarray
    is_patient: np.ndarray
    is_alone: np.ndarray
    body: np.ndarray
    waiting: np.ndarray
    awaited: np.ndarray

    @classmethod
    def of(cls, tasks: Sequence[StepTask], bodies: Bodies) -> TaskColumns:
        """The columns of some tasks."""

        columns: dict[str, np.ndarray] = {
            name: np.array([getattr(task, name) for task in tasks], kind)
            for kind, names in _KINDS.items()
            for name in names
        }
        columns["body"] = np.array([bodies.number[task.where] for task in tasks], np.int64)
        sizes = [len(task.before) for task in tasks]
        columns["waiting"] = np.repeat(np.arange(len(tasks)), sizes)
        columns["awaited"] = np.array([other for t in tasks for other in t.before], np.int64)
        return cls(**columns)


_KINDS: Mapping[type, Sequence[str]] = {
    float: ("seconds", "order", "first"),
    np.int64: ("axis", "ahead", "behind", "across"),
    bool: ("is_patient", "is_alone"),
}


class LoopSchedule:
    """A schedule of a step.

    Args:
        tasks: the tasks of the step.
        is_kept: for every task whether it runs; the others are part of a bucket.
        bodies: the bodies of the loops.
        resources: the resource of every mesh axis, and the number of resources.
        room: free bytes.
        carries: for each loop, the tasks that read and make the values passed to the next
            iteration.
        unrolled: for each loop, the number of iterations in one body.

    Attributes:
        held: the most bytes held ahead and behind.
        runs: all tasks in time.
        seconds: the makespan.
    """

    def __init__(
        self,
        tasks: TaskColumns,
        is_kept: np.ndarray,
        bodies: Bodies,
        resources: tuple[Sequence[int], int],
        room: FreeMemory,
        carries: Mapping[int, Sequence[tuple[int, int]]],
        unrolled: Mapping[int, int],
    ):
        self.tasks, self.is_kept, self.bodies = tasks, is_kept, bodies
        (axes, self.num_resources), self.room = resources, room
        self.resources = np.append(np.asarray(axes, np.int64), COMPUTE)  # last: no axis
        self.carries, self.unrolled = carries, unrolled
        self.held = 0.0
        # A task waits for another one in the innermost body that contains both. If the first is in
        # a loop next to the other, the whole loop waits: none of its tasks begins before the other
        # has ended.
        self.body_of_wait, first, then = self.bodies.common(
            tasks.body[tasks.awaited], tasks.body[tasks.waiting]
        )
        loops = len(tasks.body)  # loops are numbered after the tasks
        self.awaited = np.where(first < 0, tasks.awaited, loops + first)
        self.waiting = np.where(then < 0, tasks.waiting, loops + then)
        self.body_of_wait = np.where(self.awaited == self.waiting, -1, self.body_of_wait)
        self.seconds, _, self.runs = self._body(0)

    def _body(self, body: int) -> tuple[float, float, Runs]:
        """The makespan of a body, its place, and its tasks in time."""
        tasks, loops = self.tasks, self.bodies.inside(body)
        inner = [self._body(loop) for loop in loops]
        own = np.flatnonzero((tasks.body == body) & self.is_kept)
        names = np.append(own, len(tasks.body) + np.asarray(loops, np.int64)).astype(np.int64)
        placed, is_compute = self._placed(body, own, names, inner)
        order = placed.order
        where = self.bodies.wheres[body]
        count = self.unrolled.get(where[-1], 1) if where else 1
        if count > 1:
            # The copies of the iterations beside the one that computes.
            self.held = max(self.held, float(tasks.across[own].sum() * (count - 1)))
            placed = _iterations(placed, count, self._carried(body, names))
        # A loop is a task that takes as long as its body, that is all of its iterations; each copy
        # of an unrolled body has a part of them.
        starts, held = list_schedule(placed, self.num_resources, self.room)
        self.held = max(self.held, held)
        ends = starts + placed.seconds
        is_task = np.tile(names < len(tasks.body), count)
        runs = [Runs(np.tile(own, count), starts[is_task], ends[is_task])]
        runs += [
            Runs(part.number, start + part.start / count, start + part.end / count)
            for start, (_, _, part) in zip(starts[~is_task].tolist(), inner * count, strict=True)
        ]
        whole = Runs(*(np.concatenate(columns) for columns in zip(*runs, strict=True)))
        first = float(order[is_compute].min(initial=np.inf)) if is_compute.any() else 0.0
        return float(ends.max(initial=0.0)), first, whole

    def _placed(
        self,
        body: int,
        own: np.ndarray,
        names: np.ndarray,
        inner: Sequence[tuple[float, float, Runs]],
    ) -> tuple[Tasks, np.ndarray]:
        """The tasks and loops of a body for ``list_schedule``, and whether each computes."""
        tasks = self.tasks
        axis, loops = tasks.axis[own], len(inner)
        is_alone = tasks.is_alone[own] & (self.num_resources > 1)
        resource = self.resources[axis]
        whole = WHOLE if self.num_resources > 1 else COMPUTE
        # If nothing overlaps, all tasks use one resource, in the traced order, and nothing is
        # ahead.
        is_sent = (resource != COMPUTE) & ~is_alone
        is_patient = np.where(is_alone, True, tasks.is_patient[own] & ~is_sent)
        order = np.append(tasks.order[own], [place for _, place, _ in inner])
        first = np.append(np.where(axis < 0, tasks.order[own], tasks.first[own]), order[len(own) :])
        is_compute = np.append(axis < 0, np.ones(loops, bool))

        here = self.body_of_wait == body
        place = np.full(len(tasks.body) + len(self.bodies.wheres), -1)
        place[names] = np.arange(len(names))
        waiting, awaited = place[self.waiting[here]], place[self.awaited[here]]
        # Chains of operators that are one node may seem to wait for later operators.
        is_wait = (order[awaited] < first[waiting]) | ~is_compute[awaited]
        nothing = np.zeros(loops, np.int64)
        columns = Tasks(
            np.append(tasks.seconds[own], [seconds for seconds, _, _ in inner]),
            np.append(np.where(is_alone, WHOLE, resource), nothing + whole),
            order,
            np.append(np.where(is_sent, tasks.ahead[own], 0), nothing),
            np.append(np.where(is_sent, tasks.behind[own], 0), nothing),
            np.append(is_patient, np.zeros(loops, bool)),
            waiting[is_wait],
            awaited[is_wait],
        )
        return columns, is_compute

    def _carried(self, body: int, names: np.ndarray) -> list[tuple[int, int]]:
        """The carries of a body, as places of its tasks and loops."""
        place = {name: k for k, name in enumerate(names.tolist())}
        carries = self.carries[self.bodies.wheres[body][-1]]
        return [(place[enter], place[leave]) for enter, leave in carries]


def _iterations(tasks: Tasks, count: int, carries: Sequence[tuple[int, int]]) -> Tasks:
    """Some consecutive iterations of a body, from tasks that take as long as all iterations."""
    # The places of an iteration follow those of the previous one: computation runs in the order of
    # places, collectives as soon as their operands exist.
    n, span = len(tasks.order), 1 + np.ptp(tasks.order)
    enters, leaves = np.array([*dict(carries).items()], np.int64).reshape(-1, 2).T
    later = n * np.arange(count)[:, None]

    def repeated(numbers: np.ndarray, first: int = 0) -> np.ndarray:
        return (numbers + later[first:]).ravel()

    return Tasks(
        np.tile(tasks.seconds / count, count),
        np.tile(tasks.resource, count),
        (tasks.order + span * np.arange(count)[:, None]).ravel(),
        np.tile(tasks.ahead, count),
        np.tile(tasks.behind, count),
        np.tile(tasks.is_patient, count),
        np.append(repeated(tasks.waiting), repeated(enters, 1)),
        np.append(repeated(tasks.awaited), repeated(leaves - n, 1)),
    )
