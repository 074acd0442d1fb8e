"""A step in time: operators on compute, and collectives on the links that they use.

The step is scheduled as it runs where collectives overlap with compute (``list_schedule``): nodes
compute in the traced order, parameters are gathered ahead of their readers, and reductions that
only the optimizer reads are sent behind their producers. Mesh axes whose collectives share links
share a resource. Devices that overlap nothing have one resource for all of it.

A loop, of the step or of microbatches, is one task that nothing else runs beside. Its body is
scheduled once: seconds of a task are those of all iterations, so that the body's makespan is the
loop's. Scans may be unrolled a little: then the body is a few iterations, which wait for each other
only by the carries, so that rows are gathered and sums are reduced beside the iterations around
them. What all of them hold at once counts as held.

Collectives of one kind and axis that are ahead, and those that are behind, are joined in buckets of
at most so many bytes: a bucket pays latency once, and copies its operands and results once more.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tensorstate.cost.list_schedule import COMPUTE, WHOLE, Room, Task, list_schedule
from tensorstate.cost.reshard_plan import Decisions, ReshardPlan
from tensorstate.cost.step_tasks import Sent, StepTask, StepTasks, Where
from tensorstate.ir.placements import MAX, MIN
from tensorstate.problem.problem import Problem

# The part of the memory that copies ahead and behind may take at most.
MOST_AHEAD = 0.05
# Collectives of sums and shards, whose operands can be laid beside each other.
JOINABLE = ("all_gather", "reduce_scatter", "all_reduce")
# Bytes of a bucket that are tried. One bucket of all that a pass sends has nothing left to hide
# under: of 12 layers of 128 KiB, 4 MiB left 1 of 35 products covered on v5e and none on
# H100s, 512 KiB 9 and 26.
BUCKETS = (1 << 17, 1 << 19, 1 << 21, 1 << 23, 1 << 25)
# Iterations that become one body. Each doubles the time of compiling a scan, so that it must make
# the step shorter by a part. Gathers ahead across one iteration, in the carry of the loop, were
# worse: XLA reuses the buffer of the carry, and so has to compute before it gathers.
UNROLLS = (2, 4)
LEAST_GAIN = 0.01


class Event(NamedTuple):
    """Something that takes time in a step; all its repeats in loops are one event.

    Attributes:
        start, seconds: from the start of the step.
        axis: the mesh axis that a collective runs along; -1 for compute.
        name: the collective, or the operators.
        class_id: the node class that computes, or produces what is resharded.
    """

    start: float
    seconds: float
    axis: int
    name: str
    class_id: int


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """The schedule of a step.

    Attributes:
        events: all that takes time, by start.
        seconds: the makespan, which is the time of the step.
        compute: seconds of computation.
        exposed: by mesh axis, and by whether only parameters and gradients are sent, the seconds
            for which computation waits.
        held: the most bytes of collectives that are sent ahead or behind.
        bucket_bytes: most bytes of joined collectives; 0 where none are.
        buckets: the collectives that are joined.
        unrolled: by number of a scan of the step, how many iterations are one body.
    """

    events: tuple[Event, ...]
    seconds: float
    compute: float
    exposed: Mapping[tuple[int, bool], float]
    held: float
    bucket_bytes: int
    buckets: tuple[tuple[Sent, ...], ...]
    unrolled: Mapping[int, int]

    def __repr__(self) -> str:
        return (
            f"Timeline({len(self.events)} events, {self.seconds:.4g} s, of which "
            f"{self.exposed_seconds:.4g} s of communication exposed)"
        )

    @property
    def exposed_seconds(self) -> float:
        """Seconds of communication that no computation hides."""
        return max(0.0, self.seconds - self.compute)


def schedule_step(
    problem: Problem,
    decisions: Decisions,
    reshards: Sequence[ReshardPlan],
    recomputed_nodes: frozenset[int],
    live: np.ndarray,
    memory_limit: float | None = None,
) -> Timeline:
    """The schedule of a step under decisions, with the buckets of the least time.

    Args:
        reshards: the reshard plans of all tensors.
        recomputed_nodes: nodes that are recomputed after the forward pass.
        live: bytes that are live at every program point.
        memory_limit: bytes per device; the device's memory by default.
    """
    step = StepTasks(problem, decisions, reshards, recomputed_nodes)
    room = _room(problem, live, memory_limit)
    best = _scheduled(step, 0, room)
    for nbytes in _worth_trying(step):
        found = _scheduled(step, nbytes, room)
        if found.seconds < best.seconds:
            best = found
        elif best.bucket_bytes:  # larger ones leave less to hide under
            break
    for most in UNROLLS if step.carries else ():
        unrolled = _unrolled(step, most, room)
        if not unrolled or unrolled == best.unrolled:
            break
        longer = _scheduled(step, best.bucket_bytes, room, unrolled)
        if longer.seconds > (1 - LEAST_GAIN) * best.seconds:
            break
        best = longer
    return _timeline(best)


def _unrolled(step: StepTasks, most: int, room: Room) -> dict[int, int]:
    """By scan the iterations that fit into a body, up to ``most``, and leave at most one behind."""
    unrolled = {}
    for number in step.carries:
        inside = [task for task in step.tasks if number in task.where]
        places = [task.order for task in inside if task.axis < 0]
        left = room(min(places), max(places))
        held = sum(task.across for task in inside if task.where[-1] == number)
        length = step.graph.loops[number].length or 1
        # At least two bodies: without a loop XLA keeps what the forward pass has gathered.
        for count in range(min(most, length // 2), 1, -1):
            if 0 < held * (count - 1) <= left and length % count <= 1:
                unrolled[number] = count
                break
    return unrolled


def _room(problem: Problem, live: np.ndarray, memory_limit: float | None) -> Room:
    """The bytes that a memory limit leaves free between two places of the traced order."""
    limit = problem.hardware.memory if memory_limit is None else memory_limit
    most = MOST_AHEAD * limit
    points = problem.liveness.program_points.tolist()
    left = np.minimum(most, limit - live).tolist() if memory_limit is not None else []

    def room(first: float, last: float) -> float:
        start = bisect.bisect_left(points, first)
        return min(left[start : bisect.bisect_left(points, last) + 1], default=most)

    return room


# ---------------------------------------------------------------------- buckets


def _worth_trying(step: StepTasks) -> Iterator[int]:
    """Sizes of buckets that join some, and of those that join the same ones the smallest."""
    joinable = [d.nbytes for d in step.tasks if d.axis >= 0 and (d.ahead or d.behind)]
    last, count = 0, 0
    for nbytes in BUCKETS if step.problem.hardware.overlaps else ():
        smaller = [n for n in joinable if n < nbytes]
        if len(smaller) > 1 and (len(smaller) > count or sum(smaller) > last):
            yield nbytes
        last, count = nbytes, len(smaller)


class Run(NamedTuple):
    """A task in time; that of an unrolled scan runs several times."""

    number: int
    start: float
    end: float


class _Schedule(NamedTuple):
    """When tasks run, of which some are buckets.

    Attributes:
        before: by task those that it waits for.
        seconds: the makespan.
        held, bucket_bytes, unrolled: as of a ``Timeline``.
    """

    tasks: Sequence[StepTask]
    before: Sequence[Sequence[int]]
    seconds: float
    runs: Sequence[Run]
    held: float
    bucket_bytes: int
    unrolled: Mapping[int, int]


def _scheduled(
    step: StepTasks, bucket_bytes: int, room: Room, unrolled: Mapping[int, int] | None = None
) -> _Schedule:
    """The schedule with buckets of a size, and some scans unrolled."""
    tasks, before, carries = _joined(step, bucket_bytes)
    loops = _Loops(tasks, before, _resources(step.problem), room, carries, unrolled or {})
    return _Schedule(tasks, before, *loops.schedule(), bucket_bytes, unrolled or {})


def _timeline(schedule: _Schedule) -> Timeline:
    """The timeline of a schedule, with events and exposed seconds."""
    tasks, events = schedule.tasks, list[Event]()
    for number, start, end in schedule.runs:
        task = tasks[number]
        if end > start:
            events.append(Event(start, end - start, task.axis, task.name, task.class_id))
    return Timeline(
        tuple(sorted(events)),
        schedule.seconds,
        math.fsum(d.seconds for d in tasks if d.axis < 0),
        _exposed(schedule),
        schedule.held,
        schedule.bucket_bytes,
        tuple(d.sent for d in tasks if len(d.sent) > 1),
        schedule.unrolled,
    )


def _resources(problem: Problem) -> tuple[list[int], int]:
    """The resource of every mesh axis, and the number of resources."""
    axes = len(problem.mesh.sizes)
    if not problem.hardware.overlaps:
        return [COMPUTE] * axes, 1
    links = problem.network.link_groups()
    number = {group: 1 + k for k, group in enumerate(sorted(set(links)))}
    return [number[group] for group in links], 1 + len(number)


def _joined(
    step: StepTasks, bucket_bytes: int
) -> tuple[list[StepTask], list[list[int]], dict[int, list[tuple[int, int]]]]:
    """The tasks, with small neighbours of one kind, axis and dtype as one, those before each,
    and the carries of loops.

    The tasks themselves stay as they are: schedules of other buckets have them too.
    """
    in_turn = functools.partial(_place, step.tasks)
    rate = step.problem.hardware.memory_bandwidth
    taken: dict[int, int] = {}
    kinds: dict[object, list[int]] = defaultdict(list)
    for number, task in enumerate(step.tasks):
        if task.axis < 0 or not (task.ahead or task.behind) or task.nbytes >= bucket_bytes:
            continue
        if task.name not in JOINABLE:
            continue
        # A bucket waits for all of its own, so none may wait for another one's reader: results of
        # the optimizer are joined where nobody else reads them.
        is_returned, sources = task.first > step.end, [step.tasks[b] for b in task.before]
        if any(s.axis >= 0 or (s.is_patient and not is_returned) for s in sources):
            continue
        sent = task.sent[0]
        if sent.step.source[task.axis] in (MAX, MIN):
            continue
        dtype = step.graph.tensors[sent.tensor].dtype
        kind = task.name, task.axis, dtype, sent.when, task.where, bool(task.ahead), is_returned
        kinds[kind].append(number)
    joined, before = [*step.tasks], [task.before for task in step.tasks]
    for numbers in kinds.values():
        for bucket in _buckets(step.tasks, sorted(numbers, key=in_turn), bucket_bytes):
            if len(bucket) == 1:
                continue
            first, others = bucket[0], [step.tasks[n] for n in bucket]
            nbytes = sum(d.nbytes for d in others)
            once = step.problem.network.collective_seconds(others[0].name, others[0].axis, nbytes)
            copies = 4 * nbytes / rate  # read and written, before and after
            joined[first] = dataclasses.replace(
                others[0],
                seconds=others[0].repeats * (once + copies),
                order=min(d.order for d in others),
                first=max(d.first for d in others),
                # Laid beside each other, and apart.
                ahead=nbytes * bool(others[0].ahead) + sum(d.ahead for d in others),
                behind=nbytes * bool(others[0].behind) + sum(d.behind for d in others),
                sent=tuple(s for d in others for s in d.sent),
                nbytes=nbytes,
                name=f"{others[0].name} of {len(bucket)}",
            )
            before[first] = [b for d in others for b in d.before]
            taken |= dict.fromkeys(bucket, first)
    # Numbered again, without those that others have taken over.
    kept = [n for n in range(len(joined)) if taken.get(n, n) == n]
    renamed = {n: k for k, n in enumerate(kept)}
    number = [renamed[taken.get(n, n)] for n in range(len(joined))]
    carries = {
        loop: [(number[a], number[b]) for a, b in pairs] for loop, pairs in step.carries.items()
    }
    return [joined[n] for n in kept], [[number[b] for b in before[n]] for n in kept], carries


def _place(tasks: Sequence[StepTask], number: int) -> tuple[float, int]:
    """Gathers in the order in which they are read, reductions in that of their producers."""
    task = tasks[number]
    if task.ahead:
        return task.order, number
    return max(tasks[b].order for b in task.before), number


def _buckets(
    tasks: Sequence[StepTask], numbers: Sequence[int], bucket_bytes: int
) -> Iterable[list[int]]:
    """Neighbours, as long as they fit into a bucket."""
    bucket: list[int] = []
    filled = 0
    for number in numbers:
        nbytes = tasks[number].nbytes
        if bucket and filled + nbytes > bucket_bytes:
            yield bucket
            bucket, filled = [], 0
        bucket.append(number)
        filled += nbytes
    if bucket:
        yield bucket


# ---------------------------------------------------------------------- schedules of loops


def _exposed(schedule: _Schedule) -> dict[tuple[int, bool], float]:
    """Seconds for which computation waits, by the collective that it waits for.

    At the end of a body, and where it waits for others that wait, that is the last that ended.
    """
    exposed: dict[tuple[int, bool], float] = defaultdict(float)
    tasks, runs = schedule.tasks, schedule.runs
    sends = sorted((run.end, run.number) for run in runs if tasks[run.number].axis >= 0)
    ends: dict[int, list[float]] = defaultdict(list)
    for end, number in sends:
        ends[number].append(end)
    last_compute = 0.0
    for number, start, end in sorted(runs, key=lambda run: run.start):
        if tasks[number].axis >= 0:
            continue
        waited, until = start - last_compute, start * (1 + 1e-12)
        if waited > 0 and sends:
            own = [(ends[b][k - 1], b) for b in schedule.before[number]
                   if (k := bisect.bisect_right(ends[b], until))]  # fmt: skip
            last = bisect.bisect_right(sends, (until, len(tasks))) - 1
            blamed = tasks[(max(own) if own else sends[max(0, last)])[1]]
            exposed[blamed.axis, blamed.is_state] += waited
        last_compute = max(last_compute, end)
    if sends and sends[-1][0] > last_compute:
        final = tasks[sends[-1][1]]
        exposed[final.axis, final.is_state] += sends[-1][0] - last_compute
    return dict(exposed)


class _Loops:
    """Schedules bodies of loops from the innermost out, each as one task of the body around it."""

    def __init__(
        self,
        tasks: Sequence[StepTask],
        before: Sequence[Sequence[int]],
        resources: tuple[Sequence[int], int],
        room: Room,
        carries: Mapping[int, Sequence[tuple[int, int]]],
        unrolled: Mapping[int, int],
    ):
        self.tasks, (self.resources, self.num_resources) = tasks, resources
        self.room, self.held = room, 0.0
        self.carries, self.unrolled = carries, unrolled
        self.children: dict[Where, list[int]] = defaultdict(list)
        self.bodies: dict[Where, set[Where]] = defaultdict(set)
        for number, task in enumerate(tasks):
            self.children[task.where].append(number)
            for depth in range(len(task.where)):
                self.bodies[task.where[:depth]].add(task.where[: depth + 1])
        self.before: dict[Where, dict[int | Where, set[int | Where]]] = defaultdict(
            lambda: defaultdict(set)
        )
        for number, others in enumerate(before):
            for other in others:
                self._order(other, number)

    def _order(self, first: int, then: int) -> None:
        """Let a task wait for another in the innermost body that holds both."""
        a, b = self.tasks[first].where, self.tasks[then].where
        if a == b:
            if first != then:
                self.before[a][then].add(first)
            return
        shared = 0
        while shared < min(len(a), len(b)) and a[shared] == b[shared]:
            shared += 1
        earlier = first if len(a) == shared else a[: shared + 1]
        later = then if len(b) == shared else b[: shared + 1]
        if earlier != later:
            self.before[a[:shared]][later].add(earlier)

    def schedule(self) -> tuple[float, list[Run], float]:
        """The makespan, all tasks in time, and the most bytes held."""
        seconds, _, runs = self._body(())
        return seconds, runs, self.held

    def _body(self, where: Where) -> tuple[float, float, list[Run]]:
        """The makespan of a body, its place, and its tasks in time."""
        loops = sorted(self.bodies[where])
        inner = {loop: self._body(loop) for loop in loops}
        names: list[int | Where] = [*self.children[where], *loops]
        place = {name: k for k, name in enumerate(names)}
        orders = [self._place(name, inner) for name in names]
        computes = [self._is_compute(name) for name in names]
        placed, waits = list[Task](), self.before[where]
        for name, order in zip(names, orders, strict=True):
            # Chains of operators that are one node may seem to wait for what comes after them.
            first = order
            if isinstance(name, int) and self.tasks[name].axis >= 0:
                first = self.tasks[name].first
            wanted = map(place.__getitem__, waits.get(name, ()))
            before = tuple(k for k in wanted if orders[k] < first or not computes[k])
            placed.append(self._task(name, order, before, inner))
        count = self.unrolled.get(where[-1], 1) if where else 1
        if count > 1:
            across = sum(self.tasks[number].across for number in self.children[where])
            self.held = max(self.held, float(across * (count - 1)))
            carries = [(place[a], place[b]) for a, b in self.carries[where[-1]]]
            placed = _iterations(placed, count, carries)
        starts, held = list_schedule(placed, self.num_resources, self.room)
        self.held = max(self.held, held)
        ends = [start + task.seconds for start, task in zip(starts, placed, strict=True)]
        runs: list[Run] = []
        for name, start, end in zip(names * count, starts, ends, strict=True):
            if isinstance(name, int):
                runs.append(Run(name, start, end))
            else:
                runs += [
                    Run(run.number, start + run.start / count, start + run.end / count)
                    for run in inner[name][2]
                ]
        first = min(itertools.compress(orders, computes), default=0.0)
        return max(ends, default=0.0), first, runs

    def _is_compute(self, name: int | Where) -> bool:
        return not isinstance(name, int) or self.tasks[name].axis < 0

    def _place(self, name: int | Where, inner: Mapping[Where, tuple]) -> float:
        return self.tasks[name].order if isinstance(name, int) else inner[name][1]

    def _task(
        self,
        name: int | Where,
        order: float,
        before: tuple[int, ...],
        inner: Mapping[Where, tuple],
    ) -> Task:
        if not isinstance(name, int):
            resource = WHOLE if self.num_resources > 1 else COMPUTE
            return Task(inner[name][0], resource, order, before)
        task = self.tasks[name]
        resource = COMPUTE if task.axis < 0 else self.resources[task.axis]
        if task.is_alone and self.num_resources > 1:
            return Task(task.seconds, WHOLE, order, before, is_patient=True)
        if resource == COMPUTE:
            return Task(task.seconds, COMPUTE, order, before, is_patient=task.is_patient)
        return Task(task.seconds, resource, order, before, task.ahead, task.behind)


def _iterations(
    tasks: Sequence[Task], count: int, carries: Sequence[tuple[int, int]]
) -> list[Task]:
    """Some iterations of a body in a row, of tasks that take as long as all of them."""
    n, span = len(tasks), 1 + max(t.order for t in tasks) - min(t.order for t in tasks)
    leaves = dict(carries)
    made = []
    for k in range(count):
        for number, task in enumerate(tasks):
            before = [other + k * n for other in task.before]
            if k and number in leaves:
                before.append(leaves[number] + (k - 1) * n)
            made.append(
                task._replace(
                    seconds=task.seconds / count,
                    order=task.order + k * span,
                    before=tuple(before),
                )
            )
    return made
