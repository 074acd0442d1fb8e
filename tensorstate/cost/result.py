"""The question a solver is asked, and its answer: decisions with their cost and a lower bound."""

from __future__ import annotations

import dataclasses
import math

from jaxcoll.numerics import checks
from tensorstate.cost.cost import Cost
from tensorstate.cost.decisions import Decisions
from tensorstate.errors import PlanError


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """The objective and the constraints of a search, the same for every solver.

    Attributes:
        recompute: whether activations may be recomputed in the backward pass.
        memory_limit: bytes of memory per device, or a text such as "80GB"; ``None`` for no limit.
        objective: minimize the "sum" of compute and communication seconds, or the larger ("max").

    Raises:
        PlanError: an unknown objective, a limit that is not above 0, or ``recompute`` that is no
            boolean.
    """

    recompute: bool = False
    memory_limit: float | None = None
    objective: str = "sum"

    def __post_init__(self) -> None:
        checks.choice(self.objective, ("sum", "max"), "objective", PlanError)
        checks.flag_fields(self, PlanError, "recompute")
        if not (isinstance(self.memory_limit, float) and self.memory_limit == math.inf):
            limit = checks.optional(self.memory_limit, checks.memory, "memory_limit", PlanError)
            checks.put(self, memory_limit=None if limit is None else float(limit))

    def value(self, cost: Cost) -> float:
        """The seconds that are minimized."""
        return cost.serial_seconds if self.objective == "sum" else cost.overlapped_seconds


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """The best decisions that a solver found.

    Attributes:
        decisions: the best ones.
        cost: the cost of these decisions.
        objective: the minimized seconds: the sum of compute and communication, or the larger.
        bound: lower bound of the objective over all decisions; ``-inf`` where none was proved.
        method: "milp" or "descent".
        seconds: wall-clock seconds of the search.
    """

    decisions: Decisions
    cost: Cost
    objective: float
    bound: float
    method: str
    seconds: float

    @property
    def gap(self) -> float:
        """Distance from the bound, relative to the objective: 0 is proved optimal."""
        if self.objective <= 0:
            return 0.0
        return max(0.0, (self.objective - self.bound) / self.objective)


def result_order(result: SearchResult, memory_limit: float | None) -> tuple[bool, float]:
    """Sort key: plans within the memory limit first, then by objective.

    A result may exceed the limit, since shares of layers are rounded to whole layers.
    """
    return not result.cost.memory.fits(memory_limit), result.objective


@dataclasses.dataclass(frozen=True, eq=False)
class Infeasible:
    """No decisions within the memory limit were found.

    Attributes:
        proven: whether none exist; otherwise none were found in time.
        least_memory: decisions with approximately the least memory, where they were searched.
    """

    proven: bool
    least_memory: SearchResult | None = None
