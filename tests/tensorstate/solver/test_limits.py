"""Memory limits at the very peak of a plan, and a byte below, against enumeration of all plans.

A program that counts a byte too many refuses a plan at its own peak; one that counts a byte too few
takes a plan that does not fit, or calls another the best.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tests.tensorstate.exhaustive import Every
from tests.tensorstate.solvers import solve_milp
from tests.tensorstate.tiny import LINES, MESHES, graph

# A function, a mesh, microbatches, whether operators may be recomputed, and the most plans of one
# set of recomputed operators and saved placements.
CASES = [
    ("linear", LINES[0], 1, True, 20),
    ("chain", LINES[1], 1, False, 200),
    ("residual", MESHES[-1], 1, False, 100),
    ("linear", LINES[0], 2, False, 20),
    ("greatest", LINES[1], 4, False, 20),
]


def fewer_strategies(problem: Problem, most: int) -> list[list[Strategy]]:
    """Candidates with at most so many combinations, from both ends of those of every class."""
    candidates = [list(strategies.all) for strategies in problem.strategies]
    while math.prod(map(len, candidates)) > most:
        largest = max(candidates, key=len)
        largest.pop(len(largest) // 2)
    return candidates


def trade_offs(every: Every) -> list[int]:
    """The peaks of plans than which none is both smaller and as fast."""
    peaks = np.concatenate([columns.peak.ravel() for columns in every.columns])
    seconds = np.concatenate([columns.objective("sum").ravel() for columns in every.columns])
    found, least = [], math.inf
    for i in np.lexsort((seconds, peaks)):
        if np.isfinite(peaks[i]) and seconds[i] < least * (1 - 1e-9):
            found.append(int(peaks[i]))
            least = seconds[i]
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}-{case[3]}")
def test_a_limit_is_met_to_the_byte(case):
    name, mesh, microbatches, recompute, most = case
    axes = len(mesh.sizes)
    network = AlphaBetaCosts(mesh, (1e-7,) * axes, (1e8,) * axes)
    problem = Problem(graph(name), network, Hardware("slow", {4: 1e9}, 1e9, 1e9), microbatches)
    candidates = fewer_strategies(problem, most)
    every = Every(problem, candidates, recompute=recompute, save=True)
    refused = ""
    for peak in trade_offs(every):
        for limit in (peak, peak - 1):
            least, _ = every.best("sum", limit)
            try:
                found = solve_milp(
                    problem, candidates, recompute=recompute, memory_limit=limit, gap=1e-7
                )
            except PlanError as error:
                refused = str(error)
                assert math.isinf(least), f"refused at {limit} bytes"
                continue
            assert found.objective == pytest.approx(least, rel=1e-6), f"at {limit} bytes"
            assert found.cost.memory.peak <= limit
    assert int(re.findall(r"about (\d+) bytes", refused)[0]) == every.least_peak
    # Every byte of it has a name.
    parts = r"(?:inputs|saved|gradients|temporaries) (\d+) bytes"
    named = [int(nbytes) for nbytes in re.findall(parts, refused)]
    assert (len(named), sum(named)) == (4, every.least_peak)
