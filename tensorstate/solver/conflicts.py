"""Why decisions exceed a memory limit: the fewest tensor groups that take more than it alone."""

from __future__ import annotations

import numpy as np

from tensorstate.cost.decisions import find_recomputed_nodes
from tensorstate.cost.memory import bytes_by_group
from tensorstate.cost.result import SearchResult
from tensorstate.problem.problem import Problem


def crowded_groups(problem: Problem, found: SearchResult, limit: float) -> list[int]:
    """Tensor groups that exceed a limit together at the program point with the most live bytes.

    Whatever is decided for all others, the memory exceeds the limit while these groups have the
    same strategies, saved and loop-resident copies.

    Args:
        found: decisions with a peak above the limit.
        limit: bytes per device.
    """
    decisions = found.decisions
    recomputed_nodes = find_recomputed_nodes(problem, decisions)
    by_group = {
        number: inputs + others.sum(0)
        for number, inputs, others in bytes_by_group(
            problem, decisions, found.cost.reshards, recomputed_nodes
        )
    }
    numbers = sorted(by_group)
    nbytes = np.array([by_group[number] for number in numbers])
    at_peak = nbytes[:, int(nbytes.sum(0).argmax())]
    largest = np.argsort(-at_peak, kind="stable")
    needed = int(np.searchsorted(np.cumsum(at_peak[largest]), limit, side="right")) + 1
    return [numbers[i] for i in largest[:needed]]
