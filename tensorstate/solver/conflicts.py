"""Why decisions exceed a memory limit: the fewest tensor groups that take more than it alone."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tensorstate.cost.decisions import find_recomputed_nodes
from tensorstate.cost.memory import bytes_by_point, input_bytes
from tensorstate.cost.reshard_plan import ReshardPlan
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
    recomputed_nodes = find_recomputed_nodes(problem, found.decisions)
    by_group: dict[int, list[ReshardPlan]] = defaultdict(list)
    for reshard in found.cost.reshards:
        by_group[reshard.group].append(reshard)
    numbers = sorted(by_group)
    strategies = found.decisions.strategies
    nbytes = np.array(
        [
            input_bytes(problem, by_group[n])
            + bytes_by_point(problem, n, strategies, by_group[n], recomputed_nodes).sum(0)
            for n in numbers
        ]
    )
    at_peak = nbytes[:, int(nbytes.sum(0).argmax())]
    largest = np.argsort(-at_peak, kind="stable")
    needed = int(np.searchsorted(np.cumsum(at_peak[largest]), limit, side="right")) + 1
    return [numbers[i] for i in largest[:needed]]
