"""A step in time: operators on compute, and collectives on the links that they use.

The step is scheduled as it runs if collectives overlap with compute (``list_schedule``): nodes
compute in the traced order, parameters are gathered ahead of their readers, and reductions that
only the optimizer reads are sent behind their producers. Mesh axes whose collectives share links
share a resource. Devices without overlap have one resource for everything.

A loop, of the step or of microbatches, is one task during which nothing else runs. Its body is
scheduled once: the seconds of a task are those of all iterations, so that the body's makespan is
the loop's. Scans may be unrolled a little. The body is then a few iterations, which wait for each
other only through the carries, so that rows are gathered and sums are reduced during neighbouring
iterations. The bytes that all of them hold at once count as held.

Collectives of one kind and axis that are ahead, and those that are behind, are joined in buckets of
limited bytes: a bucket pays latency once, and copies its operands and results once more.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxcoll.kinds import those
from jaxcoll.numerics.list_schedule import COMPUTE, FreeMemory
from tensorstate.cost.critical_path import critical_seconds
from tensorstate.cost.loop_schedule import Bodies, LoopSchedule, TaskColumns
from tensorstate.cost.reshard_plan import Decisions, ReshardPlan
from tensorstate.cost.step_tasks import Sent, StepTasks
from tensorstate.ir.placements import MAX, MIN
from tensorstate.keeping.table import Kept
from tensorstate.problem.problem import Problem

# The largest part of the memory that copies ahead and behind may take.
MOST_AHEAD = 0.05
# Collectives of sums and shards, whose operands can be concatenated.
JOINABLE = those(lambda kind: kind.is_sharded)
# Bytes of a bucket that are tried. One bucket of everything that a pass sends has nothing left to
# hide under: with 12 layers of 128 KiB, 4 MiB left 1 of 35 products covered on v5e and none on
# H100s; 512 KiB left 9 and 26.
BUCKETS = (1 << 17, 1 << 19, 1 << 21, 1 << 23, 1 << 25)
# Iterations that become one body. Each doubling doubles the time of compiling a scan, so it must
# make the step shorter by some part. Gathers ahead across one iteration, in the carry of the loop,
# were worse: XLA reuses the buffer of the carry, and so has to compute before it gathers.
UNROLLS = (2, 4)
LEAST_GAIN = 0.01


class Event(NamedTuple):
    """Something that takes time in a step; all its repeats in loops are one event.

    Attributes:
        start, seconds: from the start of the step.
        axis: the mesh axis that a collective runs along; -1 for compute.
        name: the collective, or the operators.
        class_id: the node class that computes, or that produces the resharded tensors.
    """

    start: float
    seconds: float
    axis: int
    name: str
    class_id: int


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class StepSchedule:
    """The schedule of a step.

    Attributes:
        events: everything that takes time, by start.
        seconds: the makespan, which is the time of the step.
        compute: seconds of computation.
        exposed_of: for each tensor and mesh axis the seconds for which computation waits; for
            joined collectives in proportion to their bytes.
        critical_of: likewise, the seconds on the critical path.
        held: the most bytes of collectives that are sent ahead or behind.
        bucket_bytes: the most bytes of joined collectives; 0 if none are joined.
        buckets: the collectives that are joined.
        unrolled: for each scan of the step, by number, the number of iterations in one body.
    """

    events: tuple[Event, ...]
    seconds: float
    compute: float
    exposed_of: Mapping[tuple[int, int], float]
    critical_of: Mapping[tuple[int, int], float]
    held: float
    bucket_bytes: int
    buckets: tuple[tuple[Sent, ...], ...]
    unrolled: Mapping[int, int]

    def __repr__(self) -> str:
        return (
            f"StepSchedule({len(self.events)} events, {self.seconds:.4g} s, of which "
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
    kept: Kept,
    live: np.ndarray,
    memory_limit: float | None = None,
) -> StepSchedule:
    """The schedule of a step under decisions, with the buckets of the least time.

    Args:
        reshards: the reshard plans of all tensors.
        kept: how nodes are kept for the backward pass.
        live: bytes that are live at every program point.
        memory_limit: bytes per device; the device's memory by default.
    """
    step = _Step(StepTasks(problem, decisions, reshards, kept))
    room = _free_memory(problem, live, memory_limit)
    best = step.scheduled(0, room)
    # Longer buckets pay less latency and hide less: over their sizes, seconds fall and then rise.
    for nbytes in step.worth_trying():
        found = step.scheduled(nbytes, room)
        if found.loops.seconds < best.loops.seconds:
            best = found
        elif best.bucket_bytes:  # larger buckets leave less to hide under
            break
    for most in UNROLLS if step.carries else ():
        unrolled = _unrolled(step, most, room)
        if not unrolled or unrolled == best.unrolled:
            break
        longer = step.scheduled(best.bucket_bytes, room, unrolled)
        if longer.loops.seconds > (1 - LEAST_GAIN) * best.loops.seconds:
            break
        best = longer
    return _timeline(best)


def _unrolled(step: _Step, most: int, room: FreeMemory) -> dict[int, int]:
    """For each scan the iterations of a body, up to ``most``, that leave over one at most."""
    unrolled = {}
    for number in step.carries:
        inside = [task for task in step.tasks if number in task.where]
        places = [task.order for task in inside if task.axis < 0]
        left = room.between(min(places), max(places))
        held = sum(task.across for task in inside if task.where[-1] == number)
        length = step.graph.loops[number].length or 1
        # At least two bodies, because without a loop XLA keeps everything the forward pass has
        # gathered.
        for count in range(min(most, length // 2), 1, -1):
            if 0 < held * (count - 1) <= left and length % count <= 1:
                unrolled[number] = count
                break
    return unrolled


def _free_memory(problem: Problem, live: np.ndarray, memory_limit: float | None) -> FreeMemory:
    """The bytes that a memory limit leaves free between two places of the traced order."""
    limit = problem.hardware.memory if memory_limit is None else memory_limit
    most = MOST_AHEAD * limit
    if memory_limit is None:
        return FreeMemory.of((), (), most)
    return FreeMemory.of(problem.liveness.program_points, limit - live, most)


# ---------------------------------------------------------------------- buckets


class _Schedule(NamedTuple):
    """The times of a step's tasks, some of which are parts of buckets.

    Attributes:
        step: the tasks.
        joined: the tasks of each bucket, by number of its first task.
        loops: the schedule.
        bucket_bytes, unrolled: as for ``StepSchedule``.
    """

    step: _Step
    joined: Mapping[int, Sequence[int]]
    loops: LoopSchedule
    bucket_bytes: int
    unrolled: Mapping[int, int]


class _Step:
    """The tasks of a step as columns, and which collectives may be joined.

    Attributes:
        joinable: numbers of collectives by kind, in the order in which they are sent: gathers as
            they are read, reductions as they are produced.
        kind: the kind of each of these.
    """

    def __init__(self, made: StepTasks):
        self.problem, self.graph = made.problem, made.graph
        self.tasks, self.carries, self.end = made.tasks, made.carries, made.end
        self.resources = _resources(self.problem)
        self.bodies = Bodies([task.where for task in self.tasks])
        self.columns = TaskColumns.of(self.tasks, self.bodies)
        self.nbytes = np.array([task.nbytes for task in self.tasks], np.int64)
        kinds: dict[object, list[int]] = defaultdict(list)
        for number in range(len(self.tasks)):
            if kind := self._kind(number):
                kinds[kind].append(number)
        ordered = [sorted(numbers, key=self._turn) for numbers in kinds.values()]
        self.joinable = np.array([*itertools.chain(*ordered)], np.int64)
        self.kind = np.repeat(np.arange(len(ordered)), [len(numbers) for numbers in ordered])

    def _kind(self, number: int) -> tuple | None:
        """The properties that a bucket's collectives share; ``None`` if none takes the task."""
        task = self.tasks[number]
        if task.axis < 0 or not (task.ahead or task.behind) or task.name not in JOINABLE:
            return None
        # A bucket waits for the producers of everything that it joins. If one collective waited for
        # a reader of another one in its bucket, the bucket would wait for itself. So a collective
        # that waits for another one, or for the optimizer, is joined only if only the caller reads
        # it.
        is_returned, sources = task.first > self.end, [self.tasks[b] for b in task.before]
        if any(s.axis >= 0 or (s.is_patient and not is_returned) for s in sources):
            return None
        sent = task.sent[0]
        if sent.step.source[task.axis] in (MAX, MIN):
            return None
        dtype = self.graph.tensors[sent.tensor].dtype
        return task.name, task.axis, dtype, sent.when, task.where, bool(task.ahead), is_returned

    def _turn(self, number: int) -> tuple[float, int]:
        """The sort key: gathers by their readers, reductions by their producers."""
        task = self.tasks[number]
        if task.ahead:
            return task.order, number
        return max(self.tasks[b].order for b in task.before), number

    def worth_trying(self) -> Iterator[int]:
        """Sizes of buckets that join some collectives; of equal results only the smallest size."""
        # Joining takes a pass over the collectives; scheduling the step takes ten times as long.
        last: Mapping[int, Sequence[int]] = {}
        for size in BUCKETS if self.problem.hardware.overlaps else ():
            joined = self.joined(size)
            if joined != last:
                yield size
            last = joined

    def joined(self, bucket_bytes: int) -> dict[int, list[int]]:
        """Neighbours of one kind, as many as fit into a bucket, by the first of them."""
        nbytes = self.nbytes[self.joinable]
        is_small = nbytes < bucket_bytes
        small = (column[is_small].tolist() for column in (self.joinable, self.kind, nbytes))
        buckets: list[list[int]] = []
        last, filled = -1, 0
        for number, kind, size in zip(*small, strict=True):
            if kind != last or filled + size > bucket_bytes:
                buckets.append([])
                last, filled = kind, 0
            buckets[-1].append(number)
            filled += size
        return {bucket[0]: bucket for bucket in buckets if len(bucket) > 1}

    def scheduled(
        self, bucket_bytes: int, room: FreeMemory, unrolled: Mapping[int, int] | None = None
    ) -> _Schedule:
        """The schedule with buckets of a size, and some scans unrolled."""
        joined, columns = self.joined(bucket_bytes), self.columns
        taken = np.arange(len(self.tasks))
        if joined:
            columns = columns._replace(
                **{name: getattr(columns, name).copy() for name in _OF_BUCKETS}
            )
        for first, bucket in joined.items():
            taken[bucket] = first
            self._join(columns, first, bucket)
        waits = taken[columns.waiting], taken[columns.awaited]
        columns = columns._replace(waiting=waits[0], awaited=waits[1])
        carries = {
            loop: [(int(taken[a]), int(taken[b])) for a, b in pairs]
            for loop, pairs in self.carries.items()
        }
        is_kept = taken == np.arange(len(taken))
        loops = LoopSchedule(
            columns, is_kept, self.bodies, self.resources, room, carries, unrolled or {}
        )
        return _Schedule(self, joined, loops, bucket_bytes, unrolled or {})

    def _join(self, columns: TaskColumns, first: int, bucket: Sequence[int]) -> None:
        """Let the first task of a bucket stand for all of it."""
        # The order is that of the earliest reader, before which the whole bucket must have arrived.
        task, nbytes = self.tasks[first], int(self.nbytes[bucket].sum())
        network, rate = self.problem.network, self.problem.hardware.memory_bandwidth
        once = network.collective_seconds(task.name, task.axis, nbytes)
        copies = 4 * nbytes / rate  # read and written, before and after
        columns.seconds[first] = task.repeats * (once + copies)
        columns.order[first] = columns.order[bucket].min()
        columns.first[first] = columns.first[bucket].max()
        # Concatenated, and split again.
        for column in (columns.ahead, columns.behind):
            column[first] = nbytes * bool(column[first]) + column[bucket].sum()


# Columns in which a bucket differs from its first task.
_OF_BUCKETS = ("seconds", "order", "first", "ahead", "behind")


def _resources(problem: Problem) -> tuple[list[int], int]:
    """The resource of every mesh axis, and the number of resources."""
    axes = len(problem.mesh.sizes)
    if not problem.hardware.overlaps:
        return [COMPUTE] * axes, 1
    links = problem.network.link_groups()
    number = {group: 1 + k for k, group in enumerate(sorted(set(links)))}
    return [number[group] for group in links], 1 + len(number)


# ---------------------------------------------------------------------- the timeline


def _timeline(schedule: _Schedule) -> StepSchedule:
    """The timeline of a schedule, with events and exposed seconds."""
    tasks, joined, loops = schedule.step.tasks, schedule.joined, schedule.loops
    events = []
    runs = loops.runs
    for number, start, end in zip(*(column.tolist() for column in runs), strict=True):
        task = tasks[number]
        if end > start:
            name = f"{task.name} of {len(joined[number])}" if number in joined else task.name
            events.append(Event(start, end - start, task.axis, name, task.class_id))
    columns = loops.tasks
    waits = columns.waiting, columns.awaited
    critical = critical_seconds(runs, columns.axis, *waits)
    return StepSchedule(
        tuple(sorted(events)),
        loops.seconds,
        math.fsum(columns.seconds[(columns.axis < 0) & loops.is_kept].tolist()),
        _by_tensor(schedule, _waits(loops)),
        _by_tensor(schedule, critical),
        loops.held,
        schedule.bucket_bytes,
        tuple(tuple(s for n in joined[first] for s in tasks[n].sent) for first in sorted(joined)),
        schedule.unrolled,
    )


def _by_tensor(
    schedule: _Schedule, seconds_of: Mapping[int, float]
) -> dict[tuple[int, int], float]:
    """Seconds of collectives by tensor and mesh axis; buckets in proportion to their bytes."""
    tasks, joined = schedule.step.tasks, schedule.joined
    by_tensor: dict[tuple[int, int], float] = defaultdict(float)
    for number, seconds in seconds_of.items():
        axis, joined_tasks = tasks[number].axis, [tasks[n] for n in joined.get(number, (number,))]
        sent = [(each.tensor, t.nbytes / len(t.sent)) for t in joined_tasks for each in t.sent]
        total = math.fsum(nbytes for _, nbytes in sent)
        for tensor, nbytes in sent if total else ():
            by_tensor[tensor, axis] += seconds * nbytes / total
    return dict(by_tensor)


def _waits(loops: LoopSchedule) -> dict[int, float]:
    """Seconds for which computation waits, by the number of the collective that it waits for.

    At the end of a body, and if computation waits for a collective that itself waits, it is the
    last one that ended.
    """
    waits: dict[int, float] = defaultdict(float)
    tasks = loops.tasks
    axis = tasks.axis.tolist()
    runs = [*zip(*(column.tolist() for column in loops.runs), strict=True)]
    before: dict[int, list[int]] = defaultdict(list)
    for waiting, awaited in zip(tasks.waiting.tolist(), tasks.awaited.tolist(), strict=True):
        before[waiting].append(awaited)
    sends = sorted((end, number) for number, _, end in runs if axis[number] >= 0)
    ends: dict[int, list[float]] = defaultdict(list)
    for end, number in sends:
        ends[number].append(end)
    last_compute = 0.0
    for number, start, end in sorted(runs, key=lambda run: run[1]):
        if axis[number] >= 0:
            continue
        # Computation starts as its collective ends, up to the rounding of sums of seconds.
        waited, until = start - last_compute, start * (1 + 1e-12)
        if waited > 0 and sends:
            own = [(ends[b][k - 1], b) for b in before[number]
                   if (k := bisect.bisect_right(ends[b], until))]  # fmt: skip
            last = bisect.bisect_right(sends, (until, len(axis))) - 1
            blamed = (max(own) if own else sends[max(0, last)])[1]
            waits[blamed] += waited
        last_compute = max(last_compute, end)
    if sends and sends[-1][0] > last_compute:
        waits[sends[-1][1]] += sends[-1][0] - last_compute
    return waits
