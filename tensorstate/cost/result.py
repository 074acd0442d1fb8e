"""What a search returns: decisions with their cost and a bound, or the reason for none."""

from __future__ import annotations

import dataclasses
from typing import TypedDict

from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """What a search found.

    Attributes:
        decisions: the best.
        cost: theirs.
        objective: seconds of what was minimized: the sum or the larger of compute and
            communication.
        bound: seconds of it that no decisions beat; ``-inf`` where none was proved.
        method: "milp" or "descent".
        seconds: that the search took.
    """

    decisions: Decisions
    cost: Cost
    objective: float
    bound: float
    method: str
    seconds: float


def result_order(found: SearchResult, limit: float | None) -> tuple[bool, float]:
    """Plans that fit come first; rounding shares to whole layers may have taken too much."""
    return not found.cost.memory.fits(limit), found.objective


@dataclasses.dataclass(frozen=True, eq=False)
class Infeasible:
    """Nothing that fits was found.

    Attributes:
        proven: whether nothing fits; else it was not found in time.
        least_memory: about the least memory that was found.
    """

    proven: bool
    least_memory: SearchResult | None = None


class SearchOptions(TypedDict):
    """Arguments that are handed on."""

    recompute: bool
    memory_limit: float | None
    objective: str


def objective_value(cost: Cost, objective: str) -> float:
    """Seconds of what is minimized: "sum" or "max" of compute and communication."""
    return cost.serial_seconds if objective == "sum" else cost.overlapped_seconds
