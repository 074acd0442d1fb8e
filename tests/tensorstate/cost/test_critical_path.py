"""Critical paths: as long as the schedule, and of what makes it longer alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings

from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.critical_path import critical_seconds
from tensorstate.cost.loop_schedule import Runs
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.cost.test_timeline import Task, drawn_tasks, layered, list_schedule
from tests.tensorstate.steps import s


def critical(tasks: list[Task], starts: list[float]) -> dict[int, float]:
    ends = [start + task.seconds for start, task in zip(starts, tasks, strict=True)]
    runs = Runs(np.arange(len(tasks)), np.array(starts), np.array(ends))
    waits = [(n, k) for n, task in enumerate(tasks) for k in task.before]
    waiting, awaited = np.array(waits, np.int64).reshape(-1, 2).T
    return critical_seconds(runs, np.array([t.resource - 1 for t in tasks]), waiting, awaited)


@given(drawn_tasks(40, 3))
@settings(deadline=None)
def test_the_critical_path_is_as_long_as_the_schedule(tasks):
    """No resource idles while a task of it is ready: so every start is the end of another task."""
    starts, _ = list_schedule(tasks, 3)
    found = critical(tasks, starts)
    ends = [start + task.seconds for start, task in zip(starts, tasks, strict=True)]
    assert math.fsum(found.values()) == pytest.approx(max(ends))
    assert all(found[number] == tasks[number].seconds for number in found)
    along = sorted((starts[n], ends[n]) for n in found)
    assert all(one[1] == two[0] for one, two in itertools.pairwise(along))


def test_of_two_links_in_a_row_the_slow_one_is_critical():
    """Parts come over a slow link and a fast one, and computation waits for the fast one."""
    tasks = []
    for part in range(4):
        n = len(tasks)
        tasks += [
            Task(5.0, 1, float(part)),
            Task(2.0, 2, float(part), (n,)),
            Task(1.0, 0, float(part), (n + 1,)),
        ]
    starts, _ = list_schedule(tasks, 3)
    found = critical(tasks, starts)
    assert [n for n in sorted(found) if tasks[n].resource == 1] == [0, 3, 6, 9]
    assert [n for n in sorted(found) if tasks[n].resource == 2] == [10]


def test_a_gap_ends_at_what_was_last_before_it():
    tasks = [Task(1.0, 0, 0.0), Task(1.0, 1, 1.0, (0,)), Task(2.0, 0, 2.0)]
    assert critical(tasks, [0.0, 1.0, 3.0]) == {0: 1.0, 1: 1.0, 2: 2.0}
    assert critical([], []) == {}


def test_slow_links_are_critical_and_fast_ones_only_at_the_ends():
    """Parameters are gathered from hosts over slow links and then within one over fast links."""
    mesh = MeshShape.of({"hosts": 2, "gpus": 4})
    graph = trace(layered, ([s(2048, 2048)] * 6, s(8192, 2048)))
    network = AlphaBetaCosts(mesh, (1e-6, 1e-6), (1e9, 100e9))
    plan = solve_baseline(Problem(graph, network, HARDWARE["H100"]), "fsdp")
    slow, fast = (
        math.fsum(seconds for (_, of), seconds in plan.timeline.critical_of.items() if of == axis)
        for axis in (0, 1)
    )
    sent_slow, sent_fast = (
        math.fsum(event.seconds for event in plan.timeline.events if event.axis == axis)
        for axis in (0, 1)
    )
    assert slow > 0.9 * sent_slow
    assert fast < 0.5 * sent_fast
