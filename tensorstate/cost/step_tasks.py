"""The tasks of a step: operators and collectives, and the dependencies between them.

A tensor's copies are made by its producer and by the collectives of its reshard plan; the readers
of a copy wait for the task that makes it. Parameters, and casts of them, are sent *ahead* of their
readers, because nothing computes before them. Reductions that only the optimizer reads are sent
*behind* their producers. In the body of a scan, a collective is ahead or behind if no carry leads
to it or from it: it may then run during other iterations than its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tensorstate.cost.memory import receive_buffer_bytes, resharded_bytes
from tensorstate.cost.reshard_plan import Decisions, Pass, ReshardPlan
from tensorstate.ir.placements import Placements
from tensorstate.keeping.table import Kept
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.problem.tensor_groups import TensorGroup, is_in_loop

MICROBATCHES = -1  # the loop over microbatches, among the loops of the step

Where = tuple[int, ...]
"""The loops around something, outermost first."""

Copies = dict[Placements, int | None]
"""For each placement of a copy the task that makes it; ``None`` if it exists from the start."""


class Sent(NamedTuple):
    """A collective of a plan.

    Attributes:
        tensor: number of the tensor.
        when: the pass.
        step: the step.
    """

    tensor: int
    when: Pass
    step: ReshardStep


@dataclasses.dataclass(slots=True)
class StepTask:
    """A task under construction.

    Attributes:
        where: the loops around it.
        axis: mesh axis of a collective; -1 for compute.
        sent: the tensors of a collective.
        nbytes: bytes of the larger buffer of a collective.
        repeats: executions of a collective.
        first: the place of a collective's first reader, although that reader may wait.
        is_alone: whether nothing may run beside it.
        across: for a collective in a scan that may run during another iteration, the bytes that it
            then holds.
    """

    seconds: float
    where: Where
    order: float
    axis: int
    name: str
    class_id: int
    before: list[int] = dataclasses.field(default_factory=list)
    is_patient: bool = False
    ahead: int = 0
    behind: int = 0
    sent: tuple[Sent, ...] = ()
    nbytes: int = 0
    repeats: int = 1
    first: float = 0.0
    is_alone: bool = False
    across: int = 0


class StepTasks:
    """The tasks of a step under decisions.

    Args:
        problem, decisions, reshards, kept: as for ``schedule_step``.
    """

    def __init__(
        self,
        problem: Problem,
        decisions: Decisions,
        reshards: Sequence[ReshardPlan],
        kept: Kept,
    ):
        self.problem, self.graph = problem, problem.graph
        self.strategies, self.kept = decisions.strategies, kept
        self.end = float(problem.liveness.end + 1)
        self.tasks: list[StepTask] = []
        self.first_run: dict[int, int] = {}  # node -> its task
        self.again: dict[int, int] = {}  # node that reruns -> the task of its second run
        self.carries: dict[int, list[tuple[int, int]]] = {}  # scan that sends -> in, and out
        self._compute()
        for reshard in reshards:
            self._reshard(reshard)
        self._go_round()
        self._hoist_casts()
        if self.graph.loops and problem.hardware.overlaps and problem.pipeline is None:
            self._find_across()
        self._place_collectives()

    # ------------------------------------------------------------------ tasks

    def _compute(self) -> None:
        problem, at = self.problem, self.problem.liveness.at
        for class_id, nodes in enumerate(self.graph.node_classes):
            node = problem.node(class_id)
            if not node.members:
                continue
            seconds = problem.seconds(class_id, self.strategies[class_id])
            names = operator_names(problem, class_id)
            for number in nodes:
                node = self.graph.nodes[number]
                order = float(max(at[m.operator] for m in node.members))
                loops = self.graph.operators[node.members[0].operator].loops
                where = self._in_loop(loops, is_in_loop(node, problem.microbatch_split))
                task = StepTask(seconds, where, order, -1, names, class_id)
                task.is_patient = node.phase == "optimizer"
                self.first_run[number] = self._add(task)
        # Nodes rerun in the body that mirrors theirs, and wait for other copies.
        for number, order in self._rerun_orders().items():
            task = self.tasks[self.first_run[number]]
            name = f"{task.name} ({self.kept[number]})"
            where = self._mirrored(task.where)
            self.again[number] = self._add(
                dataclasses.replace(task, order=order, name=name, before=[], where=where)
            )

    def _go_round(self) -> None:
        """For nodes with sends within them, let the sends run beside the blocks before the last.

        The last block is computed once both have ended; sends begin when the node does. Where rows
        are exchanged there is one block, and nothing runs beside the sends.
        """
        for number in [*self.first_run.values(), *self.again.values()]:
            task = self.tasks[number]
            strategy = self.strategies[task.class_id]
            sends = self.problem.inner_sends(task.class_id, strategy)
            if not sends:
                continue
            # Places are points of the traced order. Parts of one point are placed slightly before
            # it.
            operands, blocks = task.before, self.problem.blocks_around(task.class_id, strategy)
            last = task.seconds / blocks
            others = {"order": task.order - 1e-6, "seconds": task.seconds - last}
            beside = [dataclasses.replace(task, before=[*operands], **others)]
            for axis, kind in dict.fromkeys((send.axis, send.kind) for send in sends):
                along = [send for send in sends if (send.axis, send.kind) == (axis, kind)]
                seconds = math.fsum(map(self.problem.inner_send_seconds, along))
                task_of_sends = dataclasses.replace(
                    task, seconds=seconds, axis=axis, name=kind, before=[*operands]
                )
                task_of_sends.nbytes = sum(send.times * send.nbytes for send in along)
                beside.append(task_of_sends)
            task.seconds = last
            task.before = [*operands, *map(self._add, beside)]

    def _rerun_orders(self) -> dict[int, float]:
        """The place of each node that reruns: before its first reader, and before what it feeds."""
        liveness, readers = self.problem.liveness, defaultdict[int, list[int]](list)
        for edge in self.graph.edges:
            if edge.source in self.kept.rerun and edge.target in self.kept.rerun:
                readers[edge.source].append(edge.target)
        orders: dict[int, float] = {}
        for number in sorted(self.kept.rerun, reverse=True):
            members = self.graph.nodes[number].members
            first = min(liveness.rerun_at[m.operator] for m in members) - 0.5
            fed = [orders[reader] for reader in readers[number] if reader in orders]
            orders[number] = min([first, *(order - 1e-6 for order in fed)])
        return orders

    def _add(self, task: StepTask) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1

    def _mirrored(self, where: Where) -> Where:
        """The body in which the tasks of another body rerun."""
        return tuple(self.graph.mirrored.get(loop, loop) for loop in where)

    def _in_loop(self, loops: Where, in_loop: bool) -> Where:
        return (MICROBATCHES, *loops) if self.problem.microbatches > 1 and in_loop else loops

    def _reshard(self, reshard: ReshardPlan) -> None:
        """Add the collectives of some tensors, and the dependencies of their readers."""
        problem, group = self.problem, self.problem.tensor_groups[reshard.group]
        required = [
            None
            if c.class_id is None
            else problem.required_placements(c, self.strategies[c.class_id])
            for c in group.consumer_classes
        ]
        number_of = {tensor: k for k, tensor in enumerate(group.tensors)}
        where = self._in_loop(self.graph.loops_around(group.tensors[0]), group.in_loop)
        for tensor in reshard.tensors:
            member = number_of[tensor]
            copies = self._copies(reshard, group, tensor, group.producers[member], where)
            for k, readers in enumerate(group.consumers[member]):
                if (placements := required[k]) is None:
                    continue
                consumer = group.consumer_classes[k]
                is_forward = group.in_forward and not consumer.after_forward
                now = copies["after_loop" if consumer.after_loop else
                             "in_forward" if is_forward else "after_forward"]  # fmt: skip
                for reader in readers:
                    self._wait(self.first_run.get(reader), now.get(placements))
                    if reader in self.again:
                        made = copies["after_forward"].get(placements)
                        self._wait(self.again[reader], made)

    def _copies(
        self, reshard: ReshardPlan, group: TensorGroup, tensor: int, producer: int, where: Where
    ) -> dict[str, Copies]:
        """The copies of a tensor in every pass, by the tasks that make them."""
        produced, made = reshard.produced_placements, self.first_run.get(producer)
        send = functools.partial(self._send, reshard, group, tensor, where=where)
        self._send_to_next_stage(reshard, group, producer)
        before: Copies = send("before_loop", {produced: made})
        in_forward = send("in_forward", before)
        if not group.in_forward:
            start: Copies = {produced: made}
        elif reshard.keeping.reruns:
            start = {produced: self.again.get(producer, made)}
        else:
            start = dict(before) if group.is_input or reshard.saved is None else {}
            if reshard.saved is not None:
                stored = in_forward.get(reshard.saved, made)
                start[reshard.saved] = self._fetched(reshard, group, tensor, stored, where)
        after = send("after_forward", start)
        resident = after if reshard.loop_resident in after else in_forward
        last = send("after_loop", {produced: made, **resident})
        return {"in_forward": in_forward, "after_forward": after, "after_loop": last}

    def _fetched(
        self,
        reshard: ReshardPlan,
        group: TensorGroup,
        tensor: int,
        stored: int | None,
        where: Where,
    ) -> int | None:
        """The task that brings a stored copy back before its first reader, if it takes time."""
        if not reshard.keeping_seconds:
            return stored
        liveness = self.problem.liveness
        later = [p for p in liveness.reads(tensor) if p >= liveness.forward_end]
        order = min(later, default=liveness.forward_end) - 0.5
        name, where = str(reshard.keeping), self._mirrored(where)
        task = StepTask(reshard.keeping_seconds, where, order, -1, name, group.class_id)
        fetched = self._add(task)
        self._wait(fetched, stored)
        return fetched

    def _send(
        self,
        reshard: ReshardPlan,
        group: TensorGroup,
        tensor: int,
        when: Pass,
        copies: Copies,
        where: Where,
    ) -> Copies:
        """The copies after the reshard steps of a pass."""
        copies = dict(copies)
        is_inside = when in ("in_forward", "after_forward")
        repeats = reshard.num_repeats if is_inside else 1
        where = where if is_inside else ()
        where = self._mirrored(where) if when == "after_forward" and group.in_forward else where
        for step in getattr(reshard, when).steps:
            source = copies.get(step.source)
            if step.kind == "slice":
                copies[step.target] = source
                continue
            seconds = repeats * self.problem.reshard_graph(group).seconds(step)
            # Its place is that of its readers, once all of them are known.
            task = StepTask(seconds, where, 0.0, step.axis, step.kind, group.class_id)
            task.sent, task.nbytes = (Sent(tensor, when, step),), step.nbytes
            task.repeats = repeats
            task.ahead = resharded_bytes(self.problem, group, step)
            task.behind = self.problem.local_bytes(group, step.source)
            copies[step.target] = self._add(task)
            self._wait(copies[step.target], source)
        return copies

    def _send_to_next_stage(self, reshard: ReshardPlan, group: TensorGroup, producer: int) -> None:
        """Add sends of a carry between ticks of pipeline stages, during which nothing else runs."""
        made = self.first_run.get(producer)
        for step in reshard.sent.steps:
            seconds = reshard.num_sends * self.problem.reshard_graph(group).seconds(step)
            where = () if made is None else self.tasks[made].where
            task = StepTask(seconds, where, 0.0, step.axis, step.kind, group.class_id)
            self._wait(self._add(dataclasses.replace(task, is_alone=True)), made)

    def _wait(self, reader: int | None, made: int | None) -> None:
        if reader is not None and made is not None and reader != made:
            self.tasks[reader].before.append(made)

    # ------------------------------------------------------------------ what may be ahead

    def _hoist_casts(self) -> None:
        """Run casts of inputs that are sent at the beginning, so that they can be sent ahead.

        They are as large as a device's shard of the input, which is small if the input is gathered.
        """
        senders = {b for d in self.tasks if d.axis >= 0 for b in d.before}
        for number in senders:
            task = self.tasks[number]
            node = self.problem.node(task.class_id)
            if task.axis < 0 and not task.before and not task.where and node.phase == "forward":
                # Between -1 and 0: before the first operator, in the order of the tasks.
                task.order = number / len(self.tasks) - 1.0

    def _find_across(self) -> None:
        """Find collectives in scans that come before or after all carries, of rows or stacks."""
        run_of = {m.operator: run for node, run in self.first_run.items()
                  for m in self.graph.nodes[node].members}  # fmt: skip
        inside: dict[Where, list[int]] = defaultdict(list)
        for number, task in enumerate(self.tasks):
            for depth in range(len(task.where)):
                inside[task.where[: depth + 1]].append(number)
        for where in {task.where for task in self.tasks if task.sent and task.where}:
            if MICROBATCHES in where or self.graph.loops[where[-1]].length is None:
                continue
            readers: dict[int, list[int]] = {number: [] for number in inside[where]}
            sources: dict[int, list[int]] = {number: [] for number in inside[where]}
            for number in inside[where]:
                for other in set(self.tasks[number].before) & readers.keys():
                    readers[other].append(number)
                    sources[number].append(other)
            carries = [(run_of[a], run_of[b]) for a, b in self.graph.loops[where[-1]].carries]
            self.carries[where[-1]] = carries
            # A collective that no carry leads to may run before the iteration, and one that leads
            # to no carry may run after it.
            later = _reached((enter for enter, _ in carries), readers)
            first = _reached((leave for _, leave in carries), sources)
            for number in inside[where]:
                task = self.tasks[number]
                if task.sent and task.where == where and number not in later & first:
                    received = receive_buffer_bytes(task.sent[0].step)
                    task.across = received + (task.behind if number in later else task.ahead)

    def _place_collectives(self) -> None:
        """Set every collective's place, its first reader's, and whether it is ahead or behind."""
        tasks, end = self.tasks, self.end
        late = end if self.problem.hardware.overlaps else 0.0
        readers: dict[int, list[int]] = defaultdict(list)
        for number, task in enumerate(tasks):
            for other in task.before:
                readers[other].append(number)
        self._let_casts_wait(readers)
        for number in reversed(range(len(tasks))):
            task = tasks[number]
            if task.axis < 0:
                continue
            first = task.first = 2 * end  # after all others, including those of the optimizer
            for reader in map(tasks.__getitem__, readers[number]):
                if len(reader.where) < len(task.where):
                    continue  # read after the loop
                is_patient = reader.is_patient and reader.axis < 0
                first = min(first, reader.order + (late if is_patient else 0.0))
                task.first = min(task.first, reader.order if reader.axis < 0 else reader.first)
            task.order = first
        for task in tasks:
            if task.axis < 0 or task.is_alone:
                continue
            sources = [tasks[b] for b in task.before]
            is_early = all(s.ahead if s.axis >= 0 else s.order < 0 for s in sources)
            # One byte if it makes no copy, because a value above 0 means ahead.
            task.ahead = task.ahead or 1 if is_early and not task.where else 0
            is_late = task.order >= end and not task.ahead
            task.behind = task.behind if is_late else 0

    def _let_casts_wait(self, readers: Mapping[int, Sequence[int]]) -> None:
        """Let tasks wait that only the optimizer reads, such as casts and scales of gradients."""
        tasks = self.tasks
        computed = [n for n, d in enumerate(tasks) if d.axis < 0]
        for number in sorted(computed, key=lambda n: -tasks[n].order):
            node = self.problem.node(tasks[number].class_id)
            if node.kind != "elementwise" or node.phase != "backward":
                continue
            found, pending = set[int](), [*readers[number]]
            while pending:
                reader = pending.pop()
                if tasks[reader].axis >= 0:
                    pending += readers[reader]
                else:
                    found.add(reader)
            tasks[number].is_patient = bool(found) and all(tasks[n].is_patient for n in found)


def _reached(start: Iterable[int], edges: Mapping[int, Sequence[int]]) -> set[int]:
    """Everything that edges lead to, including the start."""
    found, pending = set[int](), [*start]
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending += edges[number]
    return found


def operator_names(problem: Problem, class_id: int) -> str:
    """The operators of a node class, each named once."""
    members = problem.node(class_id).members
    names = (problem.graph.operators[member.operator].primitive for member in members)
    return ", ".join(dict.fromkeys(names))
