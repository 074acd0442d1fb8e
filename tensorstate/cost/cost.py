"""The cost of decisions: compute, communication and memory of a training step per device.

Compute and communication are totals. The step takes their sum if they do not overlap, and the
larger of the two if they overlap perfectly (Zhao's dissertation, section 5.4). The time of its
schedule (``timeline``) is in between, and is the one that is reported. This module also defines a
solver's question and its answer: options, and decisions with their cost and a lower bound.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from jaxcoll.numerics import checks
from tensorstate.cost.memory import (
    Memory,
    bytes_by_point,
    host_bytes,
    input_bytes,
    no_bytes,
    peak_memory,
)
from tensorstate.cost.reshard_plan import (
    Decisions,
    ReshardPlan,
    find_kept,
    reshard_plans,
)
from tensorstate.cost.timeline import StepSchedule, schedule_step
from tensorstate.errors import PlanError
from tensorstate.keeping import table
from tensorstate.keeping.base import Keeping
from tensorstate.keeping.table import Kept
from tensorstate.problem.problem import InnerSend, Problem


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Cost:
    """The cost of a training step.

    Attributes:
        compute: seconds of all operators.
        communication: seconds of all collectives.
        bytes_by_collective: bytes by (kind, mesh axis), of the larger of a device's buffers.
        count_by_collective: number of collectives by (kind, mesh axis).
        memory: bytes per device.
        reshards: the reshard plans of all tensors.
        inner_sends: the sends within operators, for all nodes of a class together.
        kept: the keepings of nodes whose results are read after the forward pass.
        schedule: makes the step's schedule within a memory limit; see ``timeline``.
    """

    compute: float
    communication: float
    bytes_by_collective: Mapping[tuple[str, int], int]
    count_by_collective: Mapping[tuple[str, int], int]
    memory: Memory
    reshards: tuple[ReshardPlan, ...]
    inner_sends: tuple[InnerSend, ...]
    kept: Kept
    schedule: Callable[[float | None], StepSchedule]

    def __getstate__(self) -> dict:
        """The state without the schedules, which belong to a problem; each process has its own."""
        # A closure cannot be pickled, either.
        return {**self.__dict__, "schedule": None}

    def timeline(self, memory_limit: float | None = None) -> StepSchedule:
        """The step's schedule, whose makespan is the time of the step.

        Args:
            memory_limit: bytes per device, whose free part collectives ahead of their readers may
                use; the device's memory by default.
        """
        return self.schedule(None if memory_limit == math.inf else memory_limit)

    @property
    def serial_seconds(self) -> float:
        """Seconds without overlap: the sum of compute and communication."""
        return self.compute + self.communication

    @property
    def overlapped_seconds(self) -> float:
        """Seconds with perfect overlap: the larger of the two."""
        return max(self.compute, self.communication)

    def __repr__(self) -> str:
        return (
            f"Cost(compute {self.compute:.4g} s, communication {self.communication:.4g} s of "
            f"{sum(self.count_by_collective.values())} collectives, {self.memory.peak:.4g} B per "
            "device)"
        )


def estimate_cost(problem: Problem, decisions: Decisions) -> Cost:
    """The cost of a training step under decisions.

    Raises:
        PlanError: a tensor cannot be resharded to the placements that are saved or required.
    """
    kept = find_kept(problem, decisions)
    inputs, nbytes, reshards = 0, no_bytes(problem), list[ReshardPlan]()
    for number in range(len(problem.tensor_groups)):
        group = _group_cost(problem, decisions, kept, number)
        reshards += group.reshards
        inputs += group.inputs
        nbytes += group.nbytes
    bytes_by_collective: dict[tuple[str, int], int] = defaultdict(int)
    count_by_collective: dict[tuple[str, int], int] = defaultdict(int)
    communication = []
    for reshard in reshards:
        communication.append(reshard.multiplicity * reshard.seconds)
        for step, num_repeats in reshard.counted_steps:
            if step.kind != "slice":  # a slice is local
                bytes_by_collective[step.kind, step.axis] += (
                    reshard.multiplicity * num_repeats * step.nbytes
                )
                count_by_collective[step.kind, step.axis] += reshard.multiplicity * num_repeats
    num_reruns = Counter(problem.graph.nodes[node].class_id for node in kept.rerun)
    # A node that reruns repeats the sends within it.
    runs = [problem.multiplicity(g) + num_reruns[g] for g in range(len(decisions.strategies))]
    compute = math.fsum(
        [
            *(runs[g] * problem.seconds(g, own) for g, own in enumerate(decisions.strategies)),
            *(r.multiplicity * r.keeping_seconds for r in reshards if r.keeping_seconds),
        ]
    )
    inner_sends = tuple(
        send._replace(times=runs[g] * send.times)
        for g, strategy in enumerate(decisions.strategies)
        for send in problem.inner_sends(g, strategy)
    )
    for send in inner_sends:
        communication.append(problem.inner_send_seconds(send))
        bytes_by_collective[send.kind, send.axis] += send.times * send.nbytes
        count_by_collective[send.kind, send.axis] += send.times
    live = inputs + nbytes.sum(0)

    # On demand, since most plans that are priced are never timed.
    @functools.cache
    def schedule(memory_limit: float | None) -> StepSchedule:
        return schedule_step(problem, decisions, reshards, kept, live, memory_limit)

    return Cost(
        compute,
        math.fsum(communication),
        bytes_by_collective,
        count_by_collective,
        peak_memory(inputs, nbytes, host_bytes(problem, decisions, reshards, kept)),
        tuple(reshards),
        inner_sends,
        kept,
        schedule,
    )


class _GroupCost(NamedTuple):
    """A tensor group's part of the cost of decisions.

    Attributes:
        decided: everything that determines the other attributes.
        reshards: its reshard plans.
        inputs: bytes of inputs.
        nbytes: all other bytes by category and program point.
    """

    decided: tuple
    reshards: tuple[ReshardPlan, ...]
    inputs: int
    nbytes: np.ndarray


def _group_cost(problem: Problem, decisions: Decisions, kept: Kept, number: int) -> _GroupCost:
    """The cost of a tensor group; reused from the last decisions if they are the same for it."""
    group, strategies = problem.tensor_groups[number], decisions.strategies
    readers = [c.class_id for c in group.consumer_classes if c.class_id is not None]
    decided = (
        strategies[group.class_id],
        [strategies[class_id] for class_id in readers],
        [decisions.saved.get(tensor) for tensor in group.tensors] if decisions.saved else [],
        [decisions.loop_resident.get(t) for t in group.tensors] if decisions.loop_resident else [],
        kept,
    )
    # Its cost depends only on these. A search prices plan after plan that differ in few groups, so
    # one cost is kept per group, which needs no limit.
    last = problem.group_costs.get(number)
    if isinstance(last, _GroupCost) and last.decided == decided:
        return last
    reshards = tuple(reshard_plans(problem, decisions, kept, number))
    found = _GroupCost(
        decided,
        reshards,
        input_bytes(problem, reshards),
        bytes_by_point(problem, number, strategies, reshards, kept),
    )
    problem.group_costs[number] = found
    return found


def seconds_by_collective(problem: Problem, cost: Cost) -> Mapping[tuple[str, int], float]:
    """Seconds of the collectives by (kind, mesh axis)."""
    spent: dict[tuple[str, int], list[float]] = defaultdict(list)
    # From steps, not from plans: a plan's seconds are those of all axes together.
    for reshard in cost.reshards:
        reshard_graph = problem.reshard_graph(problem.tensor_groups[reshard.group])
        for step, num_repeats in reshard.counted_steps:
            if step.kind != "slice":
                spent[step.kind, step.axis].append(
                    reshard.multiplicity * num_repeats * reshard_graph.seconds(step)
                )
    for send in cost.inner_sends:
        spent[send.kind, send.axis].append(problem.inner_send_seconds(send))
    return {key: math.fsum(values) for key, values in spent.items()}


# ---------------------------------------------------------------------- the result of a search


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """The objective and the constraints of a search, the same for every solver.

    Attributes:
        keepings: the ways in which activations may be kept for the backward pass, the default first
            (see ``tensorstate.keeping.table.allowed``).
        memory_limit: bytes of memory per device, or a text such as "80GB"; ``None`` for no limit.
        objective: minimize the seconds of the schedule ("overlap"), the "sum" of compute and
            communication, or the larger of both ("max").

    Raises:
        PlanError: the objective is unknown, the limit is not above 0, or a keeping is not in the
            table.
    """

    keepings: tuple[Keeping, ...] = (table.DEFAULT,)
    memory_limit: float | None = None
    objective: str = "sum"

    def __post_init__(self) -> None:
        checks.choice(self.objective, ("overlap", "sum", "max"), "objective", PlanError)
        checks.put(self, keepings=_checked_keepings(self.keepings))
        # An infinite limit is kept: unlike ``None`` it makes a program count bytes.
        if not (isinstance(self.memory_limit, float) and self.memory_limit == math.inf):
            limit = checks.optional(self.memory_limit, checks.memory, "memory_limit", PlanError)
            checks.put(self, memory_limit=None if limit is None else float(limit))

    @property
    def linear(self) -> SearchOptions:
        """The options of the programs that are solved: a schedule is timed, not minimized."""
        return dataclasses.replace(self, objective="sum") if self.objective == "overlap" else self

    @property
    def free(self) -> SearchOptions:
        """The options without a memory limit, with which everything may be kept by default."""
        return dataclasses.replace(self, memory_limit=None, keepings=(table.DEFAULT,))

    def value(self, cost: Cost) -> float:
        """The seconds that are minimized."""
        if self.objective == "overlap":
            return cost.timeline(self.memory_limit).seconds
        return cost.serial_seconds if self.objective == "sum" else cost.overlapped_seconds


def _checked_keepings(given: object) -> tuple[Keeping, ...]:
    """The keepings, the default first."""
    keepings = tuple(checks.sequence(given, "keepings", PlanError))
    is_known = all(isinstance(each, Keeping) and each in table.KEEPINGS for each in keepings)
    if not is_known or keepings[:1] != (table.DEFAULT,):
        known = ", ".join(map(str, table.KEEPINGS))
        raise PlanError(
            f"keepings must be some of {known}, {table.DEFAULT} first, got {checks.shown(given)}: "
            "take tensorstate.keeping.table.allowed()"
        )
    return keepings


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """The best decisions that a solver found.

    Attributes:
        decisions: the best decisions.
        cost: their cost.
        objective: the minimized seconds (see ``SearchOptions``).
        bound: lower bound of the objective over all decisions; ``-inf`` if none was proved.
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
        if self.objective <= 0:  # nothing is computed or sent, which is optimal
            return 0.0
        return max(0.0, (self.objective - self.bound) / self.objective)

    def __repr__(self) -> str:
        return (
            f"SearchResult({len(self.decisions.strategies)} strategies by {self.method}, "
            f"{self.objective:.4g} s, at least {self.bound:.4g} s, found in {self.seconds:.3g} s)"
        )


def result_order(result: SearchResult, memory_limit: float | None) -> tuple[bool, float]:
    """Sort key: plans within the memory limit first, then by objective.

    A result may exceed the limit, because shares of layers are rounded to whole layers.
    """
    return not result.cost.memory.fits(memory_limit), result.objective


@dataclasses.dataclass(frozen=True, eq=False)
class Infeasible:
    """No decisions within the memory limit were found.

    Attributes:
        proven: whether none exist; otherwise none were found in time.
        least_memory: decisions with approximately the least memory, if they were found.
        least_bytes: a lower bound on the bytes of all decisions, if the least memory was searched.
        seconds: those of the search.
    """

    proven: bool
    least_memory: SearchResult | None = None
    least_bytes: float | None = None
    seconds: float | None = None
