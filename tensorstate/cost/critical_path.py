"""The critical path of a schedule: tasks each of which starts when the previous one ends.

It leads from the end of a step back to its start. As long as the order stays the same, a longer
task on the path makes the step longer by the same time, while other tasks may become longer at no
cost. The waits of computation tell less: computation may wait for a gather over fast links that
follows one over slow links, although only the slow links are too slow.
"""

from __future__ import annotations

import bisect
from collections import defaultdict

import numpy as np

from tensorstate.cost.loop_schedule import Runs

# Relative to times that are sums of the same seconds.
ROUNDING = 1e-12


def critical_seconds(
    runs: Runs, axis: np.ndarray, waiting: np.ndarray, awaited: np.ndarray
) -> dict[int, float]:
    """Seconds on the critical path, by the number of the task.

    The predecessor of a task is one that ends as it starts. Among several it is one that the task
    waits for, or else one on the same links. If there is none, as when memory is lacking, it is the
    last task that has ended.

    Args:
        runs: the tasks in time.
        axis: the mesh axis of every task, or -1.
        waiting, awaited: the task ``waiting[i]`` waits for ``awaited[i]``.
    """
    before: dict[int, set[int]] = defaultdict(set)
    for waits, other in zip(waiting.tolist(), awaited.tolist(), strict=True):
        before[waits].add(other)
    columns = runs.end.tolist(), runs.start.tolist(), runs.number.tolist()
    ended = sorted(run for run in zip(*columns, strict=True) if run[0] > run[1])
    ends = [end for end, _, _ in ended]
    critical: dict[int, float] = defaultdict(float)
    place = len(ended) - 1
    while place >= 0:
        end, start, number = ended[place]
        critical[number] += end - start
        until = bisect.bisect_right(ends, start * (1 + ROUNDING))
        since = bisect.bisect_left(ends, start * (1 - ROUNDING))
        until = min(until, place)  # not itself again, even if it takes no time
        place = max(
            range(min(since, until - 1), until) if until else [-1],
            key=lambda choice: (
                ended[choice][2] in before[number],
                axis[ended[choice][2]] == axis[number],
                choice,
            ),
        )
    return dict(critical)
